"""The step on a GPU: the same figures as on the CPU, nothing waited for, and the same bits after a resume."""

import pytest
import torch

from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.moe import MoE, MoEConfig
from gradproof.train.adamw import AdamW
from gradproof.train.step import TrainStep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

MODELS = {
    "moe": (MoE, MoEConfig(9, 5, hidden=32, depth=1, balance=0.1, z_loss=0.01, correction=0.01)),
    "sheaf": (MoE, MoEConfig(9, 5, hidden=32, depth=1, balance=0.1, router="sheaf", patches=(4, 2, 3), gluing=0.1)),
    "dense": (Dense, DenseConfig(9, 5, hidden=16, feedforward=32, blocks=1)),
}


def steps(kind, device, dtype, count=5, cuts=None, **options):
    """The model after some steps on fixed rows, and the last result."""
    family, config = MODELS[kind]
    compute = {"fp64": torch.float64}.get(dtype, torch.float32)
    model = family(config, dtype=compute, device=device)
    step = TrainStep(model, "cross_entropy", AdamW(lr=1e-2), dtype, clip=0.5, **options)
    generator = torch.Generator().manual_seed(0)
    x_TI = torch.randn(47, 9, generator=generator, dtype=torch.float64).to(device, compute)
    target_T = torch.randint(5, (47,), generator=generator).to(device)
    parts = list(zip(x_TI.split(cuts or 47), target_T.split(cuts or 47), strict=True))
    for _ in range(count):
        result = step.accumulate(parts)
    return model, step, result


@pytest.mark.parametrize("kind", MODELS)
def test_float64_agrees_with_the_cpu(agree, kind):
    """A rate or a divisor that lost digits in float32 on the device would be off by 1e-8."""
    here, _, result = steps(kind, "cuda", "fp64")
    there, _, right = steps(kind, "cpu", "fp64")
    agree(here.params.flat_P.cpu(), there.params.flat_P, 1e-12)
    agree(result.grad_norm.cpu(), right.grad_norm, 1e-11)


@pytest.mark.parametrize("kind", MODELS)
def test_unequal_micro_batches_are_the_whole_batch(agree, kind):
    whole, _, right = steps(kind, "cuda", "fp64")
    parts, _, result = steps(kind, "cuda", "fp64", cuts=[1, 20, 3, 23])
    agree(parts.params.flat_P, whole.params.flat_P, 1e-12)
    agree(result.loss, right.loss, 1e-12)
    assert result.load.tolist() == right.load.tolist()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_the_same_bits_twice(kind, dtype):
    """An atomic sum anywhere would end bit-exact resuming."""
    one, _, _ = steps(kind, "cuda", dtype, count=20)
    two, _, _ = steps(kind, "cuda", dtype, count=20)
    assert torch.equal(one.params.flat_P, two.params.flat_P)


@pytest.mark.parametrize(("dtype", "unit"), [("fp32", 1e-5), ("bf16", 0.05), ("fp16", 0.01)])
@pytest.mark.parametrize("kind", MODELS)
def test_narrow_gradients_are_near(kind, dtype, unit):
    """One step: a gradient that is off by more than some units of the format is no rounding."""
    low, _, _ = steps(kind, "cuda", dtype, count=1)
    right, _, _ = steps(kind, "cpu", "fp64", count=1)
    # grad_P holds the scaled gradient in fp16; its direction and size are compared.
    a, b = low.params.grad_P.double().cpu(), right.params.grad_P
    assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 1 - unit


def test_an_overflow_is_skipped_on_the_device():
    """Nothing may move, and the scale is halved, without anyone having read the flag."""
    model, step, _ = steps("moe", "cuda", "fp16", count=2)
    before = [tensor.clone() for tensor in (model.params.flat_P, step.optimizer.m_P, step.optimizer.count)]
    scale = float(step.training.scale)
    x_TI = torch.full((4, 9), torch.inf, device="cuda")
    result = step(x_TI, torch.zeros(4, dtype=torch.int64, device="cuda"))
    after = (model.params.flat_P, step.optimizer.m_P, step.optimizer.count)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert float(result.skipped) == 1 and float(step.training.scale) == scale / 2


def test_nothing_waits_for_the_device():
    """Besides the row counts, which the reference's slices need: two reads a forward at most."""
    family, config = MODELS["dense"]
    step = TrainStep(family(config, device="cuda"), "cross_entropy", AdamW(), clip=1.0)
    x_TI, target_T = torch.randn(16, 9, device="cuda"), torch.zeros(16, dtype=torch.int64, device="cuda")
    step(x_TI, target_T)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(x_TI, target_T)
    finally:
        torch.cuda.set_sync_debug_mode("default")
