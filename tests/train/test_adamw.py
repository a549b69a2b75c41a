import pytest
import torch

from gradproof.ops import adamw
from gradproof.params import Entry, ParamSpace
from gradproof.train.adamw import AdamW

SPEC = [
    Entry("a.weight", (7, 5), "matrix"),
    Entry("a.bias", (7,), "bias"),
    Entry("norm.weight", (7,), "gamma"),
    Entry("norm.bias", (7,), "beta"),
    Entry("b.weight", (65, 7), "matrix"),
    Entry("b.bias", (65,), "bias"),
]
SETTINGS = dict(lr=3e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)


def space(normal, dtype=torch.float64):
    """Parameters of ordinary size, norms included: decay must show on every one of them."""
    params = ParamSpace(SPEC, dtype=dtype)
    for (name, shape, _), value in zip(SPEC, normal(0, *(entry.shape for entry in SPEC)), strict=True):
        params[name].copy_(value.reshape(shape))
    return params


def gradients(normal, step):
    """One for each entry, their sizes from 1e-10 to 1e5 and other ones in each step."""
    drawn = normal(100 + step, *(entry.shape for entry in SPEC))
    return {
        e.name: 10.0 ** ((5 * i + 7 * step) % 16 - 10) * g for i, (e, g) in enumerate(zip(SPEC, drawn, strict=True))
    }


def fill(params, grads, factor=1.0):
    for name, grad in grads.items():
        params.grads[name].copy_(factor * grad)


def torchs(params, decay, **settings):
    """torch.optim.AdamW on copies, and those copies."""
    leaves = {name: view.clone().requires_grad_() for name, view in params.items()}
    decayed = [leaves[e.name] for e in SPEC if decay == "all" or e.kind == "matrix"]
    rest = [leaf for leaf in leaves.values() if not any(leaf is d for d in decayed)]
    groups = [dict(params=decayed), dict(params=rest, weight_decay=0.0)] if rest else [dict(params=decayed)]
    return torch.optim.AdamW(groups, foreach=False, fused=False, **settings), leaves


def everything(optimizer):
    """Bits of all that a step may move."""
    return [t.clone() for t in (optimizer.params.flat_P, optimizer.m_P, optimizer.v_P, optimizer.count)]


def compare(agree, params, leaves, tolerance=1e-12):
    for name, leaf in leaves.items():
        agree(params[name], leaf, tolerance)


@pytest.mark.parametrize("decay", ["matrices", "all"])
@pytest.mark.parametrize("divided", [False, True], ids=["as it is", "divided"])
def test_100_steps_agree_with_torch(normal, agree, decay, divided):
    """eps inside the root, a bias correction off by one, decay after the step or on norms, a float32 rate: all fail."""
    params = space(normal)
    right, leaves = torchs(params, decay, **SETTINGS)
    optimizer = AdamW(**SETTINGS, decay=decay).bind(params)
    for step in range(100):
        grads = gradients(normal, step)
        divisor = torch.tensor(3.0 + step).double() if divided else None
        fill(params, grads, 3.0 + step if divided else 1.0)
        optimizer.step(divisor)
        for name, leaf in leaves.items():
            leaf.grad = grads[name].clone()
        right.step()
    compare(agree, params, leaves)
    assert float(optimizer.count) == 100


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("decay", ["matrices", "all"])
def test_a_skipped_step_never_happened(normal, agree, decay, dtype):
    """Decay without the step, a count that rises, moments that take the NaN: the next good step would be another."""
    params = space(normal, dtype)
    right, leaves = torchs(space(normal), decay, **SETTINGS)
    optimizer = AdamW(**SETTINGS, decay=decay).bind(params)
    one = torch.ones((), dtype=dtype)
    for step in range(60):
        if step % 3 == 1:
            before = everything(optimizer)
            params.grad_P.fill_(torch.nan)
            params.grad_P[::2] = torch.inf
            optimizer.step(one * torch.nan if step % 2 else None, torch.ones(()))
            assert all(torch.equal(a, b) for a, b in zip(everything(optimizer), before, strict=True))
            params.grad_P.zero_()
            continue
        grads = gradients(normal, step)
        fill(params, grads)
        optimizer.step(one, torch.zeros(()))
        for name, leaf in leaves.items():
            leaf.grad = grads[name].clone()
        right.step()
    assert float(optimizer.count) == 40
    parameters = {name: view.double() for name, view in params.items()}
    compare(agree, parameters, leaves, 1e-12 if dtype == torch.float64 else 2e-5)


@pytest.mark.parametrize("decay", ["matrices", "all"])
def test_decay_acts_where_it_was_asked(normal, decay):
    """With no gradient only decay moves: by exactly 1 − lr·wd, on the matrices, or on all."""
    params = space(normal)
    before = {name: view.clone() for name, view in params.items()}
    optimizer = AdamW(lr=0.5, weight_decay=0.25, decay=decay).bind(params)
    params.grad_P.zero_()
    optimizer.step()
    for name, _, kind in SPEC:
        factor = 0.875 if decay == "all" or kind == "matrix" else 1.0
        assert torch.equal(params[name], factor * before[name]), name


def test_padding_stays_zero(normal):
    """A kernel over the flat buffer divides 0 by √0 + eps; a padding that moves would be saved as a gradient's norm."""
    params = space(normal, torch.float32)
    optimizer = AdamW(**SETTINGS, decay="all").bind(params)
    for step in range(5):
        fill(params, gradients(normal, step))
        optimizer.step(torch.tensor(2.0), torch.zeros(()))
    for flat_P in (params.flat_P, optimizer.m_P, optimizer.v_P):
        rest = flat_P.clone()
        for view in params.views(rest).values():
            assert view.any()
            view.zero_()
        assert not rest.any()


