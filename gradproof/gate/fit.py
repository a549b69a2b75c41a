"""Initial training from labelled calls.

A seventh of the calls, near-duplicates together, is kept for validation. The encoder learns from batches in which a
quarter of the calls is to be blocked, however rare those are; the weights are averaged over the second half of its
steps, and what scored best on the validation calls stays. The n-grams' weights are the solution of

    min_w  Σ_r c_r·(softplus(z_r) − y_r·z_r) + ‖w‖²/(2·STRENGTH),   z_r = Σ_g a_rg·w[gram_rg] + b,

c_r giving both classes the same weight in all. Each of the two learns alone, since on few calls the quicker one would
leave nothing for the other to learn; then their logits are added, in shares that the validation calls decide. Last, the
n-grams are solved for again with the validation calls among the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradproof.gate import folds
from gradproof.gate.network import KNOWN, SCALE, WEIGHT, Calibration, GateConfig, GateModel, GateNetwork, stacked
from gradproof.gate.ngrams import NUMBERS
from gradproof.gate.policy import calibrate
from gradproof.gate.roc import auc
from gradproof.ops import bce, hashed_ngrams
from gradproof.ops.embedding import PADDING
from gradproof.streams import philox
from gradproof.train.adamw import AdamW
from gradproof.train.schedule import Schedule
from gradproof.train.step import TrainStep

VALIDATION = 7  # one in so many
STRENGTH = 100.0  # how freely the n-grams' weights may grow
PASSES = 60  # of L-BFGS
ROWS = 256  # whose n-grams are added up at a time
SHARES = (0.1, 0.25, 0.5)  # of the logit's spread, that the encoder may have
CLEARLY = 0.001  # of AUC
LEAST = 2  # calls that an n-gram occurs in, to be known


@dataclass(frozen=True)
class Recipe:
    """How the encoder learns."""

    steps: int = 160
    batch: int = 32
    blocked: int = 8  # calls to block in a batch
    rate: float = 1e-3
    decay: float = 0.05
    looks: int = 2  # at the validation calls, in the second half


class Fitted(NamedTuple):
    """The model, and what it says of the calls it did not learn from: z_V, and whether they are to be allowed."""

    model: GateModel
    z_V: np.ndarray
    allow_V: np.ndarray


def fit(
    texts: Sequence[str],
    allow: Sequence[bool] | np.ndarray,
    *,
    seed: int = 0,
    config: GateConfig | None = None,
    recipe: Recipe | None = None,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Fitted:
    """A gate from texts, as `calls.text` writes them, of both classes."""
    allow_R = np.asarray(allow, dtype=bool)
    if min(allow_R.sum(), (~allow_R).sum()) < 2 * VALIDATION:
        raise ValueError(
            f"{int(allow_R.sum())} calls to allow and {int((~allow_R).sum())} to block: at least {2 * VALIDATION} of"
            " each are needed to learn from"
        )
    model, recipe = GateModel.fresh(seed, config), recipe or Recipe()
    rows = [model.encode(text) for text in texts]
    held_R = folds.deal(folds.near_duplicates(texts), allow_R, VALIDATION, seed) == 0
    learned, held = np.flatnonzero(~held_R), np.flatnonzero(held_R)
    train_encoder(model, rows, allow_R, learned, held, recipe, seed, watch)
    held_rows = [rows[i] for i in held]
    encoded_V = logits(model, held_rows)
    blend(model, encoded_V, logits_of_ngrams(model, rows, allow_R, learned, held), allow_R[held])
    z_V = logits(model, held_rows)
    model.calibration = Calibration(*calibrate(z_V, allow_R[held]))
    solve_ngrams(model, rows, allow_R, np.arange(len(rows)))  # what was held back is too rare to leave unlearned
    return Fitted(model, z_V, allow_R[held])


def train_encoder(
    model: GateModel,
    rows: Sequence[Sequence[int]],
    allow_R: np.ndarray,
    learned: np.ndarray,
    held: np.ndarray,
    recipe: Recipe,
    seed: int,
    watch: Callable[[int, int], None],
) -> None:
    """Trains on the tokens alone and keeps the average of the weights that did best on the held calls."""
    params, vocabulary = model.network.params, model.network.config.vocabulary
    tokens = [[token for token in row if token < vocabulary] for row in rows]
    schedule = Schedule(recipe.steps, warmup=0.08, floor=0.05)
    step = TrainStep(model.network, "bce", AdamW(recipe.rate, weight_decay=recipe.decay), clip=1.0, schedule=schedule)
    generator = np.random.Generator(philox(seed, "fit"))
    mean_P, best_P, best, half = params.flat_P.clone(), params.flat_P.clone(), -1.0, recipe.steps // 2
    looks = {recipe.steps - i * (half // recipe.looks) for i in range(recipe.looks)}
    for done, chosen in enumerate(batches(tokens, allow_R, learned, recipe, generator), 1):
        label_B = torch.from_numpy(allow_R[chosen]).float()
        step(model.batch([tokens[i] for i in chosen]), (label_B, torch.ones_like(label_B)))
        mean_P.lerp_(params.flat_P, 1.0 if done <= half else 0.03)
        if done in looks:
            latest_P = params.flat_P.clone()
            params.flat_P.copy_(mean_P)
            found = auc(-logits(model, [tokens[i] for i in held]), ~allow_R[held])
            if found is not None and found >= best:
                best, best_P = found, mean_P.clone()
            params.flat_P.copy_(latest_P)
        watch(done, recipe.steps)
    params.flat_P.copy_(best_P)


def batches(
    tokens: Sequence[Sequence[int]],
    allow_R: np.ndarray,
    learned: np.ndarray,
    recipe: Recipe,
    generator: np.random.Generator,
) -> Iterator[np.ndarray]:
    """The calls of each step: drawn for eight batches at a time and split by length, so that little is padding."""
    ahead = 8
    drawn = [
        _endless(learned[allow_R[learned]], (recipe.batch - recipe.blocked) * ahead, generator),
        _endless(learned[~allow_R[learned]], recipe.blocked * ahead, generator),
    ]
    left = recipe.steps
    while left > 0:
        parts = [sorted(next(each).tolist(), key=lambda i: len(tokens[i])) for each in drawn]
        split = [np.array_split(np.array(part), ahead) for part in parts]
        for i in generator.permutation(ahead)[:left]:
            yield np.concatenate([part[i] for part in split])
        left -= ahead


def _endless(from_R: np.ndarray, many: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Each call once before any comes again."""
    waiting = np.zeros(0, dtype=np.int64)
    while True:
        while len(waiting) < many:
            waiting = np.concatenate((waiting, generator.permutation(from_R)))
        yield waiting[:many]
        waiting = waiting[many:]


