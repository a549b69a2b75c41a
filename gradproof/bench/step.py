"""The suite `step`: a whole training step of ours beside the peers, in one process, in turns.

Ours is built once for each size and number of rows. Each peer is built beside it, its memory is measured, the two take
turns, and it is gone again: large models do not all fit at once, and ratios come from turns taken together.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.bench.peers import DECAY, NAMES, RATE, Peer, Way, dense_widths, expert_widths, peers_of
from gradproof.bench.timing import Timing, interleaved, product_peak, summary, wait
from gradproof.bench.transformer import useful_flops as transformer_flops
from gradproof.heap import give_back
from gradproof.streams import seeded
from gradproof.train.loss import Target

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts bytes on a CPU, would announce itself

# A transformer's rows are sequences: of 128 tokens, and of up to 64, padded, for the size of a gate.
TRANSFORMERS: Mapping[str, Mapping[str, Any]] = {
    "transformer-causal": dict(mode="causal", encoder_layers=0, context=128),
    "transformer-seq2seq": dict(mode="seq2seq", context=128),
    "transformer-gate": dict(mode="classify", vocabulary=4096, width=192, heads=6, encoder_layers=4, context=64),
}
SIZES = ("nano", "tiny", "medium", "full", "dense-0.7b", *TRANSFORMERS)
PRECISIONS = {"cpu": "fp32", "cuda": "bf16"}
BATCHES = 4  # different ones, so that the load of the experts changes from step to step as it does in training
MEASURED = 4  # steps in which the peak of memory is looked for
ROUNDS, SECONDS = 31, 10.0
QUICK_ROUNDS, QUICK_SECONDS = 5, 1.0
OURS = "gradproof"


class StepCase(NamedTuple):
    """A size at a number of rows."""

    size: str
    rows: int

    @property
    def family(self) -> str:
        return self.size.partition("-")[0] if "-" in self.size else "moe"

    @property
    def config(self) -> Any:
        import gradproof

        if self.family == "transformer":
            return gradproof.TransformerConfig(**TRANSFORMERS[self.size])
        family = gradproof.DenseConfig if self.family == "dense" else gradproof.MoEConfig
        return family.sized(self.size.removeprefix("dense-"))

    @property
    def loss(self) -> str:
        return "bce" if self.config.outputs == 1 else "cross_entropy"

    def __str__(self) -> str:
        return f"{self.size}, {self.rows:,} rows"


DEFAULTS = {
    "cpu": (
        *(StepCase("nano", 32), StepCase("nano", 256), StepCase("nano", 4096), StepCase("tiny", 64)),
        *(StepCase("transformer-causal", 8), StepCase("transformer-seq2seq", 8), StepCase("transformer-gate", 32)),
    ),
    "cuda": (
        StepCase("nano", 256),
        StepCase("nano", 8192),
        StepCase("tiny", 8192),
        StepCase("medium", 32768),
        StepCase("full", 16384),
        StepCase("dense-0.7b", 8192),
        *(StepCase("transformer-causal", 64), StepCase("transformer-seq2seq", 64), StepCase("transformer-gate", 256)),
    ),
}
# Run only where --peers names them. torch does not compile grouped_mm in float32; who captures what was compiled goes
# beyond what users do.
ON_REQUEST = {
    "cpu": ("grouped_mm-compiled", "grouped_mm-reduce-overhead"),
    "cuda": ("dense-all-compiled-captured", "grouped_mm-compiled-captured", "compiled-captured"),
}
OTHERWISE_ROWS = {"cpu": 64, "cuda": 8192}
StepBatches = Sequence[tuple[Tensor, Target]]


def cases(device: str, size: str | None, rows: int | None) -> list[StepCase]:
    """The defaults of a device, those of one size, or one size at one number of rows."""
    if size is None:
        if rows is not None:
            raise ValueError(f"--rows {rows} needs a --size in the suite step; the sizes are {', '.join(SIZES)}")
        return list(DEFAULTS[device])
    if size not in SIZES:
        raise ValueError(f"there is no size {size!r} to step; the sizes are {', '.join(SIZES)}")
    if rows is not None:
        return [StepCase(size, rows)]
    usual = [case for case in DEFAULTS[device] if case.size == size]
    return usual or [StepCase(size, OTHERWISE_ROWS[device])]


def chosen_peers(names: Sequence[str] | None, case: StepCase, device: str) -> dict[str, Way]:
    """The peers of a case: those named, or all but the ones that are run on request."""
    there = peers_of(case.family, device)
    if names is None:
        return {name: way for name, way in there.items() if name not in ON_REQUEST[device]}
    return {name: way for name, way in there.items() if name in names}


def check_peers(names: Sequence[str], listed: Sequence[StepCase], device: str) -> None:
    """Refuses a name that no case of this run knows."""
    for name in names:
        if name not in NAMES:
            raise ValueError(f"there is no peer {name!r}; the peers are {', '.join(NAMES)}")
        if not any(name in peers_of(case.family, device) for case in listed):
            on_a_gpu = any(name in peers_of(case.family, "cuda") for case in listed)
            reason = "a CUDA graph needs --device cuda" if on_a_gpu else "no size of this run has it"
            raise ValueError(f"peer {name!r} cannot be run here: {reason}")


def useful_flops(case: StepCase) -> float:
    """The products of routed rows, forward and backward: 6 a weight and row; of a transformer, those of its tokens."""
    config, dense = case.config, case.family == "dense"
    if case.family == "transformer":
        tokens = [x_BS.flatten(1)[:, -config.context :] for x_BS, _ in batches(case, "cpu")]
        return sum(transformer_flops(config, (x_BS >= 0).sum(1)) for x_BS in tokens) / BATCHES
    widths = dense_widths(config) if dense else expert_widths(config)
    return 6 * (1 if dense else config.k) * case.rows * sum(i * o for i, o in pairwise(widths))


def suite(
    device: str,
    listed: Sequence[StepCase],
    precision: str,
    peers: Sequence[str] | None = None,
    quick: bool = False,
    say: Callable[[str], object] = lambda what: None,
) -> Iterator[dict[str, Any]]:
    """The record, again after each case with one more of them in `rows`."""
    from gradproof.proof.verdict import environment

    say("a large product, the peak")
    peak = product_peak(device)
    record = {"suite": "step", "device": device, "environment": environment(device), "peak_tflops": peak}
    rows: list[dict[str, Any]] = []
    for case in listed:
        rows.append(measure(case, device, precision, chosen_peers(peers, case, device), quick, peak, say))
        yield {**record, "rows": rows}


def measure(
    case: StepCase,
    device: str,
    precision: str,
    peers: dict[str, Way],
    quick: bool = False,
    peak_tflops: float | None = None,
    say: Callable[[str], object] = lambda what: None,
) -> dict[str, Any]:
    """One case: ours and every peer. Whoever fails is recorded with the reason, and the others go on."""
    row: dict[str, Any] = {"size": case.size, "rows": case.rows, "precision": precision}
    free(device)
    forget_workspaces(device)
    say(f"{case}: {OURS}")
    try:
        ours = Ours(case, device, precision)
    except Exception as error:
        return {**row, "contestants": [{"name": OURS, "error": first_line(error)}]}
    if ours.kernels:
        row["kernels"] = ours.kernels
    work = useful_flops(case)
    peer_entries: list[dict[str, Any]] = []
    blocks: list[float] = []
    for name, way in peers.items():
        say(f"{case}: {name}")
        try:
            entry, own = _against(name, way, ours, device, precision, quick)
            peer_entries.append(entry)
            blocks += own
        except Exception as error:
            peer_entries.append({"name": name, "error": first_line(error)})
        free(device)
    if not blocks:  # no peer, or none that ran
        blocks += _turns({OURS: ours.run}, device, quick)[OURS].blocks
    entries = [{"name": OURS, **_figures(summary(blocks)), "ratio": 1.0, "peak_bytes": ours.peak_bytes}, *peer_entries]
    for entry in entries:
        if "ms" in entry:
            entry["useful_tflops"] = work / (entry["ms"] * 1e-3) / 1e12
            entry["share_of_peak"] = entry["useful_tflops"] / peak_tflops if peak_tflops else None
            entry["memory_ratio"] = entry["peak_bytes"] / ours.peak_bytes
    return {**row, "contestants": entries, **_best(peer_entries)}


class Ours:
    """Our model and its step, and what they hold at their peak."""

    def __init__(self, case: StepCase, device: str, precision: str):
        from gradproof.train.peak import peak_bytes

        self.case, self.device, self.precision = case, device, precision
        self.batches = batches(case, device)
        before = _allocated(device)
        # Kernels are compiled, tuned and admitted in a rehearsal: what that takes is no part of a step.
        self.model: Any = self._model()
        self._rehearse()
        if device == "cpu":  # where tensors are counted while they are made, so that all of them must be made again
            self.model = None
        free(device)
        forget_workspaces(device)
        held = _allocated(device) - before
        self.peak_bytes = held + peak_bytes(self._build, device)
        turn = cycle(self.batches)
        self.run: Callable[[], object] = lambda: self.step(*next(turn))

    @property
    def kernels(self) -> dict[str, str]:
        """Which kernel runs each op, where the step knows."""
        kernels = getattr(self.step, "kernels", None)
        chosen = getattr(kernels, "chosen", kernels)
        return {str(op): str(kernel) for op, kernel in chosen.items()} if isinstance(chosen, Mapping) else {}

    def _model(self) -> Any:
        import gradproof

        families = {"moe": gradproof.MoE, "dense": gradproof.Dense, "transformer": gradproof.Transformer}
        return families[self.case.family](self.case.config, seed=0, device=self.device)

    def _step(self) -> Any:
        import gradproof

        optimizer = gradproof.AdamW(lr=RATE, weight_decay=DECAY, decay="all")
        precision: Any = self.precision
        return gradproof.TrainStep(self.model, self.case.loss, optimizer, precision, clip=None)

    def _rehearse(self) -> None:
        step = self._step()
        for batch in self.batches:
            step(*batch)

    def _build(self) -> None:
        self.model = self._model() if self.model is None else self.model
        self.step = self._step()
        for batch in self.batches[:MEASURED]:
            self.step(*batch)


def batches(case: StepCase, device: str) -> StepBatches:
    """Random rows and targets, the same for everybody."""
    config, generator = case.config, seeded("bench", "step", case.rows)
    if case.family == "transformer":
        return [_tokens(case, generator, device) for _ in range(BATCHES)]
    drawn = []
    for _ in range(BATCHES):
        x_TI = torch.randn(case.rows, config.inputs, generator=generator)
        target_T = torch.randint(0, config.outputs, (case.rows,), generator=generator)
        drawn.append((x_TI.to(device), target_T.to(device)))
    return drawn


def _tokens(case: StepCase, generator: torch.Generator, device: str) -> tuple[Tensor, Target]:
    """Sequences; those of the gate have from a quarter of their places to all of them, and a label."""
    c, B = case.config, case.rows
    x_BS = torch.randint(c.vocabulary, (B, 2, c.context)[:: 2 if c.mode != "seq2seq" else 1], generator=generator)
    if c.decodes:
        return x_BS.to(device), torch.randint(c.vocabulary, (B, c.context), generator=generator).to(device)
    length_B = torch.randint(c.context // 4, c.context + 1, (B,), generator=generator)
    x_BS.masked_fill_(torch.arange(c.context) >= length_B[:, None], -1)
    label_B = torch.randint(2, (B,), generator=generator).float()
    return x_BS.to(device), (label_B.to(device), torch.ones(B, device=device))


def _against(
    name: str, way: Way, ours: Ours, device: str, precision: str, quick: bool
) -> tuple[dict[str, Any], tuple[float, ...]]:
    """One peer's entry, and the milliseconds of our own blocks beside it."""
    _forget(device, way)
    before = _allocated(device)
    peer = Peer(way, ours.model, device, precision)
    most = _peak(peer, ours.batches, before, device)
    turn = cycle(ours.batches)
    timings = _turns({OURS: ours.run, name: lambda: peer(*next(turn))}, device, quick)
    entry = {"name": name, "graphs": peer.graphs, **_figures(timings[name])}
    entry |= {"ratio": timings[name].ms / timings[OURS].ms, "ours_ms": timings[OURS].ms, "peak_bytes": most}
    return entry, timings[OURS].blocks


