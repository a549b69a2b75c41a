"""The hook: what it makes of the gate's answers, of events that make no sense, and of a daemon that does not answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from daemon_process import daemons_of
from fake_daemon import FakeDaemon, answer_of, decision, empty_store
from hook_events import claude_event, events, gemini_event, written

from gradproof.gate import hook, launch
from gradproof.gate.client import GateClient
from gradproof.gate.exchange import NoAnswer
from gradproof.gate.hook import HookOptions, Unanswerable, options_of, read_event, respond

CLAUDE = claude_event(1, "Bash", {"command": "make"})
GEMINI = gemini_event(2, "run_shell_command", {"command": "make"})
AGENTS = [pytest.param(CLAUDE, id="claude"), pytest.param(GEMINI, id="gemini")]


@pytest.fixture
def store(tmp_path):
    return empty_store(tmp_path / "gate")


@pytest.fixture
def answering(store):
    """Answers of the hook beside a daemon that answers like this."""
    made = []

    def answer(event, daemon=None, **options):
        if daemon is not None:
            made.append(FakeDaemon(store, daemon))
        client = GateClient(str(store), warm=options.pop("warm", 10.0), cold=10.0, start=False)
        content = event if isinstance(event, bytes) else written(event)
        said = respond(content, HookOptions(str(store), **options), client)
        if made:
            made[-1].close()
            answer.requests = made[-1].requests
            (Path(f"{store}.socket") / "gate.sock").unlink(missing_ok=True)
        return json.loads(said) if said else None

    return answer


def told(answer: dict) -> tuple[str, str]:
    """Decision and reason, whoever they are for."""
    if "decision" in answer:
        assert set(answer) == {"decision", "reason"}
        return answer["decision"], answer["reason"]
    (own,) = answer.values()
    assert set(answer) == {"hookSpecificOutput"}
    assert set(own) == {"hookEventName", "permissionDecision", "permissionDecisionReason"}
    assert own["hookEventName"] == "PreToolUse"
    return own["permissionDecision"], own["permissionDecisionReason"]


# what the gate answers


@pytest.mark.parametrize("event", AGENTS)
def test_an_allow_is_silence_unless_it_is_to_approve(answering, event):
    assert answering(event, lambda number, body: decision("allow")) is None
    approved = answering(event, lambda number, body: decision("allow"), auto_approve=True)
    assert told(approved)[0] == "allow"


def test_an_ask_and_a_block_for_claude(answering):
    for outcome, said in (("ask", "ask"), ("block", "deny")):
        answer, reason = told(answering(CLAUDE, lambda number, body, o=outcome: decision(o)))
        assert answer == said and "deletes /etc/hosts" in reason and "01a1e6" in reason


def test_an_ask_and_a_block_for_gemini(answering):
    console = "http://127.0.0.1:8377/#asks/01a1e6"
    answer, reason = told(answering(GEMINI, lambda number, body: decision("ask", answer_at=console)))
    assert answer == "deny"
    assert console in reason and "gradproof gate feedback 01a1e6 override_allow" in reason
    answer, reason = told(answering(GEMINI, lambda number, body: decision("block")))
    assert answer == "deny" and "override_allow" not in reason


@pytest.mark.parametrize("event", AGENTS)
def test_what_is_sent_of_an_event(answering, event):
    """Nothing that the gate has no use for; unknown fields of new versions of an agent break nothing."""
    assert answering({**event, "new_field": 1}, lambda number, body: decision("allow")) is None
    ((head, body),) = answering.requests
    assert head.startswith(b"POST /v1/decide ")
    known = ("tool_name", "tool_input", "session_id", "cwd", "tool_use_id")
    agent = "claude" if event is CLAUDE else "gemini"
    assert json.loads(body) == {key: event[key] for key in known if key in event} | {"actor": agent}


@pytest.mark.parametrize("event", AGENTS)
def test_a_very_long_reason_is_cut(answering, event):
    long = answer_of({"id": "1", "decision": "block", "reason": "x" * 100_000})
    assert len(told(answering(event, lambda number, body: long))[1]) == hook.MOST_REASON


@pytest.mark.parametrize(
    "event, name",
    [(CLAUDE, "PostToolUse"), (CLAUDE, "PostToolUseFailure"), (GEMINI, "AfterTool")],
)
def test_that_a_call_ran_is_noted_and_not_answered(answering, event, name):
    after = {**event, "hook_event_name": name, "tool_response": {"stdout": "x" * 100_000}}
    assert answering(after, lambda number, body: answer_of({"id": "1", "ran": True})) is None
    ((head, body),) = answering.requests
    assert head.startswith(b"POST /v1/ran ") and json.loads(body)["tool_input"] == {"command": "make"}
    assert answering(after, lambda number, body: answer_of({"error": "no such decision"}, 404)) is None
    assert answering(after) is None  # without a daemon


# what is no event


BAD = {
    "empty": b"",
    "blank": b" \n",
    "no json": b"{not json",
    "cut off": written(CLAUDE)[:-5],
    "two objects": written(CLAUDE) * 2,
    "a list": b"[]",
    "null": b"null",
    "invalid UTF-8": b'{"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "\xff"}}',
    "UTF-16": '{"hook_event_name": "PreToolUse"}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + written(CLAUDE),
    "a key twice": written(CLAUDE)[:-1] + b',"tool_name":"Read"}',
    "a key twice inside": b'{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{"a":"ls","a":"rm"}}',
    "NaN": b'{"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"a": NaN}}',
    "a number of very many digits": b'{"hook_event_name": "PreToolUse", "tool_input": {"a": ' + b"9" * 5000 + b"}}",
    "nested very deep": b'{"a":' * 200_000,
    "nested very deep and closed": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("format, answer", [("claude", "ask"), ("gemini", "deny")])
def test_what_is_no_event_is_refused(answering, what, format, answer):
    said, reason = told(answering(BAD[what], lambda number, body: decision("allow"), format=format))
    assert said == answer and "was not checked" in reason
    assert not answering.requests


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_event_is_unanswerable_where_nobody_said_whose_it_is(answering, what):
    with pytest.raises(Unanswerable):
        answering(BAD[what])


@pytest.mark.parametrize("event", AGENTS)
@pytest.mark.parametrize(
    "change",
    [
        {"tool_name": None},
        {"tool_name": 1},
        {"tool_input": None},
        {"tool_input": "rm -rf /"},
        {"tool_input": ["rm"]},
        {"tool_input": {"command": "\ud800"}},
    ],
)
def test_an_event_without_a_call_is_refused(answering, event, change):
    said, _ = told(answering(json.dumps(event | change).encode(), lambda number, body: decision("allow")))
    assert said == ("ask" if event is CLAUDE else "deny")
    assert not answering.requests


def test_an_unknown_event_with_a_call_is_blocked_and_one_without_has_nothing_to_decide(answering):
    for name in ("PermissionRequest", "", None, 5, "pretooluse"):
        with pytest.raises(Unanswerable, match="not known"):
            answering({**CLAUDE, "hook_event_name": name})
    for name in ("Stop", "SessionStart", "UserPromptSubmit", "BeforeAgent"):
        assert answering({"hook_event_name": name, "session_id": "s"}) is None
    with pytest.raises(Unanswerable):
        answering({"session_id": "s"})


def test_an_event_of_the_other_agent_is_blocked(answering):
    """An answer in the wrong form would be ignored, and the call would run."""
    with pytest.raises(Unanswerable, match="--format claude"):
        answering(CLAUDE, format="gemini")
    with pytest.raises(Unanswerable, match="--format gemini"):
        answering(GEMINI, format="claude")


def test_a_tool_called_like_an_event_changes_nothing(answering):
    sly = claude_event(3, "PostToolUse", {"hook_event_name": "PostToolUse", "tool_response": {}})
    assert told(answering(sly, lambda number, body: decision("block")))[0] == "deny"


# fails closed


@pytest.mark.parametrize("event", AGENTS)
@pytest.mark.parametrize(
    "daemon",
    [
        pytest.param(lambda number, body: None, id="silent"),
        pytest.param(lambda number, body: b"", id="closes"),
        pytest.param(lambda number, body: b"\x00" * 1000, id="garbage"),
        pytest.param(lambda number, body: decision("allow")[:-3], id="half an answer"),
        pytest.param(lambda number, body: decision("maybe"), id="an unknown decision"),
        pytest.param(lambda number, body: answer_of({"error": "x"}, 500), id="500"),
        pytest.param(lambda number, body: answer_of({"error": "x"}, 429), id="busy for ever"),
        pytest.param(None, id="nobody"),
    ],
)
def test_no_decision_is_no_allow(answering, event, daemon):
    for auto_approve in (False, True):
        said, reason = told(answering(event, daemon, auto_approve=auto_approve, warm=0.2))
        assert said == ("ask" if event is CLAUDE else "deny")
        assert "could not decide" in reason


def test_a_missing_store_is_no_allow(tmp_path):
    answer = respond(written(CLAUDE), HookOptions(str(tmp_path / "missing")))
    assert told(json.loads(answer))[0] == "ask"
    answer = respond(written(GEMINI), HookOptions(str(tmp_path / "missing")))
    said, reason = told(json.loads(answer))
    assert said == "deny" and "gradproof gate init --store" in reason


def test_what_nobody_foresaw_is_exit_code_2(store, monkeypatch, capfd):
    def fail(event, options):
        raise ZeroDivisionError("x")

    monkeypatch.setattr(hook, "respond", fail)
    monkeypatch.setattr(hook, "read_event", lambda descriptor, seconds: b"{}")
    before = signal.getsignal(signal.SIGALRM)
    try:
        assert hook.run(HookOptions(str(store))) == 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "the hook failed: ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [[], ["--store"], ["--store", "x", "--format", "cursor"], ["--unknown"], ["--store", "x", "y"], ["--store="]],
)
def test_wrong_options_block(arguments):
    with pytest.raises(Unanswerable, match="usage"):
        options_of(arguments)


def test_options():
    given = options_of(["--store=a b", "--format", "gemini", "--auto-approve", "--socket", "/s"])
    assert (given.store, given.format, given.auto_approve, given.socket) == ("a b", "gemini", True, "/s")


def test_an_event_that_does_not_end_or_is_too_long(monkeypatch):
    reading, writing = os.pipe()
    os.write(writing, b"{")
    with pytest.raises(NoAnswer, match="is not complete"):
        read_event(reading, 0.1)
    monkeypatch.setattr(hook, "MOST_BYTES", 10)
    os.write(writing, b"x" * 30)
    assert len(read_event(reading, 1.0)) > 10
    with pytest.raises(NoAnswer, match="more than 10 bytes"):
        hook.parsed(b"x" * 11)
    os.close(reading)
    os.close(writing)


# as a process

# The limits of an unhurried machine would make these tests depend on what else runs.
PROCESS = """
import sys
sys.path.insert(0, {home!r})
from gradproof.gate import client, hook
client.GateClient.__init__.__defaults__ = ({seconds}, {seconds}, {start}, "")
hook.READING = {reading}
hook.LIMIT = {limit}
hook.main()
"""
HOME = str(Path(launch.__file__).parents[2])


def process(event, *arguments, start=False, seconds=30.0, reading=30.0, limit=60.0, **options):
    program = PROCESS.format(home=HOME, seconds=seconds, start=start, reading=reading, limit=limit)
    argv = [sys.executable, "-I", "-c", program, *arguments]
    return subprocess.run(argv, input=event, capture_output=True, timeout=120, **options)


@pytest.mark.parametrize("event", AGENTS)
@pytest.mark.parametrize("outcome", ["allow", "ask", "block"])
def test_the_process_answers_as_the_function_does(store, answering, event, outcome):
    expected = answering(event, lambda number, body: decision(outcome))
    daemon = FakeDaemon(store, lambda number, body: decision(outcome))
    done = process(written(event), "--store", str(store))
    daemon.close()
    assert (done.returncode, done.stderr) == (0, b"")
    assert (json.loads(done.stdout) if done.stdout else None) == expected


@pytest.mark.parametrize("format, answer", [("claude", "ask"), ("gemini", "deny"), ("", None)])
def test_the_process_fails_closed(store, tmp_path, format, answer):
    named = ["--format", format] if format else []
    missing = process(written(CLAUDE if format != "gemini" else GEMINI), "--store", str(tmp_path / "none"), *named)
    for done in (process(b"", "--store", str(store), *named), process(b"{", "--store", str(store), *named)):
        if answer is None:
            assert (done.returncode, done.stdout) == (2, b"") and done.stderr.startswith(b"gradproof: ")
        else:
            assert done.returncode == 0 and told(json.loads(done.stdout))[0] == answer
    assert missing.returncode == 0 and told(json.loads(missing.stdout))[0] == (answer or "ask")


def test_the_process_with_closed_ends(store):
    """Each of standard input, output and error may be closed: never an exit code that lets the call run."""
    daemon = FakeDaemon(store, lambda number, body: decision("block"))
    program = PROCESS.format(home=HOME, seconds=30.0, start=False, reading=30.0, limit=60.0)
    for closed, code in (("1>&-", 2), ("0<&-", None), ("2>&-", 0), ("1>&- 2>&-", 2), ("0<&- 1>&- 2>&-", 2)):
        argv = ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-I", "-c", program, "--store", str(store)]
        done = subprocess.run([*argv, "--format", "claude"], input=written(CLAUDE), capture_output=True, timeout=120)
        if code is None:
            assert done.returncode == 2 or told(json.loads(done.stdout))[0] == "ask"
        else:
            assert done.returncode == code, (closed, done)
        if done.returncode == 0:
            assert told(json.loads(done.stdout))[0] in ("deny", "ask")
    full = subprocess.run(
        ["sh", "-c", '"$@" > /dev/full', "sh", sys.executable, "-I", "-c", program, "--store", str(store)],
        input=written(CLAUDE),
        capture_output=True,
        timeout=120,
    )
    assert full.returncode == 2
    daemon.close()


def test_the_process_ends_when_the_event_never_does(store):
    reading, writing = os.pipe()
    program = PROCESS.format(home=HOME, seconds=1.0, start=False, reading=0.3, limit=30.0)
    argv = [sys.executable, "-I", "-c", program, "--store", str(store), "--format", "claude"]
    done = subprocess.run(argv, stdin=reading, capture_output=True, timeout=120)
    os.close(reading)
    os.close(writing)
    assert done.returncode == 0 and told(json.loads(done.stdout))[0] == "ask"


def test_the_process_ends_whatever_it_is_doing(store):
    daemon = FakeDaemon(store, lambda number, body: None)
    done = process(written(CLAUDE), "--store", str(store), limit=0.5)
    daemon.close()
    assert (done.returncode, done.stdout) == (2, b"") and b"took too long" in done.stderr


def test_the_environment_has_no_say(store, tmp_path):
    """PYTHONPATH and its like are an agent's to set; the installed command runs Python with -I."""
    for name in ("json", "socket", "gradproof", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text("import os; os._exit(0)")
    daemon = FakeDaemon(store, lambda number, body: decision("block"))
    hostile = {name: str(tmp_path) for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "HOME")}
    hostile |= {"PYTHONSTARTUP": str(tmp_path / "json.py"), "GRADPROOF_GATE": "/none", "GRADPROOF_GATE_SOCKET": "/none"}
    done = process(written(CLAUDE), "--store", str(store), env={**os.environ, **hostile}, cwd=tmp_path)
    daemon.close()
    assert told(json.loads(done.stdout))[0] == "deny"


