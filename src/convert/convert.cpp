#include "convert/convert.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/file.h"
#include "base/threads.h"
#include "formats/bf16.h"
#include "formats/fp8_block.h"
#include "formats/stored_matrix.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunkBytes = 1 << 20;         // of input, that one thread takes at a time
constexpr int64_t kLargestCompanion = 64 << 20;  // tokenizer files and the like

// ---- The output directory: OUT.partial until `commit` -----------------------------------------

Error cannot_be_made(const fs::path& folder, const std::error_code& why) {
  return {ErrorKind::kInput, folder.string(),
          fmt::format("cannot be made a directory: {}", why.message())};
}

// Makes the folders that a path lies in; those that were not there vanish again unless kept.
class NewFolders {
 public:
  explicit NewFolders(const fs::path& path) : NewFolders() {
    const fs::path parent = path.parent_path();
    for (fs::path folder = parent; !folder.empty() && !fs::exists(folder);
         folder = folder.parent_path())
      made_.push_back(folder);
    std::error_code error;
    if (!parent.empty()) fs::create_directories(parent, error);
    if (error) throw cannot_be_made(parent, error);
  }
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;
  ~NewFolders() {
    std::error_code ignored;  // somebody else may use them by now
    for (const fs::path& folder : made_) fs::remove(folder, ignored);
  }
  void keep() { made_.clear(); }

 private:
  // NOTE: delegated to, so that the destructor also runs if the public one throws.
  NewFolders() = default;
  std::vector<fs::path> made_;  // the innermost first
};

class OutputDirectory {
 public:
  explicit OutputDirectory(const fs::path& out)
      : out_(plain_name(out)), partial_(out_), parents_(out_) {
    partial_ += ".partial";
    if (fs::exists(fs::symlink_status(out_)) &&
        !(fs::is_directory(fs::symlink_status(out_)) && fs::is_empty(out_)))
      throw Error(ErrorKind::kInput, out_.string(),
                  "exists and is not an empty directory: name another or remove it");
    take_partial();
    // What a conversion that was killed has left.
    for (const auto& entry : fs::directory_iterator(partial_))
      if (entry.path().filename() != kLockName) fs::remove_all(entry.path());
  }
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;
  ~OutputDirectory() {
    if (lock_ < 0) return;
    std::error_code ignored;
    fs::remove_all(partial_, ignored);
    ::close(lock_);
  }

  const fs::path& path() const { return partial_; }

  void commit() {
    fs::rename(partial_, out_);
    parents_.keep();
    // NOTE: after the rename: OUT.partial without its lock would not be taken for ours.
    fs::remove(out_ / kLockName);
    ::close(std::exchange(lock_, -1));
    const int parent = ::open(fs::absolute(out_).parent_path().c_str(), O_RDONLY | O_CLOEXEC);
    if (parent < 0) return;
    ::fsync(parent);
    ::close(parent);
  }

 private:
  static constexpr const char* kLockName = ".halfbyte-convert.lock";

  // Without "." and "/" at the end: the last part is what the rename makes.
  static fs::path plain_name(const fs::path& out) {
    fs::path plain = out.lexically_normal();
    if (!plain.has_filename()) plain = plain.parent_path();  // "out/"
    if (!plain.has_filename() || plain.filename() == "." || plain.filename() == "..")
      throw Error(ErrorKind::kInput, fmt::format("\"{}\"", out.string()),
                  "is no name for a new directory");
    return plain;
  }

