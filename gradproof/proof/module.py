"""`verify(module, inputs)`: is the backward pass of the user's own module right, as it trains?

Autograd is the accused here, and torch's forward mode would stop at the same `detach`, so only differences of the
forward testify. The module is run in float64 where it can: as it is, or with its float32 casts promoted and grouped
products decomposed, or else in its own precision with bounds from its measured noise. What is proven there, at the
given point and at a generic one near it, is then what its own dtype and every way of calling it must give.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradproof.contract import Gradients, Outputs, Subject
from gradproof.precision.probe import check_bf16_on_cpu
from gradproof.precision.watching import Watching
from gradproof.proof.as_trained import Deviation, Jitter, as_trained, run_like
from gradproof.proof.averaged import ENOUGH, RUNS, FactorEstimate, hidden
from gradproof.proof.calls import IN_WORDS, WAYS, Calls, Stateful, same
from gradproof.proof.conventions import ALONG, FLOAT32_ERROR, held_notes, immovable, judge_by_convention, refused_inputs
from gradproof.proof.differences import Judge, Judgement, judge, overall
from gradproof.proof.probing import Probe, Prober
from gradproof.proof.rank_case import RankCase
from gradproof.proof.recorder import AS_IT_IS, FLOAT32, Promotion, Recorder
from gradproof.proof.runner import INPUT, CannotRun, GradientOf, Runner, draw_cotangents, one_line
from gradproof.proof.second_point import second_point
from gradproof.proof.state import ModuleState, random_state_kept
from gradproof.proof.structure import leaves_of, rebuilt
from gradproof.proof.verdict import CheckVerdict, Coverage, Report, SubjectVerdict

IN_FLOAT64 = "judged in float64"  # what a verdict notes where nothing else need be said
CHECKS = ("dtype", "point", *WAYS, "eval", "one_row")
OTHERWISE = 0.3  # of the output's size: a float64 run that is further off computes something else
NOT_ASKED = "it has no gradient and required none"
OUTPUT_UNIT = 2.0**-50  # to a few of which two float64 forwards agree
VANISHING = 1e-8  # of its size at the given point
NO_INPUTS = object()
SENTINEL = 1e9  # inputs from here on are marks, not data
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


def verify(
    module: nn.Module,
    inputs: Any = NO_INPUTS,
    *,
    quick: bool = False,
    seed: int = 0,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    autocast: str | torch.dtype | None = None,
    skip: Collection[str] = (),
    allow_unjudged: Collection[str] = (),
    gradient_of: GradientOf | None = None,
    name: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Judges the gradients of `module`'s parameters and of the floating tensors in `inputs` (a tuple of positional or a
    dict of keyword arguments). The module is left exactly as it was found.

    The projected loss is L = Σ⟨r, y⟩, y all floating outputs with grad and r ~ N(0, 1)/√numel.

    dtype, autocast  in which it trains; left out, as the module and its inputs are
    skip             checks to leave out, of `CHECKS`
    allow_unjudged   names of tensors that need not be judged
    gradient_of      (name, parameter) to its gradient after a backward, where that does not go to `.grad`"""
    if isinstance(module, RankCase):
        raise CannotRun(
            "a RankCase is judged on several processes: return it from a function, case() of file.py say, and run "
            "`gradproof verify file.py:case --ranks 2`"
        )
    if not isinstance(module, nn.Module):
        raise CannotRun(f"verify judges a torch.nn.Module, not a {type(module).__name__}")
    if inputs is NO_INPUTS:
        raise CannotRun("verify needs the module's inputs, as a tuple or a dict by keyword")
    options = Options(
        quick, seed % 2**63, torch_device(device), torch_dtype(dtype), torch_dtype(autocast), checked_skip(skip),
        frozenset(allow_unjudged), gradient_of,
    )  # fmt: skip
    with random_state_kept(), torch.inference_mode(False), torch.enable_grad():
        state, name = ModuleState(module), name or type(module).__name__
        try:
            judged = judge_module(module, inputs, state, name, options, progress)
            kind = options.device or next((t.device for t in state.tensors), "cpu")
            return Report([judged], device=str(kind))
        finally:
            state.restore()


