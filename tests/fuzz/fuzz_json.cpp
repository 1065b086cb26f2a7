// Any bytes as JSON: every value of what is accepted is visited and read as each type.
#include "base/json.h"
#include "fuzz.h"

namespace {

using halfbyte::Json;

void visit(const Json& value) {
  switch (value.type()) {
    case Json::Type::kNull:
      if (!value.is_null()) std::abort();
      break;
    case Json::Type::kBool:
      (void)value.boolean();
      break;
    case Json::Type::kInteger:
      (void)value.number();
      try {
        (void)value.integer();
      } catch (const halfbyte::Error&) {  // integers above int64
      }
      break;
    case Json::Type::kReal:
      (void)value.number();
      break;
    case Json::Type::kString:
      (void)value.string();
      break;
    case Json::Type::kArray:
      for (const Json& element : value.elements()) visit(element);
      break;
    case Json::Type::kObject:
      value.for_each_member([&](std::string_view key, const Json& member) {
        if (!value.find(key)) std::abort();
        visit(member);
      });
      break;
  }
}

}  // namespace

FUZZ_TARGET(json) {
  const auto document = halfbyte::JsonDocument::from_text(data, "fuzz.json");
  visit(document.root());
}
