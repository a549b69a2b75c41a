"""The suites `step` and `ops`: turns, records, peers that fail."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import gradproof
from gradproof.bench import case as cases
from gradproof.bench import ops, row, step, timing
from gradproof.bench.case import StepCase
from gradproof.bench.ours import Ours
from gradproof.bench.peers import Peer, Way
from gradproof.cli import app

QUICK = step.Setting("cpu", "fp32", quick=True)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """A small product for the peak; the reference kernels, which need neither a compiler nor an admission."""
    monkeypatch.setitem(timing.PRODUCTS, "cpu", (64, torch.float32))
    monkeypatch.setattr(timing, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(timing, "HOT_SECONDS", 0.0)
    monkeypatch.setenv("GRADPROOF_KERNELS", "reference")


def call(*args):
    return CliRunner().invoke(app, ["bench", *args])


class Failing(nn.Module):
    def __init__(self, config, device, dtype):
        super().__init__()
        raise RuntimeError("no kernel image\nis available")


def test_everybody_gets_the_same_number_of_turns(monkeypatch):
    """Broken by a block that counts its warm-up, or by contestants that run one after the other."""
    monkeypatch.setattr(timing, "BLOCK_MS", 1e-9)
    monkeypatch.setattr(timing, "LEAST_STEPS", 1)  # one step a block
    monkeypatch.setattr(timing, "WARM_SECONDS", 0.0)
    calls = []
    timings = timing.interleaved({name: lambda n=name: calls.append(n) for name in "ab"}, "cpu", 6, 60.0)
    assert calls[-12:] == ["a", "b", "b", "a"] * 3  # nobody always comes after the same one
    assert calls.count("a") == calls.count("b")
    for timed in timings.values():
        assert len(timed.blocks) == 6 and timed.steps == 1
        assert timed.quartiles[0] <= timed.ms <= timed.quartiles[1]
    assert timings["a"].ms == torch.tensor(timings["a"].blocks, dtype=torch.float64).quantile(0.5)


def test_time_ends_the_rounds(monkeypatch):
    monkeypatch.setattr(timing, "BLOCK_MS", 1e-9)
    timings = timing.interleaved({"a": lambda: None}, "cpu", 1000, 0.0)
    assert len(timings["a"].blocks) == timing.LEAST_ROUNDS


def test_the_hot_peak_comes_after_seconds_of_products(monkeypatch):
    """A device that slows down as it works: the cold peak is that of its first calls, the hot one that of its last."""
    clock, calls = [0.0], [0]

    def milliseconds(run, device, steps):
        run()
        calls[0] += steps
        clock[0] += steps * (2.0 if clock[0] >= 0.5 else 1.0)
        return steps * (2e3 if clock[0] >= 0.5 + steps else 1e3)

    monkeypatch.setattr(timing, "HOT_SECONDS", 100.0)
    monkeypatch.setattr(timing, "_block_size", lambda run, device: 4)
    monkeypatch.setattr(timing, "_milliseconds", milliseconds)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: clock.__setitem__(0, -100.0))
    cold, hot = timing.product_peaks("cpu")
    assert cold == pytest.approx(2 * 64**3 / 1e12) and hot == pytest.approx(cold / 2)
    assert calls[0] > 100 / 2


def test_the_command_writes_the_record(tmp_path):
    file = tmp_path / "step_cpu.json"
    args = ("--suite", "step", "--size", "nano", "--rows", "4", "--peers", "loop", "--quick", "--json", str(file))
    result = call(*args)
    assert result.exit_code == 0, result.output
    record = json.loads(file.read_text())
    assert record["suite"] == "step" and record["environment"]["torch"] and record["machine"]["threads"] >= 1
    assert record["peak_tflops"] == record["peak_tflops_hot"] > 0 and record["peak_tflops_cold"] > 0
    assert record["code"] and record["date"].endswith("+00:00") and "commit" in record
    (row,) = record["rows"]
    assert (row["size"], row["rows"], row["precision"]) == ("nano", 4, "fp32")
    ours, loop = row["contestants"]
    assert (ours["name"], loop["name"]) == ("gradproof", "loop")
    figures = {"name", "ms", "quartiles", "ratio", "useful_tflops", "share_of_peak", "peak_bytes", "memory_ratio"}
    assert figures <= set(ours) and figures <= set(loop)
    assert ours["share_of_peak"] == pytest.approx(ours["useful_tflops"] / record["peak_tflops_hot"])
    assert loop["rough"] and (loop["code"], loop["commit"]) == (record["code"], record["commit"])
    assert row["best_uncaptured"]["name"] == "loop" and row["best_captured"] is None
    assert row["speedup"] == loop["ratio"] == pytest.approx(loop["ms"] / loop["ours_ms"])
    assert row["memory_against_best"] == pytest.approx(ours["peak_bytes"] / loop["peak_bytes"])
    # parameters, gradients and two moments are the least that anybody can hold
    assert min(ours["peak_bytes"], loop["peak_bytes"]) > 16 * 195_540


def test_a_peer_that_fails_is_recorded():
    measured = step.measure(StepCase("nano", 4), {"broken": Way(Failing)}, QUICK)
    ours, broken = measured["contestants"]
    assert (broken["name"], broken["error"]) == ("broken", "RuntimeError: no kernel image")
    assert ours["ms"] > 0 and measured["speedup"] is None and measured["best_uncaptured"] is None


def test_ours_failing_is_recorded(monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Ours, "_model", broken)
    (ours,) = step.measure(StepCase("nano", 4), {}, QUICK)["contestants"]
    assert (ours["name"], ours["error"]) == ("gradproof", "RuntimeError: out of memory")
    result = call("--suite", "step", "--size", "nano", "--rows", "4", "--peers", "none", "--quick")
    assert result.exit_code == 1 and "out of memory" in result.output


def test_the_fastest_is_found_by_ratio():
    def entry(name, graphs, ratio):
        return dict(name=name, graphs=graphs, ms=ratio, ratio=ratio, ours_ms=1.0, peak_bytes=10, memory_ratio=2.0)

    entries = [entry("a", "none", 3.0), entry("b", "none", 4.0), entry("c", "whole", 1.5), dict(name="d", error="no")]
    best = row.best([*entries, entry("e", "parts", 2.0)])
    assert (best["best_uncaptured"]["name"], best["best_captured"]["name"]) == ("a", "c")
    assert row.best([*entries, entry("e", "parts", 1.25)])["best_captured"]["name"] == "e"
    assert (best["speedup"], best["memory_against_best"]) == (1.5, 0.5)


def test_useful_work():
    assert cases.useful_flops(StepCase("nano", 256)) == 6 * 2 * 256 * (96 * 128 + 2 * 128**2 + 128 * 20)
    blocks = 84 * 2 * 1024 * 4096
    assert cases.useful_flops(StepCase("dense-0.7b", 8)) == 6 * 8 * (96 * 1024 + blocks + 1024 * 20)
    causal = StepCase("transformer-causal", 3)
    c = causal.config
    layer = 4 * c.width**2 + 2 * c.width * c.inner
    seen = c.decoder_layers * c.width * c.context  # half of the places, twice: scores and values
    per_place = c.decoder_layers * layer + c.width * c.outputs + seen
    assert cases.useful_flops(causal) == 6 * 3 * c.context * per_place


def test_padding_is_of_no_use():
    """A padded gate's sequences are from a quarter of the context to all of it long: five eighths on average."""
    case, unpadded = StepCase("transformer-gate", 64), StepCase("transformer-gate-unpadded", 64)
    c = case.config
    assert unpadded.config == c and case.padded and not unpadded.padded
    whole = 6 * 64 * c.context * c.encoder_layers * (4 * c.width**2 + 2 * c.width * c.inner)
    assert 0.58 < cases.useful_flops(case) / whole < 0.72
    attention = 12 * c.width * c.encoder_layers * 64 * c.context**2
    assert cases.useful_flops(unpadded) == whole + attention
    assert all((x_BS >= 0).all() for x_BS, _ in cases.batches(unpadded, "cpu"))
    assert all((x_BS < 0).any() for x_BS, _ in cases.batches(case, "cpu"))


