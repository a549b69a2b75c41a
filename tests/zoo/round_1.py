"""Round 1 of the zoo; README.md says when it was first run.

A wrong module takes `right=True` to become its own right version, with the same parameters and inputs for the same
seed; RIGHT names those versions, so that the truth of each entry can be measured without a diagnosis.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint
from zoo.entry import FORMATS, Entry, always

HALF = (torch.bfloat16, torch.float16)
Made = tuple[nn.Module, Any]


def may(*categories: str, formats: tuple[str, ...] = FORMATS) -> dict[str, frozenset[str]]:
    return dict.fromkeys(formats, frozenset(categories))


# Building blocks


class Attention(nn.Module):
    """Multi-head self-attention; `mask` is "none", "min" (torch.finfo(dtype).min) or "inf", `sdpa` torch's own."""

    def __init__(self, d: int, heads: int, mask: str = "none", sdpa: bool = False, bias: bool = True):
        super().__init__()
        self.heads, self.mask, self.sdpa = heads, mask, sdpa
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=bias) for _ in range(4))
        for layer in (self.q, self.k) if bias else ():
            nn.init.normal_(layer.bias, std=0.5)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = (f(x).view(n, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
            if self.mask != "none":
                future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(future, torch.finfo(x.dtype).min if self.mask == "min" else -math.inf)
            y = scores.softmax(-1) @ v
        return self.o(y.transpose(1, 2).reshape(n, t, d))


class MoE(nn.Module):
    """A sparse mixture of experts; `scores` turns router logits into gates before the top-k."""

    def __init__(self, d: int, experts: int, k: int, scores: Callable[[Tensor], Tensor], renormalise: bool = False):
        super().__init__()
        self.k, self.scores, self.renormalise = k, scores, renormalise
        self.router = nn.Linear(d, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d)) for _ in range(experts)
        )

    def logits(self, x: Tensor) -> Tensor:
        return self.router(x)

    def combine(self, expert_out: Tensor, gate: Tensor) -> Tensor:
        return expert_out * gate

    def forward(self, x: Tensor) -> Tensor:
        gates, chosen = self.scores(self.logits(x)).topk(self.k, dim=-1)
        if self.renormalise:
            gates = gates / gates.sum(-1, keepdim=True)
        gates = gates.to(x.dtype)
        y = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == e)
            if row.numel():
                y = y.index_add(0, row, self.combine(expert(x[row]), gates[row, slot, None]))
        return y


class Float32Router(MoE):
    """The router in float32, whatever the experts run in."""

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x.float(), self.router.weight.float())


class RMSNorm(nn.Module):
    def __init__(self, d: int, island: bool = True):
        super().__init__()
        self.weight, self.island = nn.Parameter(1 + 0.1 * torch.randn(d)), island

    def forward(self, x: Tensor) -> Tensor:
        h = x.float() if self.island else x
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def mlp(*sizes: int, act: Callable[[], nn.Module] = nn.GELU, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(a, b)]
        if i < len(sizes) - 2:
            layers += [nn.LayerNorm(b)] * norm + [act()]
    return nn.Sequential(*layers)


# Correct modules


class CrossAttention(nn.Module):
    """torch's own MultiheadAttention over a padded context."""

    def __init__(self, d: int):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(d), nn.MultiheadAttention(d, 4, batch_first=True)

    def forward(self, x: Tensor, context: Tensor, padding: Tensor) -> Tensor:
        y, _ = self.attn(self.norm(x), context, context, key_padding_mask=padding, need_weights=False)
        return x + y


def cross_attention() -> Made:
    padding = torch.arange(12) >= torch.randint(4, 12, (8, 1))
    return CrossAttention(16), {"x": torch.randn(8, 6, 16), "context": torch.randn(8, 12, 16), "padding": padding}


class Scaled(nn.Module):
    def __init__(self, body: nn.Module, scale: float):
        super().__init__()
        self.body, self.scale = body, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * self.scale


