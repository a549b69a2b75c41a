"""Combine: sums the expert outputs of each token, weighted by their gates.

    y_t = Σ_k w_tk·rows[t, k];   drows[t, k] = w_tk·dy_t;   dw_tk = ⟨dy_t, rows[t, k]⟩ on S, 0 off S

Only here does the gate multiply the expert gradient; the gradient that an expert's backward returns is added unchanged.
"""

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


def _identity(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """combine(dispatch(x), 1/K) = x up to 2u."""
    plan, gates_TE = example.arguments["plan"], example.arguments["gates"]
    K = plan.index_TK.shape[1]
    x_TO = torch.linspace(1, 2, outputs[0].numel(), dtype=gates_TE.dtype, device=gates_TE.device).view_as(outputs[0])
    y_TO, _ = forward(dispatch.forward(x_TO, plan)[0], torch.full_like(gates_TE, 1 / K), plan)
    return float(((y_TO - x_TO) / x_TO).abs().max()), torch.finfo(x_TO.dtype).eps


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
)
