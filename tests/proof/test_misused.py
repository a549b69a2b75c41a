"""`verify` calls a module as programs do: several calls in flight, one step after another, memory of any layout, one
output of several; and gives features of any size."""

import pytest
import torch
from misused_modules import RIGHT, WRONG, LargeMissing, large_feature, standardised
from torch import nn

import gradproof
from gradproof.proof.memory_layout import laid_out, strides_to_keep


def judged(report):
    (subject,) = report.subjects
    return {j.name: j for j in (*subject.parameters, *subject.inputs)}


def refuted(report):
    return {name for name, j in judged(report).items() if j.status == "refuted"}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_when_it_is_called_otherwise(name):
    """The check says so by its name, and without it nothing is seen, unless the gradient is wrong there by itself."""
    case, culprits, check = WRONG[name]
    report = gradproof.verify(*case())
    (subject,) = report.subjects
    assert report.status == "refuted" and refuted(report) == culprits, report.summary
    assert check in [c.name for c in subject.checks if c.status == "refuted"]
    if check != "layout":
        assert gradproof.verify(*case(), skip=[check]).status == "proven"


@pytest.mark.parametrize("name", RIGHT)
def test_right_however_it_is_called(name):
    report = gradproof.verify(*RIGHT[name]())
    assert report.status == "proven", report.summary


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("made", [standardised, large_feature])
def test_a_large_feature_that_is_missing(made, quick):
    """The forward uses the column of 1.7e7, the weight's gradient does not."""
    module, inputs = made(LargeMissing.apply)
    name = "w" if made is large_feature else "linear.weight"
    assert name in refuted(gradproof.verify(module, inputs, quick=quick))


def test_each_column_moves_by_its_own_size():
    """The resolution is that of ordinary features, not 1e13 times as coarse."""
    report = gradproof.verify(*RIGHT["standardised features"]())
    assert max(j.resolution for j in judged(report).values()) < 1e-6


def test_the_reason_is_the_layout():
    case, _, _ = WRONG["reads a transposed input as row-major"]
    assert "x gives another output than a contiguous copy of it" in gradproof.verify(*case()).summary


def test_a_forward_that_depends_on_the_calls_before_it_is_judged_after_one():
    """By differences of its own, and is put back as it was."""
    module, inputs = RIGHT["a forward that depends on the calls before it"]()
    (subject,) = gradproof.verify(module, inputs).subjects
    assert [c.status for c in subject.checks if c.name == "second_step"] == ["proven"]
    assert module.calls == 0
    (subject,) = gradproof.verify(module, inputs, quick=True).subjects
    assert "depends on the calls before it" in next(c.note for c in subject.checks if c.name == "second_step")


def test_what_does_not_apply_is_not_listed():
    (subject,) = gradproof.verify(nn.Linear(6, 3), (torch.randn(8, 6),)).subjects
    assert not {"layout", "one_output"} & {c.name for c in subject.checks}


@pytest.mark.parametrize(
    "tensor, kept",
    [
        (torch.empty(4, 6).T, True),
        (torch.empty(4, 6)[:, ::2], True),
        (torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last), True),
        (torch.empty(4, 6), False),
        (torch.empty(4, 1).expand(4, 6), False),
        (torch.empty(4, 600)[:, 0], False),
        (torch.empty(9).unfold(0, 3, 1), False),
    ],
)
def test_strides_that_a_copy_keeps(tensor, kept):
    """Not those of entries that share memory, nor of a few numbers far apart."""
    strides = strides_to_keep(tensor)
    assert (strides is not None) == kept
    if strides is not None:
        values = torch.randn(tensor.shape, requires_grad=True)
        copied = laid_out(values, strides)
        assert copied.stride() == tensor.stride() and torch.equal(copied, values)
        copied.square().sum().backward()
        assert torch.equal(values.grad, 2 * values.detach())
