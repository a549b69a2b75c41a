"""Round 2 of the zoo, written without sight of the tool's code and of the rounds before.

A wrong module has a right twin: its builder takes ``right=True``, which is how the truth was measured.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zoo.entry import Entry, always

Made = tuple[nn.Module, tuple[Any, ...]]
LOW = (torch.bfloat16, torch.float16)
MAY_ROUTE = {name: frozenset({"routing"}) for name in ("bf16", "fp16", "fp8_e4m3")}


# ---------------------------------------------------------------------------------------------------- correct modules


class ResBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)  # its bias is cancelled by the norm
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, 10)

    def forward(self, image: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(image)))
        h = F.relu(self.bn2(self.conv2(h)) + image)
        return self.head(h.mean((2, 3)))


def make_resnet_block() -> Made:
    return ResBlock(12), (torch.randn(16, 12, 8, 8),)


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channel = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.norm2(x))


def make_mlp_mixer() -> Made:
    return nn.Sequential(MixerBlock(16, 32), MixerBlock(16, 32)), (torch.randn(16, 16, 32),)


class GluStack(nn.Module):
    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, 2 * dim) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.glu(layer(norm(x)), -1)
        return x


def make_glu_stack() -> Made:
    return GluStack(48, 5), (torch.randn(64, 48),)


class CrossAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.kv(memory).chunk(2, -1))
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def make_cross_attention() -> Made:
    mask = torch.zeros(8, 1, 1, 14)
    for row in range(8):
        mask[row, ..., 14 - row :] = -1e4
    return CrossAttention(32, 4), (torch.randn(8, 10, 32), torch.randn(8, 14, 32), mask)


class AlibiAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, heads + 1).float())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        steps = torch.arange(x.shape[1], device=x.device)
        distance = (steps[None] - steps[:, None]).to(x.dtype)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + self.slopes[:, None, None] * distance
        scores = scores.masked_fill(steps[None] > steps[:, None], float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def make_alibi_attention() -> Made:
    return AlibiAttention(32, 4), (torch.randn(8, 20, 32),)


class RotaryAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def rotate(self, t: Tensor) -> Tensor:
        half = t.shape[-1] // 2
        rates = 1e4 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(t.shape[-2], dtype=torch.float64)[:, None] * rates
        cos, sin = angles.cos().to(t), angles.sin().to(t)
        a, b = t[..., :half], t[..., half:]
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


def make_rotary_attention() -> Made:
    return RotaryAttention(32, 2), (torch.randn(8, 16, 32),)


class TopTwo(nn.Module):
    """Mixture of experts, two of six, put back by index_add."""

    def __init__(self, dim: int, experts: int = 6) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        top, chosen = self.router(x).topk(2, -1)
        weights = top.softmax(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slot = (chosen == number).nonzero(as_tuple=True)
            y = y.index_add(0, rows, expert(x[rows]) * weights[rows, slot, None])
        return x + y


def make_moe_top2() -> Made:
    return TopTwo(24), (torch.randn(96, 24),)


class Switch(nn.Module):
    def __init__(self, dim: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.up = nn.Parameter(torch.randn(experts, dim, dim) / math.sqrt(dim))
        self.down = nn.Parameter(torch.randn(experts, dim, dim) / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        gate, chosen = self.router(x).softmax(-1).max(-1)
        h = F.gelu(torch.einsum("bd,bde->be", x, self.up[chosen]))
        return x + gate[:, None] * torch.einsum("bd,bde->be", h, self.down[chosen])


def make_switch_top1() -> Made:
    return Switch(16, 4), (torch.randn(64, 16),)


class GruLoop(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(inputs, hidden)
        self.head = nn.Linear(hidden, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.cell.hidden_size)
        for step in x.unbind(1):
            h = self.cell(step, h)
        return self.head(h)


def make_gru_loop() -> Made:
    return GruLoop(8, 24), (torch.randn(16, 20, 8),)


class Highway(nn.Module):
    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.plain = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.gate = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        for gate in self.gate:
            nn.init.constant_(gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        for plain, gate in zip(self.plain, self.gate, strict=True):
            t = torch.sigmoid(gate(x))
            x = t * F.relu(plain(x)) + (1 - t) * x
        return x


def make_highway() -> Made:
    return Highway(32, 6), (torch.randn(64, 32),)


class Film(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16, affine=False)
        self.film = nn.Linear(6, 32)
        self.out = nn.Conv2d(16, 4, 3, stride=2)

    def forward(self, image: Tensor, condition: Tensor) -> Tensor:
        gamma, beta = self.film(condition)[:, :, None, None].chunk(2, 1)
        return self.out(F.silu(self.norm(self.stem(image)) * (1 + gamma) + beta))


def make_film() -> Made:
    return Film(), (torch.randn(8, 3, 9, 9), torch.randn(8, 6))


class InfoNce(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 16))
        self.right = nn.Linear(dim, 16)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(0.2)))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        u, v = F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1)
        logits = u @ v.T / self.log_temperature.exp()
        return F.cross_entropy(logits, torch.arange(len(a), device=a.device), reduction="none")


def make_info_nce() -> Made:
    return InfoNce(24), (torch.randn(48, 24), torch.randn(48, 24))


class Triplet(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        a, p, n = self.embed(anchor), self.embed(positive), self.embed(negative)
        return F.relu((a - p).square().sum(-1) - (a - n).square().sum(-1) + 0.5)


def make_triplet() -> Made:
    anchor = torch.randn(64, 20)
    return Triplet(20), (anchor, anchor + 0.5 * torch.randn(64, 20), torch.randn(64, 20))


class GaussianNll(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 32), nn.Tanh())
        self.mean, self.raw = nn.Linear(32, 3), nn.Linear(32, 3)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        h = self.body(x)
        variance = F.softplus(self.raw(h)) + 1e-3
        return 0.5 * ((target - self.mean(h)).square() / variance + variance.log())


def make_gaussian_nll() -> Made:
    return GaussianNll(10), (torch.randn(128, 10), torch.randn(128, 3))


class LayerScaled(nn.Module):
    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)) for _ in range(depth)
        )
        self.scales = nn.ParameterList(nn.Parameter(torch.full((dim,), 1e-4)) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for norm, block, scale in zip(self.norms, self.blocks, self.scales, strict=True):
            x = x + scale * block(norm(x))
        return x


def make_layer_scale() -> Made:
    return LayerScaled(32, 4), (torch.randn(64, 32),)


def make_constant_input() -> Made:
    body = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.LayerNorm(32), nn.Linear(32, 8))
    return body, (torch.full((32, 16), 0.5),)


class Quantised(nn.Module):
    """Levels of a grid through an embedding-like product, and a one-hot part."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 16)
        self.pixels = nn.Linear(25, 16)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(16, 6), nn.LogSoftmax(-1))

    def forward(self, levels: Tensor, kind: Tensor) -> Tensor:
        return self.head(self.table(kind) + self.pixels(levels))


