"""A step as a CUDA graph: the bits of the step without one, on any rows, at any rate, skipped or not.

A run that resumes takes its first step uncaptured where the run that was never stopped replayed a graph, so "the same"
means every bit.
"""

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.moe import MoE, MoEConfig
from gradproof.models.transformer import Transformer, TransformerConfig
from gradproof.train import graph as graph_module
from gradproof.train import training as training_module
from gradproof.train.adamw import AdamW
from gradproof.train.graph import Capture
from gradproof.train.loss import Loss
from gradproof.train.schedule import Schedule
from gradproof.train.step import TrainStep
from gradproof.train.step_plan import StepResult

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device: nothing is captured")

ROUTED = dict(balance=0.1, z_loss=0.01, correction=0.01)
TOKENS = dict(vocabulary=19, width=32, heads=2, feedforward=40, context=11)
# Name: the model, its config, the format, and the kernel of the experts that is meant.
CASES = {
    "narrow bf16": (MoE, MoEConfig(9, 5, hidden=32, depth=1, **ROUTED), "bf16", "triton"),
    "narrow fp16": (MoE, MoEConfig(9, 5, hidden=32, depth=1, **ROUTED), "fp16", "triton"),
    "sheaf bf16": (
        MoE,
        MoEConfig(9, 5, hidden=32, depth=1, router="sheaf", patches=(4, 2, 3), gluing=0.1, **ROUTED),
        "bf16",
        "triton",
    ),
    "wide bf16": (MoE, MoEConfig(16, 5, hidden=136, depth=1, **ROUTED), "bf16", "grouped"),
    "dense bf16": (Dense, DenseConfig(16, 5, hidden=16, feedforward=32, blocks=1), "bf16", None),
    "dense fp32": (Dense, DenseConfig(9, 5, hidden=16, feedforward=32, blocks=1), "fp32", "cublas"),
    "causal bf16": (Transformer, TransformerConfig(mode="causal", encoder_layers=0, **TOKENS), "bf16", None),
    "seq2seq bf16": (Transformer, TransformerConfig(mode="seq2seq", **TOKENS), "bf16", None),
    "seq2seq fp16": (Transformer, TransformerConfig(mode="seq2seq", **TOKENS), "fp16", None),
    "classify fp32": (Transformer, TransformerConfig(mode="classify", **TOKENS), "fp32", None),
}


class Uncaptured(TrainStep):
    """The same kernels, launched one by one."""

    def choose(self, rows):
        self.kernels = replace(super().choose(rows), capturable=False)
        return self.kernels


def make(case, kind=TrainStep, loss="cross_entropy", seed=0, device="cuda", **options):
    family, config, dtype, _ = CASES[case]
    model = family(config, seed=seed, device=device)
    loss = "bce" if config.outputs == 1 else loss
    return kind(model, loss, AdamW(lr=1e-2), dtype, **{"clip": 0.5, **options})


def batch(case, seed, T=47, device="cuda"):
    generator = torch.Generator().manual_seed(seed)
    family, config, _, _ = CASES[case]
    if family is Transformer:
        return tokens(config, T, generator, device)
    x_TI = torch.randn(T, config.inputs, generator=generator).to(device)
    return x_TI, torch.randint(config.outputs, (T,), generator=generator).to(device)


def tokens(config, B, generator, device):
    """Sequences that end in padding, the next tokens as targets, or a label each."""
    shape = (B, 2, config.context) if config.mode == "seq2seq" else (B, config.context)
    x_BS = torch.randint(config.vocabulary, shape, generator=generator)
    length_B1 = torch.randint(1, config.context + 1, (B, 1), generator=generator)
    length_B1 = length_B1[:, None] if config.mode == "seq2seq" else length_B1
    x_BS.masked_fill_(torch.arange(config.context) >= length_B1, -1)
    if config.decodes:
        return x_BS.to(device), torch.randint(config.vocabulary, (B, config.context), generator=generator).to(device)
    label_B = torch.randint(2, (B,), generator=generator).float()
    return x_BS.to(device), (label_B.to(device), torch.rand(B, generator=generator).to(device))


