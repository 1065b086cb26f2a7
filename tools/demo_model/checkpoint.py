"""Weights of training -> a checkpoint of K3's layout in BF16, which `halfbyte convert` turns into NVFP4; and back.

python3 checkpoint.py WEIGHTS OUT --ranks tiktoken.model      writes OUT, a directory
"""

import argparse
import json
import pathlib
import shutil

import safetensors.torch
import torch

import weights as weights_file
from chat import HERE, Chat
from model import Config, Model

PREFIX = "language_model.model."
F32 = ("conv1d.weight", "dt_bias", "A_log", "o_norm.weight", "e_score_correction_bias")
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def to_names(state, config):
    """{official name: tensor}; experts one by one, A_log with zeros up to the head dimension."""
    named = {}
    for name, tensor in state.items():
        if name.startswith("lm_head"):
            named["language_model." + name] = tensor
            continue
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            if int(layer) > 0 and rest.startswith("mlp."):
                rest = "block_sparse_moe." + rest.removeprefix("mlp.")
            if rest.endswith(("w1", "w2", "w3")):
                which = rest[-2:]
                for e, matrix in enumerate(tensor):
                    named[f"{PREFIX}layers.{layer}.block_sparse_moe.experts.{e}.{which}.weight"] = (
                        matrix
                    )
                continue
            if rest.endswith("A_log"):
                tensor = torch.cat([tensor, torch.zeros(config.kda_dim - len(tensor))])
            name = f"layers.{layer}.{rest}"
        named[PREFIX + name] = tensor
    return named


def from_names(named, config):
    """The state of a Model."""
    state = {}
    for name, reference in Model(config).state_dict().items():
        if name.startswith("lm_head"):
            state[name] = named["language_model." + name]
            continue
        official = PREFIX + name
        if name.startswith("layers.") and not name.startswith("layers.0."):
            official = official.replace(".mlp.", ".block_sparse_moe.")
        if name.endswith((".w1", ".w2", ".w3")):
            start = official.rsplit(".", 1)[0]
            state[name] = torch.stack(
                [named[f"{start}.experts.{e}.{name[-2:]}.weight"] for e in range(config.experts)]
            )
        elif name.endswith("A_log"):
            state[name] = named[official][: config.kda_heads]
        else:
            state[name] = named[official].reshape(reference.shape)
    return state


def config_json(config, special):
    mla = [i + 1 for i in range(config.layers) if config.is_mla(i)]
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "dtype": "bfloat16",
        "bos_token_id": special["[BOS]"],
        "eos_token_id": special["[EOS]"],
        "pad_token_id": special["[PAD]"],
        "tie_word_embeddings": False,
        "text_config": {
            "architectures": ["KimiLinearForCausalLM"],
            "model_type": "kimi_linear",
            "dtype": "bfloat16",
            "vocab_size": config.vocab,
            "hidden_size": config.hidden,
            "num_hidden_layers": config.layers,
            "intermediate_size": config.dense,
            "hidden_act": "situ",
            "activation_situ_beta": config.beta,
            "activation_situ_linear_beta": config.linear_beta,
            "rms_norm_eps": config.eps,
            "attn_res_block_size": config.block,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.heads,
            "q_lora_rank": config.q_lora,
            "kv_lora_rank": config.kv_lora,
            "qk_nope_head_dim": config.nope,
            "qk_rope_head_dim": config.rope,
            "v_head_dim": config.v_dim,
            "mla_use_nope": True,
            "mla_use_output_gate": True,
            "linear_attn_config": {
                "num_heads": config.kda_heads,
                "head_dim": config.kda_dim,
                "short_conv_kernel_size": config.conv,
                "gate_lower_bound": config.gate_lower_bound,
                "use_full_rank_gate": True,
                "kda_layers": [i + 1 for i in range(config.layers) if i + 1 not in mla],
                "full_attn_layers": mla,
            },
            "num_experts": config.experts,
            "num_experts_per_token": config.top_k,
            "num_shared_experts": config.shared,
            "moe_intermediate_size": config.expert_width,
            "routed_expert_hidden_size": config.latent,
            "latent_moe_use_norm": True,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "moe_router_activation_func": "sigmoid",
            "topk_method": "noaux_tc",
            "use_grouped_topk": True,
            "num_expert_group": 1,
            "topk_group": 1,
            "moe_renormalize": True,
            "routed_scaling_factor": 1.0,
            "num_nextn_predict_layers": 0,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
            "use_cache": True,
            "bos_token_id": special["[BOS]"],
            "eos_token_id": special["[EOS]"],
            "pad_token_id": special["[PAD]"],
        },
    }


def write_safetensors(path, named):
    safetensors.torch.save_file(
        {
            name: (tensor.float() if name.endswith(F32) else tensor.bfloat16()).contiguous()
            for name, tensor in named.items()
        },
        path,
    )


def dequantised(named):
    """NVFP4 matrices as fp32 ones; others as fp32."""
    result = {}
    for name, tensor in named.items():
        if name.endswith((".weight_scale", ".weight_scale_2", ".input_scale")):
            continue
        scale = named.get(name + "_scale")
        if tensor.dtype == torch.uint8 and scale is not None:
            codes = torch.stack([tensor & 15, tensor >> 4], -1).flatten(-2)
            values = E2M1[(codes & 7).long()] * torch.where(codes >= 8, -1.0, 1.0)
            scales = scale.float().repeat_interleave(16, -1) * named[name + "_scale_2"].float()
            result[name] = values * scales
        else:
            result[name] = tensor.float()
    return result


def read_checkpoint(folder, config=None):
    """A Model with the weights of a checkpoint directory, BF16 or NVFP4, in fp32."""
    folder = pathlib.Path(folder)
    if config is None:
        vocab = json.loads((folder / "config.json").read_text())["text_config"]["vocab_size"]
        config = Config(vocab=vocab)
    named = {}
    for shard in sorted(folder.glob("*.safetensors")):
        named |= safetensors.torch.load_file(shard)
    net = Model(config)
    net.load_state_dict(from_names(dequantised(named), config))
    return net.eval()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--ranks", required=True)
    arguments = parser.parse_args()
    chat = Chat(arguments.ranks)
    special, config = chat.special, Config(vocab=chat.vocab)
    arguments.out.mkdir(parents=True)
    write_safetensors(
        arguments.out / "model.safetensors", to_names(weights_file.read(arguments.weights), config)
    )

    def write_json(name, value):
        (arguments.out / name).write_text(json.dumps(value, indent=1) + "\n")

    write_json("config.json", config_json(config, special))
    write_json(
        "generation_config.json", {"eos_token_id": [special["[EOS]"], special["<|end_of_msg|>"]]}
    )
    write_json(
        "tokenizer_config.json",
        {
            "added_tokens_decoder": {
                str(i): {
                    "content": name,
                    "special": name not in ("<|open|>", "<|close|>", "<|sep|>"),
                }
                for name, i in special.items()
            }
        },
    )
    shutil.copy(arguments.ranks, arguments.out / "tiktoken.model")
    shutil.copy(HERE / "chat_format.json", arguments.out / "chat_format.json")


if __name__ == "__main__":
    main()
