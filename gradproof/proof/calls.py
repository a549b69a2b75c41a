"""The ways in which a module is called in training, beside the plain one: each must give the same gradients.

Parameters only, inputs only; a cotangent whose numbers lie apart, or are one number; two forwards in flight, with their
backwards in either order; a retained graph used twice; gradients added to what is there. What a module refuses by
itself is no fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import Gradients, Outputs
from gradproof.proof.as_trained import BandOf, Deviation, differing
from gradproof.proof.runner import INPUT, Runner
from gradproof.proof.second_point import second_point
from gradproof.proof.structure import dense, leaves_of, rebuilt
from gradproof.streams import seeded


class CallResult(NamedTuple):
    """One way to call: what came out wrong, tensor by tensor, or why it could not be tried."""

    name: str
    wrong: dict[str, Deviation]
    refusal: BaseException | None = None


class Calls:
    """A runner, its plain gradients at its own values, and how far they may differ."""

    def __init__(self, runner: Runner, cotangents: Outputs, grads: Gradients, bands: Mapping[str, BandOf], unit: float):
        self.runner, self.cotangents, self.bands, self.unit = runner, cotangents, bands, unit
        self.right = {name: g.detach().double() for name, g in grads.items() if g is not None}

    def results(self, skip: frozenset[str]) -> Iterator[CallResult]:
        """Every way that is not skipped."""
        for name, call in WAYS.items():
            if name in skip:
                continue
            try:
                with self.runner.promoting:
                    yield CallResult(name, dict(call(self)))
            except (Exception, SystemExit) as error:
                yield CallResult(name, {}, error)
            finally:
                self._clear()

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

    def strided_cotangent(self) -> Iterator[tuple[str, Deviation]]:
        """Every second number of a larger tensor; then the one number of `sum().backward()`, which is expanded."""
        apart = tuple(torch.stack([c, torch.full_like(c, torch.nan)], -1)[..., 0] for c in self.cotangents)
        yield from self._wrong(self._pulled(apart))
        plain = self._pulled(tuple(torch.ones_like(c) for c in self.cotangents))
        expanded = self._pulled(tuple(c.new_ones(()).expand(c.shape) for c in self.cotangents))
        right = {name: g.detach().double() for name, g in plain.items() if g is not None and name in self.right}
        yield from differing(expanded, right, self._bands_of_ones(right), self.unit)

    def _bands_of_ones(self, right: Mapping[str, Tensor]) -> dict[str, BandOf]:
        """Where a sum is constant, as that of a norm's outputs, its gradient is rounding alone: of what another
        cotangent of that size gives."""
        larger = math.hypot(*(c.numel() ** 0.5 for c in self.cotangents)) / math.hypot(
            *(float(c.norm()) for c in self.cotangents)
        )
        bands = {}
        for name, g in right.items():
            usual, size = float(self.right[name].norm()), float(g.norm())
            own = self.bands.get(name, BandOf(4 * self.unit * usual, self.unit))
            width = larger * max(own.width, 16 * self.unit * usual)
            bands[name] = BandOf(width, max(own.factor, width / size if size else 0.0))
        return bands

    def _pulled(self, cotangents: Outputs) -> Gradients:
        """As `pull_back`, without a cast, which would put the numbers side by side."""
        outputs = self.runner.forward(self.runner.values)
        return self.runner.pulled(outputs, [_cast(c, y) for y, c in zip(outputs, cotangents, strict=True)])

    def in_flight(self) -> Iterator[tuple[str, Deviation]]:
        """A forward, another one on other inputs, and their backwards in either order."""
        values, others = self.runner.values, self._others()
        (alone,) = self._flight(values, others, (1,))
        right = {name: g.detach().double() for name, g in alone.items() if g is not None}
        for order in ((0, 1), (1, 0)):
            taken = dict(zip(order, self._flight(values, others, order), strict=True))
            yield from self._wrong(taken[0])
            yield from self._wrong(taken[1], right)

    def _flight(self, values: Mapping[str, Tensor], others: Any, order: tuple[int, ...]) -> list[Gradients]:
        """The gradients of two forwards, by number, in the order of their backwards."""
        runner, flights = self.runner, []
        runner.state.reset(runner.seed)
        for given in (None, others):
            seed_all(runner)
            placed = runner.placed(values) if given is None else self._placed(given)
            flights.append((runner.call(placed), runner.leaf_inputs))
        taken = []
        for number in order:
            outputs, runner.leaf_inputs = flights[number]
            cotangents = self.cotangents
            if number and any(y.shape != c.shape for y, c in zip(outputs, cotangents, strict=True)):
                raise ValueError("another input gives another shape")
            taken.append(runner.pull_back(outputs, cotangents))
        return taken

    def _others(self) -> dict[str, Tensor]:
        """Other inputs: floating ones moved; where there are none, rows of integers in another order."""
        runner = self.runner
        moved = second_point(runner.values, frozenset(runner.inputs), {}, runner.seed + 1)
        return {name: moved[name] for name in runner.inputs}

    def _placed(self, others: Mapping[str, Tensor]) -> Any:
        runner = self.runner
        given = runner.placed({**runner.values, **others})
        if any(others[name] is not runner.values[name] for name in others):
            return given
        return rebuilt(given, (_rolled(leaf) for _, leaf in leaves_of(given)))

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


def seed_all(runner: Runner) -> None:
    """Generators as before a forward, whatever the module keeps."""
    torch.manual_seed(runner.seed)


def _cast(cotangent: Tensor, output: Tensor) -> Tensor:
    """In the output's dtype, with the same strides as before."""
    if cotangent.dtype == output.dtype:
        return cotangent
    if cotangent.dim() and not any(cotangent.stride()):
        return cotangent.flatten()[:1].to(output.dtype).reshape(()).expand(cotangent.shape)
    return torch.stack([cotangent.to(output.dtype)] * 2, -1)[..., 0] if cotangent.dim() else cotangent.to(output.dtype)


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
}
IN_WORDS = {
    "parameters_only": "when only parameters are differentiated",
    "inputs_only": "when only inputs are differentiated",
    "strided_cotangent": "with a cotangent whose numbers lie apart",
    "in_flight": "with two forwards in flight",
    "retained_graph": "when a retained graph is used twice",
    "accumulation": "when it is added to a gradient that is there",
}
