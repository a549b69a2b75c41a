"""Predicts training on a mesh: memory of each rank, bytes sent per step, and time.

Computed from the model's config and the mesh alone, without allocating anything. Rows are assumed to spread evenly over
the experts. In fp32, on a CPU by the CPU's kernels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from gradproof.models.expert_ranks import entries_of_rank
from gradproof.models.moe import MoEConfig
from gradproof.models.sizes import cost
from gradproof.models.transformer import TransformerConfig
from gradproof.params import padded
from gradproof.ranks.mesh import AT_ONCE
from gradproof.ranks.mesh_shape import MeshShape, share
from gradproof.ranks.traffic import of_all_reduce
from gradproof.train.gradient_sum import IN_FLIGHT, cuts, pieces_of

FLOAT, NUMBER = 4, 8  # bytes of a parameter, and of what ranks tell each other
SCALARS, COUNTS = 4, 2  # numbers of the whole batch that are added up after a step and before it


class RankPlan(NamedTuple):
    """One rank: its rows, the bytes it holds by what they are for, and what it sends in a step by kind."""

    rank: int
    rows: int
    weights: int
    gradients: int
    moments: int
    activations: int
    working: int
    buffers: int  # of communication
    sent: dict[str, int]
    calls: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes held."""
        return self.weights + self.gradients + self.moments + self.activations + self.working + self.buffers

    @property
    def moved(self) -> int:
        """Bytes that its optimizer reads and writes: for the norm g; then p, g, m, v, and p, m, v back."""
        return 4 * self.moments


class Rates(NamedTuple):
    """What a rank does in a second. `bandwidth` is in bytes sent, by kind of operation; `latency` in seconds an
    operation; `flops` those of a step's products; `memory` in bytes that the optimizer reads and writes."""

    bandwidth: Mapping[str, float]
    latency: float
    flops: float
    memory: float


class Seconds(NamedTuple):
    """Of a step: by one process on as many rows as a rank has; on the mesh, if nothing that is sent is hidden behind
    the arithmetic, and if the exchange of gradients is hidden as far as it can be."""

    alone: float
    open: float
    hidden: float


class MeshPlan(NamedTuple):
    """All ranks. `alone` is the same training in one process, on as many rows as the busiest rank has; `flops` are
    those of its products."""

    ranks: list[RankPlan]
    alone: RankPlan
    flops: int

    @property
    def busiest(self) -> RankPlan:
        """The rank that holds most, which is also one with most rows."""
        return max(self.ranks, key=lambda own: (own.total, own.rows))

    def seconds(self, rates: Rates) -> Seconds:
        """How long a step takes."""
        own, products = self.busiest, self.flops / rates.flops
        spent = {
            kind: sent / rates.bandwidth[kind] + own.calls[kind] * rates.latency for kind, sent in own.sent.items()
        }
        rows = spent.pop("all-to-all", 0.0)  # whoever waits for rows has nothing else to do
        work = products + own.moved / rates.memory
        hidden = max(work, sum(spent.values())) + rows
        return Seconds(products + self.alone.moved / rates.memory, work + sum(spent.values()) + rows, hidden)


def plan_of(config: Any, batch: int, shape: MeshShape, sharded: bool = False, device: str = "cpu") -> MeshPlan:
    """Of a training step on `batch` rows, those of a transformer being tokens. ValueError where the mesh does not
    fit."""
    shape.check_experts(config.experts if isinstance(config, MoEConfig) else None)
    ranks = [_rank(config, batch, shape, sharded, device, rank) for rank in range(shape.ranks)]
    most = max(own.rows for own in ranks)
    return MeshPlan(ranks, _rank(config, most, MeshShape(), False, device, 0), most * _flops_per_row(config))


def _flops_per_row(config: Any) -> int:
    """Of a transformer's token, 6 a parameter: its embeddings are read instead of multiplied, its scores are not
    counted."""
    return 6 * config.param_count() if isinstance(config, TransformerConfig) else config.flops_per_row()


