"""`verify` judges what trains: the dtype in use, the ways to call, a second point, what is covered."""

import pytest
import torch
from called_modules import RIGHT, WRONG, MainGrad, Opaque, StepsInside, TakesOpaque, UnderAutocast, wrong_in, x
from torch import nn

import gradproof


def judged(report):
    (subject,) = report.subjects
    return {j.name: j for j in (*subject.parameters, *subject.inputs)}


def refuted(report):
    return {name for name, j in judged(report).items() if j.status == "refuted"}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_as_it_trains(name):
    case, culprits = WRONG[name]
    report = gradproof.verify(*case())
    assert report.status == "refuted" and refuted(report) == culprits, report.summary


@pytest.mark.parametrize("name", RIGHT)
def test_right_as_it_trains(name):
    report = gradproof.verify(*RIGHT[name]())
    assert report.status == "proven", report.summary
    (subject,) = report.subjects
    assert subject.coverage.judged == subject.coverage.total


def test_the_verdict_says_in_which_dtype():
    report = gradproof.verify(wrong_in(torch.float32), (x(),))
    assert "right in float64, wrong in float32: w is 2.0 times too large" in report.summary


@pytest.mark.parametrize("how", [{"dtype": "bf16"}, {"autocast": "bf16"}])
def test_another_dtype_is_judged_where_it_is_asked_for(how):
    """Right in float32; the bf16 kernel is wrong."""
    module = wrong_in(torch.bfloat16)
    assert gradproof.verify(module, (x(),)).status == "proven"
    report = gradproof.verify(module, (x(),), **how)
    assert refuted(report) == {"w"} and "wrong in bfloat16" in report.summary
    assert gradproof.verify(wrong_in(torch.float16), (x(),), **how).status == "proven"


@pytest.mark.parametrize("factor, dtype", [(1.001, None), (0.999, None), (1.05, "bf16")])
def test_a_small_factor_in_the_dtype_that_trains(factor, dtype):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 32), nn.Linear(32, 5)

        def forward(self, x):
            h = self.a(x)
            if h.dtype != torch.float64:
                h.register_hook(lambda g: factor * g)
            return self.b(torch.tanh(h))

    report = gradproof.verify(Scaled(), (x(32),), dtype=dtype)
    assert "a.weight" in refuted(report), report.summary


def test_checks_can_be_switched_off():
    module = wrong_in(torch.float32)
    assert gradproof.verify(module, (x(),), skip=["dtype"]).status == "proven"
    with pytest.raises(ValueError, match="there is no check 'typo'; the checks are dtype, point"):
        gradproof.verify(module, (x(),), skip=["typo"])


@pytest.mark.parametrize(
    "name, check",
    [
        ("a weight gradient that is zero without dx", "parameters_only"),
        ("activations on self", "in_flight"),
        ("a second backward", "retained_graph"),
        ("a cotangent that lies apart", "strided_cotangent"),
        ("writes over a gradient", "accumulation"),
        ("lora with B = 0", "point"),
        ("wrong after eval()", "eval"),
        ("wrong for one row", "one_row"),
    ],
)
def test_each_fault_is_seen_by_one_check(name, check):
    """Without it nothing is seen; and it says so by its name."""
    case, _ = WRONG[name]
    (subject,) = gradproof.verify(*case()).subjects
    assert [c.name for c in subject.checks if c.status == "refuted"] == [check]
    assert gradproof.verify(*case(), skip=[check]).status == "proven"


def test_what_is_not_looked_into_is_named():
    report = gradproof.verify(TakesOpaque(), (Opaque(x()),))
    assert report.status == "inconclusive"
    assert "2 of 3 tensors judged" in report.summary and "Opaque" in report.summary
    assert gradproof.verify(TakesOpaque(), (Opaque(x()),), allow_unjudged=["held"]).status == "proven"


def test_an_optimizer_inside_the_backward():
    """Named, not accused; judged through `gradient_of`; and nothing of it is left behind."""
    module = StepsInside()
    before = module.linear.weight.detach().clone()
    report = gradproof.verify(module, (x(),))
    assert report.status == "inconclusive" and "optimizer" in report.summary
    assert torch.equal(module.linear.weight, before)


