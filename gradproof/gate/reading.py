"""A call as it is decided, learned and stored: its acts, with a text for each.

Bash                        the tool; every tool that runs shell commands is called so
command: rm -rf build       the one command that does the act, or the arguments of the call
act: delete project rm …    what it does, where, to what and how (`features.line`)
"""

from __future__ import annotations

from collections.abc import Sequence
from os.path import abspath, expanduser
from pathlib import Path
from typing import NamedTuple

from gradproof.gate import MISSING_EXTRA, calls
from gradproof.gate.acts.act import Act, unknown
from gradproof.gate.acts.paths import Surroundings
from gradproof.gate.acts.shell_tools import is_shell
from gradproof.gate.acts.tools import read_call
from gradproof.gate.calls import Call
from gradproof.gate.features import line
from gradproof.gate.secrets import Redactor
from gradproof.gate.standing import ActVerdict, PolicyTable, standing, worst


class ReadCall(NamedTuple):
    """What a call does: `acts`, what the policy says of each, and `worst`, the one that decides."""

    acts: list[Act]
    verdicts: list[ActVerdict]
    worst: int
    around: Surroundings


class GatePlace(NamedTuple):
    """Where the gate itself is: its store, and the port of its service."""

    store: Path | None = None
    port: int = 0


def surroundings(call: Call, gate: GatePlace | None = None, home: str = "") -> Surroundings:
    """Where a call is made; `home` is that of who makes it, where that is another user than the gate's."""
    store, port = gate or GatePlace()
    return Surroundings.of(call.cwd, home or expanduser("~"), abspath(store) if store is not None else "", port)


def read(
    call: Call, gate: Path | GatePlace | None = None, policy: PolicyTable | None = None, home: str = ""
) -> ReadCall:
    """Reads a call; what cannot be read is an act `unknown`, never an exception."""
    around = surroundings(call, gate if isinstance(gate, GatePlace) else GatePlace(gate), home)
    history = [(past.tool, past.arguments) for past in call.history]
    try:
        acts = read_call(call.tool, call.arguments, around, call.annotations, history)
    except Exception as error:
        if str(error) == MISSING_EXTRA:
            raise
        acts = [unknown(call.tool, f"reading it failed: {type(error).__name__}")]
    verdicts = [standing(act, around, policy) for act in acts]
    return ReadCall(acts, verdicts, worst(verdicts), around)


def act_texts(call: Call, acts: Sequence[Act], key: bytes | Redactor = b"") -> list[str]:
    """The text of each act, as the model reads it and as it is stored: without secrets."""
    redactor = Redactor.of(key)
    shell = is_shell(call.tool, call.arguments)
    said = {"": calls.text(Call("Bash" if shell else call.tool, call.arguments), redactor)}
    texts: list[str] = []
    for act in acts:
        if act.text not in said:
            said[act.text] = calls.text(Call("Bash", {"command": act.text}), redactor) if shell else said[""]
        texts.append(f"{said[act.text]}\n{redactor.text(line(act))}")
    return texts


def learned_texts(labelled: tuple[Call, bool]) -> list[str]:
    """What a made-up call and its label teach: allow every act, or block the one that the policy is strictest with."""
    call, allow = labelled
    done = read(call)
    texts = act_texts(call, done.acts)
    return list(dict.fromkeys(texts)) if allow else texts[done.worst : done.worst + 1]
