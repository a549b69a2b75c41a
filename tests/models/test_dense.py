from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradproof.models.dense import Dense, DenseConfig
from gradproof.params import ParamSpace


def small(**options):
    """A float64 dense model of a few hundred parameters."""
    shape = {**dict(inputs=5, outputs=3, hidden=6, feedforward=9, blocks=1), **options}
    return Dense(DenseConfig(**shape), seed=1, dtype=torch.float64)


def sequential(model):
    """The same network of torch's own modules, with the same weights: (net, [(our name, its parameter)])."""
    config = model.config
    widths = [config.inputs, config.hidden, *[config.feedforward, config.hidden] * config.blocks]
    layers, named = [], []
    for i, (before, after) in enumerate(pairwise(widths)):
        linear, norm = nn.Linear(before, after), nn.LayerNorm(after, eps=1e-5)
        layers += [linear, norm] if i == 0 else [linear, norm, nn.GELU(approximate="tanh")]
        for module, name in ((linear, f"linear.{i}"), (norm, f"norm.{i}")):
            named += [(f"{name}.weight", module.weight), (f"{name}.bias", module.bias)]
    last = nn.Linear(widths[-1], config.outputs)
    named += [(f"linear.{len(widths) - 1}.weight", last.weight), (f"linear.{len(widths) - 1}.bias", last.bias)]
    net = nn.Sequential(*layers, last).double()
    with torch.no_grad():
        for name, parameter in named:
            parameter.copy_(model.params[name])
    return net, named


def compare(agree, model, x_TI, dy_TO):
    """Output, input gradient and every parameter's gradient against torch's modules."""
    net, named = sequential(model)
    assert [name for name, _ in named] == list(model.params)
    leaf_TI = x_TI.clone().requires_grad_()
    right_TO = net(leaf_TI)
    output, tape = model.forward(x_TI)
    agree(output.logits_TO, right_TO, 1e-10)
    wanted = torch.autograd.grad(right_TO, [leaf_TI, *(parameter for _, parameter in named)], dy_TO)
    grads = [model.backward(dy_TO, tape), *model.params.grads.values()]
    everything = torch.cat([grad.flatten() for grad in wanted])
    for grad, right in zip(grads, wanted, strict=True):
        agree(grad, right, 1e-10, terms=everything)


@given(
    T=st.sampled_from([1, 2, 7]),
    inputs=st.sampled_from([1, 5]),
    outputs=st.sampled_from([1, 3]),
    hidden=st.sampled_from([2, 6]),
    feedforward=st.sampled_from([2, 9]),
    blocks=st.integers(0, 3),
    seed=st.integers(0, 9999),
)
def test_agrees_with_torch_modules(normal, agree, T, inputs, outputs, hidden, feedforward, blocks, seed):
    """A GELU after the first norm, a missing norm or gradients in another order would fail."""
    model = small(inputs=inputs, outputs=outputs, hidden=hidden, feedforward=feedforward, blocks=blocks)
    compare(agree, model, *normal(seed, (T, inputs), (T, outputs)))


def test_nano_agrees_with_torch_modules(normal, agree):
    """The widths that `matching` finds are odd; an assumed multiple of 4 would fail."""
    compare(agree, Dense.sized("nano", dtype=torch.float64), *normal(0, (17, 96), (17, 20)))


def test_gates_are_ones_and_aux_is_zero(normal):
    """Metrics read every model alike: one expert with a share of 1."""
    output, _ = small().forward(normal(1, (7, 5))[0])
    assert torch.equal(output.gates_TE, torch.ones(7, 1).double())
    assert torch.equal(output.aux, torch.zeros(()).double())