class Options(NamedTuple):
    """How a module is judged."""

    quick: bool = False
    seed: int = 0
    device: torch.device | None = None
    dtype: torch.dtype | None = None
    autocast: torch.dtype | None = None
    skip: frozenset[str] = frozenset()
    allow_unjudged: frozenset[str] = frozenset()
    gradient_of: GradientOf | None = None
    promotion: Promotion = FLOAT32
    held: frozenset[str] = frozenset()  # inputs that are not moved


def torch_device(device: str | torch.device | None) -> torch.device | None:
    try:
        parsed_device = torch.device(device) if device else None
    except RuntimeError as error:
        raise CannotRun(f"{device!r} is not a device: {one_line(error)}") from None
    if parsed_device and parsed_device.type == "cuda" and not torch.cuda.is_available():
        raise CannotRun("torch sees no CUDA device here; judge on the CPU")
    return parsed_device


def torch_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """By torch's name or the short one."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    known = DTYPES.get(dtype) or getattr(torch, dtype, None)
    if not isinstance(known, torch.dtype) or not known.is_floating_point:
        raise CannotRun(f"{dtype!r} is not a floating dtype; use one of {', '.join(DTYPES)}")
    return known


def checked_skip(skip: Collection[str]) -> frozenset[str]:
    unknown = set([skip] if isinstance(skip, str) else skip) - set(CHECKS)
    if unknown:
        raise CannotRun(f"there is no check {min(unknown)!r}; the checks are {', '.join(CHECKS)}")
    return frozenset([skip] if isinstance(skip, str) else skip)


def judge_module(
    module: nn.Module,
    inputs: Any,
    state: ModuleState,
    name: str,
    options: Options,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SubjectVerdict:
    """`verify` on a module whose state is held by the caller."""
    return ModuleProof(module, inputs, state, name, options).verdict(progress)


class ModuleProof:
    """One module under judgement."""

    def __init__(self, module: nn.Module, inputs: Any, state: ModuleState, name: str, options: Options):
        self.module, self.given, self.state, self.name, self.options = module, inputs, state, name, options
        self.own = options.dtype or options.autocast or _own_dtype(module, inputs)
        self.default = torch.get_default_dtype()
        first = first_run(module, inputs, state, options)
        self.runner, self.notes, self.spent, self.runs = first.runner, list(first.notes), first.spent, first.runs
        self.cotangents = draw_cotangents(first.outputs, options.seed)
        self.base = Probe.of(first.outputs, self.cotangents, first.recorder)
        self.judged: dict[str, Judgement] = {}
        self.checks: list[CheckVerdict] = []
        self.directions = 0

    def verdict(self, progress: Callable[[int, int], None]) -> SubjectVerdict:
        """All checks, those in float64 first."""
        runner, options = self.runner, self.options
        again, grads = self._plain()
        self.spent += 1
        # Inputs that no gradient was asked of, and that have none: labels, masks, what a first layer does not pass on.
        self.plain = {name for name in runner.inputs if grads[name] is None and name not in runner.asked}
        self.elsewhere = {} if options.gradient_of else _elsewhere(runner, grads)
        self.fixed, reasons = _fixed(self.module, runner)
        self.notes += reasons
        if abs(again.loss - self.base.loss) > 1e-6 * self.base.terms:
            self.notes.append(
                "two forward passes with the same seed and values differ, so differences mean nothing; draw random "
                "numbers from torch's default generator (it is seeded before each run), or switch the source off, e.g. "
                "with .eval()"
            )
            note = self.notes[-1]
            self.judged = {n: Judgement(n, "inconclusive", math.nan, math.nan, None, note) for n in runner.values}
            return self._finished()
        outside = self._at_the_point(self._asked(grads), self.spent, progress)
        if outside and not options.held:
            held = options._replace(held=outside)
            return ModuleProof(self.module, self.given, self.state, self.name, held).verdict(progress)
        if self.plain and any(j.status == "refuted" for j in self.judged.values()):
            self.plain, before = set(), self.spent  # what is cut off may be the same fault
            self._at_the_point(grads, 0, progress)
            self.spent += before
        grads = self._asked(grads)
        self.sizes = {name: 0.0 if g is None else float(g.norm()) for name, g in grads.items()}
        self.notes += [f"the gradient of {n} goes to {at}, and was judged there" for n, at in runner.elsewhere.items()]
        if not math.isfinite(self.base.loss):
            return self._finished()
        if not options.quick:
            self._second_point()
            self._second_step()
            self._evaluated()
            self._one_row()
        self._as_trained(grads)
        return self._finished()

    def _asked(self, grads: Gradients) -> Gradients:
        return {name: grad for name, grad in grads.items() if name not in self.plain and name not in self.elsewhere}

    def _at_the_point(self, grads: Gradients, spent: int, progress: Callable[[int, int], None]) -> frozenset[str]:
        """By differences, where the user is; along a convention where there is one. Returns the inputs that the forward
        does not let be moved."""
        subject, quick = self._subject(self.runner.values), self.options.quick
        judged = judge(
            subject,
            self.cotangents,
            grads,
            seed=self.options.seed,
            quick=quick,
            promote=self.runner.promote,
            base=self.base,
            spent=spent,
            progress=progress,
        )
        outside = immovable(judged, self.runner.unasked)
        judged = judge_by_convention(judged, subject, self.cotangents, quick=quick, promote=self.runner.promote)
        self.judged = {j.name: self._kept_narrow(j, grads.get(j.name)) for j in judged.judgements}
        self.judged |= {name: Judgement(name, "unused", 0.0, 0.0, None, NOT_ASKED) for name in self.plain}
        for name, reason in self.elsewhere.items():
            self.judged[name] = Judgement(name, "inconclusive", math.nan, math.nan, None, reason)
        self.spent, self.directions = judged.forwards, judged.directions
        self.notes += [note for note in judged.notes if note not in self.notes]
        return outside

    def _plain(self) -> tuple[Probe, Gradients]:
        try:
            with Recorder(self.runner.promote) if self.runner.promote else nullcontext() as recorder:
                outputs, grads = self.runner.run(self.runner.values, self.cotangents)
        except (Exception, SystemExit) as error:
            raise CannotRun(f"the module's backward raised {one_line(error)}") from error
        return Probe.of(outputs, self.cotangents, recorder or Recorder()), grads

    def _kept_narrow(self, j: Judgement, grad: Tensor | None) -> Judgement:
        """A gradient that goes to a buffer in float32 is right to that unit."""
        elsewhere = self.options.gradient_of is not None or j.name in self.runner.elsewhere
        if j.status != "refuted" or not elsewhere or grad is None or j.error > 4 * FLOAT32_ERROR:
            return j
        held = bool((grad.float().to(grad.dtype) == grad).all())
        note = "kept in float32, and right to its unit"
        return Judgement(j.name, "proven", j.error, 4 * FLOAT32_ERROR, 4 * FLOAT32_ERROR, note) if held else j

    def _new(self, name: str) -> bool:
        """Whether a fault of a tensor would be the first, and its gradient is one of all directions."""
        j = self.judged[name]
        return j.status != "refuted" and not j.note.startswith(ALONG)

    def _subject(self, values: Mapping[str, Tensor]) -> Subject:
        return Subject(self.name, values, self.runner.run, frozenset(self.runner.inputs), fixed=self.fixed)

    def _wrong(self, check: str, wrong: Mapping[str, Any], lead: str) -> None:
        """Tensors that a check has found wrong, by name, with the words for it."""
        for name, found in wrong.items():
            note = f"{lead}: {_plain_name(name)} {found.words}"
            self.judged[name] = Judgement(name, "refuted", found.error, found.bound, None, note)
        names = [_plain_name(name) for name in wrong]
        said = f"{lead}: {', '.join(f'{_plain_name(n)} {found.words}' for n, found in list(wrong.items())[:3])}"
        self.checks.append(CheckVerdict(check, "refuted" if wrong else "proven", said if wrong else "", names))

    def _noted(self, check: str, note: str) -> None:
        self.checks.append(CheckVerdict(check, "noted", note, []))
        self.notes.append(note)

    # The second point.

    def _second_point(self) -> None:
        if "point" in self.options.skip:
            return
        runner = self.runner
        values = second_point(runner.values, frozenset(runner.inputs), self.fixed, self.options.seed)
        try:
            with Recorder(runner.promote) as recorder:
                outputs, grads = runner.run(values, self.cotangents)
            self.spent += 1
            base = Probe.of(outputs, self.cotangents, recorder)
            if not math.isfinite(base.loss):
                raise ArithmeticError("the outputs are not finite")
            unclear = [name for name, j in self.judged.items() if _vanished(j) and name in self._asked(grads)]
            found = self._screened(self._subject(values), self._asked(grads), None, unclear)
        except (Exception, SystemExit) as error:
            self._noted("point", f"a second point near the given one could not be judged: {one_line(error)}")
            return
        wrong = {name: j for name, j in found.items() if j.status == "refuted" and self._new(name)}
        for name, j in wrong.items():
            self.judged[name] = dataclasses.replace(j, note="wrong at a second point, near the given one")
        for name in unclear:
            if name not in wrong and found[name].status != "unused":
                note = "judged at a second point: at the given one its gradient is zero"
                self.judged[name] = dataclasses.replace(found[name], note=found[name].note or note)
        self.checks.append(CheckVerdict("point", "refuted" if wrong else "proven", "", [*map(_plain_name, wrong)]))

    def _screened(
        self, subject: Subject, grads: Gradients, directions: int | None, by_name: Collection[str] = ()
    ) -> dict[str, Judgement]:
        """The joint screen at another point or of another function; some tensors by name too."""
        cotangents = self.cotangents if directions is None else self._cotangents
        prober = Prober(subject, cotangents, grads, self.options.seed + 1, self.runner.promote)
        judge = Judge(prober, lambda done, total: None)
        judged = judge.screened(directions)
        for name in by_name:
            if judged.get(name) is None or judged[name].status == "inconclusive" or directions:
                judge.judged += 2
                judged[name] = judge.judge_value(name)
        self.spent += prober.forwards
        return judged

    # Other functions: the one after a first step, eval() after train(), and one row.

    def _second_step(self) -> None:
        """Where the forward depends on the calls before it, what it computes after a first step is another function.
        Where it does not, the ways to call compare the gradients alone."""
        if "second_step" in self.options.skip:
            return
        runner, state = self.runner, self.state
        values = second_point(runner.values, frozenset(runner.inputs), self.fixed, self.options.seed)
        with suppress(Exception, SystemExit), Recorder(runner.promote) if runner.promote else nullcontext():
            from_start = runner.forward(values)
            with state.after(lambda: runner.run(runner.values, self.cotangents)):
                outputs = runner.forward(values)
                self.spent += 3
                if all(same(y, before, OUTPUT_UNIT) for y, before in zip(outputs, from_start, strict=True)):
                    return
                self._another("second_step", f"wrong {IN_WORDS['second_step']}", values)

    def _evaluated(self) -> None:
        if "eval" in self.options.skip or not any(m.training for m in self.module.modules()):
            return
        training = {m: m.training for m in self.module.modules()}
        self.state.lasting(lambda: self.module.eval())
        try:
            with Recorder(self.runner.promote):
                before = self.runner.forward(self.runner.values)
            self.state.lasting(lambda: _set_training(training))
            with Recorder(self.runner.promote):
                trained = self.runner.forward(self.runner.values)
            self.spent += 2
            if len(before) == len(trained) and all(map(torch.equal, before, trained)):
                self.checks.append(CheckVerdict("eval", "proven", "eval() computes the same", []))
                return
            self.state.lasting(lambda: self.module.eval())
            self._another("eval", "right in training, wrong after eval()")
        except (Exception, SystemExit) as error:
            self._noted("eval", f"after eval() it could not be judged: {one_line(error)}")
        finally:
            self.state.lasting(lambda: _set_training(training))

    def _one_row(self) -> None:
        rows = [leaf.shape[0] for leaf in self.runner.leaves if isinstance(leaf, Tensor) and leaf.dim()]
        if "one_row" in self.options.skip or not rows or max(rows) < 2:
            return
        many, given = max(set(rows), key=rows.count), self.runner.given
        if many < 2:
            return

        def cut(leaf: Any) -> Any:
            one = isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == many and not leaf.is_nested
            return leaf[:1] if one and leaf.layout == torch.strided else leaf

        fixed = self.fixed
        try:
            self.runner.arguments(rebuilt(given, (cut(leaf) for _, leaf in leaves_of(given))))
            self.fixed, _ = _fixed(self.module, self.runner)
            self._another("one_row", "wrong for a single row")
        except (Exception, SystemExit) as error:
            self._noted("one_row", f"a single row could not be judged: {one_line(error)}")
        finally:
            self.fixed = fixed
            self.runner.arguments(given)

    def _another(self, check: str, lead: str, values: Mapping[str, Tensor] | None = None) -> None:
        """The module as another function, by two directions of differences."""
        runner = self.runner
        values = runner.values if values is None else values
        with Recorder(runner.promote):
            outputs = runner.forward(values)
        self._cotangents = draw_cotangents(outputs, self.options.seed)
        with runner.promoting:
            _, grads = runner.run(values, self._cotangents)
        self.spent += 2
        subject, grads = self._subject(values), self._asked(grads)
        found = self._screened(subject, grads, 2)
        seen = [name for name, j in found.items() if j.status == "refuted"]
        if seen:  # two directions may err; eight more, and each tensor by itself, do not
            found |= self._screened(subject, grads, 8, seen)
        # Of a gradient that all but vanishes there, what is hidden inside an op is too coarse a forward.
        large = {name for name, g in grads.items() if g is None or float(g.norm()) >= VANISHING * self.sizes[name]}
        wrong = [name for name, j in found.items() if j.status == "refuted" and self._new(name) and name in large]
        for name in wrong:
            self.judged[name] = dataclasses.replace(found[name], note=lead)
        said = f"{lead}: {', '.join(map(_plain_name, wrong))}" if wrong else ""
        self.checks.append(CheckVerdict(check, "refuted" if wrong else "proven", said, [*map(_plain_name, wrong)]))

    # In its own dtype, and called in other ways.

    def _as_trained(self, grads: Gradients) -> None:
        runner, bands, unit = self.runner, dict[str, Any](), torch.finfo(self.own).eps / 2
        there = runner.dtype is None or (self.own is torch.float64 and self.options.autocast is None)
        if not self.runs and not there and not (self.options.dtype or self.options.autocast):
            there = True
            self.notes.append(f"in {str(self.own).removeprefix('torch.')} it does not run, so it cannot train in it")
        trained = None if there or "dtype" in self.options.skip else self._in_own_dtype(self.own, unit)
        if trained is not None:
            runner, grads, bands = trained
        else:
            unit = 16 * max(self.base.coarsest, torch.finfo(torch.float64).eps)
        self._called(Calls(runner, self.cotangents, grads, bands, unit), self.options.skip)

    def _in_own_dtype(self, own: torch.dtype, unit: float) -> tuple[Runner, Gradients, dict[str, Any]] | None:
        """The gradients in the dtype that trains, beside those in float64 at the same values."""
        options, device = self.options, self.options.device
        words = f"{str(own).removeprefix('torch.')}{' autocast' if options.autocast else ''}"
        try:
            if own is torch.bfloat16 and (device is None or device.type == "cpu"):
                check_bf16_on_cpu()
            values = _rounded(self.runner.values, options.dtype)
            watch = Watching()
            with watch, self.runner.promoting:
                _, right = self.runner.run(values, self.cotangents)
            proven = {n: g.detach().double() for n, g in right.items() if g is not None and self._stands(n)}
            self._in_training_dtype()
            narrow = Runner(
                self.module, self.given, self.state, options.dtype, device, AS_IT_IS, options.seed,
                options.gradient_of, options.autocast, self.runner.held,
            )  # fmt: skip
            narrow.chosen = self.runner.chosen
            trained = as_trained(narrow, self.cotangents, proven, watch, unit)
            grads, wrong = trained.grads, dict(trained.wrong)
            weak = [name for name in proven if name not in wrong and hidden(trained.bands[name])]
            if weak:
                wrong |= self._averaged(narrow, weak, unit)
            if (
                watch.draws or watch.choices
            ):  # those were float64's; however it is called, it draws and decides by itself
                _, grads = narrow.run(narrow.values, self.cotangents)
        except (Exception, SystemExit) as error:
            self._noted("dtype", f"in {words} it could not be judged: {one_line(error)}")
            self._back_in_float64()
            return None
        self._wrong("dtype", wrong, f"right in float64, wrong in {words}")
        return narrow, {n: g for n, g in grads.items() if n not in wrong}, trained.bands

    def _averaged(self, narrow: Runner, weak: Collection[str], unit: float) -> dict[str, Deviation]:
        """The factors of gradients that rounding hides in one run, over runs at points near the given one."""
        estimates = {name: FactorEstimate() for name in weak}
        # A point that cannot be run ends it: then the runs so far must be enough.
        with suppress(Exception, SystemExit):
            for number in range(1, RUNS[1] + 1):
                right, *own = self._at_another_point(narrow, self.options.seed + number)
                for name, estimate in estimates.items():
                    estimate.add(right[name], *(grads[name] for grads in own))
                if number >= RUNS[0] and all(estimate.effective >= ENOUGH for estimate in estimates.values()):
                    break
        self._in_training_dtype(narrow)
        judged = {name: estimate.deviation(unit) for name, estimate in estimates.items()}
        return {name: deviation for name, deviation in judged.items() if deviation is not None}

    def _at_another_point(self, narrow: Runner, seed: int) -> tuple[Gradients, Gradients, Gradients]:
        """At another point and with another cotangent: in float64, as it trains, and that off by units."""
        values, cotangents = narrow.values, draw_cotangents(self.cotangents, seed)
        if "point" not in self.options.skip:
            values = second_point(values, frozenset(narrow.inputs), self.fixed, seed)
        self._back_in_float64()
        wide = {name: value.to(self.runner.values[name].dtype) for name, value in values.items()}
        with Watching() as watch, self.runner.promoting:
            _, right = self.runner.run(wide, cotangents)
        self._in_training_dtype(narrow)
        plain, off = (run_like(narrow, values, cotangents, watch, jitter) for jitter in (None, seed))
        return right, plain, off

    def _in_training_dtype(self, narrow: Runner | None = None) -> None:
        """The module's own state for runs in the dtype that trains; `narrow` goes on with it."""
        torch.set_default_dtype(self.default)
        self.state.swap(self.options.dtype, self.options.device, attributes=self.options.dtype is None)
        if narrow is not None:
            narrow.resume()

    def _back_in_float64(self) -> None:
        runner = self.runner
        torch.set_default_dtype(torch.float64 if runner.promote else self.default)
        self.state.swap(runner.dtype, runner.device)
        runner.resume()

    def _stands(self, name: str) -> bool:
        """Whether a tensor's gradient in float64 is one to go by."""
        return self.judged[name].status in ("proven", "unused")

    def _called(self, calls: Calls, skip: frozenset[str]) -> None:
        calls.right = {
            name: g
            for name, g in calls.right.items()
            if self.judged[name].status != "refuted" and name not in self.runner.stepped and bool(g.isfinite().all())
        }
        for result in calls.results(skip):
            if isinstance(result.refusal, Stateful) and any(check.name == result.name for check in self.checks):
                continue  # judged by differences
            if result.refusal is not None and not result.wrong:
                self._noted(result.name, f"{result.name} could not be tried: {one_line(result.refusal)}")
                continue
            # Where an output depends on the layout, that is the reason for whatever else was found.
            new = {n: found for n, found in result.wrong.items() if result.name == "layout" or self._accusable(n)}
            self._wrong(result.name, new, f"wrong {IN_WORDS[result.name]}")

    def _accusable(self, name: str) -> bool:
        return name not in self.judged or self.judged[name].status != "refuted"

    # The end.

    def _finished(self) -> SubjectVerdict:
        runner, options = self.runner, self.options
        unjudged = {_plain_name(name): why for name, why in runner.unjudged.items()}
        listed = list(self.judged.values())
        able = [j for j in listed if j.note != NOT_ASKED]
        seen = [j for j in able if j.status != "inconclusive"]
        coverage = Coverage(len(seen), len(able) + len(unjudged), unjudged)
        status = overall(listed)
        if status == "proven" and set(unjudged) - options.allow_unjudged:
            status = "inconclusive"
        rest = [j for j in listed if j.status != "inconclusive" or _plain_name(j.name) not in options.allow_unjudged]
        if status == "inconclusive" and not set(unjudged) - options.allow_unjudged:
            status = overall(rest)
        missing = next((check for check in self.checks if check.name == "dtype" and check.status == "noted"), None)
        if status == "proven" and missing is not None:
            status = "inconclusive"
        if any(check.status == "refuted" for check in self.checks):
            status = "refuted"
        self.notes += runner.notes
        inputs = [dataclasses.replace(j, name=_plain_name(j.name)) for j in listed if j.name.startswith(INPUT)]
        parameters = [j for j in listed if not j.name.startswith(INPUT)]
        return SubjectVerdict(
            self.name,
            status,
            parameters,
            inputs,
            self.state.forwards,
            self.directions,
            options.seed,
            list(dict.fromkeys(self.notes)),
            coverage=coverage,
            checks=self.checks,
        )


