"""Generated labelled calls, from which a gate starts if there are none of your own.

Shell commands come from patterns: everyday work of a developer is `allow`; `block` is what destroys, steals, opens a
door, or looks for one. Calls of all kinds come from `made/`. A model of them has an idea of the matter, not more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gradproof.gate import folds
from gradproof.gate.calls import Call, leaves
from gradproof.gate.corpus import ENDINGS, HOSTS, WORDS, listed
from gradproof.gate.made import made
from gradproof.gate.parallel_reading import mapped
from gradproof.gate.reading import learned_texts
from gradproof.streams import philox

PATTERNS = Path(__file__).with_name("starter.txt")  # label, tab, command with ⟨one¦or the other⟩ and fields
CHOICE, FIELD = re.compile(r"⟨([^⟨⟩]*)⟩"), re.compile(r"\{([a-z])\}")
SYSTEM = listed("etc usr var home boot lib root opt")
SHELLS = listed("/bin/sh /bin/bash sh bash /bin/sh /bin/bash /bin/dash zsh /usr/bin/bash")
NETCATS = listed("nc ncat netcat nc /bin/nc nc.traditional")
PYTHONS = listed("python python3 python2 python python2.7 /usr/bin/python3")
STRANGERS = listed("attacker evil c2 listener $RHOST $IP $HOST")
PORTS = listed("4444 1337 9001 443 8080 53 $PORT")
TREASURES = listed("/etc/passwd /etc/shadow ~/.ssh/id_rsa ~/.aws/credentials /etc/hosts /root ~/.ssh $HOME /var/www")
HIDEOUTS = listed("/tmp/ /tmp/. /var/tmp/ /dev/shm/ /tmp/ ./")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
BASE64 = LETTERS.upper() + LETTERS + "0123456789+/"
ONCE = "iptvx"  # fields that mean the same wherever they stand in one command


class Amounts(NamedTuple):
    """How many calls come from patterns to block, from patterns to allow, and from `made`."""

    harmful: int
    harmless: int
    of_all_kinds: int


ALONE, BESIDE = (
    Amounts(6000, 3000, 6000),
    Amounts(20_000, 3000, 3000),
)  # of calls of one's own; chosen on left-out sources


class MadeUp(NamedTuple):
    """Texts of acts, and whether to allow them."""

    texts: Sequence[str]
    allow: Sequence[bool]


def starter(seed: int = 0, amounts: Amounts | None = None) -> Iterator[tuple[Call, bool]]:
    """(call, whether to allow it). The more choices a pattern has, the oftener it is drawn: it means more calls."""
    amounts = amounts or ALONE
    fill, (block, allow, harm) = Fill(seed), patterns()
    for own, rows in (((*block, *harm), amounts.harmful), (allow, amounts.harmless)):
        weighted = [pattern for pattern in own for _ in range(1 + pattern.count("¦"))]
        for command in dict.fromkeys(fill(fill.one(weighted)) for _ in range(rows)):
            yield Call("Bash", {"command": command}), own is allow
    for one in made(seed, amounts.of_all_kinds):
        yield one.call, one.allow


@cache
def made_up(unlike: tuple[str, ...] = (), form: Callable[[Call], Call] = lambda call: call, seed: int = 0) -> MadeUp:
    """What all of these calls teach, but those that repeat or half resemble one of these texts; `form` is how a call is
    written before it is read."""
    calls = [(form(call), allow) for call, allow in starter(seed, BESIDE)]
    if unlike:
        kept = set(folds.unlike(list(dict.fromkeys(_values(call) for call, _ in calls)), unlike))
        calls = [(call, allow) for call, allow in calls if _values(call) in kept]
    taught = mapped(learned_texts, calls)
    rows = [(text, allow) for texts, (_, allow) in zip(taught, calls, strict=True) for text in texts]
    return MadeUp([text for text, _ in rows], [allow for _, allow in rows])


def _values(call: Call) -> str:
    return "\n".join(value for _, value in leaves("", call.arguments))


@cache
def patterns() -> tuple[list[str], list[str], list[str]]:
    """Those of calls to block, of calls to allow, and of harm: what an intruder does, and at times an administrator."""
    lines = [line.split("\t", 1) for line in PATTERNS.read_text(encoding="utf-8").splitlines()]
    block, allow, harm = ([own for label, own in lines if label == kind] for kind in ("block", "allow", "harm"))
    return block, allow, harm


class Fill:
    """`Fill(seed)(pattern)`: a command, its choices made and its fields filled."""

    def __init__(self, seed: int):
        self._draws = np.random.Generator(philox("starter", seed))
        self._same: dict[str, str] = {}

    def __call__(self, pattern: str) -> str:
        self._same = {}
        while CHOICE.search(pattern):  # the innermost first
            pattern = CHOICE.sub(lambda choice: self.one(choice[1].split("¦")), pattern)
        return FIELD.sub(self._field, pattern)

    def one(self, of: Sequence[str]) -> str:
        return of[int(self._draws.integers(len(of)))]

    def _field(self, field: re.Match[str]) -> str:
        name = field[1]
        if name not in ONCE:
            return self._fresh(name) or field[0]
        return self._same.setdefault(name, self._fresh(name))

    def _fresh(self, name: str) -> str:
        """A value of a field; nothing where there is no such field."""
        word, ending, number = self.one(WORDS), self.one(ENDINGS), int(self._draws.integers(1, 10_000))
        folders = ("src", f"./{word}", f"{word}/{word}", "tests", ".", f"/home/{word}", f"~/{word}", f"/var/{word}")
        made = dict(
            b=self._base64(),
            c=self.one(NETCATS),
            d=self.one(folders),
            e=ending,
            f=word + ending,
            h=self.one(HOSTS),
            i=self._stranger(),
            n=str(number)[: self._draws.integers(1, 5)],
            p=self.one((str(1024 + number), *PORTS)),
            s=self.one(SYSTEM),
            t=self.one(HIDEOUTS) + self.one((word, self.one(LETTERS))),
            u=f"{self.one(('http', 'https'))}://{self._stranger()}{self.one(('', f':{number}'))}/{word}",
            v=self.one(LETTERS),
            w=word,
            x=self.one(SHELLS),
            y=self.one(PYTHONS),
            z=self.one((*TREASURES, word + ending)),
        )
        return made.get(name, "")

    def _stranger(self) -> str:
        """A host of somebody else."""
        if self._draws.random() < 0.3:
            return self.one((*HOSTS, *STRANGERS))
        a, b, c, d = self._draws.integers(1, 255, 4)
        return self.one((f"10.{b}.{c}.{d}", f"192.168.{c}.{d}", f"{a}.{b}.{c}.{d}"))

    def _base64(self) -> str:
        many = int(self._draws.integers(16, 60))
        return "".join(BASE64[i] for i in self._draws.integers(0, len(BASE64), many)) + self.one(("", "=", "=="))
