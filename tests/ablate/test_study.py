"""A study's config and its folder."""

import json

import pytest

from gradproof.ablate.study import StudyConfig, start
from gradproof.train.config import OF_TABLE, TrainConfig, fill
from gradproof.train.recipe import TableSize, most_steps


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"seeds": 1}, "seeds = 1: a test needs at least two seeds"),
        ({"families": ["moe", "forest"]}, "there is no family 'forest'"),
        ({"families": []}, "families is empty"),
        ({"families": ["moe", "moe"]}, "one of them is given twice"),
        ({"baselines": ["xgboost"]}, "there is no baseline 'xgboost'; the baselines are hist-gradient-boosting"),
        ({"budget": 0}, "budget = 0 must be at least 1"),
        ({"match": "memory"}, "match = 'memory' must be one of total, active, flops"),
        ({"learning_rates": [0.1, "fast"]}, r"learning_rates\[1\] = 'fast' must be float"),
        ({"options": {"moe": 3}}, "options holds a table for each family"),
        ({"options": {"mixture": {}}}, "options are given for 'mixture', which is not one of"),
        ({"test": 0.95}, "shares of the rows"),
        ({"steps": 0}, "steps = 0 must be at least 1"),
        ({"stepz": 3}, "unknown option 'stepz'"),
    ],
)
def test_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        fill(StudyConfig, given)


def test_one_seed_without_tests():
    assert fill(StudyConfig, {"seeds": 1, "tests": False}).seed_list() == [0]


def test_every_family_gets_the_same(tmp_path):
    """Steps, batch and split of a seed are equal; nobody is stopped early."""
    config = StudyConfig(steps=70, batch=9)
    runs = [fill_train(config, contestant) for contestant in config.contestants()]
    assert {(run.steps, run.batch, run.seed, run.test, run.patience) for run in runs} == {(70, 9, 3, 0.2, None)}
    assert [(run.model, run.router, run.encoding) for run in runs] == [
        ("moe", "softmax", "onehot"),
        ("moe", "sheaf", "padic"),
        ("dense", "softmax", "onehot"),
    ]


def test_a_table_has_the_recipe(tmp_path):
    """Members, encoding, average and selection as in `train`; the steps follow from the rows, if they are not given."""
    config = StudyConfig(data="orders.csv", target="late")
    recipe = fill(TrainConfig, OF_TABLE)
    for contestant in config.contestants():
        run = fill_train(config, contestant)
        for name in ("members", "names", "pieces", "levels", "places", "average", "select", "weight_decay"):
            assert getattr(run, name) == getattr(recipe, name), name
        assert run.lr == 0.01 and run.recipe == "none" and run.minutes is None and run.threads == 1
    size = TableSize(40_000, 10, 2)
    settled = config.settled(size)
    assert (settled.batch, settled.steps) == (256, most_steps(size, 256))
    assert (StudyConfig(data="orders.csv", steps=7, batch=9).settled(size).steps) == 7
    synthetic = StudyConfig()
    assert (synthetic.settled(size).steps, synthetic.settled(size).batch, synthetic.ensemble) == (3000, 256, 1)
    single = fill_train(StudyConfig(data="orders.csv", members=1), config.contestants()[0])
    assert single.members == 1 and single.threads is None


def fill_train(config, contestant):
    from gradproof.train.config import resolve

    return resolve(config.train_options(contestant, 3, 0.01))


def test_the_same_options_find_the_study_again(tmp_path, monkeypatch):
    """Without --out too; how many run at a time is no part of a study, its steps are."""
    monkeypatch.chdir(tmp_path)
    first = start(None, {"steps": 5, "jobs": 1})
    assert first.fresh and json.loads((first.path / "study.json").read_text())["steps"] == 5
    again = start(None, {"steps": 5, "jobs": 2})
    assert again.path == first.path and not again.fresh and again.config.jobs == 2
    assert start(first.path, {}).config.steps == 5
    assert start(None, {"steps": 6}).path != first.path
    with pytest.raises(ValueError, match="is a different study: steps is 5 there and 6 here"):
        start(first.path, {"steps": 6})


def test_nothing_is_left_of_a_study_that_cannot_start(tmp_path):
    study = start(tmp_path / "deep" / "study", {})
    study.discard()
    assert not (tmp_path / "deep").exists()


def test_folders_of_others(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and is not a study"):
        start(tmp_path, {})
    with pytest.raises(ValueError, match="is a file, but a study is a folder"):
        start(tmp_path / "notes.txt", {})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "study.json").write_text("{")
    with pytest.raises(ValueError, match="is not the config of a study"):
        start(tmp_path / "broken", {})
