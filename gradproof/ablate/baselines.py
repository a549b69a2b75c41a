"""The baselines, on the same splits: HistGradientBoosting, logistic regression, a PyTorch MLP.

Each has three settings to try, as each family has, and the validation rows choose among them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gradproof.data.batches import Batches
from gradproof.data.encoders import Encoder
from gradproof.data.rows import Rows
from gradproof.data.source import Source
from gradproof.data.split import TEST, TRAIN, VALIDATION
from gradproof.train.baselines import MOST_NUMBERS, MOST_ROWS, fit_logistic, tree_inputs, tree_names
from gradproof.train.config import TrainConfig
from gradproof.train.evaluate import spaced
from gradproof.train.schedule import Schedule
from gradproof.train.score import log_loss

CHUNK = 4096
ROUNDS = 200  # of boosting at most; the validation rows choose how many
HIDDEN_LAYERS = 2

SETTINGS: dict[str, tuple[float, ...]] = {
    "hist-gradient-boosting": (0.03, 0.1, 0.3),
    "logistic-regression": (0.1, 1, 10),
}
NAMES = {"hist-gradient-boosting": "rate", "logistic-regression": "C", "mlp": "lr"}


class FittedBaseline(NamedTuple):
    """Probabilities of the held-out rows, and what it took. `curve` holds (step, validation loss, accuracy)."""

    validation_TC: np.ndarray
    test_TC: np.ndarray
    seconds: float
    parameters: int | None = None
    flops: int | None = None  # of a training step for one row: 6 a weight
    steps: int | None = None
    best_step: int | None = None
    curve: tuple[tuple[int, float, float], ...] = ()


def fit(
    name: str, source: Source, value: float, config: TrainConfig, budget: int, progress: Callable[[int, int], None]
) -> FittedBaseline:
    """The baseline at one value of its setting."""
    if name == "mlp":
        return perceptron(source, config, budget, progress)
    if name == "logistic-regression":
        return logistic(source, value)
    return hist_gradient_boosting(source, value, config.seed)


def hist_gradient_boosting(source: Source, rate: float, seed: int) -> FittedBaseline:
    """Trees on the columns themselves: names as categories, missing numbers as such. As many rounds as the validation
    rows like best."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    def matrix(part: int) -> np.ndarray:
        return tree_inputs(source.rows.take(source.index(part)))

    begun = time.perf_counter()
    model: Any = HistGradientBoostingClassifier(
        learning_rate=rate,
        max_iter=ROUNDS,
        categorical_features=tree_names(source.schema),  # type: ignore[arg-type]
        early_stopping=True,  # type: ignore[arg-type]
        n_iter_no_change=10,
        random_state=seed,
    )
    known = np.asarray(source.rows.outcome_R)
    held = source.index(VALIDATION)
    model.fit(matrix(TRAIN), known[source.index(TRAIN)], X_val=matrix(VALIDATION), y_val=known[held])
    seconds = time.perf_counter() - begun
    validation_TC, test_TC = (
        _spread(model.predict_proba(matrix(p)), model.classes_, source) for p in (VALIDATION, TEST)
    )
    return FittedBaseline(validation_TC, test_TC, seconds, steps=int(model.n_iter_))


