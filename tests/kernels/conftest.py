"""Where the Triton kernels run in the tests: on the GPU if there is one, otherwise in Triton's interpreter."""

import importlib
import os
import pkgutil
import sys

import pytest
import torch

from gradproof.kernels import triton


def _import() -> str:
    """Imports Triton and the kernels; a sentence where they cannot run. Interpreting is decided when a kernel is
    decorated. The variable does not outlast the imports, so that it reaches no other test."""
    on_gpu = torch.cuda.is_available()
    if not on_gpu and "triton" in sys.modules:
        return "triton was imported before TRITON_INTERPRET could be set, and there is no GPU"
    before = os.environ.get("TRITON_INTERPRET")
    try:
        if not on_gpu:
            os.environ["TRITON_INTERPRET"] = "1"
        for module in pkgutil.iter_modules(triton.__path__):
            importlib.import_module(f"{triton.__name__}.{module.name}")
    except ModuleNotFoundError as missing:
        if missing.name != "triton":
            raise
        return "triton is not installed: its kernels cannot be tested"
    finally:
        if before is None:
            os.environ.pop("TRITON_INTERPRET", None)
        else:
            os.environ["TRITON_INTERPRET"] = before
    return ""


def _round_to_nearest() -> None:
    """Triton's interpreter cuts off where a GPU rounds: bf16 numbers are made as torch makes them."""
    from triton import language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def converted(data, given, wanted, mode):
        if (given, wanted) != (tl.float32, tl.bfloat16):
            return convert(data, given, wanted, mode)
        wide = torch.from_numpy(data.astype("float32", copy=True))
        return wide.to(torch.bfloat16).view(torch.uint16).numpy().reshape(data.shape)

    interpreter._convert_float = converted


_CANNOT = _import()
if not _CANNOT and not torch.cuda.is_available():
    _round_to_nearest()


@pytest.fixture
def triton_device(monkeypatch):
    """Where to put the tensors. Fresh memory is NaN, so that what a kernel leaves unwritten shows."""
    if _CANNOT:
        pytest.skip(_CANNOT)
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield "cuda" if on_gpu else "cpu"
    torch.use_deterministic_algorithms(before)


@pytest.fixture(scope="session")
def near():
    """near(fast, ordinary, right, scale): as near to the float64 result as the reference in the same format is, to a
    factor of 2 and a few roundings of `scale`, by default the result itself."""

    def check(fast, ordinary, right, scale=None, roundings=4):
        assert (fast.shape, fast.dtype) == (ordinary.shape, ordinary.dtype)
        right = right.double().cpu()
        error, usual = (float((answer.double().cpu() - right).norm()) for answer in (fast, ordinary))
        size = float((right if scale is None else scale.double().cpu()).norm())
        bound = 2 * usual + roundings * torch.finfo(fast.dtype).eps * size
        assert error <= bound, f"off by {error:.3g} of {size:.3g}, the reference by {usual:.3g}"

    return check
