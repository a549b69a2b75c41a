"""Explanations: the shares add up to the logit, and belong to the words and features that moved it."""

import pytest

from gradproof.gate.calls import Call
from gradproof.gate.decider import Decider
from gradproof.gate.explaining import explanation, shares
from gradproof.gate.network import GateConfig, GateModel
from gradproof.gate.reading import act_texts, read

PLAIN = GateConfig(width=16, heads=2, encoder_layers=0, feedforward=32, context=64, buckets=512, features=64)


def texts_of(command):
    call = Call("Bash", {"command": command}, "/work/app")
    return act_texts(call, read(call).acts)


def random_gate(config=PLAIN):
    gate = GateModel.fresh(3, config)
    for name in ("ngrams.weight", "features.weight"):
        gate.network.params[name].uniform_(-1, 1)
    return gate


@pytest.mark.parametrize("command", ["rm -rf ../shared", "ls", "git push origin x | tee a.log | tee a.log", "echo ü€"])
def test_the_shares_add_up_to_the_logit(command):
    gate = random_gate()
    for text in texts_of(command):
        told = shares(gate, text)
        assert told["logit"] == pytest.approx(float(gate.logits([gate.encode(text)])[0]), abs=1e-6)
        assert sum(one["share"] for one in told["features"]) + told["rest"] == pytest.approx(told["logit"], abs=1e-9)
        sizes = [abs(one["share"]) for one in told["features"]]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] > 0


def test_what_has_no_weight_has_no_share_and_what_has_one_gets_it():
    """With a single weight, that of one feature, this feature alone is listed, with the whole logit."""
    gate = random_gate()
    (text,) = texts_of("rm -rf ../shared")
    for name in ("ngrams.weight", "features.weight"):
        gate.network.params[name].zero_()
    assert shares(gate, text)["features"] == [] and shares(gate, text)["logit"] == 0
    row = gate.batch([gate.encode(text)])
    _, _, feature_BG = gate.network.split(row)
    gate.network.params["features.weight"][int(feature_BG[0].max())] = 2.0
    told = shares(gate, text)
    assert sum(one["share"] for one in told["features"] if "feature" in one) == pytest.approx(told["logit"])
    assert told["rest"] == pytest.approx(0, abs=1e-6) and told["logit"] > 0
    gate.network.params["features.weight"].zero_()
    gate.network.params["ngrams.weight"].fill_(1.0)
    words = {one["word"]: one["share"] for one in shares(gate, text)["features"]}
    assert set(words) == {"Bash", "command:", "rm", "-rf", "../shared"} and min(words.values()) > 0


def test_an_encoder_has_its_part_in_the_rest(trained):
    (text,) = texts_of("git diff src/file1.py")
    told = shares(trained, text)
    assert sum(one["share"] for one in told["features"]) + told["rest"] == pytest.approx(told["logit"])


def test_a_decision_is_explained_by_the_act_that_decided(store):
    decider = Decider(store, wait=True)
    call = Call("Bash", {"command": "ls && rm -rf ../shared"}, "/work/app")
    answer, record = decider.decided(call)
    told = explanation(decider.serving, record)
    assert (
        told["act"] == record["worst"] and told["does"] == answer.reason == "deletes /work/shared/, outside the project"
    )
    assert (told["by"], told["because"]) == (answer.by, answer.because)
    assert told["model"] == pytest.approx(record["p"][record["worst"]], abs=1e-4)
    decider.close()
