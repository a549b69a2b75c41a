"""A rank that dies, hangs or drifts ends the run, is named, and costs no more than the steps since a checkpoint."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks.commands import train
from ranks.runs import CONFIG, RUN, same_run
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.ranks.pool import RankFailed
from gradproof.train import checkpoint

WORDS = {
    "kill": r"gradproof: rank {0} does not answer at step 5;",
    "hang": r"gradproof: rank {0}, at step 5, made no progress for 3 s;",
    "stop": r"gradproof: rank {0} does not answer at step 5;",
    "drift": r"rank {0} drifted: experts\.\d\.linear\.1\.weight was changed outside the training step",
}


def resumed(out, alone):
    result = CliRunner().invoke(app, ["train", "--resume", "--out", str(out)])
    assert result.exit_code == 0, result.output
    same_run(out, alone)


@pytest.mark.parametrize(("event", "rank"), [("kill", 1), ("hang", 0), ("drift", 1)])
def test_it_ends_and_says_which_rank(two_ranks, tmp_path, config, alone, heard, event, rank):
    """Without a watch on the others a rank would wait for ever; one process goes on from the checkpoint."""
    out = tmp_path / "run"
    with pytest.raises(RankFailed, match="exit code"):
        two_ranks.run(train, [config, *RUN, "--timeout", "5", "--out", str(out)], event, rank, 5, seconds=60, grace=20)
    said = " ".join(heard.readouterr().err.split())
    assert re.search(WORDS[event].format(rank), said), said
    assert f"the last good checkpoint is {out}/checkpoints/step-4" in said
    assert checkpoint.steps(out / "checkpoints") == [4]
    if event != "drift":
        assert f"torchrun --nproc-per-node N -m gradproof train --resume --out {out}" in said
    resumed(out, alone)


@pytest.mark.slow
@pytest.mark.parametrize("rank", (0, 2, 3))
@pytest.mark.parametrize("event", ("kill", "stop", "hang"))
def test_one_of_four(four_ranks, two_ranks, tmp_path, config, alone, heard, event, rank):
    """Three remain and must agree on whom they miss; two go on."""
    four_ranks.close()  # they start anew, and are heard
    out = tmp_path / "run"
    given = [config, *RUN, "--mesh", "data=2,experts=2", "--timeout", "5", "--out", str(out)]
    with pytest.raises(RankFailed, match="exit code"):
        four_ranks.run(train, given, event, rank, 5, seconds=60, grace=20)
    said = " ".join(heard.readouterr().err.split())
    assert re.search(WORDS[event].format(rank), said), said
    answers = two_ranks.run(train, ["--resume", "--mesh", "data=2", "--out", str(out)])
    assert [code for code, _ in answers] == [0, 0], answers
    same_run(out, alone)


STEPS = 600


def torchrun(out, config, *more):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "gradproof", "train", str(config)]
    command += ["--data", "synthetic:rows=600,regimes=4", "--steps", str(STEPS), "--batch", "50"]
    command += ["--timeout", "20", "--out", str(out), *more]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return subprocess.Popen(command, **pipes, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True)


def ranks_of(agent):
    """Process ids of the ranks that an agent of torchrun has started so far."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"gradproof" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A longer run on two ranks, and how many seconds it took."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "run.toml").write_text(CONFIG.replace("validate_every = 4", "validate_every = 60"))
    for name in ("first", "run"):  # the first proves the kernels
        begun = time.monotonic()
        agent = torchrun(folder / name, folder / "run.toml")
        said, _ = agent.communicate(timeout=300)
        assert agent.returncode == 0, said
    return folder, time.monotonic() - begun


def weights(run):
    return (run / f"checkpoints/step-{STEPS}/model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("moment", range(10))
def test_kill_9_at_any_moment(tmp_path, undisturbed, moment):
    """Before the ranks have met, in a step, in a checkpoint, in the report: the run ends, and resumed on two ranks it
    has the bits of the run that was never disturbed."""
    folder, seconds = undisturbed
    chance = random.Random(f"kill {moment}")
    agent, killed = torchrun(tmp_path / "run", folder / "run.toml"), False
    time.sleep(seconds * (0.1 + 0.09 * moment + 0.09 * chance.random()))
    for pid in sorted(ranks_of(agent))[chance.randrange(2) :][:1] if agent.poll() is None else []:
        os.kill(pid, signal.SIGKILL)
        killed = True
    said, _ = agent.communicate(timeout=60)
    assert killed == (agent.returncode != 0), said
    again = torchrun(tmp_path / "run", folder / "run.toml", "--resume")
    said, _ = again.communicate(timeout=300)
    assert again.returncode == 0, said
    assert weights(tmp_path / "run") == weights(folder / "run")
