"""Judges the experts' chains layer by layer: each product and norm is compared on the inputs that the kernel gave it.

    h_i = x_i W_iᵀ,  x_{i+1} = norm_gelu(h_i),  y = x_L W_Lᵀ + b
    dx_i = dh_i W_i,  dh_{i−1} = norm_gelu's backward of (dx_i, h_{i−1}),  dW_i = dh_iᵀ x_i

A kernel shows its h and dh (`Workspace.show`), so that only one part's rounding is left to judge at a time, and a
narrow unit never meets a gradient that is summed in fp32. A kernel that shows no dh computes in fp32: there its error
is carried on from layer to layer, which is exact, for a backward is linear in dh once h is known.

What a part may be off by is computed (`proof/sizes.py`, `proof/normed.py`). Of many rows some are judged number by
number with errors of their own, by our op and by float64; all are compared with torch's own fused kernels, within what
the sample allows. Of many layers in narrow numbers a rehearsal judges some so, and the others in outline
(`proof/outline.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gradproof.ops import NARROW, layernorm, linear, wide
from gradproof.ops.experts import Chain
from gradproof.proof.normed import NormTrial, VectorSums
from gradproof.proof.outline import LayerOutline
from gradproof.proof.sizes import (
    UNIT,
    UNITS,
    Matrix,
    Sizes,
    allowance,
    largest,
    neighbours,
    norm,
    one_sign,
    sizes_of_both,
)
from gradproof.streams import seeded

AT_A_TIME = {"cpu": 1 << 19, "cuda": 1 << 25}  # numbers that are looked at together: as many as caches hold
FEW = 512  # rows of an expert, up to which each is judged number by number
SAFETY = 4.0  # times what was found in a sample of the rows
PROJECTED = 1 << 18  # numbers of a weight gradient in fp32, above which sums of its rows are looked at
SIGNS = 2
SAMPLED = 8  # rows and columns of a product that are held against float64

Slices = list[tuple[int, int]]
WeightSizes = dict[tuple[int, int], tuple[Sizes, Sizes]]  # of expert and layer
Compare = Callable[[str, int, slice, Tensor, Tensor, Tensor], None]
# (name, expert, which rows of it, what the kernel gave, what is right, what it may be off)


class Shown(NamedTuple):
    """An intermediate result of all rows, and where each expert's stand in it."""

    rows_NW: Tensor
    slices: Slices | None = None  # as the plan has them

    def of(self, e: int, start: int, end: int) -> Tensor:
        """Expert e's, which has rows start : end of the plan."""
        first = start if self.slices is None else self.slices[e][0]
        return self.rows_NW[first : first + end - start]


class WatchedWorkspace:
    """A workspace that keeps what a kernel's backward shows; with a trial each layer is judged as soon as it is whole,
    so that few of them are held at a time."""

    def __init__(self, workspace: Any, trial: ChainTrial | None = None):
        self.workspace, self.trial = workspace, trial
        self.kept: dict[str, dict[int, Shown]] = {"h": {}, "x": {}, "dh": {}}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return like.new_empty(shape) if self.workspace is None else self.workspace.take(name, shape, like)

    def show(self, name: str, layer: int, rows: Tensor, slices: Slices | None = None) -> None:
        self.kept[name][layer] = Shown(rows.clone(), slices)
        if self.trial is not None and name == "dh":
            self.judged(self.trial)

    def judged(self, trial: ChainTrial) -> None:
        """The layers that are whole."""
        while trial.layer - 1 in self.kept["h"] and trial.layer - 1 in self.kept["dh"]:
            self._next(trial)

    def _next(self, trial: ChainTrial) -> None:
        h, x, dh = (self.kept[name].pop(trial.layer - 1, None) for name in ("h", "x", "dh"))
        trial.judge(h, x, dh)

    def finish(self, trial: ChainTrial, dx_NI: Tensor | None) -> None:
        """The rest, once the backward has returned."""
        while trial.layer - 1 in self.kept["h"]:
            self._next(trial)
        if trial.layer:
            raise LookupError(f"the kernel does not show h of layer {trial.layer - 1}")
        trial.judge(None, None, None)
        trial.inputs(dx_NI)
        trial.kept()


