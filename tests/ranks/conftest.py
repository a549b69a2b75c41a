"""A run of `gradproof train` in one process, which those on several ranks are compared with."""

import pytest
from ranks.runs import CONFIG, RUN
from typer.testing import CliRunner

from gradproof.cli import app


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("config") / "run.toml"
    file.write_text(CONFIG)
    return str(file)


@pytest.fixture(scope="session")
def alone(tmp_path_factory, config):
    """The run in one process, never disturbed."""
    out = tmp_path_factory.mktemp("alone") / "run"
    result = CliRunner().invoke(app, ["train", config, *RUN, "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture
def heard(two_ranks, capfd):
    """What the ranks print in a test: they are started in it, since a process keeps the output that it began with."""
    two_ranks.close()
    return capfd
