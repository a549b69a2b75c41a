"""Calls of an op on some of its rows: each row's result depends on that row only.

A row is one of the first axis of the outputs: a row of numbers, a sequence, a token of a plan, an expert's row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.ops import combine, dispatch, experts, route
from gradproof.ops.dispatch import DispatchPlan

Given = Mapping[str, Any]  # arguments by name, of a backward with `dy` and `saved`


class RowCall(NamedTuple):
    """The arguments of a call on the rows `at_R`; those of experts are called one expert at a time."""

    at_R: Tensor
    given: Given
    expert: int = 0


def on_rows(op: ModuleType, given: Given, at_R: Tensor) -> Iterator[RowCall]:
    """Calls that give the results of these rows."""
    if op is experts:
        yield from _by_expert(given, at_R)
    elif len(at_R):
        yield RowCall(at_R, {**given, **_taken(op, given, at_R)})


def _taken(op: ModuleType, given: Given, at_R: Tensor) -> dict[str, Any]:
    if op is route:
        return _routed(given, at_R)
    if op is dispatch and "dy" not in given:  # along its outputs, the rows of the plan
        plan: DispatchPlan = given["plan"]
        token_R = plan.slot_N[at_R] // plan.row_TK.shape[1]
        return {"x": given["x"][token_R], "plan": dispatch.all_rows(len(at_R), at_R.device)}
    if op in (combine, dispatch):
        return _along_plan(op, given, at_R)
    names = [name for name in by_rows(op) if given.get(name) is not None]
    return {name: given[name][at_R] for name in (*names, *(["dy"] if "dy" in given else []))}


def _routed(given: Given, at_R: Tensor) -> dict[str, Any]:
    if "dy" not in given:
        return {"z": given["z"][at_R]}
    saved, dy = given["saved"], given["dy"]
    rows = {name: getattr(saved, name)[at_R] for name in ("z_TE", "q_TE", "gates_TE", "index_TK")}
    return {"dy": dy._replace(gates_TE=dy.gates_TE[at_R]), "saved": saved._replace(**rows)}


def _along_plan(op: ModuleType, given: Given, at_R: Tensor) -> dict[str, Any]:
    """A plan of these tokens alone, whose rows stand in their order."""
    plan: DispatchPlan = given["plan"]
    row_RK = plan.row_TK[at_R]
    slot_N = torch.arange(row_RK.numel(), device=at_R.device)
    taken: dict[str, Any] = {"plan": DispatchPlan(slot_N, slot_N.view_as(row_RK), plan.index_TK[at_R], plan.offset_F)}
    if op is dispatch:
        return taken | {"dy": given["dy"][row_RK.flatten()]}
    taken |= {"rows": given["rows"][row_RK.flatten()], "gates": given["gates"][at_R]}
    return taken | ({"dy": given["dy"][at_R]} if "dy" in given else {})


def _by_expert(given: Given, at_R: Tensor) -> Iterator[RowCall]:
    narrow_EP = given.get("narrow")
    for e, (start, end) in enumerate(pairwise(given["plan"].bounds())):
        own_R = at_R[(at_R >= start) & (at_R < end)]
        if not len(own_R):
            continue
        alone = {"theta": given["theta"][e : e + 1], "narrow": None if narrow_EP is None else narrow_EP[e : e + 1]}
        rows = {name: given[name][own_R] for name in ("x", "dy") if name in given}
        yield RowCall(own_R, {**given, **alone, **rows, "plan": dispatch.all_rows(len(own_R), at_R.device)}, e)


def places_of(op: ModuleType, given: Given, name: str, call: RowCall) -> Tensor:
    """Where the results of such a call stand in those of the whole."""
    if op is combine and name == "rows":
        return given["plan"].row_TK[call.at_R].flatten()
    if op is experts and name.startswith("theta"):
        return torch.tensor([call.expert], device=call.at_R.device)
    return call.at_R


def by_rows(op: ModuleType) -> list[str]:
    """The arguments that have the outputs' first axis for theirs."""
    into, out = (_axes(side) for side in op.CONTRACT.shapes.split("->"))
    first = next(iter(out.values()))[:1]
    return [name for name, axes in into.items() if axes[:1] == first]


def summed(op: ModuleType, backwards: bool) -> set[str]:
    """The results that are sums over the rows of a call."""
    into, out = (_axes(side) for side in op.CONTRACT.shapes.split("->"))
    if not backwards:
        return {f"output {i}" for i, axes in enumerate(out.values()) if not axes}
    return {name for name in op.CONTRACT.grads if into[name][:1] not in ("T", "N", "B")}


def places_in_a_row(op: ModuleType, given: Given) -> int:
    """Of a sequence: each is worth a row."""
    into = _axes(op.CONTRACT.shapes.split("->")[0])
    sequences = [given[name] for name, axes in into.items() if axes[:2] == "BS"]
    return max(1, sequences[0].shape[1]) if sequences else 1


def _axes(shapes: str) -> dict[str, str]:
    """The letters of each tensor's axes: {"x": "TI"} of "x[T,I]"."""
    listed = (tensor.partition("[") for tensor in shapes.split())
    return {name: axes.rstrip("]").replace(",", "") for name, _, axes in listed}