class FirstRun(NamedTuple):
    """A module that runs: how, what it gave, and what was seen on the way."""

    runner: Runner
    outputs: Outputs
    recorder: Recorder
    notes: list[str]
    spent: int
    runs: bool  # in the module's own dtype


def first_run(module: nn.Module, inputs: Any, state: ModuleState, options: Options) -> FirstRun:
    """Finds the precision that the module runs in: float64 as it is, float64 with the promotion of what is narrower
    inside, or the module's own."""
    failure: BaseException | None = None
    usual = torch.get_default_dtype()
    own, spent = OwnOutputs.of(module, inputs, state, options), 1
    ways = [(torch.float64, AS_IT_IS), (torch.float64, options.promotion), (None, AS_IT_IS)]
    for dtype, promote in ways:
        state.swap(dtype, options.device)
        torch.set_default_dtype(torch.float64 if promote else usual)
        runner = Runner(
            module, inputs, state, dtype, options.device, promote, options.seed, options.gradient_of, held=options.held
        )
        spent += 1
        try:
            with Recorder(promote) as recorder:
                outputs = runner.forward(runner.values)
        except CannotRun:
            raise
        except (Exception, SystemExit) as error:
            failure = error
            for refused in refused_inputs(error, runner.unasked) if not options.held else ():
                with suppress(CannotRun):
                    return first_run(module, inputs, state, options._replace(held=refused))
            continue
        rounds_to_float32 = recorder.coarsest >= torch.finfo(torch.float32).eps
        if dtype is torch.float64 and not promote and rounds_to_float32:
            continue
        if dtype is torch.float64 and own is not None and own.differs(outputs):
            failure = ValueError("it computes something else in float64 than in its own dtype")
            continue
        notes = [_precision_note(dtype, promote, recorder.coarsest, failure), *held_notes(options.held)]
        return FirstRun(runner, outputs, recorder, notes, spent, own is not None)
    raise CannotRun(f"the module's forward raised {one_line(failure)}") from failure


