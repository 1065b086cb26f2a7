// simdjson parses into its tape; one pass copies that into a flat tree of nodes.
//
// Layout: nodes in document order. The children of node n begin at n + 1; `next` of a node is the
// node after its whole subtree, hence its next sibling. Every node knows its parent, so a path for
// a message is built only when there is a message. 48 bytes a node: the header of 5,000 tensors
// (40,000 nodes) takes about 2 ms.
#include "base/json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/file.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace dom = simdjson::dom;

namespace {
constexpr size_t kMaxDepth = 64;

struct Node {
  Json::Type type = Json::Type::kNull;
  bool above_int64 = false;  // an integer in [2^63, 2^64): `bits` is unsigned
  uint32_t parent = 0;
  uint32_t next = 0;
  std::string_view key;   // of a member
  std::string_view text;  // of a string
  union {
    bool truth;
    int64_t integer;
    uint64_t bits;
    double real;
  };

  Node() : bits(0) {}
};

const char* name_of(Json::Type type) {
  switch (type) {
    case Json::Type::kNull:
      return "null";
    case Json::Type::kBool:
      return "true or false";
    case Json::Type::kInteger:
      return "an integer";
    case Json::Type::kReal:
      return "a real number";
    case Json::Type::kString:
      return "a string";
    case Json::Type::kArray:
      return "an array";
    case Json::Type::kObject:
      return "an object";
  }
  return "?";
}
}  // namespace

struct JsonTree {
  std::string name;
  dom::parser parser;  // owns the strings
  std::vector<Node> nodes;

  const Node& expect(const Json& value, uint32_t node, Json::Type type) const {
    if (nodes[node].type != type)
      value.fail(fmt::format("is {}, expected {}", halfbyte::name_of(nodes[node].type),
                             halfbyte::name_of(type)));
    return nodes[node];
  }

  std::string path(uint32_t node) const {
    if (node == 0) return name;
    const Node& self = nodes[node];
    const bool in_array = nodes[self.parent].type == Json::Type::kArray;
    std::string result = path(self.parent);
    if (!in_array) return append_key(std::move(result), self.parent, self.key);
    size_t index = 0;
    for (uint32_t child = self.parent + 1; child != node; child = nodes[child].next) ++index;
    return result + (self.parent == 0 ? ": " : "") + fmt::format("[{}]", index);
  }
  static std::string append_key(std::string path, uint32_t parent, std::string_view key) {
    return std::move(path) + (parent == 0 ? ": " : ".") + std::string(key);
  }

  // Appends `element` and all below it. Depth is bounded by the parser.
  void add(const dom::element& element, uint32_t parent, std::string_view key) {
    const auto self = static_cast<uint32_t>(nodes.size());
    Node& node = nodes.emplace_back();
    node.parent = parent;
    node.key = key;
    switch (element.type()) {
      case dom::element_type::NULL_VALUE:
        break;
      case dom::element_type::BOOL:
        node.type = Json::Type::kBool;
        node.truth = element.get_bool().value_unsafe();
        break;
      case dom::element_type::INT64:
        node.type = Json::Type::kInteger;
        node.integer = element.get_int64().value_unsafe();
        break;
      case dom::element_type::UINT64:
        node.type = Json::Type::kInteger;
        node.bits = element.get_uint64().value_unsafe();
        node.above_int64 = true;
        break;
      case dom::element_type::DOUBLE:
        node.type = Json::Type::kReal;
        node.real = element.get_double().value_unsafe();
        break;
      case dom::element_type::STRING:
        node.type = Json::Type::kString;
        node.text = element.get_string().value_unsafe();
        break;
      case dom::element_type::ARRAY:
        node.type = Json::Type::kArray;
        for (const dom::element child : dom::array(element.get_array().value_unsafe()))
          add(child, self, {});
        break;
      case dom::element_type::OBJECT:
        node.type = Json::Type::kObject;
        for (const auto member : dom::object(element.get_object().value_unsafe()))
          add(member.value, self, member.key);
        break;
    }
    nodes[self].next = static_cast<uint32_t>(nodes.size());
    if (nodes[self].type == Json::Type::kObject) check_keys_differ(self);
  }

