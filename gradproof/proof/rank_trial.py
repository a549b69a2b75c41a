"""The work of each rank in a trial: wrap the module, take steps, compare with one rank.

The stages are functions that a Pool runs on all ranks, each after the last has ended everywhere: what one rank still
waits for in a collective of the user's cannot meet a collective of ours, and a rank that does not come to the end of a
stage is known by name. Rank 0 runs the module alone and sends what is right to the others.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradproof.contract import Outputs
from gradproof.proof.case import load_case
from gradproof.proof.rank_case import RankCase
from gradproof.proof.rank_figures import Figure, Opened, RankComparison, RankSetting, figure, share_of
from gradproof.proof.rank_names import NamePart, Origins, buffer_slots, parameter_slots, part_of
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
from gradproof.proof.rank_rows import OutputPart, RankTurn, RowShares, has_rows, output_part, outputs_of, rows_of, taken
from gradproof.proof.rank_talk import RankTalk
from gradproof.proof.rank_watch import StageWatch
from gradproof.proof.runner import CannotRun
from gradproof.proof.state import seed_generators
from gradproof.proof.structure import leaves_of

LATE = 0.05  # seconds by which ranks take turns to be late: what is not waited for is then not there yet
STEP = 0.05  # of the parameters' norm, that the first update moves them by
AGREE = 64.0  # units of its size, by which copies of a value may differ
LOCAL = 1e-6  # within which a gradient is that of some rows alone


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

    def __init__(self, setting: RankSetting):
        self.setting = setting
        self.talk = RankTalk()
        self.rank, self.ranks = self.talk.rank, self.talk.ranks
        case = load_case(setting.text, setting.seed + self.rank)
        if not isinstance(case, RankCase):
            raise CannotRun(f"{setting.text} must return a RankCase for --ranks")
        self.case = case
        if setting.dtype is torch.float64:
            torch.set_default_dtype(torch.float64)  # of what wrap makes; `_stage` puts it back
        self.shares = self._shares()
        self.inputs = converted(self.talk.from_first(case.inputs), setting.dtype)
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
        own = tuple({name: tuple(t.shape) for name, t in some.items()} for some in (held, buffers))
        said = self.talk.gathered(own)
        self.unjudged = {name: "it is not a parameter of the module" for name in strange}
        self.lost: dict[str, str] = {}
        self.parts: dict[str, NamePart] = {}
        for name, tensor in known.items():
            shapes = [parameters.get(name) for parameters, _ in said]
            if None in shapes:
                self.lost[name] = f"the wrapped module has no such parameter on rank {shapes.index(None)}"
                continue
            part = part_of(tensor.shape, shapes, self.rank, self.shares)  # type: ignore[arg-type]
            if part is None:
                other = next(s for s in shapes if s != tuple(tensor.shape))
                self.lost[name] = (
                    f"its shape {other} on rank {shapes.index(other)} is no contiguous part of {tuple(tensor.shape)}; "
                    "use DTensors, as fully_shard does"
                )
            else:
                self.parts[name] = part
        self.held = {name: held[name] for name in self.parts}
        self._check_parts(known)
        shaped = {name: b.shape for name, b in self.alone.buffers.items()}
        everywhere = [n for n in shaped if all(of_buffers.get(n) == tuple(shaped[n]) for _, of_buffers in said)]
        self.buffers = {name: buffers[name] for name in everywhere}
        self.trained = [name for name in self.parts if name in self.alone.parameters]

    def _check_parts(self, known: dict[str, Tensor]) -> None:
        """Whether a part that only its shape tells is where it is taken to be: it has the values of this rank's module
        there, or of rank 0's."""
        for name, part in self.parts.items():
            if part.axis is None:
                continue
            own, mine = plain(self.held[name]), plain(known[name])
            found = any(torch.equal(own, part.of(whole)) for whole in (mine, self.talk.tensor_from(0, mine)))
            confirmed = self.talk.gathered(found)
            if not all(confirmed):
                raise CannotRun(
                    f"rank {confirmed.index(False)} holds a part of {name}, but not {part.start} to "
                    f"{part.start + part.length} along axis {part.axis}, so it is not known which; use a DTensor"
                )

    def opened(self) -> Opened:
        can = all(self.talk.gathered(callable(getattr(self.wrapped, "no_sync", None))))
        return Opened(
            self.trained,
            self.unjudged,
            self.lost,
            self.dtype,
            self.shares,
            self.rows.least,
            can,
            self.factor,
            self.rows.rows % self.shares > 0,
        )

    # One step, stage by stage.

    def prepare(self, turn: RankTurn) -> dict[str, float]:
        """Takes the wrapped module's values for the one-rank run. Returns by how much, of its size, each differs from
        that of rank 0; those that do are made equal, so that only they are to blame."""
        differences: dict[str, float] = {}
        for name, tensor in self.held.items():
            whole = self._whole(name, tensor)
            first = self.talk.tensor_from(0, whole)
            size = float(first.norm())
            differences[name] = share_of(float((whole - first).norm()), size)
            if max(self.talk.gathered(differences[name])) > AGREE * torch.finfo(tensor.dtype).eps:
                self._put(name, tensor, first)
            self.values[name] = first
        buffers = {name: self.talk.tensor_from(0, plain(b)) for name, b in self.buffers.items()}
        self.alone.load({**self.values, **buffers})
        self.right: Right | None = None
        if self.rank == 0:
            self.right = self.alone.right(self._batches(turn), turn.number)
        shapes = [[tuple(y.shape) for y in outputs] for outputs in self.right.outputs] if self.right else None
        self.shapes: list[list[tuple[int, ...]]] = self.talk.from_first(shapes)
        return differences

    def run(self, turn: RankTurn) -> None:
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
        # At once, as an optimizer would read them.
        self.left = {name: None if p.grad is None else p.grad.detach().clone() for name, p in self.held.items()}

    def _run_micro(self, turn: RankTurn, micro: int) -> None:
        own = self.rows.of(turn, micro)[self.rows.own]
        given, self.leaves = differentiated(self.case.module, taken(self.inputs, self.rows.rows, [own]))
        with autocasting(self.setting.autocast):
            outputs = outputs_of(call(self.wrapped, given))
        self.places.append(self._places(turn, micro, [y.shape for y in outputs]))
        cotangents = self._cotangents(turn, micro, self.places[-1])
        self.taken.append(tuple(plain(y) for y in outputs))
        if micro == turn.micros - 1 and self.rank == (turn.number + 1) % self.ranks:
            time.sleep(LATE)
        pull_back(outputs, cotangents)

    def _places(self, turn: RankTurn, micro: int, own: Sequence[Sequence[int]]) -> list[OutputPart]:
        whole = self.shapes[micro]
        if len(own) != len(whole):
            raise CannotRun(f"the wrapped module gives {len(own)} floating outputs, on one rank there are {len(whole)}")
        rows = sum(one.stop - one.start for one in self.rows.of(turn, micro))
        place = self.rows.place(turn, micro)
        return [output_part(a, b, rows, place) for a, b in zip(whole, own, strict=True)]

    def _cotangents(self, turn: RankTurn, micro: int, places: Sequence[OutputPart]) -> list[Tensor]:
        drawn = cotangents_of(self.shapes[micro], self.setting.seed, turn.number, micro)
        return [part.of(c) * (self.factor if part.by_rows else 1.0) for part, c in zip(places, drawn, strict=True)]

    @property
    def factor(self) -> float:
        """How many times its part of the whole loss a rank's own loss is."""
        return float(self.shares) if self.case.reduction == "mean" else 1.0

    def compare(self, turn: RankTurn) -> RankComparison:
        """This rank's gradients, outputs and buffers beside those of one rank."""
        right = self.right
        about: Any = None
        if right is not None:
            sizes = {n: None if g is None else (float(g.norm()), right.widths[n]) for n, g in right.grads.items()}
            about = (sizes, self._rate(right) if not self.rate else self.rate, right.random)
        sizes, self.rate, random = self.talk.from_first(about)
        missing = self.talk.gathered([name for name in self.trained if self.left[name] is None])
        self.grads: dict[str, Tensor | None] = {}
        self.rights: dict[str, Tensor | None] = {}
        figures = {}
        for name in self.trained:
            absent = [rank for rank, names in enumerate(missing) if name in names]
            whole = None if right is None else right.grads[name]
            self.rights[name] = (
                None if sizes[name] is None else self.talk.tensor_from(0, whole, self.values[name].shape)
            )
            figures[name] = self._compared(name, absent, sizes[name])
        inputs = self._inputs(right, sizes) if turn.micros == 1 else {}
        outputs, buffers, moved = self._outputs(right), self._buffers(right), self._moved(right)
        by_rows = all(part.by_rows for part in self.places[-1])
        return RankComparison(figures, inputs, outputs, buffers, moved, sizes, self.rate, random, by_rows)

    def _moved(self, right: Right | None) -> dict[str, float]:
        allowed = self.talk.from_first(None if right is None else right.rewritten)
        moved = {}
        for name, tensor in self.held.items():
            before = self._part(name, self.values[name])
            share = share_of(float((self._full(tensor) - before).norm()), float(before.norm()))
            moved[name] = 0.0 if name in allowed else share
        return moved

    def _compared(self, name: str, absent: list[int], size: tuple[float, float] | None) -> Figure:
        self.grads[name] = None
        if absent:
            self.grads[name] = None if self.rank in absent else self._local(self.left[name])
            words = "" if size is None else "is missing" + (f" on rank {absent[0]}" if len(absent) < self.ranks else "")
            return Figure(size[0] if size else 0.0, 0.0, size[0] if size else 0.0, 0.0, words)
        grad = self.grads[name] = self._full(self.left[name])
        right = self.rights[name]
        return figure(grad, torch.zeros_like(grad) if right is None else self._part(name, right))

    def _inputs(self, right: Right | None, sizes: dict[str, Any]) -> dict[str, Figure]:
        """This rank's rows of each input; what all ranks were given whole is added up over them."""
        listed, figures = list(leaves_of(self.inputs)), {}
        places = [i for i, (_, leaf) in enumerate(listed) if isinstance(leaf, Tensor) and _floats(leaf)]
        lacking = self.talk.gathered([name for name, leaf in self.leaves.items() if leaf.grad is None])
        for i, (name, leaf) in zip(places, self.leaves.items(), strict=True):
            given = listed[i][1]
            absent = [rank for rank, names in enumerate(lacking) if name in names]
            shape = plain(given).shape
            whole = None if sizes[name] is None else self.talk.tensor_from(0, right and right.grads[name], shape)
            own = torch.zeros_like(plain(leaf)) if leaf.grad is None else plain(leaf.grad)
            expected = torch.zeros(shape, dtype=torch.float64) if whole is None else self.factor * whole
            if has_rows(given, self.rows.rows):
                expected = expected[self.rows.of(RankTurn(0), 0)[self.rows.own]]
            else:
                own = self.talk.sum_(own) * (self.shares / self.ranks)
            figures[name] = figure(own, expected)
            if self.rank in absent and whole is not None:
                figures[name] = figures[name]._replace(words="is missing")
        return figures

    def _outputs(self, right: Right | None) -> list[Figure]:
        """Those of the last micro-batch beside the same rows of one rank; what has no rows is reduced first."""
        figures = []
        for i, (y, part) in enumerate(zip(self.taken[-1], self.places[-1], strict=True)):
            whole = self.talk.tensor_from(0, None if right is None else right.outputs[-1][i], self.shapes[-1][i])
            if not part.by_rows:
                y = y.clone()
                self.talk.sum_(y)
                y *= self.shares / self.ranks / self.factor
            figures.append(figure(y, part.of(whole)))
        return figures

    def _buffers(self, right: Right | None) -> dict[str, Figure]:
        figures = {}
        for name, b in self.buffers.items():
            own = plain(b)
            figures[name] = figure(
                own, self.talk.tensor_from(0, None if right is None else right.buffers[name], own.shape)
            )
        return figures

    def _rate(self, right: Right) -> float:
        """A learning rate that moves the parameters by a small share of their norm."""
        trained = [name for name in self.trained if right.grads[name] is not None]
        size = math.hypot(*(float(right.grads[name].norm()) for name in trained))  # type: ignore[union-attr]
        rate = STEP * math.hypot(*(float(self.values[name].norm()) for name in trained)) / size if size else 0.0
        return rate if math.isfinite(rate) else 0.0

    def explain(self, turn: RankTurn, names: Sequence[str]) -> dict[str, str]:
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
                part = self._part(name, self.talk.tensor_from(rank, mine))
                alike.append(grad is not None and float((grad - part).norm()) <= LOCAL * float(part.norm()))
            everywhere = self.talk.gathered(alike)
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
            figures[name] = figure(moved, expected)._replace(scale=float(before.norm()))
        return figures

    def narrowest(self, turn: RankTurn) -> float:
        """The coarsest unit of a run of the wrapped module."""
        with Narrowest() as mode:
            self.run(turn)
        return mode.eps

    # Values on all ranks.

    def _batches(self, turn: RankTurn) -> list[Any]:
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
        said = self.talk.gathered(own)
        return torch.cat([said[rank] for rank in part.team], part.axis)

    def _put(self, name: str, tensor: Any, whole: Tensor) -> None:
        """Another value for a parameter."""
        if not hasattr(tensor, "full_tensor"):
            put(tensor, self._part(name, whole))
        elif all(placement.is_replicate() for placement in tensor.placements):
            put(tensor.to_local(), whole)


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


def started() -> bool:
    """Whether this rank is there."""
    return True


def open_trial(setting: RankSetting) -> Opened:
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
        _trials.pop().talk.close()


@contextmanager
def _stage(setting: RankSetting, words: str) -> Iterator[None]:
    """Prints go to standard error, new tensors have the trial's dtype, and whoever waits can tell where."""
    default = torch.get_default_dtype()
    if _trials and setting.dtype is torch.float64:
        torch.set_default_dtype(torch.float64)
    try:
        with redirect_stdout(sys.stderr), StageWatch(setting.folder, dist.get_rank(), words, setting.timeout):
            yield
    finally:
        torch.set_default_dtype(default)
