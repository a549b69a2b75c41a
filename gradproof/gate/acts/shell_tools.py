"""Tools that are given a shell command, or a program and its words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gradproof.gate.acts.arguments import (
    ENVIRONMENT_ARGUMENTS,
    FOLDER_ARGUMENTS,
    INPUT_ARGUMENTS,
    PROGRAM_ARGUMENTS,
    SHELL_ARGUMENTS,
    WORD_ARGUMENTS,
)
from gradproof.gate.acts.command import BUILTINS, Command
from gradproof.gate.acts.knowledge import knowledge
from gradproof.gate.acts.paths import TILDE
from gradproof.gate.acts.programs import run
from gradproof.gate.acts.shell import Reading
from gradproof.gate.acts.shell_state import NO_INPUT, Output, State
from gradproof.gate.acts.tool_names import FILE_TOOLS, SHELL_NAMES, base_name
from gradproof.gate.acts.variables import assigned
from gradproof.gate.acts.word import Word

PROGRAM = re.compile(r"[\w./+@:,=~-]+")


def is_shell(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call holds a shell command."""
    name = base_name(tool)
    if name in SHELL_NAMES or _started(arguments):
        return True
    if tool.lower() == "slashcommand":  # of the agent, not of a shell
        return False
    command = next((arguments[key] for key in SHELL_ARGUMENTS if key in arguments), None)
    if command is None:
        return False
    if name in ("str_replace_editor", "str_replace_based_edit_tool"):
        return False
    return isinstance(command, str | list | Mapping) and (name not in FILE_TOOLS or "path" not in arguments)


def _started(arguments: Mapping[str, Any]) -> list[str]:
    """A program and its arguments, given as such: `{"argv": [...]}`, `{"program": "rm", "args": [...]}`."""
    argv = arguments.get("argv")
    if isinstance(argv, list) and argv and all(isinstance(word, str) for word in argv):
        return argv
    program = next((arguments[key] for key in PROGRAM_ARGUMENTS if isinstance(arguments.get(key), str)), None)
    words = _program_words(arguments)
    return [program, *words] if program is not None and words is not None else []


def _program_words(arguments: Mapping[str, Any]) -> list[str] | None:
    """The words that a program is to be run with, in an argument of their own."""
    for key in WORD_ARGUMENTS:
        given = arguments.get(key)
        if isinstance(given, list) and all(isinstance(word, str) for word in given):
            return given
        if isinstance(given, str):
            return given.split()
    return None


def shell_tool(reading: Reading, tool: str, arguments: Mapping[str, Any], state: State) -> None:
    given = next((arguments[key] for key in SHELL_ARGUMENTS if key in arguments), None)
    if given is None:
        given = _started(arguments) or next(
            (v for v in arguments.values() if isinstance(v, str | list | Mapping)), None
        )
    fed = next((arguments[key] for key in INPUT_ARGUMENTS if isinstance(arguments.get(key), str)), None)
    stdin = NO_INPUT if fed is None or fed is given else Output(fed, piped=True)
    named = [value for key, value in arguments.items() if key.lower() in FOLDER_ARGUMENTS and value]
    folders = sorted({value for value in named if isinstance(value, str)})
    if len(folders) != 1 and named:
        reading.unknown(tool, "which folder the command runs in")
    for folder in folders[:1]:
        inner = Command(reading, "cd", [Word((TILDE + folder[1:] if folder.startswith("~") else folder,))], state)
        BUILTINS["cd"](inner)
    if isinstance(given, Mapping):
        shell_tool(reading, tool, given, state)
    elif isinstance(given, list) and all(isinstance(word, str) for word in given):
        if arguments.get("shell") not in (None, False):
            reading.shell(" ".join(given), state, stdin)
        elif given is arguments.get("commands"):
            for one in given:
                reading.shell(one, state, stdin)
        else:
            _words(reading, given, state, stdin)
    elif isinstance(given, list):
        for one in given:
            shell_tool(reading, tool, {"command": one} if not isinstance(one, Mapping) else one, state)
    elif isinstance(given, str):
        args = _program_words(arguments)
        written = next((arguments[key] for key in WORD_ARGUMENTS if isinstance(arguments.get(key), str)), "")
        if written:
            reading.shell(f"{given} {written}", state, stdin)
        elif args is not None and " " not in given:
            if PROGRAM.fullmatch(given):
                _words(reading, [given, *args], state, stdin)
            else:  # what no program is called is meant for a shell
                reading.shell(" ".join((given, *map(shlex.quote, args))), state, stdin)
                if args:  # the tool may as well run it without them
                    reading.shell(given, reading.state())
        else:
            reading.shell(given, state, stdin)
        name = base_name(tool)  # a tool that is called like a program may be given its words alone
        if name in knowledge().programs and given.split()[:1] != [name]:
            reading.shell(f"{name} {given}", reading.state())
        for key in SHELL_ARGUMENTS:  # which of several is run, the tool knows
            if isinstance(other := arguments.get(key), str) and other != given:
                reading.shell(other, reading.state())
    elif given is None:
        if not arguments:
            reading.unknown(tool, "a shell without a command")
        else:
            reading.unknown(tool, "a command that is no text")
    else:
        reading.unknown(tool, "a command that is no text")
    reading.left_defined(state)
    for environment in (arguments[key] for key in ENVIRONMENT_ARGUMENTS if key in arguments):
        if isinstance(environment, list):
            pairs = (text.partition("=") for text in environment if isinstance(text, str))
            environment = {name: value for name, _, value in pairs}
        for name, value in environment.items() if isinstance(environment, Mapping) else ():
            if isinstance(value, str):
                assigned(reading, str(name), [Word((value,))], state)


def _words(reading: Reading, words: Sequence[str], state: State, stdin: Output = NO_INPUT) -> None:
    """A list: one command as words, or a list of whole commands."""
    if (len(words) > 1 and all(" " in word for word in words)) or (len(words) == 1 and not PROGRAM.fullmatch(words[0])):
        for text in words:
            reading.shell(text, state, stdin)
        return
    if words:
        run(reading, [Word((word,)) for word in words], state, stdin, None)