def solve_ngrams(model: GateModel, rows: Sequence[Sequence[int]], allow_R: np.ndarray, learned: np.ndarray) -> float:
    """Sets which n-grams are known, how much each counts, and its weight. Returns b, which is left out of the network:
    the calibration has an offset of its own."""
    network = model.network
    grams = {i: _grams(rows[i], network.config.vocabulary) for i in learned.tolist()}
    know_ngrams(network, grams.values())
    parts = [_part(network, grams, chosen, allow_R) for chosen in alike(grams, ROWS)]
    allowed = float(allow_R[learned].sum())
    weights = (len(learned) / (2 * (len(learned) - allowed)), len(learned) / (2 * allowed))  # of block, of allow
    solved = torch.zeros(len(network.params[WEIGHT]) + 1)  # w_N and b

    def objective() -> Tensor:
        """At `solved`; its gradient goes where L-BFGS looks for it."""
        value = solved[:-1].square().sum() / (2 * STRENGTH)
        solved.grad = torch.cat((solved[:-1] / STRENGTH, torch.zeros(1)))
        for gram_BG, label_B in parts:
            y_B, share_BG = hashed_ngrams.forward(gram_BG, network.buffers[SCALE], solved[:-1])
            z_B, weight_B = y_B + solved[-1], torch.where(label_B > 0.5, weights[1], weights[0])
            loss, kept = bce.forward(z_B, label_B, weight_B, total=1.0)
            dz_B = bce.backward(torch.ones(()), kept, z_B, label_B)
            solved.grad[:-1] += hashed_ngrams.backward(dz_B, share_BG, gram_BG, solved[:-1])
            solved.grad[-1] += dz_B.sum()
            value = value + loss
        return value

    optimizer = torch.optim.LBFGS([solved], max_iter=PASSES, history_size=12, line_search_fn="strong_wolfe")
    optimizer.step(objective)  # pyright: ignore[reportArgumentType]
    network.params[WEIGHT].copy_(solved[:-1])
    return float(solved[-1])


