"""The zoo through `diagnose`: a sample of it always, the scored halves whole in `make test-slow`."""

import pytest
from zoo import calibration, fresh, held, scored, sealed, unseen
from zoo.entry import FORMATS
from zoo.score import LOUD, entries, rates, score, trial

SAMPLE = [
    "gain",
    "key_bias",
    "layernorm_tiny_variance",
    "attention_min_mask",
    "moe_sort",
    "hook_shrinks",
    "low_silu_1.25",
    "overflow_square",
    "ties_softmax",
    "underflow_likelihood",
    "loop_normaliser",
]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_the_calibration_half(name):
    found = trial("calibration", name, 0)
    assert [each["format"] for each in found] == list(FORMATS)
    assert not any(each["alarm"] for each in found), found
    assert all(each["right"] for each in found if each["fault"]), found


@pytest.mark.parametrize("half", [calibration, scored, fresh, unseen, held, sealed])
def test_each_half_is_large_enough_and_says_the_truth_in_known_words(half):
    assert len(half.CORRECT) >= 15 and len(half.WRONG) >= 15
    assert not set(half.CORRECT) & set(half.WRONG)
    assert not any(entry.fault for entry in half.CORRECT.values()) and all(e.fault for e in half.WRONG.values())
    for entry in (*half.CORRECT.values(), *half.WRONG.values()):
        assert set(entry.fault) | set(entry.may) <= set(FORMATS)
        assert set(entry.fault.values()) | set().union(*entry.may.values()) <= set(LOUD)


def test_the_rates_count_what_they_say():
    def record(name, fault, verdict, may=()):
        loud = verdict in LOUD
        figures = {"detected": bool(fault) and loud, "right": bool(fault) and verdict == fault}
        return {"name": name, "fault": fault, "verdict": verdict, "alarm": not fault and loud, **figures}

    found = rates([record("a", "bug", "bug"), record("a", "bug", "routing"), record("b", "overflow", "noise")])
    assert (found["detection"], found["right_category"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert (found["modules_always_detected"], found["modules_always_right"]) == (0.5, 0.0)
    found = rates([record("a", "bug", "bug"), record("c", "", "noise"), record("c", "", "bug")])
    assert (found["false_alarms"], found["modules_with_alarm"], found["correct_modules"]) == (1, ["c"], 1)


# An embedding whose padding row is used as a token: left out of the gradient, and of the judgement, by definition.
NOT_JUDGED = {"padding_token"}


@pytest.mark.slow
@pytest.mark.parametrize("half", ["scored", "fresh", "unseen", "held", "sealed"])
def test_the_scored_halves(half):
    found = score(half, 5, jobs=2, only=set(entries(half)) - NOT_JUDGED)
    assert found["detection"] >= 0.97 and found["right_category"] >= 0.90 and found["false_alarms"] == 0, found
