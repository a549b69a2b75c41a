import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradproof.data import synthetic as module
from gradproof.data.encoders import Encoder
from gradproof.data.synthetic import synthetic

SEEDS = (0, 1, 2, 3, 4)


@pytest.fixture(scope="module")
def made():
    """Large enough for figures to hold to a percent."""
    return {seed: synthetic(rows=12_000, seed=seed) for seed in SEEDS}


def arrays(data_set):
    return [*data_set.rows, data_set.regime_R, data_set.best_R]


def test_deterministic():
    """A draw from a global or a system generator would differ the second time."""
    first, again = (synthetic(rows=500, seed=3, regimes=2) for _ in range(2))
    assert first.schema == again.schema
    assert all(np.array_equal(a, b) for a, b in zip(arrays(first), arrays(again), strict=True))


@pytest.mark.parametrize("other", [dict(seed=4), dict(regimes=3)])
def test_every_argument_counts(other):
    """Two seeds with one rule would not be two data sets."""
    given_ = dict(rows=500, seed=3, regimes=2)
    a, b = synthetic(**given_), synthetic(**{**given_, **other})
    assert (a.rows.outcome_R != b.rows.outcome_R).mean() > 0.3
    if "seed" in other:
        assert not np.array_equal(a.rows.codes_RC, b.rows.codes_RC)
        assert not np.array_equal(a.rows.numbers_RN, b.rows.numbers_RN)


def test_the_quality_schema(made):
    """74 one-hot inputs in 8 blocks and 22 numbers; 12 outcomes and 8 metrics."""
    schema = made[0].schema
    assert (schema.inputs, schema.outputs) == (96, 20)
    assert [category.width for category in schema.categories] == [9, 11, 14, 7, 5, 16, 8, 4]
    assert (len(schema.numbers), len(schema.classes), len(schema.metrics)) == (22, 12, 8)
    assert len({column.name for column in (*schema.categories, *schema.numbers, *schema.metrics)}) == 8 + 22 + 8
    assert Encoder(schema).inputs(made[0].rows.take(np.arange(5))).shape == (5, 96)


@pytest.mark.parametrize("seed", SEEDS)
def test_columns_are_what_the_schema_says(made, seed):
    """Codes in range and all in use, integers in thousandths, metrics on [0, 1]."""
    rows, schema = made[seed].rows, made[seed].schema
    assert [array.dtype for array in rows] == [np.int32, np.float64, np.int64, np.float32]
    for i, category in enumerate(schema.categories):
        assert set(rows.codes_RC[:, i]) == set(range(category.width))
    assert np.array_equal(rows.numbers_RN, np.rint(rows.numbers_RN))
    assert (np.abs(rows.numbers_RN).max(0) > 1000).all() and np.abs(rows.numbers_RN).max() < 10_000
    x_TI = Encoder(schema).inputs(rows).numpy()
    assert np.abs(x_TI[:, 74:].mean(0)).max() < 0.05 and np.abs(x_TI[:, 74:].std(0) - 1).max() < 0.05
    assert rows.metrics_RM.min() >= 0 and rows.metrics_RM.max() <= 1 and rows.metrics_RM.std(0).min() > 0.05
    assert set(rows.outcome_R) == set(range(12))


@pytest.mark.parametrize("seed", SEEDS)
def test_bayes_and_majority(made, seed):
    """The promise of the design: something to learn, nothing to guess."""
    data_set = made[seed]
    assert 0.80 <= data_set.best_R.mean() <= 0.90
    assert np.bincount(data_set.rows.outcome_R).max() / data_set.rows.count <= 0.20
    assert (data_set.best_R > 1 / 12).all() and (data_set.best_R < 1).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_regime_has_rows(made, seed):
    """An expert for a regime of a few rows has nothing to specialise on."""
    share_G = np.bincount(made[seed].regime_R, minlength=4) / 12_000
    assert len(share_G) == 4 and share_G.min() > 0.05


