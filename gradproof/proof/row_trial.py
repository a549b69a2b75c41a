"""RowTrial: judges one call of a kernel, forward or backward, on some of its rows.

The op itself runs on the whole call, in the dtype of the call. Some rows are then judged number by number, against
float64 and with computed bounds: a few by chance, the first, the last, and those in which kernel and op differ most. So
one wrong row among thousands is among them, and a right kernel is held to nothing but its bounds. What is summed over
rows is first held against what the sample allows, and where that fails, added up over all rows.

The rows are somebody's, not random ones. Terms of one sign make partial sums as large as the result, and rows that
occur several times make the same errors: both are allowed for. Not judged are rows for which first-order bounds do not
hold: where the op itself is not finite or exceeds them, where rounding is amplified ten thousand times, and where a
choice hangs on the last bits of two scores, so that one is as right as the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from gradproof.ops import combine, experts, route
from gradproof.proof.admission import UNITS
from gradproof.proof.bounds import Bounds, worst
from gradproof.proof.chain import SAFETY
from gradproof.proof.operation import wanted
from gradproof.proof.row_calls import Given, RowCall, by_rows, on_rows, places_in_a_row, places_of, summed
from gradproof.proof.sizes import UNIT, one_sign
from gradproof.streams import seeded

CHANCE = 24  # rows by chance, the first and the last among them
FARTHEST = 8  # rows in which kernel and op differ most
PIECE = 1 << 14  # rows at a time, where all are needed
NEAR = 64.0  # units of the scores, below which a choice may fall either way
AMPLIFIED = 1e4  # units beside a row's size, above which an error is no first-order matter

Results = dict[str, Tensor]  # outputs by their number, gradients by the name of their argument


class RowTrial:
    """`given` are the arguments by name, of a backward with `dy` and `saved`. A backward of experts is judged on all
    rows, expert by expert."""

    def __init__(self, op: ModuleType, given: Given):
        self.op, self.given = op, tree_map(_ordinary, dict(given))
        self.backwards = "dy" in given
        self.returned = self._run(self.given)  # what the op itself returns
        self.right, self.sums = self._parted(self.results(self.returned)), summed(op, self.backwards)
        self.rows = self._count()
        floating = [leaf for leaf in tree_leaves(self.given) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        self.unit = max((torch.finfo(leaf.dtype).eps for leaf in floating), default=0.0) / 2  # of products' operands

    def results(self, returned: Any) -> Results:
        """What a call returned, by name; which experts a router chose, in any order, is one of its results."""
        if not self.backwards:
            y, saved = returned
            named = {f"output {i}": tensor for i, tensor in enumerate(y if isinstance(y, tuple) else (y,))}
            return named | ({"choice": saved.index_TK.sort(1).values} if self.op is route else {})
        grads = returned if isinstance(returned, tuple) else (returned,)
        return {name: grad for name, grad in zip(self.op.CONTRACT.grads, grads, strict=True) if grad is not None}

    def _parted(self, results: Results) -> Results:
        """With the experts' gradients parameter by parameter, for each is judged by itself."""
        if self.op is not experts or not self.backwards:
            return results
        parts = experts.by_name(results["theta"], self.given["chain"])
        others = {name: tensor for name, tensor in results.items() if name != "theta"}
        return others | {f"theta: {name}": part for name, part in parts.items()}

    def off(self, returned: Any) -> dict[str, float]:
        """How far off each result of a kernel's call is: at most 1 where rounding explains it."""
        fast = self._parted(tree_map(_ordinary, self.results(returned)))
        if any(tensor.shape != self.right[name].shape for name, tensor in fast.items()):
            return {"shape": math.inf}
        if (self.op is experts and self.backwards) or (self.op is route and not self.backwards):
            return self._off(fast, self._all(fast))
        measured = self._off(fast, on_rows(self.op, self.given, self._some(fast)))
        sure = all(measured[name] <= 1.0 for name in self.sums)
        return measured if sure else self._off(fast, self._all(fast))

    def _off(self, fast: Results, calls: Iterable[RowCall]) -> dict[str, float]:
        measured, totals, judged = dict.fromkeys(fast, 0.0), dict[str, tuple[Tensor, Tensor]](), 0
        for call in calls:
            exact, sigma = self._expected(call.given)
            keep = self._decided(fast, exact, call.at_R, measured)
            for name in fast:
                if name in self.sums:
                    before = totals.get(name, (0.0, torch.zeros_like(sigma[name])))
                    totals[name] = (before[0] + exact[name], before[1].hypot(sigma[name]))
                elif name != "choice":
                    at = places_of(self.op, self.given, name, call)
                    error = self._of_sum(exact[name], sigma[name]) if name.startswith("theta") else sigma[name]
                    own = (fast[name][at], exact[name], error, self.right[name][at])
                    own = own if keep is None else tuple(tensor[keep] for tensor in own)
                    measured[name] = max(measured[name], self._worst(*own))
            judged += len(call.at_R)
        for name, (exact, sigma) in totals.items():
            measured[name] = self._sum_off(name, fast[name], exact, sigma, judged)
        return measured

    def _sum_off(self, name: str, fast: Tensor, exact: Tensor, sigma: Tensor, judged: int) -> float:
        """Of a sum over rows, of which so many are judged: the others have errors like theirs."""
        right = self.right[name]
        if not bool(right.isfinite().all()):
            return 0.0
        if judged < self.rows:
            exact, sigma = right.double(), sigma * (SAFETY * self.rows / judged)
        return self._worst(fast, exact, self._of_sum(exact, sigma), right)

    def _of_sum(self, exact: Tensor, sigma: Tensor) -> Tensor:
        """σ of a sum over real rows."""
        return sigma * alike(self._inputs()) + one_sign(self.rows) / UNITS * exact.abs()

    def _run(self, given: Given) -> Any:
        if not self.backwards:
            return self.op.forward(**wanted(self.op.forward, given))
        given = dict(given)
        dy, saved = given.pop("dy"), given.pop("saved")
        if self.op is experts:  # a kernel keeps what it likes
            _, saved = experts.forward(**wanted(experts.forward, given))
        return self.op.backward(dy, saved, **wanted(self.op.backward, given))

    def _count(self) -> int:
        """Rows along which calls are taken apart."""
        if self.op is combine:
            return len(self.given["gates"])
        return max((len(self.right[name]) for name in self.right if name not in self.sums), default=0)

    def _inputs(self) -> Tensor:
        """What rows are alike in."""
        name = next((name for name in by_rows(self.op) if name in self.given), "")
        return self.given[name] if name else self.given["saved"].z_TE

    def _all(self, fast: Results) -> Iterator[RowCall]:
        """Every row; in pieces, where that is possible."""
        device = next(iter(self.right.values())).device
        at_T = torch.arange(self.rows, device=device)
        given = self.given
        if self.op is route and not self.backwards:
            T, E = given["z"].shape
            given = {**given, "whole": given.get("whole") or route.Whole(T, route.load(fast["choice"], E))}
        for at_R in [at_T] if self.op is experts else at_T.split(PIECE):
            yield from on_rows(self.op, given, at_R)

    def _expected(self, given: Given) -> tuple[Results, Results]:
        """What is right in float64, and σ of the op as it computes in the dtype of the call."""
        exact = self.results(self._run(tree_map(_double, dict(given))))
        with Bounds() as bounds:
            sigma = {name: bounds.of(tensor) for name, tensor in self.results(self._run(given)).items()}
        return self._parted(exact), self._parted(sigma)

    def _worst(self, fast: Tensor, exact: Tensor, sigma: Tensor, right: Tensor) -> float:
        """Of an entry; rows for which the bounds do not hold are left out."""
        measured = worst(fast, exact, sigma, UNITS, self.unit)
        if measured <= 1.0:
            return measured
        if not exact.dim():
            return measured if self._holds(right, exact, sigma) else 0.0
        fair = [i for i in range(len(exact)) if self._holds(right[i], exact[i], sigma[i])]
        return worst(fast[fair], exact[fair], sigma[fair], UNITS, self.unit) if fair else 0.0

    def _holds(self, right: Tensor, exact: Tensor, sigma: Tensor) -> bool:
        if not bool(right.isfinite().all()):
            return False
        amplified = float(sigma.max()) > AMPLIFIED * self.unit * float(exact.double().square().mean().sqrt())
        return not amplified and worst(right, exact, sigma, UNITS, self.unit) <= 1.0

    def _decided(self, fast: Results, exact: Results, at_R: Tensor, measured: dict[str, float]) -> Tensor | None:
        """Which of these rows a router decided as the op does, if not all: others only where scores are near."""
        if "choice" not in exact:
            return None
        z_RE, c_E = self.given["z"][at_R].double(), self.given["c"]
        other_R = (fast["choice"][at_R] != exact["choice"]).any(1)
        undecided_R = (self.right["choice"][at_R] != exact["choice"]).any(1)
        size = 1.0 if c_E is None else 1.0 + float(c_E.abs().max())
        margin_R = route.margin(z_RE, None if c_E is None else c_E.double(), self.given["routing"])
        if bool((other_R & ~(margin_R <= NEAR * UNIT * size) & z_RE.isfinite().all(1)).any()):
            measured["choice"] = math.inf
        return ~(other_R | undecided_R)

    def _some(self, fast: Results) -> Tensor:
        """Rows by chance, the first, the last, and those that are farthest from the op's; none that is not a number."""
        far_T, is_number_T = self._distances(fast)
        places = places_in_a_row(self.op, self.given)
        farthest = torch.where(is_number_T, far_T, -1.0).topk(min(max(1, FARTHEST // places), self.rows)).indices
        ends = torch.tensor([self.rows - 1, 0] if self.rows else [], dtype=torch.int64)
        drawn = torch.randperm(self.rows, generator=seeded("row trial", self.rows))
        chance = torch.cat([ends, drawn])[: max(1, CHANCE // places)].to(far_T.device)
        at_R = torch.cat([chance, farthest]).unique()
        return at_R[is_number_T[at_R]]

    def _distances(self, fast: Results) -> tuple[Tensor, Tensor]:
        """Of each row: how far its results are from the op's, beside their size; and whether those are numbers."""
        far, is_number = [], []
        for name in fast.keys() - self.sums:
            right = self.right[name].flatten(1).double()
            usual_T1 = right.square().mean(1, True).sqrt() + torch.finfo(torch.float32).tiny
            far_T = ((fast[name].flatten(1) - right).abs() / usual_T1).amax(1).nan_to_num(math.inf, math.inf)
            finite_T = right.isfinite().all(1)
            if self.op is combine and name == "rows":  # several for each row of the others
                row_TK = self.given["plan"].row_TK
                far_T, finite_T = far_T[row_TK].amax(1), finite_T[row_TK].all(1)
            far.append(far_T)
            is_number.append(finite_T)
        return torch.stack(far).amax(0), torch.stack(is_number).all(0)


def alike(x_TI: Tensor) -> float:
    """√ of how often the commonest row occurs: by so much the error of a sum grows faster than if rows differed."""
    if not x_TI.numel():
        return 1.0
    x_TI = x_TI.flatten(1).double()
    r_I = torch.randn(x_TI.shape[1], generator=seeded("alike"), dtype=torch.float64).to(x_TI.device)
    return float((x_TI @ r_I).float().unique(return_counts=True)[1].max()) ** 0.5


def _ordinary(leaf: Any) -> Any:
    """Without a graph; a tensor of inference mode is copied, for outside of it not every op takes it."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.clone() if leaf.is_inference() else leaf.detach()


def _double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