def bits(step):
    """Everything that the next step depends on, and the narrow copy."""
    narrow = [] if step.training.weights is step.model.params else [step.training.weights.flat_P]
    return [tensor.clone() for tensor in (step.model.params.flat_P, *narrow, *step.state().values())]


def same(one, other):
    assert len(one) == len(other)
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        assert torch.equal(torch.nan_to_num(a, 7.0), torch.nan_to_num(b, 7.0)), i


def together(case, batches, loss="cross_entropy", between=None, **options):
    """Both steps over the same batches, compared after each; returns them."""
    captured, right = make(case, loss=loss, **options), make(case, Uncaptured, loss=loss, **options)
    for s, given in enumerate(batches):
        if between is not None:
            between(s, captured)
            between(s, right)
        same(list(captured(*given)), list(right(*given)))
        same(bits(captured), bits(right))
    assert right.captures == {} and captured.kernels.chosen == right.kernels.chosen
    return captured, right


def captures(step):
    """How many shapes have a graph."""
    return sum(graph is not None for graph in step.captures.values())


@on_a_gpu
@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_as_uncaptured(case):
    """A buffer that a replay reads but does not write, a number baked in at capture, or a kernel that is not in the
    graph would show in a few steps."""
    captured, _ = together(case, [batch(case, s) for s in range(8)])
    assert captured.kernels.capturable and captures(captured) == 1
    meant = CASES[case][3]
    assert meant is None or captured.kernels.chosen["experts"] == meant
    assert float(captured.optimizer.count) == 8 and captured.steps == 8


@on_a_gpu
def test_what_is_not_captured():
    """The cuBLAS loop over experts reads their row counts, and float64 runs by the reference: neither can be."""
    config = CASES["narrow bf16"][1]
    for dtype, masters in (("fp32", torch.float32), ("fp64", torch.float64)):
        model = MoE(config, device="cuda", dtype=masters)
        step = TrainStep(model, "cross_entropy", AdamW(lr=1e-2), dtype)
        for s in range(3):
            x_TI, target_T = batch("narrow bf16", s)
            step(x_TI.to(masters), target_T)
        assert not step.kernels.capturable and step.captures == {}


@on_a_gpu
def test_the_reference_is_not_captured(monkeypatch):
    """GRADPROOF_KERNELS=reference is what one asks for when in doubt about kernels: no graph either."""
    monkeypatch.setenv("GRADPROOF_KERNELS", "reference")
    step = make("narrow bf16")
    for s in range(3):
        step(*batch("narrow bf16", s))
    assert step.captures == {}


@on_a_gpu
@pytest.mark.parametrize("case", ["narrow bf16", "dense fp32"])
def test_results_are_copies(case):
    """The next replay writes over the graph's own memory: what was logged must not change, nor may writing to it."""
    captured, right = make(case), make(case, Uncaptured)
    results = []
    for s in range(5):
        result = captured(*batch(case, s))
        right(*batch(case, s))
        results.append((result, [tensor.clone() for tensor in result]))
    for result, kept in results:
        assert isinstance(result, StepResult) and all(torch.equal(a, b) for a, b in zip(result, kept, strict=True))
    assert len({float(result.loss) for result, _ in results}) == 5
    for result, _ in results:
        for tensor in result:
            tensor.fill_(7)
    same(bits(captured), bits(right))
    same(list(captured(*batch(case, 5))), list(right(*batch(case, 5))))
    same(bits(captured), bits(right))


@on_a_gpu
def test_results_look_like_uncaptured_ones():
    """Shapes, formats and device, of the first call, of the capture and of a replay."""
    captured, right = make("narrow bf16"), make("narrow bf16", Uncaptured)
    for s in range(3):
        pair = captured(*batch("narrow bf16", s)), right(*batch("narrow bf16", s))
        for a, b in zip(*pair, strict=True):
            assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


