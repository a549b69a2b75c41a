"""What each rank does in a trial of a RankCase: wrap the module, take steps, and hold the result against one rank.

The stages are functions that a Pool runs on all ranks, each after the last has ended everywhere: what one rank still
waits for in a collective of the user's cannot meet a collective of ours, and a rank that does not come to the end of a
stage is known by name. Rank 0 runs the module alone and sends what is right to the others.
"""

from __future__ import annotations

import copy
import datetime
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradproof.contract import Outputs
from gradproof.proof.case import load_case
from gradproof.proof.rank_case import RankCase
from gradproof.proof.rank_names import Origins, Part, buffer_slots, parameter_slots, part_of
from gradproof.proof.rank_reference import (
    OneRank,
    Right,
    autocasting,
    call,
    converted,
    cotangents_of,
    differentiated,
    plain,
    pull_back,
    put,
)
from gradproof.proof.rank_rows import OutputPart, RowShares, Turn, has_rows, output_part, outputs_of, rows_of, taken
from gradproof.proof.rank_watch import StageWatch
from gradproof.proof.runner import INPUT, CannotRun
from gradproof.proof.state import seed_generators
from gradproof.proof.structure import leaves_of

STEP = 0.05  # of the parameters' norm, that the first update moves them by
AGREE = 64.0  # units of its size, by which copies of a value may differ
LOCAL = 1e-6  # within which a gradient is that of some rows alone
PATIENCE = datetime.timedelta(hours=1)  # of our own collectives; the parent gives up earlier


class Setting(NamedTuple):
    """One trial: the case, the dtype that module and inputs are converted to, and where a hung rank says so."""

    text: str
    seed: int
    dtype: torch.dtype | None
    autocast: torch.dtype | None
    timeout: float
    folder: str


class Opened(NamedTuple):
    """What is judged: `unjudged` by name, why a tensor is not; the own dtype of the module; what differs in it."""

    parameters: list[str]
    unjudged: dict[str, str]
    dtype: torch.dtype
    shares: int
    least: int
    can_unsync: bool
    factor: float


class Figure(NamedTuple):
    """A tensor of this rank beside what it should be: norms of the difference, of its own and of the right part, the
    product of both; what is plainly wrong in words; the norm of what it was computed from."""

    error: float
    own: float
    size: float
    dot: float
    words: str = ""
    scale: float = 0.0


class Compared(NamedTuple):
    """One step on this rank. `sizes`: norm and width of rounding of each right gradient, None where there is none."""

    parameters: dict[str, Figure]
    inputs: dict[str, Figure]
    outputs: list[Figure]
    buffers: dict[str, Figure]
    sizes: dict[str, tuple[float, float] | None]
    rate: float
    random: bool


class Narrowest(TorchDispatchMode):
    """The largest machine epsilon that a floating result was rounded to."""

    eps = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point:
                self.eps = max(self.eps, torch.finfo(leaf.dtype).eps)
        return out