  // Makes OUT.partial, or takes over one of ours, known by its lock.
  void take_partial() {
    if (fs::exists(fs::symlink_status(partial_)) && !fs::exists(partial_ / kLockName) &&
        !(fs::is_directory(fs::symlink_status(partial_)) && fs::is_empty(partial_)))
      throw Error(ErrorKind::kInput, partial_.string(),
                  "is in the way and not from a conversion: remove it, or name another directory");
    std::error_code error;
    fs::create_directory(partial_, error);
    if (error) throw cannot_be_made(out_, error);
    lock_ = ::open((partial_ / kLockName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock_ < 0 || ::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      if (lock_ >= 0) ::close(lock_);
      throw Error(ErrorKind::kInput, partial_.string(),
                  lock_ >= 0 ? "another conversion writes here" : "cannot be written");
    }
  }

  fs::path out_, partial_;
  NewFolders parents_;
  int lock_ = -1;
};

// ---- Which unit goes into which shard ----------------------------------------------------------

// A run of units whose tensors make one file.
struct Shard {
  size_t begin = 0, end = 0;
  int64_t bytes = 0;
};

std::vector<Shard> plan_shards(const std::vector<Unit>& units, int64_t max_bytes) {
  std::vector<Shard> shards;
  for (size_t u = 0; u < units.size(); ++u) {
    int64_t bytes = 0;
    for (const auto& tensor : outputs_of(units[u])) bytes += bytes_of(tensor);
    if (shards.empty() || shards.back().bytes + bytes > max_bytes) shards.push_back({u, u, 0});
    shards.back().end = u + 1;
    shards.back().bytes += bytes;
  }
  return shards;
}

std::string shard_name(size_t shard, size_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, count);
}

// The file of one shard. Tensors lie in it by falling element size, so that all are aligned.
class ShardFile {
 public:
  ShardFile(const fs::path& path, const Recipe& recipe, const Shard& shard) : begin_(shard.begin) {
    std::vector<TensorSpec> specs;
    for (size_t u = shard.begin; u < shard.end; ++u) {
      first_.push_back(specs.size());
      std::ranges::move(outputs_of(recipe.units[u]), std::back_inserter(specs));
    }
    std::vector<size_t> order(specs.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) {
      return dtype_bytes(specs[a].dtype) > dtype_bytes(specs[b].dtype);
    });
    place_.resize(specs.size());
    for (size_t place = 0; place < order.size(); ++place) {
      place_[order[place]] = place;
      tensors_.push_back(std::move(specs[order[place]]));
    }
    writer_ = std::make_unique<SafetensorsWriter>(
        path, tensors_, std::map<std::string, std::string>{{"format", "pt"}});
  }

  // Bytes of output `output` of unit `unit`; from any thread.
  void write(size_t unit, size_t output, int64_t offset, const void* data, size_t bytes) {
    writer_->write_at(place_[first_[unit - begin_] + output], static_cast<size_t>(offset), data,
                      bytes);
  }
  void commit() { writer_->commit(); }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }

 private:
  size_t begin_;
  std::vector<size_t> first_;  // of each unit: its first output
  std::vector<size_t> place_;  // of each output: where it is in `tensors_`
  std::vector<TensorSpec> tensors_;
  std::unique_ptr<SafetensorsWriter> writer_;
};

// ---- The work ----------------------------------------------------------------------------------

size_t offset_in_file(const StoredTensor& tensor) {
  return static_cast<size_t>(tensor.bytes.data() - tensor.file->bytes().data());
}
void drop(const StoredTensor& tensor) {
  tensor.file->drop(offset_in_file(tensor), tensor.bytes.size());
}
void expect(const StoredTensor& tensor) {
  tensor.file->expect(offset_in_file(tensor), tensor.bytes.size());
}

// Calls f with a matrix's elements from `row` on, as BF16 bits or as floats.
template <class F>
auto with_rows(const MatrixView& matrix, int64_t row, F&& f) {
  return matrix.format == WeightFormat::kF32
             ? f(static_cast<const float*>(matrix.values) + row * matrix.cols)
             : f(static_cast<const uint16_t*>(matrix.values) + row * matrix.cols);
}

class Conversion {
 public:
  Conversion(const Recipe& recipe, const ConvertOptions& options, ConvertReport& report)
      : recipe_(recipe), options_(options), report_(report), pool_(options.threads) {
    scratch_.resize(static_cast<size_t>(pool_.size()));
    for (const Unit& unit : recipe.units) total_bytes_ += unit.bytes_in();
  }

