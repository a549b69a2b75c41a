"""Tokens: who may use a service, and in which role.

A token is `gp_NAME_SECRET`, of which the file keeps only the SHA-256 of the secret: 256 random bits cannot be guessed,
so no slow hash is needed. A token is told once, when it is made.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from gradproof.files import write_atomically

PREFIX = "gp"
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}", re.ASCII)
MOST_TOKENS = 10_000
NOBODY = sha256(b"").hexdigest()  # compared with where there is no such name, so that this takes as long


@dataclass(frozen=True)
class Token:
    """What is kept of a token; `digest` is the hash of its secret."""

    name: str
    role: str
    digest: str
    made: float

    def plain(self) -> dict[str, str | float]:
        """For a list: without the hash."""
        return {"name": self.name, "role": self.role, "made": self.made}


class Tokens:
    """The tokens of a file. Other processes may change it: it is read again when it has changed."""

    def __init__(
        self,
        path: Path,
        roles: tuple[str, ...],
        reserved: tuple[str, ...] = (),
        clock: Callable[[], float] = time.time,
    ):
        self.path, self.roles, self.reserved, self.clock = path, roles, reserved, clock
        self._stamp: tuple[int, int, int] | None = None
        self._by_name: dict[str, Token] = {}

    def all(self) -> list[Token]:
        """By name."""
        return sorted(self._read().values(), key=lambda token: token.name)

    def find(self, token: str) -> Token | None:
        """Whose token this is; the comparison takes as long for a wrong one."""
        prefix, _, rest = token.partition("_")
        name, _, secret = rest.partition("_")
        kept = self._read().get(name)
        digest = sha256(secret.encode("utf-8", "replace")).hexdigest()
        same = hmac.compare_digest(digest, kept.digest if kept is not None else NOBODY)
        return kept if kept is not None and same and prefix == PREFIX and secret else None

    def add(self, name: str, role: str) -> str:
        """Makes a token, and tells it: this is the only time."""
        if not NAME.fullmatch(name) or name in self.reserved:
            raise ValueError(
                f"{name[:80]!r} cannot be a token's name; use 1 to 64 lowercase letters, digits, dots and hyphens"
                + (f", but not {' or '.join(self.reserved)}" if self.reserved else "")
            )
        if role not in self.roles:
            raise ValueError(f"there is no role {role[:80]!r}; the roles are {', '.join(self.roles)}")
        secret = secrets.token_urlsafe(32)
        with self._changing() as tokens:
            if name in tokens:
                raise ValueError(f"there is a token {name!r} already; revoke it first, or choose another name")
            if len(tokens) >= MOST_TOKENS:
                raise ValueError(f"there are {MOST_TOKENS:,} tokens; revoke some first")
            tokens[name] = Token(name, role, sha256(secret.encode()).hexdigest(), self.clock())
        return f"{PREFIX}_{name}_{secret}"

    def revoke(self, name: str) -> Token:
        """Takes a token back, from this moment on."""
        with self._changing() as tokens:
            if name not in tokens:
                raise ValueError(f"there is no token {name[:80]!r}; `gate token list` shows them")
            return tokens.pop(name)

    @contextmanager
    def _changing(self):
        """The tokens, to be changed by one process at a time; written when the block ends well."""
        import fcntl

        lock = self.path.with_name(f"{self.path.name}.lock")
        with open(lock, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            tokens = dict(self._read())
            yield tokens
            content = json.dumps([asdict(token) for token in tokens.values()], indent=1)
            write_atomically(self.path, content + "\n", mode=0o600)

    def _read(self) -> dict[str, Token]:
        """ValueError where the file makes no sense: no token is known then."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            self._stamp, self._by_name = None, {}
            return self._by_name
        stamp = (there.st_ino, there.st_mtime_ns, there.st_size)
        if stamp != self._stamp:
            self._by_name, self._stamp = {}, None
            try:
                entries = [Token(**entry) for entry in json.loads(self.path.read_text(encoding="utf-8"))]
            except (ValueError, TypeError) as error:
                raise ValueError(f"{self.path} cannot be read: {error}") from None
            self._by_name, self._stamp = {token.name: token for token in entries}, stamp
        return self._by_name
