#!/usr/bin/env python3
"""Makes a checkpoint with Kimi-K3's names, layout and expert shapes, of any size, with random weights.

    tools/make_synthetic_checkpoint.py OUT [--format bf16|mxfp4] [--layers 4] [--experts 20] ...

For measuring `halfbyte convert` and `inspect`, and for trying large files; the weights mean nothing.
Layer 0 is dense, every fourth layer and the last are MLA, the others KDA, as in K3. With the defaults
the BF16 checkpoint has 4.5 GB, 4 GB of it experts. The same arguments make the same bytes. Needs numpy.
"""

import argparse
import json
import pathlib
import struct

import numpy as np

BYTES = {"BF16": 2, "F32": 4, "U8": 1}


class RandomBytes:
    """Endless random values, cut from one pool at changing places: much faster than drawing them all."""

    POOL = 1 << 24

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        normal = self.random.standard_normal(self.POOL, dtype=np.float32)
        self.bf16 = ((normal * np.float32(0.02)).view(np.uint32) >> 16).astype(np.uint16)
        self.codes = self.random.integers(0, 256, self.POOL, dtype=np.uint8)
        self.exponents = self.random.integers(115, 123, self.POOL, dtype=np.uint8)

    def cut(self, pool, count):
        for done in range(0, count, self.POOL // 2):
            begin = int(self.random.integers(0, self.POOL // 2))
            yield pool[begin : begin + min(self.POOL // 2, count - done)]

    def tensor(self, name, dtype, shape):
        count = int(np.prod(shape, dtype=np.int64))
        if dtype == "F32":
            yield self.random.uniform(-0.5, 0.5, count).astype(np.float32)
        elif dtype == "BF16":
            yield from self.cut(self.bf16, count)
        elif name.endswith("weight_scale"):
            yield from self.cut(self.exponents, count)
        else:
            yield from self.cut(self.codes, count)


def tensors_of(a):
    """(name, dtype, shape) in the order of the files."""
    root = "language_model.model."
    width, key, value = a.heads * a.head_dim, a.head_dim, a.head_dim
    yield root + "embed_tokens.weight", "BF16", (a.vocab, a.hidden)
    for layer in range(a.layers):
        at = f"{root}layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
            yield f"{at}{name}.weight", "BF16", (a.hidden,)
        for name in ("self_attention_res_proj", "mlp_res_proj"):
            yield f"{at}{name}.weight", "BF16", (1, a.hidden)
        yield at + "self_attn.g_proj.weight", "BF16", (width, a.hidden)
        yield at + "self_attn.o_proj.weight", "BF16", (a.hidden, width)
        if layer + 1 in a.kda_layers:
            for name in "qkv":
                yield f"{at}self_attn.{name}_proj.weight", "BF16", (width, a.hidden)
                yield f"{at}self_attn.{name}_conv1d.weight", "F32", (width, 1, 4)
            yield at + "self_attn.f_a_proj.weight", "BF16", (a.head_dim, a.hidden)
            yield at + "self_attn.f_b_proj.weight", "BF16", (width, a.head_dim)
            yield at + "self_attn.b_proj.weight", "BF16", (a.heads, a.hidden)
            yield at + "self_attn.A_log", "F32", (a.heads,)
            yield at + "self_attn.dt_bias", "F32", (width,)
            yield at + "self_attn.o_norm.weight", "F32", (a.head_dim,)
        else:
            yield at + "self_attn.q_a_proj.weight", "BF16", (a.q_rank, a.hidden)
            yield at + "self_attn.q_a_layernorm.weight", "BF16", (a.q_rank,)
            yield at + "self_attn.q_b_proj.weight", "BF16", (a.heads * (key + a.rope_dim), a.q_rank)
            yield at + "self_attn.kv_a_proj_with_mqa.weight", "BF16", (a.kv_rank + a.rope_dim, a.hidden)
            yield at + "self_attn.kv_a_layernorm.weight", "BF16", (a.kv_rank,)
            yield at + "self_attn.kv_b_proj.weight", "BF16", (a.heads * (key + value), a.kv_rank)
        if layer == 0:
            for name, shape in (("gate", (a.dense, a.hidden)), ("up", (a.dense, a.hidden)), ("down", (a.hidden, a.dense))):
                yield f"{at}mlp.{name}_proj.weight", "BF16", shape
            continue
        moe = at + "block_sparse_moe."
        yield moe + "gate.weight", "BF16", (a.experts, a.hidden)
        yield moe + "gate.e_score_correction_bias", "F32", (a.experts,)
        yield moe + "routed_expert_down_proj.weight", "BF16", (a.latent, a.hidden)
        yield moe + "routed_expert_norm.weight", "BF16", (a.latent,)
        yield moe + "routed_expert_up_proj.weight", "BF16", (a.hidden, a.latent)
        for name, shape in (
            ("gate", (a.intermediate, a.hidden)),
            ("up", (a.intermediate, a.hidden)),
            ("down", (a.hidden, a.intermediate)),
        ):
            yield f"{moe}shared_experts.{name}_proj.weight", "BF16", shape
        for expert in range(a.experts):
            for name, (rows, cols) in (
                ("w1", (a.intermediate, a.latent)),
                ("w2", (a.latent, a.intermediate)),
                ("w3", (a.intermediate, a.latent)),
            ):
                module = f"{moe}experts.{expert}.{name}."
                if a.format == "bf16":
                    yield module + "weight", "BF16", (rows, cols)
                else:
                    yield module + "weight_packed", "U8", (rows, cols // 2)
                    yield module + "weight_scale", "U8", (rows, cols // 32)
    yield root + "norm.weight", "BF16", (a.hidden,)
    yield root + "output_attn_res_norm.weight", "BF16", (a.hidden,)
    yield root + "output_attn_res_proj.weight", "BF16", (1, a.hidden)
    yield "language_model.lm_head.weight", "BF16", (a.vocab, a.hidden)


def bytes_of(tensor):
    return BYTES[tensor[1]] * int(np.prod(tensor[2], dtype=np.int64))


def write_shard(path, tensors, random):
    header, offset = {}, 0
    tensors = sorted(tensors, key=lambda t: -BYTES[t[1]])  # aligned
    for name, dtype, shape in tensors:
        end = offset + bytes_of((name, dtype, shape))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            for piece in random.tensor(*tensor):
                file.write(piece.data)


def config_of(a):
    text = {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "dtype": "bfloat16",
        "vocab_size": a.vocab, "hidden_size": a.hidden, "num_hidden_layers": a.layers,
        "intermediate_size": a.dense, "hidden_act": "situ", "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-5, "attn_res_block_size": 12,
        "num_attention_heads": a.heads, "num_key_value_heads": a.heads, "q_lora_rank": a.q_rank,
        "kv_lora_rank": a.kv_rank, "qk_nope_head_dim": a.head_dim, "qk_rope_head_dim": a.rope_dim,
        "v_head_dim": a.head_dim, "mla_use_nope": True, "mla_use_output_gate": True,
        "linear_attn_config": {
            "num_heads": a.heads, "head_dim": a.head_dim, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
            "use_full_rank_gate": True, "kda_layers": a.kda_layers,
            "full_attn_layers": [i for i in range(1, a.layers + 1) if i not in a.kda_layers],
        },
        "num_experts": a.experts, "num_experts_per_token": min(16, a.experts), "num_shared_experts": 1,
        "moe_intermediate_size": a.intermediate, "routed_expert_hidden_size": a.latent, "latent_moe_use_norm": True,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid",
        "topk_method": "noaux_tc", "use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1,
        "moe_renormalize": True, "routed_scaling_factor": 1.0, "num_nextn_predict_layers": 0,
        "max_position_embeddings": 1048576, "tie_word_embeddings": False,
        "bos_token_id": a.vocab - 3, "eos_token_id": a.vocab - 2, "pad_token_id": a.vocab - 1,
    }  # fmt: skip
    if a.format == "mxfp4":
        text["quantization_config"] = {
            "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
            "config_groups": {"group_0": {
                "targets": ["Linear"], "input_activations": None,
                "weights": {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32},
            }},
            "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
                       "re:.*lm_head.*"],
        }  # fmt: skip
    return {
        "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "dtype": "bfloat16",
        "bos_token_id": a.vocab - 3, "eos_token_id": a.vocab - 2, "pad_token_id": a.vocab - 1,
        "tie_word_embeddings": False, "text_config": text,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--format", choices=("bf16", "mxfp4"), default="bf16")
    numbers = {
        "layers": 4, "experts": 20, "vocab": 4096, "hidden": 7168, "dense": 2048, "latent": 3584, "intermediate": 3072,
        "heads": 8, "head-dim": 128, "rope-dim": 64, "q-rank": 1536, "kv-rank": 512, "shard-mb": 2000, "seed": 1,
    }  # fmt: skip
    for name, value in numbers.items():
        parser.add_argument("--" + name, type=int, default=value, help=f"default {value}")
    a = parser.parse_args()
    a.kda_layers = [i for i in range(1, a.layers + 1) if i % 4 != 0 and (i != a.layers or i == 1)]

    shards, size = [[]], 0
    for tensor in tensors_of(a):
        if size + bytes_of(tensor) > a.shard_mb * 1_000_000 and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += bytes_of(tensor)
    a.out.mkdir(parents=True)
    random, weight_map = RandomBytes(a.seed), {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):06}.safetensors"
        write_shard(a.out / name, tensors, random)
        weight_map.update((tensor[0], name) for tensor in tensors)
    total = sum(bytes_of(tensor) for tensors in shards for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (a.out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (a.out / "config.json").write_text(json.dumps(config_of(a), indent=1))
    generation = {"max_length": 1048576, "eos_token_id": a.vocab - 2}
    (a.out / "generation_config.json").write_text(json.dumps(generation))
    print(f"{a.out}: {len(weight_map)} tensors, {total / 1e9:.2f} GB in {len(shards)} files")


if __name__ == "__main__":
    main()