def saturated(act: Callable[[], nn.Module], gain: float, shift: float) -> Made:
    net = mlp(24, 32, 16, act=act)
    nn.init.normal_(net[0].weight, std=gain / math.sqrt(24))
    nn.init.constant_(net[0].bias, shift)
    return net, torch.randn(64, 24)


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]):
        super().__init__()
        self.rnn, self.head = cell(12, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.head(self.rnn(sequence)[0][:, -1])


class TiedLM(nn.Module):
    def __init__(self, vocab: int, d: int):
        super().__init__()
        self.embed, self.mix, self.norm = nn.Embedding(vocab, d), mlp(d, 2 * d, d), nn.LayerNorm(d)
        self.out = nn.Linear(d, vocab, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        h = h + self.mix(h.cumsum(1) / torch.arange(1, h.shape[1] + 1, device=h.device, dtype=h.dtype)[:, None])
        return self.out(self.norm(h))


class InPlace(nn.Module):
    def __init__(self, d: int):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu_()
        h = self.b(h).add_(x).mul_(0.5)
        h[:, ::2] += h[:, 1::2].tanh()
        return self.c(F.relu(h, inplace=True))


class SwiGLUFunction(Function):
    """silu(a) · b, with `a` kept and its sigmoid computed again in the backward."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return F.silu(a) * b

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        s = a.sigmoid()
        return g * b * s * (1 + a * (1 - s)), g * a * s


class SwiGLU(nn.Module):
    def __init__(self, d: int, h: int):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(d, h), nn.Linear(d, h), nn.Linear(h, d)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(SwiGLUFunction.apply(self.gate(x), self.up(x)))


class MeanPool(nn.Module):
    """A mean over thousands of positive entries."""

    def __init__(self, d: int, out: int):
        super().__init__()
        self.lift, self.head = nn.Linear(d, 6), nn.Linear(6, out)

    def forward(self, points: Tensor) -> Tensor:
        return self.head(F.softplus(self.lift(points)).mean(1))


class Checkpointed(nn.Module):
    def __init__(self, d: int, blocks: int):
        super().__init__()
        self.blocks = nn.ModuleList(Residual(nn.LayerNorm(d), mlp(d, 2 * d, d)) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class Classifier(nn.Module):
    """A network and its mean cross entropy: one number comes out, beside the labels' accuracy."""

    def __init__(self, d: int, classes: int):
        super().__init__()
        self.body = mlp(d, 48, classes, act=nn.ReLU)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.body(x)
        return F.cross_entropy(logits, labels), (logits.argmax(-1) == labels).sum()


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.down, self.head = nn.Conv2d(8, 12, 3, stride=2), nn.Linear(12, 5)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(F.silu(self.down(F.gelu(self.norm(self.stem(image))))).mean((2, 3)))


def quantised() -> Made:
    """Every weight is ±0.1 and every input one of four thirds: no rounding error averages out."""
    net = mlp(32, 48, 48, 8)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.1 * torch.where(torch.rand_like(p) < 0.7, 1.0, -1.0))
    return net, torch.randint(0, 4, (64, 32)) / 3


def hugging_face(kind: str) -> Made:
    import transformers as hf

    small = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    small |= {"initializer_range": 0.15, "use_cache": False, "intermediate_size": 48, "max_position_embeddings": 32}
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    groups = {"num_key_value_heads": 2}
    match kind:
        case "gpt2":
            config = hf.GPT2Config(**tokens, vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=32)
            model = hf.GPT2LMHeadModel(config)
        case "bert":
            model = hf.BertModel(hf.BertConfig(**small), add_pooling_layer=False)
        case "llama":
            model = hf.LlamaForCausalLM(hf.LlamaConfig(**small, **groups))
        case "mixtral":
            model = hf.MixtralForCausalLM(
                hf.MixtralConfig(**small, **groups, num_local_experts=4, num_experts_per_tok=2)
            )
        case "qwen2_moe":
            experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
            experts |= {"shared_expert_intermediate_size": 24, "decoder_sparse_step": 1}
            model = hf.Qwen2MoeForCausalLM(hf.Qwen2MoeConfig(**small, **groups, **experts))
    if kind in ("mixtral", "qwen2_moe"):
        model.set_experts_implementation("eager")  # the grouped product has no float64
    return model.eval(), {"input_ids": torch.randint(1, 50, (8, 6))}


# Modules with a wrong gradient


class BiasedSiLU(Function):
    """y = silu(x Wᵀ + b). Wrong: the bias gradient takes silu' for σ(z), without z σ(z)(1 - σ(z))."""

    @staticmethod
    def forward(ctx, x, weight, bias, right):
        z = F.linear(x, weight, bias)
        ctx.save_for_backward(x, weight, z)
        ctx.right = right
        return F.silu(z)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, z = ctx.saved_tensors
        s = z.sigmoid()
        gz = g * s * (1 + z * (1 - s))
        return gz @ weight, gz.T @ x, (gz if ctx.right else g * s).sum(0), None


class FusedLinear(Function):
    """y = x Wᵀ + b. Wrong by `fault`: the bias gradient is a mean over the rows, or W's last column stays zero."""

    @staticmethod
    def forward(ctx, x, weight, bias, fault):
        ctx.save_for_backward(x, weight)
        ctx.fault = fault
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        gw, gb = g.T @ x, g.sum(0)
        if ctx.fault == "mean":
            gb = g.mean(0)
        if ctx.fault == "column":
            gw = F.pad(g.T @ x[:, :-1], (0, 1))
        return g @ weight, gw, gb, None


class FusedLayerNorm(Function):
    """Layer norm. Wrong by `fault`: "weight" multiplies by the output where x̂ belongs, "mean" and "variance" drop that
    correction term of the input's gradient; with "half variance" only for bfloat16 and float16."""

    @staticmethod
    def forward(ctx, x, weight, bias, fault):
        h = x.float() if x.dtype in HALF else x
        h = h - h.mean(-1, keepdim=True)
        rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)
        hat = (h * rstd).to(x.dtype)
        ctx.save_for_backward(hat, rstd, weight, bias)
        ctx.fault = fault
        return hat * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        hat, rstd, weight, bias = ctx.saved_tensors
        gh = (g * weight).to(rstd.dtype)
        gx = gh
        if ctx.fault != "mean":
            gx = gx - gh.mean(-1, keepdim=True)
        if ctx.fault != "variance" and not (ctx.fault == "half variance" and hat.dtype in HALF):
            gx = gx - hat * (gh * hat).mean(-1, keepdim=True)
        gw = (g * (hat * weight + bias if ctx.fault == "weight" else hat)).sum(tuple(range(g.dim() - 1)))
        return (gx * rstd).to(g.dtype), gw, g.sum(tuple(range(g.dim() - 1))), None


