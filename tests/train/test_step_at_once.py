"""A step in one call: the bits of the step by its parts, whatever happens."""

from dataclasses import replace

import pytest
import torch

from gradproof.kernels.cpu import lesson
from gradproof.kernels.cpu.build import available
from gradproof.models.moe import MoE, MoEConfig
from gradproof.train.adamw import AdamW
from gradproof.train.loss import Loss
from gradproof.train.schedule import Schedule
from gradproof.train.step import TrainStep

pytestmark = pytest.mark.skipif(available() is not None, reason=str(available()))

I, O = 9, 5
MODELS = {
    "plain": {},
    "balance, z-loss, correction": dict(balance=0.3, z_loss=0.07, correction=0.05),
    "sigmoid, renormalised": dict(scores="sigmoid", renormalise=True, balance=0.3),
    "K = 1": dict(k=1, balance=0.3),
    "K = E": dict(k=4),
}


class ByParts(TrainStep):
    def choose(self, rows):
        self.kernels = replace(super().choose(rows), lesson=None)
        return self.kernels


@pytest.fixture
def calls(monkeypatch):
    """How many steps were taken at once."""
    counted, right = [], lesson.step

    def step(*args, **options):
        counted.append(1)
        return right(*args, **options)

    monkeypatch.setattr(lesson, "step", step)
    return counted


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def make(kind, options=None, loss="cross_entropy", **more):
    config = MoEConfig(I, O, hidden=32, depth=2, **(options or {}))
    return kind(MoE(config, seed=1), loss, AdamW(lr=1e-2, weight_decay=0.1), **{"clip": 0.5, **more})


def batch(seed, T=17):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(T, I, generator=generator), torch.randint(O, (T,), generator=generator)


def bits(step):
    """All that the next step depends on, and the gradient."""
    return [tensor.clone() for tensor in (step.model.params.flat_P, step.model.params.grad_P, *step.state().values())]


def same(one, other):
    assert len(one) == len(other)
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        assert torch.equal(torch.nan_to_num(a, 7.0), torch.nan_to_num(b, 7.0)), i


def same_result(one, other):
    assert float(one.entropy) == pytest.approx(float(other.entropy), rel=1e-6, nan_ok=True)
    same(list(one._replace(entropy=one.scale)), list(other._replace(entropy=other.scale)))
    for a, b in zip(one, other, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)


@pytest.mark.parametrize("clip", [pytest.param(None, marks=pytest.mark.slow), 0.5])
@pytest.mark.parametrize("name", MODELS)
def test_the_bits_of_the_parts(name, clip, threads, calls):
    """A norm before the auxiliary terms, a count that is one behind, a correction that is not read: any would show."""
    schedule = Schedule(14, "warmup-cosine", 0.2)
    whole, parts = (make(kind, MODELS[name], clip=clip, schedule=schedule) for kind in (TrainStep, ByParts))
    for s, T in enumerate([17, 17, 1, 64, 5, 17, 300, 2, 17, 33, 17, 17]):
        same_result(whole(*batch(s, T)), parts(*batch(s, T)))
        same(bits(whole), bits(parts))
    assert len(calls) == 12 and whole.kernels.chosen["lesson"] == "cpu"


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_what_is_not_finite_moves_nothing(value, calls):
    whole, parts = (make(kind, MODELS["balance, z-loss, correction"]) for kind in (TrainStep, ByParts))
    for s in range(5):
        x_TI, target_T = batch(s)
        if s in (1, 3):
            x_TI[4, 2] = value
        before = bits(whole)
        result = whole(x_TI, target_T)
        same_result(result, parts(x_TI, target_T))
        if s in (1, 3):
            assert float(result.skipped) == 1
            names = ["flat", "gradient", *whole.state()]
            moved = {n for n, a, b in zip(names, before, bits(whole), strict=True) if not torch.equal(a, b)}
            assert moved <= {"gradient", "skipped"}
    assert len(calls) == 5 and float(whole.optimizer.count) == 3 and float(whole.training.skipped) == 2


@pytest.mark.parametrize(
    "target_T, sentence",
    [
        (torch.tensor([0, 1, O] + [0] * 14), rf"target\[2\] = {O} is out of range: the classes are 0..{O - 1}"),
        (torch.full((17,), -1), r"target\[0\] = -1 is out of range"),
        (torch.zeros(16, dtype=torch.int64), r"target must be int64 \[17\]"),
        (torch.zeros(17), r"target must be int64 \[17\]"),
    ],
)
def test_a_wrong_target_is_one_sentence_and_moves_nothing(target_T, sentence, calls):
    step = make(TrainStep)
    step(*batch(0))
    before = bits(step)
    with pytest.raises(ValueError, match=sentence):
        step(batch(1)[0], target_T)
    same(bits(step), before)


def test_results_are_copies(calls):
    """The next step writes over its own memory; neither may change the other."""
    step, untouched = make(TrainStep), make(TrainStep)
    kept = []
    for s in range(4):
        result = step(*batch(s))
        untouched(*batch(s))
        kept.append((result, [tensor.clone() for tensor in result]))
    for result, values in kept:
        assert all(torch.equal(a, b) for a, b in zip(result, values, strict=True))
    for result, _ in kept:
        for tensor in result:
            tensor.fill_(7)
    same(bits(step), bits(untouched))


class Noting(Loss):
    """Somebody's own, which must be called."""


WEIGHT_C = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.1])


@pytest.mark.parametrize(
    "options",
    [
        dict(loss=Loss("cross_entropy", class_weight_C=WEIGHT_C)),
        dict(loss=Loss("cross_entropy", ignore=-1)),
        dict(loss=Noting("cross_entropy")),
        dict(micro_rows=6),
        dict(options=dict(router="sheaf", patches=(4, 2, 3), gluing=0.1)),
    ],
)
def test_who_is_stepped_by_parts(options, calls):
    """Weights, padding, a loss of one's own, micro-batches, and another router."""
    step = make(TrainStep, **options)
    for s in range(2):
        step(*batch(s))
    assert not calls


def test_a_target_in_a_tuple(calls):
    """As losses of several targets have it."""
    whole, parts = make(TrainStep), make(ByParts)
    x_TI, target_T = batch(0)
    same_result(whole(x_TI, (target_T,)), parts(x_TI, target_T))


def test_rows_that_lie_apart(calls):
    """Columns of a wider table, every other row, a target with an axis too many."""
    whole, parts = make(TrainStep), make(ByParts)
    table_TI = torch.randn(60, 2 * I, generator=torch.Generator().manual_seed(0))
    target_T = torch.randint(O, (60,), generator=torch.Generator().manual_seed(1))
    for given in ((table_TI[::2, :I], target_T[::2]), (table_TI[:, 3 : 3 + I], target_T[:, None])):
        same_result(whole(*given), parts(*given))
    same(bits(whole), bits(parts))
    assert len(calls) == 2
