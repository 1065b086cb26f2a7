"""K3's tokenizer as its Python runs it: tiktoken with K3's split pattern, over a rank file, and
random strings to try it with. Used by make.py here and by tests/property/tokenizer_oracle.py."""
import base64
import json
import pathlib
import random

import tiktoken

U = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
L = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?" + U + "*" + L + "+" + SUFFIX,
        r"[^\r\n\p{L}\p{N}]?" + U + "+" + L + "*" + SUFFIX,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
SLICE, RUN = 400_000, 25_000

# What random strings are made of: every class of the rule, its edges and its traps.
ATOMS = [
    *"abzAZ019 \t\n\r.,!?-_'\"()[]{}<>|/\\#&=+*~`^%$@;:\0\x07\x1b\x7f\x1c\x1d\x1e\x1f\x0b\x0c",
    *"éßñøÆŁżЖжΩωſKİıǅǈʰˠªºΐ",  # ſ and K fold to s and k; ǅ is a titlecase letter
    *"你好世界漢字々〇⺀㆐ㄅあアーㇰ한글",  # Han that is Lm, Nl, So; kana; hangul
    *"\u0301\u0308\u0489\u093e\u0e31\u20dd\ufe0f\u200d\u200b\u2060\ufeff",  # marks, joiners, BOM
    *"\u00a0\u0085\u1680\u2002\u2028\u2029\u202f\u205f\u3000\u180e",  # white space, and U+180E, which is not
    *"٣५Ⅷ½²①๓𝟘𐒠",  # Nd, Nl, No
    *"—–…“”‘’«»·•€£¥°←∑≈🙂👩🚀🇵🇱�",
    *"ابجदेสวัעברתአ𝒜𝓫𠮷𪚥\U0003134f\U0010ffff\ue000\u0378",  # also private use and unassigned
    *["'s", "'S", "'ſ", "'t", "'re", "'RE", "'vE", "'m", "'ll", "'Ll", "'d", "'x", "'r", "'l", "''s"],
    *["the", "The", "THE", "iPhone", "McCAFÉ", "naïve", "Привет", "مرحبا", "don't", "I'M", "they'LL", "x1y22z333"],
    *["  ", "   ", "\n\n", "\r\n", " \n", "\n ", " \t\n\r ", "123456789", "3.14159", "...", "?!\n\n", "<|open|>", "[BOS]"],
]


def slices(text):
    """The reference's two cuts: every SLICE code points, and where a run of only white space or only
    other characters passes RUN."""
    for begin in range(0, len(text), SLICE):
        part = text[begin : begin + SLICE]
        start, length, space = 0, 0, part[0].isspace()
        for i, c in enumerate(part):
            length = length + 1 if c.isspace() == space else 1
            space = c.isspace()
            if length > RUN:
                yield part[start:i]
                start, length = i, 1
        yield part[start:]


def pair_tokens():
    """Every byte and, in scrambled order, every pair of bytes. With these merges a piece border that
    is moved, lost or added nearly always changes ids, whatever the characters."""
    pairs = ((k * 40503 + 12345) % 65536 for k in range(65536))
    return [bytes([b]) for b in range(256)] + [bytes(divmod(p, 256)) for p in pairs]


def rank_file(tokens):
    return b"".join(b"%s %d\n" % (base64.b64encode(t), rank) for rank, t in enumerate(tokens))


class Reference:
    def __init__(self, tokens, names):
        """tokens: bytes by rank; names: of special tokens by id."""
        ranks = {token: rank for rank, token in enumerate(tokens)}
        specials = {
            names.get(i, f"<|reserved_token_{i}|>"): i for i in range(len(ranks), len(ranks) + 256)
        }
        self.tiktoken = tiktoken.Encoding(
            "k3", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=specials
        )

    @classmethod
    def of(cls, directory):
        directory = pathlib.Path(directory)
        lines = (directory / "tiktoken.model").read_bytes().splitlines()
        tokens = [base64.b64decode(line.split()[0]) for line in lines]
        config = json.loads((directory / "tokenizer_config.json").read_text())
        added = config["added_tokens_decoder"]
        return cls(tokens, {int(k): v["content"] for k, v in added.items()})

    def encode(self, text):
        return [i for part in slices(text) for i in self.tiktoken.encode_ordinary(part)]

    def encode_with_specials(self, text):
        return [i for s in slices(text) for i in self.tiktoken.encode(s, allowed_special="all")]

    def decode(self, ids):
        return self.tiktoken.decode(ids, errors="replace")


def random_text(rng: random.Random):
    """Short strings of atoms, sometimes repeated, sometimes any code point at all."""
    kind = rng.random()
    if kind < 0.1:
        points = [rng.randrange(0x110000) for _ in range(rng.randrange(1, 12))]
        return "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)
    atoms = rng.sample(ATOMS, rng.randrange(1, 6)) if kind < 0.5 else ATOMS
    return "".join(
        rng.choice(atoms) * (rng.randrange(2, 9) if rng.random() < 0.15 else 1)
        for _ in range(rng.randrange(1, 16))
    )
