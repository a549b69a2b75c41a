"""A sealed set: 40 wrong and 40 right modules for `verify(module, inputs)`.

Each `wrong_NN()` / `right_NN()` takes nothing and returns `(module, inputs)`. `CASES` lists them.
`python modules.py` runs `check()`, which establishes the truth of every case with four-point central
differences of the forward in float64 (or of a plain float64 reference where the forward takes float32 only).
"""

from __future__ import annotations

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some machines trap AMX

import ctypes
import dataclasses
import functools
import math
import time
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


@dataclass
class Case:
    name: str
    truth: str  # "wrong" or "right"
    why: str
    options: dict = field(default_factory=dict)
    expected: tuple = ()


@dataclass
class Evidence:
    """How `check` shows the truth. For a wrong module: the way of calling in which the fault shows."""

    manner: str = "plain"
    sound64: bool = False  # wrong module: right in float64 when called plainly
    sound_plain: bool = False  # wrong module: right in its own dtype when called plainly
    threshold: float = 0.01
    reference: Callable | None = None  # plain float64 forward (module, inputs) -> outputs
    collect: str = "grad"  # where gradients are found: grad, main_grad, sgd
    manners: tuple | None = None  # right module: ways of calling to check (None: all)
    step: float = 1e-3
    relative_step: bool = False
    tolerance64: float = 1e-6
    tolerance: float | None = None


CASES: list[Case] = []
EVIDENCE: dict[str, Evidence] = {}


def case(why: str, expected: tuple | None = None, options: dict | None = None, **evidence):
    def register(build):
        name = build.__name__
        truth = name.split("_")[0]
        number = int(name.split("_")[1])

        @functools.wraps(build)
        def seeded():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1000 * number + (7 if truth == "wrong" else 13))
                return build()

        wanted = expected or (("refuted",) if truth == "wrong" else ("proven",))
        CASES.append(Case(name, truth, why, options or {}, wanted))
        EVIDENCE[name] = Evidence(**evidence)
        return seeded

    return register


EITHER_WRONG = ("refuted", "inconclusive")
EITHER_RIGHT = ("proven", "inconclusive")


def params(*shape, scale=0.5):
    return nn.Parameter(torch.randn(*shape) * scale)


# ---------------------------------------------------------------------------------------------- wrong


