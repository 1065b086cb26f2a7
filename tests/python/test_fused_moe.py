"""python/halfbyte: golden cases and refusals on the CPU with numpy, and on a GPU with torch.

    HALFBYTE_LIBRARY=build/dev/libhalfbyte_c.so python tests/python/test_fused_moe.py
    ... test_fused_moe.py --gpu       fails instead of skipping where torch or a GPU is missing

The golden cases and their tolerances: tests/golden/moe-op/README.md. On the GPU the reference is
plain torch in float64 over weights that this file decodes itself; tolerances: docs/numerics.md.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import halfbyte  # noqa: E402
from halfbyte import FusedMoE, Weights, _library  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None
HAS_GPU = torch is not None and torch.cuda.is_available()
NEEDS_GPU = "--gpu" in sys.argv
CASES = ROOT / "tests/golden/moe-op"
NUMPY = {"U8": "uint8", "F8_E4M3": "uint8", "BF16": "uint16", "F32": "float32", "I32": "int32"}


def read_safetensors(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, info in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in info["data_offsets"])
            tensors[name] = numpy.frombuffer(data[begin:end], NUMPY[info["dtype"]]).reshape(
                info["shape"])
    return tensors


class Case:
    """A golden case; projections stacked as ModelOpt checkpoints have them."""

    def __init__(self, facts):
        self.name, self.top_k, self.tokens = facts["name"], facts["top_k"], facts["tokens"]
        tensors = read_safetensors(CASES / facts["file"])
        self.inputs = tensors["hidden"], tensors["topk_ids"], tensors["topk_weights"]
        self.expected = tensors["expected_h_bf16"]
        names = {"gate": "w1", "up": "w3", "down": "w2"} if facts["gated"] else {
            "up": "up_proj", "down": "down_proj"}
        self.weights = {part: Weights(*(
            numpy.stack([tensors[f"experts.{e}.{name}.{kind}"] for e in range(facts["experts"])])
            for kind in Weights._fields)) for part, name in names.items()}
        for part, each in self.weights.items():
            self.weights[part] = each._replace(weight_scale_2=each.weight_scale_2.reshape(-1))
        words = {"beta": "situ_beta", "linear_beta": "situ_linear_beta", "alpha": "swiglu_alpha",
                 "limit": "swiglu_limit", "up_bias": "swiglu_beta"}
        self.options = {"activation": facts["activation"], "top_k": self.top_k,
                        "max_num_tokens": self.tokens,
                        **{words[name]: value for name, value in facts["params"].items()}}

    def w13(self, layout):
        """gate and up in one, in a layout of FusedMoE's."""
        gate, up = self.weights["gate"], self.weights["up"]
        def join(first, second):
            if layout == "interleaved":
                return numpy.stack([first, second], axis=2).reshape(
                    first.shape[0], -1, first.shape[2])
            both = (second, first) if layout == "up_gate" else (first, second)
            return numpy.concatenate(both, axis=1)
        return Weights(join(gate.weight, up.weight), join(gate.weight_scale, up.weight_scale),
                       numpy.stack([gate.weight_scale_2, up.weight_scale_2], axis=1))


def all_cases():
    return [Case(facts) for facts in json.loads((CASES / "cases.json").read_text())]


def find_case(name):
    return next(case for case in all_cases() if case.name == name)


def relative_l2(value, expected):
    value, expected = (numpy.asarray(each, "float64") for each in (value, expected))
    return numpy.linalg.norm(value - expected) / numpy.linalg.norm(expected)


def float_of_bf16(bits):
    return (bits.astype("uint32") << 16).view("float32")