@on_a_gpu
@pytest.mark.parametrize("case", ["narrow bf16", "wide bf16", "dense fp32"])
def test_changing_batch_sizes(case):
    """The last batch of an epoch is short: each size has its own graph, all of them move the same parameters."""
    sizes = [47, 47, 31, 47, 31, 47, 31, 31, 5, 300, 47, 300, 300, 1, 1, 1]
    captured, _ = together(case, [batch(case, s, T) for s, T in enumerate(sizes)])
    assert captures(captured) == len(set(sizes)) - 1  # 5 rows came once


@on_a_gpu
def test_the_schedule_reaches_the_graph():
    """The rate of the step that was captured must not stay: neither the schedule's nor one set by hand."""
    schedule = Schedule(9, "warmup-cosine", warmup=0.3)
    given = [batch("narrow bf16", s) for s in range(9)]
    captured, _ = together("narrow bf16", given, schedule=schedule)
    assert float(captured.optimizer.rate) == pytest.approx(1e-2 * schedule.factor(8))
    rates = [1e-2, 1e-3, 0.0, 3e-2, 0.0, 1e-4]
    together("narrow bf16", given[:6], between=lambda s, step: step.optimizer.set_rate(rates[s]))


@on_a_gpu
def test_a_rate_of_zero_moves_nothing():
    """Of the parameters; the moments go on."""
    step = make("narrow bf16")
    for s in range(3):
        step(*batch("narrow bf16", s))
    before, moments = step.model.params.flat_P.clone(), step.optimizer.m_P.clone()
    step.optimizer.set_rate(0.0)
    step(*batch("narrow bf16", 3))
    assert torch.equal(step.model.params.flat_P, before) and not torch.equal(step.optimizer.m_P, moments)


@on_a_gpu
@pytest.mark.parametrize("clip", [None, 1e-3, 0.5, 1e6])
@pytest.mark.parametrize("case", ["narrow bf16", "narrow fp16"])
def test_clipping(case, clip):
    """The factor depends on the norm of each step."""
    together(case, [batch(case, s) for s in range(5)], clip=clip)


@on_a_gpu
def test_the_loss_scale_grows_and_a_skipped_step_moves_nothing(monkeypatch):
    """Scale, count of good steps, moments and correction live on the device: a replay that kept the scale of its
    capture, or moved anything at an overflow, would differ from then on."""
    monkeypatch.setattr(training_module, "GROW_AFTER", 3)
    captured, right = make("narrow fp16"), make("narrow fp16", Uncaptured)
    scales, skips = [], []
    for s in range(14):
        x_TI, target_T = batch("narrow fp16", s)
        if s in (5, 6, 10):
            x_TI[3, 2] = torch.inf
        before = bits(captured)
        results = captured(x_TI, target_T), right(x_TI, target_T)
        same(list(results[0]), list(results[1]))
        same(bits(captured), bits(right))
        scales.append(float(results[0].scale))
        skips.append(int(results[0].skipped))
        if s in (5, 6, 10):
            assert float(captured.training.scale) == max(1.0, scales[-1] / 2) and float(captured.training.good) == 0
            same(moving(captured, bits(captured)), moving(captured, before))
    assert {5, 6, 10} <= {s for s, skipped in enumerate(skips) if skipped}
    assert captures(captured) == 1 and len(set(scales)) > 2
    assert float(captured.optimizer.count) == 14 - sum(skips) and float(captured.training.skipped) == sum(skips)


def moving(step, tensors):
    """Of `bits`, what a skipped step may not move: all but scale, count of good steps and count of skipped ones."""
    names = ["flat", "narrow", *step.state()]
    return [tensor for name, tensor in zip(names, tensors, strict=True) if name not in ("scale", "good", "skipped")]