  void convert(size_t unit, ShardFile& file) {
    unit_ = unit;
    file_ = &file;
    if (unit + 1 < recipe_.units.size()) read_ahead(recipe_.units[unit + 1]);
    const Unit& now = recipe_.units[unit];
    switch (now.kind) {
      case Unit::Kind::kCopy:
        copy(now);
        break;
      case Unit::Kind::kFp8:
        convert_attention(now);
        break;
      case Unit::Kind::kExpert:
        convert_together(now, 0, 2);  // gate and up share a global scale
        convert_together(now, 2, 3);
        break;
    }
    report_.read_bytes += now.bytes_in();
    if (options_.progress) options_.progress(done_bytes_, total_bytes_);
  }

 private:
  struct Scratch {
    std::vector<uint8_t> codes, scales;
    std::vector<float> tile_scales;
  };
  // Rows [row, row + count) of a projection.
  struct Chunk {
    size_t projection = 0;
    int64_t row = 0, count = 0;
  };

  static void read_ahead(const Unit& unit) {
    if (unit.kind == Unit::Kind::kExpert) {
      for (const auto& one : unit.projections) {
        expect(*one.values);
        if (one.scales != nullptr) expect(*one.scales);
      }
    } else if (static_cast<int64_t>(unit.tensor->bytes.size()) <= 64 * kChunkBytes) {
      expect(*unit.tensor);
    }
  }

  // f(index, scratch) on all threads; rethrows the error of the lowest index that failed.
  template <class F>
  void for_each(size_t count, F&& f) {
    std::mutex mutex;
    std::exception_ptr error;
    int64_t failed = std::numeric_limits<int64_t>::max();
    std::atomic<int64_t> next{0};
    pool_.share([&](int thread) {
      for (int64_t i = next++; i < static_cast<int64_t>(count); i = next++) {
        try {
          f(static_cast<size_t>(i), scratch_[static_cast<size_t>(thread)]);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (i < failed) {
            failed = i;
            error = std::current_exception();
          }
        }
      }
    });
    if (error) std::rethrow_exception(error);
  }

  void advance(int64_t bytes) {
    const int64_t done = done_bytes_ += bytes;
    if (options_.progress) options_.progress(done, total_bytes_);
  }

  void copy(const Unit& unit) {
    const int64_t bytes = unit.bytes_in();
    const int64_t chunks = (bytes + kChunkBytes - 1) / kChunkBytes;
    const size_t begin = offset_in_file(*unit.tensor);
    for_each(static_cast<size_t>(chunks), [&](size_t chunk, Scratch&) {
      const int64_t offset = static_cast<int64_t>(chunk) * kChunkBytes;
      const auto count = static_cast<size_t>(std::min(kChunkBytes, bytes - offset));
      file_->write(unit_, 0, offset, unit.tensor->bytes.data() + offset, count);
      unit.tensor->file->drop(begin + static_cast<size_t>(offset), count);
      advance(static_cast<int64_t>(count));
    });
    drop(*unit.tensor);
    ++report_.copied_tensors;
    report_.copied_bytes += bytes;
  }

  void convert_attention(const Unit& unit) {
    const StoredTensor& tensor = *unit.tensor;
    const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    const int64_t tiles = fp8_tiles(cols), row_bytes = cols * dtype_bytes(tensor.dtype);
    for_each(static_cast<size_t>(fp8_tiles(rows)), [&](size_t strip, Scratch& scratch) {
      const int64_t row = static_cast<int64_t>(strip) * kFp8Tile;
      const int64_t count = std::min(kFp8Tile, rows - row);
      scratch.codes.resize(static_cast<size_t>(count * cols));
      scratch.tile_scales.resize(static_cast<size_t>(tiles));
      const auto quantize = [&](const auto* values) {
        if (const int64_t bad = find_non_finite(values, count * cols); bad >= 0)
          refuse_value(tensor, row + bad / cols, bad % cols);
        quantize_fp8_block(values, count, cols, scratch.codes.data(), scratch.tile_scales.data());
      };
      if (tensor.dtype == DType::kF32)
        quantize(tensor.as<float>() + row * cols);
      else
        quantize(tensor.as<uint16_t>() + row * cols);
      file_->write(unit_, 0, row * cols, scratch.codes.data(), scratch.codes.size());
      file_->write(unit_, 1, static_cast<int64_t>(strip) * tiles * 4, scratch.tile_scales.data(),
                   scratch.tile_scales.size() * sizeof(float));
      tensor.file->drop(offset_in_file(tensor) + static_cast<size_t>(row * row_bytes),
                        static_cast<size_t>(count * row_bytes));
      advance(count * row_bytes);
    });
    drop(tensor);
    ConvertedMatrix converted;
    converted.module = unit.name;
    converted.from = tensor.dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
    converted.to = WeightFormat::kFp8Block;
    converted.elements = rows * cols;
    report_.matrices.push_back(std::move(converted));
  }

