"""Letters beyond the usual: P is what lies between two experts' parameters."""

import pytest
import torch

from gradproof.ops import norm_gelu, wide

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WIDTHS = [1, 2, 3, 129, 257]


@pytest.fixture
def kernel(triton_device):
    from gradproof.kernels.triton import norm_gelu

    return norm_gelu


@pytest.fixture
def drawn(normal, triton_device):
    """drawn(T, H, dtype): dy, h, b, γ, β."""

    def draw(T, H, dtype, seed=0):
        dy, h, b, gamma, beta = normal(seed, (T, H), (T, H), (H,), (H,), (H,))
        return [rows.to(triton_device, dtype) for rows in (dy, 3 * h + 1)] + [
            vector.to(triton_device, torch.float32) for vector in (b, gamma, beta)
        ]

    return draw


def terms(dy, h, b, gamma):
    """What cancels in dh: dy·γ·rstd, in float64."""
    x = h.double() + b.double()
    return dy.double() * gamma.double() / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()


def check(near, kernel, dy, h, *params, activate=True):
    exact = [operand.double() for operand in (h, *params)]
    near(
        kernel.forward(h, *params, activate)[0],
        norm_gelu.forward(h, *params, activate)[0],
        norm_gelu.forward(*exact, activate)[0],
    )
    fast = kernel.backward(dy, None, h, *params, activate)
    usual = norm_gelu.backward(dy, None, h, *params, activate)
    right = norm_gelu.backward(dy.double(), None, *exact, activate)
    scale = terms(dy, h, *params[:2])
    near(fast.dh_TH, usual.dh_TH, right.dh_TH, scale)
    near(fast.db_H, usual.db_H, right.db_H, scale)
    near(fast.dgamma_H, usual.dgamma_H, right.dgamma_H, dy)
    near(fast.dbeta_H, usual.dbeta_H, right.dbeta_H, dy)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("H", WIDTHS)
@pytest.mark.parametrize("T", [1, 21])
def test_as_near_as_the_reference(kernel, drawn, near, T, H, dtype):
    """A mask missing for a width that is no power of two, statistics over the padding, or a chunk's last rows left
    out or counted twice would fail."""
    check(near, kernel, *drawn(T, H, dtype), activate=True)


