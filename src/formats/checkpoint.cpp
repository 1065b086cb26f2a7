#include "formats/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>

#include "base/json.h"
#include "base/threads.h"

namespace halfbyte {
namespace fs = std::filesystem;

namespace {
constexpr const char* kIndexName = "model.safetensors.index.json";

// The files that an index names, sorted.
std::vector<std::string> files_of(const JsonDocument& index) {
  std::set<std::string, std::less<>> distinct;
  index.root().get("weight_map").for_each_member([&](std::string_view tensor, const Json& file) {
    const std::string_view name = file.string();
    if (distinct.count(name)) return;
    if (fs::path(name).filename() != fs::path(name) || fs::path(name).extension().empty())
      file.fail(fmt::format("tensor {}: \"{}\" is not a file name", tensor, name));
    distinct.emplace(name);
  });
  return {distinct.begin(), distinct.end()};
}

// Files of the directory called *.safetensors, sorted.
std::vector<std::string> list_shards(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().extension() == ".safetensors")
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Of files called PREFIX-00001-of-00005.safetensors, the first that is not there.
std::optional<std::string> find_absent_shard(const std::vector<std::string>& names) {
  static const std::regex pattern(R"((.*-)(\d{1,9})(-of-)(\d{1,9})(\.safetensors))");
  const std::set<std::string> present(names.begin(), names.end());
  for (const std::string& name : names) {
    std::smatch part;
    if (!std::regex_match(name, part, pattern)) continue;
    const long count = std::stol(part[4]);
    // NOTE: stops at the first gap, so a name that claims a billion shards costs one look.
    for (long i = 1; i <= count; ++i) {
      const std::string sibling = fmt::format("{}{:0{}}{}{}{}", part[1].str(), i, part[2].length(),
                                              part[3].str(), part[4].str(), part[5].str());
      if (!present.count(sibling)) return sibling;
    }
  }
  return std::nullopt;
}
}  // namespace

void check_directory(const fs::path& checkpoint) {
  if (!fs::is_directory(checkpoint))
    throw Error(ErrorKind::kInput, checkpoint.string(),
                "is not a directory; expected a checkpoint's directory");
}

Checkpoint::Checkpoint(const fs::path& directory, std::vector<Error>* problems)
    : directory_(directory) {
  const auto report = [&](const Error& error) {
    if (problems == nullptr) throw error;
    problems->push_back(error);
  };
  check_directory(directory);

  // Which files.
  const fs::path index_path = directory / kIndexName;
  std::optional<JsonDocument> index;
  std::vector<std::string> names;
  if (fs::exists(index_path)) {
    try {
      index = JsonDocument::from_file(index_path);
      names = files_of(*index);
    } catch (const Error& error) {
      report(error);
      index.reset();  // what lies there can be looked at without it
    }
  }
  if (!index && fs::exists(directory / "model.safetensors")) {
    names = {"model.safetensors"};
  } else if (!index) {
    names = list_shards(directory);
    if (const auto absent = find_absent_shard(names))
      report(Error(ErrorKind::kInput, (directory / *absent).string(), "shard is missing"));
  }
  if (names.empty())
    throw Error(ErrorKind::kInput, directory.string(),
                index ? fmt::format("has no tensors: {} names none", kIndexName)
                      : fmt::format("has no tensors: neither {} nor *.safetensors", kIndexName));

  // The files, each checked by itself.
  std::vector<std::unique_ptr<SafetensorsFile>> opened(names.size());  // none: broken or missing
  std::vector<std::optional<Error>> failures(names.size());
  const auto threads = std::min(static_cast<size_t>(usable_processors()), names.size());
  ThreadPool(static_cast<int>(threads))
      .parallel_for(static_cast<int64_t>(names.size()), [&](int64_t i) {
        const auto at = static_cast<size_t>(i);
        const fs::path path = directory / names[at];
        try {
          if (index && !fs::exists(path))
            throw Error(ErrorKind::kInput, path.string(),
                        fmt::format("shard is missing, but {} names it", kIndexName));
          opened[at] = std::make_unique<SafetensorsFile>(path);
        } catch (const Error& error) {
          failures[at] = error;
        } catch (const std::exception& error) {  // memory, permissions
          failures[at] = Error(ErrorKind::kResource, path.string(), error.what());
        }
      });
  std::map<std::string, const SafetensorsFile*, std::less<>> by_file_name;
  size_t count = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (failures[i]) report(*failures[i]);
    if (opened[i] == nullptr) continue;
    by_file_name.emplace(names[i], opened[i].get());
    count += opened[i]->tensors().size();
    files_.push_back(std::move(opened[i]));
  }

