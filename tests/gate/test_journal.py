"""The journal: what is acknowledged is there, what is bounded stays bounded, no secret gets in."""

import json

import pytest

from gradproof.gate import journal as journal_module
from gradproof.gate.journal import Giver, Judged
from gradproof.gate.signals import signal
from gradproof.gate.store import SETTINGS, Settings, Store

KEY = "AKIAIOSFODNN7EXAMPLE"
PASSWORD = "hunter2hunter2"


def decision(store, text="Bash\ncommand: ls", outcome="allow", **more):
    id = journal_module.new_id(store.clock())
    act = dict(effect="read", program="ls", scope="project")
    record = dict(id=id, decision=outcome, model=0.9, lean=True, by="policy", version=1, reason="", probability=0.9)
    record |= dict(text=text, texts=[text], acts=[act], worst=0, digest=text)
    store.journal.record([{**record, **more}])
    return id


def test_a_signal_is_there_when_the_store_is_opened_again(store):
    id = decision(store)
    given = store.journal.remark(id, "false_block")
    store.close()
    again = Store(store.folder, store.clock)
    assert [(example.text, example.signal) for example in again.journal.pending()] == [("Bash\ncommand: ls", given)]
    assert [correction.decision for correction in again.journal.corrections()] == [id]
    again.close()
    store.__init__(store.folder, store.clock)  # for the fixture to close


def test_what_people_said_since(store):
    """Learned or not, oldest first; the gate's own echo is none of it."""
    for i in range(3):
        store.journal.remark(decision(store, f"Bash\ncommand: {i}"), "false_block")
    store.journal.remark(decision(store), "allow")
    first, second, third = store.journal.said()
    store.journal.learned(store.journal.pending())
    assert [example.text[-1] for example in (first, second, third)] == ["0", "1", "2"]
    assert store.journal.said(first.key) == [second, third] and store.journal.said(third.key) == []


def test_the_same_again_weighs_more(store):
    ids = [decision(store) for _ in range(4)] + [decision(store, "Bash\ncommand: pwd")]
    assert [store.journal.remark(id, "false_allow").weight for id in ids] == [4, 6, 8, 8, 4]
    assert store.journal.remark(ids[0], "false_block").weight == 4


@pytest.mark.parametrize(
    ("id", "kind", "says"),
    [
        (None, "wrong", "there is no kind of feedback 'wrong'"),
        ("nobody", "false_block", "there is no decision 'nobody'"),
        ("", "false_block", "there is no decision ''"),
        ("ü" * 100, "false_block", "there is no decision"),
        (None, "block", "'block' is the gate's own decision, but .* was 'allow'; to change it, use override_block"),
    ],
)
def test_a_wrong_remark_stores_nothing(store, id, kind, says):
    made = decision(store)
    before = store.journal.counts()
    with pytest.raises(ValueError, match=says):
        store.journal.remark(made if id is None else id, kind)
    assert store.journal.counts() == before


def test_the_gates_own_echo_neither_waits_nor_counts(store):
    id = decision(store)
    assert store.journal.remark(id, "allow").weight == 1
    assert store.journal.pending() == [] and store.journal.judged() == Judged()


def test_one_decision_counts_once_for_alignment(store):
    id = decision(store)  # the model leans to allow
    store.journal.remark(id, "override_block")
    assert store.journal.judged() == Judged(0, 0, 1, 0)
    store.journal.remark(id, "override_allow")
    assert store.journal.judged() == Judged(1, 1, 0, 0)
    decision(store, outcome="block", by="rule")  # nobody's judgement
    assert store.journal.judged() == Judged(1, 1, 0, 0) and store.journal.errors() == [0.0]


def test_convergence_is_reported():
    assert Judged(950, 950, 50, 0).converged
    assert not Judged(900, 900, 99, 99).converged  # too few
    assert not Judged(950, 949, 50, 0).converged  # 0.949


def test_an_agent_alone_earns_no_trust(store):
    """A thousand decisions by rules and policy, and nobody who judged them."""
    for i in range(100):
        decision(store, outcome="allow" if i % 2 else "block", by="rule" if i % 3 else "policy")
    assert store.journal.trust() == (0, 0, 0.0, 0.0) and not store.journal.trust().given


def test_a_rollback_begins_trust_anew(warm):
    assert warm.journal.trust().given
    warm.journal.reset_trust()
    assert warm.journal.trust().judgements == 0 and warm.journal.judged().count == 600


def test_a_retracted_correction_holds_no_more(store):
    """At once, with what was pinned for it and what waited to be learned."""
    for text in ("Bash\ncommand: a", "Bash\ncommand: b"):
        store.journal.remark(decision(store, text), "false_block", giver=Giver("ann"))
    first, second = store.journal.corrections()
    assert (first.actor, first.sequence < second.sequence) == ("ann", True)
    stamp = store.journal.corrections_stamp()
    store.journal.retract(first.id)
    assert store.journal.corrections() == [second] and store.journal.corrections_stamp() != stamp
    assert [example.text[-1] for example in store.journal.examples("pinned")] == ["b"]
    assert [example.text[-1] for example in store.journal.pending()] == ["b"]
    with pytest.raises(ValueError, match=f"there is no correction '{first.id}'"):
        store.journal.retract(first.id)


