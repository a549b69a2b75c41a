"""What a user would pick instead, on the same splits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.ablate.baselines import fit, perceptron, perceptron_width
from gradproof.data.rows import Rows
from gradproof.data.schema import Category, Number, Schema
from gradproof.data.source import Source
from gradproof.data.split import TEST, VALIDATION, split
from gradproof.train.config import TrainConfig

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def source():
    """Three classes by the sign of one number and one name; some numbers are missing, some names have no slot."""
    random = np.random.default_rng(0)
    R = 600
    codes_RC = random.integers(-1, 3, (R, 1)).astype(np.int32)
    numbers_RN = random.normal(size=(R, 2))
    outcome_R = np.where(codes_RC[:, 0] == 2, 2, (numbers_RN[:, 0] > 0).astype(np.int64))
    numbers_RN[random.random(R) < 0.1, 1] = np.nan
    schema = Schema(
        "y", ("a", "b", "c"), (Category("name", ("u", "v", "w")),), (Number("x", 0, 1), Number("z", 0, 1, True))
    )
    rows = Rows(codes_RC, numbers_RN, outcome_R, np.zeros((R, 0), np.float32))
    return Source(schema, rows, split(outcome_R, 0, 0.1, 0.2), [])


@pytest.mark.parametrize("name", ["hist-gradient-boosting", "logistic-regression", "mlp"])
def test_learns_and_is_scored_on_its_own_rows(source, name):
    """Probabilities of the held-out rows in their order; taken of other rows they would be no better than chance."""
    config = TrainConfig(steps=150, batch=64, lr=0.02, seed=3)
    fitted = fit(name, source, {"logistic-regression": 1.0}.get(name, 0.1), config, 400, lambda done, total: None)
    for part, probability_TC in ((VALIDATION, fitted.validation_TC), (TEST, fitted.test_TC)):
        outcome_T = source.rows.outcome_R[source.index(part)]
        assert probability_TC.shape == (len(outcome_T), 3)
        assert np.allclose(probability_TC.sum(1), 1)
        assert (probability_TC.argmax(1) == outcome_T).mean() > 0.85


def test_a_perceptron_keeps_its_best_step(source):
    """The validation rows choose the step, as they do for the families; the same seed gives the same figures."""
    config = TrainConfig(steps=60, batch=32, lr=0.05, validate_every=10)
    first, again = (perceptron(source, config, 300, lambda done, total: None) for _ in range(2))
    best = max(first.curve, key=lambda point: (point[2], -point[1]))
    outcome_T = source.rows.outcome_R[source.index(VALIDATION)]
    assert first.best_step == best[0] and (first.validation_TC.argmax(1) == outcome_T).mean() == best[2]
    assert np.array_equal(first.test_TC, again.test_TC)


@given(budget=st.integers(2_000, 10**8), inputs=st.integers(1, 500), outputs=st.integers(2, 40))
def test_a_perceptron_of_the_budget(budget, inputs, outputs):
    """No width is nearer."""

    def count(hidden):
        return inputs * hidden + hidden + hidden * hidden + hidden + hidden * outputs + outputs

    width = perceptron_width(budget, inputs, outputs)
    error = abs(count(width) - budget)
    assert width == 1 or error <= abs(count(width - 1) - budget)
    # Rounding the width is not quite rounding the count, which curves upwards.
    assert error <= abs(count(width + 1) - budget) + width
