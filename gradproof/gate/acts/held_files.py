"""Files that this call wrote or fetched: their text, the host that they came from, and their copies."""

from __future__ import annotations

from collections.abc import Sequence

from gradproof.gate.acts.command import Command
from gradproof.gate.acts.paths import within
from gradproof.gate.acts.shell_state import MOST_HELD, Output, State
from gradproof.gate.acts.targets import resolved
from gradproof.gate.acts.word import Word

RECIPES = frozenset(  # files that say what a program of a folder runs
    (
        *(
            "Makefile",
            "makefile",
            "GNUmakefile",
            "justfile",
            "Taskfile.yml",
            "Rakefile",
            "CMakeLists.txt",
            "package.json",
        ),
        *("setup.py", "pyproject.toml", "conftest.py", "build.gradle", "pom.xml", "build.rs", "Cargo.toml", "tox.ini"),
    )
)


def fetched_from(state: State, path: str) -> str:
    """The host that a file, or a folder that it lies in, came from in this call."""
    if not state.fetched:
        return ""
    return next((host for known, host in state.fetched.items() if within(path, known)), "")


def recipe_from(state: State, folder: str) -> str:
    """The host that a folder came from in this call, or the file that says what is run there."""
    recipes = (host for path, host in state.fetched.items() if path.rpartition("/")[0] == folder and _is_recipe(path))
    return fetched_from(state, folder) or next(recipes, "")


def _is_recipe(path: str) -> bool:
    return path.rpartition("/")[2] in RECIPES


def held(command: Command, words: Sequence[Word]) -> Output | None:
    """The text of files, where this call wrote or fetched them."""
    state, texts = command.state, []
    for word in words:
        paths = resolved(command.reading, word, state)
        host = next((host for path in paths if (host := fetched_from(state, path))), "")
        if host:
            return Output(None, host, False, True)
        if len(paths) != 1 or paths[0] not in state.written:
            return None
        texts.append(state.written[paths[0]])
    return Output("".join(texts), piped=True) if sum(map(len, texts)) <= MOST_HELD else None


def carry_over(command: Command) -> None:
    """What a file holds that this call wrote or fetched, its copy holds as well."""
    state = command.state
    if not state.written and not state.fetched:
        return
    *sources, destination = [word for word in command.words if not word.text.startswith("-")] or [Word()]
    for path in (path for word in sources for path in resolved(command.reading, word, state)):
        for copy in resolved(command.reading, destination, state):
            for there in (copy, f"{copy}/{path.rpartition('/')[2]}"):
                if path in state.written:
                    state.written[there] = state.written[path]
                if host := fetched_from(state, path):
                    state.fetched[there] = host
