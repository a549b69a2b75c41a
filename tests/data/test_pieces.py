"""Pieces of numbers: where the knots lie, and what the encoder makes of them."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
import torch

from gradproof.data.encoders import Encoder
from gradproof.data.pieces import MOST, OUTERMOST, with_knots
from gradproof.data.rows import Rows
from gradproof.data.schema import Number, Schema


def rows(number_RN):
    R = len(number_RN)
    return Rows(np.zeros((R, 0), np.int32), number_RN, np.zeros(R, np.int64), np.zeros((R, 0), np.float32))


def schema(*knots):
    return Schema("y", ("a", "b"), numbers=tuple(Number(f"n{i}", 0.0, 1.0, knots=k) for i, k in enumerate(knots)))


def knots_of(value_R, train_R=None):
    train_R = np.ones(len(value_R), bool) if train_R is None else train_R
    return with_knots(schema(()), rows(value_R[:, None]), train_R).numbers[0].knots


@pytest.mark.parametrize(("count", "pieces"), [(99, 0), (100, 2), (1000, 20), (100_000, MOST)])
def test_a_piece_for_every_fifty_rows(count, pieces):
    """Too many pieces for few rows would learn them by heart."""
    assert max(0, len(knots_of(np.arange(count, dtype=float))) - 1) == pieces


def test_each_piece_holds_the_same_share_of_the_rows():
    """Equal stretches would leave a skewed column in one of them."""
    value_R = np.exp(3 * np.random.default_rng(0).normal(size=20_000))
    knots = knots_of(value_R)
    count, _ = np.histogram(value_R, knots)
    assert len(knots) == MOST + 1 and (knots[0], knots[-1]) == (value_R.min(), value_R.max())
    assert count.min() > 0.9 * 20_000 / MOST and count.max() < 1.1 * 20_000 / MOST


def test_only_training_rows_count():
    """A held-out value must not be visible in the inputs."""
    value_R, train_R = np.arange(2000.0), np.arange(2000) % 5 > 0
    other_R = np.where(train_R, value_R, -1e6)
    assert knots_of(value_R, train_R) == knots_of(other_R, train_R) != knots_of(other_R)


@pytest.mark.parametrize(
    "value_R",
    [np.zeros(500), np.full(500, np.nan), np.arange(500) % 2.0, np.array([1.7e308, -1.7e308, 1.6e308] * 200)],
    ids=["constant", "missing", "two values", "too far apart"],
)
def test_no_pieces_where_they_say_nothing(value_R):
    assert knots_of(value_R) == ()


def test_missing_values_do_not_move_the_knots():
    value_R = np.repeat(np.arange(500.0), 2)
    value_R[::2] = np.nan
    assert knots_of(value_R)[-1] == 499.0 and not np.isnan(knots_of(value_R)).any()


def test_the_encoder_walks_through_the_pieces():
    """Below, at, inside and beyond the knots, and missing; the second number has one piece of its own."""
    one, two = (0.0, 1.0, 3.0), (10.0, 20.0)
    value_RN = np.array([[-5, 10], [0, 12.5], [0.25, 20], [1, 99], [2, 15], [3, 15], [7, np.nan], [np.nan, 0]], float)
    layout = schema(one, two)
    x_TI = Encoder(layout, dtype=torch.float64).inputs(rows(value_RN))
    assert x_TI.shape == (8, layout.inputs) == (8, 5)
    right = [[0, 0, 0], [0, 0, 0.25], [0.25, 0, 1], [1, 0, 1], [1, 0.5, 0.5], [1, 1, 0.5], [1, 1, 0], [0, 0, 0]]
    assert x_TI[:, 2:].tolist() == right


def test_flags_stand_behind_the_pieces():
    """Laid out otherwise, a flag would be read as a piece."""
    layout = schema((0.0, 1.0, 2.0))
    layout = replace(layout, numbers=(replace(layout.numbers[0], missing=True),))
    x_TI = Encoder(layout).inputs(rows(np.array([[np.nan], [1.0]])))
    assert x_TI.tolist() == [[0, 0, 0, 1], [1, 1, 0, 0]]
    assert Schema.from_dict(layout.to_dict()) == layout


def test_places_are_normal_scores_of_ranks():
    """A skewed column: its place does not see how far away the tail is, and of equal values it is the middle rank."""
    value_R = np.exp(3 * np.random.default_rng(0).normal(size=4000))
    for values in (value_R, value_R * 1e9, np.where(value_R > 50, value_R**3, value_R)):
        places = placed(values).places
        assert np.all(np.diff(places) > 0) and np.isclose(places[len(places) // 2], 0, atol=0.01)
        assert places[0] == -places[-1] == NormalDist().inv_cdf(OUTERMOST)
    half = placed(np.repeat([0.0, 1.0, 2.0, 3.0], [500, 250, 125, 125]))
    right = [
        NormalDist().inv_cdf((below + same / 2 + 0.5) / 1001) for below, same in ((0, 500), (500, 250), (750, 125))
    ]
    np.testing.assert_allclose(half.places[:3], right, rtol=1e-12)


def placed(value_R):
    rows = Rows(np.zeros((len(value_R), 0), np.int32), value_R[:, None], np.zeros(len(value_R), np.int64), np.zeros(0))
    schema = Schema("y", ("a", "b"), (), (Number("n", 0.0, 1.0),))
    (number,) = with_knots(schema, rows, np.ones(len(value_R), bool), MOST, places=True).numbers
    assert len(number.places) == len(number.knots)
    return number


def test_no_places_without_knots_or_unless_asked():
    assert placed(np.arange(60.0)).places == () and knots_of(np.arange(1000.0))
    rows = Rows(np.zeros((9, 0), np.int32), np.zeros((9, 0)), np.zeros(9, np.int64), np.zeros(0))
    schema = Schema("y", ("a", "b"))
    assert with_knots(schema, rows, np.ones(9, bool), places=True) == schema
