"""libhalfbyte_c.so by ctypes: include/halfbyte/halfbyte_c.h, struct by struct.

The library is looked for at $HALFBYTE_LIBRARY, beside this file, and in build/cuda, build/release and
build/dev of the checkout that this file lies in.
"""

import ctypes
import os
import pathlib
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32
from ctypes import c_uint64, c_void_p

ABI_VERSION = 2
BF16, F32 = 1, 2
KINDS = {1: "input", 2: "unsupported", 3: "resource", 4: "internal"}


class Error(RuntimeError):
    """What halfbyte refuses, in one line. `kind`: input, unsupported, resource or internal."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


class Options(Structure):
    _fields_ = [("struct_bytes", c_uint32), ("num_experts", c_int32), ("top_k", c_int32),
                ("hidden_size", c_int32), ("intermediate_size", c_int32),
                ("max_num_tokens", c_int32), ("weight_format", c_char_p), ("backend", c_char_p),
                ("activation", c_char_p), ("situ_beta", c_float), ("situ_linear_beta", c_float),
                ("situ_has_linear_beta", c_int32), ("swiglu_alpha", c_float),
                ("swiglu_limit", c_float), ("swiglu_beta", c_float),
                ("num_global_experts", c_int32), ("reserved", c_int32)]


class PlanInfo(Structure):
    _fields_ = [("struct_bytes", c_uint32), ("packs_in_place", c_int32),
                ("expert_bytes", c_uint64), ("packed_bytes", c_uint64),
                ("workspace_bytes", c_uint64), ("takes_f32_input", c_int32),
                ("is_gated", c_int32), ("gate_codes", c_uint64), ("up_codes", c_uint64),
                ("gate_scales", c_uint64), ("up_scales", c_uint64), ("down_codes", c_uint64),
                ("down_scales", c_uint64), ("global_scales", c_uint64), ("describe", c_char_p)]


class Strided(Structure):
    _fields_ = [("data", c_void_p), ("expert_stride", c_int64), ("row_stride", c_int64)]


class Matrices(Structure):
    _fields_ = [("codes", Strided), ("scales", Strided), ("global_scales", c_void_p),
                ("global_scale_stride", c_int64)]


class PackWeights(Structure):
    _fields_ = [("struct_bytes", c_uint32), ("gate", Matrices), ("up", Matrices),
                ("down", Matrices)]


class Call(Structure):
    _fields_ = [("struct_bytes", c_uint32), ("num_tokens", c_int32), ("topk_ids", c_void_p),
                ("topk_weights", c_void_p), ("hidden_states", c_void_p), ("output", c_void_p),
                ("hidden_states_dtype", c_int32), ("output_dtype", c_int32),
                ("hidden_states_stride", c_int64), ("output_stride", c_int64),
                ("workspace", c_void_p), ("workspace_bytes", c_size_t), ("stream", c_void_p)]

#name->(returns a status ?, arguments)
FUNCTIONS = {
    "hb_device_open": (True, [c_char_p, c_int32, POINTER(c_void_p)]),
    "hb_device_close": (False, [c_void_p]),
    "hb_moe_options_init": (False, [POINTER(Options), c_size_t]),
    "hb_moe_plan_create": (True, [c_void_p, POINTER(Options), POINTER(c_void_p)]),
    "hb_moe_plan_destroy": (False, [c_void_p]),
    "hb_moe_plan_get_info": (True, [c_void_p, POINTER(PlanInfo)]),
    "hb_moe_pack": (True, [c_void_p, POINTER(PackWeights), c_int32, c_int32, c_void_p, c_size_t,
                           c_void_p]),
    "hb_moe_pack_in_place": (True, [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p]),
    "hb_moe_layer_create": (True, [c_void_p, c_void_p, c_size_t, POINTER(c_void_p)]),
    "hb_moe_layer_destroy": (False, [c_void_p]),
    "hb_moe_run": (True, [c_void_p, POINTER(Call)]),
}

_library = None


def candidates():
    here = pathlib.Path(__file__).resolve().parent
    if os.environ.get("HALFBYTE_LIBRARY"):
        return [pathlib.Path(os.environ["HALFBYTE_LIBRARY"])]
    builds = [here.parents[1] / "build" / preset for preset in ("cuda", "release", "dev")]
    return [folder / "libhalfbyte_c.so" for folder in [here, *builds]]


def load_library(path=None):
    """The library; `path` says where it lies, in place of the search above. Loaded once."""
    global _library
    if _library is not None:
        return _library
    paths = [pathlib.Path(path)] if path is not None else candidates()
    found = [candidate for candidate in paths if candidate.is_file()]
    if not found:
        raise Error("resource", "libhalfbyte_c.so is at none of "
                    + ", ".join(map(str, paths)) + ": `cmake --build --preset cuda --target "
                    "halfbyte_c` makes it (docs/python.md); HALFBYTE_LIBRARY names another")
    library = ctypes.CDLL(str(found[0]))
    library.hb_abi_version.restype = c_uint32
    if library.hb_abi_version() != ABI_VERSION:
        raise Error("unsupported", f"{found[0]} has ABI version {library.hb_abi_version()}: this "
                    f"package needs {ABI_VERSION}")
    library.hb_last_error.restype = c_char_p
    for name, (has_status, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_int32 if has_status else None
    _library = library
    return library


def call(name, *arguments):
    """Calls a function that returns a status; raises Error."""
    library = load_library()
    status = getattr(library, name)(*arguments)
    if status != 0:
        raise Error(KINDS.get(status, "internal"), library.hb_last_error().decode())


def new(struct, **fields):
    return struct(struct_bytes=ctypes.sizeof(struct), **fields)


def create(name, *arguments):
    """A handle, from a function whose last argument is where it goes."""
    handle = c_void_p()
    call(name, *arguments, ctypes.byref(handle))
    return handle
