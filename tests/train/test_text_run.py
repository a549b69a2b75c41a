"""A run on text: what it learns, that it goes on exactly where it was killed, what its report says."""

import json
import math
import os
import signal
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.models.transformer import Transformer, TransformerConfig
from gradproof.train import checkpoint
from gradproof.train.config import resolve
from gradproof.train.sample import sample
from gradproof.train.text import load_text_model, score, text_config

OPTIONS = {"context": 16, "width": 16, "heads": 2, "decoder_layers": 1, "feedforward": 32}


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """A text that is easily learned, and a config for a model of seconds."""
    folder = tmp_path_factory.mktemp("book")
    (folder / "book.txt").write_bytes(b"the cat sat on the mat. " * 120)
    config = dict(model="transformer", data=str(folder / "book.txt"), model_options=OPTIONS, steps=60, batch=8)
    (folder / "config.json").write_text(json.dumps({**config, "lr": 1e-2, "validate_every": 20, "threads": 1}))
    return folder


def train(book, out, *flags):
    return CliRunner().invoke(app, ["train", str(book / "config.json"), "--out", str(out), *flags])


@pytest.fixture(scope="module")
def run(book):
    """A finished run."""
    result = train(book, book / "run")
    assert result.exit_code == 0, result.output
    return book / "run", result.output


def test_it_learns_and_says_what_it_writes(run):
    """Far below the counts of pairs, on text that it was not trained on; samples on the terminal and on the page."""
    path, said = run
    record = json.loads((path / "report.json").read_text())
    own, pairs, single, packed = (row["bits_per_byte"] for row in record["scores"])
    assert own < single and own < 2.5 and packed > 0 and pairs < single
    assert record["scores"][0]["log_loss"] == pytest.approx(own * math.log(2))
    history = [line["validation_bits_per_byte"] for line in record["history"] if "validation_bits_per_byte" in line]
    assert len(history) == 3 and history[-1] < history[0]
    assert [len(sampled["prompt"]) for sampled in record["samples"]] == [0, 48]
    assert "sample without a prompt:" in said and "bits per byte" in said
    page = (path / "report.html").read_text()
    assert "<h2>Samples</h2>" in page and "bytes for training" in page and "Decisions on the test rows" not in page
    assert record["evidence"]["status"] == "proven"


def test_a_killed_run_ends_with_the_same_bits(book, run):
    """kill -9 after the first checkpoint, then --resume: weights, moments and metrics as if nothing had happened."""
    out = book / "killed"
    command = [sys.executable, "-m", "gradproof", "train", str(book / "config.json"), "--out", str(out)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step"):
                os.kill(process.pid, signal.SIGKILL)
                break
    result = train(book, out, "--resume")
    assert result.exit_code == 0, result.output
    for file in (checkpoint.MODEL, checkpoint.STEP):
        assert (out / f"checkpoints/step-60/{file}").read_bytes() == (
            run[0] / f"checkpoints/step-60/{file}"
        ).read_bytes()
    assert "is finished" in train(book, out, "--resume").output


@pytest.mark.parametrize("command", [["predict", "RUN", "--data", "a.csv"], ["serve", "RUN"]])
def test_commands_for_tables_say_so(run, command):
    """One sentence, exit code 2."""
    result = CliRunner().invoke(app, [str(run[0]) if word == "RUN" else word for word in command])
    assert result.exit_code == 2 and "is a language model" in result.output


def test_a_text_run_can_be_diagnosed(run):
    """The same state in float64 and in bf16: rounding noise, no bug."""
    result = CliRunner().invoke(app, ["diagnose", str(run[0]), "--precisions", "bf16", "--json", "-"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["verdict"] in ("clean", "noise")
    assert {"embedding.weight", "output.bias"} <= {parameter["name"] for parameter in record["parameters"]}


def test_samples_follow_the_model(run):
    """The same seed writes the same, another one not; a prompt longer than the context is cut, not refused."""
    model, saved = load_text_model(run[0])
    assert saved.step == 60
    first = sample(model, 20, seed=1)
    assert first == sample(model, 20, seed=1) != sample(model, 20, seed=2) and len(first) == 20
    assert len(sample(model, 3, prompt=b"the cat sat on the mat. the cat")) == 3
    assert b"the" in sample(model, 30, prompt=b"the cat sat on ", temperature=0.05)


def test_the_score_is_the_mean_over_bytes():
    """A model without an opinion needs 8 bits and a bit (START) for every byte, padding not counted."""
    model = Transformer(TransformerConfig(257, 8, 1, 0, 1, 0, 4, "causal"))
    model.params["output.weight"].zero_()
    model.params["output.bias"].zero_()
    token = torch.tensor([[256, 1, 2, 3], [256, -1, -1, -1]]).numpy()
    target = torch.tensor([[1, 2, 3, 4], [9, -1, -1, -1]]).numpy()
    for batch in (1, 2):
        loss, _ = score(model, token, target, batch)
        assert loss == pytest.approx(math.log(257), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vocabulary": 9}, "there is no option 'vocabulary'"),
        ({"context": 1}, "at least 2"),
        ({"heads": 1.5}, "must be int"),
    ],
)
def test_refuses_options_that_the_data_decides(options, said):
    with pytest.raises(ValueError, match=said):
        text_config(resolve({"model": "transformer", "model_options": options}))


def test_the_config_of_a_size():
    """nano has as many parameters as the MoE of that name, for bytes, as a decoder alone."""
    config = text_config(resolve({"model": "transformer"}))
    assert (config.mode, config.vocabulary, config.encoder_layers, config.context) == ("causal", 257, 0, 256)
    assert abs(config.param_count() - 195_540) < 1000
