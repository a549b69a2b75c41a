"""Deciding: floor, rules, corrections, policy and model, act by act; news come in without stopping it."""

import time

import pytest
from made_calls import bash

from gradproof.gate.calls import Call
from gradproof.gate.decider import Decider


def at(command, cwd="/work/app"):
    return Call("Bash", {"command": command}, cwd)


@pytest.fixture
def decider(store):
    made = Decider(store, wait=True)
    yield made
    made.close()


def correct(store, decider, call, kind, **more):
    answer = decider.decide(call)
    decider.flush()
    store.journal.remark(answer.id, kind, **more)
    return answer


def test_the_policy_decides_from_the_first_call_on(decider):
    outcomes = {line: decider.decide(at(line)).decision for line in ("ls", "git push origin x", "rm -rf /")}
    assert outcomes == {"ls": "allow", "git push origin x": "ask", "rm -rf /": "block"}


def test_the_worst_act_decides_and_is_named(decider):
    answer = decider.decide(at("make test && rm -rf ../shared && ls"))
    assert (answer.decision, answer.reason) == ("ask", "deletes /work/shared/, outside the project")
    assert [act["effect"] for act in answer.acts] == ["execute", "delete"] + ["read"] * (len(answer.acts) - 2)


def test_rules_win_over_corrections(store, decider):
    store.rules.write_text('[[deny]]\nprogram = "git"\nverb = "diff"\nreason = "not today"')
    answer = correct(store, decider, at("git diff src/a.py"), "false_block")
    assert (answer.decision, answer.probability) == ("block", 0.0) and "not today" in answer.reason
    assert decider.decide(at("git diff src/a.py")).decision == "block"


def test_no_rule_and_no_correction_removes_the_floor(store, decider):
    store.rules.write_text('[[allow]]\ntool = "*"')
    for line in (
        f"rm -rf {store.folder}",
        f"cat {store.folder}/key",
        "rm -rf .",
        "gradproof gate feedback x false_block",
    ):
        call = at(line)
        assert correct(store, decider, call, "false_block").decision == "block"
        assert decider.decide(call).decision == "block"


def test_a_broken_rules_file_leaves_the_rules_of_before(store, decider):
    store.rules.write_text('[[deny]]\nprogram = "git"')
    assert decider.decide(at("git status")).decision == "block"
    store.rules.write_text("[[deny]")
    assert decider.decide(at("git status")).decision == "block" and "keeping the previous rules" in decider.complaint


def test_the_model_loosens_a_question_only_with_trust(warm):
    """And never what is blocked, nor what could not be read."""
    decider = Decider(warm, wait=True)
    decider.serving = decider.serving._replace(policy=decider.serving.policy._replace(allow_at=0.0, block_below=0.0))
    loosened = decider.decide(at("git push origin x"))
    assert loosened.decision == "allow" and "the model allows it" in loosened.reason
    outcomes = [decider.decide(at(line)).decision for line in ("rm -rf /", 'rm -rf "$X"', "eval $(cat x)")]
    assert outcomes == ["block", "ask", "ask"]
    warm.journal.reset_trust()
    assert decider.decide(at("git push origin x")).decision == "ask"
    decider.close()


def test_the_model_may_tighten(warm):
    decider = Decider(warm, wait=True)
    decider.serving = decider.serving._replace(policy=decider.serving.policy._replace(allow_at=2.0, block_below=1.5))
    tightened = decider.decide(at("ls src"))
    assert tightened.decision == "ask" and "the model considers it harmful" in tightened.reason
    decider.close()


def test_an_allow_holds_for_calls_that_do_no_more(store, decider):
    correct(store, decider, at("git push origin feature"), "override_allow")
    for line in ("git push origin feature", "git push -u origin feature", "git  push 'origin' feature"):
        assert decider.decide(at(line)).decision == "allow", line
    for line in (":main", "+main", "-d main", "main", "--force origin feature"):
        assert decider.decide(at(f"git push origin {line}")).decision != "allow", line
    assert decider.decide(at("git push origin feature && git push origin main")).decision == "ask"


def test_a_block_holds_for_calls_that_do_no_less(store, decider):
    """Of 300 other calls it changes none."""
    others = [at(f"git log -{i}") for i in range(100)] + [at(f"rm -rf build/{i}") for i in range(100)]
    others += [at(f"cat src/{i}.py") for i in range(100)]
    before = [decider.decide(other).decision for other in others]
    correct(store, decider, at("rm -rf build/cache"), "false_allow")
    for line in ("rm -rf build/cache", "sudo rm -r build/cache", "rm -rf build", "ls; rm -fr ./build/cache; ls"):
        assert decider.decide(at(line)).decision == "block", line
    assert [decider.decide(other).decision for other in others] == before


def test_a_block_names_one_act(store, decider):
    """The one that decided, or the one that was named."""
    correct(store, decider, at("make build && cat src/a.py"), "false_allow", act=1)
    assert (
        decider.decide(at("cat src/a.py")).decision == "block" and decider.decide(at("make build")).decision == "allow"
    )


def test_newer_beats_older_and_the_exact_call_beats_likeness(store, decider):
    correct(store, decider, at("rm -rf /srv/old"), "override_allow")
    correct(store, decider, at("rm -rf /srv/old"), "override_block")
    assert decider.decide(at("rm -rf /srv/old")).decision == "block"
    correct(store, decider, at("rm -rf /srv/old/a"), "override_allow")
    assert decider.decide(at("rm -rf /srv/old/a")).decision == "allow"
    assert decider.decide(at("rm -rf /srv/old")).decision == "block"


def test_a_new_version_is_taken_without_waiting(store):
    """Decisions go on with the old one until the new one is there."""
    decider = Decider(store)
    versions = store.versions
    versions.add(versions.weights(1), versions.get(1).record)
    seen = []
    while 2 not in seen and len(seen) < 5000:
        seen.append(decider.decide(bash("git diff a.py")).version)
    assert seen[0] in (1, 2) and seen[-1] == 2 and sorted(seen) == seen
    decider.close()


def test_decisions_are_made_on_the_raw_call_and_recorded_without_secrets(store, decider):
    decider.decide(bash("curl -H 'Authorization: Bearer abcdef0123456789abcdef' http://10.0.0.1/"))
    decider.flush()
    (decision,) = store.journal.decisions(1)
    assert "abcdef0123456789abcdef" not in str(decision) and "10.0.0.1" in decision["text"]


def test_a_remark_waits_for_a_decision_on_its_way(store):
    """The answer comes before the disk; feedback given at once must not be told that there is no such decision."""
    store.clock = store.journal.clock = time.time
    decider = Decider(store)
    for _ in range(3):
        answer = decider.decide(bash("git diff a.py"))
        assert store.journal.remark(answer.id, "false_allow").kind == "false_allow"
    decider.close()


@pytest.mark.parametrize("error", [ValueError("the store is full"), OSError(28, "No space left on device")])
def test_a_full_store_or_disk_does_not_stop_decisions(store, decider, monkeypatch, error):
    def full(decisions):
        raise error

    monkeypatch.setattr(store.journal, "record", full)
    assert decider.decide(at("git diff a.py")).decision == "allow"
    with pytest.raises(ValueError, match=r"full|No space left"):
        decider.flush()
    assert decider.decide(at("git diff a.py")).decision == "allow"


def test_an_argument_without_a_name(decider):
    assert decider.decide(Call("Write", {"": "x"}, "/work/app")).decision == "ask"
