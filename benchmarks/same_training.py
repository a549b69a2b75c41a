"""Do the fast kernels train the same model? The difference they make to loss_ema, beside that of one ulp.

    python benchmarks/same_training.py
    python benchmarks/same_training.py --device cuda --loss cross_entropy --seeds 3 --json same_training.json

Every run is nano on the synthetic set, fp32, 256 rows a step, with the options of `gradproof train`. `kernels` is the
largest |difference| of loss_ema over the steps between the chosen kernels and the reference; `one_ulp` the same between
the reference and five reference runs whose initial weights are moved by one ulp each, up or down at random. `ratio` is
the first over the largest of the second: at most 2 is called the same training.

The loss is read in float64 from the logits of the step. As it is logged, in fp32, its own rounding (1e-7 to 2e-7, and
the first value counts whole) hides differences in training that are ten times smaller; `logged` has those figures.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.data.batches import Batches
from gradproof.data.encoders import Encoder
from gradproof.data.synthetic import OUTCOMES, synthetic
from gradproof.models.model import Model
from gradproof.models.moe import MoE, MoEConfig
from gradproof.proof.verdict import environment
from gradproof.streams import seeded
from gradproof.train.adamw import AdamW
from gradproof.train.loss import Loss, Target
from gradproof.train.metrics import ema
from gradproof.train.schedule import Schedule
from gradproof.train.step import TrainStep

ROWS, BATCH, LR, CLIP = 16_384, 256, 3e-3, 1.0
REFERENCE: dict[str, str] = {}  # asks for no kernel
Batch = tuple[Tensor, Target]


def batches(steps: int, loss: str = "quality", device: str = "cpu", seed: int = 0, dtype=torch.float32) -> list[Batch]:
    """The batches of a run, encoded."""
    made = synthetic(ROWS, seed)
    encoder = Encoder(made.schema, device, dtype)
    order = Batches(torch.arange(ROWS).numpy(), BATCH, seed)
    encoded = []
    for s in range(steps):
        rows = made.rows.take(order[s])
        target = encoder.target(rows)
        encoded.append((encoder.inputs(rows), target if loss == "quality" else target[0]))
    return encoded


def moved(model: Model, seed: int) -> None:
    """Each weight by one ulp, up or down; the padding stays."""
    for name, weight in model.params.items():
        up = torch.rand(weight.shape, generator=seeded("one ulp", seed, name)) < 0.5
        towards = torch.where(up, torch.inf, -torch.inf).to(weight)
        weight.copy_(torch.nextafter(weight, towards))


class Exact(Loss):
    """A loss that notes what it would be in float64, of the same logits: in one place, which a graph writes again."""

    def __init__(self, op: str, device: torch.device):
        super().__init__(op)
        self.noted = torch.zeros((), dtype=torch.float64, device=device)

    def forward(self, y_TO: Tensor, target: Target, *args: Any) -> Any:
        wide = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors(target))
        self.noted.copy_(self.op.forward(y_TO.double(), *wide)[0])
        return super().forward(y_TO, target, *args)


def tensors(target: Target) -> tuple[Tensor, ...]:
    return target if isinstance(target, tuple) else (target,)


def start(given: list[Batch], loss: str, seed: int = 0, **options: Any) -> TrainStep:
    """A step on a fresh nano, where the rows are."""
    config = MoEConfig.sized("nano", outputs=20 if loss == "quality" else OUTCOMES)
    device = given[0][0].device
    model = MoE(config, seed=seed, device=device)
    schedule = Schedule(len(given), "warmup-cosine", 0.05)
    return TrainStep(model, Exact(loss, device), AdamW(LR), clip=CLIP, schedule=schedule, **options)


class Curve(NamedTuple):
    """loss_ema after each step, from the loss in float64 and from the one that is logged."""

    exact: list[float]
    logged: list[float]


def trained(step: TrainStep, given: list[Batch]) -> Curve:
    """All steps of a run."""
    assert isinstance(step.loss, Exact)
    pairs = [(step(x_TI, target).loss, step.loss.noted.clone()) for x_TI, target in given]
    logged, exact = (averaged(torch.stack(losses)) for losses in zip(*pairs, strict=True))
    return Curve(exact, logged)


def averaged(losses: Tensor) -> list[float]:
    """loss_ema."""
    loss_ema: list[float] = []
    for loss in losses.tolist():
        loss_ema.append(ema(loss_ema[-1] if loss_ema else None, loss))
    return loss_ema


def apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def compare(
    steps: int = 200, loss: str = "quality", device: str = "cpu", seed: int = 0, runs: int = 5
) -> dict[str, Any]:
    """The figures of one seed."""
    given = batches(steps, loss, device, seed)
    fast, reference = start(given, loss, seed), start(given, loss, seed, kernels=REFERENCE)
    ours, right = trained(fast, given), trained(reference, given)
    others = []
    for i in range(runs):
        step = start(given, loss, seed, kernels=REFERENCE)
        moved(step.model, i)
        others.append(trained(step, given))
    record = dict(device=device, loss=loss, steps=steps, seed=seed, chosen=dict(fast.kernels.chosen))
    return {
        **record,
        "first": right.exact[0],
        "loss_ema": right.exact[-1],
        **_figures(ours.exact, right.exact, [other.exact for other in others]),
        "logged": _figures(ours.logged, right.logged, [other.logged for other in others]),
    }


def _figures(ours: list[float], right: list[float], others: list[list[float]]) -> dict[str, Any]:
    kernels, one_ulp = apart(ours, right), [apart(other, right) for other in others]
    return {"kernels": kernels, "one_ulp": one_ulp, "ratio": kernels / max(one_ulp) if any(one_ulp) else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--loss", default="quality", choices=("quality", "cross_entropy"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1, help="runs with the seeds 0 up to this")
    parser.add_argument("--json", type=Path, help="where to keep the figures")
    given = parser.parse_args()
    runs = [compare(given.steps, given.loss, given.device, seed) for seed in range(given.seeds)]
    text = json.dumps({"environment": environment(given.device), "runs": runs}, indent=1)
    if given.json:
        given.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