class ExactGELU(Function):
    """The erf form of GELU. Wrong by `fault`: "tanh" and "quick" differentiate that approximation of it, "half gain"
    has a backward for bfloat16 and float16 that is 1.25 times too large."""

    @staticmethod
    def forward(ctx, x, fault):
        ctx.save_for_backward(x)
        ctx.fault = fault
        return F.gelu(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if ctx.fault == "tanh":
            return torch.ops.aten.gelu_backward(g, x, approximate="tanh"), None
        if ctx.fault == "quick":
            s = torch.sigmoid(1.702 * x)
            return g * s * (1 + 1.702 * x * (1 - s)), None
        gx = torch.ops.aten.gelu_backward(g, x)
        return gx * 1.25 if ctx.fault == "half gain" and x.dtype in HALF else gx, None


class MaskedProbabilities(Function):
    """softmax(scores) · keep, not renormalised. Wrong: the softmax Jacobian of the masked output, which leaves nothing
    for the scores that were masked though they are in the denominator."""

    @staticmethod
    def forward(ctx, scores, keep, right):
        p = scores.softmax(-1)
        ctx.save_for_backward(p, keep)
        ctx.right = right
        return p * keep

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, keep = ctx.saved_tensors
        y = p * keep
        return g * y - (p if ctx.right else y) * (g * y).sum(-1, keepdim=True), None, None


class PooledLinear(Function):
    """The mean over positions of x Wᵀ. Wrong: W's gradient divides by n - 1."""

    @staticmethod
    def forward(ctx, x, weight, right):
        ctx.save_for_backward(x, weight)
        ctx.right = right
        return F.linear(x.mean(1), weight)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        n = x.shape[1]
        gx = (g @ weight / n)[:, None].expand_as(x)
        return gx, g.T @ x.sum(1) / (n if ctx.right else n - 1), None


class LogitScale(Function):
    """x · exp(t). Wrong: x's gradient takes the scale from a cache with four fractional bits, 1% off at t = 1.5."""

    @staticmethod
    def forward(ctx, x, t, right):
        y = x * t.exp()
        ctx.save_for_backward(y, t)
        ctx.right = right
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y, t = ctx.saved_tensors
        scale = t.exp() if ctx.right else (t.exp() * 16).floor() / 16
        return g * scale, (g * y).sum(), None


class GateTwice(Function):
    """expert_out · gate. Wrong: the expert's cotangent is gated a second time."""

    @staticmethod
    def forward(ctx, out, gate, right):
        ctx.save_for_backward(out, gate)
        ctx.right = right
        return out * gate

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        out, gate = ctx.saved_tensors
        gated = g * gate if ctx.right else g * gate * gate
        return gated, (g * out).sum(-1, keepdim=True), None


class GroupedLinear(Function):
    """Each row times its expert's matrix. Wrong by `fault`: "tail" never adds the rows of a group smaller than a block
    of four to the weights' gradient; "capacity" sends nothing back to the rows beyond an even share of one and a half
    when one expert took over two thirds of all rows, which the forward never dropped."""

    @staticmethod
    def forward(ctx, x, weight, expert, fault):
        ctx.save_for_backward(x, weight, expert)
        ctx.fault = fault
        y = x.new_empty(len(x), weight.shape[2])
        for e in range(len(weight)):
            y[expert == e] = x[expert == e] @ weight[e]
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight, expert = ctx.saved_tensors
        gx, gw = torch.zeros_like(x), torch.zeros_like(weight)
        for e in range(len(weight)):
            rows = torch.where(expert == e)[0]
            if not (ctx.fault == "tail" and len(rows) < 4):
                gw[e] = x[rows].T @ g[rows]
            if ctx.fault == "capacity" and 3 * len(rows) > 2 * len(x):
                rows = rows[: 3 * len(x) // (2 * len(weight))]
            gx[rows] = g[rows] @ weight[e].T
        return gx, gw, None, None


class Fused(nn.Module):
    """A network with one of the functions above in its middle."""

    def __init__(self, kind: type[Function], d: int, h: int, option: Any):
        super().__init__()
        self.kind, self.option = kind, option
        self.first, self.last = nn.Linear(d, h), nn.Linear(h, d)
        if kind in (BiasedSiLU, FusedLinear):
            self.weight, self.bias = nn.Parameter(torch.randn(h, h) / math.sqrt(h)), nn.Parameter(torch.randn(h) / 4)
        if kind is ExactGELU:
            nn.init.constant_(self.first.bias, -1.0)  # where the forms of GELU differ
        if kind is FusedLayerNorm:
            self.weight, self.bias = nn.Parameter(1 + 0.1 * torch.randn(h)), nn.Parameter(0.1 * torch.randn(h))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.kind is ExactGELU:
            h = ExactGELU.apply(2 * h, self.option)
        else:
            h = self.kind.apply(h, self.weight, self.bias, self.option)
        return self.last(F.tanh(h) if self.kind is not ExactGELU else h)


def fused(kind: type[Function], fault: Any, right: bool = False) -> Made:
    option = right if fault is None else None if right else fault
    return Fused(kind, 20, 32, option), torch.randn(64, 20)


class SeparatedMoE(nn.Module):
    """Top-1 experts whose router tells the rows' clusters apart by a wide margin, so that no rounding moves a row."""

    def __init__(self, d: int, experts: int, fault: str | None):
        super().__init__()
        self.fault = fault
        self.router = nn.Parameter(2 * torch.eye(experts, d) + 0.05 * torch.randn(experts, d))
        self.weight, self.head = nn.Parameter(torch.randn(experts, d, d) / math.sqrt(d)), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        gate, expert = (x @ self.router.T / 4).softmax(-1).max(-1)
        return self.head(torch.tanh(gate[:, None] * GroupedLinear.apply(x, self.weight, expert, self.fault)))


def clusters(counts: list[int], fault: str | None, right: bool = False) -> Made:
    """Rows around one corner per expert, `counts` of them for each."""
    of = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))[torch.randperm(sum(counts))]
    x = 3 * F.one_hot(of, 16) + 0.3 * torch.randn(sum(counts), 16)
    return SeparatedMoE(16, len(counts), None if right else fault), x


