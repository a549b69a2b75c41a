"""Faults planted in the source of the Triton kernels: each is refused, and by which claim is told.

A copy of the source is changed and imported beside the original. Some act only on a path that needs more rows or
parameters than any example of a contract has: on few rows they cannot be seen, at their size they are refused.
"""

import importlib.util
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from gradproof import ops
from gradproof.kernels.workspace import Workspace
from gradproof.ops.experts import Chain
from gradproof.ops.route import Routing
from gradproof.proof.admission import admit
from gradproof.proof.examples import examples

CHAIN = Chain((9, 12, 12, 12, 5), (True, True, True))


class Fault(NamedTuple):
    """`old` in a file of the package becomes `new`; it acts from so many rows (T) or parameters (P) on."""

    what: str
    op: str
    old: str
    new: str
    file: str = ""
    rows: int = 33
    large: bool = False


FAULTS = (
    Fault(
        "the last row of an expert has no part in the norm's gradients",
        "experts",
        "dn_MW = tl.where(real_M1, da_MW * slope_MW, 0.0)",
        "dn_MW = tl.where((row_M < end - 1)[:, None], da_MW * slope_MW, 0.0)",
    ),
    Fault("GELU's slope with another constant", "experts", "(3 * CUBIC) + 1) * TWICE", "(2 * CUBIC) + 1) * TWICE"),
    Fault(
        "the mean over the padded width",
        "experts",
        "inside_W[None, :], x, 0.0), 1) / H",
        "inside_W[None, :], x, 0.0), 1) / 16",
    ),
    Fault("dh without the mean of its row", "experts", "(dxhat_MW - mean_M[:, None] - xhat", "(dxhat_MW - xhat"),
    Fault(
        "tiles of 64 rows: those after the 32nd are zero",
        "experts",
        "y_MO = product(a_MW, w_HO) + b_O[None, :]",
        "y_MO = product(a_MW, w_HO) + b_O[None, :]\n"
        "    if M == 64:\n        y_MO = tl.where((tl.arange(0, M) < 32)[:, None], y_MO, 0.0)",
        rows=4230,
        large=True,
    ),
    Fault(
        "of eight parts of a weight gradient the last is lost",
        "experts",
        "    for s in tl.static_range(S):\n",
        "    for s in tl.static_range(7 if S == 8 else S):\n",
        file="weights",
        rows=4230,
        large=True,
    ),
    Fault(
        "weight gradients 1% too small",
        "experts",
        "total, mask=inside)\n\n\n@triton.jit\ndef add_up",
        "0.99 * total, mask=inside)\n\n\n@triton.jit\ndef add_up",
        file="weights",
    ),
    Fault(
        "matrices are not added to what is there",
        "experts",
        "        total += tl.load(out + place, mask=inside, other=0.0)\n",
        "        total += 0.0\n",
        file="weights",
    ),
    Fault(
        "the masked softmax's Jacobian",
        "route",
        "tl.sum(q_TE * dw_TE, 1)[:, None])\n    if BALANCE",
        "tl.sum(gates_TE * dw_TE, 1)[:, None]) * (gates_TE > 0)\n    if BALANCE",
    ),
    Fault(
        "the second best expert twice",
        "route",
        "free_TE = free_TE & (expert_1E != index_T[:, None])",
        "free_TE = free_TE & ((expert_1E != index_T[:, None]) | (k == 1))",
    ),
    Fault(
        "shares of the first blocks alone",
        "route",
        "inside_D1 = (block_D < blocks)[:, None]",
        "inside_D1 = (block_D < tl.minimum(blocks, 1))[:, None]",
        rows=1025,
        large=True,
    ),
    Fault(
        "a block's slots are ranked as if it were the first",
        "dispatch",
        "block_1B < pid",
        "block_1B < 0",
        rows=1025,
        large=True,
    ),
    Fault(
        "a gate's gradient without the last column",
        "combine",
        "tl.sum(dy_RO * rows_RO, 1)",
        "tl.sum(tl.where(column_1O < O - 1, dy_RO * rows_RO, 0.0), 1)",
    ),
    Fault("the gate twice", "combine", "gate_R1 * dy_RO, mask=inside_RO", "gate_R1 * gate_R1 * dy_RO, mask=inside_RO"),
    Fault(
        "a class more in the softmax",
        "cross_entropy",
        "p_RC = exp_RC / tl.sum(exp_RC, 1)[:, None]",
        "p_RC = exp_RC / (1e-3 + tl.sum(exp_RC, 1)[:, None])",
    ),
    Fault(
        "losses of the first block alone",
        "cross_entropy",
        "        sum_D += tl.load(part + block_D * 3, mask=block_D < blocks, other=0.0)",
        "        sum_D += tl.load(part + block_D * 3, mask=block_D < tl.minimum(blocks, 1), other=0.0)",
        rows=1100,
        large=True,
    ),
    Fault(
        "moments without their correction",
        "adamw",
        "(lr.to(tl.float64) / _correction(steps, LOG_1)).to(tl.float32)",
        "(lr.to(tl.float64) / 1.0).to(tl.float32)",
    ),
    Fault(
        "the last lines are left as they were",
        "adamw",
        "inside_LA = at_LA < P\n",
        "inside_LA = at_LA < (P // (LINES * ALIGNMENT)) * (LINES * ALIGNMENT)\n",
    ),
    Fault(
        "the norm of each program's first block",
        "adamw",
        "    for start in range(first, end, BLOCK):",
        "    for start in range(first, tl.minimum(end, first + BLOCK), BLOCK):",
        rows=2048 * 2112 + 64,
        large=True,
    ),
)


