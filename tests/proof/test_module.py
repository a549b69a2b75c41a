import pytest
import torch
from modules import RIGHT, UNCLEAR, WRONG, CustomLinear, Normalised, Parametrised, Unused, function, mlp, wrapped
from torch import nn

import gradproof
from gradproof.proof.runner import CannotRun


def judged(report):
    (subject,) = report.subjects
    return {j.name: j for j in (*subject.parameters, *subject.inputs)}


def refuted(report):
    return {name for name, j in judged(report).items() if j.status == "refuted"}


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_modules_are_proven(name, quick):
    """A false alarm, or a shrug at an ordinary module."""
    torch.manual_seed(0)
    report = gradproof.verify(*RIGHT[name](), quick=quick)
    assert report.status == "proven", report.summary
    for j in judged(report).values():
        assert j.status == "unused" or (j.resolution <= 1e-2 and j.error <= j.bound)


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_modules_are_refuted_by_name(name, quick):
    """A wrong gradient that passes, or an innocent tensor that is accused."""
    torch.manual_seed(0)
    case, culprits = WRONG[name]
    report = gradproof.verify(*case(), quick=quick)
    assert report.status == "refuted" and not report, report.summary
    assert refuted(report) == culprits
    assert all(name in report.summary for name in culprits)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_chaotic_module_is_neither_accused_nor_waved_through(seed):
    """Rounding that 40 normalised layers amplify must not look like a bug, nor hide a gross one."""
    torch.manual_seed(seed)
    module, x = Normalised(), torch.randn(4, 6)
    assert gradproof.verify(module, (x,), quick=True, seed=seed).status != "refuted"
    module.layers[20][0].weight.register_hook(lambda g: 2 * g)
    assert gradproof.verify(module, (x,), quick=True, seed=seed).status != "proven"


@pytest.mark.parametrize("shift", [20.0, 30.0, 40.0])
def test_saturated_module_is_neither_accused_nor_waved_through(shift):
    """A gradient at or below the noise of the forward: right is not accused, twice too large is not proven."""
    torch.manual_seed(0)
    right = function(lambda x: torch.sigmoid(x + shift), lambda g, x, y: g * y * (1 - y))
    wrong = function(lambda x: torch.sigmoid(x + shift), lambda g, x, y: g * y * (1 - y) * 2)
    assert gradproof.verify(*wrapped(right)).status != "refuted"
    assert gradproof.verify(*wrapped(wrong)).status != "proven"


