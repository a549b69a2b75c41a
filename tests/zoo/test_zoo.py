"""The zoo through `diagnose`: a sample of it always, the scored rounds whole in `make test-slow`."""

from importlib import import_module

import pytest
from zoo.entry import FORMATS
from zoo.score import LOUD, ROUNDS, entries, rates, score, trial

SAMPLE = [
    "gain",
    "key_bias",
    "layernorm_tiny_variance",
    "attention_min_mask",
    "moe_sort",
    "hook_shrinks",
    "low_silu_1.25",
    "overflow_square",
    pytest.param("ties_softmax", marks=pytest.mark.slow),
    "underflow_likelihood",
    pytest.param("loop_normaliser", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_round_0(name):
    records = trial("round_0", name, 0)
    assert [record["format"] for record in records] == list(FORMATS)
    assert not any(record["alarm"] for record in records), records
    assert all(record["right"] for record in records if record["fault"]), records


@pytest.mark.parametrize("name", ROUNDS)
def test_each_round_is_large_enough_and_says_the_truth_in_known_words(name):
    modules = import_module(f"zoo.{name}")
    assert len(modules.CORRECT) >= 15 and len(modules.WRONG) >= 15
    assert not set(modules.CORRECT) & set(modules.WRONG)
    assert not any(entry.fault for entry in modules.CORRECT.values()) and all(e.fault for e in modules.WRONG.values())
    for entry in (*modules.CORRECT.values(), *modules.WRONG.values()):
        assert set(entry.fault) | set(entry.may) <= set(FORMATS)
        assert set(entry.fault.values()) | set().union(*entry.may.values()) <= set(LOUD)


def test_the_rates_count_what_they_say():
    def record(name, fault, verdict, may=()):
        loud = verdict in LOUD
        figures = {"detected": bool(fault) and loud, "right": bool(fault) and verdict == fault}
        return {"name": name, "fault": fault, "verdict": verdict, "alarm": not fault and loud, **figures}

    missed = rates([record("a", "bug", "bug"), record("a", "bug", "routing"), record("b", "overflow", "noise")])
    assert (missed["detection"], missed["right_category"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert (missed["modules_always_detected"], missed["modules_always_right"]) == (0.5, 0.0)
    alarmed = rates([record("a", "bug", "bug"), record("c", "", "noise"), record("c", "", "bug")])
    assert (alarmed["false_alarms"], alarmed["modules_with_alarm"], alarmed["correct_modules"]) == (1, ["c"], 1)


# An embedding whose padding row is used as a token: left out of the gradient, and of the judgement, by definition.
NOT_JUDGED = {"padding_token"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDS[1:])
def test_the_scored_rounds(name):
    scores = score(name, 5, jobs=2, only=set(entries(name)) - NOT_JUDGED)
    assert scores["detection"] >= 0.97 and scores["right_category"] >= 0.90 and scores["false_alarms"] == 0, scores
