import numpy as np
import pytest

from gradproof.train.interval import fit_reach, keep_reach, read_reach
from gradproof.train.predictor import NORMAL


def test_covers_nine_in_ten_new_rows():
    """A quantile at 0.9·n instead of 0.9·(n + 1) would cover about 2.5 points less with 35 rows."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(4000):
        value_T = rng.standard_t(4, 35)
        number_TV = np.stack([np.zeros(35), np.full(35, 3.0)], 1)
        reach = fit_reach(number_TV, value_T)
        covered.append((np.abs(rng.standard_t(4, 50)) <= 3 * reach).mean())
    assert np.mean(covered) == pytest.approx(0.9, abs=0.005)


def test_few_rows_take_the_largest():
    """Five rows cannot tell a 90% quantile; their largest error is the best guess."""
    assert fit_reach(np.array([[0.0, 1.0]] * 5), np.array([1.0, -4.0, 2.0, 0.0, 3.0])) == 4.0


def test_is_kept_beside_the_checkpoints(tmp_path):
    assert read_reach(tmp_path) == NORMAL
    keep_reach(tmp_path, 1.25, 40)
    assert read_reach(tmp_path) == 1.25