def _forget(device: str, way: Way) -> None:
    """Frees what earlier peers leave in the compiler's caches, or it would be freed in the midst of a measurement; so
    would cuBLAS's workspaces by reduce-overhead, when it captures."""
    from torch import _dynamo

    _dynamo.reset()
    gc.collect()
    if device == "cuda":
        if way.compiled == "reduce-overhead":
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def _peak(peer: Peer, rows: StepBatches, before: int, device: str) -> int:
    """The most that a peer holds in a step, all by itself: parameters, gradients, moments, activations, graphs."""
    from gradproof.train.peak import peak_bytes

    turn = cycle(rows)
    for _ in range(peer.settling):
        peer(*next(turn))
    wait(device)
    held = peer.held_bytes()  # so that no gradient from before is freed in the steps: on a CPU that goes unseen
    if device == "cuda":
        held = _allocated(device) - before

    def steps() -> None:
        for _ in range(MEASURED):
            peer(*next(turn))

    return held + peak_bytes(steps, device)


def _turns(contestants: dict[str, Callable[[], object]], device: str, quick: bool) -> dict[str, Timing]:
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, SECONDS)
    return interleaved(contestants, device, rounds, seconds)


def _figures(timing: Timing) -> dict[str, Any]:
    return {"ms": timing.ms, "quartiles": list(timing.quartiles)}


