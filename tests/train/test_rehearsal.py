"""A rehearsal: what runs is checked at its real size, and nothing of the run has changed afterwards."""

from dataclasses import replace
from functools import wraps
from types import SimpleNamespace

import pytest
import torch

from gradproof.kernels import cpu
from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.moe import MoE, MoEConfig
from gradproof.models.transformer import Transformer, TransformerConfig
from gradproof.train import rehearsal as module
from gradproof.train.adamw import AdamW
from gradproof.train.rehearsal import Refusal, Rehearsal, rehearse
from gradproof.train.step import TrainStep

CONFIG = MoEConfig(9, 5, hidden=32, depth=2)
WIDE = MoEConfig(16, 5, hidden=136, depth=2)
DENSE = DenseConfig(16, 5, hidden=16, feedforward=32, blocks=3)
needs_kernels = pytest.mark.skipif(cpu.missing() is not None, reason=str(cpu.missing()))
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def make(config=CONFIG, device="cpu", dtype="fp32", **options):
    model = (Dense if isinstance(config, DenseConfig) else MoE)(config, seed=0, device=device)
    return TrainStep(model, "cross_entropy", AdamW(lr=1e-2), dtype, clip=0.5, **options)


def target(device="cpu"):
    return lambda rows: torch.arange(rows, device=device) % 5


def state(step):
    own = [step.model.params.flat_P, *step.state().values()]
    narrow = getattr(step.training.weights, "flat_P", None)
    return [tensor.clone() for tensor in (*own, *([] if narrow is None else [narrow]))]


def spoilt(kernels, op, change):
    """The same kernels, one of which changes what its backward returns."""
    own = getattr(kernels, op)

    def backward(dy_NO, saved, x_NI, theta_EP, plan, chain, narrow_EP=None, out_EP=None, accumulate=False,
                 want_dx=True, workspace=None):  # fmt: skip
        dx_NI, dtheta_EP = own.backward(
            dy_NO, saved, x_NI, theta_EP, plan, chain, narrow_EP, out_EP, accumulate, want_dx, workspace
        )
        change(chain, dtheta_EP)
        return dx_NI, dtheta_EP

    return replace(kernels, **{op: SimpleNamespace(forward=own.forward, backward=backward)})


def a_little_off(chain, dtheta_EP):
    """One weight in a thousand of the second layer, in the last expert, by 1%."""
    weight = chain.view(dtheta_EP[-1], "linear.1.weight")
    weight.view(-1)[::1000] *= 1.01


def one_weight_off(chain, dtheta_EP):
    """The largest of the second layer, in the last expert, by 1%."""
    weight = chain.view(dtheta_EP[-1], "linear.1.weight").view(-1)
    weight[weight.abs().argmax()] *= 1.01


@needs_kernels
@pytest.mark.parametrize("rows", [1, 7, 64, 700])
def test_right_kernels_pass_and_nothing_has_changed(rows):
    step = make()
    step(torch.randn(rows, 9), torch.arange(rows) % 5)
    before, random = state(step), torch.get_rng_state()
    kernels = step.choose(rows)
    assert Rehearsal(step, kernels).take(rows, target()) == []
    assert all(torch.equal(a, b) for a, b in zip(before, state(step), strict=True))
    assert torch.equal(random, torch.get_rng_state())


@needs_kernels
@pytest.mark.parametrize("rows", [64, 1500])
def test_a_weight_gradient_a_little_off_is_named(rows):
    step = make()
    kernels = spoilt(step.choose(rows), "experts", a_little_off)
    (refusal, *_) = Rehearsal(step, kernels).take(rows, target())
    assert refusal.op == "experts" and "linear.1.weight" in refusal.claim
    assert "is not used" in str(refusal)


TEXT = TransformerConfig(31, width=16, heads=2, encoder_layers=0, decoder_layers=2, feedforward=21, context=128)


def text_step(targets=torch.zeros):
    """A step on sequences, whose model adds to what its kernels return; and targets for its tokens."""
    step = TrainStep(Transformer(TEXT, seed=0), "cross_entropy", AdamW(lr=1e-2), clip=1.0)
    return step, lambda rows: targets(rows, TEXT.context, dtype=torch.int64)


