"""A sealed set for issue 19: 40 wrong and 40 right modules, written without sight of the tool that will judge them.

Grading: a wrong module counts as missed when it is called proven; a right module counts as refuted when the status is
refuted. `expected` lists the acceptable statuses; "inconclusive" stands there only where the honest answer may be that.

Each `wrong_NN()` and `right_NN()` takes nothing and returns `(module, inputs)`. `CASES` says what is wrong, or why it is
right although it looks odd. `python modules_19.py` runs `check()`, which establishes the truth of every case against a
plain implementation (autograd of ordinary torch operations, in float64) in all ways of calling that the issue lists, and
for the right ones against central differences in float64 as well.

Shapes: T rows, I in, O out, D width, H hidden, S sequence, V vocabulary, E experts, C classes, L length.
"""

import contextlib
import copy
import ctypes
import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.autograd import Function

# ----------------------------------------------------------------------------------------------------------------------
# small things shared by the cases


@contextlib.contextmanager
def seeded(seed: int):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def par(*shape: int, scale: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * scale)


def away_from(x: Tensor, *points: float, gap: float = 0.15) -> Tensor:
    """x with entries near any of `points` pushed away from them."""
    for point in points:
        near = (x - point).abs() < gap
        x = torch.where(near, point + torch.where(x >= point, 1.0, -1.0) * (gap + (x - point).abs()), x)
    return x


def gelu_parts(z: Tensor) -> tuple[Tensor, Tensor]:
    c = math.sqrt(2 / math.pi)
    t = torch.tanh(c * (z + 0.044715 * z**3))
    return 0.5 * z * (1 + t), 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * c * (1 + 3 * 0.044715 * z * z)


def main_grad_of(name: str, parameter: nn.Parameter) -> Tensor:
    """Where the gradient of a parameter went, for modules in the manner of Megatron."""
    sink = getattr(parameter, "main_grad", None)
    if sink is not None:
        return sink
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


# ----------------------------------------------------------------------------------------------------------------------
# wrong


class TailGelu(Function):
    @staticmethod
    def forward(ctx, x, w, b):
        z = x @ w.t() + b
        ctx.save_for_backward(x, w, z)
        return gelu_parts(z)[0]

    @staticmethod
    def backward(ctx, dy):
        x, w, z = ctx.saved_tensors
        slope = gelu_parts(z)[1]
        if z.dtype == torch.float32:
            slope = torch.where(z < -1.2, torch.zeros_like(slope), slope)
        dz = dy * slope
        return dz @ w, dz.t() @ x, dz.sum(0)


class TailGeluNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b, self.out = par(12, 6, scale=0.7), par(12, scale=0.3), nn.Linear(12, 4)

    def forward(self, x):
        return self.out(TailGelu.apply(x, self.w, self.b))


def wrong_01():
    with seeded(101):
        return TailGeluNet(), (torch.randn(9, 6),)


def plain_wrong_01(m, x):
    return m.out(F.gelu(x @ m.w.t() + m.b, approximate="tanh"))


class TiledRms(Function):
    TILE = 4

    @staticmethod
    def forward(ctx, x, g):
        rms = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(x, g, rms)
        return x * rms * g

    @staticmethod
    def backward(ctx, dy):
        x, g, rms = ctx.saved_tensors
        n = x * rms
        dn = dy * g
        dx = rms * (dn - n * (dn * n).mean(-1, keepdim=True))
        if x.dtype == torch.float64:
            return dx, (dy * n).sum(0)
        dg = torch.zeros_like(g)
        rows = x.shape[0]
        for start in range(0, max(rows - rows % TiledRms.TILE, TiledRms.TILE), TiledRms.TILE):
            dg += (dy[start : start + TiledRms.TILE] * n[start : start + TiledRms.TILE]).sum(0)
        return dx, dg


class TiledRmsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.g, self.out = nn.Linear(5, 8), par(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(TiledRms.apply(self.inp(x), self.g))


def wrong_02():
    with seeded(102):
        return TiledRmsNet(), (torch.randn(10, 5),)


def plain_wrong_02(m, x):
    h = m.inp(x)
    return m.out(h / torch.sqrt(h.square().mean(-1, keepdim=True) + 1e-6) * m.g)


class BesselBias(Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return torch.addmm(b, x, w.t())

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        db = dy.sum(0)
        rows = dy.shape[0]
        if dy.dtype == torch.float32 and rows > 1:
            db = db * (rows / (rows - 1))
        return dy @ w, dy.t() @ x, db


class BesselNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(3, 8)
        self.w, self.b = par(3, 16, scale=0.25), par(3, scale=0.1)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(F.silu(BesselBias.apply(h, self.w, self.b)))


def wrong_03():
    with seeded(103):
        return BesselNet(), (torch.randn(101, 6),)


def plain_wrong_03(m, x):
    return m.last(F.silu(F.linear(torch.tanh(m.first(x)), m.w, m.b)))


class HalfSoftmax(Function):
    @staticmethod
    def forward(ctx, z):
        p = torch.softmax(z, -1)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, dp):
        (p,) = ctx.saved_tensors
        if p.dtype == torch.bfloat16:
            return p * dp
        return p * (dp - (p * dp).sum(-1, keepdim=True))


class MixBySoftmax(nn.Module):
    kernel = HalfSoftmax

    def __init__(self):
        super().__init__()
        self.score, self.value = par(10, 8, scale=0.4), par(10, 5)

    def forward(self, x):
        return self.kernel.apply(x @ self.score.t()) @ self.value


def wrong_04():
    with seeded(104):
        return MixBySoftmax(), (torch.randn(16, 8),)


def plain_wrong_04(m, x):
    return torch.softmax(x @ m.score.t(), -1) @ m.value


class AutocastHalves(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.low = torch.is_autocast_enabled("cpu")
        if ctx.low:
            xl, wl = x.bfloat16(), w.bfloat16()
            ctx.save_for_backward(x, w, xl, wl)
            return xl @ wl.t()
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, dy):
        if not ctx.low:
            x, w = ctx.saved_tensors
            return dy @ w, dy.t() @ x
        x, w, xl, wl = ctx.saved_tensors
        dy = dy.bfloat16()
        half = (dy.shape[0] + 1) // 2
        dw = dy[:half].float().t() @ xl[:half].float()
        return (dy @ wl).to(x.dtype), dw.to(w.dtype)


class AutocastNet(nn.Module):
    kernel = AutocastHalves

    def __init__(self):
        super().__init__()
        self.w, self.norm, self.out = par(16, 8, scale=0.3), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.out(F.gelu(self.norm(self.kernel.apply(x, self.w).to(x.dtype))))


def wrong_05():
    with seeded(105):
        return AutocastNet(), (torch.randn(16, 8),)


def plain_wrong_05(m, x):
    return m.out(F.gelu(m.norm(x @ m.w.t())))


class ColumnsConv(Function):
    """Convolution over the last axis by columns [B, C, L, K]."""

    @staticmethod
    def forward(ctx, x, w):
        k = w.shape[-1]
        ctx.save_for_backward(x, w)
        return torch.einsum("bclk,ock->bol", x.unfold(2, k, 1), w)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        k = w.shape[-1]
        dx = None
        columns = x.new_zeros(x.shape[0], x.shape[1], dy.shape[2], k)
        if ctx.needs_input_grad[0]:
            columns.copy_(x.unfold(2, k, 1))
            dcolumns = torch.einsum("bol,ock->bclk", dy, w)
            dx = torch.zeros_like(x)
            for tap in range(k):
                dx[:, :, tap : tap + dy.shape[2]] += dcolumns[..., tap]
        return dx, torch.einsum("bol,bclk->ock", dy, columns)


class FirstConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.out = par(6, 3, 4, scale=0.4), nn.Linear(6, 5)

    def forward(self, x):
        return self.out(torch.tanh(ColumnsConv.apply(x, self.w)).mean(-1))


def wrong_06():
    with seeded(106):
        return FirstConv(), (torch.randn(5, 3, 12),)


def plain_wrong_06(m, x):
    return m.out(torch.tanh(F.conv1d(x, m.w)).mean(-1))


class Modulate(Function):
    @staticmethod
    def forward(ctx, x, cond, w):
        ctx.save_for_backward(x, cond, w)
        return x * (1 + cond @ w.t())

    @staticmethod
    def backward(ctx, dy):
        x, cond, w = ctx.saved_tensors
        dgain, dw = dy, None
        if ctx.needs_input_grad[2]:
            dgain = dy * x
            dw = dgain.t() @ cond
        return dy * (1 + cond @ w.t()), dgain @ w, dw


class Film(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.gain = nn.Linear(5, 7), par(7, 4, scale=0.5)

    def forward(self, batch):
        return {"y": torch.sin(Modulate.apply(self.inp(batch["x"]), batch["cond"], self.gain))}


def wrong_07():
    with seeded(107):
        return Film(), ({"x": torch.randn(6, 5), "cond": torch.randn(6, 4)},)


def plain_wrong_07(m, batch):
    return {"y": torch.sin(m.inp(batch["x"]) * (1 + batch["cond"] @ m.gain.t()))}


class StackTanh(Function):
    """Keeps its activations on a stack of the module; right as long as backwards run in the reverse order."""

    @staticmethod
    def forward(ctx, x, w, stack):
        y = torch.tanh(x @ w.t())
        if any(ctx.needs_input_grad):
            stack.append((x.detach(), y.detach().clone()))
        ctx.stack, ctx.kept = stack, None
        ctx.save_for_backward(w)
        return y

    @staticmethod
    def backward(ctx, dy):
        if ctx.kept is None:
            ctx.kept = ctx.stack.pop()
        (w,), (x, y) = ctx.saved_tensors, ctx.kept
        dz = dy * (1 - y * y)
        return dz @ w, dz.t() @ x, None


class StackNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.out, self.stack = par(9, 6, scale=0.4), nn.Linear(9, 4), []

    def forward(self, x):
        return self.out(StackTanh.apply(x, self.w, self.stack))


def wrong_08():
    with seeded(108):
        return StackNet(), (torch.randn(7, 6),)


def plain_wrong_08(m, x):
    return m.out(torch.tanh(x @ m.w.t()))


class QueueSquare(Function):
    """First in, first out: right as long as backwards run in the order of the forwards."""

    @staticmethod
    def forward(ctx, z, queue):
        if any(ctx.needs_input_grad):
            queue.append(z.detach().clone())
        ctx.queue, ctx.kept = queue, None
        return z * torch.sigmoid(z)

    @staticmethod
    def backward(ctx, dy):
        if ctx.kept is None:
            ctx.kept = ctx.queue.popleft()
        s = torch.sigmoid(ctx.kept)
        return dy * (s + ctx.kept * s * (1 - s)), None


class QueueNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out, self.queue = nn.Linear(6, 10), nn.Linear(10, 3), deque()

    def forward(self, x):
        return self.out(QueueSquare.apply(self.inp(x), self.queue))


def wrong_09():
    with seeded(109):
        return QueueNet(), (torch.randn(8, 6) * 1.5,)


def plain_wrong_09(m, x):
    return m.out(F.silu(m.inp(x)))


class SpentSlope(Function):
    @staticmethod
    def forward(ctx, x, w):
        y = torch.tanh(x @ w.t())
        ctx.slope = 1 - y * y
        ctx.save_for_backward(x, w)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dz = ctx.slope.mul_(dy)  # saves one allocation
        return dz @ w, dz.t() @ x


class SpentNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.out = par(8, 5, scale=0.5), nn.Linear(8, 8)

    def forward(self, x):
        return self.out(SpentSlope.apply(x, self.w)) + x.sum(-1, keepdim=True)


def wrong_10():
    with seeded(110):
        return SpentNet(), (torch.randn(6, 5),)


def plain_wrong_10(m, x):
    return m.out(torch.tanh(x @ m.w.t())) + x.sum(-1, keepdim=True)


class UnitRows(Function):
    @staticmethod
    def forward(ctx, x, g):
        inverse = x.square().sum(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(x, g, inverse)
        return x * inverse * g

    @staticmethod
    def backward(ctx, dy):
        x, g, inverse = ctx.saved_tensors
        rows, width = dy.shape
        if dy.untyped_storage().nbytes() // dy.element_size() >= dy.storage_offset() + rows * width:
            dy = dy.as_strided((rows, width), (width, 1), dy.storage_offset())
        n = x * inverse
        dn = dy * g
        return inverse * (dn - n * (n * dn).sum(-1, keepdim=True)), (dy * n).sum(0)


class UnitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.g = nn.Linear(4, 6), par(6)

    def forward(self, x):
        return UnitRows.apply(self.inp(x), self.g)


def wrong_11():
    with seeded(111):
        return UnitNet(), (torch.randn(6, 4),)


def plain_wrong_11(m, x):
    h = m.inp(x)
    return h / torch.sqrt(h.square().sum(-1, keepdim=True) + 1e-6) * m.g


class PooledAttention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        p = torch.softmax(q @ k.t() / math.sqrt(q.shape[1]), -1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        dp = do @ v.t()
        if do.stride(0) == 0:  # pooled: every query has the same cotangent, so one row is enough
            inner = (p[:1] * dp[:1]).sum(-1, keepdim=True)
        else:
            inner = (p * dp).sum(-1, keepdim=True)
        ds = p * (dp - inner) / math.sqrt(q.shape[1])
        return ds @ k, ds.t() @ q, p.t() @ do


class PooledNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv = (par(6, 5, scale=0.6) for _ in range(3))

    def forward(self, x):
        return PooledAttention.apply(x @ self.wq.t(), x @ self.wk.t(), x @ self.wv.t()).sum(0)


def wrong_12():
    with seeded(112):
        return PooledNet(), (torch.randn(7, 5),)


def plain_wrong_12(m, x):
    q, k, v = x @ m.wq.t(), x @ m.wk.t(), x @ m.wv.t()
    return (torch.softmax(q @ k.t() / math.sqrt(6), -1) @ v).sum(0)


class AssignedGrad(Function):
    @staticmethod
    def forward(ctx, x, w, owner):
        ctx.owner = owner
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            ctx.owner.w.grad = dy.t() @ x
        return dy @ w, None, None


class AssignedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = par(7, 5, scale=0.5), par(7)

    def forward(self, x):
        return torch.tanh(AssignedGrad.apply(x, self.w, self) + self.b)


def wrong_13():
    with seeded(113):
        return AssignedNet(), (torch.randn(8, 5),)


def plain_wrong_13(m, x):
    return torch.tanh(x @ m.w.t() + m.b)


class AddedTwice(Function):
    @staticmethod
    def forward(ctx, x, g, owner):
        ctx.owner = owner
        ctx.save_for_backward(x, g)
        return x * g

    @staticmethod
    def backward(ctx, dy):
        x, g = ctx.saved_tensors
        dg = (dy * x).sum(0)
        if ctx.owner.g.grad is not None:
            ctx.owner.g.grad.add_(dg)
        return dy * g, dg if ctx.needs_input_grad[1] else None, None


class AddedTwiceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.g, self.out = par(6), nn.Linear(6, 6)

    def forward(self, x):
        return torch.sin(self.out(AddedTwice.apply(x, self.g, self)))


def wrong_14():
    with seeded(114):
        return AddedTwiceNet(), (torch.randn(5, 6),)


def plain_wrong_14(m, x):
    return torch.sin(m.out(x * m.g))


class SqueezedBias(Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w.t() + b

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy @ w, dy.t() @ x, dy.squeeze().sum(0).expand(w.shape[0])


class SqueezedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b, self.out = par(6, 4, scale=0.5), par(6), nn.Linear(6, 5)

    def forward(self, x):
        return self.out(torch.tanh(SqueezedBias.apply(x, self.w, self.b)))


def wrong_15():
    with seeded(115):
        return SqueezedNet(), (torch.randn(9, 4),)


def plain_wrong_15(m, x):
    return m.out(torch.tanh(x @ m.w.t() + m.b))


class GruCell(Function):
    """n = tanh(a_n + r·c_n), y = (1 − z)·n + z·h, with a = x Wiᵀ + bi and c = h Whᵀ + bh."""

    @staticmethod
    def forward(ctx, x, h, wi, wh, bi, bh, one_row_path):
        ar, az, an = (x @ wi.t() + bi).chunk(3, -1)
        cr, cz, cn = (h @ wh.t() + bh).chunk(3, -1)
        r, z = torch.sigmoid(ar + cr), torch.sigmoid(az + cz)
        n = torch.tanh(an + r * cn)
        ctx.one_row_path = one_row_path
        ctx.save_for_backward(x, h, wi, wh, r, z, n, cn)
        return (1 - z) * n + z * h

    @staticmethod
    def backward(ctx, dy):
        x, h, wi, wh, r, z, n, cn = ctx.saved_tensors
        dn = dy * (1 - z) * (1 - n * n)
        dz = dy * (h - n) * z * (1 - z)
        dr = dn * cn * r * (1 - r)
        da, dc = torch.cat((dr, dz, dn), -1), torch.cat((dr, dz, dn * r), -1)
        dh = dc @ wh
        if not (ctx.one_row_path and x.shape[0] == 1):
            dh = dh + dy * z
        return da @ wi, dh, da.t() @ x, dc.t() @ h, da.sum(0), dc.sum(0), None


class GruNet(nn.Module):
    def __init__(self, one_row_path: bool):
        super().__init__()
        self.wi, self.wh = par(15, 4, scale=0.5), par(15, 5, scale=0.5)
        self.bi, self.bh, self.one_row_path = par(15, scale=0.2), par(15, scale=0.2), one_row_path

    def forward(self, x, h):
        h = GruCell.apply(x, h, self.wi, self.wh, self.bi, self.bh, self.one_row_path)
        return GruCell.apply(x, h, self.wi, self.wh, self.bi, self.bh, self.one_row_path)


def plain_gru(m, x, h):
    for _ in range(2):
        h = torch.gru_cell(x, h, m.wi, m.wh, m.bi, m.bh)
    return h


def wrong_16():
    with seeded(116):
        return GruNet(one_row_path=True), (torch.randn(6, 4), torch.randn(6, 5))


class BatchNormFn(Function):
    @staticmethod
    def forward(ctx, x, g, b, mean, var, train, honest):
        if train:
            mean, var = x.mean(0), x.var(0, unbiased=False)
        rstd = (var + 1e-5).rsqrt()
        n = (x - mean) * rstd
        ctx.train_formula = train or not honest
        ctx.save_for_backward(n, g, rstd)
        return n * g + b

    @staticmethod
    def backward(ctx, dy):
        n, g, rstd = ctx.saved_tensors
        dn = dy * g
        if ctx.train_formula:
            dx = rstd * (dn - dn.mean(0) - n * (dn * n).mean(0))
        else:
            dx = rstd * dn
        return dx, (dy * n).sum(0), dy.sum(0), None, None, None, None


class BatchNormNet(nn.Module):
    def __init__(self, honest: bool):
        super().__init__()
        self.inp, self.out, self.honest = nn.Linear(5, 6), nn.Linear(6, 4), honest
        self.g, self.b = par(6), par(6)
        self.register_buffer("mean", torch.randn(6) * 0.3)
        self.register_buffer("var", torch.rand(6) + 0.5)

    def forward(self, x):
        h = self.inp(x)
        y = BatchNormFn.apply(h, self.g, self.b, self.mean.clone(), self.var.clone(), self.training, self.honest)
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(h.mean(0), 0.1)
                self.var.lerp_(h.var(0, unbiased=False), 0.1)
        return self.out(torch.tanh(y))


def plain_batchnorm(m, x):
    h = m.inp(x)
    mean, var = (h.mean(0), h.var(0, unbiased=False)) if m.training else (m.mean, m.var)
    return m.out(torch.tanh((h - mean) / torch.sqrt(var + 1e-5) * m.g + m.b))


def wrong_17():
    with seeded(117):
        return BatchNormNet(honest=False), (torch.randn(11, 5),)


class DropPath(Function):
    @staticmethod
    def forward(ctx, x, keep, train):
        mask = (torch.rand(x.shape[0], 1) < keep).to(x.dtype) if train else torch.ones(x.shape[0], 1, dtype=x.dtype)
        ctx.keep = keep
        ctx.save_for_backward(mask)
        return x * mask / keep if train else x.clone()

    @staticmethod
    def backward(ctx, dy):
        (mask,) = ctx.saved_tensors
        return dy * mask / ctx.keep, None, None


class DropPathNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.branch = nn.Linear(4, 6), nn.Linear(6, 6)

    def forward(self, x):
        h = self.inp(x)
        return h + DropPath.apply(F.silu(self.branch(h)), 0.75, self.training)


def wrong_18():
    with seeded(118):
        return DropPathNet(), (torch.randn(12, 4),)


def plain_wrong_18(m, x):
    h = m.inp(x)
    branch = F.silu(m.branch(h))
    if m.training:
        branch = branch * (torch.rand(x.shape[0], 1) < 0.75).to(x.dtype) / 0.75
    return h + branch


class LoraFn(Function):
    @staticmethod
    def forward(ctx, x, w, a, b, scale, scale_of_a):
        ctx.scale, ctx.scale_of_a = scale, scale_of_a
        ctx.save_for_backward(x, w, a, b)
        return x @ w.t() + (x @ a.t()) @ b.t() * scale

    @staticmethod
    def backward(ctx, dy):
        x, w, a, b = ctx.saved_tensors
        dh = dy @ b
        dx = dy @ w + dh @ a * ctx.scale
        return dx, dy.t() @ x, dh.t() @ x * ctx.scale_of_a, dy.t() @ (x @ a.t()) * ctx.scale, None, None


class Lora(nn.Module):
    def __init__(self, scale_of_a: float):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 6) * 0.4, requires_grad=False)
        self.a, self.b = par(2, 6, scale=0.5), nn.Parameter(torch.zeros(8, 2))
        self.scale_of_a = scale_of_a

    def forward(self, x):
        return torch.tanh(LoraFn.apply(x, self.w, self.a, self.b, 4.0, self.scale_of_a))


def plain_lora(m, x):
    return torch.tanh(x @ (m.w + 4.0 * m.b @ m.a).t())


def wrong_19():
    with seeded(119):
        return Lora(scale_of_a=1.0), (torch.randn(9, 6),)


class LayerNormFn(Function):
    @staticmethod
    def forward(ctx, x, g, b, full):
        rstd = (x.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
        n = (x - x.mean(-1, keepdim=True)) * rstd
        ctx.full = full
        ctx.save_for_backward(n, g, rstd)
        return n * g + b

    @staticmethod
    def backward(ctx, dy):
        n, g, rstd = ctx.saved_tensors
        dn = dy * g
        dx = dn - dn.mean(-1, keepdim=True)
        if ctx.full:
            dx = dx - n * (dn * n).mean(-1, keepdim=True)
        return dx * rstd, (dy * n).flatten(0, -2).sum(0), dy.flatten(0, -2).sum(0), None


class LayerScale(nn.Module):
    def __init__(self, full: bool):
        super().__init__()
        self.inp, self.full = nn.Linear(6, 6), full
        self.g, self.b, self.gamma = par(6), par(6), nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return torch.sin(x) + self.gamma * LayerNormFn.apply(self.inp(x), self.g, self.b, self.full)


def plain_layerscale(m, x):
    return torch.sin(x) + m.gamma * F.layer_norm(m.inp(x), (6,), m.g, m.b, 1e-5)


def wrong_20():
    with seeded(120):
        return LayerScale(full=False), (torch.randn(8, 6),)


class SquaredRelu(Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.clamp(min=0).square()

    @staticmethod
    def backward(ctx, dy):
        (z,) = ctx.saved_tensors
        return dy * z.clamp(min=0)


class SilentStart(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.zeros(10, 5)), nn.Parameter(torch.zeros(10))
        self.w2, self.skip = par(4, 10, scale=0.4), par(4, 5, scale=0.4)

    def forward(self, x):
        return SquaredRelu.apply(x @ self.w1.t() + self.b1) @ self.w2.t() + torch.tanh(x @ self.skip.t())


def wrong_21():
    with seeded(121):
        return SilentStart(), (torch.randn(12, 5),)


def plain_wrong_21(m, x):
    return F.relu(x @ m.w1.t() + m.b1).square() @ m.w2.t() + torch.tanh(x @ m.skip.t())


class ScoreAndPenalty(Function):
    @staticmethod
    def forward(ctx, z):
        lse = torch.logsumexp(z, -1)
        p = torch.softmax(z, -1)
        ctx.save_for_backward(p, lse)
        return p, lse.square().mean()

    @staticmethod
    def backward(ctx, dp, dpenalty):
        p, lse = ctx.saved_tensors
        return p * (dp - (p * dp).sum(-1, keepdim=True)) + dpenalty * lse[:, None] * p / lse.shape[0]


class Penalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(5, 7)

    def forward(self, x):
        return ScoreAndPenalty.apply(self.inp(x))


def wrong_22():
    with seeded(122):
        return Penalised(), (torch.randn(6, 5),)


def plain_wrong_22(m, x):
    z = m.inp(x)
    return torch.softmax(z, -1), torch.logsumexp(z, -1).square().mean()


class CutHighway(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.gate, self.out = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        h, t = torch.tanh(self.inp(x)), torch.sigmoid(self.gate(x))
        return {"y": self.out(t * h + (1 - t.data) * x.sum(-1, keepdim=True))}


def wrong_23():
    with seeded(123):
        return CutHighway(), (torch.randn(7, 5),)


def plain_wrong_23(m, x):
    h, t = torch.tanh(m.inp(x)), torch.sigmoid(m.gate(x))
    return {"y": m.out(t * h + (1 - t) * x.sum(-1, keepdim=True))}


class FrozenByAccident(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(5, 8), nn.Linear(8, 3)
        self.log_scale, self.shift = par(8, scale=0.3), par(8)

    def forward(self, x):
        h = self.inp(x)
        with torch.no_grad():
            scale = self.log_scale.exp()
        return self.out(torch.tanh(h * scale + self.shift))


def wrong_24():
    with seeded(124):
        return FrozenByAccident(), (torch.randn(6, 5),)


def plain_wrong_24(m, x):
    return m.out(torch.tanh(m.inp(x) * m.log_scale.exp() + m.shift))


class SparseLookup(Function):
    @staticmethod
    def forward(ctx, index, w, adds):
        ctx.adds = adds
        ctx.save_for_backward(index, w)
        return w[index]

    @staticmethod
    def backward(ctx, dy):
        index, w = ctx.saved_tensors
        rows = dy.reshape(-1, w.shape[1])
        unique, inverse = torch.unique(index.flatten(), return_inverse=True)
        values = rows.new_zeros(len(unique), w.shape[1])
        if ctx.adds:
            values.index_add_(0, inverse, rows)
        else:
            values[inverse] = rows
        return None, torch.sparse_coo_tensor(unique[None], values, w.shape, check_invariants=False), None


class SparseBag(nn.Module):
    def __init__(self, adds: bool):
        super().__init__()
        self.table, self.out, self.adds = par(40, 6), nn.Linear(6, 4), adds

    def forward(self, index):
        return self.out(torch.tanh(SparseLookup.apply(index, self.table, self.adds)).sum(1))


def plain_sparse_bag(m, index):
    return m.out(torch.tanh(m.table[index]).sum(1))


def wrong_25():
    with seeded(125):
        return SparseBag(adds=False), (torch.randint(0, 12, (6, 5)),)


@dataclass
class Graded:
    x: Tensor
    target: Tensor
    weight: Tensor


class WeightedCrossEntropy(Function):
    @staticmethod
    def forward(ctx, z, target, weight):
        nll = F.cross_entropy(z, target, reduction="none")
        total = weight.sum()
        loss = (weight * nll).sum() / total
        ctx.save_for_backward(z, target, weight, nll, total)
        return loss

    @staticmethod
    def backward(ctx, dloss):
        z, target, weight, nll, total = ctx.saved_tensors
        dz = torch.softmax(z, -1) - F.one_hot(target, z.shape[1])
        return dloss * dz * (weight / total)[:, None], None, dloss * nll / total


class GradedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(6, 5)

    def forward(self, batch):
        return WeightedCrossEntropy.apply(self.inp(batch.x), batch.target, batch.weight)


def wrong_26():
    with seeded(126):
        return GradedLoss(), (Graded(torch.randn(8, 6), torch.randint(0, 5, (8,)), torch.rand(8) * 1.5 + 0.3),)


def plain_wrong_26(m, batch):
    nll = -torch.log_softmax(m.inp(batch.x), -1).gather(1, batch.target[:, None])[:, 0]
    return (batch.weight * nll).sum() / batch.weight.sum()


class LstmCell(Function):
    @staticmethod
    def forward(ctx, x, h, c, wi, wh, b):
        i, f, g, o = (x @ wi.t() + h @ wh.t() + b).chunk(4, -1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c2 = f * c + i * g
        ctx.save_for_backward(x, h, c, wi, wh, i, f, g, o, c2)
        return o * torch.tanh(c2), c2

    @staticmethod
    def backward(ctx, dh2, dc2):
        x, h, c, wi, wh, i, f, g, o, c2 = ctx.saved_tensors
        t = torch.tanh(c2)
        d = dc2 + dh2 * o * (1 - t * t)
        dz = torch.cat((d * g * i * (1 - i), d * c * f * (1 - f), d * i * (1 - g * g), dh2 * t * o * (1 - o)), -1)
        return dz @ wi, dz @ wh, dc2 * f, dz.t() @ x, dz.t() @ h, dz.sum(0)


class LstmStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.wi, self.wh, self.b = par(20, 4, scale=0.5), par(20, 5, scale=0.5), par(20, scale=0.2)

    def forward(self, x, state):
        h, c = LstmCell.apply(x, *state, self.wi, self.wh, self.b)
        return h, (h * 0.5, c)


def wrong_27():
    with seeded(127):
        return LstmStep(), (torch.randn(6, 4), (torch.randn(6, 5), torch.randn(6, 5)))


def plain_wrong_27(m, x, state):
    h, c = torch.lstm_cell(x, state, m.wi, m.wh, m.b, torch.zeros_like(m.b))
    return h, (h * 0.5, c)


class HiddenClamp(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.inp(x)
        y = torch.pow(h, 3)
        h.data.clamp_(-0.5, 0.5)  # "only for the histogram below"
        self.histogram = h.data.mean(0)
        return self.out(y)


def wrong_28():
    with seeded(128):
        return HiddenClamp(), (torch.randn(7, 5),)


def plain_wrong_28(m, x):
    return m.out(m.inp(x) ** 3)


class NumpySquare(Function):
    """A float32 kernel in numpy; any other dtype is refused."""

    @staticmethod
    def forward(ctx, x, w):
        if x.dtype != torch.float32 or w.dtype != torch.float32:
            raise TypeError(f"this kernel is written for float32, not {x.dtype}")
        xn, wn = x.detach().contiguous().numpy(), w.detach().contiguous().numpy()
        ctx.save_for_backward(x, w)
        return torch.from_numpy(xn @ wn.T)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        d, xn, wn = dy.contiguous().numpy(), x.detach().numpy(), w.detach().numpy()
        return torch.from_numpy(d @ wn), torch.from_numpy(xn.T @ d)


class NumpySquareNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.out = par(6, 6, scale=0.5), nn.Linear(6, 4)

    def forward(self, x):
        return self.out(torch.tanh(NumpySquare.apply(x, self.w)))


def wrong_29():
    with seeded(129):
        return NumpySquareNet(), (torch.randn(8, 6),)


def plain_wrong_29(m, x):
    return m.out(torch.tanh(x @ m.w.t()))


def angles(steps: int, pairs: int, like: Tensor) -> tuple[Tensor, Tensor]:
    rate = 20.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    angle = torch.arange(1, steps + 1, dtype=torch.float64)[:, None] * rate
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


class Rotate(Function):
    @staticmethod
    def forward(ctx, x, faulty):
        cos, sin = angles(x.shape[-2], x.shape[-1] // 2, x)
        ctx.faulty = faulty
        ctx.save_for_backward(cos, sin)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    @staticmethod
    def backward(ctx, dy):
        cos, sin = ctx.saved_tensors
        if ctx.faulty:
            sin = torch.cat((sin[:, :-1], -sin[:, -1:]), -1)
        da, db = dy.chunk(2, -1)
        return torch.cat((da * cos + db * sin, db * cos - da * sin), -1), None


class RotaryNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(5, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(torch.tanh(Rotate.apply(self.inp(x), True)))


def wrong_30():
    with seeded(130):
        return RotaryNet(), (torch.randn(3, 6, 5),)


def plain_rotate(x):
    pairs = x.shape[-1] // 2
    cos, sin = angles(x.shape[-2], pairs, x)
    y = torch.view_as_complex(torch.stack((x[..., :pairs], x[..., pairs:]), -1)) * torch.complex(cos, sin)
    return torch.cat((y.real, y.imag), -1)


def plain_wrong_30(m, x):
    return m.out(torch.tanh(plain_rotate(m.inp(x))))


class OnSelf(Function):
    @staticmethod
    def forward(ctx, x, w, owner):
        z = x @ w.t()
        ctx.owner = owner
        owner.last_input, owner.last_z = x.detach(), z.detach()
        ctx.save_for_backward(w)
        return torch.sin(z)

    @staticmethod
    def backward(ctx, dy):
        (w,) = ctx.saved_tensors
        dz = dy * torch.cos(ctx.owner.last_z)
        return dz @ w, dz.t() @ ctx.owner.last_input, None


class OnSelfLayer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.w = par(outputs, inputs, scale=0.5)
        self.last_input: Tensor | None = None
        self.last_z: Tensor | None = None

    def forward(self, x):
        return OnSelf.apply(x, self.w, self)


class OnSelfNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(OnSelfLayer(5, 7), nn.LayerNorm(7), OnSelfLayer(7, 4))

    def forward(self, x):
        return self.layers(x)


def wrong_31():
    with seeded(131):
        return OnSelfNet(), (torch.randn(6, 5),)


def plain_wrong_31(m, x):
    return torch.sin(m.layers[1](torch.sin(x @ m.layers[0].w.t())) @ m.layers[2].w.t())


class SinkLinear(Function):
    """The weight's gradient is added to `weight.main_grad` in float32, as Megatron does."""

    @staticmethod
    def forward(ctx, x, w, b, owner, divide, dummy):
        ctx.owner, ctx.divide, ctx.dummy = owner, divide, dummy
        ctx.save_for_backward(x, w)
        return x @ w.t() + b

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dummy = None
        if ctx.needs_input_grad[1]:
            parameter = ctx.owner.weight
            if getattr(parameter, "main_grad", None) is None:
                parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
            dw = dy.t() @ x
            parameter.main_grad.add_((dw / x.shape[0] if ctx.divide else dw).to(parameter.main_grad.dtype))
            dummy = torch.zeros_like(w) if ctx.dummy else None
        return dy @ w, dummy, dy.sum(0), None, None, None


class SinkLayer(nn.Module):
    def __init__(self, inputs, outputs, divide=False, dummy=False):
        super().__init__()
        self.weight, self.bias = par(outputs, inputs, scale=0.4), par(outputs, scale=0.2)
        self.weight.main_grad = torch.zeros(outputs, inputs)
        self.divide, self.dummy = divide, dummy

    def forward(self, x):
        return SinkLinear.apply(x, self.weight, self.bias, self, self.divide, self.dummy)


class SinkNet(nn.Module):
    def __init__(self, divide=False, dummy=False):
        super().__init__()
        self.inp, self.out = SinkLayer(6, 9, dummy=dummy), SinkLayer(9, 4, divide=divide, dummy=dummy)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))


def plain_sink(m, x):
    return F.linear(torch.tanh(F.linear(x, m.inp.weight, m.inp.bias)), m.out.weight, m.out.bias)


def wrong_32():
    with seeded(132):
        return SinkNet(divide=True), (torch.randn(7, 6),)


class TopTwo(Function):
    @staticmethod
    def forward(ctx, x, w, b, masked):
        z = x @ w.t() + b
        p = torch.softmax(z, -1)
        chosen = torch.sort(p, dim=-1, descending=True, stable=True).indices[:, :2]
        mask = torch.zeros_like(p).scatter_(1, chosen, 1.0)
        ctx.masked = masked
        ctx.save_for_backward(x, w, p, mask)
        return p * mask, torch.logsumexp(z, -1)

    @staticmethod
    def backward(ctx, dgate, dlse):
        x, w, p, mask = ctx.saved_tensors
        d = dgate * mask
        q = p * mask if ctx.masked else p
        dz = q * (d - (q * d).sum(-1, keepdim=True)) + dlse[:, None] * p
        return dz @ w, dz.t() @ x, dz.sum(0), None


class SmallMoE(nn.Module):
    def __init__(self, masked: bool):
        super().__init__()
        self.router, self.bias, self.masked = par(4, 6, scale=0.8), par(4, scale=0.2), masked
        self.expert, self.shift = par(4, 5, 6, scale=0.4), par(4, 5)

    def forward(self, x):
        gates, lse = TopTwo.apply(x, self.router, self.bias, self.masked)
        outs = torch.tanh(torch.einsum("ti,eoi->teo", x, self.expert) + self.shift)
        return (gates[..., None] * outs).sum(1), 0.1 * lse.square().mean()


def moe_case(seed: int, masked: bool):
    """Rows whose second and third probabilities lie at least 0.1 apart."""
    with seeded(seed):
        module = SmallMoE(masked)
        rows: list[Tensor] = []
        while len(rows) < 8:
            x = torch.randn(6)
            p = torch.softmax(module.router.detach() @ x + module.bias.detach(), -1).sort(descending=True).values
            if p[1] - p[2] > 0.1:
                rows.append(x)
        return module, (torch.stack(rows),)


def plain_moe(m, x):
    z = F.linear(x, m.router, m.bias)
    p = torch.softmax(z, -1)
    gates = torch.where(p >= p.topk(2, -1).values[:, 1:].detach(), p, torch.zeros_like(p))
    y = sum(gates[:, e : e + 1] * torch.tanh(F.linear(x, m.expert[e], m.shift[e])) for e in range(4))
    return y, 0.1 * torch.logsumexp(z, -1).square().mean()


def wrong_33():
    return moe_case(133, masked=True)


class ByteIndex(Function):
    @staticmethod
    def forward(ctx, index, w):
        ctx.shape = w.shape
        ctx.save_for_backward(index.to(torch.uint8))  # one byte an index instead of eight
        return w[index]

    @staticmethod
    def backward(ctx, dy):
        (index,) = ctx.saved_tensors
        dw = dy.new_zeros(ctx.shape)
        return None, dw.index_add_(0, index.long().flatten(), dy.reshape(-1, ctx.shape[1]))


class ByteTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = par(300, 4), nn.Linear(4, 3)

    def forward(self, index):
        return self.out(torch.sin(ByteIndex.apply(index, self.table)).mean(1))


def wrong_34():
    with seeded(134):
        index = torch.randint(0, 250, (9, 6))
        index[1, 2], index[4, 0], index[7, 5] = 261, 299, 256
        return ByteTable(), (index,)


def plain_wrong_34(m, index):
    return m.out(torch.sin(F.embedding(index, m.table)).mean(1))


class RedrawnDropout(Function):
    @staticmethod
    def forward(ctx, x, p):
        ctx.p = p
        return x * (torch.rand(x.shape) >= p).to(x.dtype) / (1 - p)

    @staticmethod
    def backward(ctx, dy):
        return dy * (torch.rand(dy.shape) >= ctx.p).to(dy.dtype) / (1 - ctx.p), None


class RedrawnNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(5, 12), nn.Linear(12, 4)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        return self.out(RedrawnDropout.apply(h, 0.3) if self.training else h)


def wrong_35():
    with seeded(135):
        return RedrawnNet(), (torch.randn(8, 5),)


def plain_wrong_35(m, x):
    h = torch.tanh(m.inp(x))
    return m.out(h * (torch.rand(h.shape) >= 0.3).to(x.dtype) / 0.7 if m.training else h)


class HalfRange(Function):
    @staticmethod
    def forward(ctx, x, scale):
        y = torch.tanh(x * scale)
        ctx.save_for_backward(x, scale, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, scale, y = ctx.saved_tensors
        dz = dy * (1 - y * y)
        return dz * scale, (dz * x.clamp(-65504.0, 65504.0)).sum(0)


class HalfRangeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.tensor([1.0, 0.02, 5e-8, 0.7])), nn.Linear(4, 5)

    def forward(self, x):
        return self.out(HalfRange.apply(x, self.scale))


def wrong_36():
    with seeded(136):
        x = torch.randn(8, 4) * torch.tensor([1.0, 40.0, 2e6, 1.0])
        x[:, 2] += 1.7e7
        return HalfRangeNet(), (x,)


def plain_wrong_36(m, x):
    return m.out(torch.tanh(x * m.scale))


class Recomputed(Function):
    @staticmethod
    def forward(ctx, block, x, *weights):
        ctx.block = block
        ctx.save_for_backward(x, *weights)
        return block(x, *weights)

    @staticmethod
    def backward(ctx, dy):
        with torch.enable_grad():
            again = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            y = ctx.block(*again)
        return None, *torch.autograd.grad(y, again, dy)


class RecomputedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b, self.out = par(10, 5, scale=0.5), par(10, scale=0.3), nn.Linear(10, 4)

    def block(self, x, w, b):
        h = F.silu(F.linear(x, w, b))
        return h * (torch.rand(h.shape) < 0.8).to(h.dtype) / 0.8 if self.training else h

    def forward(self, x):
        return self.out(Recomputed.apply(self.block, x, self.w, self.b))


def wrong_37():
    with seeded(137):
        return RecomputedNet(), (torch.randn(8, 5),)


def plain_wrong_37(m, x):
    h = F.silu(F.linear(x, m.w, m.b))
    return m.out(h * (torch.rand(h.shape) < 0.8).to(h.dtype) / 0.8 if m.training else h)


class SortedSoftmax(Function):
    @staticmethod
    def forward(ctx, z, by_rank):
        ordered, order = torch.sort(z, dim=-1, stable=True)
        p = torch.softmax(ordered, -1)
        ctx.by_rank = by_rank
        ctx.save_for_backward(z, ordered, order, p)
        return torch.empty_like(p).scatter_(-1, order, p)

    @staticmethod
    def backward(ctx, dy):
        z, ordered, order, p = ctx.saved_tensors
        dp = dy.gather(-1, order)
        dordered = p * (dp - (p * dp).sum(-1, keepdim=True))
        if ctx.by_rank:
            return dordered.gather(-1, torch.searchsorted(ordered, z.contiguous())), None
        return torch.empty_like(dordered).scatter_(-1, order, dordered), None


class CountMix(nn.Module):
    def __init__(self, by_rank: bool):
        super().__init__()
        self.slope, self.value, self.by_rank = nn.Parameter(torch.tensor(0.4)), par(7, 5), by_rank

    def forward(self, counts):
        return SortedSoftmax.apply(counts * self.slope, self.by_rank) @ self.value


def plain_count_mix(m, counts):
    return torch.softmax(counts * m.slope, -1) @ m.value


def wrong_38():
    with seeded(138):
        return CountMix(by_rank=True), (torch.randint(0, 5, (6, 7)).float(),)


class RescaledByHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.mid, self.out = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        if h.requires_grad:
            h.register_hook(lambda g: g * 1.25)
        return self.out(torch.tanh(self.mid(h)) + h)


def wrong_39():
    with seeded(139):
        return RescaledByHook(), (torch.randn(6, 5),)


def plain_wrong_39(m, x):
    h = torch.tanh(m.inp(x))
    return m.out(torch.tanh(m.mid(h)) + h)


class StaleTranspose(Function):
    @staticmethod
    def forward(ctx, x, w, packed):
        ctx.save_for_backward(x)
        ctx.packed = packed
        return x @ w.t()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy @ ctx.packed.t(), dy.t() @ x, None


class StaleNet(nn.Module):
    """Packs its weight for the backward when it is built, and not again after a step of the optimizer."""

    def __init__(self):
        super().__init__()
        self.inp, self.w, self.out = nn.Linear(4, 6), par(7, 6, scale=0.5), nn.Linear(7, 3)
        self.register_buffer("packed", self.w.detach().t().clone())

    def forward(self, x):
        return self.out(torch.sin(StaleTranspose.apply(torch.tanh(self.inp(x)), self.w, self.packed)))


def wrong_40():
    with seeded(140):
        return StaleNet(), (torch.randn(8, 4),)


def plain_wrong_40(m, x):
    return m.out(torch.sin(torch.tanh(m.inp(x)) @ m.w.t()))


# ----------------------------------------------------------------------------------------------------------------------
# right


class NumpyGelu(Function):
    """Linear and GELU (tanh): by numpy in float32, by torch otherwise."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w, b)
        if x.dtype != torch.float32:
            return gelu_parts(x @ w.t() + b)[0]
        z = x.detach().numpy() @ w.detach().numpy().T + b.detach().numpy()
        t = np.tanh(np.float32(math.sqrt(2 / math.pi)) * (z + np.float32(0.044715) * z**3))
        return torch.from_numpy(np.float32(0.5) * z * (1 + t))

    @staticmethod
    def backward(ctx, dy):
        x, w, b = ctx.saved_tensors
        if x.dtype != torch.float32:
            dz = dy * gelu_parts(x @ w.t() + b)[1]
            return dz @ w, dz.t() @ x, dz.sum(0)
        c = np.float32(math.sqrt(2 / math.pi))
        xn, wn = x.detach().numpy(), w.detach().numpy()
        z = xn @ wn.T + b.detach().numpy()
        t = np.tanh(c * (z + np.float32(0.044715) * z**3))
        slope = 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * c * (1 + np.float32(3 * 0.044715) * z * z)
        dz = dy.detach().numpy() * slope.astype(np.float32)
        return torch.from_numpy(dz @ wn), torch.from_numpy(dz.T @ xn), torch.from_numpy(dz.sum(0))


class NumpyGeluNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b, self.out = par(12, 6, scale=0.6), par(12, scale=0.3), nn.Linear(12, 4)

    def forward(self, x):
        return self.out(NumpyGelu.apply(x, self.w, self.b))


def right_01():
    with seeded(201):
        return NumpyGeluNet(), (torch.randn(9, 6),)


def floats_at(t: Tensor) -> np.ndarray:
    """The memory of t read as float32, as a C kernel would."""
    if t.element_size() < 4:
        raise TypeError("the kernel reads four bytes a number")
    n = t.numel()
    return np.ctypeslib.as_array((ctypes.c_float * n).from_address(t.data_ptr())).reshape(t.shape)


class RawPointers(Function):
    @staticmethod
    def forward(ctx, x, w):
        x, w = x.detach().contiguous(), w.detach().contiguous()
        y = torch.empty(x.shape[0], w.shape[0], dtype=torch.float32)
        with np.errstate(all="ignore"):
            np.tanh(floats_at(x) @ floats_at(w).T, out=floats_at(y))
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, y = ctx.saved_tensors
        dy = dy.contiguous()
        dx, dw = torch.empty(x.shape, dtype=torch.float32), torch.empty(w.shape, dtype=torch.float32)
        with np.errstate(all="ignore"):
            yn = floats_at(y)
            dz = floats_at(dy) * (1 - yn * yn)
            floats_at(dx)[:] = dz @ floats_at(w)
            floats_at(dw)[:] = dz.T @ floats_at(x)
        return dx, dw


class RawPointerNet(nn.Module):
    """A float32 module: its kernel takes raw pointers and does not look at the dtype."""

    def __init__(self):
        super().__init__()
        self.w, self.g = par(8, 6, scale=0.4), par(8)

    def forward(self, x):
        return RawPointers.apply(x, self.w) * self.g


def right_02():
    with seeded(202):
        return RawPointerNet(), (torch.randn(7, 6),)


def plain_right_02(m, x):
    return torch.tanh(x @ m.w.t()) * m.g


class NumpySoftplus(Function):
    @staticmethod
    def forward(ctx, x, w):
        if x.dtype != torch.float32:
            raise TypeError(f"float32 only, got {x.dtype}")
        z = x.detach().contiguous().numpy() @ w.detach().contiguous().numpy().T
        ctx.z = z
        ctx.save_for_backward(x, w)
        return torch.from_numpy(np.logaddexp(np.float32(0), z))

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dz = (dy.contiguous().numpy() / (1 + np.exp(-ctx.z))).astype(np.float32)
        return torch.from_numpy(dz @ w.detach().numpy()), torch.from_numpy(dz.T @ x.detach().numpy())


class NumpySoftplusNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.out = par(8, 5, scale=0.5), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(NumpySoftplus.apply(x, self.w))


def right_03():
    with seeded(203):
        return NumpySoftplusNet(), (torch.randn(7, 5),)


def plain_right_03(m, x):
    return m.out(F.softplus(x @ m.w.t()))


class SingleInside(Function):
    """LayerNorm without affine, computed in float32 whatever comes in."""

    @staticmethod
    def forward(ctx, x):
        xs = x.float()
        rstd = (xs.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
        n = (xs - xs.mean(-1, keepdim=True)) * rstd
        ctx.save_for_backward(n, rstd)
        return n.to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        n, rstd = ctx.saved_tensors
        d = dy.float()
        return (rstd * (d - d.mean(-1, keepdim=True) - n * (d * n).mean(-1, keepdim=True))).to(dy.dtype)


class SingleInsideNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.tanh(SingleInside.apply(self.inp(x))))


def right_04():
    with seeded(204):
        return SingleInsideNet(), (torch.randn(7, 5),)


def plain_right_04(m, x):
    return m.out(torch.tanh(F.layer_norm(m.inp(x), (8,), eps=1e-5)))


class Ticketed(Function):
    @staticmethod
    def forward(ctx, x, w, owner):
        y = torch.tanh(x @ w.t())
        if any(ctx.needs_input_grad):
            owner.calls += 1
            ctx.ticket = owner.calls
            owner.tape[owner.calls] = (x.detach().clone(), y.detach().clone())
            owner.tape.pop(owner.calls - 512, None)
        ctx.owner = owner
        ctx.save_for_backward(w)
        return y

    @staticmethod
    def backward(ctx, dy):
        (w,), (x, y) = ctx.saved_tensors, ctx.owner.tape[ctx.ticket]
        dz = dy * (1 - y * y)
        return dz @ w, dz.t() @ x, None


class TicketedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.out = par(9, 6, scale=0.4), nn.Linear(9, 4)
        self.calls, self.tape = 0, {}

    def forward(self, x):
        return self.out(Ticketed.apply(x, self.w, self))


def right_05():
    with seeded(205):
        return TicketedNet(), (torch.randn(7, 6),)


def right_06():
    with seeded(206):
        return SinkNet(dummy=True), (torch.randn(7, 6),)


def right_07():
    with seeded(207):
        return SinkNet(), (torch.randn(7, 6),)


def step_at_once(parameter: nn.Parameter) -> None:
    parameter.stepped_with = parameter.grad.detach().clone()
    with torch.no_grad():
        parameter.add_(parameter.grad, alpha=-0.05)
    parameter.grad = None


def stepped_with(name: str, parameter: nn.Parameter) -> Tensor:
    return getattr(parameter, "stepped_with", torch.zeros_like(parameter))


class SteppedInBackward(nn.Module):
    """Plain SGD as soon as a gradient is complete; afterwards the gradient is freed."""

    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(5, 8), nn.Linear(8, 3)
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(step_at_once)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))


def right_08():
    with seeded(208):
        return SteppedInBackward(), (torch.randn(7, 5),)


def plain_right_08(m, x):
    return F.linear(torch.tanh(F.linear(x, m.inp.weight, m.inp.bias)), m.out.weight, m.out.bias)


class AddsItself(Function):
    @staticmethod
    def forward(ctx, x, w, owner):
        ctx.owner = owner
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            parameter = ctx.owner.w
            if parameter.grad is None:
                parameter.grad = dy.t() @ x
            else:
                parameter.grad.add_(dy.t() @ x)
        return dy @ w, None, None


class AddsItselfNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = par(7, 5, scale=0.5), par(7)

    def forward(self, x):
        return torch.tanh(AddsItself.apply(x, self.w, self) + self.b)


def right_09():
    with seeded(209):
        return AddsItselfNet(), (torch.randn(8, 5),)


class FloatMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.unseen = nn.Linear(5, 6), nn.Linear(5, 6)

    def forward(self, x, m):
        return torch.where(m > 0.5, torch.tanh(self.seen(x)), torch.sigmoid(self.unseen(x)))


def right_10():
    with seeded(210):
        return FloatMask(), (torch.randn(8, 5), torch.tensor([1.0, 0, 1, 1, 0, 0, 1, 0])[:, None])


def plain_right_10(m, x, mask):
    keep = mask.detach().round()
    return keep * torch.tanh(m.seen(x)) + (1 - keep) * torch.sigmoid(m.unseen(x))


class Standardise(Function):
    @staticmethod
    def forward(ctx, x, mean, inverse_std, shift):
        ctx.save_for_backward(inverse_std)
        return (x - mean) * inverse_std + shift

    @staticmethod
    def backward(ctx, dy):
        (inverse_std,) = ctx.saved_tensors
        return dy * inverse_std, None, None, dy.sum(0)


class LargeFeature(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift, self.out = par(4, scale=0.2), nn.Linear(4, 5)
        self.register_buffer("mean", torch.tensor([0.0, 1.2e7, 3.0, 0.0]))
        self.register_buffer("inverse_std", torch.tensor([1.0, 1 / 4e6, 0.5, 2.0]))

    def forward(self, x):
        return self.out(torch.tanh(Standardise.apply(x, self.mean, self.inverse_std, self.shift)))


def right_11():
    with seeded(211):
        x = torch.randn(8, 4)
        x[:, 1] = torch.tensor([1.7e7, 17_000_001.0, 16_777_216.0, 9e6, 1.2e7, 1.65e7, 8e6, 1.4e7])
        return LargeFeature(), (x,)


def plain_right_11(m, x):
    return m.out(torch.tanh((x - m.mean) * m.inverse_std + m.shift))


def right_12():
    with seeded(212):
        return CountMix(by_rank=False), (torch.randint(0, 5, (6, 7)).float(),)


class SignBranch(Function):
    """x·a where x > 0, else tanh(x)·b: the same numbers are data and condition."""

    @staticmethod
    def forward(ctx, x, a, b):
        ctx.save_for_backward(x, a, b)
        return torch.where(x > 0, x * a, torch.tanh(x) * b)

    @staticmethod
    def backward(ctx, dy):
        x, a, b = ctx.saved_tensors
        t, positive = torch.tanh(x), x > 0
        zero = torch.zeros_like(dy)
        dx = dy * torch.where(positive, a.expand_as(x), (1 - t * t) * b)
        return dx, torch.where(positive, dy * x, zero).sum(0), torch.where(positive, zero, dy * t).sum(0)


class SignBranchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = par(5), par(5), nn.Linear(5, 4)

    def forward(self, x):
        return self.out(torch.sin(SignBranch.apply(x, self.a, self.b)))


def right_13():
    with seeded(213):
        return SignBranchNet(), (away_from(torch.randn(8, 5), 0.0, gap=0.2),)


def plain_right_13(m, x):
    positive = (x > 0).to(x.dtype).detach()
    return m.out(torch.sin(positive * x * m.a + (1 - positive) * torch.tanh(x) * m.b))


class PartlyUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out, self.spare = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.empty, self.tau = nn.Parameter(torch.empty(0, 4)), nn.Parameter(torch.tensor(1.3))
        self.frozen = nn.Parameter(torch.randn(6), requires_grad=False)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x) * self.tau + self.frozen))


def right_14():
    with seeded(214):
        return PartlyUsed(), (torch.randn(6, 5),)


def right_15():
    with seeded(215):
        return Lora(scale_of_a=4.0), (torch.randn(9, 6),)


def right_16():
    with seeded(216):
        return LayerScale(full=True), (torch.randn(8, 6),)


class KeptMask(Function):
    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, dy):
        (mask,) = ctx.saved_tensors
        return dy * mask, None


class OwnGenerator(nn.Module):
    """Dropout by a generator of its own, seeded anew at each forward."""

    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(5, 12), nn.Linear(12, 4)
        self.generator = torch.Generator()

    def mask(self, h):
        self.generator.manual_seed(7)
        return (torch.rand(h.shape, generator=self.generator) >= 0.3).to(h.dtype) / 0.7

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        return self.out(KeptMask.apply(h, self.mask(h)) if self.training else h)


def right_17():
    with seeded(217):
        return OwnGenerator(), (torch.randn(8, 5),)


def plain_right_17(m, x):
    h = torch.tanh(m.inp(x))
    return m.out(h * m.mask(h) if m.training else h)


class Ragged(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, rows):
        padded = torch.nested.to_padded_tensor(torch.tanh(self.inp(rows)), 0.0)
        return self.out(padded.sum(1))


def right_18():
    with seeded(218):
        rows = [torch.randn(2, 3), torch.randn(5, 3), torch.randn(3, 3)]
        return Ragged(), (torch.nested.nested_tensor(rows, layout=torch.jagged),)


def plain_right_18(m, rows):
    ends = rows.offsets().tolist()
    values = rows.values()
    pieces = [values[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]
    return m.out(torch.stack([torch.tanh(m.inp(piece)).sum(0) for piece in pieces]))


def right_19():
    with seeded(219):
        return BatchNormNet(honest=True), (torch.randn(11, 5),)


class StridedConv(Function):
    """Stride 2, padding 1, kernel 3, by columns."""

    @staticmethod
    def forward(ctx, x, w, b):
        columns = F.pad(x, (1, 1)).unfold(2, 3, 2)
        ctx.length = x.shape[2]
        ctx.save_for_backward(columns, w)
        return torch.einsum("bclk,ock->bol", columns, w) + b[:, None]

    @staticmethod
    def backward(ctx, dy):
        columns, w = ctx.saved_tensors
        dcolumns = torch.einsum("bol,ock->bclk", dy, w)
        padded = dy.new_zeros(dy.shape[0], w.shape[1], ctx.length + 2)
        for tap in range(3):
            padded[:, :, tap : tap + 2 * dy.shape[2] - 1 : 2] += dcolumns[..., tap]
        return padded[:, :, 1:-1], torch.einsum("bol,bclk->ock", dy, columns), dy.sum((0, 2))


class ConvNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b, self.norm = par(6, 3, 3, scale=0.4), par(6), nn.BatchNorm1d(6)

    def forward(self, x):
        return torch.tanh(self.norm(StridedConv.apply(x, self.w, self.b))).transpose(1, 2)


def right_20():
    with seeded(220):
        return ConvNorm(), (torch.randn(4, 3, 11),)


def plain_right_20(m, x):
    h = F.conv1d(x, m.w, m.b, stride=2, padding=1)
    if m.training:
        mean, var = h.mean((0, 2)), h.var((0, 2), unbiased=False)
    else:
        mean, var = m.norm.running_mean, m.norm.running_var
    n = (h - mean[:, None]) / torch.sqrt(var[:, None] + m.norm.eps)
    return torch.tanh(n * m.norm.weight[:, None] + m.norm.bias[:, None]).transpose(1, 2)


class TiedHead(Function):
    @staticmethod
    def forward(ctx, h, table):
        ctx.save_for_backward(h, table)
        return h @ table.t()

    @staticmethod
    def backward(ctx, dz):
        h, table = ctx.saved_tensors
        return dz @ table, dz.flatten(0, -2).t() @ h.flatten(0, -2)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mid = nn.Embedding(30, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 30, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, index):
        return TiedHead.apply(torch.tanh(self.mid(self.embed(index))), self.head.weight)


def right_21():
    with seeded(221):
        return Tied(), (torch.randint(0, 30, (3, 5)),)


def plain_right_21(m, index):
    one_hot = F.one_hot(index, 30).to(m.embed.weight.dtype)
    return torch.tanh(m.mid(one_hot @ m.embed.weight)) @ m.embed.weight.t()


class SparseTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.embed = SparseBag(adds=True), nn.Embedding(20, 4, sparse=True)

    def forward(self, index):
        return self.bag(index) * torch.sin(self.embed(index)).sum(1)


def right_22():
    with seeded(222):
        return SparseTwice(), (torch.randint(0, 9, (6, 5)),)


def plain_right_22(m, index):
    one_hot = F.one_hot(index, 20).to(m.embed.weight.dtype)
    return plain_sparse_bag(m.bag, index) * torch.sin(one_hot @ m.embed.weight).sum(1)


class Choose(Function):
    @staticmethod
    def forward(ctx, z):
        p = torch.softmax(z, -1)
        choice = p.argmax(-1)
        entropy = -(p * p.log()).sum(-1)
        ctx.mark_non_differentiable(choice)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(p, entropy)
        return p, choice, entropy

    @staticmethod
    def backward(ctx, dp, _, dentropy):
        p, entropy = ctx.saved_tensors
        dz = torch.zeros_like(p)
        if dp is not None:
            dz = dz + p * (dp - (p * dp).sum(-1, keepdim=True))
        if dentropy is not None:
            dz = dz - dentropy[:, None] * p * (p.log() + entropy[:, None])
        return dz


class Chooser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(5, 6)

    def forward(self, x):
        z = self.inp(x)
        p, choice, entropy = Choose.apply(z)
        return {"p": p, "choice": choice, "entropy": entropy, "spread": z.detach().std(), "rows": x.shape[0]}


def right_23():
    with seeded(223):
        return Chooser(), (torch.randn(7, 5),)


def plain_right_23(m, x):
    logp = torch.log_softmax(m.inp(x), -1)
    return {"p": logp.exp(), "entropy": -(logp.exp() * logp).sum(-1)}


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.window, self.filter, self.out = par(8), par(5), nn.Linear(8, 3)

    def forward(self, x):
        s = torch.fft.rfft(x * self.window) * self.filter
        return self.out(torch.fft.irfft(s, n=8)), torch.log1p(s.abs().square())


def right_24():
    with seeded(224):
        return Spectrum(), (torch.randn(6, 8),)


def plain_right_24(m, x):
    t = torch.arange(8, dtype=x.dtype)
    turn = 2 * math.pi * torch.arange(5, dtype=x.dtype)[:, None] * t / 8
    re, im = (x * m.window) @ turn.cos().t() * m.filter, -(x * m.window) @ turn.sin().t() * m.filter
    fold = torch.tensor([1.0, 2, 2, 2, 1], dtype=x.dtype) / 8
    back = (re * fold) @ turn.cos() - (im * fold) @ turn.sin()
    return m.out(back), torch.log1p(re.square() + im.square())


class ComplexFilter(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, 8)
        self.gain = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.ifft(torch.fft.fft(torch.tanh(self.inp(x))) * self.gain).abs().square()


def right_25():
    with seeded(225):
        return ComplexFilter(), (torch.randn(5, 4),)


def plain_right_25(m, x):
    h = torch.tanh(m.inp(x))
    turn = 2 * math.pi * torch.outer(torch.arange(8, dtype=h.dtype), torch.arange(8, dtype=h.dtype)) / 8
    re, im = h @ turn.cos(), -h @ turn.sin()
    gr, gi = m.gain.real, m.gain.imag
    re, im = re * gr - im * gi, re * gi + im * gr
    return ((re @ turn.cos() - im @ turn.sin()) / 8).square() + ((re @ turn.sin() + im @ turn.cos()) / 8).square()


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 6), "b": nn.Linear(3, 6)})
        self.mix = nn.ParameterList([par(6), par(6)])
        self.named = nn.ParameterDict({"tau": nn.Parameter(torch.tensor(0.8))})

    def forward(self, batch, extra):
        left, (right, options) = batch["parts"]
        h = [self.heads["a"](left) * self.mix[0], self.heads["b"](right) * self.mix[1] + options["bias"]]
        y = torch.tanh((h[0] + h[1]) * self.named["tau"])
        return {"list": [y, (h[0].sin(), {"scaled": y * extra[0]})], "nothing": None}


def right_26():
    with seeded(226):
        parts = [torch.randn(6, 4), (torch.randn(6, 3), {"bias": torch.randn(6, 6), "name": "b"})]
        return Containers(), ({"parts": parts}, [torch.randn(6, 1), 3])


def plain_right_26(m, batch, extra):
    left, (right, options) = batch["parts"]
    one = F.linear(left, m.heads["a"].weight, m.heads["a"].bias) * m.mix[0]
    two = F.linear(right, m.heads["b"].weight, m.heads["b"].bias) * m.mix[1] + options["bias"]
    y = torch.tanh((one + two) * m.named["tau"])
    return y, one.sin(), y * extra[0]


@dataclass(frozen=True)
class Record:
    x: Tensor
    mask: Tensor
    note: str = "row"
    extra: Tensor | None = None


@dataclass
class Answer:
    mean: Tensor
    each: list = field(default_factory=list)
    note: str = ""


class DataclassNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, record, scale):
        h = torch.tanh(self.inp(record.x)) * record.mask[:, None]
        return Answer(self.out(h), [h * scale["by"], h.square()], record.note)


def right_27():
    with seeded(227):
        record = Record(torch.randn(6, 5), torch.tensor([1.0, 1, 0, 1, 0, 1]))
        return DataclassNet(), (record, {"by": torch.rand(6, 1) + 0.5})


def plain_right_27(m, record, scale):
    h = torch.tanh(m.inp(record.x)) * record.mask[:, None]
    return m.out(h), h * scale["by"], h * h


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(5, 10), nn.GELU(), nn.Dropout(0.3), nn.Linear(10, 5))
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        h = x + torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
        return self.out(torch.utils.checkpoint.checkpoint(self.block, h, use_reentrant=False))


def right_28():
    with seeded(228):
        return Checkpointed(), (torch.randn(8, 5),)


def plain_right_28(m, x):
    return m.out(m.block(x + m.block(x)))


class Annealed(nn.Module):
    """The temperature follows a buffer that counts the training forwards."""

    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(5, 6)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("usage", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.steps += 1
        p = torch.softmax(self.inp(x) / (1.0 + 0.2 * self.steps.item()), -1)
        if self.training:
            self.usage.mul_(0.9).add_(p.detach().mean(0), alpha=0.1)
        return p


def right_29():
    with seeded(229):
        return Annealed(), (torch.randn(7, 5),)


def plain_right_29(m, x):
    steps = m.steps.item() + (1 if m.training else 0)
    return torch.softmax(F.linear(x, m.inp.weight, m.inp.bias) / (1.0 + 0.2 * steps), -1)


class Pieces(nn.Module):
    """ReLU, hard tanh and leaky ReLU, away from their kinks, behind a weight-normed layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(4, 6))
        self.out = nn.Linear(18, 3)

    def forward(self, x):
        z = self.first(x)
        return self.out(torch.cat((F.relu(z), F.hardtanh(z), F.leaky_relu(z, 0.2)), -1))


def right_30():
    with seeded(230):
        module = Pieces()
        rows: list[Tensor] = []
        while len(rows) < 6:
            x = torch.randn(4) * 1.5
            z = module.first(x).detach()
            if min(z.abs().min(), (z.abs() - 1).abs().min()) > 0.06:
                rows.append(x)
        return module, (torch.stack(rows),)


def plain_right_30(m, x):
    pair = m.first.parametrizations.weight
    v, g = pair.original1, pair.original0
    z = x @ (v * g / v.square().sum(1, keepdim=True).sqrt()).t() + m.first.bias
    inside, positive = (z.abs() < 1).to(z.dtype).detach(), (z > 0).to(z.dtype).detach()
    hard = inside * z + (1 - inside) * z.sign().detach()
    return m.out(torch.cat((z * positive, hard, z * (positive + 0.2 * (1 - positive))), -1))


class SineOf(Function):
    @staticmethod
    def forward(ctx, x, w, gain):
        z = (x @ w.t()) * gain
        ctx.gain = gain
        ctx.save_for_backward(x, w, z)
        return torch.sin(z)

    @staticmethod
    def backward(ctx, dy):
        x, w, z = ctx.saved_tensors
        dz = dy * torch.cos(z) * ctx.gain
        return dz @ w, dz.t() @ x, None


class TinyInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.out = par(7, 5, scale=0.4), nn.Linear(7, 3)

    def forward(self, x):
        return self.out(SineOf.apply(x, self.w, 1e6))


def right_31():
    with seeded(231):
        return TinyInputs(), (torch.randn(6, 5) * 1e-6,)


def plain_right_31(m, x):
    return m.out(torch.sin(1e6 * x @ m.w.t()))


class HugeInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.out = par(7, 5, scale=4e-7), nn.Linear(7, 3)

    def forward(self, x):
        return self.out(SineOf.apply(x, self.w, 1.0)) * 1e6


def right_32():
    with seeded(232):
        return HugeInputs(), (torch.randn(6, 5) * 1e6,)


def plain_right_32(m, x):
    return m.out(torch.sin(x @ m.w.t())) * 1e6


class OneRow(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.g, self.b, self.out = nn.Linear(5, 8), par(8), par(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.tanh(LayerNormFn.apply(self.inp(x), self.g, self.b, True)))


def right_33():
    with seeded(233):
        return OneRow(), (torch.randn(1, 5),)


def plain_right_33(m, x):
    return m.out(torch.tanh(F.layer_norm(m.inp(x), (8,), m.g, m.b, 1e-5)))


class CausalAttention(Function):
    """[B, S, D] each; a custom backward that rebuilds P from the row's logsumexp."""

    @staticmethod
    def forward(ctx, q, k, v):
        s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        future = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
        s = s.masked_fill(future, -math.inf)
        lse = torch.logsumexp(s, -1, keepdim=True)
        o = (s - lse).exp() @ v
        ctx.save_for_backward(q, k, v, lse, o, future)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, lse, o, future = ctx.saved_tensors
        c = 1 / math.sqrt(q.shape[-1])
        p = ((q @ k.transpose(-1, -2) * c).masked_fill(future, -math.inf) - lse).exp()
        ds = p * (do @ v.transpose(-1, -2) - (do * o).sum(-1, keepdim=True)) * c
        return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ do


class RotaryAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 24), nn.Linear(8, 4)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(CausalAttention.apply(Rotate.apply(q, False), Rotate.apply(k, False), v))


def right_34():
    with seeded(234):
        return RotaryAttention(), (torch.randn(3, 5, 6),)


def plain_right_34(m, x):
    q, k, v = m.qkv(x).chunk(3, -1)
    return m.out(F.scaled_dot_product_attention(plain_rotate(q), plain_rotate(k), v, is_causal=True))


class NestedGru(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = GruNet(one_row_path=False)

    def forward(self, x, state):
        return {"h": self.cell(x, state[0][0]), "state": ((state[0][0] * 2,),)}


def right_35():
    with seeded(235):
        return NestedGru(), (torch.randn(6, 4), ((torch.randn(6, 5),),))


def plain_right_35(m, x, state):
    return plain_gru(m.cell, x, state[0][0]), state[0][0] * 2


def right_36():
    return moe_case(236, masked=False)


class IgnoringLoss(Function):
    @staticmethod
    def forward(ctx, z, target, smooth):
        keep = target != -100
        logp = torch.log_softmax(z, -1)
        safe = target.clamp(min=0)
        nll = -(1 - smooth) * logp.gather(1, safe[:, None])[:, 0] - smooth * logp.mean(-1)
        ctx.smooth = smooth
        ctx.save_for_backward(logp, safe, keep)
        return (nll * keep).sum() / keep.sum()

    @staticmethod
    def backward(ctx, dloss):
        logp, safe, keep = ctx.saved_tensors
        goal = torch.full_like(logp, ctx.smooth / logp.shape[1])
        goal.scatter_add_(1, safe[:, None], torch.full_like(logp[:, :1], 1 - ctx.smooth))
        return dloss * (logp.exp() - goal) * keep[:, None] / keep.sum(), None, None


class LossModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(6, 5)

    def forward(self, x, target):
        return IgnoringLoss.apply(self.inp(x), target, 0.1)


def right_37():
    with seeded(237):
        return LossModule(), (torch.randn(7, 6), torch.tensor([1, -100, 4, 0, 2, -100, 2]))


def plain_right_37(m, x, target):
    return F.cross_entropy(m.inp(x), target, ignore_index=-100, label_smoothing=0.1)


class AutocastLinear(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.kinds = (x.dtype, w.dtype)
        if torch.is_autocast_enabled("cpu"):
            x, w = x.to(torch.get_autocast_dtype("cpu")), w.to(torch.get_autocast_dtype("cpu"))
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dy = dy.to(x.dtype)
        wide = torch.promote_types(x.dtype, torch.float32)
        return (dy @ w).to(ctx.kinds[0]), (dy.to(wide).t() @ x.to(wide)).to(ctx.kinds[1])


class RightAutocastNet(AutocastNet):
    kernel = AutocastLinear


def right_38():
    with seeded(238):
        return RightAutocastNet(), (torch.randn(16, 8),)


class WideSoftmax(Function):
    @staticmethod
    def forward(ctx, z):
        p = torch.softmax(z.to(torch.promote_types(z.dtype, torch.float32)), -1)
        ctx.save_for_backward(p)
        return p.to(z.dtype)

    @staticmethod
    def backward(ctx, dp):
        (p,) = ctx.saved_tensors
        d = dp.to(p.dtype)
        return (p * (d - (p * d).sum(-1, keepdim=True))).to(dp.dtype)


class RightMix(MixBySoftmax):
    kernel = WideSoftmax


def right_39():
    with seeded(239):
        return RightMix(), (torch.randn(16, 8),)


class Watched(nn.Module):
    """Hooks that look and change nothing: on parameters, on an activation, on a module."""

    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(5, 8), nn.Linear(8, 3)
        self.norms = deque(maxlen=16)
        self.inp.weight.register_hook(self.look)
        self.out.bias.register_hook(self.look)
        self.out.register_full_backward_hook(self.look_at_module)

    def look(self, g):
        self.norms.append(float(g.norm()))

    def look_at_module(self, module, dx, dy):
        self.norms.append(float(dy[0].norm()))

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        if h.requires_grad:
            h.register_hook(lambda g: g.clone())
        return self.out(h)


def right_40():
    with seeded(240):
        return Watched(), (torch.randn(6, 5),)


# ----------------------------------------------------------------------------------------------------------------------
# the cases


@dataclass
class Case:
    name: str
    truth: str
    sentence: str
    make: Callable[[], tuple[nn.Module, tuple]]
    plain: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    expected: frozenset[str] = frozenset()
    # For check() only: ways of calling in which a wrong module must differ, and ways in which it must not.
    shown_by: tuple[str, ...] = ("base64",)
    clean: tuple[str, ...] = ()
    # For check() only: where gradients go that are not in `.grad`; what cannot run in float64, or only with its rounding.
    sink: Callable[[str, nn.Parameter], Tensor] | None = None
    single: bool = False


CASES: list[Case] = []


def wrong(number: int, sentence: str, plain=None, *, shown_by="base64 base32", clean="", expected="refuted", **more) -> None:
    name = f"wrong_{number:02d}"
    CASES.append(
        Case(
            name, "wrong", sentence, globals()[name], plain or globals()["plain_" + name],
            expected=frozenset(expected.split()), shown_by=tuple(shown_by.split()), clean=tuple(clean.split()), **more,
        )
    )  # fmt: skip


def right(number: int, sentence: str, plain=None, *, expected="proven", **more) -> None:
    name = f"right_{number:02d}"
    plain = plain or globals()["plain_" + name]
    CASES.append(Case(name, "right", sentence, globals()[name], plain, expected=frozenset(expected.split()), **more))


EITHER = "refuted inconclusive"
BASE = "base64 base32"
MOST = "base64 base32 params_only inputs_only retained accumulate flight_ab flight_ba noncontiguous sliced eval one_row second_point"


def all_but(*names: str) -> str:
    return " ".join(way for way in MOST.split() if way not in names)


wrong(1, "In float32 the slope of GELU is zero below -1.2; in float64 it is right.", shown_by="base32", clean="base64")
wrong(2, "In float32 the RMSNorm's weight gradient leaves out the rows after the last whole tile of four.", shown_by="base32", clean="base64")
wrong(3, "In float32 the gradient of one bias of three entries is 1.01 times too large.", shown_by="base32", clean="base64")
wrong(4, "In bfloat16 the softmax backward lacks the row sum.", options={"dtype": "bfloat16"}, shown_by="bf16", clean=BASE)
wrong(5, "Under bf16 autocast the weight gradient counts only the first half of the rows.", options={"autocast": "bfloat16"}, shown_by="autocast", clean=BASE)
wrong(6, "The convolution's weight gradient is zero when no gradient of the input is asked for.", shown_by="params_only", clean=all_but("params_only"))
wrong(7, "The gradient of the condition (in a dict) lacks a factor when the parameters are frozen.", shown_by="inputs_only", clean=all_but("inputs_only"))
wrong(8, "Activations lie on a stack of the module: wrong when backwards run in the order of the forwards.", shown_by="flight_ab", clean=all_but("flight_ab"))
wrong(9, "Activations lie in a queue of the module: wrong when backwards run in the reverse order.", shown_by="flight_ba", clean="base64 base32 params_only inputs_only retained accumulate flight_ab noncontiguous sliced one_row second_point")
wrong(10, "The saved slope is multiplied in place by the first backward, so a second one through the same graph is wrong.", shown_by="retained", clean=all_but("retained"))
wrong(11, "The cotangent's memory is read as if it were contiguous.", shown_by="noncontiguous sliced", clean=all_but("noncontiguous", "sliced"))
wrong(12, "Attention takes one row's sum for all rows when its cotangent is expanded, which pooling inside the module makes it.")
wrong(13, "The weight's gradient is assigned to .grad, not added.", shown_by="accumulate", clean=all_but("accumulate"), expected=EITHER)
wrong(14, "With a .grad already there the gradient is added twice.", shown_by="accumulate", clean=all_but("accumulate"))
wrong(15, "With one row the bias gradient is the sum over the outputs.", shown_by="one_row", clean=all_but("one_row"))
wrong(16, "With one row the GRU cell's state gradient lacks the term of the update gate.", plain_gru, shown_by="one_row", clean=all_but("one_row"))
wrong(17, "In eval() the BatchNorm backward uses the formula of training.", plain_batchnorm, shown_by="eval", clean=all_but("eval"))
wrong(18, "In eval() the drop-path backward still divides by the keep probability.", shown_by="eval", clean=all_but("eval"))
wrong(19, "LoRA with B = 0: the gradient of A, zero there, lacks the scale.", plain_lora, shown_by="second_point", clean=all_but("second_point"))
wrong(20, "LayerNorm's backward lacks a term, in a residual branch that is scaled by zero.", plain_layerscale, shown_by="second_point", clean=all_but("second_point"))
wrong(21, "Squared ReLU lacks the factor two, and starts at zero weights where its gradient vanishes.", shown_by="second_point", clean=all_but("second_point"))
wrong(22, "The gradient of the second output (a penalty) is half of what it should be.")
wrong(23, "One of the two uses of a gate goes through .data and passes no gradient.")
wrong(24, "A trainable scale is computed under no_grad and never gets a gradient.")
wrong(25, "The sparse gradient of a table keeps the last of repeated indices instead of their sum.", plain_sparse_bag, expected=EITHER)
wrong(26, "The gradient of the row weights (in a dataclass) ignores that they also normalise the loss.")
wrong(27, "The gradient of the cell state (in a nested tuple) lacks the path through the hidden state.")
wrong(28, "A saved activation is clamped through .data after the forward has used it.")
wrong(29, "The gradient of a square weight is transposed, in a numpy kernel that refuses all but float32.", shown_by="base32", expected=EITHER, single=True)
wrong(30, "The rotation's backward has the wrong sign for the last pair, whose angles are the smallest.")
wrong(31, "Each layer keeps its last input on itself: a second forward in flight overwrites it.", shown_by="flight_ab flight_ba", clean=all_but("flight_ab", "flight_ba"))
wrong(32, "The gradient in main_grad is divided by the number of rows.", plain_sink, options={"gradient_of": main_grad_of}, sink=main_grad_of, expected=EITHER)
wrong(33, "The router's softmax backward uses the masked probabilities.", plain_moe)
wrong(34, "Indices are kept in a byte for the backward: those above 255 land in other rows.")
wrong(35, "Dropout's backward draws a new mask.", clean="eval")
wrong(36, "The gradient of a scale clamps the features at 65504; one feature is 1.7e7.")
wrong(37, "The backward computes the block again with other dropout.", clean="eval")
wrong(38, "Tied values share a rank when the sort is undone; the inputs are counts with ties.", plain_count_mix)
wrong(39, "A hook on an activation multiplies its gradient by 1.25.", expected=EITHER)
wrong(40, "The backward uses a packed copy of the weight that is stale once the weight has moved.", shown_by="second_point", clean=all_but("second_point"))

SOFT = "proven inconclusive"
right(1, "The float32 kernel is numpy and right, but leaves aten, so its noise may not be simulated.", plain_wrong_01, expected=SOFT)
right(2, "Right in float32, its own dtype; the kernel takes raw pointers, and in float64 it would read nonsense.", expected=SOFT, single=True)
right(3, "Right in float32; the numpy kernel refuses float64, so a float64 proof is not possible.", expected=SOFT, single=True)
right(4, "Computes in float32 inside whatever comes in, so float64 differences see float32 steps.", expected=SOFT, single=True)
right(5, "Keeps its activations on itself, but under a ticket for each call.", plain_wrong_08)
right(6, "Weight gradients go to main_grad in float32, .grad gets a dummy of zeros; gradient_of says where to look.", plain_sink, options={"gradient_of": main_grad_of}, sink=main_grad_of, expected=SOFT)
right(7, "Weight gradients go to main_grad, and nobody says so: inconclusive with the reason is right too.", plain_sink, sink=main_grad_of, expected=SOFT)
right(8, "SGD steps inside backward and frees .grad: the gradient itself is right; inconclusive with the reason is right too.", sink=stepped_with, expected=SOFT)
right(9, "Adds the weight's gradient to .grad by itself and returns None: right by .backward(), invisible to autograd.grad.", plain_wrong_13, expected=SOFT)
right(10, "A float mask of 0 and 1 is used only as m > 0.5.")
right(11, "One feature lies around 1.7e7; it is an ordinary number.")
right(12, "Softmax by sorting, with ties among integer-valued inputs; the sort is undone correctly.", plain_count_mix)
right(13, "The input is data and condition at once; no entry is near the kink.")
right(14, "Has an unused layer, an empty parameter, a frozen one and a scalar.", lambda m, x: m.out(torch.tanh(m.inp(x) * m.tau + m.frozen)))
right(15, "LoRA with B = 0, by a custom backward.", plain_lora)
right(16, "A residual branch scaled by zero, with a LayerNorm of its own.", plain_layerscale)
right(17, "Dropout by a generator of its own with a fixed seed.")
right(18, "The input is a nested (jagged) tensor: judged, or named as not judged.", expected=SOFT)
right(19, "BatchNorm by hand, with both formulas and running statistics.", plain_batchnorm)
right(20, "Convolution by columns, BatchNorm, and an output that is a transposed view.")
right(21, "The output head is the embedding table.")
right(22, "Two tables with sparse gradients, one of them by hand.", expected=SOFT)
right(23, "Four outputs of which two have no gradient; absent cotangents come as None.")
right(24, "Complex values in between; parameters and outputs are real.")
right(25, "A complex parameter: judged, or named as not judged.", expected=SOFT)
right(26, "Inputs and outputs in nested lists, tuples and dicts, with strings, numbers and None among them.")
right(27, "A frozen dataclass in, a dataclass out.", expected=SOFT)
right(28, "The same block is checkpointed twice, with dropout; the random state is restored.")
right(29, "The function depends on a buffer that counts the forwards; each forward has its own right gradient.", expected=SOFT)
right(30, "ReLU, hard tanh and leaky ReLU away from their kinks, behind weight norm.")
right(31, "Inputs of 1e-6 with gradients of 1e6.")
right(32, "Inputs of 1e6, weights of 4e-7, outputs of 1e6.")
right(33, "The batch has one row.")
right(34, "Causal attention with rotation, both by hand, P rebuilt in the backward.")
right(35, "A GRU cell by hand, used twice in a forward, its state in nested tuples.")
right(36, "Top-2 routing by hand with the unmasked softmax, rows away from ties, and an auxiliary loss.", plain_moe)
right(37, "Cross-entropy by hand with ignored rows and label smoothing.")
right(38, "Under bf16 autocast the product is bf16 and the weight gradient is summed in float32.", plain_wrong_05, options={"autocast": "bfloat16"})
right(39, "In bfloat16 the softmax works in float32 inside.", plain_wrong_04, options={"dtype": "bfloat16"})
right(40, "Hooks on parameters, an activation and a module that change nothing.", plain_right_08)


# ----------------------------------------------------------------------------------------------------------------------
# the check


def mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(mapped(value, change) for value in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: mapped(getattr(tree, f.name), change) for f in fields(tree)})
    return tree


def tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    mapped(tree, lambda t: (found.append(t), t)[1])
    return found


def trains(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def to_dtype(t: Tensor, dtype: torch.dtype) -> Tensor:
    if t.is_complex():
        return t.to(torch.complex128 if dtype == torch.float64 else torch.complex64)
    return t.to(dtype) if t.is_floating_point() else t


def cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    for t in (*module.parameters(), *module.buffers()):
        t.data = to_dtype(t.data, dtype)
    return module


def whole(t: Tensor) -> bool:
    return not t.is_nested and bool((t.real == t.real.round()).all())


def moved_inputs(inputs: tuple, seed: int, by: float) -> tuple:
    g = torch.Generator().manual_seed(seed)

    def move(t: Tensor) -> Tensor:
        if t.is_nested or not trains(t):
            return t
        return t if whole(t) else t * (1 + by * torch.randn(t.shape, generator=g).to(t.dtype))

    return mapped(inputs, move)


def other_inputs(inputs: tuple) -> tuple:
    """Another batch of the same kind: rows in the reverse order, numbers changed a little."""
    return moved_inputs(mapped(inputs, lambda t: t if t.is_nested or t.dim() == 0 else t.flip(0)), 5, 0.2)


def one_row(inputs: tuple) -> tuple:
    found = [t for t in tensors(inputs)]
    if any(t.is_nested for t in found):
        raise TypeError("a nested tensor has no rows to take")
    rows = found[0].shape[0]
    return mapped(inputs, lambda t: t[:1].clone() if t.dim() and t.shape[0] == rows else t)


def move_parameters(module: nn.Module, by: float = 0.1) -> None:
    g = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for p in module.parameters():
            if p.numel():
                noise = torch.randn(p.shape, generator=g).to(p.dtype)
                p.copy_(torch.where(p == 0, 0.3 * noise, p * (1 + by * noise)))


class Run:
    """A case, built anew, in one dtype and mode; the real module or its plain counterpart."""

    def __init__(self, case: Case, dtype: torch.dtype, plain: bool, way: str, rounded: torch.dtype | None = None):
        self.case, self.plain = case, plain
        self.module, self.inputs = case.make()
        if rounded is not None:
            cast(self.module, rounded)
            self.inputs = mapped(self.inputs, lambda t: to_dtype(t, rounded))
        cast(self.module, dtype)
        self.inputs = mapped(self.inputs, lambda t: to_dtype(t.detach(), dtype).clone())
        if way == "second_point":
            move_parameters(self.module)
            self.inputs = moved_inputs(self.inputs, 6, 0.1)
        if way == "one_row":
            self.inputs = one_row(self.inputs)
        if way == "eval":
            if not case.single:
                with torch.no_grad():  # a training forward first, for what it leaves in the buffers
                    torch.manual_seed(78)
                    self.module(*self.inputs)
            self.module.eval()
        self.params = dict(self.module.named_parameters())
        self.trainable = {name for name, p in self.params.items() if p.requires_grad}
        if way == "inputs_only":
            for p in self.params.values():
                p.requires_grad_(False)
        self.with_inputs = way != "params_only"
        self.autocast = way == "autocast" and not plain
        self.buffers = {name: b.clone() for name, b in self.module.named_buffers()}

    def forward(self, inputs: tuple) -> tuple[list[Tensor], list[Tensor]]:
        with torch.no_grad():
            for name, b in self.module.named_buffers():
                b.data = self.buffers[name].clone()
        inputs = mapped(inputs, lambda t: t.detach().clone().requires_grad_(trains(t) and self.with_inputs))
        leaves = [t for t in tensors(inputs) if trains(t)]
        torch.manual_seed(77)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            outs = self.case.plain(self.module, *inputs) if self.plain else self.module(*inputs)
        return [t for t in tensors(outs) if trains(t) and t.requires_grad], leaves

    def clear(self) -> None:
        for p in self.params.values():
            p.grad = None
            if getattr(p, "main_grad", None) is not None:
                p.main_grad.zero_()

    def collect(self, leaves: list[Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, p in self.params.items():
            if name in self.trainable and p.requires_grad:
                elsewhere = self.case.sink and (not self.plain or self.case.sink is stepped_with)
                g = self.case.sink(name, p) if elsewhere else p.grad
                found[name] = torch.zeros_like(p) if g is None else g
        for number, t in enumerate(leaves):
            if self.with_inputs:
                g = t.grad
                if t.is_nested:
                    g, t = (None if g is None else g.values()), t.values()
                found[f"input {number}"] = torch.zeros_like(t) if g is None else g
        wide = lambda t: to_dtype((t.to_dense() if t.is_sparse else t).detach(), torch.float64).clone()  # noqa: E731
        return {name: wide(g) for name, g in found.items()}


def cotangents(outs: list[Tensor], seed: int, layout: str) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    made = []
    for out in outs:
        shape = tuple(out.shape)
        c = torch.randn(shape, generator=g, dtype=torch.float64)
        if layout == "expanded" and len(shape):
            c = c[:1]
        c = c.to(torch.bfloat16).to(out.dtype)  # the same numbers in every dtype
        if layout == "expanded" and len(shape):
            c = c.expand(shape)
        elif layout == "noncontiguous" and len(shape) > 1:
            c = c.transpose(0, -1).contiguous().transpose(0, -1)
        elif layout == "sliced" and len(shape):
            room = c.new_full((*shape[:-1], 2 * shape[-1]), 3.0)
            room[..., ::2] = c
            c = room[..., ::2]
        made.append(c)
    return made


def backward(run: Run, outs: list[Tensor], seed: int, layout: str = "", retain: bool = False) -> None:
    torch.autograd.backward(outs, cotangents(outs, seed, layout), retain_graph=retain)


LAYOUTS = ("noncontiguous", "sliced", "expanded")


def gradients(run: Run, way: str) -> list[dict[str, Tensor]]:
    """What the module (or its plain counterpart) gives when it is called in this way."""
    run.clear()
    plain = run.plain
    if way.startswith("flight"):
        batches = {1: run.inputs, 2: other_inputs(run.inputs)}
        order = (1, 2) if way == "flight_ab" else (2, 1)
        found = []
        if plain:
            for seed in order:
                outs, leaves = run.forward(batches[seed])
                backward(run, outs, seed)
                found.append(run.collect(leaves))
                run.clear()
            return found
        flying = {seed: run.forward(batch) for seed, batch in batches.items()}
        for seed in order:
            outs, leaves = flying[seed]
            backward(run, outs, seed)
            found.append(run.collect(leaves))
            run.clear()
        return found
    outs, leaves = run.forward(run.inputs)
    if way == "retained" and not plain:
        backward(run, outs, 1, retain=True)
        first = run.collect(leaves)
        run.clear()
        for t in leaves:
            t.grad = None
        backward(run, outs, 1)
        return [first, run.collect(leaves)]
    if way == "accumulate" and not plain:
        g = torch.Generator().manual_seed(8)
        before = {}
        for name, p in run.params.items():
            if p.requires_grad and p.numel():
                start = torch.randn(p.shape, generator=g).to(p.dtype)
                before[name] = to_dtype(start, torch.float64)
                if getattr(p, "main_grad", None) is not None:
                    p.main_grad.copy_(start)
                else:
                    p.grad = start.clone()
        backward(run, outs, 1)
        return [{name: d - before.get(name, 0) for name, d in run.collect(leaves).items()}]
    backward(run, outs, 1, way if way in LAYOUTS else "")
    result = run.collect(leaves)
    return [result, result] if way == "retained" else [result]


WAYS = (
    "base32", "base64", "params_only", "inputs_only", "noncontiguous", "sliced", "expanded", "flight_ab", "flight_ba",
    "retained", "accumulate", "eval", "one_row", "second_point", "bf16", "autocast",
)  # fmt: skip


def apart(found: dict[str, Tensor], truth: dict[str, Tensor], usual: dict[str, float]) -> dict[str, float]:
    """Per tensor: the norm of the difference over that of the truth (or a fiftieth of the tensor's usual norm)."""
    assert found.keys() == truth.keys(), (found.keys() ^ truth.keys())
    result = {}
    for name, t in truth.items():
        size = max(float(t.norm()), 0.02 * usual.get(name, 0.0), 1e-30)
        off = float((found[name] - t).norm())
        result[name] = off / size if off else 0.0
    return result


def usual_norms(case: Case) -> dict[str, float]:
    usual: dict[str, float] = {}
    for mode in ("", "eval"):  # a bias before BatchNorm has no gradient in training, only rounding
        for name, g in gradients(Run(case, torch.float64, True, mode), "")[0].items():
            usual[name] = max(usual.get(name, 0.0), float(g.norm()))
    return usual


def differences(case: Case, way: str, double: bool = False) -> float | None:
    """The largest relative difference from the plain gradient in this way of calling, or None if the module refuses."""
    low = torch.bfloat16 if way == "bf16" else None
    dtype = {"base64": torch.float64, "bf16": torch.bfloat16}.get(way, torch.float64 if double else torch.float32)
    usual = usual_norms(case)
    try:
        real = Run(case, dtype, False, way, low)
        found = gradients(real, way)
    except (TypeError, RuntimeError, ValueError, IndexError, KeyError) as refusal:
        if way == "base32":
            raise
        REFUSALS[case.name, way] = f"{type(refusal).__name__}: {refusal}"
        return None
    truth = gradients(Run(case, torch.float64, True, way, low or torch.float32), way)
    assert len(found) == len(truth)
    return max((d for f, t in zip(found, truth, strict=True) for d in apart(f, t, usual).values()), default=0.0)


REFUSALS: dict[tuple[str, str], str] = {}


def same_function(case: Case, way: str, dtype: torch.dtype) -> float:
    """How far the outputs of the module and its plain counterpart lie apart."""
    real, plain = Run(case, dtype, False, way), Run(case, torch.float64, True, way)
    ours, theirs = real.forward(real.inputs)[0], plain.forward(plain.inputs)[0]
    assert len(ours) == len(theirs), (case.name, len(ours), len(theirs))
    return max(float(((a.double() - b).norm() / (b.norm() + 1e-30)).detach()) for a, b in zip(ours, theirs, strict=True))


def by_differences(case: Case, way: str) -> float:
    """The module's own float64 gradient against central differences of its own forward, two directions a tensor."""
    run = Run(case, torch.float64, False, way)
    found = gradients(run, way)[0]
    run = Run(case, torch.float64, False, way)
    usual = usual_norms(case)
    g = torch.Generator().manual_seed(3)

    def value() -> float:
        with torch.enable_grad():
            outs, _ = run.forward(run.inputs)
        with torch.no_grad():
            return float(sum((c * o).sum() for o, c in zip(outs, cotangents(outs, 1, ""), strict=True)))

    targets = {name: p.data for name, p in run.params.items() if name in run.trainable and p.numel()}
    leaves = [t for t in tensors(run.inputs) if trains(t)]
    targets |= {f"input {n}": t for n, t in enumerate(leaves) if not t.is_nested}
    worst = 0.0
    for name, t in targets.items():
        size = float(t.abs().median()) or float(t.abs().max()) or 1.0
        for _ in range(2):
            v = torch.randn(t.shape, generator=g, dtype=torch.float64).to(t.dtype)
            if t.is_complex():
                v = torch.complex(v.real, torch.randn(t.shape, generator=g, dtype=torch.float64))
            v = v * torch.where(t == 0, torch.full_like(t.abs(), size), t.abs())
            start, values = t.clone(), {}
            h = 2e-4
            for k in (-2, -1, 1, 2):
                t.copy_(start + k * h * v)
                values[k] = value()
            t.copy_(start)
            measured = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * h)
            analytic = float((found[name].conj() * v).real.sum())
            scale = float((found[name].abs() * v.abs()).norm()) + 1e-10 * max(map(abs, values.values()))
            scale = max(scale, 0.02 * usual[name] * float(v.norm()) / math.sqrt(v.numel()), 1e-12)
            worst = max(worst, abs(measured - analytic) / scale)
    return worst


def check_case(case: Case, verbose: bool) -> None:
    module, inputs = case.make()
    count = sum(p.numel() for p in module.parameters())
    assert count <= 10_000, (case.name, count)
    again, inputs_again = case.make()
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True)), case.name
    for a, b in zip(tensors(inputs), tensors(inputs_again), strict=True):
        assert torch.equal(a.values() if a.is_nested else a, b.values() if b.is_nested else b), case.name
    took = math.inf
    for _ in range(2):  # the first run of all also starts torch up
        began = time.perf_counter()
        gradients(Run(case, torch.float32, False, ""), "")
        took = min(took, time.perf_counter() - began)
    used = Run(case, torch.float32, False, "")
    gradients(used, "")
    copy.deepcopy(used.module)  # nothing that a run leaves on the module may stand in the way of a copy
    assert took < 0.3, (case.name, took)
    assert same_function(case, "", torch.float32) < 1e-4, case.name
    if not case.single:
        assert same_function(case, "", torch.float64) < 1e-10, case.name
        assert same_function(case, "eval", torch.float64) < 1e-10, case.name

    seen: dict[str, float | None] = {}
    for way in WAYS:
        if way == "base64" and case.single:
            continue
        if way == "bf16" and "dtype" not in case.options or way == "autocast" and "autocast" not in case.options:
            continue
        seen[way] = differences(case, way)
        if not case.single and way not in ("base32", "base64", "bf16", "autocast"):
            seen[way + "/64"] = differences(case, way, double=True)
    if verbose:
        print(case.name, {way: d if d is None else float(f"{d:.1e}") for way, d in seen.items()}, f"{took * 1e3:.0f} ms")
    sink_in_single = case.sink is main_grad_of  # a float32 sink rounds a float64 gradient

    def limit(way: str) -> float:
        if way in ("bf16", "autocast"):
            return 0.06
        return 2e-9 if (way == "base64" or way.endswith("/64")) and not sink_in_single else 3e-4

    if case.truth == "wrong":
        for way in case.shown_by:
            least = 0.2 if way in ("bf16", "autocast") else 5e-3
            assert seen[way] is not None and seen[way] > least, (case.name, way, seen[way])
        for way in case.clean:
            for variant in (way, way + "/64"):
                d = seen.get(variant)
                assert d is None or d <= limit(variant), (case.name, variant, d)
        return
    for way, d in seen.items():
        assert d is None or d <= limit(way), (case.name, way, d)
    if not case.single and case.name != "right_08":
        for way in ("", "eval", "one_row", "second_point"):
            if (case.name, "one_row") in REFUSALS and way == "one_row":
                continue
            off = by_differences(case, way)
            if verbose:
                print("   differences", way or "as given", f"{off:.1e}")
            assert off < (2e-5 if sink_in_single else 1e-6), (case.name, way, off)


def check(verbose: bool = False) -> None:
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    torch.set_num_threads(1)
    names = [case.name for case in CASES]
    assert names == [f"{kind}_{n:02d}" for kind in ("wrong", "right") for n in range(1, 41)]
    failed = []
    for case in CASES:
        try:
            check_case(case, verbose)
        except Exception as error:  # noqa: BLE001
            failed.append(f"{case.name}: {type(error).__name__}: {error}")
    if verbose:
        for (name, way), reason in REFUSALS.items():
            print("refused", name, way, reason[:150])
    assert not failed, "\n".join(failed)
    print(f"{len(CASES)} cases hold: {sum(c.truth == 'wrong' for c in CASES)} wrong, {sum(c.truth == 'right' for c in CASES)} right")


if __name__ == "__main__":
    import sys

    check("-v" in sys.argv)