def watched(
    module: ModuleType,
    call: Mapping[str, Any],
    given: Mapping[str, Any],
    y_NO: Tensor,
    judge: Compare,
    sizes: WeightSizes | None = None,
    thorough: int | None = None,
) -> tuple[Tensor | None, Tensor]:
    """The gradients of a backward, called by these names, whose every part is judged on the way; so many layers number
    by number, or all."""
    dy_NO, out_EP = call["dy_NO"], None if call.get("accumulate") else call.get("out_EP")
    tape = WatchedWorkspace(call.get("workspace"))
    if out_EP is not None:
        tape.trial = ChainTrial(given, y_NO, dy_NO, out_EP, judge, sizes, thorough)
    dx_NI, dtheta_EP = module.backward(**{**call, "workspace": tape})
    tape.finish(tape.trial or ChainTrial(given, y_NO, dy_NO, dtheta_EP, judge, sizes, thorough), dx_NI)
    return dx_NI, dtheta_EP


def off(fast: Tensor, right: Tensor, allowed: Tensor) -> Tensor:
    """The largest |fast − right|/allowed, NaN for a number that is none; not waited for. What is allowed is never 0."""
    if not right.numel():
        return right.new_zeros(())
    return largest(torch.sub(fast, right).div_(allowed))


class Largest:
    """How far off each part is at most; read at the end, so that nothing waits for the device in between."""

    def __init__(self) -> None:
        self._ratios: dict[str, list[Tensor]] = {}

    def __call__(self, name: str, e: int, rows: slice, fast: Tensor, right: Tensor, allowed: Tensor) -> None:
        self.add(name, off(fast, right, allowed))

    def add(self, name: str, ratio: Tensor) -> None:
        self._ratios.setdefault(name, []).append(ratio)

    def read(self) -> dict[str, float]:
        """By name; infinite for a number that is none."""
        listed = [ratio for own in self._ratios.values() for ratio in own]
        ratios = iter(torch.stack(listed).nan_to_num(math.inf, math.inf).tolist() if listed else [])
        return {name: max(next(ratios) for _ in own) for name, own in self._ratios.items()}


def product_off(a: Tensor, b: Tensor, out: Tensor) -> float:
    """How far off a kernel's product of two matrices is."""
    right = linear.wide_product(a, b)
    stored = torch.finfo(out.dtype).eps / 2 if out.dtype in NARROW else 0.0
    sizes = Sizes.of(Matrix(a), 1, False), Sizes.of(Matrix(b), 0, False)
    ratios = Largest()
    ratios.add("", off(out, right, allowance(right, *sizes, a.shape[1], stored)))
    return ratios.read()[""]


class Collected:
    """What is right and what may be off of whole tensors, and how far off what lies between is."""

    def __init__(self, given: Mapping[str, Any], y_NO: Tensor):
        self.chain: Chain = given["chain"]
        self.starts: list[int] = given["plan"].bounds()
        like = {"output 0": y_NO, "x": given["x"], "theta": given["theta"]}
        self.right = {name: torch.zeros_like(tensor, dtype=torch.float32) for name, tensor in like.items()}
        self.allowed = {name: torch.zeros_like(tensor, dtype=torch.float32) for name, tensor in like.items()}
        self.between = Largest()

    def __call__(self, name: str, e: int, rows: slice, fast: Tensor, right: Tensor, allowed: Tensor) -> None:
        value, _, part = name.partition(": ")
        if value not in self.right:
            self.between(name, e, rows, fast, right, allowed)
            return
        for held, new in ((self.right[value], right), (self.allowed[value], allowed)):
            own = self.chain.view(held[e], part) if part else held[self.starts[e] : self.starts[e + 1]]
            own[rows] = new


