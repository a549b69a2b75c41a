"""What a batch is made of."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate import replay
from gradproof.gate.database import new_id
from gradproof.gate.journal import LabelledText
from gradproof.gate.signals import signal


def pool(name, allow, block):
    kinds = ["override_allow"] * allow + ["override_block"] * block
    return [LabelledText(f"{name}{i}".encode(), name, signal(kind)) for i, kind in enumerate(kinds)]


@given(*[st.tuples(st.integers(0, 6), st.integers(0, 6)) for _ in range(4)], st.sampled_from([4, 32, 33]))
def test_shares(new, kept, pinned, echo, size):
    """Half is new where there is anything else; the echo is at most a quarter, and never alone with nothing learned."""
    draws = np.random.default_rng(0)
    pools = {name: pool(name, *counts) for name, counts in dict(new=new, kept=kept, pinned=pinned, echo=echo).items()}
    batch = replay.compose(pools["new"], pools["kept"], pools["pinned"], pools["echo"], size, draws)
    count = Counter(example.text for example in batch)
    assert count["echo"] <= size / 4 and len(batch) <= size
    if pools["new"] and pools["kept"]:
        assert count["new"] == size // 2 and len(batch) == size
    if pools["pinned"] and pools["kept"]:
        assert count["pinned"] >= 1


def test_classes_are_balanced():
    """One call to block among a hundred is drawn as often as all the others together."""
    drawn = replay.balanced(pool("x", 100, 1), 40, np.random.default_rng(0))
    assert sum(example.target for example in drawn) == 20
    assert {example.target for example in replay.balanced(pool("x", 5, 0), 9, np.random.default_rng(0))} == {1.0}


def test_replay_has_even_mass():
    """Three calls to allow and one to block: as much in all; the weights within a class stay."""
    kinds = dict(a="allow", b="override_allow", c="allow", d="block")
    kept = [LabelledText(b"", name, signal(kind)) for name, kind in kinds.items()]
    assert replay.even(kept) == {"a": 1.0, "b": 2.0, "c": 1.0, "d": 4.0}
    assert replay.even(kept[:1]) == {"a": 1.0}


def test_more_calls_to_replay_do_not_count_more(monkeypatch):
    """However many are kept, a class weighs as much: what people say is not drowned."""
    monkeypatch.setattr(replay, "WEIGHT", 3.0)
    kept = [LabelledText(b"", f"call {i}", signal("allow" if i < 8 else "block")) for i in range(10)]
    mass = replay.even(kept)
    assert sorted(mass.values()) == [3 / 8] * 8 + [3 / 2] * 2


def test_the_echo_is_a_quarter_at_most():
    """The newest of those that nothing else is said of."""
    echo = [LabelledText(b"", name, signal("allow")) for name in "abcdefc"]
    assert [example.text for example in replay.quarter(echo, {"f": 4.0, "x": 5.0})] == ["c", "d", "e"]
    assert replay.quarter(echo, {"x": 2.0}) == [] and replay.quarter([], {"x": 9.0}) == []


def test_the_echo_waits_for_the_review(store):
    """Neither what is young, nor what was asked, ruled, allowed by likeness or remarked is an echo."""
    journal, now = store.journal, store.clock()

    def record(hours, decision="allow", **more):
        text = f"Bash\ncommand: {hours}"
        said = dict(text=text, texts=[text], acts=[{}], worst=0, digest=text)
        base = dict(id=new_id(now - 3600 * hours), lean=True, model=0.9, version=1, by="policy")
        journal.record([{**base, **said, "decision": decision, **more}])
        return base["id"]

    old = record(30)
    record(1)
    record(31, "ask")
    record(32, "block", by="rule")
    record(34, by="correction")  # allowed by likeness
    journal.remark(record(33), "override_allow")
    assert [(example.key.decode(), example.signal) for example in replay.echo(journal, 24)] == [(old, signal("allow"))]


@pytest.mark.parametrize("size", [1, 2])
def test_tiny_batches(size):
    batch = replay.compose(
        pool("new", 1, 0), pool("kept", 1, 1), [], pool("echo", 3, 3), size, np.random.default_rng(0)
    )
    assert len(batch) == size
