"""What is judged takes the path that runs: for every benchmarked row, as the C++ and the launches themselves say."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from gradproof.bench.step import cases
from gradproof.kernels.admissions import MOST_WORK, _rows_of_examples, _work, variants
from gradproof.kernels.cpu import missing
from gradproof.kernels.paths import path_of, smallest
from gradproof.kernels.variants import offered
from gradproof.models.families import family
from gradproof.models.moe import MoE, MoEConfig
from gradproof.params import ParamSpace

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
ROWS = [(case.size, case.rows) for case in cases("cpu", None, None)]
GPU_ROWS = [(case.size, case.rows) for case in cases("cuda", None, None)]


def shape_of(size, rows, threads=2, device="cpu"):
    (case,) = cases(device, size, rows)
    model = family(case.family).__new__(family(case.family))
    model.config, model.buffers = case.config, {}
    model.params = ParamSpace(case.config.spec(), device="meta")
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return replace(model.shape(rows, dtype), device=device, threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size, rows", ROWS)
def test_an_example_takes_the_path_of_every_kernel_of_a_benchmarked_row(size, rows, threads):
    shape = shape_of(size, rows, threads)
    for op in (*shape.ops, *shape.fused):
        for variant in variants(op, shape):
            at = shape if _work(op, shape) <= MOST_WORK[shape.device] else smallest(variant, shape)
            assert path_of(variant, at) == path_of(variant, shape), (size, rows, op)
            assert at.rows <= shape.rows and at.parameters <= shape.parameters


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: it says how rows are cut")
@pytest.mark.parametrize("size, rows", GPU_ROWS)
def test_an_example_takes_the_path_of_every_gpu_kernel_of_a_benchmarked_row(size, rows):
    shape = shape_of(size, rows, device="cuda")
    for op in shape.ops:
        listed = [v for v in offered(op, shape) if v.fits(shape)]
        assert listed, f"{op} has no kernel on a GPU"
        for variant in listed:
            at = shape if _work(op, shape) <= MOST_WORK["cuda"] else smallest(variant, shape)
            assert path_of(variant, at) == path_of(variant, shape), (size, rows, op)
            assert op == "adamw" or at.rows == shape.rows, "all rows of a step are judged on a GPU"
            if variant.kernel == "triton" and op not in ("adamw", "cross_entropy"):
                for few in _rows_of_examples(variant, shape):
                    assert path_of(variant, replace(shape, rows=few)) == path_of(variant, shape), (op, few)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: it says how rows are cut")
def test_what_a_gpu_kernel_branches_on_is_in_its_path():
    """Tiles of 64 rows with eight parts (8,192 rows of nano), many programs of the norm, cuBLAS by powers of two."""
    few, many = (shape_of("nano", rows, device="cuda") for rows in (256, 8192))
    assert facts("experts", few, "triton")["tile"] == 16 and facts("experts", many, "triton")["tile"] == 64
    assert facts("experts", many, "triton")["parts"] == 8
    assert facts("route", few, "triton")["programs"] == "one" and facts("route", many, "triton")["programs"] == "some"
    small, large = (replace(few, parameters=parameters) for parameters in (8256, 2**23))
    assert facts("adamw", small, "triton") != facts("adamw", large, "triton")
    medium = shape_of("medium", 32768, device="cuda")
    assert facts("experts", medium, "cublas")["rows"] == 32768
    assert facts("experts", replace(medium, rows=32769), "cublas")["rows"] == 65536


def facts(op, shape, kernel="cpu"):
    (variant,) = (v for v in offered(op, shape) if v.kernel == kernel)
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
