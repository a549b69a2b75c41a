"""Shell, parsed with tree-sitter-bash: the programs that run, with their words, folder and input.

The reader follows what the shell itself would know: literals assigned in the same call, words of a loop, the folder
after `cd`, functions and aliases, heredocs, substitutions. What it cannot know is UNKNOWN in a word. A node of error,
and text beyond the cap, become an act `unknown` beside what could be read.
"""

from __future__ import annotations

import re
from dataclasses import replace
from time import thread_time
from typing import TYPE_CHECKING

from gradproof.gate.acts.act import Act, unknown
from gradproof.gate.acts.paths import UNKNOWN, Surroundings
from gradproof.gate.acts.shell_state import MOST_DEPTH, NO_INPUT, Output, State
from gradproof.gate.acts.shell_text import (
    BLANK_LINES,
    decoded,
    error_ends,
    last_end,
    parser,
    set_aside,
    too_deep,
    unchained,
)
from gradproof.gate.acts.shell_walk import RESERVE, Walk
from gradproof.gate.acts.unread import BYTES_PER_WORK, unread
from gradproof.gate.acts.word import UnreadableError, Word

if TYPE_CHECKING:
    from tree_sitter import Node

MOST_TEXT = 8 * 2**10  # bytes of shell that are parsed; quoted heredocs apart
MOST_WORK = 600.0  # that one call is worth: one for a command, half as much again for an act, a tenth for a word
FIRST_PIECE = 2**10
MOST_ERRORS = 16  # in a piece of a longer text
WORK_OF_ERROR = 1.5
MOST_SECONDS = 0.0025  # for the pieces of a call with errors in them: twice as much would take four times as long
PATIENCE = 0.002  # seconds for a piece without one, ten times what it takes: what no bound above has foreseen
OTHER_SHELL = re.compile(
    r"(?mi)^[^\S\n]*(?:\$[a-z_]\w*\s*=\s|(?:get|set|remove|new|invoke|start|stop|write|import|copy|move|test|add|clear|out)-[a-z]+\b"
    r"|set -[lgxUe]{1,2} \w+ \S|end\s*$|function \w+\s*$|for \w+ in [^;\n]*\n(?!\s*do\b)\s*\w+[^\n]*\nend\b)"
)


