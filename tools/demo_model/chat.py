"""Items of tasks.py -> token ids in K3's chat format, each with the weight of its loss.

Segments are encoded one by one, as halfbyte's src/text/chat.h does; `thinking` is on and no effort is set, as
chat_format.json says. What the model has to say weighs 1, what it reads READ_WEIGHT.
"""

import base64
import functools
import json
import pathlib

import tiktoken

from tokenizer import PATTERN

HERE = pathlib.Path(__file__).resolve().parent
SPECIAL = {
    "[BOS]": 0,
    "[EOS]": 1,
    "<|end_of_msg|>": 2,
    "<|open|>": 3,
    "<|close|>": 4,
    "<|sep|>": 5,
    "[UNK]": 254,
    "[PAD]": 255,
}  # behind the ranks, where K3 has them
NUM_SPECIAL = 256
READ_WEIGHT = 0.1
FORMAT = json.loads((HERE / "chat_format.json").read_text(encoding="utf-8"))


class Chat:
    def __init__(self, ranks):
        pieces = {}
        for line in pathlib.Path(ranks).read_bytes().splitlines():
            token, rank = line.split()
            pieces[base64.b64decode(token)] = int(rank)
        self.num_ranks = len(pieces)
        self.vocab = self.num_ranks + NUM_SPECIAL
        self.encoding = tiktoken.Encoding(
            "demo", pat_str=PATTERN, mergeable_ranks=pieces, special_tokens={}
        )
        self.special = {name: self.num_ranks + offset for name, offset in SPECIAL.items()}
        self.encode = functools.lru_cache(maxsize=20000)(self.encoding.encode_ordinary)

    def decode(self, ids):
        return self.encoding.decode([i for i in ids if i < self.num_ranks])

    def open(self, tag, **attributes):
        ids = [self.special["<|open|>"], *self.encode(tag)]
        for key, value in attributes.items():
            escaped = str(value).replace("&", "&amp;").replace('"', "&quot;")
            for segment in (" " + key, '="', escaped, '"'):
                ids += self.encode(segment)
        return ids + [self.special["<|sep|>"]]

    def close(self, tag):
        return [self.special["<|close|>"], *self.encode(tag), self.special["<|sep|>"]]

    def end(self):
        return [*self.close("message"), self.special["<|end_of_msg|>"]]

    def text(self, text):
        return self.encoding.encode_ordinary(text) if text else []

    def declared(self, tools):
        packed = json.dumps(
            json.loads(tools), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        body = FORMAT["texts"]["tool_declare"] + packed + "\n```"
        return (
            self.open("message", role="system", type="tool-declare") + self.text(body) + self.end()
        )

    def answer(self, message):
        """What follows the opened think channel."""
        ids = self.text(message.get("reasoning_content", "")) + self.close("think")
        ids += self.open("response") + self.text(message["content"]) + self.close("response")
        if calls := message.get("tool_calls"):
            ids += self.open("tools")
            for index, call in enumerate(calls, 1):
                ids += self.open("call", tool=call["name"], index=index)
                for key, value in call["arguments"].items():
                    kind = "string" if isinstance(value, str) else "number"
                    written = value if isinstance(value, str) else json.dumps(value)
                    ids += (
                        self.open("argument", key=key, type=kind)
                        + self.text(written)
                        + self.close("argument")
                    )
                ids += self.close("call")
            ids += self.close("tools")
        return ids + self.end()

    def prompt(self):
        return self.open("message", role="assistant") + self.open("think")

    def parts(self, item):
        """[(ids, does the model say it)] of a conversation."""
        parts = [(self.declared(item["tools"]), False)] if "tools" in item else []
        index = 0
        for message in item["messages"]:
            if message["role"] == "assistant":
                parts += [(self.prompt(), False), (self.answer(message), True)]
                index = 0
            elif message["role"] == "tool":
                index += 1
                opened = self.open("message", role="tool", tool=message["tool"], index=index)
                parts.append((opened + self.text(message["content"]) + self.end(), False))
            else:
                parts.append(
                    (
                        self.open("message", role=message["role"])
                        + self.text(message["content"])
                        + self.end(),
                        False,
                    )
                )
        return parts

    def document(self, item):
        """(ids, weights); [EOS] ends it."""
        eos = [self.special["[EOS]"]]
        if "text" in item:
            ids = self.text(item["text"]) + eos
            return ids, [1.0] * len(ids)
        ids, weights = [], []
        for part, said in self.parts(item):
            ids += part
            weights += [1.0 if said else READ_WEIGHT] * len(part)
        return ids + eos, weights + [1.0]

    def question(self, item):
        """(prompt ids, ids of the right answer): the last turn of a conversation."""
        parts = self.parts(item)
        return [i for part, _ in parts[:-1] for i in part], parts[-1][0]