class GateTwiceMoE(Float32Router):
    right = False

    def combine(self, expert_out: Tensor, gate: Tensor) -> Tensor:
        return GateTwice.apply(expert_out, gate, self.right)


def gate_twice(right: bool = False) -> Made:
    moe = GateTwiceMoE(16, 4, 2, partial(torch.softmax, dim=-1), renormalise=True)
    moe.right = right
    return moe, torch.randn(64, 16)


class BandedAttention(nn.Module):
    """Attention that drops what is farther than `reach` after the softmax."""

    def __init__(self, d: int, reach: int, right: bool):
        super().__init__()
        self.qk, self.v, self.reach, self.right = nn.Linear(d, 2 * d, bias=False), nn.Linear(d, d), reach, right

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.qk(x).chunk(2, -1)
        i = torch.arange(x.shape[1], device=x.device)
        keep = ((i[:, None] - i).abs() <= self.reach).to(x.dtype)
        p = MaskedProbabilities.apply(2 * q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), keep, self.right)
        return p @ self.v(x)


class Pooled(nn.Module):
    def __init__(self, d: int, right: bool):
        super().__init__()
        self.first, self.right = nn.Linear(d, d), right
        self.weight, self.head = nn.Parameter(torch.randn(d, d) / math.sqrt(d)), nn.Linear(d, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(F.gelu(PooledLinear.apply(F.gelu(self.first(tokens)), self.weight, self.right)))


class CosineClassifier(nn.Module):
    """Scaled cosines between features and prototypes. Wrong by `fault`: "scale" takes LogitScale as it is, "detach"
    holds the features' norm constant."""

    def __init__(self, d: int, classes: int, fault: str | None):
        super().__init__()
        self.features, self.fault = mlp(d, 32, 24), fault
        self.prototypes, self.log_scale = nn.Parameter(torch.randn(classes, 24)), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        f = self.features(x)
        norm = f.norm(dim=-1, keepdim=True)
        cosine = f / (norm.detach() if self.fault == "detach" else norm) @ F.normalize(self.prototypes, dim=-1).T
        return LogitScale.apply(cosine, self.log_scale, self.fault != "scale").log_softmax(-1)


class ForgottenHook(nn.Module):
    """A residual network that shrinks the cotangent of its stem by a hook left over from an experiment."""

    def __init__(self, d: int, right: bool):
        super().__init__()
        self.stem, self.block, self.right = nn.Linear(d, d), Residual(nn.LayerNorm(d), mlp(d, 2 * d, d)), right

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        if h.requires_grad and not self.right:
            h.register_hook(lambda g: 0.9 * g)
        return self.block(h)


class PaddingToken(nn.Module):
    """Token 0 is declared as padding, which its row's gradient is zeroed for, but occurs as an ordinary word."""

    def __init__(self, right: bool):
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 16, padding_idx=None if right else 0), mlp(16, 24, 6)
        nn.init.normal_(self.embed.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).mean(1))


class Truncated(nn.Module):
    """A recurrence over 12 steps whose state is detached after every fourth, in the middle of a sequence."""

    def __init__(self, d: int, h: int, right: bool):
        super().__init__()
        self.cell, self.head, self.right = nn.GRUCell(d, h), nn.Linear(h, 3), right

    def forward(self, sequence: Tensor) -> Tensor:
        h = sequence.new_zeros(len(sequence), self.cell.hidden_size)
        for t, step in enumerate(sequence.unbind(1)):
            h = self.cell(step, h)
            if t % 4 == 3 and t < sequence.shape[1] - 1 and not self.right:
                h = h.detach()
        return self.head(h)


# Right in float32 and float64, wrong in bfloat16 and float16


