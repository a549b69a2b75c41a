"""`diagnose` on modules whose truth is known, and what it leaves behind. The rates over the zoo are in tests/zoo."""

import copy
import json
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradproof
from gradproof.diagnosis.diagnose import checked_formats


def diagnosed(module, inputs, **options):
    return gradproof.diagnose(module, inputs, **{"precisions": ("bf16",), "replicas": 8, **options})


def mlp(*middle, rows=16, width=12):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(width, 24), *middle, nn.Linear(24, 5)), (torch.randn(rows, width),)


class Module(nn.Module):
    """A forward from a function, and parameters by name."""

    def __init__(self, function, **parameters):
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            setattr(self, name, nn.Parameter(value))

    def forward(self, *inputs):
        return self.function(self, *inputs)


def test_a_right_module_is_noise_in_every_format():
    diagnosis = gradproof.diagnose(*mlp(nn.LayerNorm(24), nn.GELU()), replicas=8)
    assert diagnosis and diagnosis.verdict in ("noise", "clean")
    assert [p.format for p in diagnosis.precisions] == ["bf16", "fp16", "fp8_e4m3"]
    errors = [p.rel_error for p in diagnosis.precisions]
    assert errors[1] < errors[0] < errors[2], "errors follow the unit"
    assert diagnosis.precisions[2].simulated_only and not diagnosis.precisions[0].simulated_only
    assert diagnosis.sweep["slope"] == pytest.approx(1, abs=0.2)


def test_a_scale_bug_is_named_with_its_factor():
    module, inputs = mlp(nn.Tanh())
    module[0].weight.register_hook(lambda g: 2 * g)
    diagnosis = diagnosed(module, inputs)
    assert not diagnosis and diagnosis.verdict == "bug"
    wrong = {j.name: j for j in diagnosis.precisions[0].parameters if j.verdict == "bug"}
    assert set(wrong) == {"0.weight"}
    assert wrong["0.weight"].norm_ratio == pytest.approx(2, rel=1e-4)
    assert "0.weight: gradient is 2x the reference even in float64: a scale bug, not rounding" in diagnosis.summary


def test_a_bug_that_is_no_scale_is_not_called_one():
    module, inputs = mlp(nn.Tanh())
    module[0].weight.register_hook(lambda g: g * torch.linspace(0.5, 1.5, g.shape[1], dtype=g.dtype))
    diagnosis = diagnosed(module, inputs)
    assert diagnosis.verdict == "bug" and "scale bug" not in diagnosis.summary and "0.weight" in diagnosis.summary


def test_a_gradient_that_is_missing_altogether_is_a_bug():
    module, inputs = mlp(Module(lambda self, x: torch.tanh(x).detach()))
    diagnosis = diagnosed(module, inputs)
    wrong = {
        j.name for j in (*diagnosis.precisions[0].parameters, *diagnosis.precisions[0].inputs) if j.verdict == "bug"
    }
    assert diagnosis.verdict == "bug" and wrong == {"0.weight", "0.bias", "input"}
    assert "gradient is zero even in float64" in diagnosis.summary


def test_a_module_without_anything_to_judge_is_inconclusive():
    diagnosis = diagnosed(Module(lambda self, x: x.float() * 2), (torch.arange(6),))
    assert diagnosis.verdict == "inconclusive" and json.loads(diagnosis.to_json())["parameters"] == []


def test_a_trusted_reference_gives_ratio_and_cosine_even_where_the_forward_is_wrong():
    module, inputs = mlp(nn.GELU("tanh"))
    trusted = copy.deepcopy(module)
    trusted[1] = nn.GELU()
    diagnosis = diagnosed(module, inputs, reference=trusted)
    assert diagnosis.verdict == "bug"
    wrong = {j.name: j for j in diagnosis.precisions[0].parameters if j.verdict == "bug"}
    assert "2.weight" in wrong and 0.99 < wrong["2.weight"].cosine < 1
    assert diagnosed(module, inputs, reference=copy.deepcopy(module))


