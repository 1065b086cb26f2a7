"""Scores of the demo model through halfbyte itself: held-out tasks, greedy, and sampled stories.

    python3 evaluate.py MODEL --halfbyte build/release/halfbyte [--items 200] [--out scores.json] [--only recall_512]

Each question is its own process, `halfbyte run --chat`. Prints a table; --out also has what was asked and answered.
Needs tiktoken, to count the tokens of prompts.
"""

import argparse
import concurrent.futures
import json
import pathlib
import random as random_module
import subprocess

import tasks
from chat import Chat

SEED = (1 << 30) + 1  # train.py uses neither this one nor what follows
FLOORS = {
    "capital": 95,
    "json": 95,
    "spell": 95,
    "opposite": 95,
    "small_talk": 95,
    "count": 80,
    "sort_3": 80,
    "arithmetic": 80,
    "recall_512": 80,
    "recall_2000": None,
    "requested_story": 90,
    "word_problem": None,
    "definition": None,
    "fact": None,
    "told_name": None,
    "refusal": None,
}


def recall_of(tokens):
    """A maker of recall items whose prompts have about so many tokens."""

    def make(random, chat):
        num_facts = max(2, round(tokens / 10.5))
        while True:
            item = tasks.recall(random, num_facts)
            size = len(chat.question(item)[0])
            if abs(size - tokens) <= 16:
                return item
            num_facts += 1 if size < tokens else -1

    return make


def sort_3(random, chat):
    while True:
        item = tasks.sort_words(random)
        if item["size"] == 3:
            return item


def sum_not_seen(random, chat):
    return tasks.arithmetic(random, held_out=True)


def maker(name):
    special = {
        "arithmetic": sum_not_seen,
        "recall_512": recall_of(512),
        "recall_2000": recall_of(2000),
        "sort_3": sort_3,
    }
    names = {"json": "json_object"}
    return special.get(name) or (lambda random, chat: tasks.KINDS[names.get(name, name)](random))


class Halfbyte:
    def __init__(self, arguments):
        self.base = [
            arguments.halfbyte,
            "run",
            "--model-path",
            str(arguments.model),
            "--device",
            arguments.device,
            "--threads",
            "1",
            "--chat",
        ]

    def answer(self, item, *options):
        """To the last message; earlier turns are asked, too, and answered by the model."""
        said = [m["content"] for m in item["messages"] if m["role"] == "user"]
        if len(said) == 1:
            ran = subprocess.run(
                [*self.base, "--prompt", said[0], *options], capture_output=True, text=True
            )
        else:
            ran = subprocess.run(
                [*self.base, *options], input="\n".join(said) + "\n", capture_output=True, text=True
            )
        if ran.returncode != 0:
            raise SystemExit(ran.stderr)
        return (
            ran.stdout.rstrip("\n") if len(said) == 1 else ran.stdout.rstrip("\n").splitlines()[-1]
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--halfbyte", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument(
        "--stories", type=int, default=20, help="sampled, for the appendix of the card"
    )
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--only", action="append", choices=FLOORS)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    chat, model = Chat(arguments.model / "tiktoken.model"), Halfbyte(arguments)
    pool = concurrent.futures.ThreadPoolExecutor(arguments.parallel)
    result = {"scores": {}, "wrong": {}, "stories": []}
    print("| task | right | of | % | asked |\n| --- | --- | --- | --- | --- |")
    for name in arguments.only or FLOORS:
        random = random_module.Random(f"{SEED} {name}")
        number = min(arguments.items, 100) if name == "requested_story" else arguments.items
        items = [maker(name)(random, chat) for _ in range(number)]
        answers = list(pool.map(model.answer, items))
        right = [tasks.check(item, answer) for item, answer in zip(items, answers)]
        share = 100 * sum(right) / number
        result["scores"][name] = {"right": sum(right), "of": number}
        result["wrong"][name] = [
            {
                "asked": item["messages"][-2]["content"],
                "answered": answer,
                "right": item.get("answer") or item.get("wanted"),
            }
            for item, answer, good in zip(items, answers, right)
            if not good
        ]
        print(
            f"| {name} | {sum(right)} | {number} | {share:.1f} | {FLOORS[name] or '-'} |",
            flush=True,
        )
    random = random_module.Random(f"{SEED} stories")
    requests = (
        [tasks.requested_story(random) for _ in range(arguments.stories)]
        if not arguments.only
        else []
    )
    for seed, item in enumerate(requests):
        result["stories"].append(
            {
                "asked": item["messages"][0]["content"],
                "story": model.answer(item, "--temperature", "0.8", "--seed", str(seed)),
            }
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
