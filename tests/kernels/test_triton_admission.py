from importlib import import_module

import pytest
import torch

from gradproof.proof.admission import admit
from gradproof.proof.examples import examples


@pytest.mark.parametrize("name", ["norm_gelu", "route", "dispatch", "combine", "cross_entropy", "adamw"])
def test_the_contract_admits_the_kernel(triton_device, name):
    """The contract's own examples and claims, in fp32: what is asked before a kernel may run."""
    op, kernel = import_module(f"gradproof.ops.{name}"), import_module(f"gradproof.kernels.triton.{name}")
    tried = examples(name, op.CONTRACT, 0, 12)
    evidence = list(admit(op, kernel, tried, dtype=torch.float32, device=triton_device, kernel="triton"))
    assert evidence and not [e for e in evidence if e.status != "proven"]
