"""Combine: sums the expert outputs of each token, weighted by their gates.

    y_t = Σ_k w_tk·rows[t, k];   drows[t, k] = w_tk·dy_t;   dw_tk = ⟨dy_t, rows[t, k]⟩ on S, 0 off S

Only here does the gate multiply the expert gradient; the gradient that an expert's backward returns is added unchanged.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs
from gradproof.ops import dispatch
from gradproof.ops.dispatch import DispatchPlan


def forward(rows_NO: Tensor, gates_TE: Tensor, plan: DispatchPlan) -> tuple[Tensor, None]:
    """y_TO, summed over the K choices in order."""
    gate_TK = gates_TE.gather(1, plan.index_TK)
    return (gate_TK[..., None] * rows_NO[plan.row_TK]).sum(1), None


def backward(
    dy_TO: Tensor, saved: None, rows_NO: Tensor, gates_TE: Tensor, plan: DispatchPlan
) -> tuple[Tensor, Tensor]:
    """Returns drows_NO, dgates_TE."""
    gate_TK = gates_TE.gather(1, plan.index_TK)
    drows_TKO = gate_TK[..., None] * dy_TO[:, None]
    dgate_TK = (dy_TO[:, None] * rows_NO[plan.row_TK]).sum(-1)
    dgates_TE = torch.zeros_like(gates_TE).scatter(1, plan.index_TK, dgate_TK)
    return drows_TKO.flatten(0, 1)[plan.slot_N], dgates_TE


SHARED_EQUALLY = "gates of 1/K"


def _equal_gates(T: int = 5, E: int = 4, K: int = 3, O: int = 4) -> Callable[[torch.Generator], Example]:
    """Each token's row dispatched K times, with gates of 1/K: combine must give it back."""

    def example(generator: torch.Generator) -> Example:
        plan = dispatch.draw_plan(dict(T=T, E=E, K=K), generator, {})["plan"]
        x_TO = torch.randn(T, O, generator=generator, dtype=torch.float64)
        gates_TE = torch.full((T, E), 1 / K, dtype=torch.float64)
        return Example(SHARED_EQUALLY, dict(rows=dispatch.forward(x_TO, plan)[0], gates=gates_TE, plan=plan))

    return example


def _identity(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """combine(dispatch(x), 1/K) = x, up to the rounding of K products, their sum and the result, and of 1/K itself.
    Other examples do not say what x was."""
    plan, rows_NO, gates_TE = (example.arguments[name] for name in ("plan", "rows", "gates"))
    K, y_TO = plan.index_TK.shape[1], outputs[0].double()
    u = torch.finfo(outputs[0].dtype).eps / 2
    bound = (K + 1) * u + abs(K * float(gates_TE.flatten()[0]) - 1)
    if example.label != SHARED_EQUALLY:
        return 0.0, bound
    x_TO = rows_NO[plan.row_TK[:, 0]].double()
    return float(((y_TO - x_TO) / x_TO).abs().max()), bound


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    plan = dispatch.draw_plan(sizes, generator, options)["plan"]
    rows_NO = torch.randn(plan.slot_N.numel(), sizes["O"], generator=generator, dtype=torch.float64)
    return dict(plan=plan, rows=rows_NO)


CONTRACT = Contract(
    shapes="rows[N,O] gates[T,E] plan -> y[T,O]",
    sizes=dict(T=(1, 2, 7, 33), O=(1, 3, 20), E=(4, 5), K=(1, 2, 4)),
    grads=("rows", "gates"),
    draw=_draw,
    claims=(*EVERY_OP, Claim("conserves", check=_identity)),
    edges=(_equal_gates(), _equal_gates(T=33, E=7, K=6)),
    edges_at=lambda options, sizes=None: (_equal_gates(*(sizes[axis] for axis in "TEKO" if sizes)),),
)
