"""Command: one command as it is run, and the readers that commands have.

A few programs take other commands, code or a language of their own as arguments; READERS has a function for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradproof.gate.acts.act import NOTHING, Act, ActScope, ActTarget, Effect
from gradproof.gate.acts.knowledge import Deed
from gradproof.gate.acts.paths import TILDE, UNKNOWN, from_home, unglobbed
from gradproof.gate.acts.shell import Reading
from gradproof.gate.acts.shell_state import NO_INPUT, Output, State
from gradproof.gate.acts.targets import WORK_OF_ACT, touch
from gradproof.gate.acts.word import Word

CommandReader = Callable[["Command"], "Output | None"]
READERS: dict[str, CommandReader] = {}
BUILTINS: dict[str, CommandReader] = {}


def reader(name: str) -> Callable[[CommandReader], CommandReader]:
    """Makes a function the reader of that name in effects.toml."""

    def keep(function: CommandReader) -> CommandReader:
        READERS[name] = function
        return function

    return keep


def builtin(*names: str) -> Callable[[CommandReader], CommandReader]:
    def keep(function: CommandReader) -> CommandReader:
        BUILTINS.update(dict.fromkeys(names, function))
        return function

    return keep


@dataclass
class Command:
    """One command as it is run: the program, its words, what it is fed with."""

    reading: Reading
    program: str
    words: list[Word]
    state: State
    stdin: Output = NO_INPUT
    walk: Any = None
    deed: Deed = field(default_factory=Deed)
    verb: str = ""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]

    def act(
        self, effect: Effect, scope: ActScope, target: ActTarget = NOTHING, *, marks: Sequence[str] = (), why: str = ""
    ) -> Act:
        """Adds an act; where the command runs elsewhere, its scope is there."""
        if self.state.elsewhere is not None and scope not in ("unknown", "remote"):
            scope, host = self.state.elsewhere
            target = ActTarget("host", host, target.folder, target.amount, str(target) if target.name else "")
        if scope == "local" and target.kind == "host" and _is_port(target.within, self.reading.around.port):
            scope = "own"
        self.reading.pay(WORK_OF_ACT)
        done = Act(effect, self.program, scope, self.verb, target, self.state.via, frozenset(marks), why)
        self.reading.acts.append(done)
        return done

    def unknown(self, why: str) -> None:
        self.reading.unknown(self.program, why, self.state)

    def touch(self, effect: Effect, word: Word, *, folder: bool = False, marks: Sequence[str] = ()) -> list[Act]:
        """An act on a path."""
        return touch(self.reading, effect, self.program, word, self.state, verb=self.verb, folder=folder, marks=marks)

    def said(self, word: Word) -> str:
        """A word as a program prints it: with the home that ~ stands for, which is not known elsewhere."""
        if len(word.texts) != 1 or (self.state.elsewhere is not None and word.texts[0].startswith(TILDE)):
            return UNKNOWN
        return unglobbed(from_home(word.texts[0], self.reading.around.home))

    def explain(self, *words: Word | None) -> None:
        """These words are what an act says already; a correction does not compare them once more."""
        self.reading.explained.update(text for word in words if word is not None for text in word.texts)

    def shell(self, text: str, state: State | None = None, stdin: Output = NO_INPUT) -> Output:
        return self.reading.shell(text, state or self.state, stdin)

    def again(self, words: Sequence[Word], state: State | None = None, stdin: Output | None = None) -> Output:
        """Runs other words as a command: what a wrapper wraps."""
        from gradproof.gate.acts.programs import run

        if not words:
            return Output()
        return run(self.reading, list(words), state or self.state, self.stdin if stdin is None else stdin, self.walk)

    def beside(self, **changes: Any) -> State:
        """A state of its own, with changes."""
        return replace(self.state.copy(), **changes)


def _is_port(within: str, port: int) -> bool:
    """Whether what is reached on this machine is the gate's own port."""
    return bool(port) and (within == f":{port}" or within.startswith(f":{port}/"))


def replace_words(command: Command, words: list[Word], state: State, program: str) -> Command:
    return Command(command.reading, program, words, state, command.stdin, command.walk)
