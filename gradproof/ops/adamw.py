"""AdamW on flat buffers, as a function: the reference for the fused kernels.

    g ← g/divisor;  p ← p(1 − lr·wd) where decayed;  m ← β₁m + (1 − β₁)g;  v ← β₂v + (1 − β₂)g²
    p ← p − lr·m̂/(√v̂ + eps),  m̂ = m/(1 − β₁ᵗ),  v̂ = v/(1 − β₂ᵗ);   nothing changes if skip is 1

Decay is set per block of 64 elements, since every parameter starts at a multiple of 64.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import Contract, Example
from gradproof.params import ALIGNMENT

BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.01


class Updated(NamedTuple):
    p_P: Tensor
    m_P: Tensor
    v_P: Tensor


def forward(
    p_P: Tensor,
    g_P: Tensor,
    m_P: Tensor,
    v_P: Tensor,
    decayed_B: Tensor,
    count: Tensor,
    rate: Tensor | float,
    divisor: Tensor | None = None,
    skip: Tensor | None = None,
    betas: tuple[float, float] = BETAS,
    eps: float = EPS,
    weight_decay: float = DECAY,
) -> tuple[Updated, None]:
    """The parameters and moments after step number `count`."""
    before = Updated(p_P, m_P, v_P)
    g_P = g_P if divisor is None else g_P / divisor
    decayed_P = decayed_B.repeat_interleave(ALIGNMENT)
    p_P = torch.where(decayed_P, p_P * (1 - rate * weight_decay), p_P)
    m_P = m_P + (1 - betas[0]) * (g_P - m_P)
    # With one coefficient: in float32, β₂ and 1 − β₂ do not add up to 1, and v would be 1.3e-5 too large in the end.
    v_P = v_P + (1 - betas[1]) * (g_P * g_P - v_P)
    # In float64: in the first steps 1 − βᵗ is small, and float32 would move all parameters by 3e-5 too much or too
    # little.
    correction1, correction2 = ((1 - beta ** count.double()).to(p_P.dtype) for beta in betas)
    p_P = p_P - rate / correction1 * m_P / ((v_P / correction2).sqrt() + eps)
    after = Updated(p_P, m_P, v_P)
    if skip is None:
        return after, None
    return Updated(*(torch.where(skip > 0, b, a) for b, a in zip(before, after, strict=True))), None


def out_of_place(step: Callable[..., None]) -> Callable[..., tuple[Updated, None]]:
    """Turns a kernel's in-place step into a function like `forward`."""

    @wraps(forward)
    def called(p_P: Tensor, g_P: Tensor, m_P: Tensor, v_P: Tensor, *rest: Any, **given: Any) -> tuple[Updated, None]:
        after = Updated(p_P.clone(), m_P.clone(), v_P.clone())
        step(after.p_P, g_P, after.m_P, after.v_P, *rest, **given)
        return after, None

    return called


def norm(g_P: Tensor) -> Tensor:
    """‖g‖, summed in float64: torch's float32 sum of 200,000 entries on a CPU is always 7e-6 too small."""
    return torch.linalg.vector_norm(g_P, dtype=torch.float64).to(g_P.dtype)


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    P = sizes["P"]
    p_P, g_P, m_P, v_P = torch.randn(4, P, generator=generator, dtype=torch.float64)
    decayed_B = torch.rand(P // ALIGNMENT, generator=generator) < 0.5
    scalars = dict(count=torch.tensor(7.0).double(), rate=torch.tensor(0.01).double())
    return dict(p=p_P, g=g_P, m=0.1 * m_P, v=0.01 * v_P.square(), decayed=decayed_B, **scalars)


def _varied(label: str, generator: torch.Generator, **more: Any) -> Example:
    return Example(label, {**_draw(dict(P=4 * ALIGNMENT), generator, {}), **more})


def _first(generator: torch.Generator) -> Example:
    zeros_P = torch.zeros(4 * ALIGNMENT).double()
    return _varied("first step", generator, count=torch.tensor(1.0).double(), m=zeros_P, v=zeros_P.clone())


def _skipped(generator: torch.Generator) -> Example:
    """A gradient that is not finite changes nothing."""
    g_P = torch.full((4 * ALIGNMENT,), torch.nan).double()
    return _varied("skipped", generator, g=g_P, skip=torch.ones(()).double(), divisor=torch.tensor(torch.nan).double())


def _scaled(generator: torch.Generator) -> Example:
    return _varied("scaled", generator, divisor=torch.tensor(1024.0).double(), skip=torch.zeros(()).double())


CONTRACT = Contract(
    shapes="p[P] g[P] m[P] v[P] decayed count rate -> p[P] m[P] v[P]",
    sizes=dict(P=(64, 192, 64 * 37)),
    grads=(),
    draw=_draw,
    options=({}, dict(weight_decay=0.3, betas=(0.5, 0.9), eps=1e-3)),
    claims=(),
    edges=(_first, _skipped, _scaled),
    functions={"norm": ("g",)},
)
