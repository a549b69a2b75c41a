"""What administrators and intruders do on Linux, macOS and FreeBSD, and everyday commands of the same programs."""

from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_bash", reason="the extra `gate` is not installed")

from gradproof.gate.calls import Call
from gradproof.gate.reading import read

LINES = Path(__file__).with_name("administration.txt").read_text().splitlines()
ROWS = [line.partition(": ") for line in LINES if not line.startswith("#")]


def decided(command):
    """The call's decision, and the acts that it would be decided by alone."""
    done = read(Call("Bash", {"command": command}, "/home/ann/app"))
    outcome = done.verdicts[done.worst].outcome
    acts = zip(done.acts, done.verdicts, strict=True)
    return outcome, [(act.effect, act.scope) for act, verdict in acts if verdict.outcome == outcome]


@pytest.mark.parametrize(("label", "command"), [(label, command) for label, _, command in ROWS])
def test_what_a_command_does_and_what_the_policy_says(label, command, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    effect, scope, decision = label.split()
    outcome, acts = decided(command)
    assert outcome == decision and (effect, scope) in acts


def test_a_history_that_is_only_shaped_is_kept():
    """A size, a place or a format of the history is no act; neither is reading it."""
    for command in ("export HISTSIZE=10000", "HISTFILE=~/.my_history", "export HISTCONTROL=ignoredups", "history 20"):
        assert decided(command)[0] == "allow", command