  // Projections [first, last) of an expert, under one global scale.
  void convert_together(const Unit& unit, size_t first, size_t last) {
    std::vector<Chunk> chunks;
    for (size_t p = first; p < last; ++p) {
      const Unit::Projection& one = unit.projections[p];
      const int64_t rows = one.matrix.rows;
      const int64_t row_bytes =
          std::max<int64_t>(1, static_cast<int64_t>(one.values->bytes.size()) / rows);
      const int64_t step = std::max<int64_t>(1, kChunkBytes / row_bytes);
      for (int64_t row = 0; row < rows; row += step)
        chunks.push_back({p, row, std::min(step, rows - row)});
    }
    const bool cast = unit.projections[first].matrix.format == WeightFormat::kMxfp4;
    const int exponent = cast ? find_exponent(unit, chunks) : 0;
    const float global_scale = cast ? std::ldexp(1.0f, exponent)
                                    : nvfp4_global_scale(find_amax(unit, chunks), options_.scale);
    if (global_scale >= kGlobalScaleLimit)
      throw Error(ErrorKind::kInput, unit.projections[first].values->where(),
                  fmt::format("would get the global scale {}, expected below {}: the weights are "
                              "out of any usual range",
                              global_scale, kGlobalScaleLimit));

    std::vector<CastCounts> counts(chunks.size());
    for_each(chunks.size(), [&](size_t c, Scratch& scratch) {
      // NOTE: no structured binding: clang 14 cannot capture one in the lambda below.
      const size_t p = chunks[c].projection;
      const int64_t row = chunks[c].row, count = chunks[c].count;
      const Unit::Projection& one = unit.projections[p];
      const int64_t cols = one.matrix.cols;
      scratch.codes.resize(static_cast<size_t>(count * cols / 2));
      scratch.scales.resize(static_cast<size_t>(count * cols / kNvfp4Group));
      if (cast)
        counts[c] = cast_mxfp4_to_nvfp4(
            static_cast<const uint8_t*>(one.matrix.values) + row * cols / 2,
            static_cast<const uint8_t*>(one.matrix.scales) + row * cols / kMxfp4Group, count, cols,
            exponent, scratch.codes.data(), scratch.scales.data());
      else
        with_rows(one.matrix, row, [&](const auto* values) {
          quantize_nvfp4(values, count, cols, global_scale, options_.scale, scratch.codes.data(),
                         scratch.scales.data());
        });
      const size_t output = p * kOutputsPerProjection;
      file_->write(unit_, output, row * cols / 2, scratch.codes.data(), scratch.codes.size());
      file_->write(unit_, output + 1, row * cols / kNvfp4Group, scratch.scales.data(),
                   scratch.scales.size());
      advance(count * static_cast<int64_t>(one.values->bytes.size()) / one.matrix.rows);
    });

    for (size_t p = first; p < last; ++p) {
      const Unit::Projection& one = unit.projections[p];
      const float input_scale = 1.0f;  // activations are not calibrated here
      file_->write(unit_, p * kOutputsPerProjection + 2, 0, &global_scale, sizeof global_scale);
      file_->write(unit_, p * kOutputsPerProjection + 3, 0, &input_scale, sizeof input_scale);
      drop(*one.values);
      if (one.scales != nullptr) {
        drop(*one.scales);
        advance(static_cast<int64_t>(one.scales->bytes.size()));
      }
      ConvertedMatrix converted;
      converted.module = fmt::format("{}.{}", unit.name, one.name);
      converted.from = one.matrix.format;
      converted.elements = one.matrix.rows * one.matrix.cols;
      converted.global_scale = global_scale;
      for (size_t c = 0; c < chunks.size(); ++c)
        if (chunks[c].projection == p) converted.cast += counts[c];
      report_.matrices.push_back(std::move(converted));
    }
  }

