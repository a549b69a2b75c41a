"""No correct kernel is refused, whatever the table: random shapes, one and two threads, at their own size."""

import pytest
import torch

from gradproof import ops
from gradproof.kernels.admissions import at_shape, variants
from gradproof.kernels.workspace import Workspace
from gradproof.models.moe import MoE, MoEConfig
from gradproof.proof.admission import admit
from gradproof.streams import seeded

# Refused once, though correct: (inputs, outputs, hidden, rows).
KNOWN = ((52, 2, 195, 32), (334, 2, 128, 1024), (238, 2, 128, 256))


def drawn(seed):
    generator = seeded("random shapes", seed)

    def between(low, high):
        """Evenly on a logarithmic scale."""
        part = float(torch.rand((), generator=generator))
        return round(low * (high / low) ** part)

    return between(3, 600), between(2, 30), between(16, 512), between(1, 4096)


def refused(inputs, outputs, hidden, rows, threads):
    """(op, kernel, claim, tensor, measured) of each claim that fails at this shape; the contract's own examples are the
    same for every shape, and are tried elsewhere."""
    model = MoE(MoEConfig(inputs, outputs, hidden=hidden, balance=0.1))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        shape = model.shape(rows, torch.float32)
        for op in (*shape.ops, *shape.fused):
            for variant in variants(op, shape):
                how = dict(dtype=torch.float32, device="cpu", kernel=variant.kernel, workspace=Workspace)
                for e in admit(ops.load(op), variant.module, at_shape(variant, shape), **how):
                    if e.status == "refuted":
                        yield op, variant.kernel, e.claim, e.value, e.example, e.measured
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("inputs, outputs, hidden, rows", KNOWN)
@pytest.mark.parametrize("threads", [2])
def test_shapes_that_were_refused(inputs, outputs, hidden, rows, threads):
    assert list(refused(inputs, outputs, hidden, rows, threads)) == []


@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(10))
def test_random_shapes(tenth):
    """300 of them."""
    for seed in range(30 * tenth, 30 * tenth + 30):
        assert list(refused(*drawn(seed), threads=1 + seed % 2)) == [], (drawn(seed), 1 + seed % 2)