def make_quantised_input() -> Made:
    return Quantised(), (torch.randint(0, 9, (64, 25)) / 8, torch.randint(0, 12, (64,)))


class WideMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(4, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, points: Tensor) -> Tensor:
        return self.head(F.softplus(self.lift(points)).mean(1))


def make_wide_mean() -> Made:
    return WideMean(), (torch.randn(8, 4096, 4),)


class Saturated(nn.Module):
    """Attention over a memory with sharp scores: most rows have one weight of almost one."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim, bias=False)
        self.keys = nn.Parameter(torch.randn(20, dim))
        self.values = nn.Parameter(torch.randn(20, dim))

    def forward(self, x: Tensor) -> Tensor:
        return (self.query(x) @ self.keys.T * 1.5).softmax(-1) @ self.values


def make_saturated_softmax() -> Made:
    return Saturated(24), (torch.randn(96, 24),)


class KeyBias(nn.Module):
    """The key's bias adds the same to all scores of a query, and ``spare`` is multiplied by nought."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.spare = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        return scores.softmax(-1) @ self.v(x) + 0.0 * self.spare


def make_zero_gradient() -> Made:
    return KeyBias(24), (torch.randn(8, 12, 24),)


class InPlace(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.a, self.b, self.gain = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Parameter(torch.rand(dim) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        h.add_(x).relu_()
        h = (h * self.gain).mul_(1.5).sub_(0.25)
        out = torch.zeros_like(h)
        out[:, ::2] = h[:, 1::2]
        out[:, 1::2] = self.b(h)[:, ::2]
        out[0] += h[-1]
        return out


def make_in_place() -> Made:
    return InPlace(32), (torch.randn(48, 32),)


class Checkpointed(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def make_checkpointed() -> Made:
    return Checkpointed(32), (torch.randn(64, 32),)


class RmsFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, inverse)
        return x * inverse * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        unit, inner = x * inverse, grad * weight
        dx = inverse * (inner - unit * (inner * unit).mean(-1, keepdim=True))
        return dx, (grad * unit).flatten(0, -2).sum(0), None


class OwnRms(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.rand(dim) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.tanh(RmsFn.apply(self.first(x), self.weight, 1e-5)))


def make_own_backward() -> Made:
    return OwnRms(40), (torch.randn(64, 40),)


class Scan(nn.Module):
    """A diagonal state-space layer stepped in Python, with a depthwise convolution before it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, 3, padding=2, groups=dim)
        self.delta, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.rate = nn.Parameter(torch.rand(dim))

    def forward(self, x: Tensor) -> Tensor:
        u = F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step = F.softplus(self.delta(u))
        keep = (-step * self.rate.exp()).exp()
        state, states = torch.zeros_like(u[:, 0]), []
        for a, b in zip(keep.unbind(1), (step * u).unbind(1), strict=True):
            state = a * state + b
            states.append(state)
        return self.out(torch.stack(states, 1)) + x


def make_state_space() -> Made:
    return Scan(16), (torch.randn(8, 24, 16),)


class Logits(nn.Module):
    """A Hugging Face model that answers with one tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Tensor) -> Tensor:
        return self.model(batch)[0]


def make_hf_gpt_neox() -> Made:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.1,
        use_cache=False,
        attn_implementation="eager",
    )
    return Logits(GPTNeoXForCausalLM(config)), (torch.randint(0, 60, (8, 12)),)