@on_a_gpu
def test_an_overflow_in_bf16_and_fp32_is_skipped():
    for case in ("narrow bf16", "dense fp32"):
        given = [batch(case, s) for s in range(6)]
        given[1][0][0, 0] = torch.nan  # while it is captured
        given[4][0][0, 0] = torch.inf  # and in a replay
        captured, _ = together(case, given)
        assert float(captured.training.skipped) == 2 and captured.model.params.flat_P.isfinite().all()


@on_a_gpu
def test_the_correction_moves_and_is_read_back():
    """A buffer that the graph reads: it changes at every step, by hand too, and a skipped step leaves it."""
    given = [batch("narrow bf16", s) for s in range(7)]
    given[5][0][0, 0] = torch.inf

    def between(s, step):
        if s == 4:
            step.model.buffers["router.correction"].copy_(torch.tensor([0.5, -0.5, 0.0, 0.25]))

    captured, _ = together("narrow bf16", given, between=between)
    assert captured.model.buffers["router.correction"].abs().sum() > 0


LOSSES = {
    "quality": lambda generator, T: (
        torch.randint(3, (T,), generator=generator),
        torch.rand(T, 2, generator=generator),
    ),
    "mse": lambda generator, T: torch.randn(T, 5, generator=generator),
    "weighted": lambda generator, T: torch.randint(5, (T,), generator=generator),
}


@on_a_gpu
@pytest.mark.parametrize("name", LOSSES)
def test_other_losses(name):
    """A target of two tensors, one of floats, and class weights whose sum changes with the rows."""
    given = []
    for s in range(5):
        generator = torch.Generator().manual_seed(s)
        target = LOSSES[name](generator, 47)
        target = tuple(t.cuda() for t in target) if isinstance(target, tuple) else target.cuda()
        given.append((batch("narrow bf16", s)[0], target))
    weight_C = torch.tensor([0.5, 2.0, 1.0, 3.0, 0.1], device="cuda")
    loss = Loss("cross_entropy", class_weight_C=weight_C) if name == "weighted" else Loss(name)
    captured, _ = together("narrow bf16", given, loss=loss)
    assert captures(captured) == 1


@on_a_gpu
def test_two_targets_of_one_shape_are_two_graphs():
    """Formats are part of what a graph is made for."""
    step, right = (make("narrow bf16", kind, loss="mse") for kind in (TrainStep, Uncaptured))
    for s in range(6):
        x_TI, _ = batch("narrow bf16", s)
        target_TO = torch.randn(47, 5, generator=torch.Generator().manual_seed(s)).cuda()
        target_TO = target_TO.half() if s % 2 else target_TO
        same(list(step(x_TI, target_TO)), list(right(x_TI, target_TO)))
        same(bits(step), bits(right))
    assert captures(step) == 2


@on_a_gpu
def test_inputs_are_left_alone_and_may_change_at_once():
    """A loader fills the same buffer again while the step is still running."""
    captured, right = make("narrow bf16"), make("narrow bf16", Uncaptured)
    x_TI, target_T = batch("narrow bf16", 0)
    held_x, held_target = torch.empty_like(x_TI), torch.empty_like(target_T)
    for s in range(5):
        x_TI, target_T = batch("narrow bf16", s)
        held_x.copy_(x_TI)
        held_target.copy_(target_T)
        result = captured(held_x, held_target)
        assert torch.equal(held_x, x_TI) and torch.equal(held_target, target_T)
        held_x.fill_(torch.nan)
        held_target.zero_()
        same(list(result), list(right(x_TI, target_T)))
    same(bits(captured), bits(right))


