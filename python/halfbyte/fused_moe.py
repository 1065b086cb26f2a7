"""A fused mixture-of-experts layer: y[t] = sum_k topk_weights[t, k] * expert topk_ids[t, k] of x[t].

Letters: T tokens, E experts, K experts a token, L hidden size, F intermediate size. An expert is
down(act(gate(x), up(x))). docs/python.md shows how to use it; checked by
tests/python/test_fused_moe.py.
"""

import ctypes
import functools
import typing
import weakref

from . import _arrays as arrays
from . import _library as library
from ._library import Error

GROUPS = {"nvfp4": 16, "mxfp4": 32}  # columns that share a block scale
SCALE_DTYPES = {"nvfp4": ("float8_e4m3fn", "uint8"), "mxfp4": ("uint8", "float8_e8m0fnu")}
PARAMETERS = {"situ": ("situ_beta", "situ_linear_beta"),
              "swiglu_oai": ("swiglu_alpha", "swiglu_limit", "swiglu_beta"),
              "swiglu_clamped": ("swiglu_alpha", "swiglu_limit", "swiglu_beta")}
DTYPE_NUMBERS = {"bfloat16": library.BF16, "uint16": library.BF16, "float32": library.F32}
ALIGNMENT = 256
SCRATCH_BYTES = 256 << 20  # while packing in place; one expert if that is more


class Weights(typing.NamedTuple):
    """The tensors of a projection, all experts stacked, as ModelOpt names them.

    weight          uint8 (E, rows, columns / 2), even column in the low nibble
    weight_scale    NVFP4 float8_e4m3fn (E, rows, columns / 16), MXFP4 uint8 (E, rows, columns / 32);
                    not swizzled
    weight_scale_2  NVFP4 float32 (E,); for w13 also (E, 1), or (E, 2): of gate, of up
    """

    weight: object
    weight_scale: object
    weight_scale_2: object = None


