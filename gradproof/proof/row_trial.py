"""RowTrial: one call of a kernel, forward or backward, judged on some of its rows.

The op itself runs on the whole call, in the dtype of the call. Some rows are then judged number by number, against
float64 and with computed bounds: a few by chance, the first, the last, and those in which kernel and op differ most. So
one wrong row among thousands is among them, and a right kernel is held to nothing but its bounds. What a row gives is
computed from that row alone; what is summed over rows is added up in pieces, or bounded by the sample.

Not judged are rows for which the bounds do not hold: where the op itself is no number or outside of them (overflow),
and where a choice hangs on the last bits of two scores, so that one is as right as the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from gradproof.ops import combine, dispatch, experts, route
from gradproof.ops.dispatch import DispatchPlan
from gradproof.proof.admission import UNITS
from gradproof.proof.bounds import Bounds, worst
from gradproof.proof.chain import SAFETY
from gradproof.proof.operation import wanted
from gradproof.proof.sizes import DEEP, UNIT
from gradproof.streams import seeded

CHANCE = 24  # rows by chance, the first and the last among them
FARTHEST = 8  # rows in which kernel and op differ most
PIECE = 1 << 14  # rows at a time, where all are needed
NEAR = 64.0  # units of the scores, below which a choice may fall either way

Results = dict[str, Tensor]  # outputs by their number, gradients by the name of their argument
Given = Mapping[str, Any]


class RowTrial:
    """`given` are the arguments by name, for a backward with `dy` and `saved`."""

    def __init__(self, op: ModuleType, given: Given):
        self.op, self.given = op, tree_map(_ordinary, dict(given))
        self.backwards = "dy" in given
        self.returned = self._run(op, self.given)  # what the op itself returns
        self.right = self.results(self.returned)
        self.by_rows = _by_rows(op, self.backwards)

    def results(self, returned: Any) -> Results:
        """What a call returned, by name; which experts a router chose, in any order, is one of its results."""
        if self.backwards:
            grads = returned if isinstance(returned, tuple) else (returned,)
            return {name: grad for name, grad in zip(self.op.CONTRACT.grads, grads, strict=True) if grad is not None}
        y, saved = returned
        named = {f"output {i}": tensor for i, tensor in enumerate(y if isinstance(y, tuple) else (y,))}
        return named | ({"choice": saved.index_TK.sort(1).values} if self.op is route else {})

    def off(self, returned: Any) -> dict[str, float]:
        """How far off each result of a kernel's call is: at most 1 where rounding explains it."""
        fast = tree_map(_ordinary, self.results(returned))
        if any(fast[name].shape != tensor.shape for name, tensor in self.right.items()):
            return {"shape": math.inf}
        measured, sums, judged = dict.fromkeys(self.right, 0.0), _Sums(), 0
        for at, part in self._pieces(fast):
            exact, sigma = self._expected(part)
            keep = self._judged(fast, exact, at, measured)
            for name in self.right:
                if name not in self.by_rows:
                    sums.add(name, exact[name], sigma[name])
                elif name != "choice":
                    where = self._places(name, at)
                    own = (fast[name][where], exact[name], sigma[name], self.right[name][where])
                    own = own if keep is None else tuple(tensor[keep] for tensor in own)
                    measured[name] = max(measured[name], self._worst(*own))
            judged += len(at)
        for name, (exact, sigma) in sums.read().items():
            whole = judged == self._rows()
            right = exact if whole else self.right[name].double()
            sigma = sigma if whole else sigma * (SAFETY * self._rows() / judged)  # of the sample, for all
            sigma = sigma + one_sign(self._rows()) / UNITS * right.abs()
            if bool(self.right[name].isfinite().all()):
                measured[name] = self._worst(fast[name], right, sigma, self.right[name])
        return measured

    def _run(self, op: ModuleType, given: Given) -> Any:
        if not self.backwards:
            return op.forward(**wanted(op.forward, given))
        more = {name: value for name, value in given.items() if name not in ("dy", "saved")}
        return op.backward(given["dy"], given["saved"], **wanted(op.backward, more))

    def _rows(self) -> int:
        return max((len(self.right[name]) for name in self.by_rows if name in self.right), default=0)

    def _expected(self, part: Given) -> tuple[Results, Results]:
        """What is right in float64, and σ of the op as it computes in the dtype of the call."""
        exact = self.results(self._run(self.op, tree_map(_double, dict(part))))
        with Bounds() as bounds:
            own = self.results(self._run(self.op, part))
            sigma = {name: bounds.of(tensor) for name, tensor in own.items()}
        return exact, sigma

    def _worst(self, fast: Tensor, exact: Tensor, sigma: Tensor, right: Tensor) -> float:
        """Of an entry; rows in which the op itself is off are left out."""
        measured = worst(fast, exact, sigma, UNITS, self._unit())
        if measured <= 1.0:
            return measured
        if not exact.dim():
            return measured if self._fair(right, exact, sigma) else 0.0
        fair = [i for i in range(len(exact)) if self._fair(right[i], exact[i], sigma[i])]
        return worst(fast[fair], exact[fair], sigma[fair], UNITS, self._unit()) if fair else 0.0

    def _fair(self, right: Tensor, exact: Tensor, sigma: Tensor) -> bool:
        return bool(right.isfinite().all()) and worst(right, exact, sigma, UNITS, self._unit()) <= 1.0

    def _unit(self) -> float:
        """Of the products' operands."""
        floating = [
            leaf.dtype for leaf in tree_leaves(self.given) if isinstance(leaf, Tensor) and leaf.is_floating_point()
        ]
        return max((torch.finfo(dtype).eps for dtype in floating), default=0.0) / 2

    def _judged(self, fast: Results, exact: Results, at: Tensor, measured: dict[str, float]) -> Tensor | None:
        """Which of these rows are judged, if not all: not those whose choice fell otherwise, as it may where scores are
        near."""
        if "choice" not in exact:
            return None
        given, unit = self.given, torch.finfo(torch.float32).eps / 2
        other = (fast["choice"][at] != exact["choice"]).any(1)
        undecided = (self.right["choice"][at] != exact["choice"]).any(1)
        z_TE, c_E = given["z"][at].double(), None if given["c"] is None else given["c"].double()
        size = 1.0 if c_E is None else 1.0 + float(c_E.abs().max())
        far = ~(route.margin(z_TE, c_E, given["routing"]) <= NEAR * unit * size) & z_TE.isfinite().all(1)
        if bool((other & far).any()):
            measured["choice"] = math.inf
        return ~(other | undecided)

    def _pieces(self, fast: Results) -> Iterator[tuple[Tensor, Given]]:
        """Rows, and calls that give the results of these alone."""
        if self.op is route and not self.backwards:  # its auxiliary loss is a sum over all rows
            index_TK = fast["choice"]
            T, E = self.given["z"].shape
            whole = self.given.get("whole") or route.Whole(T, route.load(index_TK, E))
            for at in torch.arange(T, device=index_TK.device).split(PIECE):
                yield at, {**self.given, "z": self.given["z"][at], "whole": whole}
            return
        at = self._some(fast)
        if self.op is experts:
            yield from self._by_expert(at)
        elif len(at):
            yield at, self._taken(at)

    def _some(self, fast: Results) -> Tensor:
        """Rows by chance, the first, the last, and those that are farthest from the op's; none that is no number."""
        far_T, is_number_T = self._distances(fast)
        T, places = len(far_T), self._places_of_a_row()
        farthest = torch.where(is_number_T, far_T, -1.0).topk(min(max(1, FARTHEST // places), T)).indices
        ends = torch.tensor([T - 1, 0] if T else [], dtype=torch.int64)
        chance = torch.cat([ends, torch.randperm(T, generator=seeded("row trial", T))])[: max(1, CHANCE // places)]
        at = torch.cat([chance.to(far_T.device), farthest]).unique()
        return at[is_number_T[at]]

    def _distances(self, fast: Results) -> tuple[Tensor, Tensor]:
        """Of each row: how far its results are from the op's, beside their size; and whether those are numbers."""
        far, is_number = [], []
        for name in self.by_rows & self.right.keys():
            right = self.right[name].flatten(1).double()
            usual_R1 = right.square().mean(1, True).sqrt() + torch.finfo(torch.float32).tiny
            far_R = ((fast[name].flatten(1) - right).abs() / usual_R1).amax(1).nan_to_num(math.inf, math.inf)
            finite_R = right.isfinite().all(1)
            if self.op is combine and name == "rows":  # several for each row of the others
                row_TK = self.given["plan"].row_TK
                far_R, finite_R = far_R[row_TK].amax(1), finite_R[row_TK].all(1)
            far.append(far_R)
            is_number.append(finite_R)
        return torch.stack(far).amax(0), torch.stack(is_number).all(0)

    def _places_of_a_row(self) -> int:
        """Of a sequence: each is worth a row."""
        sequences = [self.given[name] for name, axes in _letters(self.op).items() if axes[:2] == "BS"]
        return max(1, sequences[0].shape[1]) if sequences else 1

    def _places(self, name: str, at: Tensor) -> Tensor:
        """Where the results of these rows stand in the whole."""
        return self.given["plan"].row_TK[at].flatten() if self.op is combine and name == "rows" else at

    def _by_expert(self, at: Tensor) -> Iterator[tuple[Tensor, Given]]:
        given, narrow_EP = self.given, self.given.get("narrow")
        for e, (start, end) in enumerate(pairwise(given["plan"].bounds())):
            own = at[(at >= start) & (at < end)]
            if len(own):
                alone = dict(
                    x=given["x"][own], theta=given["theta"][e : e + 1], plan=dispatch.all_rows(len(own), at.device)
                )
                yield own, {**given, **alone, "narrow": None if narrow_EP is None else narrow_EP[e : e + 1]}

    def _taken(self, at: Tensor) -> Given:
        """The arguments of a call on these rows alone."""
        given = dict(self.given)
        if self.op is route:  # its backward
            saved: route.Saved = given["saved"]
            rows = {name: getattr(saved, name)[at] for name in ("z_TE", "q_TE", "gates_TE", "index_TK")}
            return {
                **given,
                "dy": given["dy"]._replace(gates_TE=given["dy"].gates_TE[at]),
                "saved": saved._replace(**rows),
            }
        if self.op in (combine, dispatch):
            return given | self._routed(at)
        for name in _arguments_by_rows(self.op) & given.keys():
            given[name] = None if given[name] is None else given[name][at]
        return given | ({"dy": given["dy"][at]} if self.backwards else {})

    def _routed(self, at: Tensor) -> dict[str, Any]:
        """Of a call along a plan, which then has these rows alone."""
        given, plan = self.given, self.given["plan"]
        if self.op is dispatch and not self.backwards:
            token_n = plan.slot_N[at] // plan.row_TK.shape[1]
            return {"x": given["x"][token_n], "plan": dispatch.all_rows(len(at), at.device)}
        row_tK = plan.row_TK[at]
        slot_n = torch.arange(row_tK.numel(), device=at.device)
        alone: dict[str, Any] = {"plan": DispatchPlan(slot_n, slot_n.view_as(row_tK), plan.index_TK[at], plan.offset_F)}
        if self.op is dispatch:
            return alone | {"dy": given["dy"][row_tK.flatten()]}
        alone |= {"rows": given["rows"][row_tK.flatten()], "gates": given["gates"][at]}
        return alone | ({"dy": given["dy"][at]} if self.backwards else {})


def one_sign(count: int) -> float:
    """The share of a sum that adding up may cost where its terms have one sign, as those of real rows may: partial sums
    are then as large as the result."""
    return 2 * (math.sqrt(count) + count / DEEP) * UNIT


class _Sums:
    """What is summed over rows, piece by piece."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, name: str, exact: Tensor, sigma: Tensor) -> None:
        before = self._totals.get(name)
        both = (exact, sigma) if before is None else (before[0] + exact, before[1].hypot(sigma))
        self._totals[name] = both

    def read(self) -> dict[str, tuple[Tensor, Tensor]]:
        return self._totals


def _by_rows(op: ModuleType, backwards: bool) -> frozenset[str]:
    """The results that have a row for each row of the call; the others are summed."""
    rows = _letters(op)
    if backwards:
        return frozenset(name for name in op.CONTRACT.grads if rows.get(name, "")[:1] in ("T", "N", "B"))
    outputs = _axes(op.CONTRACT.shapes.split("->")[1])
    return frozenset(f"output {i}" for i, axes in enumerate(outputs.values()) if axes) | {"choice"}


def _arguments_by_rows(op: ModuleType) -> set[str]:
    """Those that have the first axis of the output for theirs."""
    (first, *_), *_ = _axes(op.CONTRACT.shapes.split("->")[1]).values()
    return {name for name, axes in _letters(op).items() if axes[:1] == first}


def _letters(op: ModuleType) -> dict[str, str]:
    return _axes(op.CONTRACT.shapes.split("->")[0])


def _axes(shapes: str) -> dict[str, str]:
    """The letters of each tensor's axes: {"x": "TI"} of "x[T,I]"."""
    listed = (tensor.partition("[") for tensor in shapes.split())
    return {name: axes.rstrip("]").replace(",", "") for name, _, axes in listed}


def _ordinary(leaf: Any) -> Any:
    """Without a graph; a tensor of inference mode is copied, for outside of it not every op takes it."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.clone() if leaf.is_inference() else leaf.detach()


def _double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
