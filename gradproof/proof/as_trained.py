"""Compares a module's gradients in the training dtype with those proven in float64.

What rounding does to this module at this input is measured: in a few replicas every result is off by up to a unit in
the last place of its own dtype, at random, and the band of a tensor is how far its gradient then goes from the one
without. A wrong factor is the same in all of them, so it does not widen the band. Random draws and discrete decisions
are those of the float64 run.

    off = ‖g − g₆₄‖ beside max‖g_replica − g‖,    s = ⟨g − g₆₄, g₆₄⟩/‖g₆₄‖² beside those of the replicas
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from gradproof.contract import Gradients, Outputs
from gradproof.precision.watching import Watching
from gradproof.proof.runner import Runner

T = TypeVar("T")

REPLICAS = (4, 12)  # and so many more, where something leaves their band
EXCESS = 6.0  # times the band, that a right gradient stays below
FLOOR = 16.0  # units: a smaller relative error is never called wrong
LEAST = 2e-5  # nor is one below this: tables of constants, which every run rounds alike, are off by so much
SCALES = 5.0  # σ of the factor among replicas, which are twice as far off as rounding is
LEAST_FACTOR = 5.0  # units, in the same way for a deviation of the factor from 1


class Jitter(Watching):
    """Every result that is computed is off by up to a unit of its own dtype."""

    def __init__(self, seed: int, **watching: Any):
        super().__init__(**watching)
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        written = func._schema.is_mutable
        if isinstance(out, Tensor):
            return out if _counts(out) and _of_counts(args) else self._off(out, written)
        if not isinstance(out, (tuple, list)):
            return out
        # Beside a first result, marks and counts are not rounded.
        return type(out)(one if i and _counts(one) else self._off(one, written) for i, one in enumerate(out))

    def _off(self, x: Any, written: bool) -> Any:
        if not isinstance(x, Tensor) or not x.dtype.is_floating_point or x.layout != torch.strided or not x.numel():
            return x
        if x._is_zerotensor():  # has no memory that could be read
            return x
        if x.device not in self._generators:
            self._generators[x.device] = torch.Generator(x.device).manual_seed(self.seed)
        share = torch.rand(x.shape, generator=self._generators[x.device], device=x.device, dtype=torch.float64)
        moved = (x.double() * (1 + torch.finfo(x.dtype).eps * (2 * share - 1))).to(x.dtype)
        return x.copy_(moved) if written else moved


def _counts(x: Any) -> bool:
    """Whether all numbers are integers."""
    plain = isinstance(x, Tensor) and x.dtype.is_floating_point and x.layout == torch.strided and not x._is_zerotensor()
    return plain and bool((x == x.round()).all())


def _of_counts(args: Any) -> bool:
    """Whether an op was given nothing but integers, so that an integer that it gives is exact."""
    floating = [x for x in tree_leaves(args) if isinstance(x, Tensor) and x.dtype.is_floating_point]
    return all(_counts(x) for x in floating)


class BandOf(NamedTuple):
    """What replicas of one tensor say: how far they go, and the spread of their factor."""

    width: float
    factor: float


class Deviation(NamedTuple):
    """A gradient that is wrong: in which way, and how far it is beside what rounding explains."""

    words: str
    error: float
    bound: float


class Trained(NamedTuple):
    """The gradients as they train, their bands, and what is wrong about them."""

    grads: Gradients
    bands: dict[str, BandOf]
    wrong: dict[str, Deviation]


def as_trained(
    runner: Runner, cotangents: Outputs, right: Mapping[str, Tensor], like: Watching, unit: float
) -> Trained:
    """The runner's gradients beside the `right` ones; `like` is the run in float64. Raises what the module raises, and
    `Unrepeatable` where it decides or draws otherwise."""
    grads = run_like(runner, runner.values, cotangents, like)
    taken: list[Gradients] = []
    wrong: dict[str, Deviation] = {}
    bands: dict[str, BandOf] = {}
    for more in REPLICAS:
        seeds = range(len(taken) + 1, len(taken) + 1 + more)
        taken += [run_like(runner, runner.values, cotangents, like, seed) for seed in seeds]
        bands = {name: band_of(g, grads.get(name), [one.get(name) for one in taken], unit) for name, g in right.items()}
        wrong = {
            name: found for name, g in right.items() if (found := deviation(grads.get(name), g, bands[name], unit))
        }
        if not wrong:
            break
    return Trained(grads, bands, wrong)


def run_like(
    runner: Runner, values: Mapping[str, Tensor], cotangents: Outputs, like: Watching, seed: int | None = None
) -> Gradients:
    """The gradients of a run that repeats another one's luck."""
    _, grads = repeated(lambda: runner.run(values, cotangents), like, seed)
    return {name: None if grad is None else grad.detach().double() for name, grad in grads.items()}


