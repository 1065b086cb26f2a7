"""The demo model in PyTorch: K3's architecture in small, for training and as the reference of its goldens.

Written from the facts of the architecture: KDA (short convolutions, normalised q and k, bounded decay, full-rank output
gate), MLA without positions and with an output gate, latent MoE with SiTU, attention residuals. Parameters are named as
in a checkpoint (export.py). [B, T, ...] is batch, tokens.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Config:
    vocab: int = 4096
    hidden: int = 256
    layers: int = 8
    dense: int = 768  # width of the first layer's MLP
    kda_heads: int = 4
    kda_dim: int = 128
    conv: int = 4
    gate_lower_bound: float = -5.0
    heads: int = 4  # MLA
    nope: int = 128
    rope: int = 64
    v_dim: int = 128
    q_lora: int = 128
    kv_lora: int = 512
    experts: int = 32
    top_k: int = 4
    latent: int = 128
    expert_width: int = 256
    shared: int = 1
    beta: float = 4.0
    linear_beta: float = 25.0
    eps: float = 1e-5
    block: int = 4  # layers of an attention residual block
    chunk: int = 16  # of KDA: exp(5 * 16) is finite in fp32

    def is_mla(self, layer):
        return (layer + 1) % 4 == 0 or layer == self.layers - 1


# --- pieces that torch.compile fuses (train.py)


def rms_norm(x, weight, eps):
    y = x.float()
    return (weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps))).to(x.dtype)


def situ(gate, up, beta, linear_beta):
    gate, up = gate.float(), up.float()
    return (
        beta
        * torch.tanh(gate / beta)
        * torch.sigmoid(gate)
        * (linear_beta * torch.tanh(up / linear_beta))
    )


def weighted_situ(gate, up, weights, beta, linear_beta):
    """SiTU of all experts side by side, [N, E * I], times each expert's weight, [N, E]."""
    h = situ(gate, up, beta, linear_beta).view(*weights.shape, -1)
    return (h * weights[..., None]).view(gate.shape).to(gate.dtype)


def kda_inputs(q, k, v, forget, write, convs, dt_bias, a_log, heads, dim, lower_bound):
    """Projections [B, T, H * d] -> q, k, v, log decay [B, H, T, d] and beta [B, H, T], fp32."""
    batch, tokens, width = q.shape

    def convolved(x, taps):
        padded, w = F.pad(x.float(), (0, 0, taps.shape[-1] - 1, 0)), taps[:, 0].float()
        y = sum(padded[:, i : i + tokens] * w[:, i] for i in range(taps.shape[-1]))
        return F.silu(y).view(batch, tokens, heads, dim).transpose(1, 2)

    def normalised(x):
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)

    q = normalised(convolved(q, convs[0])) * dim**-0.5
    k, v = normalised(convolved(k, convs[1])), convolved(v, convs[2])
    z = (forget.float() + dt_bias.float()).view(batch, tokens, heads, dim)
    decay = lower_bound * torch.sigmoid(a_log.float().exp().view(heads, 1) * z)
    return q, k, v, decay.transpose(1, 2), write.float().sigmoid().transpose(1, 2)


def mix_residuals(values, query, eps):
    """Attention of one query over the residual blocks: [B, T, n, hidden] -> [B, T, hidden]."""
    values = values.float()
    keys = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)
    return ((keys * query).sum(-1).softmax(-1)[..., None] * values).sum(2)


# --- the delta rule


def kda_steps(q, k, v, decay, beta):
    """One token after the other, as it is defined: [B, H, T, d]."""
    state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    out = []
    for t in range(q.shape[2]):
        state = state * decay[:, :, t, :, None].exp()
        seen = torch.einsum("bhk,bhkv->bhv", k[:, :, t], state)
        state = (
            state + k[:, :, t, :, None] * (beta[:, :, t, None] * (v[:, :, t] - seen))[:, :, None]
        )
        out.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], state))
    return torch.stack(out, 2)


