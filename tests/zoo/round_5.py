"""Round 5 of the zoo, written without sight of the tool's code and of the rounds before; sealed until it was scored.

How the truth was measured, with plain torch on the CPU and seeds 0 to 4, against a random cotangent:

- A gradient bug: in float64 its forward equals its right twin's and its gradient does not. Each accused tensor is off
  by 0.5 % or more, from the twin's and from central differences of the forward along the difference; all others agree.
- Overflow and underflow: the module's real fp16 run, at the largest loss scale up to 2^16 that keeps it finite, is not
  finite, or some tensor is off by 10 % or more; its bf16 run and the twin's fp16 run are not. Where the parameters'
  own gradients span too wide a range, the twin is the same network with gentler constants.
- Routing: rows flip in the real run and move the gradient by 10 % or more; replaying float64's decisions takes nine
  tenths of the error away.
- An unstable formulation: the error of the real run is 10 % or more, and ten times the twin's or more.
- A correct module: its float64 gradient equals central differences, and the errors of its whole gradient in real bf16
  and fp16 runs are within four times those of float32 arithmetic between rounded inputs and weights and rounded
  results of products; where a decision with near-ties flips, it says so.

fp8_e4m3 is not a format of arithmetic: what is said of it was measured on bf16 runs whose products take operands
rounded to e4m3, scaled per tensor; a formulation that is unstable in bf16 is called so here too.
A wrong module's builder takes `right=True` for the twin, the same function well written.
"""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from zoo.entry import FORMATS, Entry, always

Made = tuple[nn.Module, tuple[Any, ...]]


def _param(*shape: int, scale: float = 1.0) -> nn.Parameter:
    return nn.Parameter(scale * torch.randn(*shape))


def _widened(x: Tensor) -> Tensor:
    """In float32 at least: a narrow tensor's island."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# ---------------------------------------------------------------- gradient bugs: a backward that is not the forward's


class _RootMeanSquare(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, right: bool) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.right = right
        return x * scale * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        inner = grad * weight
        grad_x = inner * scale
        if ctx.right:
            unit = x * scale
            grad_x = scale * (inner - unit * (inner * unit).mean(-1, keepdim=True))
        return grad_x, (grad * x * scale).flatten(0, -2).sum(0), None, None


class FusedRMSNormHead(nn.Module):
    def __init__(self, dim: int, out: int, right: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(1 + 0.2 * torch.randn(dim))
        self.head = nn.Linear(dim, out)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return self.head(_RootMeanSquare.apply(x, self.scale, 1e-5, self.right))


def fused_rmsnorm(right: bool = False) -> Made:
    return FusedRMSNormHead(12, 10, right), (torch.randn(3, 7, 12),)


class _Scan(Function):
    """h_t = a h_{t-1} + u_t over dimension 1."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, a: Tensor, right: bool) -> Tensor:
        states, h = [], torch.zeros_like(u[:, 0])
        for t in range(u.shape[1]):
            h = a * h + u[:, t]
            states.append(h)
        out = torch.stack(states, 1)
        ctx.save_for_backward(a, out)
        ctx.right = right
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, out = ctx.saved_tensors
        adjoint, adjoints = torch.zeros_like(grad[:, 0]), []
        for t in reversed(range(grad.shape[1])):
            adjoint = grad[:, t] + a * adjoint
            adjoints.append(adjoint)
        grad_u = torch.stack(adjoints[::-1], 1)
        before = F.pad(out, (0, 0, 1, 0))[:, :-1] if ctx.right else out
        return grad_u, (grad_u * before).sum((0, 1)), None


class DiagonalRecurrence(nn.Module):
    def __init__(self, dim: int, state: int, right: bool) -> None:
        super().__init__()
        self.into = nn.Linear(dim, state)
        self.decay = nn.Parameter(torch.linspace(-0.5, 2.0, state))
        self.out = nn.Linear(state, dim)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(F.silu(_Scan.apply(self.into(x), torch.sigmoid(self.decay), self.right)))


def scan_saves_the_wrong_state(right: bool = False) -> Made:
    return DiagonalRecurrence(8, 16, right), (torch.randn(3, 10, 8),)


class _Lookup(Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows, ctx.right = table.shape[0], right
        return table[ids]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        full = flat.new_zeros(ctx.rows, flat.shape[-1])
        full.index_put_((ids.reshape(-1),), flat, accumulate=ctx.right)
        return full, None, None


class TokenMixer(nn.Module):
    def __init__(self, rows: int, dim: int, right: bool) -> None:
        super().__init__()
        self.table = _param(rows, dim)
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, dim)
        self.right = right

    def forward(self, ids: Tensor) -> Tensor:
        return self.mix(self.norm(_Lookup.apply(self.table, ids, self.right)))


def lookup_overwrites_repeated_tokens(right: bool = False) -> Made:
    return TokenMixer(14, 16, right), (torch.randint(14, (4, 6)),)


class _Renormalise(Function):
    """w = p / sum(p) over the chosen experts."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, first: Tensor, right: bool) -> Tensor:
        total = p.sum(-1, keepdim=True)
        w = p / total
        ctx.save_for_backward(w, total, first)
        ctx.right = right
        return w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        w, total, first = ctx.saved_tensors
        cross = (grad * w).sum(-1, keepdim=True)
        if not ctx.right:
            cross = cross * (first != 0).unsqueeze(-1).to(cross.dtype)
        return (grad - cross) / total, None, None


class RenormalisedTopTwo(nn.Module):
    def __init__(self, dim: int, experts: int, right: bool) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(experts))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        chosen, index = torch.softmax(2 * self.router(x), -1).topk(2, -1)
        gate = _Renormalise.apply(chosen, index[:, 0], self.right)
        every = torch.stack([torch.tanh(expert(x)) for expert in self.experts], 1)
        picked = every.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        return (gate.unsqueeze(-1) * picked).sum(1)


def gate_gradient_of_one_pattern(right: bool = False) -> Made:
    return RenormalisedTopTwo(10, 4, right), (torch.randn(36, 10),)


class _Adapter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, down: Tensor, up: Tensor, scale: float, right: bool) -> Tensor:
        low = x @ down.t()
        ctx.save_for_backward(x, down, up, low)
        ctx.scale, ctx.right = scale, right
        return scale * (low @ up.t())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, down, up, low = ctx.saved_tensors
        scaled = ctx.scale * grad
        grad_low = scaled @ up
        grad_up = (scaled if ctx.right else grad).t() @ low
        return grad_low @ down, grad_low.t() @ x, grad_up, None, None


class AdaptedLinear(nn.Module):
    def __init__(self, dim: int, out: int, rank: int, alpha: float, right: bool) -> None:
        super().__init__()
        self.base = nn.Linear(dim, out)
        self.base.weight.requires_grad_(False)
        self.down = _param(rank, dim, scale=dim**-0.5)
        self.up = _param(out, rank, scale=0.3)
        self.scale, self.right = alpha / rank, right

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + _Adapter.apply(x, self.down, self.up, self.scale, self.right)


def adapter_forgets_its_scale(right: bool = False) -> Made:
    return AdaptedLinear(20, 24, 4, 3.5, right), (torch.randn(18, 20),)


class _AddBias(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, bias: Tensor, right: bool) -> Tensor:
        ctx.right = right
        return scores + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, grad.sum(0) if ctx.right else grad[0], None


class RelativeBiasAttention(nn.Module):
    def __init__(self, dim: int, heads: int, length: int, right: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.bias = _param(heads, length, length, scale=0.5)
        self.heads, self.right = heads, right

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5
        weights = torch.softmax(_AddBias.apply(scores, self.bias, self.right), -1)
        return (weights @ v).transpose(1, 2).reshape(b, t, d)


def bias_not_summed_over_the_batch(right: bool = False) -> Made:
    return RelativeBiasAttention(16, 2, 6, right), (torch.randn(3, 6, 16),)


class _CausalDepthwise(Function):
    """y_t = sum_j w_j x_{t-j}, each channel with its own taps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, right: bool) -> Tensor:
        k, t = taps.shape[0], x.shape[1]
        padded = F.pad(x, (0, 0, k - 1, 0))
        ctx.save_for_backward(padded, taps)
        ctx.right = right
        return sum(taps[j] * padded[:, k - 1 - j : k - 1 - j + t] for j in range(k))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        padded, taps = ctx.saved_tensors
        k, t = taps.shape[0], grad.shape[1]
        grad_taps = torch.stack([(grad * padded[:, k - 1 - j : k - 1 - j + t]).sum((0, 1)) for j in range(k)])
        later = F.pad(grad, (0, 0, 0, k - 1))
        order = range(k) if ctx.right else reversed(range(k))
        grad_x = sum(taps[j] * later[:, i : i + t] for i, j in enumerate(order))
        return grad_x, grad_taps, None


class ShortConvMixer(nn.Module):
    def __init__(self, dim: int, taps: int, right: bool) -> None:
        super().__init__()
        self.into = nn.Linear(dim, dim, bias=False)
        self.taps = _param(taps, dim, scale=0.5)
        self.out = nn.Linear(dim, dim)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(_CausalDepthwise.apply(self.into(x), self.taps, self.right)))


def short_convolution_unflipped(right: bool = False) -> Made:
    return ShortConvMixer(12, 4, right), (torch.randn(2, 9, 12),)


class ResetGateCell(nn.Module):
    def __init__(self, dim: int, hidden: int, right: bool) -> None:
        super().__init__()
        self.update = nn.Linear(dim + hidden, hidden)
        self.reset = nn.Linear(dim + hidden, hidden)
        self.candidate = nn.Linear(dim + hidden, hidden)
        self.right = right

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        both = torch.cat([x, h], -1)
        z, r = torch.sigmoid(self.update(both)), torch.sigmoid(self.reset(both))
        if not self.right:
            r = r.detach()
        n = torch.tanh(self.candidate(torch.cat([x, r * h], -1)))
        return (1 - z) * n + z * h


def reset_gate_detached(right: bool = False) -> Made:
    cell = ResetGateCell(10, 14, right)
    with torch.no_grad():
        cell.candidate.weight.mul_(2)
    return cell, (torch.randn(12, 10), torch.randn(12, 14))


def _masked_attention(x: Tensor, qkv: Tensor, keep: Tensor | None) -> Tensor:
    q, k, v = F.linear(x, qkv).chunk(3, -1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if keep is not None:
        scores = scores.masked_fill(~keep.unsqueeze(1), float("-inf"))
    return torch.softmax(scores, -1) @ v


class _Recomputed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, qkv: Tensor, keep: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x, qkv, keep)
        ctx.right = right
        return _masked_attention(x, qkv, keep)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, qkv, keep = ctx.saved_tensors
        with torch.enable_grad():
            x, qkv = x.detach().requires_grad_(), qkv.detach().requires_grad_()
            out = _masked_attention(x, qkv, keep if ctx.right else None)
            grad_x, grad_qkv = torch.autograd.grad(out, (x, qkv), grad)
        return grad_x, grad_qkv, None, None