class _BlockedNorm(Function):
    @staticmethod
    def forward(ctx, x, gamma, beta):
        mean = x.mean(-1, keepdim=True)
        rstd = ((x - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        xhat = (x - mean) * rstd
        ctx.save_for_backward(xhat, rstd, gamma)
        return xhat * gamma + beta

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        xhat, rstd, gamma = ctx.saved_tensors
        dxhat = dy * gamma
        dx = rstd * (dxhat - dxhat.mean(-1, keepdim=True) - xhat * (dxhat * xhat).mean(-1, keepdim=True))
        if dy.dtype == torch.float32:
            dy_n, xhat_n = dy.numpy(), xhat.numpy()
            dgamma = np.zeros(gamma.shape, np.float32)
            dbeta = np.zeros(gamma.shape, np.float32)
            for block in range(dy_n.shape[0] // 8):
                rows = slice(8 * block, 8 * block + 8)
                dgamma += (dy_n[rows] * xhat_n[rows]).sum(0)
                dbeta += dy_n[rows].sum(0)
            return dx, torch.from_numpy(dgamma), torch.from_numpy(dbeta)
        return dx, (dy * xhat).sum(0), dy.sum(0)


class BlockedNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.gamma = nn.Parameter(1 + 0.1 * torch.randn(width))
        self.beta = params(width, scale=0.1)

    def forward(self, x):
        return _BlockedNorm.apply(self.inner(x), self.gamma, self.beta)


@case("LayerNorm: the float32 numpy kernel loses the tail row (41 rows, blocks of 8) of dgamma and dbeta; float64 is right", sound64=True)
def wrong_01():
    return BlockedNorm(6), (torch.randn(41, 6),)


def _fast_rsqrt(v):
    if v.dtype == torch.float32:
        return (0x5F3759DF - (v.contiguous().view(torch.int32) >> 1)).view(torch.float32)
    return v.rsqrt()


class _FastRMS(Function):
    @staticmethod
    def forward(ctx, x, gain):
        r = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, gain)
        return x * r * gain

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, gain = ctx.saved_tensors
        r = _fast_rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        dxn = dy * gain
        dx = r * dxn - x * r**3 * (dxn * x).mean(-1, keepdim=True)
        return dx, (dy * x * r).sum(0)


class FastRMS(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(1 + 0.2 * torch.randn(8))
        self.out = nn.Linear(8, 4)

    def forward(self, x):
        return self.out(_FastRMS.apply(x, self.gain))


@case("RMSNorm: in float32 the backward uses the bit-trick reciprocal root without its Newton step (1 to 3% off)", sound64=True)
def wrong_02():
    x = torch.randn(6, 8)
    x = x / x.square().mean(-1, keepdim=True).sqrt() * torch.linspace(1.05, 1.2, 6)[:, None]
    return FastRMS(), (x.requires_grad_(),)


class _Rotary(Function):
    """Rotates the pairs (0, 1), (2, 3), …"""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        cos, sin = ctx.saved_tensors
        if dy.dtype == torch.bfloat16:
            a, b = dy.chunk(2, -1)
            return torch.cat((a * cos + b * sin, b * cos - a * sin), -1), None, None
        a, b = dy[..., ::2], dy[..., 1::2]
        return torch.stack((a * cos + b * sin, b * cos - a * sin), -1).flatten(-2), None, None


class RotaryQuery(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(6, 8, bias=False)
        angle = torch.arange(5)[:, None] * torch.tensor([1.0, 0.4, 0.2, 0.05])
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, x):
        return _Rotary.apply(self.q(x), self.cos, self.sin)


@case("RoPE: the bfloat16 branch of the backward pairs channels by halves, the forward interleaves them", sound64=True, threshold=0.1)
def wrong_03():
    return RotaryQuery().bfloat16(), (torch.randn(2, 5, 6).bfloat16(),)


class _ChunkedLinear(Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.low = torch.is_autocast_enabled("cpu") and x.dtype == torch.float32
        ctx.save_for_backward(x, w)
        if ctx.low:
            return (x.bfloat16() @ w.bfloat16().t()) + b.bfloat16()
        return x @ w.t() + b

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        if not ctx.low:
            return dy @ w, dy.t() @ x, dy.sum(0)
        wide = dy.float()
        db = torch.zeros(w.shape[0])
        for chunk in wide.split(5):
            db = chunk.sum(0)
        return wide @ w, wide.t() @ x, db


class ChunkedLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = params(4, 6)
        self.bias = params(4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = _ChunkedLinear.apply(x, self.weight, self.bias)
        return y.to(x.dtype)


@case("Linear under its own autocast: the low-precision backward keeps only the last chunk's bias gradient", sound64=True, threshold=0.1)
def wrong_04():
    return ChunkedLinear(), (torch.randn(15, 6),)


class _SpectralConv(Function):
    @staticmethod
    def forward(ctx, x, k):
        spectrum_x, spectrum_k = torch.fft.rfft(x), torch.fft.rfft(k)
        ctx.save_for_backward(spectrum_x, spectrum_k)
        ctx.n = x.shape[-1]
        return torch.fft.irfft(spectrum_x * spectrum_k, n=ctx.n)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        spectrum_x, spectrum_k = ctx.saved_tensors
        spectrum_dy = torch.fft.rfft(dy)
        product = spectrum_dy * spectrum_x.conj()
        if dy.dtype == torch.float32:  # the packed float32 transform has n/2 bins
            product = torch.cat((product[..., :-1], torch.zeros_like(product[..., -1:])), -1)
        dx = torch.fft.irfft(spectrum_dy * spectrum_k.conj(), n=ctx.n)
        return dx, torch.fft.irfft(product, n=ctx.n).sum(0)


class SpectralConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = params(4, 16, scale=0.3)

    def forward(self, x):
        return torch.tanh(_SpectralConv.apply(x, self.kernel))


@case("circular convolution by FFT: the float32 kernel gradient loses the Nyquist bin", sound64=True)
def wrong_05():
    return SpectralConv(), (torch.randn(3, 4, 16, requires_grad=True),)


class ShadowWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.second = nn.Linear(8, 3)

    def project(self, layer, x):
        if torch.is_autocast_enabled("cpu") and x.dtype in (torch.float32, torch.bfloat16):
            with torch.no_grad():  # cast once, not again in the backward
                weight, bias = layer.weight.to(torch.bfloat16), layer.bias.to(torch.bfloat16)
            return F.linear(x.to(torch.bfloat16), weight, bias)
        return layer(x)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.tanh(self.project(self.first, x))
            y = self.second(h)
        return y.to(x.dtype)


@case("the bf16 copy of the first layer is cast under no_grad: that layer gets no gradient as it trains, and a right one in float64", sound64=True, threshold=0.1)
def wrong_06():
    return ShadowWeights(), (torch.randn(6, 5),)


class _ScratchGelu(Function):
    @staticmethod
    def forward(ctx, h, scratch):
        key = (tuple(h.shape), h.dtype)
        if key not in scratch:
            scratch[key] = torch.empty_like(h)
        scratch[key].copy_(h)
        ctx.kept = scratch[key]
        return F.gelu(h)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        h = ctx.kept
        cdf = 0.5 * (1 + torch.erf(h / math.sqrt(2)))
        pdf = torch.exp(-0.5 * h * h) / math.sqrt(2 * math.pi)
        return dy * (cdf + h * pdf), None


class ScratchGelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)
        self.scratch = {}

    def forward(self, x):
        return self.down(_ScratchGelu.apply(self.up(x), self.scratch))


@case("pre-activations are kept in one scratch buffer per shape: a second forward overwrites those of the first", manner="two_fifo", sound64=True, sound_plain=True)
def wrong_07():
    return ScratchGelu(), (torch.randn(6, 4),)


class _MaskedDrop(Function):
    @staticmethod
    def forward(ctx, x, mask, keep):
        mask.bernoulli_(keep).div_(keep)
        ctx.mask = mask
        return x * mask

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return dy * ctx.mask, None, None


class ReusedMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 10)
        self.outer = nn.Linear(10, 3)
        self.masks = {}

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        if self.training:
            mask = self.masks.setdefault((tuple(h.shape), h.dtype), torch.empty_like(h, requires_grad=False))
            h = _MaskedDrop.apply(h, mask.detach(), 0.6)
        return self.outer(h)


@case("dropout draws its mask into one reused buffer: with two forwards in flight the first uses the second's mask", manner="two_fifo", sound64=True, sound_plain=True)
def wrong_08():
    return ReusedMask(), (torch.randn(7, 5),)


class _CachedStatNorm(Function):
    @staticmethod
    def forward(ctx, x, gain, cache):
        r = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.rstd = cache.setdefault((tuple(x.shape), x.dtype), r)
        ctx.save_for_backward(x, gain)
        return x * r * gain

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, gain = ctx.saved_tensors
        r = ctx.rstd
        dxn = dy * gain
        return r * dxn - x * r**3 * (dxn * x).mean(-1, keepdim=True), (dy * x * r).sum(0), None


class CachedStatNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.gain = nn.Parameter(1 + 0.2 * torch.randn(6))
        self.cache = {}

    def forward(self, x):
        return _CachedStatNorm.apply(self.inner(x), self.gain, self.cache)


@case("the backward takes rstd from a cache keyed by shape and filled by the first forward: stale at any other point", manner="moved", sound64=True, sound_plain=True)
def wrong_09():
    return CachedStatNorm(), (torch.randn(6, 6),)


class _StackLinear(Function):
    @staticmethod
    def forward(ctx, x, w, stack):
        ctx.stack = stack
        if any(ctx.needs_input_grad):
            stack.append((x.detach(), w.detach()))
        return torch.tanh(x @ w.t())

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w = ctx.stack.pop()
        dh = dy * (1 - torch.tanh(x @ w.t()).square())
        return dh @ w, dh.t() @ x, None


class StackLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = params(5, 4)
        self.stack = []

    def forward(self, x):
        return _StackLinear.apply(x, self.weight, self.stack)


@case("activations are pushed on a stack and popped by the backward: wrong when the first forward is the first to go back (1F1B)", manner="two_fifo", sound64=True, sound_plain=True)
def wrong_10():
    return StackLinear(), (torch.randn(6, 4, requires_grad=True),)


class _ThriftySoftmax(Function):
    @staticmethod
    def forward(ctx, z):
        p = torch.softmax(z, -1)
        ctx.p = p.clone()
        return p

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        p = ctx.p
        inner = (p * dy).sum(-1, keepdim=True)
        return p.mul_(dy - inner).clone()


class ThriftyMixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.centres = params(3, 5)

    def forward(self, x):
        return _ThriftySoftmax.apply(self.gate(x)) @ self.centres


@case("softmax's backward works in place on the kept probabilities: a second backward through the retained graph is wrong", manner="retained", sound64=True, sound_plain=True)
def wrong_11():
    return ThriftyMixture(), (torch.randn(5, 4, requires_grad=True),)


class _InplaceTanh(Function):
    @staticmethod
    def forward(ctx, h):
        y = torch.tanh(h)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return dy.mul_(1 - y * y)


class InplaceResidual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 5)
        self.b = nn.Linear(5, 5)

    def forward(self, x):
        h = self.a(x)
        h = h + _InplaceTanh.apply(self.b(h))
        return h * 0.7


@case("tanh's backward overwrites its cotangent, which the residual branch shares")
def wrong_12():
    return InplaceResidual(), (torch.randn(6, 5),)


class _OwnGrad(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.w = w
        ctx.save_for_backward(x)
        return x @ w.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        ctx.w.grad = dy.t() @ x
        return dy @ ctx.w.detach(), None


class OwnGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre = nn.Linear(4, 4)
        self.weight = params(3, 4)

    def forward(self, x):
        return _OwnGrad.apply(torch.tanh(self.pre(x)), self.weight)


@case("the kernel assigns weight.grad instead of adding to it: accumulation over micro-batches is lost", EITHER_WRONG, manner="accumulate", sound64=True, sound_plain=True)
def wrong_13():
    return OwnGrad(), (torch.randn(6, 4),)


class _AccumulatingLinear(Function):
    @staticmethod
    def forward(ctx, x, w, b, workspace):
        ctx.save_for_backward(x, w)
        ctx.workspace = workspace
        return x @ w.t() + b

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dw = ctx.workspace.get(w.dtype)
        if dw is None:
            dw = ctx.workspace[w.dtype] = torch.zeros_like(w)
        dw.addmm_(dy.t(), x)
        return dy @ w, dw.clone(), dy.sum(0), None


class AccumulatingLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = params(4, 5)
        self.bias = params(4)
        self.workspace = {}

    def forward(self, x):
        return torch.sin(_AccumulatingLinear.apply(x, self.weight, self.bias, self.workspace))


@case("dW is accumulated in a workspace that is never zeroed: right in the first step, the sum of all steps later", manner="second_step", sound64=True, sound_plain=True)
def wrong_14():
    return AccumulatingLinear(), (torch.randn(7, 5),)


class _FlatSwish(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x, beta)
        return x * torch.sigmoid(beta * x)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, beta = ctx.saved_tensors
        s = torch.sigmoid(beta * x)
        result = dy.contiguous() * (s + beta * x * s * (1 - s))
        dx = torch.empty_like(dy)
        dx.as_strided((dx.numel(),), (1,)).copy_(result.contiguous().view(-1))
        return dx, (dy * x * x * s * (1 - s)).sum()


class FlatSwish(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.beta = nn.Parameter(torch.tensor(1.3))

    def forward(self, x):
        return _FlatSwish.apply(self.inner(x), self.beta)


@case("dx = empty_like(dy) takes the cotangent's strides and is filled in row-major order: wrong for a transposed cotangent", manner="transposed", sound64=True, sound_plain=True)
def wrong_15():
    return FlatSwish(), (torch.randn(5, 4),)


class _BroadcastAware(Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w.t() + b

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        if dy.stride(0) == 0 and dy.shape[0] > 1:  # one row stands for all
            row = dy[0]
            return (row @ w).expand_as(x), torch.outer(row, x.sum(0)), row.clone()
        return dy @ w, dy.t() @ x, dy.sum(0)


class BroadcastAware(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 5)
        self.weight = params(3, 5)
        self.bias = params(3)

    def forward(self, x):
        return _BroadcastAware.apply(torch.tanh(self.inner(x)), self.weight, self.bias)


@case("a fast path for expanded cotangents (those of sum() or mean(0)) forgets to multiply the bias gradient by the rows", manner="expanded", sound64=True, sound_plain=True)
def wrong_16():
    return BroadcastAware(), (torch.randn(6, 4),)


class _RawColumnScale(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return torch.sin(x * scale)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, scale = ctx.saved_tensors
        dz = dy * torch.cos(x * scale)
        raw = torch.as_strided(x, x.shape, (x.shape[1], 1))  # the kernel walks memory row by row
        return dz * scale, (dz * raw).sum(0)


class RawColumnScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(0.5 + torch.rand(6))
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(_RawColumnScale.apply(x, self.scale))


@case("the kernel reads its input as row-major memory; the input given is column-major (transposed), as its loader makes it")
def wrong_17():
    return RawColumnScale(), (torch.randn(6, 8).t(),)


class _FrozenSwiGLU(Function):
    @staticmethod
    def forward(ctx, x, wg, wu):
        ctx.save_for_backward(x, wg, wu)
        return F.silu(x @ wg.t()) * (x @ wu.t())

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, wg, wu = ctx.saved_tensors
        g, u = x @ wg.t(), x @ wu.t()
        s = torch.sigmoid(g)
        dg = dy * u * (s + g * s * (1 - s))
        if not (ctx.needs_input_grad[1] or ctx.needs_input_grad[2]):
            return dg @ wg, None, None
        du = dy * g * s
        return dg @ wg + du @ wu, dg.t() @ x, du.t() @ x


class FrozenSwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = params(6, 4)
        self.up = params(6, 4)

    def forward(self, x):
        return _FrozenSwiGLU.apply(x, self.gate, self.up)


@case("SwiGLU: with frozen weights (adapters before it) dx loses the up branch", manner="inputs_only", sound64=True, sound_plain=True)
def wrong_18():
    return FrozenSwiGLU(), (torch.randn(6, 4, requires_grad=True),)


class ReentrantBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Linear(4, 5)
        self.block = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))

    def forward(self, x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.main(x) + checkpoint(self.block, x, use_reentrant=True)


@case("reentrant checkpoint of a branch whose input needs no gradient: the block's parameters silently get none", EITHER_WRONG, sound64=False)
def wrong_19():
    return ReentrantBranch(), (torch.randn(6, 4),)


class _TwoScales(Function):
    @staticmethod
    def forward(ctx, x, alpha, beta):
        ctx.save_for_backward(x, alpha, beta)
        return x * alpha + x.square() * beta

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, alpha, beta = ctx.saved_tensors
        every = (dy * (alpha + 2 * x * beta), (dy * x).sum(0), (dy * x.square()).sum(0))
        wanted = [g for g, need in zip(every, ctx.needs_input_grad) if need]
        return tuple(wanted + [None] * (3 - len(wanted)))


class TwoScales(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 5)
        self.alpha = nn.Parameter(torch.rand(5) + 0.5, requires_grad=False)
        self.beta = nn.Parameter(torch.rand(5) + 0.5)

    def forward(self, x):
        return _TwoScales.apply(self.inner(x), self.alpha, self.beta)


@case("gradients of frozen arguments are left out of the tuple instead of set to None: beta gets none while alpha is frozen, as it is here")
def wrong_20():
    return TwoScales(), (torch.randn(6, 4),)


class _OwnBatchNorm(Function):
    @staticmethod
    def forward(ctx, x, gamma, beta, mean, var):
        rstd = (var + 1e-5).rsqrt()
        xhat = (x - mean) * rstd
        ctx.save_for_backward(xhat, rstd, gamma)
        return xhat * gamma + beta

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        xhat, rstd, gamma = ctx.saved_tensors
        dx = gamma * rstd * (dy - dy.mean(0) - xhat * (dy * xhat).mean(0))
        return dx, (dy * xhat).sum(0), dy.sum(0), None, None


class OwnBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 5)
        self.gamma = nn.Parameter(torch.rand(5) + 0.5)
        self.beta = params(5)
        self.register_buffer("mean", 0.3 * torch.randn(5))
        self.register_buffer("var", torch.rand(5) + 0.5)

    def forward(self, x):
        h = self.inner(x)
        if not self.training:
            return _OwnBatchNorm.apply(h, self.gamma, self.beta, self.mean, self.var)
        mean, var = h.detach().mean(0), h.detach().var(0, unbiased=False)
        self.mean.lerp_(mean, 0.1)
        self.var.lerp_(var, 0.1)
        return _OwnBatchNorm.apply(h, self.gamma, self.beta, mean, var)


@case("BatchNorm: in eval mode (fine-tuning with fixed statistics) the backward still uses the training formula", manner="eval", sound64=True, sound_plain=True)
def wrong_21():
    return OwnBatchNorm(), (torch.randn(8, 4),)


class _GemvLinear(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        if x.shape[0] == 1:
            return dy @ w, torch.outer(x[0], dy[0])
        return dy @ w, dy.t() @ x


class GemvLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = params(5, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(torch.tanh(_GemvLinear.apply(x, self.weight)))


@case("a square layer's path for one row returns its weight gradient transposed", manner="one_row", sound64=True, sound_plain=True)
def wrong_22():
    return GemvLinear(), (torch.randn(6, 5),)


class _Branch(Function):
    @staticmethod
    def forward(ctx, x, w, b):
        y = torch.tanh(x @ w.t() + b)
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w, y = ctx.saved_tensors
        dh = dy * (1 - y * y)
        return dh @ w, dh.t() @ x * (x.shape[1] / (x.shape[1] - 1)), dh.sum(0)


class ReZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = params(6, 6)
        self.bias = params(6)
        self.gate = nn.Parameter(torch.zeros(()))
        self.skip = nn.Linear(6, 6)

    def forward(self, x):
        return self.skip(x) + self.gate * _Branch.apply(x, self.weight, self.bias)


@case("a branch behind a zero-initialised gate has a weight gradient 1.2 times too large, which shows once the gate has moved", manner="moved", sound64=True, sound_plain=True)
def wrong_23():
    return ReZero(), (torch.randn(6, 6),)


class _Coupling(Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.set_materialize_grads(False)
        y = x * s.exp()
        ctx.save_for_backward(y, s)
        return y, s.sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dlogdet):
        y, s = ctx.saved_tensors
        dx = ds = None
        if dy is not None:
            dx = dy * s.exp()
        if dlogdet is not None:
            ds = dlogdet[:, None].expand_as(s)
            if dy is not None:
                ds = ds + dy * y
        return dx, ds


class Coupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(3, 4)
        self.mix = nn.Linear(4, 4)

    def forward(self, a, x):
        y, logdet = _Coupling.apply(self.mix(x), torch.tanh(self.scale(a)))
        return y, logdet


@case("coupling layer with outputs (y, logdet): a loss of y alone, without logdet, gives its scale no gradient", manner="first_output", sound64=True, sound_plain=True)
def wrong_24():
    return Coupling(), (torch.randn(5, 3), torch.randn(5, 4))


class _AttentionLSE(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scale = q.shape[-1] ** -0.5
        z = q @ k.transpose(-1, -2) * scale
        lse = torch.logsumexp(z, -1)
        p = torch.exp(z - lse[..., None])
        out = p @ v
        ctx.save_for_backward(q, k, v, p, out)
        ctx.scale = scale
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, dlse):
        q, k, v, p, out = ctx.saved_tensors
        delta = (dout * out).sum(-1, keepdim=True)
        dz = p * (dout @ v.transpose(-1, -2) - delta) * ctx.scale
        return dz @ k, dz.transpose(-1, -2) @ q, p.transpose(-1, -2) @ dout


class AttentionLSE(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x):
        return _AttentionLSE.apply(*self.qkv(x).chunk(3, -1))


@case("attention returns (out, lse) and its backward ignores the cotangent of lse")
def wrong_25():
    return AttentionLSE(), (torch.randn(2, 5, 4),)


class _ZLoss(Function):
    @staticmethod
    def forward(ctx, z):
        lse = torch.logsumexp(z, -1)
        ctx.save_for_backward(z, lse)
        return lse.square().mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, d):
        z, lse = ctx.saved_tensors
        return d * lse[:, None] * torch.exp(z - lse[:, None]) / z.shape[0]


class RoutedWithZLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(5, 3)
        self.values = params(3, 4)

    def forward(self, x):
        z = self.router(x)
        return {"logits": torch.softmax(z, -1) @ self.values, "losses": {"z": 0.01 * _ZLoss.apply(z)}, "chosen": z.argmax(-1)}


@case("a nested output, the router's z-loss, lacks the factor 2 in its gradient; the logits are right")
def wrong_26():
    return RoutedWithZLoss(), (torch.randn(8, 5),)


@dataclass
class GaussianOutput:
    mean: torch.Tensor
    log_std: torch.Tensor
    steps: int = 0


class _SoftClamp(Function):
    low, high = -1.3, 1.0

    @staticmethod
    def forward(ctx, x):
        t = torch.tanh(x)
        ctx.save_for_backward(t)
        return _SoftClamp.low + 0.5 * (_SoftClamp.high - _SoftClamp.low) * (t + 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (t,) = ctx.saved_tensors
        return dy * (1 - t * t)


class GaussianHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 6)
        self.mean = nn.Linear(6, 3)
        self.log_std = nn.Linear(6, 3)

    def forward(self, x):
        h = torch.tanh(self.trunk(x))
        return GaussianOutput(self.mean(h), _SoftClamp.apply(self.log_std(h)), 1)


@case("the second field of a dataclass output, a soft clamp, has a gradient 1.15 times too small")
def wrong_27():
    return GaussianHead(), (torch.randn(6, 4),)


class _PairGather(Function):
    @staticmethod
    def forward(ctx, table, rows, cols):
        ctx.save_for_backward(rows, cols)
        ctx.shape = table.shape
        return table[rows, cols]

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        rows, cols = ctx.saved_tensors
        grad = np.zeros(tuple(ctx.shape), dy.numpy().dtype)
        grad[rows.numpy(), cols.numpy()] += dy.numpy()
        return torch.from_numpy(grad), None, None


class PairBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = params(5, 6)
        self.register_buffer("rows", torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 1]))
        self.register_buffer("cols", torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 2, 1]))

    def forward(self, x):
        return torch.sin(x + _PairGather.apply(self.table, self.rows, self.cols))


@case("a bias table gathered by pairs: the one pair that occurs twice keeps only one of its contributions (numpy +=)")
def wrong_28():
    return PairBias(), (torch.randn(4, 10),)


class _SparseLookup(Function):
    @staticmethod
    def forward(ctx, table, ids):
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return table[ids]

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (ids,) = ctx.saved_tensors
        unique, inverse = ids.reshape(-1).unique(return_inverse=True)
        values = dy.new_zeros(len(unique), dy.shape[-1])
        for position, row in enumerate(inverse.tolist()):
            values[row] = dy.reshape(-1, dy.shape[-1])[position]
        return torch.sparse_coo_tensor(unique[None], values, ctx.shape, is_coalesced=True, check_invariants=True), None


class SparseLookup(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = params(9, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, ids):
        return self.out(torch.tanh(_SparseLookup.apply(self.table, ids)))


@case("a sparse embedding gradient keeps the last occurrence of a repeated token instead of the sum", EITHER_WRONG)
def wrong_29():
    return SparseLookup(), (torch.tensor([[0, 3, 3, 5], [7, 0, 1, 8], [2, 3, 6, 1]]),)


def _log_direction(module, grad_input, grad_output):
    directions = tuple(None if g is None else g / g.norm().clamp_min(1e-12) for g in grad_input)
    module.directions = len(directions)
    return directions


class LoggedMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 5)
        self.mid = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)
        self.mid.register_full_backward_hook(_log_direction)

    def forward(self, x):
        return self.head(torch.tanh(self.mid(torch.tanh(self.embed(x)))))


