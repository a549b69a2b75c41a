"""The ways in which a module is called in training; each must give the same gradients.

Parameters only, inputs only; one output only; a cotangent that is not contiguous; two forwards in flight, with their
backwards in either order; a second step, after a first one elsewhere; a retained graph used twice; gradients added to
what is there; and inputs that are not contiguous. What a module refuses by itself is no fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import Gradients, Outputs
from gradproof.precision.watching import Watching
from gradproof.proof.as_trained import BandOf, Deviation, band_of, deviation, differing, repeated
from gradproof.proof.memory_layout import laid_out, permuted
from gradproof.proof.runner import INPUT, Runner, draw_cotangents
from gradproof.proof.second_point import second_point
from gradproof.proof.state import seed_generators
from gradproof.proof.structure import dense, leaves_of, rebuilt
from gradproof.streams import seeded

MOST_OUTPUTS = 16  # that are used alone; the last of them with all that follow
LAYOUT_REPLICAS = 8


class CallResult(NamedTuple):
    """One way to call: what came out wrong, tensor by tensor, and why it could not be tried to the end."""

    name: str
    wrong: dict[str, Deviation]
    refusal: BaseException | None = None


class Stateful(RuntimeError):
    """The forward depends on the calls before it."""


class Calls:
    """A runner, its plain gradients at its own values, and how far they may differ."""

    def __init__(self, runner: Runner, cotangents: Outputs, grads: Gradients, bands: Mapping[str, BandOf], unit: float):
        self.runner, self.cotangents, self.bands, self.unit = runner, cotangents, bands, unit
        self.right = {name: g.detach().double() for name, g in grads.items() if g is not None}

    def results(self, skip: frozenset[str]) -> Iterator[CallResult]:
        """Every way that is not skipped."""
        for name, call in WAYS.items():
            if name in skip or not self._applies(name):
                continue
            wrong: dict[str, Deviation] = {}
            refusal: BaseException | None = None
            try:
                with self.runner.promoting:
                    for tensor, found in call(self):
                        wrong.setdefault(tensor, found)
            except (Exception, SystemExit) as error:
                refusal = error
            finally:
                self._clear()
            yield CallResult(name, wrong, refusal)

    def _applies(self, name: str) -> bool:
        if name == "layout":
            return bool(self.runner.strides)
        return name != "one_output" or len(self.cotangents) > 1

    def _clear(self) -> None:
        for group in self.runner.groups.values():
            for p in group:
                p.grad = None
                p.requires_grad_(True)

    def _wrong(self, got: Gradients, right: Mapping[str, Tensor] | None = None) -> Iterator[tuple[str, Deviation]]:
        return differing(got, self.right if right is None else right, self.bands, self.unit)

    def _of(self, inputs: bool) -> dict[str, Tensor]:
        return {name: g for name, g in self.right.items() if name.startswith(INPUT) == inputs}

    def parameters_only(self) -> Iterator[tuple[str, Deviation]]:
        runner = self.runner
        runner.state.reset(runner.seed)
        outputs = runner.call(runner.placed(runner.values, differentiated=False))
        yield from self._wrong(runner.pull_back(outputs, self.cotangents), self._of(inputs=False))

    def inputs_only(self) -> Iterator[tuple[str, Deviation]]:
        runner = self.runner
        for group in runner.groups.values():
            for p in group:
                p.requires_grad_(False)
        _, grads = runner.run(runner.values, self.cotangents)
        yield from self._wrong(grads, self._of(inputs=True))

    def one_output(self) -> Iterator[tuple[str, Deviation]]:
        """A loss of one output, without the others: their cotangents are None then. The gradients of all outputs, each
        taken alone, add up to the one of all together."""
        runner, number = self.runner, len(self.cotangents)
        first = [[i] for i in range(min(number, MOST_OUTPUTS) - 1)]
        total = {name: torch.zeros_like(g) for name, g in self.right.items()}
        sizes = dict.fromkeys(self.right, 0.0)
        for group in [*first, list(range(len(first), number))]:
            outputs = runner.forward(runner.values)
            grads = runner.pull_back(tuple(outputs[i] for i in group), tuple(self.cotangents[i] for i in group))
            for name, g in _given(grads, self.right):
                total[name] += g
                sizes[name] += float(g.norm())
        yield from differing(dict(total), self.right, self._bands_of_sum(sizes), self.unit)

    def _usual_band(self, name: str) -> BandOf:
        """As it was measured; else units of the whole gradient, for what cancels to less is rounding."""
        size, whole = float(self.right[name].norm()), math.hypot(*(float(g.norm()) for g in self.right.values()))
        width = self.unit * max(4 * size, whole)
        return self.bands.get(name) or BandOf(width, max(self.unit, width / size if size else 0.0))

    def _bands_of_sum(self, sizes: Mapping[str, float]) -> dict[str, BandOf]:
        """Bands where a gradient is a sum of terms of these sizes, and may be far smaller than they are."""
        bands = {}
        for name, g in self.right.items():
            size, own = float(g.norm()), self._usual_band(name)
            width = max(own.width, 4 * self.unit * sizes[name])
            bands[name] = BandOf(width, max(own.factor, width / size if size else 0.0))
        return bands

    def strided_cotangent(self) -> Iterator[tuple[str, Deviation]]:
        """Every second number of a larger tensor; other orders of the axes in memory; then those of `sum().backward()`
        and `sum(0)`, which are expanded. A module may refuse some of them."""
        refusals: list[Exception] = []
        for attempt in self._attempts():
            try:
                yield from attempt()
            except Exception as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    def _attempts(self) -> Iterator[Callable[[], Iterator[tuple[str, Deviation]]]]:
        most = max(c.dim() for c in self.cotangents)
        for axes, order in ((0, _apart), (2, _reversed), (3, _swapped)):
            if most >= axes:
                yield partial(self._as_plain, order)
        for axes, expand in ((0, _one_number), (2, _one_row)):
            if most >= axes:
                yield partial(self._expanded, expand)

    def _as_plain(self, order: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, Deviation]]:
        yield from self._wrong(self._pulled(tuple(map(order, self.cotangents))))

    def _expanded(self, expand: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, Deviation]]:
        """Cotangents of stride 0 beside contiguous ones of the same numbers."""
        cotangents = tuple(map(expand, self.cotangents))
        plain = self._pulled(tuple(c.contiguous() for c in cotangents))
        right = _finite(_given(plain, self.right))
        yield from differing(self._pulled(cotangents), right, self._bands_of(cotangents, right), self.unit)

    def _bands_of(self, cotangents: Outputs, right: Mapping[str, Tensor]) -> dict[str, BandOf]:
        """Where a sum is constant, as that of a norm's outputs, its gradient is rounding alone: of what another
        cotangent of that size gives."""
        usual_size = math.hypot(*(float(c.norm()) for c in self.cotangents))
        larger = math.hypot(*(float(c.norm()) for c in cotangents)) / usual_size
        bands = {}
        for name, g in right.items():
            usual, size = float(self.right[name].norm()), float(g.norm())
            own = self._usual_band(name)
            width = larger * max(own.width, 16 * self.unit * usual)
            bands[name] = BandOf(width, max(own.factor, width / size if size else 0.0))
        return bands

    def _pulled(self, cotangents: Outputs) -> Gradients:
        """As `pull_back`, without a cast, which would put the numbers side by side."""
        outputs = self.runner.forward(self.runner.values)
        return self.runner.pulled(outputs, [_cast(c, y) for y, c in zip(outputs, cotangents, strict=True)])

    def in_flight(self) -> Iterator[tuple[str, Deviation]]:
        """A forward, another one on other inputs and with other random numbers, and their backwards in either order."""
        values, others = self.runner.values, self._others()
        (alone,) = self._flight(values, others, (1,))
        right = _finite(_given(alone, alone))
        for order in ((0, 1), (1, 0)):
            taken = dict(zip(order, self._flight(values, others, order), strict=True))
            yield from self._wrong(taken[0])
            yield from self._wrong(taken[1], right)

    def _flight(self, values: Mapping[str, Tensor], others: Any, order: tuple[int, ...]) -> list[Gradients]:
        """The gradients of two forwards, by number, in the order of their backwards."""
        runner, flights = self.runner, []
        runner.state.reset(runner.seed)
        for number, given in enumerate((None, others)):
            seed_generators(runner.seed + number)
            placed = runner.placed(values) if given is None else self._placed({**values, **given})
            flights.append((runner.call(placed), runner.leaf_inputs))
        taken = []
        for number in order:
            outputs, runner.leaf_inputs = flights[number]
            taken.append(runner.pull_back(outputs, self._cotangents_of(outputs)))
        return taken

    def _cotangents_of(self, outputs: Outputs) -> Outputs:
        """Other inputs, or other random numbers, may give other shapes."""
        same = all(y.shape == c.shape for y, c in zip(outputs, self.cotangents, strict=True))
        return self.cotangents if same else draw_cotangents(outputs, self.runner.seed)

    def _others(self) -> dict[str, Tensor]:
        """Other inputs: floating ones moved; where there are none, rows of integers in another order."""
        runner = self.runner
        moved = second_point(runner.values, frozenset(runner.inputs), {}, runner.seed + 1)
        return {name: moved[name] for name in runner.inputs}

    def _placed(self, values: Mapping[str, Tensor]) -> Any:
        runner = self.runner
        given = runner.placed(values)
        if any(values[name] is not runner.values[name] for name in runner.inputs):
            return given
        return rebuilt(given, (_rolled(leaf) for _, leaf in leaves_of(given)))

    def second_step(self) -> Iterator[tuple[str, Deviation]]:
        """A step at the given point, then one at another, with other weights too, in the state that the first has left.
        If the forward gives there what it gives from the start, so must the backward."""
        runner = self.runner
        values = second_point(runner.values, frozenset(runner.inputs), {}, runner.seed + 1)
        from_start, right = self._step(values)
        runner.run(runner.values, self.cotangents)
        outputs, grads = self._step(values, reset=False)
        if not all(same(y, before, self.unit) for y, before in zip(outputs, from_start, strict=True)):
            raise Stateful("its forward depends on the calls before it")
        yield from self._wrong(grads, _finite(_given(right, self.right)))

    def _step(self, values: Mapping[str, Tensor], reset: bool = True) -> tuple[Outputs, Gradients]:
        runner = self.runner
        if reset:
            runner.state.reset(runner.seed)
        runner.state.rewind_generators()
        seed_generators(runner.seed)
        outputs = runner.call(self._placed(values))
        return outputs, runner.pull_back(outputs, self._cotangents_of(outputs))

    def layout(self) -> Iterator[tuple[str, Deviation]]:
        """The outputs for inputs as they lie in memory, and for contiguous copies of the same numbers."""
        with Watching() as watch:
            given = self._outputs()
        for name in self.runner.strides:
            self.runner.copied = frozenset({name})
            try:
                copied = repeated(self._outputs, watch)
                off = [i for i, (y, c) in enumerate(zip(given, copied, strict=True)) if not same(y, c, self.unit)]
                replicas = [repeated(self._outputs, watch, seed) for seed in range(1, LAYOUT_REPLICAS + 1) if off]
            finally:
                self.runner.copied = frozenset()
            for i in off:
                if not bool(copied[i].isfinite().all()):
                    continue
                band = band_of(copied[i], copied[i], [one[i] for one in replicas], self.unit)
                found = deviation(given[i], copied[i], band, self.unit)
                if found:
                    yield name, found._replace(words="gives another output than a contiguous copy of it")

    def _outputs(self) -> list[Tensor]:
        return [y.detach().double() for y in self.runner.forward(self.runner.values)]

    def retained_graph(self) -> Iterator[tuple[str, Deviation]]:
        runner = self.runner
        outputs = runner.forward(runner.values)
        yield from self._wrong(runner.pull_back(outputs, self.cotangents, retain=True))
        for leaf in runner.leaf_inputs.values():
            leaf.grad = None
        yield from self._wrong(runner.pull_back(outputs, self.cotangents))

    def accumulation(self) -> Iterator[tuple[str, Deviation]]:
        """Into gradients that are there already."""
        runner = self.runner
        outputs = runner.forward(runner.values)
        there: dict[str, Tensor] = {}
        leaves = {name: group[0] for name, group in runner.groups.items() if len(group) == 1 and dense(group[0])}
        for name, leaf in {**leaves, **runner.leaf_inputs}.items():
            if name not in self.right or name in runner.elsewhere or leaf.dtype.is_complex:
                continue
            usual = float(self.right[name].double().square().mean().sqrt()) or 1.0
            drawn = torch.randn(leaf.shape, generator=seeded(runner.seed, "there", name), dtype=torch.float64)
            leaf.grad = (usual * drawn).to(leaf)
            there[name] = leaf.grad.detach().double().clone()
        if runner.gradient_of is not None or not there:
            return
        got = runner.pull_back(outputs, self.cotangents)
        yield from self._wrong(got, {name: self.right[name] + own for name, own in there.items()})


def same(a: Tensor, b: Tensor, unit: float) -> bool:
    """Whether two outputs agree to a few units, wherever they are numbers."""
    if a.shape != b.shape:
        return False
    a, b = (y.detach().double().nan_to_num() for y in (a, b))
    return bool((a - b).norm() <= 4 * unit * b.norm())


def _given(grads: Gradients, among: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    """The gradients that are there, in float64."""
    return ((name, g.detach().double()) for name, g in grads.items() if g is not None and name in among)


def _finite(grads: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: g for name, g in grads if bool(g.isfinite().all())}


def _cast(cotangent: Tensor, output: Tensor) -> Tensor:
    """In the output's dtype, with the same strides as before."""
    if cotangent.dtype == output.dtype or not cotangent.numel():
        return cotangent.to(output.dtype)
    strides = cotangent.stride()
    once = tuple(slice(None) if stride else slice(1) for stride in strides)  # what is expanded is one number
    cast = cotangent[once].to(output.dtype)
    return laid_out(cast, strides).expand(cotangent.shape)


