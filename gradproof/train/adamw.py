"""AdamW on the flat buffers.

    m ← β₁m + (1 − β₁)g,  v ← β₂v + (1 − β₂)g²,  m̂ = m/(1 − β₁ᵗ),  v̂ = v/(1 − β₂ᵗ)
    p ← p(1 − lr·wd), then p ← p − lr·m̂/(√v̂ + eps)

The arithmetic is torch's fused kernel, over all parameters at once. Learning rate and step count live on the device, so
a step waits for nothing; a skipped step moves neither parameters, moments nor count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gradproof.ops import adamw as reference
from gradproof.ops.adamw import BETAS, DECAY, EPS
from gradproof.params import ALIGNMENT, ParamSpace, padded


class Piece(NamedTuple):
    """A part of the flat buffer, with its moments."""

    at: slice
    kept: slice


def _pieces(own: Sequence[slice]) -> list[Piece]:
    """One after the other."""
    ends = accumulate((at.stop - at.start for at in own), initial=0)
    return [Piece(at, slice(*kept)) for at, kept in zip(own, pairwise(ends), strict=True)]


def copy_pieces(own: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    """Fills tensors, or pieces `NAME@START` of them, from stored ones, which are whole."""
    for key, tensor in own.items():
        name, _, start = key.partition("@")
        whole, first = stored[name], int(start or 0)
        tensor.copy_(whole.reshape(-1)[first : first + tensor.numel()].view_as(tensor))


class AdamW:
    """AdamW with weight decay on `matrices` only, or on `all` parameters. `bind` gives it the parameters to move."""

    def __init__(
        self,
        lr: float = 3e-4,
        betas: tuple[float, float] = BETAS,
        eps: float = EPS,
        weight_decay: float = DECAY,
        decay: Literal["matrices", "all"] = "matrices",
    ):
        if not lr >= 0 or not eps > 0 or not weight_decay >= 0:
            raise ValueError(f"lr = {lr} and weight_decay = {weight_decay} must be at least 0, eps = {eps} above 0")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas = {betas}: both must be at least 0 and below 1")
        if decay not in ("matrices", "all"):
            raise ValueError(f"decay = {decay!r}: weight decay acts on 'matrices' or on 'all'")
        self.lr, self.betas, self.eps, self.weight_decay, self.decay = lr, betas, eps, weight_decay, decay
        self.params: ParamSpace | None = None

    def bind(self, params: ParamSpace, own: Sequence[slice] | None = None) -> AdamW:
        """Allocates the moments for these parameters, or for the parts `own` of their flat buffer: only they are then
        moved, and others move the rest."""
        if self.params is not None:
            raise ValueError("this AdamW already has parameters; make one for each model")
        self.params = params
        flat_P = params.flat_P
        self.pieces = _pieces([slice(0, flat_P.numel())] if own is None else own)
        self.m_P, self.v_P = (flat_P.new_zeros(self.pieces[-1].kept.stop if self.pieces else 0) for _ in range(2))
        self.count = torch.zeros((), device=flat_P.device)
        self.rate = torch.full((), self.lr, device=flat_P.device)
        chosen = [entry.name for entry in params.spec if self.decay == "all" or entry.kind == "matrix"]
        spans = [self._overlaps(at) for at, _ in self.pieces]
        self._decayed = [[flat_P[slice(*span)] for name, span in own if name in set(chosen)] for own in spans]
        decayed_B = torch.zeros(flat_P.numel() // ALIGNMENT, dtype=torch.bool)
        for name in chosen:
            start = params.offsets[name] // ALIGNMENT
            decayed_B[start : start + padded(params[name].numel()) // ALIGNMENT] = True
        self._decayed_B = decayed_B.to(flat_P.device)
        return self

    @property
    def _bound(self) -> ParamSpace:
        if self.params is None:
            raise ValueError("this AdamW has no parameters yet; bind(model.params) comes first")
        return self.params

    @property
    def buffers(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What a kernel's step reads and moves: parameters, gradients, moments, and which blocks decay. Of an
        optimizer that has all of them."""
        params = self._bound
        return params.flat_P, params.grad_P, self.m_P, self.v_P, self._decayed_B

    def of(self, piece: Piece) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The same of one piece."""
        params, (at, kept) = self._bound, piece
        blocks = slice(at.start // ALIGNMENT, at.stop // ALIGNMENT)
        return params.flat_P[at], params.grad_P[at], self.m_P[kept], self.v_P[kept], self._decayed_B[blocks]

    @property
    def options(self) -> dict[str, Any]:
        """Of a kernel's step, by name."""
        return dict(betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)

    def set_rate(self, lr: float) -> None:
        """Sets the learning rate, from the next step on."""
        self.lr = lr
        self.rate.fill_(lr)

    def step(
        self,
        divisor: Tensor | None = None,
        skip: Tensor | None = None,
        narrow_P: Tensor | None = None,
        kernel: ModuleType = reference,
        moved: Callable[[slice], None] | None = None,
    ) -> None:
        """One update by `params.grad_P`/`divisor`, or nothing at all where `skip` is 1. `narrow_P` is a bf16 or fp16
        copy of the parameters that follows them; `moved` is told each part of the flat buffer when it is final."""
        params = self._bound
        self.count += 1
        for piece, decayed in zip(self.pieces, self._decayed, strict=True):
            flat, narrow = self.of(piece), None if narrow_P is None else narrow_P[piece.at]
            if kernel is not reference:
                kernel.step(*flat, self.count, self.rate, divisor, skip, narrow_P=narrow, **self.options)
            elif self.m_P.is_cuda:  # torch's own has β₂ and 1 − β₂ in float32: v is off by 1.3e-5, above its roundings
                rate = self.lr if self.m_P.dtype == torch.float64 else self.rate
                after, _ = reference.forward(*flat, self.count, rate, divisor, skip, **self.options)
                for own_P, new_P in zip((flat[0], flat[2], flat[3]), after, strict=True):
                    own_P.copy_(new_P)
            else:
                self._fused(flat, decayed, divisor, skip)
            if kernel is reference and narrow is not None:
                narrow.copy_(flat[0])
            if moved is not None:
                moved(piece.at)
        if skip is not None:
            self.count -= skip
        params.touch()

    def end(
        self, kernel: ModuleType, loss: Tensor, scale: Tensor, skips: Tensor, clip: float | None
    ) -> tuple[Tensor, Tensor]:
        """Norm, clip, skip and update by `params.grad_P`, the gradient times `scale`, in one: `kernel` is one of
        ops/update.py. Returns the norm and whether nothing was moved; `skips` counts that."""
        norm, skipped = kernel.step(*self.buffers, self.count, skips, self.rate, scale, loss, clip, **self.options)
        self._bound.touch()
        return norm, skipped

    def _fused(
        self, flat: tuple[Tensor, ...], decayed: list[Tensor], divisor: Tensor | None, skip: Tensor | None
    ) -> None:
        """By torch's own kernel."""
        # float32 is what the kernel takes rate and divisor in; float64 must not lose its digits there.
        p_P, grad_P, m_P, v_P, _ = flat
        exact = self.m_P.dtype == torch.float64
        rate = self.lr if exact else self.rate
        if exact and divisor is not None:
            grad_P, divisor = grad_P / divisor, None
        if self.weight_decay and decayed:
            keep = torch.as_tensor(1 - rate * self.weight_decay, dtype=self.m_P.dtype, device=self.m_P.device)
            torch._foreach_mul_(  # pyright: ignore[reportPrivateImportUsage]
                decayed, keep if skip is None else torch.where(skip > 0, 1.0, keep)
            )
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            [p_P],
            [grad_P],
            [m_P],
            [v_P],
            [],
            [self.count],
            lr=rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
            found_inf=skip,
        )

    def state(self) -> dict[str, Tensor]:
        """The moments by parameter name, without padding, and the count: what resuming needs. Of an optimizer that has
        a part of them, `NAME@START` is a piece, from number START of the parameter on."""
        params = self._bound
        if self.pieces and self.pieces[0].at == slice(0, params.flat_P.numel()):
            state = {f"m.{name}": view for name, view in params.views(self.m_P).items()}
            state |= {f"v.{name}": view for name, view in params.views(self.v_P).items()}
            return {**state, "count": self.count}
        state = {}
        for moment, own_P in (("m", self.m_P), ("v", self.v_P)):
            for at, kept in self.pieces:
                for name, (first, last) in self._overlaps(at):
                    shift = kept.start - at.start
                    state[f"{moment}.{name}@{first - params.offsets[name]}"] = own_P[first + shift : last + shift]
        return {**state, "count": self.count}

    def _overlaps(self, at: slice) -> list[tuple[str, tuple[int, int]]]:
        """The parameters that lie in a part of the flat buffer, and from where to where."""
        params = self._bound
        ends = {name: start + math.prod(params.shapes[name]) for name, start in params.offsets.items()}
        spans = [(name, (max(at.start, start), min(at.stop, ends[name]))) for name, start in params.offsets.items()]
        return [(name, (first, last)) for name, (first, last) in spans if first < last]

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `state` returned, of any part."""
        copy_pieces(self.state(), state)

    def memory_bytes(self) -> int:
        """The size of the two moments in bytes; 0 before `bind`."""
        return 0 if self.params is None else 2 * self.m_P.numel() * self.m_P.element_size()