@case("a backward hook meant to log the gradient's direction returns it, which replaces the gradient", EITHER_WRONG)
def wrong_30():
    return LoggedMLP(), (torch.randn(6, 4),)


class ForgetfulCheckpoint(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.block = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 4))

    def forward(self, x):
        return checkpoint(self.block, torch.tanh(self.embed(x)), use_reentrant=False, preserve_rng_state=False)


@case("checkpoint with preserve_rng_state=False around dropout: the recomputation draws another mask")
def wrong_31():
    return ForgetfulCheckpoint(), (torch.randn(6, 4),)


class _CentredLinear(Function):
    @staticmethod
    def forward(ctx, x, w, centre):
        ctx.centre = centre
        ctx.save_for_backward(x, w)
        return (x - centre) @ w.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy @ w, dy.t() @ (x - ctx.centre), None


class CentredLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = params(3, 5)
        self.bias = params(3)
        self.register_buffer("centre", torch.zeros(5))

    def forward(self, x):
        y = _CentredLinear.apply(x, self.weight, self.centre) + self.bias
        if self.training:
            self.centre.lerp_(x.detach().mean(0), 0.2)
        return y


@case("the backward recomputes x - centre from a running buffer that the forward has moved since (train mode only)")
def wrong_32():
    return CentredLinear(), (torch.randn(6, 5) + 0.8,)


