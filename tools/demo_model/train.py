"""Trains the demo model on one GPU in a given time, and writes its weights.

    python3 train.py --books books.txt --ranks tiktoken.model --seconds 480 --out OUT

Synthetic text (tasks.py) is made by `--workers` processes while the GPU trains, each piece from a
seed of its own. A batch has `--book-share` rows of books. Rows begin with the begin of a document,
as a prompt does. Muon for matrices, AdamW for the rest; the learning rate goes linearly with the
time to `--end-rate`. For the last part of it the experts are rounded to NVFP4. Progress goes to the
standard output: loss, and for items of each kind that are drawn with another seed the share that
greedy decoding would answer exactly. Checkpoint: OUT/high.*, low.* (the two bytes of BF16 weights,
files of at most 15 MB), OUT/f32.0 and OUT/meta.json; weights.py reads it.
"""

import argparse
import atexit
import json
import math
import multiprocessing
import pathlib
import queue
import random as random_module
import sys
import threading
import time

import numpy
import torch
import torch.nn.functional as F

import model as demo
import tasks
import weights as weights_file
from chat import Chat

COMPILED = ("rms_norm", "mix_residuals", "weighted_situ", "kda_inputs")
HELD_OUT_SEED = 1 << 30
ROWS_A_JOB = 8
HELD_OUT_TOKENS = 1 << 18  # of books, whatever the length of a row
CHECKED_TOKENS = 384  # of a held-out item, prompt and answer


# --- data


def make_rows(job):
    """(ids uint16, weights uint8 of 1/10) of `rows` rows of synthetic documents, each [rows, length]."""
    ranks, seed, rows, length = job
    chat, random = chat_of(ranks), random_module.Random(seed)
    ids = numpy.full((rows, length), chat.special["[EOS]"], numpy.uint16)
    says = numpy.zeros((rows, length), numpy.uint8)
    waiting = None  # a long document that did not fit: the next row begins with it
    for row in range(rows):
        at = 0
        while at < length:
            document, weights = waiting or chat.document(tasks.item(random))
            if at > 0 and waiting is None and 256 < len(document) <= length < at + len(document):
                waiting = document, weights
                document, weights = chat.document({"text": tasks.plain_story(random)["text"]})
            elif at == 0:
                waiting = None
            n = min(len(document), length - at)
            ids[row, at : at + n] = document[:n]
            says[row, at : at + n] = [round(10 * w) for w in weights[:n]]
            at += n
    return ids, says


CHATS = {}


def chat_of(ranks):
    if ranks not in CHATS:
        CHATS[ranks] = Chat(ranks)
    return CHATS[ranks]


def encode_book(job):
    ranks, text = job
    chat = chat_of(ranks)
    return numpy.array(chat.text(text) + [chat.special["[EOS]"]], numpy.uint16)


