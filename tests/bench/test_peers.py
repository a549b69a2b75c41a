"""The peers compute what our models compute, so that a ratio of times compares the same work."""

import pytest
import torch

import gradproof
from gradproof.bench.case import TRANSFORMERS, StepCase, batches
from gradproof.bench.peers import DENSE, MOE, Grouped, Peer, named, peers_of
from gradproof.bench.step import chosen_peers
from gradproof.bench.transformer import Eager, Unpadded

ROWS = 48


@pytest.fixture(autouse=True)
def reference(monkeypatch):
    """Neither a compiler nor an admission is needed for what is asked here."""
    monkeypatch.setenv("GRADPROOF_KERNELS", "reference")


def batch(config, device="cpu"):
    generator = torch.Generator().manual_seed(7)
    x_TI = torch.randn(ROWS, config.inputs, generator=generator)
    return x_TI.to(device), torch.randint(0, config.outputs, (ROWS,), generator=generator).to(device)


def ours(model, x_TI, target_T):
    """Our loss, with the gradients left in the model."""
    output, tape = model.forward(x_TI)
    loss = torch.nn.functional.cross_entropy(output.logits_TO, target_T)
    one_TO = torch.nn.functional.one_hot(target_T, output.logits_TO.shape[1])
    model.backward((output.logits_TO.softmax(-1) - one_TO) / len(target_T), tape)
    return loss


def check_grouped_mm(way):
    """Not every torch has it on a CPU."""
    if way.module is Grouped:
        a = torch.ones(2, 16)
        try:
            torch._grouped_mm(a, torch.ones(1, 16, 16), offs=torch.tensor([2], dtype=torch.int32))
        except NotImplementedError as error:
            pytest.skip(f"torch._grouped_mm does not run on this CPU: {error}")


def same_work(model, way, precision, tolerance, device="cpu"):
    if device == "cpu":
        check_grouped_mm(way)
    x_TI, target_T = batch(model.config, device)
    right = ours(model, x_TI, target_T)
    peer = Peer(way, model, device, precision)
    loss = peer.loss(x_TI, target_T)
    loss.backward()
    assert abs(loss.detach() - right) <= tolerance * right
    grads = named(peer.module, grads=True)
    assert set(grads) == set(model.params)
    # bf16 may send a row to another expert, so there only the gradient as a whole is compared
    pairs = [(grads[name], model.params.grads[name]) for name in model.params]
    if precision != "fp32":
        pairs = [tuple(torch.cat([tensor.flatten().float() for tensor in side]) for side in zip(*pairs, strict=True))]
    for grad, right_grad in pairs:
        assert right_grad.norm() > 0
        assert (grad - right_grad).norm() <= tolerance * right_grad.norm()


@pytest.mark.parametrize("name", ["loop", "dense-all", "grouped_mm"])
def test_a_mixture(name):
    """Broken by gates applied twice or renormalised, another GELU, another eps, a row lost."""
    same_work(gradproof.MoE.sized("nano", seed=3), MOE[name], "fp32", 1e-4)


def test_grouped_mm_in_bf16_pads_its_outputs():
    model = gradproof.MoE.sized("nano", seed=3)
    peer = Peer(MOE["grouped_mm"], model, "cpu", "bf16")
    assert peer.module.weights[-1].shape == (4, 32, 128)
    same_work(model, MOE["grouped_mm"], "bf16", 0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["loop", "dense-all", "grouped_mm"])
def test_a_mixture_on_a_gpu(name):
    same_work(gradproof.MoE.sized("nano", seed=3, device="cuda"), MOE[name], "bf16", 0.05, "cuda")


def test_the_dense_model():
    config = gradproof.DenseConfig(hidden=24, feedforward=40, blocks=2)
    same_work(gradproof.Dense(config, seed=3), DENSE["eager"], "fp32", 1e-4)


