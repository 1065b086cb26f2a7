// Any bytes as config.json and as hf_quant_config.json.
#include "base/json.h"
#include "formats/quant_config.h"
#include "fuzz.h"
#include "model/config.h"

FUZZ_TARGET(config) {
  const auto document = halfbyte::JsonDocument::from_text(data, "fuzz.json");
  refuse_or_finish([&](std::string_view) { (void)halfbyte::parse_model_config(document.root()); },
                   data);
  const auto ask = [](const halfbyte::QuantConfig& config) {
    for (const char* module : {"model.layers.1.block_sparse_moe.experts.0.w1", "lm_head", ""})
      (void)config.claim_for(module);
  };
  refuse_or_finish(
      [&](std::string_view) { ask(halfbyte::QuantConfig::from_hf_quant_config(document.root())); },
      data);
  refuse_or_finish(
      [&](std::string_view) { ask(halfbyte::QuantConfig::from_model_config(document.root())); },
      data);
}
