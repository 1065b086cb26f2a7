"""Tensors of torch and arrays of numpy as one thing: address, dtype, shape, strides, device.

torch and numpy are imported only where memory is made, and only the one that the caller uses.
"""

import dataclasses

from ._library import Error

# numpy has no BF16 and no 8-bit floats: their bits as unsigned integers (ml_dtypes has them as V2).
NUMPY_DTYPES = {"|u1": "uint8", "<u2": "uint16", "<V2": "bfloat16", "<f4": "float32",
                "<i4": "int32", "<i8": "int64", "<f8": "float64", "<f2": "float16", "|i1": "int8"}
ITEM_BYTES = {"uint8": 1, "float8_e4m3fn": 1, "float8_e8m0fnu": 1, "bfloat16": 2, "uint16": 2,
              "float32": 4, "int32": 4}


@dataclasses.dataclass(frozen=True)
class View:
    name: str
    array: object  # keeps the memory
    address: int
    dtype: str  # torch's word: "bfloat16"
    shape: tuple
    strides: tuple  # bytes
    device: str  # "cpu", "cuda:0"

    def refuse(self, message):
        raise Error("input", f"{self.name}: {message}")

    def expect(self, device, dtypes, shape):
        """Refuses another device, dtype or shape, and rows with gaps between their elements; None in
        `shape` is any size."""
        if self.device != device:
            self.refuse(f"is on {self.device}: expected {device}")
        if self.dtype not in dtypes:
            self.refuse(f"dtype {self.dtype}: expected {' or '.join(dtypes)}")
        if len(self.shape) != len(shape) or any(
                want is not None and got != want for got, want in zip(self.shape, shape)):
            wanted = ", ".join("*" if want is None else str(want) for want in shape)
            self.refuse(f"shape {self.shape}: expected ({wanted})")
        if 0 not in self.shape and self.shape[-1] > 1 and self.strides[-1] != self.item_bytes:
            self.refuse("elements of a row are not neighbours; .contiguous() makes it so")
        return self

    @property
    def item_bytes(self):
        return ITEM_BYTES[self.dtype]

    def is_contiguous(self):
        expected = self.item_bytes
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size > 1 and stride != expected:
                return False
            expected *= size
        return True

    def end(self):
        """The address behind the last element. Not for an empty array."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))
        return self.address + last + self.item_bytes


def is_torch(array):
    return hasattr(array, "data_ptr")


def is_writable(array):
    return is_torch(array) or not array.__array_interface__["data"][1]


def view(name, array):
    if is_torch(array):
        item = array.element_size()
        return View(name, array, array.data_ptr(), str(array.dtype).removeprefix("torch."),
                    tuple(array.shape), tuple(stride * item for stride in array.stride()),
                    str(array.device))
    interface = getattr(array, "__array_interface__", None)
    if interface is None:
        raise Error("input", f"{name}: {type(array).__name__}: expected a torch tensor or a numpy "
                    "array")
    dtype = NUMPY_DTYPES.get(interface["typestr"], interface["typestr"])
    return View(name, array, interface["data"][0], dtype, tuple(interface["shape"]),
                tuple(array.strides), "cpu")


def make(library, shape, dtype, device):
    """Uninitialised memory of "torch" or "numpy"; `dtype` as View has it."""
    if library == "torch":
        import torch
        return torch.empty(shape, dtype=getattr(torch, dtype), device=device)
    import numpy
    bits = {1: "uint8", 2: "uint16"}
    return numpy.empty(shape, bits.get(ITEM_BYTES[dtype], dtype))


def make_bytes(library, count, device, alignment):
    """`count` bytes that begin at a multiple of `alignment`."""
    whole = make(library, (count + alignment,), "uint8", device)
    skip = -view("memory", whole).address % alignment
    return whole[skip:skip + count]


def current_stream(device):
    """torch's current stream of a GPU, as an address; None for "cpu"."""
    if not device.startswith("cuda"):
        return None
    import torch
    return torch.cuda.current_stream(torch.device(device)).cuda_stream
