"""StepCase: a size with a number of rows, its batches, and the useful work in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.bench.peers import dense_widths, expert_widths
from gradproof.bench.transformer import useful_flops as transformer_flops
from gradproof.streams import seeded
from gradproof.train.loss import Target

# A transformer's rows are sequences: of 128 tokens, and of up to 64 for the size of a gate.
GATE: Mapping[str, Any] = dict(mode="classify", vocabulary=4096, width=192, heads=6, encoder_layers=4, context=64)
TRANSFORMERS: Mapping[str, Mapping[str, Any]] = {
    "transformer-causal": dict(mode="causal", encoder_layers=0, context=128),
    "transformer-seq2seq": dict(mode="seq2seq", context=128),
    "transformer-gate-unpadded": GATE,
    "transformer-gate": GATE,
}
PADDED = ("transformer-gate",)  # whose sequences differ in length
SIZES = ("nano", "tiny", "medium", "full", "dense-0.7b", *TRANSFORMERS)
BATCHES = 4  # different ones, so that the load of the experts changes from step to step as it does in training
StepBatches = Sequence[tuple[Tensor, Target]]


class StepCase(NamedTuple):
    """A size at a number of rows."""

    size: str
    rows: int

    @property
    def family(self) -> str:
        return self.size.partition("-")[0] if "-" in self.size else "moe"

    @property
    def padded(self) -> bool:
        """Whether some tokens of its batches are padding."""
        return self.size in PADDED

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


def useful_flops(case: StepCase) -> float:
    """The products of routed rows, forward and backward: 6 a weight and row; of a transformer, those of its tokens."""
    config, dense = case.config, case.family == "dense"
    if case.family == "transformer":
        tokens = [x_BS.flatten(1)[:, -config.context :] for x_BS, _ in batches(case, "cpu")]
        return sum(transformer_flops(config, (x_BS >= 0).sum(1)) for x_BS in tokens) / BATCHES
    widths = dense_widths(config) if dense else expert_widths(config)
    return 6 * (1 if dense else config.k) * case.rows * sum(i * o for i, o in pairwise(widths))


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
    """Sequences; a gate's have a label, and where padded from a quarter of their places to all of them."""
    c, B = case.config, case.rows
    x_BS = torch.randint(c.vocabulary, (B, 2, c.context)[:: 2 if c.mode != "seq2seq" else 1], generator=generator)
    if c.decodes:
        return x_BS.to(device), torch.randint(c.vocabulary, (B, c.context), generator=generator).to(device)
    if case.padded:
        length_B = torch.randint(c.context // 4, c.context + 1, (B,), generator=generator)
        x_BS.masked_fill_(torch.arange(c.context) >= length_B[:, None], -1)
    label_B = torch.randint(2, (B,), generator=generator).float()
    return x_BS.to(device), (label_B.to(device), torch.ones(B, device=device))