def _best(peer_entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The fastest peers, by the ratio to ours in their own turns."""
    ran = [entry for entry in peer_entries if "ratio" in entry]

    def fastest(entries: list[dict[str, Any]]) -> dict[str, Any] | None:
        best = min(entries, key=lambda entry: entry["ratio"], default=None)
        return best and {key: best[key] for key in ("name", "ms", "ratio", "ours_ms", "peak_bytes", "memory_ratio")}

    best = fastest(ran)
    return {
        "best_uncaptured": fastest([entry for entry in ran if entry["graphs"] == "none"]),
        "best_captured": fastest([entry for entry in ran if entry["graphs"] != "none"]),  # in whole or in parts
        "speedup": best and best["ratio"],
        "memory_against_best": best and 1 / best["memory_ratio"],
    }


def first_line(error: BaseException) -> str:
    """What went wrong, in one line."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {said}"[:300]


def free(device: str) -> None:
    """Memory of what is gone goes back, compiled code too."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # pyright: ignore[reportAttributeAccessIssue]
        gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    else:
        give_back()


def forget_workspaces(device: str) -> None:
    """cuBLAS keeps a workspace for each stream: on the one that everybody shares it is there before anybody is
    measured, on their own streams everybody pays for one. Only where no graph is alive: it may point into one."""
    if device == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            a = torch.ones(256, 256, device=device, dtype=dtype)
            torch.addmm(a[0], a, a)
        torch.cuda.synchronize()


def _allocated(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else 0