def kda_chunks(q, k, v, decay, beta, size):
    """The same in chunks of `size` tokens, a power of two that divides T."""
    batch, heads, tokens, dim = q.shape
    n = tokens // size
    q, k, v, decay = (x.reshape(batch * heads, n, size, -1) for x in (q, k, v, decay))
    beta = beta.reshape(batch * heads, n, size, 1)
    total = decay.cumsum(2)
    grown = total.exp()
    k_in, q_in = k * grown, q * grown
    k_out = (k * (-total).exp()).transpose(-1, -2)
    last = total[:, :, -1:]
    k_end = (k * (last - total).exp()).transpose(-1, -2)
    kept = last.exp().transpose(-1, -2)
    below = torch.ones(size, size, device=q.device).tril(-1)
    identity = torch.eye(size, device=q.device)
    lower = beta * (k_in @ k_out) * below
    power, inverse = lower @ lower, identity - lower  # (1 + L)^-1 = (1 - L)(1 + L^2)(1 + L^4)...
    reach = 2
    while reach < size:
        inverse = inverse + inverse @ power
        reach *= 2
        if reach < size:
            power = power @ power
    inverse = inverse * beta.transpose(-1, -2)
    new_v, new_k = inverse @ v, inverse @ k_in
    inside = (q_in @ k_out) * (below + identity)
    state = q.new_zeros(batch * heads, dim, v.shape[-1])
    out = []
    # NOTE: unbind, not [:, i]: the gradient of a slice is a whole tensor of zeros, one for each chunk.
    for v_i, k_i, inside_i, q_i, kept_i, k_end_i in zip(
        *(x.unbind(1) for x in (new_v, new_k, inside, q_in, kept, k_end))
    ):
        u = torch.baddbmm(v_i, k_i, state, alpha=-1)
        out.append(torch.baddbmm(inside_i @ u, q_i, state))
        state = torch.baddbmm(state * kept_i, k_end_i, u)
    return torch.stack(out, 1).reshape(batch, heads, tokens, -1)


# --- NVFP4


def fake_nvfp4(weight, *sharing):
    """[E, rows, cols] rounded to NVFP4 as `halfbyte convert` does it (scale rule max); gradients pass unchanged.

    An expert's global scale is that of its largest weight, also among the matrices `sharing` it."""
    x = weight.detach().float().reshape(*weight.shape[:-1], -1, 16)
    largest = x.abs().amax(-1, keepdim=True)
    of_expert = torch.stack(
        [w.detach().float().abs().amax((1, 2)) for w in (weight, *sharing)]
    ).amax(0)
    global_scale = (of_expert / (6 * 448)).clamp(min=1e-30).view(-1, 1, 1, 1)
    scale = (largest / 6 / global_scale).to(torch.float8_e4m3fn).float() * global_scale
    magnitude = (x.abs() / scale.clamp(min=1e-30)).clamp(max=6)
    rounded = torch.where(
        magnitude < 2,
        torch.round(magnitude * 2) / 2,
        torch.where(magnitude < 4, torch.round(magnitude), torch.round(magnitude / 2) * 2),
    )
    quantised = (rounded * x.sign() * scale).reshape(weight.shape)
    return weight + (quantised.to(weight.dtype) - weight).detach()


# --- modules


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Taps(nn.Module):
    def __init__(self, width, taps):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, 1, taps).uniform_(-0.5, 0.5))