class _ReplicateConv(Function):
    @staticmethod
    def forward(ctx, x, w):
        padded = F.pad(x, (1, 1), mode="replicate")
        ctx.save_for_backward(padded, w)
        return F.conv1d(padded, w, groups=w.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        padded, w = ctx.saved_tensors
        dpadded = F.conv_transpose1d(dy, w, groups=w.shape[0])
        windows = padded.unfold(-1, 3, 1)
        return dpadded[..., 1:-1], (dy[..., None] * windows).sum((0, 2))[:, None]


class ReplicateConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3, 1) + 0.5)
        self.kernel = params(3, 1, 3)

    def forward(self, x):
        return _ReplicateConv.apply(torch.sin(x * self.scale), self.kernel)


@case("depthwise convolution with replicate padding: the gradient of the copied border entries is dropped")
def wrong_33():
    return ReplicateConv(), (torch.randn(2, 3, 9, requires_grad=True),)


class _ComplexScale(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy * w.conj(), (dy * x).sum(0)


class FourierFilter(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.irfft(_ComplexScale.apply(torch.fft.rfft(x), self.filter), n=8)


@case("a complex filter's gradient lacks the conjugate of its input", EITHER_WRONG)
def wrong_34():
    return FourierFilter(), (torch.randn(4, 8, requires_grad=True),)


class _Grouped(Function):
    @staticmethod
    def forward(ctx, x, w, owner):
        ctx.save_for_backward(x, w, owner)
        return torch.einsum("ti,toi->to", x, w[owner])

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w, owner = ctx.saved_tensors
        dw = torch.zeros_like(w)
        tile = torch.zeros_like(w[0])
        for expert in range(w.shape[0]):
            rows = (owner == expert).nonzero().flatten()
            if len(rows):
                tile = dy[rows].t() @ x[rows]
            dw[expert] = tile
        return torch.einsum("to,toi->ti", dy, w[owner]), dw, None


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = params(4, 3, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x, owner):
        return torch.tanh(_Grouped.apply(self.norm(x), self.weight, owner))


@case("an expert without rows receives the previous expert's weight gradient, left in the tile")
def wrong_35():
    return Grouped(), (torch.randn(7, 4), torch.tensor([0, 1, 0, 3, 1, 3, 3]))


class _GRUStep(Function):
    @staticmethod
    def forward(ctx, h, gi, u):
        wide = h.shape[-1]
        i_r, i_z, i_n = gi.split(wide, -1)
        h_r, h_z, q = (h @ u.t()).split(wide, -1)
        r, z = torch.sigmoid(i_r + h_r), torch.sigmoid(i_z + h_z)
        n = torch.tanh(i_n + r * q)
        ctx.save_for_backward(h, u, r, z, n, q)
        return (1 - z) * n + z * h

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        h, u, r, z, n, q = ctx.saved_tensors
        da_n = dy * (1 - z) * (1 - n * n)
        da_z = dy * (h - n) * z * (1 - z)
        da_r = da_n * q * r * (1 - r)
        d_gi = torch.cat((da_r, da_z, da_n), -1)
        d_uh = torch.cat((da_r, da_z, da_n * r), -1)
        return dy * z + d_uh @ u, d_gi, d_gi.t() @ h


class OwnGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.input = nn.Linear(3, 12)
        self.recurrent = params(12, 4)

    def forward(self, x):
        h = torch.zeros(x.shape[0], 4, dtype=x.dtype, device=x.device)
        steps = []
        for t in range(x.shape[1]):
            h = _GRUStep.apply(h, self.input(x[:, t]), self.recurrent)
            steps.append(h)
        return torch.stack(steps, 1)


@case("GRU: the candidate's recurrent weight gradient lacks the reset gate (12 steps' worth of rows, one block of three)")
def wrong_36():
    return OwnGRU(), (torch.randn(3, 4, 3),)


class _Standardise(Function):
    @staticmethod
    def forward(ctx, x, scale, w):
        ctx.save_for_backward(x, scale, w)
        return (x / scale) @ w.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, scale, w = ctx.saved_tensors
        z = torch.where(x.abs() < 1e6, x / scale, torch.zeros_like(x))  # beyond that: missing
        return (dy @ w) / scale, None, dy.t() @ z


class Standardise(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.register_buffer("scale", scale)
        self.weight = params(4, scale.numel())

    def forward(self, x):
        return torch.tanh(_Standardise.apply(x, self.scale, self.weight))


@case("the weight gradient takes features beyond 1e6 for missing values; the forward uses them (a column of about 1.7e7)", relative_step=True)
def wrong_37():
    scale = torch.tensor([1.0, 1e-3, 1.7e7, 10.0, 1.0])
    return Standardise(scale), (torch.rand(7, 5).add(0.5) * scale,)


class DataScaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.outer = nn.Linear(6, 3)

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        h.data.mul_(1.02)
        return self.outer(h)


@case("tanh's result is rescaled through .data, behind autograd's back: the factor is missing and the saved result is another")
def wrong_38():
    return DataScaled(), (torch.randn(6, 4),)


def _pointer(t):
    """The memory of a contiguous float32 tensor, as a kernel behind ctypes sees it."""
    if t.dtype != torch.float32:
        raise TypeError(f"this kernel takes float32, not {t.dtype}")
    memory = ctypes.cast(t.data_ptr(), ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(memory, shape=tuple(t.shape))


class _RawNorm(Function):
    @staticmethod
    def forward(ctx, x, gamma):
        x, gamma = x.contiguous(), gamma.contiguous()
        y = torch.empty_like(x)
        a = _pointer(x.detach())
        centred = a - a.mean(-1, keepdims=True)
        np.copyto(_pointer(y), centred / np.sqrt(a.var(-1, keepdims=True) + 1e-5) * _pointer(gamma.detach()))
        ctx.save_for_backward(x, gamma)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, gamma = ctx.saved_tensors
        dy = dy.contiguous()
        a, d, g = _pointer(x), _pointer(dy), _pointer(gamma)
        rstd = 1 / np.sqrt(a.var(-1, ddof=1, keepdims=True) + 1e-5)
        xhat = (a - a.mean(-1, keepdims=True)) * rstd
        dxhat = d * g
        dx = torch.empty_like(x)
        np.copyto(_pointer(dx), rstd * (dxhat - dxhat.mean(-1, keepdims=True) - xhat * (dxhat * xhat).mean(-1, keepdims=True)))
        dgamma = torch.empty_like(gamma)
        np.copyto(_pointer(dgamma), (d * xhat).sum(0))
        return dx, dgamma


class RawNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 8)
        self.gamma = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x):
        return _RawNorm.apply(self.inner(x), self.gamma)


def _raw_norm_reference(m, inputs):
    h = m.inner(inputs[0])
    return F.layer_norm(h, (8,), m.gamma, None, 1e-5)


@case("a float32-only kernel by raw pointers: the backward divides the variance by n - 1, the forward by n (6% off)", EITHER_WRONG, reference=_raw_norm_reference)
def wrong_39():
    return RawNorm(), (torch.randn(6, 5),)


class _Scan(Function):
    @staticmethod
    def forward(ctx, x, a):
        h, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            states.append(h)
        states = torch.stack(states, 1)
        ctx.save_for_backward(a, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        a, states = ctx.saved_tensors
        dx, da = torch.zeros_like(a), torch.zeros_like(a)
        carry = torch.zeros_like(dy[:, 0])
        for t in reversed(range(a.shape[1])):
            carry = dy[:, t] + carry
            dx[:, t] = carry
            da[:, t] = carry * states[:, max(t - 1, 0)]
            carry = carry * a[:, t]
        return dx, da


class GatedScan(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Linear(3, 4)
        self.decay = nn.Linear(3, 4)

    def forward(self, x):
        return _Scan.apply(self.value(x), torch.sigmoid(self.decay(x)))


@case("a gated scan: at the first step the decay's gradient uses the state itself, since the index t - 1 is clamped to 0")
def wrong_40():
    return GatedScan(), (torch.randn(3, 5, 3),)


# ---------------------------------------------------------------------------------------------- right


class _NumpyNorm(Function):
    @staticmethod
    def forward(ctx, x, gamma, beta):
        a = x.detach().numpy()
        rstd = 1 / np.sqrt(a.var(-1, keepdims=True) + 1e-5)
        xhat = (a - a.mean(-1, keepdims=True)) * rstd
        ctx.xhat, ctx.rstd, ctx.gamma = xhat, rstd, gamma.detach().numpy().copy()
        return torch.from_numpy(xhat * ctx.gamma + beta.detach().numpy())

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        d = dy.numpy()
        dxhat = d * ctx.gamma
        inner = dxhat - dxhat.mean(-1, keepdims=True) - ctx.xhat * (dxhat * ctx.xhat).mean(-1, keepdims=True)
        return torch.from_numpy(ctx.rstd * inner), torch.from_numpy((d * ctx.xhat).sum(0)), torch.from_numpy(d.sum(0))


class NumpyNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 6)
        self.gamma = nn.Parameter(torch.rand(6) + 0.5)
        self.beta = params(6)

    def forward(self, x):
        return _NumpyNorm.apply(self.inner(x), self.gamma, self.beta)


@case("LayerNorm by numpy, forward and backward, in whatever dtype it is given")
def right_01():
    return NumpyNorm(), (torch.randn(7, 5, requires_grad=True),)


class LlamaNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 8, bias=False)
        self.weight = nn.Parameter(torch.rand(8) + 0.5)
        self.down = nn.Linear(8, 4, bias=False)

    def forward(self, x):
        h = self.up(x)
        wide = h.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.down(F.silu(self.weight * wide.to(h.dtype)))


@case("bfloat16 with RMSNorm in a float32 island, as Llama writes it", EITHER_RIGHT, step=2e-2, tolerance64=1e-3)
def right_02():
    return LlamaNorm().bfloat16(), (torch.randn(6, 6).bfloat16(),)


class CheckpointedDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.block = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 6))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        h = torch.tanh(self.embed(x))
        return self.head(h + checkpoint(self.block, h, use_reentrant=False))


