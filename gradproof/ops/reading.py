"""The forward of a classifying transformer as one function. Decisions need no backward.

    x = w[token] + p;   in each layer  x += W_o·Attention(W_qkv·LN x);  x += FFN(LN x);   y = W·mean(LN x) + b

The mean is over tokens that are not padding, and only those are keys. `theta_P` holds the parameters in the model's
order, each aligned; anything after them is ignored. Each part is an op with its own proof; this one defines their
composition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradproof.contract import Contract, Example
from gradproof.ops import attention, embedding, ffn, layernorm, linear, pool, positional
from gradproof.ops.embedding import PADDING
from gradproof.ops.experts import linear_entries
from gradproof.params import Entry, offsets


def token_entries(vocabulary: int, context: int, width: int) -> list[Entry]:
    """The embedding and position tables."""
    tables = {"embedding": vocabulary, "position": context}
    return [Entry(f"{name}.weight", (many, width), "matrix") for name, many in tables.items()]


def encoder_entries(layers: int, width: int, inner: int) -> list[Entry]:
    """The parameters of an encoder, including its last norm."""
    spec = []
    for i in range(layers):
        spec += attention_entries(f"encoder.{i}.self.", width) + ffn_entries(f"encoder.{i}.ffn.", width, inner)
    return spec + norm_entries("encoder.norm", width)


def norm_entries(name: str, width: int) -> list[Entry]:
    """The parameters of a norm."""
    return [Entry(f"{name}.weight", (width,), "gamma"), Entry(f"{name}.bias", (width,), "beta")]


def attention_entries(prefix: str, width: int, cross: bool = False) -> list[Entry]:
    """The parameters of an attention sublayer."""
    spec = norm_entries(f"{prefix}norm", width)
    if cross:
        spec += linear_entries(f"{prefix}q", width, width) + linear_entries(f"{prefix}kv", width, 2 * width)
    else:
        spec += linear_entries(f"{prefix}qkv", width, 3 * width)
    return spec + linear_entries(f"{prefix}out", width, width)


def ffn_entries(prefix: str, width: int, inner: int) -> list[Entry]:
    """The parameters of a feed-forward sublayer."""
    spec = norm_entries(f"{prefix}norm", width)
    return spec + linear_entries(f"{prefix}up", width, inner) + linear_entries(f"{prefix}down", inner, width)


@dataclass(frozen=True)
class Reader:
    """The structure of a classifying transformer."""

    vocabulary: int
    width: int
    heads: int
    layers: int
    inner: int
    context: int
    outputs: int = 1

    @cached_property
    def spec(self) -> tuple[Entry, ...]:
        D = self.width
        first = token_entries(self.vocabulary, self.context, D)
        return (*first, *encoder_entries(self.layers, D, self.inner), *linear_entries("output", D, self.outputs))

    @cached_property
    def offsets(self) -> tuple[dict[str, int], int]:
        """The start of each parameter in theta, and the end of the last one."""
        return offsets(self.spec)

    def views(self, theta_P: Tensor) -> dict[str, Tensor]:
        """The parameters in a flat buffer."""
        starts, _ = self.offsets
        return {
            entry.name: theta_P[starts[entry.name] :][: math.prod(entry.shape)].view(entry.shape) for entry in self.spec
        }


def forward(token_BS: Tensor, theta_P: Tensor, reader: Reader) -> tuple[Tensor, None]:
    """y_BO."""
    weights, mask_BS = reader.views(theta_P), token_BS >= 0
    embedded_BSD, _ = embedding.forward(token_BS, weights["embedding.weight"])
    x_BSD, _ = positional.forward(embedded_BSD, weights["position.weight"])
    B, S, D = x_BSD.shape
    x_TD = x_BSD.flatten(0, 1)
    for i in range(reader.layers):
        own = f"encoder.{i}.self."
        qkv_TG = _linear(_norm(x_TD, weights, f"{own}norm"), weights, f"{own}qkv")
        heads_BSD, _ = attention.forward(*qkv_TG.view(B, S, 3 * D).chunk(3, -1), mask_BS, reader.heads)
        x_TD = x_TD + _linear(heads_BSD.flatten(0, 1), weights, f"{own}out")
        own = f"encoder.{i}.ffn."
        fed = (weights[f"{own}{name}"] for name in ("up.weight", "up.bias", "down.weight", "down.bias"))
        x_TD = x_TD + ffn.forward(_norm(x_TD, weights, f"{own}norm"), *fed)[0]
    pooled_BD, _ = pool.forward(_norm(x_TD, weights, "encoder.norm").view(B, S, D), mask_BS)
    return _linear(pooled_BD, weights, "output"), None


def _norm(x_TD: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    return layernorm.forward(x_TD, weights[f"{name}.weight"], weights[f"{name}.bias"])[0]


def _linear(x_TI: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    return linear.forward(x_TI, weights[f"{name}.weight"], weights[f"{name}.bias"])[0]


def _draw(sizes: Mapping[str, int], generator: torch.Generator, options: Mapping[str, Any]) -> dict[str, Any]:
    """Sequences of different lengths, the first without padding; parameters of typical size, γ near 1. The gaps between
    and after the parameters are NaN.
    """
    reader: Reader = options["reader"]
    B, S = sizes["B"], min(sizes["S"], reader.context)
    token_BS = torch.randint(reader.vocabulary, (B, S), generator=generator)
    length_B = torch.randint(0, S + 1, (B,), generator=generator)
    length_B[0] = S
    token_BS[torch.arange(S) >= length_B[:, None]] = PADDING
    theta_P = torch.full((reader.offsets[1] + 3,), torch.nan, dtype=torch.float64)
    for entry, view in zip(reader.spec, reader.views(theta_P).values(), strict=True):
        scale = entry.shape[-1] ** -0.5 if entry.kind == "matrix" else 0.3
        view.copy_(scale * torch.randn(entry.shape, generator=generator) + (entry.kind == "gamma"))
    return dict(token=token_BS, theta=theta_P)


def _holes(generator: torch.Generator) -> Example:
    """Padding at the start, between tokens, everywhere and nowhere."""
    reader = Reader(7, 8, 2, 2, 11, 9, 3)
    token_BS = torch.randint(7, (4, 6), generator=generator)
    token_BS[0, 0], token_BS[1, 2:4], token_BS[2] = PADDING, PADDING, PADDING
    given = _draw(dict(B=4, S=6), generator, dict(reader=reader))
    return Example("holes", {**given, "token": token_BS}, dict(reader=reader))


def _far(generator: torch.Generator) -> Example:
    """Scores so far apart that one key has all the weight."""
    reader = Reader(9, 4, 1, 1, 6, 5)
    given = _draw(dict(B=2, S=5), generator, dict(reader=reader))
    reader.views(given["theta"])["encoder.0.self.qkv.weight"].mul_(40)
    return Example("far apart", given, dict(reader=reader))


CONTRACT = Contract(
    shapes="token[B,S] theta -> y[B,O]",
    sizes=dict(B=(1, 3, 4), S=(1, 5, 17, 33)),
    grads=(),
    draw=_draw,
    options=(
        dict(reader=Reader(9, 24, 2, 1, 40, 33)),
        dict(reader=Reader(5, 6, 3, 2, 5, 40, 3)),
        dict(reader=Reader(9, 40, 1, 2, 70, 33)),
        dict(reader=Reader(1, 64, 2, 1, 128, 50)),
        dict(reader=Reader(7, 16, 4, 0, 1, 33, 2)),
    ),
    claims=(),
    edges=(_holes, _far),
)
