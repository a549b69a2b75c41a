"""The audit log: what was changed, removed or moved shows; what was appended is there, whoever dies."""

import json
import os
import shutil
import signal
import stat
import time
from multiprocessing import get_context

import pytest

from gradproof.gate import chain as chain_module
from gradproof.gate.chain import AuditChain


class Clock:
    now = 1_700_000_000.0

    def __call__(self):
        self.now += 0.001
        return self.now


@pytest.fixture
def log(tmp_path):
    made = AuditChain(tmp_path / "audit", tmp_path / "audit-head", Clock())
    for i in range(10):
        made.append("decision", id=f"d{i}")
    return made


def segment(log):
    return sorted(log.folder.glob("*.jsonl"))[-1]


def rewrite(log, change):
    path = segment(log)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(change(lines)))


def test_a_whole_chain(log):
    report = log.check()
    assert report.whole and report.lines == 10 and report.head.count == 10
    assert [line["id"] for line in log.lines(after=7)] == ["d7", "d8", "d9"]
    assert stat.S_IMODE(log.head_path.stat().st_mode) == stat.S_IMODE(segment(log).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: [*lines[:4], lines[4].replace(b"d4", b"d7"), *lines[5:]], "line 5: number 5 was changed"),
        (lambda lines: [lines[0].replace(b"d0", b"d7"), *lines[1:]], "line 1: number 1 was changed"),
        (lambda lines: [*lines[:9], lines[9].replace(b"d9", b"d7")], "line 10: number 10 was changed"),
        (lambda lines: [*lines[:4], *lines[5:]], "number 6 stands where 5 should"),
        (lambda lines: lines[1:], "number 2 stands where 1 should"),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], "number 5 stands where 4 should"),
        (lambda lines: lines[:-1], "lines 10 to 10 are missing at the end: according to the head there are 10"),
        (lambda lines: lines[:3], "lines 4 to 10 are missing at the end"),
        (lambda lines: [], "lines 1 to 10 are missing at the end"),
        (lambda lines: [*lines, lines[9]], "number 10 stands where 11 should"),
        (lambda lines: [*lines, lines[9].replace(b'"seq": 10', b'"seq": 11')], "number 11 was changed"),
        (lambda lines: [*lines[:5], b"x\n", *lines[5:]], "line 6: this is not a line of the log"),
        (lambda lines: [*lines[:9], lines[9].replace(b'"mac": "', b'"mac": "\xff')], "line 10"),
        (lambda lines: [*lines[:4], lines[4][:-20] + b"\n", *lines[5:]], "line 5"),
    ],
    ids=range(14),
)
def test_tampering_shows(log, change, says):
    rewrite(log, change)
    report = log.check()
    assert not report.whole and any(says in problem for problem in report.problems), report.problems


def test_tampering_still_shows_after_more_was_appended(log):
    """Else a gate that goes on would heal the log."""
    rewrite(log, lambda lines: lines[:6])
    log.append("decision", id="later")
    report = log.check()
    assert any("number 11 stands where 7 should" in problem for problem in report.problems)


def test_without_the_head_a_removed_tail_is_unknown_and_said_so_for_good(log):
    rewrite(log, lambda lines: lines[:6])
    log.head_path.unlink()
    assert "head" in log.check().problems[0]
    log.append("decision", id="later")
    assert [line["kind"] for line in log.lines(after=6)] == ["head_lost", "decision"]
    assert any("may be missing" in problem for problem in log.check().problems)


def test_a_head_of_another_store_or_an_edited_one(log, tmp_path):
    other = AuditChain(tmp_path / "other", tmp_path / "other-head", Clock())
    other.append("decision", id="x")
    good = log.head_path.read_bytes()
    for head in (other.head_path.read_bytes(), good.replace(b'"count": 10', b'"count": 9 '), b"", b"[]", b"\xff"):
        log.head_path.write_bytes(head)
        assert not log.check().whole
        with pytest.raises(ValueError, match="audit log"):
            log.append("decision", id="y")
    log.head_path.write_bytes(good)
    assert log.check().whole


def test_a_removed_log_shows(log):
    for path in log.folder.iterdir():
        path.unlink()
    log.folder.rmdir()
    assert "is missing" in log.check().problems[0]


