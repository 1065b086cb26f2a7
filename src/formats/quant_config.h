// What a checkpoint's configuration files claim about its quantisation.
//
// Two spellings are read: `hf_quant_config.json` (ModelOpt) and `quantization_config` in
// config.json, at the top or in text_config (modelopt, modelopt_mixed; compressed-tensors
// mxfp4-pack-quantized and nvfp4-pack-quantized). Both may be there if they agree. A claim is only
// compared with what is stored (stored_matrix.h): tensors decide. Names and patterns:
// module_pattern.h.
//
// Claims, in this order: an entry of `quantized_layers` for the module or a parent of it; a pattern
// of `exclude_modules` or `ignore`; in a mixed file, nothing more (absent means unquantised); else
// the one algorithm of the file. Entries that match no tensor are aliases and mean nothing.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "formats/module_pattern.h"
#include "halfbyte/tensor.h"

namespace halfbyte {

struct QuantClaim {
  std::optional<WeightFormat> format;  // none: unquantised
  bool is_explicit = false;            // an entry or a pattern names the module or a parent of it
  std::string source;                  // "DIR/config.json: quantization_config.ignore: lm_head"
};

class QuantConfig {
 public:
  // DIR/hf_quant_config.json and DIR/config.json, either or none. Throws Error{kInput} for what is
  // unknown, malformed or contradictory, Error{kUnsupported} for known kinds that halfbyte does not
  // run.
  static QuantConfig from_directory(const std::filesystem::path& directory);
  static QuantConfig from_hf_quant_config(const Json& root);
  static QuantConfig from_model_config(const Json& root);

  // False: no file claims anything.
  bool present() const { return !method_.empty(); }
  const std::string& method() const { return method_; }        // "modelopt", "compressed-tensors"
  const std::string& algorithm() const { return algorithm_; }  // "MIXED_PRECISION", "NVFP4", ...
  const std::string& kv_cache() const { return kv_cache_; }    // "FP8"; "" if nothing is claimed

  // Throws Error{kInput} if one module is both listed as quantised and excluded.
  QuantClaim claim_for(std::string_view module) const;

 private:
  struct Layer {
    WeightFormat format;
    std::string where;
  };
  struct Group {
    std::vector<ModulePattern> targets;
    WeightFormat format;
  };

  void read_modelopt(const Json& object);
  void read_compressed_tensors(const Json& object);
  void read_excluded(const Json& object, std::string_view key);
  void check_agrees_with(const QuantConfig& other) const;

  std::string where_;
  std::string method_;
  std::string algorithm_;
  std::string kv_cache_;
  bool mixed_ = false;
  std::optional<WeightFormat> format_;                // of every linear layer, if not mixed
  std::map<std::string, Layer, std::less<>> layers_;  // quantized_layers
  std::vector<Group> groups_;                         // config_groups with targets of their own
  std::vector<ModulePattern> excluded_;
  std::string excluded_where_;
};

// Why a matrix stored as `stored` contradicts the claim, if it does. BF16 where a whole file claims
// FP4 is no contradiction (routers and norms are often not listed), nor are quantised tensors that
// nobody claims.
std::optional<std::string> find_contradiction(const QuantClaim& claim, WeightFormat stored);

}  // namespace halfbyte
