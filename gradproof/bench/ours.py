"""Our model and its step, and their peak memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

from gradproof.bench.case import StepCase, batches
from gradproof.bench.memory import allocated, forget_workspaces, free
from gradproof.bench.peers import DECAY, RATE

MEASURED = 4  # steps in which the peak of memory is looked for


class Ours:
    """Built once for a row; every peer takes turns with it."""

    def __init__(self, case: StepCase, device: str, precision: str):
        from gradproof.train.peak import peak_bytes

        self.case, self.device, self.precision = case, device, precision
        self.batches = batches(case, device)
        before = allocated(device)
        # Kernels are compiled, tuned and admitted in a rehearsal: what that takes is no part of a step.
        self.model: Any = self._model()
        self._rehearse()
        if device == "cpu":  # where tensors are counted while they are made, so that all of them must be made again
            self.model = None
        free(device)
        forget_workspaces(device)
        held = allocated(device) - before
        self.peak_bytes = held + peak_bytes(self._build, device)
        turn = cycle(self.batches)
        self.run: Callable[[], object] = lambda: self.step(*next(turn))

    @property
    def kernels(self) -> dict[str, str]:
        """Which kernel runs each op, where the step knows."""
        kernels = getattr(self.step, "kernels", None)
        chosen = getattr(kernels, "chosen", kernels)
        return {str(op): str(kernel) for op, kernel in chosen.items()} if isinstance(chosen, Mapping) else {}

    def _model(self) -> Any:
        import gradproof

        families = {"moe": gradproof.MoE, "dense": gradproof.Dense, "transformer": gradproof.Transformer}
        return families[self.case.family](self.case.config, seed=0, device=self.device)

    def _step(self) -> Any:
        import gradproof

        optimizer = gradproof.AdamW(lr=RATE, weight_decay=DECAY, decay="all")
        precision: Any = self.precision
        return gradproof.TrainStep(self.model, self.case.loss, optimizer, precision, clip=None)

    def _rehearse(self) -> None:
        step = self._step()
        for batch in self.batches:
            step(*batch)

    def _build(self) -> None:
        self.model = self._model() if self.model is None else self.model
        self.step = self._step()
        for batch in self.batches[:MEASURED]:
            self.step(*batch)