def test_a_clock_that_is_set_back_does_not_reorder_corrections(store):
    ids = [decision(store, f"Bash\ncommand: {i}") for i in range(2)]
    store.journal.remark(ids[0], "false_block")
    store.clock.now -= 10_000
    store.journal.remark(ids[1], "false_allow")
    assert [correction.decision for correction in store.journal.corrections()] == ids


def test_near_identical_mistakes_are_pinned_once(store):
    for i in range(30):
        store.journal.remark(decision(store, f"Bash\ncommand: rm /x/{i}"), "false_allow")
    assert store.journal.counts()["pinned"] == 1 and store.journal.counts()["corrections"] == 30


def test_a_wrong_act_or_scope_stores_nothing(store):
    id, before = decision(store), store.journal.counts()
    for more, says in (
        (dict(act=1), "has 1 acts, counted from 0; there is no act 1"),
        (dict(widened="all"), "--scope is"),
    ):
        with pytest.raises(ValueError, match=says):
            store.journal.remark(id, "false_block", **more)
    assert store.journal.counts()["signals"] == before["signals"]


def test_no_secret_is_in_any_file(store):
    """Whoever writes a record with one: every string goes through the redaction."""
    text = f"Bash\ncommand: aws configure set key {KEY} && mysql --password={PASSWORD}"
    id = decision(store, text, reason=f"for {KEY}")
    store.journal.remark(id, "false_block")
    store.journal.add("replay", [(text, signal("allow"))])
    store.journal.learned(store.journal.pending())
    store.journal.env.sync(True)
    files = [path for path in store.folder.rglob("*") if path.is_file()]
    assert any("data.mdb" in path.name for path in files)
    for path in files:
        content = path.read_bytes()
        assert KEY.encode() not in content and PASSWORD.encode() not in content, path


def test_the_oldest_unremarked_go_first(store, monkeypatch):
    monkeypatch.setattr(journal_module, "MOST_DECISIONS", 20)
    first = decision(store)
    store.journal.remark(first, "false_block")
    ids = [decision(store) for _ in range(50)]
    kept = {record["id"] for record in store.journal.decisions(1000)}
    assert first in kept and ids[-1] in kept and ids[0] not in kept and len(kept) <= 21
    assert len(store.journal.pending()) == 1


def test_signals_go_only_when_they_were_learned(store, monkeypatch):
    monkeypatch.setattr(journal_module, "MOST_SIGNALS", 5)
    for i in range(12):
        store.journal.remark(decision(store, f"Bash\ncommand: ls {i}"), "override_allow")
    assert len(store.journal.pending()) == 12
    store.journal.learned(store.journal.pending())
    store.journal.remark(decision(store), "override_allow")
    assert store.journal.counts()["signals"] <= 6 and len(store.journal.pending()) == 1


def test_a_full_map_makes_room_and_at_last_says_so(tmp_path):
    store = Store.create(tmp_path / "small", Settings(journal_mebibytes=1, versions_mebibytes=1))
    for i in range(120):
        decision(store, f"Bash\ncommand: {i} " + "x y " * 4000)
    assert 0 < store.journal.counts()["decisions"] < 120 and store.journal.used() <= 1
    with pytest.raises(ValueError, match=r"is full: 1 MiB .* `gradproof gate learn`, or make it larger"):
        for i in range(80):
            store.journal.remark(decision(store, f"Bash\ncommand: {i}\npath: " + "z y " * 4000), "false_block")
    waiting = len(store.journal.pending())
    assert waiting > 5 and len(store.journal.corrections()) == waiting  # it can still be read
    store.close()


def test_examples_are_a_bounded_sample_of_the_distinct(store, monkeypatch):
    monkeypatch.setitem(journal_module.MOST_EXAMPLES, "replay", 10)
    rows = [(f"Bash\ncommand: {i}", signal("allow")) for i in range(100)]
    store.journal.add("replay", rows)
    kept = [example.text for example in store.journal.examples("replay_allow")]
    assert len(kept) == 10
    store.journal.add("replay", rows[::-1])
    assert [example.text for example in store.journal.examples("replay_allow")] == kept


def test_another_schema_or_no_store_is_one_sentence(tmp_path, store):
    with pytest.raises(ValueError, match=r"no gate in .*gradproof gate init"):
        Store(tmp_path)
    settings = store.folder / SETTINGS
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "schema": 99}))
    with pytest.raises(ValueError, match=r"format 99, and this Gradproof reads 3: .*init --store NEW --from OLD"):
        Store(store.folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(ValueError, match="already exists and is not a gate's store"):
        Store.create(tmp_path / "other", Settings())
