from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.moe import MoE, MoEConfig
from gradproof.ops import cross_entropy
from gradproof.ops.route import Whole
from gradproof.train import training as training_module
from gradproof.train.adamw import AdamW
from gradproof.train.loss import Loss
from gradproof.train.parts import Parts
from gradproof.train.schedule import Schedule
from gradproof.train.step import TrainStep
from gradproof.train.step_plan import StepResult

I, O, C = 5, 6, 4  # inputs, outputs, of which outcomes
WEIGHT_C = torch.tensor([0.5, 2.0, 1.25, 0.75, 3.0, 0.1]).double()


def moe(seed=1, dtype=torch.float64, outputs=O, **options):
    """A MoE of a few hundred parameters."""
    options = {**dict(inputs=I, outputs=outputs, experts=4, hidden=6, depth=1), **options}
    return MoE(MoEConfig(**options), seed=seed, dtype=dtype)


def dense(seed=1, dtype=torch.float64, outputs=O, **options):
    options = {**dict(hidden=6, feedforward=9, blocks=1), **options}
    return Dense(DenseConfig(I, outputs, **options), seed=seed, dtype=dtype)


MODELS = {
    "plain": lambda **o: moe(**o),
    "balance, z-loss, correction": lambda **o: moe(balance=0.3, z_loss=0.07, correction=0.05, **o),
    "sigmoid": lambda **o: moe(scores="sigmoid", balance=0.3, **o),
    "renormalise": lambda **o: moe(renormalise=True, balance=0.3, z_loss=0.07, **o),
    "everything": lambda **o: moe(
        scores="sigmoid", renormalise=True, balance=0.3, z_loss=0.07, correction=0.05, k=3, **o
    ),
    "K = 1": lambda **o: moe(k=1, balance=0.3, **o),
    "sheaf": lambda **o: moe(router="sheaf", patches=(2, 1, 2), gluing=0.2, balance=0.3, **o),
    "dense": lambda **o: dense(**o),
}


def _binary(normal, seed, T):
    label_T, weight_T = normal(seed, (T,), (T,))
    return label_T.sigmoid().round(), weight_T.exp()


def _classes(seed, T, classes):
    return torch.randint(classes, (T,), generator=torch.Generator().manual_seed(seed))


# Name: the loss, its outputs, its targets.
LOSSES = {
    "cross_entropy": (lambda: Loss("cross_entropy"), O, lambda n, s, T: _classes(s, T, O)),
    "weighted": (lambda: Loss("cross_entropy", class_weight_C=WEIGHT_C), O, lambda n, s, T: _classes(s, T, O)),
    "weighted quality": (
        lambda: Loss("quality", weight=0.3, class_weight_C=WEIGHT_C[:C]),
        O,
        lambda n, s, T: (_classes(s, T, C), n(s, (T, O - C))[0]),
    ),
    "quality": (lambda: Loss("quality"), O, lambda n, s, T: (_classes(s, T, C), n(s, (T, O - C))[0])),
    "mse": (lambda: Loss("mse"), O, lambda n, s, T: n(s, (T, O))[0]),
    "bce": (lambda: Loss("bce"), 1, _binary),
    "gaussian": (lambda: Loss("gaussian"), 2, lambda n, s, T: n(s, (T,))[0]),
}


def cut(x_TI, target, sizes):
    """The batch in micro-batches of these sizes."""
    if isinstance(target, tuple):
        targets = list(zip(*(tensor.split(sizes) for tensor in target), strict=True))
    else:
        targets = target.split(sizes)
    return list(zip(x_TI.split(sizes), targets, strict=True))


def batch(normal, loss, seed, T):
    return normal(1000 + seed, (T, I))[0], LOSSES[loss][2](normal, seed, T)


def trained(normal, model, loss, sizes, steps=4, **options):
    """What each step gave, with gradient, parameters and buffers after it; batch s is cut into sizes[s]."""
    step = TrainStep(model, loss if isinstance(loss, Loss) else LOSSES[loss][0](), AdamW(lr=1e-2), "fp64", **options)
    kind = loss if isinstance(loss, str) else "cross_entropy"
    states = []
    for s in range(steps):
        x_TI, target = batch(normal, kind, s, sum(sizes[s]))
        result = step(x_TI, target) if len(sizes[s]) == 1 else step.accumulate(cut(x_TI, target, sizes[s]))
        state = dict(zip(StepResult._fields, result, strict=True))
        state |= {f"gradient {name}": grad.clone() for name, grad in model.params.grads.items()}
        state |= {f"parameter {name}": view.clone() for name, view in model.params.items()}
        states.append(state | {name: buffer.clone() for name, buffer in model.buffers.items()})
    return states


