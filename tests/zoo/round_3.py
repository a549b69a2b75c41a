"""Round 3 of the zoo, written without sight of the tool's code and of the rounds before.

A wrong module has a right twin: its builder takes ``right=True``, which is how the truth was measured.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from zoo.entry import Entry, always

Made = tuple[nn.Module, tuple[Any, ...]]
MAY_ROUTE = {name: frozenset({"routing"}) for name in ("bf16", "fp16", "fp8_e4m3")}


# ---------------------------------------------------------------------------------------------------- correct modules


class LatentReader(nn.Module):
    def __init__(self, dim: int, latents: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.latents = nn.Parameter(torch.randn(latents, dim))
        self.norm = nn.LayerNorm(dim)
        self.query = nn.Linear(dim, dim, bias=False)
        self.keyval = nn.Linear(dim, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        key, value = self.keyval(self.norm(x)).chunk(2, -1)
        query = self.query(self.latents).expand(x.shape[0], -1, -1)
        read = F.scaled_dot_product_attention(self.split(query), self.split(key), self.split(value))
        return self.out(read.transpose(1, 2).flatten(2)) + self.latents


def make_latent_reader() -> Made:
    return LatentReader(32, 8, 4), (torch.randn(6, 24, 32),)


class GatedDepthwise(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, 5, padding=2, groups=channels, bias=False)
        self.norm = nn.GroupNorm(4, channels)
        self.up = nn.Conv2d(channels, 2 * channels, 1)
        self.squeeze = nn.Linear(2 * channels, 8)
        self.excite = nn.Linear(8, 2 * channels)
        self.down = nn.Conv2d(2 * channels, channels, 1)

    def forward(self, image: Tensor) -> Tensor:
        h = F.silu(self.up(self.norm(self.depth(image))))
        gate = torch.sigmoid(self.excite(F.silu(self.squeeze(h.mean((2, 3))))))
        return image + self.down(h * gate[:, :, None, None])


def make_gated_depthwise() -> Made:
    return GatedDepthwise(16), (torch.randn(4, 16, 8, 8),)


class LightGru(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.inp = nn.Linear(dim, 2 * hidden)
        self.rec = nn.Linear(hidden, 2 * hidden, bias=False)
        self.start = nn.Parameter(0.1 * torch.randn(hidden))

    def forward(self, x: Tensor) -> Tensor:
        h = self.start.expand(x.shape[0], -1)
        for step in self.inp(x).unbind(1):
            keep, new = (step + self.rec(h)).chunk(2, -1)
            keep = torch.sigmoid(keep)
            h = keep * h + (1 - keep) * torch.tanh(new)
        return h


def make_light_gru() -> Made:
    return LightGru(12, 24), (torch.randn(16, 14, 12),)


class SoftSlots(nn.Module):
    """Soft mixture of experts: each slot is a mean over tokens, each token a mean over slots."""

    def __init__(self, dim: int, experts: int, slots: int) -> None:
        super().__init__()
        self.phi = nn.Parameter(torch.randn(dim, experts, slots) / math.sqrt(dim))
        self.w1 = nn.Parameter(torch.randn(experts, dim, 2 * dim) / math.sqrt(dim))
        self.w2 = nn.Parameter(torch.randn(experts, 2 * dim, dim) / math.sqrt(2 * dim))

    def forward(self, x: Tensor) -> Tensor:
        logits = torch.einsum("btd,des->btes", x, self.phi)
        dispatch = logits.softmax(1)
        combine = logits.flatten(2).softmax(-1).view_as(logits)
        slots = torch.einsum("btes,btd->besd", dispatch, x)
        hidden = F.gelu(torch.einsum("besd,edf->besf", slots, self.w1))
        return torch.einsum("btes,besd->btd", combine, torch.einsum("besf,efd->besd", hidden, self.w2))


def make_soft_slots() -> Made:
    return SoftSlots(24, 4, 3), (torch.randn(4, 20, 24),)


class MemoryRead(nn.Module):
    """Addressing by cosine with a learned sharpness, as in a neural Turing machine."""

    def __init__(self, dim: int, rows: int) -> None:
        super().__init__()
        self.memory = nn.Parameter(torch.randn(rows, dim))
        self.key = nn.Linear(dim, dim)
        self.sharp = nn.Linear(dim, 1)
        self.write = nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        key = F.normalize(self.key(x), dim=-1, eps=1e-4)
        address = key @ F.normalize(self.memory, dim=-1, eps=1e-4).T
        weight = (address * (1 + F.softplus(4 * self.sharp(x)))).softmax(-1)
        return self.write(torch.cat([x, weight @ self.memory], -1))


def make_memory_read() -> Made:
    return MemoryRead(20, 32), (torch.randn(48, 20),)


class BoundedNet(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first = parametrizations.spectral_norm(nn.Linear(dim, dim), n_power_iterations=3)
        self.conv = parametrizations.weight_norm(nn.Conv1d(4, 8, 3, padding=1))
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.leaky_relu(self.first(x), 0.1)
        h = F.silu(self.conv(h.unflatten(-1, (4, -1))))
        return self.last(h.mean(-1))


def make_bounded_net() -> Made:
    return BoundedNet(32).eval(), (torch.randn(48, 32),)


class TiedLm(nn.Module):
    def __init__(self, vocab: int, dim: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.place = nn.Parameter(0.3 * torch.randn(length, dim))
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.up, self.down = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)
        self.register_buffer("ahead", torch.ones(length, length).triu(1).bool())

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(1, 2)
        scores.masked_fill_(self.ahead, float("-inf"))
        x = x + scores.softmax(-1) @ v
        x = x + self.down(self.up(self.norm2(x)).relu_())
        return x @ self.embed.weight.T / math.sqrt(x.shape[-1])


def make_tied_lm() -> Made:
    return TiedLm(50, 24, 16), (torch.randint(0, 50, (6, 16)),)


class ThinTower(nn.Module):
    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.mix = nn.ModuleList([nn.Linear(dim, dim) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        for norm, mix in zip(self.norms, self.mix, strict=True):
            x = x + 0.3 * torch.tanh(mix(norm(x)))
        return x


def make_thin_tower() -> Made:
    return ThinTower(12, 24), (torch.randn(32, 12),)


def make_broad_layer() -> Made:
    return nn.Sequential(nn.Linear(24, 2048), nn.SiLU(), nn.Linear(2048, 6)), (torch.randn(64, 24),)


class SineField(nn.Module):
    def __init__(self, hidden: int, pitch: float) -> None:
        super().__init__()
        self.pitch = pitch
        self.first, self.second = nn.Linear(2, hidden), nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 3)
        nn.init.uniform_(self.second.weight, -math.sqrt(6 / hidden) / pitch, math.sqrt(6 / hidden) / pitch)

    def forward(self, xy: Tensor) -> Tensor:
        h = torch.sin(self.pitch * self.first(xy))
        return self.last(torch.sin(self.pitch * self.second(h)))


def make_sine_field() -> Made:
    return SineField(32, 4.0), (2 * torch.rand(128, 2) - 1,)


class EdgeAttention(nn.Module):
    """Graph attention: softmax over a node's incoming edges, summed with an incidence matrix."""

    def __init__(self, dim: int, edges: Tensor) -> None:
        super().__init__()
        self.lift = nn.Linear(dim, dim, bias=False)
        self.score = nn.Linear(2 * dim, 1, bias=False)
        self.out = nn.Linear(dim, dim)
        self.register_buffer("edges", edges)
        self.register_buffer("into", F.one_hot(edges[1]).float().T.contiguous())

    def forward(self, nodes: Tensor) -> Tensor:
        source, target = self.edges[0], self.edges[1]
        h = self.lift(nodes)
        ends = torch.cat([h[source], h[target]], -1)
        weight = F.leaky_relu(self.score(ends), 0.2).exp()
        mixed = self.into @ (weight * h[source]) / (self.into @ weight)
        return self.out(F.elu(mixed)) + nodes


