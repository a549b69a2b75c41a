import pytest
import torch

from gradproof.ops import combine, dispatch


@pytest.fixture
def kernel(triton_device):
    from gradproof.kernels.triton import combine

    return combine


@pytest.fixture
def drawn(normal, triton_device):
    """drawn(T, O, E, K, dtype): dy, rows, gates (0 off S) and the plan."""

    def draw(T, O, E, K, dtype=torch.float32):
        score_TE, dy_TO, rows_NO = normal(3, (T, E), (T, O), (T * K, O))
        plan = dispatch.plan(score_TE.argsort(1)[:, :K].contiguous().to(triton_device), E)
        gates_TE = torch.zeros(T, E, device=triton_device)
        gates_TE.scatter_(1, plan.index_TK, score_TE.sigmoid().float().to(triton_device)[:, :K])
        return dy_TO.float().to(triton_device), rows_NO.to(triton_device, dtype), gates_TE, plan

    return draw


def check(kernel, near, dy_TO, rows_NO, gates_TE, plan):
    exact = rows_NO.double(), gates_TE.double(), plan
    scale = dispatch.backward(rows_NO.double().abs(), None, plan)
    near(
        kernel.forward(rows_NO, gates_TE, plan)[0],
        combine.forward(rows_NO, gates_TE, plan)[0],
        combine.forward(*exact)[0],
        scale,
    )
    fast = kernel.backward(dy_TO, None, rows_NO, gates_TE, plan)
    usual = combine.backward(dy_TO, None, rows_NO, gates_TE, plan)
    right = combine.backward(dy_TO.double(), None, *exact)
    near(fast[0], usual[0], right[0])
    size = combine.backward(dy_TO.double().abs(), None, rows_NO.double().abs(), gates_TE.double(), plan)[1]
    near(fast[1], usual[1], right[1], size)
    off = torch.ones_like(gates_TE, dtype=torch.bool).scatter(1, plan.index_TK, False)
    assert (fast[1][off] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("T", "O", "E", "K"), [(1, 1, 1, 1), (1, 3, 4, 2), (7, 20, 5, 5), (70, 12, 4, 2), (9, 128, 4, 2), (3, 129, 64, 3)]
)
def test_as_near_as_the_reference(kernel, drawn, near, T, O, E, K, dtype):
    """A row weighed with another's gate, or a gradient of a gate off S, would fail."""
    check(kernel, near, *drawn(T, O, E, K, dtype))


def test_one_expert_with_everything(kernel, drawn, near):
    dy_TO, rows_NO, gates_TE, _ = drawn(9, 6, 4, 1)
    plan = dispatch.plan(torch.full((9, 1), 2, device=dy_TO.device), 4)
    check(kernel, near, dy_TO, rows_NO, gates_TE, plan)


def test_strided_rows_and_inputs_unchanged(kernel, drawn, near):
    dy_TO, rows_NO, gates_TE, plan = drawn(9, 14, 4, 2)
    before = [tensor.clone() for tensor in (dy_TO, rows_NO, gates_TE)]
    check(kernel, near, dy_TO[:, 3:10], rows_NO[:, 2:9], gates_TE, plan)
    check(kernel, near, dy_TO[:, ::2], rows_NO[:, 1::2], gates_TE.T.contiguous().T, plan)
    assert all(torch.equal(*pair) for pair in zip(before, (dy_TO, rows_NO, gates_TE), strict=True))


def test_nan_stays_with_its_token_and_same_bits_twice(kernel, drawn):
    dy_TO, rows_NO, gates_TE, plan = drawn(9, 5, 4, 2)
    clean, _ = kernel.forward(rows_NO, gates_TE, plan)
    rows_NO[plan.row_TK[4, 1], 2] = torch.nan
    y_TO, _ = kernel.forward(rows_NO, gates_TE, plan)
    assert y_TO.isnan().nonzero().tolist() == [[4, 2]]
    assert torch.equal(y_TO[:4], clean[:4]) and torch.equal(y_TO[5:], clean[5:])
    first, second = (kernel.backward(dy_TO, None, rows_NO, gates_TE, plan) for _ in range(2))
    assert first[1].isnan().nonzero().tolist() == [[4, int(plan.index_TK[4, 1])]]
    assert torch.equal(first[0], second[0]) and torch.equal(first[1].nan_to_num(), second[1].nan_to_num())
