"""The daemon as a process: its socket, its lock, its end, and its learner."""

import asyncio
import getpass
import grp
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

from daemon_process import DaemonProcess, until
from made_calls import rows

from gradproof.gate import daemon
from gradproof.gate.daemon import DaemonOptions, tokens_of
from gradproof.gate.founding import found
from gradproof.gate.place import socket_path
from gradproof.gate.store import Settings, Store
from gradproof.gate.supervisor import LearnerSupervisor
from gradproof.http import peer

SHORT = 0.05  # seconds


def founded(folder, trained):
    store = Store.create(folder, Settings(journal_mebibytes=64, versions_mebibytes=64))
    found(store, trained.copy(), rows(40), rows(30, 100), people=False)
    token = tokens_of(folder).add("ann", "admin")
    store.close()
    return token


@pytest.fixture(scope="module")
def folder(tmp_path_factory, trained):
    return tmp_path_factory.mktemp("daemon") / "gate"


@pytest.fixture(scope="module")
def token(folder, trained):
    return founded(folder, trained)


@pytest.fixture(scope="module")
def running(folder, token):
    made = DaemonProcess(folder, "--no-learn")
    yield made
    made.end()


def test_the_socket_belongs_to_its_user_alone(running):
    assert running.path == socket_path(running.folder)
    assert stat.S_IMODE(running.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(running.path.stat().st_mode) == 0o600


def test_on_the_socket_the_kernel_tells_who_it_is(running, token):
    status, answer = running.ask("POST", "/v1/decide", {"command": "rm -rf ../x", "cwd": "/work/app", "actor": "bot"})
    assert (status, answer["decision"]) == (200, "ask")
    assert answer["answer_at"] == f"http://127.0.0.1:{running.port}/#asks/{answer['id']}"
    _, told = running.ask("GET", f"/v1/decisions/{answer['id']}", token=token)
    assert told["actor"] == f"user:{getpass.getuser()}/bot"
    assert running.ask("GET", "/v1/status")[0] == 404
    _, told = running.ask("GET", "/v1/status", token=token)
    assert told["daemon"]["pid"] == running.process.pid and told["daemon"]["socket"] == str(running.path)


def test_a_second_daemon_is_refused_and_the_first_one_stays(running):
    command = [sys.executable, "-m", "gradproof", "gate", "serve", "--store", str(running.folder)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert second.returncode == 2 and "another daemon serves" in second.stderr and second.stderr.count("\n") == 1
    assert running.ask("GET", "/healthz")[0] == 200


def test_what_the_daemon_writes_itself_holds_no_call(running):
    running.ask("POST", "/v1/decide", {"command": "cat veryprivatename", "cwd": "/work/app"})
    assert "private" not in running.said
    logged = "".join(path.read_text() for path in (running.folder / "audit").glob("*.jsonl"))
    assert '"kind": "decision"' in logged and "private" not in logged


def test_the_store_and_the_port_of_the_daemon_are_the_floors(running):
    for command in (
        f"curl -X POST http://127.0.0.1:{running.port}/v1/feedback",
        f"rm -rf {running.folder}.socket",
        f"cat {running.folder}/tokens.json",
        f"rm {running.folder}.audit-head",
    ):
        _, answer = running.ask("POST", "/v1/decide", {"command": command, "cwd": "/work/app"})
        assert (answer["decision"], answer["by"]) == ("block", "floor"), command


def test_sigterm_ends_it_in_order(tmp_path, trained):
    """Who waits is answered, what was decided is on the disk, the socket is gone, and the store is free."""
    token = founded(tmp_path / "gate", trained)
    own = DaemonProcess(tmp_path / "gate", "--no-learn", "--shadow")
    assert "shadow mode" in own.said or own.ask("GET", "/healthz")[1]["shadow"]
    _, status = own.ask("PUT", "/v1/settings", {"shadow": False}, token=token)
    assert status["shadow"] is False
    _, asked = own.ask("POST", "/v1/decide", {"command": "git push origin x", "cwd": "/work/app"})
    waited = []
    waiting = threading.Thread(target=lambda: waited.append(own.ask("GET", f"/v1/asks/{asked['id']}?wait=60")))
    waiting.start()
    until(lambda: own.ask("GET", f"/v1/asks/{asked['id']}")[1]["state"] == "waiting")
    ids = [own.ask("POST", "/v1/decide", {"command": f"make {i}"})[1]["id"] for i in range(20)]
    code, said = own.end()
    waiting.join(10)
    assert code == 0 and "Traceback" not in said, said
    assert waited == [(200, waited[0][1])] and waited[0][1]["state"] == "waiting"
    assert not own.path.exists()
    store = Store(tmp_path / "gate")
    assert [store.journal.decision(id)["id"] for id in ids] == ids
    report = store.audit.check()
    assert report.whole and report.lines >= 22
    with store.deciding():
        pass
    store.close()


def test_beyond_loopback_it_needs_a_token(tmp_path, trained, store):
    with pytest.raises(ValueError, match="beyond loopback, needs a token"):
        daemon.run(store, DaemonOptions(host="0.0.0.0", port=0))
    assert not socket_path(store.folder).exists()


def test_a_long_path_and_a_folder_of_somebody_else(tmp_path):
    deep = tmp_path / ("d" * 80) / ("e" * 80)
    listener = peer.listen_at(deep / "gate.sock")
    assert (deep / "gate.sock").is_socket()
    listener.close()
    (tmp_path / "link").symlink_to(deep)
    with pytest.raises(ValueError, match="belongs to another user"):
        peer.listen_at(tmp_path / "link" / "gate.sock")
    with pytest.raises(ValueError, match="no group 'nobodysgroup'"):
        peer.listen_at(tmp_path / "x" / "gate.sock", "nobodysgroup")


def test_a_group_may_use_the_socket(tmp_path):
    name = grp.getgrgid(os.getgid()).gr_name
    listener = peer.listen_at(tmp_path / "s" / "gate.sock", name)
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "s" / "gate.sock").stat().st_mode) == 0o660
    assert (tmp_path / "s" / "gate.sock").stat().st_gid == os.getgid()
    listener.close()