def test_rate_can_change(normal, agree):
    """A rate kept from the constructor, or taken from the step after, would differ from torch's."""
    params = space(normal)
    right, leaves = torchs(params, "all", **SETTINGS)
    optimizer = AdamW(**SETTINGS, decay="all").bind(params)
    for step in range(20):
        rate = 1e-2 / (1 + step)
        optimizer.set_rate(rate)
        for group in right.param_groups:
            group["lr"] = rate
        grads = gradients(normal, step)
        fill(params, grads)
        optimizer.step()
        for name, leaf in leaves.items():
            leaf.grad = grads[name].clone()
        right.step()
    compare(agree, params, leaves)


def test_a_rate_of_zero_moves_nothing(normal):
    """Yet the moments go on."""
    params = space(normal)
    before = params.flat_P.clone()
    optimizer = AdamW(lr=0.0).bind(params)
    fill(params, gradients(normal, 0))
    optimizer.step()
    assert torch.equal(params.flat_P, before) and optimizer.m_P.any() and float(optimizer.count) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_round_trip_goes_on_with_the_same_bits(normal, dtype):
    """A moment or the count left out of the state would show in the very next step."""
    params = space(normal, dtype)
    optimizer = AdamW(**SETTINGS).bind(params)
    for step in range(7):
        fill(params, gradients(normal, step))
        optimizer.step()
    kept = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    assert set(kept) == {f"{moment}.{entry.name}" for moment in "mv" for entry in SPEC} | {"count"}
    assert all(kept[f"m.{name}"].shape == view.shape for name, view in params.items())

    other = space(normal, dtype)
    other.flat_P.copy_(params.flat_P)
    resumed = AdamW(**SETTINGS).bind(other)
    resumed.load_state(kept)
    for step in range(7, 12):
        for either in (optimizer, resumed):
            fill(either.params, gradients(normal, step))
            either.step()
    assert all(torch.equal(a, b) for a, b in zip(everything(optimizer), everything(resumed), strict=True))


def test_the_update_is_seen_by_old_tapes(normal):
    """The fused kernel does not bump torch's version counter by itself; a tape from before would pass for fresh."""
    params = space(normal)
    optimizer = AdamW(weight_decay=0.0).bind(params)
    before = params.generation
    params.grad_P.fill_(1.0)
    optimizer.step()
    assert params.generation > before


@pytest.mark.parametrize(("dtype", "bytes_each"), [(torch.float32, 4), (torch.float64, 8)])
def test_memory_bytes(normal, dtype, bytes_each):
    """What is really allocated, padding too; one moment or four bytes for float64 would be half of it."""
    optimizer = AdamW()
    assert optimizer.memory_bytes() == 0
    params = space(normal, dtype)
    optimizer.bind(params)
    assert optimizer.memory_bytes() == 2 * bytes_each * params.flat_P.numel()
    assert optimizer.memory_bytes() == sum(m.untyped_storage().nbytes() for m in (optimizer.m_P, optimizer.v_P))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(lr=-1e-3), "lr = -0.001"),
        (dict(lr=float("nan")), "lr = nan"),
        (dict(eps=0.0), "eps = 0.0"),
        (dict(weight_decay=-0.1), "weight_decay = -0.1"),
        (dict(betas=(0.9, 1.0)), r"betas = \(0.9, 1.0\)"),
        (dict(betas=(-0.1, 0.9)), "betas"),
        (dict(decay="biases"), "decay = 'biases'.*'matrices' or on 'all'"),
    ],
)
def test_refuses_settings(settings, message):
    """Each would divide by zero or climb the loss."""
    with pytest.raises(ValueError, match=message):
        AdamW(**settings)


def test_refuses_a_second_model(normal):
    """Its moments would belong to the first one."""
    optimizer = AdamW().bind(space(normal))
    with pytest.raises(ValueError, match="already has parameters; make one for each model"):
        optimizer.bind(space(normal))


def test_refuses_a_step_without_parameters():
    """A sentence in place of an AttributeError."""
    with pytest.raises(ValueError, match=r"no parameters yet; bind\(model.params\)"):
        AdamW().step()


def test_the_formula_in_float32(normal):
    """What runs on a GPU without a kernel: the first step moves each parameter by the rate, whatever its gradient.
    1 − β₂ or 1 − β₂ᵗ taken in float32 would be 6e-6 off."""
    (g_P,) = normal(0, (128,))
    zero_P, flags_B, one = torch.zeros(128), torch.zeros(2, dtype=torch.bool), torch.ones(())
    after, _ = adamw.forward(zero_P, g_P.float(), zero_P, zero_P, flags_B, one, torch.tensor(0.5), eps=0.0)
    assert (after.p_P + 0.5 * g_P.sign()).abs().max() <= 3e-7


def test_the_second_moment_is_no_larger_than_the_squares():
    """Of gradients that stay the same, v/(1 − β₂ᵗ) is their square. β₂ and 1 − β₂ as two float32 numbers, which do not
    add up to 1, make it 1e-6 too large after 200 steps, in all of a model's parameters alike."""
    g_P = 0.5 + torch.rand(64, generator=torch.Generator().manual_seed(0))
    p_P, m_P, v_P = torch.zeros(3, 64)
    for count in range(1, 201):
        given = dict(decayed_B=torch.zeros(1, dtype=torch.bool), count=torch.tensor(float(count)), rate=1e-3)
        (p_P, m_P, v_P), _ = adamw.forward(p_P, g_P, m_P, v_P, **given)
    wide_P = v_P.double() / (1 - 0.999**200)
    assert (wide_P / g_P.double() ** 2 - 1).mean().abs() < 1e-7