class RankTrial:
    """The state of a trial on this rank."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.group = dist.new_group(timeout=PATIENCE)
        case = load_case(setting.text, setting.seed + self.rank)
        if not isinstance(case, RankCase):
            raise CannotRun(f"{setting.text} returns no RankCase, which is what --ranks judges")
        self.case = case
        self.shares = self._shares()
        self.inputs = converted(self._from_first(case.inputs), setting.dtype)
        rows = rows_of(self.inputs)
        if rows < self.shares:
            raise CannotRun(f"{rows} rows cannot be cut into {self.shares} shares; give at least one row for each")
        self.rows = RowShares(rows, self.shares, self.rank * self.shares // self.ranks)
        own = [p.dtype for p in case.module.parameters() if p.dtype.is_floating_point]
        self.dtype = max(own, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)
        module = case.module if setting.dtype is None else case.module.to(setting.dtype)
        self.alone = OneRank(_copied(module), setting.autocast, setting.seed)
        origins = Origins(module)
        self.wrapped = case.wrap(module)
        if not isinstance(self.wrapped, nn.Module):
            kind = type(self.wrapped).__name__
            raise CannotRun(f"wrap must return the distributed module, a torch.nn.Module, not a {kind}")
        self._trace(origins)
        self.values: dict[str, Tensor] = {}
        self.rate = 0.0

    def _shares(self) -> int:
        shares = self.ranks if self.case.shares is None else self.case.shares
        if shares > self.ranks or self.ranks % shares:
            raise CannotRun(f"{self.ranks} ranks cannot have {shares} shares of the rows alike")
        return shares

    def _trace(self, origins: Origins) -> None:
        """Finds the module's parameters and buffers in the wrapped one, on all ranks alike."""
        known = {**self.alone.parameters, **self.alone.frozen}
        held, strange = origins.held(self.wrapped, known, parameter_slots)
        buffers, _ = origins.held(self.wrapped, self.alone.buffers, buffer_slots)
        said = self._gathered(({n: tuple(t.shape) for n, t in held.items()}, {n: tuple(b.shape) for n, b in buffers.items()}))
        self.unjudged = {name: "it is none of the module's own parameters" for name in strange}
        self.parts: dict[str, Part] = {}
        for name, tensor in known.items():
            shapes = [parameters.get(name) for parameters, _ in said]
            if None in shapes:
                self.unjudged[name] = f"the wrapped module has no such parameter on rank {shapes.index(None)}"
                continue
            part = part_of(tensor.shape, shapes, self.rank, self.shares)  # type: ignore[arg-type]
            if part is None:
                other = next(s for s in shapes if s != tuple(tensor.shape))
                self.unjudged[name] = (
                    f"its shape {other} on rank {shapes.index(other)} is no contiguous part of {tuple(tensor.shape)}; "
                    "use a DTensor, whose layout is known"
                )
            else:
                self.parts[name] = part
        self.held = {name: held[name] for name in self.parts}
        shaped = {name: b.shape for name, b in self.alone.buffers.items()}
        everywhere = [n for n in shaped if all(of_buffers.get(n) == tuple(shaped[n]) for _, of_buffers in said)]
        self.buffers = {name: buffers[name] for name in everywhere}
        self.trained = [name for name in self.parts if name in self.alone.parameters]

    def opened(self) -> Opened:
        can = all(self._gathered(callable(getattr(self.wrapped, "no_sync", None))))
        names = [*self.trained, *(n for n in self.unjudged if n in self.alone.parameters)]
        return Opened(names, self.unjudged, self.dtype, self.shares, self.rows.least, can, self.factor)

    # One step, stage by stage.

    def prepare(self, turn: Turn) -> dict[str, float]:
        """Takes the wrapped module's values for the one-rank run. Returns by how much, of its size, each differs from
        that of rank 0; those that do are made equal, so that only they are to blame."""
        differences: dict[str, float] = {}
        for name, tensor in self.held.items():
            whole = self._whole(name, tensor)
            first = self._from_rank_0(whole)
            size = float(first.norm())
            differences[name] = _share(float((whole - first).norm()), size)
            if self._largest(differences[name]) > AGREE * torch.finfo(tensor.dtype).eps:
                self._put(name, tensor, first)
            self.values[name] = first
        buffers = {name: self._from_rank_0(plain(b)) for name, b in self.buffers.items()}
        self.alone.load({**self.values, **buffers})
        self.right: Right | None = None
        if self.rank == 0:
            self.right = self.alone.right(self._batches(turn), turn.number)
        shapes = [[tuple(y.shape) for y in outputs] for outputs in self.right.outputs] if self.right else None
        self.shapes: list[list[tuple[int, ...]]] = self._from_first(shapes)
        return differences

    def run(self, turn: Turn) -> None:
        """The user's own code: forward and backward of each micro-batch."""
        for p in (*self.wrapped.parameters(), *self.held.values()):
            p.grad = None
        seed_generators(self.setting.seed + self.rank)
        self.taken: list[Outputs] = []
        self.places: list[list[OutputPart]] = []
        for micro in range(turn.micros):
            unsynced = turn.unsynced and micro < turn.micros - 1
            with self.wrapped.no_sync() if unsynced else nullcontext():  # type: ignore[operator]
                self._run_micro(turn, micro)
        if self.case.after_backward is not None:
            self.case.after_backward(self.wrapped)

    def _run_micro(self, turn: Turn, micro: int) -> None:
        own = self.rows.of(turn, micro)[self.rows.own]
        given, self.leaves = differentiated(self.case.module, taken(self.inputs, self.rows.rows, [own]))
        with autocasting(self.setting.autocast):
            outputs = outputs_of(call(self.wrapped, given))
        self.places.append(self._places(turn, micro, [y.shape for y in outputs]))
        cotangents = self._cotangents(turn, micro, self.places[-1])
        self.taken.append(tuple(plain(y) for y in outputs))
        pull_back(outputs, cotangents)

    def _places(self, turn: Turn, micro: int, own: Sequence[Sequence[int]]) -> list[OutputPart]:
        whole = self.shapes[micro]
        if len(own) != len(whole):
            raise CannotRun(f"the wrapped module gives {len(own)} floating outputs, on one rank there are {len(whole)}")
        rows = sum(one.stop - one.start for one in self.rows.of(turn, micro))
        place = self.rows.place(turn, micro)
        return [output_part(a, b, rows, place) for a, b in zip(whole, own, strict=True)]

    def _cotangents(self, turn: Turn, micro: int, places: Sequence[OutputPart]) -> list[Tensor]:
        drawn = cotangents_of(self.shapes[micro], self.setting.seed, turn.number, micro)
        return [part.of(c) * (self.factor if part.by_rows else 1.0) for part, c in zip(places, drawn, strict=True)]

    @property
    def factor(self) -> float:
        """How many times its part of the whole loss a rank's own loss is."""
        return float(self.shares) if self.case.reduction == "mean" else 1.0

    def compare(self, turn: Turn) -> Compared:
        """This rank's gradients, outputs and buffers beside those of one rank."""
        right = self.right
        about: Any = None
        if right is not None:
            sizes = {n: None if g is None else (float(g.norm()), right.widths[n]) for n, g in right.grads.items()}
            about = (sizes, self._rate(right) if not self.rate else self.rate, right.random)
        sizes, self.rate, random = self._from_first(about)
        missing = self._gathered([name for name in self.trained if self.held[name].grad is None])
        self.grads: dict[str, Tensor | None] = {}
        self.rights: dict[str, Tensor | None] = {}
        figures = {}
        for name in self.trained:
            absent = [rank for rank, names in enumerate(missing) if name in names]
            whole = None if right is None else right.grads[name]
            self.rights[name] = None if sizes[name] is None else self._from_rank_0(whole, self.values[name].shape)
            figures[name] = self._compared(name, absent, sizes[name])
        inputs = self._inputs(right, sizes) if turn.micros == 1 else {}
        return Compared(figures, inputs, self._outputs(right), self._buffers(right), sizes, self.rate, random)

    def _compared(self, name: str, absent: list[int], size: tuple[float, float] | None) -> Figure:
        self.grads[name] = None
        if absent:
            self.grads[name] = None if self.rank in absent else self._local(self.held[name].grad)
            words = "" if size is None else "is missing" + (f" on rank {absent[0]}" if len(absent) < self.ranks else "")
            return Figure(size[0] if size else 0.0, 0.0, size[0] if size else 0.0, 0.0, words)
        grad = self.grads[name] = self._full(self.held[name].grad)
        right = self.rights[name]
        return _figure(grad, torch.zeros_like(grad) if right is None else self._part(name, right))

    def _inputs(self, right: Right | None, sizes: dict[str, Any]) -> dict[str, Figure]:
        """This rank's rows of each input; what all ranks were given whole is added up over them."""
        listed, figures = list(leaves_of(self.inputs)), {}
        places = [i for i, (_, leaf) in enumerate(listed) if isinstance(leaf, Tensor) and _floats(leaf)]
        lacking = self._gathered([name for name, leaf in self.leaves.items() if leaf.grad is None])
        for i, (name, leaf) in zip(places, self.leaves.items(), strict=True):
            given = listed[i][1]
            absent = [rank for rank, names in enumerate(lacking) if name in names]
            shape = plain(given).shape
            whole = None if sizes[name] is None else self._from_rank_0(right and right.grads[name], shape)
            own = torch.zeros_like(plain(leaf)) if leaf.grad is None else plain(leaf.grad)
            split = has_rows(given, self.rows.rows)
            if not split:
                dist.all_reduce(own, group=self.group)
                own *= self.shares / self.ranks / self.factor
            expected = torch.zeros_like(own) if whole is None else whole
            if split:
                expected = self.factor * (taken(expected, self.rows.rows, [self.rows.of(Turn(0), 0)[self.rows.own]]))
                expected = expected if whole is not None else torch.zeros_like(own)
            figure = _figure(own, expected)
            gone = self.rank in absent and whole is not None
            figures[name] = figure._replace(words="is missing") if gone else figure
        return figures

    def _outputs(self, right: Right | None) -> list[Figure]:
        """Those of the last micro-batch beside the same rows of one rank; what has no rows is reduced first."""
        figures = []
        for i, (y, part) in enumerate(zip(self.taken[-1], self.places[-1], strict=True)):
            whole = self._from_rank_0(None if right is None else right.outputs[-1][i], self.shapes[-1][i])
            if not part.by_rows:
                y = y.clone()
                dist.all_reduce(y, group=self.group)
                y *= self.shares / self.ranks / self.factor
            figures.append(_figure(y, part.of(whole)))
        return figures

    def _buffers(self, right: Right | None) -> dict[str, Figure]:
        figures = {}
        for name, b in self.buffers.items():
            own = plain(b)
            figures[name] = _figure(own, self._from_rank_0(None if right is None else right.buffers[name], own.shape))
        return figures

    def _rate(self, right: Right) -> float:
        """A learning rate that moves the parameters by a small share of their norm."""
        trained = [name for name in self.trained if right.grads[name] is not None]
        size = math.hypot(*(float(right.grads[name].norm()) for name in trained))  # type: ignore[union-attr]
        rate = STEP * math.hypot(*(float(self.values[name].norm()) for name in trained)) / size if size else 0.0
        return rate if math.isfinite(rate) else 0.0

    def explain(self, turn: Turn, names: Sequence[str]) -> dict[str, str]:
        """Whether a wrong gradient is the one of some rank's own rows alone."""
        if self.shares == 1 or turn.micros > 1:
            return {}
        own = self.rows.of(turn, 0)[self.rows.own]
        cotangents = [tuple(self._cotangents(turn, 0, self.places[0]))]
        _, local = self.alone.run([taken(self.inputs, self.rows.rows, [own])], turn.number, None, cotangents)
        words = {}
        for name in names:
            grad, mine = self.grads[name], local[name]
            mine = torch.zeros_like(self.values[name]) if mine is None else mine
            alike = []
            for rank in range(self.ranks):
                theirs = mine.clone()
                dist.broadcast(theirs, rank, group=self.group)
                part = self._part(name, theirs)
                alike.append(grad is not None and float((grad - part).norm()) <= LOCAL * float(part.norm()))
            everywhere = self._gathered(alike)
            if all(said[rank] for rank, said in enumerate(everywhere)):
                words[name] = "is not reduced: each rank has the gradient of its own rows alone"
            elif only := [rank for rank in range(self.ranks) if all(said[rank] for said in everywhere)]:
                words[name] = f"is that of rank {only[0]}'s rows alone, on every rank"
        return words

    def update(self) -> dict[str, Figure]:
        """A step of plain SGD; the change of each parameter beside the one that one rank would make."""
        parameters = [p for p in self.wrapped.parameters() if p.requires_grad]
        if parameters:
            torch.optim.SGD(parameters, self.rate, foreach=False).step()  # DTensors beside plain ones
        figures = {}
        for name in self.trained:
            before, right = self._part(name, self.values[name]), self.rights[name]
            moved = self._full(self.held[name]) - before
            expected = torch.zeros_like(moved) if right is None else -self.rate * self._part(name, right)
            figures[name] = _figure(moved, expected)._replace(scale=float(before.norm()))
        return figures

    def narrowest(self, turn: Turn) -> float:
        """The coarsest unit of a run of the wrapped module."""
        with Narrowest() as mode:
            self.run(turn)
        return mode.eps

    # Values on all ranks.

    def _batches(self, turn: Turn) -> list[Any]:
        return [taken(self.inputs, self.rows.rows, self.rows.of(turn, micro)) for micro in range(turn.micros)]

    def _full(self, tensor: Any) -> Tensor:
        """All of a DTensor, where every rank asks for it; this rank's part of any other tensor."""
        return plain(tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor)

    def _local(self, tensor: Any) -> Tensor | None:
        return None if hasattr(tensor, "full_tensor") else plain(tensor)

    def _part(self, name: str, whole: Tensor) -> Tensor:
        return self.parts[name].of(whole)

    def _whole(self, name: str, tensor: Tensor) -> Tensor:
        """A parameter put together from its parts."""
        own, part = self._full(tensor), self.parts[name]
        if part.axis is None:
            return own
        said = self._gathered(own)
        return torch.cat([said[rank] for rank in part.team], part.axis)

    def _put(self, name: str, tensor: Any, whole: Tensor) -> None:
        """Another value for a parameter."""
        if not hasattr(tensor, "full_tensor"):
            put(tensor, self._part(name, whole))
        elif all(placement.is_replicate() for placement in tensor.placements):
            put(tensor.to_local(), whole)

    def _from_first(self, value: Any) -> Any:
        """What rank 0 has."""
        box = [value if self.rank == 0 else None]
        dist.broadcast_object_list(box, 0, group=self.group)
        return box[0]

    def _from_rank_0(self, tensor: Tensor | None, shape: Sequence[int] | None = None) -> Tensor:
        """Its tensor in float64."""
        if tensor is None:
            tensor = torch.empty(tuple(shape or ()), dtype=torch.float64)
        tensor = tensor.clone()
        dist.broadcast(tensor, 0, group=self.group)
        return tensor

    def _gathered(self, value: Any) -> list[Any]:
        """What every rank has, by rank."""
        said: list[Any] = [None] * self.ranks
        dist.all_gather_object(said, value, group=self.group)
        return said

    def _largest(self, number: float) -> float:
        return max(self._gathered(number))


