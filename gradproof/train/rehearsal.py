"""Rehearsal: the step of a run at its real size, before step 0, by the kernels that were chosen, each part checked.

Each call of a kernel is compared with its op on the very inputs that the kernel got, so that only this part's rounding
remains; what it may be is computed beside it (`proof/bounds.py`). Experts are judged one at a time and parameters in
pieces, which keeps the memory near that of a step. The rows are random, from a stream of their own: once as they come,
once nearly all of them for one expert. Weights, moments, counters and the run's own random state are as before.

A kernel that fails is not used by this run, and that is said; the result is kept under the machine's fingerprint, so a
run that resumes chooses the same kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import wraps
from inspect import signature
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof import ops
from gradproof.kernels import cache
from gradproof.kernels.variants import Kernels
from gradproof.ops import dispatch
from gradproof.proof.admission import UNITS, Expected, RunResult, expectation
from gradproof.proof.bounds import worst
from gradproof.proof.operation import wanted
from gradproof.streams import seeded
from gradproof.train.fused import Fused
from gradproof.train.loss import Target
from gradproof.train.parts import Parts
from gradproof.train.step import TrainStep

CODE = (*cache.JUDGING, "models", "train")
HOW = ("out", "accumulate", "want_dx", "workspace")  # arguments that say where to, not what
PIECE = 1 << 20  # parameters that are checked at a time
POOL = 4  # times the rows, among which those for one expert are looked for


JudgeCall = Callable[[str, str, Expected, RunResult], None]  # of (op, kernel, what is right, what a call gave)


class Refusal(NamedTuple):
    """What a kernel was caught by."""

    op: str
    kernel: str
    claim: str
    measured: float

    def __str__(self) -> str:
        off = f"{self.claim} is off by {self.measured:.2g} times what rounding explains"
        return f"{self.kernel} of {self.op} is not used: at this run's size {off}"


def rehearse(
    step: TrainStep, rows: Sequence[int], target: Callable[[int], Target], say: Callable[[str], None]
) -> list[Refusal]:
    """Checks the step for each number of rows, drops the kernels that fail, and tells which; `target` makes one for so
    many rows. What was rehearsed before on this machine, with this code, is not rehearsed again."""
    refused: list[Refusal] = []
    for count in dict.fromkeys(rows):
        while True:
            kernels = step.choose(count)
            key = _key(step, count, kernels)
            known: Any = cache.load("rehearsals", key)
            if known is None:
                caught = Rehearsal(step, kernels).take(count, target)
                known = {"refused": [refusal._asdict() for refusal in caught[:1]]}
                cache.keep("rehearsals", key, known)
            if not known["refused"]:
                break
            refusal = Refusal(**known["refused"][0])
            say(str(refusal))
            refused.append(refusal)
            step.ask({op: kernel for op, kernel in kernels.chosen.items() if op != refusal.op})
    return refused


def _key(step: TrainStep, rows: int, kernels: Kernels) -> str:
    shape = step.model.shape(rows, step.dtype)
    facts = {
        "shape": asdict(shape),
        "kernels": dict(kernels.chosen),
        "loss": step.loss.name,
        "clip": step.training.clip,
    }
    return cache.key_text({**facts, **cache.fingerprint(shape.device, CODE)})


class Rehearsal:
    """One number of rows."""

    def __init__(self, step: TrainStep, kernels: Kernels):
        self.step, self.kernels, self.refusals = step, kernels, list[Refusal]()
        self.unit = torch.finfo(step.dtype).eps / 2

    @torch.no_grad()
    def take(self, rows: int, target: Callable[[int], Target]) -> list[Refusal]:
        """The refusals, of a step on rows as they come, and on rows for one expert."""
        model, training = self.step.model, self.step.training
        for uneven in (False, True) if model.experts > 1 else (False,):
            x = model.draw_input(rows * (POOL if uneven else 1), seeded("rehearsal", rows, uneven))
            x = model.settled(training.weights, x)
            x = model.favouring(training.weights, x, rows) if uneven else x
            self._gradients(x, target(rows))
            self._whole(x, target(rows))
            if not self.refusals and not uneven:
                self._update()
            if self.refusals:
                break
        return self.refusals

    def _gradients(self, x: Tensor, target: Target) -> None:
        """By parts, each kernel watched; and by the kernel for a whole step, where there is one."""
        checked = {
            op: Checked(op, module, kernel, self._judge)
            for op, kernel in self.kernels.chosen.items()
            if kernel != "reference" and op not in ("adamw", "update", "lesson", "reading")
            for module in [getattr(self.kernels, op)]
        }
        without = {op: None for op in ("mixture", "lesson") if getattr(self.kernels, op) is not None}
        Parts(self.step.training, replace(self.kernels, **{**checked, **without})).gradients([(x, target)])
        if "mixture" in checked:
            parts = replace(self.kernels, mixture=checked["mixture"], lesson=None)
            Parts(self.step.training, parts).gradients([(x, target)])

    def _whole(self, x_TI: Tensor, target: Target) -> None:
        """The kernel for a whole step, on copies."""
        training, kernel = self.step.training, self.kernels.lesson
        if kernel is None or not Fused.takes(training, [(x_TI, target)]):
            return
        assert isinstance(target, Tensor)
        optimizer = training.optimizer
        p_P, _, m_P, v_P, decayed_B = optimizer.buffers
        c_E, mixture = training.model.lesson
        given: dict[str, Any] = dict(
            p=p_P, m=m_P, v=v_P, decayed=decayed_B, count=optimizer.count, skips=training.skipped
        )
        given |= dict(
            rate=optimizer.rate, scale=training.scale, x=x_TI, target=target.flatten(), c=c_E, mixture=mixture
        )
        given |= dict(clip=training.clip, **optimizer.options)
        expected = expectation(ops.load("lesson"), given, ())
        fast, _ = kernel.forward(**wanted(kernel.forward, {**given, "workspace": self.kernels.workspace}))
        self._judge("lesson", self.kernels.chosen["lesson"], expected, RunResult(tuple(fast), {}))

    def _judge(self, op: str, kernel: str, expected: Expected, fast: RunResult) -> None:
        named, exact, sigma = fast.named(), expected.exact.named(), expected.sigma.named()
        for name, tensor in named.items():
            measured = worst(tensor, exact[name], sigma[name], UNITS, self.unit)
            if not measured <= 1.0:
                self.refusals.append(Refusal(op, kernel, name, measured))

    def _update(self) -> None:
        """The end of a step on the gradients that are there, on copies of parameters and moments in pieces' order."""
        training, kernels = self.step.training, self.kernels
        optimizer, params = training.optimizer, training.model.params
        before = [tensor.clone() for tensor in (params.flat_P, optimizer.count, training.skipped)]
        moments = [tensor.clone() if bool(tensor.any()) else None for tensor in (optimizer.m_P, optimizer.v_P)]
        op = "update" if kernels.update is not None else "adamw"
        kernel = kernels.chosen.get(op, "reference")
        if kernel != "reference":
            loss, load_E = params.flat_P.new_zeros(()), torch.ones(training.model.experts, device=params.flat_P.device)
            saved = {name: buffer.clone() for name, buffer in training.model.buffers.items()}
            scalars = [tensor.clone() for tensor in (training.scale, training.good)]
            norm, _ = training.end(loss, load_E, kernels)
            self._judge_update(op, kernel, before[0], moments, norm)
            for name, buffer in saved.items():
                training.model.buffers[name].copy_(buffer)
            training.scale.copy_(scalars[0])
            training.good.copy_(scalars[1])
        params.flat_P.copy_(before[0])
        optimizer.count.copy_(before[1])
        training.skipped.copy_(before[2])
        for own, kept in zip((optimizer.m_P, optimizer.v_P), moments, strict=True):
            own.zero_() if kept is None else own.copy_(kept)
        training.refresh()
        params.touch()

    def _judge_update(self, op: str, kernel: str, p_P: Tensor, moments: list[Tensor | None], norm: Tensor) -> None:
        training, optimizer = self.step.training, self.step.training.optimizer
        params, g_P = training.model.params, training.model.params.grad_P
        total = sum(float(piece.double().square().sum()) for piece in g_P.split(PIECE)) ** 0.5 / float(training.scale)
        if not abs(float(norm) - total) <= 1e-5 * total:
            self.refusals.append(Refusal(op, kernel, "norm", abs(float(norm) - total) / (1e-5 * total + 1e-30)))
        longer = max(1.0, (total + 1e-6) / training.clip) if training.clip is not None else 1.0
        divisor = torch.tensor(float(training.scale) * longer, device=g_P.device)
        count = optimizer.count.clone()
        for start in range(0, g_P.numel(), PIECE):
            at, blocks = slice(start, start + PIECE), slice(start // 64, (start + PIECE) // 64)
            m_P, v_P = (torch.zeros_like(g_P[at]) if moment is None else moment[at] for moment in moments)
            given = dict(p=p_P[at], g=g_P[at], m=m_P, v=v_P, decayed=optimizer.buffers[4][blocks], count=count)
            given |= dict(rate=optimizer.rate, divisor=divisor, **optimizer.options)
            fast = (params.flat_P[at], optimizer.m_P[at], optimizer.v_P[at])
            self._judge(op, kernel, _moved(given), RunResult(fast, {}))


def _moved(given: dict[str, Any]) -> Expected:
    """AdamW by the reference in the dtype that it is given, and how far off it and a kernel may be together:
    c·u·(|p| + lr·(β₁|m| + (1 − β₁)|g|)/(bc₁(√v̂ + eps))), of each number by itself."""
    (p_P, m_P, v_P), _ = ops.load("adamw").forward(**wanted(ops.load("adamw").forward, given))
    unit, (beta1, beta2) = torch.finfo(p_P.dtype).eps, given["betas"]
    g_P = (given["g"] / given["divisor"]).abs()
    mean_P = beta1 * given["m"].abs() + (1 - beta1) * g_P
    first, second = 1 - beta1 ** float(given["count"]), 1 - beta2 ** float(given["count"])
    moved_P = given["rate"] * mean_P / (first * ((v_P / second).sqrt() + given["eps"]))
    square_P = beta2 * given["v"] + (1 - beta2) * g_P * g_P
    sigma = tuple(unit * size_P for size_P in (given["p"].abs() + moved_P, mean_P, square_P))
    return Expected(RunResult((p_P, m_P, v_P), {}), RunResult(sigma, {}))


class Checked:
    """A kernel that is held against its op at every call, on the arguments of that call."""

    def __init__(
        self, op: str, module: ModuleType, kernel: str, judge: Callable[[str, str, Expected, RunResult], None]
    ):
        self.op, self.module, self.kernel, self.judge, self.reference = op, module, kernel, judge, ops.load(op)
        self._given: list[tuple[dict[str, Any], tuple[Tensor, ...]]] = []  # of forwards whose backward is to come
        self.forward = wraps(module.forward)(lambda *args, **kwargs: self._forward(*args, **kwargs))
        self.backward = wraps(module.backward)(
            lambda dy, saved, *rest, **named: self._backward(dy, saved, *rest, **named)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        given = _named(self.module.forward, args, kwargs)
        y, saved = self.module.forward(*args, **kwargs)
        self._given.append((given, _outputs(y)))
        return y, saved

    def _backward(self, dy: Any, saved: Any, *args: Any, **kwargs: Any) -> Any:
        _, _, *more = _named(self.module.backward, (dy, saved, *args), kwargs).items()
        before, outputs = self._given.pop()
        given = {name: value for name, value in {**before, **dict(more)}.items() if name not in HOW}
        kept = tuple(output.clone() for output in outputs)  # a backward may use the memory of its forward
        grads = self.module.backward(dy, saved, *args, **kwargs)
        names, listed = self.reference.CONTRACT.grads, grads if isinstance(grads, tuple) else (grads,)
        fast = RunResult(kept, {name: grad for name, grad in zip(names, listed, strict=True) if grad is not None})
        for call, part, cotangents in _calls(self.op, given, fast, _outputs(dy)):
            self.judge(self.op, self.kernel, expectation(self.reference, call, cotangents), part)
        return grads

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """Of dispatch: integers, which must be the reference's."""
        fast, right = self.module.plan(*args, **kwargs), self.reference.plan(*args, **kwargs)
        zeros = tuple(torch.zeros_like(tensor) for tensor in right)
        self.judge(
            self.op,
            self.kernel,
            Expected(RunResult(tuple(right), {}), RunResult(zeros, {})),
            RunResult(tuple(fast), {}),
        )
        return fast


def _calls(
    op: str, given: dict[str, Any], fast: RunResult, cotangents: tuple[Tensor, ...]
) -> Iterator[tuple[dict[str, Any], RunResult, tuple[Tensor, ...]]]:
    """The call, or of experts one call for each that has rows."""
    if op != "experts":
        yield given, fast, cotangents
        return
    for e, (start, end) in enumerate(pairwise(given["plan"].bounds())):
        grads = {"theta": fast.grads["theta"][e : e + 1]}
        grads |= {"x": fast.grads["x"][start:end]} if "x" in fast.grads else {}
        if end > start:
            part = RunResult(tuple(y[start:end] for y in fast.outputs), grads)
            yield _of_expert(given, e, start, end), part, tuple(dy[start:end] for dy in cotangents)


def _of_expert(given: dict[str, Any], e: int, start: int, end: int) -> dict[str, Any]:
    x_nI, narrow_EP = given["x"][start:end], given.get("narrow")
    alone = dict(x=x_nI, theta=given["theta"][e : e + 1], plan=dispatch.all_rows(end - start, x_nI.device))
    return {**alone, "chain": given["chain"], "narrow": None if narrow_EP is None else narrow_EP[e : e + 1]}


def _named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, without the suffixes of their shapes."""
    bound = signature(function).bind(*args, **kwargs).arguments
    return {re.sub(r"_[A-Z0-9]+$", "", name): value for name, value in bound.items()}


def _outputs(y: Any) -> tuple[Tensor, ...]:
    return tuple(y) if isinstance(y, tuple) else (y,)
