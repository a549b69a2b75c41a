"""Questions that wait, and calls that are allowed once."""

import shutil

import pytest
from made_calls import bash

from gradproof.gate.asks import ALLOWED, BLOCKED, EXPIRED, WAITING
from gradproof.gate.calls import Call
from gradproof.gate.decider import Decider
from gradproof.gate.journal import Giver

PUSH = "git push origin x"


@pytest.fixture
def decider(store):
    decider = Decider(store, wait=True)
    yield decider
    decider.close()


def asked(decider, command=PUSH, actor="", cwd=""):
    answer = decider.decide(Call("Bash", {"command": command}, actor=actor, cwd=cwd))
    decider.flush()
    return answer


def answer(store, id, kind="override_allow", **options):
    return store.journal.remark(id, kind, answers=True, giver=Giver("ann"), **options)


def test_a_question_waits_and_expires(decider, store):
    """Asked twice, it is one question; an answer that comes too late is refused, and says what to do."""
    first, again = asked(decider), asked(decider)
    (waiting,) = store.journal.asks.all(store.clock())
    assert (waiting.id, waiting.state, waiting.times) == (again.id, WAITING, 2)
    store.clock.now += store.settings.ask_minutes * 60
    assert store.journal.asks.get(first.id, store.clock()).state == EXPIRED
    with pytest.raises(ValueError, match="has expired"):
        answer(store, again.id)
    assert store.journal.signals() == []


def test_an_answer_is_a_signal_and_is_given_once(decider, store):
    question = asked(decider)
    assert answer(store, question.id).kind == "override_allow"
    assert store.journal.asks.get(question.id, store.clock()).state == ALLOWED
    assert asked(decider).decision == "allow"  # it is a correction too
    with pytest.raises(ValueError, match="was already answered by ann"):
        answer(store, question.id, "override_block")
    with pytest.raises(ValueError, match="there is no question"):
        answer(store, asked(decider, "git status").id)


def test_once_lets_exactly_one_call_pass(decider, store):
    """And only the same call, of the same actor: an allow for ever would let the third pass, one by likeness the
    first."""
    question = asked(decider)
    answer(store, question.id, once=True)
    assert asked(decider, "git push origin y").decision == "ask"
    assert asked(decider, actor="another").decision == "ask"
    assert asked(decider, cwd="/tmp/elsewhere").decision == "ask"
    assert decider.peek(bash(PUSH)).decision == "allow"  # looking uses nothing up
    passed = asked(decider)
    assert (passed.decision, passed.by) == ("allow", "correction") and "once" in passed.reason
    assert asked(decider).decision == "ask"
    assert store.journal.correction_records() == []


def test_once_ends_with_its_time_and_with_a_later_block(decider, store):
    answer(store, asked(decider).id, once=True, ask_seconds=60)
    store.clock.now += 61
    late = asked(decider)
    assert late.decision == "ask"
    answer(store, late.id, once=True)
    store.journal.remark(late.id, "override_block")
    assert asked(decider).decision == "block"


@pytest.mark.parametrize("kind", ["override_block", "false_allow"])
def test_who_blocks_once_takes_back_what_was_allowed_once(decider, store, kind):
    """Another reviewer, or the same one on second thoughts: the call is asked about again."""
    question = asked(decider)
    answer(store, question.id, once=True)
    store.journal.remark(question.id, kind, once=True, giver=Giver("bob"))
    assert asked(decider).decision == "ask"


def test_once_does_not_pass_what_is_blocked(decider, store):
    """Neither by the floor nor by a rule."""
    blocked = asked(decider, f"rm -rf {store.folder}")
    assert (blocked.decision, blocked.by) == ("block", "floor")
    store.journal.remark(blocked.id, "false_block", once=True)
    assert asked(decider, f"rm -rf {store.folder}").decision == "block"
    question = asked(decider)
    answer(store, question.id, once=True)
    store.rules.write_text('[[deny]]\neffect = "publish"\n')
    assert asked(decider).decision == "block"


def test_once_is_used_by_one_of_two_deciders(decider, store):
    """Two processes that decide at the same moment: the grant is taken in a transaction."""
    answer(store, asked(decider).id, once=True)
    other = Decider(store, wait=True)
    granted = store.journal.asks.granted("", store.journal.decisions(1)[0]["digest"], store.clock())
    assert granted is not None
    assert [store.journal.asks.use("", granted) for _ in range(2)] == [True, False]
    assert other.decide(bash(PUSH)).decision == "ask"
    other.close()


def test_blocked_questions_hold(decider, store):
    question = asked(decider)
    answer(store, question.id, "override_block")
    assert store.journal.asks.get(question.id, store.clock()).state == BLOCKED
    assert asked(decider).decision == "block"


def test_every_decision_is_a_line_of_the_audit_log(decider, store):
    """Without what the call said, unless that was chosen; and the log is whole."""
    given = [asked(decider, f"git push origin secret-branch-{i}") for i in range(3)]
    lines = store.audit.lines()
    assert [line["id"] for line in lines] == [one.id for one in given]
    assert "secret-branch" not in str(lines) and lines[0]["effect"] == "publish"
    assert store.audit.check().whole


def test_what_cannot_be_logged_asks(decider, store):
    """A log that cannot be written must not let calls pass unseen."""
    assert asked(decider, "git status").decision == "allow"
    store.audit.head_path.write_text("{}")
    answered = asked(decider, "git status")
    assert (answered.decision, answered.by) == ("ask", "floor") and "audit log" in decider.complaint


def test_a_log_that_was_removed_with_its_head_is_missed(decider, store):
    asked(decider, "git status")
    decider.flush()
    assert store.audit.check().whole
    shutil.rmtree(store.audit.folder)
    store.audit.head_path.unlink()
    assert "decisions are there" in store.audit.check().problems[0]
    asked(decider, "git status")
    assert "was removed, and begun again" in store.audit.check().problems[0]


def test_a_decision_that_could_not_be_logged_is_not_missed(decider, store):
    store.audit.head_path.write_text("{}")
    asked(decider, "git status")
    store.audit.head_path.unlink()
    asked(decider, "git status")
    decider.flush()
    assert store.audit.check().whole


def test_a_call_that_ran_is_noted(decider, store):
    answered = asked(decider, "git status")
    decider.ran(answered.id)
    decider.flush()
    assert store.journal.decision(answered.id)["ran"] is True and store.journal.signals() == []
