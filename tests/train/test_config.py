import json
import subprocess
import sys
from dataclasses import fields

import pytest

from gradproof.train.config import TrainConfig, read_config, resolve


def test_the_defaults_are_a_config():
    """`gradproof train` without a flag; through JSON and back it stays the same."""
    config = resolve()
    assert config == TrainConfig() == resolve(json.loads(json.dumps(config.to_dict())))
    assert set(config.to_dict()) == {field.name for field in fields(TrainConfig)}


def test_later_layers_win():
    """Flags override the file; merging the other way round would ignore them."""
    config = resolve({"steps": 10, "batch": 7}, {"steps": 20}, {})
    assert (config.steps, config.batch) == (20, 7)


def test_whole_numbers_are_numbers():
    """`lr = 1` in TOML is an integer; as a float it has one form in config.json."""
    config = resolve({"lr": 1, "clip": 2, "validation": 0.25})
    assert type(config.lr) is float and type(config.clip) is float and config.clip == 2.0


@pytest.mark.parametrize(
    ("given_", "interval"), [(dict(steps=100), 5), (dict(steps=7), 1), (dict(validate_every=9), 9)]
)
def test_interval(given_, interval):
    """A twentieth of the steps, never 0."""
    assert resolve(given_).interval == interval


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"learning_rate": 1.0}, "unknown option 'learning_rate'; the options are average, .*lr"),
        ({"model": "rnn"}, "model = 'rnn' must be one of moe, dense"),
        ({"precision": "fp8"}, "precision = 'fp8' must be one of fp32, bf16, fp16"),
        ({"encoding": "binary"}, "encoding = 'binary' must be one of onehot, padic"),
        ({"router": "hash"}, "router = 'hash' must be one of softmax, sheaf"),
        ({"router": "sheaf", "model": "dense"}, "a dense model has no router; model = 'moe' has one"),
        ({"steps": "many"}, "steps = 'many' must be int"),
        ({"steps": 2.5}, "steps = 2.5 must be int"),
        ({"steps": True}, "steps = True must be int"),
        ({"lr": "fast"}, "lr = 'fast' must be float"),
        ({"target": 3}, "target = 3 must be str or null"),
        ({"metrics": "a,b"}, "metrics = 'a,b' must be list"),
        ({"metrics": ["a", 3]}, "metrics"),
        ({"model_options": []}, "model_options"),
        ({"tensorboard": 1}, "tensorboard = 1 must be bool"),
        ({"steps": 0}, "steps = 0 must be at least 1"),
        ({"batch": -4}, "batch = -4 must be at least 1"),
        ({"micro_rows": 0}, "micro_rows = 0"),
        ({"patience": 0}, "patience = 0"),
        ({"patience_after": -1}, "patience_after = -1 must be at least 0"),
        ({"log_every": 0}, "log_every = 0"),
        ({"validate_every": 0}, "validate_every = 0"),
        ({"threads": 0}, "threads = 0"),
        ({"lr": -1.0}, "lr = -1.0"),
        ({"lr": float("nan")}, "lr = nan"),
        ({"lr": float("inf")}, "lr = inf"),
        ({"weight_decay": -0.5}, "weight_decay"),
        ({"clip": 0}, "clip = 0 would stop all learning; use null for no clipping"),
        ({"clip": -1.0}, "clip = -1.0"),
        ({"validation": 0.0}, "validation = 0.0 and test"),
        ({"test": -0.1}, "test = -0.1"),
        ({"validation": 0.5, "test": 0.4}, "below 0.9 together"),
        ({"validation": float("nan")}, "validation = nan"),
        ({"test": float("nan")}, "test = nan"),
    ],
)
def test_refuses(given_, message):
    """Each would fail later, after the data was read, or train on something else than was meant."""
    with pytest.raises(ValueError, match=message):
        resolve(given_)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.toml", 'model = "dense"\nsteps = 12\nmetrics = ["a", "b"]\n[model_options]\nexperts = 8\n'),
        ("run.TOML", 'model = "dense"\nsteps = 12\nmetrics = ["a", "b"]\nmodel_options = {experts = 8}\n'),
        ("run.json", '{"model": "dense", "steps": 12, "metrics": ["a", "b"], "model_options": {"experts": 8}}'),
    ],
)
def test_reads_toml_and_json(tmp_path, name, text):
    """The same options in both."""
    (tmp_path / name).write_text(text)
    right = {"model": "dense", "steps": 12, "metrics": ["a", "b"], "model_options": {"experts": 8}}
    assert read_config(tmp_path / name) == right
    assert resolve(read_config(tmp_path / name)).model_options == {"experts": 8}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("missing.toml", None, "no config file"),
        ("bad.toml", b"steps = = 3", "is not valid TOML"),
        ("bad.json", b"{'steps': 3}", "is not valid JSON"),
        ("binary.toml", b"\xff\xfe\x00", "is not valid TOML"),
        ("binary.json", b"\xff\xfe\x00", "is not valid JSON"),
        ("list.json", b"[1, 2]", "must be a table of options, not list"),
    ],
)
def test_refuses_a_file(tmp_path, name, data, message):
    """One sentence that names the file."""
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        read_config(tmp_path / name)
    assert name in str(caught.value)


def test_a_folder_is_no_config(tmp_path):
    """A sentence in place of IsADirectoryError."""
    with pytest.raises(ValueError, match="no config file"):
        read_config(tmp_path)


def test_nothing_heavy_is_imported():
    """config.json must be on disk before torch, which takes seconds, is imported."""
    script = "import sys, gradproof.train.config, gradproof.train.run; "
    script += "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"