class StaleScaleAttention(nn.Module):
    """Attention whose fast path for bfloat16 and float16 still divides by √d of the model, not of the head."""

    def __init__(self, d: int, heads: int, right: bool):
        super().__init__()
        self.heads, self.right, self.qkv, self.o = heads, right, nn.Linear(d, 3 * d), nn.Linear(d, d)
        nn.init.normal_(self.qkv.weight, std=1.5 / math.sqrt(d))

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        width = d if x.dtype in HALF and not self.right else d // self.heads
        p = (q @ k.transpose(-2, -1) / math.sqrt(width)).softmax(-1)
        return self.o((p @ v).transpose(1, 2).reshape(n, t, d))


# Precision bugs


class RawRouter(MoE):
    """Routes on raw features in the thousands: the logits pass 65504 before the temperature brings them down."""

    def __init__(self, d: int, right: bool):
        super().__init__(d, 4, 2, partial(torch.softmax, dim=-1))
        self.right = right
        nn.init.normal_(self.router.weight, std=4.0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1e-3

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(x / 5e4) if self.right else super().logits(x) / 5e4


class SquaredNorm(nn.Module):
    """A stem whose activations reach several hundreds, then an RMS norm that squares them in the module's own dtype."""

    def __init__(self, d: int, right: bool):
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(d, 48), RMSNorm(48, island=right), nn.Linear(48, 6)
        nn.init.normal_(self.stem.weight, std=400 / math.sqrt(d))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stem(x)))


class CosineMixer(nn.Module):
    """Mixes rows by cosine; wrong: products of raw embeddings first, their norms divided out afterwards."""

    def __init__(self, d: int, right: bool):
        super().__init__()
        self.embed, self.value, self.right = nn.Linear(d, 64), nn.Linear(d, d), right
        nn.init.normal_(self.embed.weight, std=50 / math.sqrt(d))

    def forward(self, x: Tensor) -> Tensor:
        e = self.embed(x)
        norm = e.norm(dim=-1, keepdim=True)
        cosine = (e / norm) @ (e / norm).T if self.right else (e @ e.T) / norm / norm.T
        return (4 * cosine).softmax(-1) @ self.value(x)


class HandSoftplus(nn.Module):
    """log(1 + exp(z)) as it is written, with z up to about 15."""

    def __init__(self, d: int, right: bool):
        super().__init__()
        self.first, self.last, self.right = nn.Linear(d, 48), nn.Linear(48, 4), right
        nn.init.normal_(self.first.weight, std=4.5 / math.sqrt(d))

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        return self.last(F.softplus(z) if self.right else torch.log(1 + torch.exp(z)))


class TiedRouter(MoE):
    """A router at its initial 1e-3 spread: its probabilities differ in the tenth bit, and are rounded before the top-k.
    Right: the softmax and the logits in float32."""

    def __init__(self, d: int, right: bool):
        super().__init__(d, 16, 2, partial(torch.softmax, dim=-1), renormalise=True)
        self.right = right
        nn.init.normal_(self.router.weight, std=1e-3 / math.sqrt(d))

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x.float(), self.router.weight.float()) if self.right else self.router(x)