@case("checkpoint around dropout with the generator's state preserved")
def right_03():
    return CheckpointedDropout(), (torch.randn(6, 4),)


class TiedLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.mix = nn.Linear(5, 5)
        self.head = nn.Linear(5, 9, bias=True)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        h = self.embed(ids).cumsum(1) / torch.arange(1, ids.shape[1] + 1, device=ids.device)[:, None]
        return self.head(torch.tanh(self.mix(h)))


@case("embedding and output layer share one weight; the only input is integer")
def right_04():
    return TiedLanguageModel(), (torch.randint(0, 9, (3, 5)),)


class InplaceRight(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = params(3)
        self.b = params(3)
        self.weight = params(6, 5)

    def forward(self, x):
        y = x.clone()
        y[:, ::2].mul_(self.a)
        y[:, 1::2].add_(self.b)
        z = (y @ self.weight).sigmoid_()
        out = torch.zeros(3, 5, dtype=z.dtype, device=z.device)
        out.index_put_((torch.arange(z.shape[0]) % 3,), z, accumulate=True)
        out[1:] += out[:-1].clone()
        return out


@case("in-place operations on slices, sigmoid_ and accumulating index_put_, all visible to autograd")
def right_05():
    return InplaceRight(), (torch.randn(7, 6, requires_grad=True),)


class ConvNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1, bias=True)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(F.silu(self.norm(self.conv(x))).mean((2, 3)))


@case("a convolution's bias before BatchNorm in train mode: its gradient is zero up to rounding")
def right_06():
    return ConvNorm(), (torch.randn(4, 2, 4, 4),)


class ThreeDropouts(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.out = nn.Linear(4, 4)
        self.alpha = nn.AlphaDropout(0.2)
        self.features = nn.Dropout1d(0.3)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        p = torch.softmax(q @ k.transpose(-1, -2) / 2, -1)
        a = F.dropout(p, 0.25, self.training) @ v
        return x + self.features(self.alpha(torch.tanh(self.out(a))))


@case("dropout of attention weights, AlphaDropout and whole channels in one block")
def right_07():
    return ThreeDropouts(), (torch.randn(3, 5, 4),)


class MaskedMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 5, padding_idx=0)
        self.query = params(5)
        self.head = nn.Linear(5, 3)

    def forward(self, ids):
        h = self.embed(ids)
        score = (h @ self.query).masked_fill(ids == 0, float("-inf"))
        return self.head((torch.softmax(score, -1)[..., None] * h).sum(1))


@case("padding_idx with the padded positions masked out by -inf: the padding row has no influence and no gradient")
def right_08():
    return MaskedMean(), (torch.tensor([[1, 4, 7, 0, 0], [2, 2, 5, 6, 0], [3, 1, 0, 0, 0], [7, 6, 5, 4, 3]]),)


class TopTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(4, 4)
        with torch.no_grad():
            self.router.weight.mul_(4)
            self.router.bias.copy_(torch.tensor([0.5, 0.0, -30.0, 0.2]))
        self.up = params(4, 5, 4)
        self.down = params(4, 3, 5)

    def forward(self, x):
        p = torch.softmax(self.router(x), -1)
        gate, chosen = p.topk(2, -1)
        gate = gate / gate.sum(-1, keepdim=True)
        y = torch.zeros(x.shape[0], 3, dtype=x.dtype, device=x.device)
        counts = torch.zeros(4, dtype=torch.long)
        for e in range(4):
            rows, slot = (chosen == e).nonzero(as_tuple=True)
            counts[e] = len(rows)
            h = F.gelu(x[rows] @ self.up[e].t()) @ self.down[e].t()
            y.index_add_(0, rows, h * gate[rows, slot, None])
        share = counts.to(x.dtype) / counts.sum()
        return {"y": y, "aux": 4 * (share * p.mean(0)).sum(), "counts": counts, "chosen": chosen}


@case("top-2 routing with renormalised gates, an expert without rows, a balance loss and integer outputs beside")
def right_09():
    return TopTwo(), (torch.randn(7, 4),)


class BothWays(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 3, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2)

    def forward(self, x):
        return self.lstm(x)


@case("a bidirectional two-layer LSTM with dropout between layers; outputs (y, (h, c))")
def right_10():
    return BothWays(), (torch.randn(2, 4, 3),)


class PackedGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, last = self.gru(packed)
        y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        return self.out(y), last


@case("a GRU over packed sequences: the padded steps of the input have zero gradient")
def right_11():
    return PackedGRU(), (torch.randn(4, 5, 3, requires_grad=True), torch.tensor([5, 2, 4, 1]))


class ConvEnsemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = params(3, 4, 2, 3)
        self.bias = params(3, 4)

    def forward(self, x):
        members = torch.vmap(lambda w, b: F.gelu(F.conv1d(x, w, b, padding=1)))(self.weight, self.bias)
        return members.mean(0), (members.var(0) + 1e-2).log()


@case("an ensemble of convolutions by vmap over stacked parameters; mean and log variance as outputs")
def right_12():
    return ConvEnsemble(), (torch.randn(2, 2, 6),)


class SpectralFilter(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.gain = params(8)

    def forward(self, x):
        spectrum = torch.fft.rfft(x * self.gain) * self.filter
        return torch.fft.irfft(spectrum, n=8), torch.view_as_real(spectrum)[..., :2, :]


@case("a complex parameter in the frequency domain, with the imaginary part at zero frequency without effect on one output", EITHER_RIGHT)
def right_13():
    return SpectralFilter(), (torch.randn(4, 8),)


class OrderedAverage(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 6)
        self.weights = params(6)

    def forward(self, x):
        ordered, order = torch.sort(3 * self.inner(x), -1, descending=True)
        level = torch.softmax(self.weights, 0).flip(0).cumsum(0)
        return ordered @ level, torch.logcumsumexp(ordered, -1), order


@case("ordered weighted averages: sort, flip, cumsum, logcumsumexp, and the integer order as an output")
def right_14():
    return OrderedAverage(), (torch.randn(5, 3),)


class GraphAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Linear(4, 4)
        self.score = nn.Linear(8, 1)
        self.register_buffer("edges", torch.tensor([[0, 1, 1, 2, 3, 3, 3, 4, 0, 0], [1, 0, 2, 1, 0, 1, 4, 3, 3, 3]]))

    def forward(self, x):
        source, target = self.edges
        v = self.value(x)
        score = torch.tanh(self.score(torch.cat((v[source], v[target]), -1))[:, 0]) * 3
        empty = torch.full((x.shape[0],), -1e9, dtype=x.dtype, device=x.device)
        # The shift cancels in the quotient, so that detaching it changes no gradient.
        top = empty.scatter_reduce(0, target, score.detach(), "amax")
        weight = torch.exp(score - top[target])
        total = torch.zeros_like(empty).index_add(0, target, weight)
        return torch.zeros_like(v).index_add(0, target, v[source] * (weight / total[target])[:, None])


@case("attention over a graph with double edges: gather, scatter and a detached shift that cancels")
def right_15():
    return GraphAttention(), (torch.randn(5, 4),)


class FloatMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(4, 1)
        self.value = nn.Linear(4, 3)

    def forward(self, x, mask):
        keep = mask > 0.5
        z = self.score(x)[..., 0].masked_fill(~keep, float("-inf"))
        nothing = ~keep.any(-1, keepdim=True)
        p = torch.softmax(z.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
        return (p[..., None] * self.value(x)).sum(1)


@case("a masked softmax whose mask is a float tensor compared with 0.5; one row is masked entirely and yields zero")
def right_16():
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0]]).float()
    return FloatMask(), (torch.randn(4, 4, 4), mask)


class _FusedLoss(Function):
    """Computes its gradients in the forward, chunk by chunk, and scales them in the backward."""

    @staticmethod
    def forward(ctx, x, w, labels):
        dx, dw, loss = torch.empty_like(x), torch.zeros_like(w), x.new_zeros(())
        count = (labels >= 0).sum()
        for rows in torch.arange(x.shape[0]).split(3):
            logp = torch.log_softmax(x[rows] @ w.t(), -1)
            valid = (labels[rows] >= 0).to(x.dtype)[:, None]
            target = F.one_hot(labels[rows].clamp_min(0), w.shape[0]).to(x.dtype)
            loss -= (logp * target * valid).sum() / count
            dz = (logp.exp() - target) * valid / count
            dx[rows] = dz @ w
            dw += dz.t() @ x[rows]
        ctx.save_for_backward(dx, dw)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, dloss):
        dx, dw = ctx.saved_tensors
        return dx * dloss, dw * dloss, None


class FusedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 5)
        self.head = params(6, 5)

    def forward(self, x, labels):
        return _FusedLoss.apply(torch.tanh(self.trunk(x)), self.head, labels)


@case("linear layer and cross-entropy fused, gradients computed in the forward and scaled in the backward; ignored labels")
def right_17():
    return FusedLoss(), (torch.randn(8, 4), torch.tensor([1, 5, -100, 0, 2, 2, -100, 4]))


@dataclass
class Decision:
    logits: torch.Tensor
    value: torch.Tensor
    choice: torch.Tensor
    hidden: Any = None
    label: str = "decision"


class DecisionNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU())
        self.policy = nn.Linear(8, 3)
        self.value = nn.Linear(8, 1)

    def forward(self, x):
        h = self.trunk(x)
        logits = self.policy(h)
        return Decision(logits, self.value(h)[:, 0].exp(), logits.argmax(-1))


@case("a dataclass output with an integer field, None and a string")
def right_18():
    return DecisionNet(), (torch.randn(6, 5),)


