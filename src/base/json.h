// JSON in: simdjson behind one header. Exact integers, bounded depth, errors that name the file and
// the key.
//
// A JsonDocument owns the text and the parsed tree; Json values are cheap views that must not
// outlive it.
//   const JsonDocument config = JsonDocument::from_file(dir / "config.json");
//   const int64_t layers = config.root().get("text_config").get("num_hidden_layers").integer();
// `get` throws Error{kInput} ("config.json: text_config.num_hidden_layers: missing"), `find` may
// return nothing. JSON out: nlohmann::ordered_json (docs/adr/0002-json.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halfbyte {

struct JsonTree;  // private to json.cpp

// A view of one value: two words, cheap to copy.
class Json {
 public:
  enum class Type { kNull, kBool, kInteger, kReal, kString, kArray, kObject };

  Type type() const;
  bool is_null() const { return type() == Type::kNull; }
  std::string where() const;  // "config.json: text_config.num_experts"

  // Exact conversions. Each throws Error{kInput} if the value has another type.
  bool boolean() const;
  int64_t integer() const;  // also refuses integers outside int64
  double number() const;    // an integer or a real
  std::string_view string() const;

  // Objects. A key whose value is null is found, and is_null().
  Json get(std::string_view key) const;
  std::optional<Json> find(std::string_view key) const;
  // Absent or null: nothing.
  std::optional<Json> find_value(std::string_view key) const;
  void for_each_member(const std::function<void(std::string_view key, Json value)>& visit) const;

  // Arrays.
  std::vector<Json> elements() const;

  [[noreturn]] void fail(const std::string& message) const;  // Error{kInput} at this value

 private:
  friend class JsonDocument;
  Json(const JsonTree* tree, uint32_t node) : tree_(tree), node_(node) {}

  const JsonTree* tree_;
  uint32_t node_;
};

// Refuses: text that is not JSON, nesting deeper than 64, a key given twice in one object.
class JsonDocument {
 public:
  static JsonDocument from_file(const std::filesystem::path& path);
  // `name` stands for the file in messages.
  static JsonDocument from_text(std::string_view text, std::string name);
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();

  Json root() const { return {tree_.get(), 0}; }

 private:
  explicit JsonDocument(std::unique_ptr<const JsonTree> tree);
  std::unique_ptr<const JsonTree> tree_;
};

}  // namespace halfbyte