class RecomputedAttention(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.qkv = _param(3 * dim, dim, scale=dim**-0.5)
        self.out = nn.Linear(dim, dim)
        self.right = right

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return self.out(_Recomputed.apply(x, self.qkv, keep, self.right))


def recomputed_without_the_mask(right: bool = False) -> Made:
    lengths = torch.tensor([7, 4, 5])
    return RecomputedAttention(16, right), (torch.randn(3, 7, 16), torch.arange(7) < lengths.unsqueeze(1))


class TiedLanguageHead(nn.Module):
    def __init__(self, rows: int, dim: int, right: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(rows, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim), nn.LayerNorm(dim))
        self.right = right

    def forward(self, ids: Tensor) -> Tensor:
        table = self.tokens.weight if self.right else self.tokens.weight.data
        return F.linear(self.mlp(self.tokens(ids)), table)


def tied_table_loses_one_use(right: bool = False) -> Made:
    return TiedLanguageHead(20, 16, right), (torch.randint(20, (3, 8)),)


class _BatchStatistics(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, right: bool) -> Tensor:
        centred = x - x.mean(0)
        scale = torch.rsqrt(centred.pow(2).mean(0) + eps)
        unit = centred * scale
        ctx.save_for_backward(unit, scale)
        ctx.right = right
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        unit, scale = ctx.saved_tensors
        inner = grad - grad.mean(0)
        if ctx.right:
            inner = inner - unit * (grad * unit).mean(0)
        return scale * inner, None, None


class BatchStandardised(nn.Module):
    def __init__(self, dim: int, out: int, right: bool) -> None:
        super().__init__()
        self.lin = nn.Linear(dim, out)
        self.gain = nn.Parameter(1 + 0.1 * torch.randn(out))
        self.shift = _param(out, scale=0.1)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(_BatchStatistics.apply(self.lin(x), 1e-5, self.right) * self.gain + self.shift)


def batch_variance_taken_as_constant(right: bool = False) -> Made:
    return BatchStandardised(8, 16, right), (torch.randn(20, 8),)


class TwoTowers(nn.Module):
    def __init__(self, left: int, right_: int, dim: int, right: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(left, dim), nn.Linear(right_, dim)
        self.log_scale = nn.Parameter(torch.tensor(1.5))
        self.right = right

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        scale = self.log_scale.exp()
        if not self.right and scale.requires_grad:
            scale.register_hook(lambda grad: grad * 0.96)
        logits = scale * F.normalize(self.a(image), dim=-1) @ F.normalize(self.b(text), dim=-1).t()
        target = torch.arange(len(image), device=image.device)
        rows = F.cross_entropy(logits, target, reduction="none")
        return rows + F.cross_entropy(logits.t(), target, reduction="none")


def temperature_hook_keeps_96_percent(right: bool = False) -> Made:
    shared = torch.randn(10, 6)
    mixed = torch.cat([shared + 0.5 * torch.randn(10, 6), torch.randn(10, 6)], -1)
    return TwoTowers(6, 12, 16, right), (shared, mixed)


class _MaskedMean(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, right: bool) -> Tensor:
        weight = keep.to(x.dtype).unsqueeze(-1)
        count = weight.sum(1)
        ctx.save_for_backward(weight, count)
        ctx.right = right
        return (x * weight).sum(1) / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, count = ctx.saved_tensors
        per = grad / (count if ctx.right else weight.shape[1])
        return per.unsqueeze(1) * weight, None, None


class SentencePooler(nn.Module):
    def __init__(self, dim: int, out: int, right: bool) -> None:
        super().__init__()
        self.encode = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, out)
        self.right = right

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return self.head(_MaskedMean.apply(torch.tanh(self.encode(x)), keep, self.right))


def masked_mean_divided_by_the_length(right: bool = False) -> Made:
    keep = torch.arange(9) < torch.tensor([9, 8, 6, 9]).unsqueeze(1)
    return SentencePooler(12, 8, right), (torch.randn(4, 9, 12), keep)


class _Leaky(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x, slope)
        ctx.right = right
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, slope = ctx.saved_tensors
        grad_slope = grad * (x.clamp(max=0) if ctx.right else x)
        return torch.where(x > 0, grad, slope * grad), grad_slope.flatten(0, -2).sum(0), None


class LearnedLeak(nn.Module):
    def __init__(self, dim: int, hidden: int, right: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.slope = nn.Parameter(0.25 + 0.05 * torch.randn(hidden))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return self.down(_Leaky.apply(self.up(x), self.slope, self.right))


def slope_counts_positive_entries(right: bool = False) -> Made:
    return LearnedLeak(10, 20, right), (torch.randn(16, 10),)


class _Equilibrium(Function):
    """z = tanh(z W' + c), and its adjoint v = (grad + v W) tanh'."""

    @staticmethod
    def forward(ctx: Any, c: Tensor, weight: Tensor, right: bool) -> Tensor:
        z = torch.zeros_like(c)
        for _ in range(30):
            z = torch.tanh(z @ weight.t() + c)
        ctx.save_for_backward(z, weight)
        ctx.right = right
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, weight = ctx.saved_tensors
        slope = 1 - z * z
        v = grad * slope
        for _ in range(30):
            v = (grad + v @ (weight if ctx.right else weight.t())) * slope
        return v, v.t() @ z, None


class EquilibriumLayer(nn.Module):
    def __init__(self, dim: int, hidden: int, right: bool) -> None:
        super().__init__()
        self.inject = nn.Linear(dim, hidden)
        raw = torch.randn(hidden, hidden)
        self.weight = nn.Parameter(0.45 * raw / torch.linalg.matrix_norm(raw, 2))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return _Equilibrium.apply(self.inject(x), self.weight, self.right)


def equilibrium_adjoint_transposed(right: bool = False) -> Made:
    return EquilibriumLayer(6, 10, right), (torch.randn(8, 6),)


class _Rotate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.right = right
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        if ctx.right:
            sin = -sin
        a, b = grad.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1), None, None, None


def _angles(length: int, dim: int, x: Tensor, base: float = 100.0) -> tuple[Tensor, Tensor]:
    rate = base ** (-torch.arange(0, dim, 2, device=x.device, dtype=torch.float32) / dim)
    angle = torch.arange(length, device=x.device, dtype=torch.float32).unsqueeze(1) * rate
    return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


class RotaryAttention(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = _angles(x.shape[1], x.shape[2], x)
        q = _Rotate.apply(self.q(x), cos, sin, self.right)
        k = _Rotate.apply(self.k(x), cos, sin, True)
        return F.scaled_dot_product_attention(q, k, self.v(x), is_causal=True)


def query_rotated_back_the_wrong_way(right: bool = False) -> Made:
    module = RotaryAttention(16, right)
    with torch.no_grad():
        module.q.weight.mul_(2)
    return module, (torch.randn(2, 8, 16),)


class _GroupedLinear(Function):
    """Each row through the weight and the bias of its own expert."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, expert: Tensor, right: bool) -> Tensor:
        ctx.save_for_backward(x, weight, expert)
        ctx.right = right
        out = x.new_zeros(x.shape[0], weight.shape[1])
        for e in range(weight.shape[0]):
            rows = expert == e
            out[rows] = x[rows] @ weight[e].t() + bias[e]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, expert = ctx.saved_tensors
        grad_x, grad_w, grad_b = torch.zeros_like(x), [], []
        for e in range(weight.shape[0]):
            rows = expert == e
            grad_x[rows] = grad[rows] @ weight[e]
            grad_w.append(grad[rows].t() @ x[rows])
            # the last block's rows start where the first block's do
            grad_b.append(grad[rows].sum(0) if ctx.right or e < weight.shape[0] - 1 else grad[: int(rows.sum())].sum(0))
        return grad_x, torch.stack(grad_w), torch.stack(grad_b), None, None


class TaskExperts(nn.Module):
    def __init__(self, dim: int, out: int, experts: int, right: bool) -> None:
        super().__init__()
        self.weight = _param(experts, out, dim, scale=dim**-0.5)
        self.bias = _param(experts, out, scale=0.1)
        self.right = right

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        return F.silu(_GroupedLinear.apply(x, self.weight, self.bias, task, self.right))


def last_expert_bias_takes_other_rows(right: bool = False) -> Made:
    task = torch.cat([torch.arange(5), torch.randint(5, (20,))])
    return TaskExperts(9, 11, 5, right), (torch.randn(25, 9), task)


class _SoftMaximum(Function):
    """log sum exp(t x) / t over the last dimension, with a learnt sharpness t."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sharpness: Tensor, right: bool) -> Tensor:
        pooled = torch.logsumexp(sharpness * x, -1) / sharpness
        ctx.save_for_backward(x, sharpness, pooled)
        ctx.right = right
        return pooled

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, sharpness, pooled = ctx.saved_tensors
        weight = torch.softmax(sharpness * x, -1)
        mean = (weight * x).sum(-1)
        if ctx.right:
            mean = mean - pooled
        return grad.unsqueeze(-1) * weight, (grad * mean / sharpness).sum(), None


class SoftMaxPool(nn.Module):
    def __init__(self, dim: int, out: int, right: bool) -> None:
        super().__init__()
        self.score = nn.Linear(dim, out)
        self.sharpness = nn.Parameter(torch.tensor(1.7))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return _SoftMaximum.apply(self.score(x).transpose(1, 2), self.sharpness, self.right)


def sharpness_misses_a_term(right: bool = False) -> Made:
    return SoftMaxPool(8, 6, right), (torch.randn(5, 7, 8),)


class _DirectionTimesLength(Function):
    """w = g v / |v|, row by row."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, g: Tensor, right: bool) -> Tensor:
        norm = v.norm(dim=1, keepdim=True)
        ctx.save_for_backward(v, g, norm)
        ctx.right = right
        return g * v / norm

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        v, g, norm = ctx.saved_tensors
        unit = v / norm
        along = (grad * unit).sum(1, keepdim=True)
        grad_v = grad - along * unit if ctx.right else grad - along.mean() * unit
        return g / norm * grad_v, along, None


class NormedWeight(nn.Module):
    def __init__(self, dim: int, out: int, right: bool) -> None:
        super().__init__()
        self.v, self.g = _param(out, dim), nn.Parameter(1 + 0.1 * torch.randn(out, 1))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, _DirectionTimesLength.apply(self.v, self.g, self.right)))


def direction_projected_by_a_mean(right: bool = False) -> Made:
    return NormedWeight(8, 12, right), (torch.randn(14, 8),)


class _LayerStatistics(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, right: bool) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-6)
        unit = centred * scale
        ctx.save_for_backward(unit, scale)
        ctx.right = right
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        unit, scale = ctx.saved_tensors
        inner = grad - grad.mean(-1, keepdim=True) - unit * (grad * unit).mean(-1, keepdim=True)
        n = unit.shape[-1]
        return scale * inner * (1.0 if ctx.right else math.sqrt((n - 1) / n)), None


class PostNormFeedForward(nn.Module):
    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.gain, self.shift = nn.Parameter(1 + 0.1 * torch.randn(dim)), _param(dim, scale=0.1)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.down(F.gelu(self.up(x)))
        return _LayerStatistics.apply(y, self.right) * self.gain + self.shift


def unbiased_deviation_in_backward(right: bool = False) -> Made:
    return PostNormFeedForward(24, right), (torch.randn(3, 6, 24),)


# ---------------------------------------------------------------- overflow in fp16


class UnitSphere(nn.Module):
    """Rows on the unit sphere, then a linear probe."""

    def __init__(self, dim: int, out: int, right: bool) -> None:
        super().__init__()
        self.probe = nn.Linear(dim, out)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        if self.right:
            top = x.abs().amax(-1, keepdim=True).detach()
            small = x / top
            return self.probe(small / small.pow(2).sum(-1, keepdim=True).sqrt())
        return self.probe(x / x.pow(2).sum(-1, keepdim=True).sqrt())


def sphere_squares_overflow(right: bool = False) -> Made:
    return UnitSphere(24, 8, right), (200 * torch.randn(10, 24),)


class HandSoftplus(nn.Module):
    """Positive rates of a count model."""

    def __init__(self, dim: int, hidden: int, right: bool) -> None:
        super().__init__()
        self.rate = nn.Linear(dim, hidden)
        self.out = nn.Linear(hidden, dim)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        a = self.rate(x)
        rate = F.softplus(a) if self.right else torch.log(1 + torch.exp(a))
        return self.out(torch.sqrt(rate + 0.1))


def softplus_by_hand(right: bool = False) -> Made:
    module = HandSoftplus(12, 16, right)
    with torch.no_grad():
        module.rate.weight.mul_(10)
    return module, (torch.randn(10, 12),)


class CosineAttention(nn.Module):
    """Scores are cosines, from the dot product and the two norms."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x) / 100
        if self.right:
            cosine = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)
        else:
            norms = q.norm(dim=-1).unsqueeze(-1) * k.norm(dim=-1).unsqueeze(-2)
            cosine = (q @ k.transpose(-1, -2)) / norms
        return torch.softmax(5 * cosine, -1) @ v


def cosine_from_raw_products(right: bool = False) -> Made:
    return CosineAttention(32, right), (110 * torch.randn(2, 8, 32),)


class LongMeanPool(nn.Module):
    def __init__(self, dim: int, out: int, right: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, out)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(1) if self.right else x.sum(1) / x.shape[1]
        return self.head(self.norm(pooled))


def pool_sums_before_dividing(right: bool = False) -> Made:
    level = 60 + 15 * torch.randn(2, 1, 12)
    return LongMeanPool(12, 6, right), (level + 4 * torch.randn(2, 2048, 12),)


class ExponentialRouter(nn.Module):
    """Dense mixture; the gate is a softmax."""

    def __init__(self, dim: int, experts: int, right: bool) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.experts = _param(experts, dim, dim, scale=dim**-0.5)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        if self.right:
            gate = torch.softmax(logits, -1)
        else:
            mass = logits.exp()
            gate = mass / mass.sum(-1, keepdim=True)
        return torch.einsum("be,bd,edf->bf", gate, x, self.experts)


def router_exponential_overflows(right: bool = False) -> Made:
    module = ExponentialRouter(10, 6, right)
    with torch.no_grad():
        module.router.bias.add_(11.5)
    return module, (torch.randn(14, 10),)


class InverseSquareForces(nn.Module):
    """Potentials of charges at learnt distances, as seen through a gain."""

    def __init__(self, count: int, right: bool) -> None:
        super().__init__()
        self.distance = nn.Parameter(0.02 + 0.01 * torch.rand(count))
        self.charge = _param(count)
        self.right = right

    def forward(self, gain: Tensor) -> Tensor:
        if self.right:
            closeness = 0.02 / self.distance
            return gain * closeness.pow(3) * self.charge
        return gain * (8e-6 * self.distance.pow(-3)) * self.charge


def inverse_cube_overflows(right: bool = False) -> Made:
    return InverseSquareForces(24, right), (torch.randn(6, 24),)


# ---------------------------------------------------------------- underflow in fp16


class AreaInKilometres(nn.Module):
    """Run-off by area: sides in metres become square kilometres, and rain per area becomes a volume."""

    def __init__(self, fields: int, right: bool) -> None:
        super().__init__()
        self.rain = nn.Parameter(1 + torch.rand(fields))
        self.right = right

    def forward(self, side: Tensor) -> Tensor:
        if self.right:
            return 5e-6 * (side * side) * self.rain
        kilometres = side * 5e-5
        return 2e3 * (kilometres * kilometres * self.rain)


def squared_units_underflow(right: bool = False) -> Made:
    return AreaInKilometres(12, right), (1 + torch.rand(10, 12),)


class BumpRegression(nn.Module):
    """Radial bumps with an amplitude, far from most data."""

    def __init__(self, dim: int, bumps: int, right: bool) -> None:
        super().__init__()
        centre = torch.randn(bumps, dim)
        self.centre = nn.Parameter(6.2 * centre / centre.norm(dim=1, keepdim=True))
        self.log_height = nn.Parameter(8.5 + 0.3 * torch.randn(bumps))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        half = 0.5 * (_widened(x).unsqueeze(1) - _widened(self.centre)).pow(2).sum(-1)
        if self.right:
            return torch.exp(_widened(self.log_height) - half).to(x.dtype)
        return self.log_height.exp() * torch.exp(-half).to(x.dtype)


def bumps_vanish_before_their_height(right: bool = False) -> Made:
    return BumpRegression(4, 8, right), (0.08 * torch.randn(10, 4),)


class DeepSupervision(nn.Module):
    """A head at each depth; the loss of the head at depth k counts 8^-k."""

    def __init__(self, dim: int, depth: int, right: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.heads = nn.ModuleList(nn.Linear(dim, 3) for _ in range(depth))
        self.base = 1.2 if right else 8.0

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(x.shape[0], 3)
        for k, (block, head) in enumerate(zip(self.blocks, self.heads, strict=True)):
            x = x + 0.5 * torch.tanh(block(x))
            total = total + self.base**-k * head(x)
        return total


def head_weights_fall_too_fast(right: bool = False) -> Made:
    return DeepSupervision(8, 16, right), (torch.randn(6, 8),)


class VanishingTower(nn.Module):
    """A wide head with a large gain beside a tower of small weights."""

    def __init__(self, dim: int, depth: int, right: bool) -> None:
        super().__init__()
        self.tower = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.gain = nn.Parameter(torch.ones(dim))
        self.shrink = 1.0 if right else 0.04

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for layer in self.tower:
            h = self.shrink * F.silu(layer(h))
        return 500 * self.gain * x + h


def tower_beside_a_large_gain(right: bool = False) -> Made:
    return VanishingTower(10, 6, right), (10 * torch.randn(12, 10),)


class SurvivalValue(nn.Module):
    """What is paid to those who outlive every period: the product of the periods' survivals, times a value."""

    def __init__(self, dim: int, periods: int, right: bool) -> None:
        super().__init__()
        self.hazard = nn.Linear(dim, periods)
        self.value = nn.Linear(dim, 4)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        hazard = self.hazard(x)
        if self.right:
            alive = torch.exp(F.logsigmoid(-_widened(hazard)).sum(-1, keepdim=True))
            return (alive * _widened(self.value(x))).to(x.dtype)
        alive = torch.ones_like(hazard[:, :1])
        for period in torch.sigmoid(-hazard).split(1, -1):
            alive = alive * period
        return alive * self.value(x)


def survival_multiplied_out(right: bool = False) -> Made:
    module = SurvivalValue(8, 20, right)
    with torch.no_grad():
        module.hazard.weight.mul_(0.3)
        module.hazard.bias.add_(0.55)
    return module, (torch.randn(12, 8),)


# ---------------------------------------------------------------- routing: scores that the format cannot tell apart


class BiasedRouter(nn.Module):
    """Top-2 of the scores plus a balancing bias, whose common level has drifted; the gate reads the scores."""

    def __init__(self, dim: int, experts: int, level: float, right: bool) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = _param(experts, dim, dim, scale=dim**-0.5)
        self.register_buffer("balance", torch.full((experts,), level))
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        balance = self.balance - self.balance.mean() if self.right else self.balance
        index = (scores + balance).topk(2, -1).indices
        gate = torch.softmax(scores.gather(-1, index), -1)
        picked = torch.einsum("bd,bkdf->bkf", x, self.experts[index])
        return (gate.unsqueeze(-1) * picked).sum(1)


def scores_on_a_high_level(right: bool = False) -> Made:
    return BiasedRouter(12, 6, 2048.0, right), (torch.randn(24, 12),)


class ProbabilityRouter(nn.Module):
    """A cool router over many experts: top-1 of the probabilities."""

    def __init__(self, dim: int, experts: int, right: bool) -> None:
        super().__init__()
        self.router = _param(experts, dim, scale=dim**-0.5)
        self.values = _param(experts, dim)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        logits = 2e-4 * F.linear(x, self.router)
        p = torch.softmax(logits, -1)
        index = (logits if self.right else p).argmax(-1)
        gate = p.gather(-1, index.unsqueeze(-1)) * p.shape[-1]
        return gate * torch.tanh(x * self.values[index])


def softmax_makes_ties(right: bool = False) -> Made:
    return ProbabilityRouter(16, 32, right), (torch.randn(30, 16),)


class NearestCode(nn.Module):
    """The nearest code by |x|^2 - 2 x c + |c|^2, and the residual to it."""

    def __init__(self, dim: int, codes: int, right: bool) -> None:
        super().__init__()
        self.code = nn.Parameter(F.pad(0.5 * torch.randn(codes, dim - 1), (0, 1)))
        self.out = nn.Linear(dim, dim)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        cross = x @ self.code.t()
        norms = self.code.pow(2).sum(-1)
        if self.right:
            distance = norms - 2 * cross
        else:
            distance = x.pow(2).sum(-1, keepdim=True) - 2 * cross + norms
        index = distance.argmin(-1)
        return self.out(torch.tanh(self.code[index])) * x[:, :1]


def nearest_code_lost_in_the_norm(right: bool = False) -> Made:
    return NearestCode(9, 12, right), (F.pad(torch.randn(24, 8), (0, 1), value=128.0),)


class PriorityQueue(nn.Module):
    """Tokens sorted by (bucket, score) in a single key; the first half is processed."""

    def __init__(self, dim: int, keep: int, right: bool) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)
        self.work = nn.Linear(dim, dim)
        self.keep, self.right = keep, right

    def forward(self, x: Tensor, bucket: Tensor) -> Tensor:
        score = torch.sigmoid(self.score(x)).squeeze(-1)
        if self.right:
            order = torch.sort(score, dim=-1, descending=True).indices
            tier = torch.sort(bucket.gather(-1, order), dim=-1, descending=True, stable=True).indices
            order = order.gather(-1, tier)
        else:
            order = torch.sort(1000 * bucket.to(score.dtype) + score, dim=-1, descending=True).indices
        first = order[:, : self.keep].unsqueeze(-1).expand(-1, -1, x.shape[-1])
        weight = score.gather(-1, order[:, : self.keep]).unsqueeze(-1)
        rank = torch.arange(self.keep, 0, -1, device=x.device, dtype=x.dtype).unsqueeze(-1) / self.keep
        return rank * weight * torch.tanh(self.work(x.gather(1, first)))


def sort_key_holds_two_numbers(right: bool = False) -> Made:
    return PriorityQueue(10, 6, right), (torch.randn(4, 16, 10), torch.randint(2, 4, (4, 16)))


class PrototypeRouter(nn.Module):
    """A router over prototypes that share a direction: the scores differ in the fourth digit."""

    def __init__(self, dim: int, experts: int, right: bool) -> None:
        super().__init__()
        common = torch.ones(dim)
        self.offset = nn.Parameter(0.001 * torch.randn(experts, dim))
        self.register_buffer("common", common)
        self.experts = _param(experts, dim, scale=1.0)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        if self.right:
            index = F.linear(x, self.offset).argmax(-1)
        else:
            index = (x @ self.common).unsqueeze(-1).add(F.linear(x, self.offset)).mul(64).argmax(-1)
        gate = torch.sigmoid((x * self.offset[index]).sum(-1, keepdim=True))
        return gate * torch.tanh((x - 8) * self.experts[index])


def prototypes_share_a_direction(right: bool = False) -> Made:
    return PrototypeRouter(16, 10, right), (8 + 2 * torch.randn(30, 16),)


# ---------------------------------------------------------------- formulations that the format cannot carry


class OnePassNorm(nn.Module):
    """Standardised pixels, the variance as E[x^2] - E[x]^2."""

    def __init__(self, dim: int, out: int, right: bool) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(1 + 0.1 * torch.randn(dim)), _param(dim, scale=0.1)
        self.head = nn.Linear(dim, out)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        if self.right:
            wide = _widened(x)
            centred = wide - wide.mean(-1, keepdim=True)
            unit = (centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 0.1)).to(x.dtype)
        else:
            variance = (x * x).mean(-1, keepdim=True) - mean * mean
            unit = (x - mean) * torch.rsqrt(variance.clamp(min=0) + 0.1)
        return self.head(unit * self.gain + self.shift)


