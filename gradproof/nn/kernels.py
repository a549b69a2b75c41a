"""Chooses the kernels of a module: those admitted for its device, dtype and number of rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gradproof.kernels import admissions
from gradproof.kernels.cache import LOG
from gradproof.kernels.settled import settled
from gradproof.kernels.variants import Kernels
from gradproof.models.model import Model
from gradproof.ops import NARROW, norm_gelu
from gradproof.params import ParamSpace
from gradproof.proof.admission import admit
from gradproof.proof.examples import examples
from gradproof.train.checked_path import UNCHECKED, CheckedPath, checked_path

MOST_ROWS = 1031  # prime, so that no tile divides it


def of_model(kind: type[Model], config: Any, device: str, dtype: torch.dtype, rows: int) -> CheckedPath[Kernels]:
    """The kernels of the registry, or the reference if a dispatch mode watches each op."""
    if _get_current_dispatch_mode_stack():
        return UNCHECKED
    asked = os.environ.get("GRADPROOF_KERNELS")
    return _chosen(kind, config, device, dtype, rows, torch.get_num_threads(), asked)


@lru_cache(maxsize=4096)
def _chosen(
    kind: type[Model], config: Any, device: str, dtype: torch.dtype, rows: int, threads: int, asked: str | None
) -> CheckedPath[Kernels]:
    with settled(device):
        shape = replace(bare(kind, config).shape(rows, dtype), device=device, threads=threads)
        # Without fast experts nothing is gained, and their reference has narrow gradients that other kernels refuse.
        return checked_path(shape, fused=False) if admissions.variants("experts", shape) else UNCHECKED


@dataclass(frozen=True)
class LayerKernels:
    """The kernels of the fused layer."""

    norm_gelu: ModuleType
    chosen: Mapping[str, str]


def of_norm_gelu(device: str, dtype: torch.dtype, width: int, rows: int) -> CheckedPath[LayerKernels]:
    """The fused kernel if it has passed the op's contract at this width, otherwise the reference."""
    if _get_current_dispatch_mode_stack() or os.environ.get("GRADPROOF_KERNELS") == "reference":
        return CheckedPath(LayerKernels(norm_gelu, {}))
    return _layer(device, dtype, width, rows.bit_length(), torch.get_num_threads())


@lru_cache(maxsize=4096)
def _layer(device: str, dtype: torch.dtype, width: int, size: int, threads: int) -> CheckedPath[LayerKernels]:
    module = admitted_norm_gelu(device, dtype, width, min(2**size - 1, MOST_ROWS))
    kernel = "reference" if module is norm_gelu else module.__name__.split(".")[-2]
    facts = {"dtype": str(dtype), "width": width, "size": size, "threads": threads}
    return CheckedPath(LayerKernels(module, {"norm_gelu": kernel}), device, facts)


@cache
def admitted_norm_gelu(device: str, dtype: torch.dtype, width: int, rows: int) -> ModuleType:
    """The registry chooses among the ops of a step, of which this is none."""
    kernel = {"cpu": "cpu", "cuda": "triton"}.get(device)
    served = dtype in (torch.float32, *(NARROW if device == "cuda" else ()))
    if kernel is None or not served or import_module(f"gradproof.kernels.{kernel}").missing() is not None:
        return norm_gelu
    module, contract = import_module(f"gradproof.kernels.{kernel}.norm_gelu"), norm_gelu.CONTRACT
    at_width = replace(contract, sizes=dict(T=tuple({rows, min(rows, 3)}), H=(width,)), edges=())
    with settled(device):
        tried = [*examples("norm_gelu", contract, 0), *examples("norm_gelu at width", at_width, 1)]
        try:
            evidence = admit(norm_gelu, module, tried, dtype=dtype, device=device, kernel=kernel)
            failed = next((e.claim for e in evidence if e.status == "refuted"), None)
        except Exception as error:
            failed = f"it stopped with {type(error).__name__}: {error}"
    if failed is not None:
        LOG.warning("%s of norm_gelu does not run: %s", kernel, failed)
    return module if failed is None else norm_gelu


@cache
def bare(kind: type[Model], config: Any) -> Any:
    """The model's functions and layout; the parameters are passed to each call."""
    model = kind.__new__(kind)
    model.config, model.buffers = config, {}
    model.params = ParamSpace(config.spec(), device="meta")
    return model
