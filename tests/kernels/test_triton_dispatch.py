import pytest
import torch

from gradproof.ops import dispatch


@pytest.fixture
def kernel(triton_device):
    from gradproof.kernels.triton import dispatch

    return dispatch


def chosen(T, E, K, device, seed=0):
    """K different experts for each of T rows."""
    score_TE = torch.rand(T, E, generator=torch.Generator().manual_seed(seed))
    return score_TE.argsort(1)[:, :K].contiguous().to(device)


def same(plan, right):
    for name, indices in right._asdict().items():
        assert getattr(plan, name).dtype == indices.dtype and torch.equal(getattr(plan, name), indices), name


@pytest.mark.parametrize(
    ("T", "E", "K"), [(1, 1, 1), (1, 4, 2), (7, 4, 4), (33, 5, 3), (130, 64, 2), (513, 4, 2), (1100, 3, 1), (40, 9, 9)]
)
def test_plan(kernel, triton_device, T, E, K):
    """Stable, with the offsets of every expert, in one block and in several."""
    index_TK = chosen(T, E, K, triton_device)
    same(kernel.plan(index_TK, E), dispatch.plan(index_TK, E))


@pytest.mark.parametrize("few", [1, 64])
def test_many_blocks(kernel, triton_device, monkeypatch, few):
    """64 slots to a block: the program between the kernels, and the counts that each program adds up itself."""
    monkeypatch.setattr(kernel, "FEW", few)
    monkeypatch.setattr(kernel, "DEEP", 2)
    index_TK = chosen(200, 200, 3, triton_device)
    same(kernel.plan(index_TK, 200), dispatch.plan(index_TK, 200))


@pytest.mark.parametrize("rows", [[[0], [0], [0]], [[3], [3]], [[1], [3], [1]], [[2], [1], [2], [1]]])
def test_experts_without_rows(kernel, triton_device, rows):
    """First, middle, last, and one expert with everything."""
    index_TK = torch.tensor(rows, device=triton_device)
    same(kernel.plan(index_TK, 4), dispatch.plan(index_TK, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("T", "I", "K"), [(1, 1, 1), (7, 3, 2), (33, 96, 2), (5, 1025, 3)])
def test_rows(kernel, triton_device, normal, T, I, K, dtype):
    """Rows are copied, bit for bit, from a contiguous buffer and from a wider one."""
    plan = dispatch.plan(chosen(T, 4, K, triton_device), 4)
    (x_TI,) = normal(0, (T, I + 5))
    x_TI = x_TI.to(triton_device, dtype)
    for rows_TI in (x_TI[:, :I].contiguous(), x_TI[:, 2 : I + 2], x_TI.T.contiguous().T[:, 5:]):
        assert torch.equal(kernel.forward(rows_TI, plan)[0], dispatch.forward(rows_TI, plan)[0])


def test_rows_in_a_narrower_format(kernel, triton_device, normal):
    plan = dispatch.plan(chosen(9, 4, 2, triton_device), 4)
    (x_TI,) = normal(1, (9, 6))
    x_TI = x_TI.float().to(triton_device)
    rows_NI, _ = kernel.forward(x_TI, plan, torch.float16)
    assert torch.equal(rows_NI, dispatch.forward(x_TI, plan)[0].half())
    rows_NI, _ = kernel.forward(x_TI, plan, torch.bfloat16)
    assert rows_NI.dtype == torch.bfloat16
    assert torch.allclose(rows_NI.float(), dispatch.forward(x_TI, plan)[0], rtol=2**-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("T", "I", "K"), [(1, 1, 1), (7, 3, 2), (33, 96, 4), (5, 1025, 3)])
def test_gradient(kernel, triton_device, normal, near, T, I, K, dtype):
    """Each token's K rows, added in fp32; a copy lost or doubled would fail."""
    plan = dispatch.plan(chosen(T, 4, K, triton_device), 4)
    (drows_NI,) = normal(2, (T * K, I + 4))
    drows_NI = drows_NI.to(triton_device, dtype)[:, 1 : I + 1]
    right = dispatch.backward(drows_NI.double(), None, plan)
    near(kernel.backward(drows_NI, None, plan), dispatch.backward(drows_NI, None, plan), right, scale=drows_NI)


def test_a_dense_plan_and_nan(kernel, triton_device, normal):
    """One expert with every row, in its place: as a dense model uses it. NaN passes."""
    plan = kernel.all_rows(6, triton_device)
    (x_TI,) = normal(3, (6, 4))
    x_TI = x_TI.float().to(triton_device)
    x_TI[3, 2] = torch.nan
    rows_NI, _ = kernel.forward(x_TI, plan)
    assert torch.equal(rows_NI.isnan(), x_TI.isnan()) and torch.equal(rows_NI.nan_to_num(), x_TI.nan_to_num())
    assert torch.equal(kernel.backward(rows_NI, None, plan).isnan(), x_TI.isnan())
