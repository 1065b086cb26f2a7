// Byte-level BPE over a tiktoken rank file.
//
// The file: one token a line, `base64(bytes) SPACE rank`, ranks 0, 1, 2, ... in file order, all 256
// single bytes among them. A token's rank is its id.
// A piece that is a token is that token. Otherwise its bytes are merged: again and again the two
// neighbours whose bytes together are the token of lowest rank, the leftmost such pair first.
// O(n log n) in the bytes of the piece. Checked against a plain loop (tests/unit/text/bpe_test.cpp)
// and tiktoken (tests/golden/tokenizer).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace halfbyte {

class BytePairEncoding {
 public:
  // The text of a rank file; `name` stands for it in messages. Throws Error{kInput} with the line.
  static BytePairEncoding parse(std::string_view file, const std::string& name);

  int32_t size() const { return static_cast<int32_t>(offsets_.size()) - 1; }
  std::string_view token(int32_t id) const {  // its bytes; 0 <= id < size()
    return std::string_view(bytes_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }
  int32_t find(std::string_view bytes) const;                            // -1: not a token
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;  // appends

 private:
  BytePairEncoding() = default;
  size_t slot_of(std::string_view bytes) const;

  std::string bytes_;              // all tokens, one after the other
  std::vector<uint32_t> offsets_;  // (size + 1)
  std::vector<int32_t> slots_;     // hash table of ids, linear probing, -1: free
  size_t longest_ = 0;             // bytes of the longest token
};

}  // namespace halfbyte
