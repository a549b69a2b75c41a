"""Initial training from labelled calls.

A seventh of the calls, near-duplicates together, is kept for validation. The encoder learns from batches in which a
quarter of the calls is to be blocked, however rare those are; the weights are averaged over the second half of its
steps, and what scored best on the validation calls stays. The weights of the n-grams and of the deeds are each the
solution of

    min_w  Σ_r c_r·(softplus(z_r) − y_r·z_r) + ‖w‖²/(2·STRENGTH),   z_r = Σ_g a_rg·w[gram_rg] + b,

c_r giving both classes the same weight in all: the n-grams' of the calls themselves, the deeds' of those to allow
against calls to block that were made up (`starter.harmful`), since those that somebody blocked are few and never of
every kind; and what was made up has the deeds of such a call, not the letters. Each part learns alone, since on few
calls the quicker one would leave nothing for the others to learn; then their logits are added: the deeds have a fixed
share, the encoder one that the validation calls decide. Last, both are solved for again with the validation calls among
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradproof.gate import folds
from gradproof.gate.network import DEEDS, NGRAMS, Calibration, GateConfig, GateModel, GateNetwork, Sparse, stacked
from gradproof.gate.policy import calibrate
from gradproof.gate.roc import auc
from gradproof.gate.starter import harmful
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
MADE_UP = 0.25  # of the spread of n-grams and deeds is the deeds': a fixed part, for few held calls tell it badly
CLEARLY = 0.005  # of AUC, where the held calls to block may be a dozen
LEAST = 2  # calls that an n-gram or a deed occurs in, to be known


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
    harm: Sequence[str] | None = None,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Fitted:
    """A gate from texts, as `calls.text` writes them, of both classes. `harm` is made-up texts to block: the project's
    own unless given; none where it is empty."""
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
    encoded_V = logits(model, [rows[i] for i in held])
    layers = {layer: [_numbers(row, layer, model) for row in rows] for layer in (NGRAMS, DEEDS)}
    made_up = [_numbers(model.encode(text), DEEDS, model) for text in (harmful() if harm is None else harm)]
    two = solve_both(model.network, layers, allow_R, learned, made_up)
    own_V, harm_V = (
        logits_of(model.network, [layers[layer][i] for i in held], w_N, layer) for layer, w_N in two.items()
    )
    of_harm = part(own_V, harm_V, MADE_UP)
    linear_V = own_V + of_harm * harm_V
    of_encoder = best_part(linear_V, encoded_V, allow_R[held], SHARES)
    z_V = linear_V + of_encoder * encoded_V
    model.calibration = Calibration(*calibrate(z_V, allow_R[held]))
    # What was held back is too rare to leave unlearned.
    two = solve_both(model.network, layers, allow_R, np.arange(len(rows)), made_up)
    model.network.params[NGRAMS.weight].copy_(two[NGRAMS])
    model.network.params[DEEDS.weight].copy_(of_harm * two[DEEDS])
    for name in ("output.weight", "output.bias"):
        model.network.params[name].mul_(of_encoder)
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
            held_auc = auc(-logits(model, [tokens[i] for i in held]), ~allow_R[held])
            if held_auc is not None and held_auc >= best:
                best, best_P = held_auc, mean_P.clone()
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
        parts = [sorted(next(endless).tolist(), key=lambda i: len(tokens[i])) for endless in drawn]
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


def solve_both(
    network: GateNetwork,
    layers: Mapping[Sparse, Sequence[list[int]]],
    allow_R: np.ndarray,
    learned: np.ndarray,
    made_up: Sequence[list[int]],
) -> dict[Sparse, Tensor]:
    """The n-grams' weights, of the learned calls; the deeds', of those to allow among them against the made-up ones."""
    for layer, rows in layers.items():
        know(network, [rows[i] for i in learned], layer)
    own_N, _ = solve(network, [layers[NGRAMS][i] for i in learned], allow_R[learned], NGRAMS)
    if not made_up:
        return {NGRAMS: own_N, DEEDS: torch.zeros_like(network.params[DEEDS.weight])}
    allowed = [layers[DEEDS][i] for i in learned[allow_R[learned]]]
    is_allowed = np.arange(len(allowed) + len(made_up)) < len(allowed)
    harm_N, _ = solve(network, [*allowed, *made_up], is_allowed, DEEDS)
    return {NGRAMS: own_N, DEEDS: harm_N}


def solve(network: GateNetwork, rows: Sequence[list[int]], allow_R: np.ndarray, layer: Sparse) -> tuple[Tensor, float]:
    """w_N and b of the calls with these n-grams or deeds, as the network knows them. b is not used: the calibration has
    an offset of its own."""
    labels = torch.from_numpy(allow_R).float()
    parts = [(gram_BG, labels[chosen]) for gram_BG, chosen in parts_of(network, rows, ROWS, layer)]
    R, allowed = len(rows), float(allow_R.sum())
    weights = (R / (2 * (R - allowed)), R / (2 * allowed))  # of block, of allow
    solved = torch.zeros(len(network.params[layer.weight]) + 1)  # w_N and b

    def objective() -> Tensor:
        """At `solved`; its gradient goes where L-BFGS looks for it."""
        value = solved[:-1].square().sum() / (2 * STRENGTH)
        solved.grad = torch.cat((solved[:-1] / STRENGTH, torch.zeros(1)))
        for gram_BG, label_B in parts:
            y_B, share_BG = hashed_ngrams.forward(gram_BG, network.buffers[layer.scale], solved[:-1])
            z_B, weight_B = y_B + solved[-1], torch.where(label_B > 0.5, weights[1], weights[0])
            loss, kept = bce.forward(z_B, label_B, weight_B, total=1.0)
            dz_B = bce.backward(torch.ones(()), kept, z_B, label_B)
            solved.grad[:-1] += hashed_ngrams.backward(dz_B, share_BG, gram_BG, solved[:-1])
            solved.grad[-1] += dz_B.sum()
            value = value + loss
        return value

    optimizer = torch.optim.LBFGS([solved], max_iter=PASSES, history_size=12, line_search_fn="strong_wolfe")
    optimizer.step(objective)  # pyright: ignore[reportArgumentType]
    return solved[:-1].clone(), float(solved[-1])


def parts_of(
    network: GateNetwork, rows: Sequence[list[int]], many: int, layer: Sparse
) -> Iterator[tuple[Tensor, list[int]]]:
    """gram_BG, or deed_BG, of so many calls at a time, and which they are."""
    for chosen in alike(dict(enumerate(rows)), many):
        x_BX = stacked([[PADDING, *rows[i]] for i in chosen], network.config.vocabulary)
        yield network.split(x_BX)[layer.part], chosen


def know(network: GateNetwork, rows: Iterable[list[int]], layer: Sparse) -> None:
    """Known is what occurs in two calls or more; the rarer what a weight is for, the more it counts; the strange counts
    1, as much as the commonest."""
    own = [np.array(row, dtype=np.int64) - network.config.vocabulary - layer.numbers.start for row in rows]
    numbers = torch.from_numpy(np.concatenate(own))
    network.buffers[layer.known].copy_(torch.bincount(numbers, minlength=len(layer.numbers)) >= LEAST)
    c = network.config
    weight, many = (
        (network.weight_of(numbers), c.buckets) if layer == NGRAMS else (network.deed_weight_of(numbers), c.deeds)
    )
    count_N = torch.bincount(weight[weight < many], minlength=many)
    network.buffers[layer.scale][:many] = torch.log((1 + len(own)) / (1 + count_N.clamp(max=len(own)))) + 1


def logits_of(network: GateNetwork, rows: Sequence[list[int]], w_N: Tensor, layer: Sparse) -> np.ndarray:
    """What these weights add to z of each call."""
    z_R = np.zeros(len(rows))
    for gram_BG, chosen in parts_of(network, rows, ROWS, layer):
        z_R[chosen] = hashed_ngrams.forward(gram_BG, network.buffers[layer.scale], w_N)[0].double().numpy()
    return z_R


def part(first_V: np.ndarray, second_V: np.ndarray, share: float) -> float:
    """r such that r·second has this share of the spread of the two."""
    return max(float(first_V.std()), 1e-6) / max(float(second_V.std()), 1e-6) * share / (1 - share)


def best_part(first_V: np.ndarray, second_V: np.ndarray, allow_V: np.ndarray, shares: Sequence[float]) -> float:
    """r of first + r·second: of these shares the one that ranks the held calls best; the earlier where two do about as
    well."""
    best, chosen = -1.0, 0.0
    for share in shares:
        r = part(first_V, second_V, share)
        held_auc = auc(-(first_V + r * second_V), ~allow_V)
        if held_auc is not None and held_auc > best + CLEARLY:
            best, chosen = held_auc, r
    return chosen


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


def _numbers(row: Sequence[int], layer: Sparse, model: GateModel) -> list[int]:
    """What a layer reads of a row."""
    first = model.network.config.vocabulary
    return [number for number in row if number - first in layer.numbers]