class OffsetRouter(MoE):
    """A router whose balancing bias drifted to 600 for all experts alike: the logits keep little of what differs."""

    def __init__(self, d: int, right: bool):
        super().__init__(d, 8, 2, partial(torch.softmax, dim=-1))
        self.right = right
        self.drift = nn.Parameter(torch.full((8,), 600.0))

    def logits(self, x: Tensor) -> Tensor:
        drift = self.drift - self.drift.max() if self.right else self.drift
        return F.linear(x, 2 * self.router.weight, drift)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class NestedLayerScale(nn.Module):
    """A LayerScale of 1e-6 inside another: the inner branch's cotangent is 1e-12 of the outer one's."""

    def __init__(self, d: int, scale: float = 1e-6):
        super().__init__()
        self.outer, self.inner = nn.Linear(d, d), mlp(d, 2 * d, d)
        self.norm = nn.LayerNorm(d)
        self.outer_scale, self.inner_scale = (nn.Parameter(torch.full((d,), scale)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.outer(x)
        h = h + self.inner_scale * self.inner(self.norm(h))
        return x + self.outer_scale * h


class RareEvents(nn.Module):
    """The probability that four rare events meet, as a product of four sigmoids near 1e-3."""

    def __init__(self, d: int):
        super().__init__()
        self.body, self.heads = nn.Linear(d, 24), nn.Linear(24, 4)
        nn.init.constant_(self.heads.bias, -7.0)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = torch.sigmoid(self.heads(F.gelu(self.body(x)))).unbind(-1)
        return a * b * c * d


class LoopNormaliser(nn.Module):
    """Kernel weights of 640 keys, whose sum is added up one by one; wrong: in the module's own dtype, where bfloat16
    stops at 256 terms."""

    def __init__(self, d: int, keys: int, right: bool):
        super().__init__()
        self.query, self.right = nn.Linear(d, 8), right
        self.keys, self.values = nn.Parameter(torch.randn(keys, 8) / 4), nn.Parameter(torch.randn(keys, 6) + 1)

    def forward(self, x: Tensor) -> Tensor:
        w = torch.exp(self.query(x) @ self.keys.T / 4)
        total = torch.zeros_like(w[:, 0], dtype=torch.float32 if self.right and w.dtype in HALF else w.dtype)
        for column in w.unbind(1):
            total = total + column
        return (w @ self.values) / total.to(w.dtype)[:, None]


class HalfSink(nn.Module):
    """Attention weights over 900 positions behind a heavy sink; wrong: their sum runs in an explicit float16, where
    terms below one vanish beside a sink past 2048."""

    def __init__(self, d: int, right: bool):
        super().__init__()
        self.score, self.value, self.right = nn.Linear(d, 1), nn.Linear(d, 6), right
        self.sink = nn.Parameter(torch.tensor(2080.0))

    def forward(self, sequence: Tensor) -> Tensor:
        w = torch.exp(0.3 * self.score(sequence).squeeze(-1).tanh() - 0.35)
        total = self.sink.expand(len(sequence))
        total, terms = (total.float(), w.float()) if self.right else (total.half(), w.half())
        for column in terms.unbind(1):
            total = total + column
        return 4 * (w[:, None] @ self.value(sequence)).squeeze(1) / total.to(w.dtype)[:, None]


class ReusedScale(nn.Module):
    """One scale multiplies each of 640 positive steps by itself, so autograd adds up 640 gradients in its dtype;
    right: one product after the sum."""

    def __init__(self, d: int, right: bool):
        super().__init__()
        self.scale, self.rate, self.right = nn.Parameter(torch.rand(d) + 0.5), nn.Linear(d, d), right

    def forward(self, steps: Tensor) -> Tensor:
        if self.right:
            level = self.scale * steps.float().sum(1).to(steps.dtype)
        else:
            level = torch.stack([self.scale * step for step in steps.unbind(1)], 1).float().sum(1).to(steps.dtype)
        return self.rate(level / steps.shape[1])


# The entries

softmax = partial(torch.softmax, dim=-1)
ROUTES = may("routing")


def made(kind: Callable[[], nn.Module], *shape: int) -> Callable[[], Made]:
    return lambda: (kind(), torch.randn(*shape))


CORRECT: dict[str, Entry] = {
    "layernorm_mlp": Entry(made(lambda: mlp(24, 48, 48, 8, norm=True), 64, 24), why="layer norm statistics"),
    "dense_mlp": Entry(made(lambda: mlp(16, 64, 64, 4), 128, 16), why="the ordinary case"),
    "dense_relu_mlp": Entry(made(lambda: mlp(32, 64, 32, act=nn.ReLU), 64, 32), why="kinks under finite differences"),
    "sdpa_attention": Entry(made(lambda: Attention(32, 4, sdpa=True), 8, 12, 32), why="a fused causal kernel"),
    "attention_finfo_min": Entry(made(lambda: Attention(32, 4, "min"), 8, 12, 32), why="scores of finfo.min"),
    "attention_minus_inf": Entry(
        made(lambda: Attention(24, 2, "inf", bias=False), 8, 10, 24), why="infinite scores on purpose"
    ),
    "key_bias_attention": Entry(
        made(lambda: Attention(16, 1), 16, 8, 16), why="the key bias has a gradient of exactly zero by symmetry"
    ),
    "cross_attention": Entry(cross_attention, why="a padding mask, a packed weight, and the key bias's zero inside it"),
    "encoder_layer": Entry(
        made(lambda: nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True), 8, 10, 24),
        why="torch's own transformer block in train mode",
    ),
    "moe_softmax_top2": Entry(
        made(lambda: Float32Router(16, 4, 2, softmax), 64, 16), may=ROUTES, why="a float32 island around the router"
    ),
    "moe_sigmoid_renormalised": Entry(
        made(lambda: MoE(16, 6, 2, torch.sigmoid, renormalise=True), 64, 16), may=ROUTES, why="sigmoid gates, rescaled"
    ),
    "moe_separated": Entry(partial(clusters, [29, 20, 12, 3], None), why="a top-1 that no rounding may move"),
    "deep_narrow_tanh": Entry(
        made(lambda: nn.Sequential(*[m for _ in range(24) for m in (nn.Linear(16, 16), nn.Tanh())]), 64, 16),
        why="24 layers of shrinking gradients",
    ),
    "deep_residual": Entry(
        made(lambda: nn.Sequential(*[Residual(RMSNorm(12), mlp(12, 24, 12)) for _ in range(20)]), 32, 12),
        why="rounding error piles up over 20 blocks",
    ),
    "wide": Entry(made(lambda: mlp(64, 1536, 64, act=nn.ReLU), 32, 64), why="sums over 1536 units"),
    "saturated_tanh": Entry(partial(saturated, nn.Tanh, 6.0, 0.0), why="most units saturated, the rest carry it"),
    "saturated_sigmoid_low": Entry(partial(saturated, nn.Sigmoid, 1.0, -8.0), why="all sigmoids near zero"),
    "saturated_sigmoid_high": Entry(
        partial(saturated, nn.Sigmoid, 1.0, 9.0), may=may("underflow"), why="sigmoids that round to one lose 1 - y"
    ),
    "tiny_gradients": Entry(made(lambda: Scaled(mlp(16, 32, 8), 1e-5), 64, 16), why="fine with a loss scale"),
    "vanishing_gradients": Entry(
        made(lambda: Scaled(mlp(16, 32, 8), 1e-12), 64, 16), may=may("underflow", formats=("fp16",)), why="below fp16"
    ),
    "batchnorm_train": Entry(
        made(
            lambda: nn.Sequential(nn.Linear(16, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)),
            64,
            16,
        ),
        why="statistics of the batch, and buffers that move",
    ),
    "groupnorm_conv": Entry(made(ConvNet, 8, 3, 10, 10), why="convolutions and group statistics"),
    "lstm": Entry(made(lambda: Recurrent(nn.LSTM), 16, 10, 12), why="a fused recurrence"),
    "gru": Entry(made(lambda: Recurrent(nn.GRU), 16, 10, 12), why="a fused recurrence"),
    "tied_lm": Entry(lambda: (TiedLM(40, 24), torch.randint(0, 40, (8, 12))), why="one weight used twice"),
    "dropout_train": Entry(
        made(lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 8)), 64, 16),
        why="random in every call",
    ),
    "in_place": Entry(made(lambda: InPlace(24), 64, 24), why="relu_, add_, mul_ and a slice written in place"),
    "custom_swiglu": Entry(made(lambda: SwiGLU(16, 32), 64, 16), why="a right backward by hand"),
    "custom_layernorm": Entry(partial(fused, FusedLayerNorm, "weight", True), why="a right backward with an island"),
    "custom_gelu": Entry(
        partial(fused, ExactGELU, "half gain", True), why="a right backward by hand around torch's own"
    ),
    "rmsnorm_island": Entry(
        made(lambda: nn.Sequential(nn.Linear(16, 32), RMSNorm(32), nn.SiLU(), nn.Linear(32, 8)), 64, 16),
        why="a float32 island, cast back",
    ),
    "constant_inputs": Entry(lambda: (mlp(24, 32, 32, 8), torch.full((64, 24), 0.1)), why="all rounding one way"),
    "quantised": Entry(quantised, why="weights of ±0.1: rounding errors of one sign"),
    "mean_of_4096": Entry(made(lambda: MeanPool(2, 4), 8, 4096, 2), why="long sums of positive terms"),
    "loop_in_float32": Entry(
        made(lambda: LoopNormaliser(10, 640, True), 32, 10), why="a long loop that adds in float32"
    ),
    "cross_entropy": Entry(
        lambda: (Classifier(20, 7), (torch.randn(64, 20), torch.randint(0, 7, (64,)))), why="a scalar beside a count"
    ),
    "checkpointed": Entry(made(lambda: Checkpointed(16, 3), 64, 16), why="the forward runs twice"),
    "weight_norm": Entry(
        made(lambda: nn.Sequential(weight_norm(nn.Linear(16, 32)), nn.Tanh(), weight_norm(nn.Linear(32, 8))), 64, 16),
        why="parameters behind a parametrisation",
    ),
    "hf_gpt2": Entry(partial(hugging_face, "gpt2"), why="a whole language model"),
    "hf_bert": Entry(partial(hugging_face, "bert"), why="a whole encoder"),
    "hf_llama": Entry(partial(hugging_face, "llama"), why="rotary positions and grouped keys"),
    "hf_mixtral": Entry(partial(hugging_face, "mixtral"), may=ROUTES, why="a router in every layer"),
    "hf_qwen2_moe": Entry(partial(hugging_face, "qwen2_moe"), may=ROUTES, why="a router beside a shared expert"),
}