def same(agree, states, right):
    for one, other in zip(states, right, strict=True):
        gradient = torch.cat([v.flatten() for name, v in other.items() if name.startswith("gradient ")])
        for name, value in one.items():
            if value.dtype == torch.int64 or name in ("skipped", "router.correction"):
                assert torch.equal(value, other[name]), name
            else:
                # An expert's share of the gradient may cancel; rounding is that of the whole.
                agree(value, other[name], 1e-12, terms=gradient if name.startswith("gradient ") else 0.0)


def apart(states, right):
    """The largest relative difference of losses and of gradients."""
    far = dict(loss=0.0, gradient=0.0)
    for one, other in zip(states, right, strict=True):
        names = [name for name in one if name.startswith("gradient ")]
        a, b = (torch.cat([state[name].flatten() for name in names]) for state in (one, other))
        far["gradient"] = max(far["gradient"], float((a - b).norm() / b.norm()))
        far["loss"] = max(far["loss"], abs(float(one["loss"]) / float(other["loss"]) - 1))
    return far


WHOLE = [[12], [9], [12], [7]]
CUTS = [[5, 4, 3], [1, 8], [1] * 12, [3, 3, 1]]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("clip", [None, 0.1], ids=["unclipped", "clipped"])
def test_accumulation_is_the_whole_batch_for_every_loss(normal, agree, loss, clip):
    """A mean of means, a total of rows where weights count, or clipping each part would differ."""
    runs = [
        trained(normal, MODELS["balance, z-loss, correction"](outputs=LOSSES[loss][1]), loss, sizes, clip=clip)
        for sizes in (CUTS, WHOLE)
    ]
    same(agree, *runs)


@pytest.mark.parametrize("name", MODELS)
def test_accumulation_is_the_whole_batch_for_every_model(normal, agree, name):
    """A balance share or a z-loss of one part, or a correction moved part by part, would differ."""
    same(agree, *(trained(normal, MODELS[name](), "weighted quality", sizes) for sizes in (CUTS, WHOLE)))


@given(
    cuts=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=5), min_size=3, max_size=3),
    name=st.sampled_from(list(MODELS)),
    loss=st.sampled_from([loss for loss, (_, outputs, _) in LOSSES.items() if outputs == O]),
)
def test_accumulation_however_it_is_cut(normal, agree, cuts, name, loss):
    """One part, single rows, parts that starve an expert: the cuts must not be seen."""
    whole = [[sum(sizes)] for sizes in cuts]
    same(agree, *(trained(normal, MODELS[name](), loss, sizes, steps=3) for sizes in (cuts, whole)))


@pytest.mark.parametrize("micro_rows", [1, 4, 5, 12, 99])
@pytest.mark.parametrize("loss", ["weighted", "weighted quality"])
def test_micro_rows_change_nothing(normal, agree, loss, micro_rows):
    """A target pair that is cut elsewhere than the rows, or a last short piece that is dropped, would."""
    runs = [trained(normal, MODELS["everything"](), loss, WHOLE, micro_rows=rows) for rows in (micro_rows, None)]
    same(agree, *runs)


def test_mean_of_means_would_be_seen(normal):
    """The tests above are no use unless this wrong reduction stands far above their tolerance."""
    wrong = SimpleNamespace(
        count=lambda target_T: dict(parts=1),
        forward=lambda z_TC, target_T, parts=1: tuple(t / parts for t in cross_entropy.forward(z_TC, target_T)),
        backward=cross_entropy.backward,
    )
    runs = [trained(normal, moe(), Loss(wrong), sizes) for sizes in (CUTS, WHOLE)]
    assert apart(*runs)["loss"] > 1e-3 and apart(*runs)["gradient"] > 1e-2