@on_a_gpu
def test_rows_at_odd_addresses():
    """Columns of a wider table, and rows four bytes off: the first call and the capture see other alignments, so the
    capture needs kernels that have not been compiled yet. The router's product may take another way there, too."""
    captured, right = make("narrow bf16"), make("narrow bf16", Uncaptured)
    table_TI = torch.randn(400, 12, generator=torch.Generator().manual_seed(0)).cuda()
    target_T = torch.randint(5, (400,), generator=torch.Generator().manual_seed(1)).cuda()
    given = [(table_TI[7 * s + 1 : 7 * s + 48, 1:10], target_T[7 * s + 1 : 7 * s + 48]) for s in range(5)]
    flat = table_TI.flatten()
    given += [(flat[9 * s + 1 : 9 * s + 9 * 33 + 1].view(33, 9), target_T[s + 1 : s + 34]) for s in range(3)]
    for x_TI, target in given:
        result, usual = captured(x_TI, target), right(x_TI, target)
        assert torch.allclose(result.gates, usual.gates, atol=1e-2) and float(result.skipped) == 0
        assert float(result.loss) == pytest.approx(float(usual.loss), rel=1e-2)
    assert captures(captured) == 2


@on_a_gpu
@pytest.mark.parametrize("case", ["narrow bf16", "narrow fp16"])
def test_a_resumed_run_has_the_same_bits(case):
    """Its first step runs uncaptured, and its second is captured anew."""
    options = dict(schedule=Schedule(10, "warmup-cosine"))
    whole, first, resumed = (make(case, seed=seed, **options) for seed in (0, 0, 1))
    given = [batch(case, s) for s in range(10)]
    for pair in given:
        whole(*pair)
    for pair in given[:6]:
        first(*pair)
    kept = {name: tensor.clone() for name, tensor in first.state().items()}
    resumed.model.params.flat_P.copy_(first.model.params.flat_P)
    resumed.load_state(kept, 6)
    for pair in given[6:]:
        resumed(*pair)
    same(bits(resumed), bits(whole))
    # A step that already has its graph goes back and on again.
    first.load_state(kept, 6)
    for pair in given[6:]:
        first(*pair)
    same(bits(first), bits(whole))


@on_a_gpu
def test_micro_batches_between_captured_steps():
    """Parts are not captured; they use the same parameters, moments and gradients."""
    captured, right = make("narrow bf16"), make("narrow bf16", Uncaptured)
    for s in range(8):
        x_TI, target_T = batch("narrow bf16", s)
        parts = list(zip(x_TI.split([20, 27]), target_T.split([20, 27]), strict=True))
        results = [step.accumulate(parts) if s % 3 == 2 else step(x_TI, target_T) for step in (captured, right)]
        same(list(results[0]), list(results[1]))
        same(bits(captured), bits(right))


@on_a_gpu
def test_two_models_do_not_interfere():
    """Each graph has memory of its own."""
    steps = [make("narrow bf16", seed=seed) for seed in (1, 2)]
    alone = [make("narrow bf16", Uncaptured, seed=seed) for seed in (1, 2)]
    for s in range(5):
        for i in (0, 1):
            same(list(steps[i](*batch("narrow bf16", 10 * i + s))), list(alone[i](*batch("narrow bf16", 10 * i + s))))
    for i in (0, 1):
        same(bits(steps[i]), bits(alone[i]))


@on_a_gpu
def test_a_replay_counts_as_an_update():
    """torch's version counter does not see it; a tape made before would otherwise pass for a fresh one."""
    step = make("narrow bf16")
    for s in range(3):
        step(*batch("narrow bf16", s))
    x_TI, _ = batch("narrow bf16", 3)
    output, tape = step.model.forward(x_TI)
    before = step.model.params.generation
    step(*batch("narrow bf16", 4))
    assert step.model.params.generation > before
    with pytest.raises(ValueError, match="the parameters changed after this tape was made"):
        step.model.backward(torch.ones_like(output.logits_TO), tape)


@on_a_gpu
def test_gradients_are_there_after_a_replay():
    """`params.grads` is what the graph wrote, not what the capture left."""
    captured, right = make("narrow bf16"), make("narrow bf16", Uncaptured)
    for s in range(4):
        captured(*batch("narrow bf16", s))
        right(*batch("narrow bf16", s))
        same([captured.model.params.grad_P], [right.model.params.grad_P])