class OwnOutputs(NamedTuple):
    """A module's outputs in its own dtype, and how far they go when every number there is off by a unit."""

    outputs: list[Tensor]
    moved: list[float]

    @classmethod
    def of(cls, module: nn.Module, inputs: Any, state: ModuleState, options: Options) -> OwnOutputs | None:
        """None where it does not run there."""
        state.swap(None, options.device)
        try:
            runner = Runner(module, inputs, state, None, options.device, AS_IT_IS, options.seed, held=options.held)
            plain = [y.detach().double() for y in runner.forward(runner.values)]
            with Jitter(options.seed):
                again = [y.detach().double() for y in runner.forward(runner.values)]
        except (Exception, SystemExit):
            return None
        return cls(plain, [float((a - b).norm()) for a, b in zip(plain, again, strict=True)])

    def differs(self, outputs: Outputs) -> bool:
        """Whether a float64 run computes something else: code that takes every pointer for one to float32."""
        if [y.shape for y in outputs] != [y.shape for y in self.outputs]:
            return False
        for y, own, moved in zip(outputs, self.outputs, self.moved, strict=True):
            off, size = float((y.detach().double() - own).norm()), float(own.norm())
            if math.isfinite(size) and not off <= OTHERWISE * size + 1e-6 and not off <= 100 * moved:
                return True
        return False


