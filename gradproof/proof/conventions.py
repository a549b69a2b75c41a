"""Gradients that follow a convention, and inputs for which torch has none.

`cholesky` reads one triangle of a matrix that it takes to be symmetric, and its gradient is that of a function of
symmetric matrices. `ctc_loss` takes normalised log-probabilities and gives the gradient with respect to the logits
before `log_softmax`. Along the set of such arguments these gradients are the derivative of the forward; across it
nothing is promised. So a refuted tensor is judged again along the set, if the forward called such an op and gives the
same when the tensor is moved onto the set: with P the map onto it, L(P(θ)) in place of L and P′(θ)ᵀg in place of g.
Other conventions have no such set; there the note of the refuted tensor names the convention.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof.contract import Gradients, Outputs, Subject
from gradproof.proof.differences import RAISED, Judgement, Verdict, judge, overall
from gradproof.proof.recorder import Promotion, Recorder
from gradproof.proof.runner import INPUT

aten = torch.ops.aten
ALONG = "judged along"
SAME = 1e-5  # relative: float32 samples lie this near to their set
FLOAT32_ERROR = 2.0**-23  # what float32 arithmetic, two roundings deep, does to a gradient


# Inputs that are held fixed.


def refused_inputs(error: BaseException, unasked: frozenset[str]) -> list[frozenset[str]]:
    """Where torch refuses a gradient for an argument, the inputs that may be held for it, best first: that of the same
    name, each alone, all. Only inputs whose gradient nobody asked for."""
    refusal = re.search(r"not differentiable with respect to argument '(\w+)'", str(error))
    if refusal is None or not unasked:
        return []
    alone = sorted(unasked, key=lambda name: (name == INPUT + refusal[1], name), reverse=True)
    return [*(frozenset({name}) for name in alone), unasked]


def immovable(verdict: Verdict, unasked: frozenset[str]) -> frozenset[str]:
    """The inputs, of those whose gradient nobody asked for, that could not be moved because the forward raised."""
    if not any(note.startswith(RAISED) for note in verdict.notes):
        return frozenset()
    unclear = frozenset(j.name for j in verdict.judgements if j.status == "inconclusive")
    return unclear if unclear <= unasked and len(unclear) < len(verdict.judgements) else frozenset()


def held_notes(held: frozenset[str]) -> list[str]:
    names = ", ".join(sorted(name.removeprefix(INPUT) for name in held))
    why = "no gradient was asked for, and torch has none or the forward raises where it moves"
    return [f"held fixed: {names} ({why})"] if held else []


# Conventions.


class Convention(NamedTuple):
    """A set of arguments: `starts` are maps to a member that the forward may be reading, `onto` maps a member's
    neighbourhood to the set, and `back` carries a gradient there (g, value) to one here."""

    directions: str
    ops: Mapping[Any, str]
    starts: tuple[Callable[[Tensor], Tensor], ...]
    onto: Callable[[Tensor], Tensor]
    back: Callable[[Tensor, Tensor], Tensor]
    reason: str

    def note(self, ops: Mapping[Any, Any]) -> str:
        names = " and ".join(sorted({name for op, name in self.ops.items() if op in ops}))
        return f"{ALONG} {self.directions} only: {self.reason.format(names)}"


def _of_matrices(of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A map of square matrices, for real ones and for complex ones given as real and imaginary parts."""

    def onto(value: Tensor) -> Tensor:
        if value.dim() >= 2 and value.shape[-1] == value.shape[-2]:
            return of(value)
        if value.dim() >= 3 and value.shape[-1] == 2 and value.shape[-2] == value.shape[-3]:
            return torch.view_as_real(of(torch.view_as_complex(value.contiguous())).resolve_conj())
        raise ValueError("not a square matrix")

    return onto


def _set_of_matrices(
    directions: str,
    ops: Mapping[Any, str],
    starts: tuple[Callable[[Tensor], Tensor], ...],
    onto: Callable[[Tensor], Tensor],
    reason: str,
) -> Convention:
    """`onto` is an orthogonal projection, and so its own adjoint."""
    onto = _of_matrices(onto)
    return Convention(directions, ops, tuple(map(_of_matrices, starts)), onto, lambda grad, value: onto(grad), reason)


SYMMETRIC_OPS = {
    aten.linalg_cholesky_ex: "cholesky",
    aten.cholesky: "cholesky",
    aten._linalg_eigh: "eigh",
    aten.linalg_pinv: "pinv(hermitian=True)",
    aten.linalg_ldl_factor_ex: "ldl_factor",
}
TRIANGULAR_OPS = {
    aten.cholesky_inverse: "cholesky_inverse",
    aten.cholesky_solve: "cholesky_solve",
    aten.triangular_solve: "triangular_solve",
    aten.linalg_solve_triangular: "solve_triangular",
}
LOG_PROBABILITY_OPS = {aten._ctc_loss: "ctc_loss", aten._cudnn_ctc_loss: "ctc_loss"}

CONVENTIONS = (
    _set_of_matrices(
        "symmetric directions",
        SYMMETRIC_OPS,
        (lambda x: x.tril() + x.tril(-1).mH, lambda x: x.triu() + x.triu(1).mH),
        lambda x: (x + x.mH) / 2,
        "{} reads one triangle, and its gradient is that of a function of symmetric matrices",
    ),
    *(
        _set_of_matrices(
            "triangular directions",
            TRIANGULAR_OPS,
            (triangle,),
            triangle,
            "{} reads one triangle, and its gradient is that of a function of triangular matrices",
        )
        for triangle in (torch.tril, torch.triu)
    ),
    Convention(
        "normalised log-probabilities",
        LOG_PROBABILITY_OPS,
        (lambda x: x.log_softmax(-1),),
        lambda x: x.log_softmax(-1),
        lambda grad, x: grad - x.softmax(-1) * grad.sum(-1, keepdim=True),
        "the gradient of {} is that with respect to the logits before log_softmax",
    ),
)


