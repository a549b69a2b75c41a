"""AdamW on the flat buffers.

    m ← β₁m + (1 − β₁)g,  v ← β₂v + (1 − β₂)g²,  m̂ = m/(1 − β₁ᵗ),  v̂ = v/(1 − β₂ᵗ)
    p ← p(1 − lr·wd), then p ← p − lr·m̂/(√v̂ + eps)

The arithmetic is torch's fused kernel, over all parameters at once. Learning rate and step count live on the device, so
a step waits for nothing; a skipped step moves neither parameters, moments nor count.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from gradproof.ops import adamw as reference
from gradproof.ops.adamw import BETAS, DECAY, EPS
from gradproof.params import ALIGNMENT, ParamSpace, padded


class AdamW:
    """Weight decay on `matrices` alone, or on `all` parameters. `bind` gives it the parameters to move."""

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

    def bind(self, params: ParamSpace) -> AdamW:
        """Allocates the moments for these parameters."""
        if self.params is not None:
            raise ValueError("this AdamW already has parameters; make one for each model")
        self.params = params
        flat_P = params.flat_P
        self.m_P, self.v_P = torch.zeros_like(flat_P), torch.zeros_like(flat_P)
        self.count = torch.zeros((), device=flat_P.device)
        self.rate = torch.full((), self.lr, device=flat_P.device)
        chosen = [entry.name for entry in params.spec if self.decay == "all" or entry.kind == "matrix"]
        self._decayed = [params[name] for name in chosen]
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
        """What a kernel's step reads and moves: parameters, gradients, moments, and which blocks decay."""
        params = self._bound
        return params.flat_P, params.grad_P, self.m_P, self.v_P, self._decayed_B

    @property
    def options(self) -> dict[str, Any]:
        """Of a kernel's step, by name."""
        return dict(betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)

    def set_rate(self, lr: float) -> None:
        """The learning rate from the next step on."""
        self.lr = lr
        self.rate.fill_(lr)

    def step(
        self,
        divisor: Tensor | None = None,
        skip: Tensor | None = None,
        narrow_P: Tensor | None = None,
        kernel: ModuleType = reference,
    ) -> None:
        """One update by `params.grad_P`/`divisor`, or nothing at all where `skip` is 1. `narrow_P` is a bf16 or fp16
        copy of the parameters that follows them."""
        params, flat = self._bound, self.buffers
        self.count += 1
        if kernel is not reference:
            kernel.step(*flat, self.count, self.rate, divisor, skip, narrow_P=narrow_P, **self.options)
        elif self.m_P.is_cuda:  # where torch's own takes 1 − β₂ in float32: v is off by 1.3e-5, far above its roundings
            rate = self.lr if self.m_P.dtype == torch.float64 else self.rate
            after, _ = reference.forward(*flat, self.count, rate, divisor, skip, **self.options)
            for own_P, new_P in zip((params.flat_P, self.m_P, self.v_P), after, strict=True):
                own_P.copy_(new_P)
        else:
            self._fused(params, divisor, skip)
        if kernel is reference and narrow_P is not None:
            narrow_P.copy_(params.flat_P)
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

    def _fused(self, params: ParamSpace, divisor: Tensor | None, skip: Tensor | None) -> None:
        """By torch's own kernel."""
        # float32 is what the kernel takes rate and divisor in; float64 must not lose its digits there.
        exact = self.m_P.dtype == torch.float64
        rate, grad_P = self.lr if exact else self.rate, params.grad_P
        if exact and divisor is not None:
            grad_P, divisor = grad_P / divisor, None
        if self.weight_decay:
            keep = torch.as_tensor(1 - rate * self.weight_decay, dtype=self.m_P.dtype, device=self.m_P.device)
            torch._foreach_mul_(  # pyright: ignore[reportPrivateImportUsage]
                self._decayed, keep if skip is None else torch.where(skip > 0, 1.0, keep)
            )
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            [params.flat_P],
            [grad_P],
            [self.m_P],
            [self.v_P],
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
        """The moments by parameter name, without padding, and the count: what resuming needs."""
        assert self.params is not None
        state = {f"m.{name}": view for name, view in self.params.views(self.m_P).items()}
        state |= {f"v.{name}": view for name, view in self.params.views(self.v_P).items()}
        return {**state, "count": self.count}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state` gave."""
        for name, own in self.state().items():
            own.copy_(state[name])

    def memory_bytes(self) -> int:
        """Bytes of the two moments; 0 before `bind`."""
        return 0 if self.params is None else 2 * self.m_P.numel() * self.m_P.element_size()
