"""TrainStep: forward, loss, backward, clip, optimizer, in one call.

Nothing waits for the device unless a value of the result is read. Learning rate, step count, loss scale and the
non-finite flag live there; a step whose loss or gradient is not finite is skipped: parameters, moments, count and
buffers stay as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor

from gradproof.kernels.admissions import choose
from gradproof.kernels.variants import REFERENCE, Kernels
from gradproof.kernels.workspace import Workspace
from gradproof.models.model import Model
from gradproof.precision.probe import check_bf16_on_cpu
from gradproof.ranks.mesh import Mesh
from gradproof.train.adamw import AdamW
from gradproof.train.fused import Fused
from gradproof.train.graph import Captures, Graph
from gradproof.train.loss import Loss, Target
from gradproof.train.mesh_parts import MeshParts
from gradproof.train.mesh_training import MeshTraining
from gradproof.train.parts import Parts
from gradproof.train.schedule import Schedule
from gradproof.train.step_plan import MicroBatch, StepPlan, StepResult
from gradproof.train.training import Training

ComputeDtype = Literal["fp32", "bf16", "fp16", "fp64"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


class TrainStep:
    """`step = TrainStep(model, "cross_entropy", AdamW(lr=1e-3)); result = step(x, target)`.

    `loss` is a `Loss`, its name, or an op of your own. bf16 and fp16 keep fp32 masters and gradients; fp16 scales the
    loss, by a power of two that adapts. `micro_rows` bounds the rows that are in flight at a time; the result is that
    of the whole batch.

    On a `mesh`, every rank calls the step with rows of its own, and the result is that of all ranks' rows in one batch;
    only `gates` are those of the own rows. `shard_optimizer` shares AdamW's moments out along the axis `data`.
    """

    def __init__(
        self,
        model: Model,
        loss: Loss | str | ModuleType,
        optimizer: AdamW,
        compute_dtype: ComputeDtype = "fp32",
        *,
        clip: float | None = None,
        schedule: Schedule | None = None,
        micro_rows: int | None = None,
        kernels: Mapping[str, str] | None = None,
        mesh: Mesh | None = None,
        shard_optimizer: bool = False,
    ):
        masters = torch.float64 if compute_dtype == "fp64" else torch.float32
        if compute_dtype not in DTYPES:
            raise ValueError(f"compute_dtype = {compute_dtype!r} must be one of {', '.join(DTYPES)}")
        if model.params.flat_P.dtype != masters:
            raise ValueError(f"compute_dtype {compute_dtype!r} needs a model in {masters}, made with dtype={masters}")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip = {clip}: the largest gradient norm must be above 0; None does not clip")
        if micro_rows is not None and micro_rows < 1:
            raise ValueError(f"micro_rows = {micro_rows}: a micro-batch needs at least one row")
        if compute_dtype == "bf16" and model.params.flat_P.device.type == "cpu":
            check_bf16_on_cpu()
        options = model.loss_options.get(loss, {}) if isinstance(loss, str) else {}
        criterion = loss if isinstance(loss, Loss) else Loss(loss, **options)
        self.model, self.optimizer = model, optimizer
        self.mesh = mesh if mesh is not None and mesh.spread else None
        given = (model, criterion, optimizer, DTYPES[compute_dtype], clip)
        if self.mesh is None:
            self.training = Training(*given)
        else:
            self.training = MeshTraining(*given, self.mesh, shard_optimizer, micro_rows is not None)
        self.schedule, self.micro_rows, self.steps, self.peak = schedule, micro_rows, 0, optimizer.lr
        self.dtype, self.kernels, self.workspace, self._asked = DTYPES[compute_dtype], REFERENCE, Workspace(), kernels
        self._chosen: dict[int, Kernels] = {}  # by the number of rows
        self.captures = Captures()
        self.replays = True  # a step that can be captured, as a graph

    @property
    def loss(self) -> Loss:
        return self.training.loss

    def __call__(self, x_TI: Tensor, target: Target) -> StepResult:
        """One update on the whole batch."""
        rows = x_TI.shape[0]
        if self.micro_rows is None or rows <= self.micro_rows:
            return self.accumulate([(x_TI, target)])
        pieces = x_TI.split(self.micro_rows)
        if isinstance(target, tuple):
            targets = list(zip(*(tensor.split(self.micro_rows) for tensor in target), strict=True))
        else:
            targets = target.split(self.micro_rows)
        return self.accumulate(list(zip(pieces, targets, strict=True)))

    @torch.no_grad()
    def accumulate(self, batches: Sequence[MicroBatch]) -> StepResult:
        """One update on micro-batches of any sizes: the same as on all of their rows in one batch."""
        for x_TI, _ in batches:
            if x_TI.shape[0] or self.mesh is None:  # a rank may have no rows of a batch
                self.model.check_input(x_TI)
        self.choose(max(1, *(x_TI.shape[0] for x_TI, _ in batches)))
        if self.schedule is not None:
            self.optimizer.set_rate(self.peak * self.schedule.factor(self.steps))
        result = self.plan(batches).take(batches)
        self.steps += 1
        return result

    def plan(self, batches: Sequence[MicroBatch]) -> StepPlan:
        """How to take a step on these micro-batches: as a graph or in one kernel if possible, else part by part."""
        training, kernels = self.training, self.kernels
        if isinstance(training, MeshTraining):
            return MeshParts(training, kernels)
        # A loss of the user's may read the device, which a graph cannot.
        if self.replays and kernels.capturable and training.loss.name and len(batches) == 1:
            return Graph(
                lambda: Parts(training, replace(kernels, workspace=Workspace())), training.model.params, self.captures
            )
        if kernels.lesson is not None and Fused.takes(training, batches):
            return Fused(training, kernels.lesson, kernels.workspace)
        return Parts(training, kernels)

    def choose(self, rows: int) -> Kernels:
        """The kernels for so many rows, admitted when a class of shapes first occurs."""
        if rows not in self._chosen:
            self._chosen[rows] = choose(self.model.shape(rows, self.dtype), self.workspace, self._asked)
        self.kernels = self._chosen[rows]
        return self.kernels

    def ask(self, kernels: Mapping[str, str]) -> None:
        """Requests particular kernels by op, those of a resumed run; a kernel that is not admitted here is not used."""
        self._asked = kernels
        self._chosen.clear()
        self.captures.clear()

    def state(self) -> dict[str, Tensor]:
        """Everything but the parameters that the next step depends on."""
        return self.training.state()

    def written(self) -> dict[str, Tensor]:
        """The part of `state` that this process writes to a checkpoint."""
        return self.training.written()

    def load_state(self, state: Mapping[str, Tensor], steps: int) -> None:
        """Continues after `steps` steps from `state`; restore the parameters first."""
        self.training.load_state(state)
        self.steps = steps
