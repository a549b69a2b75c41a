"""Imports the feedback in a store of an earlier format, for a new gate to learn from. The old store is only read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradproof.gate.calls import Call
from gradproof.gate.database import library
from gradproof.gate.founding_rows import FoundingCall, FoundingRow, act_rows
from gradproof.gate.signals import ECHO, KINDS, signal

FORMATS = (1, 2)
DATABASES = 16


def rows_of(folder: Path) -> list[FoundingRow]:
    """The signals of people, as labelled calls; the last word on a call counts. ValueError where there is no store."""
    try:
        settings = json.loads((folder / "store.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        raise ValueError(f"there is no gate in {folder} to import from") from None
    if settings.get("schema") not in FORMATS:
        formats = " and ".join(map(str, FORMATS))
        raise ValueError(f"{folder} is a store of format {settings.get('schema')}; --from reads formats {formats}")
    said = {record["text"]: record for record in _signals(folder)}
    rows: list[FoundingRow] = []
    for number, (text, record) in enumerate(said.items()):
        call = call_of(text)
        if call is not None:
            allow = signal(record["kind"]).outcome == "allow"
            rows += act_rows(
                FoundingCall(call, allow, f"old {number}", -1 - number)
            )  # apart from the numbers of other calls
    return rows


def _signals(folder: Path) -> Iterator[dict[str, Any]]:
    lmdb = library()
    try:
        env = lmdb.open(str(folder / "journal"), readonly=True, lock=False, max_dbs=DATABASES)
    except lmdb.Error as error:
        raise ValueError(f"the store {folder} cannot be opened: {error}") from None
    try:
        signals = env.open_db(b"signals", create=False)
        with env.begin() as txn:
            for _, value in txn.cursor(signals):
                record = json.loads(value)
                if record.get("kind") in KINDS and record["kind"] not in ECHO:
                    yield record
    except lmdb.Error:
        return
    finally:
        env.close()


def call_of(text: str) -> Call | None:
    """The call that a text of an old format was written for, as far as it was kept; None where its middle was not."""
    tool, *lines = text.split("\n")
    arguments: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(": ")
        if line.startswith(("@ ", "< ")) or not colon:
            continue
        arguments[name] = value.replace("↵", "\n")
    return None if "…" in text or not arguments else Call(tool, arguments)