@unittest.skipIf(numpy is None, "no numpy (tests/requirements.txt)")
class OnCpu(unittest.TestCase):
    def refuse(self, words, make, kind="input"):
        with self.assertRaises(halfbyte.Error) as caught:
            make()
        self.assertIn(words, str(caught.exception))
        self.assertEqual(caught.exception.kind, kind)
        self.assertNotIn("\n", str(caught.exception))

    def test_golden_cases(self):
        cases = all_cases()
        self.assertEqual(len(cases), 9)
        for case in cases:
            layer = FusedMoE(**case.weights, **case.options)
            out = numpy.full(case.expected.shape, numpy.nan, "float32")
            self.assertIs(layer(*case.inputs, out=out), out)
            self.assertLessEqual(relative_l2(out, case.expected), 2e-4, case.name)
            bf16 = layer(*case.inputs)
            self.assertEqual(bf16.dtype, numpy.uint16)
            self.assertLessEqual(relative_l2(float_of_bf16(bf16), case.expected), 4e-3, case.name)

    def test_every_layout_of_w13_is_the_same_layer(self):
        case = find_case("situ_unequal_t33")
        layer = FusedMoE(**case.weights, **case.options)
        separate = layer(*case.inputs)
        for layout in ("gate_up", "up_gate", "interleaved"):
            fused = FusedMoE(w13=case.w13(layout), down=case.weights["down"], w13_layout=layout,
                             workspace=layer.workspace, **case.options)
            numpy.testing.assert_array_equal(fused(*case.inputs), separate)
        # Teeth: the wrong order is another layer.
        wrong = FusedMoE(w13=case.w13("up_gate"), down=case.weights["down"], **case.options)
        out = numpy.empty(case.expected.shape, "float32")
        self.assertGreater(relative_l2(wrong(*case.inputs, out=out), case.expected), 0.1)

    def test_parameters_arrive(self):
        case = find_case("situ_t7")
        out = numpy.empty(case.expected.shape, "float32")
        for change in ({"situ_beta": 1.0}, {"situ_linear_beta": 0.5}):
            layer = FusedMoE(**case.weights, **{**case.options, **change})
            self.assertGreater(relative_l2(layer(*case.inputs, out=out), case.expected), 0.01)
        layer = FusedMoE(**case.weights, **{**case.options, "situ_linear_beta": None})
        self.assertGreater(relative_l2(layer(*case.inputs, out=out), case.expected), 2e-4)

    def test_empty_then_pack(self):
        for name in ("situ_t7", "relu2_minus_t7"):
            case = find_case(name)
            experts, hidden, half = case.weights["down"].weight.shape
            layer = FusedMoE.empty(num_experts=experts, hidden_size=hidden,
                                   intermediate_size=2 * half, device="cpu",
                                   array_library="numpy", **case.options)
            self.refuse("before pack", lambda: layer(*case.inputs))
            gated = "gate" in case.weights
            self.assertEqual(layer.w13 is not None, gated)
            pairs = [(layer.down, case.weights["down"]),
                     (layer.w13, case.w13("gate_up")) if gated else (layer.up, case.weights["up"])]
            for to, source in pairs:
                for target, values in zip(to, source):
                    target[...] = values
            layer.pack()
            whole = FusedMoE(**case.weights, **case.options)
            numpy.testing.assert_array_equal(layer(*case.inputs), whole(*case.inputs))
            self.refuse("is packed", layer.pack)

    def test_no_tokens_and_absent_experts(self):
        case = find_case("situ_t7")
        layer = FusedMoE(**case.weights, **case.options)
        x, ids, weights = case.inputs
        self.assertEqual(layer(x[:0], ids[:0], weights[:0]).shape, (0, layer.hidden_size))
        out = layer(x, numpy.full_like(ids, -1), weights)
        self.assertFalse(out.any())

    def test_what_it_refuses_at_a_call(self):
        case = find_case("situ_t7")
        layer = FusedMoE(**case.weights, **case.options)
        x, ids, weights = case.inputs
        wide = numpy.zeros((7, 2 * ids.shape[1]), "int32")
        for words, arguments in (
                ("topk_ids: dtype int64: expected int32", (x, ids.astype("int64"), weights)),
                ("topk_ids: shape (6, 3): expected (7, 3)", (x, ids[:6], weights)),
                ("topk_ids: elements of a row", (x, wide[:, ::2], weights)),
                ("topk_ids: is not contiguous", (x, wide[:, :3], weights)),
                ("topk_weights: dtype float64", (x, ids, weights.astype("float64"))),
                ("hidden_states: shape (7, 128): expected (*, 256)", (x[:, :128], ids, weights)),
                ("hidden_states: dtype int32", (x.astype("int32"), ids, weights)),
                ("hidden_states: 14 tokens", (numpy.concatenate([x, x]), ids, weights)),
                ("topk_ids: list", (x, ids.tolist(), weights)),
                ("out: shares memory", (x, ids, weights, x)),
                ("out: shape", (x, ids, weights, numpy.empty((7, 8), "float32")))):
            self.refuse(words, lambda arguments=arguments: layer(*arguments))

    def test_what_it_refuses_when_made(self):
        case = find_case("situ_t7")
        gate, up, down = (case.weights[name] for name in ("gate", "up", "down"))

        def refused(words, kind="input", **changes):
            arguments = {**case.weights, **case.options, **changes}
            self.refuse(words, lambda: FusedMoE(**arguments), kind)

        refused("weights: got down and up", gate=None)
        refused("weights: got down and gate and up and w13", w13=case.w13("gate_up"))
        refused("w13_layout 'gateup'", w13=case.w13("gate_up"), gate=None, up=None,
                w13_layout="gateup")
        refused("up.weight: shape", up=up._replace(weight=up.weight[:, 1:]))
        refused("up.weight_scale: shape", up=up._replace(weight_scale=up.weight_scale[:, :, 1:]))
        refused("gate.weight: dtype int8", gate=gate._replace(weight=gate.weight.view("int8")))
        refused("down.weight_scale_2: nvfp4 needs it", down=down[:2])
        refused("down.weight_scale_2: shape (7,)",
                down=down._replace(weight_scale_2=down.weight_scale_2[1:]))
        bad = up.weight_scale_2.copy()
        bad[3] = 0
        refused("expert 3 up: global scale 0", up=up._replace(weight_scale_2=bad))
        refused("swiglu_limit: no parameter of activation situ", swiglu_limit=7.0)
        refused("activation beta", situ_beta=-1.0)
        refused("weight_format 'fp8'", weight_format="fp8")
        refused("hopper does not run on device cpu", "unsupported", backend="hopper")
        refused("numpy arrays for a GPU", "unsupported", device="cuda:0")
        refused("workspace: 16 bytes", workspace=numpy.empty(16, "uint8"))
        refused("max_tokens", max_num_tokens=0)
        refused("num_global_experts", num_global_experts=1)

    def test_structs_are_those_of_the_header(self):
        """Sizes and offsets as a C compiler has them."""
        structs = {"hb_moe_options": _library.Options, "hb_moe_plan_info": _library.PlanInfo,
                   "hb_moe_weights": _library.PackWeights, "hb_moe_call": _library.Call,
                   "hb_moe_matrices": _library.Matrices, "hb_strided": _library.Strided}
        checks = "".join(
            f"_Static_assert(sizeof({name}) == {_library.ctypes.sizeof(struct)}, \"{name}\");\n"
            + "".join(f"_Static_assert(offsetof({name}, {field[0]}) == "
                      f"{getattr(struct, field[0]).offset}, \"{name}.{field[0]}\");\n"
                      for field in struct._fields_) for name, struct in structs.items())
        done = subprocess.run(
            [os.environ.get("CXX", "c++"), "-x", "c", "-std=c11", "-fsyntax-only",
             "-I", str(ROOT / "include"), "-"],
            input="#include \"halfbyte/halfbyte_c.h\"\n" + checks, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_library_shows_its_functions_alone(self):
        done = subprocess.run(["nm", "-D", "--defined-only", _library.load_library()._name],
                              capture_output=True, text=True, check=True)
        names = [line.split()[-1] for line in done.stdout.splitlines()]
        self.assertIn("hb_moe_run", names)
        self.assertEqual([name for name in names if not name.startswith("hb_")], [])
        header = (ROOT / "include/halfbyte/halfbyte_c.h").read_text()
        self.assertEqual([name for name in names if f"{name}(" not in header], [])


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def decode(weights, group):
    """(E, rows, columns) float64 without the fp32 scale."""
    codes = torch.stack([weights.weight & 15, weights.weight >> 4], dim=-1).flatten(-2).long()
    table = torch.tensor(E2M1 + [-value for value in E2M1], dtype=torch.float64,
                         device=codes.device)
    if group == 16:
        scales = weights.weight_scale.double()
    else:
        scales = torch.exp2(weights.weight_scale.double() - 127)
    return table[codes] * scales.repeat_interleave(group, dim=-1)


def situ(gate, up):
    return 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)