class Reading:
    """One call being read: its surroundings, and the acts so far."""

    def __init__(self, around: Surroundings):
        self.around = around
        self.acts: list[Act] = []
        self.depth = 0
        self.parsed = 0
        self.written: dict[str, str] = {}  # path → what was written to it in this call, or before it
        self.fetched: dict[str, str] = {}  # path → the host that it came from
        self.explained: set[str] = set()  # words that are targets of acts
        self.running: set[int] = set()  # functions that are being read
        self.called: set[int | str] = set()  # functions and aliases that were read
        self.commands = 0
        self.left = MOST_WORK
        self.errors = 0  # in what was parsed
        self.seconds = 0.0  # that the parser has taken over them
        self.walks: list[Walk] = []  # that are under way, the innermost last
        self.exhausted = False
        self.piped = False  # inside a pipe
        self.past = False  # an earlier call is read, not this one
        self.connected = False  # what is open may be written to by any later command: a socket, a coprocess, a pipe
        self._unknown: set[Act] = set()

    def pay(self, work: float = 1.0) -> None:
        """For what is read; UnreadableError when the call has had its share."""
        self.left -= work
        if self.left < 0:
            raise UnreadableError

    def state(self) -> State:
        return State((self.around.cwd,), written=self.written, fetched=self.fetched)

    def unknown(self, program: str, why: str, state: State | None = None) -> None:
        act = unknown(program, why, state.via if state else frozenset())
        if act not in self._unknown:
            self._unknown.add(act)
            self.acts.append(act)

    # texts

    def shell(self, text: str, state: State, stdin: Output = NO_INPUT) -> Output:
        """Reads a piece of shell in a state, which it changes."""
        self.depth += 1
        try:
            if self.depth > MOST_DEPTH:
                self.unknown("sh", "too many commands inside commands", state)
                return Output()
            if UNKNOWN in text:
                self.unknown("sh", "a command that is made while it runs", state)
                text = text.replace(UNKNOWN, "?")
            return self._shell(text, state, stdin)
        finally:
            self.depth -= 1

    def _shell(self, text: str, state: State, stdin: Output) -> Output:
        room = MOST_TEXT - self.parsed if self.left >= RESERVE else 0
        if text and room <= 0:
            self._leave(text, state)
            return Output()
        short, bodies = set_aside(text) if "<<" in text else (text, [])
        short = BLANK_LINES.sub("\n", short)
        source = short.encode("utf-8", "replace")
        if len(source) > room:
            source = self._cut(source, room, state)
        if (nested := too_deep(source)) is not None:
            source = self._cut(source, nested, state)
        if short and not source:
            return Output()  # all of it is beyond what is read
        root = self.tree(source, state)
        if root.has_error or OTHER_SHELL.search(short[:MOST_TEXT]):
            self.unknown("sh", "shell that cannot be parsed", state)
        self.walks.append(Walk(self, bodies, source))
        output = self.walks[-1].statements(root.children, state, stdin)
        self.walks[-1].look_back(root, state)
        self.walks.pop()
        return output

    def left_defined(self, state: State) -> None:
        """Functions and aliases that the call defines and does not use: the shell may, and so may a later call."""
        for bodies in state.functions.values():
            for walk, body in bodies:
                if body.id not in self.called:
                    walk.call(body, state.copy(), [Word((UNKNOWN,))], NO_INPUT)
        for name, text in state.aliases.items():
            if name not in self.called:
                self.shell(text, replace(state.copy(), aliases={}))

    def rest(self) -> str:
        """What was not read of the texts under way: from the command on that is being read; around it, behind it."""
        *around, innermost = self.walks or [Walk(self, ())]
        texts = [walk.source[walk.behind :] for walk in around] + [innermost.source[innermost.at :]]
        return b"\n".join(texts).decode("utf-8", "replace")

    def tree(self, source: bytes, state: State) -> Node:
        """The tree of a text. The parser takes long over errors, more than twice as long over twice the text, and
        cannot be stopped: a long text is tried by its beginning first, and where that is wrong or takes long, the rest
        is not read. Errors are paid for."""
        self.pay(len(source) / BYTES_PER_WORK)
        whole, source = source, unchained(source)
        if source is not whole:
            self.unknown("sh", "more commands joined than are read together", state)
        size = FIRST_PIECE
        while size < len(source):
            end = last_end(source, size)
            piece = source[: end if end > size // 2 else size]
            started = thread_time()
            root = parser().parse(piece).root_node
            errors = error_ends(root)
            self.seconds += max(0.0, thread_time() - started - (0.0 if errors else PATIENCE))
            wrong = len(errors) > MOST_ERRORS or any(end < len(piece) - size // 4 for end in errors)
            if wrong or self.seconds > MOST_SECONDS:
                self.parsed += len(piece)
                self.pay_for_errors(len(errors))
                self._cut(source, len(piece), state)  # its last command as well, which may not have been read
                return root
            size *= 2
        root = parser().parse(source).root_node
        self.parsed += len(source)
        self.pay_for_errors(len(error_ends(root)))
        return root

    def pay_for_errors(self, errors: int) -> None:
        """Those of a text that was parsed: they leave less work for what comes after it, but some."""
        self.errors += errors
        self.left -= min(errors * WORK_OF_ERROR, max(0.0, self.left - RESERVE))

    def _cut(self, source: bytes, room: int, state: State) -> bytes:
        """As much as is parsed, up to the end of a command."""
        end = last_end(source, max(0, room))
        self._leave(decoded(source, end, len(source)), state)
        return source[:end]

    def _leave(self, text: str, state: State) -> None:
        """Text that is not parsed."""
        self.unknown("sh", "more text than is read", state)
        self.acts += unread(text, state)