class ChainTrial:
    """One call of a kernel, judged layer by layer as it shows them, the last layer first."""

    def __init__(
        self,
        given: Mapping[str, Any],
        y_NO: Tensor,
        dy_NO: Tensor,
        dtheta_EP: Tensor,
        compare: Compare,
        sizes: WeightSizes | None = None,
        thorough: int | None = None,
    ):
        """`sizes` keeps those of the weights from one trial to the next, where they are the same. So many layers of
        all experts are judged `thorough`ly, the first and the last of each expert besides."""
        narrow_EP = given.get("narrow")
        self.chain: Chain = given["chain"]
        self.theta_EP, self.x_NI, self.dtheta_EP = given["theta"], given["x"], dtheta_EP
        self.matrices_EP = self.theta_EP if narrow_EP is None else narrow_EP
        self.dtype = self.matrices_EP.dtype
        format = torch.finfo(self.dtype)
        self.narrow = format.eps / 2 if self.dtype in NARROW else 0.0
        # Below it a number may be made zero; of fp16 no device does it with what the format still holds.
        self.least = format.tiny * (format.eps if self.dtype == torch.float16 else 1.0)
        self.slices: Slices = list(pairwise(given["plan"].bounds()))
        self.compare = compare
        self.dy_NO = dy_NO
        self.dh = [Matrix(dy_NO[start:end].to(self.dtype)) for start, end in self.slices]
        self.above = Shown(y_NO)
        self.layer = self.chain.layers
        self.sizes: WeightSizes = {} if sizes is None else sizes
        self.judged: dict[tuple[int, str], Tensor] = {}  # what gradients were when they were looked at
        self.same: list[float | Tensor] = [1.0] * len(self.slices)  # rows that are rounded alike
        between = [(e, i) for e in range(len(self.slices)) for i in range(1, self.chain.layers)]
        spared = torch.randperm(len(between), generator=seeded("chain", "layers", len(between)))[thorough:]
        self.spared = {between[i] for i in spared.tolist()} if self.narrow and thorough is not None else set()

    def judge(self, h: Shown | None, x: Shown | None, dh: Shown | None) -> None:
        """One layer: its input is made of h, and is what is shown as x, if it is; its output was shown with the layer
        above. Without h its input is what goes into the chain."""
        for e, (start, end) in enumerate(self.slices):
            if self.layer == self.chain.layers:
                self._last_bias(e, self.dy_NO[start:end])
            h_nH = None if h is None else h.of(e, start, end)
            x_nH = None if x is None else x.of(e, start, end)
            dh_nH = None if dh is None else dh.of(e, start, end)
            if h_nH is not None and dh_nH is not None and self._in_outline(e, h_nH):
                self._outline(e, h_nH, x_nH, dh_nH, self.above.of(e, start, end))
                self.dh[e] = Matrix(dh_nH)
                continue
            below, dh_below = Matrix(self.x_NI[start:end].to(self.dtype)), self.dh[e]
            if h_nH is not None:
                below, dh_below = self._norm(e, h_nH, x_nH, dh_nH)
            if end > start:
                self._forward(e, below, self.above.of(e, start, end))
            self._weight(e, below if x_nH is None else Matrix(x_nH))
            self.dh[e] = dh_below
        if h is not None:
            self.layer, self.above = self.layer - 1, h

    def _in_outline(self, e: int, h_nH: Tensor) -> bool:
        w_OI = self.chain.view(self.theta_EP[e], f"linear.{self.layer}.weight")
        fits = len(h_nH) * max(w_OI.shape) <= 2 * AT_A_TIME[h_nH.device.type]
        return fits and len(h_nH) > 0 and (e, self.layer) in self.spared

    def _outline(self, e: int, h_nH: Tensor, x_nH: Tensor | None, dh_nH: Tensor, above: Tensor) -> None:
        i, names = self.layer, {"bias": "linear.{}.bias", "gamma": "norm.{}.weight", "beta": "norm.{}.bias"}
        w_OI = self.chain.view(self.matrices_EP[e], f"linear.{i}.weight")
        layer = LayerOutline(w_OI, self._vectors(e, i - 1), self.chain.active[i - 1], h_nH, self.dh[e].value)

        def grad(name: str) -> Tensor:
            named = f"linear.{i}.weight" if name == "weight" else names[name].format(i - 1)
            return self._gradient(e, named)

        for name, measured, allowed in layer.parts(x_nH, dh_nH, above, grad):
            self.compare(f"{name}.{i}, in outline", e, slice(None), measured, torch.zeros_like(allowed), allowed)

    def inputs(self, dx_NI: Tensor | None) -> None:
        """The gradient of what goes in, where there is one."""
        if dx_NI is None:
            return
        for e, (start, end) in enumerate(self.slices):
            w_OI, (_, across) = self._matrix(e, 0)
            for rows in self._chunks(end - start, max(w_OI.shape)):
                dh = self.dh[e].at(rows)
                right, allowed = self._product(dh, w_OI, across, self.narrow)
                self._compare("x", e, rows, dx_NI[start:end][rows], right, allowed, dh.value, w_OI)

    def kept(self) -> None:
        """Gradients that were judged before the backward was at its end are still what they were."""
        if not self.judged:
            return
        now = torch.stack([_bits(self.chain.view(self.dtheta_EP[e], name)) for e, name in self.judged])
        for (e, name), differs in zip(
            self.judged, (now != torch.stack(list(self.judged.values()))).tolist(), strict=True
        ):
            fast = now.new_full((1,), differs, dtype=torch.float32)
            self.compare(f"theta, written over later: {name}", e, slice(None), fast, fast * 0, fast * 0 + 0.5)

    def _gradient(self, e: int, name: str) -> Tensor:
        """That of a parameter, as the kernel has written it by now."""
        own = self.chain.view(self.dtheta_EP[e], name)
        self.judged[e, name] = _bits(own)
        return own

    def _matrix(self, e: int, i: int) -> tuple[Tensor, tuple[Sizes, Sizes]]:
        """w_OI, and the sizes of its rows and columns."""
        w_OI = self.chain.view(self.matrices_EP[e], f"linear.{i}.weight")
        if (e, i) not in self.sizes:
            self.sizes[e, i] = sizes_of_both(w_OI, self.narrow > 0)
        return w_OI, self.sizes[e, i]

    def _vectors(self, e: int, i: int) -> tuple[Tensor, Tensor, Tensor]:
        names = (f"linear.{i}.bias", f"norm.{i}.weight", f"norm.{i}.bias")
        b_H, gamma_H, beta_H = (self.chain.view(self.theta_EP[e], name) for name in names)
        return b_H, gamma_H, beta_H

    def _vector(self, e: int, name: str, right_H: Tensor, allowed_H: Tensor) -> None:
        fast_H = self._gradient(e, name)
        self.compare(f"theta: {name}", e, slice(None), fast_H, right_H, allowed_H + torch.finfo(torch.float32).tiny)

    def _chunks(self, rows: int, width: int) -> Iterator[slice]:
        step = max(1, AT_A_TIME[self.theta_EP.device.type] // width)
        return (slice(start, min(start + step, rows)) for start in range(0, rows, step))

    def _last_bias(self, e: int, dy_nO: Tensor) -> None:
        sigma_O = math.sqrt(max(len(dy_nO), 1)) * UNIT * norm(dy_nO, 0)
        right_O = dy_nO.double().sum(0).float()
        self._vector(e, f"linear.{self.layer}.bias", right_O, UNITS * sigma_O + one_sign(len(dy_nO)) * right_O.abs())

    def _forward(self, e: int, x: Matrix, fast: Tensor) -> None:
        """h_i, or y, of x_i."""
        i, last = self.layer, self.layer == self.chain.layers
        w_OI, (across, _) = self._matrix(e, i)
        for rows in self._chunks(len(fast), max(w_OI.shape)):
            right, allowed = self._product(x.at(rows), w_OI.T, across, self.narrow)
            if last:
                right += self.chain.view(self.theta_EP[e], f"linear.{i}.bias")
                allowed.add_(right.abs(), alpha=UNITS * UNIT)
            name = "output 0" if last else f"h.{i}"
            self._compare(name, e, rows, fast[rows], right, allowed, x.value[rows], w_OI.T)

    def _product(self, a: Matrix, b: Tensor, across: Sizes, stored: float) -> tuple[Tensor, Tensor]:
        """a b with sums in fp32, and what a kernel's may be off where it is stored with this unit."""
        right = linear.wide_product(a.value, b)
        sizes = Sizes.of(a, 1, self.narrow > 0), across
        allowed = allowance(right, *sizes, a.value.shape[1], stored, self.narrow)
        return right, allowed.add_(2 * self.least) if stored else allowed

    def _weight(self, e: int, x: Matrix) -> None:
        """dW_i = dh_iᵀ x_i."""
        dh, name = self.dh[e], f"linear.{self.layer}.weight"
        across, fast_OI = Sizes.of(x, 0, self.narrow > 0), self._gradient(e, name)
        if not self.narrow and fast_OI.numel() > PROJECTED and not isinstance(self.compare, Collected):
            self._projected(e, dh, x, across, fast_OI)
            return
        for rows in self._chunks(*fast_OI.shape):
            own = dh.columns(rows)
            right, down = linear.wide_product(own.value.T, x.value), Sizes.of(own, 0, self.narrow > 0)
            allowed = allowance(right, down, across, len(dh.value), 0.0, self.narrow, self.same[e])
            self._compare(f"theta: {name}", e, rows, fast_OI[rows], right, allowed, own.value.T, x.value)

    def _projected(self, e: int, dh: Matrix, x: Matrix, across: Sizes, fast_OI: Tensor) -> None:
        """A large dW in fp32 along random signs R: dW R = dhᵀ(x R). One pass over dW; an entry of the usual size that
        is off by 1% shows, for σ of a row's sum is √I times that of an entry, and that is 1e-6 or so of it."""
        (O, I), n = fast_OI.shape, len(dh.value)
        generator = seeded("chain", "signs", I)
        sign_IR = torch.randint(0, 2, (I, SIGNS), generator=generator).mul_(2).sub_(1).to(x.value)
        right_OR = (dh.value.double().T @ (x.value.double() @ sign_IR.double())).float()
        down = Sizes.of(dh, 0, False)
        sigma_O = math.sqrt(max(n, 1)) * UNIT * down.fourth * across.fourth.norm()
        if down.sigma is not None:
            sigma_O += down.sigma * across.fourth.norm()
        if across.sigma is not None:
            sigma_O += down.fourth * across.sigma.norm()
        largest_O = norm(dh.value, 0) * norm(x.value, 0).norm()  # ‖dW_o‖ is no larger: what summing up costs
        sigma_O += math.sqrt(I) * UNIT * largest_O
        allowed_OR = (UNITS * sigma_O + torch.finfo(torch.float32).tiny)[:, None].expand(O, SIGNS).clone()
        name = f"theta, along signs: linear.{self.layer}.weight"
        self.compare(name, e, slice(None), fast_OI @ sign_IR, right_OR, allowed_OR)

    def _norm(self, e: int, h_nH: Tensor, x_nH: Tensor | None, dh_nH: Tensor | None) -> tuple[Matrix, Matrix]:
        """Bias, norm and GELU below layer i, forward and backward: x_i of h_{i−1} and dh_{i−1} of dh_i, each beside
        what the kernel shows of it, and the gradients of their parameters. Few rows are judged number by number; of
        many a sample is, and all are compared with torch's own kernels."""
        i, rows = self.layer - 1, len(h_nH)
        w_OI, (_, across) = self._matrix(e, self.layer)
        some = slice(None) if rows <= FEW else _chosen(rows, FEW, h_nH.device)
        normed = NormTrial.of(h_nH[some], *self._vectors(e, i))
        value, sigma_x = normed.activated(self.chain.active[i])
        dx_mH, allowed_mH = self._product(self.dh[e].at(some), w_OI, across, 0.0)
        stored_mH = self._stored(dx_mH, allowed_mH.div_(UNITS)).add_(self.least)
        dx_mH = wide(dx_mH.to(self.dtype))
        self.same[e] = same = neighbours(dx_mH, rows) if self.narrow else 1.0
        right, sigma_dh, flip, sums = normed.backward(dx_mH, stored_mH, self.chain.active[i])
        of = "" if rows <= FEW else "in a sample "
        if x_nH is not None:
            allowed = UNITS * sigma_x + self.narrow * value.abs() + 2 * self.least
            self.compare(f"{of}x.{i}", e, slice(None), x_nH[some], value, allowed)
        if dh_nH is not None:
            allowed = UNITS * sigma_dh + self.narrow * (right.abs() + 2 * flip) + 2 * self.least
            self.compare(f"{of}dh.{i}", e, slice(None), dh_nH[some], right, allowed)
        x, dh = Matrix(value, self._stored(value, sigma_x)), Matrix(right, sigma_dh)
        if rows > FEW:
            share_x = SAFETY * UNITS * (sigma_x / (value.abs() + _usual(value))).max()
            share_dh = SAFETY * UNITS * (sigma_dh / (flip + _usual(right))).max()
            sums = sums.scaled(SAFETY, rows / len(value))
            x, dh = self._all_rows(e, h_nH, x_nH, dh_nH, (x, dh), (share_x, share_dh), sums)
        for name, right_H, sigma_H, most_H in sums.vectors(rows):
            flips_H = UNITS * same**0.5 * sigma_H + 2 * self.narrow * same * most_H
            allowed_H = flips_H + one_sign(rows) * right_H.abs()
            self._vector(e, name.format(i), right_H, allowed_H)
        return x._replace(value=x.value.to(self.dtype)), dh if dh_nH is None else Matrix(dh_nH)

    def _all_rows(
        self,
        e: int,
        h_nH: Tensor,
        x_nH: Tensor | None,
        dh_nH: Tensor | None,
        some: tuple[Matrix, Matrix],
        shares: tuple[Tensor, Tensor],
        sums: VectorSums,
    ) -> tuple[Matrix, Matrix]:
        """The same by torch's own kernels. σ is that of the sample, beside the size of its rows."""
        i, active, own = self.layer - 1, self.chain.active[self.layer - 1], self._vectors(e, self.layer - 1)
        w_OI, (share_x, share_dh) = self._matrix(e, self.layer)[0], shares
        made_x, made_dh = [], []
        for at in self._chunks(len(h_nH), max(w_OI.shape)):
            in_nH, n_nH, mean_n1, rstd_n1 = _layer_norm(h_nH[at], *own)
            value = F.gelu(n_nH, approximate="tanh") if active else n_nH
            if x_nH is None:
                made_x.append(value.to(self.dtype))
            else:
                allowed = value.abs().mul_(share_x + self.narrow).add_(share_x * _usual(value) + 2 * self.least)
                self.compare(f"x.{i}", e, at, x_nH[at], value, allowed)
            dx_nH = wide(linear.wide_product(self.dh[e].value[at], w_OI).to(self.dtype))
            dn_nH = torch.ops.aten.gelu_backward(dx_nH, n_nH, approximate="tanh") if active else dx_nH
            right, *vectors = torch.ops.aten.native_layer_norm_backward(
                dn_nH, in_nH, [h_nH.shape[1]], mean_n1, rstd_n1, own[1], own[2], [True, True, True]
            )
            sums.take(right, *vectors)
            if dh_nH is None:
                made_dh.append(right)
            else:
                allowed = (dn_nH * own[1]).abs_().mul_(rstd_n1 * (share_dh + 2 * self.narrow))
                allowed.add_(share_dh * _usual(right) + 2 * self.least).add_(right.abs(), alpha=self.narrow)
                self.compare(f"dh.{i}", e, at, dh_nH[at], right, allowed)
        of_x, of_dh = some
        x = Matrix(torch.cat(made_x) if x_nH is None else x_nH, *_of_sample(of_x, len(h_nH)))
        if dh_nH is not None:
            return x, Matrix(dh_nH)
        return x, Matrix(torch.cat(made_dh), *_of_sample(of_dh, len(h_nH)))

    def _stored(self, value: Tensor, sigma: Tensor) -> Tensor:
        """σ of what is stored: of one unit in the last place, as often as rounding goes the other way."""
        if not self.narrow:
            return sigma + UNIT * value.abs()
        return (2 * self.narrow * value.abs() * sigma + sigma.square()).sqrt()

    def _compare(
        self, name: str, e: int, rows: slice, fast: Tensor, right: Tensor, allowed: Tensor, a: Tensor, b: Tensor
    ) -> None:
        """With torch's product of a and b, which `right` holds; where a few rows and columns cross, with float64's."""
        if right.numel():
            i, j = (_chosen(size, SAMPLED, right.device) for size in right.shape)
            exact = (a[i].double() @ b[:, j].double()).float()
            if name == "output 0":
                exact += self.chain.view(self.theta_EP[e], f"linear.{self.layer}.bias")[j]
            self.compare(f"in float64 {name}", e, rows, fast[i][:, j], exact, allowed[i][:, j])
        self.compare(name, e, rows, fast, right, allowed)


def _bits(a: Tensor) -> Tensor:
    """A digest: the sum of the bits of its numbers."""
    return a.flatten().view(torch.int32 if a.numel() % 2 else torch.int64).sum()


def _usual(a: Tensor) -> Tensor:
    """The usual size of a number, row by row."""
    return norm(a, 1)[:, None] / math.sqrt(a.shape[1]) + torch.finfo(torch.float32).tiny


def _of_sample(a: Matrix, rows: int) -> tuple[Tensor, Tensor]:
    """‖σ‖₄ beside ‖·‖₄, the largest of all rows, and more; and that of each column of so many rows."""
    down, across = Sizes.of(a, 1, False), Sizes.of(a, 0, False)
    assert down.sigma is not None and across.sigma is not None
    more = math.sqrt(SAFETY)
    return more * (down.sigma / down.fourth).max(), more * (rows / len(a.value)) ** 0.25 * across.sigma


@lru_cache(maxsize=256)
def _chosen(size: int, count: int, device: torch.device) -> Tensor:
    """Some of so many places: by chance, the first and the last."""
    places = torch.randperm(size, generator=seeded("chain", "places", size))[: max(0, count - 2)]
    return torch.cat([torch.tensor([0, size - 1]), places]).unique().to(device)


def _layer_norm(h_nH: Tensor, b_H: Tensor, gamma_H: Tensor, beta_H: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x = h + b, n, mean and rstd, by torch's own kernel."""
    x_nH = h_nH + b_H if h_nH.dtype == b_H.dtype else h_nH.float().add_(b_H)
    return x_nH, *torch.native_layer_norm(x_nH, [h_nH.shape[1]], gamma_H, beta_H, layernorm.EPS)
