"""Variables that affect programs: they name what is loaded or run, or a working directory."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gradproof.gate.acts.act import ActTarget
from gradproof.gate.acts.command import Command
from gradproof.gate.acts.knowledge import knowledge
from gradproof.gate.acts.paths import TILDE, UNKNOWN, unglobbed
from gradproof.gate.acts.places import here
from gradproof.gate.acts.shell import Reading
from gradproof.gate.acts.shell_state import State
from gradproof.gate.acts.targets import touch
from gradproof.gate.acts.word import Word

NOT_RECORDED = {"", "0", "/dev/null", "*"}  # values of HISTFILE, HISTSIZE or HISTIGNORE with which nothing is kept
SEARCHED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "CLASSPATH", "NODE_PATH")  # often longer by what was there before
SUBSTITUTES = re.compile(r"\$\(|`")
PLAIN_OPTION = re.compile(r"-{1,2}[\w=.:,+-]*|\d*|on|off|true|false|all|[a-z-]+=[\w.,+-]*", re.ASCII)
LOADS = re.compile(r"(?i)eval|exec|require|import|load|agent|linker|wrapper|action|compress|command|plugin|shell|init")


def assigned(reading: Reading, name: str, words: Sequence[Word], state: State) -> None:
    """The acts of a value that a variable is given."""
    kind = knowledge().variable(name)
    if kind is None or not words:
        return
    command = Command(reading, name, [], state)
    value = words[0]
    if kind == "record":
        if value.text in NOT_RECORDED:
            command.act("stop", "system", ActTarget("resource", "shell history"))
    elif kind == "command":
        here(command, "execute", ("flag:variable",))
        _run(command, value.text)
    elif kind == "prompt":  # in which the shell substitutes commands when it shows it
        if SUBSTITUTES.search(value.text) or not value.known:
            _run(command, value.text)
    elif kind == "options":
        if any(LOADS.search(piece) or not PLAIN_OPTION.fullmatch(piece) for piece in value.text.split()):
            command.act("execute", "unknown", ActTarget("none", name), marks=("flag:variable",))
    elif kind == "folder":
        _moved(command, value)
    else:
        _searched(command, value)


def unset(reading: Reading, name: str, state: State) -> None:
    """A variable that is gone; without some, nothing is recorded any more."""
    if knowledge().variable(name) == "record":
        assigned(reading, name, [Word()], state)


def _run(command: Command, text: str) -> None:
    command.shell(text, command.beside(via=command.state.via | {"interpreter"}))


def _moved(command: Command, folder: Word) -> None:
    """Another folder to work in, whatever the arguments say."""
    before = len(command.reading.acts)
    acts = command.touch("execute", folder, folder=True, marks=("flag:variable",))
    kept = [act for act in acts if act.scope != "project"]
    command.reading.acts[before:] = [act.but(scope="unknown") for act in kept]


def _searched(command: Command, value: Word) -> None:
    """Folders in which programs and libraries are looked for: a name no longer says which one runs."""
    reading, name = command.reading, command.program
    for text in value.texts:
        for piece in unglobbed(text).split(":"):
            if not piece or (piece == UNKNOWN and name in SEARCHED):
                continue
            marked_piece = TILDE + piece[1:] if piece.startswith("~") else piece
            before = len(reading.acts)
            touch(reading, "execute", name, Word((marked_piece,)), command.state, marks=("flag:variable",))
            for i in range(before, len(reading.acts)):
                if reading.acts[i].scope != "project" or name not in SEARCHED:
                    reading.acts[i] = reading.acts[i].but(scope="unknown")
