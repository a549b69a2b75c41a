"""Initial training from labelled calls.

A call to allow teaches all of its acts, one to block its riskiest: at first the one that the policy is strictest with,
then the one that the model holds for the worst. The weights of the n-grams and of the features are each the solution of

    min_w  Σ_r c_r·(softplus(z_r) − y_r·z_r) + ‖w‖²/(2·STRENGTH),   z_r = Σ_g a_rg·w[gram_rg] + b,

c_r giving both classes the same weight in all: the n-grams' of the calls themselves, the features' of these and of
others that were made up (`starter.made_up`), since those that somebody blocked are few and never of every kind; what
was made up has the features of such a call, not the letters. Each part learns alone, since on few calls the quicker one
would leave nothing for the other to learn; then their logits are added, the features with two fifths of the spread.

A seventh of the calls, near-duplicates together, is kept for validation and calibration. Last, both are solved for
again with these calls among the others.

A gate may have an encoder as well. It learns from batches in which a quarter of the calls is to be blocked, however
rare those are; the weights are averaged over the second half of its steps, and what scored best on the validation calls
stays, as does its share of the logit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradproof.gate import folds
from gradproof.gate.features import MARK
from gradproof.gate.network import FEATURES, NGRAMS, Calibration, GateConfig, GateModel, GateNetwork, Sparse, stacked
from gradproof.gate.policy import calibrate
from gradproof.gate.roc import auc
from gradproof.gate.sparse_shares import SparseShares
from gradproof.gate.starter import MadeUp, made_up
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
OF_FEATURES = 0.4  # of the spread of n-grams and features: a fixed part, for few held calls tell it badly
ROUNDS = 2  # of choosing the riskiest act of each call to block
CLEARLY = 0.005  # of AUC, where the held calls to block may be a dozen
LEAST = 2  # calls that an n-gram or a feature occurs in, to be known


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
    call_R: np.ndarray | None = None,
    seed: int = 0,
    config: GateConfig | None = None,
    recipe: Recipe | None = None,
    more: MadeUp | None = None,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Fitted:
    """A gate from texts of acts, as `reading.act_texts` writes them, of both classes. `call_R` says which call an act
    is of (each is one of its own unless given); of a call to block the first act is the one that the policy is
    strictest with. `more` is what was made up: the project's own unless given."""
    allow_R = np.asarray(allow, dtype=bool)
    call_R = np.arange(len(texts)) if call_R is None else np.asarray(call_R)
    if min(allow_R.sum(), (~allow_R).sum()) < 2 * VALIDATION:
        raise ValueError(
            f"{int(allow_R.sum())} calls to allow and {int((~allow_R).sum())} to block: at least {2 * VALIDATION} of"
            " each are needed to learn from"
        )
    model, recipe = GateModel.fresh(seed, config), recipe or Recipe()
    rows = [model.encode(text) for text in texts]
    held_R = _held(texts, allow_R, call_R, seed)
    task = Task(model.network, rows, allow_R, call_R, made_up() if more is None else more, model)
    encoder = bool(model.network.config.encoder_layers)
    if encoder:
        train_encoder(model, rows, allow_R, task.first & ~held_R, task.first & held_R, recipe, seed, watch)
    z_R, of_features = task.logits(task.solved(task.first & ~held_R))
    for _ in range(1, ROUNDS):
        z_R, of_features = task.logits(task.solved(task.riskiest(z_R) & ~held_R))
    chosen_R = task.riskiest(z_R)
    held = np.flatnonzero(chosen_R & held_R)
    z_V, of_encoder = z_R[held], 0.0
    if encoder:
        encoded_V = logits(model, [rows[i] for i in held])
        of_encoder = best_part(z_V, encoded_V, allow_R[held], SHARES)
        z_V = z_V + of_encoder * encoded_V
    model.calibration = Calibration(*calibrate(z_V, allow_R[held]))
    solved = task.solved(chosen_R)  # what was held back is too rare to leave unlearned
    model.network.params[NGRAMS.weight].copy_(solved[NGRAMS])
    model.network.params[FEATURES.weight].copy_(of_features * solved[FEATURES])
    for name in ("output.weight", "output.bias") if encoder else ():
        model.network.params[name].mul_(of_encoder)
    return Fitted(model, z_V, allow_R[held])


def _held(texts: Sequence[str], allow_R: np.ndarray, call_R: np.ndarray, seed: int) -> np.ndarray:
    """Which acts are kept for validation: those of whole calls, and near-duplicates of commands with them, unless that
    leaves no call of one label to learn from, or to validate with."""
    commands = [text.partition(f"\n{MARK}")[0] for text in texts]
    together = folds.joined(folds.near_duplicates(commands), call_R.tolist())
    for cluster_R in (together, np.unique(call_R, return_inverse=True)[1]):
        held_R = folds.deal(cluster_R, allow_R, VALIDATION, seed) == 0
        if all(part_R.any() and not part_R.all() for part_R in (allow_R[held_R], allow_R[~held_R])):
            break
    return held_R