def test_accumulate_adds(normal, agree):
    """Overwriting would train on the last micro-batch only."""
    model = small()
    batches = [normal(seed, (T, 5), (T, 3)) for seed, T in ((2, 4), (3, 9))]
    alone = []
    for x_TI, dy_TO in batches:
        model.backward(dy_TO, model.forward(x_TI)[1])
        alone.append(model.params.grad_P.clone())
    for accumulate, (x_TI, dy_TO) in zip((False, True), batches, strict=True):
        model.backward(dy_TO, model.forward(x_TI)[1], accumulate=accumulate)
    agree(model.params.grad_P, alone[0] + alone[1], 1e-14)


def test_two_forwards_in_flight(normal):
    """State hidden on the model would give the second forward's gradient to the first."""
    model = small()
    batches = [normal(seed, (T, 5), (T, 3)) for seed, T in ((4, 4), (5, 9))]
    alone = [model.backward(dy_TO, model.forward(x_TI)[1]) for x_TI, dy_TO in batches]
    tapes = [model.forward(x_TI)[1] for x_TI, _ in batches]
    for tape, (_, dy_TO), right_TI in zip(tapes, batches, alone, strict=True):
        assert torch.equal(model.backward(dy_TO, tape), right_TI)


def test_exact_parameter_count():
    """The size of the design; the meta device lays out the real parameters and allocates none."""
    config = DenseConfig.sized("0.7b")
    assert config.param_count() == 706_055_188
    assert ParamSpace(config.spec(), device="meta").count == 706_055_188


@pytest.mark.parametrize(
    ("name", "count"),
    [("nano", 195_540), ("tiny", 84_984_276), ("medium", 337_740_244), ("full", 807_846_356)],
)
def test_named_sizes_match_the_mixture(name, count):
    """A baseline of another size would not be a comparison; a deep one without residuals barely learns."""
    config = DenseConfig.sized(name)
    assert abs(config.param_count() - count) <= 0.01 * count
    assert config.blocks <= 4


@given(exponent=st.floats(5, 8.845))
def test_matching_meets_its_budget(exponent):
    """A width found by rounding the wrong way would miss a budget between 100,000 and 700,000,000 by over 1%."""
    budget = round(10**exponent)
    config = DenseConfig.matching(budget)
    assert abs(config.param_count() - budget) <= 0.01 * budget
    assert config.blocks <= 4 and 2 * config.hidden <= config.feedforward <= 8 * config.hidden


@pytest.mark.parametrize("budget", [0, 20])
def test_matching_refuses_an_impossible_budget(budget):
    """A model far too large would be compared as if it were equal."""
    with pytest.raises(ValueError, match=f"no dense model of 96 inputs and 20 outputs has as few as {budget} "):
        DenseConfig.matching(budget)


def test_refuses_a_size_or_shape():
    """A sentence in place of a shape error from inside torch."""
    with pytest.raises(ValueError, match=r"'huge'.*nano, tiny, medium, full and 0\.7b"):
        DenseConfig.sized("huge")
    with pytest.raises(ValueError, match="feedforward"):
        DenseConfig(feedforward=0)
    with pytest.raises(ValueError, match="blocks"):
        DenseConfig(blocks=-1)


def test_shares_the_refusals_of_every_model(normal):
    """The misuse that the MoE refuses is refused here too: the checks belong to the model, not to the family."""
    model = small()
    x_TI, dy_TO = normal(6, (4, 5), (4, 3))
    with pytest.raises(ValueError, match=r"5 inputs\], not \[4, 6\]"):
        model.forward(torch.zeros(4, 6).double())
    _, tape = model.forward(x_TI)
    with pytest.raises(ValueError, match=r"cotangent must be \[4, 3\]"):
        model.backward(dy_TO[:, :2], tape)
    model.backward(dy_TO, tape)
    with pytest.raises(ValueError, match="tape has already been used"):
        model.backward(dy_TO, tape)
    _, tape = model.forward(x_TI)
    model.params["norm.0.bias"].add_(1)
    with pytest.raises(ValueError, match="parameters changed"):
        model.backward(dy_TO, tape)
