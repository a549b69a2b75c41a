"""The audit log: an append-only chain of lines, each of which authenticates all lines before it.

    mac_n = HMAC(key, mac_{n−1} ‖ line_n);   a line is JSON and ends in its mac

A line that was edited, removed or moved breaks the chain. What a chain alone cannot show is that its tail was removed:
so its head (the last mac and the number of lines) is also kept outside the store, in a file that the key signs, and
told by `gate status` and /metrics.

All processes append under one lock, so there is one order. A line is in the file before `append` returns: it survives
kill -9. With `sync` it also survives a power failure. Lines hold no argument of a call unless that was chosen.

The log is cut into segments, named by their first line. Retention removes whole segments; the head then says where
the chain begins.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

PRIVATE = 0o600
SEGMENT = 16 << 20  # bytes, after which the next segment begins
DAY = 86400.0
START = "0" * 64
MAC = len(f', "mac": "{START}"}}')  # bytes of a line's end
HEAD_LOST = "head_lost"
MOST_LINE = 64 << 10  # bytes; a longer one is cut short by leaving out its text


class Head(NamedTuple):
    """The end of the chain (`count`, `mac`), where it begins (`first`, `before`), and what the newest segment is
    (its first line, the bytes of it that are whole, the day it began)."""

    count: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    mac: str = START
    first: int = 1
    before: str = START
    segment: int = 1
    size: int = 0
    day: int = 0


class ChainReport(NamedTuple):
    """What a check found: `lines` that are right, and one sentence for each thing that is not."""

    lines: int
    head: Head | None
    problems: list[str]

    @property
    def whole(self) -> bool:
        return not self.problems


class AuditChain:
    """The log in `folder`; its head is kept in `head`. Nothing is made before the first line. `known` is the id of some
    decision that has a line, empty where there is none: without it, a log removed with its head would look new."""

    def __init__(
        self,
        folder: Path,
        head: Path,
        clock: Callable[[], float] = time.time,
        known: Callable[[], str] = lambda: "",
    ):
        self.folder, self.head_path, self.clock, self.known = folder, head, clock, known
        self._key = b""

    def append(self, kind: str, *, sync: bool = False, **fields: Any) -> int:
        """Adds a line, and returns its number."""
        return self.extend([{"kind": kind, **fields}], sync=sync)

    def extend(self, records: Sequence[Mapping[str, Any]], *, sync: bool = False) -> int:
        """Adds lines, and returns the number of the last."""
        with self._locked(make=True):
            before = self._read_head()
            head = self._next_segment(self._continued(before))
            lines = []
            records = [*([{"kind": HEAD_LOST}] if before is None and head.count else []), *records]
            for record in records:
                line, mac = self._line(head.count + 1, head.mac, record)
                lines.append(line)
                head = head._replace(count=head.count + 1, mac=mac, size=head.size + len(line))
            self._write(head, b"".join(lines))
        if sync:  # without the lock: nobody else waits for this disk
            self._sync(head)
        return head.count

    def head(self) -> Head:
        """Where the chain ends."""
        if not self.folder.is_dir():
            return Head()
        with self._locked():
            return self._read_head() or Head()

    def lines(self, after: int = 0, most: int = 100) -> list[dict[str, Any]]:
        """Lines behind a number, oldest first."""
        chosen: list[dict[str, Any]] = []
        segments = self._segments()
        for i, (_, path) in enumerate(segments):
            if i + 1 < len(segments) and segments[i + 1][0] <= after + 1:
                continue
            for line in _whole_lines(path):
                with suppress(ValueError):
                    record = json.loads(line)
                    if isinstance(record, dict) and record.get("seq", 0) > after:
                        chosen.append(record)
                if len(chosen) >= most:
                    return chosen
        return chosen

    def retain(self, days: float) -> int:
        """Removes segments whose lines are all older; how many. The newest one stays."""
        if not self.folder.is_dir() or days <= 0:
            return 0
        with self._locked():
            head, gone = self._read_head(), 0
            segments = self._segments()
            oldest = self.clock() - days * DAY
            for (_, path), (following, _) in pairwise(segments):
                last = _last_line(path)
                if head is None or last is None or _time_of(last) > oldest:
                    break
                head = head._replace(first=following, before=last["mac"])
                self._write_head(head, sync=True)  # first: a segment that is gone before its head would be a gap
                path.unlink()
                gone += 1
        if gone:
            assert head is not None
            self.append("retention", sync=True, first=head.first)
        return gone

    def check(self) -> ChainReport:
        """Whether every line is there, as it was written, in its order."""
        if not self.folder.is_dir():
            there = "its head is" if self.head_path.exists() else "decisions are" if self.known() else ""
            return ChainReport(0, None, [f"the log {self.folder} is missing, but {there} there"] if there else [])
        with self._locked():
            try:
                head = self._read_head()
            except ValueError as error:
                return ChainReport(0, None, [str(error)])
        try:
            return self._check(head)  # without the lock: decisions go on, and what they add is right or it is told
        except FileNotFoundError:  # retention came in between
            with self._locked():
                return self._check(self._read_head())

    def sync(self) -> None:
        """Puts what was appended on the disk."""
        self._sync(self.head())

    def _sync(self, head: Head) -> None:
        for path in (self._segment(head.segment), self.head_path):
            with suppress(FileNotFoundError), open(path, "rb") as file:
                os.fsync(file.fileno())

    def _check(self, head: Head | None) -> ChainReport:
        problems: list[str] = []
        segments = self._segments()
        expected, mac = (head.first, head.before) if head else (segments[0][0] if segments else 1, "")
        if head is None and segments:
            problems.append(
                f"the head {self.head_path} is missing: it is unknown whether lines were removed at the end"
            )
        known = self.known() if head and head.first == 1 else ""  # later, retention has removed lines
        right = 0
        for first, path in segments:
            if head and first < head.first:
                problems.append(f"{path.name} was removed by retention, and is there again")
                continue
            if first > expected:
                problems.append(f"lines {expected} to {first - 1} are missing")
                expected, mac = first, ""  # what comes before is not known: the chain is taken up again
            unfinished = path == segments[-1][1]  # what its writer had no time to finish was never acknowledged
            for number, line in enumerate(_whole_lines(path) if unfinished else _lines(path), 1):
                known = "" if f'"{known}"'.encode() in line else known
                said, expected, mac = self._check_line(line, expected, mac)
                if said:
                    problems.append(f"{path.name}, line {number}: {said}")
                else:
                    right += 1
        if head and expected <= head.count:
            problems.append(
                f"lines {expected} to {head.count} are missing at the end: according to the head there are {head.count}"
            )
        elif head and expected == head.count + 1 and right and mac != head.mac and mac:
            problems.append("the last line differs from the head")
        if known:
            problems.append(f"the decision {known} has no line: the log was removed, and begun again")
        return ChainReport(right, head, problems)

    def _check_line(self, line: bytes, expected: int, before: str) -> tuple[str, int, str]:
        """(what is wrong, the number that should follow, the mac that it should follow)."""
        body, mac = _split(line)
        try:
            record = json.loads(body + b"}")
            number = record["seq"]
        except (ValueError, KeyError, TypeError):
            return "this is not a line of the log", expected + 1, ""
        if not isinstance(number, int):
            return "this is not a line of the log", expected + 1, ""
        if number != expected:
            return f"number {number} stands where {expected} should", max(number + 1, expected), ""
        if before and not _same(self._mac(before, body), mac):
            return f"number {number} was changed, or the line before it", number + 1, mac
        if record.get("kind") == HEAD_LOST:
            return "the head was missing when this line was written: earlier lines may be missing", number + 1, mac
        return "", number + 1, mac

    def _line(self, number: int, before: str, record: Mapping[str, Any]) -> tuple[bytes, str]:
        when = datetime.fromtimestamp(self.clock(), UTC).isoformat(timespec="milliseconds")
        whole = {"seq": number, "time": when, **record}
        # ASCII without line breaks: nothing that an agent chose can begin a line.
        body = json.dumps(whole).encode("ascii")[:-1]
        if len(body) > MOST_LINE:
            short = {name: value for name, value in whole.items() if name != "text"}
            body = json.dumps({**short, "cut": True}).encode("ascii")[:-1]
        mac = self._mac(before, body)
        return body + f', "mac": "{mac}"}}\n'.encode(), mac

    def _mac(self, before: str, body: bytes) -> str:
        return hmac.digest(self._key, before.encode("ascii", "replace") + body, "sha256").hex()

    def _continued(self, head: Head | None) -> Head:
        """The head to go on from: lines that were written just before their writer died belong to the chain, half a
        line does not."""
        segments = self._segments()
        if head is None:
            head = self._rebuilt(segments) if segments else Head()
        path = self._segment(head.segment)
        size = path.stat().st_size if path.exists() else 0
        if size <= head.size:
            return head._replace(size=size)
        with open(path, "r+b") as file:
            file.seek(head.size)
            for line in file.read().splitlines(keepends=True):
                body, mac = _split(line.rstrip(b"\n"))
                if not line.endswith(b"\n") or not _same(self._mac(head.mac, body), mac):
                    break
                head = head._replace(count=head.count + 1, mac=mac, size=head.size + len(line))
            file.truncate(head.size)
        return head

    def _rebuilt(self, segments: Sequence[tuple[int, Path]]) -> Head:
        """From the lines themselves, where the head is gone; a line that says so is added."""
        (oldest, _), (first, path) = segments[0], segments[-1]
        size = sum(len(line) + 1 for line in _whole_lines(path))
        last = _last_line(path) or {"seq": first - 1, "mac": START}
        before = START if oldest == 1 else ""
        return Head(last["seq"], last["mac"], oldest, before, first, size, self._today())

    def _next_segment(self, head: Head) -> Head:
        today = self._today()
        if head.size >= SEGMENT or (head.day != today and head.size):
            return head._replace(segment=head.count + 1, size=0, day=today)
        return head._replace(day=today) if not head.size else head

    def _today(self) -> int:
        return int(self.clock() // DAY)

    def _write(self, head: Head, lines: bytes) -> None:
        path = self._segment(head.segment)
        before = head.size - len(lines)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
        try:
            if os.write(descriptor, lines) != len(lines):  # a full disk: half a line must not stay
                os.ftruncate(descriptor, before)
                raise OSError(28, "No space left on device", str(path))
        finally:
            os.close(descriptor)
        self._write_head(head)

    def _write_head(self, head: Head, sync: bool = False) -> None:
        """In place, in one write: a head is whole at any moment that a process can be killed at."""
        signed = json.dumps({**head._asdict(), "sign": self._sign(head)}).encode("ascii").ljust(511) + b"\n"
        descriptor = os.open(self.head_path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
        try:
            os.pwrite(descriptor, signed, 0)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read_head(self) -> Head | None:
        """None where there is none; ValueError where it was not written by this gate."""
        try:
            record = json.loads(self.head_path.read_bytes() or b"{}")
            sign = record.pop("sign")
            head = Head(**record)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(f"the head {self.head_path} of the audit log cannot be read") from None
        if not _same(self._sign(head), str(sign)):
            raise ValueError(f"the head {self.head_path} of the audit log was changed, or belongs to another store")
        return head

    def _sign(self, head: Head) -> str:
        return hmac.digest(self._key, b"head" + json.dumps(head).encode(), "sha256").hex()

    def _segment(self, first: int) -> Path:
        return self.folder / f"{first:012d}.jsonl"

    def _segments(self) -> list[tuple[int, Path]]:
        paths = sorted(self.folder.glob("*.jsonl")) if self.folder.is_dir() else []
        return [(int(path.stem), path) for path in paths if path.stem.isdigit()]

    @contextmanager
    def _locked(self, make: bool = False) -> Iterator[None]:
        if make:
            self.folder.mkdir(mode=0o700, exist_ok=True)
        with open(self.folder / "lock", "a", opener=lambda path, flags: os.open(path, flags, PRIVATE)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._key = self._key or _own_key(self.folder / "key")
            yield


def _own_key(path: Path) -> bytes:
    """Of the log; made with its first line."""
    try:
        return bytes.fromhex(path.read_text())
    except FileNotFoundError:
        key = secrets.token_bytes(32)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with os.fdopen(descriptor, "w") as file:
            file.write(key.hex())
            file.flush()
            os.fsync(file.fileno())
        return key


def _split(line: bytes) -> tuple[bytes, str]:
    """A line's JSON without its end, and its mac."""
    body, end = line[:-MAC], line[-MAC:]
    return body, end[len(b', "mac": "') : -len(b'"}')].decode("ascii", "backslashreplace")


def _same(right: str, mac: str) -> bool:
    return hmac.compare_digest(right.encode(), mac.encode())


def _lines(path: Path) -> Iterator[bytes]:
    """All of a segment; a last one without its end is half a line."""
    with open(path, "rb") as file:
        for line in file:
            yield line.rstrip(b"\n")


def _whole_lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line.rstrip(b"\n")


def _last_line(path: Path) -> dict[str, Any] | None:
    last = None
    for line in _whole_lines(path):
        last = line
    try:
        return None if last is None else json.loads(last)
    except ValueError:
        return None


def _time_of(record: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(record["time"]).timestamp()