  // The tensors: by the index, or all.
  tensors_.reserve(count);
  if (index) {
    const std::string* last_name = nullptr;
    const SafetensorsFile* last_file = nullptr;
    index->root().get("weight_map").for_each_member([&](std::string_view name, const Json& value) {
      if (last_name == nullptr || *last_name != value.string()) {
        const auto found = by_file_name.find(value.string());
        if (found == by_file_name.end()) return;  // reported above
        last_name = &found->first;
        last_file = found->second;
      }
      if (const StoredTensor* tensor = last_file->find(name))
        tensors_.push_back(tensor);
      else
        report(Error(
            ErrorKind::kInput, last_file->file().path().string(),
            fmt::format("tensor {} is missing, but {} says it is in this file", name, kIndexName)));
    });
  } else {
    for (const auto& file : files_)
      for (const StoredTensor& tensor : file->tensors()) tensors_.push_back(&tensor);
  }
  std::stable_sort(tensors_.begin(), tensors_.end(),
                   [](const StoredTensor* a, const StoredTensor* b) { return a->name < b->name; });
  const auto is_same_name = [](const StoredTensor* a, const StoredTensor* b) {
    return a->name == b->name;
  };
  for (size_t i = 1; i < tensors_.size(); ++i)
    if (is_same_name(tensors_[i - 1], tensors_[i]))
      report(
          Error(ErrorKind::kInput, tensors_[i]->file->path().string(),
                fmt::format("tensor {} is also in {}; an index would say which one counts",
                            tensors_[i]->name, tensors_[i - 1]->file->path().filename().string())));
  tensors_.erase(std::unique(tensors_.begin(), tensors_.end(), is_same_name), tensors_.end());
  fill_table();

  if (index && tensors_.size() < count)
    for (const auto& file : files_)
      for (const StoredTensor& tensor : file->tensors())
        if (find(tensor.name) == nullptr)
          report(Error(ErrorKind::kInput, file->file().path().string(),
                       fmt::format("tensor {} is not in {}: index and shards are not of one "
                                   "checkpoint",
                                   tensor.name, kIndexName)));
}

void Checkpoint::fill_table() {
  size_t size = 16;
  while (size < 2 * tensors_.size()) size *= 2;
  table_.assign(size, {});
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const size_t hash = std::hash<std::string_view>()(tensors_[i]->name);
    size_t slot = hash & (size - 1);
    while (table_[slot].tensor >= 0) slot = (slot + 1) & (size - 1);
    table_[slot] = {static_cast<uint32_t>(hash >> 32), static_cast<int32_t>(i)};
  }
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const size_t hash = std::hash<std::string_view>()(name);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t slot = hash & (table_.size() - 1); table_[slot].tensor >= 0;
       slot = (slot + 1) & (table_.size() - 1)) {
    if (table_[slot].tag != tag) continue;
    const StoredTensor* tensor = tensors_[static_cast<size_t>(table_[slot].tensor)];
    if (tensor->name == name) return tensor;
  }
  return nullptr;
}

const StoredTensor& Checkpoint::get(std::string_view name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;
  throw Error(ErrorKind::kInput, directory_.string(), fmt::format("tensor {} is missing", name));
}

}  // namespace halfbyte
