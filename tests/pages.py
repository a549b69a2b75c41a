"""The blocks of a page of the docs, and how its output is compared with what a command prints.

- A `python` block is run. A block with title="NAME" is written to that file instead.
- In a `console` block each line that begins with `$ ` is typed into a shell, and its output is compared with the lines
  below. A command continues on the next line after a backslash; one that ends in `&` runs until the end of the page.
- A comment above a block marks it: `<!-- skip: it needs a GPU -->`, `<!-- slow -->` (a slow test), and
  `<!-- needs: polars -->` (skipped if the package is missing).
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<fence>```+)(?P<language>\w*)(?P<options>[^`]*)$")
MARK = re.compile(r"^<!-- (?P<name>skip|slow|needs)(?:: (?P<text>.*))? -->$")
NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
NOISE = 1e-4  # figures below it, in e notation, are rounding errors, which differ from machine to machine


@dataclass(frozen=True)
class Block:
    """A fenced block, with its marks."""

    line: int
    language: str
    text: str
    title: str = ""
    slow: bool = False
    skip: str = ""

    def commands(self) -> list[tuple[str, str]]:
        """Each command of a console block, and what it should print."""
        typed: list[tuple[str, list[str]]] = []
        continued = False
        for line in self.text.splitlines():
            if continued:
                typed[-1] = (f"{typed[-1][0]}\n{line}", typed[-1][1])
            elif line.startswith("$ "):
                typed.append((line[2:], []))
            elif typed:
                typed[-1][1].append(line)
            else:
                raise ValueError(f"line {self.line}: a console block begins with a command, `$ …`")
            continued = (continued or line.startswith("$ ")) and line.endswith("\\")
        return [(command, "\n".join(printed)) for command, printed in typed]


def blocks(page: Path) -> list[Block]:
    """All blocks of a page that are to be run or written, in their order."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    for number, line in lines:
        mark, fence = MARK.match(line), FENCE.match(line)
        if mark:
            marks[mark["name"]] = mark["text"] or ""
        elif fence:
            text = []
            for _, inner in lines:
                if inner.startswith(fence["fence"]):
                    break
                text.append(inner)
            title = re.search(r'title="([^"]*)"', fence["options"])
            block = _marked(marks, number, fence["language"], "\n".join(text), title[1] if title else "")
            if block.title or block.language in ("python", "console"):
                found.append(block)
            marks = {}
        elif line.strip():
            marks = {}
    return found


def _marked(marks: dict[str, str], line: int, language: str, text: str, title: str = "") -> Block:
    missing = [name for name in marks.get("needs", "").split(", ") if name and not importlib.util.find_spec(name)]
    skip = marks.get("skip", f"{', '.join(missing)} is missing" if missing else "")
    return Block(line, language, text, title, "slow" in marks, skip)


def agrees(expected: str, printed: str) -> bool:
    """Whether a command printed what the page shows.

    `…` or `...` matches anything; where it comes first, also nothing. Any white space counts as one space. Integers and
    words must be equal. Numbers with decimals may differ by 5%, those below 1e-4 in e notation, which are rounding
    errors, by a factor of 100.
    """
    wanted, got = " ".join(expected.split()), " ".join(printed.split())
    numbers: list[str] = []
    parts = []
    if wanted.startswith("… "):
        parts, wanted = ["(?:.*? )?"], wanted[2:]
    for piece in re.split(r"(\.\.\.|…)", wanted):
        at = 0
        for number in NUMBER.finditer(piece):
            parts += [re.escape(piece[at : number.start()]), f"({NUMBER.pattern})"]
            numbers.append(number[0])
            at = number.end()
        parts.append(".*?" if piece in ("...", "…") else re.escape(piece[at:]))
    found = re.fullmatch("".join(parts), got, re.DOTALL)
    return bool(found) and all(near(*pair) for pair in zip(numbers, found.groups(), strict=True))


def near(wanted: str, got: str) -> bool:
    """Whether two numbers are near enough to be the same figure on another machine."""
    if re.fullmatch(r"[-+−]?[\d,]+", wanted):
        return wanted == got
    a, b = (float(number.replace(",", "").replace("−", "-")) for number in (wanted, got))
    if "e" in wanted and abs(a) < NOISE:
        return a == b or (a * b > 0 and 0.01 < a / b < 100)
    return abs(a - b) <= 0.05 * max(abs(a), abs(b))


def plain(command: str) -> list[str] | None:
    """The arguments of a gradproof command that needs no shell, else None."""
    if re.search(r"[|&;<>$*`\n]", re.sub(r"'[^']*'", "", command)):
        return None
    words = shlex.split(command)
    return words[1:] if words[0] == "gradproof" else None
