"""The front of every command: usage errors in one sentence, and help that fits a terminal of 80 columns."""

import re
import subprocess
import sys
from dataclasses import fields

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from gradproof.ablate.study import StudyConfig
from gradproof.cli import app
from gradproof.train.config import OF_TABLE, OF_TEXT, TrainConfig
from gradproof.version import __version__


def leaves(command, path=()):
    """(path, command) of every command that does something."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))
    else:
        yield path, command


LEAVES = dict(leaves(get_command(app)))


def call(*args):
    return CliRunner().invoke(app, list(args))


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("verify", "--nope"), "no such option: --nope"),
        (("verify", "--divice", "cpu"), "did you mean --device?"),
        (("--nope",), "no such option: --nope; see `gradproof --help`"),
        (("nope",), "no such command 'nope'"),
        (("gate", "nope"), "no such command 'nope'; see `gradproof gate --help`"),
        (("predict",), "missing argument 'RUN'; see `gradproof predict --help`"),
        (("predict", "run"), "missing option '--data'"),
        (("export", "run", "--out", "x"), "missing option '--format'; choose from"),
        (("export", "run", "--out", "x", "--format", "z"), "'z'"),
        (("train", "--steps", "abc"), "'abc'"),
        (("train", "--steps", "1\n2"), "--steps"),
        (("train", "--model", "rnn"), "'moe', 'dense', 'transformer'"),
        (("serve", "run", "--port", "99999"), "65535"),
        (("sizes", "extra"), "extra"),
        (("verify", "--seed"), "'--seed' requires an argument"),
    ],
)
def test_a_usage_error_is_one_sentence_and_exit_2(args, sentence):
    """Not Typer's box, and nothing on standard output, where a record may be expected."""
    result = call(*args)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("gradproof: ") and result.stderr.count("\n") == 1
    assert sentence in result.stderr and "╭" not in result.stderr


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_refuses_an_unknown_option_in_one_sentence(path):
    result = call(*path, "--no-such-option")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert result.stderr.endswith(f"see `gradproof {' '.join(path)} --help`\n")


def test_no_command_shows_the_help():
    for group in ((), ("gate",)):
        result = call(*group)
        assert result.exit_code == 2 and "Commands" in result.stdout and result.stderr == ""


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_help_fits_80_columns_and_its_examples_can_be_copied(path):
    """An example that is broken over two lines is pasted as two commands."""
    result = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, [*path, "--help"])
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert result.exit_code == 0 and all(len(line) <= 80 for line in lines)
    assert "…" not in result.stdout and "<bool>" not in result.stdout and "[default" not in result.stdout
    examples = re.findall(r"^ +((?:gradproof|my-agent \|) .*)$", LEAVES[path].help or "", re.MULTILINE)
    for example in examples:
        assert example.strip() in lines, f"{example!r} is broken at 80 columns"
    assert examples, "an example teaches more than a list of options"


@pytest.mark.parametrize("group", [(), ("gate",), ("gate", "token")], ids=" ".join)
def test_the_list_of_commands_holds_whole_sentences(group):
    """Typer cuts a summary that is too long for its line, and ends it with three dots."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*group, "--help"])
    rows = result.stdout.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert rows and all(row.endswith(".") and not row.endswith("...") for row in rows), rows


def test_version():
    result = call("--version")
    assert result.exit_code == 0 and result.stdout == f"gradproof {__version__}\n"
    ran = subprocess.run([sys.executable, "-m", "gradproof", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"gradproof {__version__}\n"


@pytest.mark.parametrize(("command", "config"), [("train", TrainConfig), ("ablate", StudyConfig)])
def test_help_tells_each_default_as_it_is(command, config):
    """Options are None until a config file had its say, so Typer knows no default: the help says it in words."""
    defaults = {field.name: field for field in fields(config)}
    of_study = {"json", "out", "debug", "resume", "ray", "dry_run", "config", "target", "help"}
    for option in LEAVES[(command,)].params:
        if option.name in of_study:
            continue
        told = re.search(r"Default: ([^.]*(?:\.\d[^.]*)*)", option.help or "")
        assert told, f"--{option.name} does not tell its default"
        field = defaults[option.name]
        value = (
            field.default if field.default_factory.__class__.__name__ == "_MISSING_TYPE" else field.default_factory()
        )
        if (
            option.name in ("task", "jobs", "minutes", "mesh", "steps") and field.default is None
        ):  # what None means is said in words
            assert value is None
        elif option.name == "tests":
            assert value is True and told[1] == "test"
        else:
            shown = ",".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
            shown = "off" if value is False else f"{value:g}" if isinstance(value, float) else shown
            assert told[1].split(";")[0] == shown, option.name
    for name, value in (*OF_TABLE.items(), *OF_TEXT.items()):
        if command == "train" and name in ("lr", "members", "minutes", "batch"):
            option = next(option for option in LEAVES[("train",)].params if option.name == name)
            assert str(value) in option.help, f"--{name} does not tell {value}"