def repeated(run: Callable[[], T], like: Watching, seed: int | None = None) -> T:
    """A run that draws and decides as `like` did, off by units where there is a seed. Fused attention draws its dropout
    where nobody can draw it again, and cancels where no unit is added: then it is taken apart."""
    apart = seed is not None or like.draws
    for routing in (True, False) if like.choices else (False,):
        mode: AbstractContextManager[Any] = nullcontext()
        if seed is not None:
            mode = Jitter(seed, like=like, routing=routing)
        elif like.draws or routing:
            mode = Watching(like=like, routing=routing)
        try:
            with mode, sdpa_kernel(SDPBackend.MATH) if apart else nullcontext():
                return run()
        except RuntimeError:  # decisions that cannot be replayed: as they come, then
            if not routing:
                raise
    raise AssertionError("unreachable")


def band_of(right: Tensor, plain: Tensor | None, replicas: Sequence[Tensor | None], unit: float) -> BandOf:
    """What replicas of a tensor say of it."""
    size = float(right.norm())
    plain = torch.zeros_like(right) if plain is None else plain
    moved = [one - plain for one in replicas if one is not None and bool(one.isfinite().all())]
    width = max((float(own.norm()) for own in moved), default=0.0)
    factors = [float((own * right).sum()) / size**2 for own in moved] if size else []
    spread = math.sqrt(sum(f * f for f in factors) / len(factors)) if factors else 0.0
    return BandOf(max(width, unit * size), max(spread, unit / 4))


def deviation(grad: Tensor | None, right: Tensor, band: BandOf, unit: float) -> Deviation | None:
    """What is wrong about a gradient, if rounding does not explain it."""
    size = float(right.norm())
    if grad is None:
        return Deviation("is missing", 1.0, 0.0) if size > EXCESS * band.width else None
    if not bool(grad.isfinite().all()):
        return Deviation("is not finite", math.inf, 0.0)
    error = float((grad - right).norm())
    bound = max(EXCESS * band.width, max(FLOOR * unit, _least(unit)) * size)
    factor = float((grad * right).sum()) / size**2 if size else math.nan
    least = max(SCALES * band.factor, least_factor(unit))
    if error <= bound and not (size and abs(factor - 1) > least):
        return None
    if error <= faint(unit) * math.sqrt(right.numel()):
        return None
    return Deviation(in_words(factor, error, size), error / (size or 1.0), bound / (size or 1.0))


def faint(unit: float) -> float:
    """Below it a format holds nothing, or not to its unit."""
    narrow = {2.0**-11: torch.float16, 2.0**-8: torch.bfloat16}.get(unit, torch.float32)
    return torch.finfo(narrow).tiny


def least_factor(unit: float) -> float:
    """A smaller deviation of the factor from 1 is never called wrong."""
    return max(LEAST_FACTOR * unit, _least(unit))


def _least(unit: float) -> float:
    return LEAST if unit > 1e-9 else 0.0  # in float64 nothing is off by that


def in_words(factor: float, error: float, size: float) -> str:
    """`is 2.0 times too large`, where the direction is right; how much of its size it is off, where it is not."""
    if not size:
        return "is not zero"
    beside = math.sqrt(max((error / size) ** 2 - (factor - 1) ** 2, 0.0))
    if abs(factor) < 1e-3 and beside < 1e-2:
        return "is zero"
    if factor < 0 and beside < 0.1 * abs(factor):
        return "has the wrong sign" if abs(factor + 1) < 0.05 else f"is {factor:.2g} times what it should be"
    if beside <= 0.5 * abs(factor - 1):
        many = factor if factor > 1 else 1 / factor
        number = f"{many:.1f}" if many >= 1.1 else f"{many:.4g}"
        return f"is {number} times too {'large' if factor > 1 else 'small'}"
    return f"is off by {error / size:.2g} of its size"


def differing(
    got: Gradients, right: Mapping[str, Tensor], bands: Mapping[str, BandOf], unit: float
) -> Iterator[tuple[str, Deviation]]:
    """The tensors of a run that are not what they should be, within their bands; where there is none, within units of
    the whole gradient, for what cancels to less is rounding."""
    whole = math.hypot(*(float(g.norm()) for g in right.values()))
    for name, g in right.items():
        own, size = got.get(name), float(g.norm())
        width = unit * max(4 * size, whole)
        band = bands.get(name) or BandOf(width, max(unit, width / size if size else 0.0))
        found = deviation(None if own is None else own.detach().double(), g, band, unit)
        if found:
            yield name, found