def _part(
    network: GateNetwork, grams: Mapping[int, list[int]], chosen: Sequence[int], allow_R: np.ndarray
) -> tuple[Tensor, Tensor]:
    """gram_BG and label_B of some rows."""
    x_BX = stacked([[PADDING, *grams[i]] for i in chosen], network.config.vocabulary)
    return network.split(x_BX)[1], torch.from_numpy(allow_R[list(chosen)]).float()


def know_ngrams(network: GateNetwork, grams: Iterable[list[int]]) -> None:
    """Known is what occurs in two calls or more; the rarer a weight's n-grams, the more it counts; the strange
    count 1, as much as the commonest."""
    rows = [np.array(row, dtype=np.int64) - network.config.vocabulary for row in grams]
    numbers = torch.from_numpy(np.concatenate(rows))
    network.buffers[KNOWN].copy_(torch.bincount(numbers, minlength=NUMBERS) >= LEAST)
    weight, buckets = network.weight_of(numbers), network.config.buckets
    count_N = torch.bincount(weight[weight < buckets], minlength=buckets)
    network.buffers[SCALE][:buckets] = torch.log((1 + len(rows)) / (1 + count_N.clamp(max=len(rows)))) + 1


def logits_of_ngrams(
    model: GateModel, rows: Sequence[Sequence[int]], allow_R: np.ndarray, learned: np.ndarray, held: np.ndarray
) -> np.ndarray:
    """z_V of the held calls by the n-grams of the learned ones alone; the encoder's part cancels."""
    before_V = logits(model, [rows[i] for i in held])
    solve_ngrams(model, rows, allow_R, learned)
    return logits(model, [rows[i] for i in held]) - before_V


def blend(model: GateModel, encoded_V: np.ndarray, linear_V: np.ndarray, allow_V: np.ndarray) -> None:
    """z = n-grams' + r·encoder's logit: of the shares of the spread that the encoder may have, the one that ranks the
    held calls best, the smaller where two do about as well."""
    ratio = max(float(linear_V.std()), 1e-6) / max(float(encoded_V.std()), 1e-6)
    best, chosen = -1.0, 0.0
    for share in SHARES:
        r = ratio * share / (1 - share)
        found = auc(-(linear_V + r * encoded_V), ~allow_V)
        if found is not None and found > best + CLEARLY:
            best, chosen = found, r
    model.network.params["output.weight"].mul_(chosen)
    model.network.params["output.bias"].mul_(chosen)


def logits(model: GateModel, rows: Sequence[Sequence[int]], batch: int = 64) -> np.ndarray:
    """z of many encoded rows."""
    z_R = np.zeros(len(rows))
    for chosen in alike(dict(enumerate(rows)), batch):
        z_R[chosen] = model.logits([rows[i] for i in chosen])
    return z_R


def alike(rows: Mapping[int, Sequence[int]], many: int) -> list[list[int]]:
    """Their keys in parts of so many, those of like length together, so that little is padding."""
    order = sorted(rows, key=lambda i: len(rows[i]))
    return [order[start : start + many] for start in range(0, len(order), many)]


def _grams(row: Sequence[int], vocabulary: int) -> list[int]:
    return [number for number in row if number >= vocabulary]
