"""Greedy continuations by model.py in fp32, with the margin of each token: the golden file of a checkpoint.

    python3 goldens.py MODEL OUT.json [--prompts 30] [--tokens 40]

MODEL is what halfbyte runs, NVFP4 experts included. Prompts: held-out items of every kind of tasks.py, and beginnings of
stories. `gap` is the difference of the two largest logits: where it is small, another order of summation may choose
otherwise, and the texts part.
"""

import argparse
import json
import pathlib
import random as random_module

import torch

import tasks
from chat import Chat
from checkpoint import read_checkpoint

SEED = (1 << 30) + 2
BEGINNINGS = [
    "Once upon a time",
    "One sunny morning,",
    "The old man looked at the sea and",
    "It was a dark night.",
    "In a little house by the river lived",
    "The king said to his son:",
]
KINDS = [
    "arithmetic",
    "word_problem",
    "capital",
    "opposite",
    "definition",
    "fact",
    "compare",
    "spell",
    "sort_words",
    "count",
    "pick_word",
    "reverse",
    "repeat",
    "recall",
    "who_has",
    "json_object",
    "tool_call",
    "small_talk",
    "refusal",
    "requested_story",
    "told_story",
    "told_name",
    "several_turns",
    "small_talk",
]


def draw_prompts(chat, number):
    random, prompts = random_module.Random(SEED), []
    for i in range(number):
        if i % 5 == 4:
            prompts.append(chat.text(BEGINNINGS[i // 5 % len(BEGINNINGS)]))
            continue
        while True:
            prompt = chat.question(tasks.KINDS[KINDS[(i - i // 5) % len(KINDS)]](random))[0]
            if len(prompt) <= 200:
                break
        prompts.append(prompt)
    return prompts


@torch.no_grad()
def continue_greedily(net, prompts, stop, tokens):
    """[{ids, greedy, gap}]; all prompts together, the whole text anew for each token."""
    texts, gaps = [list(p) for p in prompts], [[] for _ in prompts]
    running = list(range(len(prompts)))
    device = net.lm_head.weight.device
    for _ in range(tokens):
        if not running:
            break
        length = -(-max(len(texts[i]) for i in running) // net.c.chunk) * net.c.chunk
        ids = torch.zeros((len(running), length), dtype=torch.long, device=device)
        for row, i in enumerate(running):
            ids[row, : len(texts[i])] = torch.tensor(texts[i], device=device)
        last = torch.tensor([len(texts[i]) - 1 for i in running])
        logits = net.lm_head(net.hidden(ids)[torch.arange(len(running)), last])
        best = logits.topk(2, -1)
        for row, i in enumerate(list(running)):
            texts[i].append(best.indices[row, 0].item())
            gaps[i].append(round((best.values[row, 0] - best.values[row, 1]).item(), 5))
        running = [i for i in running if texts[i][-1] not in stop]
    return [
        {"ids": prompt, "greedy": text[len(prompt) :], "gap": gap}
        for prompt, text, gap in zip(prompts, texts, gaps)
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    chat = Chat(arguments.model / "tiktoken.model")
    net = read_checkpoint(arguments.model).to(arguments.device)
    stop = json.loads((arguments.model / "generation_config.json").read_text())["eos_token_id"]
    found = continue_greedily(net, draw_prompts(chat, arguments.prompts), stop, arguments.tokens)
    lines = ",\n".join("  " + json.dumps(one, separators=(",", ":")) for one in found)
    arguments.out.write_text('{\n "prompts": [\n' + lines + "\n ]\n}\n")
    for one in found:
        print(
            repr(chat.decode(one["ids"])[-60:]),
            "->",
            repr(chat.decode(one["greedy"])[:70]),
            f"smallest gap {min(one['gap']):.3f}",
        )


if __name__ == "__main__":
    main()
