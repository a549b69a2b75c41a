"""Shadow mode: every call is allowed, what would have been decided is recorded, and that is what is learned."""

import json
import os
from dataclasses import asdict, replace

import pytest
from made_calls import bash

from gradproof.gate import replay
from gradproof.gate.calls import Call
from gradproof.gate.decider import Decider
from gradproof.gate.status import lines, status
from gradproof.gate.store import SETTINGS, Settings

OUTCOMES = {"ls": "allow", "git push origin x": "ask", "rm -rf /": "block"}


def set_shadow(store, on):
    write(store, json.dumps(asdict(replace(store.settings, shadow=on))))


def write(store, text):
    """A second later than before: clocks of file systems are coarse."""
    path = store.folder / SETTINGS
    later = path.stat().st_mtime_ns + 10**9
    path.write_text(text)
    os.utime(path, ns=(later, later))


@pytest.fixture
def decider(store):
    set_shadow(store, True)
    store.close()
    store.__init__(store.folder, store.clock)
    made = Decider(store, wait=True)
    yield made
    made.close()


def at(command):
    return Call("Bash", {"command": command}, "/work/app")


def test_everything_is_allowed_and_the_gates_own_decision_recorded(store, decider):
    answers = {line: decider.decide(at(line)) for line in OUTCOMES}
    decider.flush()
    assert {answer.decision for answer in answers.values()} == {"allow"}
    assert {line: answer.plain()["shadow"] for line, answer in answers.items()} == OUTCOMES
    recorded = [store.journal.decision(answer.id) for answer in answers.values()]
    assert [(record["decision"], record["shadow"]) for record in recorded] == [(o, o) for o in OUTCOMES.values()]
    assert all(record["reason"] == answer.reason for record, answer in zip(recorded, answers.values(), strict=True))


def test_the_floor_too_is_only_recorded(store, decider):
    answer = decider.decide(Call("Write", {"file_path": f"{store.folder}/rules.toml", "content": ""}, "/work/app"))
    assert (answer.decision, answer.shadow) == ("allow", "block") and "the gate's own" in answer.reason


def test_without_shadow_mode_nothing_is_said_of_it(store):
    decider = Decider(store, wait=True)
    answer = decider.decide(bash("ls"))
    decider.close()
    assert answer.shadow is None and "shadow" not in answer.plain()
    assert "shadow" not in store.journal.decision(answer.id)


def test_what_would_have_been_blocked_is_no_example_of_an_allow(store, decider):
    """The echo of a softened decision would teach the gate to allow what it blocks."""
    for line in OUTCOMES:
        decider.decide(at(line))
    decider.flush()
    store.journal.clock.now += 3600 * 30
    learned = {example.text.split("\n")[1]: example.signal.kind for example in replay.echo(store.journal, 24)}
    assert learned == {"command: ls": "allow", "command: rm -rf /": "block"}


def test_feedback_is_on_the_gates_own_decision(store, decider):
    answer = decider.decide(at("rm -rf /"))
    decider.flush()
    with pytest.raises(ValueError, match=r"'allow' is the gate's own decision, but .* was 'block'"):
        store.journal.remark(answer.id, "allow")
    assert store.journal.remark(answer.id, "block").target == 0.0
    store.journal.remark(answer.id, "override_block")
    record = store.journal.decision(answer.id)
    assert store.journal.judged().block == 1 and store.journal.judged().block_agreed == (not record["lean"])


def test_it_begins_and_ends_while_a_gate_decides(store, decider):
    """Settings that cannot be read change nothing."""
    assert decider.decide(at("rm -rf /")).decision == "allow"
    set_shadow(store, False)
    assert decider.decide(at("rm -rf /")).decision == "block"
    write(store, "{")
    assert decider.decide(at("rm -rf /")).decision == "block" and "keeping the previous settings" in decider.complaint
    set_shadow(store, True)
    assert decider.decide(at("rm -rf /")).decision == "allow" and decider.complaint == ""


def test_status_says_so(store, decider):
    assert status(store)["shadowed"] == {"decisions": 0, "ask": 0, "block": 0}
    for line in (*OUTCOMES, "rm -rf /etc"):
        decider.decide(at(line))
    decider.flush()
    record = status(store)
    assert record["shadow"] is True and record["shadowed"] == {"decisions": 4, "ask": 1, "block": 2}
    (said,) = [line for line in lines(record) if "shadow mode" in line]
    assert said.startswith("shadow mode: nothing is blocked; of 4 recent calls, the gate would have asked about 1")


def test_shadow_is_true_or_false():
    with pytest.raises(ValueError, match="shadow is true or false, not 'no'"):
        Settings(shadow="no")  # type: ignore[arg-type]