@pytest.mark.parametrize("factor, status", [(1.0, "proven"), (2.0, "refuted")])
def test_gradients_are_read_where_they_go(factor, status):
    class Elsewhere(nn.Module):
        """The gradient of w goes to a dictionary."""

        def __init__(self):
            super().__init__()
            self.w, self.found = nn.Parameter(torch.randn(6, 3)), {}
            self.w.register_post_accumulate_grad_hook(self.take)

        def take(self, p):
            self.found["w"] = factor * p.grad
            p.grad = None

        def forward(self, x):
            return torch.tanh(x @ self.w)

    module = Elsewhere()
    report = gradproof.verify(module, (x(),), gradient_of=lambda name, p: module.found[name])
    assert report.status == status and module.found == {}


@pytest.mark.parametrize("factor, status", [(1.0, "proven"), (2.0, "refuted")])
def test_a_buffer_that_is_rewound_is_read_in_time(factor, status):
    """`gradient_of` hands out the buffer itself, which the next forward finds as it was."""
    report = gradproof.verify(MainGrad(factor), (x(),), gradient_of=lambda name, p: getattr(p, "main_grad", p.grad))
    assert report.status == status, report.summary


def test_a_sum_that_is_constant_is_not_accused():
    """The gradient of `sum()` through a norm is rounding alone."""

    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.b, self.norm = nn.Parameter(torch.randn(6)), nn.BatchNorm1d(6, affine=False)

        def forward(self, x):
            return self.norm(x + self.b)

    for _ in range(5):
        report = gradproof.verify(Normalised(), (x(),))
        assert report.status != "refuted", report.summary


def test_main_grad_is_left_as_it_was():
    module = MainGrad()
    module.linear.weight.main_grad.fill_(3.0)
    assert gradproof.verify(module, (x(),)).status == "proven"
    assert bool((module.linear.weight.main_grad == 3).all()) and module.linear.weight.grad is None


def test_what_a_module_refuses_is_noted():
    class Once(nn.Module):
        """Refuses a graph that is used twice, and a single row."""

        def __init__(self):
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(6), nn.Linear(6, 3)

        def forward(self, x):
            return self.linear(self.norm(x))

    report = gradproof.verify(Once(), (x(),))
    (noted,) = [c for c in report.subjects[0].checks if c.status == "noted"]
    assert report.status == "proven" and noted.name == "one_row" and "ValueError" in noted.note


def test_the_input_must_have_a_gradient_where_it_asks_for_one():
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            return self.linear(x.detach())

    assert gradproof.verify(Detached(), (x(),)).status == "proven"
    assert refuted(gradproof.verify(Detached(), (x().requires_grad_(),))) == {"x"}


def test_a_right_module_under_autocast_is_not_accused():
    for seed in range(3):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(6, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
        for how in ({}, {"autocast": "bf16"}, {"dtype": "bf16"}, {"dtype": "fp16"}):
            report = gradproof.verify(module, (x(),), seed=seed, **how)
            assert report.status == "proven", report.summary
    assert gradproof.verify(UnderAutocast(1.0), (x(),), autocast="bf16").status == "proven"


def test_modules_of_our_own_as_they_train():
    """Proven in float64 by the reference, they train in float32 by kernels."""
    from gradproof import nn as own

    report = gradproof.verify(own.MoE(16, 5), (torch.randn(32, 16),))
    assert report.status == "proven" and "dtype" in _passed(report)


def test_a_compiled_module():
    module = torch.compile(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)), backend="aot_eager")
    report = gradproof.verify(module, (x(),))
    assert report.status == "proven" and "dtype" in _passed(report)


@pytest.mark.parametrize("factor, status", [(1.0, "proven"), (2.0, "refuted")])
def test_lora_by_peft(factor, status):
    """B = 0 in the beginning: what is wrong in A shows at the second point alone."""
    peft = pytest.importorskip("peft", reason="the test extra is not installed")
    base = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    module = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0"]))
    (name,) = [name for name, p in module.named_parameters() if p.requires_grad and "lora_A" in name]
    module.get_parameter(name).register_hook(lambda g: factor * g)
    report = gradproof.verify(module, {"input": x()})
    assert report.status == status and refuted(report) == ({name} if factor != 1 else set()), report.summary


def _passed(report):
    return {c.name for c in report.subjects[0].checks if c.status == "proven"}
