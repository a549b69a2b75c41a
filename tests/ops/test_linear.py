import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import linear

WIDTHS = st.sampled_from([1, 2, 3, 7, 20])


@given(T=WIDTHS, I=WIDTHS, O=WIDTHS, seed=st.integers(0, 9999))
def test_agrees_with_torch(normal, agree, T, I, O, seed):
    """Fails on a transposed product, a bias that is not summed over rows, or gradients in the wrong order."""
    x_TI, w_OI, b_O, dy_TO = normal(seed, (T, I), (O, I), (O,), (T, O))
    inputs = [tensor.requires_grad_() for tensor in (x_TI, w_OI, b_O)]
    right_TO = F.linear(*inputs)
    y_TO, saved = linear.forward(x_TI, w_OI, b_O)
    agree(y_TO, right_TO, 1e-13, terms=x_TI.abs() @ w_OI.abs().T + b_O.abs())
    grads = linear.backward(dy_TO, saved, x_TI, w_OI)
    terms = dy_TO.abs() @ w_OI.abs(), dy_TO.abs().T @ x_TI.abs(), dy_TO.abs().sum(0)
    for grad, right, term in zip(grads, torch.autograd.grad(right_TO, inputs, dy_TO), terms, strict=True):
        agree(grad, right, 1e-13, terms=term)


def test_strided_weight(normal):
    """A kernel that assumes a contiguous weight would misread a view into a stack of experts."""
    x_TI, stack_EOI, b_O, dy_TO = normal(0, (5, 3), (4, 9, 3), (4,), (5, 4))
    w_OI = stack_EOI[:, 2]
    y_TO, _ = linear.forward(x_TI, w_OI, b_O)
    torch.testing.assert_close(y_TO, F.linear(x_TI, w_OI.contiguous(), b_O), rtol=1e-13, atol=1e-13)
    dx_TI, dw_OI, _ = linear.backward(dy_TO, None, x_TI, w_OI)
    torch.testing.assert_close(dx_TI, dy_TO @ w_OI.contiguous(), rtol=1e-13, atol=1e-13)
    assert dw_OI.shape == w_OI.shape


def test_no_rows():
    """An expert without rows must give zero gradients; an uninitialised product would give anything."""
    dx_TI, dw_OI, db_O = linear.backward(torch.empty(0, 4), None, torch.empty(0, 3), torch.ones(4, 3))
    assert dx_TI.shape == (0, 3)
    assert torch.equal(dw_OI, torch.zeros(4, 3)) and torch.equal(db_O, torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameter_gradients_are_never_narrow(normal, dtype):
    """257 rows of ones: in bf16 a sum of them stops at 256, and a rounded product has 8 bits."""
    dy_TO, x_TI, w_OI = torch.ones(257, 2).to(dtype), torch.ones(257, 3).to(dtype), normal(1, (2, 3))[0].to(dtype)
    dx_TI, dw_OI, db_O = linear.backward(dy_TO, None, x_TI, w_OI)
    assert dx_TI.dtype == dtype and dw_OI.dtype == db_O.dtype == torch.float32
    assert (dw_OI == 257).all() and (db_O == 257).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_operands_agree_with_exact_products(normal, agree, dtype):
    """Compared on the rounded operands: dx is rounded once, dw and db not at all."""
    x_TI, w_OI, b_O, dy_TO = (tensor.to(dtype) for tensor in normal(2, (33, 20), (7, 20), (7,), (33, 7)))
    y_TO, _ = linear.forward(x_TI, w_OI, b_O)
    exact = [tensor.double() for tensor in (x_TI, w_OI, b_O, dy_TO)]
    u = torch.finfo(dtype).eps
    agree(y_TO.double(), F.linear(*exact[:3]), u)
    dx_TI, dw_OI, db_O = linear.backward(dy_TO, None, x_TI, w_OI)
    right = linear.backward(exact[3], None, exact[0], exact[1])
    agree(dx_TI.double(), right[0], u)
    agree(dw_OI.double(), right[1], 1e-6)
    agree(db_O.double(), right[2], 1e-6)