@pytest.mark.parametrize("H", [3, 129])
def test_without_the_activation(kernel, drawn, near, H):
    check(near, kernel, *drawn(7, H, torch.float32), activate=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("H", [1024, 1500, 3000, 4100])
def test_wide_rows(kernel, drawn, near, H, dtype):
    """From 1024 on parameters are read for each tile, and up to 4096 and beyond it tiles have one row."""
    check(near, kernel, *drawn(3, H, dtype))


def test_too_wide_or_too_precise_is_refused(kernel):
    """A row that does not fit, or float64 computed in fp32 without a word, would be wrong silently."""
    with pytest.raises(ValueError, match="width 8193"):
        kernel.forward(torch.empty(1, 8193), *torch.empty(3, 8193))
    with pytest.raises(ValueError, match="float64"):
        kernel.forward(torch.empty(1, 8).double(), *torch.empty(3, 8))


def test_tails_and_a_large_mean(kernel, near, normal, triton_device):
    """exp(−2v) overflows in one tail, n² far out; a variance from the sum of squares alone would lose its digits."""
    dy, h, b, gamma, beta = (
        tensor.to(triton_device).float() for tensor in normal(1, (4, 33), (4, 33), (33,), (33,), (33,))
    )
    check(near, kernel, dy, 1e-3 * h + 30, b, gamma, beta)
    check(near, kernel, dy, h, b, 40 * gamma, beta)
    gamma[3] = 1e30
    y, _ = kernel.forward(h, b, gamma, beta)
    grads = kernel.backward(dy, None, h, b, gamma, beta)
    assert y.isfinite().all() and all(grad.isfinite().all() for grad in grads[2:])
    right = norm_gelu.backward(dy, None, h, b, gamma, beta)
    assert torch.allclose(grads.dbeta_H, right.dbeta_H, rtol=1e-4, atol=1e-5)


def test_nan_spreads_over_its_row_and_no_further(kernel, drawn):
    dy, h, *params = drawn(6, 5, torch.float32)
    h[2, 3] = torch.nan
    y, _ = kernel.forward(h, *params)
    dh, *sums = kernel.backward(dy, None, h, *params)
    for rows in (y, dh):
        assert rows[2].isnan().all() and rows[[0, 1, 3, 4, 5]].isfinite().all()
    assert all(grad.isnan().all() for grad in sums)


def test_strided_rows_are_read_in_place_and_stay(kernel, drawn, near):
    """Rows of a wider buffer, and columns that are not contiguous."""
    dy, h, *params = drawn(6, 24, torch.float32)
    params = [vector[:7].contiguous() for vector in params]
    before = dy.clone(), h.clone()
    check(near, kernel, dy[:, 5:12], h[:, 3:10], *params)
    check(near, kernel, dy[:, :14:2], h[:, 1:15:2], *params)
    assert torch.equal(dy, before[0]) and torch.equal(h, before[1])


def test_same_bits_twice(kernel, drawn):
    dy, h, *params = drawn(40, 9, torch.float32)
    first, second = (kernel.backward(dy, None, h, *params) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


LOADS = [(5,), (4, 0, 9, 2), (0, 0, 6), (7, 3, 0, 0), (0, 40, 0), (1, 1, 1)]


@pytest.fixture
def ragged(normal, triton_device):
    """ragged(loads, H, dtype): dy, h, offset, the strided parameters [3, E, H] and the buffer for their gradients."""

    def draw(loads, H, dtype):
        E, P = len(loads), 4 * 64 * (1 + H // 64)
        dy, h, theta = normal(5, (sum(loads), H), (sum(loads), H), (E, P))
        offset_F = torch.tensor([0, *loads]).cumsum(0).to(triton_device)
        theta = theta.to(triton_device).float()
        grads = torch.full_like(theta, torch.nan)
        return (*(rows.to(triton_device, dtype) for rows in (dy, h)), offset_F, theta, grads)

    return draw


def views(theta_EP, H):
    """b, γ and β as they lie in an expert's row."""
    step = theta_EP.shape[1] // 4
    return [theta_EP[:, i * step : i * step + H] for i in range(3)]


def reference(dy_NH, h_NH, offset_F, params, activate=True):
    """y, dh, db, dγ, dβ, expert by expert."""
    bounds = offset_F.tolist()
    parts = []
    for e in range(len(bounds) - 1):
        rows, own = slice(bounds[e], bounds[e + 1]), [vector[e] for vector in params]
        y_nH, _ = norm_gelu.forward(h_NH[rows], *own, activate)
        parts.append((y_nH, *norm_gelu.backward(dy_NH[rows], None, h_NH[rows], *own, activate)))
    y, dh, *sums = zip(*parts, strict=True)
    return torch.cat(y), torch.cat(dh), *(torch.stack(by_expert) for by_expert in sums)


@pytest.mark.parametrize("loads", LOADS)
def test_ragged_rows(kernel, ragged, near, loads):
    """A tile over the border of two experts, an expert without rows that gets others' or keeps NaN, or parameters
    read at the wrong distance would fail."""
    H = 6
    dy, h, offset_F, theta, grads = ragged(loads, H, torch.float32)
    params, sums = views(theta, H), views(grads, H)
    y, dh, again = torch.full_like(h, torch.nan), torch.full_like(h, torch.nan), torch.full_like(h, torch.nan)
    stat_N2 = kernel.ragged_forward(h, offset_F, *params, True, y)
    kernel.ragged_backward(dy, h, stat_N2, offset_F, *params, True, dh, again, *sums, False)
    exact = dy.double(), h.double(), offset_F, [vector.double() for vector in params]
    usual, right = reference(dy, h, offset_F, params), reference(*exact)
    scale = right[1].abs() + dy.abs() * 10
    for fast, ordinary, wanted, size in zip(
        (y, dh, *sums), usual, right, (right[0], scale, scale, dy, dy), strict=True
    ):
        near(fast.contiguous(), ordinary, wanted, size)
    assert torch.allclose(again, y, rtol=1e-6, atol=1e-6)
    untouched = torch.ones_like(grads, dtype=torch.bool)
    for view in views(untouched, H):
        view.fill_(False)
    assert grads[untouched].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_and_accumulating(kernel, ragged, dtype):
    """dh in the place of dy and y in that of h, as the experts use it; sums that are added to what is there."""
    H = 130
    dy, h, offset_F, theta, grads = ragged((3, 0, 6), H, dtype)
    params, sums = views(theta, H), views(grads, H)
    y, dh = torch.empty_like(h), torch.empty_like(h)
    stat_N2 = kernel.ragged_forward(h, offset_F, *params, True, y)
    kernel.ragged_backward(dy, h, stat_N2, offset_F, *params, True, dh, y, *sums, False)
    written = grads.clone()
    starting = 3.0
    grads.fill_(starting)
    kernel.ragged_backward(dy, h, stat_N2, offset_F, *params, True, dy, h, *sums, True)
    assert torch.equal(dy, dh) and torch.equal(h, y)
    for added, alone in zip(sums, views(written, H), strict=True):
        assert torch.equal(added, starting + alone) and (added[1] == starting).all()
    kernel.ragged_forward(h, offset_F, *params, False, h)
    assert wide(h).isfinite().all()


def test_chunks_of_many_rows(kernel, ragged, near, monkeypatch):
    """Large batches give a program several tiles, and an expert several chunks: with fewer programs small ones do."""
    from gradproof.kernels.triton import chunks

    monkeypatch.setattr(chunks, "MULTIPROCESSORS", 1)
    monkeypatch.setattr(kernel, "DEEP", 2)
    H, loads = 130, (61, 0, 150, 7)
    dy, h, offset_F, theta, grads = ragged(loads, H, torch.float32)
    launch = kernel._backward_launch(sum(loads), H, len(loads))
    assert launch.chunk > launch.tile and launch.programs > len(loads) + 2
    params, sums = views(theta, H), views(grads, H)
    y, dh = torch.full_like(h, torch.nan), torch.full_like(h, torch.nan)
    stat_N2 = kernel.ragged_forward(h, offset_F, *params, True, y)
    kernel.ragged_backward(dy, h, stat_N2, offset_F, *params, True, dh, None, *sums, False)
    right = reference(dy.double(), h.double(), offset_F, [vector.double() for vector in params])
    usual = reference(dy, h, offset_F, params)
    for fast, ordinary, wanted in zip((y, dh, *sums), usual, right, strict=True):
        near(fast.contiguous(), ordinary, wanted)