  float find_amax(const Unit& unit, const std::vector<Chunk>& chunks) {
    std::vector<float> amax(chunks.size());
    for_each(chunks.size(), [&](size_t c, Scratch&) {
      // NOTE: no structured binding: clang 14 cannot capture one in the lambda below.
      const size_t p = chunks[c].projection;
      const int64_t row = chunks[c].row, count = chunks[c].count;
      const Unit::Projection& one = unit.projections[p];
      const int64_t cols = one.matrix.cols, elements = count * cols;
      with_rows(one.matrix, row, [&, first_row = row](const auto* values) {
        amax[c] = max_magnitude(values, elements);
        if (std::isfinite(amax[c])) return;
        const int64_t bad = find_non_finite(values, elements);
        refuse_value(*one.values, first_row + bad / cols, bad % cols);
      });
    });
    return *std::ranges::max_element(amax);
  }

  // m of the global scale 2^m.
  int find_exponent(const Unit& unit, const std::vector<Chunk>& chunks) {
    std::vector<std::optional<int>> largest(chunks.size());
    for_each(chunks.size(), [&](size_t c, Scratch&) {
      // NOTE: no structured binding: clang 14 cannot capture one in the lambda below.
      const size_t p = chunks[c].projection;
      const int64_t row = chunks[c].row, count = chunks[c].count;
      const Unit::Projection& one = unit.projections[p];
      const int64_t cols = one.matrix.cols, groups = cols / kMxfp4Group;
      const uint8_t* scales = static_cast<const uint8_t*>(one.matrix.scales) + row * groups;
      if (const int64_t bad = find_mxfp4_nan_scale(scales, count * groups); bad >= 0)
        throw Error(
            ErrorKind::kInput, one.scales->where(),
            fmt::format("the scale [{}, {}] is NaN (0xFF)", row + bad / groups, bad % groups));
      largest[c] = mxfp4_max_exponent(
          static_cast<const uint8_t*>(one.matrix.values) + row * cols / 2, scales, count, cols);
    });
    return nvfp4_cast_exponent(*std::ranges::max_element(largest));
  }

  [[noreturn]] static void refuse_value(const StoredTensor& tensor, int64_t row, int64_t column) {
    const int64_t at = row * tensor.shape[1] + column;
    const float value = tensor.dtype == DType::kF32 ? tensor.as<float>()[at]
                                                    : bf16_to_float(tensor.as<uint16_t>()[at]);
    throw Error(
        ErrorKind::kInput, tensor.where(),
        fmt::format("the value [{}, {}] is {}, expected finite weights", row, column, value));
  }

  const Recipe& recipe_;
  const ConvertOptions& options_;
  ConvertReport& report_;
  ThreadPool pool_;
  std::vector<Scratch> scratch_;
  int64_t total_bytes_ = 0;
  std::atomic<int64_t> done_bytes_{0};
  size_t unit_ = 0;
  ShardFile* file_ = nullptr;
};

// ---- What surrounds the tensors ----------------------------------------------------------------

// Tokenizer, generation settings and whatever else lies beside the weights.
void copy_companions(const fs::path& in, const fs::path& out) {
  for (const auto& entry : fs::directory_iterator(in)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name == "config.json" || name == "hf_quant_config.json" ||
                      name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    if (ours || name.starts_with('.') || !entry.is_regular_file() ||
        entry.file_size() > static_cast<uintmax_t>(kLargestCompanion))
      continue;
    fs::copy_file(entry.path(), out / name);
  }
}

void check_room(const fs::path& directory, int64_t bytes) {
  const auto available = static_cast<int64_t>(fs::space(directory).available);
  if (available < bytes)
    throw Error(
        ErrorKind::kResource, directory.string(),
        fmt::format("has room for {} bytes, the converted checkpoint needs {}", available, bytes));
}

