"""`gradproof verify file.py:case --ranks N`: is a distributed step the one that a single rank would take?

Each step starts from the values that the distributed module itself has, on one rank as well, so that a fault of one
step is not seen again in the next. A tensor keeps the first fault that was found of it.

    right if ‖g − right‖ ≤ bound:  1e-10·‖right‖ + 64·w in float64,  max(6·w, 16·u·‖right‖, 2e-5·‖right‖) as it trains

w is how far rounding moves the right gradient (`rank_reference`), u the unit of the dtype.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from gradproof.precision.probe import check_bf16_on_cpu
from gradproof.proof.as_trained import EXCESS, FLOOR, LEAST, in_words
from gradproof.proof.differences import Judgement, overall
from gradproof.proof.rank_figures import Figure, Opened, RankComparison, RankSetting
from gradproof.proof.rank_rows import RankTurn
from gradproof.proof.rank_stages import RankStopped, Stage
from gradproof.proof.rank_trial import AGREE, close_trial, open_trial, stage
from gradproof.proof.runner import INPUT, CannotRun
from gradproof.proof.verdict import CheckVerdict, Coverage, Report, SubjectVerdict
from gradproof.ranks.pool import Pool

RANK_CHECKS = ("dtype", "accumulation", "no_sync")
TIMEOUT = 60.0
RELATIVE, NOISES = 1e-10, 64.0  # in float64
COARSE = 1e-2  # a resolution above it proves nothing
VALUES = 1e-5  # of their size, by which outputs and buffers may be off; gradients are judged more finely
NARROW = 4.0  # units of a narrower dtype inside, that an error may have
UNEVEN = (
    "the shares of the rows are unequal, and an output without rows is averaged over the ranks: if it is a mean over a "
    "rank's own rows, it must be weighted by how many they are"
)
RANDOM = (
    "the module draws random numbers, which rows on several ranks cannot share; switch that off, with .eval() or a "
    "dropout of 0"
)


def verify_ranks(
    case: str,
    ranks: int,
    *,
    quick: bool = False,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    autocast: torch.dtype | None = None,
    skip: Collection[str] = (),
    allow_unjudged: Collection[str] = (),
    timeout: float = TIMEOUT,
    pool: Pool | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Judges the RankCase that the function `case` returns, on so many ranks of this machine.

    quick    in float64 alone, without accumulation
    timeout  seconds in which every rank must end each stage of a step
    pool     ranks that have been started already"""
    if ranks < 2:
        raise CannotRun(f"--ranks {ranks}: give at least two ranks")
    unknown = set(skip) - set(RANK_CHECKS)
    if unknown:
        raise CannotRun(f"with --ranks there is no check {min(unknown)!r}; the checks are {', '.join(RANK_CHECKS)}")
    if torch.bfloat16 in (dtype, autocast):
        check_bf16_on_cpu()
    left_out = {*skip, *(RANK_CHECKS if quick else ())}
    # Collectives fail by themselves a little later than the stage does.
    running = Pool(ranks, 2 * timeout + 30) if pool is None else nullcontext(pool)
    with running as pool, tempfile.TemporaryDirectory(prefix="gradproof-") as folder:
        setting = RankSetting(case, seed % 2**63, torch.float64, None, timeout, folder)
        proof = RankProof(pool, setting, frozenset(left_out), frozenset(allow_unjudged), progress)
        return Report([proof.verdict(dtype, autocast)])


@dataclass
class Seen:
    """What was seen of one tensor over the steps."""

    error: float = 0.0
    bound: float = 0.0
    resolution: float | None = None
    refuted: str = ""
    unclear: str = ""
    used: bool = False
    slack: float = 0.0  # a relative error that a narrower dtype inside explains

    def judgement(self, name: str) -> Judgement:
        if self.refuted:
            return Judgement(name, "refuted", self.error, self.bound, None, self.refuted)
        if self.unclear:
            return Judgement(name, "inconclusive", self.error, self.bound, self.resolution, self.unclear)
        if not self.used:
            return Judgement(name, "unused", 0.0, 0.0, None, "the output does not depend on it")
        if self.resolution is None:
            return Judgement(name, "proven", 0.0, self.bound, None, "its gradient is zero here, on one rank and on all")
        if self.resolution > COARSE:
            note = f"rounding alone may be {self.resolution:.1g} of its gradient"
            return Judgement(name, "inconclusive", self.error, self.bound, self.resolution, note)
        return Judgement(name, "proven", self.error, self.bound, self.resolution)


