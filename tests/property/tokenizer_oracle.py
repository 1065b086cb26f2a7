#!/usr/bin/env python3
"""Fresh random strings: `halfbyte tokenize` must give the ids that tiktoken gives, with the ranks of
MODEL_DIR and with those of all byte pairs, which show where pieces begin and end.

usage: tokenizer_oracle.py BINARY MODEL_DIR [--count N] [--seed S]
The seed is drawn anew each time and printed. Needs tests/requirements.txt.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden/tokenizer"))
from reference import Reference, pair_tokens, random_text, rank_file  # noqa: E402


def ids_of(arguments, texts):
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run(arguments, input=lines.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model_dir")
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)

    rng = random.Random(options.seed)
    reference = Reference.of(options.model_dir)
    pairs = Reference(pair_tokens(), {})
    names = list(reference.tiktoken.special_tokens_set)
    texts = [random_text(rng) for _ in range(options.count)]
    mixed = [t + rng.choice(names) + random_text(rng) for t in texts[: options.count // 10]]
    pair_dir = tempfile.TemporaryDirectory()
    pathlib.Path(pair_dir.name, "tiktoken.model").write_bytes(rank_file(pair_tokens()))

    def with_model(directory):
        return [options.binary, "tokenize", "--model-path", directory, "--json-lines"]

    command = with_model(options.model_dir)
    checks = [
        (with_model(pair_dir.name), texts, pairs.encode),
        (command, texts, reference.encode),
        (command, mixed, reference.encode),
        ([*command, "--specials"], mixed, reference.encode_with_specials),
    ]
    for arguments, inputs, expected in checks:
        got = ids_of(arguments, inputs)
        assert len(got) == len(inputs), f"{len(got)} lines for {len(inputs)} texts"
        for text, ids in zip(inputs, got):
            assert ids == expected(text), f"{text!r}: halfbyte {ids}, tiktoken {expected(text)}"
    print(f"{sum(len(c[1]) for c in checks)} strings agree")


if __name__ == "__main__":
    main()