@needs_kernels
@pytest.mark.parametrize("targets", [torch.zeros, lambda *shape, dtype: torch.arange(shape[1]).expand(shape) % 31])
def test_a_transformer_passes_whatever_its_targets(targets):
    """With targets that are all alike the terms of a gradient have one sign, and sums over rows lose more of them."""
    step, target = text_step(targets)
    kernels = step.choose(24)
    assert {"ffn", "layernorm"} <= {op for op, kernel in kernels.chosen.items() if kernel != "reference"}
    assert Rehearsal(step, kernels).take(24, target) == []


@needs_kernels
@pytest.mark.parametrize("result", ["forward", "backward"])
def test_a_feed_forward_layer_that_is_a_little_off_is_named(result):
    step, target = text_step()
    kernels = step.choose(24)
    own = kernels.ffn

    @wraps(own.forward)
    def forward(*args):
        y_TD, saved = own.forward(*args)
        y_TD[5, 3] *= 1.01 if result == "forward" else 1.0
        return y_TD, saved

    @wraps(own.backward)
    def backward(*args, **named):
        grads = own.backward(*args, **named)
        grads.dw1_FD[7] *= 1.001 if result == "backward" else 1.0
        return grads

    faulty = replace(kernels, ffn=SimpleNamespace(forward=forward, backward=backward))
    refusals = Rehearsal(step, faulty).take(24, target)
    assert {(refusal.op, refusal.claim) for refusal in refusals} == {("ffn", {"forward": "output 0"}.get(result, "w1"))}


@needs_kernels
def test_an_update_that_leaves_a_parameter_is_named():
    step = make()
    kernels = step.choose(64)
    own = kernels.update
    assert own is not None

    def leaving(p_P, *args, **kwargs):
        kept = p_P[-64:].clone()
        result = own.step(p_P, *args, **kwargs)
        p_P[-64:] = kept
        return result

    faulty = SimpleNamespace(step=leaving, forward=own.forward)
    refusals = Rehearsal(step, replace(kernels, update=faulty)).take(64, target())
    assert [refusal.op for refusal in refusals] == ["update"] and refusals[0].claim == "output 0"


@needs_kernels
def test_a_refused_kernel_is_replaced_and_remembered(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADPROOF_CACHE", str(tmp_path))
    step, said, taken = make(), [], []
    monkeypatch.setattr(module.Rehearsal, "take", lambda self, rows, target: taken.append(rows) or self.refusals)
    assert rehearse(step, [64, 64, 7], target(), said.append) == [] and taken == [64, 7] and not said
    assert rehearse(make(), [64], target(), said.append) == [] and taken == [64, 7]


@needs_kernels
def test_a_graph_that_gives_other_bits_is_not_replayed(monkeypatch, tmp_path):
    """And the rehearsal ends: without the graph there is nothing left to refuse."""
    monkeypatch.setenv("GRADPROOF_CACHE", str(tmp_path))
    wrong = Refusal(module.GRAPH, "", "parameters", float("inf"))
    monkeypatch.setattr(module.Rehearsal, "take", lambda self, rows, target: [wrong] if self.step.replays else [])
    for _ in range(2):  # as found, and as remembered
        step, said = make(), []
        assert rehearse(step, [64], target(), said.append) == [wrong] and not step.replays
        assert said == ["the step is not replayed as a graph: at this size that does not give the same bits"]


GPU = {"narrow": (CONFIG, "bf16"), "wide": (WIDE, "bf16"), "dense": (DENSE, "bf16"), "fp32": (WIDE, "fp32")}


@on_a_gpu
@pytest.mark.parametrize("rows", [7, 256, 3000])
@pytest.mark.parametrize("case", GPU)
def test_right_kernels_of_a_gpu_pass_and_nothing_has_changed(case, rows):
    config, dtype = GPU[case]
    step = make(config, "cuda", dtype)
    before = state(step)
    assert Rehearsal(step, step.choose(rows)).take(rows, target("cuda")) == []
    assert all(torch.equal(a, b) for a, b in zip(before, state(step), strict=True))


@on_a_gpu
@pytest.mark.parametrize("rows", [256, 3000])
@pytest.mark.parametrize("case", ["narrow", "wide"])
def test_a_weight_gradient_of_a_gpu_a_little_off_is_named(case, rows):
    config, dtype = GPU[case]
    step = make(config, "cuda", dtype)
    kernels = spoilt(step.choose(rows), "experts", one_weight_off)
    (refusal, *_) = Rehearsal(step, kernels).take(rows, target("cuda"))
    assert refusal.op == "experts" and "linear.1.weight" in refusal.claim
