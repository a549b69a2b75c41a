"""`gradproof train` on several ranks leaves the same run as in one process, and goes on with any number of ranks."""

import json
import os
import socket
import subprocess
import sys

import pytest
from ranks.commands import train
from ranks.runs import RUN, same_run
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.ranks.pool import RankFailed

LAYOUTS = {
    "data": [],
    "sharded": ["--shard-optimizer"],
    "experts": ["--mesh", "experts=2"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_run_of_one_process(two_ranks, tmp_path, config, alone, layout):
    """Each rank training on all rows, or reporting its own half, would break this."""
    answers = two_ranks.run(train, [config, *RUN, *LAYOUTS[layout], "--out", str(tmp_path / "run")])
    assert [code for code, _ in answers] == [0, 0]
    assert "report:" in answers[0][1] and not answers[1][1], "rank 0 alone speaks"
    same_run(tmp_path / "run", alone)


def test_interrupted_and_resumed_with_other_layouts(two_ranks, tmp_path, config, alone):
    """Ctrl-C on one rank stops all at the same step, with a checkpoint; then experts are spread, then one process."""
    out = tmp_path / "run"
    with pytest.raises(RankFailed, match="exit code 130"):
        two_ranks.run(train, [config, *RUN, "--shard-optimizer", "--out", str(out)], "interrupt", 1, 5)
    assert (out / "checkpoints/step-7").is_dir()  # the others hear of it with the step after
    with pytest.raises(RankFailed, match="exit code 130"):
        two_ranks.run(train, ["--resume", "--mesh", "experts=2", "--out", str(out)], "interrupt", 0, 8)
    assert (out / "checkpoints/step-10").is_dir()
    result = CliRunner().invoke(app, ["train", "--resume", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "mesh data=1,experts=2, sharded optimizer → one rank" in " ".join(result.output.split())
    same_run(out, alone)


def test_a_mesh_without_its_ranks(tmp_path):
    """One process must not train a quarter of a mesh."""
    result = CliRunner().invoke(app, ["train", *RUN, "--mesh", "data=2,experts=2", "--out", str(tmp_path / "run")])
    assert result.exit_code == 2 and "torchrun --nproc-per-node 4" in result.output
    result = CliRunner().invoke(app, ["train", *RUN, "--shard-optimizer", "--out", str(tmp_path / "run")])
    assert result.exit_code == 2 and "torchrun" in result.output
    assert not (tmp_path / "run").exists()


def test_a_mesh_that_does_not_fit(two_ranks, tmp_path):
    """Nothing is written, and every rank ends with the exit code of a bad argument."""
    given = [*RUN, "--mesh", "data=3", "--out", str(tmp_path / "run")]
    answers = two_ranks.run(train, given)
    assert answers[0][0] == 2 and "needs 3 ranks" in answers[0][1]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    (
        (["--model", "dense"], "mesh data=1,experts=2: a dense model has no experts to spread; use --mesh data=2"),
        (["--members", "2"], "mesh data=1,experts=2: an ensemble has no experts to spread; use --mesh data=2"),
        (["three.toml"], "mesh data=1,experts=2: 3 experts cannot be shared equally among 2 ranks"),
    ),
)
def test_experts_that_cannot_be_spread(two_ranks, tmp_path, heard, given, said):
    (tmp_path / "three.toml").write_text("[model_options]\nexperts = 3\n")
    given = [str(tmp_path / word) if word.endswith(".toml") else word for word in given]
    with pytest.raises(RankFailed, match=r"exit code [12]"):  # 1: a rank that saw the other leave
        arguments = [*given, *RUN, "--mesh", "experts=2", "--out", str(tmp_path / "run")]
        two_ranks.run(train, arguments, "hang", 9, 0, grace=10)  # there is no rank 9: the streams are left alone
    assert f"gradproof: {said}" in " ".join(heard.readouterr().err.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_machines(tmp_path, config, alone):
    """Two agents that meet at a rendezvous, as on two machines, with a folder that they share."""
    out, port = tmp_path / "run", _free_port()
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--local-addr", "localhost"]
    command += ["-m", "gradproof", "train", config, *RUN, "--out", str(out)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    agents = [subprocess.Popen(command, **pipes, env={**os.environ, "OMP_NUM_THREADS": "1"}) for _ in range(2)]
    said = [agent.communicate(timeout=300) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert sum(printed.count("report:") for printed, _ in said) == 1
    same_run(out, alone)


def _free_port():
    with socket.socket() as unused:
        unused.bind(("localhost", 0))
        return unused.getsockname()[1]


def test_torchrun(tmp_path, config, alone):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += ["-m", "gradproof", "train", config, *RUN, "--out", str(out), "--json", str(tmp_path / "record.json")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report:") == 1
    assert json.loads((tmp_path / "record.json").read_text()) == json.loads((out / "report.json").read_text())
    same_run(out, alone)