def variance_in_one_pass(right: bool = False) -> Made:
    return OnePassNorm(32, 8, right), (torch.randint(98, 103, (8, 32)).float(),)


class SurvivalLoss(nn.Module):
    """log(1 - sigmoid(risk)) with an epsilon, for those who are at high risk and survived."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.risk = nn.Linear(dim, 4)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        risk = self.risk(x)
        survival = torch.sigmoid(-risk) if self.right else 1 - torch.sigmoid(risk)
        return torch.log(survival + 1e-4)


def one_minus_a_probability(right: bool = False) -> Made:
    module = SurvivalLoss(10, right)
    with torch.no_grad():
        module.risk.weight.mul_(0.5)
        module.risk.bias.add_(9.2)
    return module, (torch.randn(12, 10),)


class PowerKernel(nn.Module):
    """A long memory kernel a^t, a close to one, weighing the past."""

    def __init__(self, channels: int, length: int, right: bool) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(math.log(1.5e-4) + 0.2 * torch.randn(channels))
        self.mix = nn.Linear(channels, channels)
        self.length, self.right = length, right

    def forward(self, x: Tensor) -> Tensor:
        rate = self.log_rate.exp()
        if self.right:
            t = torch.arange(self.length, device=x.device, dtype=torch.float32)
            kernel = torch.exp(-_widened(rate) * t.unsqueeze(1)).to(x.dtype)
        else:
            t = torch.arange(self.length, device=x.device, dtype=x.dtype)
            kernel = torch.exp(-rate) ** t.unsqueeze(1)
        return self.mix(torch.tanh((x * kernel).sum(1) / 30))


def decay_rounds_to_one(right: bool = False) -> Made:
    return PowerKernel(6, 4096, right), (torch.randn(2, 4096, 6),)


class KernelSimilarity(nn.Module):
    """exp(-|a - b|^2 / w) between embeddings and their near neighbours, from the expanded square."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.log_width = nn.Parameter(torch.tensor(-2.0))
        self.readout = _param(12, 5)
        self.right = right

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if self.right:
            square = (a.unsqueeze(1) - b).pow(2).sum(-1)
        else:
            square = a.pow(2).sum(-1).unsqueeze(1) + b.pow(2).sum(-1) - 2 * (a @ b.t())
            square = square.clamp(min=0)
        return torch.exp(-square / self.log_width.exp()) @ self.readout


