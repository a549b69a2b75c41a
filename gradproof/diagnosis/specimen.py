"""The thing to diagnose: it can be run at any precision, from the same state and with the same random numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from gradproof.contract import Gradients, Outputs
from gradproof.precision.watching import ModulePlaces, Places, Unrepeatable
from gradproof.proof.module import CHECKS, IN_FLOAT64, Options, first_run, judge_module
from gradproof.proof.recorder import AS_IT_IS, EVERY_FLOAT
from gradproof.proof.runner import INPUT, CannotRun, Runner, draw_cotangents, one_line
from gradproof.proof.state import ModuleState
from gradproof.proof.verdict import SubjectVerdict

MOST_SECONDS = 10.0  # that the other ways to call a module may take, beside the proof itself

RunFunction = Callable[[Mapping[str, Tensor], Outputs | None], tuple[Outputs, Gradients]]


class Prepared(NamedTuple):
    """A specimen set up in one dtype: its values by name, and the run of forward and backward at them."""

    values: Mapping[str, Tensor]
    run: RunFunction


class Specimen(Protocol):
    """`reference` sets it up in float64, `narrow` in another dtype; one setting at a time."""

    name: str
    inputs: frozenset[str]  # the names that are inputs; the others are parameters
    cotangents: Outputs
    notes: list[str]
    scale: float | None  # the loss scale of the run it is taken from, if it has one
    native: bool  # whether its narrow runs are simulated in tensors of the narrow dtype

    @property
    def places(self) -> Places | None: ...

    def verify(self, quick: bool, progress: Callable[[int, int], None]) -> SubjectVerdict: ...

    def reference(self) -> Prepared: ...

    def narrow(self, dtype: torch.dtype) -> Prepared: ...

    def close(self) -> None: ...


class ModuleSpecimen:
    """A user's module. It is the user's own object that runs; `close` leaves it as it was found."""

    native = False
    scale: float | None = None

    def __init__(self, module: nn.Module, inputs: Any, name: str, seed: int, device: torch.device | None):
        self.module, self.given, self.name, self.seed, self.device = module, inputs, name, seed, device
        self.state = ModuleState(module)
        self.places: Places | None = ModulePlaces(module)
        self.inputs: frozenset[str] = frozenset()
        self.cotangents: Outputs = ()
        self.notes: list[str] = []
        self.chosen: tuple[int, ...] | None = None
        self.held: frozenset[str] = frozenset()
        self.seconds = 0.0  # that a run of the reference took
        self.options = Options(seed=seed, device=device, promotion=EVERY_FLOAT)

    def verify(self, quick: bool, progress: Callable[[int, int], None]) -> SubjectVerdict:
        """Step 1, in float64, whatever is narrower inside promoted."""
        usual = torch.get_default_dtype()
        try:
            # What its own dtype does is what the rest of a diagnosis is about; what takes minutes is left to `verify`.
            long = self.seconds * 100 > MOST_SECONDS
            options = self.options._replace(quick=quick, skip=frozenset(CHECKS if long else {"dtype"}))
            return judge_module(self.module, self.given, self.state, self.name, options, progress)
        finally:
            torch.set_default_dtype(usual)

    def reference(self) -> Prepared:
        usual = torch.get_default_dtype()
        first = first_run(self.module, self.given, self.state, self.options)
        runner = first.runner
        self.notes = [note.replace("judged", "the reference runs") for note in first.notes if note != IN_FLOAT64]
        self.inputs, self.cotangents = frozenset(runner.inputs), draw_cotangents(first.outputs, self.seed)
        self.chosen, self.held = runner.chosen, runner.held
        default = torch.get_default_dtype()
        torch.set_default_dtype(usual)

        def run(values: Mapping[str, Tensor], cotangents: Outputs | None) -> tuple[Outputs, Gradients]:
            torch.set_default_dtype(default)
            started = time.perf_counter()
            try:
                with runner.promoting:
                    return runner.run(values, cotangents)
            except Unrepeatable:
                raise
            except (Exception, SystemExit) as error:
                raise CannotRun(f"the module's backward raised {one_line(error)}") from error
            finally:
                torch.set_default_dtype(usual)
                self.seconds = time.perf_counter() - started

        return Prepared(runner.values, run)

    def narrow(self, dtype: torch.dtype) -> Prepared:
        """Parameters, buffers and inputs in `dtype`, as `module.to(dtype)` leaves them."""
        self.state.swap(dtype, self.device, attributes=False)
        runner = Runner(self.module, self.given, self.state, dtype, self.device, AS_IT_IS, self.seed, held=self.held)
        runner.chosen = self.chosen
        return Prepared(runner.values, runner.run)

    def close(self) -> None:
        self.state.restore()


def plain(name: str) -> str:
    """The name without the mark of an input."""
    return name.removeprefix(INPUT)
