"""The fast kernels of this machine: admitted, refused or missing, as `verify` and `doctor` show them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradproof.commands.options import Device
from gradproof.commands.terminal import progress_of


def surveyed(device: Device) -> list[dict[str, Any]]:
    """The fast kernels at the widths of a gate and of nano, transformer and mixture: which were admitted on this
    machine, and by how many claims."""
    import torch

    from gradproof.gate.network import GateConfig, GateNetwork
    from gradproof.kernels.admissions import survey
    from gradproof.models.moe import MoE
    from gradproof.models.transformer import Transformer

    gate, transformer, mixture = GateNetwork(GateConfig()), Transformer.sized("nano"), MoE.sized("nano")
    sized = ((mixture, 256, ()), (transformer, 16, ()), (gate, 1, ("reading",)))  # of a gate, what others do not have
    dtypes = [torch.float32, torch.bfloat16, torch.float16] if device is Device.cuda else [torch.float32]
    with progress_of("admitting kernels") as progress:
        variants: dict[tuple[str, ...], dict[str, Any]] = {}
        for done, dtype in enumerate(dtypes):
            progress(done, len(dtypes))
            for model, rows, own in sized:
                shape = replace(model.shape(rows, dtype), device=device.value)
                shape = replace(shape, ops=(), fused=own) if own else shape
                variants |= {(variant["op"], variant["kernel"], variant["dtype"]): variant for variant in survey(shape)}
    return list(variants.values())


def kernel_table(kernels: list[dict[str, Any]]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("kernel", "of", "dtype", "", "claims", "", box=None, pad_edge=False, title_justify="left")
    colours = {"admitted": "green", "refused": "red", "missing": "dim"}
    for variant in kernels:
        status = f"[{colours[variant['status']]}]{variant['status']}[/]"
        claims = str(variant["claims"] or "")
        table.add_row(variant["kernel"], variant["op"], variant["dtype"], status, claims, escape(variant["reason"]))
    return table