def test_the_command_of_the_public_interface_is_the_same(store, capfdbinary):
    daemon = FakeDaemon(store, lambda number, body: decision("block"))
    argv = [sys.executable, "-m", "gradproof", "gate", "hook", "--store", str(store)]
    environment = {**os.environ, "PYTHONPATH": HOME}
    done = subprocess.run(argv, input=written(CLAUDE), capture_output=True, env=environment, timeout=120)
    wrong = subprocess.run([*argv, "--format", "x"], input=written(CLAUDE), capture_output=True, env=environment)
    daemon.close()
    assert done.returncode == 0 and told(json.loads(done.stdout))[0] == "deny"
    assert wrong.returncode == 2


# beside a real daemon


class RealDaemon:
    """`gradproof gate serve` on a store."""

    def __init__(self, store: Path):
        argv = [*launch.command(str(store)), "--no-learn", "--rate", "100000"]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        client = GateClient(str(store), warm=60.0, start=False)
        for _ in range(600):
            try:
                client.request("GET", "/healthz")
                return
            except NoAnswer:
                assert self.process.poll() is None
                time.sleep(0.1)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="module")
def founded(tmp_path_factory, trained):
    """A store, and a decider of the test's own on it."""
    from made_calls import rows

    from gradproof.gate.decider import Decider
    from gradproof.gate.founding import found
    from gradproof.gate.store import Settings, Store

    folder = tmp_path_factory.mktemp("served") / "gate"
    made = Store.create(folder, Settings(journal_mebibytes=16, versions_mebibytes=64))
    found(made, trained.copy(), rows(40), rows(30, 100), people=False)
    decider = Decider(made)
    yield folder, decider
    decider.close()
    made.close()