  void check_keys_differ(uint32_t object) {
    seen.clear();
    for (uint32_t child = object + 1; child != nodes[object].next; child = nodes[child].next)
      seen.push_back({std::hash<std::string_view>()(nodes[child].key), child});
    std::sort(seen.begin(), seen.end());
    for (size_t i = 1; i < seen.size(); ++i)
      // NOTE: equal hashes lie side by side, so only a run of them is compared.
      for (size_t j = i; j > 0 && seen[j - 1].first == seen[i].first; --j)
        if (nodes[seen[j - 1].second].key == nodes[seen[i].second].key)
          throw Error(ErrorKind::kInput, path(seen[i].second), "given twice");
  }
  std::vector<std::pair<size_t, uint32_t>> seen;  // scratch of check_keys_differ
};

Json::Type Json::type() const { return tree_->nodes[node_].type; }
std::string Json::where() const { return tree_->path(node_); }
void Json::fail(const std::string& message) const {
  throw Error(ErrorKind::kInput, where(), message);
}

bool Json::boolean() const { return tree_->expect(*this, node_, Type::kBool).truth; }

int64_t Json::integer() const {
  const Node& node = tree_->expect(*this, node_, Type::kInteger);
  if (node.above_int64) fail(fmt::format("{} is above 2^63 - 1", node.bits));
  return node.integer;
}

double Json::number() const {
  if (type() == Type::kReal) return tree_->nodes[node_].real;
  if (type() != Type::kInteger)
    fail(fmt::format("is {}, expected a number", halfbyte::name_of(type())));
  const Node& node = tree_->nodes[node_];
  return node.above_int64 ? static_cast<double>(node.bits) : static_cast<double>(node.integer);
}

std::string_view Json::string() const { return tree_->expect(*this, node_, Type::kString).text; }

Json Json::get(std::string_view key) const {
  if (const auto found = find(key)) return *found;
  throw Error(ErrorKind::kInput, JsonTree::append_key(where(), node_, key), "missing");
}

std::optional<Json> Json::find(std::string_view key) const {
  const uint32_t end = tree_->expect(*this, node_, Type::kObject).next;
  for (uint32_t child = node_ + 1; child != end; child = tree_->nodes[child].next)
    if (tree_->nodes[child].key == key) return Json(tree_, child);
  return std::nullopt;
}

std::optional<Json> Json::find_value(std::string_view key) const {
  const auto found = find(key);
  return found && !found->is_null() ? found : std::nullopt;
}

void Json::for_each_member(
    const std::function<void(std::string_view key, Json value)>& visit) const {
  const uint32_t end = tree_->expect(*this, node_, Type::kObject).next;
  for (uint32_t child = node_ + 1; child != end; child = tree_->nodes[child].next)
    visit(tree_->nodes[child].key, Json(tree_, child));
}

std::vector<Json> Json::elements() const {
  const uint32_t end = tree_->expect(*this, node_, Type::kArray).next;
  std::vector<Json> result;
  for (uint32_t child = node_ + 1; child != end; child = tree_->nodes[child].next)
    result.push_back(Json(tree_, child));
  return result;
}

JsonDocument::JsonDocument(std::unique_ptr<const JsonTree> tree) : tree_(std::move(tree)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

JsonDocument JsonDocument::from_file(const std::filesystem::path& path) {
  return from_text(read_text(path), path.string());
}

JsonDocument JsonDocument::from_text(std::string_view text, std::string name) {
  auto tree = std::make_unique<JsonTree>();
  tree->name = std::move(name);
  dom::element root;
  auto error = tree->parser.allocate(text.size(), kMaxDepth);
  if (!error) error = tree->parser.parse(text.data(), text.size()).get(root);
  if (error)
    throw Error(error == simdjson::MEMALLOC ? ErrorKind::kResource : ErrorKind::kInput, tree->name,
                fmt::format("is not valid JSON: {}", simdjson::error_message(error)));
  tree->add(root, 0, {});
  return JsonDocument(std::move(tree));
}

}  // namespace halfbyte