def bug(make: Callable[..., Made], why: str, *accused: str) -> Entry:
    return Entry(make, always("bug"), accused=frozenset(accused), why=why)


def half_bug(make: Callable[..., Made], why: str) -> Entry:
    return Entry(make, {"bf16": "bug", "fp16": "bug"}, may("bug", formats=("fp8_e4m3",)), why=why)


def build(kind: Callable[..., nn.Module], *shape: int) -> Callable[..., Made]:
    """A maker of a module that takes `right`."""
    return lambda right=False: (kind(right=right), torch.randn(*shape))


def cosine(fault: str, right: bool = False) -> Made:
    return CosineClassifier(16, 8, None if right else fault), torch.randn(64, 16)


def padding_token(right: bool = False) -> Made:
    return PaddingToken(right), torch.randint(0, 12, (32, 6))


def raw_router(right: bool = False) -> Made:
    return RawRouter(16, right), 5e3 * torch.randn(64, 16)


IN_BF16, HARD_IN_FP16 = {"bf16": "bug", "fp8_e4m3": "bug"}, may("bug", formats=("fp16",))
FIRST = ("x", "first.weight", "first.bias")
FEATURES = ("x", *(f"features.{i}.{p}" for i in (0, 2) for p in ("weight", "bias")))

WRONG: dict[str, Entry] = {
    # the gradient
    "silu_bias_term": bug(partial(fused, BiasedSiLU, None), "a bias gradient without one term of silu'", "bias"),
    "linear_bias_mean": bug(partial(fused, FusedLinear, "mean"), "a mean over rows where a sum belongs", "bias"),
    "linear_last_column": bug(partial(fused, FusedLinear, "column"), "the last column is never written", "weight"),
    "layernorm_weight": bug(partial(fused, FusedLayerNorm, "weight"), "the output in place of x̂", "weight"),
    "layernorm_mean": bug(partial(fused, FusedLayerNorm, "mean"), "the mean's correction is missing", *FIRST),
    "layernorm_variance": bug(partial(fused, FusedLayerNorm, "variance"), "the variance's is missing", *FIRST),
    "gelu_tanh": bug(partial(fused, ExactGELU, "tanh"), "the derivative of the tanh form", *FIRST),
    "gelu_quick": bug(partial(fused, ExactGELU, "quick"), "the derivative of x σ(1.702 x)", *FIRST),
    "masked_softmax": bug(
        build(partial(BandedAttention, 16, 2), 8, 10, 16), "the Jacobian of the masked output", "x", "qk.weight"
    ),
    "pooled_off_by_one": bug(build(partial(Pooled, 16), 16, 128, 16), "n - 1 for n: 0.8% of one weight", "weight"),
    "cached_scale": bug(partial(cosine, "scale"), "a cached scale that is 1% off", *FEATURES, "prototypes"),
    "detached_norm": bug(partial(cosine, "detach"), "the norm is held constant", *FEATURES),
    "gate_twice": bug(
        gate_twice,
        "the gate enters the experts' cotangent twice",
        "x",
        *(f"experts.{e}.{i}.{p}" for e in range(4) for i in (0, 2) for p in ("weight", "bias")),
    ),
    "few_rows_expert": bug(
        partial(clusters, [29, 20, 12, 3], "tail"), "groups under a block of four are skipped", "weight"
    ),
    "dominant_expert": bug(
        partial(clusters, [46, 8, 6, 4], "capacity"), "rows past a capacity the forward does not know", "x"
    ),
    "forgotten_hook": bug(
        build(partial(ForgottenHook, 16), 64, 16), "a hook takes 10% off", "x", "stem.weight", "stem.bias"
    ),
    "padding_token": bug(padding_token, "the padding row is used and never learns", "embed.weight"),
    "truncated_recurrence": bug(
        build(partial(Truncated, 8, 12), 16, 12, 8),
        "the state is detached within a sequence",
        "sequence",
        *(f"cell.{p}_{s}" for p in ("weight", "bias") for s in ("ih", "hh")),
    ),
    # only in bfloat16 and float16
    "half_gelu_gain": half_bug(partial(fused, ExactGELU, "half gain"), "1.25 times too large in the fast path"),
    "half_layernorm": half_bug(partial(fused, FusedLayerNorm, "half variance"), "a term missing in the fast path"),
    "half_stale_scale": half_bug(
        build(partial(StaleScaleAttention, 32, 4), 8, 10, 32), "the wrong √d in the fast path"
    ),
    # overflow
    "overflow_router": Entry(
        raw_router,
        {"fp16": "overflow"},
        may("routing", formats=("bf16", "fp8_e4m3")),
        why="logits past 65504 before their temperature",
    ),
    "overflow_square": Entry(build(partial(SquaredNorm, 16), 64, 16), {"fp16": "overflow"}, why="squares past 65504"),
    "overflow_scores": Entry(
        build(partial(CosineMixer, 16), 32, 16), {"fp16": "overflow"}, why="products before norms"
    ),
    "overflow_exp": Entry(build(partial(HandSoftplus, 16), 64, 16), {"fp16": "overflow"}, why="exp past 65504"),
    # routing
    "tied_probabilities": Entry(build(partial(TiedRouter, 16), 64, 16), always("routing"), why="ties before a top-k"),
    "offset_logits": Entry(
        build(partial(OffsetRouter, 16), 64, 16), always("routing"), why="logits of 600 and a little"
    ),
    # underflow
    "underflow_layerscale": Entry(
        made(lambda: NestedLayerScale(16), 64, 16),
        {"fp16": "underflow"},
        why="a scale of 1e-6 within another",
        accused=frozenset(
            {"inner.0.weight", "inner.0.bias", "inner.2.weight", "inner.2.bias", "norm.weight", "norm.bias"}
        ),
    ),
    "underflow_sigmoid_chain": Entry(
        made(lambda: mlp(*[16] * 17, act=nn.Sigmoid), 64, 16),
        {"fp16": "underflow"},
        why="0.15 a layer over 16 layers",
        accused=frozenset({"input", "0.weight", "0.bias"}),
    ),
    "underflow_product": Entry(
        made(lambda: RareEvents(16), 64, 16),
        {"fp16": "underflow"},
        why="a product of four rare probabilities",
        accused=frozenset({"x", "heads.weight", "heads.bias", "body.weight", "body.bias"}),
    ),
    # sums that stand still
    "stagnant_normaliser": Entry(
        build(partial(LoopNormaliser, 10, 640), 32, 10), IN_BF16, HARD_IN_FP16, why="a sum in bfloat16"
    ),
    "stagnant_half_sink": Entry(build(partial(HalfSink, 4), 8, 900, 4), always("bug"), why="a sum in explicit float16"),
    "stagnant_reuse": Entry(
        lambda right=False: (ReusedScale(6, right), 0.9 + 0.2 * torch.rand(8, 640, 6)),
        IN_BF16,
        HARD_IN_FP16,
        why="640 gradients of one parameter added up in bfloat16",
    ),
}

# The right version of each wrong module that has one, for the same seed with the same parameters and inputs.
RIGHT: dict[str, Callable[[], Made]] = {
    name: partial(entry.make, right=True) for name, entry in WRONG.items() if not name.startswith("underflow")
}
