import numpy as np
import pytest

from gradproof.train.config import TrainConfig, resolve
from gradproof.train.recipe import TableSize, batch_of, minutes_of, sized, steps_of
from gradproof.train.score import log_loss
from gradproof.train.temperature import fit_temperature, keep_temperature, read_temperature

TABLE = {"data": "orders.csv", "target": "late"}


def test_a_table_gets_the_recipe_and_a_named_model_does_not():
    """`--model`, `--size` and `--steps` train exactly one model, as ever."""
    assert resolve(TABLE).recipe == "table" and resolve(TABLE).members == 8
    for given in ({"model": "moe"}, {"size": "nano"}, {"steps": 60}, {"router": "sheaf"}):
        config = resolve({**TABLE, **given})
        assert config == TrainConfig(**{**TABLE, **given})
    assert resolve({}) == TrainConfig()
    assert resolve({"data": "synthetic:rows=400"}).recipe == "none"


def test_what_is_given_beats_the_recipe():
    config = resolve({**TABLE, "members": 3, "lr": 0.1, "batch": 64})
    assert (config.members, config.lr, config.recipe) == (3, 0.1, "table")
    assert sized(config, TableSize(100_000, 10, 2)) == {}
    wider = resolve({**TABLE, "model_options": {"hidden": 256}})
    assert wider.model_options == {**resolve(TABLE).model_options, "hidden": 256}


@pytest.mark.parametrize(("rows", "batch"), [(114, 32), (1_000, 32), (3_000, 128), (4_096, 256), (1_000_000, 256)])
def test_batch(rows, batch):
    assert batch_of(TableSize(rows, 10, 2)) == batch


def test_steps_fit_the_time_and_are_no_more_than_of_use():
    config, size = resolve(TABLE), TableSize(40_000, 100, 2)
    assert steps_of(config, size, 0.012) == 3000
    assert steps_of(config, size, 1e-6) == 20 * 40_000 // 256
    assert steps_of(config, TableSize(100, 10, 2), 1e-6) == 800
    assert steps_of(TrainConfig(minutes=1.0), size, 0.01) == 6000
    assert steps_of(TrainConfig(minutes=1.0), size, 0.01, 20.0) == 4000
    assert steps_of(TrainConfig(minutes=1.0), size, 0.01, 90.0) == 3000  # half of the time is for steps
    assert minutes_of(config, TableSize(500_000, 10, 2)) == pytest.approx(6.0)
    assert minutes_of(resolve({**TABLE, "minutes": 2.0}), TableSize(500_000, 10, 2)) == 2.0


def test_temperature_is_found(tmp_path):
    """Probabilities that are too sure by a factor of two in their logits: T = 2 undoes it."""
    rng = np.random.default_rng(0)
    z_TC = rng.normal(size=(20_000, 3)) * 1.5
    p_TC = np.exp(z_TC) / np.exp(z_TC).sum(1, keepdims=True)
    outcome_T = (p_TC.cumsum(1) < rng.random((20_000, 1))).sum(1)
    sure_TC = p_TC**2 / (p_TC**2).sum(1, keepdims=True)
    temperature = fit_temperature(sure_TC, outcome_T)
    assert 1.9 < temperature < 2.1
    softened_TC = sure_TC ** (1 / temperature)
    assert log_loss(softened_TC / softened_TC.sum(1, keepdims=True), outcome_T) < log_loss(sure_TC, outcome_T)
    assert read_temperature(tmp_path) == 1.0
    few_TC = np.tile([0.95, 0.05], (30, 1))
    assert 0.7 < fit_temperature(few_TC, np.zeros(30, np.int64)) < 1  # all right, and few: no reason to be certain
    keep_temperature(tmp_path, temperature, 20_000)
    assert read_temperature(tmp_path) == temperature