def _rank(config: Any, batch: int, shape: MeshShape, sharded: bool, device: str, rank: int) -> RankPlan:
    own = share(batch, rank, shape.ranks)
    rows, at_data, at_experts = own.stop - own.start, rank // shape.experts, rank % shape.experts
    spread = shape.experts > 1
    entries = entries_of_rank(config.spec(), config.experts, shape, at_experts) if spread else config.spec()
    sizes = [(entry.name, padded(math.prod(entry.shape))) for entry in entries]
    length = sum(size for _, size in sizes)
    front = sum(size for name, size in sizes if not name.startswith("experts.")) if spread else 0
    alone = cost("", config, rows, device)
    activations, working = alone.activations, alone.working
    if spread:
        more = _exchanged(config, rows)
        activations, working = activations + more[0], working + more[1]
    moments, buffers = length, 0
    cut = cuts(length, FLOAT, shape.data, front)
    if sharded and shape.data > 1:
        pieces = [[piece.stop - piece.start for piece in pieces_of(at, shape.data)] for at in cut]
        moments = front + sum(lengths[at_data] for lengths in pieces)
        held = 1 if device == "cuda" else shape.data
        buffers = FLOAT * sum(sorted((held * lengths[at_data] for lengths in pieces), reverse=True)[: IN_FLIGHT + 1])
        buffers += FLOAT * max((lengths[at_data] for lengths in pieces), default=0) if device == "cpu" else 0
    sent, calls = _sent(config, rows, shape, sharded, cut, front, at_data)
    flat = FLOAT * length
    return RankPlan(rank, rows, flat, flat, 2 * FLOAT * moments, activations, working, buffers, dict(sent), dict(calls))


def _exchanged(config: MoEConfig, rows: int) -> tuple[int, int]:
    """What spread experts hold besides: rows by expert; and rows as they came, and outputs on their way back."""
    routed = config.k * rows
    return FLOAT * routed * config.inputs, FLOAT * routed * (config.inputs + config.outputs)


def _sent(
    config: Any, rows: int, shape: MeshShape, sharded: bool, cut: list[slice], front: int, at_data: int
) -> tuple[Counter[str], Counter[str]]:
    """Bytes and operations of a step by kind."""
    sent, calls = Counter[str](), Counter[str]()
    n, data, spread = shape.ranks, shape.data, shape.experts

    def add(kind: str, amount: int) -> None:
        sent[kind] += amount
        calls[kind] += 1

    def add_sum(size: int, ranks: int) -> None:
        if ranks > 1:
            add("all-reduce", of_all_reduce(size, ranks, size <= AT_ONCE))

    experts = config.experts if isinstance(config, MoEConfig) else 1
    balanced = isinstance(config, MoEConfig) and config.balance > 0
    add_sum(NUMBER * (COUNTS + experts * balanced), n)
    add_sum(NUMBER * (SCALARS + experts), n)
    if sharded or spread > 1:
        add_sum(NUMBER, n if sharded else spread)  # the square of the norm
    if front:
        add_sum(FLOAT * front, n)
    for at in cut:
        size = FLOAT * (at.stop - at.start)
        if sharded and data > 1:
            own = pieces_of(at, data)[at_data]
            piece = FLOAT * (own.stop - own.start)
            add("reduce-scatter", size - piece)
            add("all-gather", piece * (data - 1))
        else:
            add_sum(size, data)
    if spread > 1:
        away = config.k * rows * (spread - 1) // spread
        for size in (NUMBER * (experts - experts // spread), *(FLOAT * away * w for w in _travelling(config))):
            add("all-to-all", size)
    return sent, calls


def _travelling(config: MoEConfig) -> tuple[int, int, int]:
    """Widths of what is exchanged: rows, their outputs, the outputs' gradients."""
    return config.inputs, config.outputs, config.outputs
