"""Training on a text: the loop of `train/loop.py` on windows of bytes, in which each byte predicts the next."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradproof.data.split import TRAIN, VALIDATION
from gradproof.data.text import VOCABULARY, Windows, at_places, in_turn, open_text
from gradproof.kernels.variants import REFERENCE, Kernels
from gradproof.models.transformer import Transformer, TransformerConfig
from gradproof.train.assembly import summary_writer, train_step
from gradproof.train.checkpoint import Checkpoint
from gradproof.train.config import TrainConfig
from gradproof.train.load import best_checkpoint, check_model_options, restore
from gradproof.train.loop import Trainer
from gradproof.train.run import Run
from gradproof.train.schedule import Schedule

CONTEXT = 256  # bytes, unless the config says otherwise
VALIDATED_BYTES = 1 << 16  # of a longer validation part, windows evenly spaced
GIVEN = ("vocabulary", "mode")  # by the data


class TextTrainer(Trainer):
    """A row is a byte here: `rows` and `rows_per_s` of its metrics count them."""

    model: Transformer  # pyright: ignore[reportIncompatibleVariableOverride]

    def _open(self) -> None:
        config = self.config
        shape = text_config(config)
        Schedule(config.steps, config.schedule, config.warmup)
        if config.tensorboard:
            summary_writer()
        self.text = open_text(config.data, (config.validation, config.test), self.run.path, shape.context)
        self.model = Transformer(shape, seed=config.seed, device=config.device)  # pyright: ignore[reportIncompatibleVariableOverride]
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.step = train_step(config, self.model, "cross_entropy", self.mesh)
        length = len(self.text.part(TRAIN))
        self.batches = Windows(length, shape.context, config.batch, config.seed)
        self.rows_each = config.batch * shape.context
        self.held = spaced_windows(self.text.part(VALIDATION), shape.context, VALIDATED_BYTES)
        self.watch.unit = "bytes"

    def batch(self, s: int) -> tuple[Tensor, Tensor]:
        places = self.batches[s]
        token_BS, target_BS = at_places(
            self.text.part(TRAIN), places[self._own(len(places))], self.model.config.context
        )
        device = self.config.device
        return torch.from_numpy(token_BS).to(device), torch.from_numpy(target_BS).to(device)

    def settle(self) -> None:
        """A text is trained by steps: everything is known."""

    def calibrate(self) -> None:
        """A language model is taken as it is."""

    def _by_loss(self) -> bool:
        """Accuracies are all alike here, so the loss decides among them."""
        return False

    def _first_target(self) -> Tensor:
        places = self.batches[0]
        _, target_BS = at_places(self.text.part(TRAIN), places, self.model.config.context)
        return torch.from_numpy(target_BS).to(self.config.device)

    def _rows_of(self, s: int) -> np.ndarray:
        return self.batches[s]

    def _evaluate(self) -> tuple[float, float, dict[str, Any]]:
        """The checkpoint is chosen by the loss alone."""
        own = self._own(len(self.held[0]))
        held = self.held[0][own], self.held[1][own]
        sums = totals(self.model, *held, self.config.batch, self.step.choose(self.config.batch))
        loss, accuracy = means(sums if self.mesh is None else self.mesh.sum_(sums))
        logged = {"validation_bits_per_byte": loss / math.log(2), "validation_accuracy": accuracy}
        return loss, 0.0, {"validation_loss": loss, **logged}


def text_config(config: TrainConfig) -> TransformerConfig:
    """The model of a run on text."""
    options = dict(config.model_options)
    check_model_options(Transformer, options, GIVEN)
    context = options.pop("context", CONTEXT)
    if context < 2:
        raise ValueError(f"model_options: context = {context}: a window has at least 2 bytes")
    if config.class_weights != "none":
        raise ValueError("class_weights: not available for text, which has no classes")
    sized = TransformerConfig.sized(config.size, vocabulary=VOCABULARY, context=context, mode="causal")
    return replace(sized, **options)


def spaced_windows(byte_N: np.ndarray, context: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and targets of the windows, of at most so many bytes, evenly spaced."""
    token_BS, target_BS = in_turn(byte_N, context)
    step = max(1, -(-len(byte_N) // most))
    return token_BS[::step], target_BS[::step]


@torch.no_grad()
def score(
    model: Transformer, token_BS: np.ndarray, target_BS: np.ndarray, batch: int, kernels: Kernels = REFERENCE
) -> tuple[float, float]:
    """Mean loss of a byte, in nats, and the share that was the likeliest; infinite where any loss is not a number."""
    return means(totals(model, token_BS, target_BS, batch, kernels))


def means(totals: Tensor) -> tuple[float, float]:
    """Of the sums of `totals`."""
    total, right, count = totals.tolist()
    return total / count if math.isfinite(total) else math.inf, right / count


@torch.no_grad()
def totals(
    model: Transformer, token_BS: np.ndarray, target_BS: np.ndarray, batch: int, kernels: Kernels = REFERENCE
) -> Tensor:
    """The losses of all bytes added up, how many were the likeliest, and how many there are."""
    device, total, right, count = model.params.flat_P.device, 0.0, 0, 0
    for start in range(0, len(token_BS), batch):
        x_BS = torch.from_numpy(token_BS[start : start + batch]).to(device)
        target_T = torch.from_numpy(target_BS[start : start + batch]).to(device).flatten()
        logits_TO = model.apply(model.params, x_BS, None, kernels)[0].logits_TO
        kept_T = target_T >= 0
        nll_T = torch.nn.functional.cross_entropy(logits_TO[kept_T].double(), target_T[kept_T], reduction="sum")
        total += float(nll_T)
        right += int((logits_TO[kept_T].argmax(1) == target_T[kept_T]).sum())
        count += int(kept_T.sum())
    return torch.tensor([total, right, count], dtype=torch.float64)


def load_text_model(path: Path, device: str = "cpu") -> tuple[Transformer, Checkpoint]:
    """The model of a text run's best checkpoint."""
    run = Run(path)
    best = best_checkpoint(run)
    model = Transformer(text_config(run.config), seed=run.config.seed, device=device)
    restore(model, best)
    return model, best
