"""What the tests share: one thread, repeatable examples, random tensors, and what agreement means."""

import os

# Some virtual machines trap AMX, and torch's bf16 products then die with an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import settings

# One thread: tensors this small lose more to waking the others than they gain from them.
torch.set_num_threads(1)

settings.register_profile("gradproof", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("gradproof")


@pytest.fixture(scope="session")
def normal():
    """normal(seed, (T, I), (O,), ...): one float64 N(0,1) tensor for each shape."""

    def draw(seed, *shapes):
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]

    return draw


@pytest.fixture(scope="session")
def agree():
    """agree(computed, right): ‖computed − right‖ ≤ tolerance·‖right‖ + 64·u·‖terms‖, shape and dtype included.

    Without `terms`, the size of what cancelled on the way, a right answer of zero must be met exactly."""

    def check(computed, right, tolerance=1e-12, terms=0.0):
        assert (computed.shape, computed.dtype) == (right.shape, right.dtype)
        u = torch.finfo(right.dtype).eps / 2
        error, size = float((computed - right).detach().norm()), float(right.detach().norm())
        cancelled = float(torch.as_tensor(terms, dtype=torch.float64).detach().norm())
        assert error <= tolerance * size + 64 * u * cancelled, f"off by {error:.3g} of {size:.3g}"

    return check


# Ranks are started once for all tests of a worker: that takes seconds.


@pytest.fixture(scope="session")
def two_ranks():
    from gradproof.ranks.pool import Pool

    with Pool(2) as pool:
        yield pool


@pytest.fixture(scope="session")
def four_ranks():
    from gradproof.ranks.pool import Pool

    with Pool(4) as pool:
        yield pool
