"""The kernels as torch.nn modules: the numbers of plain torch layers, in everything that users do with a module."""

import copy
import io
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import gradproof
from gradproof import nn
from gradproof.kernels import cpu
from gradproof.kernels.variants import REFERENCE
from gradproof.ops import experts, norm_gelu, route
from gradproof.precision.mode import rounding
from gradproof.train.checked_path import CheckedPath

OPTIONS = (
    dict(),
    dict(k=4, renormalise=True),
    dict(k=1),
    dict(scores="sigmoid", balance=0.1, z_loss=0.01),
    dict(renormalise=True, balance=0.2, z_loss=0.02, depth=0),
    dict(scores="sigmoid", renormalise=True, k=3, correction=0.01),
)


def small(**options):
    options = dict(inputs=5, outputs=3, hidden=6, depth=1, seed=0) | options
    return nn.MoE(**options)


def pulled(module, x, dy, d_aux=None):
    """The output, and the gradients by name for a cotangent; x's under "x"."""
    module.zero_grad(set_to_none=True)
    x = x.detach().clone().requires_grad_()
    y, aux = (module(x), None) if d_aux is None else module(x, return_aux=True)
    loss = (y.double() * dy).sum() + (0 if aux is None else aux * d_aux)
    loss.backward()
    return y.detach(), {"x": x.grad} | {name: p.grad for name, p in module.named_parameters()}


def of_plain(module, grads):
    """Gradients of a plain module by the names and in the layout that ours has."""
    own = nn.from_torch(module)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(grads[name])
    converted = dict(nn.from_torch(module).named_parameters())
    assert converted.keys() == dict(own.named_parameters()).keys()
    return {"x": grads["x"]} | {name: p.detach() for name, p in converted.items()}


def same(ours, right, agree, tolerance=1e-12):
    assert ours.keys() == right.keys()
    for name in right:
        agree(ours[name], right[name], tolerance, terms=max(float(g.norm()) for g in right.values()))


# --- the same numbers as plain torch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS)
def test_moe_is_plain_torch(options, normal, agree):
    module, (x, dy) = small(dtype=torch.float64, **options), normal(1, (2, 9, 5), (2, 9, 3))
    if options.get("correction"):
        module.router.correction.copy_(torch.tensor([0.3, 0.0, -0.3, 0.1]))
    plain = module.to_torch()
    (y, grads), (y_plain, grads_plain) = pulled(module, x, dy, 1.7), pulled(plain, x, dy, 1.7)
    agree(y, y_plain)
    agree(module(x, return_aux=True)[1], plain(x, return_aux=True)[1], terms=1.0)
    same(grads, of_plain(plain, grads_plain), agree)


@pytest.mark.parametrize("blocks", (0, 1, 2))
def test_dense_is_plain_torch(blocks, normal, agree):
    module = nn.Dense(5, 3, hidden=6, feedforward=9, blocks=blocks, seed=0, dtype=torch.float64)
    x, dy = normal(1, (7, 5), (7, 3))
    plain = module.to_torch()
    assert all(type(layer).__module__.startswith("torch.nn") for layer in plain)
    (y, grads), (y_plain, grads_plain) = pulled(module, x, dy), pulled(plain, x, dy)
    agree(y, y_plain)
    same(grads, of_plain(plain, grads_plain), agree)


@pytest.mark.parametrize("activate", (True, False))
def test_fused_layer_is_plain_torch(activate, normal, agree):
    module = nn.LinearNormGELU(5, 8, activate, dtype=torch.float64)
    with torch.no_grad():
        for p, value in zip((module.gamma, module.beta), normal(3, (8,), (8,)), strict=True):
            p.copy_(value)
    x, dy = normal(1, (3, 4, 5), (3, 4, 8))
    (y, grads), (y_plain, plain) = pulled(module, x, dy), pulled(module.to_torch(), x, dy)
    agree(y, y_plain)
    names = {"x": "x", "weight": "0.weight", "bias": "0.bias", "gamma": "1.weight", "beta": "1.bias"}
    same({names[n]: g for n, g in grads.items()}, plain, agree)


