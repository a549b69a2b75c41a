"""Triton kernels, one file an op, with the signatures of the reference.

Rows are indexed in 64 bits, nothing is atomic, and every sum has a fixed order, so a run gives the same bits twice. No
function reads the device or allocates by what is on it: all can be captured in a CUDA graph. Mathematics is in fp32;
tensors are fp32, bf16 or fp16. Kernels are compiled for widths and options; the number of rows is none of them
(`do_not_specialize`), so that a last short batch compiles nothing.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from gradproof.kernels.paths import widths
from gradproof.kernels.shapes import NARROW, ROW_OPS, Shape
from gradproof.kernels.variants import Variant

MULTIPROCESSORS = 132  # of an H100 or H200; a constant, so that no sum changes its order with the device


def missing() -> str | None:
    """Why they cannot run on this machine, or None."""
    if find_spec("triton") is None:
        return "triton is not installed; CUDA builds of torch bring it"
    return None if torch.cuda.is_available() else "there is no CUDA device"


def variants() -> tuple[Variant, ...]:
    """All of them."""
    rest = (Variant(op, "triton", "cuda") for op in ROW_OPS if op != "experts")
    return (*rest, Variant("experts", "triton", "cuda", NARROW))


def path(op: str, shape: Shape) -> dict[str, Any]:
    """The widths, which kernels are compiled for, and how each op's launch cuts its rows."""
    return {**widths(op, shape), **import_module(f"{__name__}.{op}").launch(shape)}


def many(programs: int, together: int) -> str:
    """One program alone; some, whose results the last reads at once; or more, in turns."""
    return "one" if programs == 1 else "some" if programs <= together else "more"


def check(*tensors: Tensor) -> None:
    """Refuses what the kernels would compute with less precision than it has."""
    for tensor in tensors:
        if tensor.dtype == torch.float64:
            raise ValueError("the Triton kernels compute in fp32; float64 belongs to the reference")


def check_rows(*theta_EP: Tensor | None) -> None:
    """Refuses parameters of an expert that do not lie side by side: they are read where they are."""
    if any(theta is not None and theta.stride(-1) != 1 for theta in theta_EP):
        raise ValueError("the parameters or gradients of an expert are one row; this one has gaps in it")


def rows(x_TD: Tensor) -> Tensor:
    """The same rows, each contiguous; the distance between them is free."""
    return x_TD if x_TD.stride(-1) == 1 or x_TD.shape[-1] == 1 else x_TD.contiguous()
