import pytest
import torch
from torch.utils._pytree import tree_leaves

from gradproof.kernels.admissions import choose
from gradproof.models import sizes
from gradproof.models.dense import Dense
from gradproof.models.model import SIZES, Tape
from gradproof.models.moe import MoE
from gradproof.models.transformer import Transformer

FAMILIES = {"moe": MoE, "dense": Dense}


def held(tape, model):
    """Bytes of the distinct floating storages that a tape keeps, the input and the parameters not counted."""
    known = {tape.x_TI.untyped_storage().data_ptr(), model.params.flat_P.untyped_storage().data_ptr()}
    tensors = [leaf for leaf in tree_leaves(tape.saved) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(size for pointer, size in storages.items() if pointer not in known)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [1, 64])
def test_predicted_activations_are_those_of_the_tape(normal, family, rows):
    """A tape that keeps one activation more, or a prediction that forgets one, differs by more than 5%."""
    model = FAMILIES[family].sized("nano")
    _, tape = model.forward(normal(0, (rows, 96))[0].float())
    predicted = sizes.cost("nano", model.config, rows).activations
    assert held(tape, model) == pytest.approx(predicted, rel=0.05)


@pytest.mark.parametrize("family", FAMILIES)
def test_predicted_buffers_are_the_real_ones(family):
    """Forgotten padding would predict less than is allocated."""
    model = FAMILIES[family].sized("nano")
    cost = sizes.cost("nano", model.config, 64)
    assert cost.parameters == model.params.count
    assert cost.weights == model.params.flat_P.untyped_storage().nbytes()
    assert cost.gradients == model.params.grad_P.untyped_storage().nbytes()
    assert cost.moments == 2 * cost.weights
    assert cost.total == cost.weights + cost.gradients + cost.moments + cost.activations + cost.working


@pytest.mark.parametrize("family", FAMILIES)
def test_a_used_tape_keeps_nothing(normal, family):
    """Activations kept after the backward would double the memory of the next step."""
    model = FAMILIES[family].sized("nano")
    x_TI, dy_TO = (tensor.float() for tensor in normal(1, (4, 96), (4, 20)))
    _, tape = model.forward(x_TI)
    model.backward(dy_TO, tape)
    assert held(tape, model) == 0


def test_predicted_activations_of_a_transformer_are_those_of_the_tape():
    """By the kernels that a step runs: the reference's attention keeps every probability, theirs does not."""
    model = Transformer.sized("nano")
    token_BS = torch.randint(256, (2, 128), generator=torch.Generator().manual_seed(0))
    _, saved = model.apply(model.params, token_BS, kernels=choose(model.shape(2, torch.float32)))
    predicted = sizes.cost("nano", model.config, 256).activations
    assert held(Tape(model, 0, token_BS, 0, saved), model) == pytest.approx(predicted, rel=0.05)


def test_every_named_size_is_listed():
    """The table of the design, predicted without allocating; activations grow with the rows and nothing else does."""
    one, many = (
        {name: sizes.cost(name, config, rows) for name, (_, config) in sizes.named().items()} for rows in (1, 256)
    )
    counts = {name: cost.parameters for name, cost in one.items()}
    for name, budget in SIZES.items():
        assert counts.pop(f"transformer-{name}") == pytest.approx(budget, rel=0.005)
    assert counts == {**SIZES, "dense-0.7b": 706_055_188}
    for name, cost in many.items():
        assert cost.activations == 256 * one[name].activations and cost.weights == one[name].weights