def supervised(command, seconds, enough=lambda told: False):
    """What a supervisor did in so many seconds, or until it was enough."""
    said = []

    async def run():
        made = LearnerSupervisor(command, said.append, SHORT)
        task = asyncio.create_task(made.run())
        end = time.monotonic() + seconds
        while time.monotonic() < end and not enough(made.plain()):
            await asyncio.sleep(SHORT)
        during = made.plain()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return made, during

    return *asyncio.run(run()), said


def test_a_learner_that_keeps_ending_is_started_less_and_less_often():
    command = [sys.executable, "-c", "print('no room'); raise SystemExit(2)"]
    began = time.monotonic()
    made, _, said = supervised(command, 60, lambda told: told["restarts"] == 5)
    assert made.restarts == 5 and made.last == "no room"
    assert time.monotonic() - began > SHORT * (1 + 2 + 4 + 8 + 16)
    assert said == ["the learner ended with 2: no room; starting it again"]


def test_the_learner_ends_with_its_supervisor(tmp_path):
    command = [sys.executable, "-c", "import time; print('at work', flush=True); time.sleep(60)"]
    _, during, _ = supervised(command, 60, lambda told: told["last"] == "at work")
    assert during["running"] and during["last"] == "at work"
    with pytest.raises(ProcessLookupError):
        os.kill(during["pid"], 0)


@pytest.mark.slow
def test_the_learner_runs_beside_and_is_started_again(tmp_path, trained):
    """At low priority; killed, it comes again; its end is the daemon's, even by SIGKILL."""
    token = founded(tmp_path / "gate", trained)
    own = DaemonProcess(tmp_path / "gate")

    def learner():
        return own.ask("GET", "/v1/status", token=token)[1]["daemon"]["learner"]

    first = until(lambda: learner()["pid"])
    until(lambda: os.getpriority(os.PRIO_PROCESS, first) >= 10)
    os.kill(first, signal.SIGKILL)
    second = until(lambda: learner()["pid"] not in (None, first) and learner()["pid"])
    assert learner()["restarts"] == 1
    own.end(signal.SIGKILL)
    until(lambda: not _alive(second))


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