class KDA(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        width = c.kda_heads * c.kda_dim
        self.q_proj, self.k_proj, self.v_proj, self.g_proj = (
            linear(c.hidden, width) for _ in range(4)
        )
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (Taps(width, c.conv) for _ in range(3))
        self.f_a_proj, self.f_b_proj = linear(c.hidden, c.kda_dim), linear(c.kda_dim, width)
        self.b_proj, self.o_proj = linear(c.hidden, c.kda_heads), linear(width, c.hidden)
        self.A_log = nn.Parameter(torch.zeros(c.kda_heads))
        # Decays of exp(-d), d from 0.001 to 1, at first.
        d = torch.exp(torch.empty(width).uniform_(math.log(1e-3), 0.0)) / -c.gate_lower_bound
        self.dt_bias = nn.Parameter(torch.log(d / (1 - d)))
        self.o_norm = RMSNorm(c.kda_dim, c.eps)

    def forward(self, x):
        c = self.c
        convs = (self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight)
        q, k, v, decay, beta = kda_inputs(
            self.q_proj(x),
            self.k_proj(x),
            self.v_proj(x),
            self.f_b_proj(self.f_a_proj(x)),
            self.b_proj(x),
            convs,
            self.dt_bias,
            self.A_log,
            c.kda_heads,
            c.kda_dim,
            c.gate_lower_bound,
        )
        with torch.autocast(x.device.type, enabled=False):
            out = kda_chunks(q, k, v, decay, beta, c.chunk)
        gate = torch.sigmoid(self.g_proj(x).view(*x.shape[:2], c.kda_heads, c.kda_dim).float())
        out = self.o_norm(out.transpose(1, 2)) * gate
        return self.o_proj(out.reshape(*x.shape[:2], -1).to(x.dtype))


class MLA(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_a_proj, self.q_a_layernorm = linear(c.hidden, c.q_lora), RMSNorm(c.q_lora, 1e-6)
        self.q_b_proj = linear(c.q_lora, c.heads * (c.nope + c.rope))
        self.kv_a_proj_with_mqa = linear(c.hidden, c.kv_lora + c.rope)
        self.kv_a_layernorm = RMSNorm(c.kv_lora, 1e-6)
        self.kv_b_proj = linear(c.kv_lora, c.heads * (c.nope + c.v_dim))
        self.g_proj, self.o_proj = (
            linear(c.hidden, c.heads * c.v_dim),
            linear(c.heads * c.v_dim, c.hidden),
        )

    def forward(self, x):
        c, (batch, tokens, _) = self.c, x.shape
        q = (
            self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
            .view(batch, tokens, c.heads, -1)
            .transpose(1, 2)
        )
        latent, shared_key = self.kv_a_proj_with_mqa(x).split([c.kv_lora, c.rope], -1)
        kv = (
            self.kv_b_proj(self.kv_a_layernorm(latent))
            .view(batch, tokens, c.heads, -1)
            .transpose(1, 2)
        )
        key, value = kv.split([c.nope, c.v_dim], -1)
        key = torch.cat([key, shared_key[:, None].expand(batch, c.heads, tokens, c.rope)], -1)
        out = F.scaled_dot_product_attention(q, key, value, is_causal=True)
        out = out.transpose(1, 2).reshape(batch, tokens, -1)
        return self.o_proj(out * torch.sigmoid(self.g_proj(x)))


class MLP(nn.Module):
    def __init__(self, c, width):
        super().__init__()
        self.c = c
        self.gate_proj, self.up_proj = linear(c.hidden, width), linear(c.hidden, width)
        self.down_proj = linear(width, c.hidden)

    def forward(self, x):
        h = situ(self.gate_proj(x), self.up_proj(x), self.c.beta, self.c.linear_beta)
        return self.down_proj(h.to(x.dtype))


class Router(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(c.experts, c.hidden))
        self.register_buffer("e_score_correction_bias", torch.zeros(c.experts))


class LatentMoE(nn.Module):
    """All experts are computed for all tokens, in three large products, and weighted: exact gradients, no sorting."""

    def __init__(self, c):
        super().__init__()
        self.c, self.quantised = c, False
        self.gate = Router(c)
        self.routed_expert_down_proj, self.routed_expert_up_proj = (
            linear(c.hidden, c.latent),
            linear(c.latent, c.hidden),
        )
        self.routed_expert_norm = RMSNorm(c.latent, c.eps)
        self.w1 = nn.Parameter(torch.empty(c.experts, c.expert_width, c.latent))  # gate
        self.w3 = nn.Parameter(torch.empty(c.experts, c.expert_width, c.latent))  # up
        self.w2 = nn.Parameter(torch.empty(c.experts, c.latent, c.expert_width))  # down
        self.shared_experts = MLP(c, c.expert_width * c.shared)
        self.register_buffer("load", torch.zeros(c.experts), persistent=False)

    def forward(self, x):
        c, shape = self.c, x.shape
        x = x.reshape(-1, c.hidden)
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(F.linear(x.float(), self.gate.weight.float()))
        chosen = (scores.detach() + self.gate.e_score_correction_bias).topk(c.top_k, -1)[1]
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        self.load += torch.zeros_like(self.load).scatter_add_(
            0, chosen.reshape(-1), torch.ones_like(chosen.reshape(-1), dtype=self.load.dtype)
        )
        weights = torch.zeros_like(scores).scatter(1, chosen, weights)
        w1, w3, w2 = self.w1, self.w3, self.w2
        if self.quantised:
            w1, w3, w2 = fake_nvfp4(w1, w3), fake_nvfp4(w3, w1), fake_nvfp4(w2)
        z = self.routed_expert_down_proj(x)
        h = weighted_situ(
            F.linear(z, w1.reshape(-1, c.latent)),
            F.linear(z, w3.reshape(-1, c.latent)),
            weights,
            c.beta,
            c.linear_beta,
        )
        y = F.linear(h, w2.transpose(0, 1).reshape(c.latent, -1))
        y = self.routed_expert_up_proj(self.routed_expert_norm(y)) + self.shared_experts(x)
        return y.view(shape)

    @torch.no_grad()
    def balance(self, rate):
        """Moves the correction bias towards equal load; returns the largest load over the mean."""
        mean = self.load.mean()
        self.gate.e_score_correction_bias += rate * torch.sign(mean - self.load)
        uneven = self.load.max() / mean.clamp(min=1)
        self.load.zero_()
        return uneven


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.c, self.index = c, index
        self.self_attn = MLA(c) if c.is_mla(index) else KDA(c)
        self.mlp = MLP(c, c.dense) if index == 0 else LatentMoE(c)
        self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(c.hidden, c.eps),
            RMSNorm(c.hidden, c.eps),
        )
        self.self_attention_res_norm, self.mlp_res_norm = (
            RMSNorm(c.hidden, c.eps),
            RMSNorm(c.hidden, c.eps),
        )
        self.self_attention_res_proj, self.mlp_res_proj = linear(c.hidden, 1), linear(c.hidden, 1)

    def forward(self, current, blocks):
        h = attend_residuals(
            current, blocks, self.self_attention_res_proj, self.self_attention_res_norm
        )
        if self.index % self.c.block == 0:
            blocks, current = blocks + [current], None
        a = self.self_attn(self.input_layernorm(h))
        current = a if current is None else current + a
        h = attend_residuals(current, blocks, self.mlp_res_proj, self.mlp_res_norm)
        return current + self.mlp(self.post_attention_layernorm(h)), blocks


def attend_residuals(current, blocks, projection, norm):
    if not blocks:
        return current
    query = norm.weight.float() * projection.weight[0].float()
    return mix_residuals(torch.stack(blocks + [current], 2), query, norm.eps).to(current.dtype)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList([Layer(c, i) for i in range(c.layers)])
        self.norm, self.output_attn_res_norm = RMSNorm(c.hidden, c.eps), RMSNorm(c.hidden, c.eps)
        self.output_attn_res_proj, self.lm_head = linear(c.hidden, 1), linear(c.hidden, c.vocab)
        for name, p in self.named_parameters():
            if p.dim() < 2 or "conv1d" in name:
                continue
            into_residual = name.endswith(
                (
                    "o_proj.weight",
                    "mlp.down_proj.weight",
                    "routed_expert_up_proj.weight",
                    "shared_experts.down_proj.weight",
                    "w2",
                )
            )
            std = p.shape[-1] ** -0.5 * (0.5 if into_residual else 1.0)
            if "embed" in name or "gate.weight" in name or "lm_head" in name:
                std = 0.02
            nn.init.normal_(p, 0.0, 0.0 if "res_proj" in name else std)

    def moes(self):
        return [layer.mlp for layer in self.layers if isinstance(layer.mlp, LatentMoE)]

    def hidden(self, ids):
        x, blocks = self.embed_tokens(ids), []
        if torch.is_autocast_enabled():
            x = x.to(torch.bfloat16)
        for layer in self.layers:
            x, blocks = layer(x, blocks)
        return self.norm(
            attend_residuals(x, blocks, self.output_attn_res_proj, self.output_attn_res_norm)
        )

    def forward(self, ids):
        """Logits [B, T, vocab]; T is a multiple of `chunk`."""
        return self.lm_head(self.hidden(ids))
