"""Ranks are started once for all tests of a worker: that takes seconds."""

import pytest
from ranks.runs import CONFIG, RUN
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.ranks.pool import Pool


@pytest.fixture(scope="session")
def two_ranks():
    with Pool(2) as pool:
        yield pool


@pytest.fixture(scope="session")
def four_ranks():
    with Pool(4) as pool:
        yield pool


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
