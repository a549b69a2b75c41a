import pytest
import torch

from gradproof.models.moe import MoE, MoEConfig
from gradproof.ops import mixture
from gradproof.ops.mixture import Mixed

CONFIGS = [
    MoEConfig(5, 3, hidden=6, depth=1),
    MoEConfig(7, 2, experts=3, hidden=9, depth=0, k=1, balance=0.1),
    MoEConfig(4, 5, experts=2, hidden=8, depth=2, renormalise=True, z_loss=0.1),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_flat_buffer_is_the_models(config):
    """Fails on different padding or a different order of router and experts."""
    model = MoE(config, seed=2)
    assert config.mixture.offsets[-1] == model.params.flat_P.numel()
    of = config.mixture.views(model.params.flat_P)
    assert of.w_EI.data_ptr() == model.params["router.weight"].data_ptr() and of.w_EI.shape == (
        config.experts,
        config.inputs,
    )
    assert of.b_E.data_ptr() == model.params["router.bias"].data_ptr() and of.b_E.shape == (config.experts,)
    stacked = config.mixture.by_name(model.params.flat_P)
    for name, value in model.params.items():
        if name.startswith("experts.1."):
            assert torch.equal(stacked[name.removeprefix("experts.1.")][1], value)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_it_is_the_model(normal, agree, config):
    """The op on the flat buffer and the model, part by part, give the same outputs and gradients."""
    model = MoE(config, seed=2, dtype=torch.float64)
    x_TI, dy_TO, d_aux = normal(4, (9, config.inputs), (9, config.outputs), ())
    output, tape = model.forward(x_TI)
    dx_TI = model.backward(dy_TO, tape, d_aux)
    mixed, saved = mixture.forward(x_TI, model.params.flat_P, None, config.mixture)
    zero_TE = torch.zeros_like(mixed.gates_TE)
    got_TI, dtheta_P = mixture.backward(Mixed(dy_TO, zero_TE, d_aux), saved, x_TI, model.params.flat_P, config.mixture)
    for one, other in zip((*mixed, got_TI, dtheta_P), (*output, dx_TI, model.params.grad_P), strict=True):
        agree(one, other)
    assert torch.equal(saved.load_E, (output.gates_TE != 0).sum(0))


def test_the_gates_have_a_gradient_of_their_own(normal):
    """A loss on the gates alone changes only the router."""
    config = CONFIGS[0]
    model = MoE(config, seed=2, dtype=torch.float64)
    (x_TI,) = normal(4, (9, 5))
    mixed, saved = mixture.forward(x_TI, model.params.flat_P, None, config.mixture)
    dy = Mixed(torch.zeros_like(mixed.y_TO), torch.randn(9, 4).double(), torch.zeros(()).double())
    of = config.mixture.views(mixture.backward(dy, saved, x_TI, model.params.flat_P, config.mixture)[1])
    assert of.w_EI.abs().max() > 0 and not of.theta_EP.any()