def _apart(cotangent: Tensor) -> Tensor:
    return torch.stack([cotangent, torch.full_like(cotangent, torch.nan)], -1)[..., 0]


def _one_number(cotangent: Tensor) -> Tensor:
    return cotangent.new_ones(()).expand(cotangent.shape)


def _one_row(cotangent: Tensor) -> Tensor:
    return cotangent[:1].expand(cotangent.shape) if cotangent.dim() >= 2 and len(cotangent) else cotangent


def _reversed(cotangent: Tensor) -> Tensor:
    """Column-major: the first axis is the fastest."""
    return permuted(cotangent, *reversed(range(cotangent.dim())))


def _swapped(cotangent: Tensor) -> Tensor:
    """The last two axes the other way round, as after `transpose(1, 2)`."""
    if cotangent.dim() < 2:
        return cotangent
    *outer, rows, columns = range(cotangent.dim())
    return permuted(cotangent, *outer, columns, rows)


def _rolled(leaf: Any) -> Any:
    """Rows in another order, or places, where there is one row."""
    if not isinstance(leaf, Tensor) or not leaf.dim() or not dense(leaf):
        return leaf
    return leaf.roll(1, 0) if leaf.shape[0] > 1 else leaf.flip(-1)


WAYS: dict[str, Callable[[Calls], Iterator[tuple[str, Deviation]]]] = {
    "parameters_only": Calls.parameters_only,
    "inputs_only": Calls.inputs_only,
    "strided_cotangent": Calls.strided_cotangent,
    "in_flight": Calls.in_flight,
    "retained_graph": Calls.retained_graph,
    "accumulation": Calls.accumulation,
    "second_step": Calls.second_step,
    "one_output": Calls.one_output,
    "layout": Calls.layout,
}
IN_WORDS = {
    "parameters_only": "when only parameters are differentiated",
    "inputs_only": "when only inputs are differentiated",
    "strided_cotangent": "with a cotangent that is not contiguous",
    "in_flight": "with two forwards in flight",
    "retained_graph": "when a retained graph is used twice",
    "accumulation": "when it is added to a gradient that is there",
    "second_step": "at a second step, after a first one elsewhere",
    "one_output": "when one output is used without the others",
    "layout": "for an input as it lies in memory",
}
