"""Weights of model.py in small files: matrices as BF16, split into their high and low bytes (the high ones compress), in
parts of at most 15 MB; everything else as fp32. What is read back is what was written, rounded to BF16."""

import json
import pathlib
import zlib

import numpy
import torch

PART = 15_000_000


def is_matrix(name, tensor):
    return tensor.dim() >= 2 and "conv1d" not in name


def write(net, folder):
    folder.mkdir(parents=True, exist_ok=True)
    high, low, rest, meta = bytearray(), bytearray(), bytearray(), []
    for name, tensor in net.state_dict().items():
        meta.append((name, list(tensor.shape)))
        if is_matrix(name, tensor):
            pairs = tensor.detach().to(torch.bfloat16).contiguous().cpu().view(torch.int16).numpy()
            pairs = pairs.view(numpy.uint8).reshape(-1, 2)
            low += pairs[:, 0].tobytes()
            high += pairs[:, 1].tobytes()
        else:
            rest += tensor.detach().float().contiguous().cpu().numpy().tobytes()
    for name, data in (
        ("low", bytes(low)),
        ("high", zlib.compress(bytes(high), 6)),
        ("f32", bytes(rest)),
    ):
        for i in range(0, len(data), PART):
            (folder / f"{name}.{i // PART}").write_bytes(data[i : i + PART])
    (folder / "meta.json").write_text(json.dumps(meta))


def read(folder):
    """{name: fp32 tensor}"""
    folder = pathlib.Path(folder)

    def whole(name):
        return b"".join(path.read_bytes() for path in sorted(folder.glob(name + ".*")))

    low = numpy.frombuffer(whole("low"), numpy.uint8)
    high = numpy.frombuffer(zlib.decompress(whole("high")), numpy.uint8)
    rest = numpy.frombuffer(whole("f32"), numpy.float32)
    state, matrix_at, rest_at = {}, 0, 0
    for name, shape in json.loads((folder / "meta.json").read_text()):
        count = int(numpy.prod(shape, dtype=numpy.int64))
        if is_matrix(name, torch.empty(shape, device="meta")):
            span = slice(matrix_at, matrix_at + count)
            bits = high[span].astype(numpy.uint32) << 24 | low[span].astype(numpy.uint32) << 16
            state[name] = torch.from_numpy(bits.view(numpy.float32).copy()).view(shape)
            matrix_at += count
        else:
            state[name] = torch.from_numpy(rest[rest_at : rest_at + count].copy()).view(shape)
            rest_at += count
    return state