def _figure(own: Tensor, right: Tensor) -> Figure:
    if own.shape != right.shape:
        return Figure(math.inf, float(own.norm()), float(right.norm()), 0.0, f"has the shape {tuple(own.shape)}")
    same = own.isfinite() | (own == right) | (own.isnan() & right.isnan())  # infinite entries that are so on one rank
    if not bool(same.all()):
        return Figure(math.inf, math.nan, float(right.norm()), 0.0, "is not finite")
    both = own.isfinite() & right.isfinite()
    own, right = own.where(both, 0.0), right.where(both, 0.0)
    return Figure(float((own - right).norm()), float(own.norm()), float(right.norm()), float((own * right).sum()))


def _share(part: float, whole: float) -> float:
    if math.isnan(part):
        return math.inf
    return part / whole if whole else math.inf if part else 0.0


def _floats(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _copied(module: nn.Module) -> nn.Module:
    try:
        other = copy.deepcopy(module)
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise CannotRun(f"the module cannot be copied, for the run on one rank: {reason}") from error
    tensors = [*other.parameters(), *other.buffers()]
    return other.to_empty(device="cpu") if any(t.is_meta for t in tensors) else other


# What the pool calls.

_trials: list[RankTrial] = []


def open_trial(setting: Setting) -> Opened:
    """Starts a trial on this rank; one at a time."""
    close_trial()
    with _stage(setting, "the case and its wrap"):
        _trials.append(RankTrial(setting))
        return _trials[0].opened()


def stage(words: str, method: str, *arguments: Any) -> Any:
    """One stage of the open trial; `words` name it."""
    trial = _trials[0]
    with _stage(trial.setting, words):
        return getattr(trial, method)(*arguments)


def close_trial() -> None:
    """Forgets it."""
    while _trials:
        group = _trials.pop().group
        dist.destroy_process_group(group)


@contextmanager
def _stage(setting: Setting, words: str) -> Iterator[None]:
    """Prints go to standard error, new tensors have the trial's dtype, and whoever waits can tell where."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if setting.dtype is torch.float64 else default)
    try:
        with redirect_stdout(sys.stderr), StageWatch(setting.folder, dist.get_rank(), words, setting.timeout):
            yield
    finally:
        torch.set_default_dtype(default)