def test_an_expert_without_rows():
    model = gradproof.MoE.sized("nano", seed=3)
    model.params["router.bias"].copy_(torch.tensor([0.0, 0.0, 0.0, -60.0]))
    x_TI, target_T = batch(model.config)
    right = ours(model, x_TI, target_T)
    for name in ("loop", "dense-all", "grouped_mm"):
        check_grouped_mm(MOE[name])
        peer = Peer(MOE[name], model, "cpu", "fp32")
        loss = peer.loss(x_TI, target_T)
        loss.backward()
        assert abs(loss.detach() - right) <= 1e-4 * right
        grads = named(peer.module, grads=True)
        assert all(not grad.any() for key, grad in grads.items() if key.startswith("experts.3."))


@pytest.mark.parametrize("name", ["loop", "dense-all", "grouped_mm"])
def test_a_step_is_that_of_ours(name):
    """The optimizer too: after three steps the parameters still agree."""
    check_grouped_mm(MOE[name])
    model = gradproof.MoE.sized("nano", seed=3)
    peer = Peer(MOE[name], model, "cpu", "fp32")
    optimizer = gradproof.AdamW(lr=3e-4, weight_decay=0.01, decay="all")
    step = gradproof.TrainStep(model, "cross_entropy", optimizer, "fp32", clip=None)
    x_TI, target_T = batch(model.config)
    start = model.params.flat_P.clone()
    for _ in range(3):
        right, loss = step(x_TI, target_T).loss, peer(x_TI, target_T)
        assert abs(loss - right) <= 1e-4 * right
    moved = (model.params.flat_P - start).norm()
    own = named(peer.module)
    apart = torch.stack([(own[key] - model.params[key]).norm() for key in model.params]).norm()
    assert apart <= 0.02 * moved


def test_who_is_run_where():
    assert not any(way.captured for way in peers_of("moe", "cpu").values())
    assert {"dense-all-captured", "grouped_mm-captured"} <= set(peers_of("moe", "cuda"))
    assert set(peers_of("dense", "cuda")) == set(DENSE)
    for case in (StepCase("nano", 4), StepCase("dense-0.7b", 4), StepCase("transformer-causal", 4)):
        chosen = chosen_peers(None, case, "cuda")
        assert list(chosen) == list(peers_of(case.family, "cuda")), "all peers, unless some are named"
        assert any(way.compiled == "default" and way.captured for way in chosen.values())
        assert {"max-autotune", "max-autotune-no-cudagraphs"} <= {way.compiled for way in chosen.values()}


def test_held_bytes_are_parameters_and_moments():
    model = gradproof.MoE.sized("nano", seed=0)
    peer = Peer(MOE["dense-all"], model, "cpu", "fp32")
    peer(*batch(model.config))
    held = peer.held_bytes()
    steps = 4 * len(list(peer.module.parameters()))  # AdamW counts for each
    assert held == 3 * 4 * model.params.count + steps
    assert all(parameter.grad is None for parameter in peer.module.parameters())


@pytest.mark.parametrize("size", TRANSFORMERS)
def test_the_transformer_computes_the_same_and_steps_alike(size):
    """Loss and every gradient, padding and all; and the parameters after two steps."""
    case = StepCase(size, 3)
    model = gradproof.Transformer(case.config, seed=2)
    way = chosen_peers(None, case, "cpu")["eager"]
    assert way.module is (Eager if case.padded else Unpadded)
    peer = Peer(way, model, "cpu", "fp32")
    optimizer = gradproof.AdamW(lr=3e-4, weight_decay=0.01, decay="all")
    step = gradproof.TrainStep(model, case.loss, optimizer, "fp32", clip=None)
    x, target = batches(case, "cpu")[0]
    right = step(x, target)
    loss = peer.loss(x, target)
    loss.backward()
    assert abs(loss.detach() - right.loss) <= 1e-4 * right.loss
    grads = named(peer.module, grads=True)
    assert set(grads) == set(model.params)
    whole = right.grad_norm
    for name, grad in grads.items():
        own = model.params.grads[name]
        assert (grad - own).norm() <= 1e-3 * own.norm() + 1e-5 * whole, name