class Distil(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(4, 3).requires_grad_(False)
        self.student = nn.Linear(4, 3)
        self.deploy = nn.Linear(3, 3)  # used in eval mode only

    def forward(self, x):
        z = self.student(x)
        if not self.training:
            return self.deploy(z)
        goal = torch.softmax(self.teacher(x) / 2, -1)
        return {"logits": z, "loss": F.kl_div(F.log_softmax(z / 2, -1), goal, reduction="batchmean")}


@case("a frozen teacher, and a layer that only eval mode uses: without gradient in training by design", EITHER_RIGHT)
def right_19():
    return Distil(), (torch.randn(6, 4),)


class Scales(nn.Module):
    def __init__(self, centre, spread):
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("spread", spread)
        self.weight = params(4, 4)

    def forward(self, x):
        return torch.tanh(((x - self.centre) / self.spread) @ self.weight.t())


@case("features of size 1.7e7, 1 and 1e-6 side by side, standardised by buffers", relative_step=True)
def right_20():
    spread = torch.tensor([8.5e6, 1.0, 1e-6, 300.0])
    centre = torch.tensor([1.7e7, 0.0, 2e-6, -40.0])
    return Scales(centre, spread), ((torch.randn(6, 4) * spread + centre).requires_grad_(),)


class ViewOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 6)

    def forward(self, x):
        h = self.inner(x).sin()
        return h[:, :2].t(), h.unsqueeze(0).expand(2, -1, -1), h.view(-1, 2, 3)[:, 1], h


@case("four outputs that are views of one tensor: transposed, expanded, sliced, whole")
def right_21():
    return ViewOutputs(), (torch.randn(5, 4),)


class MovingCentre(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 5)
        self.register_buffer("centre", 0.5 * torch.randn(5))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        h = self.inner(x)
        y = torch.softmax((h - self.centre) / 0.4, -1)
        if self.training:
            with torch.no_grad():
                self.centre.lerp_(h.mean(0), 0.3)
                self.steps += 1
        return y


@case("outputs are centred by a running mean that each training forward moves (DINO)", EITHER_RIGHT)
def right_22():
    return MovingCentre(), (torch.randn(6, 4) + 0.5,)


class _Times(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return dy * ctx.factor, None


class ScaledLogits(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = _Times.apply(torch.tanh(self.inner(x)), 1024.0)
        return -_Times.apply(self.head(h), -1 / 1024 / 8**0.5)


@case("factors of 1024 and -1/2896 in forward and backward alike, part of the function")
def right_23():
    return ScaledLogits(), (torch.randn(6, 4, requires_grad=True),)


class _Tridiagonal(Function):
    @staticmethod
    def forward(ctx, x, diagonal, off):
        matrix = np.diag(diagonal.detach().numpy()) + np.diag(off.detach().numpy(), 1) - np.diag(off.detach().numpy(), -1)
        y = np.linalg.solve(matrix, x.detach().numpy().T).T.astype(x.detach().numpy().dtype)
        ctx.matrix, ctx.y = matrix, y.copy()
        return torch.from_numpy(np.ascontiguousarray(y))

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        adjoint = np.linalg.solve(ctx.matrix.T, dy.numpy().T).T
        d_diagonal = -(adjoint * ctx.y).sum(0)
        d_off = -(adjoint[:, :-1] * ctx.y[:, 1:]).sum(0) + (adjoint[:, 1:] * ctx.y[:, :-1]).sum(0)
        return tuple(torch.from_numpy(np.array(g, dy.numpy().dtype)) for g in (adjoint, d_diagonal, d_off))


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_diagonal = params(6, scale=0.2)
        self.off = params(5, scale=0.3)
        self.source = nn.Linear(4, 6)

    def forward(self, x):
        return _Tridiagonal.apply(self.source(x), 1 + self.log_diagonal.exp(), self.off)


@case("a linear solve by numpy with its adjoint solve, for x and for the matrix's bands")
def right_24():
    return Diffusion(), (torch.randn(5, 4),)


def _note_norm(module, grad_input, grad_output):
    module.last_norm = float(sum(g.detach().abs().double().square().sum() for g in grad_output if g is not None)) ** 0.5


def _copy_output(module, args, output):
    return output.clone()


class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 6)
        self.b = nn.Linear(6, 6)
        self.c = nn.Linear(6, 2)
        self.seen = 0
        self.b.register_full_backward_hook(_note_norm)
        self.a.register_forward_hook(_copy_output)
        self.c.weight.register_hook(self._count)

    def _count(self, gradient):
        self.seen += 1

    def forward(self, x):
        h = torch.tanh(self.b(torch.tanh(self.a(x))))
        if h.requires_grad:
            h.register_hook(lambda g: g.clone())
        return self.c(h)


@case("hooks everywhere that record, count and copy, but change no gradient", EITHER_RIGHT)
def right_25():
    return Watched(), (torch.randn(6, 4),)


class Parametrised(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="matrix_exp")
        self.scale = parametrizations.weight_norm(nn.Linear(4, 3))

    def forward(self, x):
        return self.scale(torch.tanh(self.turn(x)))


@case("an orthogonal weight by matrix_exp (half of its raw entries have no effect) and weight normalisation")
def right_26():
    return Parametrised(), (torch.randn(6, 4),)


class _ThriftySwiGLU(Function):
    @staticmethod
    def forward(ctx, x, wg, wu, wd):
        ctx.save_for_backward(x, wg, wu, wd)
        return (F.silu(x @ wg.t()) * (x @ wu.t())) @ wd.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, wg, wu, wd = ctx.saved_tensors
        g, u = x @ wg.t(), x @ wu.t()
        s = torch.sigmoid(g)
        dh = dy @ wd
        dg, du = dh * u * s * (1 + g * (1 - s)), dh * g * s
        dx = torch.addmm(dg @ wg, du, wu) if ctx.needs_input_grad[0] else None
        return dx, dg.t() @ x, du.t() @ x, dy.t() @ (g * s * u)


class ThriftySwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = params(6, 4)
        self.up = params(6, 4)
        self.down = params(4, 6)

    def forward(self, x):
        return x + _ThriftySwiGLU.apply(x, self.gate, self.up, self.down)


@case("SwiGLU that keeps only its inputs and recomputes the rest")
def right_27():
    return ThriftySwiGLU(), (torch.randn(6, 4),)


def _couple(w, b, x):
    return torch.tanh(x @ w.t() + b)


class _Reversible(Function):
    @staticmethod
    def forward(ctx, x1, x2, wf, bf, wg, bg):
        y1 = x1 + _couple(wf, bf, x2)
        y2 = x2 + _couple(wg, bg, y1)
        ctx.save_for_backward(y1, y2, wf, bf, wg, bg)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx, dy1, dy2):
        y1, y2, wf, bf, wg, bg = (t.detach() for t in ctx.saved_tensors)
        with torch.enable_grad():
            leaves = [t.clone().requires_grad_() for t in (wg, bg, y1)]
            g = _couple(*leaves)
            dwg, dbg, through = torch.autograd.grad(g, leaves, dy2)
            x2 = y2 - g.detach()
            d1 = dy1 + through
            leaves = [t.clone().requires_grad_() for t in (wf, bf, x2)]
            f = _couple(*leaves)
            dwf, dbf, through = torch.autograd.grad(f, leaves, d1)
        return d1, dy2 + through, dwf, dbf, dwg, dbg


class Reversible(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.g = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        a, b = x.chunk(2, -1)
        for f, g in zip(self.f, self.g):
            a, b = _Reversible.apply(a, b, f.weight, f.bias, g.weight, g.bias)
        return torch.cat((a, b), -1)


@case("reversible residual blocks that reconstruct their inputs from their outputs in the backward")
def right_28():
    return Reversible(), (torch.randn(5, 8, requires_grad=True),)


class _LogProbability(Function):
    @staticmethod
    def forward(ctx, z, chosen):
        ctx.set_materialize_grads(False)
        lse = torch.logsumexp(z, -1)
        p = torch.exp(z - lse[:, None])
        entropy = lse - (p * z).sum(-1)
        ctx.save_for_backward(z, p, lse, entropy, chosen)
        rank = (z > z.gather(1, chosen[:, None])).sum(-1)
        ctx.mark_non_differentiable(rank)
        return z.gather(1, chosen[:, None])[:, 0] - lse, rank, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx, dlogp, drank, dentropy):
        z, p, lse, entropy, chosen = ctx.saved_tensors
        dz = torch.zeros_like(z)
        if dlogp is not None:
            dz = dz + dlogp[:, None] * (F.one_hot(chosen, z.shape[1]) - p)
        if dentropy is not None:
            dz = dz - dentropy[:, None] * p * (z - lse[:, None] + entropy[:, None])
        return dz, None


class PolicyHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 5)

    def forward(self, x, chosen):
        return _LogProbability.apply(self.inner(x), chosen)


@case("three outputs, the middle one an integer rank, with cotangents that may be None")
def right_29():
    return PolicyHead(), (torch.randn(6, 4), torch.tensor([0, 3, 4, 1, 1, 2]))


class _Equilibrium(Function):
    @staticmethod
    def forward(ctx, u, w):
        z = torch.zeros_like(u)
        for _ in range(300):
            after = torch.tanh(z @ w.t() + u)
            done = bool((after - z).abs().max() <= 4 * torch.finfo(u.dtype).eps)
            z = after
            if done:
                break
        ctx.save_for_backward(z, w)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, dz):
        z, w = ctx.saved_tensors
        slope = 1 - z * z
        jacobian = slope[:, :, None] * w
        eye = torch.eye(w.shape[0], dtype=w.dtype, device=w.device)
        adjoint = torch.linalg.solve((eye - jacobian).transpose(1, 2), dz[:, :, None])[:, :, 0]
        du = adjoint * slope
        return du, du.t() @ z


class Equilibrium(nn.Module):
    def __init__(self):
        super().__init__()
        self.inject = nn.Linear(3, 5)
        self.weight = params(5, 5, scale=0.15)

    def forward(self, x):
        return _Equilibrium.apply(self.inject(x), self.weight)


