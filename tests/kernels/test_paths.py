"""What is judged takes the path that runs: for every benchmarked row of the CPU, and as the C++ itself says."""

from dataclasses import replace

import pytest
import torch

from gradproof.bench.step import cases
from gradproof.kernels.admissions import MOST_WORK, _work, variants
from gradproof.kernels.cpu import missing
from gradproof.kernels.paths import path_of, smallest
from gradproof.models.families import family
from gradproof.models.moe import MoE, MoEConfig
from gradproof.params import ParamSpace

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
ROWS = [(case.size, case.rows) for case in cases("cpu", None, None)]


def shape_of(size, rows, threads=2):
    (case,) = cases("cpu", size, rows)
    model = family(case.family).__new__(family(case.family))
    model.config, model.buffers = case.config, {}
    model.params = ParamSpace(case.config.spec(), device="meta")
    return replace(model.shape(rows, torch.float32), device="cpu", threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size, rows", ROWS)
def test_an_example_takes_the_path_of_every_kernel_of_a_benchmarked_row(size, rows, threads):
    shape = shape_of(size, rows, threads)
    for op in (*shape.ops, *shape.fused):
        for variant in variants(op, shape):
            at = shape if _work(op, shape) <= MOST_WORK else smallest(variant, shape)
            assert path_of(variant, at) == path_of(variant, shape), (size, rows, op)
            assert at.rows <= shape.rows and at.parameters <= shape.parameters


def facts(op, shape):
    (variant,) = (v for v in variants(op, shape) if v.kernel == "cpu")
    return dict(path_of(variant, shape).facts)


def test_a_second_thread_is_another_path():
    """Below 512 blocks of parameters one thread does all the work; above, two share it."""
    shape = replace(MoE(MoEConfig(9, 3, hidden=16)).shape(32, torch.float32), threads=2)
    small, large = replace(shape, parameters=511 * 64), replace(shape, parameters=512 * 64)
    assert facts("adamw", small)["crews"] == (1,) and facts("adamw", large)["crews"] == (2,)
    assert facts("adamw", replace(large, threads=1))["crews"] == (1,)


def test_how_experts_are_cut_is_a_path():
    """Whole experts for few rows, shared ones for many; large parameters put all threads on one product."""
    shape = replace(MoE(MoEConfig(9, 3, hidden=16)).shape(128, torch.float32), threads=2)
    few, many = facts("experts", shape)["cut"], facts("experts", replace(shape, rows=129))["cut"]
    assert (few[2], many[2]) == (1, 0) and few[1] == many[1] == 0
    tiny = facts("experts", shape_of("tiny", 64))["cut"]
    assert tiny[1] == 1 and tiny[3] == 1  # all threads on each product, gradients past the caches