def test_share_counted_part_by_part_would_be_seen(normal, monkeypatch):
    """As above, for a balance term whose f_e is that of each micro-batch."""
    right = trained(normal, MODELS["balance, z-loss, correction"](), "weighted quality", WHOLE)

    apply = MoE.apply

    def own_share(self, weights, x_TI, whole=None, *kernels):
        if whole is not None:
            whole = Whole(whole.rows, self.load(weights, x_TI) * whole.rows / x_TI.shape[0])
        return apply(self, weights, x_TI, whole, *kernels)

    monkeypatch.setattr(MoE, "apply", own_share)
    wrong = trained(normal, MODELS["balance, z-loss, correction"](), "weighted quality", CUTS)
    assert apart(wrong, right)["loss"] > 1e-4 and apart(wrong, right)["gradient"] > 1e-4


def test_no_whole_at_all_would_be_seen(normal, monkeypatch):
    """As above, for auxiliary losses of each part that are simply added."""
    right = trained(normal, MODELS["balance, z-loss, correction"](), "weighted quality", WHOLE)
    monkeypatch.setattr(Parts, "_whole", lambda self, batches: None)
    wrong = trained(normal, MODELS["balance, z-loss, correction"](), "weighted quality", CUTS)
    assert apart(wrong, right)["loss"] > 1e-2 and apart(wrong, right)["gradient"] > 1e-3


def test_energy_by_hand(normal, agree):
    """The mean over all rows, however they are cut."""
    model = MODELS["sheaf"]()
    x_TI, target = batch(normal, "cross_entropy", 0, 9)
    energy_T = model.energy(model.forward(x_TI)[1].saved)
    result = TrainStep(model, "cross_entropy", AdamW(lr=0.0), "fp64").accumulate(cut(x_TI, target, [4, 5]))
    agree(result.energy, energy_T.mean())
    assert not TrainStep(moe(), "cross_entropy", AdamW(), "fp64")(x_TI, target).energy


def test_load_entropy_and_gates_by_hand(normal, agree):
    """A load of one part, an entropy of the gates in place of the router's p, or gates out of order."""
    model = moe(balance=0.3)
    x_TI, target = batch(normal, "cross_entropy", 0, 9)
    z_TE = x_TI @ model.params["router.weight"].T + model.params["router.bias"]
    p_TE = torch.softmax(z_TE, 1)
    output, _ = model.forward(x_TI)
    result = TrainStep(model, "cross_entropy", AdamW(), "fp64").accumulate(cut(x_TI, target, [4, 5]))
    assert result.load.tolist() == (output.gates_TE != 0).sum(0).tolist() and int(result.load.sum()) == 18
    agree(result.entropy, -(p_TE * p_TE.log()).sum(1).mean())
    agree(result.gates, output.gates_TE)
    agree(result.loss, nn.functional.cross_entropy(output.logits_TO, target) + output.aux)


# Against autograd.


class TorchChain(nn.Module):
    """The chain of the design in torch's own layers."""

    def __init__(self, widths, active):
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for width in widths[1:-1])
        self.active = active

    def forward(self, x):
        for linear, norm, active in zip(self.linear, self.norm, self.active, strict=False):
            x = norm(linear(x))
            x = nn.functional.gelu(x, approximate="tanh") if active else x
        return self.linear[-1](x)


class TorchMoE(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.inputs, config.experts)
        self.experts = nn.ModuleList(
            TorchChain(config.chain.widths, config.chain.active) for _ in range(config.experts)
        )

    def forward(self, x):
        c = self.config
        z = self.router(x)
        p = torch.softmax(z, 1)
        chosen = p.argsort(1, descending=True)[:, : c.k]
        mask = torch.zeros_like(p).scatter(1, chosen, 1.0)
        y = sum((mask * p)[:, e, None] * expert(x) for e, expert in enumerate(self.experts))
        share = mask.mean(0) / c.k
        balance = c.balance * c.experts * (share * p.mean(0)).sum()
        return y, balance + c.z_loss * torch.logsumexp(z, 1).square().mean()