std::string index_json(std::vector<std::pair<std::string, size_t>> shard_of_tensor,
                       size_t num_shards, int64_t total_bytes) {
  std::ranges::sort(shard_of_tensor);
  std::string text =
      fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{", total_bytes);
  const char* comma = "\n";
  for (const auto& [tensor, shard] : shard_of_tensor) {
    text += fmt::format("{}    {}: \"{}\"", comma, nlohmann::json(tensor).dump(),
                        shard_name(shard, num_shards));
    comma = ",\n";
  }
  return text + "\n  }\n}\n";
}

}  // namespace

ConvertReport convert_checkpoint(const fs::path& in, const fs::path& out,
                                 const ConvertOptions& options) {
  // Everything that can be wrong with the request comes first.
  check_directory(in);
  const ModelFacts facts = read_model_facts(in / "config.json");
  const Checkpoint checkpoint(in);
  Recipe recipe = plan_recipe(checkpoint, facts, options.recipe);
  recipe.changes.producer_version = options.producer_version;
  const ConfigFiles config = rewrite_config(in / "config.json", recipe.changes);
  if (options.accept) options.accept(checkpoint, config.config_json);
  const std::vector<Shard> shards = plan_shards(recipe.units, options.max_shard_bytes);

  OutputDirectory directory(out);
  ConvertReport report;
  for (const Shard& shard : shards) report.written_bytes += shard.bytes;
  report.shards = static_cast<int64_t>(shards.size());
  report.layers_left_out = recipe.layers;
  report.experts_left_out = recipe.experts;
  check_room(directory.path(), report.written_bytes);

  Conversion conversion(recipe, options, report);
  std::vector<std::pair<std::string, size_t>> shard_of_tensor;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = shard_name(s, shards.size());
    ShardFile file(directory.path() / name, recipe, shards[s]);
    for (size_t u = shards[s].begin; u < shards[s].end; ++u) conversion.convert(u, file);
    file.commit();
    for (const auto& tensor : file.tensors()) shard_of_tensor.emplace_back(tensor.name, s);
  }

  copy_companions(in, directory.path());
  write_text(directory.path() / "model.safetensors.index.json",
             index_json(std::move(shard_of_tensor), shards.size(), report.written_bytes));
  write_text(directory.path() / "hf_quant_config.json", config.hf_quant_config_json);
  write_text(directory.path() / "config.json", config.config_json);
  directory.commit();
  return report;
}

std::string report_json(const ConvertReport& report, const ConvertOptions& options) {
  using OrderedJson = nlohmann::ordered_json;
  CastCounts all;
  for (const auto& matrix : report.matrices) all += matrix.cast;
  const auto counts_of = [](const CastCounts& counts) {
    return OrderedJson{
        {"exact", counts.exact}, {"recoded", counts.recoded}, {"lossy", counts.lossy}};
  };
  const auto left_out = [](const LeftOut& what) {
    return OrderedJson{{"tensors", what.tensors}, {"bytes", what.bytes}};
  };
  const OrderedJson summary = {{"to", "modelopt-nvfp4"},
                               {"scale", name_of(options.scale)},
                               {"experts_only", options.recipe.experts_only},
                               {"read_bytes", report.read_bytes},
                               {"written_bytes", report.written_bytes},
                               {"shards", report.shards},
                               {"copied_tensors", report.copied_tensors},
                               {"copied_bytes", report.copied_bytes},
                               {"layers_left_out", left_out(report.layers_left_out)},
                               {"experts_left_out", left_out(report.experts_left_out)},
                               {"mxfp4_blocks_of_16", counts_of(all)}};
  std::string text = "{\"summary\": " + summary.dump() + ",\n\"matrices\": [";
  const char* comma = "\n";
  for (const auto& matrix : report.matrices) {
    OrderedJson line = {{"module", matrix.module},
                        {"from", name_of(matrix.from)},
                        {"to", name_of(matrix.to)},
                        {"elements", matrix.elements}};
    if (matrix.to == WeightFormat::kNvfp4) line["weight_scale_2"] = matrix.global_scale;
    if (matrix.from == WeightFormat::kMxfp4) line["blocks_of_16"] = counts_of(matrix.cast);
    text += comma + line.dump();
    comma = ",\n";
  }
  return text + "\n]}\n";
}

}  // namespace halfbyte