def planted(fault, folder):
    """A copy of the op's module with the fault in it."""
    name = fault.file or fault.op
    source = Path(import_module(f"gradproof.kernels.triton.{name}").__file__).read_text()
    assert source.count(fault.old) >= 1, f"{fault.what}: the source has changed"
    copy = _imported(name, source.replace(fault.old, fault.new, 1), folder)
    if not fault.file:
        return copy
    own = _imported(fault.op, Path(import_module(f"gradproof.kernels.triton.{fault.op}").__file__).read_text(), folder)
    own.weights, own.add_up = copy.weights, copy.add_up
    return own


def _imported(name, source, folder):
    path = folder / f"{name}_copy.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"planted_{folder.name}_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where Triton looks for what a kernel names
    spec.loader.exec_module(module)
    return module


def refused(module, op, rows, device):
    """The evidence against it at so many rows, one call of each option."""
    contract = ops.load(op).CONTRACT
    options = {"experts": (dict(chain=CHAIN),), "route": (dict(routing=Routing(balance=0.1, z_loss=0.01)),)}
    sizes = dict(T=(rows,), E=(4,), K=(2,), C=(7,), I=(9,), O=(5,), P=(max(rows - rows % 64, 64 * 37),))
    here = replace(
        contract,
        sizes={axis: sizes[axis] for axis in contract.sizes},
        options=options.get(op, contract.options[:1]),
        edges=(),
    )
    dtype = torch.bfloat16 if op == "experts" else torch.float32
    evidence = admit(
        ops.load(op), module, examples(op, here, 0), dtype=dtype, device=device, kernel="triton", workspace=Workspace
    )
    return [e for e in evidence if e.status == "refuted"]


QUICK = ("the masked softmax's Jacobian", "the gate twice", "the last lines are left as they were")


def _marks(fault):
    return () if fault.what in QUICK else pytest.mark.slow


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.what, marks=_marks(fault)) for fault in FAULTS])
def test_a_planted_fault_is_refused(fault, triton_device, tmp_path):
    module = planted(fault, tmp_path)
    if fault.large:
        assert not refused(module, fault.op, 33, triton_device), "it can be seen on few rows"
    found = refused(module, fault.op, fault.rows, triton_device)
    assert found, "it was not noticed"
    print(f"{fault.what}: {found[0].claim} of {found[0].value}")


@pytest.mark.parametrize("op", ["adamw", "combine", "route"])
def test_a_copy_without_a_fault_is_admitted(op, triton_device, tmp_path):
    source = Path(import_module(f"gradproof.kernels.triton.{op}").__file__).read_text()
    module = _imported(op, source, tmp_path)
    assert not refused(module, op, 33, triton_device)
