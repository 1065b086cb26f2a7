#!/usr/bin/env python3
"""Makes src/text/unicode_tables.inc: the character classes of K3's split rule.

The classes are asked of tiktoken itself (its Rust regex engine, pinned in tests/requirements.txt),
one code point at a time, so that the tables hold the Unicode version that the rule is run with.
Two witnesses are heard before the file is written: Python's unicodedata must agree on every
character that it knows, and its str.isspace must be white space plus U+001C..U+001F.

usage: make_unicode_tables.py [--check]     --check: compare with the committed file, write nothing
"""
import argparse
import pathlib
import sys
import unicodedata

import tiktoken

TIKTOKEN = "0.14.0"
OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "src/text/unicode_tables.inc"
BLOCK = 128
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def members(pattern):
    """The code points that `pattern` matches: tiktoken drops what its split pattern does not."""
    ranks = {bytes([i]): i for i in range(256)}
    encoding = tiktoken.Encoding("class", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    found = set()
    for begin in range(0, len(CODE_POINTS), 16384):
        text = "".join(map(chr, CODE_POINTS[begin : begin + 16384]))
        found.update(map(ord, encoding.decode(encoding.encode_ordinary(text))))
    return found


def classes():
    """One set of code points a bit, lowest bit first; the order is that of CharClass in unicode.h."""
    upper = members(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]")
    lower = members(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]")
    space = members(r"\s")
    python_space = {c for c in CODE_POINTS if chr(c).isspace()}
    assert python_space == space | {0x1C, 0x1D, 0x1E, 0x1F}, "str.isspace is not what it was"
    letter, number, han = members(r"\p{L}"), members(r"\p{N}"), members(r"\p{Han}")
    for c in CODE_POINTS:
        category = unicodedata.category(chr(c))
        if category == "Cn":  # newer than this Python
            continue
        expected = (
            category[0] == "L",
            category[0] == "N",
            category in ("Lu", "Lt", "Lm", "Lo", "Mn", "Mc", "Me") and c not in han,
            category in ("Ll", "Lm", "Lo", "Mn", "Mc", "Me") and c not in han,
        )
        got = (c in letter, c in number, c in upper, c in lower)
        assert got == expected, f"U+{c:04X} {category}: tiktoken {got}, unicodedata {expected}"
    return [han, upper, lower, letter, number, space, python_space]


def render():
    sets = classes()
    values = bytearray(0x110000)
    for bit, points in enumerate(sets):
        for c in points:
            values[c] |= 1 << bit
    blocks, index = {}, []
    for begin in range(0, len(values), BLOCK):
        index.append(blocks.setdefault(bytes(values[begin : begin + BLOCK]), len(blocks)))
    assert len(blocks) <= 256, "a block number no longer fits a byte"

    def lines(numbers, width):
        rows = (numbers[i : i + width] for i in range(0, len(numbers), width))
        return "".join("    " + ",".join(map(str, row)) + ",\n" for row in rows)

    body = "".join(lines(list(block), BLOCK // 2) for block in blocks)
    return (
        "// Made by scripts/make_unicode_tables.py; do not edit.\n"
        f"// Class of c: kUnicodeBlocks[kUnicodeIndex[c / {BLOCK}]][c % {BLOCK}], bits as in text/unicode.h.\n"
        "// clang-format off\n"
        f"constexpr int kUnicodeBlock = {BLOCK};\n"
        f"constexpr uint8_t kUnicodeIndex[{len(index)}] = {{\n{lines(index, 64)}}};\n"
        f"constexpr uint8_t kUnicodeBlocks[{len(blocks)} * {BLOCK}] = {{\n{body}}};\n"
        "// clang-format on\n"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if tiktoken.__version__ != TIKTOKEN:
        sys.exit(f"tiktoken {TIKTOKEN} is needed, this is {tiktoken.__version__}")
    text = render()
    if not arguments.check:
        OUTPUT.write_text(text)
    elif OUTPUT.read_text() != text:
        sys.exit(f"{OUTPUT} is not what this script makes")


if __name__ == "__main__":
    main()