class FusedMoE:
    """Experts packed for one device, and the call that runs them.

    Weights (a `Weights` or a tuple like it): `down`, and either `gate` and `up` or `w13`, the rows of
    both in one, as `w13_layout` says: "gate_up", "up_gate", or "interleaved", gate first. Without a
    gate (relu2): `up` and `down`. They are only read; drop yours afterwards. Tensors on the host may
    be given to a layer on a GPU: experts then travel one at a time. `FusedMoE.empty` packs in place.

    `activation`: "silu" (= "swiglu"), "situ" (situ_beta 4, situ_linear_beta 25, None: none),
    "swiglu_oai" (= "swiglu_clamped"; swiglu_alpha 1.702, swiglu_limit 7, swiglu_beta 1: what is added
    to up), "geglu_tanh", "relu2". A parameter that an activation does not have is refused.

    `max_num_tokens` bounds T. `workspace`: memory for one call, uint8; None makes workspace_bytes.
    Layers that run one after the other can share the `workspace` of the one that needs most.
    `num_global_experts`: those that the router chooses among, if only `num_experts` of them are here
    (expert parallelism: ids of the others are -1). Helps to choose kernels, whose results differ by
    rounding.
    `device`: "cuda:N" or "cpu"; None: where the weights are. `backend`: "auto", "hopper", "dequant"
    (decodes to BF16: slow, cannot be captured), "cpu", "reference".

    Raises halfbyte.Error with one line. A layer is used by one thread, and on one stream, at a time.
    """

    def __init__(self, *, down, w13=None, gate=None, up=None, w13_layout="gate_up", device=None,
                 **options):
        weight = arrays.view("down.weight", down[0])
        if len(weight.shape) != 3:
            weight.refuse(f"shape {weight.shape}: expected (E, L, F / 2)")
        num_experts, hidden_size, half = weight.shape
        self._plan("torch" if arrays.is_torch(down[0]) else "numpy", device or weight.device,
                   num_experts=num_experts, hidden_size=hidden_size, intermediate_size=2 * half,
                   **options)
        self._pack({"w13": w13, "gate": gate, "up": up, "down": down}, w13_layout)
        self._bind()

    @classmethod
    def empty(cls, *, num_experts, hidden_size, intermediate_size, device, array_library="torch",
              **options):
        """A layer whose weights are still to come: write them into the tensors of `w13`, rows of gate
        first (without a gate: `up`), and `down`, then call `pack`. `options` as in FusedMoE.

        With backend hopper the tensors are views of the memory of the packed bytes, so that the layer
        needs at no time more than itself and SCRATCH_BYTES.
        """
        self = cls.__new__(cls)
        self._plan(array_library, device, num_experts=num_experts, hidden_size=hidden_size,
                   intermediate_size=intermediate_size, **options)
        self.w13 = self.up = None
        if self._info.is_gated:
            self.w13 = self._stage("gate", 2 * intermediate_size, hidden_size)
        else:
            self.up = self._stage("up", intermediate_size, hidden_size)
        self.down = self._stage("down", hidden_size, intermediate_size)
        return self

    def pack(self):
        """Packs what was written into the tensors of `empty`, which are void afterwards. Waits."""
        if self._layer is not None:
            raise Error("input", "pack: this layer is packed")
        if self._info.packs_in_place:
            expert_bytes = self._info.expert_bytes
            count = min(self.num_experts, max(1, SCRATCH_BYTES // expert_bytes))
            scratch = self._make_bytes(count * expert_bytes)
            library.call("hb_moe_pack_in_place", self._handle, self._packed_address,
                         self._info.packed_bytes, arrays.view("scratch", scratch).address,
                         count * expert_bytes, arrays.current_stream(self.device))
        else:
            self._pack({"w13": self.w13, "gate": None, "up": self.up, "down": self.down}, "gate_up")
        self.w13 = self.up = self.down = None
        self._bind()

    def __call__(self, hidden_states, topk_ids, topk_weights, out=None):
        """hidden_states BF16 (T, L), topk_ids int32 (T, K), topk_weights float32 (T, K) -> `out`,
        BF16 or float32 (T, L); None: a new one like hidden_states.

        Queued on torch's current stream of the device. Ids outside [0, E), such as -1, are skipped;
        rows without any expert become 0. A CUDA graph may capture it, after a first plain call.
        """
        if self._layer is None:
            raise Error("input", "a call before pack()")
        x = arrays.view("hidden_states", hidden_states)
        x.expect(self.device, self._input_dtypes, (None, self.hidden_size))
        tokens = x.shape[0]
        if tokens > self.max_num_tokens:
            x.refuse(f"{tokens} tokens: this layer was made for max_num_tokens "
                     f"{self.max_num_tokens}")
        if out is None:
            out = arrays.make(self._array_library, x.shape, x.dtype, self.device)
        y = arrays.view("out", out).expect(self.device, self._output_dtypes, x.shape)
        routing_shape = (tokens, self.top_k)
        ids = arrays.view("topk_ids", topk_ids).expect(self.device, ("int32",), routing_shape)
        weights = arrays.view("topk_weights", topk_weights).expect(self.device, ("float32",),
                                                                   routing_shape)
        if tokens == 0:
            return out
        for given in (ids, weights):
            if not given.is_contiguous():
                given.refuse("is not contiguous; .contiguous() makes it so")
        if x.address < y.end() and y.address < x.end():
            y.refuse("shares memory with hidden_states, or lies between its rows")
        if not arrays.is_writable(out):
            y.refuse("is read-only")
        call = library.new(
            library.Call, num_tokens=tokens, topk_ids=ids.address, topk_weights=weights.address,
            hidden_states=x.address, output=y.address, hidden_states_dtype=DTYPE_NUMBERS[x.dtype],
            output_dtype=DTYPE_NUMBERS[y.dtype], hidden_states_stride=self._row_stride(x),
            output_stride=self._row_stride(y), workspace=self._workspace_address,
            workspace_bytes=self._workspace_size, stream=arrays.current_stream(self.device))
        library.call("hb_moe_run", self._layer, ctypes.byref(call))
        return out

    def describe(self):
        """The backend's kernels and tiles, one line."""
        return self._info.describe.decode()

    # ---- plan, bind

    def _plan(self, array_library, device, *, num_experts, hidden_size, intermediate_size, top_k,
              max_num_tokens, weight_format="nvfp4", backend="auto", workspace=None,
              activation="silu", num_global_experts=0, **parameters):
        self.num_experts, self.top_k = num_experts, top_k
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.max_num_tokens, self.weight_format = max_num_tokens, weight_format
        self.device = str(device)
        if self.device == "cuda":
            import torch
            self.device = f"cuda:{torch.cuda.current_device()}"
        self._array_library, self._layer = array_library, None
        if weight_format not in GROUPS:
            raise Error("input", f"weight_format {weight_format!r}: expected nvfp4 or mxfp4")
        if array_library == "numpy" and self.device.startswith("cuda"):
            raise Error("unsupported", "numpy arrays for a GPU: expected torch tensors")
        options = make_options(
            activation, parameters, weight_format=weight_format.encode(),
            backend=backend.encode(), num_experts=num_experts, hidden_size=hidden_size,
            intermediate_size=intermediate_size, top_k=top_k, max_num_tokens=max_num_tokens,
            num_global_experts=num_global_experts)
        self._handle = library.create("hb_moe_plan_create", open_device(self.device).handle,
                                      ctypes.byref(options))
        release(self, "hb_moe_plan_destroy", self._handle)
        self._info = library.new(library.PlanInfo)
        library.call("hb_moe_plan_get_info", self._handle, ctypes.byref(self._info))
        # NOTE: numpy has no BF16: its bits.
        self._output_dtypes = ("bfloat16", "float32") + (
            ("uint16",) if array_library == "numpy" else ())
        self._input_dtypes = tuple(dtype for dtype in self._output_dtypes
                                   if dtype != "float32" or self._info.takes_f32_input)

        self.workspace_bytes = self._info.workspace_bytes
        self.workspace = self._make_bytes(self.workspace_bytes) if workspace is None else workspace
        given = arrays.view("workspace", self.workspace).expect(self.device, ("uint8",), (None,))
        self._workspace_address, self._workspace_size = given.address, given.shape[0]
        if self._workspace_size < self.workspace_bytes or given.address % ALIGNMENT:
            given.refuse(f"{self._workspace_size} bytes at {given.address:#x}: expected "
                         f"{self.workspace_bytes} at a multiple of {ALIGNMENT}")
        self._packed = self._make_bytes(self._info.packed_bytes)
        self._packed_address = arrays.view("packed", self._packed).address

    def _make_bytes(self, count):
        return arrays.make_bytes(self._array_library, count, self.device, ALIGNMENT)

    def _bind(self):
        self._layer = library.create("hb_moe_layer_create", self._handle, self._packed_address,
                                     self._info.packed_bytes)
        release(self, "hb_moe_layer_destroy", self._layer)

    def _row_stride(self, given):
        """In elements. NOTE: torch may give any stride to a dimension of size 1."""
        if given.shape[0] == 1:
            return self.hidden_size
        return given.strides[0] // given.item_bytes

    # ---- pack

    def _pack(self, given, w13_layout):
        parts = self._parts(given, w13_layout)
        if all(each.device == self.device for part in parts.values() for each in part if each):
            self._pack_experts(parts, 0, self.num_experts)
            return
        # Tensors on the host, a layer on a GPU. NOTE: a moved tensor lives until it is packed.
        for expert in range(self.num_experts):
            moved = {name: [each and arrays.view(each.name, each.array[expert:expert + 1].to(
                self.device)) for each in part] for name, part in parts.items()}
            self._pack_experts(moved, expert, 1)

    def _parts(self, given, w13_layout):
        """{"gate", "up", "down": views of weight, weight_scale, weight_scale_2}, checked."""
        names = {name for name, value in given.items() if value is not None}
        wanted = [{"w13", "down"}, {"gate", "up", "down"}] if self._info.is_gated else [
            {"up", "down"}]
        if names not in wanted:
            listed = [" and ".join(sorted(each)) for each in wanted]
            raise Error("input", f"weights: got {' and '.join(sorted(names))}: expected "
                        f"{', or '.join(listed)}")
        L, F = self.hidden_size, self.intermediate_size
        parts = {"down": self._check("down", given["down"], L, F)}
        if given["w13"] is not None:
            self._check("w13", given["w13"], 2 * F, L)
            given = given | split_w13(Weights(*given["w13"]), F, w13_layout)
        for name in ("gate", "up"):
            if given[name] is not None:
                parts[name] = self._check(name, given[name], F, L)
        return parts

    def _check(self, name, weights, rows, columns):
        weight, scale, scale_2 = Weights(*weights)
        codes = arrays.view(f"{name}.weight", weight)
        if codes.device not in (self.device, "cpu"):
            codes.refuse(f"is on {codes.device}: expected {self.device} or cpu")
        stacked = (self.num_experts, rows)
        codes.expect(codes.device, ("uint8",), stacked + (columns // 2,))
        scales = arrays.view(f"{name}.weight_scale", scale).expect(
            codes.device, SCALE_DTYPES[self.weight_format],
            stacked + (columns // GROUPS[self.weight_format],))
        if self.weight_format != "nvfp4":
            if scale_2 is not None:
                raise Error("input", f"{name}.weight_scale_2: {self.weight_format} has none")
            return codes, scales, None
        if scale_2 is None:
            raise Error("input", f"{name}.weight_scale_2: nvfp4 needs it")
        factors = arrays.view(f"{name}.weight_scale_2", scale_2)
        shapes = [(self.num_experts,)]
        if name == "w13":
            shapes += [(self.num_experts, 1), (self.num_experts, 2)]
        if factors.shape not in shapes:
            factors.refuse(f"shape {factors.shape}: expected {' or '.join(map(str, shapes))}")
        if factors.device != codes.device or factors.dtype != "float32":
            factors.refuse(f"{factors.dtype} on {factors.device}: expected float32 on "
                           f"{codes.device}")
        return codes, scales, factors

    def _pack_experts(self, parts, first, count):
        def strided(given):
            return library.Strided(given.address, given.strides[0], given.strides[1])

        weights = library.new(library.PackWeights, **{
            name: library.Matrices(strided(codes), strided(scales), factors and factors.address,
                                   factors.strides[0] // 4 if factors else 0)
            for name, (codes, scales, factors) in parts.items()})
        library.call("hb_moe_pack", self._handle, ctypes.byref(weights), first, count,
                     self._packed_address, self._info.packed_bytes,
                     arrays.current_stream(self.device))

    def _stage(self, name, rows, columns):
        """Tensors for the caller to fill: those of "gate" hold the rows of up, too."""
        experts, group = self.num_experts, GROUPS[self.weight_format]
        scale_dtype = SCALE_DTYPES[self.weight_format][0]
        factors_shape = (experts, 2) if name == "gate" else (experts,)
        if not self._info.packs_in_place:
            def new(shape, dtype):
                return arrays.make(self._array_library, shape, dtype, self.device)
            return Weights(new((experts, rows, columns // 2), "uint8"),
                           new((experts, rows, columns // group), scale_dtype),
                           new(factors_shape, "float32") if group == 16 else None)
        import torch
        expert_bytes = self._info.expert_bytes

        def part(kind, row_bytes):
            offset = self._packed.storage_offset() + getattr(self._info, f"{name}_{kind}")
            return self._packed.as_strided((experts, rows, row_bytes),
                                           (expert_bytes, row_bytes, 1), offset)

        codes = part("codes", columns // 2)
        scales = part("scales", columns // group).view(getattr(torch, scale_dtype))
        if self.weight_format != "nvfp4":
            return Weights(codes, scales)
        floats = self._packed.view(torch.float32)
        place = self._info.global_scales // 4 + {"gate": 0, "up": 1, "down": 2}[name]
        strides = (expert_bytes // 4, 1) if name == "gate" else (expert_bytes // 4,)
        return Weights(codes, scales, floats.as_strided(factors_shape, strides,
                                                        floats.storage_offset() + place))


def split_w13(both, rows, layout):
    """{"gate": Weights, "up": Weights}: views of `both`."""
    slices = {"gate_up": (slice(0, rows), slice(rows, None)),
              "up_gate": (slice(rows, None), slice(0, rows)),
              "interleaved": (slice(0, None, 2), slice(1, None, 2))}
    if layout not in slices:
        raise Error("input", f"w13_layout {layout!r}: expected {' or '.join(slices)}")
    scale_2 = both.weight_scale_2
    columns = [scale_2, scale_2]
    if scale_2 is not None and len(scale_2.shape) == 2:
        columns = [scale_2[:, 0], scale_2[:, -1]]
    return {name: Weights(both.weight[:, part], both.weight_scale[:, part], column)
            for name, part, column in zip(("gate", "up"), slices[layout], columns)}


def make_options(activation, parameters, **fields):
    options = library.Options()
    library.load_library().hb_moe_options_init(ctypes.byref(options), ctypes.sizeof(options))
    for name, value in fields.items():
        # NOTE: ctypes would cut off what does not fit.
        if not isinstance(value, (int, bytes)) or isinstance(value, int) and not (
                -2**31 <= value < 2**31):
            raise Error("input", f"{name} {value!r}: expected a number of 32 bits, not a fraction")
        setattr(options, name, value)
    options.activation = activation.encode()
    known = PARAMETERS.get(activation, ())
    for name, value in parameters.items():
        if name not in known:
            raise Error("input", f"{name}: no parameter of activation {activation}, which has "
                        f"{', '.join(known) or 'none'}")
        if name == "situ_linear_beta" and value is None:
            options.situ_has_linear_beta = 0
        elif not isinstance(value, (int, float)):
            raise Error("input", f"{name} {value!r}: expected a number")
        else:
            setattr(options, name, value)
    return options


def release(owner, function, handle):
    """Releases the handle with its owner. NOTE: not at exit, when CUDA may be gone already."""
    weakref.finalize(owner, getattr(library.load_library(), function), handle).atexit = False


class Device:
    def __init__(self, name):
        self.handle = library.create("hb_device_open", name.encode(), 0)
        release(self, "hb_device_close", self.handle)


@functools.lru_cache(maxsize=None)
def open_device(name):
    """One of each: a CPU device has threads, a GPU has a stream."""
    return Device(name)
