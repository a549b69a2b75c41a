"""The gate's store: a folder with the journal, the versions of the model, the settings and the rules.

store.json    schema and sizes       journal/   decisions, signals, examples (LMDB)
rules.toml    what people decided    versions/  weights and optimizer (LMDB)
policy.toml   a policy of its own    audit/     the audit log; its head is STORE.audit-head, outside
tokens.json   who may ask the service

Only its user can read it: folders have the mode 0700, files 0600.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gradproof.files import write_atomically
from gradproof.gate.chain import AuditChain
from gradproof.gate.database import PRIVATE, library
from gradproof.gate.journal import SCHEMA, Journal
from gradproof.gate.rules import DEFAULT, FILE
from gradproof.gate.secrets import store_key
from gradproof.gate.versions import Versions

SETTINGS, POLICY, TOKENS = "store.json", "policy.toml", "tokens.json"


@dataclass(frozen=True)
class Settings:
    """`false_allow` is the share of calls to block that may be allowed, `false_block` the share of calls to allow that
    may be blocked; `review_hours` is how long a decision can be remarked before it counts as unremarked. In
    `shadow` mode every call is allowed, and what would have been decided is recorded. A question waits for
    `ask_minutes`. Decisions that nobody remarked, and the audit log, are kept for `keep_days` (0: as long as there is
    room). With `log_arguments` the audit log also holds what calls say, without secrets. `audit_head` is where the
    head of the audit log is kept; beside the store where it is empty."""

    schema: int = SCHEMA
    journal_mebibytes: int = 256
    versions_mebibytes: int = 1024
    false_allow: float = 0.01
    false_block: float = 0.01
    review_hours: float = 24.0
    shadow: bool = False
    ask_minutes: float = 15.0
    keep_days: float = 90.0
    log_arguments: bool = False
    audit_head: str = ""

    def __post_init__(self):
        if self.schema != SCHEMA:
            raise ValueError(
                f"the store has format {self.schema}, and this Gradproof reads {SCHEMA}: make a new one with"
                " `gradproof gate init --store NEW --from OLD`, which takes over what people said"
            )
        if not (0 < self.false_allow < 1 and 0 < self.false_block < 1):
            raise ValueError("the budgets of false allows and false blocks are shares between 0 and 1")
        if min(self.journal_mebibytes, self.versions_mebibytes) < 1 or self.review_hours < 0:
            raise ValueError("a store's size must be at least 1 MiB and its review window at least 0 hours")
        for name in ("shadow", "log_arguments"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is true or false, not {getattr(self, name)!r}")
        if not 0 < self.ask_minutes <= 10_080 or not 0 <= self.keep_days <= 36_500:
            raise ValueError("a question waits for up to 10,080 minutes, and decisions are kept for 0 to 36,500 days")
        if self.audit_head and not os.path.isabs(self.audit_head):
            raise ValueError(f"the head of the audit log needs an absolute path, not {self.audit_head!r}")


class Store:
    """`Store(folder)` opens one that `create` made."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time):
        self._settings = settings = read_settings(folder)
        self.folder, self.clock, self.rules, self.policy = folder, clock, folder / FILE, folder / POLICY
        self.key = store_key(folder)
        self.journal = Journal(folder / "journal", settings.journal_mebibytes, clock, self.key)
        self.versions = Versions(folder / "versions", settings.versions_mebibytes)
        head = Path(settings.audit_head or f"{os.path.abspath(folder)}.audit-head")
        self.audit = AuditChain(folder / "audit", head, clock, self.journal.oldest_logged)

    @classmethod
    def create(cls, folder: Path, settings: Settings, clock: Callable[[], float] = time.time) -> Store:
        """A new store, or one that was there with other settings."""
        check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("journal", "versions"):
            (folder / name).mkdir(exist_ok=True, mode=0o700)
        if not (folder / FILE).exists():
            write_atomically(folder / FILE, DEFAULT, mode=PRIVATE)
        write_atomically(folder / SETTINGS, json.dumps(asdict(settings), indent=1) + "\n", mode=PRIVATE)
        _make_private(folder)
        return cls(folder, clock)

    @property
    def settings(self) -> Settings:
        """As they are now: people change them while daemon and learner run. Where they make no sense, as they were."""
        with suppress(ValueError, OSError):
            self._settings = read_settings(self.folder)
        return self._settings

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Held by the one learner; the lock goes with the process, however it ends."""
        with self._alone("learner.lock", f"another learner already runs on {self.folder}; stop it first"):
            yield

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Held by the one daemon."""
        with self._alone("daemon.lock", f"another daemon serves {self.folder}; stop it first"):
            yield

    @contextmanager
    def _alone(self, name: str, otherwise: str) -> Iterator[None]:
        with open(self.folder / name, "w", opener=lambda path, flags: os.open(path, flags, PRIVATE)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(otherwise) from None
            yield

    def close(self) -> None:
        self.journal.env.close()
        self.versions.env.close()


def read_settings(folder: Path) -> Settings:
    """Of the store in a folder; ValueError where there is none, or its settings make no sense."""
    try:
        return Settings(**json.loads((folder / SETTINGS).read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"there is no gate in {folder}; create it with: gradproof gate init --store {folder}"
        ) from None
    except (json.JSONDecodeError, TypeError) as error:
        raise ValueError(f"{folder / SETTINGS} cannot be read: {error}") from None


def _make_private(folder: Path) -> None:
    """Corrects the modes of what was there before; a link is left as it is."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            continue
        with suppress(FileNotFoundError):  # another process is writing it
            path.chmod(0o700 if path.is_dir() else PRIVATE)


def check_folder(folder: Path) -> bool:
    """Whether there is a store already; ValueError where none can be made, or what it needs is not installed."""
    library()
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / SETTINGS).is_file())):
        raise ValueError(f"{folder} already exists and is not a gate's store; choose a new folder")
    return (folder / SETTINGS).is_file()
