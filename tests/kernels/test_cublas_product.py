"""Products by cuBLASLt; in float32, which is torch's own, without a GPU too."""

import pytest
import torch

from gradproof.kernels.cublas import product as module
from gradproof.kernels.cublas.product import product, room_like
from gradproof.streams import seeded

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
DEVICES = ("cpu", pytest.param("cuda", marks=on_a_gpu))
SHAPES = {
    "square": (64, 64, 64),
    "odd": (37, 21, 13),
    "one row": (1, 40, 24),
    "one column": (40, 24, 1),
    "one inner": (9, 1, 7),
    "no rows": (0, 8, 8),
    "no inner": (8, 0, 8),
    "deep": (24, 8192, 16),
}


def factors(n: int, I: int, O: int, dtype: torch.dtype, device: str, *transposed: bool) -> list[torch.Tensor]:
    generator = seeded("product", n, I, O)
    made = []
    for (rows, columns), turned in zip(((n, I), (I, O)), transposed, strict=True):
        x = torch.randn((columns, rows) if turned else (rows, columns), generator=generator).to(device, dtype)
        made.append(x.T if turned else x)
    return made


def room(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(room_like(x))


def error(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, before: float = 0.0) -> float:
    """Relative to the sum of the terms' sizes, so that what cancels does not count."""
    exact, size = x.double() @ w.double() + before, x.double().abs() @ w.double().abs() + abs(before)
    return float(((out.double() - exact).abs() / size.clamp(min=1e-30)).max()) if out.numel() else 0.0


@pytest.mark.parametrize("add", (False, True))
@pytest.mark.parametrize("transposed", ((False, False), (False, True), (True, False), (True, True)))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("device", DEVICES)
def test_fp32(device: str, shape: str, transposed: tuple[bool, bool], add: bool) -> None:
    x, w = factors(*SHAPES[shape], torch.float32, device, *transposed)
    out = torch.full((len(x), w.shape[1]), 2.0 if add else torch.nan, device=device)
    product(x, w, out, room(x), add)
    if x.shape[1]:
        assert error(out, x, w, 2.0 if add else 0.0) <= 1e-5
    else:
        assert (out == (2.0 if add else 0.0)).all()


@on_a_gpu
@pytest.mark.parametrize("made", ("narrow", "wide", "added"))
@pytest.mark.parametrize("transposed", ((False, False), (False, True), (True, False), (True, True)))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_narrow(dtype: torch.dtype, shape: str, transposed: tuple[bool, bool], made: str) -> None:
    x, w = factors(*SHAPES[shape], dtype, "cuda", *transposed)
    out = torch.full((len(x), w.shape[1]), 2.0 if made == "added" else torch.nan, device="cuda")
    out = out.to(dtype) if made == "narrow" else out
    product(x, w, out, room(x), made == "added")
    if x.shape[1]:
        unit = torch.finfo(dtype).eps if made == "narrow" else 4 * torch.finfo(torch.float32).eps
        assert error(out, x, w, 2.0 if made == "added" else 0.0) <= 2 * unit
    else:
        assert (out == (2.0 if made == "added" else 0.0)).all()


@on_a_gpu
@pytest.mark.parametrize("offset", (0, 1, 8))
def test_parts_of_larger_arrays(offset: int) -> None:
    """Rows longer than what is multiplied, and addresses that no vector load would take."""
    held = torch.randn(2, 40, 100, generator=seeded("product", "parts")).to("cuda", torch.bfloat16)
    x, w = held[0, :33, offset : offset + 24], held[1, :17, offset : offset + 24].T
    out = torch.full((33, 64), torch.nan, device="cuda", dtype=torch.bfloat16)
    product(x, w, out[:, 8:25], room(x))
    assert error(out[:, 8:25], x, w) <= 2 * torch.finfo(torch.bfloat16).eps
    assert out[:, :8].isnan().all() and out[:, 25:].isnan().all()


@on_a_gpu
@pytest.mark.parametrize("rows", (4096, 4224, 5760))
@pytest.mark.parametrize("transposed", (False, True))
def test_our_tile_is_taken_where_it_matters_and_is_right(rows: int, transposed: bool) -> None:
    width = 4096
    assert rows * width * width >= module.LARGE > 128 * width * width
    x, w = factors(rows, width, width, torch.bfloat16, "cuda", False, transposed)
    out = torch.full_like(x, torch.nan)
    product(x, w, out, room(x))
    right = torch.mm(x, w, out_dtype=torch.float32)
    assert float((out - right).norm() / right.norm()) <= torch.finfo(torch.bfloat16).eps
    assert float((out - right).abs().max() / right.abs().max()) <= torch.finfo(torch.bfloat16).eps
    layouts = module._layout(w), module._layout(x)
    formats = (module._FORMATS[x.dtype],) * 2
    aligned = module.alignment(x, w, out)
    plan = module._plan(width, rows, width, *layouts, width, formats, aligned, x.device.index)
    taken = next(proposal for proposal in plan.proposals if module.ctypes.addressof(proposal) == plan.algorithm)
    assert module._tile(taken) == module.TILE


def test_addresses() -> None:
    whole = torch.empty(4096, dtype=torch.uint8)
    base = whole[-whole.data_ptr() % 256 :]
    assert module.alignment(base, base[512:]) == 256
    assert module.alignment(base, base[16:]) == 16
    assert module.alignment(base[2:]) == 2


def test_layouts() -> None:
    x = torch.empty(6, 4)
    assert module._layout(x) == (False, 4)
    assert module._layout(x.T) == (True, 4)
    assert module._layout(x[:, :3]) == (False, 4)
    assert module._layout(torch.empty(9, 1).T) == (True, 1)  # one row of nine: both strides are 1
    assert module._layout(torch.empty(9, 1)) == (False, 1)