class TorchDense(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.chain = TorchChain(config.chain.widths, config.chain.active)

    def forward(self, x):
        return self.chain(x), 0.0


@pytest.mark.parametrize("kind", ["moe", "dense"])
@pytest.mark.parametrize("clip", [None, 0.5], ids=["unclipped", "clipped"])
def test_steps_agree_with_autograd(normal, agree, kind, clip):
    """Forward, loss, backward, clip, decay and AdamW at once, against what a person would write in torch."""
    model = moe(balance=0.1, z_loss=0.01) if kind == "moe" else dense()
    right = (TorchMoE if kind == "moe" else TorchDense)(model.config).double()
    named = dict((right if kind == "moe" else right.chain).named_parameters())
    assert set(named) == set(model.params)
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(model.params[name])
    matrices = [named[entry.name] for entry in model.params.spec if entry.kind == "matrix"]
    others = [named[entry.name] for entry in model.params.spec if entry.kind != "matrix"]
    groups = [dict(params=matrices, weight_decay=0.1), dict(params=others, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    step = TrainStep(model, "quality", AdamW(lr=1e-2, weight_decay=0.1), "fp64", clip=clip)
    for s in range(5):
        x_TI, (outcome_T, metrics_TM) = batch(normal, "quality", s, 11)
        result = step(x_TI, (outcome_T, metrics_TM))
        y_TO, aux = right(x_TI)
        loss = nn.functional.cross_entropy(y_TO[:, :C], outcome_T) + aux
        loss = loss + nn.functional.mse_loss(y_TO[:, C:], metrics_TM)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(right.parameters(), clip or 1e9)
        optimizer.step()
        agree(result.loss, loss, 1e-11)
        agree(result.grad_norm, norm, 1e-11)
        for name, parameter in named.items():
            agree(model.params[name], parameter, 1e-10)


# Clipping.


def first_moment(normal, clip, scale=1.0, dtype="fp64", **options):
    """Gradient norm and the first moment over 1 − β₁, which is the clipped gradient, after one step."""
    model = moe(dtype=torch.float64 if dtype == "fp64" else torch.float32)
    step = TrainStep(model, Loss("mse"), AdamW(betas=(0.5, 0.999)), dtype, clip=clip, **options)
    x_TI, target = batch(normal, "mse", 0, 9)
    with torch.no_grad():
        y_TO = model.forward(x_TI.to(model.params.flat_P.dtype))[0].logits_TO
    # A target so near that the gradient is as small as `scale` says.
    target = y_TO + scale * (target.to(y_TO.dtype) - y_TO)
    result = step(x_TI.to(y_TO.dtype), target)
    return float(result.grad_norm), step.optimizer.m_P / 0.5


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_clip_factor_is_exact(normal, agree, scale):
    """min(1, c/(norm + 1e-6)): without the 1e-6 a norm of 1e-5 would be off by a tenth; c/norm twice, by more."""
    norm, gradient_P = first_moment(normal, None, scale)
    assert 0.01 * scale < norm < 100 * scale
    for share in (0.5, 0.01):
        unclipped, clipped_P = first_moment(normal, share * norm, scale)
        assert unclipped == norm  # that before clipping
        agree(clipped_P, gradient_P * (share * norm / (norm + 1e-6)), 1e-14)


def test_a_norm_below_the_clip_is_left_alone(normal, agree):
    """The same bits as without clipping; and 1e-6 below the clip the factor is already under 1."""
    norm, gradient_P = first_moment(normal, None)
    assert torch.equal(first_moment(normal, 2 * norm)[1], gradient_P)
    assert torch.equal(first_moment(normal, norm + 1e-6)[1], gradient_P)
    near = norm + 0.5e-6
    agree(first_moment(normal, near)[1], gradient_P * (near / (norm + 1e-6)), 1e-14)
    assert not torch.equal(first_moment(normal, near)[1], gradient_P)


def test_fp16_clips_what_it_has_unscaled(normal, monkeypatch):
    """Clipping the scaled gradient would clip nearly always; unscaling after would leave a norm of c/scale."""
    norm, gradient_P = first_moment(normal, None, dtype="fp32")
    for clip in (10 * norm, 0.1 * norm):
        for scale in (2.0**4, 2.0**10):
            monkeypatch.setattr(training_module, "FIRST_SCALE", scale)
            unclipped, clipped_P = first_moment(normal, clip, dtype="fp16")
            assert unclipped == pytest.approx(norm, rel=1e-2)
            right_P = gradient_P * min(1.0, clip / (norm + 1e-6))
            assert float((clipped_P - right_P).norm() / right_P.norm()) < 1e-2


# The loss scale.


def bits(step):
    """Everything that a skipped step must leave alone."""
    kept = [step.model.params.flat_P, step.optimizer.m_P, step.optimizer.v_P, step.optimizer.count]
    return [tensor.clone() for tensor in (*kept, *step.model.buffers.values())]


def half(normal, seed=0, T=9, **options):
    """An fp16 step on a MoE with a buffer, and a batch for it."""
    model = moe(dtype=torch.float32, balance=0.1, correction=0.05)
    step = TrainStep(model, "cross_entropy", AdamW(lr=1e-2, weight_decay=0.1), "fp16", **options)
    x_TI, target = batch(normal, "cross_entropy", seed, T)
    return step, x_TI.float(), target


@pytest.mark.parametrize("clip", [None, 1.0])
def test_overflow_skips_the_step_and_halves_the_scale(normal, clip):
    """Decay, moments, count or the router's correction of a skipped step would show as changed bits."""
    step, x_TI, target = half(normal, clip=clip)
    step(x_TI, target)
    before = bits(step)
    step.training.scale.fill_(2.0**40)
    result = step(x_TI, target)
    assert float(result.skipped) == 1 and float(step.training.skipped) == 1 and float(step.training.scale) == 2.0**39
    assert result.loss.isfinite() and not result.grad_norm.isfinite() and float(result.scale) == 2.0**40
    assert all(torch.equal(a, b) for a, b in zip(bits(step), before, strict=True))
    for skips in range(2, 60):
        result = step(x_TI, target)
        if not float(result.skipped):
            break
        assert float(step.training.scale) == 2.0 ** (40 - skips)
    assert 3 < skips < 59 and float(step.training.skipped) == skips - 1
    assert float(result.scale) == float(step.training.scale) == 2.0 ** (41 - skips)
    assert not any(torch.equal(a, b) for a, b in zip(bits(step), before, strict=True))


def test_a_skipped_step_is_no_step_of_the_other_ones(normal):
    """Three good steps with overflows in between end with the same bits as three good steps."""
    ends = []
    for disturbed in (False, True):
        step, x_TI, target = half(normal)
        for s in range(3):
            if disturbed:
                kept = step.training.scale.clone()
                step.training.scale.fill_(2.0**60)
                assert float(step(x_TI * (s + 2), target).skipped) == 1
                step.training.scale.copy_(kept)
            assert float(step(x_TI, target).skipped) == 0
        ends.append(bits(step))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_the_scale_grows_after_good_steps_in_a_row(normal, monkeypatch):
    """A count that an overflow does not reset would grow into the next overflow at once."""
    monkeypatch.setattr(training_module, "GROW_AFTER", 3)
    monkeypatch.setattr(training_module, "FIRST_SCALE", 8.0)
    step, x_TI, target = half(normal)
    scales = []
    for s in range(12):
        spoilt = torch.full_like(x_TI, torch.inf) if s == 4 else x_TI
        step(spoilt, target)
        scales.append(float(step.training.scale))
    # 3 good ones, 1 good, 1 skipped, then 3 and 3 and 1 good.
    assert scales == [8, 8, 16, 16, 8, 8, 8, 16, 16, 16, 32, 32]


def test_the_scale_never_goes_below_one(normal, monkeypatch):
    """Below 1 it would push small gradients under what fp16 can hold, to cure what it cannot cure."""
    monkeypatch.setattr(training_module, "FIRST_SCALE", 4.0)
    step, x_TI, target = half(normal)
    for _ in range(6):
        step(torch.full_like(x_TI, torch.nan), target)
    assert float(step.training.scale) == 1.0 and float(step.training.skipped) == 6


def test_constants_of_the_scale(normal):
    """2¹⁶ at first, and two thousand good steps before it grows, as everyone does."""
    assert (training_module.FIRST_SCALE, training_module.GROW_AFTER) == (65536.0, 2000)
    step, _, _ = half(normal)
    assert float(step.training.scale) == 65536.0


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
def test_what_is_not_finite_is_skipped_without_a_scale_too(normal, dtype):
    """A NaN that reaches the moments stays there for good."""
    model = moe(dtype=torch.float64 if dtype == "fp64" else torch.float32, correction=0.05)
    step = TrainStep(model, "cross_entropy", AdamW(lr=1e-2), dtype, clip=1.0)
    x_TI, target = batch(normal, "cross_entropy", 0, 9)
    x_TI = x_TI.to(model.params.flat_P.dtype)
    step(x_TI, target)
    before = bits(step)
    spoilt_TI = x_TI.clone()
    spoilt_TI[3, 2] = torch.nan
    assert float(step(spoilt_TI, target).skipped) == 1
    assert float(step.training.skipped) == 1 and float(step.training.scale) == 1
    assert all(torch.equal(a, b) for a, b in zip(bits(step), before, strict=True))
    assert float(step(x_TI, target).skipped) == 0


# Low precision.

UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11}


def gradient(normal, kind, dtype, seed=3, T=64):
    """grad_P of one step, unscaled, in float64, and the step."""
    build = dict(moe=lambda **o: moe(balance=0.1, hidden=32, depth=2, **o), dense=lambda **o: dense(hidden=32, **o))[
        kind
    ]
    model = build(dtype=torch.float32)
    if dtype == "fp64":
        wide = build(dtype=torch.float64)
        wide.params.flat_P.copy_(model.params.flat_P)
        model = wide
    step = TrainStep(model, "cross_entropy", AdamW(lr=0.0), dtype)
    x_TI, target = batch(normal, "cross_entropy", seed, T)
    x_TI = x_TI.float()
    result = step(x_TI.to(model.params.flat_P.dtype), target)
    return {name: m.double() / 0.1 for name, m in model.params.views(step.optimizer.m_P).items()}, step, result


@pytest.mark.parametrize("kind", ["moe", "dense"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_low_precision_gradients_are_close_to_exact_ones(normal, kind, dtype):
    """A statistic, a sum over rows or a gate in the narrow format would cost many units; fp32 in disguise, none."""
    narrow, step, result = gradient(normal, kind, dtype)
    right, _, exact = gradient(normal, kind, "fp64")
    assert torch.equal(result.load, exact.load)
    whole = [torch.cat([grads[name].flatten() for name in right]) for grads in (narrow, right)]
    error = float((whole[0] - whole[1]).norm() / whole[1].norm())
    assert UNIT[dtype] / 16 < error < 6 * UNIT[dtype]
    for name, value in right.items():
        assert float((narrow[name] - value).norm()) < 16 * UNIT[dtype] * float(value.norm()) + 1e-3 * UNIT[dtype], name
    assert float(result.loss) == pytest.approx(float(exact.loss), rel=4 * UNIT[dtype])
    assert {t.dtype for t in (result.loss, result.gates, result.grad_norm, result.entropy)} == {torch.float32}
    state = (step.model.params.flat_P, step.model.params.grad_P, step.optimizer.m_P, step.optimizer.v_P)
    assert {tensor.dtype for tensor in state} == {torch.float32}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_router_stays_in_fp32(normal, dtype):
    """Logits of a bf16 product would move the gates by 1e-3 and flip close decisions; these differ by how another
    kernel adds up 5 products in fp32."""
    gates, entropies = zip(
        *(
            (r.gates, r.entropy)
            for _, _, r in (gradient(normal, "moe", precision, T=257) for precision in ("fp32", dtype))
        ),
        strict=True,
    )
    assert torch.equal(*(gates_TE == 0 for gates_TE in gates))
    assert torch.allclose(*gates, rtol=1e-6) and torch.allclose(*entropies, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_masters_take_updates_below_the_narrow_unit(normal, dtype):
    """1e-5 is lost on a bf16 weight of ordinary size, so a hundred of them would be; the masters move by 1e-3."""
    model = dense(dtype=torch.float32)
    step = TrainStep(model, "cross_entropy", AdamW(lr=1e-5, weight_decay=0.0), dtype)
    x_TI, target = batch(normal, "cross_entropy", 0, 9)
    before = model.params.flat_P.clone()
    for _ in range(100):
        step(x_TI.float(), target)
    moved = (model.params.flat_P - before).abs()
    large = before.abs() > 0.1
    assert (moved[large] > 5e-4).float().mean() > 0.9 and model.params.flat_P.dtype == torch.float32
    assert torch.equal(step.training.weights.flat_P, model.params.flat_P.to(step.training.weights.flat_P.dtype))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_weight_gradients_accumulate_in_fp32(normal, dtype):
    """512 equal contributions: a bf16 sum of them stands still at 256, half of what it should be."""
    row_1I, target = batch(normal, "cross_entropy", 0, 1)
    moments = []
    for rows in (512, 1):
        model = dense(dtype=torch.float32)
        step = TrainStep(model, "cross_entropy", AdamW(lr=0.0), dtype, micro_rows=1)
        step.training.scale.fill_(2.0**12 if dtype == "fp16" else 1.0)
        step(row_1I.float().expand(rows, I), target.expand(rows))
        moments.append(step.optimizer.m_P.clone())
    # A power of two, so each contribution is the single row's over 512, bit by bit.
    assert float((moments[0] - moments[1]).norm() / moments[1].norm()) < (1e-5 if dtype == "bf16" else 1e-3)


# Schedule and state.


def test_the_schedule_sets_the_rate_of_each_step(normal):
    """A rate set after the step, or from the peak of the step before, would be one step late."""
    schedule = Schedule(8, "warmup-cosine", warmup=0.25)
    step = TrainStep(moe(), "cross_entropy", AdamW(lr=0.1), "fp64", schedule=schedule)
    for s in range(8):
        step(*batch(normal, "cross_entropy", s, 5))
        assert step.optimizer.lr == 0.1 * schedule.factor(s)
        assert float(step.optimizer.rate) == pytest.approx(0.1 * schedule.factor(s))


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp64"])
def test_state_round_trip_goes_on_with_the_same_bits(normal, dtype, monkeypatch):
    """A scale, a count of good steps, a buffer or a narrow copy that is not restored would show."""
    monkeypatch.setattr(training_module, "GROW_AFTER", 4)
    masters = torch.float64 if dtype == "fp64" else torch.float32

    def fresh(seed):
        model = moe(seed, masters, balance=0.1, correction=0.05)
        schedule = Schedule(12, "warmup-cosine")
        return TrainStep(model, "cross_entropy", AdamW(lr=1e-2), dtype, clip=0.5, schedule=schedule)

    def go(step, steps):
        for s in steps:
            x_TI, target = batch(normal, "cross_entropy", s, 9)
            step(x_TI.to(masters), target)

    step, resumed = fresh(1), fresh(2)
    go(step, range(6))
    kept = {name: tensor.clone() for name, tensor in step.state().items()}
    resumed.model.params.flat_P.copy_(step.model.params.flat_P)
    resumed.load_state(kept, 6)
    go(step, range(6, 12))
    go(resumed, range(6, 12))
    assert all(torch.equal(a, b) for a, b in zip(bits(step), bits(resumed), strict=True))
    assert all(torch.equal(tensor, resumed.state()[name]) for name, tensor in step.state().items())
    assert resumed.steps == 12 and resumed.optimizer.lr == step.optimizer.lr


# Results and misuse.


def test_results_are_copies(normal):
    """A view of a buffer that the next step writes would change what was logged."""
    model = moe(balance=0.1, correction=0.05)
    step = TrainStep(model, "cross_entropy", AdamW(lr=0.1), "fp64", clip=0.1)
    results = []
    for s in range(4):
        result = step(*batch(normal, "cross_entropy", s, 9))
        results.append((result, [tensor.clone() for tensor in result]))
    for result, kept in results:
        assert all(torch.equal(a, b) for a, b in zip(result, kept, strict=True))
    assert len({float(result.loss) for result, _ in results}) == 4
    for result, _ in results:
        for tensor in result:
            tensor.fill_(7)
    before = bits(step)
    assert not any((tensor == 7).all() for tensor in before)
    again = step(*batch(normal, "cross_entropy", 4, 9))
    assert not any((tensor == 7).all() for tensor in again)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_two_steps_do_not_interfere(normal, dtype):
    """A shared workspace, scale or moment would mix the two models."""

    def make(seed):
        model = moe(seed, torch.float32, balance=0.1, correction=0.05)
        return TrainStep(model, "cross_entropy", AdamW(lr=1e-2), dtype, clip=1.0)

    def once(step, s):
        x_TI, target = batch(normal, "cross_entropy", s, 9)
        return [tensor.clone() for tensor in step(x_TI.float(), target)]

    alone = []
    for seed in (1, 2):
        step = make(seed)
        alone.append([once(step, 10 * seed + s) for s in range(3)])
    pair, together = [make(1), make(2)], [[], []]
    for s in range(3):
        for i in (0, 1):
            together[i].append(once(pair[i], 10 * (i + 1) + s))
    for one, other in zip([*alone[0], *alone[1]], [*together[0], *together[1]], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_inputs_are_left_alone(normal):
    """A batch is used again in the next epoch."""
    step = TrainStep(moe(), "quality", AdamW(), "fp64", clip=0.1)
    x_TI, (outcome_T, metrics_TM) = batch(normal, "quality", 0, 9)
    kept = [tensor.clone() for tensor in (x_TI, outcome_T, metrics_TM)]
    step(x_TI, (outcome_T, metrics_TM))
    assert all(torch.equal(a, b) for a, b in zip((x_TI, outcome_T, metrics_TM), kept, strict=True))


def test_nothing_is_recorded_for_autograd(normal):
    """An input that requires gradients would keep every step's graph alive."""
    x_TI, target = batch(normal, "cross_entropy", 0, 9)
    result = TrainStep(moe(), "cross_entropy", AdamW(), "fp64")(x_TI.requires_grad_(), target)
    assert not any(tensor.requires_grad for tensor in result)


def test_same_bits_twice(normal):
    """Sums in no fixed order would make no two runs alike."""
    ends = []
    for _ in range(2):
        step, x_TI, target = half(normal, T=33)
        for _ in range(5):
            step(x_TI, target)
        ends.append(bits(step))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (dict(compute_dtype="fp8"), "compute_dtype = 'fp8' must be one of fp32, bf16, fp16, fp64"),
        (dict(compute_dtype="fp32"), r"'fp32' needs a model in torch\.float32"),
        (dict(compute_dtype="bf16"), r"'bf16' needs a model in torch\.float32"),
        (dict(loss="hinge"), "there is no loss 'hinge'; the losses are mse, quality, cross_entropy, bce"),
        (dict(clip=0.0), "clip = 0.0.*above 0; None does not clip"),
        (dict(clip=-1.0), "clip = -1.0"),
        (dict(clip=float("nan")), "clip = nan"),
        (dict(micro_rows=0), "micro_rows = 0.*at least one row"),
    ],
)
def test_misuse_is_one_sentence_and_costs_nothing(normal, given_, message):
    """The optimizer of a refused step is still free for the right one."""
    options = dict(loss="cross_entropy", compute_dtype="fp64")
    optimizer, model = AdamW(), moe()
    with pytest.raises(ValueError, match=message):
        TrainStep(model, optimizer=optimizer, **{**options, **given_})
    TrainStep(model, optimizer=optimizer, **options)(*batch(normal, "cross_entropy", 0, 5))


def test_fp64_needs_a_float64_model():
    """Half of the digits would be missing from what is called fp64."""
    with pytest.raises(ValueError, match=r"'fp64' needs a model in torch\.float64"):
        TrainStep(moe(dtype=torch.float32), "mse", AdamW(), "fp64")


def test_an_optimizer_serves_one_model():
    """Two models on one pair of moments would pull each other."""
    optimizer = AdamW()
    TrainStep(moe(), "mse", optimizer, "fp64")
    with pytest.raises(ValueError, match="already has parameters; make one for each model"):
        TrainStep(moe(), "mse", optimizer, "fp64")


@pytest.mark.parametrize(
    ("x", "target", "message"),
    [
        (torch.zeros(4, 6).double(), torch.zeros(4).long(), r"5 inputs\], not \[4, 6\]"),
        (torch.zeros(4, 5), torch.zeros(4).long(), r"input is torch\.float32"),
        (torch.zeros(0, 5).double(), torch.zeros(0).long(), "rows ≥ 1"),
        (torch.zeros(4, 5).double(), torch.zeros(3).long(), r"target must be int64 \[4\]"),
        (torch.zeros(4, 5).double(), torch.tensor([0, 1, 9, 0]), r"target\[2\] = 9 is out of range"),
    ],
)
def test_refuses_a_batch(x, target, message):
    """And leaves the model as it was, so that a loop can go on with the next batch."""
    model = moe(correction=0.05)
    step = TrainStep(model, "cross_entropy", AdamW(), "fp64")
    before = bits(step)
    with pytest.raises(ValueError, match=message):
        step(x, target)
    assert all(torch.equal(a, b) for a, b in zip(bits(step), before, strict=True)) and step.steps == 0
