#include "model/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/json.h"
#include "halfbyte/error.h"

namespace halfbyte {

std::vector<int32_t> read_stop_tokens(const std::filesystem::path& directory,
                                      const ModelConfig& config) {
  std::vector<int32_t> tokens;
  const auto add = [&](const Json& id) {
    if (id.integer() < 0 || id.integer() >= config.vocab_size)
      id.fail(fmt::format("{} is outside the vocabulary, expected 0 to {}", id.integer(),
                          config.vocab_size - 1));
    tokens.push_back(static_cast<int32_t>(id.integer()));
  };
  const std::filesystem::path path = directory / "generation_config.json";
  if (std::filesystem::exists(path)) {
    const JsonDocument document = JsonDocument::from_file(path);
    if (const auto eos = document.root().find_value("eos_token_id")) {
      if (eos->type() == Json::Type::kArray)
        for (const Json& id : eos->elements()) add(id);
      else
        add(*eos);
    }
  }
  if (tokens.empty() && config.eos_token) tokens.push_back(*config.eos_token);
  return tokens;
}

std::span<const float> Generator::forward(std::span<const int32_t> ids) {
  const std::span<const float> logits = model_.forward(ids, *sequence_);
  held_.insert(held_.end(), ids.begin(), ids.end());
  return logits;
}

GenerateStats Generator::generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                                  const std::function<bool(int32_t)>& on_token) {
  check_sampling(options.sampling);
  if (options.max_new_tokens < 1)
    throw Error(ErrorKind::kInput, "max-new-tokens",
                fmt::format("is {}, expected at least 1", options.max_new_tokens));

  using Clock = std::chrono::steady_clock;
  auto began = Clock::now();
  const auto lap = [&] {
    const auto now = Clock::now();
    return std::chrono::duration<double>(now - std::exchange(began, now)).count();
  };
  GenerateStats stats;
  stats.prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t needed = stats.prompt_tokens + options.max_new_tokens;
  const int64_t capacity = sequence_ ? sequence_->capacity() : 0;
  const bool reuse = needed <= capacity && held_.size() < prompt.size() &&
                     std::equal(held_.begin(), held_.end(), prompt.begin());
  if (!reuse) {
    held_.clear();
    sequence_.reset();  // before the next one takes memory
    sequence_ = model_.new_sequence(needed <= capacity ? capacity : std::max(needed, 2 * capacity));
  }
  stats.reused_tokens = static_cast<int64_t>(held_.size());
  std::span<const float> logits = forward(prompt.subspan(held_.size()));
  stats.prompt_seconds = lap();

  for (;;) {
    const int32_t next =
        sample(logits, options.sampling, static_cast<uint64_t>(stats.decode_steps));
    if (std::count(options.stop_tokens.begin(), options.stop_tokens.end(), next) > 0) break;
    const bool go_on = on_token(next);
    if (++stats.new_tokens == options.max_new_tokens || !go_on) break;
    logits = forward({&next, 1});
    ++stats.decode_steps;
  }
  stats.decode_seconds = lap();
  return stats;
}

GenerateStats generate(Model& model, std::span<const int32_t> prompt,
                       const GenerateOptions& options,
                       const std::function<void(int32_t)>& on_token) {
  return Generator(model).generate(prompt, options, [&](int32_t id) {
    on_token(id);
    return true;
  });
}

}  // namespace halfbyte