def test_a_gradient_that_cancels_agrees_with_its_reference():
    """The bias before a normalisation: its gradient is rounding noise of float64 in both, and not the same."""
    module, inputs = mlp(nn.LayerNorm(24), nn.Tanh())
    reference = copy.deepcopy(module)
    reference[1] = Module(
        lambda self, x: F.layer_norm(x.flip(-1), (24,)).flip(-1) * self.weight + self.bias,
        weight=module[1].weight.detach().clone(),
        bias=module[1].bias.detach().clone(),
    )
    assert diagnosed(module, inputs, reference=reference)


def test_the_reference_runs_at_the_modules_values():
    module, inputs = mlp(nn.GELU())
    other, _ = mlp(nn.GELU())
    for p in other.parameters():
        nn.init.normal_(p)
    assert diagnosed(module, inputs, reference=other)


def overflowing():
    torch.manual_seed(0)
    return Module(lambda self, x: (x @ self.w).square().mean(-1).rsqrt(), w=torch.randn(12, 8)), (
        300 * torch.randn(16, 12),
    )


def test_an_overflow_is_one_in_fp16_alone_and_its_op_is_named():
    diagnosis = gradproof.diagnose(*overflowing(), precisions=("bf16", "fp16"), replicas=8)
    verdicts = {p.format: p.verdict for p in diagnosis.precisions}
    assert verdicts["fp16"] == "overflow" and verdicts["bf16"] in ("noise", "clean")
    where = diagnosis.worst.first_divergence
    assert (where["phase"], where["op"]) == ("forward", "pow") and "pow" in diagnosis.summary


def test_an_underflow_is_told_with_the_loss_scale():
    module, inputs = mlp()
    module = nn.Sequential(module, Module(lambda self, y: 1e-14 * torch.tanh(y)))
    diagnosis = diagnosed(module, inputs, precisions=("bf16", "fp16"))
    verdicts = {p.format: p.verdict for p in diagnosis.precisions}
    assert verdicts["fp16"] == "underflow" and verdicts["bf16"] in ("noise", "clean")
    assert diagnosis.precisions[1].scale == 2**16 and "2^16" in diagnosis.summary


def test_the_loss_scale_is_the_largest_that_does_not_overflow():
    module, inputs = mlp()
    scaled = nn.Sequential(module, Module(lambda self, y: 3e3 * y))
    diagnosis = diagnosed(scaled, inputs, precisions=("fp16",))
    assert diagnosis.verdict in ("noise", "clean") and 1 < diagnosis.precisions[0].scale < 2**16


@pytest.mark.slow
def test_a_sum_that_stagnates_is_a_bug_though_its_math_is_right():
    def stagnates(self, x):
        total = torch.zeros_like(x[:, :1])
        for i in range(x.shape[1]):
            total = total + torch.exp(x[:, i : i + 1] * self.w)
        return self.w / total * x

    torch.manual_seed(0)
    module = Module(stagnates, w=torch.randn(1))
    diagnosis = diagnosed(module, (0.1 * torch.randn(4, 1200),), precisions=("bf16", "fp32"))
    assert diagnosis.verification.status == "proven"
    assert {p.format: p.verdict for p in diagnosis.precisions} == {"bf16": "bug", "fp32": "clean"} or (
        diagnosis.precisions[0].verdict == "bug" and diagnosis.precisions[1].verdict in ("noise", "clean")
    )
    assert "drifts" in diagnosis.precisions[0].summary


class Branching(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        dx = g * (1 - torch.tanh(x) ** 2)
        return dx * 1.03 if x.dtype == torch.bfloat16 else dx


@pytest.mark.parametrize(
    "chosen", [lambda x: x.sort(-1)[0], lambda x: x.gather(-1, x.argsort(-1)), lambda x: x.topk(9)[0]]
)
def test_an_order_that_changes_is_a_decision_and_no_bug(chosen):
    """Seeds among which bf16 swaps neighbours."""
    for seed in range(3):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(16, 64), Module(lambda self, x: chosen(x)), nn.LazyLinear(3))
        module(torch.randn(6, 16))
        diagnosis = diagnosed(module, (torch.randn(6, 16),))
        assert diagnosis.verdict in ("routing", "noise", "clean"), diagnosis.summary


def test_sparse_gradients_pass():
    module = nn.Sequential(nn.Embedding(20, 12, sparse=True), nn.Linear(12, 3))
    assert diagnosed(module, (torch.randint(0, 20, (4, 3)),))