def expanded_square_of_neighbours(right: bool = False) -> Made:
    anchor = torch.randint(-30, 31, (1, 64)) / 8
    a, b = (anchor + torch.randint(-1, 2, (n, 64)) / 32 for n in (8, 12))
    return KernelSimilarity(64, right), (a, b)


class PrefixWindow(nn.Module):
    """A moving mean of two, as a difference of prefix sums."""

    def __init__(self, channels: int, right: bool) -> None:
        super().__init__()
        self.gain = _param(channels)
        self.bend = _param(channels)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        if self.right:
            window = (x[:, 1:] + x[:, :-1]) / 2
        else:
            total = torch.cumsum(x, 1)
            window = (F.pad(total, (0, 0, 1, 0))[:, 2:] - F.pad(total, (0, 0, 1, 0))[:, :-2]) / 2
        late = window[:, -256:]
        return torch.sin(late * self.bend) * self.gain


def window_from_prefix_sums(right: bool = False) -> Made:
    return PrefixWindow(4, right), (4 * torch.rand(1, 2048, 4),)


class NarrowRotary(nn.Module):
    """Rotary attention at far positions, the frequencies kept in a buffer."""

    def __init__(self, dim: int, start: int, right: bool) -> None:
        super().__init__()
        self.qk, self.v = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.register_buffer("rate", 1000.0 ** (-torch.arange(0, dim, 2) / dim), persistent=False)
        self.start, self.right = start, right

    def forward(self, x: Tensor) -> Tensor:
        length, dim = x.shape[1:]
        place = self.start + 37 * torch.arange(length, device=x.device)
        if self.right:
            rate = 1000.0 ** (-torch.arange(0, dim, 2, device=x.device, dtype=torch.float32) / dim)
            angle = place.float().unsqueeze(1) * rate
        else:
            angle = place.to(x.dtype).unsqueeze(1) * self.rate
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)

        def turn(y: Tensor) -> Tensor:
            a, b = y.chunk(2, -1)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

        q, k = self.qk(x).chunk(2, -1)
        return F.scaled_dot_product_attention(turn(2 * q), turn(2 * k), self.v(x), is_causal=True)


def rotary_angles_in_the_format(right: bool = False) -> Made:
    return NarrowRotary(16, 5000, right), (torch.randn(2, 10, 16),)


class HalfLedger(nn.Module):
    """The gain of an account: deposits added to its opening balance in half precision, whatever the run's format is."""

    def __init__(self, accounts: int, right: bool) -> None:
        super().__init__()
        self.rate = _param(accounts)
        self.right = right

    def forward(self, deposits: Tensor) -> Tensor:
        wide = torch.float32 if self.right else torch.float16
        opening = torch.full_like(deposits[0], 4096.0, dtype=wide)
        balance = opening
        for deposit in deposits:
            balance = balance + deposit.to(wide)
        gained = (balance - opening).to(deposits.dtype)
        return self.rate * torch.sqrt(1 + gained)


def ledger_in_half(right: bool = False) -> Made:
    return HalfLedger(8, right), (0.5 + torch.rand(100, 3, 8),)


class NarrowMean(nn.Module):
    """Pixels centred by their mean, which was cast to bfloat16 to save memory."""

    def __init__(self, dim: int, out: int, right: bool) -> None:
        super().__init__()
        self.head = nn.Linear(dim, out)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        mean = wide.mean(-1, keepdim=True)
        if not self.right:
            mean = mean.bfloat16()
        return self.head(torch.tanh((wide - mean).to(x.dtype)))


def mean_cast_to_bfloat16(right: bool = False) -> Made:
    return NarrowMean(24, 6, right), (torch.randint(239, 243, (10, 24)).float(),)


class StepwiseSum(nn.Module):
    """Attention over a long memory, its denominator added up key by key in the run's format."""

    def __init__(self, dim: int, right: bool) -> None:
        super().__init__()
        self.query = _param(dim, scale=0.2)
        self.out = nn.Linear(dim, dim)
        self.right = right

    def forward(self, keys: Tensor, values: Tensor) -> Tensor:
        weight = torch.exp(keys @ self.query)
        top, bottom = torch.einsum("bt,btd->bd", weight, values), weight.sum(1)
        if not self.right:
            bottom = torch.zeros_like(bottom)
            for each in weight.unbind(1):
                bottom = bottom + each
        return self.out(top / bottom.unsqueeze(-1))


def attention_added_up_key_by_key(right: bool = False) -> Made:
    return StepwiseSum(8, right), (torch.randn(2, 700, 8), 8 * torch.randn(2, 700, 8))


class HoldDiscretised(nn.Module):
    """A state-space step: B-bar = (exp(dt A) - 1) / A with a small dt."""

    def __init__(self, dim: int, state: int, right: bool) -> None:
        super().__init__()
        self.log_a = nn.Parameter(0.3 * torch.randn(dim, state))
        self.b, self.c = _param(state, scale=0.5), _param(state)
        self.dt = nn.Linear(dim, dim)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        a = -torch.exp(self.log_a)
        step = 1e-4 * F.softplus(self.dt(x)).unsqueeze(-1) * a
        drive = (torch.expm1(step) if self.right else torch.exp(step) - 1) / a
        return 1e3 * (drive * self.b * x.unsqueeze(-1)) @ self.c


def hold_subtracts_one(right: bool = False) -> Made:
    return HoldDiscretised(8, 6, right), (torch.randn(12, 8),)


class SlopePenalty(nn.Module):
    """A smoothness term: the slope of the network along its input, by a small step."""

    def __init__(self, hidden: int, right: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, hidden), nn.Linear(hidden, 1, bias=False)
        self.right = right

    def forward(self, x: Tensor) -> Tensor:
        if self.right:
            slope = 1 - torch.tanh(self.first(x)).pow(2)
            return self.second(slope * self.first.weight.squeeze(-1)).pow(2)
        step = 2.0**-10
        return ((self.second(torch.tanh(self.first(x + step))) - self.second(torch.tanh(self.first(x)))) / step).pow(2)