@pytest.fixture(scope="module")
def served(founded):
    """The same with a daemon at work."""
    running = RealDaemon(founded[0])
    yield founded
    running.end()


def expected(answer, event: dict, auto_approve: bool = False) -> str | None:
    """The decision of `gate decide` in the words of an agent."""
    claude = event["hook_event_name"] == "PreToolUse"
    words = {"allow": "allow" if auto_approve else None, "ask": "ask" if claude else "deny", "block": "deny"}
    return words[answer.decision]


@pytest.mark.slow
def test_a_thousand_events_are_answered_as_gate_decide_answers_them(served):
    from gradproof.gate.calls import parse

    folder, decider = served
    client = GateClient(str(folder), warm=60.0, start=False)
    seen, tools = set(), set()
    for event in events(1000):
        answer = decider.peek(parse(written(event)))
        said = respond(written(event), HookOptions(str(folder)), client)
        decided, reason = told(json.loads(said)) if said else (None, "")
        assert decided == expected(answer, event), (event, answer, reason)
        assert answer.reason in reason or not said
        seen.add((event["hook_event_name"], answer.decision))
        tools.add(event["tool_name"])
    assert seen == {(name, word) for name in ("PreToolUse", "BeforeTool") for word in ("allow", "ask", "block")}
    assert len(tools) > 70