def make_hf_vit() -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        num_labels=7,
        initializer_range=0.1,
        attn_implementation="eager",
    )
    return Logits(ViTForImageClassification(config)), (torch.randn(8, 3, 16, 16),)


CORRECT: dict[str, Entry] = {
    "resnet_block": Entry(make_resnet_block, why="batch statistics in training; a bias that the norm cancels"),
    "mlp_mixer": Entry(make_mlp_mixer, why="products over both axes"),
    "glu_stack": Entry(make_glu_stack, why="five gated layers on a residual stream"),
    "cross_attention": Entry(make_cross_attention, why="a float mask of -1e4, itself an input"),
    "alibi_attention": Entry(make_alibi_attention, why="scores filled with -inf"),
    "rotary_attention": Entry(make_rotary_attention, why="rotations written by hand, fused attention"),
    "moe_top2": Entry(make_moe_top2, may=MAY_ROUTE, why="a right router has near-ties of its own"),
    "switch_top1": Entry(make_switch_top1, may=MAY_ROUTE, why="a right router has near-ties of its own"),
    "gru_loop": Entry(make_gru_loop, why="twenty steps of recurrence"),
    "highway": Entry(make_highway, why="gates near zero"),
    "film": Entry(make_film, why="two inputs of different kinds"),
    "info_nce": Entry(make_info_nce, why="a loss over a temperature"),
    "triplet": Entry(make_triplet, why="a difference of squared distances behind a hinge"),
    "gaussian_nll": Entry(make_gaussian_nll, why="division by a learnt variance"),
    "layer_scale": Entry(make_layer_scale, why="branches scaled by 1e-4: small gradients that fp16 keeps"),
    "constant_input": Entry(make_constant_input, why="all rows the same"),
    "quantised_input": Entry(make_quantised_input, why="inputs exact in every format, an index input"),
    "wide_mean": Entry(make_wide_mean, why="mean over 4096 positions"),
    "saturated_softmax": Entry(make_saturated_softmax, why="sharp scores: gradients of a few rows only"),
    "zero_gradient": Entry(make_zero_gradient, why="gradients that are exactly zero"),
    "in_place": Entry(make_in_place, why="in-place operations and slices"),
    "checkpointed": Entry(make_checkpointed, why="the forward runs again in the backward"),
    "own_backward": Entry(make_own_backward, why="a hand-written backward that is right"),
    "state_space": Entry(make_state_space, why="a scan in Python with decays from exp"),
    "hf_gpt_neox": Entry(make_hf_gpt_neox, why="parallel residual, partial rotary"),
    "hf_vit": Entry(make_hf_vit, why="patches and a class token"),
}


