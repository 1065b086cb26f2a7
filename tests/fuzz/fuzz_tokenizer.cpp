// Any bytes as a tiktoken rank file, and as text for a tokenizer of the 256 single bytes. Text that
// is encoded must come back.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "fuzz.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

namespace {

std::string base64(uint8_t byte) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  return {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='};
}

halfbyte::Tokenizer bytes_tokenizer() {
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte)
    ranks += fmt::format("{} {}\n", base64(static_cast<uint8_t>(byte)), byte);
  return {halfbyte::BytePairEncoding::parse(ranks, "bytes"), {}};
}

}  // namespace

FUZZ_TARGET(tokenizer) {
  refuse_or_finish(
      [](std::string_view file) {
        const auto ranks = halfbyte::BytePairEncoding::parse(file, "tiktoken.model");
        std::vector<int32_t> ids;
        ranks.encode(file.substr(0, 1000), ids);
        std::string back;
        for (const int32_t id : ids) back += ranks.token(id);
        if (back != file.substr(0, 1000)) std::abort();
      },
      data);
  static const halfbyte::Tokenizer tokenizer = bytes_tokenizer();
  if (tokenizer.decode(tokenizer.encode(data)) != data) std::abort();
}
