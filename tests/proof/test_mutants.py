import pytest
import torch

from gradproof import ops
from gradproof.models.subject import judge_model
from gradproof.models.wrong_backwards import MUTANTS as OF_MODELS
from gradproof.proof import operation
from gradproof.proof.examples import examples
from gradproof.proof.judge import judge_op
from gradproof.proof.mutants import run
from gradproof.proof.wrong_backwards import MUTANTS as OF_OPS

MUTANTS = [*OF_OPS, *OF_MODELS]
SUBTLE_OPS = [mutant for mutant in MUTANTS if mutant.subtle and mutant.subject in ops.NAMES]


def judge(subject, option):
    """The same verdicts that `gradproof verify --mutants` gives: differences are taken of what the rest let pass."""
    for quick in (True, False):
        if subject in (*ops.NAMES, *ops.ENCODERS):
            yield judge_op(ops.load(subject), quick=quick)
        else:
            yield from judge_model(subject, quick=quick, first=option)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_refuted_by_name(mutant):
    """A wrong backward that survives means that the proof is too weak."""
    (verdict,) = run([mutant], judge)
    assert verdict.status == "refuted" and verdict.claim
    named = verdict.parameter is not None or mutant.subject in ops.ENCODERS  # which have nothing to differentiate
    assert named, "nothing says which tensor is wrong"


def test_mutants_are_removed_afterwards():
    """The right function is back even when judging raised."""
    from gradproof.ops import softmax

    right = softmax.backward
    mutant = next(m for m in MUTANTS if m.target == "gradproof.ops.softmax:backward")
    with pytest.raises(RuntimeError), mutant.planted():
        assert softmax.backward is not right
        raise RuntimeError
    assert softmax.backward is right


def test_there_are_enough():
    assert len(MUTANTS) >= 40 and sum(mutant.subtle for mutant in MUTANTS) >= 25
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", SUBTLE_OPS, ids=lambda mutant: mutant.name)
def test_subtle_mutants_are_subtle(mutant):
    """Under 5% of every gradient, or nothing at all once the last row's cotangent (or result) is left out."""
    op = ops.load(mutant.subject)
    for example in examples(mutant.subject, op.CONTRACT, seed=3):
        if next(iter(example.arguments.values())).shape[0] == 1:
            continue  # the only row is the last row
        subject = operation.subject(op, mutant.subject, example, torch.float64, "cpu")
        outputs, _ = subject.run(subject.values, None)
        cotangents = tuple(torch.randn_like(y) for y in outputs)
        _, right = subject.run(subject.values, cotangents)
        with mutant.planted():
            _, wrong = subject.run(subject.values, cotangents)
        for name, expected in right.items():
            off = wrong[name] - expected
            small = off.norm() <= 0.05 * expected.norm()
            some_rows = expected.shape[0] > 1 and bool((off[:-1] == 0).all())
            assert small or some_rows or _last_row_only(subject, mutant, cotangents, name)


def _last_row_only(subject, mutant, cotangents, name):
    """Whether the error goes away with the cotangent of the last row."""
    silent = tuple(torch.cat([c[:-1], torch.zeros_like(c[-1:])]) if c.dim() else c for c in cotangents)
    _, right = subject.run(subject.values, silent)
    with mutant.planted():
        _, wrong = subject.run(subject.values, silent)
    return torch.allclose(wrong[name], right[name], rtol=1e-12, atol=1e-14)
