"""out = x·w, or out += x·w. Of bf16 or fp16 matrices by cuBLASLt: sums in fp32, the tile of our choosing.

torch takes what cuBLAS proposes first. For large products that is a tile of 320 × 128, the quickest on a cool device.
In training the device runs at its limit of power, and there tiles of 128 × 160 are quicker (docs/speed.md).

cuBLAS counts by columns, so it is told outᵀ = wᵀ·xᵀ: its A is w, m = O, and its B is x, n = rows.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from gradproof.ops import NARROW

ROOM = 32 * 2**20  # bytes that a product may use beside its arguments
LARGE = 2**36  # multiply-adds, from which on the tile is ours
TILE = 29  # 128 × 160
PROPOSALS = 16
ALIGNED = 256  # bytes; more does not help

# Numbers of cublasLt.h
_FORMATS = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
_COMPUTE_FP32 = 68
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4
_MOST_ROOM, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)
_REDUCE_IN_FP32 = 2
_TILE = 1


class _Proposal(ctypes.Structure):
    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("room", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class ProductPlan(NamedTuple):
    """What cuBLAS needs to know of a product, by address."""

    operation: int
    a: int
    b: int
    out: int
    algorithm: int
    proposals: ctypes.Array[_Proposal]  # kept, for the algorithm is in it


def product(x_nI: Tensor, w_IO: Tensor, out_nO: Tensor, room: Tensor, add: bool = False) -> None:
    """Writes x·w to `out_nO`, whose rows are contiguous, in its own format, or adds to it; either factor may be a
    transposed view. `room` is scratch, of the size that `room_like` gives."""
    if not out_nO.numel():
        return
    if not x_nI.shape[1]:
        if not add:
            out_nO.zero_()
        return
    if x_nI.dtype not in NARROW:
        torch.addmm(out_nO, x_nI, w_IO, beta=float(add), out=out_nO)
        return
    pointers = w_IO.data_ptr(), x_nI.data_ptr(), out_nO.data_ptr()
    plan = _planned(x_nI, w_IO, out_nO)
    _check(
        _library().cublasLtMatmul(
            *(_handle(x_nI.device.index), plan.operation, _ONE_AT),
            *(pointers[0], plan.a, pointers[1], plan.b, _ONE_AT if add else _ZERO_AT),
            *(pointers[2], plan.out, pointers[2], plan.out, plan.algorithm),
            *(room.data_ptr(), ROOM, torch.cuda.current_stream(x_nI.device).cuda_stream),
        )
    )


def algorithm(x_nI: Tensor, w_IO: Tensor, out_nO: Tensor) -> bytes:
    """Which one cuBLAS takes for a product, as it writes it down itself: tile, stages, splits."""
    return ctypes.string_at(_planned(x_nI, w_IO, out_nO).algorithm, ctypes.sizeof(c_uint64 * 8))


def _planned(x_nI: Tensor, w_IO: Tensor, out_nO: Tensor) -> ProductPlan:
    (n, I), O = x_nI.shape, w_IO.shape[1]
    formats = _FORMATS[x_nI.dtype], _FORMATS[out_nO.dtype]
    aligned = alignment(w_IO, x_nI, out_nO)
    return _plan(O, n, I, _layout(w_IO), _layout(x_nI), out_nO.stride(0), formats, aligned, x_nI.device.index)


def room_like(x: Tensor) -> tuple[int, ...]:
    """The shape of the room that products of x want, in numbers of its format."""
    return (ROOM // x.element_size() if x.dtype in NARROW else 0,)


class _Layout(NamedTuple):
    transposed: bool  # of a matrix that is stored by columns
    leading: int  # numbers from one column to the next


def _layout(x_RC: Tensor) -> _Layout:
    by_rows = x_RC.stride(1) == 1 and x_RC.stride(0) >= x_RC.shape[1]
    return _Layout(False, x_RC.stride(0)) if by_rows else _Layout(True, x_RC.stride(1))


def alignment(*tensors: Tensor) -> int:
    """Bytes that all of them are aligned to."""
    together = ALIGNED
    for tensor in tensors:
        together |= tensor.data_ptr()
    return together & -together


@cache
def _plan(
    m: int, n: int, k: int, a: _Layout, b: _Layout, leading: int, formats: tuple[int, int], alignment: int, device: int
) -> ProductPlan:
    """The first proposal of cuBLAS; of a large product with a narrow result, the first that has our tile."""
    lt, given, made = _library(), formats[0], formats[1]
    operation = c_void_p()
    _check(lt.cublasLtMatmulDescCreate(byref(operation), _COMPUTE_FP32, _FORMATS[torch.float32]))
    for attribute, layout in ((_TRANSPOSE_A, a), (_TRANSPOSE_B, b)):
        _set(lt.cublasLtMatmulDescSetAttribute, operation, attribute, c_int(layout.transposed))
    matrices = (
        _matrix(given, *((k, m) if a.transposed else (m, k)), a.leading),
        _matrix(given, *((n, k) if b.transposed else (k, n)), b.leading),
        _matrix(made, m, n, leading),
    )
    wish = c_void_p()
    _check(lt.cublasLtMatmulPreferenceCreate(byref(wish)))
    _set(lt.cublasLtMatmulPreferenceSetAttribute, wish, _MOST_ROOM, c_size_t(ROOM))
    _set(lt.cublasLtMatmulPreferenceSetAttribute, wish, _REDUCTIONS, c_uint32(_REDUCE_IN_FP32))
    for attribute in _ALIGNMENTS:
        _set(lt.cublasLtMatmulPreferenceSetAttribute, wish, attribute, c_uint32(alignment))
    proposals, count = (_Proposal * PROPOSALS)(), c_int()
    handle, (in_a, in_b, out) = _handle(device), matrices
    _check(
        lt.cublasLtMatmulAlgoGetHeuristic(
            handle, operation, in_a, in_b, out, out, wish, PROPOSALS, proposals, byref(count)
        )
    )
    lt.cublasLtMatmulPreferenceDestroy(wish)
    if not count.value:
        raise RuntimeError(f"cuBLAS has no kernel for a product of {n} × {k} and {k} × {m}")
    taken = 0
    if m * n * k >= LARGE and made == given:
        ours = (i for i in range(count.value) if _tile(proposals[i]) == TILE)
        taken = next(ours, 0)
    addresses = (descriptor.value or 0 for descriptor in (operation, *matrices))
    return ProductPlan(*addresses, algorithm=ctypes.addressof(proposals[taken]), proposals=proposals)


def _matrix(format: int, rows: int, columns: int, leading: int) -> c_void_p:
    layout = c_void_p()
    _check(_library().cublasLtMatrixLayoutCreate(byref(layout), format, rows, columns, leading))
    return layout


def _tile(proposal: _Proposal) -> int:
    tile, size = c_uint32(), c_size_t()
    status = _library().cublasLtMatmulAlgoConfigGetAttribute(byref(proposal), _TILE, byref(tile), 4, byref(size))
    return tile.value if status == 0 else 0


def _set(setter: ctypes._NamedFuncPointer, of: c_void_p, attribute: int, value: ctypes._SimpleCData[int]) -> None:
    _check(setter(of, attribute, byref(value), ctypes.sizeof(value)))


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLAS refuses a product with status {status}")


@cache
def _handle(device: int) -> int:
    handle = c_void_p()
    with torch.cuda.device(device):
        _check(_library().cublasLtCreate(byref(handle)))
    return handle.value or 0


@cache
def _library() -> ctypes.CDLL:
    """The one that torch has loaded; OSError where there is none."""
    lt = ctypes.CDLL(f"libcublasLt.so.{(torch.version.cuda or '').partition('.')[0]}")
    pointer = c_void_p
    lt.cublasLtMatrixLayoutCreate.argtypes = [pointer, c_int, c_uint64, c_uint64, c_int64]
    lt.cublasLtMatmulAlgoGetHeuristic.argtypes = [*(7 * [pointer]), c_int, pointer, pointer]
    lt.cublasLtMatmulAlgoConfigGetAttribute.argtypes = [pointer, c_int, pointer, c_size_t, pointer]
    for setter in (lt.cublasLtMatmulDescSetAttribute, lt.cublasLtMatmulPreferenceSetAttribute):
        setter.argtypes = [pointer, c_int, pointer, c_size_t]
    lt.cublasLtMatmulPreferenceDestroy.argtypes = [pointer]
    lt.cublasLtMatmul.argtypes = [*(14 * [pointer]), c_size_t, pointer]
    return lt


_ONE, _ZERO = c_float(1.0), c_float(0.0)
_ONE_AT, _ZERO_AT = ctypes.addressof(_ONE), ctypes.addressof(_ZERO)