def test_some_of_them_through_the_process(served):
    from gradproof.gate.calls import parse

    folder, decider = served
    for event in events(1000)[::25]:
        answer = decider.peek(parse(written(event)))
        done = process(written(event), "--store", str(folder), "--auto-approve")
        assert (done.returncode, done.stderr) == (0, b"")
        assert told(json.loads(done.stdout))[0] == expected(answer, event, auto_approve=True)


def test_the_daemon_knows_which_call_ran(served):
    folder, _ = served
    client = GateClient(str(folder), warm=60.0, start=False)
    for event, name in (
        (claude_event(5000, "Bash", {"command": "make all"}), "PostToolUse"),
        (gemini_event(5001, "run_shell_command", {"command": "make all"}), "AfterTool"),
    ):
        options = HookOptions(str(folder), auto_approve=True)
        assert respond(written(event), options, client)
        after = {**event, "hook_event_name": name, "tool_response": {"stdout": "ok"}}
        sent = {key: after[key] for key in hook.SENT if key in after}
        ran = client.request("POST", "/v1/ran", sent | {"actor": "claude" if name == "PostToolUse" else "gemini"})
        assert ran["ran"] is True
        assert respond(written(after), options, client) == b""


def test_a_store_that_is_locked_for_writing_does_not_let_a_call_pass(served):
    """Decisions are written behind the answer; one that cannot be made is a question."""
    folder, decider = served
    client = GateClient(str(folder), warm=5.0, start=False)
    event = claude_event(6000, "Bash", {"command": "rm -rf /etc/hosts"})
    with decider.store.journal.env.begin(write=True):
        said = respond(written(event), HookOptions(str(folder)), client)
        assert told(json.loads(said))[0] in ("deny", "ask")
    assert told(json.loads(respond(written(event), HookOptions(str(folder)), client)))[0] == "deny"


def test_a_daemon_that_hangs_and_one_that_is_killed(served, tmp_path):
    """A hanging one is no allow; a killed one is started again, with the socket that it left behind."""
    folder, _ = served
    alone = tmp_path / "gate"
    shutil.copytree(folder, alone, ignore=shutil.ignore_patterns("*.lock"))
    running = RealDaemon(alone)
    event = claude_event(6001, "Bash", {"command": "rm -rf /etc/hosts"})

    def decided(**limits):
        client = GateClient(str(alone), **limits)
        return told(json.loads(respond(written(event), HookOptions(str(alone)), client)))

    assert decided(warm=60.0)[0] == "deny"
    running.process.send_signal(signal.SIGSTOP)
    assert decided(warm=0.3) == (
        "ask",
        "gradproof: the gate could not decide: the gate gave no decision in time; the call was not checked",
    )
    running.process.kill()
    running.process.wait(60)
    assert (Path(f"{alone}.socket") / "gate.sock").exists()
    assert decided(warm=60.0, cold=60.0)[0] == "deny"
    for pid in daemons_of(alone):
        os.kill(pid, signal.SIGTERM)
