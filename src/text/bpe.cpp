#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>

#include "halfbyte/error.h"

namespace halfbyte {

namespace {

// Appends the bytes that `text` stands for (RFC 4648, padded). False if it is not base64.
bool decode_base64(std::string_view text, std::string& bytes) {
  static constexpr auto kDigits = [] {
    constexpr std::string_view kAlphabet =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::array<int8_t, 256> digits{};
    digits.fill(-1);
    for (size_t i = 0; i < kAlphabet.size(); ++i)
      digits[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int8_t>(i);
    return digits;
  }();
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int digit = kDigits[static_cast<uint8_t>(c)];
    if (digit < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<char>(bits >> count));
      bits &= (1u << count) - 1;
    }
  }
  return bits == 0;  // what the padding leaves over
}

}  // namespace

BytePairEncoding BytePairEncoding::parse(std::string_view file, const std::string& name) {
  BytePairEncoding bpe;
  bpe.offsets_.push_back(0);
  int64_t line_number = 0;
  const auto fail = [&](const std::string& message) {
    throw Error(ErrorKind::kInput, fmt::format("{}:{}", name, line_number), message);
  };

  // ---- Lines.
  for (size_t begin = 0; begin < file.size();) {
    const size_t end = std::min(file.find('\n', begin), file.size());
    std::string_view line = file.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;

    const size_t space = line.find(' ');
    if (space == std::string_view::npos) fail("expected `base64 rank`, found no space");
    const std::string_view rank_text = line.substr(space + 1);
    int32_t rank = -1;
    const auto [rest, status] =
        std::from_chars(rank_text.data(), rank_text.data() + rank_text.size(), rank);
    if (status != std::errc() || rest != rank_text.data() + rank_text.size())
      fail("the rank is not an integer");
    if (rank != bpe.size())
      fail(fmt::format("rank {} where {} was expected: ranks must rise by one from 0", rank,
                       bpe.size()));
    if (!decode_base64(line.substr(0, space), bpe.bytes_)) fail("the token is not base64");
    bpe.longest_ = std::max(bpe.longest_, bpe.bytes_.size() - bpe.offsets_.back());
    bpe.offsets_.push_back(static_cast<uint32_t>(bpe.bytes_.size()));
  }

  // ---- The table of ids by bytes.
  size_t slots = 1024;
  while (slots < 2 * static_cast<size_t>(bpe.size())) slots *= 2;
  bpe.slots_.assign(slots, -1);
  for (int32_t id = 0; id < bpe.size(); ++id) {
    int32_t& slot = bpe.slots_[bpe.slot_of(bpe.token(id))];
    if (slot >= 0)
      throw Error(ErrorKind::kInput, name,
                  fmt::format("ranks {} and {} are the same token", slot, id));
    slot = id;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (bpe.find({&c, 1}) < 0)
      throw Error(ErrorKind::kInput, name,
                  fmt::format("no token for the single byte 0x{:02X}: all 256 are needed", byte));
  }
  return bpe;
}

// Where `bytes` is in the table, or the free slot where it would be.
size_t BytePairEncoding::slot_of(std::string_view bytes) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = std::hash<std::string_view>{}(bytes)&mask;
  while (slots_[slot] >= 0 && token(slots_[slot]) != bytes) slot = (slot + 1) & mask;
  return slot;
}

int32_t BytePairEncoding::find(std::string_view bytes) const {
  return bytes.size() > longest_ ? -1 : slots_[slot_of(bytes)];
}

void BytePairEncoding::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.empty()) return;
  if (const int32_t id = find(piece); id >= 0) {
    ids.push_back(id);
    return;
  }

  // Parts form a linked list: part i begins at byte i and ends where the next begins.
  struct Part {
    int32_t id;       // -1: merged into the part before it
    uint32_t end;     // one past its last byte: where the next part begins
    uint32_t before;  // where the part before it begins
  };
  struct Merge {
    int32_t id;  // the token that it makes
    uint32_t begin, end;
    bool operator<(const Merge& other) const {  // a heap's top is its greatest: lowest id, leftmost
      return id != other.id ? id > other.id : begin > other.begin;
    }
  };
  const uint32_t size = static_cast<uint32_t>(piece.size());
  std::vector<Part> parts(size);
  std::vector<Merge> heap;
  heap.reserve(size);
  for (uint32_t i = 0; i < size; ++i) parts[i] = {find(piece.substr(i, 1)), i + 1, i - 1};
  const auto propose = [&](uint32_t begin) {
    if (parts[begin].end == size) return;
    const uint32_t end = parts[parts[begin].end].end;
    if (const int32_t id = find(piece.substr(begin, end - begin)); id >= 0) {
      heap.push_back({id, begin, end});
      std::push_heap(heap.begin(), heap.end());
    }
  };
  for (uint32_t i = 0; i < size; ++i) propose(i);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Merge merge = heap.back();
    heap.pop_back();
    Part& left = parts[merge.begin];
    // Out of date: the left part is gone, or the two parts here no longer end where the merge does.
    if (left.id < 0 || left.end == size || parts[left.end].end != merge.end) continue;
    parts[left.end].id = -1;
    left = {merge.id, merge.end, left.before};
    if (merge.end < size) parts[merge.end].before = merge.begin;
    if (merge.begin > 0) propose(left.before);
    propose(merge.begin);
  }
  for (uint32_t i = 0; i < size; i = parts[i].end) ids.push_back(parts[i].id);
}

}  // namespace halfbyte
