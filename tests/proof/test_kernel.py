"""`check_kernel`: right kernels pass, planted faults are refused, and the report says where and by how much."""

import importlib.util
import json
import math
import os
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

import gradproof
from gradproof.cli import app
from gradproof.proof.fused_bounds import FusedBounds
from gradproof.proof.kernel_calls import parse_axes

SOURCE = Path(__file__).with_name("own_kernels.py")
FORMATS = [torch.float32, torch.bfloat16]


def _drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


INPUTS = {
    "softmax": ((_drawn(9, 21),), "x[T,I]"),
    "layernorm": ((_drawn(9, 21), _drawn(21, seed=1), _drawn(21, seed=2), 1e-5), "x[T,D] gamma[D] beta[D]"),
    "matmul": ((_drawn(18, 20), _drawn(20, 17, seed=1)), "a[M,K] b[K,N]"),
    "attention": (tuple(_drawn(2, 18, 8, seed=i) for i in range(3)), "q[B,S,W] k[B,S,W] v[B,S,W]"),
    "cross_entropy": ((_drawn(9, 21), torch.arange(9) * 5 % 21), "z[T,C] target[T]"),
    "dropout": ((_drawn(9, 21), 0.3, 7), "x[T,I]"),
}


class PlantedFault(NamedTuple):
    """`old` in the source of the kernels becomes `new`."""

    what: str
    kernel: str
    old: str
    new: str


FAULTS = (
    PlantedFault("no maximum is subtracted", "softmax", "values - tl.max(values, 0)", "values"),
    PlantedFault(
        "the padding counts",
        "softmax",
        "tl.where(inside, tl.exp(shifted), 0.0)",
        "tl.exp(tl.where(inside, shifted, 0))",
    ),
    PlantedFault("the inner product is missing", "softmax", "(p * (g - inner))", "(p * g)"),
    PlantedFault("eps is missing", "layernorm", "0) / n + eps)", "0) / n)"),
    PlantedFault("the mean over the padded width", "layernorm", "tl.sum(values, 0) / n", "tl.sum(values, 0) / BLOCK"),
    PlantedFault("a term of dx is missing", "layernorm", "(g - normed * along - level)", "(g - normed * along)"),
    PlantedFault("the tail of the sum is left out", "matmul", "range(0, K, D)", "range(0, K - K % D, D)"),
    PlantedFault(
        "the last column is never written",
        "matmul",
        "total.to(c.dtype.element_ty), mask=(row < M)[:, None] & (column < N)",
        "total.to(c.dtype.element_ty), mask=(row < M)[:, None] & (column < N - 1)",
    ),
    PlantedFault("strides are ignored", "matmul", "*b.stride()", "b.shape[1], 1"),
    PlantedFault("a query sees the next key", "attention", "<= query[:, None])", "<= query[:, None] + 1)"),
    PlantedFault("the running sum does not fade", "attention", "sum_R * fade_R", "sum_R"),
    PlantedFault("a term of ds is missing", "attention", "(dp_RC - inner_R[:, None])", "dp_RC"),
    PlantedFault("the sum instead of the mean", "cross_entropy", "(tl.sum(total, 0) / rows)", "tl.sum(total, 0)"),
    PlantedFault("the target's class is not special", "cross_entropy", "p - 1, p)", "p, p)"),
    PlantedFault("the last class is left out", "cross_entropy", "mask=column < n, other", "mask=column < n - 1, other"),
    PlantedFault("what stays is not scaled", "dropout", "values * scale", "values"),
    PlantedFault("the backward draws other numbers", "dropout", "*ctx.drawn)", "ctx.drawn[0], ctx.drawn[1] + 1)"),
    PlantedFault(
        "one buffer serves every call",
        "dropout",
        "    y = torch.empty_like(x)\n    grid",
        "    y = _dropped.__dict__.setdefault(x.shape, torch.empty_like(x))\n    grid",
    ),
)
QUICK = ("softmax", "dropout")


def _marked(kernel, *values, ids):
    return pytest.param(*values, id=ids, marks=() if kernel in QUICK else pytest.mark.slow)


@pytest.fixture
def load(monkeypatch, tmp_path):
    """load(fault): the kernels as a module, on the GPU if there is one, otherwise in Triton's interpreter."""
    pytest.importorskip("triton") if torch.cuda.is_available() else _interpreter(monkeypatch)

    def imported(fault=None):
        source = SOURCE.read_text()
        if fault is not None:
            assert source.count(fault.old), f"{fault.what}: the source has changed"
            source = source.replace(fault.old, fault.new, 1)
        path = tmp_path / "own_kernels_copy.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(f"own_kernels_{tmp_path.name}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where Triton looks for what a kernel names
        spec.loader.exec_module(module)
        return module

    return imported


def _interpreter(monkeypatch):
    """Interpreting is decided when Triton is imported, and again when a kernel is decorated. Where a GPU rounds to
    nearest, the interpreter cuts off: bf16 numbers are made as torch makes them."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    tl = pytest.importorskip("triton.language")
    from triton.runtime import interpreter

    if not isinstance(tl.sum, interpreter.InterpretedFunction):
        pytest.skip("triton was imported before TRITON_INTERPRET could be set, and there is no GPU")
    convert = interpreter._convert_float

    def converted(data, given, wanted, mode):
        if (given, wanted) != (tl.float32, tl.bfloat16):
            return convert(data, given, wanted, mode)
        wide = torch.from_numpy(data.astype("float32", copy=True))
        return wide.to(torch.bfloat16).view(torch.uint16).numpy().reshape(data.shape)

    monkeypatch.setattr(interpreter, "_convert_float", converted)


def judged(module, kernel, dtype):
    inputs, shapes = INPUTS[kernel]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = tuple(value.to(device) if isinstance(value, torch.Tensor) else value for value in inputs)
    fast, reference = getattr(module, kernel), getattr(module, f"{kernel}_reference")
    return gradproof.check_kernel(fast, reference, inputs, shapes=shapes, dtypes=(dtype,))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities in the interpreter
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("kernel", [_marked(kernel, kernel, ids=kernel) for kernel in INPUTS])
def test_a_right_kernel_is_proven(load, kernel, dtype):
    report = judged(load(), kernel, dtype)
    assert report.status == "proven", report.summary
    (subject,) = report.subjects
    claims = {evidence.claim for evidence in subject.evidence}
    wanted = {"matches_reference", "no_alias", "deterministic", "writes_all", "strides", "sizes", "loud"}
    assert wanted <= claims and subject.calls > 15
    assert any(judgement.name.startswith("gradient of") for judgement in subject.inputs)
    finest = 1e-4 if dtype == torch.float32 else 2e-2
    assert all(judgement.resolution <= finest for judgement in subject.inputs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("fault", [_marked(f.kernel, f, ids=f"{f.kernel}: {f.what}") for f in FAULTS])
def test_a_planted_fault_is_refused(load, fault, dtype):
    report = judged(load(fault), fault.kernel, dtype)
    assert report.status == "refuted", report.summary
    print(f"{fault.kernel}: {fault.what}: {report.summary}")


def test_every_kernel_has_three_faults():
    assert all(sum(fault.kernel == kernel for fault in FAULTS) >= 3 for kernel in INPUTS)