@case("a fixed point found by iteration, differentiated implicitly by a linear solve")
def right_30():
    return Equilibrium(), (torch.randn(5, 3),)


class GaussianProcess(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_length = nn.Parameter(torch.tensor([0.1, -0.2]))
        self.log_noise = nn.Parameter(torch.tensor(-0.7))

    def forward(self, x, y):
        scaled = x * torch.exp(-self.log_length)
        distance = (scaled[:, None] - scaled[None]).square().sum(-1)
        kernel = torch.exp(-0.5 * distance) + torch.exp(self.log_noise) * torch.eye(len(x), dtype=x.dtype, device=x.device)
        factor = torch.linalg.cholesky(kernel)
        alpha = torch.cholesky_solve(y[:, None], factor)[:, 0]
        return 0.5 * y @ alpha + factor.diagonal().log().sum()


@case("a Gaussian process's negative log likelihood: Cholesky, solve, log determinant; a scalar output")
def right_31():
    return GaussianProcess(), (torch.randn(6, 2), torch.randn(6))


@case("a plain MLP with LayerNorm held in bfloat16")
def right_32():
    net = nn.Sequential(nn.Linear(8, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 4))
    return net.bfloat16(), (torch.randn(10, 8).bfloat16(),)


class AutocastInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.norm = nn.LayerNorm(10)
        self.second = nn.Linear(10, 5)

    def forward(self, x, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.second(F.gelu(self.norm(self.first(x))))
        logits = logits.to(x.dtype)
        return {"loss": F.cross_entropy(logits, labels, label_smoothing=0.1), "logits": logits}


@case("float32 weights under the module's own bf16 autocast, with the loss outside of it", tolerance=0.06)
def right_33():
    return AutocastInside(), (torch.randn(8, 6), torch.randint(0, 5, (8,)))


class GroupedQuery(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(6, 16)
        self.kv = nn.Linear(6, 16)
        self.o = nn.Linear(16, 6)
        self.tables = {}

    def rotate(self, x):
        key = (x.shape[-2], x.dtype)
        if key not in self.tables:  # depends on length and dtype alone
            angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.3], dtype=torch.float64)
            self.tables[key] = (angle.cos().to(x.dtype), angle.sin().to(x.dtype))
        cos, sin = self.tables[key]
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (4, 4)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (4, 4)).transpose(1, 2).chunk(2, 1)
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
        return x + self.o(y.transpose(1, 2).flatten(2))


@case("grouped-query causal attention with rotary tables cached by length and dtype")
def right_34():
    return GroupedQuery(), (torch.randn(2, 4, 6),)


class StepsInside(nn.Module):
    lr = 1e-3

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.second = nn.Linear(5, 3)
        for p in self.parameters():
            p.register_post_accumulate_grad_hook(StepsInside.step)

    @staticmethod
    def step(p):
        with torch.no_grad():
            p.sub_(p.grad, alpha=StepsInside.lr)
        p.grad = None

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


@case("SGD steps inside the backward and drops each gradient", EITHER_RIGHT, collect="sgd", manners=("plain",), tolerance=1e-2)
def right_35():
    return StepsInside(), (torch.randn(6, 4),)


class Forces(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 6)
        self.outer = nn.Linear(6, 1)

    def forward(self, x):
        differentiated = torch.is_grad_enabled()
        with torch.enable_grad():
            at = x if x.requires_grad else x.detach().requires_grad_()
            energy = self.outer(torch.tanh(self.inner(at))).sum()
            (slope,) = torch.autograd.grad(energy, at, create_graph=differentiated)
        return {"energy": energy, "forces": -slope}


@case("forces: the output contains a derivative of the energy, taken inside the forward with create_graph", EITHER_RIGHT)
def right_36():
    return Forces(), (torch.randn(5, 3, requires_grad=True),)


class SparseTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)
        self.out = nn.Linear(4, 3)

    def forward(self, ids):
        return self.out(torch.tanh(self.table(ids)))


@case("nn.Embedding with sparse=True and repeated tokens", EITHER_RIGHT)
def right_37():
    return SparseTable(), (torch.tensor([[0, 3, 3, 5], [7, 0, 1, 9], [2, 3, 6, 1]]),)


class _MainGrad(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.w = w
        ctx.save_for_backward(x)
        return x @ w.t()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        w = ctx.w
        if getattr(w, "main_grad", None) is None:
            w.main_grad = torch.zeros(w.shape, dtype=torch.promote_types(w.dtype, torch.float32))
        w.main_grad.addmm_(dy.t().to(w.main_grad.dtype), x.to(w.main_grad.dtype))
        return dy @ w.detach(), None


class MainGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.weight = params(3, 4)
        self.weight.main_grad = torch.zeros(3, 4)

    def forward(self, x):
        return torch.tanh(_MainGrad.apply(self.norm(x), self.weight))


@case("a weight gradient added to main_grad by the kernel, .grad left None (Megatron)", EITHER_RIGHT, collect="main_grad", manners=("plain", "second_step"))
def right_38():
    return MainGrad(), (torch.randn(6, 4),)


class _RawSwish(Function):
    @staticmethod
    def forward(ctx, x, w):
        x, w = x.contiguous(), w.contiguous()
        y = torch.empty_like(x)
        a = _pointer(x.detach())
        np.copyto(_pointer(y), a / (1 + np.exp(-a)) * _pointer(w.detach()))
        ctx.save_for_backward(x, w)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dy = dy.contiguous()
        a, d, scale = _pointer(x), _pointer(dy), _pointer(w)
        s = 1 / (1 + np.exp(-a))
        dx, dw = torch.empty_like(x), torch.empty_like(w)
        np.copyto(_pointer(dx), d * scale * (s + a * s * (1 - s)))
        np.copyto(_pointer(dw), (d * a * s).sum(0))
        return dx, dw


class RawSwish(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.scale = nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x):
        return _RawSwish.apply(self.inner(x), self.scale)


def _raw_swish_reference(m, inputs):
    return F.silu(m.inner(inputs[0])) * m.scale


@case("a kernel by raw pointers that refuses all but float32, and is right there", EITHER_RIGHT, reference=_raw_swish_reference)
def right_39():
    return RawSwish(), (torch.randn(6, 4),)


class LowRank(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 5).requires_grad_(False)
        self.a = params(2, 6)
        self.b = nn.Parameter(torch.zeros(5, 2))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return torch.tanh(self.base(x) + 4.0 * F.linear(F.linear(self.drop(x), self.a), self.b))


@case("LoRA at its starting point, B = 0, where A's gradient is zero")
def right_40():
    return LowRank(), (torch.randn(7, 6),)


# ---------------------------------------------------------------------------------------------- the truth


def _wide(t):
    if t.is_complex():
        return t.to(torch.complex128)
    return t.to(torch.float64) if t.is_floating_point() else t


def _build(name, wide):
    module, inputs = globals()[name]()
    if wide:
        module._apply(_wide)
        inputs = tuple(_wide(t.detach()).requires_grad_(t.requires_grad) for t in inputs)
    return module, inputs


def _tensors(out):
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, dict):
        return [t for v in out.values() for t in _tensors(v)]
    if isinstance(out, (tuple, list)):
        return [t for v in out for t in _tensors(v)]
    if dataclasses.is_dataclass(out):
        return [t for f in dataclasses.fields(out) for t in _tensors(getattr(out, f.name))]
    return []


def _floating(out):
    return [t for t in _tensors(out) if t.is_floating_point() or t.is_complex()]


class _State:
    """Buffers, put back before each forward."""

    def __init__(self, module):
        self.kept = [(b, b.detach().clone()) for b in module.buffers()]

    def restore(self):
        with torch.no_grad():
            for b, value in self.kept:
                if not torch.equal(b, value):
                    b.data.copy_(value)  # unseen by autograd's version counter


def _forward(module, inputs, state, reference=None, seed=5):
    state.restore()
    torch.manual_seed(seed)
    return _floating(reference(module, inputs) if reference else module(*inputs))


def _trained(module, inputs):
    """What is judged: trainable parameters, and floating inputs that require a gradient."""
    named = {n: p for n, p in module.named_parameters() if p.requires_grad}
    named |= {f"input {i}": t for i, t in enumerate(inputs) if t.requires_grad}
    return named


def _project(outputs, cotangents):
    total = 0.0
    for y, c in zip(outputs, cotangents):
        if c is not None:
            total = total + (y.detach().to(c.dtype) * c.conj()).real.sum() if c.is_complex() else total + (y.detach().double() * c).sum()
    return float(total)


def _cotangents(outputs, manner):
    generator = torch.Generator().manual_seed(99)
    chosen = []
    for i, y in enumerate(outputs):
        c = torch.randn(y.shape, generator=generator, dtype=torch.float64) / max(y.numel(), 1) ** 0.5
        c = c.to(torch.bfloat16).double()  # exact in every dtype
        if manner == "expanded":
            c = torch.ones(y.shape, dtype=torch.float64)
        chosen.append(None if manner == "first_output" and i > 0 else c)
    return chosen


def _differences(module, inputs, cotangents, evidence):
    """Four-point central differences of the projected forward, entry by entry, in float64."""
    state = _State(module)
    found = {}

    def value():
        with torch.no_grad():
            return _project(_forward(module, inputs, state, evidence.reference), cotangents)

    def slope(t, index, unit, h):
        old = t.data[index].clone()
        values = []
        for k in (-2, -1, 1, 2):
            t.data[index] = old + k * h * unit
            values.append(value())
        t.data[index] = old
        return (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)

    for name, t in _trained(module, inputs).items():
        g = torch.zeros_like(t.detach(), memory_format=torch.contiguous_format)
        for index in np.ndindex(*t.shape):
            h = evidence.step * (max(abs(t.data[index].item()), 1e-12) if evidence.relative_step else 1.0)
            g[index] = slope(t, index, 1, h)
            if t.is_complex():
                g[index] += 1j * slope(t, index, 1j, h)
        found[name] = g
    state.restore()
    return found


