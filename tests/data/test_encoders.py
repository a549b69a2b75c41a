import numpy as np
import pytest
import torch

from gradproof.data.encoders import Encoder
from gradproof.data.rows import Rows
from gradproof.data.schema import Category, Metric, Number, Schema

SCHEMA = Schema(
    "y",
    ("a", "b"),
    (Category("p", ("u", "v"), other=True), Category("q", ("x",), missing=True)),
    (Number("m", 10.0, 2.0, missing=True), Number("n", 0.0, 1.0), Number("o", -1.0, 0.5, missing=True)),
)
NAN = np.nan


def rows(codes, numbers, outcome=(), metrics=()):
    R = max(len(codes), len(numbers))
    return Rows(
        np.array(codes, np.int32).reshape(R, -1),
        np.array(numbers, np.float64).reshape(R, -1),
        np.array(outcome or [0] * R, np.int64),
        np.array(metrics, np.float32).reshape(R, -1),
    )


def test_layout():
    """One-hot | standardised | flags: a slot or a flag that is off by one would swap two meanings."""
    x_TI = Encoder(SCHEMA).inputs(rows([[0, 0], [2, 1], [1, -1]], [[12, 3, 0], [NAN, NAN, -1], [10, 0, NAN]]))
    right = [
        [1, 0, 0, 1, 0, 1, 3, 2, 0, 0],
        [0, 0, 1, 0, 1, 0, 0, 0, 1, 0],
        [0, 1, 0, 0, 0, 0, 0, 0, 0, 1],
    ]
    assert x_TI.shape == (3, SCHEMA.inputs)
    assert torch.equal(x_TI, torch.tensor(right, dtype=torch.float32))


def test_pieces():
    """Behind all numbers, before the flags: full below the value, a share around it, empty above, 0 where missing."""
    numbers = (
        Number("m", 0.0, 1.0, missing=True, knots=(0.0, 1.0, 5.0)),
        Number("n", 0.0, 1.0, knots=(-2.0, 2.0, 3.0)),
    )
    values = [[3, 1], [-9, 9], [NAN, 2.5], [1e300, -1.7e308]]
    x_TI = Encoder(Schema("y", ("a",), (), numbers), dtype=torch.float64).inputs(rows([], values))
    right = [[1, 0.5, 0.75, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 0.5, 1], [1, 1, 0, 0, 0]]
    assert torch.equal(x_TI[:, 2:], torch.tensor(right, dtype=torch.float64))


def test_places():
    """Instead of the standardised number, linear between knots, 0 where missing; pieces, flag and levels beside it are
    a fifth as large, and another number keeps its own."""
    numbers = (
        Number("m", 5.0, 3.0, True, knots=(0.0, 1.0, 5.0), levels=(3.0,), places=(-2.0, 0.5, 1.5)),
        Number("n", 1.0, 2.0, True, knots=(-2.0, 2.0, 3.0), levels=(1.0,)),
    )
    values = [[3, 1], [-9, 9], [NAN, NAN], [1e300, 1], [0.25, 3]]
    x_TI = Encoder(Schema("y", ("a",), (), numbers), dtype=torch.float64).inputs(rows([], values))
    right = [
        [1.0, 0, 0.2, 0.1, 0.75, 0, 0, 0, 0.2, 1],
        [-2, 4, 0, 0, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0.2, 1, 0, 0],
        [1.5, 0, 0.2, 0.2, 0.75, 0, 0, 0, 0, 1],
        [-1.375, 1, 0.05, 0, 1, 1, 0, 0, 0, 0],
    ]
    torch.testing.assert_close(x_TI, torch.tensor(right, dtype=torch.float64), rtol=1e-12, atol=0)


def test_padic():
    """Behind the pieces, before the flags: in the column's own unit, second columns after all first ones, and 0 for
    what is no integer at all."""
    numbers = (
        Number("m", 0.0, 1.0, missing=True, padic=2, decimals=1),
        Number("n", 0.0, 1.0),
        Number("o", 0.0, 1.0, padic=1),
    )
    values = [[0.3, 1, -6], [NAN, 2, 1e300], [2.0**25 / 10, 3, -np.inf], [2.0**24 / 10 + 0.2, 4, 2.4]]
    schema = Schema("y", ("a",), (), numbers)
    x_TI = Encoder(schema).inputs(rows([], values))
    right = [[0.75, -0.375, 0, 0], [0, 0, 0, 1], [0, 0, 0.25, 0], [0.25, 0.25, 0.5, 0]]
    assert schema.inputs == schema.patches[0] == 7
    assert torch.equal(x_TI[:, 3:], torch.tensor(right))


def test_no_slot_is_zeros():
    """A value that has no slot must not fall into another column's, nor the first one's."""
    x_TI = Encoder(SCHEMA).inputs(rows([[-1, -1]] * 2, [[10, 0, -1]] * 2))
    assert not x_TI.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtype(dtype):
    """Numbers are standardised in float64 and only then rounded: 2^40 + 1 in float32 has lost its 1 before."""
    schema = Schema("y", ("a", "b"), numbers=(Number("n", 2.0**40, 1.0),), metrics=(Metric("s"),))
    encoder, table = Encoder(schema, dtype=dtype), rows([], [[2.0**40 + 1], [2.0**40 - 3]], [1, 0], [[0.5], [1.0]])
    assert torch.equal(encoder.inputs(table), torch.tensor([[1.0], [-3.0]], dtype=dtype))
    outcome_T, metrics_TM = encoder.target(table)
    assert outcome_T.tolist() == [1, 0] and outcome_T.dtype == torch.int64
    assert torch.equal(metrics_TM, torch.tensor([[0.5], [1.0]], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_far_values_stay_finite(dtype):
    """A record of 1e300 would be infinite in float32, and every output of the model NaN."""
    x_TI = Encoder(SCHEMA, dtype=dtype).inputs(rows([[0, 0]] * 2, [[1e300, -1e300, 1.7e308], [-1.7e308, 1e-300, 1e9]]))
    assert x_TI.isfinite().all()
    assert (x_TI[0, 5:8] * torch.tensor([1, -1, 1]) > 1000).all() and x_TI[1, 5] < -1000 and x_TI[1, 7] > 1000


def test_device():
    """What is computed with must be where the model is; `meta` stands for a GPU."""
    encoder = Encoder(SCHEMA, device="meta")
    held = [encoder.offset_C, encoder.mean_N, encoder.std_N, encoder.flagged]
    held.append(encoder.target(rows([[0, 0]], [[1, 2, 3]])))
    assert {tensor.device.type for tensor in held} == {"meta"}


@pytest.mark.parametrize("schema", [Schema("y", ("a",), SCHEMA.categories), Schema("y", ("a",), (), SCHEMA.numbers)])
def test_only_names_or_only_numbers(schema):
    """A part without columns has width 0."""
    codes = [[1, 0]] * 2 if schema.categories else []
    numbers = [[1, 2, 3]] * 2 if schema.numbers else []
    assert Encoder(schema).inputs(rows(codes, numbers)).shape == (2, schema.inputs)


def test_target_without_metrics():
    """Only the classes, so that a loss on classes can be called with it."""
    assert torch.equal(Encoder(SCHEMA).target(rows([[0, 0]] * 2, [[1, 2, 3]] * 2, [1, 0])), torch.tensor([1, 0]))