@given(
    rows=st.integers(1, 9),
    E=st.integers(1, 9),
    data=st.data(),
    hidden=st.integers(2, 9),
    depth=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_any_shape(rows, E, data, hidden, depth, seed, normal, agree):
    """One row, one expert, K = E, experts without rows, odd widths."""
    k = data.draw(st.integers(1, E))
    module = small(experts=E, k=k, hidden=hidden, depth=depth, seed=seed, balance=0.1, dtype=torch.float64)
    x, dy = normal(seed, (rows, 5), (rows, 3))
    plain = module.to_torch()
    (y, grads), (y_plain, grads_plain) = pulled(module, x, dy, 0.3), pulled(plain, x, dy, 0.3)
    agree(y, y_plain)
    same(grads, of_plain(plain, {n: torch.zeros_like(x) if g is None else g for n, g in grads_plain.items()}), agree)


def test_leading_axes(normal, agree):
    module, (x,) = small(dtype=torch.float64), normal(0, (2, 3, 4, 5))
    assert module(x).shape == (2, 3, 4, 3)
    agree(module(x)[1, 2, 3], module(x[1, 2, 3]))
    agree(module(x.transpose(0, 2)), module(x).transpose(0, 2))


def cases():
    moe, dense = nn.MoE(9, 4, hidden=16, seed=0, balance=0.1), nn.Dense(9, 4, hidden=16, feedforward=24, seed=0)
    return moe, dense, nn.LinearNormGELU(9, 4)


@pytest.mark.parametrize("module", cases(), ids=lambda module: type(module).__name__)
def test_float32_kernels_against_float64(module, normal):
    """The compiled kernels are as near to float64 as plain torch layers are."""
    x, dy = normal(2, (33, 9), (33, 4))
    x = x.float()
    exact = copy.deepcopy(module).double()
    right, plain = pulled(exact, x.double(), dy)[1], module.to_torch()
    grads_plain = pulled(plain, x, dy)[1]
    usual = of_plain(plain, grads_plain)
    for name, grad in pulled(module, x, dy)[1].items():
        error, own = (float((g.double() - right[name]).norm()) for g in (grad, usual[name]))
        assert error <= 4 * own + 8 * torch.finfo(torch.float32).eps * float(right[name].norm()), name


@pytest.mark.skipif(cpu.missing() is not None, reason="the CPU kernels cannot be built here")
def test_which_kernels_run(monkeypatch):
    module, x = small(), torch.randn(7, 5)
    chosen = nn.kernels.of_model(gradproof.MoE, module.config, "cpu", torch.float32, 7).kernels
    assert {chosen.chosen[op] for op in ("route", "dispatch", "experts", "combine")} == {"cpu"}
    layer = nn.kernels.of_norm_gelu("cpu", torch.float32, 8, 7).kernels.norm_gelu
    assert layer.__name__ == "gradproof.kernels.cpu.norm_gelu"
    assert nn.kernels.of_model(gradproof.MoE, module.config, "cpu", torch.float64, 7).kernels is REFERENCE
    flops = []
    for network in (module, module.to_torch()):
        with FlopCounterMode(display=False) as counter:  # which sees nothing of a compiled kernel
            network(x).sum().backward()
        flops.append(counter.get_total_flops())
    assert flops[0] == flops[1] > 0
    with rounding("tf32") as mode:
        nn.LinearNormGELU(5, 3)(module(x)[:, [0, 1, 2, 0, 1]]).sum().backward()
    assert not mode.left
    monkeypatch.setenv("GRADPROOF_KERNELS", "reference")
    assert nn.kernels.of_norm_gelu("cpu", torch.float32, 8, 7).kernels.norm_gelu is norm_gelu
    assert torch.equal(module(x), module.to_model()(x)[0].logits_TO)


def test_a_refused_kernel_does_not_run(monkeypatch, caplog):
    """norm_gelu is admitted here: a kernel with a wrong gradient must not be."""
    right = cpu.missing() is None and nn.kernels.import_module("gradproof.kernels.cpu.norm_gelu")
    if not right:
        pytest.skip("the CPU kernels cannot be built here")

    def wrong(dy_TH, saved, h_TH, b_H, gamma_H, beta_H, activate=True):
        grads = right.backward(dy_TH, saved, h_TH, b_H, gamma_H, beta_H, activate)
        return grads._replace(dbeta_H=grads.dbeta_H * 1.001)

    broken = SimpleNamespace(forward=right.forward, backward=wrong, missing=lambda: None)
    monkeypatch.setattr(nn.kernels, "import_module", lambda name: broken)
    nn.kernels.admitted_norm_gelu.cache_clear()
    assert nn.kernels.admitted_norm_gelu("cpu", torch.float32, 6, 7) is norm_gelu
    assert "matches_reference" in caplog.text
    nn.kernels.admitted_norm_gelu.cache_clear()


# --- proven, diagnosed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    (
        small(scores="sigmoid", renormalise=True, balance=0.1),
        nn.Dense(5, 3, hidden=6, feedforward=8, blocks=1, seed=0),
        nn.NormGELU(5),
    ),
    ids=lambda module: type(module).__name__,
)
def test_verify_proves_it(module, normal):
    report = gradproof.verify(module, (normal(5, (7, 5))[0].float(),))
    assert report, report.summary


