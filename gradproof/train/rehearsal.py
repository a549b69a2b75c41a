"""Rehearsal: the full-size step of a run, checked part by part before step 0 with the chosen kernels.

Each call of a kernel is compared with its op on the very inputs that the kernel got, so that only this part's rounding
remains; what it may be is computed beside it (`proof/bounds.py`). The experts' layers are judged one at a time, as the
kernel shows them (`proof/chain.py`), and parameters in pieces, which keeps time and memory near those of a few steps.
The rows are random, from a stream of their own: once as they come, once nearly all of them for one expert. A step that
is replayed as a graph must give the same bits as one that is not. Weights, moments, counters and the run's own random
state are as before.

A kernel that fails is not used by this run, and that is said; the result is kept under the machine's fingerprint, so a
run that resumes chooses the same kernels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof import ops
from gradproof.kernels import cache
from gradproof.kernels.variants import Kernels
from gradproof.kernels.workspace import Workspace
from gradproof.ops.update import CLIP_EPS
from gradproof.proof.admission import UNITS, Expected, RunResult, expectation
from gradproof.proof.bounds import worst
from gradproof.proof.chain import Largest, off, watched
from gradproof.proof.operation import wanted
from gradproof.proof.row_calls import summed
from gradproof.proof.sizes import one_sign
from gradproof.streams import on_device, seeded
from gradproof.train.fused import Fused
from gradproof.train.graph import Graph
from gradproof.train.loss import Target
from gradproof.train.mesh_training import MeshTraining
from gradproof.train.parts import Parts
from gradproof.train.step import TrainStep
from gradproof.train.training import Training

CODE = (*cache.JUDGING, "models", "train")
HOW = ("out", "accumulate", "want_dx", "workspace")  # arguments that say where to, not what
PIECE = {"cpu": 1 << 17, "cuda": 1 << 24}  # parameters that are checked at a time: as many as caches hold
GRAPH = "graph"  # refused in the place of an op
LAYERS = 48  # of all experts, that are judged number by number; their admission has judged each so
POOL = 4  # times the rows, among which those for one expert are looked for


JudgeCall = Callable[[str, str, Expected, RunResult], None]  # of (op, kernel, what is right, what a call gave)


class Refusal(NamedTuple):
    """What a kernel was caught by."""

    op: str
    kernel: str
    claim: str
    measured: float

    def __str__(self) -> str:
        if self.op == GRAPH:
            return "the step is not replayed as a graph: at this size that does not give the same bits"
        off = f"{self.claim} is off by {self.measured:.2g} times what rounding explains"
        return f"{self.kernel} of {self.op} is not used: at this size {off}"


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
            if refusal.op == GRAPH:
                step.replays = False
            step.ask({op: kernel for op, kernel in kernels.chosen.items() if op != refusal.op})
    return refused


def _key(step: TrainStep, rows: int, kernels: Kernels) -> str:
    shape = step.model.shape(rows, step.dtype)
    facts = {
        "shape": asdict(shape),
        "kernels": dict(kernels.chosen),
        "loss": step.loss.name,
        "clip": step.training.clip,
        "replays": step.replays,
    }
    if isinstance(step.training, MeshTraining):  # takes no fused step, and may update the parameters in pieces
        facts["mesh"] = f"{step.training.mesh.shape}, parted {step.training.parted}"
    return cache.key_text({**facts, **cache.fingerprint(shape.device, CODE)})


class Rehearsal:
    """One number of rows."""

    def __init__(self, step: TrainStep, kernels: Kernels):
        self.step, self.kernels, self.refusals = step, kernels, list[Refusal]()
        self.unit = torch.finfo(step.dtype).eps / 2
        self.sizes: dict[tuple[int, int], Any] = {}  # of the experts' weights, which both kinds of rows meet

    @torch.no_grad()
    def take(self, rows: int, target: Callable[[int], Target]) -> list[Refusal]:
        """The refusals, of a step on rows as they come, and on rows for one expert."""
        model, training = self.step.model, self.step.training
        for uneven in (False, True) if model.experts > 1 else (False,):
            generator = on_device(seeded("rehearsal", rows, uneven), model.params.flat_P.device)
            x = model.draw_input(rows * (POOL if uneven else 1), generator)
            x = model.settled(training.weights, x)
            x = model.favouring(training.weights, x, rows) if uneven else x
            self._gradients(x, target(rows))
            self._whole(x, target(rows))
            if not self.refusals and not uneven:
                self._update()
                self._replay(x, target(rows))
            if self.refusals:
                break
        return self.refusals

    def _gradients(self, x: Tensor, target: Target) -> None:
        """By parts, each kernel watched; and by the kernel for a whole step, where there is one."""
        checked = {
            op: CheckedChain(module, kernel, self._refuse, self.sizes)
            if op == "experts"
            else Checked(op, module, kernel, self._judge)
            for op, kernel in self.kernels.chosen.items()
            if kernel != "reference" and op not in ("adamw", "update", "lesson", "reading")
            for module in [getattr(self.kernels, op)]
        }
        without: dict[str, Any] = {op: None for op in ("mixture", "lesson") if getattr(self.kernels, op) is not None}
        if self.kernels.capturable:  # a graph has a workspace of its own, and leaves the step's alone
            without["workspace"] = Workspace()
        Parts(self.step.training, replace(self.kernels, **{**checked, **without})).gradients([(x, target)])
        if "mixture" in checked:
            parts = replace(self.kernels, mixture=checked["mixture"], lesson=None)
            Parts(self.step.training, parts).gradients([(x, target)])

    def _whole(self, x_TI: Tensor, target: Target) -> None:
        """The kernel for a whole step, on copies."""
        training, kernel = self.step.training, self.kernels.lesson
        if kernel is None or isinstance(training, MeshTraining) or not Fused.takes(training, [(x_TI, target)]):
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
            self._refuse(op, kernel, name, worst(tensor, exact[name], sigma[name], UNITS, self.unit))

    def _refuse(self, op: str, kernel: str, name: str, measured: float) -> None:
        if not measured <= 1.0:
            self.refusals.append(Refusal(op, kernel, name, measured))

    def _update(self) -> None:
        """The end of a step on the gradients that are there; the state is put back."""
        training, kernels = self.step.training, self.kernels
        op = "update" if kernels.update is not None else "adamw"
        kernel = kernels.chosen.get(op, "reference")
        # Of a gradient in pieces each is moved by itself, by a kernel that is admitted for that length.
        if kernel == "reference" or (isinstance(training, MeshTraining) and training.parted):
            return
        flat_P = training.model.params.flat_P
        with Restored(training) as before:
            load_E = torch.ones(training.model.experts, device=flat_P.device)
            norm, _ = training.end(flat_P.new_zeros(()), load_E, kernels)
            self._judge_update(op, kernel, before, norm)

    def _judge_update(self, op: str, kernel: str, before: Restored, norm: Tensor) -> None:
        training, optimizer = self.step.training, self.step.training.optimizer
        p_P, g_P = training.model.params.flat_P, training.model.params.grad_P
        piece = PIECE[g_P.device.type]
        squares = torch.stack([torch.linalg.vector_norm(part_P).double().square() for part_P in g_P.split(piece)])
        total = float(squares.sum()) ** 0.5 / float(training.scale)
        self._refuse(op, kernel, "norm", abs(float(norm) - total) / (1e-5 * total + 1e-30))
        longer = max(1.0, (float(norm) + CLIP_EPS) / training.clip) if training.clip is not None else 1.0
        divisor = torch.tensor(float(training.scale) * longer, device=g_P.device)  # by the norm that the kernel had
        count, narrow_P = optimizer.count.clone(), getattr(training.weights, "flat_P", None)
        most, narrow_off = Largest(), Largest()
        for start in range(0, g_P.numel(), piece):
            at, blocks = slice(start, start + piece), slice(start // 64, (start + piece) // 64)
            m_P, v_P = (torch.zeros_like(g_P[at]) if own is None else own[at] for own in before.moments)
            given = dict(p=before.p_P[at], g=g_P[at], m=m_P, v=v_P, decayed=optimizer.buffers[4][blocks], count=count)
            given |= dict(rate=optimizer.rate, divisor=divisor, **optimizer.options)
            fast = (p_P[at], optimizer.m_P[at], optimizer.v_P[at])
            for number, (fast_P, (right_P, size_P)) in enumerate(zip(fast, _moved(given), strict=True)):
                most.add(f"output {number}", off(fast_P, right_P, size_P) / (UNITS * torch.finfo(g_P.dtype).eps))
            if narrow_P is not None and narrow_P.dtype != p_P.dtype:
                differing = (narrow_P[at] != p_P[at].to(narrow_P.dtype)).sum()
                narrow_off.add("the narrow copy", differing.float() * 2)
        for name, measured in (*most.read().items(), *narrow_off.read().items()):
            self._refuse(op, kernel, name, measured)

    def _replay(self, x: Tensor, target: Target) -> None:
        """A step that is replayed as a graph, beside the same step taken op by op."""
        batch, step = [(x, target)], self.step
        plan = step.plan(batch)
        if not isinstance(plan, Graph):
            return
        taken = []
        for _ in range(2):  # a shape is taken op by op when it is met first, and captured when it is met again
            with Restored(step.training) as before:
                plan.take(batch)
                taken.append(before.moved())
        same = all(torch.equal(first, second) for first, second in zip(*taken, strict=True))
        self._refuse(GRAPH, "", "parameters", 0.0 if same else float("inf"))


class Restored:
    """What a step moves, put back where it was."""

    def __init__(self, training: Training):
        self.training = training
        self.p_P = training.model.params.flat_P.clone()
        optimizer = training.optimizer
        moved = bool(optimizer.count)
        self.moments = [own.clone() if moved else None for own in (optimizer.m_P, optimizer.v_P)]
        own = [optimizer.count, training.skipped, training.scale, training.good, *training.model.buffers.values()]
        self.small = [(tensor, tensor.clone()) for tensor in own]

    def __enter__(self) -> Restored:
        return self

    def moved(self) -> list[Tensor]:
        """A digest of parameters and moments as they are now: of their bits, sums of rows of 64 times their places, and
        sums of columns."""
        optimizer, sums = self.training.optimizer, list[Tensor]()
        for own_P in (self.training.model.params.flat_P, optimizer.m_P, optimizer.v_P):
            bits_R64 = own_P.view(torch.int32).view(-1, 64)
            across_R = bits_R64.sum(1)
            sums += [bits_R64.sum(0), (across_R * torch.arange(1, 1 + len(across_R), device=across_R.device)).sum()]
        return sums

    def __exit__(self, *error: object) -> None:
        optimizer, params = self.training.optimizer, self.training.model.params
        params.flat_P.copy_(self.p_P)
        for own, kept in zip((optimizer.m_P, optimizer.v_P), self.moments, strict=True):
            own.zero_() if kept is None else own.copy_(kept)
        for tensor, kept in self.small:
            tensor.copy_(kept)
        self.training.refresh()
        params.touch()


def _moved(given: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """AdamW by the reference in the dtype that it is given: p, m and v, and the sizes of what each is summed up of, of
    which so many units may be lost: |p| + lr·|m|/(bc₁(√v̂ + eps)), |m| = β₁|m| + (1 − β₁)|g|, and v."""
    (p_P, m_P, v_P), _ = ops.load("adamw").forward(**wanted(ops.load("adamw").forward, given))
    beta1, beta2 = given["betas"]
    first, second = 1 - beta1 ** float(given["count"]), 1 - beta2 ** float(given["count"])
    g_P = (given["g"] / given["divisor"]).abs_()
    least = (
        torch.finfo(p_P.dtype).tiny / torch.finfo(p_P.dtype).eps
    )  # of what is padding, and of gradients next to none
    mean_P = given["m"].abs().mul_(beta1).add_(g_P, alpha=1 - beta1).add_(least)
    root_P = v_P.div(second).sqrt_().add_(given["eps"])
    moved_P = mean_P.div(root_P).mul_(float(given["rate"]) / first).add_(given["p"].abs()).add_(least)
    return list(zip((p_P, m_P, v_P), (moved_P, mean_P, v_P + least), strict=True))


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
        given = named_arguments(self.module.forward, args, kwargs)
        y, saved = self.module.forward(*args, **kwargs)
        self._given.append((given, tuple(output.clone() for output in _outputs(y))))  # a model may add to it in place
        return y, saved

    def _backward(self, dy: Any, saved: Any, *args: Any, **kwargs: Any) -> Any:
        _, _, *more = named_arguments(self.module.backward, (dy, saved, *args), kwargs).items()
        before, outputs = self._given.pop()
        given = {name: value for name, value in {**before, **dict(more)}.items() if name not in HOW}
        grads = self.module.backward(dy, saved, *args, **kwargs)
        names, listed = self.reference.CONTRACT.grads, grads if isinstance(grads, tuple) else (grads,)
        fast = RunResult(outputs, {name: grad for name, grad in zip(names, listed, strict=True) if grad is not None})
        self.judge(self.op, self.kernel, self._expected(given, _outputs(dy)), fast)
        return grads

    def _expected(self, given: dict[str, Any], dy: tuple[Tensor, ...]) -> Expected:
        """What is right. The rows are random, but their targets are a run's own: the terms of a sum over rows may have
        one sign, and then its partial sums are as large as the result."""
        exact, sigma = expectation(self.reference, given, dy)
        rows = dy[0].numel() // dy[0].shape[-1] if dy[0].numel() and dy[0].dim() else 1
        share = one_sign(rows) / UNITS
        names = summed(self.reference, True) & exact.grads.keys()
        sums = {name: sigma.grads[name] + share * exact.grads[name].abs() for name in names}
        return Expected(exact, sigma._replace(grads={**sigma.grads, **sums}))

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


class CheckedChain:
    """A kernel of `experts` whose every layer is judged, on what it shows."""

    def __init__(
        self, module: ModuleType, kernel: str, refuse: Callable[[str, str, str, float], None], sizes: dict[Any, Any]
    ):
        self.module, self.kernel, self.refuse, self.sizes = module, kernel, refuse, sizes
        self._given: list[tuple[dict[str, Any], Tensor]] = []  # of forwards whose backward is to come
        self.forward = wraps(module.forward)(lambda *args, **named: self._forward(*args, **named))
        self.backward = wraps(module.backward)(lambda *args, **named: self._backward(*args, **named))

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        y_NO, saved = self.module.forward(*args, **kwargs)
        self._given.append((named_arguments(self.module.forward, args, kwargs), y_NO.clone()))
        return y_NO, saved

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        given, y_NO = self._given.pop()
        judge = Largest()
        call = signature(self.module.backward).bind(*args, **kwargs).arguments
        grads = watched(self.module, call, given, y_NO, judge, self.sizes, LAYERS)
        for name, measured in judge.read().items():
            self.refuse("experts", self.kernel, name, measured)
        return grads


def named_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, without the suffixes of their shapes."""
    bound = signature(function).bind(*args, **kwargs).arguments
    return {re.sub(r"_[A-Z0-9]+$", "", name): value for name, value in bound.items()}


def _outputs(y: Any) -> tuple[Tensor, ...]:
    return tuple(y) if isinstance(y, tuple) else (y,)