@pytest.mark.parametrize("begun_anew", [False, True])
def test_a_log_that_was_removed_with_its_head_shows(log, begun_anew):
    """Its chain alone cannot tell; the store has decisions from before it."""
    log.known = lambda: "d3"
    assert log.check().whole
    shutil.rmtree(log.folder)
    log.head_path.unlink()
    if begun_anew:
        log = AuditChain(log.folder, log.head_path, Clock(), log.known)
        log.append("decision", id="new")
    (problem,) = log.check().problems
    assert ("d3 has no line" if begun_anew else "is missing, but decisions are there") in problem


def test_a_line_written_just_before_its_writer_died_belongs_to_the_chain(log, monkeypatch):
    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(log, "_write_head", dies)
        with pytest.raises(KeyboardInterrupt):
            log.append("decision", id="last")
    assert log.check().whole  # it is signed: nobody else can have written it
    assert log.append("decision", id="next") == 12 and log.check().lines == 12


def test_half_a_line_is_taken_away(log):
    """Never acknowledged: its writer died, or the disk was full."""
    with open(segment(log), "ab") as file:
        file.write(b'{"seq": 11, "kind"')
    assert log.check().whole
    log.append("decision", id="next")
    assert log.check().whole and log.lines(after=10)[0]["id"] == "next"


def test_a_full_disk_leaves_the_chain_whole(log, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:10]))
    with pytest.raises(OSError, match="No space left"):
        log.append("decision", id="x")
    monkeypatch.undo()
    assert log.check().whole and log.append("decision", id="y") == 11


def test_what_an_agent_chose_cannot_begin_a_line(log):
    log.append("decision", tool='x"}\n{"seq": 12, "kind": "feedback\u2028\r\x1b[2J')
    assert log.check().whole and log.check().lines == 11
    assert segment(log).read_bytes().isascii() and b"\x1b" not in segment(log).read_bytes()


def test_a_very_long_line_is_cut(log):
    log.append("decision", id="x", text="y" * 10**6)
    assert log.lines(after=10) and log.lines(after=10)[0]["cut"] and log.check().whole


def test_segments_and_retention(log, monkeypatch):
    for _ in range(3):
        log.clock.now += 86400
        for _ in range(5):
            log.append("decision", id="x")
    assert len(list(log.folder.glob("*.jsonl"))) == 4 and log.check().lines == 25
    assert log.retain(1.5) == 2
    report = log.check()
    assert report.whole and report.head.first == 16 and log.lines()[0]["seq"] == 16
    assert log.lines(after=25)[0]["kind"] == "retention"
    monkeypatch.setattr(chain_module, "SEGMENT", 100)
    log.append("decision", id="x")
    log.append("decision", id="x")
    assert log.check().whole
    sorted(log.folder.glob("*.jsonl"))[0].unlink()
    assert "lines 16 to 20 are missing" in log.check().problems[0]


def _append(folder, head, name, count):
    log = AuditChain(folder, head)
    for i in range(count):
        log.append("decision", id=f"{name}-{i}")


def test_one_order_across_processes(tmp_path):
    context = get_context("fork")
    places = tmp_path / "audit", tmp_path / "head"
    workers = [context.Process(target=_append, args=(*places, name, 100)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    log = AuditChain(*places)
    assert log.check().whole and log.check().lines == 400
    written = [line["id"] for line in log.lines(most=1000)]
    assert [id for id in written if id.startswith("a")] == [f"a-{i}" for i in range(100)]


def _append_and_tell(folder, head, sender):
    log = AuditChain(folder, head)
    while True:
        sender.send(log.append("decision", id="x"))


def test_kill_9_loses_no_acknowledged_line(tmp_path):
    context = get_context("fork")
    places = tmp_path / "audit", tmp_path / "head"
    for moment in range(20):
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=_append_and_tell, args=(*places, sender))
        worker.start()
        sender.close()
        receiver.recv()
        time.sleep(0.001 * moment)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        last = 0
        try:
            while True:
                last = receiver.recv()
        except EOFError:
            pass
        log = AuditChain(*places)
        assert log.check().whole, log.check().problems
        assert last <= log.check().lines
    segments = sorted(places[0].glob("*.jsonl"))
    numbers = [json.loads(line)["seq"] for path in segments for line in path.read_text().splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))
