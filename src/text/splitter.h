// Text -> pieces: K3's pre-tokenisation, without a regex engine.
//
// At each position the first of eight alternatives that matches takes its characters:
//   1  [\p{Han}]+
//   2  [^\r\n\p{L}\p{N}]? U* L+ (?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   3  [^\r\n\p{L}\p{N}]? U+ L* (?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   4  \p{N}{1,3}
//   5   ?[^\s\p{L}\p{N}]+[\r\n]*
//   6  \s*[\r\n]+
//   7  \s+(?!\S)
//   8  \s+
// with U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]], L = [\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]].
// Repetition is greedy and gives back as a backtracking engine does, but in linear time: every
// alternative looks at its run once, and what is given back is computed, not tried.
// Before that the text is cut into slices that are matched on their own: after 400,000 code points,
// and inside those where a run of only white space or only other characters passes 25,000.
// Checked against tiktoken: tests/golden/tokenizer, tests/property/tokenizer_oracle.py.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace halfbyte {

struct SliceLimits {
  size_t code_points = 400'000;
  size_t run = 25'000;
};

// Calls visit(slice) for every slice of `text`, in order. The slices together are the text.
// Both functions throw Error{kInput} when `text` is not UTF-8; K3 has no token for what is not
// text.
void for_each_slice(std::string_view text, const std::function<void(std::string_view)>& visit,
                    SliceLimits limits = {});

// Calls visit(piece) for every piece of one slice, in order. The pieces together are the slice.
void for_each_piece(std::string_view slice, const std::function<void(std::string_view)>& visit);

}  // namespace halfbyte
