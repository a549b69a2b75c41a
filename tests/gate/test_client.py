"""The client of the gate's daemon: what it makes of every kind of daemon, and whom it believes."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon, answer_of, decision, empty_store

from gradproof.gate import client as client_module
from gradproof.gate import exchange, launch
from gradproof.gate.client import GateClient
from gradproof.gate.exchange import NoAnswer

CALL = {"tool": "Bash", "arguments": {"command": "echo grün"}}


@pytest.fixture
def store(tmp_path):
    return empty_store(tmp_path / "gate")


@pytest.fixture
def daemon(store):
    made = []

    def make(answers, **options):
        made.append(FakeDaemon(store, answers, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def client(store, **options):
    return GateClient(str(store), **{"warm": 10.0, "cold": 20.0, "start": False, **options})


@pytest.mark.parametrize("outcome", ["allow", "ask", "block"])
def test_a_decision_arrives_whole(store, daemon, outcome):
    there = daemon(lambda number, body: decision(outcome, probability=0.5))
    answer = client(store).decide(CALL)
    assert (answer["decision"], answer["probability"]) == (outcome, 0.5)
    head, body = there.requests[0]
    assert head.startswith(b"POST /v1/decide HTTP/1.0\r\n")
    assert json.loads(body) == CALL


@pytest.mark.parametrize(
    "sent, said",
    [
        (answer_of({"decision": "perhaps", "reason": "x"}), "contains no decision"),
        (answer_of({"decision": "allow"}), "contains no decision"),
        (answer_of({"decision": ["allow"], "reason": "x"}), "contains no decision"),
        (answer_of(["allow"]), "not a JSON object"),
        (decision("allow")[:-20], "closed the connection"),  # half an answer
        (decision("allow").replace(b"content-length", b"x-length"), "is not HTTP"),
        (decision("allow").replace(b"content-length: 6", b"content-length: -6"), "is not HTTP"),
        (b"content-length: 3\r\n\r\n{}x", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n", "9,999,999 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, "is not HTTP"),
        (b"\x00\xff" * 100, "closed the connection"),
        (b"", "closed the connection"),
        (answer_of({"error": "nested too deeply"}, 400), "rejected the call: nested too deeply"),
        (answer_of({"decision": "allow", "reason": "x"}, 500), "rejected the call: 500"),
        (answer_of({"decision": "allow", "reason": "x"}, 302), "rejected the call: 302"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n" + b"{\xff\xfe}", "not a JSON object"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 200000\r\n\r\n" + b"[" * 200_000, "not a JSON object"),
    ],
)
def test_what_is_no_decision_is_no_answer(store, daemon, sent, said):
    daemon(lambda number, body: sent)
    with pytest.raises(NoAnswer, match=said):
        client(store).decide(CALL)


def test_a_daemon_that_is_busy_is_asked_again(store, daemon):
    there = daemon(lambda number, body: answer_of({"error": "busy"}, 429) if number < 3 else decision("block"))
    assert client(store).decide(CALL)["decision"] == "block"
    assert len(there.requests) == 3


@pytest.mark.parametrize("answer", [None, answer_of({"error": "busy"}, 429), answer_of({"error": "ending"}, 503)])
def test_silence_and_being_busy_for_ever_end_with_the_deadline(store, daemon, answer):
    daemon(lambda number, body: answer)
    with pytest.raises(NoAnswer, match="in time"):
        client(store, warm=0.3).decide(CALL)


def test_a_daemon_that_sends_byte_by_byte_cannot_hold_the_caller(store, tmp_path):
    """A limit for each read would never be reached."""
    folder = Path(f"{store}.socket")
    folder.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / "gate.sock"))
    listener.listen()
    ended = threading.Event()

    def drip():
        connection, _ = listener.accept()
        for byte in decision("allow"):
            if ended.wait(0.05):
                break
            try:
                connection.send(bytes([byte]))
            except OSError:
                break
        connection.close()

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    with pytest.raises(NoAnswer, match="in time"):
        client(store, warm=0.3).decide(CALL)
    ended.set()
    thread.join(5)
    listener.close()


def test_a_daemon_whose_queue_is_full_is_no_answer(store):
    folder = Path(f"{store}.socket")
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "gate.sock"))
        listener.listen(0)
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(str(folder / "gate.sock"))
        with pytest.raises(NoAnswer, match="in time"):
            client(store, warm=0.3).decide(CALL)
        for one in waiting:
            one.close()


def test_no_store_no_daemon_and_a_socket_that_was_left_behind(store, daemon, tmp_path):
    with pytest.raises(NoAnswer, match="there is no gate in"):
        client(tmp_path / "missing").decide(CALL)
    with pytest.raises(NoAnswer, match="listening"):
        client(store).decide(CALL)
    daemon(lambda number, body: decision("allow")).close()
    assert (Path(f"{store}.socket") / "gate.sock").exists()
    with pytest.raises(NoAnswer, match="listening"):
        client(store).decide(CALL)


def test_a_folder_that_others_may_write_to_is_not_trusted(store, daemon):
    there = daemon(lambda number, body: decision("allow"))
    for mode in (0o777, 0o770, 0o1777, 0o702):
        there.folder.chmod(mode)
        with pytest.raises(NoAnswer, match="others can write"):
            client(store).decide(CALL)
    there.folder.chmod(0o750)
    assert client(store).decide(CALL)["decision"] == "allow"


def test_a_link_in_place_of_the_folder_is_not_followed(store, daemon, tmp_path):
    daemon(lambda number, body: decision("allow"), folder=tmp_path / "elsewhere")
    Path(f"{store}.socket").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoAnswer, match="cannot be opened"):
        client(store).decide(CALL)


def test_a_file_in_place_of_the_folder_or_of_the_socket(store):
    Path(f"{store}.socket").write_text("")
    with pytest.raises(NoAnswer, match="cannot be opened"):
        client(store).decide(CALL)
    Path(f"{store}.socket").unlink()
    Path(f"{store}.socket").mkdir(mode=0o700)
    (Path(f"{store}.socket") / "gate.sock").write_text("")
    with pytest.raises(NoAnswer):
        client(store).decide(CALL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
def test_a_folder_of_another_user_is_not_trusted(store, daemon):
    there = daemon(lambda number, body: decision("allow"))
    os.chown(there.folder, 12_345, 12_345)
    with pytest.raises(NoAnswer, match="does not belong to the owner"):
        client(store).decide(CALL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
@pytest.mark.parametrize("user, believed", [(12_345, True), (54_321, False)])
def test_only_the_owners_process_behind_the_socket_is_believed(store, user, believed):
    """The store and the folder of the socket are the owner's; who has bound the socket is another question."""
    folder = Path(f"{store}.socket")
    folder.mkdir(mode=0o700)
    for path in (store, folder):
        os.chown(path, 12_345, 12_345)
    serving = (
        "import os, socket, sys\n"
        "listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)\n"
        "listener.bind(sys.argv[1])\n"
        f"os.setuid({user})\n"
        "listener.listen(); print('ready', flush=True)\n"
        "connection, _ = listener.accept(); connection.recv(65536)\n"
        "connection.sendall(bytes.fromhex(sys.argv[2])); connection.close()\n"
    )
    argv = [sys.executable, "-c", serving, str(folder / "gate.sock"), decision("allow").hex()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        if believed:
            assert client(store).decide(CALL)["decision"] == "allow"
        else:
            with pytest.raises(NoAnswer, match="belongs to user 54321"):
                client(store).decide(CALL)
        process.kill()


def test_a_store_with_a_very_long_path(tmp_path):
    """The address of a unix socket holds 107 bytes."""
    long = tmp_path
    for _ in range(6):
        long = long / ("folder" * 8)
    long.mkdir(parents=True)
    store = empty_store(long / "gate")
    before = os.getcwd()
    os.chdir(long)
    try:
        there = FakeDaemon(store, lambda number, body: decision("ask"), folder=Path("gate.socket"))
    finally:
        os.chdir(before)
    assert client(store).decide(CALL)["decision"] == "ask"
    there.close()


def test_what_is_no_json_is_not_sent(store, daemon):
    there = daemon(lambda number, body: decision("allow"))
    for value in ("\ud800", float("nan"), object()):
        with pytest.raises(NoAnswer, match="cannot be written as JSON"):
            client(store).decide({"tool": "Bash", "arguments": {"command": value}})
    assert not there.requests


def test_waiting_for_the_answer_to_a_question(store, daemon, monkeypatch):
    monkeypatch.setattr(client_module, "LONGEST_WAIT", 0.1)
    there = daemon(lambda number, body: answer_of({"id": "a1", "state": "waiting" if number < 4 else "allowed"}))
    assert client(store).wait("a1", 30)["state"] == "allowed"
    assert [head.split()[1] for head, _ in there.requests] == [b"/v1/asks/a1?wait=0.1"] * 4


def test_waiting_ends_with_the_deadline(store, daemon):
    daemon(lambda number, body: answer_of({"id": "a1", "state": "waiting"}))
    assert client(store).wait("a1", 0.0)["state"] == "waiting"


# starting a daemon

STARTED = """
import sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from fake_daemon import FakeDaemon, decision
open({count!r}, "a").write("x")
time.sleep({pause})
FakeDaemon(Path({store!r}), lambda number, body: decision("allow"))
time.sleep({life})
"""


@pytest.fixture
def starts(store, monkeypatch, tmp_path):
    """Makes a small program stand in for the daemon; returns how often it was started."""
    count = tmp_path / "count"

    def make(program: str = STARTED, pause: float = 0.0, life: float = 3.0):
        path = [str(Path(__file__).parent), str(Path(launch.__file__).parents[2])]
        text = program.format(path=path, count=str(count), store=str(store), pause=pause, life=life)
        monkeypatch.setattr(launch, "command", lambda store, socket: [sys.executable, "-c", text])
        return lambda: len(count.read_text()) if count.exists() else 0

    return make


def test_a_daemon_is_started_where_there_is_none(store, starts):
    started = starts()
    assert client(store, start=True).decide(CALL)["decision"] == "allow"
    assert client(store, start=True).decide(CALL)["decision"] == "allow"
    assert started() == 1


def test_callers_at_the_same_time_start_one_daemon(store, starts):
    started, answers = starts(pause=0.3), []

    def decide():
        answers.append(client(store, start=True).decide(CALL)["decision"])

    threads = [threading.Thread(target=decide) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == ["allow"] * 8
    assert started() == 1


def test_a_daemon_that_ends_at_once_is_told_with_its_last_words(store, starts):
    starts("import sys; sys.exit('gradproof: the gate needs its extra')")
    with pytest.raises(NoAnswer, match="it exited at once: gradproof: the gate needs its extra"):
        client(store, start=True).decide(CALL)


def test_a_daemon_that_takes_too_long_to_start(store, starts):
    starts(pause=3.0, life=0.0)
    with pytest.raises(NoAnswer, match="in time"):
        client(store, start=True, warm=0.5, cold=0.5).decide(CALL)


def test_where_another_process_holds_the_lock_it_is_waited_for(store, starts):
    started = starts()
    held = os.open(store, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(NoAnswer, match="in time"):
        client(store, start=True, warm=0.3, cold=0.3).decide(CALL)
    assert started() == 0
    os.close(held)


@pytest.mark.parametrize("held", ["", launch.RUNNING])
def test_a_daemon_that_is_being_started_has_the_time_of_a_cold_one(store, daemon, held):
    """Its socket may be there before it can decide."""
    (store / launch.RUNNING).touch()
    slow = threading.Event()

    def answers(number, body):
        slow.wait(1.0)
        return decision("ask")

    daemon(answers)
    lock = os.open(store / held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if held:  # one that serves is warm
        with pytest.raises(NoAnswer, match="in time"):
            client(store, warm=0.2).decide(CALL)
    else:
        assert client(store, warm=0.2).decide(CALL)["decision"] == "ask"
    slow.set()
    os.close(lock)


def test_none_is_started_beside_one_that_lives(store, starts):
    started = starts()
    lock = os.open(store / launch.RUNNING, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(NoAnswer, match="in time"):
        client(store, start=True, warm=0.3, cold=0.3).decide(CALL)
    assert started() == 0
    os.close(lock)


def test_a_folder_that_is_no_store_starts_nothing(tmp_path, starts):
    started = starts()
    with pytest.raises(NoAnswer, match="there is no gate in"):
        client(tmp_path, start=True).decide(CALL)
    assert started() == 0 and not (tmp_path / launch.LOG).exists()


def test_a_link_in_place_of_the_log_is_not_written_through(store, starts, tmp_path):
    starts()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (store / launch.LOG).symlink_to(victim)
    with pytest.raises(NoAnswer, match="cannot be started"):
        client(store, start=True).decide(CALL)
    assert victim.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
def test_only_the_owner_starts_a_daemon(store, starts):
    started = starts()
    os.chown(store, 12_345, 12_345)
    with pytest.raises(NoAnswer, match="only its owner can start one"):
        client(store, start=True).decide(CALL)
    assert started() == 0


def test_the_daemon_gets_little_of_an_agents_environment(monkeypatch, store):
    hostile = ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "LD_PRELOAD", "GRADPROOF_GATE", "GRADPROOF_GATE_SOCKET")
    for name in hostile:
        monkeypatch.setenv(name, "/tmp/evil")
    assert not set(hostile) & set(launch.environment())
    assert launch.command(str(store))[1] == "-I"


def test_the_started_program_runs_the_package_of_the_caller(store, tmp_path):
    """Not that of a folder on PYTHONPATH, nor of the working directory."""
    (tmp_path / "gradproof").mkdir()
    (tmp_path / "gradproof" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    argv = launch.command(str(store))[:4]
    argv[3] = argv[3].replace("main()", "print(gradproof.__file__)")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(Path(launch.__file__).parents[1] / "__init__.py"), done.stderr


def test_imports_are_few():
    """Each would be paid for at every call of a tool."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); import gradproof.gate.hook; print(*sys.modules)"
    argv = [sys.executable, "-I", "-c", script, str(Path(launch.__file__).parents[2])]
    loaded = set(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())
    heavy = {"typing", "dataclasses", "pathlib", "subprocess", "http.client", "argparse", "typer", "torch", "asyncio"}
    assert not loaded & heavy
    assert {name for name in loaded if name.startswith("gradproof")} == {
        *("gradproof", "gradproof.version", "gradproof.gate", "gradproof.gate.hook", "gradproof.gate.client"),
        *("gradproof.gate.exchange", "gradproof.gate.launch"),
    }
    assert exchange.SOCKET == "gate.sock"
