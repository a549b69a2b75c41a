"""The fast kernels train the model that the reference trains: what they change is what one ulp changes."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gradproof.kernels.cpu.build import available
from gradproof.models.moe import MoE, MoEConfig
from gradproof.train.adamw import AdamW
from gradproof.train.step import TrainStep

SCRIPT = Path(__file__).parents[2] / "benchmarks/same_training.py"


@pytest.fixture(scope="session")
def script():
    """The script that measures the published figures: the test is its criterion."""
    spec = importlib.util.spec_from_file_location("same_training", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    if request.param == "cpu" and available() is not None:
        pytest.skip(available())
    return request.param


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def check(figures):
    assert "reference" not in figures["chosen"].values(), figures["chosen"]
    assert figures["kernels"] > 0 and all(drift > 0 for drift in figures["one_ulp"])  # none is the other in disguise
    assert figures["kernels"] <= 2 * max(figures["one_ulp"]), figures
    # As it is logged, a loss is rounded to fp32; the first counts whole.
    logged, unit = figures["logged"], torch.finfo(torch.float32).eps * figures["first"]
    assert logged["kernels"] <= 2 * max(logged["one_ulp"]) + unit, figures


@pytest.mark.slow
def test_loss_ema_over_200_steps(script, device):
    """An approximation in a kernel (a fast exponential, a sum in bf16, TF32) would be within what admission allows in
    one call, and grow from step to step."""
    check(script.compare(200, "quality", device))


def test_loss_ema_with_the_fused_loss(script, device):
    """`quality` is computed by the reference; this loss has a kernel of its own."""
    check(script.compare(60, "cross_entropy", device))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("loss", ["quality", "cross_entropy"])
def test_loss_ema_for_other_seeds(script, device, loss, seed):
    """One seed may agree by luck."""
    check(script.compare(200, loss, device, seed))


def test_the_criterion_can_fail(script, device):
    """Outputs with the eleven bits of TF32 or fp16 are far outside, after 40 steps already."""
    given = script.batches(40, "quality", device)
    right = script.trained(script.start(given, "quality", kernels=script.REFERENCE), given)
    differences = []
    for seed in range(2):
        step = script.start(given, "quality", kernels=script.REFERENCE)
        script.moved(step.model, seed)
        differences.append(script.apart(script.trained(step, given).exact, right.exact))
    step = script.start(given, "quality")
    kernels = step.choose(script.BATCH)

    def forward(*args, **options):
        y_NO, saved = kernels.experts.forward(*args, **options)
        return y_NO.half().float(), saved

    narrow = SimpleNamespace(forward=forward, backward=kernels.experts.backward)
    step._chosen[script.BATCH] = replace(kernels, experts=narrow, mixture=None)
    assert script.apart(script.trained(step, given).exact, right.exact) > 10 * max(differences)


def test_one_ulp_is_one_ulp(script):
    """Each weight by its neighbour in fp32, some up and some down, the same for the same seed; the padding stays 0."""
    model, again, other = (MoE.sized("nano") for _ in range(3))
    before = {name: weight.clone() for name, weight in model.params.items()}
    script.moved(model, 1)
    script.moved(again, 1)
    script.moved(other, 2)
    up = 0
    for name, weight in model.params.items():
        high = torch.nextafter(before[name], torch.tensor(torch.inf))
        low = torch.nextafter(before[name], torch.tensor(-torch.inf))
        assert ((weight == high) | (weight == low)).all()
        up += int((weight == high).sum())
    assert 0.49 < up / model.params.count < 0.51
    assert torch.equal(model.params.flat_P, again.params.flat_P)
    assert not torch.equal(model.params.flat_P, other.params.flat_P)
    padding = torch.ones_like(model.params.flat_P, dtype=torch.bool)
    for view in model.params.views(padding).values():
        view.fill_(False)
    assert (model.params.flat_P[padding] == 0).all()


def bits(step):
    """Everything that the next step depends on."""
    return [step.model.params.flat_P, step.optimizer.m_P, step.optimizer.v_P, *step.state().values()]


@pytest.mark.parametrize("loss", ["quality", "cross_entropy"])
def test_two_runs_are_bit_identical(script, device, threads, loss):
    """A sum whose order depends on which thread is first, or memory that was not written, would differ somewhere."""
    given = script.batches(40, loss, device)
    runs = []
    for _ in range(2):
        step = script.start(given, loss)
        logged = [torch.stack([result.loss, result.grad_norm]) for result in (step(*batch) for batch in given)]
        runs.append([*bits(step), *logged])
    assert "reference" not in step.kernels.chosen.values()
    assert len(runs[0]) > 40 and all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_the_environment_gives_the_reference(script, device, monkeypatch):
    """What the comparison runs against: the variable and `kernels={}` are the same bits, and other ones than the fast
    kernels'."""
    given = script.batches(3, "cross_entropy", device)
    fast, asked = script.start(given, "cross_entropy"), script.start(given, "cross_entropy", kernels=script.REFERENCE)
    script.trained(fast, given)
    script.trained(asked, given)
    monkeypatch.setenv("GRADPROOF_KERNELS", "reference")
    forced = script.start(given, "cross_entropy")
    script.trained(forced, given)
    assert set(forced.kernels.chosen.values()) == set(asked.kernels.chosen.values()) == {"reference"}
    assert torch.equal(forced.model.params.flat_P, asked.model.params.flat_P)
    assert not torch.equal(fast.model.params.flat_P, asked.model.params.flat_P)


# bf16: an error of the gradient is noise where it is what the format itself costs.

MODELS = {
    "nano": MoEConfig.sized("nano"),  # the kernels for narrow chains
    "wider": MoEConfig(hidden=256, depth=1),  # grouped products
}


def gradients(config, given, dtype, kernels=None):
    """Of each batch, at the same weights: by parameter name, in float64 on the CPU."""
    masters = torch.float64 if dtype == "fp64" else torch.float32
    model = MoE(config, device=given[0][0].device, dtype=masters)
    model.params.flat_P.copy_(MoE(config, device=given[0][0].device).params.flat_P)
    step = TrainStep(model, "quality", AdamW(lr=0.0), dtype, kernels=kernels)
    grads, loads = [], []
    for x_TI, (outcome_T, metrics_TM) in given:
        result = step(x_TI.to(masters), (outcome_T, metrics_TM.to(masters)))
        grads.append({name: grad.double().cpu() for name, grad in model.params.grads.items()})
        loads.append(result.load.tolist())
    return grads, loads, step


@pytest.mark.parametrize("name", MODELS)
def test_bf16_gradients_are_noise(script, name):
    """Per parameter, over eight batches, no further from float64 than twice the reference in bf16 is: statistics, a
    weight gradient or a sum of biases in bf16, or an output rounded twice, would be."""
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device: on the CPU the experts run by the reference in bf16")
    given, config = script.batches(8, "quality", "cuda"), MODELS[name]
    exact, loads, _ = gradients(config, given, "fp64")
    own, _, _ = gradients(config, given, "bf16", kernels=script.REFERENCE)
    fast, routed, step = gradients(config, given, "bf16")
    assert step.kernels.chosen["experts"] != "reference" and routed == loads
    for parameter in exact[0]:
        error, usual = (apart(grads, exact, parameter) for grads in (fast, own))
        assert error <= 2 * usual, f"{parameter}: off by {error:.3g}, the reference by {usual:.3g}"


def apart(grads, exact, parameter):
    """‖grads − exact‖ over all batches."""
    return sum(float((a[parameter] - b[parameter]).square().sum()) for a, b in zip(grads, exact, strict=True)) ** 0.5