@on_a_gpu
def test_nothing_waits_for_the_device():
    """Neither the copies in and out nor the schedule's rate."""
    step = make("narrow bf16", schedule=Schedule(10, "warmup-cosine"))
    given = [batch("narrow bf16", s) for s in range(6)]
    for pair in given[:3]:
        step(*pair)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for pair in given[3:]:
            step(*pair)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_a_gpu
def test_replays_take_no_memory():
    """Results are let go here: a replay that kept anything would fill the device in a long run."""
    step = make("narrow bf16")
    given = batch("narrow bf16", 0)
    for _ in range(4):
        step(*given)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        step(*given)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@on_a_gpu
def test_a_target_out_of_range_is_noticed():
    """In a process of its own: the assertion ends a CUDA context."""
    code = """
import torch
from gradproof.models.moe import MoE, MoEConfig
from gradproof.models.transformer import Transformer, TransformerConfig
from gradproof.train.adamw import AdamW
from gradproof.train.step import TrainStep
step = TrainStep(MoE(MoEConfig(9, 5, hidden=32, depth=1), device="cuda"), "cross_entropy", AdamW(), "bf16")
x_TI, target_T = torch.randn(47, 9, device="cuda"), torch.zeros(47, dtype=torch.int64, device="cuda")
for _ in range(3):
    step(x_TI, target_T)
torch.cuda.synchronize()
print("trained", flush=True)
target_T[4] = 5
step(x_TI, target_T)
torch.cuda.synchronize()
print("not noticed", flush=True)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "trained" in run.stdout and "not noticed" not in run.stdout and run.returncode != 0


@on_a_gpu
def test_a_graph_alone():
    """Whatever is captured: numbers and arrays come out as copies, in their order, of the newest rows."""
    held = torch.zeros(3, device="cuda")

    def work(x, targets):
        held.add_(x.sum(0))
        return x.sum(), x @ targets[0], targets[1].max(), held

    x, targets = torch.ones(4, 3, device="cuda"), (torch.eye(3, device="cuda"), torch.arange(4.0, device="cuda"))
    work(x, targets)
    torch.cuda.synchronize()
    held.zero_()
    graph = Capture(work, x, targets)
    torch.cuda.synchronize()
    assert (held == 0).all()  # a capture runs nothing
    first = graph(x, targets)
    second = graph(2 * x, (2 * targets[0], targets[1] + 5))
    for output, right in zip(first, (12.0, x, 3.0, 4 * torch.ones(3, device="cuda")), strict=True):
        assert (output == torch.as_tensor(right, device="cuda")).all()
    for output, right in zip(second, (24.0, 4 * x, 8.0, 12 * torch.ones(3, device="cuda")), strict=True):
        assert (output == torch.as_tensor(right, device="cuda")).all()


# Without a GPU: which calls would be captured, and what is done with a graph's results.


class Replayed:
    """Stands for `Capture`: runs the work at every call, as a replay would, on rows of its own."""

    made = 0

    def __init__(self, work, x_TI, target):
        type(self).made += 1
        self.work = work

    def __call__(self, x_TI, target):
        target = tuple(t.clone() for t in target) if isinstance(target, tuple) else target.clone()
        return [tensor.clone() for tensor in self.work(x_TI.clone(), target)]


class Capturable(TrainStep):
    """As if its kernels could be captured."""

    def choose(self, rows):
        self.kernels = replace(super().choose(rows), capturable=True)
        return self.kernels


@pytest.fixture
def replayed(monkeypatch):
    monkeypatch.setattr(graph_module, "Capture", Replayed)
    monkeypatch.setattr(Replayed, "made", 0)
    return Replayed


def test_on_the_cpu_nothing_is_captured(monkeypatch):
    """Not even tried."""
    monkeypatch.setattr(graph_module, "Capture", lambda *args: pytest.fail("captured"))
    step = make("dense fp32", device="cpu")
    for s in range(3):
        step(*batch("dense fp32", s, device="cpu"))
    assert not step.kernels.capturable and step.captures == {}


def test_the_first_call_of_a_shape_runs_and_the_second_is_captured(replayed):
    """Kernels are compiled by the first; a capture for each call, or for rows that come once, would cost more than it
    saves. Results, parameters and counts are those of the plain step."""
    step, right = (make("dense fp32", kind, device="cpu", clip=0.5) for kind in (Capturable, TrainStep))
    made = []
    for s, T in enumerate([9, 9, 9, 4, 9, 4, 4, 6]):
        given = batch("dense fp32", s, T, device="cpu")
        generation = step.model.params.generation
        result = step(*given)
        assert isinstance(result, StepResult) and step.model.params.generation > generation
        same(list(result), list(right(*given)))
        same(bits(step), bits(right))
        made.append(replayed.made)
    assert made == [0, 1, 1, 1, 1, 2, 2, 2] and captures(step) == 2 and step.steps == 8


def test_several_parts_are_not_captured(replayed):
    """One micro-batch is; more of them would need a graph for every combination of sizes."""
    step = make("dense fp32", Capturable, device="cpu", micro_rows=4)
    for s in range(4):
        step(*batch("dense fp32", s, 9, device="cpu"))
    assert replayed.made == 0 and step.captures == {}
    for s in range(2):
        step(*batch("dense fp32", s, 4, device="cpu"))
    assert replayed.made == 1


def test_formats_of_the_target_are_told_apart(replayed):
    """A graph for fp16 targets must not be replayed with fp32 ones of the same shape: they would be rounded."""
    step = make("dense fp32", Capturable, loss="mse", device="cpu")
    x_TI, _ = batch("dense fp32", 0, 9, device="cpu")
    for dtype in (torch.float32, torch.float16, torch.float32, torch.float16):
        step(x_TI, torch.zeros(9, 5, dtype=dtype))
    assert replayed.made == 2


def test_a_refused_batch_leaves_no_graph(replayed):
    """A wrong width is refused before anything is kept for its shape."""
    step = make("dense fp32", Capturable, device="cpu")
    for _ in range(2):
        with pytest.raises(ValueError, match="9 inputs"):
            step(torch.zeros(3, 8), torch.zeros(3, dtype=torch.int64))
    assert step.captures == {} and step.steps == 0


def test_copies_in_and_out(monkeypatch):
    """With a capture that runs at once and a replay that does nothing: rows are copied to the graph's own, and what it
    returns shares no memory with what it keeps."""

    class Nothing:
        def replay(self):
            pass

    monkeypatch.setattr(graph_module.torch.cuda, "CUDAGraph", Nothing)
    monkeypatch.setattr(graph_module.torch.cuda, "graph", lambda graph: nullcontext())
    monkeypatch.setattr(graph_module.torch.cuda, "synchronize", lambda: None)
    seen = []

    def work(x, targets):
        seen.append((x, *targets))
        return x.sum(), x * 2, targets[0].sum().double(), targets[1].clone()

    x, targets = torch.ones(2, 3), (torch.arange(4.0), torch.arange(5))
    graph = Capture(work, x, targets)
    (own,) = seen
    assert all(a.data_ptr() != b.data_ptr() and torch.equal(a, b) for a, b in zip(own, (x, *targets), strict=True))
    first, second = graph(x, targets), graph(5 * x, (targets[0] + 1, targets[1] + 1))
    assert torch.equal(own[0], 5 * x) and torch.equal(own[1], targets[0] + 1) and torch.equal(own[2], targets[1] + 1)
    assert torch.equal(x, torch.ones(2, 3))
    assert [float(first[0]), float(first[2])] == [6.0, 6.0] and [output.dim() for output in first] == [0, 2, 0, 1]
    assert torch.equal(first[1], 2 * x) and torch.equal(first[3], targets[1])
    for output in first:
        output.fill_(9)
    assert float(second[0]) == 6.0 and torch.equal(second[1], 2 * x)
    third = graph(x, targets)
    assert float(third[0]) == 6.0 and torch.equal(third[1], 2 * x) and torch.equal(third[3], targets[1])