class Task:
    """What there is to learn: the n-grams and features of every act, and of what was made up."""

    def __init__(
        self,
        network: GateNetwork,
        rows: Sequence[Sequence[int]],
        allow_R: np.ndarray,
        call_R: np.ndarray,
        more: MadeUp,
        model: GateModel,
    ):
        self.network, self.allow_R, self.call_R = network, allow_R, call_R
        self.layers = {layer: [_numbers(row, layer, model) for row in rows] for layer in (NGRAMS, FEATURES)}
        self.made_up = [_numbers(model.encode(text), FEATURES, model) for text in more.texts]
        self.made_up_allow = np.asarray(more.allow, dtype=bool)
        _, first = np.unique(call_R, return_index=True)
        self.first = allow_R.copy()  # all acts of calls to allow, the first of each call to block
        self.first[first] = True

    def solved(self, chosen_R: np.ndarray) -> dict[Sparse, Tensor]:
        """The n-grams' weights, of the chosen acts; the features', of these and the made-up ones."""
        chosen = np.flatnonzero(chosen_R)
        grams, own = ([rows[i] for i in chosen] for rows in self.layers.values())
        features, allow = [*own, *self.made_up], np.concatenate((self.allow_R[chosen], self.made_up_allow))
        know(self.network, grams, NGRAMS)
        know(self.network, features, FEATURES)
        return {
            NGRAMS: solve(self.network, grams, self.allow_R[chosen], NGRAMS)[0],
            FEATURES: solve(self.network, features, allow, FEATURES)[0],
        }

    def logits(self, solved: Mapping[Sparse, Tensor]) -> tuple[np.ndarray, float]:
        """z of every act, and what the features' weights are multiplied by for their share of it."""
        own_R, features_R = (logits_of(self.network, self.layers[layer], w_N, layer) for layer, w_N in solved.items())
        of_features = part(own_R, features_R, OF_FEATURES)
        return own_R + of_features * features_R, of_features

    def riskiest(self, z_R: np.ndarray) -> np.ndarray:
        """All acts of calls to allow; of each call to block the one with the lowest logit."""
        chosen_R = self.allow_R.copy()
        blocked = np.flatnonzero(~self.allow_R)
        order = blocked[np.lexsort((z_R[blocked], self.call_R[blocked]))]
        _, lowest = np.unique(self.call_R[order], return_index=True)
        chosen_R[order[lowest]] = True
        return chosen_R


def train_encoder(
    model: GateModel,
    rows: Sequence[Sequence[int]],
    allow_R: np.ndarray,
    learned_R: np.ndarray,
    held_R: np.ndarray,
    recipe: Recipe,
    seed: int,
    watch: Callable[[int, int], None],
) -> None:
    """Trains on the tokens alone and keeps the average of the weights that did best on the held calls."""
    learned, held = np.flatnonzero(learned_R), np.flatnonzero(held_R)
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


def solve(network: GateNetwork, rows: Sequence[list[int]], allow_R: np.ndarray, layer: Sparse) -> tuple[Tensor, float]:
    """w_N and b of the acts with these n-grams or features, as the network knows them. b is not used: the calibration
    has an offset of its own."""
    label_R, R, allowed = torch.from_numpy(allow_R).float(), len(rows), float(allow_R.sum())
    weight_R = torch.where(label_R > 0.5, R / (2 * allowed), R / (2 * (R - allowed)))
    parts = ((chosen, gram_BG) for gram_BG, chosen in parts_of(network, rows, ROWS, layer))
    shares = SparseShares(parts, R, network.buffers[layer.scale])
    solved = torch.zeros(len(shares.used) + 1)  # w of what occurs, and b

    def objective() -> Tensor:
        """At `solved`; its gradient goes where L-BFGS looks for it."""
        z_R = shares.forward(solved[:-1]) + solved[-1]
        loss, kept = bce.forward(z_R, label_R, weight_R, total=1.0)
        dz_R = bce.backward(torch.ones(()), kept, z_R, label_R)
        solved.grad = torch.cat((solved[:-1] / STRENGTH + shares.backward(dz_R), dz_R.sum()[None]))
        return loss + solved[:-1].square().sum() / (2 * STRENGTH)

    optimizer = torch.optim.LBFGS([solved], max_iter=PASSES, history_size=12, line_search_fn="strong_wolfe")
    optimizer.step(objective)  # pyright: ignore[reportArgumentType]
    w_N = torch.zeros_like(network.params[layer.weight])
    w_N[shares.used] = solved[:-1]
    return w_N, float(solved[-1])


def parts_of(
    network: GateNetwork, rows: Sequence[list[int]], many: int, layer: Sparse
) -> Iterator[tuple[Tensor, list[int]]]:
    """gram_BG, or feature_BG, of so many acts at a time, and which they are."""
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
        (network.weight_of(numbers), c.buckets) if layer == NGRAMS else (network.feature_weight_of(numbers), c.features)
    )
    count_N = torch.bincount(weight[(weight >= 0) & (weight < many)], minlength=many)
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
    number_X = np.asarray(row, dtype=np.int64)
    first = model.network.config.vocabulary + layer.numbers.start
    return number_X[(number_X >= first) & (number_X < first + len(layer.numbers))].tolist()
