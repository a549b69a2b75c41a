"""Flips: found exactly on planted near-ties, explained by their margins, and their share of the error."""

import pytest
import torch
from torch import nn

import gradproof
from gradproof.diagnosis.diagnose import settled
from gradproof.diagnosis.measure import Laboratory
from gradproof.diagnosis.specimen import ModuleSpecimen
from gradproof.precision.formats import format_named

ROWS, PLANTED = 64, [3, 8, 21, 22, 40, 63]


class Experts(nn.Module):
    """Four experts and two of them a row, by scores that come with the input."""

    def __init__(self, choose):
        super().__init__()
        self.experts, self.choose = nn.ModuleList(nn.Linear(6, 5) for _ in range(4)), choose

    def forward(self, x, scores):
        gates, index = self.choose(scores)
        y = torch.stack([expert(x) for expert in self.experts], 1)
        return (gates[..., None] * y.gather(1, index[..., None].expand(-1, -1, 5))).sum(1)


def sorted_first(scores):
    values, index = torch.sort(scores, dim=-1, descending=True, stable=True)
    return values[:, :2], index[:, :2]


CHOICES = {"topk": lambda scores: scores.topk(2, -1), "sort": sorted_first}


def near_ties(choose, seed=0):
    """Clear margins everywhere, except that in the planted rows the second and third score differ by less than half a
    unit of bf16, the third standing first (or, for `topk`, on either side): rounded to the same number, a stable sort
    takes that one. fp16 holds all of them exactly."""
    torch.manual_seed(seed)
    scores = torch.tensor([0.875, 0.625, 0.25, 0.125]).repeat(ROWS, 1)
    scores = torch.stack([row[torch.randperm(4)] for row in scores])
    for i, row in enumerate(PLANTED):
        near = [0.5, 0.5 + 2.0**-10] if i % 2 == 0 or choose is not CHOICES["topk"] else [0.5 + 2.0**-10, 0.5]
        scores[row] = torch.tensor([near[0], 0.875, near[1], 0.125])
    return Experts(choose), (torch.randn(ROWS, 6), scores)


def measured(case, format="bf16"):
    with settled():
        specimen = ModuleSpecimen(*case, "planted", 0, None)
        try:
            lab = Laboratory(specimen, 0)
            return lab, lab.measure(format_named(format), "cast", 6)
        finally:
            specimen.close()


@pytest.mark.parametrize("choose", CHOICES.values(), ids=CHOICES)
def test_the_flipped_rows_are_found_exactly_and_explained(choose):
    diagnosis = gradproof.diagnose(*near_ties(choose), precisions=("bf16", "fp16"), replicas=8)
    bf16, fp16 = diagnosis.precisions
    if choose is CHOICES["topk"]:  # torch.topk promises no order of equal scores: what it did is what counts
        with torch.no_grad():
            scores = near_ties(choose)[1][1]
            right, low = (CHOICES["topk"](s)[1].sort(-1).values for s in (scores.double(), scores.bfloat16()))
        planted = (right != low).any(-1).nonzero()[:, 0].tolist()
        assert planted and set(planted) <= set(PLANTED)
    else:
        planted = PLANTED
    assert [flip["row"] for flip in bf16.routing.flipped] == planted
    assert bf16.routing.flips == len(planted) and bf16.routing.decisions == ROWS
    assert bf16.routing.margin_explained == 1.0
    assert all(flip["margin"] == pytest.approx(2.0**-10) for flip in bf16.routing.flipped)
    assert bf16.verdict == "routing" and fp16.routing.flips == 0 and fp16.verdict in ("noise", "clean")


def test_the_two_parts_of_the_error_add_up_as_vectors():
    lab, run = measured(near_ties(sorted_first))
    assert run.parts and set(run.parts) == set(lab.grads)
    for name, part in run.parts.items():
        whole = run.real.tensors[name].error
        assert part.flips**2 + part.arithmetic**2 + 2 * part.cross == pytest.approx(whole**2, rel=1e-10, abs=1e-24)
    assert any(part.flips > 10 * part.arithmetic for part in run.parts.values())


def test_replayed_decisions_leave_rounding_alone():
    """With the reference's routing the error is that of the same module where nothing is near a tie."""
    _, run = measured(near_ties(sorted_first))
    free, replayed = (max(c.relative for c in taken.tensors.values()) for taken in (run.nearest, run.replayed))
    assert free > 0.1 and replayed < 0.02
    assert all(max(c.relative for c in r.tensors.values()) < 0.05 for r in run.replicas)


class WrongInBf16(torch.autograd.Function):
    """A top-k whose low-precision kernel takes the smallest."""

    @staticmethod
    def forward(ctx, scores):
        return scores.topk(2, -1, largest=scores.dtype != torch.bfloat16).indices

    @staticmethod
    def backward(ctx, g):
        return None


def test_flips_that_no_margin_explains_are_a_bug():
    def choose(scores):
        index = WrongInBf16.apply(scores.detach())
        return scores.gather(1, index), index

    diagnosis = gradproof.diagnose(*near_ties(choose), precisions=("bf16",), replicas=8)
    assert diagnosis.verdict == "bug" and diagnosis.precisions[0].routing.margin_explained < 0.5


def test_a_model_of_ours_finds_its_own_flips():
    """A router whose rows are near ties, in the engine's own explicit forward and backward."""
    from gradproof.diagnosis.diagnose import checked_formats, examine
    from gradproof.models.moe import MoE, MoEConfig
    from gradproof.train.loss import Loss
    from gradproof.train.model_specimen import ModelSpecimen

    torch.manual_seed(0)
    model = MoE(MoEConfig(inputs=16, outputs=5, hidden=12, depth=1))
    model.params["router.weight"].mul_(1e-3)
    model.params["router.bias"].zero_()
    x, target = torch.randn(128, 16), torch.randint(0, 5, (128,))
    with settled():
        specimen = ModelSpecimen(model, Loss("cross_entropy"), x, target, name="near ties")
        diagnosis = examine(specimen, checked_formats(["bf16"]), "cast", 8, 0, lambda what: None)
    assert diagnosis.verification.status == "proven"
    assert diagnosis.precisions[0].routing.decisions == 128
    assert diagnosis.precisions[0].routing.flips == 0, "the router stays fp32 in a bf16 run"
    assert diagnosis.verdict in ("noise", "clean")
