"""State: the state of a shell at some point of a call; Output: the input or output of a command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradproof.gate.acts.act import Act, ActScope
from gradproof.gate.acts.paths import UNKNOWN
from gradproof.gate.acts.word import Word

MOST_FOLDERS = 4
MOST_HELD = 2**14  # characters of a file that are kept, twice as many as are read as shell
MOST_DEPTH = 12  # of commands inside commands


@dataclass(frozen=True)
class Output:
    """What a command is fed with, or gives: its text, if that is known; whether it comes from a host, or is secret."""

    text: str | None = None
    fetched: str = ""
    secret: bool = False
    piped: bool = False
    names: tuple[str, ...] = ()  # folders, where it is a list of files below them
    substituted: bool = False  # made by another program, though its text is known

    @classmethod
    def of(cls, acts: Sequence[Act], stdin: Output, text: str | None = None) -> Output:
        """Of a command that did these acts."""
        hosts = [str(act.target) for act in acts if act.effect == "read" and act.scope == "remote"]
        secret = stdin.secret or any(act.effect == "read" and act.scope == "secret" for act in acts)
        return cls(text, hosts[0] if hosts else stdin.fetched, secret, True)


NO_INPUT = Output()


@dataclass
class State:
    """What a shell would know at this point."""

    cwds: tuple[str, ...]
    variables: dict[str, list[Word]] = field(default_factory=dict)
    functions: dict[str, list[Any]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)  # path → what was written to it in this call
    fetched: dict[str, str] = field(default_factory=dict)  # path → the host that it came from
    via: frozenset[str] = frozenset()
    elsewhere: tuple[ActScope, str] | None = None  # where ssh, docker exec and the like have gone
    parameters: tuple[Word, ...] | None = None
    unsure: bool = False  # inside a branch or a loop: what is assigned may not be
    strict: bool = False  # set -e
    venv: bool = False  # a virtual environment of the project is in use
    context: frozenset[str] = frozenset()  # variables and wrappers that every command here runs under
    sockets: dict[str, Act] = field(default_factory=dict)  # descriptor → what opened it to /dev/tcp/HOST/PORT
    stdout: Act | None = None  # what `exec >/dev/tcp/HOST/PORT` has opened: all that is printed goes there

    def copy(self) -> State:
        return replace(
            self,
            variables=dict(self.variables),
            functions=dict(self.functions),
            aliases=dict(self.aliases),
            written=self.written,
            fetched=self.fetched,
            sockets=dict(self.sockets),
        )


def either_folder(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    """Folders that may be the current one."""
    both = tuple(dict.fromkeys((*first, *second)))
    return both if len(both) <= MOST_FOLDERS else (UNKNOWN,)


def appended(first: Output, second: Output) -> Output:
    text = None if first.text is None or second.text is None else first.text + second.text
    names = second.names if first.text == "" else first.names if second.text == "" else ()
    return Output(text, first.fetched or second.fetched, first.secret or second.secret, True, names)
