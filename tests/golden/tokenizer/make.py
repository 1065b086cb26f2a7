#!/usr/bin/env python3
"""Makes this folder: trains a rank file on sample.txt and LICENSE and asks tiktoken for the ids of some thousand
strings. Needs tests/requirements.txt. Deterministic for a given tiktoken (pinned).

  tiktoken.model         256 single bytes and 1,900 merges, in the form of K3's own
  tokenizer_config.json  K3's names for the reserved slots, at the same distance from the ranks
  expected.json          {"ordinary": [[text, ids]...], "specials": [[text, ids]...],
                          "pairs": [[text, ids]...] with reference.py's pair_tokens instead,
                          "decode": [[ids, text]...], "long": [[[text, times]...], [[id, times]...]]}
"""
import collections
import itertools
import json
import pathlib
import random

import regex
from reference import ATOMS, PATTERN, Reference, pair_tokens, random_text, rank_file

HERE = pathlib.Path(__file__).resolve().parent
SAMPLE = (HERE / "sample.txt").read_text(encoding="utf-8")
MERGES = 1900
NAMES = {0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>",
         6: "[start_header_id]", 7: "[end_header_id]", 9: "[EOT]", 18: "<|media_begin|>",
         19: "<|media_content|>", 20: "<|media_end|>", 21: "<|media_pad|>", 65: "<osagent_mode>",
         254: "[UNK]", 255: "[PAD]"}  # fmt: skip
SPOKEN = {3, 4, 5}  # special: false


def train(text):
    """Plain BPE: the most frequent neighbours become the next token; ties go to the smaller bytes."""
    words = collections.Counter(regex.findall(PATTERN, text, flags=regex.V1))
    words = [([bytes([b]) for b in word.encode()], count) for word, count in sorted(words.items())]
    tokens = [bytes([b]) for b in sorted(range(256), key=lambda b: (b < 33 or b > 126, b))]
    while len(tokens) < 256 + MERGES:
        pairs = collections.Counter()
        for parts, count in words:
            for pair in itertools.pairwise(parts):
                pairs[pair] += count
        known = set(tokens)
        pairs = {pair: n for pair, n in pairs.items() if pair[0] + pair[1] not in known}
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        tokens.append(best[0] + best[1])
        for parts, _ in words:
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == best:
                    parts[i : i + 2] = [best[0] + best[1]]
                i += 1
    return tokens


def main():
    tokens = train(SAMPLE + (HERE.parents[2] / "LICENSE").read_text())
    (HERE / "tiktoken.model").write_bytes(rank_file(tokens))
    added = {
        str(len(tokens) + slot): {"content": name, "special": slot not in SPOKEN}
        for slot, name in NAMES.items()
    }
    # Left over from an older model in the real file: past the slots, so never an id.
    added[str(len(tokens) + 256)] = {"content": "<|im_end|>", "special": True}
    config = {"added_tokens_decoder": added, "tokenizer_class": "TikTokenTokenizer"}
    (HERE / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")

    reference, pairs = Reference.of(HERE), Reference(pair_tokens(), {})
    rng = random.Random(8)
    texts = ["", SAMPLE, *ATOMS, *(a + b for a, b in itertools.product(ATOMS[:40], ATOMS[-40:]))]
    texts += [random_text(rng) for _ in range(2500)]
    names = [*NAMES.values(), f"<|reserved_token_{len(tokens) + 8}|>", "<|im_end|>", "<|open", "open|>"]
    mixed = ["".join(rng.choice([rng.choice(names), random_text(rng)]) for _ in range(4)) for _ in range(200)]
    cases = {
        "ordinary": [[t, reference.encode(t)] for t in texts],
        "specials": [[t, reference.encode_with_specials(t)] for t in mixed + names],
        "pairs": [[t, pairs.encode(t)] for t in texts[-1500:]],
        "decode": [],
        "long": [],
    }
    for _ in range(400):
        ids = [rng.randrange(256 if rng.random() < 0.7 else len(tokens) + 256) for _ in range(rng.randrange(9))]
        cases["decode"].append([ids, reference.decode(ids)])
    runs = [
        [["a", 25_000]], [["a", 25_001]], [["é", 60_000]], [[" ", 25_000]], [[" ", 25_001], ["x", 1]],
        [["\x1c", 30_000], ["a", 3]], [["the ", 100_001]], [["ab", 12_000], [" ", 30_000], ["!", 30_000]],
        [["x ", 199_999], ["yz", 3], ["\n", 30_000], ["w", 1]], [["\n", 26_000], ["A", 26_000]],
    ]  # fmt: skip
    for parts in runs:
        ids = reference.encode("".join(text * times for text, times in parts))
        cases["long"].append([parts, [[i, len(list(group))] for i, group in itertools.groupby(ids)]])
    rows = ",\n".join(
        f'"{name}": [\n' + ",\n".join(json.dumps(c, ensure_ascii=True, separators=(",", ":")) for c in some) + "]"
        for name, some in cases.items()
    )
    (HERE / "expected.json").write_text("{" + rows + "}\n")


if __name__ == "__main__":
    main()
