"""One call of a user's kernel: every claim, with the worst entry of each tensor.

A kernel is run on copies. Fresh memory is full of NaN where sizes are tried, so that what is not written shows. Inputs
that lie apart, or the other way round in memory, must be read as they are or refused in a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.proof.admission import MANY, leaning
from gradproof.proof.bounds import FAINT
from gradproof.proof.claims import Poison
from gradproof.proof.fused_bounds import NEAREST
from gradproof.proof.kernel_calls import CallArguments, KernelCall, apart, turned
from gradproof.proof.kernel_truth import Cotangents, KernelPair, KernelTruth, Named, exactly, made_of, run, truth
from gradproof.streams import seeded

StrideLayout = Callable[[Any], Any]
REFUSALS = (TypeError, ValueError, NotImplementedError, AssertionError)


def _as_it_is(tensor: Any) -> Any:
    return tensor


def _stretched(cotangent: Tensor) -> Tensor:
    return cotangent.flatten()[0].expand(cotangent.shape)


class KernelCheck(NamedTuple):
    """One claim on one call: measured beside its bound, the tensor it is about, and what to say of it."""

    claim: str
    tensor: str | None
    measured: float
    bound: float
    sentence: str = ""
    error: float = math.nan  # of the worst entry, relative to the tensor's usual size, as is `allowed`
    allowed: float = math.nan
    resolution: float | None = None
    trial: CallTrial | None = None
    place: tuple[int, ...] | None = None
    stored: torch.dtype = torch.float32  # the tensor's format

    @property
    def holds(self) -> bool:
        return self.measured <= self.bound  # NaN does not


class KernelRefusal(NamedTuple):
    """The kernel does not take this call and says why."""

    what: str
    why: str


class CallTrial:
    """One call with its cotangents, what is right, and what is allowed. Raises what the reference raises."""

    def __init__(self, pair: KernelPair, call: KernelCall, formats: list[torch.dtype], seed: int):
        self.pair, self.call = pair, call
        self.unjudged: list[str] = []
        outputs = exactly(pair, call.given, None).values()
        self.cotangents: Cotangents = [
            None
            if y is None or not y.is_floating_point()
            else torch.randn(y.shape, generator=seeded(seed, call.label, i)).to(y.device, stored)
            for i, (y, stored) in enumerate(zip(outputs, formats, strict=True))
        ]
        self.truth = self._truth(self.cotangents)

    def _truth(self, cotangents: Cotangents) -> KernelTruth:
        return truth(self.pair, self.call.given, cotangents, exactly(self.pair, self.call.given, cotangents))

    def at_given_sizes(self, thorough: bool) -> Iterator[KernelCheck | KernelRefusal]:
        """The result itself; a `thorough` trial also calls twice, into NaN, with other strides and with NaN inside."""
        fast, changed = self._run()
        yield from self._changes(changed)
        yield from self._matches("matches_reference", fast, self.truth)
        yield from self._averages(fast)
        if thorough:
            yield from self._twice(fast)
            yield from self._strides()
            yield from self._expanded(fast)
            yield from self._loud()

    def at_other_sizes(self) -> Iterator[KernelCheck | KernelRefusal]:
        """Into fresh memory full of NaN; a refusal in a sentence is fine."""
        try:
            with Poison():
                fast, changed = self._run()
        except Exception as error:
            yield self._raised(self.call.claim, self.call.label, error)
            return
        yield from self._changes(changed)
        yield from self._matches(self.call.claim, fast, self.truth)

    def _run(
        self,
        layout: StrideLayout = _as_it_is,
        of_cotangents: StrideLayout | None = None,
        given: CallArguments | None = None,
    ) -> tuple[Named, dict[str, int]]:
        """Everything the kernel gives, in copies, and how many entries of each argument it changed."""
        before = dict(self.call.given if given is None else given)
        held = {name: layout(v.clone()) if isinstance(v, Tensor) else v for name, v in before.items()}
        own = [None if c is None else (of_cotangents or layout)(c.clone()) for c in self.cotangents]
        fast = run(self.pair.form, self.pair.fast, held, own, self.pair.backward)
        changed = {name: _differing(v, held[name]) for name, v in before.items() if isinstance(v, Tensor)}
        if of_cotangents is None:
            pairs = enumerate(zip(self.cotangents, own, strict=True))
            changed |= {f"cotangent {i}": _differing(c, d) for i, (c, d) in pairs if c is not None}
        return {name: None if t is None else t.detach().clone() for name, t in fast.items()}, changed

    def _raised(self, claim: str, what: str, error: Exception) -> KernelCheck | KernelRefusal:
        said = " ".join(str(error).split())[:200].rstrip(".")
        if isinstance(error, REFUSALS) and said:
            return KernelRefusal(what, said)
        told = said or "it gives no message"
        return KernelCheck(claim, None, math.inf, 0.0, f"With {what} it raises {type(error).__name__}: {told}.")

    def _changes(self, changed: dict[str, int]) -> Iterator[KernelCheck]:
        names = [name for name, count in changed.items() if count]
        said = f"The call changes {', '.join(names)}, in {sum(changed.values())} entries." if names else ""
        yield KernelCheck("no_alias", None, float(sum(changed.values())), 0.0, said)

    def _matches(self, claim: str, fast: Named, right: KernelTruth) -> Iterator[KernelCheck]:
        self.unjudged = [name for name, t in fast.items() if t is not None and name not in right.exact]
        for name in right.exact:
            if name in fast or any(other.startswith("gradient") for other in fast):
                yield from self._compared(claim, name, fast.get(name), right)

    def _compared(self, claim: str, name: str, own: Tensor | None, right: KernelTruth) -> Iterator[KernelCheck]:
        exact = right.exact[name]
        if own is None or exact is None:
            other = exact if own is None else own
            wrong = other is not None and bool((other != 0).any())
            said = "it has no gradient" if own is None else "it has a gradient, and no output depends on it"
            yield KernelCheck(claim, name, math.inf if wrong else 0.0, 1.0, f"{name}: {said}." if wrong else "")
            return
        if own.shape != exact.shape:
            said = f"{name} has shape {tuple(own.shape)}, expected {tuple(exact.shape)} [{self.call.label}]."
            yield KernelCheck(claim, name, math.inf, 1.0, said)
            return
        if not exact.is_floating_point() or not own.is_floating_point():
            count = _differing(exact.to(own.dtype), own)
            said = f"{name}: {count} of {exact.numel()} entries are not the reference's [{self.call.label}]."
            yield KernelCheck(claim, name, math.inf if count else 0.0, 1.0, said if count else "")
            return
        coarsest = torch.finfo(right.narrow or right.wide)
        if torch.finfo(own.dtype).eps > coarsest.eps:
            said = f"{name} is {_name(own.dtype)}, which is coarser than the inputs."
            yield KernelCheck(claim, name, math.inf, 1.0, said)
        elif exact.numel():
            yield self._worst(claim, name, own, right)

    def _worst(self, claim: str, name: str, own: Tensor, right: KernelTruth) -> KernelCheck:
        exact, allowed = right.right(name).double(), right.allowed(name, own.dtype)
        error = (own.double() - exact).abs()
        beyond = ~exact.isfinite() | (exact.abs() > torch.finfo(own.dtype).max)
        faint = FAINT * float(exact.nan_to_num(0, 0, 0).abs().max())
        underflows = (error <= faint) | ((exact != 0) & (error <= torch.finfo(right.wide).tiny))
        right_as_it_is = (error == 0) | underflows | (beyond & ~own.isfinite())
        ratio = torch.where(right_as_it_is, 0.0, error / allowed).nan_to_num(math.inf, math.inf)
        place = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
        size = exact.nan_to_num(0, 0, 0).abs()
        usual = float(size.square().mean().sqrt()) or 1.0
        ordinary = (size >= usual) & exact.isfinite()
        resolution = float((allowed / size)[ordinary].median()) if bool(ordinary.any()) else None
        where = f"[{', '.join(map(str, place))}]" if place else "its only entry"
        off, bound = float(error[place]), float(allowed[place])
        said = (
            f"{name} at {where} is {float(own[place]):.6g}, expected {float(exact[place]):.6g}: off by {off:.2g}, "
            f"allowed {bound:.2g} [{self.call.label}, {_name(own.dtype)}]"
        )
        return KernelCheck(
            claim, name, float(ratio[place]), 1.0, said, off / usual, bound / usual, resolution, self, place, own.dtype
        )

    def bound_of(self, name: str, place: tuple[int, ...], stored: torch.dtype) -> str:
        """What the bound of an entry is made of."""
        right = self.truth
        whole, rounding = float(right.allowed(name, stored)[place]), float(right.rounding(name, stored)[place])
        parts = made_of(self.pair, self.call.given, self.cotangents, right, name, place)
        if parts:
            listed = ", ".join(f"{size:.1e} from {what}" for what, size in parts[:4])
            source = f": {listed}{'; independent parts add as squares' if len(parts) > 1 else ''}"
        else:
            source = " from your terms" if self.pair.terms is not None else " from the reference's own float32 error"
        stores = f"{rounding:.1e} for storing it in {_name(stored)}" if rounding else ""
        if whole == rounding:
            return f"The bound is {stores}." if rounding else "It is copied, chosen or zero, so it must be exact."
        return f"The bound {whole:.1e} is {stores}{' and ' if stores else ''}8 σ{source}."

    def _averages(self, fast: Named) -> Iterator[KernelCheck]:
        """A scale that is off by a little shows over many rows."""
        for name, sigma in self.truth.sigma.items():
            own, exact = fast.get(name), self.truth.right(name)
            if own is None or own.shape != exact.shape or exact.dim() < 2 or exact.numel() // exact.shape[-1] < MANY:
                continue
            whole = sigma.double().hypot(NEAREST * self.truth.rounding(name, own.dtype))
            unit = torch.finfo(own.dtype).eps / 2
            measured = leaning(own, exact.double(), whole, unit)
            said = f"{name} is biased: its error does not average out over rows, columns or the whole tensor."
            yield KernelCheck("matches_reference, on average", name, measured, 1.0, said if measured > 1 else "")

    def _twice(self, fast: Named) -> Iterator[KernelCheck]:
        again, _ = self._run()
        with Poison():
            poisoned, _ = self._run()
        for claim, other, what in (
            ("deterministic", again, "differ between two runs"),
            ("writes_all", poisoned, "depend on the previous contents of memory"),
        ):
            differing = [(name, _differing(t, other.get(name))) for name, t in fast.items() if t is not None]
            for name, count in differing:
                yield KernelCheck(claim, name, float(count), 0.0, f"{name}: {count} entries {what}." if count else "")
            if any(count for _, count in differing):
                return

    def _strides(self) -> Iterator[KernelCheck | KernelRefusal]:
        for layout, what in ((apart, "inputs that are not contiguous"), (turned, "transposed inputs")):
            try:
                fast, _ = self._run(layout)
            except Exception as error:
                yield self._raised("strides", what, error)
                continue
            for check in self._matches("strides", fast, self.truth):
                yield check._replace(sentence=f"With {what}: {check.sentence}" if check.sentence else "")

    def _expanded(self, fast: Named) -> Iterator[KernelCheck | KernelRefusal]:
        """The cotangent of a sum is one number, stretched over the output by strides of 0."""
        if not any(name.startswith("gradient") for name in fast):
            return
        if any(c is not None and not c.numel() for c in self.cotangents):
            return
        stretched = [None if c is None else _stretched(c) for c in self.cotangents]
        what = "an expanded cotangent, such as that of sum()"
        try:
            expanded, _ = self._run(of_cotangents=_stretched)
        except Exception as error:
            yield self._raised("strides", what, error)
            return
        for check in self._matches("strides", expanded, self._truth(stretched)):
            said = f"With {what}: {check.sentence}" if check.sentence else ""
            yield check._replace(sentence=said, trial=None)

    def _loud(self) -> Iterator[KernelCheck]:
        """NaN in an input reaches every entry that it reaches in the reference and that depends on that input."""
        for name in self.pair.form.wanted:
            value = self.call.given[name]
            if not value.numel():
                continue
            spoilt, moved = value.clone().contiguous(), value.double().clone().contiguous()
            spoilt.view(-1)[value.numel() // 2] = math.nan
            moved.view(-1)[value.numel() // 2] += 0.5 * float(value.double().abs().max()) or 1.0
            given = {**self.call.given, name: spoilt}
            right = exactly(self.pair, given, self.cotangents)
            other = exactly(self.pair, {**self.call.given, name: moved}, self.cotangents)
            try:
                fast, _ = self._run(given=given)
            except Exception:  # loud enough
                continue
            for tensor, nan in right.items():
                base, own, there = self.truth.exact.get(tensor), fast.get(tensor), other.get(tensor)
                if nan is None or own is None or base is None or there is None or own.shape != nan.shape:
                    continue
                silent = int((nan.isnan() & (there != base) & own.isfinite()).sum()) if own.is_floating_point() else 0
                said = f"NaN in {name} does not reach {silent} entries of {tensor} that depend on it."
                yield KernelCheck("loud", tensor, float(silent), 0.0, said if silent else "")


def _differing(a: Tensor, b: Tensor | None) -> int:
    """How many entries have other bits; NaN is NaN."""
    if b is None or a.shape != b.shape:
        return max(a.numel(), 1)
    return int(((a != b) & ~((a != a) & (b != b))).sum())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