class Rows:
    """Batches of synthetic rows and rows of books, made beside the training."""

    def __init__(self, arguments, length):
        self.length, self.ranks = length, arguments.ranks
        self.pool = multiprocessing.get_context("fork").Pool(arguments.workers)
        books = pathlib.Path(arguments.books).read_text(encoding="utf-8").split("\n\x0c\n")
        pieces = [book[i : i + 200000] for book in books for i in range(0, len(book), 200000)]
        random_module.Random(0).shuffle(pieces)
        encoded = self.pool.map(
            encode_book, [(arguments.ranks, piece) for piece in pieces], chunksize=4
        )
        tokens = numpy.concatenate(encoded)

        def in_rows(part):
            return torch.from_numpy(
                part[: len(part) // length * length].reshape(-1, length).astype(numpy.int32)
            )

        self.held_out_books = in_rows(tokens[:HELD_OUT_TOKENS])[:64].long()
        self.books = in_rows(tokens[HELD_OUT_TOKENS:])
        self.generator = torch.Generator().manual_seed(arguments.seed)
        self.order = self.books[:0]
        self.ready, self.room, self.stopped = queue.Queue(), threading.Semaphore(400), False
        threading.Thread(target=self.produce, args=(arguments.seed,), daemon=True).start()
        atexit.register(self.stop)  # also after an error

    def stop(self):
        # NOTE: without it the pool waits for the thread that waits for room.
        self.stopped = True
        self.room.release()
        self.pool.terminate()

    def produce(self, seed):
        def jobs():
            for i in range(1 << 28):
                # Workers that run ahead slow down the thread that feeds the GPU.
                self.room.acquire()
                if self.stopped:
                    return
                yield self.ranks, f"{seed} {i}", ROWS_A_JOB, self.length

        for ids, says in self.pool.imap_unordered(make_rows, jobs()):
            self.ready.put((torch.from_numpy(ids.astype(numpy.int32)), torch.from_numpy(says)))

    def batch(self, synthetic, books):
        """ids int64, weights float32, each [synthetic + books, length]; `synthetic` a multiple of ROWS_A_JOB."""
        parts = [self.ready.get(timeout=120) for _ in range(synthetic // ROWS_A_JOB)]
        self.room.release(len(parts))
        if len(self.order) < books:
            self.order = torch.randperm(len(self.books), generator=self.generator)
        chosen, self.order = self.order[:books], self.order[books:]
        ids = torch.cat([ids for ids, _ in parts] + [self.books[chosen]])
        says = torch.cat(
            [says for _, says in parts] + [torch.full((books, self.length), 10, dtype=torch.uint8)]
        )
        return ids.long(), says.float() / 10


def held_out(chat, each, length):
    """{kind: (ids, is answer)} of items drawn with another seed, [each, length]."""
    random, result = random_module.Random(HELD_OUT_SEED), {}
    for kind, make in tasks.KINDS.items():
        if kind in ("plain_story", "requested_story", "told_story"):
            continue
        ids = torch.full((each, length), chat.special["[PAD]"])
        says = torch.zeros((each, length), dtype=torch.bool)
        row = 0
        while row < each:
            prompt, answer = chat.question(make(random))
            if len(prompt) + len(answer) > CHECKED_TOKENS:
                continue
            ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            says[row, len(prompt) : len(prompt) + len(answer)] = True
            row += 1
        result[kind] = (ids, says)
    return result


# --- optimiser


@torch.no_grad()
def orthogonalised(g, steps=5):
    """U V^T of g = U S V^T, nearly: Newton-Schulz, [..., rows, cols] (Muon; Jordan et al. 2024)."""
    x = g.bfloat16()
    turned = x.shape[-2] > x.shape[-1]
    x = x.mT if turned else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if turned else x


class Muon:
    """Momentum, orthogonalised, with the size of an AdamW step (0.2 sqrt(max(rows, cols)); Liu et al. 2025)."""

    def __init__(self, parameters, momentum=0.95, weight_decay=0.1):
        self.momentum, self.weight_decay = momentum, weight_decay
        self.shapes = {}
        for p in parameters:
            self.shapes.setdefault(p.shape[-2:], []).append((p, torch.zeros_like(p)))

    @torch.no_grad()
    def step(self, rate):
        """`rate`: a tensor, so that a CUDA graph reads it anew."""
        for shape, group in self.shapes.items():
            updates = []
            for p, velocity in group:
                velocity.mul_(self.momentum).add_(p.grad)
                updates.append(p.grad.add(velocity, alpha=self.momentum).reshape(-1, *shape))
            directions = orthogonalised(torch.cat(updates)).split([len(u) for u in updates])
            for (p, _), direction in zip(group, directions):
                p.mul_(1 - rate * self.weight_decay)
                p.sub_(direction.reshape(p.shape) * (rate * 0.2 * math.sqrt(max(shape))))


class Captured:
    """A step as a CUDA graph: thousands of small kernels, launched at once."""

    def __init__(self, step):
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = step()

    def __call__(self):
        self.graph.replay()
        return self.result


# --- training


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--books", required=True)
    parser.add_argument("--ranks", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument(
        "--seconds", type=float, default=480, help="of training, compiling not included"
    )
    parser.add_argument("--steps", type=int, help="instead of seconds")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--book-share", type=float, default=0.25)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--end-rate", type=float, default=0.0, help="reached linearly")
    parser.add_argument(
        "--nvfp4-from",
        type=float,
        default=0.8,
        help="share of the time after which experts are NVFP4",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4, help="one makes 2 M tokens a second")
    parser.add_argument("--check-seconds", type=float, default=75)
    parser.add_argument("--check-items", type=int, default=64, help="held-out items of each kind")
    parser.add_argument("--eager", action="store_true", help="no CUDA graph")
    parser.add_argument("--start", help="folder of a checkpoint to go on from")
    parser.add_argument("--config", type=json.loads, default={})
    arguments = parser.parse_args()
    begin = time.time()
    print(f"+ python3 {' '.join(sys.argv)}", flush=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def say(text):
        print(f"[{time.time() - begin:6.1f}] {text}", flush=True)

    num_books = round(arguments.rows * arguments.book_share)
    if (arguments.rows - num_books) % ROWS_A_JOB != 0:
        raise SystemExit(
            f"--rows and --book-share leave {arguments.rows - num_books} synthetic rows: expected a "
            f"multiple of {ROWS_A_JOB}"
        )
    tasks.most_facts = (arguments.length - 80) // 10  # before the workers are forked
    rows = Rows(arguments, arguments.length + 1)
    say(
        f"books: {rows.books.numel() / 1e6:.1f} M tokens; {100 * arguments.book_share:.0f} % of a "
        "batch are books"
    )
    chat = Chat(arguments.ranks)
    checks = held_out(chat, arguments.check_items, CHECKED_TOKENS + 16)
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    config = demo.Config(vocab=chat.vocab, **arguments.config)
    net = demo.Model(config).to(device)
    if arguments.start:
        net.load_state_dict(weights_file.read(arguments.start))
    plain = {name: getattr(demo, name) for name in COMPILED}
    compiled = plain
    if device == "cuda":
        compiled = {
            name: torch.compile(function, dynamic=False) for name, function in plain.items()
        }

    def use(functions):
        for name, function in functions.items():
            setattr(demo, name, function)

    use(compiled)
    matrices = [
        p
        for n, p in net.named_parameters()
        if p.dim() >= 2
        and n.startswith("layers.")
        and "conv1d" not in n
        and "res_proj" not in n
        and "gate.weight" not in n
        and ".b_proj" not in n
    ]
    chosen = {id(p) for p in matrices}
    others = [p for p in net.parameters() if id(p) not in chosen]
    muon = Muon(matrices)
    rate, balance_rate = torch.zeros((), device=device), torch.zeros((), device=device)
    adam = torch.optim.AdamW(
        others,
        lr=rate if device == "cuda" else arguments.rate,
        betas=(0.9, 0.95),
        eps=1e-9,
        weight_decay=0.0,
        **({"fused": True, "capturable": True} if device == "cuda" else {}),
    )
    say(
        f"{sum(p.numel() for p in net.parameters()) / 1e6:.2f} M parameters, "
        f"{sum(p.numel() for p in matrices) / 1e6:.2f} M of them with Muon"
    )
    autocast = torch.autocast(
        device, dtype=torch.bfloat16, enabled=device == "cuda", cache_enabled=False
    )

    def losses(ids):
        with autocast:
            logits = net(ids[:, :-1])
        return F.cross_entropy(
            logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        ).view(len(ids), -1)

    @torch.no_grad()
    def check():
        exact = {}
        use(plain)  # compiling for other shapes would take longer
        for kind, (ids, says) in checks.items():
            with autocast:
                best = (
                    net(ids[:, :-1].to(device)[:, : ids.shape[1] // 16 * 16 - 16]).argmax(-1).cpu()
                )
            n = best.shape[1]
            wrong = (best != ids[:, 1 : n + 1]) & says[:, 1 : n + 1]
            exact[kind] = 1 - wrong.any(1).float().mean().item()
        for moe in net.moes():
            moe.load.zero_()  # of training steps, and of padding
        books = (
            torch.cat([losses(b.to(device)).mean(1) for b in rows.held_out_books.split(32)])
            .mean()
            .item()
        )
        loads = torch.stack([moe.load / moe.load.mean() for moe in net.moes()])
        for moe in net.moes():
            moe.load.zero_()
        use(compiled)
        say(
            f"books {books:.3f} nats; load of experts {loads.min():.2f} to {loads.max():.2f} of the "
            "mean; exact answers, %: "
            + ", ".join(f"{kind} {100 * share:.0f}" for kind, share in exact.items())
        )

    ids = torch.zeros((arguments.rows, arguments.length + 1), dtype=torch.long, device=device)
    says = torch.zeros((arguments.rows, arguments.length + 1), device=device)

    def train_step():
        loss = (losses(ids) * says[:, 1:]).sum() / says[:, 1:].sum()
        net.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
        adam.step()
        muon.step(rate)
        return loss.detach(), torch.stack([moe.balance(balance_rate) for moe in net.moes()]).max()

    step, tokens, start, last_check, last_say = 0, 0, None, 0, (0, 0)
    run, eager_until = train_step, 5  # then captured
    side = torch.cuda.Stream() if device == "cuda" and not arguments.eager else None
    while True:
        done = (
            0.0
            if start is None
            else (
                step / arguments.steps
                if arguments.steps
                else (time.time() - start) / arguments.seconds
            )
        )
        if done >= 1:
            break
        if done >= arguments.nvfp4_from and not net.moes()[0].quantised:
            for moe in net.moes():
                moe.quantised = True
            run, eager_until = train_step, step + 2
            loss = uneven = None
            if device == "cuda":  # the memory of the graph, before the next one takes as much
                torch.cuda.synchronize()
                net.zero_grad(set_to_none=True)
                torch.cuda.empty_cache()
            say("experts are NVFP4 from here on")
        new_ids, new_says = rows.batch(arguments.rows - num_books, num_books)
        ids.copy_(new_ids)
        says.copy_(new_says)
        planned = arguments.rate + (arguments.end_rate - arguments.rate) * done
        rate.fill_(planned * min(1, (step + 1) / 100))
        balance_rate.fill_(1e-2 * (1 - done) + 1e-3)
        if side is None:
            if device == "cpu":
                adam.param_groups[0]["lr"] = rate.item()
            loss, uneven = run()
        elif step < eager_until:  # beside the default stream, as capturing wants it
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss, uneven = run()
            torch.cuda.current_stream().wait_stream(side)
        else:
            if run is train_step:
                net.zero_grad(set_to_none=True)
                run = Captured(train_step)
            loss, uneven = run()
        step, tokens = step + 1, tokens + ids.numel()
        if step == 10:
            if device == "cuda":
                torch.cuda.synchronize()
            start, last_say = time.time(), (time.time(), tokens)
        if step % 100 == 0:
            value, now = loss.item(), time.time()
            say(
                f"step {step} loss {value:.3f} rate {rate:.1e} {tokens / 1e6:.0f} M tokens, "
                f"{(tokens - last_say[1]) / (now - last_say[0]) / 1e3:.0f} k/s, most loaded expert "
                f"{uneven.item():.2f}, {rows.ready.qsize()} batches wait"
            )
            last_say = (now, tokens)
        if start is not None and time.time() - start > last_check + arguments.check_seconds:
            last_check = time.time() - start
            check()
    say(f"{step} steps, {tokens / 1e6:.1f} M tokens")
    weights_file.write(net, pathlib.Path(arguments.out))
    say("written")
    rows.stop()
    check()
    for moe in net.moes():
        moe.quantised = False
    say("experts not quantised:")
    check()


if __name__ == "__main__":
    main()