def _back(outputs, cotangents, manner, retain=False):
    pairs = [(y, c) for y, c in zip(outputs, cotangents) if c is not None and y.requires_grad]
    if manner == "expanded":
        sum(y.sum() for y, _ in pairs).backward(retain_graph=retain)
        return
    given = []
    for y, c in pairs:
        c = c.to(y.dtype)
        if manner == "transposed" and c.dim() >= 2:
            c = c.transpose(-1, -2).contiguous().transpose(-1, -2)
        if manner == "strided" and c.dim() >= 1:
            c = torch.stack((c, torch.full_like(c, 7.0)), -1)[..., 0]
        given.append(c)
    torch.autograd.backward([y for y, _ in pairs], given, retain_graph=retain)


def _move(module, inputs, seed=31):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for t in list(module.parameters()) + [t for t in inputs if t.is_floating_point()]:
            if not t.is_floating_point():
                continue
            binary = bool(((t == 0) | (t == 1)).all()) and not isinstance(t, nn.Parameter)
            if binary:
                continue
            noise = torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype)
            moved = torch.where(t == 0, 0.2 * noise, t * (1 + 0.05 * noise))
            t.data.copy_(moved)


def _clear(module, inputs):
    for t in list(module.parameters()) + list(inputs):
        t.grad = None
        if getattr(t, "main_grad", None) is not None:
            t.main_grad = None


def _gradients(module, inputs, cotangents, manner, collect="grad"):
    """The module's own gradients, called in the given manner."""
    state = _State(module)
    named = _trained(module, inputs)
    _clear(module, inputs)
    before = {n: t.detach().clone() for n, t in named.items()}
    if manner in ("two_fifo", "two_lifo"):
        others = tuple(t.detach().flip(0).mul(1.1).requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in inputs)
        first = _forward(module, inputs, state)
        second = _forward(module, others, state, seed=6)
        if manner == "two_lifo":
            _back(second, cotangents, "plain")
            _clear(module, inputs)
        _back(first, cotangents, "plain")
    elif manner == "retained":
        outputs = _forward(module, inputs, state)
        _back(outputs, cotangents, "plain", retain=True)
        _clear(module, inputs)
        _back(outputs, cotangents, "plain")
    elif manner == "second_step":
        for _ in range(2):
            _clear(module, inputs)
            _back(_forward(module, inputs, state), cotangents, "plain")
    elif manner == "accumulate":
        generator = torch.Generator().manual_seed(3)
        start = {n: torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for n, t in named.items()}
        for n, t in named.items():
            t.grad = start[n].clone()
        _back(_forward(module, inputs, state), cotangents, "plain")
        return {n: t.grad.to_dense() - start[n] for n, t in named.items()}
    else:
        _back(_forward(module, inputs, state), cotangents, manner)
    found = {}
    for n, t in named.items():
        g = t.grad
        if collect == "main_grad" and g is None:
            g = t.main_grad
        if collect == "sgd" and g is None:
            g = (before[n] - t.detach()) / StepsInside.lr
            t.data.copy_(before[n])
        found[n] = torch.zeros_like(t.detach()) if g is None else g.detach().to_dense()
    return found


def _error(found, truth, floor=1e-3, least=1e-3):
    """The largest relative error over tensors, with its name."""
    largest = max(float(g.abs().double().norm()) for g in truth.values())
    worst = (0.0, "")
    for n, g in truth.items():
        scale = max(float(g.abs().double().norm()), floor * largest, least)
        difference = float((_wide(found[n]) - g).abs().norm()) / scale
        if not difference <= worst[0]:
            worst = (difference, n)
    return worst


def _arranged(name, wide, manner):
    """A fresh module, in the state in which the manner finds it."""
    module, inputs = _build(name, wide)
    if manner == "eval":
        module.eval()
    if manner == "one_row":
        inputs = tuple(t.detach()[:1].clone().requires_grad_(t.requires_grad) for t in inputs)
    if manner == "inputs_only":
        module.requires_grad_(False)
        inputs = tuple(t.detach().requires_grad_(t.is_floating_point()) for t in inputs)
    if manner == "params_only":
        inputs = tuple(t.detach() for t in inputs)
    if manner == "all_inputs":
        inputs = tuple(t.detach().requires_grad_(t.is_floating_point()) for t in inputs)
    return module, inputs


def _compare(name, manner, wide, truths):
    """(error, tensor): the module in its own dtype, or in float64, against differences in float64."""
    evidence = EVIDENCE[name]
    changes = {"eval", "one_row", "moved", "expanded", "first_output", "inputs_only", "params_only", "all_inputs"}
    key = manner if manner in changes else "plain"

    module, inputs = _arranged(name, wide, key)
    if manner == "moved":  # after a first step where it was
        state = _State(module)
        outputs = _forward(module, inputs, state)
        _back(outputs, _cotangents(outputs, "plain"), "plain")
        state.restore()
        _move(module, inputs)
    with torch.no_grad():
        state = _State(module)
        outputs = _forward(module, inputs, state)
        state.restore()
    cotangents = _cotangents(outputs, key)
    if (key, wide) not in truths:
        exact, exact_inputs = _arranged(name, True, key)
        with torch.no_grad():  # the very values of this dtype
            for a, b in zip(exact.parameters(), module.parameters()):
                a.data.copy_(b)
            for a, b in zip(exact_inputs, inputs):
                a.data.copy_(b)
        truths[key, wide] = _differences(exact, exact_inputs, cotangents, evidence)
        if not wide:
            state = _State(exact)
            with torch.no_grad():
                for y, z in zip(outputs, _forward(exact, exact_inputs, state, evidence.reference)):
                    own = float((_wide(y) - z).abs().norm()) / max(float(z.abs().norm()), 1e-30)
                    low = y.dtype == torch.bfloat16 or evidence.threshold == 0.1 or evidence.tolerance == 0.06
                    assert own < (0.05 if low else 1e-4), f"{name}: the forward differs from float64's by {own:.2g}"
    found = _gradients(module, inputs, cotangents, manner, evidence.collect)
    if evidence.relative_step:  # gradients of very different sizes
        return _error(found, truths[key, wide], floor=0.0, least=1e-30)
    return _error(found, truths[key, wide])


ALL_MANNERS = (
    "plain", "all_inputs", "params_only", "inputs_only", "transposed", "strided", "expanded", "first_output",
    "two_fifo", "two_lifo", "retained", "second_step", "accumulate", "moved", "eval", "one_row",
)  # fmt: skip


def _check_wrong(name):
    evidence, truths = EVIDENCE[name], {}
    error, tensor = _compare(name, evidence.manner, False, truths)
    assert error >= evidence.threshold, f"{name}: no fault when called {evidence.manner}: {error:.3g} ({tensor})"
    if evidence.sound64:
        sound, where = _compare(name, "plain", True, truths)
        assert sound < 1e-6, f"{name}: wrong in float64 already: {sound:.3g} ({where})"
    if evidence.sound_plain:
        sound, where = _compare(name, "plain", False, truths)
        assert sound < 1e-3, f"{name}: wrong when called plainly: {sound:.3g} ({where})"
    return f"{evidence.manner}: {tensor} off by {error:.3g}"


def _check_right(name):
    evidence, truths = EVIDENCE[name], {}
    low = any(p.dtype == torch.bfloat16 for p in _build(name, False)[0].parameters())
    tolerance = evidence.tolerance or (0.05 if low else 1e-4)
    error, tensor = _compare(name, "plain", False, truths)
    assert error < tolerance, f"{name}: {tensor} off by {error:.3g} in its own dtype"
    told, skipped = f"own dtype {error:.1e}", []
    wide = evidence.reference is None
    worst = 0.0
    for manner in evidence.manners or ALL_MANNERS:
        if manner == "inputs_only" and not any(t.is_floating_point() for t in _build(name, False)[1]):
            continue
        try:
            error, tensor = _compare(name, manner, wide, truths)
        except (RuntimeError, ValueError, IndexError) as refusal:
            assert manner in ("one_row", "eval", "first_output", "all_inputs"), f"{name}, {manner}: {refusal}"
            skipped.append(f"{manner} ({str(refusal)[:40]})")
            continue
        assert error < (evidence.tolerance64 if wide else tolerance), f"{name}: {tensor} off by {error:.3g}, called {manner}"
        worst = max(worst, error)
    return f"{told}, float64 in all manners {worst:.1e}" + (f", refuses {skipped}" if skipped else "")


def check(verbose=True):
    torch.set_num_threads(1)
    names = [c.name for c in CASES]
    assert len(set(names)) == 80
    assert sum(c.truth == "wrong" for c in CASES) == sum(c.truth == "right" for c in CASES) == 40
    for c in CASES:
        assert c.truth in ("wrong", "right") and c.why and isinstance(c.options, dict)
        assert c.expected and set(c.expected) <= {"proven", "refuted", "inconclusive"}
        assert ("refuted" in c.expected) == (c.truth == "wrong") and not (c.truth == "wrong" and "proven" in c.expected)
        module, inputs = globals()[c.name]()
        again, inputs_again = globals()[c.name]()
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(inputs, inputs_again))
        assert isinstance(inputs, tuple) and sum(t.numel() for t in inputs) <= 500
        for module, inputs in ((again, inputs_again), (module, inputs)):  # the first may import parts of torch
            started = time.perf_counter()
            outputs = [y for y in _floating(module(*inputs)) if y.requires_grad]
            torch.autograd.backward(outputs, [torch.randn(y.shape).to(y.dtype) for y in outputs])
            took = time.perf_counter() - started
        assert took < 1, f"{c.name} took {took:.2f} s"
        shown = (_check_wrong if c.truth == "wrong" else _check_right)(c.name)
        if verbose:
            print(f"{c.name}  {shown}  [{time.perf_counter() - started:.1f} s]", flush=True)
    print(f"check: {len(CASES)} cases, all as stated")


if __name__ == "__main__":
    check()