class RankProof:
    """One RankCase under judgement."""

    def __init__(
        self,
        pool: Pool,
        setting: RankSetting,
        skip: frozenset[str],
        allow_unjudged: frozenset[str],
        progress: Callable[[int, int], None],
    ):
        self.pool, self.setting, self.skip, self.allow_unjudged = pool, setting, skip, allow_unjudged
        self.progress = progress
        self.parameters: dict[str, Seen] = {}
        self.inputs: dict[str, Seen] = {}
        self.checks: list[CheckVerdict] = []
        self.notes: list[str] = []
        self.unjudged: dict[str, str] = {}
        self.steps = 0
        self.random = False
        self.again = False  # what was judged in float64, in another dtype

    def verdict(self, dtype: torch.dtype | None, autocast: torch.dtype | None) -> SubjectVerdict:
        """In float64, then as it trains."""
        own = None
        try:
            own = self._trial(self.setting, self._turns)
            self.notes.append("judged in float64")
        except RankStopped as stop:
            if stop.status != "raised" or self.steps > 1:
                return self._ended(stop)
            float64, self.parameters, self.steps = stop.sentence, {}, 0
        else:
            float64 = ""
        trains = dtype or autocast or (own.dtype if own else None)
        wanted = float64 or (trains is not torch.float64 and "dtype" not in self.skip and not self.random)
        if not wanted:
            return self._finished()
        narrow = self.setting._replace(dtype=dtype, autocast=autocast)
        try:
            if float64:  # there it does not run at all
                self._trial(narrow, self._turns)
                self.notes.append(f"judged in its own dtype, because in float64 {float64}")
            else:
                self._as_trained(narrow, trains)
        except RankStopped as stop:
            if stop.status == "raised" and float64:
                raise CannotRun(stop.sentence) from stop
            if stop.status != "raised":
                return self._ended(stop)
            note = f"in {_plain_dtype(trains)} it could not be judged: {stop.sentence}"
            self.checks.append(CheckVerdict("dtype", "noted", note, []))
            self.notes.append(note)
        return self._finished()

    def _turns(self, opened: Opened) -> list[RankTurn]:
        """Two plain steps; one that accumulates; the same under the wrapped module's `no_sync`, if there is one."""
        turns = [RankTurn(0), RankTurn(1)]
        if opened.least > 1 and "accumulation" not in self.skip:
            turns.append(RankTurn(2, 2))
        if opened.least > 1 and opened.can_unsync and "no_sync" not in self.skip:
            turns.append(RankTurn(3, 2, True))
        return turns

    def _as_trained(self, setting: RankSetting, dtype: torch.dtype | None) -> None:
        """The plain steps again in another dtype; what is wrong there alone is told apart. Where a gradient is wrong
        already, replicas differ after one update, and the second step would blame what only follows from that."""
        before = {name for name, seen in self._all() if seen.refuted}
        turns = [RankTurn(0)] if before else [RankTurn(0), RankTurn(1)]
        wide = self.parameters, self.inputs, self.notes
        self.parameters, self.inputs, self.notes, self.again = {}, {}, [], True
        try:
            self._trial(setting, lambda opened: turns)
        finally:
            narrow = dict(self._all())
            self.parameters, self.inputs, self.notes = wide
        words = f"right in float64, wrong in {_plain_dtype(dtype)}"
        wrong = {name: seen for name, seen in narrow.items() if seen.refuted and name not in before}
        for name, seen in wrong.items():
            self._among(name)[name] = Seen(seen.error, seen.bound, None, f"{words}: {seen.refuted}")
        note = f"{words}: {', '.join(map(_plain_name, wrong))}" if wrong else ""
        self.checks.append(CheckVerdict("dtype", "refuted" if wrong else "proven", note, [*map(_plain_name, wrong)]))

    def _among(self, name: str) -> dict[str, Seen]:
        return self.inputs if name.startswith(INPUT) else self.parameters

    def _all(self) -> Iterator[tuple[str, Seen]]:
        yield from self.parameters.items()
        yield from self.inputs.items()

    # One trial.

    def _trial(self, setting: RankSetting, turns: Callable[[Opened], list[RankTurn]]) -> Opened:
        run = Stage(self.pool, setting)
        opened: Opened = run("the case and its wrap", open_trial, setting)[0]
        unit = torch.finfo(setting.dtype or setting.autocast or opened.dtype).eps / 2
        unit = max(unit, torch.finfo(setting.autocast).eps / 2) if setting.autocast else unit
        self.unjudged = {**opened.lost, **opened.unjudged}
        for name in opened.parameters:
            self.parameters[name] = Seen()
        if opened.lost:  # without its value there is nothing to compare with
            name, reason = next(iter(opened.lost.items()))
            raise RankStopped("inconclusive", f"the value of {name} is not known: {reason}")
        listed = turns(opened)
        for i, turn in enumerate(listed):
            self.progress(i, len(listed))
            try:
                judged = self._step(run, turn, unit, opened, last=turn is listed[-1])
            except RankStopped as stop:
                if stop.status != "raised" or turn.micros == 1:
                    raise
                # What a module refuses by itself, a batch of one row say, is no fault.
                check = "no_sync" if turn.unsynced else "accumulation"
                self.checks.append(CheckVerdict(check, "noted", f"{check} could not be tried: {stop.sentence}", []))
                self.notes.append(self.checks[-1].note)
                return opened
            if self.random:
                break
            if turn.micros > 1 and judged:
                wrong = [name for name, seen in self._all() if seen.refuted.endswith(_in_turn(turn))]
                check = "no_sync" if turn.unsynced else "accumulation"
                self.checks.append(CheckVerdict(check, "refuted" if wrong else "proven", "", wrong))
        run("the end", close_trial)
        return opened

    def _step(self, run: Stage, turn: RankTurn, unit: float, opened: Opened, last: bool) -> bool:
        """One step: values, forward and backward, gradients, update. False where its gradients could not be judged."""
        words = f"step {turn.number + 1}"
        self.steps += 1
        differences = run(f"{words} on one rank", stage, words, "prepare", turn)
        self._agreed(turn, differences, unit)
        run(f"forward and backward of {words}", stage, words, "run", turn)
        compared: list[RankComparison] = run(f"the gradients of {words}", stage, words, "compare", turn)
        self.random = compared[0].random
        if self.random:
            for name in (*compared[0].parameters, *compared[0].inputs):
                self._among(name)[name] = Seen(math.nan, math.nan, unclear=RANDOM)
            return False
        if self._drifted(turn, compared, unit):
            return False
        already = {name for name, seen in self._all() if seen.refuted}
        self._gradients(turn, compared, unit, opened)
        fresh = [name for name, seen in self.parameters.items() if seen.refuted and name not in already]
        if fresh:
            self._explained(run, turn, fresh, unit)
        if not last:
            self._updated(turn, run(f"the update of {words}", stage, words, "update"), compared[0], unit)
        return True

    def _agreed(self, turn: RankTurn, differences: Sequence[Mapping[str, float]], unit: float) -> None:
        """Whether all ranks have the same values."""
        for name in differences[0]:
            off, rank = max((by_rank[name], rank) for rank, by_rank in enumerate(differences))
            if off <= 2 * AGREE * unit:
                continue
            when = "after wrap" if turn.number == 0 else f"after step {turn.number}"
            told = f"is off by {off:.2g} of its size" if math.isfinite(off) else "is different"
            self._refute(name, off, 2 * AGREE * unit, f"{when} its value on rank {rank} {told} from that on rank 0")

    def _drifted(self, turn: RankTurn, compared: Sequence[RankComparison], unit: float) -> bool:
        """Whether values were changed within the step; then all gradients are those of other values."""
        wrong = False
        for name in compared[0].moved:
            off, rank = max((one.moved[name], rank) for rank, one in enumerate(compared))
            if off > 2 * AGREE * unit:
                wrong = True
                told = f"its value on rank {rank} changes by {off:.2g} of its size{_in_turn(turn)}"
                self._refute(name, off, 2 * AGREE * unit, f"{told}, before the optimizer runs")
        for name in (*compared[0].parameters, *compared[0].inputs) if wrong else ():
            self._among(name).setdefault(name, Seen()).unclear = "other parameters change before the optimizer runs"
        return wrong

    def _gradients(self, turn: RankTurn, compared: Sequence[RankComparison], unit: float, opened: Opened) -> None:
        sizes = compared[0].sizes
        for name in compared[0].parameters:
            self._seen(self.parameters, name, turn, [c.parameters[name] for c in compared], sizes[name], unit)
        factor = opened.factor
        for name in compared[0].inputs:
            size = None if sizes[name] is None else tuple(factor * s for s in sizes[name])  # type: ignore[union-attr]
            self._seen(self.inputs, name, turn, [c.inputs[name] for c in compared], size, unit)  # type: ignore[arg-type]
        if not self.again:
            outputs = {f"output {i}": [c.outputs[i] for c in compared] for i in range(len(compared[0].outputs))}
            self._values("output", turn, outputs, unit)
            if opened.uneven and any(check.name == "output" for check in self.checks) and not compared[0].by_rows:
                self.notes.append(UNEVEN)
            buffers = {name: [c.buffers[name] for c in compared] for name in compared[0].buffers}
            self._values("buffer", turn, buffers, unit)

    def _seen(
        self,
        among: dict[str, Seen],
        name: str,
        turn: RankTurn,
        figures: Sequence[Figure],
        size: tuple[float, float] | None,
        unit: float,
    ) -> None:
        """One gradient of one step, on all ranks."""
        seen = among.setdefault(name, Seen())
        if seen.refuted:
            return
        norm, width = size or (0.0, 0.0)
        bound = absolute_bound(norm, width, unit)
        error, rank = max((f.error if not math.isnan(f.error) else math.inf, rank) for rank, f in enumerate(figures))
        seen.used = seen.used or size is not None or any(f.own for f in figures)
        if bound < error <= seen.slack * norm:
            return
        if error > bound:
            words = f"{_on(_words(figures[rank], norm), rank, figures)}{_in_turn(turn)}"
            self._refute(name, error / (norm or 1.0), bound / (norm or 1.0), words)
        elif norm > bound:
            seen.error, seen.bound = max(seen.error, error / norm), max(seen.bound, bound / norm)
            seen.resolution = min(seen.resolution or math.inf, (bound + error) / norm)

    def _values(self, kind: str, turn: RankTurn, figures: Mapping[str, Sequence[Figure]], unit: float) -> None:
        """Outputs and buffers, which must be those of one rank too."""
        wrong = {}
        for name, by_rank in figures.items():
            for rank, figure in enumerate(by_rank):
                if figure.error > max(VALUES, 256 * unit) * max(figure.size, figure.own) or math.isnan(figure.error):
                    wrong.setdefault(name, f"{name} of rank {rank} {_words(figure, figure.size)}{_in_turn(turn)}")
        if wrong and not any(check.name == kind and check.tensors == [*wrong] for check in self.checks):
            note = f"{'; '.join(list(wrong.values())[:3])}"
            self.checks.append(CheckVerdict(kind, "refuted", note, [*wrong]))

    def _explained(self, run: Stage, turn: RankTurn, names: list[str], unit: float) -> None:
        """In better words, where a gradient is that of some rows; and what is only the rounding of a narrower dtype."""
        words = f"step {turn.number + 1}"
        for name, told in run(words, stage, words, "explain", turn, names)[0].items():
            self.parameters[name].refuted = told + _in_turn(turn)
        small = [name for name in names if self.parameters[name].error < NARROW * torch.finfo(torch.bfloat16).eps]
        if small and unit < torch.finfo(torch.bfloat16).eps / 2:
            eps = max(run(words, stage, words, "narrowest", turn))
            for name in small:
                if eps > 4 * unit and self.parameters[name].error <= NARROW * eps:
                    seen = self.parameters[name]
                    note = f"the wrapped module rounds to an epsilon of {eps:.1e} inside, which explains the error"
                    self.parameters[name] = Seen(seen.error, seen.bound, None, "", note, True, NARROW * eps)

    def _updated(
        self, turn: RankTurn, figures: Sequence[Mapping[str, Figure]], compared: RankComparison, unit: float
    ) -> None:
        for name in figures[0]:
            size = compared.sizes[name]
            norm, width = size or (0.0, 0.0)
            by_rank = [one[name] for one in figures]
            slack = self.parameters[name].slack * norm
            bound = compared.rate * max(absolute_bound(norm, width, unit), slack)
            bound += 8 * unit * max(f.scale for f in by_rank)
            error, rank = max((f.error, rank) for rank, f in enumerate(by_rank))
            if error > bound:
                moved = compared.rate * norm
                words = _on(f"its update {_words(by_rank[rank], moved)}", rank, by_rank)
                self._refute(name, error / (moved or 1.0), bound / (moved or 1.0), words + _in_turn(turn))

    def _refute(self, name: str, error: float, bound: float, words: str) -> None:
        among = self._among(name)
        if not among.setdefault(name, Seen()).refuted:
            among[name] = Seen(error, bound, None, words, used=True)

    # The end.

    def _ended(self, stop: RankStopped) -> SubjectVerdict:
        """What was found before a rank stopped, and that it did."""
        for _, seen in self._all():
            seen.unclear = seen.unclear or stop.sentence
        refuted = stop.status == "refuted" or (stop.status == "raised" and self.steps > 1)
        self.checks.append(CheckVerdict("ranks", "refuted" if refuted else "noted", stop.sentence, []))
        self.notes.append(stop.sentence)
        if stop.status == "raised" and self.steps <= 1:
            raise CannotRun(stop.sentence)
        return self._finished()

    def _finished(self) -> SubjectVerdict:
        parameters = [seen.judgement(name) for name, seen in self.parameters.items()]
        inputs = [seen.judgement(_plain_name(name)) for name, seen in self.inputs.items()]
        judged = [*parameters, *inputs]
        seen = [j for j in judged if j.status != "inconclusive"]
        left = set(self.unjudged) - self.allow_unjudged
        status = overall([j for j in judged if j.status != "inconclusive" or j.name not in self.allow_unjudged])
        if status == "proven" and (left or not parameters):
            status = "inconclusive"
        if any(check.status == "refuted" for check in self.checks):
            status = "refuted"
        elif status == "proven" and any(c.name in ("ranks", "dtype") and c.status == "noted" for c in self.checks):
            status = "inconclusive"
        coverage = Coverage(len(seen), len(judged) + len(self.unjudged), self.unjudged)
        return SubjectVerdict(
            self.setting.text, status, parameters, inputs, self.steps, 0, self.setting.seed,
            list(dict.fromkeys(self.notes)), coverage=coverage, checks=self.checks, ranks=self.pool.ranks,
        )  # fmt: skip


def absolute_bound(norm: float, width: float, unit: float) -> float:
    """How far a right gradient may be from that of one rank."""
    if unit < 1e-12:
        return RELATIVE * norm + NOISES * width
    return max(EXCESS * width, FLOOR * unit * norm, LEAST * norm)


def _words(figure: Figure, norm: float) -> str:
    if figure.words:
        return figure.words
    return in_words(figure.dot / norm**2 if norm else math.nan, figure.error, norm)


def _on(words: str, rank: int, figures: Sequence[Figure]) -> str:
    """Names the rank, where it is not the same on all."""
    errors = [figure.error for figure in figures]
    alike = max(errors) - min(errors) <= 1e-6 * max(errors) if all(map(math.isfinite, errors)) else False
    return words if alike or "rank" in words else f"{words} on rank {rank}"


def _in_turn(turn: RankTurn) -> str:
    if turn.unsynced:
        return " when gradients accumulate over two micro-batches, the first of them under no_sync()"
    return " when gradients accumulate over two micro-batches" if turn.micros > 1 else f" in step {turn.number + 1}"


def _plain_dtype(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _plain_name(name: str) -> str:
    return name.removeprefix(INPUT)
