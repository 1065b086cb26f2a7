"""Trains the tokenizer: byte-level BPE with K3's split pattern, written as a tiktoken rank file.

    python3 tokenizer.py OUT.model --ranks 3840 --books books.txt --megabytes 32 --seed 1

Half of the text it sees is the beginning of the books, half synthetic (tasks.py). Digits are never merged, so that the
model reads numbers digit by digit. Needs `regex`.
"""

import argparse
import base64
import collections
import heapq
import random as random_module

UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + SUFFIX,
        r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + SUFFIX,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def count_pieces(texts):
    import regex

    split = regex.compile(PATTERN, regex.V1)
    pieces = collections.Counter()
    for text in texts:
        pieces.update(split.findall(text))
    return {piece: n for piece, n in pieces.items() if not piece[0].isdigit()}


def train(pieces, num_ranks):
    """The tokens in the order of their ranks: 256 bytes, then the most frequent pair again and again."""
    words = [(list(piece.encode()), n) for piece, n in pieces.items() if n >= 2]
    tokens = [bytes([i]) for i in range(256)]
    counts, places = collections.Counter(), collections.defaultdict(set)
    for index, (word, n) in enumerate(words):
        for pair in zip(word, word[1:]):
            counts[pair] += n
            places[pair].add(index)
    heap = [(-n, pair) for pair, n in counts.items()]
    heapq.heapify(heap)
    while len(tokens) < num_ranks and heap:
        n, pair = heapq.heappop(heap)
        if counts.get(pair, 0) != -n:  # out of date
            if counts.get(pair, 0) > 0:
                heapq.heappush(heap, (-counts[pair], pair))
            continue
        new = len(tokens)
        tokens.append(tokens[pair[0]] + tokens[pair[1]])
        changed = set()
        for index in places.pop(pair):
            word, times = words[index]
            merged, i = [], 0
            while i < len(word):
                if tuple(word[i : i + 2]) == pair:
                    merged.append(new)
                    i += 2
                else:
                    merged.append(word[i])
                    i += 1
            for old in zip(word, word[1:]):
                counts[old] -= times
                changed.add(old)
            for fresh in zip(merged, merged[1:]):
                counts[fresh] += times
                changed.add(fresh)
                places[fresh].add(index)
            words[index] = (merged, times)
        counts.pop(pair, None)
        for other in changed:
            if counts.get(other, 0) > 0:
                heapq.heappush(heap, (-counts[other], other))
    return tokens


def synthetic_text(num_bytes, seed):
    import tasks

    random, parts, size = random_module.Random(seed), [], 0
    while size < num_bytes:
        item = tasks.item(random)
        text = item.get("text") or "\n".join(
            m.get("reasoning_content", "") + "\n" + m["content"] for m in item["messages"]
        )
        parts.append(text)
        size += len(text)
    return parts


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out")
    parser.add_argument("--books", required=True)
    parser.add_argument("--ranks", type=int, default=3840)
    parser.add_argument("--megabytes", type=float, default=32)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    half = int(arguments.megabytes * 5e5)
    with open(arguments.books, encoding="utf-8") as books:
        texts = [books.read(half), *synthetic_text(half, arguments.seed)]
    tokens = train(count_pieces(texts), arguments.ranks)
    with open(arguments.out, "wb") as out:
        for rank, token in enumerate(tokens):
            out.write(base64.b64encode(token) + b" %d\n" % rank)
    print(f"{len(tokens)} ranks")


if __name__ == "__main__":
    main()