def test_the_set_has_the_size_that_it_is_trained_at(made):
    """The promise holds for the number of rows that `gradproof train` takes by default, not for 12,000 alone."""
    data_set = synthetic(rows=50_000, seed=0)
    assert 0.80 <= data_set.best_R.mean() <= 0.90
    assert np.bincount(data_set.rows.outcome_R).max() / 50_000 <= 0.20


def label_distribution(monkeypatch, rows, seed, grid=200):
    """P(outcome | row) to 1/grid: the same rows with every label drawn at each point of a grid of uniforms."""
    count_RC, uniform = np.zeros((rows, 12)), module._Draws.uniform
    for i in range(grid):
        with monkeypatch.context() as patch:
            patch.setattr(
                module._Draws,
                "uniform",
                lambda self, name, shape, i=i: (
                    np.full(shape, (i + 0.5) / grid) if name == "label" else uniform(self, name, shape)
                ),
            )
            count_RC[np.arange(rows), synthetic(rows, seed).rows.outcome_R] += 1
    return count_RC / grid


def test_labels_are_drawn_from_what_best_says(monkeypatch):
    """A temperature or a noise that best_R and the labels do not share would let a model beat Bayes."""
    rows, grid = 1500, 200
    p_RC = label_distribution(monkeypatch, rows, 5, grid)
    data_set = synthetic(rows, 5)
    assert np.abs(p_RC.max(1) - data_set.best_R).max() <= 1.5 / grid
    assert p_RC.min() >= 0 and (p_RC > 0).sum(1).mean() > 2  # more than one outcome is possible
    right_R = data_set.rows.outcome_R == p_RC.argmax(1)
    error = np.sqrt((data_set.best_R * (1 - data_set.best_R)).sum()) / rows
    assert abs(right_R.mean() - data_set.best_R.mean()) < 4 * error


@settings(max_examples=20)
@given(rows=st.integers(1, 40), seed=st.integers(0, 999), regimes=st.integers(1, 6))
def test_small_sets_are_sets_too(rows, seed, regimes):
    """A regime of one row has no variance to divide by."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data_set = synthetic(rows, seed, regimes)
    assert (
        data_set.rows.count == rows and np.isfinite(data_set.best_R).all() and (data_set.best_R > 1 / 12 - 1e-9).all()
    )
    assert data_set.regime_R.max() < regimes and ((data_set.rows.outcome_R >= 0) & (data_set.rows.outcome_R < 12)).all()


@pytest.mark.parametrize("given_", [dict(rows=0), dict(regimes=0), dict(rows=-3)])
def test_refuses(given_):
    """A sentence in place of an empty argmax."""
    with pytest.raises(ValueError, match="needs at least one of each"):
        synthetic(**given_)


def test_inputs_are_independent(made):
    """Columns drawn from one stream would repeat each other."""
    rows = made[0].rows
    correlation_NN = np.corrcoef(rows.numbers_RN.T) - np.eye(22)
    assert np.abs(correlation_NN).max() < 0.05
    for i in range(7):
        n, m = rows.codes_RC[:, i].max() + 1, rows.codes_RC[:, i + 1].max() + 1
        joint = np.bincount(rows.codes_RC[:, i] * m + rows.codes_RC[:, i + 1], minlength=n * m) / rows.count
        assert np.abs(joint - 1 / (n * m)).max() < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_line_is_not_enough(seed):
    """Logistic regression stays at least ten points below Bayes."""
    pytest.importorskip("sklearn")
    from gradproof.train.baselines import logistic_regression

    data_set = synthetic(rows=24_000, seed=seed)
    x_RI = Encoder(data_set.schema).inputs(data_set.rows).numpy()
    outcome_R = data_set.rows.outcome_R
    row = logistic_regression(x_RI[:20_000], outcome_R[:20_000], [x_RI[20_000:]], outcome_R[20_000:], 12)
    assert row["accuracy"] < data_set.best_R[20_000:].mean() - 0.10
