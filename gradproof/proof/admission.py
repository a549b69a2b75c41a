"""May a fast kernel run instead of an op? The op's contract, in the kernel's own dtype and on its device.

The witness is the op itself, in float64, on the same rounded arguments. What a kernel may be off by is computed beside
the reference, entry by entry (`proof/bounds.py`). Averages over rows, columns and whole tensors have far less noise
than an entry, so a scale that is off by a little shows there.

A kernel is tried as a step calls it: into a workspace that is used again, writing over and adding to buffers that are
there, without the input's gradient, with rows that lie apart, and with numbers that are none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from gradproof.contract import Evidence, Example, Outputs
from gradproof.ops import experts
from gradproof.proof.bounds import FAINT, Bounds, worst
from gradproof.proof.chain import Collected, Largest, product_off, watched
from gradproof.proof.claims import Poison, differing
from gradproof.proof.operation import argument_names, moved, wanted
from gradproof.proof.verdict import versions
from gradproof.streams import seeded

UNITS = 8.0  # σ that a kernel may be off; the references themselves stay below 3
HEAVY = {"cpu": 1 << 23, "cuda": 1 << 28}  # numbers
MANY = 64  # rows, from which on averages are worth looking at
THOROUGH = 1  # examples that a kernel is also called with in ways that a step does not
SHARED = 0.1  # of σ, that the entries of a row may have in common: a statistic, a probability
AVERAGES = 0.5  # of the dtype's unit, that a mean relative error may be: roundings that lean to one side

Check = tuple[str, str | None, float, float]


class RunResult(NamedTuple):
    """What one run gave."""

    outputs: Outputs
    grads: dict[str, Tensor]

    def named(self) -> dict[str, Tensor]:
        """Outputs by their number, gradients by the name of their argument."""
        return {f"output {i}": output for i, output in enumerate(self.outputs)} | self.grads


class Expected(NamedTuple):
    """What is right, and σ of what may differ."""

    exact: RunResult
    sigma: RunResult

    def plus(self, there: Mapping[str, Tensor], unit: float) -> Expected:
        """The gradients added to what is there."""
        exact = {name: self.exact.grads[name] + tensor for name, tensor in there.items()}
        sigma = {name: self.sigma.grads[name] + unit * exact[name].abs() for name in there}
        return Expected(RunResult((), exact), RunResult((), sigma))

    def only(self, names: Iterable[str]) -> Expected:
        """Some of the gradients."""
        return Expected(*(RunResult((), {name: run.grads[name] for name in names}) for run in self))


def admit(
    op: ModuleType,
    variant: ModuleType,
    tried: Iterable[Example],
    *,
    dtype: torch.dtype,
    device: str,
    kernel: str,
    workspace: Callable[[], object] | None = None,
) -> Iterator[Evidence]:
    """All evidence for `variant` as a way to run `op`; it is admitted if nothing is refuted. `workspace` makes what a
    step keeps its buffers in."""
    for number, example in enumerate(tried):
        trial = KernelTrial(op, variant, example, dtype, device, workspace)
        for claim, value, measured, bound in trial.checks(thorough=number < THOROUGH):
            yield Evidence(
                claim,
                op.__name__.rpartition(".")[2],
                "proven" if measured <= bound else "refuted",  # NaN refutes
                measured,
                bound,
                value=value,
                example=example.label,
                kernel=kernel,
                device=device,
                dtype=str(dtype).removeprefix("torch."),
                shape=tuple(tuple(leaf.shape) for leaf in tree_leaves(example.arguments) if isinstance(leaf, Tensor)),
                versions=versions(),
            )


class KernelTrial:
    """One kernel on one example."""

    def __init__(
        self,
        op: ModuleType,
        variant: ModuleType,
        example: Example,
        dtype: torch.dtype,
        device: str,
        workspace: Callable[[], object] | None,
    ):
        self.op, self.variant, self.example, self.dtype, self.workspace = op, variant, example, dtype, workspace
        self.given = _given(op, example, dtype, device)
        self.cotangents = _cotangents(op, example, self.given)
        self.rows = max((len(leaf) for leaf in _leaves(self.cotangents) if leaf.dim()), default=0)
        self.heavy = sum(leaf.numel() for leaf in _leaves(self.given)) > HEAVY[device]
        self.by_parts = op is experts and (device == "cuda" or self.heavy or dtype != torch.float32)

    def checks(self, thorough: bool) -> Iterator[Check]:
        """Every claim: (claim, tensor, measured, bound). A `thorough` trial also calls in ways that a step does not."""
        if self.heavy:
            yield from self._in_parts() if self.by_parts else self._once()
            return
        expected, between = self._expected()
        for name, measured in between.items():
            yield "matches_reference", name, measured, 1.0
        before = [leaf.clone() for leaf in _leaves((self.given, self.cotangents))]
        fast = self._run()
        after = _leaves((self.given, self.cotangents))
        changed = sum(
            int((~torch.isclose(a, b, 0, 0, equal_nan=True)).sum()) for a, b in zip(before, after, strict=True)
        )
        yield "no_alias", None, float(changed), 0.0
        yield from self._matches("matches_reference", fast, expected)
        yield "deterministic", None, differing(fast, self._run()), 0.0
        with Poison():
            yield "writes_all", None, differing(fast, self._run()), 0.0
        yield from self._reused(expected)
        if thorough:
            yield from self._apart(expected)
            yield from self._loud()
        yield from self._own_claims(fast)
        yield from self._functions()
        yield from self._products()
        if self.op.CONTRACT.out:
            yield from self._into_out(expected)

    def _expected(self, **more: Any) -> tuple[Expected, dict[str, float]]:
        """What is right, and how far off what a kernel shows between is; of a call that has these arguments too, for
        what lies between may be rounded the other way in another call's code."""
        if not self.by_parts:
            return expectation(self.op, self.given, self.cotangents), {}
        y, saved = self.variant.forward(**wanted(self.variant.forward, {**self.given, **more}))
        y, call = y.clone(), self._call(saved, **more)
        collected = Collected(self.given, y)
        watched(self.variant, call, self.given, y, collected)
        right, allowed = collected.right, {name: tensor / UNITS for name, tensor in collected.allowed.items()}
        runs = (RunResult((own.pop("output 0"),), own) for own in (right, allowed))
        return Expected(*runs), collected.between.read()

    def _call(self, saved: Any, **more: Any) -> dict[str, Any]:
        """A backward of experts by the names of its arguments."""
        return {**wanted(self.variant.backward, {**self.given, **more}), "dy_NO": self.cotangents[0], "saved": saved}

    def _in_parts(self) -> Iterator[Check]:
        """What is large is called as a step calls it, twice; each part is judged as it is shown."""
        own = None if self.workspace is None else self.workspace()
        results, judge = [], Largest()
        for first in (True, False):
            y, saved = self.variant.forward(**wanted(self.variant.forward, {**self.given, "workspace": own}))
            y, out_EP = y.clone(), torch.full_like(self.given["theta"], torch.nan)
            call = self._call(saved, workspace=own, out=out_EP)
            dx, _ = watched(self.variant, call, self.given, y, judge) if first else self.variant.backward(**call)
            assert dx is not None
            results.append(RunResult((y,), {"x": dx.clone(), "theta": _numbers(out_EP)}))
        for name, measured in judge.read().items():
            yield "matches_reference", name, measured, 1.0
        yield "deterministic", None, differing(*results), 0.0
        yield from self._products()

    def _once(self) -> Iterator[Check]:
        """What is large is called as a step calls it, twice."""
        expected = expectation(self.op, self.given, self.cotangents)
        names = self.op.CONTRACT.out
        more: dict[str, Any] = {} if self.workspace is None else {"workspace": self.workspace()}
        poisoned = [torch.full_like(expected.exact.grads[name], torch.nan, dtype=torch.float32) for name in names]
        more |= {"out": _one(poisoned)} if names else {}
        fast = self._run(**more)
        yield from self._matches("matches_reference", fast, expected)
        yield "deterministic", None, differing(*(tree_map(_numbers, again) for again in (fast, self._run(**more)))), 0.0
        yield from self._functions()

    def every_way(self) -> None:
        """All ways in which a trial calls a kernel, without a look at the results."""
        own = {} if self.workspace is None else {"workspace": self.workspace()}
        self._run(**own)
        if self.heavy:
            return
        with suppress(TypeError, ValueError):
            given = {name: _spread(value) for name, value in self.given.items()}
            run(self.op, self.variant, given, tuple(_spread(c) for c in self.cotangents))
        if self.op.CONTRACT.same is not None:
            self.op.CONTRACT.same(self.variant, _placed(self.example, self.given))
        for name, arguments in self.op.CONTRACT.functions.items():
            getattr(self.variant, name)(*(self.given[argument] for argument in arguments))
        if self.op.CONTRACT.out:
            out = _one([torch.zeros_like(self.given[name], dtype=torch.float32) for name in self.op.CONTRACT.out])
            less = {"want_dx": False} if "want_dx" in argument_names(self.op.backward) else {}
            self._run(out=out, **less)
            self._run(out=out, accumulate=True)

    def _run(self, **more: Any) -> RunResult:
        return run(self.op, self.variant, {**self.given, **more}, self.cotangents)

    def _matches(self, claim: str, fast: RunResult, expected: Expected) -> Iterator[Check]:
        named, exact, sigma = fast.named(), expected.exact.named(), expected.sigma.named()
        unit = torch.finfo(self.dtype).eps / 2
        tails = 0.0 if self.by_parts else unit
        for name in exact:
            parts = _parts(self.op, self.example, name, named[name], exact[name], sigma[name])
            for label, of_fast, of_exact, of_sigma in parts:
                measured = worst(of_fast, of_exact, of_sigma, UNITS, tails)
                yield claim, label, measured, 1.0
                if self.rows >= MANY:  # of few rows, the errors of a row of gradients are one error
                    yield f"{claim}, on average", label, leaning(of_fast, of_exact, of_sigma, unit), 1.0

    def _reused(self, expected: Expected) -> Iterator[Check]:
        """In a workspace that other calls have used, full of what they left there."""
        if self.workspace is None or "workspace" not in argument_names(self.variant.forward):
            return
        own = self.workspace()
        self._run(workspace=own)
        yield from self._matches("workspace", self._run(workspace=own), expected)

    def _apart(self, expected: Expected) -> Iterator[Check]:
        """Inputs whose numbers do not lie side by side: read as they are, or refused in a sentence."""
        given = {name: _spread(value) for name, value in self.given.items()}
        try:
            apart = run(self.op, self.variant, given, tuple(_spread(c) for c in self.cotangents))
        except (TypeError, ValueError):
            return
        yield from self._matches("strides", apart, expected)

    def _loud(self) -> Iterator[Check]:
        """A number that is none reaches whatever the reference lets it reach: NaN what becomes NaN, an infinity what
        stays infinite; in each tensor at least one entry, for who is chosen may hang on it."""
        floating = [name for name, value in self.given.items() if _is_floating(value) and value.numel()]
        for name in floating:
            for spoilt, reached in ((math.nan, torch.isnan), (math.inf, torch.isinf)):
                value = self.given[name].clone()
                value.view(-1)[value.numel() // 2] = spoilt
                given = {**self.given, name: value}
                right, fast = (run(self.op, module, given, self.cotangents) for module in (self.op, self.variant))
                for tensor, own in right.named().items():
                    if own.is_floating_point() and bool(reached(own).any()):
                        finite = bool(fast.named()[tensor].isfinite().all())
                        yield "loud", f"{tensor}, {spoilt} in {name}", float(finite), 0.0

    def _own_claims(self, fast: RunResult) -> Iterator[Check]:
        contract, placed = self.op.CONTRACT, _placed(self.example, self.given)
        for claim in contract.claims:
            if claim.check is not None and claim.dtype == "float64":
                measured, bound = claim.check(placed, fast.outputs, dict(fast.grads))
                yield claim.name, None, measured, bound
        if contract.same is not None:
            right, same = contract.same(self.op, placed), contract.same(self.variant, placed)
            yield "same_integers", None, differing(right, same), 0.0

    def _functions(self) -> Iterator[Check]:
        """What a module has beside forward and backward."""
        for name, arguments in self.op.CONTRACT.functions.items():
            given = [self.given[argument] for argument in arguments]
            exact = getattr(self.op, name)(*tree_map(_double, given))
            with Bounds() as bounds:
                sigma = bounds.of(getattr(self.op, name)(*given))
            fast = getattr(self.variant, name)(*given)
            yield "matches_reference", name, worst(fast, exact, sigma, UNITS, torch.finfo(torch.float32).eps / 2), 1.0

    def _products(self) -> Iterator[Check]:
        """Every way that a library takes for a product, where that hangs on how many rows an expert has."""
        products = getattr(self.variant, "products", None)
        for label, a, b, out in () if products is None else products(**wanted(products, self.given)):
            yield "matches_reference", label, product_off(a, b, out), 1.0

    def _into_out(self, expected: Expected) -> Iterator[Check]:
        """Gradients that are written over, or added to, what is there; and without the input's."""
        names = self.op.CONTRACT.out
        like = [expected.exact.grads[name].float() for name in names]  # as wide as the masters
        poisoned = [torch.full_like(tensor, torch.nan) for tensor in like]
        options = {"want_dx": False} if "want_dx" in argument_names(self.op.backward) else {}
        written = self._run(out=_one(poisoned), **options)
        if options:
            yield "writes_all", "x", float("x" in written.grads), 0.0
        if self.by_parts:
            expected, _ = self._expected(out=_one([tensor.clone() for tensor in poisoned]), **options)
        yield from self._matches(
            "writes_all", RunResult((), dict(zip(names, poisoned, strict=True))), expected.only(names)
        )
        generator = seeded("admission", self.example.label, "out")
        there = [torch.randn(tensor.shape, generator=generator).to(tensor) for tensor in like]
        sums = [tensor.clone() for tensor in there]
        self._run(out=_one(sums), accumulate=True)
        unit = torch.finfo(torch.float32).eps / 2
        if self.by_parts:
            expected, _ = self._expected(out=_one([tensor.clone() for tensor in there]), accumulate=True)
        wide = dict(zip(names, (tensor.double() for tensor in there), strict=True))
        yield from self._matches(
            "accumulates", RunResult((), dict(zip(names, sums, strict=True))), expected.plus(wide, unit)
        )


def expectation(op: ModuleType, given: Mapping[str, Any], cotangents: Outputs) -> Expected:
    """The op in float64, and σ of the op as it computes in the dtype that it is given."""
    exact = run(op, op, tree_map(_double, dict(given)), tree_map(_double, cotangents))
    with Bounds() as bounds:
        own = run(op, op, given, cotangents)
        sigma = RunResult(
            tuple(map(bounds.of, own.outputs)), {name: bounds.of(grad) for name, grad in own.grads.items()}
        )
    if op.CONTRACT.fused is not None:
        more = op.CONTRACT.fused(given, cotangents)
        both = {name: sigma.grads[name].hypot(own.to(sigma.grads[name])) for name, own in more.items()}
        sigma = RunResult(sigma.outputs, {**sigma.grads, **both})
    return Expected(exact, sigma)


def leaning(fast: Tensor, exact: Tensor, sigma: Tensor, unit: float) -> float:
    """The largest error along the right result, ⟨error, exact⟩/⟨exact, exact⟩, of a row, a column or the whole, beside
    what noise leaves of it: that of independent entries, a part that entries share, and half a unit that leans."""
    if fast.shape != exact.shape or exact.numel() < 2 or not fast.is_floating_point() or not exact.isfinite().all():
        return 0.0  # an entry has said it already
    error, size = ((fast.double() - exact) * exact), exact.double().square()
    noise, lean = (sigma.double() * exact).abs(), AVERAGES * unit
    ratios = []
    for dims in [None] if exact.dim() < 2 else [None, -1, -2]:
        whole = size.sum(dims)
        together = noise.square().sum(dims).sqrt() + SHARED * noise.sum(dims)
        allowed = UNITS * together + lean * whole
        counts = whole > (FAINT * float(exact.abs().max())) ** 2
        ratios.append(float(torch.where(counts, error.sum(dims).abs() / allowed, 0.0).nan_to_num(0.0).max()))
    return max(ratios)


def run(op: ModuleType, module: ModuleType, given: Mapping[str, Any], cotangents: Outputs) -> RunResult:
    """Forward and backward of `module`, called as `op` is. What is returned are copies: a workspace is used again."""
    y, saved = module.forward(**wanted(module.forward, given))
    outputs = tuple(y) if isinstance(y, tuple) else (y,)
    # The output is the caller's: a backward may not rely on it, nor a forward on its own earlier ones.
    outputs = tuple(output.clone() for output in outputs)
    if not op.CONTRACT.grads:
        return RunResult(outputs, {})
    dy = type(y)(*cotangents) if isinstance(y, tuple) else cotangents[0]
    grads = module.backward(dy, saved, **wanted(module.backward, given))
    named = zip(op.CONTRACT.grads, grads if isinstance(grads, tuple) else (grads,), strict=True)
    return RunResult(outputs, {name: grad.clone() for name, grad in named if grad is not None})


def _one(tensors: list[Tensor]) -> Any:
    """As `out` is given: a tensor, or several."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _numbers(leaf: Any) -> Any:
    """What is not written to, padding, is not a difference."""
    return leaf.nan_to_num(0.0) if _is_floating(leaf) else leaf


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _spread(value: Any) -> Any:
    """The same numbers in every second place of a larger buffer."""
    if not _is_floating(value) or value.dim() < 2:
        return value
    wide = value.new_full((*value.shape[:-1], 2 * value.shape[-1]), torch.nan)
    wide[..., ::2] = value
    return wide[..., ::2]


def _parts(op: ModuleType, example: Example, name: str, *tensors: Tensor) -> Iterator[tuple[str, *tuple[Tensor, ...]]]:
    """A tensor that holds many parameters is judged parameter by parameter."""
    split: Callable[[Tensor, Mapping[str, Any]], dict[str, Tensor]] | None = op.CONTRACT.parts.get(name)
    if split is None:
        yield name, *tensors
        return
    named = [split(tensor, example.options) for tensor in tensors]
    for part in named[0]:
        yield f"{name}: {part}", *(parts[part] for parts in named)


def _given(op: ModuleType, example: Example, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Arguments and options in float32 on the device, and in the narrow format where the op says so."""
    to = {"dtype": torch.float32, "device": device}
    given = tree_map(lambda leaf: moved(leaf, **to), {**example.arguments, **example.options})
    return op.narrowed(given, dtype) if dtype != torch.float32 else given


def _placed(example: Example, given: Mapping[str, Any]) -> Example:
    arguments = {name: given[name] for name in example.arguments}
    return Example(example.label, arguments, {name: given[name] for name in example.options}, example.smooth)


def _cotangents(op: ModuleType, example: Example, given: Mapping[str, Any]) -> Outputs:
    """Random, each in the format of its output: that is what a backward gets."""
    generator = seeded("admission", op.__name__, example.label)
    y, _ = op.forward(**wanted(op.forward, given))
    outputs = tuple(y) if isinstance(y, tuple) else (y,)
    drawn = [torch.randn(output.shape, generator=generator).to(output.device) for output in outputs]
    return tuple(d.to(y.dtype) if y.is_floating_point() else d for d, y in zip(drawn, outputs, strict=True))


def _leaves(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