def _repeats(*args: Any) -> bool:
    """Whether the indices of max_unpool name one place of a plane twice."""
    if len(args) < 3:
        return False
    _, indices, size = args[:3]
    planes = indices.reshape(-1, indices.shape[-len(size) :].numel())
    return any(len(plane.unique()) < len(plane) for plane in planes)


def _always(*_: Any) -> bool:
    return True


# Ops whose gradient is no derivative at all, whether a call is such a case, and what torch does instead.
NAMED: dict[Any, tuple[Callable[..., bool], str]] = {
    aten.normal: (_always, "convention: torch.normal passes no gradient to its mean and standard deviation"),
    aten._standard_gamma: (_always, "convention: the samples of a gamma distribution are differentiated implicitly"),
    aten._sample_dirichlet: (
        _always,
        "convention: the samples of a Dirichlet distribution are differentiated implicitly",
    ),
    aten.embedding_renorm_: (_always, "convention: the rescaling by max_norm is not differentiated"),
    aten.max_unpool2d: (_repeats, "convention: of values with the same index one is kept, and all get its gradient"),
    aten.max_unpool3d: (_repeats, "convention: of values with the same index one is kept, and all get its gradient"),
}


class CalledOps(TorchDispatchMode):
    """The aten ops that ran inside, and for some of them whether they follow a convention by name."""

    def __init__(self):
        super().__init__()
        self.ops: dict[Any, bool] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func.overloadpacket
        applies, _ = NAMED.get(packet, (None, ""))
        self.ops[packet] = self.ops.get(packet, False) or bool(applies and applies(*args))
        return func(*args, **(kwargs or {}))


def judge_by_convention(
    verdict: Verdict, subject: Subject, cotangents: Outputs, *, quick: bool, promote: Promotion
) -> Verdict:
    """The verdict, with refuted tensors that follow a convention judged along its set. The note of one that stays
    refuted names its convention, or says that the error is that of float32 arithmetic."""
    refuted = [j.name for j in verdict.judgements if j.status == "refuted"]
    if not refuted:
        return verdict
    with Recorder(promote) if promote else nullcontext(), CalledOps() as called:
        outputs, _ = subject.run(subject.values, None)
    followed, starts, forwards = {}, {}, verdict.forwards + 1
    for name in refuted:
        for convention in CONVENTIONS if name not in subject.fixed else ():
            if called.ops.keys().isdisjoint(convention.ops):
                continue
            for start in convention.starts:
                if name not in followed and _unchanged(subject, name, start, outputs, promote):
                    followed[name], starts[name] = convention, start(subject.values[name].detach())
                forwards += 1
    verdict = dataclasses.replace(verdict, forwards=forwards)
    if followed:
        verdict = _judge_along(followed, starts, subject, cotangents, verdict, called, quick, promote)
    return dataclasses.replace(verdict, judgements=[_named(j, called) for j in verdict.judgements])


def _unchanged(
    subject: Subject, name: str, start: Callable[[Tensor], Tensor], outputs: Outputs, promote: Promotion
) -> bool:
    """Whether the forward gives the same with the tensor moved onto the set."""
    try:
        with Recorder(promote) if promote else nullcontext():
            moved, _ = subject.run({**subject.values, name: start(subject.values[name].detach())}, None)
    except (Exception, SystemExit):  # no matrix, or outside the domain
        return False
    pairs = zip(outputs, moved, strict=True)
    return all(a.shape == b.shape and bool((a - b).norm() <= SAME * a.norm()) for a, b in pairs)


def _named(judgement: Judgement, called: CalledOps) -> Judgement:
    if judgement.status != "refuted" or judgement.note:
        return judgement
    note = "; ".join(sentence for op, (_, sentence) in NAMED.items() if called.ops.get(op))
    if not note and judgement.error <= FLOAT32_ERROR:
        note = "the error is no larger than float32's own: something in the backward is not computed in float64"
    return dataclasses.replace(judgement, note=note)


def _judge_along(
    followed: Mapping[str, Convention],
    starts: Mapping[str, Tensor],
    subject: Subject,
    cotangents: Outputs,
    verdict: Verdict,
    called: CalledOps,
    quick: bool,
    promote: Promotion,
) -> Verdict:
    """Judges all again, those tensors along their sets; one that is not proven there stays refuted."""

    def run(values: Mapping[str, Tensor], cotangents: Outputs | None) -> tuple[Outputs, Gradients]:
        on_set = {name: convention.onto(values[name]) for name, convention in followed.items()}
        outputs, grads = subject.run({**values, **on_set}, cotangents)
        for name, convention in followed.items():
            grad = grads.get(name)
            if grad is not None:
                grads[name] = convention.back(grad, values[name])
        return outputs, grads

    along = dataclasses.replace(subject, values={**subject.values, **starts}, run=run)
    with Recorder(promote) if promote else nullcontext():
        _, grads = run(along.values, cotangents)
    spent = verdict.forwards + 1
    again = judge(along, cotangents, grads, seed=verdict.seed, quick=quick, promote=promote, spent=spent)
    judgements, notes = [], [*verdict.notes, *again.notes]
    for before, after in zip(verdict.judgements, again.judgements, strict=True):
        if after.name in followed and after.status == "proven":
            after = dataclasses.replace(after, note=followed[after.name].note(called.ops))
            notes.append(f"{after.name.removeprefix(INPUT)} was {after.note}")
        judgements.append(before if after.name in followed and after.status != "proven" else after)
    return dataclasses.replace(again, status=overall(judgements), judgements=judgements, notes=notes)
