#include "model/convertible.h"

#include <fmt/format.h>

#include <optional>

#include "halfbyte/moe.h"
#include "model/roster.h"

namespace halfbyte {

namespace {
void check_values(const Checkpoint& source, const ModelConfig& config, const RosterEntry& entry) {
  if (entry.role == TensorRole::kVector) read_values(source.get(entry.name));
  if (entry.role == TensorRole::kLogDecay) read_log_decay(source.get(entry.name), config.kda.heads);
}
}  // namespace

void check_convertible(const Checkpoint& source, const ModelConfig& result) {
  // NOTE: routers still have a row for each expert, so the source's number of them counts here.
  ModelConfig config = result;
  config.moe.num_experts = read_model_config(source.directory()).moe.num_experts;

  std::optional<Error> first;
  int64_t others = 0;
  const auto report = [&](const Error& error) {
    if (first)
      ++others;
    else
      first = error;
  };
  const std::vector<RosterEntry> roster = make_roster(config, name_prefix(source));
  for (const RosterEntry& entry : roster) {
    try {
      check_entry(source, entry);
      check_values(source, config, entry);
    } catch (const Error& error) {
      report(error);
    }
  }
  for (const UnreadTensor& unread : unread_tensors(source, config, roster))
    if (unread.kind == UnreadKind::kUnknown) report(unknown_tensor_error(*unread.tensor));
  if (first && others > 0)
    throw Error(first->kind(), first->where(),
                fmt::format("{} (and {} more reasons; `halfbyte inspect {}` lists them)",
                            first->message(), others, source.directory().string()));
  if (first) throw *first;

  plan_moe({.num_experts = result.moe.num_experts,
            .top_k = result.moe.top_k,
            .hidden = result.expert_width(),
            .intermediate = result.moe.intermediate,
            .activation = result.activation,
            .weights = WeightFormat::kNvfp4},
           {.max_tokens = 1}, *open_device("auto", {.threads = 1}));
}

}  // namespace halfbyte