def logistic(source: Source, c: float) -> FittedBaseline:
    """On the inputs that the models see, of at most so many rows; `c` is the inverse of the penalty."""
    encoder, classes = Encoder(source.schema), len(source.schema.classes)
    most = min(MOST_ROWS, MOST_NUMBERS // source.schema.inputs)
    some = source.rows.take(spaced(source.index(TRAIN), most))
    begun = time.perf_counter()
    predict = fit_logistic(np.concatenate(list(_inputs(encoder, some))), some.outcome_R, classes, c)
    seconds = time.perf_counter() - begun
    held = (source.rows.take(source.index(part)) for part in (VALIDATION, TEST))
    validation_TC, test_TC = (np.concatenate([predict(x_TI) for x_TI in _inputs(encoder, rows)]) for rows in held)
    weights = classes * source.schema.inputs
    return FittedBaseline(validation_TC, test_TC, seconds, weights + classes, 6 * weights)


def perceptron(
    source: Source, config: TrainConfig, budget: int, progress: Callable[[int, int], None]
) -> FittedBaseline:
    """(Linear → ReLU) × 2 → Linear as PyTorch users write it: autograd, torch's AdamW, the same batches, steps, rates
    and schedule as the families; the step with the best validation is kept."""
    torch.manual_seed(config.seed)
    encoder, C = Encoder(source.schema, config.device), len(source.schema.classes)
    model = _sequential(_width(budget, source), source).to(config.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    schedule = Schedule(config.steps, config.schedule, config.warmup)
    batches = Batches(source.index(TRAIN), config.batch, config.seed)
    held = source.rows.take(source.index(VALIDATION))
    curve, best, kept, begun = [], (-1.0, 0.0), {}, time.perf_counter()
    for step in range(config.steps):
        rows = source.rows.take(batches[step])
        for group in optimizer.param_groups:
            group["lr"] = config.lr * schedule.factor(step)
        optimizer.zero_grad()
        _loss(model(encoder.inputs(rows)), encoder.target(rows), C, config.metrics_weight).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip or float("inf"))
        optimizer.step()
        if (step + 1) % config.interval == 0 or step + 1 == config.steps:
            probability_TC = _probabilities(model, encoder, held, C)
            accuracy = float((probability_TC.argmax(1) == held.outcome_R).mean())
            loss = log_loss(probability_TC, held.outcome_R)
            curve.append((step + 1, loss, accuracy))
            progress(step + 1, config.steps)
            if (accuracy, -loss) > best:
                best, kept = (accuracy, -loss), {name: value.clone() for name, value in model.state_dict().items()}
    seconds = time.perf_counter() - begun
    model.load_state_dict(kept)
    test = source.rows.take(source.index(TEST))
    validation_TC, test_TC = (_probabilities(model, encoder, rows, C) for rows in (held, test))
    best_step = next(step for step, loss, accuracy in curve if (accuracy, -loss) == best)
    count = sum(parameter.numel() for parameter in model.parameters())
    flops = 6 * sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    return FittedBaseline(validation_TC, test_TC, seconds, count, flops, config.steps, best_step, tuple(curve))


def perceptron_width(budget: int, inputs: int, outputs: int) -> int:
    """The hidden width H whose count, H² + (I + O + 2)·H + O for two hidden layers, is nearest to the budget."""
    linear = inputs + outputs + HIDDEN_LAYERS
    width = (-linear + (linear**2 + 4 * max(0, budget - outputs)) ** 0.5) / 2
    return max(1, round(width))


def _width(budget: int, source: Source) -> int:
    return perceptron_width(budget, source.schema.inputs, source.schema.outputs)


def _sequential(hidden: int, source: Source) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, o in pairwise([source.schema.inputs, *[hidden] * HIDDEN_LAYERS]):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, source.schema.outputs))


def _loss(logits_TO: Tensor, target: Any, classes: int, weight: float) -> Tensor:
    """The families' own: cross-entropy, and where the table has metrics their squared error."""
    if not isinstance(target, tuple):
        return nn.functional.cross_entropy(logits_TO, target)
    outcome_T, metrics_TM = target
    squared = nn.functional.mse_loss(logits_TO[:, classes:], metrics_TM)
    return nn.functional.cross_entropy(logits_TO[:, :classes], outcome_T) + weight * squared


@torch.no_grad()
def _probabilities(model: nn.Module, encoder: Encoder, rows: Rows, classes: int) -> np.ndarray:
    parts = [model(encoder.inputs(rows.slice(i, i + CHUNK)))[:, :classes] for i in range(0, rows.count, CHUNK)]
    return torch.softmax(torch.cat(parts).double(), 1).cpu().numpy()


def _inputs(encoder: Encoder, rows: Rows) -> Iterator[np.ndarray]:
    return (encoder.inputs(rows.slice(i, i + CHUNK)).numpy() for i in range(0, rows.count, CHUNK))


def _spread(probability_TS: np.ndarray, seen: np.ndarray, source: Source) -> np.ndarray:
    """Over all classes, those that no training row had included."""
    probability_TC = np.zeros((len(probability_TS), len(source.schema.classes)))
    probability_TC[:, seen] = probability_TS
    return probability_TC
