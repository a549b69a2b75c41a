"""Memory between measurements: frees what is no longer used, so that no contestant benefits from another's cache."""

from __future__ import annotations

import gc
import sys

import torch

from gradproof.bench.peers import Way
from gradproof.heap import give_back


def free(device: str) -> None:
    """Memory of what is gone goes back, compiled code too."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # pyright: ignore[reportAttributeAccessIssue]
        gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    else:
        give_back()


def forget_peers(device: str, way: Way) -> None:
    """Frees what earlier peers leave in the compiler's caches, or it would be freed in the midst of a measurement; so
    would cuBLAS's workspaces by the modes that capture graphs themselves."""
    from torch import _dynamo

    _dynamo.reset()
    gc.collect()
    if device == "cuda":
        if way.captures_parts:
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def forget_workspaces(device: str) -> None:
    """cuBLAS keeps a workspace for each stream: on the one that everybody shares it is there before anybody is
    measured, on their own streams everybody pays for one. Only where no graph is alive: it may point into one."""
    if device == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            a = torch.ones(256, 256, device=device, dtype=dtype)
            torch.addmm(a[0], a, a)
        torch.cuda.synchronize()


def allocated(device: str) -> int:
    """Bytes of tensors on a GPU; on a CPU they are counted as they are made."""
    return torch.cuda.memory_allocated() if device == "cuda" else 0
