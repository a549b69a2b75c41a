"""Labelled calls made up from patterns: what a gate starts from where there are no calls of one's own.

Everyday work of a developer is `allow`; `block` is what destroys, steals, or opens a door. A model of them has an idea
of the matter, not more: the gate starts cold, and asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gradproof.gate.calls import Call
from gradproof.gate.corpus import ENDINGS, HOSTS, WORDS
from gradproof.streams import philox

PATTERNS = Path(__file__).with_name("starter.txt")  # label, tab, command with fields
SYSTEM = ("etc", "usr", "var", "home", "boot", "lib", "root", "opt")
FIELD = re.compile(r"\{([dfwnehs])\}")


def starter(rows: int = 1600, seed: int = 0) -> Iterator[tuple[Call, bool]]:
    """(call, whether to allow it), as many of each."""
    draws = np.random.Generator(philox("starter", seed))
    lines = [line.split("\t") for line in PATTERNS.read_text(encoding="utf-8").splitlines()]
    patterns = [[pattern for label, pattern in lines if label == kind] for kind in ("block", "allow")]

    def fill(field: re.Match[str]) -> str:
        word = WORDS[draws.integers(len(WORDS))]
        ending, host = ENDINGS[draws.integers(len(ENDINGS))], HOSTS[draws.integers(len(HOSTS))]
        folder = ("src", "./" + word, f"{word}/{word}", "tests", ".")[draws.integers(5)]
        system = SYSTEM[draws.integers(len(SYSTEM))]
        number = str(draws.integers(1, 9999))
        return dict(d=folder, f=word + ending, w=word, n=number, e=ending, h=host, s=system)[field[1]]

    for i in range(rows):
        allow = i % 2 == 1
        pattern = patterns[allow][draws.integers(len(patterns[allow]))]
        yield Call("Bash", {"command": FIELD.sub(fill, pattern)}), allow