def silu(gate, up):
    return torch.nn.functional.silu(gate) * up


def reference(w13, down, group, activation, x, ids, weights):
    """Plain torch in float64; the hidden value rounded once to BF16."""
    decoded13, decoded2 = decode(w13, group), decode(down, group)
    E, rows = decoded13.shape[:2]
    ones = torch.ones(E, device=x.device, dtype=torch.float64)
    scale13 = ones[:, None].expand(E, 2) if group == 32 else w13.weight_scale_2.double()
    scale2 = ones if group == 32 else down.weight_scale_2.double()
    y = torch.zeros(x.shape, device=x.device, dtype=torch.float64)
    for t in range(x.shape[0]):
        for k in range(ids.shape[1]):
            e = int(ids[t, k])
            if 0 <= e < E:
                sums = decoded13[e] @ x[t].double()
                h = activation(sums[:rows // 2] * scale13[e, 0], sums[rows // 2:] * scale13[e, 1])
                h = h.to(torch.bfloat16).double()
                y[t] += weights[t, k].double() * scale2[e] * (decoded2[e] @ h)
    return y


@unittest.skipIf(not HAS_GPU and not NEEDS_GPU, "no torch, or no GPU")
class OnGpu(unittest.TestCase):
    E, K, L, F, T = 12, 3, 512, 256, 40

    def setUp(self):
        self.device = torch.device("cuda:0")
        self.random = torch.Generator(device=self.device).manual_seed(7)

    def projection(self, rows, columns, group, num_factors):
        def integers(low, high, shape):
            return torch.randint(low, high, shape, generator=self.random, device=self.device,
                                 dtype=torch.uint8)
        codes = integers(0, 256, (self.E, rows, columns // 2))
        shape = (self.E, rows, columns // group)
        if group == 32:
            return Weights(codes, integers(121, 125, shape))
        scales = (integers(1, 16, shape).float() / 8).to(torch.float8_e4m3fn)
        factors = 0.01 * (1 + torch.rand((self.E, num_factors), generator=self.random,
                                         device=self.device))
        return Weights(codes, scales, factors.squeeze(1).contiguous() if num_factors == 1
                       else factors)

    def weights(self, group=16):
        return (self.projection(2 * self.F, self.L, group, 2),
                self.projection(self.L, self.F, group, 1))

    def inputs(self, tokens):
        x = torch.randn((tokens, self.L), generator=self.random, device=self.device).bfloat16()
        ids = torch.rand((tokens, self.E), generator=self.random, device=self.device).topk(
            self.K).indices.to(torch.int32)
        ids[0, 0] = -1
        weights = torch.rand((tokens, self.K), generator=self.random, device=self.device)
        return x, ids, weights

    def options(self, **changes):
        return {"top_k": self.K, "max_num_tokens": self.T, "activation": "situ", **changes}

    def expect_close(self, value, expected, bound):
        error = (value.double() - expected).norm() / expected.norm()
        self.assertLessEqual(float(error), bound)

    def test_agrees_with_torch(self):
        for group, weight_format in ((16, "nvfp4"), (32, "mxfp4")):
            for activation, function in (("situ", situ), ("silu", silu)):
                w13, down = self.weights(group)
                layer = FusedMoE(w13=w13, down=down, **self.options(
                    activation=activation, weight_format=weight_format))
                for tokens in (1, 7, self.T):
                    call = self.inputs(tokens)
                    expected = reference(w13, down, group, function, *call)
                    self.expect_close(layer(*call), expected, 4e-3)
                    # NOTE: numerics.md: 4e-4, and 2^-7 sqrt(8 / n) for the few hidden values.
                    out = torch.full(expected.shape, float("nan"), device=self.device)
                    layer(*call, out=out)
                    self.expect_close(out, expected,
                                      4e-4 + (8 / (tokens * self.K * self.F)) ** 0.5 / 128)
                    other = silu if activation == "situ" else situ  # teeth
                    wrong = reference(w13, down, group, other, *call)
                    self.assertGreater(float((out.double() - wrong).norm() / wrong.norm()), 0.01)

    def test_every_way_to_pack_gives_the_same_bits(self):
        for group, weight_format in ((16, "nvfp4"), (32, "mxfp4")):
            w13, down = self.weights(group)
            call = self.inputs(9)
            options = self.options(weight_format=weight_format)
            expected = FusedMoE(w13=w13, down=down, **options)(*call)

            host = [Weights(*(each if each is None else each.cpu() for each in part))
                    for part in (w13, down)]
            from_host = FusedMoE(w13=host[0], down=host[1], device=self.device, **options)
            self.assertTrue(torch.equal(from_host(*call), expected))

            staged = FusedMoE.empty(num_experts=self.E, hidden_size=self.L,
                                    intermediate_size=self.F, device=self.device, **options)
            for to, source in ((staged.w13, w13), (staged.down, down)):
                for target, values in zip(to, source):
                    if target is not None:
                        target.copy_(values)
            staged.pack()
            self.assertTrue(torch.equal(staged(*call), expected))

            def interleave(each):
                return each.unflatten(1, (2, self.F)).transpose(1, 2).flatten(1, 2).contiguous()
            mixed = Weights(interleave(w13.weight), interleave(w13.weight_scale.view(
                torch.uint8)).view(w13.weight_scale.dtype), w13.weight_scale_2)
            interleaved = FusedMoE(w13=mixed, down=down, w13_layout="interleaved", **options)
            self.assertTrue(torch.equal(interleaved(*call), expected))

    def test_dequant_is_a_second_opinion(self):
        w13, down = self.weights()
        call = self.inputs(self.T)
        fused = FusedMoE(w13=w13, down=down, **self.options())
        other = FusedMoE(w13=w13, down=down, **self.options(backend="dequant"))
        self.expect_close(fused(*call), other(*call).double(), 4e-3)

    def test_graph_with_changed_routing(self):
        w13, down = self.weights()
        layer = FusedMoE(w13=w13, down=down, **self.options())
        for tokens in (2, self.T):
            static = self.inputs(tokens)
            out = torch.empty_like(static[0])
            layer(*static, out=out)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                layer(*static, out=out)
            for _ in range(3):
                fresh = self.inputs(tokens)
                for to, values in zip(static, fresh):
                    to.copy_(values)
                out.fill_(float("nan"))
                graph.replay()
                self.assertTrue(torch.equal(out, layer(*fresh)))

    def test_runs_on_the_current_stream(self):
        w13, down = self.weights()
        layer = FusedMoE(w13=w13, down=down, **self.options())
        late, first = self.inputs(self.T), self.inputs(self.T)
        expected = layer(*late)
        buffers = [each.clone() for each in first]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)  # some 50 ms: another stream would read `first`
            for to, values in zip(buffers, late):
                to.copy_(values)
            got = layer(*buffers)
        stream.synchronize()
        self.assertTrue(torch.equal(got, expected))

    def test_leaves_the_current_device(self):
        w13, down = self.weights()
        before = torch.cuda.current_device()
        FusedMoE(w13=w13, down=down, **self.options())(*self.inputs(4))
        self.assertEqual(torch.cuda.current_device(), before)

    def test_calls_allocate_nothing(self):
        w13, down = self.weights()
        layer = FusedMoE(w13=w13, down=down, **self.options())
        call = self.inputs(self.T)
        out = torch.empty_like(call[0])
        layer(*call, out=out)
        torch.cuda.synchronize()
        count = torch.cuda.memory_stats()["allocation.all.allocated"]
        free = torch.cuda.mem_get_info()[0]
        for _ in range(10):
            layer(*call, out=out)
        torch.cuda.synchronize()
        self.assertEqual(torch.cuda.memory_stats()["allocation.all.allocated"], count)
        self.assertEqual(torch.cuda.mem_get_info()[0], free)

    def test_what_it_refuses(self):
        w13, down = self.weights()
        layer = FusedMoE(w13=w13, down=down, **self.options())
        x, ids, weights = self.inputs(4)
        for words, make in (
                ("topk_ids: dtype int64", lambda: layer(x, ids.long(), weights)),
                ("topk_weights: is on cpu: expected cuda:0", lambda: layer(x, ids, weights.cpu())),
                ("hidden_states: dtype float32", lambda: layer(x.float(), ids, weights)),
                ("scales that no weight can have", lambda: FusedMoE(
                    w13=w13._replace(weight_scale_2=w13.weight_scale_2 * float("nan")), down=down,
                    **self.options()))):
            with self.assertRaises(halfbyte.Error) as caught:
                make()
            self.assertIn(words, str(caught.exception))


if __name__ == "__main__":
    sys.argv = [argument for argument in sys.argv if argument != "--gpu"]
    if NEEDS_GPU and not HAS_GPU:
        sys.exit("test_fused_moe.py --gpu: torch with a GPU is needed")
    unittest.main(defaultTest="OnGpu" if NEEDS_GPU else None)
