"""The optimizer update as one function: check that the gradient is finite, clip it by its norm, apply AdamW, count the
step.

    norm = ‖g‖/scale;   skipped = 1 if norm or loss is not finite, else 0
    AdamW by g/(scale·max(1, (norm + 1e-6)/clip)) as step number count + 1, or no change if skipped is 1
    count ← count + 1 − skipped;   skips ← skips + skipped

`scale` is the loss scale. ops/adamw.py does the arithmetic of AdamW.
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import Contract, Example
from gradproof.ops import adamw
from gradproof.ops.adamw import BETAS, DECAY, EPS
from gradproof.params import ALIGNMENT

CLIP_EPS = 1e-6


class Ended(NamedTuple):
    p_P: Tensor
    m_P: Tensor
    v_P: Tensor
    count: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]
    skips: Tensor
    norm: Tensor  # before clipping; infinite instead of NaN, which could not be compared
    skipped: Tensor


def forward(
    p_P: Tensor,
    g_P: Tensor,
    m_P: Tensor,
    v_P: Tensor,
    decayed_B: Tensor,
    count: Tensor,
    skips: Tensor,
    rate: Tensor,
    scale: Tensor,
    loss: Tensor,
    clip: float | None = None,
    betas: tuple[float, float] = BETAS,
    eps: float = EPS,
    weight_decay: float = DECAY,
) -> tuple[Ended, None]:
    """Everything that a step changes or reports."""
    norm = adamw.norm(g_P) / scale
    skipped = 1 - (norm.isfinite() & loss.isfinite()).to(norm.dtype)
    divisor = scale if clip is None else scale * ((norm + CLIP_EPS) / clip).clamp(min=1.0)
    how = (divisor, skipped, betas, eps, weight_decay)
    (p_P, m_P, v_P), _ = adamw.forward(p_P, g_P, m_P, v_P, decayed_B, count + 1, rate, *how)
    return Ended(p_P, m_P, v_P, count + 1 - skipped, skips + skipped, _comparable(norm), skipped), None


def _comparable(norm: Tensor) -> Tensor:
    return norm.nan_to_num(nan=torch.inf, posinf=torch.inf)


def out_of_place(step: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Ended, None]]:
    """Turns a kernel's step into a function like `forward`. The kernel updates buffers and counters in place and
    returns (norm, skipped).
    """

    @wraps(forward)
    def called(*args: Any, **given: Any) -> tuple[Ended, None]:
        bound, own = with_copies(forward, args, given)
        norm, skipped = step(**bound, **own)
        return Ended(**own, norm=_comparable(norm), skipped=skipped), None

    return called


def with_copies(
    forward: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments of a call by name: those that a step reads, and copies of those that it updates."""
    bound = dict(signature(forward).bind(*args, **given).arguments)
    return bound, {name: bound.pop(name).clone() for name in ("p_P", "m_P", "v_P", "count", "skips")}


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    drawn = adamw.CONTRACT.draw(sizes, generator, options)  # pyright: ignore[reportOptionalCall]
    return {**drawn, **_scalars(count=6.0, skips=2.0, scale=1.0, loss=0.7)}


def _scalars(**values: float) -> dict[str, Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def _varied(label: str, generator: torch.Generator, options: dict[str, Any], more: dict[str, Tensor]) -> Example:
    return Example(label, {**_draw(dict(P=4 * ALIGNMENT), generator, {}), **more}, options)


def _spoilt(value: float, at: int) -> Any:
    """A single entry of the gradient that is not finite, anywhere, leaves the state unchanged."""

    def example(generator: torch.Generator) -> Example:
        g_P = torch.randn(4 * ALIGNMENT, generator=generator).double()
        g_P[at] = value
        return _varied(f"g[{at}] = {value}", generator, dict(clip=1.0), dict(g=g_P))

    return example


def _lost(generator: torch.Generator) -> Example:
    """The loss is not finite, but the gradient is."""
    return _varied("loss not finite", generator, {}, _scalars(loss=float("inf")))


def _scaled(generator: torch.Generator) -> Example:
    """Unscaled before clipping: 16 entries of 1024 give a norm of 4."""
    g_P = torch.zeros(4 * ALIGNMENT).double()
    g_P[::16] = 1024.0
    return _varied("scaled", generator, dict(clip=3.0), {"g": g_P, **_scalars(scale=1024.0)})


def _faint(generator: torch.Generator) -> Example:
    """A norm of 1e-5, where the 1e-6 of the clip factor matters and AdamW's eps does not hide it."""
    g_P = torch.zeros(4 * ALIGNMENT).double()
    g_P[0] = 1e-5
    return _varied("faint", generator, dict(clip=1e-6, eps=1e-12), dict(g=g_P, m=g_P.clone(), v=g_P.square()))


def _first(generator: torch.Generator) -> Example:
    zeros_P = torch.zeros(4 * ALIGNMENT).double()
    return _varied("first step", generator, {}, {"m": zeros_P, "v": zeros_P.clone(), **_scalars(count=0.0, skips=0.0)})


CONTRACT = Contract(
    shapes="p[P] g[P] m[P] v[P] decayed count skips rate scale loss -> p[P] m[P] v[P] count[] skips[] norm[] skipped[]",
    sizes=dict(P=(64, 192, 64 * 37)),
    grads=(),
    draw=_draw,
    options=({}, dict(clip=0.5), dict(clip=1e4, weight_decay=0.3, betas=(0.5, 0.9), eps=1e-3)),
    claims=(),
    edges=(_first, _spoilt(float("nan"), 255), _spoilt(float("-inf"), 0), _lost, _scaled, _faint),
)
