"""Cross-entropy of logits against class indices, optionally with class weights.

    L = −Σ_t w_t·log_softmax(z_t)[y_t]/W,  w_t = class weight of y_t or 1,  W = Σ w_t or the given total
    dz = dL·w_t·(softmax(z_t) − onehot(y_t))/W

A row whose target is `ignore` (sequence padding) has w_t = 0. If no row has any weight, W is 1: loss and gradient are
0, and training continues.

`total` is the count (or weight) of the whole accumulated batch. Micro-batches divide by it once, so their losses add
up; a mean of means would give short ones too much weight.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs


def forward(
    z_TC: Tensor,
    target_T: Tensor,
    class_weight_C: Tensor | None = None,
    total: Tensor | float | None = None,
    ignore: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss; `saved` is w_t/W as scale_T. Raises ValueError for a target outside 0..C−1 that is not `ignore`."""
    check_target(z_TC, target_T, ignore)
    weight_T = _weights(target_T, class_weight_C, ignore)
    if weight_T is None:
        weight_T = z_TC.new_ones(z_TC.shape[0])
    whole = weight_T.sum() if total is None else total
    scale_T = weight_T.to(z_TC.dtype) / (whole + (whole == 0))
    nll_T = -torch.log_softmax(z_TC, -1).gather(1, _legal(target_T, z_TC.shape[1])[:, None])[:, 0]
    return (scale_T * nll_T).sum(), scale_T


def count(target_T: Tensor, class_weight_C: Tensor | None = None, ignore: int | None = None) -> dict[str, Any]:
    """The divisor of the loss, as a keyword argument of forward; pass each micro-batch the sum over all of them."""
    weight_T = _weights(target_T, class_weight_C, ignore)
    return dict(total=target_T.shape[0] if weight_T is None else weight_T.sum())


def _weights(target_T: Tensor, class_weight_C: Tensor | None, ignore: int | None) -> Tensor | None:
    """w_t; None if all are 1."""
    kept_T = None if ignore is None else target_T != ignore
    if class_weight_C is None:
        return kept_T
    weight_T = class_weight_C[_legal(target_T, class_weight_C.shape[0])]
    return weight_T if kept_T is None else weight_T * kept_T


def _legal(target_T: Tensor, classes: int) -> Tensor:
    """Targets clamped to valid indices; ignored targets can have any value."""
    return target_T.clamp(0, classes - 1)


def backward(dloss: Tensor, saved: Tensor, z_TC: Tensor, target_T: Tensor) -> Tensor:
    """Returns dz_TC."""
    p_TC = torch.softmax(z_TC, -1)
    onehot_TC = torch.zeros_like(z_TC).scatter(1, _legal(target_T, z_TC.shape[1])[:, None], 1.0)
    return dloss * saved[:, None] * (p_TC - onehot_TC)


def check_target(z_TC: Tensor, target_T: Tensor, ignore: int | None = None) -> None:
    """Raises ValueError if the target does not fit the logits."""
    T, C = z_TC.shape
    if T == 0:
        raise ValueError("the loss needs at least one row")
    if target_T.shape != (T,) or target_T.dtype != torch.int64:
        raise ValueError(f"target must be int64 [{T}], one class per row, got {target_T.dtype} {list(target_T.shape)}")
    bad_T = (target_T < 0) | (target_T >= C)
    if ignore is not None:
        bad_T &= target_T != ignore
    if bad_T.is_cuda:  # an assertion on the device avoids a synchronisation
        torch._assert_async(  # pyright: ignore[reportPrivateImportUsage]
            ~bad_T.any(), f"a target is out of range: the classes are 0..{C - 1}"
        )
    elif bool(bad_T.any()):
        row = int(bad_T.nonzero()[0])
        raise ValueError(f"target[{row}] = {int(target_T[row])} is out of range: the classes are 0..{C - 1}")


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    return dict(target=torch.randint(sizes["C"], (sizes["T"],), generator=generator))


def _weighted(generator: torch.Generator) -> Example:
    z_TC, target_T = torch.randn(9, 5, generator=generator).double(), torch.arange(9) % 5
    class_weight_C = torch.tensor([0.5, 2.0, 1.0, 0.0, 3.0]).double()
    return Example("class weights", dict(z=z_TC, target=target_T), dict(class_weight=class_weight_C))


def _padded(generator: torch.Generator) -> Example:
    z_TC = torch.randn(6, 4, generator=generator).double()
    return Example("padding", dict(z=z_TC, target=torch.tensor([0, -1, 3, -1, 2, -1])), dict(ignore=-1))


def _padded_and_weighted(generator: torch.Generator) -> Example:
    z_TC, class_weight_C = torch.randn(5, 3, generator=generator).double(), torch.tensor([0.5, 2.0, 1.0]).double()
    options = dict(ignore=-1, class_weight=class_weight_C, total=7.0)
    return Example("padding, class weights", dict(z=z_TC, target=torch.tensor([0, -1, 2, 1, -1])), options)


def _nothing_counts(generator: torch.Generator) -> Example:
    """A batch that is all padding."""
    z_TC = torch.randn(3, 4, generator=generator).double()
    return Example("nothing but padding", dict(z=z_TC, target=torch.full((3,), -1)), dict(ignore=-1))


def _nothing_counted(generator: torch.Generator) -> Example:
    """The same batch as a step passes it: with the precomputed total, 0."""
    example = _nothing_counts(generator)
    return replace(example, label="nothing but padding, counted", options=dict(ignore=-1, total=torch.tensor(0)))


def _weightless(generator: torch.Generator) -> Example:
    """Padding, and a class with weight 0."""
    z_TC = torch.randn(4, 3, generator=generator).double()
    options = dict(ignore=-1, class_weight=torch.tensor([2.0, 0.0, 1.0]).double())
    return Example("no weight at all", dict(z=z_TC, target=torch.tensor([1, -1, 1, -1])), options)


def _confident(generator: torch.Generator) -> Example:
    """Confidently wrong: the loss is 900, not the logarithm of a clamped probability."""
    z_TC = torch.randn(3, 4, generator=generator).double()
    z_TC[1] = torch.tensor([900.0, 0.0, 1.0, -3.0])
    return Example("confidently wrong", dict(z=z_TC, target=torch.tensor([0, 1, 2])))


def _silent(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """Rows with weight 0 have exactly zero gradient. If no row has any weight, the loss is 0. Nothing is NaN."""
    target_T, options, dz_TC = example.arguments["target"], example.options, grads["z"]
    assert dz_TC is not None
    weight_T = _weights(target_T, options.get("class_weight"), options.get("ignore"))
    none_T = torch.zeros_like(target_T, dtype=torch.bool) if weight_T is None else weight_T == 0
    wrong = (~dz_TC.isfinite()).sum() + (dz_TC[none_T] != 0).sum() + ~outputs[0].isfinite()
    return float(wrong + (none_T.all() & (outputs[0] != 0))), 0.0


CONTRACT = Contract(
    shapes="z[T,C] target[T] -> loss[]",
    sizes=dict(T=(1, 2, 7, 33), C=(2, 3, 12)),
    grads=("z",),
    draw=_draw,
    options=({}, dict(total=50.0)),
    claims=(*EVERY_OP, Claim("zero_rows_safe", check=_silent)),
    edges=(
        *(_weighted, _padded, _padded_and_weighted, _confident),
        *(_nothing_counts, _nothing_counted, _weightless),
    ),
)