def test_both_gates_are_rows_of_the_table():
    for device, rows in (("cpu", 32), ("cuda", 256)):
        assert step.DEFAULTS[device][-2:] == (
            StepCase("transformer-gate-unpadded", rows),
            StepCase("transformer-gate", rows),
        )


def test_peak_memory_of_a_peer_does_not_count_gradients_twice():
    """Gradients from before the measurement are freed unseen in it; counted, they would make a peer look worse."""
    model = gradproof.MoE.sized("nano", seed=0)
    rows = cases.batches(StepCase("nano", 1), "cpu")
    peer = Peer(step.peers_of("moe", "cpu")["loop"], model, "cpu", "fp32")
    held = 4 * 4 * model.params.count
    assert held < step._peak(peer, rows, 0, "cpu") < 1.2 * held


@pytest.mark.parametrize(
    "args, sentence",
    [
        (("--suite", "step", "--size", "huge"), "no size 'huge'"),
        (("--suite", "step", "--rows", "8"), "needs a --size"),
        (("--suite", "step", "--peers", "nobody"), "no peer 'nobody'"),
        (("--suite", "step", "--peers", "dense-all-captured"), "need --device cuda"),
        (("--suite", "step", "--size", "nano", "--peers", "eager"), "no size of this run has it"),
        (("--suite", "ops", "--size", "nano"), "for the suite step"),
        (("--suite", "ops", "--resume"), "for the suite step"),
        (("--suite", "step", "--resume"), "needs --json FILE"),
        (("--suite", "step", "--resume", "--json", "-"), "needs --json FILE"),
        (("--suite", "step", "--retry"), "needs --resume"),
        (("--suite", "step", "--size", "nano", "--tune", "--minutes", "1"), "--tune cannot be combined"),
        (("--suite", "diagnose", "--quick"), "for the suites step and ops"),
        (("--suite", "speed"), "no suite 'speed'"),
    ],
)
def test_bad_values_are_one_sentence(args, sentence):
    result = call(*args)
    assert result.exit_code == 2
    assert sentence in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_ops_agree_and_are_recorded():
    """Every pair gives the op's own output and gradients; one that fails is recorded."""
    dy_TH, *given = ops.inputs("cpu", "fp32", 6, 16)
    made = {name: make for name, make in ops.pairs().items() if name != "compiled"}
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    computed = [ops._both(make(), dy_TH, leaves if make().autograd else given) for make in made.values()]
    for ours, theirs in zip(*computed, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-4, atol=1e-5)

    def broken():
        raise ImportError("not here yet")

    row = ops.norm_gelu("cpu", "fp32", 6, 16, {**made, "broken": broken}, quick=True)
    by_name = {entry["name"]: entry for entry in row["contestants"]}
    assert by_name["broken"]["error"] == "ImportError: not here yet"
    assert by_name["reference"]["ratio"] == 1.0 and by_name["eager"]["forward_ms"] > 0
    row = ops.adamw("cpu", "nano", {}, quick=True)
    assert row["contestants"][0]["name"] == "reference" and len(row["contestants"]) == 3
