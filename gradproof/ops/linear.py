"""Linear layer.

y = x Wᵀ + b
dx = dy W,  dW = dyᵀ x,  db = Σ_T dy
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant
from gradproof.ops import NARROW, wide

FORMATS = ("bf16", "fp16")
NARROWEST = 512  # products with fewer rows or columns: cuBLAS splits their sums regardless of the settings


def forward(x_TI: Tensor, w_OI: Tensor, b_O: Tensor) -> tuple[Tensor, None]:
    """y_TO; backward needs only the arguments."""
    return torch.nn.functional.linear(x_TI, w_OI, b_O), None


def backward(dy_TO: Tensor, saved: None, x_TI: Tensor, w_OI: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns dx_TI, dw_OI, db_O. Parameter gradients are fp32 if the operands are low-precision."""
    return input_gradient(dy_TO, w_OI), *parameter_gradients(dy_TO, x_TI)


def input_gradient(dy_TO: Tensor, w_OI: Tensor) -> Tensor:
    """dx_TI."""
    return dy_TO @ w_OI


def parameter_gradients(
    dy_TO: Tensor, x_TI: Tensor, out: tuple[Tensor, ...] | None = None, accumulate: bool = False
) -> tuple[Tensor, Tensor]:
    """dw_OI, db_O, written or added to `out` if given."""
    if out is None:
        return weight_gradient(dy_TO, x_TI), wide(dy_TO).sum(0)
    dw_OI, db_O = out
    if accumulate:
        db_O.add_(wide(dy_TO).sum(0))
    else:
        torch.sum(dy_TO, 0, dtype=db_O.dtype, out=db_O)
    return weight_gradient(dy_TO, x_TI, dw_OI, accumulate), db_O


def weight_gradient(dy_TO: Tensor, x_TI: Tensor, out_OI: Tensor | None = None, accumulate: bool = False) -> Tensor:
    """dw_OI, accumulated directly into `out_OI` if the dtypes match."""
    if out_OI is None:
        return wide_product(dy_TO.T, x_TI)
    if dy_TO.dtype == out_OI.dtype:
        return out_OI.addmm_(dy_TO.T, x_TI) if accumulate else torch.mm(dy_TO.T, x_TI, out=out_OI)
    if accumulate:
        return out_OI.add_(wide_product(dy_TO.T, x_TI))
    if dy_TO.is_cuda:
        with _summed_wide():
            return torch.mm(dy_TO.T, x_TI, out_dtype=out_OI.dtype, out=out_OI)
    return out_OI.copy_(wide_product(dy_TO.T, x_TI))


def wide_product(a_OT: Tensor, b_TI: Tensor) -> Tensor:
    """a b, never rounded to a low-precision dtype."""
    if a_OT.dtype in NARROW and a_OT.is_cuda and min(a_OT.shape[0], b_TI.shape[1]) >= NARROWEST:
        with _summed_wide():
            return torch.mm(a_OT, b_TI, out_dtype=torch.float32)
    return wide(a_OT) @ wide(b_TI)


@contextmanager
def _summed_wide() -> Iterator[None]:
    """Makes cuBLAS add the parts of a split sum in fp32; by default torch allows low precision for that."""
    switches, names = torch.backends.cuda.matmul, [f"allow_{format}_reduced_precision_reduction" for format in FORMATS]
    before = [getattr(switches, name) for name in names]
    try:
        for name in names:
            setattr(switches, name, False)
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(switches, name, value)


def _rounding(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """float32 against float64: |ŷ−y| ≤ c√n·u·(|x||W|ᵀ+|b|) + u|y|, n the length of the sum, c = 4. Reported as the
    largest ratio of the two sides.
    """
    x_TI, w_OI, b_O = (example.arguments[name].to(torch.float32) for name in ("x", "w", "b"))
    exact_TO, _ = forward(x_TI.double(), w_OI.double(), b_O.double())
    terms_TO = x_TI.double().abs() @ w_OI.double().abs().T + b_O.double().abs()
    u = torch.finfo(torch.float32).eps / 2
    bound_TO = 4 * math.sqrt(x_TI.shape[1] + 1) * u * terms_TO + u * exact_TO.abs()
    error_TO = (forward(x_TI, w_OI, b_O)[0].double() - exact_TO).abs()
    return float((error_TO / bound_TO).max()), 1.0


CONTRACT = Contract(
    shapes="x[T,I] w[O,I] b[O] -> y[T,O]",
    sizes=dict(T=(1, 2, 7, 64), I=(1, 3, 96, 129), O=(1, 4, 5, 20)),
    grads=("x", "w", "b"),
    parameters=("w", "b"),
    claims=(*EVERY_OP, equivariant("T"), Claim("error_bound", dtype="float32", check=_rounding)),
)