class Aux(torch.nn.Module):
    """The auxiliary loss as the output."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x, return_aux=True)[1]


def test_verify_proves_aux(normal):
    assert gradproof.verify(Aux(small(balance=0.1, z_loss=0.1)), (normal(5, (7, 5))[0],), quick=True)


def _swapped(self, grad_P, count):
    grads = gradients(self, grad_P, count)
    return [*grads[:-1], grads[-1].flip(0)]


gradients = nn.block.BlockCall.gradients
MUTANTS = {
    "experts swapped": (nn.block.BlockCall, "gradients", _swapped),
    "the gradient of x forgotten": (gradproof.MoE, "pull_back", lambda *a, **k: a[4] * 0),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_verify_refutes_a_mutant(mutant, normal, monkeypatch):
    monkeypatch.setattr(*MUTANTS[mutant])
    report = gradproof.verify(small(), (normal(5, (7, 5))[0],), quick=True)
    assert not report and "refuted" in str(report.to_dict()["status"])


@pytest.mark.parametrize("policy", ("cast", "autocast"))
def test_diagnose_is_not_confused(policy, normal):
    """Inside the rounding mode the reference runs, op by op, forward and backward."""
    diagnosis = gradproof.diagnose(small(), (normal(6, (9, 5))[0].float(),), precisions=("bf16",), policy=policy)
    assert diagnosis.verdict in ("clean", "noise"), diagnosis.summary


# --- what users do with a module --------------------------------------------------------------------------------------


def test_names_are_those_of_our_models():
    module, model = small(seed=3), gradproof.MoE(gradproof.MoEConfig(5, 3, hidden=6, depth=1), seed=3)
    state = module.state_dict()
    assert list(state) == list(model.params)
    assert all(torch.equal(state[name], model.params[name]) for name in state)
    assert [name for name, _ in module.named_parameters()] == ["router.weight", "router.bias", "experts.theta"]
    assert list(nn.Dense(5, 3).state_dict()) == list(gradproof.Dense(gradproof.DenseConfig(5, 3)).params)


def test_seeds():
    torch.manual_seed(0)
    first, second = small(seed=None), small(seed=None)
    torch.manual_seed(0)
    again = small(seed=None)
    assert torch.equal(first.experts.theta, again.experts.theta)
    assert not torch.equal(first.experts.theta, second.experts.theta)


def test_a_sheaf_router_has_no_module():
    """Its parameters have other names: a KeyError, or a router left at zero, in place of a sentence."""
    model = gradproof.MoE(gradproof.MoEConfig(5, 3, hidden=6, router="sheaf", patches=(2, 3)))
    with pytest.raises(ValueError, match=r"router = 'sheaf': .* only has the softmax router"):
        nn.MoE.from_model(model)


@pytest.mark.parametrize("correction", (0.0, 0.01))
def test_to_and_from_our_models(correction, normal, agree):
    config = gradproof.MoEConfig(5, 3, hidden=6, depth=1, balance=0.1, correction=correction)
    model, x = gradproof.MoE(config, seed=4), normal(1, (9, 5))[0].float()
    if correction:
        model.buffers["router.correction"].copy_(torch.tensor([0.4, 0.0, -0.4, 0.1]))
    state = torch.get_rng_state()
    module = nn.MoE.from_model(model)
    back = module.to_model()
    assert torch.equal(state, torch.get_rng_state())
    assert back.config == config and torch.equal(back.params.flat_P, model.params.flat_P)
    assert all(torch.equal(back.buffers[name], model.buffers[name]) for name in model.buffers)
    agree(module(x).detach(), model(x)[0].logits_TO, 1e-6)
    agree(nn.to_torch(model)(x).detach(), model(x)[0].logits_TO, 1e-6)
    dense = gradproof.Dense(gradproof.DenseConfig(5, 3, hidden=6, feedforward=8), seed=1)
    assert torch.equal(nn.Dense.from_model(dense).to_model().params.flat_P, dense.params.flat_P)
    agree(nn.to_torch(dense)(x).detach(), dense(x)[0].logits_TO, 1e-6)


def padding(module):
    """What stands between the entries of theta."""
    theta = module.experts.theta.detach().clone()
    for view in module.experts.named(theta).values():
        view.zero_()
    return theta


def test_state_dict_round_trip():
    module, other = small(seed=1), small(seed=2)
    assert other.load_state_dict(module.state_dict()) == ([], [])
    assert torch.equal(other.experts.theta, module.experts.theta)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    with torch.device("meta"):
        empty = small()
    assert empty.load_state_dict(torch.load(file, weights_only=True), assign=True) == ([], [])
    assert torch.equal(empty.experts.theta, module.experts.theta) and empty.experts.theta.requires_grad
    allocated = empty.to("meta").to_empty(device="cpu")
    allocated.load_state_dict(module.state_dict())
    assert torch.equal(allocated.experts.theta, module.experts.theta) and not padding(allocated).any()


def test_state_dict_with_safetensors(tmp_path):
    from safetensors.torch import load_file, save_file

    module, other = torch.nn.Sequential(small(seed=1)), torch.nn.Sequential(small(seed=2))
    save_file(module.state_dict(), tmp_path / "a.safetensors")
    other.load_state_dict(load_file(tmp_path / "a.safetensors"))
    assert torch.equal(other[0].experts.theta, module[0].experts.theta)


def test_state_dict_that_does_not_fit():
    module = small(seed=1)
    before, state = module.experts.theta.detach().clone(), small(seed=2).state_dict()
    wrong = {name: value for name, value in state.items() if name != "experts.2.norm.0.bias"}
    wrong |= {"experts.9.linear.0.bias": torch.zeros(6)}
    with pytest.raises(RuntimeError, match=r"(?s)Missing.*experts.2.norm.0.bias.*Unexpected.*experts.9.linear.0.bias"):
        module.load_state_dict(wrong)
    keys = module.load_state_dict(wrong, strict=False)
    assert keys.missing_keys == ["experts.2.norm.0.bias"] and keys.unexpected_keys == ["experts.9.linear.0.bias"]
    with pytest.raises(RuntimeError, match=r"experts.0.linear.0.weight has the shape \[6, 4\]"):
        module.load_state_dict({**state, "experts.0.linear.0.weight": torch.zeros(6, 4)})
    assert not torch.equal(before, module.experts.theta)


@pytest.mark.parametrize("made", (copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))))
@pytest.mark.parametrize("module", (small(correction=0.1), nn.Dense(5, 3, seed=0), nn.LinearNormGELU(5, 3)))
def test_copies_are_apart(made, module):
    x, other = torch.randn(4, 5), made(module)
    before = module(x)
    assert torch.equal(before, other(x)) and repr(module) == repr(other)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(2)
    assert torch.equal(before, module(x)) and not torch.equal(before, other(x))


def test_views_are_live(normal):
    module, (x, dy) = small(), normal(0, (6, 5), (6, 3))
    with pytest.raises(ValueError, match="no gradient yet"):
        module.views(grads=True)
    before = module(x.float())
    module.views()["experts.1.linear.0.weight"].mul_(2)  # weight decay by name is this
    assert not torch.equal(before, module(x.float()))
    (module(x.float()) * dy.float()).sum().backward()
    grads = module.views(grads=True)
    assert list(grads) == list(module.state_dict())
    assert torch.equal(grads["experts.3.norm.0.bias"], module.experts.named(module.experts.theta.grad)["3.norm.0.bias"])
    assert not padding(
        SimpleNamespace(experts=SimpleNamespace(theta=module.experts.theta.grad, named=module.experts.named))
    ).any()


def test_training_is_that_of_plain_torch(normal, agree):
    """Ten AdamW steps, gradients accumulated over two batches, in float64."""
    module = small(balance=0.1, dtype=torch.float64)
    plain = module.to_torch()
    batches = [normal(seed, (16, 5), (16, 3)) for seed in range(2)]
    for network in (module, plain):
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
        for _ in range(10):
            optimizer.zero_grad()
            for x, target in batches:
                y, aux = network(x, return_aux=True)
                ((y - target).square().mean() + aux).backward()
            optimizer.step()
    for name, value in nn.from_torch(plain).state_dict().items():
        agree(module.state_dict()[name], value, 1e-9)
    assert not padding(module).any()


def test_frozen_parts(normal, monkeypatch):
    module, (x, dy) = small(dtype=torch.float64), normal(0, (6, 5), (6, 3))
    wanted, backward = [], experts.backward
    monkeypatch.setattr(experts, "backward", lambda *a, **k: (wanted.append(k["want_dx"]), backward(*a, **k))[1])
    _, whole = pulled(module, x, dy)
    module.experts.theta.requires_grad_(False)
    _, frozen = pulled(module, x, dy)
    assert frozen["experts.theta"] is None and torch.equal(frozen["router.weight"], whole["router.weight"])
    assert frozen["router.weight"].untyped_storage().nbytes() < 1000  # not the experts' gradient with it
    module.zero_grad()
    (module(x) * dy).sum().backward()
    assert wanted == [True, True, False]
    module.requires_grad_(False)
    assert not module(x).requires_grad
    assert torch.equal(pulled(module, x, dy)[1]["x"], whole["x"])


def test_without_gradients(normal):
    x = normal(0, (6, 5))[0].float()
    for module in (small(), nn.Dense(5, 3, seed=0), nn.LinearNormGELU(5, 3)):
        with torch.no_grad():
            silent = module(x)
        with torch.inference_mode():
            inferred = module(x)
        assert not silent.requires_grad and inferred.is_inference()
        assert torch.equal(silent, module(x)) and torch.equal(inferred.clone(), silent)


def test_checkpointed_and_functional(normal):
    module, (x, dy) = small(), (tensor.float() for tensor in normal(0, (6, 5), (6, 3)))
    (module(x) * dy).sum().backward()
    right = module.experts.theta.grad.clone()
    module.zero_grad()
    (checkpoint(module, x, use_reentrant=False) * dy).sum().backward()
    assert torch.equal(module.experts.theta.grad, right)
    doubled = {name: 2 * p for name, p in module.named_parameters()}
    assert not torch.equal(torch.func.functional_call(module, doubled, (x,)), module(x))


def test_rebalance_moves_towards_equal_load(normal):
    module, x = small(correction=0.05, k=1), normal(0, (64, 5))[0].float()

    def load():
        return route.load(module.to_model().forward(x)[1].saved.routed.index_TK, 4)

    before = load()
    for _ in range(30):
        module.rebalance(x)
    assert load().max() < before.max() and "router.correction" in module.state_dict()
    with pytest.raises(ValueError, match="no selection bias; create it with correction above 0"):
        small().rebalance(x)


# --- graphs: two in flight, twice backward, double backward -----------------------------------------------------------


def test_two_forwards_in_flight(normal):
    module, (a, b, dy) = small(), (tensor.float() for tensor in normal(0, (6, 5), (6, 5), (6, 3)))
    right = [pulled(module, x, dy)[1]["experts.theta"].clone() for x in (a, b)]
    first, second = module(a), module(b)
    for y, grad in ((first, right[0]), (second, right[1])):
        module.zero_grad()
        (y.double() * dy).sum().backward()
        assert torch.equal(module.experts.theta.grad, grad)


class UsesUp:
    """Kernels of `experts` whose backward works in what the forward saved, as those on the device do."""

    forward = staticmethod(experts.forward)

    @staticmethod
    def backward(dy, saved, *more, **options):
        grads = experts.backward(dy, saved, *more, **options)
        for h in saved.h:
            for h_nH in h:
                h_nH.detach().numpy().fill(float("nan"))  # behind torch's back
        return grads


@pytest.mark.parametrize("uses_up", (False, True))
@pytest.mark.parametrize("module", (small(balance=0.1, correction=0.1), nn.Dense(5, 3, hidden=6, seed=0)))
def test_backward_twice(module, uses_up, normal, monkeypatch):
    x, dy = (tensor.float() for tensor in normal(0, (6, 5), (6, 3)))
    if uses_up:
        monkeypatch.setattr(nn.kernels, "of_model", lambda *shape: CheckedPath(replace(REFERENCE, experts=UsesUp)))
    parameters = list(module.parameters())
    y = module(x)
    if uses_up and isinstance(module, nn.MoE):
        module.rebalance(x)  # the routing of the forward must not move
    first = torch.autograd.grad(y, parameters, dy, retain_graph=True)
    second = torch.autograd.grad(y, parameters, 2 * dy)
    for a, b in zip(first, second, strict=True):
        assert torch.allclose(2 * a, b, rtol=1e-5) and bool(b.any())
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, parameters, dy)


def test_parameters_changed_before_backward(normal):
    module, x = small(), normal(0, (6, 5))[0].float()
    y = module(x)
    with torch.no_grad():
        module.experts.theta.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("module", (small(), nn.Dense(5, 3, seed=0), nn.LinearNormGELU(5, 3)))
def test_double_backward_is_refused(module, normal):
    x = normal(0, (6, 5))[0].float().requires_grad_()
    loss = module(x).square().sum()
    (plain,) = torch.autograd.grad(loss, x, retain_graph=True)
    (dx,) = torch.autograd.grad(loss, x, create_graph=True)
    assert torch.equal(dx, plain)
    with pytest.raises(RuntimeError, match=r"gradproof.nn has no second derivative.*to_torch"):
        dx.square().sum().backward()


# --- precision, compile -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("narrow", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("module", cases(), ids=lambda module: type(module).__name__)
def test_autocast(module, narrow, normal):
    """As far from float64 as plain torch layers under the same autocast, and in the same dtypes."""
    x, dy = normal(2, (33, 9), (33, 4))
    plain, y, right = module.to_torch(), {}, pulled(copy.deepcopy(module).double(), x.float().double(), dy)
    for network in (module, plain):
        with torch.autocast("cpu", dtype=narrow):
            y[network] = pulled(network, x.float(), dy)
    # One pass over memory: the fused layer leaves what it was given, where torch's LayerNorm returns fp32.
    assert y[module][0].dtype == (narrow if isinstance(module, nn.LinearNormGELU) else y[plain][0].dtype)
    usual = of_plain(plain, y[plain][1])
    for name, grad in y[module][1].items():
        assert grad.dtype == torch.float32
        error, own = (float((g.double() - right[1][name]).norm()) for g in (grad, usual[name]))
        assert error <= 2 * own + torch.finfo(narrow).eps * float(right[1][name].norm()), name


def test_a_narrow_module(normal):
    """After .to(bfloat16) parameters, outputs and gradients are bf16, and the products too."""
    x, dy = normal(2, (33, 9), (33, 4))
    for module in cases():
        narrow = copy.deepcopy(module).bfloat16()
        right, (y, grads) = (
            pulled(narrow.to_torch().double(), x.bfloat16().double(), dy),
            pulled(narrow, x.bfloat16(), dy),
        )
        assert y.dtype == torch.bfloat16 and {g.dtype for g in grads.values()} == {torch.bfloat16}
        assert float((grads["x"].double() - right[1]["x"]).norm()) <= 0.05 * float(right[1]["x"].norm())


def test_autocast_leaves_the_router_alone(normal):
    """The routing under autocast is that of fp32, where a bf16 product sends some rows elsewhere."""
    module, x = small(), normal(3, (4000, 5))[0].float()  # bf16 sends about one row in 400 elsewhere
    chosen = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            y = module(x)  # held: torch 2.11 frees what a node has saved as soon as its output is gone
            z_TE = torch.nn.functional.linear(x, module.router.weight, module.router.bias)
        saved = y.grad_fn.next_functions[0][0].saved_tensors
        chosen += [t.sort().values for t in saved if t.dtype == torch.int64 and t.shape == (4000, 2)][:1]
        chosen.append(z_TE.topk(2).indices.sort().values)
    assert torch.equal(chosen[0], chosen[1]) and torch.equal(chosen[0], chosen[2])
    assert not torch.equal(chosen[0], chosen[3])


@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
def test_compiled_around(backend, normal):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.fused = torch.nn.Linear(5, 8), nn.LinearNormGELU(8, 5)
            self.moe, self.last = small(balance=0.1), nn.Dense(3, 2, hidden=4, feedforward=5, seed=0)

        def forward(self, x, return_aux=True):
            y, aux = self.moe(self.fused(self.first(x).tanh()).sin(), return_aux=True)
            return self.last(y.cos()) * 2, aux

    net, (x, dy) = Net(), (tensor.float() for tensor in normal(0, (7, 5), (7, 2)))
    torch._dynamo.reset()
    compiled = torch.compile(net, backend=backend)
    y, grads = pulled(net, x, dy, 0.5)
    for _ in range(2):
        y_compiled, grads_compiled = pulled(compiled, x, dy, 0.5)
        assert torch.allclose(y, y_compiled, rtol=1e-5)
        for name, grad in grads_compiled.items():
            assert torch.allclose(grads[name.removeprefix("_orig_mod.")], grad, rtol=1e-4, atol=1e-6), name


# --- misuse -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", (small(), nn.Dense(5, 3, seed=0), nn.NormGELU(5), nn.LinearNormGELU(5, 3)))
def test_misuse_is_one_sentence(module):
    with pytest.raises(ValueError, match=r"last axis must have 5 entries, but the input is \[4, 6\]"):
        module(torch.randn(4, 6))
    with pytest.raises(ValueError, match=r"\[0, 5\] has no rows"):
        module(torch.randn(0, 5))
    if not isinstance(module, nn.LinearNormGELU):  # its product comes first, and torch says it
        with pytest.raises(ValueError, match=r"the input is torch.float64 but the parameters are torch.float32"):
            module(torch.randn(4, 5).double())
        with pytest.raises(ValueError, match=r"the input is on meta, the parameters are on cpu"):
            module(torch.randn(4, 5, device="meta"))


def test_wrong_options():
    with pytest.raises(ValueError, match="k must be at most experts"):
        small(k=5)
    with pytest.raises(ValueError, match="identically zero"):
        small(k=1, renormalise=True)
    with pytest.raises(ValueError, match="at least 1"):
        nn.NormGELU(0)


def test_layers_that_are_not_ours():
    L, N, G = torch.nn.Linear, torch.nn.LayerNorm, torch.nn.GELU
    wrong = {
        r"expected GELU\('tanh'\), found GELU": [L(4, 6), N(6), G()],
        "found LayerNorm": [L(4, 6), N(6, eps=1e-6), G("tanh")],
        r"Linear\(4, 6\) with a bias": [L(4, 6, bias=False), N(6)],
        "blocks of two Linears": [L(4, 6), N(6), L(6, 6), N(6), G("tanh"), L(6, 2)],
        r"found Linear\(": [L(4, 6), L(6, 2)],
    }
    for sentence, layers in wrong.items():
        with pytest.raises(ValueError, match=sentence):
            nn.from_torch(torch.nn.Sequential(*layers))
    with pytest.raises(ValueError, match="not a Linear"):
        nn.from_torch(L(4, 2))
    with pytest.raises(ValueError, match="not a Linear"):
        nn.to_torch(L(4, 2))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_nan_stays_in_its_row(dtype):
    for module in (small(), nn.Dense(5, 3, seed=0), nn.LinearNormGELU(5, 3)):
        module = copy.deepcopy(module).to(dtype)
        x = torch.randn(6, 5, dtype=dtype)
        right = module(x)
        x[2, 1] = float("nan")
        y = module(x)
        assert y[2].isnan().all()
        assert torch.allclose(y[[0, 1, 3, 4, 5]], right[[0, 1, 3, 4, 5]])


# --- on the device ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("narrow", (None, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("hidden", (16, 256))
def test_on_the_device(narrow, hidden, normal):
    """Every kernel against float64 on the CPU, no further off than plain torch layers there; and twice backward."""
    for module in (nn.MoE(32, 8, hidden=hidden, seed=0, balance=0.1), nn.Dense(32, 8, hidden, 2 * hidden, seed=0)):
        x, dy = normal(2, (300, 32), (300, 8))
        right = pulled(copy.deepcopy(module).double(), x.float().double(), dy)[1]
        module, plain = module.cuda(), module.to_torch().cuda()
        with torch.autocast("cuda", dtype=narrow or torch.float16, enabled=narrow is not None):
            grads, usual = (pulled(network, x.float().cuda(), dy.cuda())[1] for network in (module, plain))
            y = module(x.float().cuda())
        usual = of_plain(plain, usual)
        for name, grad in grads.items():
            error, own = (float((g.double().cpu() - right[name]).norm()) for g in (grad, usual[name]))
            eps = torch.finfo(narrow or torch.float32).eps
            assert error <= 2 * own + 4 * eps * float(right[name].norm()), name
        parameters, dy = list(module.parameters()), dy.to(y)
        first = torch.autograd.grad(y, parameters, dy, retain_graph=True)
        assert all(map(torch.equal, first, torch.autograd.grad(y, parameters, dy)))