def test_cost_is_linear_and_reported():
    """At most 40 forwards for the screen and 8 more for each tensor; 60 more, and 30 backwards, for a second point, a
    single row, its own dtype and the ways to call it."""
    module, inputs = mlp(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    calls = {"forward": 0, "backward": 0}
    module.register_forward_hook(lambda *_: calls.__setitem__("forward", calls["forward"] + 1))
    module[2].bias.register_hook(lambda *_: calls.__setitem__("backward", calls["backward"] + 1))
    every = gradproof.proof.module.CHECKS
    screen = gradproof.verify(module, inputs, quick=True, skip=every).subjects[0]
    assert screen.forwards == calls["forward"] <= 43 and screen.directions == 8
    calls["forward"] = calls["backward"] = 0
    alone = gradproof.verify(module, inputs, skip=every).subjects[0]
    assert alone.forwards == calls["forward"] <= 43 + 8 * 5 and calls["backward"] == 1
    calls["forward"] = calls["backward"] = 0
    full = gradproof.verify(module, inputs).subjects[0]
    assert full.forwards == calls["forward"] <= 43 + 8 * 5 + 110 and calls["backward"] <= 30


def test_float32_only_module_is_judged_in_float32_and_says_so():
    """A wrong one is still refuted there, with a coarser resolution."""
    torch.manual_seed(0)
    report = gradproof.verify(*RIGHT["float32 only"]())
    assert "own precision" in report.subjects[0].notes[0]
    assert 1e-6 < max(j.resolution for j in judged(report).values()) <= 1e-2
    module, inputs = RIGHT["float32 only"]()
    module.linear.weight.register_hook(lambda g: 1.05 * g)
    assert refuted(gradproof.verify(module, inputs)) == {"linear.weight"}


def test_casts_are_promoted_and_said_so():
    """Float32 rounding inside would leave a resolution of 1e-4 at best."""
    torch.manual_seed(0)
    report = gradproof.verify(*RIGHT["float32 casts"]())
    assert "promoted" in report.subjects[0].notes[0]
    assert max(j.resolution for j in judged(report).values()) < 1e-6


def test_bf16_inside_the_forward_is_not_an_accusation():
    """A forward that rounds to 8 bits is a staircase; its small differences are zero."""
    torch.manual_seed(0)
    report = gradproof.verify(*wrapped(lambda h: torch.tanh(h.bfloat16()).to(h.dtype)))
    assert report.status == "inconclusive", report.summary


def test_hidden_rounding_is_not_an_accusation():
    """float32 through numpy: the recorder cannot see it, the ladder must."""

    def through_numpy(x):
        return torch.from_numpy(torch.tanh(x).detach().numpy().astype("float32")).to(x.dtype)

    torch.manual_seed(0)
    module, inputs = wrapped(function(through_numpy, lambda g, x, y: g * (1 - torch.tanh(x) ** 2)))
    assert gradproof.verify(module, inputs).status != "refuted"


def test_kink_at_the_point_itself_is_inconclusive():
    """relu at exactly 0 has no derivative; torch's 0 is a convention, not wrong and not right."""
    module, _ = mlp(nn.Linear(6, 4), nn.ReLU())
    nn.init.zeros_(module[0].weight)
    nn.init.zeros_(module[0].bias)
    assert gradproof.verify(module, (torch.randn(3, 6),)).status == "inconclusive"


def test_randomness_that_no_seed_reaches_is_named():
    """Two forwards that differ make differences meaningless; the sentence names the fix."""

    calls = []

    class Restless(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            calls.append(x)
            return self.linear(x) * len(calls)

    report = gradproof.verify(Restless(), (torch.randn(4, 6),))
    assert report.status == "inconclusive" and "generator" in report.summary


def test_everything_unused_proves_nothing():
    """No gradient was judged, so nothing may be called proven."""
    module = Unused()
    module.linear.requires_grad_(False)
    assert gradproof.verify(module, (torch.randint(0, 3, (2, 6)).float().requires_grad_(False),))
    constant = wrapped(lambda h: torch.zeros_like(h).requires_grad_())[0]
    constant.b.requires_grad_(False)
    assert gradproof.verify(constant, (torch.randn(4, 6),)).status == "inconclusive"


def test_unused_parameters_are_named_and_no_failure():
    report = gradproof.verify(*RIGHT["unused parameters"]())
    assert report and judged(report)["spare.weight"].status == "unused"


def test_padding_row_is_not_judged_and_said_so():
    report = gradproof.verify(*RIGHT["embedding with padding"]())
    assert any("padding row" in note for note in report.subjects[0].notes)


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", UNCLEAR)
def test_what_is_hard_to_judge_is_not_accused(name, quick):
    """Steps beyond the loss's period, kinks in the second derivative, gradients below the noise of a large constant."""
    for seed in range(4):
        torch.manual_seed(seed)
        report = gradproof.verify(*UNCLEAR[name](), quick=quick, seed=seed)
        assert report.status != "refuted", report.summary
        for j in judged(report).values():
            assert j.status != "proven" or j.resolution <= 1e-2


@pytest.mark.parametrize("seed", range(4))
def test_quick_accuses_no_innocent_in_a_deep_stack(seed):
    """30 tanh layers, the first weight 1% off: the others' gradients are far larger."""
    torch.manual_seed(seed)
    module = nn.Sequential(*[layer for _ in range(30) for layer in (nn.Linear(8, 8), nn.Tanh())])
    module[0].weight.register_hook(lambda g: 1.01 * g)
    report = gradproof.verify(module, (torch.randn(4, 8),), quick=True, seed=seed)
    assert report.status != "proven" and refuted(report) <= {"0.weight"}


@pytest.mark.parametrize("seed", range(8))
def test_small_errors_do_not_pass_the_quick_screen(seed):
    """float32 rounding in one gradient, and a detached branch a billion times smaller than the rest."""
    torch.manual_seed(seed)
    rounded = CustomLinear(lambda dx, dw, db: (dx, dw.float().to(dw.dtype), db)), (torch.randn(64, 6),)
    assert gradproof.verify(*rounded, quick=True, seed=seed).status != "proven"
    w, v = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))
    branch = Parametrised(lambda self, x: x * self.w + 1e-9 * self.v.detach().sin(), w=w, v=v)
    assert gradproof.verify(branch, (torch.randn(4, 6),), quick=True, seed=seed).status != "proven"