def _precision_note(
    dtype: torch.dtype | None, promote: Promotion, coarsest: float, failure: BaseException | None
) -> str:
    if dtype is None:
        return f"judged in its own precision, because in float64 it raised {one_line(failure)}"
    if coarsest >= torch.finfo(torch.float32).eps:
        return f"judged in float64, but the forward rounds to a format of epsilon {coarsest:.1e} inside"
    narrow = "float32 casts" if promote is FLOAT32 else "narrower casts"
    return f"judged in float64, with the {narrow} inside promoted" if promote else IN_FLOAT64


def _fixed(module: nn.Module, runner: Runner) -> tuple[dict[str, Tensor], list[str]]:
    """Entries that are not judged, and why: padding rows of embeddings, which torch leaves out of the gradient on
    purpose; what is not finite; and, in inputs, sentinels such as the −1e9 of an additive mask."""
    fixed, reasons = {}, []
    for name, value in runner.values.items():
        mask = ~value.isfinite()
        if name in runner.inputs and value.numel():
            mask = mask | (value.abs() >= SENTINEL)
        if bool(mask.any()):
            fixed[name] = mask
            reasons.append(f"entries of {_plain_name(name)} that are infinite or sentinels are not judged")
    for m in module.modules():
        if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.padding_idx is not None:
            for name, group in runner.groups.items():
                if len(group) == 1 and group[0] is m.weight:
                    fixed[name] = fixed.get(name, torch.zeros_like(m.weight, dtype=torch.bool)).clone()
                    fixed[name][m.padding_idx] = True
                    reasons.append(f"the padding row of {name} has no gradient by definition and is not judged")
    return fixed, reasons


