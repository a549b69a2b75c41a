"""The results of a run on text: bits per byte compared with simple baselines, and samples."""

from __future__ import annotations

import lzma
import math
from typing import Any

import numpy as np

from gradproof.data.split import TEST, TRAIN
from gradproof.train.assembly import environment
from gradproof.train.report import PARTS, best_of, evidence_of, run_facts
from gradproof.train.sample import TEMPERATURE, sample
from gradproof.train.text import TextTrainer, score, spaced_windows

SCORED_BYTES = 1 << 18  # of a longer test part, windows evenly spaced
WRITTEN, PROMPT = 200, 48  # bytes of a sample, and of the test part that one follows


def text_report(trainer: TextTrainer) -> dict[str, Any]:
    """Scores the best checkpoint on bytes that nothing was chosen by."""
    config, at, text = trainer.config, trainer.at, trainer.text
    best = best_of(trainer)
    context, test_N = trainer.model.config.context, text.part(TEST)
    scored = spaced_windows(test_N, context, SCORED_BYTES)
    loss, accuracy = score(trainer.model, *scored, config.batch, trainer.step.choose(config.batch))
    name = f"{config.model} {config.size}"
    scores = [_score(name, loss, accuracy)] + [
        _score(*other) for other in _compared(text.part(TRAIN), test_N, scored[1])
    ]
    return {
        "status": at.finished,
        "summary": _summary(scores),
        "run": run_facts(trainer, best, [len(text.part(part)) for part in PARTS], context),
        "scores": scores,
        "history": trainer.metrics.read(),
        "test": None,
        "samples": _samples(trainer),
        "config": config.to_dict(),
        "schema": None,
        "notes": [],
        "evidence": evidence_of(trainer.run.path / "evidence.jsonl"),
        "environment": environment(config, trainer.kernels()),
    }


def _summary(scores: list[dict[str, Any]]) -> str:
    own, *others = (f"{row['name']} {row['bits_per_byte']:.3f}" for row in scores)
    return f"Bits for a held-out byte: {own} ({', '.join(others)})."


def _score(name: str, loss: float, accuracy: float | None) -> dict[str, Any]:
    bits = loss / math.log(2)
    return {
        "name": name,
        "accuracy": accuracy,
        "log_loss": loss,
        "bits_per_byte": bits,
        "note": f"{bits:.3f} bits per byte",
    }


def _compared(train_N: np.ndarray, test_N: np.ndarray, target_BS: np.ndarray) -> list[tuple[str, float, float | None]]:
    """Counts of pairs and of single bytes in the training part, and what xz makes of the test part alone."""
    single_V = np.bincount(train_N, minlength=256) + 1.0
    pair_VV = np.bincount(train_N[:-1].astype(np.int64) * 256 + train_N[1:], minlength=256 * 256).reshape(256, 256)
    before_B, after_B = (part[target_BS[:, 1:] >= 0] for part in (target_BS[:, :-1], target_BS[:, 1:]))
    single_V /= single_V.sum()
    # Each row of pairs is smoothed by ten bytes of the overall shares.
    pair_VV = (pair_VV + 10 * single_V) / (pair_VV.sum(1, keepdims=True) + 10)
    packed = len(lzma.compress(np.ascontiguousarray(test_N).tobytes(), preset=9 | lzma.PRESET_EXTREME))
    byte_T = target_BS[target_BS >= 0]
    right = float((pair_VV.argmax(1)[before_B] == after_B).mean()) if len(after_B) else None
    pairs = -float(np.log(pair_VV[before_B, after_B]).mean()) if len(after_B) else math.inf
    return [
        ("pairs of bytes", pairs, right),
        ("single bytes", -float(np.log(single_V[byte_T]).mean()), float((single_V.argmax() == byte_T).mean())),
        ("xz -9e", 8 * packed / len(test_N) * math.log(2), None),
    ]


def _samples(trainer: TextTrainer) -> list[dict[str, Any]]:
    """What the model writes, from nothing and after the beginning of the test part."""
    prompts = (b"", trainer.text.part(TEST)[:PROMPT].tobytes())
    samples = []
    for prompt in prompts:
        written = sample(trainer.model, WRITTEN, prompt=prompt, seed=trainer.config.seed)
        said = (part.decode("utf-8", errors="replace") for part in (prompt, written))
        samples.append({**dict(zip(("prompt", "text"), said, strict=True)), "temperature": TEMPERATURE})
    return samples
