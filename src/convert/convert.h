// A checkpoint in BF16, or with MXFP4 experts, to ModelOpt's NVFP4 layout.
//
// What becomes of which tensor: convert/recipe.h. The work streams: tensors are read where they are
// mapped, converted in chunks by all threads, written to their places, and their pages dropped, so
// that memory stays bounded by the tensors of one expert. Everything is written into OUT.partial;
// index and configuration come last, and one rename makes it OUT: a conversion that is killed
// leaves no checkpoint. The output depends on the input and the options alone, not on threads.
// Checked: tests/unit/convert/, tests/e2e/convert_test.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "convert/recipe.h"
#include "formats/mxfp4.h"
#include "formats/nvfp4.h"

namespace halfbyte {

struct ConvertOptions {
  RecipeOptions recipe;
  // For experts in BF16 or F32. MXFP4 experts keep their codes; a block that NVFP4 cannot hold
  // always gets the scale with the least squared error.
  ScaleChoice scale = ScaleChoice::kMax;
  int threads = 0;  // 0: as many as the process may run on
  int64_t max_shard_bytes = 4'000'000'000;
  std::string producer_version = "halfbyte";
  // Called once, before anything is written, with the config.json of the result; throws Error to
  // refuse a source whose result could not be run. Empty: what recipe.h asks for is enough.
  std::function<void(const Checkpoint& source, const std::string& config_json)> accept;
  std::function<void(int64_t done_bytes, int64_t total_bytes)>
      progress;  // any thread; may be empty
};

// One converted matrix.
struct ConvertedMatrix {
  std::string module;
  WeightFormat from = WeightFormat::kBf16;
  WeightFormat to = WeightFormat::kNvfp4;
  int64_t elements = 0;
  float global_scale = 1.0f;  // kNvfp4
  CastCounts cast;            // MXFP4 only: halves of 16
};

struct ConvertReport {
  std::vector<ConvertedMatrix> matrices;  // in the order of the output
  int64_t copied_tensors = 0;
  int64_t copied_bytes = 0;
  LeftOut layers_left_out, experts_left_out;
  int64_t read_bytes = 0;  // of the tensors that were kept
  int64_t written_bytes = 0;
  int64_t shards = 0;
};

// Throws Error before anything is written if OUT exists and is not empty, if OUT.partial is there
// and not from a conversion, if another conversion writes there, if the disk has too little room,
// if the input is not what recipe.h says, or if `accept` refuses it; and Error{kInput} naming
// tensor and index for a weight that is not finite or an MXFP4 scale that is NaN. After an Error
// nothing is left behind, not even a folder above OUT that was made for it.
ConvertReport convert_checkpoint(const std::filesystem::path& in, const std::filesystem::path& out,
                                 const ConvertOptions& options);

std::string report_json(const ConvertReport& report, const ConvertOptions& options);
std::string report_table(const ConvertReport& report);  // for a person

}  // namespace halfbyte