def test_every_output_is_judged():
    """A gradient that is wrong in the second output alone."""

    class Two(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.a, self.b, self.factor = nn.Linear(6, 3), nn.Linear(6, 2), factor

        def forward(self, x):
            second = self.b(x)
            second.register_hook(lambda g: self.factor * g)
            return {"first": self.a(x), "more": [torch.arange(3), torch.tanh(second)]}

    inputs = (torch.randn(4, 6),)
    assert gradproof.verify(Two(1.0), inputs).status == "proven"
    assert refuted(gradproof.verify(Two(1.5), inputs)) == {"b.weight", "b.bias", "x"}


def test_sentinels_are_said():
    report = gradproof.verify(*RIGHT["additive mask"]())
    assert any("sentinels" in note for note in report.subjects[0].notes)


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 20), marks=pytest.mark.slow)], ids=["few", "many"])
def test_resolution_is_honest(seeds):
    """An error three times the stated resolution must be refuted, on every seed."""
    torch.manual_seed(0)
    inputs = (torch.randn(16, 6),)
    missed = 0
    for seed in seeds:
        torch.manual_seed(seed)
        right = CustomLinear(lambda dx, dw, db: (dx, dw, db))
        resolution = judged(gradproof.verify(right, inputs, seed=seed))["w"].resolution
        noise = torch.randn(12, 6, dtype=torch.float64)
        torch.manual_seed(seed)
        wrong = CustomLinear(lambda dx, dw, db, e=3 * resolution, n=noise: (dx, dw + e * dw.norm() / n.norm() * n, db))
        missed += gradproof.verify(wrong, inputs, seed=seed).status == "proven"
    assert missed == 0


@pytest.mark.parametrize(
    ("module", "inputs", "sentence"),
    [
        ("not a module", (), "torch.nn.Module"),
        (nn.Linear(6, 3), (torch.randn(4, 5),), "forward raised"),
        (nn.Identity(), (torch.arange(3),), "no floating tensor"),
        (nn.LazyLinear(3), (torch.randn(4, 5),), "without values"),
        (nn.Linear(6, 3, device="meta"), (torch.randn(4, 6),), "meta device"),
        (torch.jit.script(nn.Linear(6, 3)), (torch.randn(4, 6),), "TorchScript"),
    ],
)
def test_what_cannot_run_is_one_sentence(module, inputs, sentence):
    with pytest.raises(ValueError, match=sentence):
        gradproof.verify(module, inputs)


def test_backward_that_raises_is_one_sentence():
    def broken(g, x, y):
        raise RuntimeError("no backward\nhere")

    with pytest.raises(CannotRun, match="backward raised RuntimeError: no backward here"):
        gradproof.verify(*wrapped(function(torch.tanh, broken)))


def test_not_finite_forward_is_inconclusive():
    assert gradproof.verify(*wrapped(lambda h: h / 0)).status == "inconclusive"
