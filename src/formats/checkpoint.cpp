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

namespace halfbyte {
namespace fs = std::filesystem;

namespace {
constexpr const char* kIndexName = "model.safetensors.index.json";

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

Checkpoint::Checkpoint(const fs::path& directory, std::vector<Error>* problems)
    : directory_(directory) {
  const auto report = [&](const std::string& where, const std::string& message) {
    Error error(ErrorKind::kInput, where, message);
    if (problems == nullptr) throw error;
    problems->push_back(std::move(error));
  };
  if (!fs::is_directory(directory))
    throw Error(ErrorKind::kInput, directory.string(),
                "is not a directory; expected a checkpoint's directory");

  // Which files.
  const fs::path index_path = directory / kIndexName;
  std::optional<JsonDocument> index;
  std::vector<std::string> names;
  if (fs::exists(index_path)) {
    index = JsonDocument::from_file(index_path);
    std::set<std::string, std::less<>> distinct;
    index->root().get("weight_map").for_each_member([&](std::string_view tensor, const Json& file) {
      const std::string_view name = file.string();
      if (distinct.count(name)) return;
      if (fs::path(name).filename() != fs::path(name) || fs::path(name).extension().empty())
        file.fail(fmt::format("tensor {}: \"{}\" is not a file name", tensor, name));
      distinct.emplace(name);
    });
    names.assign(distinct.begin(), distinct.end());
  } else if (fs::exists(directory / "model.safetensors")) {
    names = {"model.safetensors"};
  } else {
    names = list_shards(directory);
    if (const auto absent = find_absent_shard(names))
      report((directory / *absent).string(), "shard is missing");
  }
  if (names.empty())
    throw Error(ErrorKind::kInput, directory.string(),
                fmt::format("has no tensors: neither {} nor *.safetensors", kIndexName));

  // The files, each checked by itself.
  std::map<std::string, const SafetensorsFile*, std::less<>> opened;
  size_t count = 0;
  for (const std::string& name : names) {
    const fs::path path = directory / name;
    if (index && !fs::exists(path)) {
      report(path.string(), fmt::format("shard is missing, but {} names it", kIndexName));
      continue;
    }
    try {
      files_.push_back(std::make_unique<SafetensorsFile>(path));
      opened.emplace(name, files_.back().get());
      count += files_.back()->tensors().size();
    } catch (const Error& error) {
      if (problems == nullptr) throw;
      problems->push_back(error);
    }
  }

  // The tensors: by the index, or all.
  by_name_.reserve(count);
  if (index) {
    const std::string* last_name = nullptr;
    const SafetensorsFile* last_file = nullptr;
    index->root().get("weight_map").for_each_member([&](std::string_view name, const Json& value) {
      if (last_name == nullptr || *last_name != value.string()) {
        const auto found = opened.find(value.string());
        if (found == opened.end()) return;  // reported above
        last_name = &found->first;
        last_file = found->second;
      }
      if (const StoredTensor* tensor = last_file->find(name))
        by_name_.emplace(tensor->name, tensor);
      else
        report(
            last_file->file().path().string(),
            fmt::format("tensor {} is missing, but {} says it is in this file", name, kIndexName));
    });
    for (const auto& file : files_)
      for (const StoredTensor& tensor : file->tensors())
        if (!by_name_.count(tensor.name))
          report(file->file().path().string(),
                 fmt::format("tensor {} is not in {}: index and shards are not of one checkpoint",
                             tensor.name, kIndexName));
  } else {
    for (const auto& file : files_)
      for (const StoredTensor& tensor : file->tensors())
        if (const auto [other, is_new] = by_name_.emplace(tensor.name, &tensor); !is_new)
          report(file->file().path().string(),
                 fmt::format("tensor {} is also in {}; an index would say which one counts",
                             tensor.name, other->second->file->path().filename().string()));
  }

  tensors_.reserve(by_name_.size());
  for (const auto& [name, tensor] : by_name_) tensors_.push_back(tensor);
  std::sort(tensors_.begin(), tensors_.end(),
            [](const StoredTensor* a, const StoredTensor* b) { return a->name < b->name; });
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const StoredTensor& Checkpoint::get(std::string_view name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;
  throw Error(ErrorKind::kInput, directory_.string(), fmt::format("tensor {} is missing", name));
}

}  // namespace halfbyte