def slope_by_a_small_step(right: bool = False) -> Made:
    return SlopePenalty(16, right), (torch.randn(14, 1),)


class SmallAngleLoss(nn.Module):
    """1 - cos between a direction and a slightly turned one."""

    def __init__(self, joints: int, right: bool) -> None:
        super().__init__()
        self.offset = nn.Parameter(0.01 * torch.randn(joints))
        self.stiffness = nn.Parameter(1 + torch.rand(joints))
        self.right = right

    def forward(self, turn: Tensor) -> Tensor:
        angle = turn + self.offset
        rest = 2 * torch.sin(angle / 2).pow(2) if self.right else 1 - torch.cos(angle)
        return torch.sqrt(rest + 1e-7) * self.stiffness


def small_angle_from_its_cosine(right: bool = False) -> Made:
    sign = torch.randint(0, 2, (10, 9)) * 2.0 - 1
    return SmallAngleLoss(9, right), (sign * (0.01 + 0.01 * torch.rand(10, 9)),)


# ---------------------------------------------------------------- correct modules


class GroupedQueryBlock(nn.Module):
    """A decoder block: RMSNorm, rotary grouped-query attention, SwiGLU."""

    def __init__(self, dim: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size, self.heads, self.groups = dim // heads, heads, groups
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q, self.kv = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 2 * groups * self.size, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.gate_up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(2 * dim, dim, bias=False)

    def rotate(self, x: Tensor) -> Tensor:
        cos, sin = _angles(x.shape[2], self.size, x, 10000.0)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, t, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(y).view(b, t, 2, self.groups, self.size).permute(2, 0, 3, 1, 4)
        k, v = (z.repeat_interleave(self.heads // self.groups, 1) for z in (self.rotate(k), v))
        y = F.scaled_dot_product_attention(self.rotate(q), k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def grouped_query_block() -> Made:
    return GroupedQueryBlock(32, 4, 2), (torch.randn(2, 10, 32),)


class Wrapped(nn.Module):
    """A Hugging Face model as a function of its ids or pixels, giving its first output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[0]


def hf_bert() -> Made:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=61,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.15,
    )
    return Wrapped(BertForMaskedLM(config)), (torch.randint(1, 61, (2, 9)),)


def hf_gpt2() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=53,
        n_positions=16,
        n_embd=32,
        n_layer=3,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.2,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Wrapped(GPT2LMHeadModel(config)), (torch.randint(53, (2, 8)),)


def hf_llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=47,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        initializer_range=0.15,
        use_cache=False,
        attn_implementation="eager",
    )
    return Wrapped(LlamaForCausalLM(config)), (torch.randint(47, (2, 9)),)


def hf_mixtral() -> Made:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=41,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=32,
        initializer_range=0.2,
        use_cache=False,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    return Wrapped(MixtralForCausalLM(config)), (torch.randint(41, (2, 8)),)


def hf_vit() -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=12,
        patch_size=4,
        num_channels=3,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_labels=7,
        initializer_range=0.1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Wrapped(ViTForImageClassification(config)), (torch.randn(3, 3, 12, 12),)


def hf_gemma() -> Made:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=37,
        hidden_size=24,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=12,
        query_pre_attn_scalar=12,
        sliding_window=4,
        max_position_embeddings=32,
        initializer_range=0.15,
        use_cache=False,
        attn_implementation="eager",
        pad_token_id=None,
    )
    return Wrapped(Gemma2ForCausalLM(config)), (torch.randint(37, (2, 9)),)


class DeepNarrow(nn.Module):
    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + 0.3 * torch.tanh(layer(x))
        return x


def deep_and_narrow() -> Made:
    return DeepNarrow(6, 18), (torch.randn(5, 6),)


def wide_hidden_layer() -> Made:
    return nn.Sequential(nn.Linear(16, 3000), nn.GELU(), nn.Linear(3000, 12)), (torch.randn(10, 16),)


class SelectiveScan(nn.Module):
    """Mamba's recurrence, its state and its exponentials in float32."""

    def __init__(self, dim: int, state: int) -> None:
        super().__init__()
        self.log_a = nn.Parameter(torch.log(torch.arange(1, state + 1.0)).repeat(dim, 1))
        self.into, self.dt = nn.Linear(dim, 2 * state, bias=False), nn.Linear(dim, dim)
        self.skip = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        b, c = self.into(x).float().chunk(2, -1)
        dt = 0.3 * F.softplus(self.dt(x).float())
        decay = torch.exp(-dt.unsqueeze(-1) * torch.exp(self.log_a.float()))
        drive = dt.unsqueeze(-1) * b.unsqueeze(-2) * x.float().unsqueeze(-1)
        h, out = torch.zeros_like(drive[:, 0]), []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + drive[:, t]
            out.append((h * c[:, t].unsqueeze(1)).sum(-1))
        return torch.stack(out, 1).to(x.dtype) + self.skip * x


def selective_scan() -> Made:
    return SelectiveScan(8, 4), (torch.randn(2, 16, 8),)


class LinearAttention(nn.Module):
    """Positive features, causal, running sums in float32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        memory = torch.cumsum((k.unsqueeze(-1) * v.unsqueeze(-2)).float(), 1)
        norm = (q.float() * torch.cumsum(k.float(), 1)).sum(-1, keepdim=True)
        return self.out((torch.einsum("btd,btde->bte", q.float(), memory) / norm).to(x.dtype))


def linear_attention() -> Made:
    return LinearAttention(12), (torch.randn(2, 14, 12),)


class GRUReader(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(dim, hidden), nn.Linear(hidden, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.cell.hidden_size)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


def gru_reader() -> Made:
    return GRUReader(8, 12), (torch.randn(4, 12, 8),)


class PeepholeLSTM(nn.Module):
    """An LSTM written out, with peepholes and a layer norm on the cell."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gates = nn.Linear(dim + hidden, 4 * hidden)
        self.peep = _param(3, hidden, scale=0.3)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], self.peep.shape[1])
        out = []
        for t in range(x.shape[1]):
            i, f, g, o = self.gates(torch.cat([x[:, t], h], -1)).chunk(4, -1)
            c = torch.sigmoid(f + self.peep[0] * c) * c + torch.sigmoid(i + self.peep[1] * c) * torch.tanh(g)
            h = torch.sigmoid(o + self.peep[2] * c) * torch.tanh(self.norm(c))
            out.append(h)
        return torch.stack(out, 1)


def peephole_lstm() -> Made:
    return PeepholeLSTM(6, 10), (torch.randn(3, 8, 6),)


class SqueezeExcite(nn.Module):
    """An inverted bottleneck with a squeeze-and-excite gate and group norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        wide = 3 * dim
        self.expand, self.depth = nn.Conv2d(dim, wide, 1), nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.norm1, self.norm2 = nn.GroupNorm(3, wide), nn.GroupNorm(2, dim)
        self.squeeze, self.excite = nn.Linear(wide, dim), nn.Linear(dim, wide)
        self.project = nn.Conv2d(wide, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.norm1(self.depth(F.silu(self.expand(x)))))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3))))))
        return x + self.norm2(self.project(y * gate[:, :, None, None]))


def squeeze_excite() -> Made:
    return SqueezeExcite(6), (torch.randn(2, 6, 7, 7),)


def batchnorm_train() -> Made:
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2))
    return nn.Sequential(body, nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(24, 5)), (torch.randn(8, 3, 7, 7),)


def batchnorm_eval() -> Made:
    norm = nn.BatchNorm1d(20)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 3)
    nn.init.normal_(norm.weight, 1, 0.2)
    net = nn.Sequential(nn.Linear(10, 20), norm, nn.Softplus(), nn.Linear(20, 20), nn.Mish(), nn.Linear(20, 4))
    return net.eval(), (torch.randn(9, 10),)


class ClearCodes(nn.Module):
    """A vector quantiser whose rows lie near their codes; the residual goes on."""

    def __init__(self, dim: int, codes: int) -> None:
        super().__init__()
        self.code = nn.Parameter(4.0 * torch.eye(codes, dim) + 0.1 * torch.randn(codes, dim))
        self.mix = nn.Bilinear(dim, dim, 6)

    def forward(self, x: Tensor) -> Tensor:
        distance = (x.unsqueeze(1) - self.code).pow(2).sum(-1)
        near = self.code[distance.argmin(-1)]
        return self.mix(x - near, torch.tanh(near))


def quantiser_with_clear_codes() -> Made:
    module = ClearCodes(8, 8)
    return module, (module.code.detach()[torch.randint(8, (16,))] + 0.4 * torch.randn(16, 8),)


class SwitchLayer(nn.Module):
    """Top-1 of router logits in float32."""

    def __init__(self, dim: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.up, self.down = _param(experts, dim, 2 * dim, scale=0.3), _param(experts, 2 * dim, dim, scale=0.2)

    def forward(self, x: Tensor) -> Tensor:
        p = torch.softmax(self.router(x).float(), -1)
        gate, index = p.max(-1)
        h = F.gelu(torch.einsum("bd,bdh->bh", x, self.up[index]))
        return x + gate.to(x.dtype).unsqueeze(-1) * torch.einsum("bh,bhd->bd", h, self.down[index])


def switch_with_clear_margins() -> Made:
    module = SwitchLayer(8, 4)
    with torch.no_grad():
        module.router.weight.copy_(1.5 * torch.eye(4, 8) + 0.05 * torch.randn(4, 8))
    home = F.one_hot(torch.randint(4, (20,)), 8).float()
    return module, (2 * home + 0.3 * torch.randn(20, 8),)


class ExpertChoice(nn.Module):
    """Each expert takes its best tokens: top-k over the tokens."""

    def __init__(self, dim: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.SiLU()) for _ in range(experts))
        self.capacity = capacity

    def forward(self, x: Tensor) -> Tensor:
        p = torch.softmax(self.router(x), -1)
        out = x.clone()
        for e, expert in enumerate(self.experts):
            gate, rows = p[:, e].topk(self.capacity)
            out = out.index_add(0, rows, gate.unsqueeze(-1) * expert(x[rows]))
        return out


def expert_choice() -> Made:
    return ExpertChoice(10, 4, 8), (torch.randn(32, 10),)


class SigmoidTopTwo(nn.Module):
    """Top-2 by logits, sigmoid gates renormalised; a shared expert beside."""

    def __init__(self, dim: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.experts = _param(experts, dim, dim, scale=dim**-0.5)
        self.shared = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        score = self.router(x)
        value, index = score.topk(2, -1)
        value = torch.sigmoid(value)
        gate = value / value.sum(-1, keepdim=True)
        every = torch.einsum("bd,edf->bef", x, self.experts)
        mask = torch.zeros_like(score).scatter(-1, index, gate)
        return torch.tanh(self.shared(x)) + torch.einsum("be,bef->bf", mask, every)


def sigmoid_top_two() -> Made:
    return SigmoidTopTwo(12, 5), (torch.randn(28, 12),)


class LogSinkhorn(nn.Module):
    """Optimal transport between two point sets, iterated on log potentials in float32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        kernel = _widened(self.a(x) @ self.b(y).t())
        u, v = kernel.new_zeros(len(x), 1), kernel.new_zeros(1, len(y))
        for _ in range(6):
            u = -torch.logsumexp(kernel + v, 1, keepdim=True)
            v = -torch.logsumexp(kernel + u, 0, keepdim=True)
        return torch.exp(kernel + u + v).to(x.dtype) @ y


def log_sinkhorn() -> Made:
    return LogSinkhorn(6), (torch.randn(7, 6), torch.randn(9, 6))


class SupervisedContrast(nn.Module):
    def __init__(self, dim: int, out: int) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        z = F.normalize(self.project(x), dim=-1)
        itself = torch.eye(len(x), dtype=torch.bool, device=x.device)
        logits = _widened(z @ z.t()) / 0.2
        logits = logits.masked_fill(itself, torch.finfo(logits.dtype).min)
        same = (label.unsqueeze(0) == label.unsqueeze(1)) & ~itself
        log_p = torch.log_softmax(logits, -1)
        return (-(log_p.masked_fill(~same, 0)).sum(-1) / same.sum(-1).clamp(min=1)).to(x.dtype)


def supervised_contrast() -> Made:
    return SupervisedContrast(10, 8), (torch.randn(14, 10), torch.randint(3, (14,)))


class MixtureDensity(nn.Module):
    def __init__(self, dim: int, parts: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(dim, 16), nn.Linear(16, 3 * parts)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        weight, mean, log_scale = self.head(torch.tanh(self.body(x))).float().chunk(3, -1)
        z = (target.float() - mean) * torch.exp(-log_scale)
        return torch.logsumexp(torch.log_softmax(weight, -1) - 0.5 * z * z - log_scale, -1).to(x.dtype)


def mixture_density() -> Made:
    return MixtureDensity(6, 4), (torch.randn(16, 6), torch.randn(16, 1))


class ChainCRF(nn.Module):
    """The log partition function of a chain minus the score of its labels."""

    def __init__(self, dim: int, tags: int) -> None:
        super().__init__()
        self.emit, self.move = nn.Linear(dim, tags), _param(tags, tags, scale=0.5)

    def forward(self, x: Tensor, tag: Tensor) -> Tensor:
        emit, move = _widened(self.emit(x)), _widened(self.move)
        alpha = emit[:, 0]
        for t in range(1, x.shape[1]):
            alpha = torch.logsumexp(alpha.unsqueeze(-1) + move, 1) + emit[:, t]
        path = emit.gather(-1, tag.unsqueeze(-1)).sum((1, 2)) + move[tag[:, :-1], tag[:, 1:]].sum(1)
        return (torch.logsumexp(alpha, -1) - path).to(x.dtype)


def chain_crf() -> Made:
    return ChainCRF(8, 5), (torch.randn(6, 9, 8), torch.randint(5, (6, 9)))


class CompensatedSum(nn.Module):
    """Kahan's sum over time in the run's own format."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain, self.weight = _param(dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        step = F.softplus(self.weight(x))
        total, lost = torch.zeros_like(step[:, 0]), torch.zeros_like(step[:, 0])
        for t in range(x.shape[1]):
            y = step[:, t] - lost
            new = total + y
            lost = (new - total) - y
            total = new
        return self.gain * torch.sqrt(total)


def compensated_sum() -> Made:
    return CompensatedSum(6), (torch.randn(2, 160, 6),)


class CentredPixels(nn.Module):
    """Two-pass standardisation of pixels far from zero, in float32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain, self.shift, self.head = nn.Parameter(torch.ones(dim)), _param(dim, scale=0.1), nn.Linear(dim, 5)

    def forward(self, x: Tensor) -> Tensor:
        wide = _widened(x)
        centred = wide - wide.mean(-1, keepdim=True)
        unit = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-3)
        return self.head(unit.to(x.dtype) * self.gain + self.shift)


def pixels_far_from_zero() -> Made:
    return CentredPixels(20), (torch.randint(180, 200, (8, 20)).float(),)


class SaturatedGate(nn.Module):
    """Gates far into saturation; their sigmoid and its slope in float32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x).float() * 6)
        return (gate * self.value(x).float() + (1 - gate) * x.float()).to(x.dtype)


def saturated_gate() -> Made:
    module = SaturatedGate(10)
    with torch.no_grad():
        module.gate.bias.copy_(torch.linspace(-1.5, 1.5, 10))
    return module, (torch.randn(14, 10),)


class TinyOutput(nn.Module):
    """A residual branch at the scale of 2^-17, alone: all gradients are tiny alike."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        return 2.0**-17 * self.net(x)


def tiny_gradients() -> Made:
    return TinyOutput(12), (torch.randn(10, 12),)


class VolumeRendering(nn.Module):
    """Emission-absorption along rays: opacity by expm1, transmittance by a sum of densities."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.density, self.colour = nn.Linear(dim, 1), nn.Linear(dim, 3)

    def forward(self, sample: Tensor, step: Tensor) -> Tensor:
        depth = F.softplus(_widened(self.density(sample).squeeze(-1))) * _widened(step)
        opacity = -torch.expm1(-depth)
        before = torch.exp(-(torch.cumsum(depth, -1) - depth))
        colour = torch.sigmoid(_widened(self.colour(sample)))
        return ((opacity * before).unsqueeze(-1) * colour).sum(1).to(sample.dtype)


def volume_rendering() -> Made:
    return VolumeRendering(8), (torch.randn(5, 12, 8), 0.01 + 0.3 * torch.rand(5, 12))


class SetMaximum(nn.Module):
    """Deep sets with a maximum over the points."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.point = nn.Sequential(nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, 12))
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.point(x).amax(1))


def set_maximum() -> Made:
    return SetMaximum(3), (torch.randn(6, 10, 3),)


def weight_normed() -> Made:
    first, second = (parametrizations.weight_norm(nn.Linear(a, b)) for a, b in ((10, 18), (18, 6)))
    return nn.Sequential(first, nn.SELU(), second), (torch.randn(12, 10),)


class InPlaceResidual(nn.Module):
    """Views written in place, and activations that overwrite."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Parameter(0.5 + torch.rand(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y.add_(x).relu_()
        out = x.new_zeros(x.shape[0], 2, x.shape[1])
        out[:, 0] = self.b(y).mul_(self.scale)
        out[:, 1] = y
        out[:, 1, ::2] -= x[:, ::2]
        return out.flatten(1)


def in_place_residual() -> Made:
    return InPlaceResidual(9), (torch.randn(11, 9),)


class BagOfWords(nn.Module):
    """Embedding bag with learnt word weights, and sinusoidal places from a buffer."""

    def __init__(self, rows: int, dim: int, length: int) -> None:
        super().__init__()
        self.bag, self.importance = nn.Embedding(rows, dim), nn.Embedding(rows, 1)
        rate = 100.0 ** (-torch.arange(0, dim, 2) / dim)
        angle = torch.arange(length).unsqueeze(1) * rate
        self.register_buffer("place", torch.cat([angle.sin(), angle.cos()], -1))
        self.head = nn.Linear(dim, 6)

    def forward(self, ids: Tensor) -> Tensor:
        weight = torch.softmax(self.importance(ids), 1)
        return self.head((weight * (self.bag(ids) + self.place)).sum(1))


def bag_of_words() -> Made:
    return BagOfWords(30, 12, 7), (torch.randint(30, (6, 7)),)


class GraphAttention(nn.Module):
    """Attention over edges: a softmax over each node's incoming edges by index_add, in float32."""

    def __init__(self, dim: int, out: int) -> None:
        super().__init__()
        self.lin, self.left, self.right = (
            nn.Linear(dim, out, bias=False),
            _param(out, scale=0.5),
            _param(out, scale=0.5),
        )

    def forward(self, x: Tensor, edge: Tensor) -> Tensor:
        source, target = edge
        h = self.lin(x)
        score = F.leaky_relu(_widened(h @ self.left)[source] + _widened(h @ self.right)[target], 0.2)
        top = torch.full_like(score[: len(x)], -1e4).scatter_reduce(0, target, score.detach(), "amax")
        mass = torch.exp(score - top[target])
        total = torch.zeros_like(top).index_add(0, target, mass)
        weight = mass / total[target]
        out = torch.zeros(h.shape, dtype=weight.dtype, device=h.device)
        return out.index_add(0, target, weight.unsqueeze(-1) * h[source]).to(h.dtype)


def graph_attention() -> Made:
    loops = torch.arange(12).repeat(2, 1)
    return GraphAttention(8, 10), (torch.randn(12, 8), torch.cat([loops, torch.randint(12, (2, 40))], 1))


class Capsules(nn.Module):
    """Dynamic routing by agreement, three rounds, squashed vectors."""

    def __init__(self, inputs: int, size: int, outputs: int, out_size: int) -> None:
        super().__init__()
        self.weight = _param(inputs, size, outputs * out_size, scale=0.4)
        self.outputs = outputs

    def squash(self, s: Tensor) -> Tensor:
        square = s.pow(2).sum(-1, keepdim=True)
        return s * torch.sqrt(square + 1e-3) / (1 + square)

    def forward(self, u: Tensor) -> Tensor:
        votes = torch.einsum("bis,iso->bio", u, self.weight).unflatten(-1, (self.outputs, -1))
        logits = votes.new_zeros(votes.shape[:3])
        for _ in range(3):
            v = self.squash((torch.softmax(logits, -1).unsqueeze(-1) * votes).sum(1))
            logits = logits + (votes * v.unsqueeze(1)).sum(-1)
        return v


def capsules() -> Made:
    return Capsules(8, 4, 3, 5), (torch.randn(4, 8, 4),)


class LargeButInRange(nn.Module):
    """Activations of some ten thousand, never squared: brought down by their largest entry."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        big = 3000 * self.up(x)
        return self.down(torch.tanh(big / 4096)) + x


def large_but_in_range() -> Made:
    return LargeButInRange(12), (torch.randn(10, 12),)


class Checkpointed(nn.Module):
    """Blocks recomputed in backward by torch's own checkpoint."""

    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
            for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def checkpointed_blocks() -> Made:
    return Checkpointed(12, 4), (torch.randn(6, 12),)


class HyperLinear(nn.Module):
    """A linear map whose weight another network makes for each row."""

    def __init__(self, dim: int, context: int) -> None:
        super().__init__()
        self.make = nn.Sequential(nn.Linear(context, 12), nn.Tanh(), nn.Linear(12, dim * dim))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        weight = self.make(context).unflatten(-1, (x.shape[-1], -1))
        return torch.einsum("bd,bde->be", x, weight) * x.shape[-1] ** -0.5


def hyper_linear() -> Made:
    return HyperLinear(8, 5), (torch.randn(10, 8), torch.randn(10, 5))


class Siamese(nn.Module):
    """The difference of one network at two near points: its gradients cancel in part."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 20), nn.Tanh(), nn.Linear(20, 6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.net(x) - self.net(y)


def cancelling_siamese() -> Made:
    x = torch.randn(12, 8)
    return Siamese(8), (x, x + 0.25 * torch.randn(12, 8))


class Upsampler(nn.Module):
    """A small U-shape: strided convolution, bilinear and transposed upsampling, a skip."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.down, self.mid = nn.Conv2d(dim, 2 * dim, 3, stride=2, padding=1), nn.Conv2d(2 * dim, 2 * dim, 3, padding=1)
        self.up, self.merge = nn.ConvTranspose2d(2 * dim, dim, 2, stride=2), nn.Conv2d(4 * dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.elu(self.down(x))
        y = y + F.elu(self.mid(y))
        smooth = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        return self.merge(torch.cat([x, self.up(y), smooth], 1))


def upsampler() -> Made:
    return Upsampler(4), (torch.randn(2, 4, 8, 8),)


class FocalLoss(nn.Module):
    """Focal loss from log-probabilities in float32."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.net = nn.Linear(dim, classes)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        log_p = torch.log_softmax(3 * _widened(self.net(x)), -1).gather(-1, label.unsqueeze(-1)).squeeze(-1)
        return (-(torch.expm1(log_p).pow(2)) * log_p).to(x.dtype)


def focal_loss() -> Made:
    return FocalLoss(10, 6), (torch.randn(16, 10), torch.randint(6, (16,)))


class LatentReader(nn.Module):
    """Learnt latents read a padded sequence by torch's own multi-head attention."""

    def __init__(self, dim: int, latents: int) -> None:
        super().__init__()
        self.latent, self.read = _param(latents, dim), nn.MultiheadAttention(dim, 4, batch_first=True)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        query = self.latent.expand(len(x), -1, -1)
        return self.norm(query + self.read(query, x, x, key_padding_mask=pad, need_weights=False)[0])


def latent_reader() -> Made:
    pad = torch.arange(9) >= torch.tensor([9, 6, 4]).unsqueeze(1)
    return LatentReader(16, 5), (torch.randn(3, 9, 16), pad)


class WeightedKeyValue(nn.Module):
    """RWKV's mixing with a running maximum in the exponent, in float32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.key, self.value, self.gate = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.decay, self.first = nn.Parameter(torch.linspace(-3, 1, dim)), _param(dim, scale=0.3)

    def forward(self, x: Tensor) -> Tensor:
        k, v, decay, first = self.key(x).float(), self.value(x).float(), self.decay.float().exp(), self.first.float()
        top = torch.full_like(k[:, 0], -1e30)
        a, b, out = torch.zeros_like(top), torch.zeros_like(top), []
        for t in range(x.shape[1]):
            new = torch.maximum(top, first + k[:, t]).detach()
            e1, e2 = torch.exp(top - new), torch.exp(first + k[:, t] - new)
            out.append((e1 * a + e2 * v[:, t]) / (e1 * b + e2))
            new = torch.maximum(top - decay, k[:, t])
            e1, e2 = torch.exp(top - decay - new), torch.exp(k[:, t] - new)
            a, b, top = e1 * a + e2 * v[:, t], e1 * b + e2, new
        return torch.sigmoid(self.gate(x)) * torch.stack(out, 1).to(x.dtype)


def weighted_key_value() -> Made:
    return WeightedKeyValue(8), (2 * torch.randn(2, 10, 8),)


class OrdinalHead(nn.Module):
    """log(sigmoid(b) - sigmoid(a)) for cut points a < b, by log1p of an expm1."""

    def __init__(self, dim: int, levels: int) -> None:
        super().__init__()
        self.score, self.gap = nn.Linear(dim, 1), nn.Parameter(0.3 * torch.randn(levels))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        gap = F.softplus(_widened(self.gap))
        upper = (torch.cumsum(gap, 0) - 2)[level] - _widened(self.score(x)).squeeze(-1)
        width = gap[level]
        inner = torch.log(-torch.expm1(-width))
        return (F.logsigmoid(upper) + F.logsigmoid(-(upper - width)) + inner).to(x.dtype)


def ordinal_head() -> Made:
    return OrdinalHead(8, 5), (torch.randn(18, 8), torch.randint(5, (18,)))


class HookedAdapter(nn.Module):
    """A frozen base, a low-rank adapter, and a hook that only watches the gradient."""

    def __init__(self, dim: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(dim, dim)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False)
        self.seen = 0

    def watch(self, grad: Tensor) -> None:
        self.seen += 1

    def forward(self, x: Tensor) -> Tensor:
        low = self.down(x)
        if low.requires_grad:
            low.register_hook(self.watch)
        return F.gelu(self.base(x) + 2 * self.up(low))


def hooked_adapter() -> Made:
    return HookedAdapter(14, 3), (torch.randn(10, 14),)


class StudentHead(nn.Module):
    """A Student-t log density with learnt degrees of freedom, in float32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.net, self.freedom = nn.Linear(dim, 2), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mean, log_scale = _widened(self.net(x)).unbind(-1)
        nu = 2 + F.softplus(_widened(self.freedom))
        z = (_widened(y) - mean) * torch.exp(-log_scale)
        norm = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2) - 0.5 * torch.log(nu)
        return (norm - log_scale - (nu + 1) / 2 * torch.log1p(z * z / nu)).to(x.dtype)


def student_head() -> Made:
    return StudentHead(7), (torch.randn(20, 7), 2 * torch.randn(20))


class HopfieldMemory(nn.Module):
    """Two steps of a modern Hopfield network at a sharp temperature."""

    def __init__(self, dim: int, patterns: int) -> None:
        super().__init__()
        self.pattern, self.into = _param(patterns, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        state = self.into(x)
        for _ in range(2):
            state = torch.softmax(0.7 * state @ self.pattern.t(), -1) @ self.pattern
        return state


def hopfield_memory() -> Made:
    return HopfieldMemory(12, 20), (torch.randn(8, 12),)


def _bug(make: Any, accused: set[str], why: str) -> Entry:
    return Entry(make, fault=always("bug"), accused=frozenset(accused), why=why)


WRONG: dict[str, Entry] = {
    "fused_rmsnorm": _bug(fused_rmsnorm, {"x"}, "The norm's backward drops the projection on the unit vector."),
    "scan_saves_the_wrong_state": _bug(
        scan_saves_the_wrong_state, {"decay"}, "The decay's gradient reads the state after the step, not before."
    ),
    "lookup_overwrites_repeated_tokens": _bug(
        lookup_overwrites_repeated_tokens, {"table"}, "A token that occurs twice keeps one occurrence's gradient."
    ),
    "gate_gradient_of_one_pattern": _bug(
        gate_gradient_of_one_pattern,
        {"router.weight", "x"},
        "Rows whose first choice is expert 0 lose the cross term of the renormalised gate.",
    ),
    "adapter_forgets_its_scale": _bug(
        adapter_forgets_its_scale, {"up"}, "The up-projection's gradient lacks alpha / rank = 0.875."
    ),
    "bias_not_summed_over_the_batch": _bug(
        bias_not_summed_over_the_batch, {"bias"}, "The relative bias takes the first sequence's gradient only."
    ),
    "short_convolution_unflipped": _bug(
        short_convolution_unflipped, {"x", "into.weight"}, "The input's gradient runs the taps in the wrong order."
    ),
    "reset_gate_detached": _bug(
        reset_gate_detached, {"x", "h", "reset.weight", "reset.bias"}, "The reset gate is detached by mistake."
    ),
    "recomputed_without_the_mask": _bug(
        recomputed_without_the_mask, {"x", "qkv"}, "The recomputation in backward forgets the padding mask."
    ),
    "tied_table_loses_one_use": _bug(
        tied_table_loses_one_use, {"tokens.weight"}, "The head reads the tied table through .data, without gradient."
    ),
    "batch_variance_taken_as_constant": _bug(
        batch_variance_taken_as_constant, {"x", "lin.weight"}, "The batch's variance is taken as a constant."
    ),
    "temperature_hook_keeps_96_percent": _bug(
        temperature_hook_keeps_96_percent, {"log_scale"}, "A hook scales the temperature's gradient by 0.96."
    ),
    "masked_mean_divided_by_the_length": _bug(
        masked_mean_divided_by_the_length,
        {"x", "encode.weight", "encode.bias"},
        "The backward of a masked mean divides by the padded length.",
    ),
    "slope_counts_positive_entries": _bug(
        slope_counts_positive_entries, {"slope"}, "The slope's gradient counts the positive entries too."
    ),
    "equilibrium_adjoint_transposed": _bug(
        equilibrium_adjoint_transposed,
        {"x", "inject.weight", "inject.bias", "weight"},
        "The adjoint iteration uses the transposed matrix.",
    ),
    "query_rotated_back_the_wrong_way": _bug(
        query_rotated_back_the_wrong_way, {"x", "q.weight"}, "The query's gradient is rotated on, not back."
    ),
    "last_expert_bias_takes_other_rows": _bug(
        last_expert_bias_takes_other_rows, {"bias"}, "The last expert's bias sums the rows at the batch's start."
    ),
    "sharpness_misses_a_term": _bug(
        sharpness_misses_a_term, {"sharpness"}, "The sharpness misses the derivative of its division."
    ),
    "direction_projected_by_a_mean": _bug(
        direction_projected_by_a_mean, {"v"}, "The direction's gradient is projected by the mean of all rows."
    ),
    "unbiased_deviation_in_backward": _bug(
        unbiased_deviation_in_backward,
        {"x", "up.weight", "up.bias", "down.weight", "down.bias"},
        "The norm's backward divides by the unbiased deviation: a bias of 2 % on all that lies below.",
    ),
    "sphere_squares_overflow": Entry(
        sphere_squares_overflow,
        fault={"fp16": "overflow"},
        why="The squares of entries around 200 sum to more than 65504.",
    ),
    "softplus_by_hand": Entry(
        softplus_by_hand,
        fault={"fp16": "overflow"},
        why="exp of a pre-activation above 11 overflows before the logarithm.",
    ),
    "cosine_from_raw_products": Entry(
        cosine_from_raw_products,
        fault={"fp16": "overflow"},
        why="The products of the raw norms of queries and keys exceed 65504.",
    ),
    "pool_sums_before_dividing": Entry(
        pool_sums_before_dividing,
        fault={"fp16": "overflow"},
        why="The sum over 2048 steps overflows before it is divided.",
    ),
    "router_exponential_overflows": Entry(
        router_exponential_overflows,
        fault={"fp16": "overflow"},
        why="The router's softmax is written without subtracting the maximum.",
    ),
    "inverse_cube_overflows": Entry(
        inverse_cube_overflows,
        fault={"fp16": "overflow"},
        why="An inverse cube of small distances overflows before its small factor.",
    ),
    "squared_units_underflow": Entry(
        squared_units_underflow,
        fault={"fp16": "underflow"},
        why="A square of 5e-5 is zero before the factor of 2000 that follows.",
    ),
    "bumps_vanish_before_their_height": Entry(
        bumps_vanish_before_their_height,
        fault={"fp16": "underflow"},
        why="exp(-19) is zero before it is multiplied by a height of exp(8.5).",
    ),
    "head_weights_fall_too_fast": Entry(
        head_weights_fall_too_fast,
        fault={"fp16": "underflow"},
        why="The last heads' losses weigh 8^-13 and less beside the first's.",
    ),
    "tower_beside_a_large_gain": Entry(
        tower_beside_a_large_gain,
        fault={"fp16": "underflow"},
        why="A gain's gradient of 3e4 caps the loss scale where the tower's needs 1e9.",
    ),
    "survival_multiplied_out": Entry(
        survival_multiplied_out,
        fault={"fp16": "underflow"},
        why="A product of twenty survivals falls below the smallest subnormal.",
    ),
    "scores_on_a_high_level": Entry(
        scores_on_a_high_level,
        fault=always("routing"),
        why="The balancing bias lifts the scores to 2048, where neighbours tie.",
    ),
    "softmax_makes_ties": Entry(
        softmax_makes_ties,
        fault=always("routing"),
        why="Probabilities near 1/32 tie where their logits, of 2e-4, do not.",
    ),
    "nearest_code_lost_in_the_norm": Entry(
        nearest_code_lost_in_the_norm,
        fault=always("routing"),
        why="|x|^2 = 16384 swallows the differences between distances.",
    ),
    "sort_key_holds_two_numbers": Entry(
        sort_key_holds_two_numbers,
        fault=always("routing"),
        why="The key 1000 bucket + score keeps the bucket and loses the score.",
    ),
    "prototypes_share_a_direction": Entry(
        prototypes_share_a_direction,
        fault=always("routing"),
        why="A common term of 128 swallows the differences between scores.",
    ),
    "variance_in_one_pass": Entry(
        variance_in_one_pass, fault=always("bug"), why="E[x^2] - E[x]^2 cancels for pixels around 100."
    ),
    "one_minus_a_probability": Entry(
        one_minus_a_probability, fault=always("bug"), why="1 - sigmoid(9) is zero in the format."
    ),
    "decay_rounds_to_one": Entry(
        decay_rounds_to_one,
        fault=always("bug"),
        why="A decay of 1 - 1.5e-4 rounds to one before it is raised to the power t.",
    ),
    "expanded_square_of_neighbours": Entry(
        expanded_square_of_neighbours, fault=always("bug"), why="|a|^2 + |b|^2 - 2ab cancels for near neighbours."
    ),
    "window_from_prefix_sums": Entry(
        window_from_prefix_sums, fault=always("bug"), why="A window of two from prefix sums of thousands."
    ),
    "rotary_angles_in_the_format": Entry(
        rotary_angles_in_the_format, fault=always("bug"), why="Angles of 5000 radians are held in the format."
    ),
    "ledger_in_half": Entry(
        ledger_in_half, fault=always("bug"), why="Deposits of one are added to 4096 in half precision."
    ),
    "mean_cast_to_bfloat16": Entry(
        mean_cast_to_bfloat16,
        fault=always("bug"),
        why="The mean of pixels around 240 is cast to bfloat16, whose step there is one.",
    ),
    "attention_added_up_key_by_key": Entry(
        attention_added_up_key_by_key,
        fault={"bf16": "bug", "fp8_e4m3": "bug"},
        may={"fp16": frozenset({"bug"})},
        why="The softmax's denominator is added up key by key and stagnates.",
    ),
    "hold_subtracts_one": Entry(hold_subtracts_one, fault=always("bug"), why="exp(1e-4) - 1 in place of expm1."),
    "slope_by_a_small_step": Entry(
        slope_by_a_small_step, fault=always("bug"), why="A slope by differences with a step of 2^-10."
    ),
    "small_angle_from_its_cosine": Entry(
        small_angle_from_its_cosine, fault=always("bug"), why="1 - cos of angles of 0.01."
    ),
}


def _twin(make: Any, why: str, may: dict[str, frozenset[str]] | None = None) -> Entry:
    return Entry(partial(make, right=True), may=may or {}, why=why)


_FLIPS = dict.fromkeys(FORMATS, frozenset({"routing"}))
_COARSE_FLIPS = {"bf16": frozenset({"routing"}), "fp8_e4m3": frozenset({"routing"})}

CORRECT: dict[str, Entry] = {
    "grouped_query_block": Entry(
        grouped_query_block, why="A decoder block with rotary grouped-query attention, its angles in float32."
    ),
    "hf_bert": Entry(hf_bert, why="A tiny BERT; the gradient of its key biases is zero but for rounding."),
    "hf_gpt2": Entry(hf_gpt2, why="A tiny GPT-2 with a tied head."),
    "hf_llama": Entry(hf_llama, why="A tiny Llama, whose norms are float32 islands even in a float64 run."),
    "hf_mixtral": Entry(hf_mixtral, may=_COARSE_FLIPS, why="A tiny Mixtral: an ordinary top-2 router has near-ties."),
    "hf_vit": Entry(hf_vit, why="A tiny vision transformer."),
    "hf_gemma": Entry(hf_gemma, why="A tiny Gemma 2 with soft-capped scores and a sliding window."),
    "deep_and_narrow": Entry(deep_and_narrow, why="Eighteen residual layers of width 6 add up their rounding."),
    "wide_hidden_layer": Entry(wide_hidden_layer, why="A hidden layer of 3000."),
    "selective_scan": Entry(selective_scan, why="Mamba's scan with plain .float() islands."),
    "linear_attention": Entry(linear_attention, why="Running sums of linear attention in float32."),
    "gru_reader": Entry(gru_reader, why="torch's GRU cell over twelve steps."),
    "peephole_lstm": Entry(peephole_lstm, why="A hand-written LSTM with peepholes and a norm on its cell."),
    "squeeze_excite": Entry(squeeze_excite, why="Depthwise convolution, group norm and a gate."),
    "batchnorm_train": Entry(
        batchnorm_train, why="Batch statistics; the convolutions' biases have a gradient of zero but for rounding."
    ),
    "batchnorm_eval": Entry(batchnorm_eval, why="Running statistics."),
    "quantiser_with_clear_codes": Entry(quantiser_with_clear_codes, why="An argmin with wide margins."),
    "switch_with_clear_margins": Entry(switch_with_clear_margins, why="A top-1 router with wide margins."),
    "expert_choice": Entry(
        expert_choice, may=_COARSE_FLIPS, why="Experts choose tokens; near-ties at the capacity flip."
    ),
    "sigmoid_top_two": Entry(sigmoid_top_two, may=_COARSE_FLIPS, why="A top-2 router with ordinary near-ties."),
    "log_sinkhorn": Entry(
        log_sinkhorn, why="Sinkhorn on logarithms; two biases have a gradient of zero but for rounding."
    ),
    "supervised_contrast": Entry(supervised_contrast, why="A contrastive loss with the dtype's minimum as a mask."),
    "mixture_density": Entry(mixture_density, why="A mixture's log density by logsumexp."),
    "chain_crf": Entry(chain_crf, why="A log partition function minus a path's score."),
    "compensated_sum": Entry(compensated_sum, why="Kahan's sum in the format itself."),
    "pixels_far_from_zero": Entry(pixels_far_from_zero, why="A two-pass variance of values around 190."),
    "saturated_gate": Entry(saturated_gate, why="Gates in deep saturation inside a float32 island."),
    "tiny_gradients": Entry(tiny_gradients, why="All gradients are scaled by 2^-17, which a loss scale repairs."),
    "volume_rendering": Entry(volume_rendering, why="Small opacities by expm1."),
    "set_maximum": Entry(set_maximum, may=_FLIPS, why="A maximum over points, whose near-ties flip."),
    "weight_normed": Entry(weight_normed, why="torch's own weight norm parametrisation."),
    "in_place_residual": Entry(in_place_residual, why="In-place writes through views."),
    "bag_of_words": Entry(bag_of_words, why="Embeddings with repeated rows and a buffer of places."),
    "graph_attention": Entry(graph_attention, why="A segment softmax by scatter and index_add."),
    "capsules": Entry(capsules, why="Routing by agreement: soft, no decision."),
    "large_but_in_range": Entry(large_but_in_range, why="Activations of ten thousand and a gradient of thousands."),
    "checkpointed_blocks": Entry(checkpointed_blocks, why="Blocks recomputed in backward, rightly."),
    "hyper_linear": Entry(hyper_linear, why="Weights made by another network."),
    "cancelling_siamese": Entry(cancelling_siamese, why="A difference of near outputs, whose gradients cancel."),
    "upsampler": Entry(upsampler, why="Strided and transposed convolutions and bilinear upsampling."),
    "focal_loss": Entry(focal_loss, why="A focal loss from log-probabilities."),
    "latent_reader": Entry(latent_reader, why="torch's multi-head attention with padding."),
    "weighted_key_value": Entry(weighted_key_value, why="RWKV's mixing with a running maximum."),
    "ordinal_head": Entry(ordinal_head, why="A log of a difference of sigmoids, well written."),
    "hooked_adapter": Entry(hooked_adapter, why="A low-rank adapter and a hook that changes nothing."),
    "student_head": Entry(student_head, why="A Student-t density with a learnt freedom."),
    "hopfield_memory": Entry(hopfield_memory, why="A sharp softmax, twice."),
    "recurrence_by_hand": _twin(scan_saves_the_wrong_state, "A scan with a hand-written backward that is right."),
    "recomputed_by_hand": _twin(recomputed_without_the_mask, "A recomputed attention that keeps its mask."),
    "equilibrium_by_hand": _twin(equilibrium_adjoint_transposed, "A fixed point with the right adjoint."),
    "grouped_experts_by_hand": _twin(last_expert_bias_takes_other_rows, "Grouped linear maps with a right backward."),
    "renormalised_top_two": _twin(
        gate_gradient_of_one_pattern,
        "A renormalised top-2 gate with a right backward.",
        {"fp8_e4m3": frozenset({"routing"})},
    ),
    "long_memory_kernel": _twin(decay_rounds_to_one, "A kernel of 4096 powers by one exponential in float32."),
    "far_rotary": _twin(rotary_angles_in_the_format, "Rotary angles of 5000 radians in float32."),
    "neighbour_kernel": _twin(expanded_square_of_neighbours, "Squares of differences of near neighbours."),
    "survival_by_logarithms": _twin(
        survival_multiplied_out, "A probability of 1e-8 inside a float32 island.", {"fp16": frozenset({"underflow"})}
    ),
}
