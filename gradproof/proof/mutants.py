"""Mutants: wrong functions planted in the shipped backward, each of which `verify` must refute.

If one survived, the proof would be too weak to be called one. They are listed in
`proof/wrong_backwards/`, `models/wrong_backwards.py` and `gate/wrong_backwards.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gradproof.proof.verdict import MutantVerdict, SubjectVerdict

Function = Callable[..., Any]


@dataclass(frozen=True)
class Mutant:
    """`wrong` stands in for the function at `target` ("module:name"); `subject` is the op or model that is judged. A
    `subtle` one changes a gradient by under 5%, or only on some rows. `option` labels the model's option that shows it:
    that one is judged first."""

    name: str
    target: str
    subject: str
    wrong: Function
    subtle: bool
    option: str = ""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The wrong function in place of the right one."""
        module, _, path = self.target.partition(":")
        *classes, attribute = path.split(".")
        owner = functools.reduce(getattr, classes, import_module(module))
        right = getattr(owner, attribute)
        signature = inspect.signature(right)

        @functools.wraps(right)
        def called(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            return self.wrong(right, *bound.args, **bound.kwargs)

        setattr(owner, attribute, called)
        try:
            yield
        finally:
            setattr(owner, attribute, right)


def run(mutants: Iterable[Mutant], judge: Callable[[str, str], Iterable[SubjectVerdict]]) -> Iterator[MutantVerdict]:
    """Plants each mutant and judges its subject, by name and option, until something gives it away: best a claim that
    names a tensor."""
    for mutant in mutants:
        mutant_verdict = MutantVerdict(mutant.name, mutant.subject, "proven", None, None)
        with mutant.planted():
            for verdict in judge(mutant.subject, mutant.option):
                if verdict.status == "inconclusive":
                    mutant_verdict.status = "inconclusive"
                broken = [evidence for evidence in verdict.evidence if evidence.status == "refuted"]
                if broken:
                    telling = next((evidence for evidence in broken if evidence.value), broken[0])
                    mutant_verdict = MutantVerdict(mutant.name, verdict.name, "refuted", telling.claim, telling.value)
                    break
        yield mutant_verdict


def registering(mutants: list[Mutant]) -> Callable[..., Callable[[Function], Function]]:
    """A decorator `wrong(subject, name, subtle=False, target="", option="")` that appends to `mutants`; the target is
    the op's backward unless given."""

    def wrong(
        subject: str, name: str, *, subtle: bool = False, target: str = "", option: str = ""
    ) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            where = target or f"gradproof.ops.{subject}:backward"
            mutants.append(Mutant(f"{subject}: {name}", where, subject, function, subtle, option))
            return function

        return register

    return wrong


def but_last(x_T: Tensor) -> Tensor:
    """`x_T` with its last row set to zero."""
    return torch.cat([x_T[:-1], torch.zeros_like(x_T[-1:])])