def make_edge_attention() -> Made:
    loops = torch.arange(40).repeat(2, 1)
    edges = torch.cat([loops, torch.randint(0, 40, (2, 120))], 1)
    return EdgeAttention(16, edges), (torch.randn(40, 16),)


class SoftmaxMixture(nn.Module):
    def __init__(self, dim: int, parts: int, classes: int) -> None:
        super().__init__()
        self.parts = parts
        self.prior = nn.Linear(dim, parts)
        self.heads = nn.Linear(dim, parts * classes)

    def forward(self, x: Tensor) -> Tensor:
        each = self.heads(x).unflatten(-1, (self.parts, -1)).log_softmax(-1)
        return torch.logsumexp(self.prior(x).log_softmax(-1).unsqueeze(-1) + each, 1)


def make_softmax_mixture() -> Made:
    return SoftmaxMixture(24, 4, 20), (2 * torch.randn(64, 24),)


class ReplayTower(nn.Module):
    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.RMSNorm(dim), nn.Linear(dim, 2 * dim), nn.Mish(), nn.Linear(2 * dim, dim))
                for _ in range(depth)
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def make_replay_tower() -> Made:
    return ReplayTower(24, 4), (torch.randn(32, 24),)


class DilatedFan(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fan = nn.ModuleList([nn.Conv2d(3, channels, 3, padding=d, dilation=d) for d in (1, 2, 3)])
        self.norm = nn.BatchNorm2d(3 * channels)
        self.point = nn.Conv2d(3 * channels, 6, 1)
        nn.init.uniform_(self.norm.running_var, 0.2, 0.6)
        nn.init.normal_(self.norm.running_mean, std=0.2)

    def forward(self, image: Tensor) -> Tensor:
        h = torch.cat([conv(image) for conv in self.fan], 1)
        return self.point(F.hardswish(self.norm(h)))


def make_dilated_fan() -> Made:
    return DilatedFan(8).eval(), (torch.randn(4, 3, 10, 10),)


class Hourglass(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(2, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 2, stride=2)
        self.deep = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.leave = nn.Conv2d(3 * width, 2, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        skip = F.gelu(self.enter(image))
        h = F.gelu(self.deep(F.gelu(self.down(skip))))
        h = F.interpolate(h, scale_factor=2, mode="nearest")
        return self.leave(torch.cat([skip, h], 1))


def make_hourglass() -> Made:
    return Hourglass(8), (torch.randn(4, 2, 12, 12),)


class SwitchLayer(nn.Module):
    """One expert a token, the router in float32."""

    def __init__(self, dim: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim)) for _ in range(experts)]
        )
        nn.init.normal_(self.router.weight, std=2 / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        share = F.linear(x.float(), self.router.weight.float()).softmax(-1)
        best, chosen = share.max(-1)
        out = x
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero().squeeze(-1)
            out = out.index_add(0, rows, expert(x[rows]) * best[rows].to(x.dtype).unsqueeze(-1))
        return out


def make_switch_layer() -> Made:
    return SwitchLayer(16, 4), (torch.randn(96, 16),)


class FactorPool(nn.Module):
    def __init__(self, left: int, right: int, rank: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(left, rank), nn.Linear(right, rank)
        self.out = nn.Linear(rank, 8)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        joint = torch.tanh(self.left(a)) * self.right(b)
        return self.out(F.normalize(joint, dim=-1, eps=1e-3) * 4)


def make_factor_pool() -> Made:
    return FactorPool(16, 20, 48), (torch.randn(48, 16), torch.randn(48, 20))


class FaintHead(nn.Module):
    """The output in metres of a quantity in nanometres: 1e-9 of everything, gradients with it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 2 * dim), nn.Tanh(), nn.Linear(2 * dim, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * 1e-9


def make_faint_head() -> Made:
    return FaintHead(16), (torch.randn(64, 16),)


class PinnedGates(nn.Module):
    """Most gates are saturated."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(2 * dim, dim)
        nn.init.normal_(self.gate.weight, std=3 / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.sigmoid(self.gate(x)) * torch.tanh(self.value(x)))


def make_pinned_gates() -> Made:
    return PinnedGates(20), (torch.randn(64, 20),)


def make_decoder_layer() -> Made:
    layer = nn.TransformerDecoderLayer(24, 3, 48, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    return layer, (torch.randn(4, 9, 24), torch.randn(4, 11, 24))


class Softcap(Function):
    """cap tanh(x / cap), with its own backward, which is right."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cap: Tensor) -> Tensor:
        bounded = torch.tanh(x / cap)
        ctx.save_for_backward(x, cap, bounded)
        return cap * bounded

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (g,) = grads
        x, cap, bounded = ctx.saved_tensors
        slope = 1 - bounded * bounded
        return g * slope, (g * (bounded - slope * x / cap)).sum(0)


class CappedHead(nn.Module):
    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, classes)
        self.cap = nn.Parameter(torch.full((classes,), 2.0))
        nn.init.normal_(self.head.weight, std=2 / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        return Softcap.apply(self.head(F.silu(self.inp(x))), self.cap)


def make_capped_head() -> Made:
    return CappedHead(20, 10), (torch.randn(48, 20),)


class HfOutput(nn.Module):
    """A Hugging Face model that gives one tensor."""

    def __init__(self, model: nn.Module, field: str) -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, ids: Tensor) -> Tensor:
        return getattr(self.model(input_ids=ids), self.field)


def make_hf_gemma2() -> Made:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=6,
        max_position_embeddings=32,
        initializer_range=0.1,
        use_cache=False,
        attn_implementation="eager",
    )
    return HfOutput(Gemma2ForCausalLM(config).eval(), "logits"), (torch.randint(4, 64, (4, 12)),)


def make_hf_bloom() -> Made:
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(
        vocab_size=64,
        hidden_size=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.1,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cache=False,
    )
    return HfOutput(BloomForCausalLM(config).eval(), "logits"), (torch.randint(4, 64, (4, 12)),)


def make_hf_t5_encoder() -> Made:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
    )
    return HfOutput(T5EncoderModel(config).eval(), "last_hidden_state"), (torch.randint(4, 64, (4, 12)),)


def make_hf_qwen3_moe() -> Made:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=32,
        initializer_range=0.1,
        use_cache=False,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    return HfOutput(Qwen3MoeForCausalLM(config).eval(), "logits"), (torch.randint(4, 64, (4, 12)),)


# ------------------------------------------------------------------------------------- wrong: the gradient is another


class CentredGainNorm(Function):
    """Layer norm; the gain's gradient takes x - mean where it needs (x - mean) / std."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, shift: Tensor, right: bool) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        centred = wide - wide.mean(-1, keepdim=True)
        rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(centred, rstd, gain)
        ctx.right = right
        return (centred * rstd).to(x.dtype) * gain + shift

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g = grads[0]
        centred, rstd, gain = ctx.saved_tensors
        unit, wide = centred * rstd, g.to(centred.dtype)
        pull = wide * gain.to(wide.dtype)
        dx = rstd * (pull - pull.mean(-1, keepdim=True) - unit * (pull * unit).mean(-1, keepdim=True))
        dgain = (wide * (unit if ctx.right else centred)).sum(0)
        return dx.to(g.dtype), dgain.to(g.dtype), g.sum(0), None


class CentredGain(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, 8)
        self.gain = nn.Parameter(1 + 0.1 * torch.randn(2 * dim))
        self.shift = nn.Parameter(0.1 * torch.randn(2 * dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(CentredGainNorm.apply(self.inp(x), self.gain, self.shift, self.right)))


def make_centred_gain(right: bool = False) -> Made:
    return CentredGain(24, right), (torch.randn(64, 24),)


class OtherEpsNorm(Function):
    """RMS norm; the gain's gradient recomputes the inverse RMS with another epsilon than the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, right: bool) -> Tensor:
        wide = x.float() if x.dtype.itemsize == 2 else x
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, rstd, gain)
        ctx.right = right
        return (wide * rstd).to(x.dtype) * gain

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g = grads[0]
        x, rstd, gain = ctx.saved_tensors
        wide, x = g.to(rstd.dtype), x.to(rstd.dtype)
        unit, pull = x * rstd, wide * gain.to(rstd.dtype)
        dx = rstd * (pull - unit * (pull * unit).mean(-1, keepdim=True))
        again = torch.rsqrt(x.square().mean(-1, keepdim=True) + (1e-6 if ctx.right else 1e-4))
        return dx.to(g.dtype), (wide * x * again).sum(0).to(g.dtype), None


class OtherEps(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(2 * dim, 6)
        self.gain = nn.Parameter(1 + 0.2 * torch.randn(2 * dim))
        nn.init.normal_(self.inp.weight, std=0.03 / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(OtherEpsNorm.apply(self.inp(x), self.gain, self.right))


def make_other_eps(right: bool = False) -> Made:
    return OtherEps(20, right), (torch.randn(48, 20),)


class SquareProduct(Function):
    """x W with W square; the gradient of x is g W where it is g W'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.right = right
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return grads[0] @ (weight.T if ctx.right else weight), x.T @ grads[0], None


class SquareMix(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp = nn.Linear(8, dim)
        self.skip = nn.Linear(dim, dim)
        self.mix = nn.Parameter(0.5 * torch.randn(dim, dim) / math.sqrt(dim))
        self.out = nn.Linear(dim, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.inp(x))
        return self.out(torch.tanh(self.skip(h) + SquareProduct.apply(h, self.mix, self.right)))


def make_square_mix(right: bool = False) -> Made:
    return SquareMix(24, right), (torch.randn(48, 8),)


class RowLookup(Function):
    """Rows of a table; the backward divides a row's gradient by how often the row was taken."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows, ctx.right = table.shape[0], right
        return table[ids]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        hot = F.one_hot(ids.flatten(), ctx.rows).to(grads[0].dtype)
        total = hot.T @ grads[0].flatten(0, -2)
        if not ctx.right:
            total = total / hot.sum(0).clamp(min=1).unsqueeze(-1)
        return total, None, None


class PerRowMean(nn.Module):
    def __init__(self, rows: int, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.table = nn.Parameter(torch.randn(rows, dim))
        self.body = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, ids: Tensor) -> Tensor:
        x = RowLookup.apply(self.table, ids, self.right)
        return x + self.body(x)


def make_per_row_mean(right: bool = False) -> Made:
    return PerRowMean(30, 16, right), (torch.randint(0, 30, (8, 8)),)


class SinkSoftmax(Function):
    """Softmax with one more logit for each head; that logit's gradient is a mean over the batch, not a sum."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, sink: Tensor, right: bool) -> Tensor:
        extra = sink.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weight = torch.cat([scores, extra], -1).softmax(-1)
        ctx.save_for_backward(weight)
        ctx.right = right
        return weight[..., :-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        kept, rest = weight[..., :-1], weight[..., -1:]
        along = (grads[0] * kept).sum(-1, keepdim=True)
        dsink = (-rest * along).sum((2, 3))
        return kept * (grads[0] - along), dsink.sum(0) if ctx.right else dsink.mean(0), None


class SinkAttention(nn.Module):
    def __init__(self, dim: int, heads: int, right: bool) -> None:
        super().__init__()
        self.heads, self.right = heads, right
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.sink = nn.Parameter(torch.randn(heads))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
        read = SinkSoftmax.apply(scores, self.sink, self.right) @ v
        return x + self.out(read.transpose(1, 2).flatten(2))


def make_sink_attention(right: bool = False) -> Made:
    return SinkAttention(24, 4, right), (torch.randn(6, 10, 24),)


class FrozenMask(Function):
    """x mask / keep; the backward forgets the division."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, keep: float, right: bool) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.keep = keep if right else 1.0
        return x * mask / keep

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        return grads[0] * mask / ctx.keep, None, None, None


class KeptUnits(nn.Module):
    def __init__(self, dim: int, hidden: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, hidden), nn.Linear(hidden, 8)
        mask = torch.ones(hidden)
        mask[torch.randperm(hidden)[: hidden // 16]] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(FrozenMask.apply(F.silu(self.inp(x)), self.mask, 15 / 16, self.right))


def make_kept_units(right: bool = False) -> Made:
    return KeptUnits(20, 64, right), (torch.randn(48, 20),)


class SigmoidGelu(Function):
    """x sigmoid(1.702 x) forward, the derivative of x Phi(x) backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.right = right
        return x * torch.sigmoid(1.702 * x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        if ctx.right:
            s = torch.sigmoid(1.702 * x)
            return grads[0] * (s + 1.702 * x * s * (1 - s)), None
        density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grads[0] * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density), None


class BorrowedSlope(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)
        nn.init.normal_(self.inp.weight, std=1 / math.sqrt(dim))
        nn.init.normal_(self.inp.bias, mean=-1.5, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(SigmoidGelu.apply(self.inp(x), self.right))


def make_borrowed_slope(right: bool = False) -> Made:
    return BorrowedSlope(16, right), (torch.randn(64, 16),)


class LeakyExp(Function):
    """ELU with alpha; below zero the backward takes y + 1 where the slope is y + alpha."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float, right: bool) -> Tensor:
        y = torch.where(x > 0, x, alpha * torch.expm1(x))
        ctx.save_for_backward(x, y)
        ctx.add = alpha if right else 1.0
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        return grads[0] * torch.where(x > 0, torch.ones_like(y), y + ctx.add), None, None


class NegativeSide(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.mid, self.out = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, 2 * dim), nn.Linear(2 * dim, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.silu(self.mid(LeakyExp.apply(self.inp(x), 1.25, self.right))))


def make_negative_side(right: bool = False) -> Made:
    return NegativeSide(20, right), (torch.randn(64, 20),)


class DecayScan(Function):
    """h_t = a_t h_{t-1} + x_t; the backward carries with a_t where the step back needs a_{t+1}."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor, right: bool) -> Tensor:
        h, states = torch.zeros_like(x[:, 0]), []
        for decay, new in zip(a.unbind(1), x.unbind(1), strict=True):
            h = decay * h + new
            states.append(h)
        out = torch.stack(states, 1)
        ctx.save_for_backward(a, out)
        ctx.right = right
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, out = ctx.saved_tensors
        carry, dx = torch.zeros_like(out[:, 0]), []
        for t in reversed(range(out.shape[1])):
            if ctx.right:
                carry = grads[0][:, t] + carry
                dx.append(carry)
                carry = carry * a[:, t]
            else:
                carry = grads[0][:, t] + carry * a[:, t]
                dx.append(carry)
        total = torch.stack(dx[::-1], 1)
        before = torch.cat([torch.zeros_like(out[:, :1]), out[:, :-1]], 1)
        return total * before, total, None


class DecayMixer(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.decay, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        decay = torch.sigmoid(2 * self.decay(x))
        return x + self.out(DecayScan.apply(decay, (1 - decay) * self.value(x), self.right))


def make_scan_unshifted(right: bool = False) -> Made:
    return DecayMixer(16, right), (torch.randn(6, 12, 16),)


def make_scan_by_hand() -> Made:
    return DecayMixer(24, True), (torch.randn(4, 10, 24),)


class CausalTaps(Function):
    """Depthwise causal convolution by shifted windows; the taps' gradient is in the reverse order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, right: bool) -> Tensor:
        size = taps.shape[1]
        windows = F.pad(x, (size - 1, 0)).unfold(2, size, 1)
        ctx.save_for_backward(windows, taps)
        ctx.right = right
        return (windows * taps.flip(1)[:, None]).sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g = grads[0]
        windows, taps = ctx.saved_tensors
        size = taps.shape[1]
        dtaps = torch.einsum("bct,bctk->ck", g, windows)
        ahead = F.pad(g, (0, size - 1)).unfold(2, size, 1)
        return (ahead * taps[:, None]).sum(-1), dtaps.flip(1) if ctx.right else dtaps, None


class TapBlock(nn.Module):
    def __init__(self, dim: int, size: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.taps = nn.Parameter(torch.randn(dim, size) / math.sqrt(size))

    def forward(self, x: Tensor) -> Tensor:
        h, gate = self.inp(x).chunk(2, -1)
        h = CausalTaps.apply(h.transpose(1, 2), self.taps, self.right).transpose(1, 2)
        return x + self.out(F.silu(h) * torch.sigmoid(gate))


def make_tap_order(right: bool = False) -> Made:
    return TapBlock(16, 4, right), (torch.randn(6, 16, 16),)


class MaskedInPlace(Function):
    """relu; the backward masks the incoming gradient in place, and a residual sum shares that tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x > 0)
        ctx.right = right
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (on,) = ctx.saved_tensors
        return (grads[0] * on if ctx.right else grads[0].mul_(on)), None


class SharedSum(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.short, self.long = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(2 * dim, 6)

    def forward(self, x: Tensor) -> Tensor:
        short = torch.tanh(self.short(x))
        return self.out(short + MaskedInPlace.apply(self.long(x), self.right))


def make_shared_sum(right: bool = False) -> Made:
    return SharedSum(20, right), (torch.randn(48, 20),)


class UnitRows(Function):
    """gain v / |v| by row; the gradient of v leaves out the projection."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, gain: Tensor, right: bool) -> Tensor:
        norm = v.float().norm(dim=1, keepdim=True).to(v.dtype) if v.dtype.itemsize == 2 else v.norm(dim=1, keepdim=True)
        ctx.save_for_backward(v, gain, norm)
        ctx.right = right
        return gain[:, None] * v / norm

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g = grads[0]
        v, gain, norm = ctx.saved_tensors
        unit = v / norm
        along = (g * unit).sum(1, keepdim=True)
        dv = gain[:, None] / norm * (g - unit * along if ctx.right else g)
        return dv, along[:, 0], None


class RowNormLinear(nn.Module):
    def __init__(self, dim: int, hidden: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.direction = nn.Parameter(torch.randn(hidden, dim))
        self.length = nn.Parameter(1 + 0.2 * torch.randn(hidden))
        self.out = nn.Linear(hidden, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.softplus(F.linear(x, UnitRows.apply(self.direction, self.length, self.right))))


def make_row_norm_linear(right: bool = False) -> Made:
    return RowNormLinear(10, 32, right), (torch.randn(48, 10),)


class GroupGather(Function):
    """For each of a token's slots the row of its group; a group taken by both slots keeps only the last gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(group)
        ctx.shape, ctx.right = rows.shape, right
        return rows.gather(1, group.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (group,) = ctx.saved_tensors
        total = grads[0].new_zeros(ctx.shape)
        token = torch.arange(ctx.shape[0], device=group.device)
        for slot in range(group.shape[1]):
            chosen = group[:, slot]
            if ctx.right:
                total[token, chosen] += grads[0][:, slot]
            else:
                total[token, chosen] = grads[0][:, slot]
        return total, None, None


class GroupedExperts(nn.Module):
    """Two experts of eight a token; experts 2j and 2j + 1 share the adapter of group j."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.router = nn.Linear(dim, 8, bias=False)
        self.adapter = nn.Parameter(torch.randn(4, dim, dim) / math.sqrt(dim))
        self.expert = nn.Parameter(torch.randn(8, dim) / 2)
        self.out = nn.Linear(dim, dim)
        nn.init.normal_(self.router.weight, std=2 / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        share = F.linear(x.float(), self.router.weight.float()).softmax(-1)
        best, chosen = share.topk(2, -1)
        gate = (best / best.sum(-1, keepdim=True)).to(x.dtype).unsqueeze(-1)
        rows = torch.einsum("nd,gde->nge", x, self.adapter)
        taken = GroupGather.apply(rows, chosen // 2, self.right)
        return x + self.out((F.silu(taken) * self.expert[chosen] * gate).sum(1))


def make_grouped_experts(right: bool = False) -> Made:
    return GroupedExperts(16, right), (torch.randn(96, 16),)


# ------------------------------------------------------------------------------ wrong: the arithmetic does not hold up


class Partition(nn.Module):
    def __init__(self, dim: int, classes: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.score = nn.Linear(dim, classes)
        nn.init.normal_(self.score.weight, std=5 / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        score = self.score(x)
        if self.right:
            return score - score.logsumexp(-1, keepdim=True)
        return score - score.exp().sum(-1, keepdim=True).log()


def make_bare_partition(right: bool = False) -> Made:
    return Partition(20, 24, right), (torch.randn(64, 20),)


class KernelAttention(nn.Module):
    """Linear attention: the sums over the keys are divided by each other only at the end."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.query, self.key, self.value = (nn.Linear(dim, 32, bias=False) for _ in range(3))
        self.out = nn.Linear(32, dim)
        for part in (self.query, self.key, self.value):
            nn.init.normal_(part.weight, std=6 / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        q, k = F.elu(self.query(x)) + 1, F.elu(self.key(x)) + 1
        if self.right:
            q, k = q / q.shape[-1], k / k.shape[1]
        value = F.relu(self.value(x))
        total = q @ (k.transpose(1, 2) @ value)
        return self.out(total / (q @ k.sum(1).unsqueeze(-1)))


def make_kernel_attention(right: bool = False) -> Made:
    return KernelAttention(16, right), (torch.randn(2, 320, 16),)


class GramFeatures(nn.Module):
    """The Gram matrix of feature maps: the sum over the positions is divided after the product."""

    def __init__(self, channels: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.head = nn.Linear(channels * channels, 10)

    def forward(self, image: Tensor) -> Tensor:
        f = F.softplus(self.conv(image)).flatten(2)
        if self.right:
            f = f / math.sqrt(f.shape[-1])
            gram = f @ f.transpose(1, 2)
        else:
            gram = f @ f.transpose(1, 2) / f.shape[-1]
        return self.head(torch.log1p(gram).flatten(1))


def make_gram_features(right: bool = False) -> Made:
    return GramFeatures(8, right), (60 * torch.randn(4, 3, 16, 16),)


class RadialUnits(nn.Module):
    """Boltzmann factors exp(-energy), multiplied by 2^11 after the exponential; the twin shifts the energy."""

    def __init__(self, dim: int, units: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.energy = nn.Linear(dim, units)
        self.out = nn.Linear(units, 6)
        nn.init.normal_(self.energy.weight, std=0.7 / math.sqrt(dim))
        nn.init.constant_(self.energy.bias, 18.0)
        nn.init.normal_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        if self.right:
            return self.out(torch.exp(11 * math.log(2) - self.energy(x)))
        return self.out(torch.exp(-self.energy(x)) * 2048)


def make_radial_units(right: bool = False) -> Made:
    return RadialUnits(16, 24, right), (torch.randn(64, 16),)


class ScaledBranch(nn.Module):
    """A branch weighted with 1e-6 and a mean over 64 tokens: what reaches the branch is below fp16's least number."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.inp = nn.Linear(dim, dim)
        self.branch = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.scale = nn.Parameter(torch.full((dim,), 0.1 if right else 1e-6))
        self.head = nn.Linear(dim, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        return self.head((h + self.scale * self.branch(h)).mean(1))


def make_scaled_branch(right: bool = False) -> Made:
    return ScaledBranch(20, right), (torch.randn(6, 64, 20),)


class OffsetRouter(nn.Module):
    """Experts are picked on score + a balancing bias of about 200, in the working type."""

    def __init__(self, dim: int, experts: int, right: bool) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.expert = nn.Parameter(torch.randn(experts, dim, dim) / math.sqrt(dim))
        self.register_buffer("balance", (0.0 if right else 200.0) + 0.2 * torch.randn(experts))

    def forward(self, x: Tensor) -> Tensor:
        score = self.router(x)
        chosen = (score + self.balance).topk(2, -1).indices
        gate = torch.sigmoid(score.gather(-1, chosen))
        each = torch.einsum("nd,xde->nxe", x, self.expert)
        taken = each.gather(1, chosen.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return x + (gate.unsqueeze(-1) * torch.tanh(taken)).sum(1)


def make_offset_router(right: bool = False) -> Made:
    return OffsetRouter(16, 8, right), (torch.randn(96, 16),)


class EventWindow(nn.Module):
    """Attention to the events of the last 9 ticks, on a clock that is held in the working type."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, gaps: Tensor) -> Tensor:
        clock = gaps.cumsum(1).to(torch.float32 if self.right else x.dtype)
        age = clock.unsqueeze(2) - clock.unsqueeze(1)
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(1, 2)
        index = torch.arange(x.shape[1], device=x.device)
        seen = (index.unsqueeze(1) >= index) & (age <= 9)
        return self.out(scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v)


def make_event_window(right: bool = False) -> Made:
    return EventWindow(16, right), (2 * torch.randn(2, 160, 16), torch.randint(3, 10, (2, 160)))


class NearestCode(nn.Module):
    """The nearest code by |x|^2 - 2 x c + |c|^2, in the working type, on features far from the origin."""

    def __init__(self, dim: int, codes: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp = nn.Linear(dim, dim)
        self.codes = nn.Parameter(8 + torch.randn(codes, dim))
        self.gate = nn.Linear(dim, dim)
        nn.init.constant_(self.inp.bias, 8.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        if self.right:
            far = (h.float().unsqueeze(1) - self.codes.float()).square().sum(-1)
        else:
            far = h.square().sum(-1, keepdim=True) - 2 * h @ self.codes.T + self.codes.square().sum(-1)
        return self.codes[far.argmin(-1)] * torch.sigmoid(self.gate(h - 8))


def make_nearest_code(right: bool = False) -> Made:
    return NearestCode(16, 24, right), (torch.randn(128, 16),)


class OnePassSpread(nn.Module):
    """Each row divided by its standard deviation from E[x^2] - E[x]^2, in the working type."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, 64), nn.Linear(64, 8)
        nn.init.normal_(self.inp.weight, std=1 / math.sqrt(dim))
        nn.init.constant_(self.inp.bias, 7.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        if self.right:
            spread = (h - h.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        else:
            spread = h.square().mean(-1, keepdim=True) - h.mean(-1, keepdim=True).square()
        return self.out(torch.tanh(h - 7) / (spread + 0.05).sqrt())


def make_one_pass_spread(right: bool = False) -> Made:
    return OnePassSpread(24, right), (torch.randn(48, 24),)


class LateRotary(nn.Module):
    """Rotary angles for positions from 1500 on, position times frequency in the working type."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.dim, self.right = dim, right
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x: Tensor) -> Tensor:
        kind = torch.float32 if self.right and x.dtype.itemsize == 2 else x.dtype
        place = torch.arange(1500, 1500 + x.shape[1], device=x.device, dtype=kind)
        rate = torch.exp(torch.arange(self.dim // 2, device=x.device, dtype=kind) * (-9.2 / (self.dim // 2)))
        angle = place.unsqueeze(1) * rate
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(self.turn(q, cos, sin), self.turn(k, cos, sin), v))


def make_late_rotary(right: bool = False) -> Made:
    return LateRotary(16, right), (2 * torch.randn(4, 24, 16),)


class BeamScores(nn.Module):
    """Log-probabilities of 36 steps summed one by one in the working type, then a softmax over the candidates."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.step = nn.Linear(dim, 1, bias=False)
        self.value = nn.Linear(dim, 6)
        nn.init.normal_(self.step.weight, std=0.15 / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        term = self.step(x).squeeze(-1) - 4
        kind = torch.float32 if self.right and x.dtype.itemsize == 2 else x.dtype
        total = torch.zeros_like(term[..., 0], dtype=kind)
        for part in term.unbind(-1):
            total = total + part
        weight = total.softmax(-1).to(x.dtype)
        return (weight.unsqueeze(-1) * torch.tanh(self.value(x.mean(2) * 6))).sum(1)


def make_beam_scores(right: bool = False) -> Made:
    return BeamScores(8, right), (torch.randn(24, 6, 36, 8),)


class TwoKernels(nn.Module):
    """bfloat16 goes to another kernel, which scales the scores with 1 / d, not with 1 / sqrt(d)."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        nn.init.normal_(self.qkv.weight, std=1 / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scale = q.shape[-1] ** -0.5
        if x.dtype == torch.bfloat16 and not self.right:
            scale = 1 / q.shape[-1]
        return self.out(((q * scale) @ k.transpose(1, 2)).softmax(-1) @ v)


def make_two_kernels(right: bool = False) -> Made:
    return TwoKernels(16, right), (torch.randn(6, 12, 16),)


class HalfGuard(nn.Module):
    """float16 works on x / 4 against overflow and multiplies by 4 after the bias was added."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.right = right
        self.inp, self.out = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        nn.init.normal_(self.inp.bias, std=0.4)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float16 and not self.right:
            h = 4 * self.inp(x / 4)
        else:
            h = self.inp(x)
        return self.out(torch.tanh(h))


def make_half_guard(right: bool = False) -> Made:
    return HalfGuard(20, right), (torch.randn(48, 20),)


CORRECT: dict[str, Entry] = {
    "latent_reader": Entry(make_latent_reader, why="learned queries read a sequence by cross-attention"),
    "gated_depthwise": Entry(make_gated_depthwise, why="depthwise convolution, group norm and squeeze-and-excite"),
    "light_gru": Entry(make_light_gru, why="a gated recurrence of 14 steps"),
    "soft_slots": Entry(make_soft_slots, why="a soft mixture of experts in einsums, nothing discrete"),
    "memory_read": Entry(make_memory_read, why="cosine addressing with a learned sharpness"),
    "bounded_net": Entry(make_bounded_net, why="spectral and weight norm as parametrizations, in eval mode"),
    "tied_lm": Entry(make_tied_lm, why="tied embeddings, a mask filled in place, an in-place relu"),
    "thin_tower": Entry(make_thin_tower, why="24 residual layers of width 12"),
    "broad_layer": Entry(make_broad_layer, why="one hidden layer of width 2048"),
    "sine_field": Entry(make_sine_field, why="sines of sines: the phase carries the rounding"),
    "edge_attention": Entry(make_edge_attention, why="softmax over edges with gathers and an incidence matrix"),
    "softmax_mixture": Entry(make_softmax_mixture, why="log of a mixture of softmaxes by logsumexp"),
    "replay_tower": Entry(make_replay_tower, why="every block is recomputed in the backward"),
    "dilated_fan": Entry(make_dilated_fan, why="dilated convolutions and a batch norm in eval mode"),
    "hourglass": Entry(make_hourglass, why="strided convolution, upsampling, a skip"),
    "switch_layer": Entry(make_switch_layer, may=MAY_ROUTE, why="top-1 routing with a float32 router"),
    "factor_pool": Entry(make_factor_pool, why="two inputs multiplied and normalised"),
    "faint_head": Entry(
        make_faint_head, may={"fp16": frozenset({"underflow"})}, why="gradients of 1e-9, which bfloat16 holds"
    ),
    "pinned_gates": Entry(make_pinned_gates, why="most sigmoids are saturated"),
    "decoder_layer": Entry(make_decoder_layer, why="torch's own decoder layer with cross-attention"),
    "capped_head": Entry(make_capped_head, why="a hand-written backward that is right"),
    "scan_by_hand": Entry(make_scan_by_hand, why="a linear recurrence with a hand-written backward that is right"),
    "hf_gemma2": Entry(make_hf_gemma2, why="soft-capped scores and logits, four norms a layer, a sliding window"),
    "hf_bloom": Entry(make_hf_bloom, why="linear position biases in the scores"),
    "hf_t5_encoder": Entry(make_hf_t5_encoder, why="bucketed relative positions and unscaled scores"),
    "hf_qwen3_moe": Entry(make_hf_qwen3_moe, may=MAY_ROUTE, why="top-2 of four experts in two layers"),
}

NARROW_EXPONENT = {"fp16": "overflow"}

WRONG: dict[str, Entry] = {
    "centred_gain": Entry(
        make_centred_gain, always("bug"), accused=frozenset({"gain"}), why="the gain's gradient lacks the 1 / std"
    ),
    "other_eps": Entry(
        make_other_eps, always("bug"), accused=frozenset({"gain"}), why="the backward recomputes with another epsilon"
    ),
    "square_mix": Entry(
        make_square_mix,
        always("bug"),
        accused=frozenset({"inp.weight", "inp.bias"}),
        why="a square weight is not transposed in the backward",
    ),
    "per_row_mean": Entry(
        make_per_row_mean,
        always("bug"),
        accused=frozenset({"table"}),
        why="rows taken more than once get the mean of their gradients, not the sum",
    ),
    "sink_attention": Entry(
        make_sink_attention,
        always("bug"),
        accused=frozenset({"sink"}),
        why="the sink's gradient is averaged over the batch",
    ),
    "kept_units": Entry(
        make_kept_units,
        always("bug"),
        accused=frozenset({"inp.weight", "inp.bias"}),
        why="the backward of a mask forgets the 16/15: 6 % too small",
    ),
    "borrowed_slope": Entry(
        make_borrowed_slope,
        always("bug"),
        accused=frozenset({"inp.weight", "inp.bias"}),
        why="sigmoid GELU forward, the slope of the exact GELU backward",
    ),
    "negative_side": Entry(
        make_negative_side,
        always("bug"),
        accused=frozenset({"inp.weight", "inp.bias"}),
        why="the slope below zero is y + 1, not y + alpha",
    ),
    "scan_unshifted": Entry(
        make_scan_unshifted,
        always("bug"),
        accused=frozenset({"decay.weight", "decay.bias", "value.weight", "value.bias"}),
        why="the recurrence goes back with the decay of the wrong step",
    ),
    "tap_order": Entry(
        make_tap_order, always("bug"), accused=frozenset({"taps"}), why="the taps' gradient is in the reverse order"
    ),
    "shared_sum": Entry(
        make_shared_sum,
        always("bug"),
        accused=frozenset({"short.weight", "short.bias"}),
        why="a backward masks in place the gradient it shares with the other branch",
    ),
    "row_norm_linear": Entry(
        make_row_norm_linear,
        always("bug"),
        accused=frozenset({"direction"}),
        why="the gradient of a normalised row leaves out the projection",
    ),
    "grouped_experts": Entry(
        make_grouped_experts,
        always("bug"),
        may=MAY_ROUTE,
        accused=frozenset({"adapter"}),
        why="when both experts of a token are of one group, one gradient overwrites the other",
    ),
    "bare_partition": Entry(make_bare_partition, NARROW_EXPONENT, why="log of a sum of exponentials without the shift"),
    "kernel_attention": Entry(
        make_kernel_attention, NARROW_EXPONENT, why="sums over 320 keys, divided only at the end"
    ),
    "gram_features": Entry(
        make_gram_features, NARROW_EXPONENT, why="a sum over 256 positions, divided only at the end"
    ),
    "radial_units": Entry(make_radial_units, {"fp16": "underflow"}, why="exp(-18) before it is multiplied by 2^11"),
    "scaled_branch": Entry(
        make_scaled_branch, {"fp16": "underflow"}, why="a layer scale of 1e-6 and a mean leave the branch no gradient"
    ),
    "offset_router": Entry(
        make_offset_router, always("routing"), why="a bias of 200 eats the bits that tell experts apart"
    ),
    "event_window": Entry(
        make_event_window,
        {"bf16": "routing", "fp8_e4m3": "routing"},
        why="a clock beyond 256 ticks in bfloat16 moves events across the window's edge",
    ),
    "nearest_code": Entry(make_nearest_code, always("routing"), why="expanded distances in the working type"),
    "one_pass_spread": Entry(
        make_one_pass_spread,
        {"bf16": "bug", "fp16": "bug"},
        may={"fp8_e4m3": frozenset({"bug"})},
        why="a one-pass variance cancels",
    ),
    "late_rotary": Entry(make_late_rotary, always("bug"), why="rotary angles of 1500 rad in the working type"),
    "beam_scores": Entry(make_beam_scores, always("bug"), why="a long sum in the working type below a softmax"),
    "two_kernels": Entry(
        make_two_kernels, {"bf16": "bug", "fp8_e4m3": "bug"}, why="the bfloat16 branch has another scale"
    ),
    "half_guard": Entry(make_half_guard, {"fp16": "bug"}, why="the float16 branch multiplies the bias too"),
}
