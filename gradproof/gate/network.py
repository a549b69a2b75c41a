"""The gate's model of one act: sparse linear layers on the n-grams of its command and on its features, and, where a
gate has one, a transformer on the command's tokens, in one logit.

    z = Σ_g a_g·w[gram_g] + Σ_h a_h·v[feature_h] + Linear(mean(Encoder(tokens)));   P(allow) = σ(slope·z + offset)

A row of input is the tokens, −1 after them, then the n-grams as numbers from `vocabulary` on and the features as
numbers behind those: one int64 tensor, as every model has. An n-gram that occurred in fewer than two calls of the first
training has no weight of its own: all of one length share one, so that the strange counts as such; such a feature
does not count. By default there is no encoder: it added nothing on sources that were left out of training
(docs/gate-quality.md), and no decision pays for it. `GateModel` is the network with its calibration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Contract, Example
from gradproof.gate import features as act_features
from gradproof.gate import tokenizer
from gradproof.gate.ngrams import BOUNDS, LONGEST, NUMBERS, ngrams
from gradproof.kernels.variants import REFERENCE, Kernels
from gradproof.models.model import MoEOutput
from gradproof.models.transformer import Transformer, TransformerConfig, TransformerMode
from gradproof.ops import hashed_ngrams
from gradproof.ops.embedding import PADDING
from gradproof.ops.route import Whole
from gradproof.params import Entry, Weights
from gradproof.train.checked_path import CheckedPath, checked_path

WEIGHTS, CONFIG = "model.safetensors", "model.json"
WEIGHT, SCALE, KNOWN = "ngrams.weight", "ngrams.scale", "ngrams.known"
FEATURE_WEIGHT, FEATURE_SCALE, FEATURE_KNOWN = "features.weight", "features.scale", "features.known"
ALL_NUMBERS = NUMBERS + act_features.NUMBERS  # those of n-grams, then those of features


class Sparse(NamedTuple):
    """A sparse layer: the names of its weights and buffers, which part of `GateNetwork.split` it reads, and its numbers
    in a row, less the vocabulary."""

    weight: str
    scale: str
    known: str
    part: int
    numbers: range


NGRAMS = Sparse(WEIGHT, SCALE, KNOWN, 1, range(NUMBERS))
FEATURES = Sparse(FEATURE_WEIGHT, FEATURE_SCALE, FEATURE_KNOWN, 2, range(NUMBERS, ALL_NUMBERS))


@dataclass(frozen=True)
class GateConfig(TransformerConfig):
    """`buckets` and `features` are how many weights the known n-grams and the known features share. `encoder_layers` 0:
    no encoder, and no parameters of one."""

    vocabulary: int = tokenizer.VOCABULARY
    width: int = 192
    heads: int = 6
    encoder_layers: int = 0
    decoder_layers: int = 0
    feedforward: int = 384
    context: int = 256
    mode: TransformerMode = "classify"
    buckets: int = 2**18
    features: int = act_features.NUMBERS

    def __post_init__(self):
        super().__post_init__()
        if self.mode != "classify" or min(self.buckets, self.features) < 1:
            raise ValueError("a gate classifies and needs at least one weight each for n-grams and features")

    def spec(self) -> list[Entry]:
        encoder = super().spec() if self.encoder_layers else []
        sizes = {WEIGHT: self.buckets + LONGEST, FEATURE_WEIGHT: self.features}
        return [*encoder, *(Entry(name, (size,), "matrix") for name, size in sizes.items())]


class GateNetwork(Transformer):
    """Tokens, n-grams and features in, one logit out. The buffers say which of them are known and how much each weight
    counts."""

    Config = GateConfig
    config: GateConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: GateConfig, **options: Any):
        super().__init__(config, **options)
        w_N, v_N = self.params[WEIGHT].zero_(), self.params[FEATURE_WEIGHT].zero_()
        known = torch.ones(NUMBERS, dtype=torch.uint8, device=w_N.device)
        self.buffers = {SCALE: torch.ones_like(w_N), KNOWN: known}
        self.buffers |= {FEATURE_SCALE: torch.ones_like(v_N), FEATURE_KNOWN: known.new_ones(act_features.NUMBERS)}

    def rebalance(self, load_E: Tensor) -> None:
        """The buffers are set once, from the training rows; no step moves them."""

    def split(self, x_BX: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """token_BS, gram_BG, feature_BG: what stands before the first n-gram or feature of any row; then which weight
        each n-gram has, and each feature, −1 where there is the other."""
        is_number_X = (x_BX >= self.config.vocabulary).any(0)
        S = int(is_number_X.int().argmax()) if bool(is_number_X.any()) else x_BX.shape[1]
        number_BG = x_BX[:, S:] - self.config.vocabulary
        gram_BG = torch.where(
            (number_BG < 0) | (number_BG >= NUMBERS), PADDING, self.weight_of(number_BG.clamp(0, NUMBERS - 1))
        )
        return x_BX[:, :S], gram_BG, self.feature_weight_of(number_BG - NUMBERS)

    def weight_of(self, number_BG: Tensor) -> Tensor:
        """Which weight an n-gram has: one of the buckets, or its length's if it is not known."""
        ends = torch.tensor(BOUNDS[1:-1], device=number_BG.device)
        strange_BG = self.config.buckets + torch.bucketize(number_BG, ends, right=True)
        return torch.where(self.buffers[KNOWN][number_BG] > 0, number_BG % self.config.buckets, strange_BG)

    def feature_weight_of(self, number_BG: Tensor) -> Tensor:
        """Which weight a feature has: its own; none if it is not known, or below 0. A strange feature says nothing: all
        together would say *allow*, since most of what is rare is ordinary."""
        is_known_BG = (number_BG >= 0) & (self.buffers[FEATURE_KNOWN][number_BG.clamp(min=0)] > 0)
        return torch.where(is_known_BG, number_BG % self.config.features, PADDING)

    def check_input(self, x_BS: Tensor) -> None:
        c = self.config
        if x_BS.dtype != torch.int64 or x_BS.dim() != 2 or not x_BS.numel():
            raise ValueError(
                f"the input must be int64 [B ≥ 1, tokens, n-grams and features], not {x_BS.dtype} {list(x_BS.shape)}"
            )
        if bool((x_BS >= c.vocabulary + ALL_NUMBERS).any()):
            raise ValueError(
                f"a number is neither a token nor an n-gram nor a feature: all are below {c.vocabulary + ALL_NUMBERS:,}"
            )
        token_BS = self.split(x_BS)[0]
        after_BG = x_BS[:, token_BS.shape[1] :]
        if bool(((after_BG >= 0) & (after_BG < c.vocabulary)).any()):
            raise ValueError("a token stands behind an n-gram; the tokens of all rows come first")
        if not token_BS.shape[1]:
            raise ValueError("the input must begin with tokens (−1 where a row has none), not with n-grams")
        super().check_input(token_BS)

    def apply(
        self, weights: Weights, x_TI: Tensor, whole: Whole | None = None, kernels: Kernels = REFERENCE
    ) -> tuple[MoEOutput, Any]:
        token_BS, gram_BG, feature_BG = self.split(x_TI)
        y_B, *shares = self._sparse(weights, gram_BG, feature_BG)
        output, encoded = MoEOutput(y_B[:, None], torch.ones_like(y_B)[:, None], y_B.new_zeros(())), None
        if self.config.encoder_layers:
            output, encoded = super().apply(weights, token_BS, whole, kernels)
            output = output._replace(logits_TO=output.logits_TO + y_B[:, None])
        return output, (token_BS, gram_BG, feature_BG, encoded, *shares)

    def logits(self, weights: Weights, x_TI: Tensor, kernels: Kernels = REFERENCE) -> Tensor:
        if not self.config.encoder_layers or kernels.reading is None or weights is not self.params:
            return self.apply(weights, x_TI, None, kernels)[0].logits_TO
        token_BS, gram_BG, feature_BG = self.split(x_TI)
        return super().logits(weights, token_BS, kernels) + self._sparse(weights, gram_BG, feature_BG)[0][:, None]

    def _sparse(self, weights: Weights, gram_BG: Tensor, feature_BG: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the n-grams and the features add to a logit, and the shares of each, for the backward."""
        y_B, share_BG = hashed_ngrams.forward(gram_BG, self.buffers[SCALE], weights[WEIGHT])
        done_B, part_BG = hashed_ngrams.forward(feature_BG, self.buffers[FEATURE_SCALE], weights[FEATURE_WEIGHT])
        return y_B + done_B, share_BG, part_BG

    def routed(self, saved: Any) -> tuple[Tensor, Tensor]:
        token_BS = saved[0]
        B, device = token_BS.shape[0], token_BS.device
        return torch.ones(B, 1, device=device), torch.full((1,), B, device=device)

    def pull_back(
        self,
        weights: Weights,
        grad_P: Tensor,
        dy: tuple[Tensor, Tensor],
        x_TI: Tensor,
        saved: Any,
        *,
        accumulate: bool = False,
        want_dx: bool = True,
        kernels: Kernels = REFERENCE,
    ) -> None:
        token_BS, gram_BG, feature_BG, encoded, share_BG, part_BG = saved
        if encoded is not None:
            super().pull_back(weights, grad_P, dy, token_BS, encoded, accumulate=accumulate, kernels=kernels)
        own, dy_B = self.params.views_of(grad_P), dy[0][:, 0].to(share_BG.dtype)
        gradients = {WEIGHT: hashed_ngrams.backward(dy_B, share_BG, gram_BG, weights[WEIGHT])}
        gradients[FEATURE_WEIGHT] = hashed_ngrams.backward(dy_B, part_BG, feature_BG, weights[FEATURE_WEIGHT])
        for name, dw_N in gradients.items():
            own[name].add_(dw_N) if accumulate else own[name].copy_(dw_N)


@dataclass(frozen=True)
class Calibration:
    """P(allow) = σ(slope·z + offset), fitted on rows that the model was not."""

    slope: float = 1.0
    offset: float = 0.0


@dataclass
class GateModel:
    """A network that reads texts, with its calibration."""

    network: GateNetwork
    calibration: Calibration = field(default_factory=Calibration)
    paths: dict[int, CheckedPath[Kernels]] = field(default_factory=dict, repr=False, compare=False)  # by the rows, 4ⁿ

    @classmethod
    def fresh(cls, seed: int = 0, config: GateConfig | None = None) -> GateModel:
        """Untrained."""
        return cls(GateNetwork(config or GateConfig(), seed=seed))

    def encode(self, text: str) -> list[int]:
        """The row of an act's text (`reading.act_texts`): the first tokens of its command, then the n-grams of that,
        then the features of the act."""
        c, (command, _, _) = self.network.config, text.partition(f"\n{act_features.MARK}")
        token_S = _tokens(command)[: c.context] if c.encoder_layers else ()
        feature_H = act_features.features(text) + c.vocabulary + NUMBERS
        return [*token_S, *(_ngrams(command) + c.vocabulary).tolist(), *feature_H.tolist()]

    def batch(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """x_BX of encoded rows: tokens, and what follows them, each padded to the longest."""
        return stacked(rows, self.network.config.vocabulary)

    @torch.inference_mode()
    def logits(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """z_B of encoded rows, before calibration."""
        if not self.network.config.encoder_layers:  # nothing here has a kernel
            return self.network.logits(self.network.params, self.batch(rows))[:, 0].double().numpy()
        many = 4 ** -(-(len(rows) - 1).bit_length() // 2)
        if many not in self.paths:
            self.paths[many] = checked_path(self.network.shape(many, self.network.params.flat_P.dtype))
        network, x_BX = self.network, self.batch(rows)
        z_B1 = self.paths[many].forward(lambda kernels: network.logits(network.params, x_BX, kernels))
        return z_B1[:, 0].double().numpy()

    def probability(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """P(allow) of each encoded row."""
        return self.calibrated(self.logits(rows))

    def calibrated(self, z_B: np.ndarray) -> np.ndarray:
        """P(allow) of logits."""
        return 1 / (1 + np.exp(-np.clip(self.calibration.slope * z_B + self.calibration.offset, -60, 60)))

    def copy(self) -> GateModel:
        """The same values in memory of their own."""
        other = GateModel(GateNetwork(self.network.config, seed=None), self.calibration, self.paths)
        other.network.params.flat_P.copy_(self.network.params.flat_P)
        for name, buffer in other.network.buffers.items():
            buffer.copy_(self.network.buffers[name])
        return other

    def save(self, folder: Path) -> None:
        """model.safetensors and model.json in an existing folder."""
        from safetensors.numpy import save_file

        tensors = {**self.network.params, **self.network.buffers}
        save_file({name: tensor.numpy() for name, tensor in tensors.items()}, folder / WEIGHTS)
        record = {"config": asdict(self.network.config), "calibration": asdict(self.calibration)}
        (folder / CONFIG).write_text(json.dumps(record, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> GateModel:
        """What `save` wrote; ValueError where it is not whole."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            record = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            gate = cls(GateNetwork(GateConfig(**record["config"]), seed=None), Calibration(**record["calibration"]))
            tensors = load_file(folder / WEIGHTS)
            for name, own in (*gate.network.params.items(), *gate.network.buffers.items()):
                own.copy_(torch.from_numpy(tensors[name]).view_as(own))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise ValueError(f"cannot load a gate from {folder}: {error}") from None
        return gate


# Acts of one call often say the same: it is encoded once.
_ngrams = lru_cache(4)(ngrams)


@lru_cache(4)
def _tokens(command: str) -> tuple[int, ...]:
    return tuple(tokenizer.default().encode(command))


def stacked(rows: Sequence[Sequence[int]], vocabulary: int) -> Tensor:
    """x_BX: tokens first, then n-grams and features, each part padded to its longest; at least one column of tokens."""
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    tokens = [int((array < vocabulary).sum()) for array in arrays]
    S, G = max(1, *tokens), max(len(array) - n for array, n in zip(arrays, tokens, strict=True))
    x_BX = np.full((len(arrays), S + G), PADDING, dtype=np.int64)
    for row, array, n in zip(x_BX, arrays, tokens, strict=True):
        row[:n] = array[:n]
        row[S : S + len(array) - n] = array[n:]
    return torch.from_numpy(x_BX)


def _draw(sizes: Mapping[str, int], generator: torch.Generator, options: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens, and n-grams and features, of different counts; one row of each whole, one perhaps with none."""
    c: GateConfig = options["config"]
    B, S, G = sizes["B"], sizes["S"], sizes["G"]
    token_BS = torch.randint(c.vocabulary, (B, S), generator=generator)
    gram_BG = c.vocabulary + torch.randint(ALL_NUMBERS, (B, G), generator=generator)
    gram_BG[:, ::2] = c.vocabulary + NUMBERS + torch.randint(act_features.NUMBERS, (B, -(-G // 2)), generator=generator)
    many_B, few_B = (torch.randint(0, most + 1, (B,), generator=generator) for most in (S, G))
    many_B[0], few_B[-1] = S, G
    token_BS[torch.arange(S) >= many_B[:, None]] = PADDING
    gram_BG[torch.arange(G) >= few_B[:, None]] = PADDING
    return dict(x=torch.cat((token_BS, gram_BG), 1))


def _small(**options: Any) -> GateConfig:
    usual = dict(vocabulary=7, width=8, heads=2, encoder_layers=1, feedforward=9, context=6, buckets=11, features=5)
    return GateConfig(**{**usual, **options})


def _strange(generator: torch.Generator) -> Example:
    """Half of the n-grams and features are not known, rare ones weigh more; a row has no token, one nothing else, one
    neither."""
    config = _small()
    x_BX = _draw(dict(B=5, S=4, G=9), generator, dict(config=config))["x"]
    x_BX[1, :4], x_BX[2, 4:], x_BX[3] = PADDING, PADDING, PADDING
    x_BX[4, :4] = torch.tensor([1, 2, PADDING, PADDING])
    sizes = {WEIGHT: config.buckets + LONGEST, FEATURE_WEIGHT: config.features}
    scale, feature_scale = (1 + 4 * torch.rand(n, generator=generator, dtype=torch.float64) for n in sizes.values())
    known, feature_known = (
        (torch.rand(n, generator=generator) < 0.5).to(torch.uint8) for n in (NUMBERS, act_features.NUMBERS)
    )
    drawn = {name: torch.randn(n, generator=generator, dtype=torch.float64) for name, n in sizes.items()}
    buffers = {SCALE: scale, KNOWN: known, FEATURE_SCALE: feature_scale, FEATURE_KNOWN: feature_known}
    return Example(
        "strange n-grams and features, empty rows", {"x": x_BX, **drawn}, dict(config=config, buffers=buffers)
    )


CONTRACT = Contract(
    shapes="x[B,X] -> logits[B,O] aux[]",
    sizes=dict(B=(1, 3, 4), S=(1, 4, 5), G=(1, 3, 8)),
    grads=(),
    draw=_draw,
    options=(
        dict(label="small", config=_small()),
        dict(label="one bucket", config=_small(buckets=1, features=1)),
        dict(label="without an encoder", config=_small(encoder_layers=0)),
        dict(label="two layers, one head", config=_small(encoder_layers=2, heads=1)),
        dict(label="its own size", config=GateConfig(), sizes=dict(B=(2,), S=(12,), G=(40,))),
    ),
    claims=EVERY_OP,
    edges=(_strange,),
)
