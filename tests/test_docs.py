"""Every command and every Python block of the README and the docs runs, and prints what the page shows.

A page is walked from top to bottom in an empty folder (`tests/pages.py` has the rules). The fast test of a page leaves
out what is marked slow; `make test-slow` walks the whole page.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pages
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A fork of a process that has imported torch starts in no time; it has computed nothing, so every command starts fresh.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "gradproof", "gradproof.cli", "gradproof.proof.module", "gradproof.diagnosis"])


class Reader:
    """Somebody who types what a page shows, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.status, self.id = 0, "ID"
        self.background: list[subprocess.Popen[bytes]] = []
        home = folder.parent / "home"
        home.mkdir()
        self.environment = {
            **os.environ,
            "COLUMNS": "80",
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),  # of proven kernels
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "TRITON_INTERPRET": "1",
        }
        self.environment.pop("GRADPROOF_GATE", None)

    def types(self, command: str) -> str:
        """Runs a command and returns what a terminal would show of it; ID stands for the id that was printed last."""
        command = re.sub(r"\bID\b", self.id, command)
        printed = self._command(command)
        printed = re.sub(r"gradproof: proving \d+ kernels? for this machine .*\n", "", printed)  # or was, before
        self.id = next(iter(re.findall(r'"id": "(\w+)"', printed)), self.id)
        return printed

    def _command(self, command: str) -> str:
        arguments = pages.plain(command)
        if command.endswith("&"):
            return self._starts(command)
        if arguments is None:
            return self._shell(command)
        output = self.folder.parent / "printed"
        process = FORKS.Process(target=_run, args=(arguments, self.folder, self.environment, output))
        process.start()
        process.join(600)
        self.status = process.exitcode if process.exitcode is not None else -1
        return output.read_text()

    def _starts(self, command: str) -> str:
        """A command in the background, and its first line; it is stopped at the end of the page."""
        printed = self.folder.parent / f"background-{len(self.background)}"
        with open(printed, "w") as file:
            words = shlex.split(command.removesuffix("&"))
            started = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=file, stderr=file)
        self.background.append(started)
        for _ in range(600):
            if printed.read_text().endswith("\n") or started.poll() is not None:
                break
            time.sleep(0.1)
        return printed.read_text()

    def leaves(self) -> None:
        """Stops what still runs."""
        for process in self.background:
            process.terminate()
            process.wait(60)

    def runs(self, block: pages.Block) -> str:
        """Runs a Python block that is no file."""
        return self._shell(f"{sys.executable} -W error::DeprecationWarning:__main__ - <<'END'\n{block.text}\nEND")

    def _shell(self, command: str) -> str:
        ended = subprocess.run(
            ["bash", "-c", f"(exit {self.status})\n{command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        self.status = ended.returncode
        return ended.stdout


def _run(arguments: list[str], folder: Path, environment: dict[str, str], output: Path) -> None:
    """In the fork: the command line with its own folder, environment and output."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    sys.path.insert(0, "")
    sys.argv = ["gradproof", *arguments]
    from gradproof.cli import main

    try:
        main()
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def walk(page: Path, folder: Path, slow: bool) -> None:
    """Types the page; all disagreements are told together."""
    reader = Reader(folder)
    try:
        wrong = disagreements(reader, page, slow)
    finally:
        reader.leaves()
    assert not wrong, "\n\n".join(wrong)


def disagreements(reader: Reader, page: Path, slow: bool) -> list[str]:
    """Where the page shows something else than what is printed."""
    wrong, folder = [], reader.folder
    for block in pages.blocks(page):
        where = f"{page.name}:{block.line}"
        if block.skip or (block.slow and not slow):
            continue
        if block.title:
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text + "\n")
        elif block.language == "python":
            printed = reader.runs(block)
            if reader.status:
                wrong.append(f"{where}: the Python block ends with {reader.status}\n{printed}")
        else:
            for command, expected in block.commands():
                printed = reader.types(command)
                if not pages.agrees(expected, printed):
                    wrong.append(f"{where}: $ {command}\nshown:\n{expected}\nprinted:\n{printed}")
    return wrong


def empty(folder: Path) -> Path:
    """A folder to type in; the reader's home lies beside it."""
    (folder / "here").mkdir()
    return folder / "here"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, tmp_path):
    walk(page, empty(tmp_path), slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_with_its_slow_parts(page, tmp_path):
    if not any(block.slow for block in pages.blocks(page)):
        pytest.skip("no part of the page is slow")
    walk(page, empty(tmp_path), slow=True)


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("proven in 1.3 s", "proven in 1.32 s", True),
        ("proven in 1.3 s", "refuted in 1.3 s", False),
        ("error 1.3e-12", "error 8.8e-13", True),
        ("error 1.0e-02", "error 2.0e-02", False),
        ("6 of 6 tensors", "5 of 6 tensors", False),
        ("finished in … s\n80.0%", "finished in 17 s\n80.1%", True),
        ("finished in … s\n80.0%", "finished in 17 s\n50.1%", False),
        ("one\n…\nfour", "one\ntwo\nthree\nfour", True),
        ("…\nfour", "three\nfour", True),
        ("…\nfour", "four", True),
        ("…\nfour", "forty-four", False),
        ("", "a warning", False),
    ],
)
def test_what_may_vary(expected, printed, same):
    assert pages.agrees(expected, printed) is same


def test_a_command_that_prints_something_else_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo proven\nrefuted\n```\n")
    with pytest.raises(AssertionError, match="echo proven"):
        walk(page, empty(tmp_path), slow=False)


def test_pages_are_in_the_navigation():
    """A page that is not listed in mkdocs.yml is never found by a reader."""
    listed = set(re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text()))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert there <= listed, there - listed


def test_what_is_not_run_says_why():
    """`<!-- skip -->` needs a reason."""
    for page in PAGES:
        for line in re.findall(r"<!-- skip.*-->", page.read_text()):
            assert pages.MARK.match(line) and ": " in line, f"{page.name}: {line}"