def test_a_module_that_refuses_other_dtypes_is_run_under_autocast():
    def strict(self, x):
        assert x.dtype in (torch.float32, torch.float64)
        return x @ self.w

    diagnosis = diagnosed(Module(strict, w=torch.randn(12, 5)), (torch.randn(8, 12),))
    assert diagnosis and diagnosis.precisions[0].policy == "autocast"


def test_what_vanishes_and_is_divided_by_is_no_overflow():
    module = Module(lambda self, x: x * self.w * torch.rsqrt(x.square().mean(-1, keepdim=True)), w=torch.randn(12))
    diagnosis = diagnosed(module, (1e-5 * torch.randn(8, 12),), precisions=("fp16",))
    assert diagnosis.verdict == "underflow" and "values vanish at" in diagnosis.summary


@pytest.mark.parametrize(("format", "verdict"), [("bf16", "bug"), ("fp16", None)])
def test_a_kernel_that_is_wrong_in_one_dtype_alone(format, verdict):
    diagnosis = diagnosed(*mlp(Module(lambda self, x: Branching.apply(x))), precisions=(format,))
    assert diagnosis.verification.status == "proven"
    assert diagnosis.verdict == verdict if verdict else diagnosis.verdict in ("noise", "clean")
    if verdict:
        assert {j.name for j in diagnosis.precisions[0].parameters if j.verdict == "bug"} == {"0.weight", "0.bias"}


def test_a_right_branch_on_the_dtype_is_no_bug():
    def careful(self, x):
        return torch.tanh(x).clamp(max=torch.finfo(x.dtype).max) if x.dtype == torch.bfloat16 else torch.tanh(x)

    assert diagnosed(*mlp(Module(careful)))


def test_half_inside_is_promoted_in_the_reference():
    def narrow(self, x):
        return torch.tanh(x).half().to(x.dtype)

    diagnosis = diagnosed(*mlp(Module(narrow)))
    assert diagnosis.verification.status == "proven" and diagnosis


# What cannot be judged says so; what can, is.


class Unsteady(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 5)

    def forward(self, x):
        return self.linear(x) * random.SystemRandom().random()


def test_a_module_that_is_not_deterministic_is_inconclusive_with_the_reason():
    diagnosis = diagnosed(Unsteady(), (torch.randn(8, 12),))
    assert diagnosis.verdict == "inconclusive" and not diagnosis and "differ" in diagnosis.summary


class Numpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx, g):
        return g * torch.cos(ctx.saved_tensors[0])


def test_what_leaves_torch_is_named():
    diagnosis = diagnosed(*mlp(Module(lambda self, x: Numpy.apply(x))))
    assert diagnosis.verdict == "inconclusive" and "numpy" in diagnosis.summary


def test_a_branch_on_values_that_flips_is_routing_or_noise_never_a_bug():
    """The branch hangs on a sum that cancels: in bf16 it comes out otherwise."""

    def branches(self, x):
        y = x @ self.w
        gap = (y - y.to(torch.float64).to(y.dtype)).sum() + (y.sum() - y.sum(0).sum())
        return y * 2 if gap > 1e-12 else y * 3

    torch.manual_seed(1)
    module = Module(branches, w=torch.randn(12, 5))
    diagnosis = diagnosed(module, (torch.randn(8, 12),))
    assert diagnosis.verdict != "bug"


def test_dropout_draws_the_same_in_every_run():
    assert diagnosed(*mlp(nn.Dropout(0.5), nn.Tanh())).precisions[0].rel_error < 0.02


def test_a_forward_that_raises_is_one_sentence():
    with pytest.raises(ValueError, match="the module's forward raised"):
        diagnosed(nn.Linear(3, 4), (torch.randn(2, 7),))
    with pytest.raises(ValueError, match=r"torch\.nn\.Module"):
        diagnosed(lambda x: x, (torch.randn(2, 7),))


def test_a_module_that_makes_fp32_tensors_of_its_own_is_run_under_autocast():
    def mixes(self, x):
        return x @ torch.eye(12) @ self.w

    diagnosis = diagnosed(Module(mixes, w=torch.randn(12, 5)), (torch.randn(8, 12),))
    assert diagnosis and diagnosis.precisions[0].policy == "autocast"