def _elsewhere(runner: Runner, grads: Gradients) -> dict[str, str]:
    """Parameters whose gradient is taken away before anybody can look at it, and by what."""
    reasons = {name: "its values change during the backward: an optimizer steps there" for name in runner.stepped}
    for name, group in runner.groups.items():
        if grads[name] is None and any(p._post_accumulate_grad_hooks for p in group):
            reasons.setdefault(name, "a hook removes its gradient")
    return {name: f"{reason}; use gradient_of to say where the gradient is" for name, reason in reasons.items()}


def _vanished(j: Judgement) -> bool:
    """Whether a tensor's gradient is zero at the given point, so that nothing was seen of it."""
    return j.status == "unused" or (j.status in ("proven", "inconclusive") and "zero at this input" in j.note)


def _plain_name(name: str) -> str:
    return name.removeprefix(INPUT)


def _own_dtype(module: nn.Module, given: Any) -> torch.dtype:
    """The widest floating dtype that the module has, or its inputs."""
    held = [p.dtype for p in module.parameters()] or [leaf.dtype for _, leaf in leaves_of(given) if _is_tensor(leaf)]
    real = [dtype if dtype.is_floating_point else dtype.to_real() for dtype in held if _is_number(dtype)]
    return max(real, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _is_number(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _rounded(values: Mapping[str, Tensor], dtype: torch.dtype | None) -> Mapping[str, Tensor]:
    """The values that a narrower dtype holds, as float64."""
    return values if dtype is None else {name: value.to(dtype).to(value.dtype) for name, value in values.items()}


def _set_training(training: Mapping[nn.Module, bool]) -> None:
    for m, mode in training.items():
        m.training = mode