# ------------------------------------------------------------------------------------------------ wrong in every format


class LinearFn(torch.autograd.Function):
    """``x @ weight.T + sign * bias`` with the faults a hand-written backward can have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, sign: float, fault: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sign, ctx.fault = sign, fault
        return x @ weight.T + sign * bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        dw, db = grad.T @ x, ctx.sign * grad.sum(0)
        if ctx.fault == "factor":
            dw = dw * 0.995
        elif ctx.fault == "transposed":
            dw = dw.T.contiguous()
        elif ctx.fault == "sign":
            db = -db
        elif ctx.fault == "low" and x.dtype in LOW:
            dw = dw * 0.7
        return grad @ weight, dw, db, None, None


class OwnLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int, sign: float = 1.0, fault: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))
        self.bias = nn.Parameter(0.1 * torch.randn(outputs))
        self.sign, self.fault = sign, fault

    def forward(self, x: Tensor) -> Tensor:
        return LinearFn.apply(x, self.weight, self.bias, self.sign, self.fault)


class OwnMlp(nn.Module):
    def __init__(self, dim: int, sign: float, fault: str) -> None:
        super().__init__()
        self.first, self.mid, self.last = nn.Linear(12, dim), OwnLinear(dim, dim, sign, fault), nn.Linear(dim, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.mid(F.gelu(self.first(x)))))


def make_small_factor(right: bool = False) -> Made:
    return OwnMlp(32, 1.0, "" if right else "factor"), (torch.randn(64, 12),)


def make_transposed(right: bool = False) -> Made:
    return OwnMlp(24, 1.0, "" if right else "transposed"), (torch.randn(64, 12),)


def make_bias_sign(right: bool = False) -> Made:
    return OwnMlp(24, -1.0, "" if right else "sign"), (torch.randn(48, 12),)


class SwigluFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.right = right
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        slope = s + gate * s * (1 - s) if ctx.right else s
        return grad * up * slope, grad * gate * s, None


class Swiglu(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return self.down(SwigluFn.apply(self.gate(x), self.up(x), self.right))


def make_chain_rule(right: bool = False) -> Made:
    return Swiglu(32, right), (torch.randn(64, 32),)


class GainFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x, gain)
        ctx.right = right
        return x * gain

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gain = ctx.saved_tensors
        return grad * gain, (grad * x).sum((0, 1) if ctx.right else (0, 2)), None


class Gained(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.lift, self.head = nn.Linear(8, dim), nn.Linear(dim, 4)
        self.gain = nn.Parameter(torch.rand(dim) + 0.5)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(GainFn.apply(self.lift(x), self.gain, self.right)))


def make_wrong_axis(right: bool = False) -> Made:
    return Gained(16, right), (torch.randn(8, 16, 8),)  # as many positions as channels


class BankFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bank: Tensor, task: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x, bank, task)
        ctx.right = right
        y = torch.empty_like(x)
        for number in range(len(bank)):
            y[task == number] = x[task == number] @ bank[number]
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, bank, task = ctx.saved_tensors
        dx, dbank = torch.zeros_like(x), torch.zeros_like(bank)
        for number in range(len(bank)):
            rows = task == number
            dx[rows] = grad[rows] @ bank[number].T
            dbank[number] = x[rows].T @ grad[rows]
        if not ctx.right:
            dbank[-1] *= 0.8
        return dx, dbank, None, None


class Adapters(nn.Module):
    def __init__(self, dim: int, tasks: int, right: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(dim, dim), nn.Linear(dim, 5)
        self.bank = nn.Parameter(torch.randn(tasks, dim, dim) / math.sqrt(dim))
        self.right = right

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        return self.head(F.silu(BankFn.apply(F.silu(self.body(x)), self.bank, task, self.right)))


def make_one_expert(right: bool = False) -> Made:
    return Adapters(16, 5, right), (torch.randn(60, 16), torch.arange(60) % 5)


class EluFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.right = right
        return torch.where(x > 0, x, torch.expm1(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        below = torch.exp(x) if ctx.right else 1 + x  # the derivative's expansion, kept after the debugging
        return grad * torch.where(x > 0, torch.ones_like(x), below), None


class EluNet(nn.Module):
    def __init__(self, right: bool) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(10, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return self.third(F.elu(self.second(EluFn.apply(self.first(x), self.right))))


def make_negative_side(right: bool = False) -> Made:
    return EluNet(right), (torch.randn(64, 10),)


class Detached(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.rand(dim) + 0.5)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        power = h.square().mean(0)  # over the batch
        if not self.right:
            power = power.detach()
        return self.second(F.relu(h * (power + 1e-5).rsqrt() * self.weight))


def make_detached_statistic(right: bool = False) -> Made:
    return Detached(24, right), (torch.randn(32, 24),)


class Hooked(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.embed, self.inner, self.outer, self.head = (nn.Linear(dim, dim) for _ in range(4))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        branch = torch.tanh(self.inner(h))
        if not self.right and branch.requires_grad:
            branch.register_hook(lambda grad: 0.9 * grad)
        return self.head(h + self.outer(branch))


def make_damping_hook(right: bool = False) -> Made:
    return Hooked(24, right), (torch.randn(48, 24),)


class NormFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, eps_back: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps_back
        centred = x - x.mean(-1, keepdim=True)
        return centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        centred = x - x.mean(-1, keepdim=True)
        inverse = (centred.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        unit, inner = centred * inverse, grad * weight
        dx = inner - inner.mean(-1, keepdim=True) - unit * (inner * unit).mean(-1, keepdim=True)
        return inverse * dx, (grad * unit).sum(0), None, None


class Normed(nn.Module):
    def __init__(self, dim: int, eps_back: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(dim, dim), nn.Linear(dim, 8)
        self.weight = nn.Parameter(torch.rand(dim) + 0.5)
        self.eps_back = eps_back

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(NormFn.apply(self.first(x), self.weight, 1e-3, self.eps_back)))


def make_norm_epsilon(right: bool = False) -> Made:
    return Normed(32, 1e-3 if right else 1e-5), (0.2 * torch.randn(48, 32),)


class SoftmaxFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, right: bool) -> Tensor:
        p = scores.softmax(-1)
        ctx.save_for_backward(p)
        ctx.right = right
        return p

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        return p * (grad - (grad * p).sum(-1, keepdim=True) if ctx.right else grad), None


class OwnSoftmax(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        return x + self.out(SoftmaxFn.apply(scores, self.right) @ self.v(x))


def make_softmax_no_subtraction(right: bool = False) -> Made:
    return OwnSoftmax(24, right), (1.5 * torch.randn(8, 10, 24),)


class DepthwiseFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.right = right
        return F.conv1d(x, weight, padding=1, groups=x.shape[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        dx = F.conv1d(grad, weight.flip(-1), padding=1, groups=x.shape[1])
        padded, length = F.pad(x, (1, 1)), x.shape[-1]
        dw = torch.stack([(padded[..., i : i + length] * grad).sum((0, 2)) for i in range(3)], -1)[:, None]
        return dx, dw if ctx.right else dw.flip(-1), None


class Depthwise(nn.Module):
    def __init__(self, channels: int, right: bool) -> None:
        super().__init__()
        self.stem, self.point = nn.Conv1d(4, channels, 1), nn.Conv1d(channels, 6, 1)
        self.kernel = nn.Parameter(torch.randn(channels, 1, 3) / math.sqrt(3))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return self.point(F.gelu(DepthwiseFn.apply(self.stem(x), self.kernel, self.right)))


def make_flipped_kernel(right: bool = False) -> Made:
    return Depthwise(12, right), (torch.randn(16, 4, 20),)


# --------------------------------------------------------------------------------------------- wrong in low precision


def make_low_linear(right: bool = False) -> Made:
    return OwnMlp(32, 1.0, "" if right else "low"), (torch.randn(64, 12),)


class FastGeluFn(torch.autograd.Function):
    """x sigmoid(1.702 x), with a fast path in low precision that forgets a term."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.right = right
        return x * torch.sigmoid(1.702 * x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(1.702 * x)
        if x.dtype in LOW and not ctx.right:
            return grad * s, None
        return grad * (s + 1.702 * x * s * (1 - s)), None


class FastGelu(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return self.down(FastGeluFn.apply(self.up(self.norm(x)), self.right))


def make_low_gelu(right: bool = False) -> Made:
    return FastGelu(24, right), (torch.randn(64, 24),)


# --------------------------------------------------------------------------------------------------- range of fp16


class Rbf(nn.Module):
    """Squared distances of raw features (as sensors give them, some tens) before they are divided."""

    def __init__(self, dim: int, centres: int) -> None:
        super().__init__()
        self.centres = nn.Parameter(40 * torch.randn(centres, dim))
        self.head = nn.Linear(centres, 4)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        squared = (x[:, None] - self.centres).square().sum(-1)
        return self.head(torch.exp(-squared / (3200 * self.dim)))


def make_squared_distance() -> Made:
    return Rbf(64, 10), (40 * torch.randn(32, 64),)


class NaiveLogSumExp(nn.Module):
    """exp without the subtraction of the maximum, at logits around 13."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(dim, 32), nn.Linear(32, classes)
        with torch.no_grad():
            self.head.bias += 13

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x))).exp().sum(-1).log()


def make_naive_logsumexp() -> Made:
    return NaiveLogSumExp(12, 8), (torch.randn(64, 12),)


class Determinant(nn.Module):
    """A product of ten factors of about six, and then its tenth root."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.factors = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        return (4 + 2 * F.softplus(self.factors(x))).prod(-1).pow(0.1)


def make_product_overflow() -> Made:
    return Determinant(16), (torch.randn(64, 16),)


class LogGain(nn.Module):
    """A branch switched on slowly: its gain is exp(-26) at first, which fp16 takes for zero."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.log_gain = nn.Parameter(torch.full((dim,), -26.0))
        self.head = nn.Linear(dim, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.log_gain.exp() * self.branch(x))


def make_log_gain_underflow() -> Made:
    return LogGain(24), (torch.randn(64, 24),)


class Farads(nn.Module):
    """A capacitance in SI units: all of the output is about 1e-13, and fp16 has no such numbers."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.area, self.gap = nn.Linear(dim, 4), nn.Linear(dim, 4)

    def forward(self, x: Tensor) -> Tensor:
        return 8.85e-12 * 0.05 * F.softplus(self.area(x)) / (1 + F.softplus(self.gap(x)))


def make_farads_underflow() -> Made:
    return Farads(16), (torch.randn(64, 16),)


class Vanishing(nn.Module):
    """Tanh layers with weights of 0.01 and no norm: the gradient shrinks to a twentieth in each."""

    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.head = nn.Linear(dim, 8)
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.normal_(layer.bias, std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def make_vanishing_underflow() -> Made:
    return Vanishing(32, 11), (torch.randn(64, 32),)


# ---------------------------------------------------------------------------------------------------------- routing


class OffsetRouter(TopTwo):
    """The balancing term, used for the choice only, has drifted up for all experts: there the format's step is larger
    than the spread of the scores. The weights come from the scores without it."""

    def __init__(self, dim: int, offset: float) -> None:
        super().__init__(dim)
        self.register_buffer("balance", torch.full((len(self.experts),), offset))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        _, chosen = (scores + self.balance).topk(2, -1)
        weights = scores.gather(-1, chosen).softmax(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slot = (chosen == number).nonzero(as_tuple=True)
            y = y.index_add(0, rows, expert(x[rows]) * weights[rows, slot, None])
        return x + y


def make_offset_router() -> Made:
    return OffsetRouter(24, 700.0), (torch.randn(96, 24),)


class FlatRouter(nn.Module):
    """Top-1 of probabilities that are all near 1/E: the router's scores are nearly equal and rounded first."""

    def __init__(self, dim: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        nn.init.normal_(self.router.weight, std=7e-4)
        self.bank = nn.Parameter(torch.randn(experts, dim, dim) / math.sqrt(dim))

    def forward(self, x: Tensor) -> Tensor:
        gate, chosen = self.router(x).softmax(-1).topk(1, -1)
        out = torch.zeros_like(x)
        for number in range(len(self.bank)):
            rows = (chosen[:, 0] == number).nonzero()[:, 0]
            out = out.index_add(0, rows, torch.tanh(x[rows] @ self.bank[number]) * gate[rows])
        return x + out


def make_flat_router() -> Made:
    return FlatRouter(16, 8), (torch.randn(128, 16),)


# -------------------------------------------------------------------------------------------------------- stagnation


class LoopNormaliser(nn.Module):
    """The logarithm of a sum of 900 positive rates, added one by one in the module's own dtype."""

    def __init__(self, dim: int, items: int) -> None:
        super().__init__()
        self.rates = nn.Linear(dim, items)
        nn.init.normal_(self.rates.weight, std=0.02)
        nn.init.constant_(self.rates.bias, -0.25)

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(x.shape[0])
        for rate in torch.sigmoid(self.rates(x)).unbind(1):
            total = total + rate
        return total.log()


def make_loop_normaliser() -> Made:
    return LoopNormaliser(6, 900), (torch.randn(16, 6),)


class LoopPooling(nn.Module):
    """Kernel pooling over a sequence: numerator and denominator are running sums of 900 positive terms."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(dim, 4, bias=False), nn.Linear(dim, 4)
        nn.init.normal_(self.key.weight, std=0.02)
        nn.init.normal_(self.value.weight, std=0.05)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.sigmoid(self.key(x) - 0.25)
        pair = torch.cat((weight * torch.sigmoid(self.value(x)), weight), -1)
        total = torch.zeros_like(pair[:, 0])
        for term in pair.unbind(1):
            total = total + term
        over, under = total.chunk(2, -1)
        return over / under


def make_loop_pooling() -> Made:
    return LoopPooling(4), (torch.randn(8, 900, 4),)


def _bug(make: Callable[..., Made], accused: str, why: str) -> Entry:
    return Entry(make, always("bug"), accused=frozenset(accused.split()), why=why)


def _low(make: Callable[..., Made], accused: str, why: str) -> Entry:
    may = {"fp8_e4m3": frozenset({"bug"})}
    return Entry(make, {"bf16": "bug", "fp16": "bug"}, may, frozenset(accused.split()), why)


def _stagnates(make: Callable[..., Made], accused: str, why: str) -> Entry:
    may = {"fp16": frozenset({"bug"})}
    return Entry(make, {"bf16": "bug", "fp8_e4m3": "bug"}, may, frozenset(accused.split()), why)


WRONG: dict[str, Entry] = {
    "small_factor": _bug(make_small_factor, "mid.weight", "a weight's gradient is 0.5% too small"),
    "transposed": _bug(make_transposed, "mid.weight", "a square weight's gradient is transposed"),
    "bias_sign": _bug(make_bias_sign, "mid.bias", "the gradient of a bias that is subtracted has the wrong sign"),
    "chain_rule": _bug(make_chain_rule, "gate.weight x", "the gate's backward forgets one term of the product rule"),
    "wrong_axis": _bug(make_wrong_axis, "gain", "a gain's gradient is summed over channels, not positions"),
    "one_expert": _bug(make_one_expert, "bank", "the last of five adapters has 0.8 of its gradient"),
    "negative_side": _bug(make_negative_side, "first.weight first.bias x", "the slope is wrong below zero"),
    "detached_statistic": _bug(
        make_detached_statistic, "first.weight first.bias x", "a power over the batch is taken for a constant"
    ),
    "damping_hook": _bug(
        make_damping_hook,
        "embed.weight embed.bias inner.weight inner.bias x",
        "a hook scales the gradient of a branch by 0.9",
    ),
    "norm_epsilon": _bug(
        make_norm_epsilon, "first.weight first.bias weight x", "the norm's backward has another epsilon"
    ),
    "softmax_no_subtraction": _bug(
        make_softmax_no_subtraction, "q.weight k.weight x", "softmax's backward forgets the weighted mean"
    ),
    "flipped_kernel": _bug(make_flipped_kernel, "kernel", "a depthwise kernel's gradient is flipped"),
    "low_linear": _low(make_low_linear, "mid.weight", "a weight's gradient is 0.7 of the right one in half precision"),
    "low_gelu": _low(
        make_low_gelu, "norm.weight norm.bias up.weight up.bias x", "the fast path in half precision forgets a term"
    ),
    "squared_distance": Entry(make_squared_distance, {"fp16": "overflow"}, why="squared distances of about 2e5"),
    "naive_logsumexp": Entry(make_naive_logsumexp, {"fp16": "overflow"}, why="exp of about 13, summed"),
    "product_overflow": Entry(make_product_overflow, {"fp16": "overflow"}, why="a product of about 6**10"),
    "log_gain_underflow": Entry(make_log_gain_underflow, {"fp16": "underflow"}, why="a gain of exp(-26)"),
    "vanishing_underflow": Entry(make_vanishing_underflow, {"fp16": "underflow"}, why="the gradient dies over depth"),
    "farads_underflow": Entry(make_farads_underflow, {"fp16": "underflow"}, why="an output in farads"),
    "offset_router": Entry(make_offset_router, always("routing"), why="scores of spread 0.6 around 700"),
    "flat_router": Entry(make_flat_router, always("routing"), why="probabilities that differ by less than a step"),
    "loop_normaliser": _stagnates(
        make_loop_normaliser, "rates.weight rates.bias x", "a running sum of 900 terms stops at 128 in bf16"
    ),
    "loop_pooling": _stagnates(
        make_loop_pooling,
        "key.weight value.weight value.bias x",
        "running sums over 900 positions stop at 128 in bf16",
    ),
}