def test_not_finite_in_float64_is_inconclusive():
    diagnosis = diagnosed(Module(lambda self, x: (x * self.w).log(), w=torch.randn(12)), (torch.randn(8, 12),))
    assert (
        diagnosis.verdict == "inconclusive"
        and "finite" in diagnosis.summary
        and diagnosis.to_dict()["parameters"] == []
    )


# What is left behind.


class Stateful(nn.Module):
    """Buffers, in-place writes, a cache, a generator, its own counter."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Linear(24, 5)
        self.calls, self.cache, self.plain = 0, {}, torch.randn(24)
        self.generator = torch.Generator().manual_seed(4)

    def forward(self, x):
        self.calls += 1
        self.cache["last"] = x
        x.mul_(2.0)
        return self.last(F.relu_(self.norm(self.first(x)) + self.plain * torch.rand(24, generator=self.generator)))


def test_module_inputs_and_every_random_state_are_as_before():
    torch.manual_seed(5)
    module, x = Stateful(), torch.randn(16, 12)
    module.first.weight.grad = torch.ones_like(module.first.weight)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    places = {name: value.data_ptr() for name, value in module.state_dict().items()}
    kept, generator = x.clone(), module.generator.get_state()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    grad_mode, threads = torch.is_grad_enabled(), torch.get_num_threads()
    diagnosis = diagnosed(module, (x,), precisions=("bf16", "fp16", "fp8_e4m3"))
    assert diagnosis.verdict in ("noise", "clean")
    assert {name: value.data_ptr() for name, value in module.state_dict().items()} == places
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(x, kept) and x.grad is None and torch.equal(module.generator.get_state(), generator)
    assert (module.calls, module.cache, module.training) == (0, {}, True)
    assert (
        torch.equal(module.first.weight.grad, torch.ones_like(module.first.weight)) and module.last.weight.grad is None
    )
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()
    assert (torch.is_grad_enabled(), torch.get_num_threads()) == (grad_mode, threads)
    assert not torch.nn.modules.module._global_forward_hooks and not torch.nn.modules.module._global_forward_pre_hooks


def test_an_error_leaves_it_as_before_too():
    module = Module(lambda self, x: x @ self.w if x.dtype == torch.float64 else 1 / 0, w=torch.randn(12, 5))
    place, dtype = module.w.data_ptr(), module.w.dtype
    with pytest.raises(ValueError, match=r"in bf16 \(simulated\) it raised ZeroDivisionError"):
        diagnosed(module, (torch.randn(4, 12),))
    assert (module.w.data_ptr(), module.w.dtype) == (place, dtype)
    assert not torch.nn.modules.module._global_forward_hooks


def test_the_same_seed_gives_the_same_record():
    first, second = (diagnosed(*mlp(nn.GELU()), precisions=("bf16", "fp8_e4m3")).to_dict() for _ in range(2))
    assert first == second


def test_the_record_is_plain_json_with_the_keys_of_the_design():
    record = json.loads(gradproof.diagnose(*overflowing(), precisions=("bf16", "fp16"), replicas=4).to_json())
    assert {"verdict", "summary", "parameters", "routing", "first_divergence", "sweep", "precisions"} <= set(record)
    assert {"environment", "verification", "notes"} <= set(record)
    keys = {"name", "verdict", "norm_ratio", "cosine", "rel_error", "noise", "z"}
    assert all(keys <= set(j) for p in record["precisions"] for j in (*p["parameters"], *p["inputs"]))
    routing = {"decisions", "flips", "margin_explained", "error_from_flips", "error_from_arithmetic"}
    assert all(routing <= set(p["routing"]) for p in record["precisions"])
    worst = next(p for p in record["precisions"] if p["format"] == "fp16")
    assert record["parameters"] == worst["parameters"] and record["routing"] == worst["routing"]
    assert [j["name"] for j in record["inputs"]] == ["inputs"] or record["inputs"]


def test_formats_are_checked_and_taken_once():
    assert [f.name for f in checked_formats(["bf16", "bf16", (8, 7), "e5m2"])] == ["bf16", "e5m2"]
    with pytest.raises(ValueError, match="fp17"):
        checked_formats(["fp17"])
    with pytest.raises(ValueError, match="at least one"):
        checked_formats([])
