"""Which kernels a module runs by: those that are admitted for its device, dtype and number of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gradproof.kernels import admissions
from gradproof.kernels.cache import LOG
from gradproof.kernels.variants import REFERENCE, Kernels
from gradproof.models.model import Model
from gradproof.ops import NARROW, norm_gelu
from gradproof.params import ParamSpace
from gradproof.proof.admission import admit
from gradproof.proof.examples import examples

MOST_ROWS = 1031  # prime, so that no tile divides it


def of_model(kind: type[Model], config: Any, device: str, dtype: torch.dtype, rows: int) -> Kernels:
    """Those of the registry; the reference where a dispatch mode watches each op."""
    if _get_current_dispatch_mode_stack():
        return REFERENCE
    return _chosen(kind, config, device, dtype, rows, os.environ.get("GRADPROOF_KERNELS"))


@lru_cache(maxsize=4096)
def _chosen(kind: type[Model], config: Any, device: str, dtype: torch.dtype, rows: int, asked: str | None) -> Kernels:
    with _settled(device):
        shape = replace(bare(kind, config).shape(rows, dtype), device=device)
        # Without fast experts nothing is gained, and their reference has narrow gradients that other kernels refuse.
        return admissions.choose(shape, fused=False) if admissions.variants("experts", shape) else REFERENCE


def of_norm_gelu(device: str, dtype: torch.dtype, width: int, rows: int) -> ModuleType:
    """The fused kernel where it has passed the op's contract at this width, otherwise the reference."""
    if _get_current_dispatch_mode_stack() or os.environ.get("GRADPROOF_KERNELS") == "reference":
        return norm_gelu
    return admitted_norm_gelu(device, dtype, width, min(2 ** rows.bit_length() - 1, MOST_ROWS))


@cache
def admitted_norm_gelu(device: str, dtype: torch.dtype, width: int, rows: int) -> ModuleType:
    """The registry chooses among the ops of a step, of which this is none."""
    kernel = {"cpu": "cpu", "cuda": "triton"}.get(device)
    served = dtype in (torch.float32, *(NARROW if device == "cuda" else ()))
    if kernel is None or not served or import_module(f"gradproof.kernels.{kernel}").missing() is not None:
        return norm_gelu
    module, contract = import_module(f"gradproof.kernels.{kernel}.norm_gelu"), norm_gelu.CONTRACT
    at_width = replace(contract, sizes=dict(T=tuple({rows, min(rows, 3)}), H=(width,)), edges=())
    with _settled(device):
        tried = [*examples("norm_gelu", contract, 0), *examples("norm_gelu at width", at_width, 1)]
        try:
            evidence = admit(norm_gelu, module, tried, dtype=dtype, device=device, kernel=kernel)
            failed = next((e.claim for e in evidence if e.status == "refuted"), None)
        except Exception as error:
            failed = f"it stopped with {type(error).__name__}: {error}"
    if failed is not None:
        LOG.warning("%s of norm_gelu does not run: %s", kernel, failed)
    return module if failed is None else norm_gelu


@contextmanager
def _settled(device: str) -> Iterator[None]:
    """Kernels are judged as they are by themselves, whatever the caller has switched on."""
    usual = torch.get_default_dtype()
    with ExitStack() as stack:
        for device_type in {"cpu", device}:
            stack.enter_context(torch.autocast(device_type, enabled=False))
        stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.callback(torch.set_default_dtype, usual)
        torch.set_default_dtype(torch.float32)
        yield


@cache
def bare(kind: type[Model], config: Any) -> Any:
    """The model's functions and layout; the parameters come with each call."""
    model = kind.__new__(kind)
    model.config, model.buffers = config, {}
    model.params = ParamSpace(config.spec(), device="meta")
    return model
