"""Writes MODEL_CARD.md of the demo model from what was measured.

    python3 card.py OUT.md --scores scores.json --log train.log [--log second.log]

Scores and stories are those of evaluate.py, losses and loads those that train.py printed last.
"""

import argparse
import json
import pathlib
import re

from evaluate import FLOORS

CARD = """# The halfbyte demo model

A language model of Kimi-K3's architecture in small: {parameters}, made so that halfbyte has something to say on any
machine. Every block of K3 is there (KDA, gated MLA without positions, attention residuals, latent mixture of experts with SiTU
and a shared expert), with K3's head sizes, ModelOpt's NVFP4 layout for the experts, a tiktoken tokenizer and K3's chat format.
`tools/demo_model` made it and can make the next one.

It tells short stories for children, answers simple questions, and does the tasks below. It knows nothing else: no news, few
facts, no code, English only. It makes things up without noticing. Use it to try software, not for advice.

## Data and licences

| text | share of a batch | source and licence |
| --- | --- | --- |
| synthetic stories, tasks and conversations | {synthetic_share} % | `words.py`, `stories.py`, `tasks.py` of tools/demo_model; as halfbyte itself |
| books, the simplest prose first | {book_share} % | github.com/mlschmitt/classic-books-markdown, which calls all its titles public domain; works of 1929 or later left out |

No other text, no output of another model. The weights are under the licence of halfbyte (Apache-2.0). The instruction texts of
`chat_format.json` are of our own wording, not Kimi-K3's.

## Training

{runs}

Experts were rounded to NVFP4 for the last part of the training. Loss on held-out pages of books, nats a token: {quantised} with NVFP4
experts, {plain} with the same weights not rounded. Load of the experts of a layer on held-out text: {loads} of the mean.

## Scores

Through halfbyte, greedy (`evaluate.py`); "asked" is what we wanted at least. The items are drawn with seeds that the training
does not use; sums and differences are of pairs that it leaves out. Lists, names and sentences are new that way; of small sets (capitals, opposites, definitions, facts, small
talk) every question has been seen: there the scores say what is remembered.

| task | right | of | % | asked |
| --- | --- | --- | --- | --- |
{scores}

## Appendix: twenty stories

Sampled at temperature 0.8 with seeds 0 to 19, none left out.

{stories}
"""


def runs_of(logs):
    """A line a run: steps, tokens, seconds."""
    lines = []
    for log in logs:
        steps, tokens = re.search(r"(\d+) steps, ([\d.]+) M tokens", log).groups()
        seconds = re.findall(r"^\[ *([\d.]+)\]", log, re.MULTILINE)[-1]
        command = re.search(r"^\+ (.*)$", log, re.MULTILINE)
        lines.append(
            f"- {steps} steps, {tokens} M tokens, {float(seconds):.0f} s on one H200 in all"
            + (f": `{command.group(1)}`" if command else "")
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--scores", type=pathlib.Path, required=True)
    parser.add_argument("--log", type=pathlib.Path, action="append", required=True)
    arguments = parser.parse_args()
    logs = [path.read_text(encoding="utf-8") for path in arguments.log]
    scores = json.loads(arguments.scores.read_text())
    checks = re.findall(r"books ([\d.]+) nats; load of experts ([\d.]+ to [\d.]+)", logs[-1])
    total, in_muon = re.search(r"([\d.]+) M parameters, ([\d.]+) M", logs[-1]).groups()
    share = re.search(r"(\d+) % of a batch are books", logs[-1]).group(1)
    rows = []
    for name, score in scores["scores"].items():
        percent = 100 * score["right"] / score["of"]
        asked = FLOORS[name]
        mark = "" if asked is None or percent >= asked else " ✗"
        rows.append(
            f"| {name.replace('_', ' ')} | {score['right']} | {score['of']} | {percent:.1f} | "
            f"{asked or '-'}{mark} |"
        )
    stories = "\n\n".join(
        f"**{i}. {one['asked']}**\n\n{one['story']}" for i, one in enumerate(scores["stories"])
    )
    arguments.out.write_text(
        CARD.format(
            parameters=f"{total} M parameters, {in_muon} M of them in matrices of the layers",
            synthetic_share=100 - int(share),
            book_share=share,
            runs=runs_of(logs),
            quantised=checks[-2][0],
            plain=checks[-1][0],
            loads=checks[-2][1],
            scores="\n".join(rows),
            stories=stories,
        ),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
