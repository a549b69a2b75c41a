"""TrainStep: forward, loss, backward, clip, optimizer, in one call.

Nothing waits for the device unless a value of the result is read. Learning rate, step count, loss scale and the
non-finite flag live there; a step whose loss or gradient is not finite is skipped: parameters, moments, count and
buffers stay as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gradproof.kernels.registry import REFERENCE, Kernels, choose
from gradproof.kernels.workspace import Workspace
from gradproof.models.model import Model
from gradproof.ops.route import Whole
from gradproof.params import Weights
from gradproof.precision.probe import check_bf16_on_cpu
from gradproof.train.adamw import AdamW
from gradproof.train.graph import Graph
from gradproof.train.loss import Loss, Target
from gradproof.train.narrow import NarrowWeights
from gradproof.train.schedule import Schedule

ComputeDtype = Literal["fp32", "bf16", "fp16", "fp64"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
FIRST_SCALE = 2.0**16
GROW_AFTER = 2000  # good steps in a row
MOST_GRAPHS = 4  # shapes; each holds its own memory


class StepResult(NamedTuple):
    """Copies, on the device: reading one is what waits."""

    loss: Tensor  # of the whole batch, the auxiliary terms included
    gates: Tensor  # gates_TE
    grad_norm: Tensor  # before clipping
    load: Tensor  # load_E: rows that chose each expert
    entropy: Tensor  # mean row entropy of the router's distribution, nats
    skipped: Tensor  # 1 where nothing was updated, because loss or gradient was not finite
    scale: Tensor  # the loss scale that this step was taken with
    energy: Tensor  # mean row energy of a sheaf router; 0 without one


class _Part(NamedTuple):
    """What one micro-batch adds to the result; `entropy` and `energy` are sums here."""

    loss: Tensor
    gates: Tensor
    load: Tensor
    entropy: Tensor
    energy: Tensor | None


class TrainStep:
    """`step = TrainStep(model, "cross_entropy", AdamW(lr=1e-3)); result = step(x, target)`.

    `loss` is a `Loss`, its name, or an op of your own. bf16 and fp16 keep fp32 masters and gradients; fp16 scales the
    loss, by a power of two that adapts. `micro_rows` bounds the rows that are in flight at a time; the result is that
    of the whole batch.
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
    ):
        masters = torch.float64 if compute_dtype == "fp64" else torch.float32
        if compute_dtype not in DTYPES:
            raise ValueError(f"compute_dtype = {compute_dtype!r}: it is one of {', '.join(DTYPES)}")
        if model.params.flat_P.dtype != masters:
            raise ValueError(f"compute_dtype {compute_dtype!r} needs a model in {masters}, made with dtype={masters}")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip = {clip}: the largest gradient norm must be above 0; None does not clip")
        if micro_rows is not None and micro_rows < 1:
            raise ValueError(f"micro_rows = {micro_rows}: a micro-batch needs at least one row")
        if compute_dtype == "bf16" and model.params.flat_P.device.type == "cpu":
            check_bf16_on_cpu()
        options = model.loss_options.get(loss, {}) if isinstance(loss, str) else {}
        self.loss = loss if isinstance(loss, Loss) else Loss(loss, **options)
        self.model, self.optimizer, self.clip, self.schedule = model, optimizer.bind(model.params), clip, schedule
        self.micro_rows, self.steps, self.peak = micro_rows, 0, optimizer.lr
        narrow = compute_dtype in ("bf16", "fp16")
        self.weights: Weights = NarrowWeights(model.params, DTYPES[compute_dtype]) if narrow else model.params
        self.scaling, self.dtype = compute_dtype == "fp16", DTYPES[compute_dtype]
        self.kernels, self.workspace, self._asked = REFERENCE, Workspace(), kernels
        self._chosen: dict[int, Kernels] = {}  # by the number of rows
        self._graphs: dict[Any, Graph | None] = {}
        flat_P = model.params.flat_P
        self.scale = flat_P.new_full((), FIRST_SCALE if self.scaling else 1.0)
        self.good = flat_P.new_zeros(())  # steps since the scale last changed
        self.skipped = flat_P.new_zeros(())  # steps skipped so far

    def __call__(self, x_TI: Tensor, target: Target) -> StepResult:
        """One update by the whole batch."""
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
    def accumulate(self, parts: Sequence[tuple[Tensor, Target]]) -> StepResult:
        """One update by the micro-batches in `parts`, of any sizes: the same as by their rows in one batch."""
        for x_TI, _ in parts:
            self.model.check_input(x_TI)
        self.choose(max(x_TI.shape[0] for x_TI, _ in parts))
        if self.schedule is not None:
            self.optimizer.set_rate(self.peak * self.schedule.factor(self.steps))
        if self.kernels.capturable and self.loss.name and len(parts) == 1:  # a loss of the user's may read the device
            result = self._captured(*parts[0])
        else:
            result = self._take(parts)
        self.steps += 1
        return result

    def _captured(self, x_TI: Tensor, target: Target) -> StepResult:
        """The step as one CUDA graph for each shape: its first call runs as it is, the second is captured."""
        key = tuple((tensor.shape, tensor.dtype) for tensor in (x_TI, *_tensors(target)))
        if key not in self._graphs:
            self._graphs[key] = None
            return self._take([(x_TI, target)], replace(self.kernels, workspace=Workspace()))  # not kept
        graph = self._graphs[key]
        if graph is None:
            while sum(each is not None for each in self._graphs.values()) >= MOST_GRAPHS:
                self._graphs.pop(next(key for key, each in self._graphs.items() if each is not None))
            own = replace(self.kernels, workspace=Workspace())
            graph = self._graphs[key] = Graph(lambda x, t: self._take([(x, t)], own), x_TI, target)
        self.model.params.touch()
        return StepResult(*graph(x_TI, target))

    def _take(self, parts: Sequence[tuple[Tensor, Target]], kernels: Kernels | None = None) -> StepResult:
        """All that happens on the device."""
        kernels = kernels or self.kernels
        if kernels.lesson is not None and self.loss.plain and len(parts) == 1:
            x_TI, target = parts[0]
            if isinstance(target, Tensor):
                return self._at_once(x_TI, target, kernels.lesson)
        total = self.loss.total([target for _, target in parts])
        whole = self._whole(parts)
        results = [self._part(x_TI, target, total, whole, i > 0, kernels) for i, (x_TI, target) in enumerate(parts)]
        loss = torch.stack([each.loss for each in results]).sum() if len(parts) > 1 else results[0].loss
        load_E = torch.stack([each.load for each in results]).sum(0) if len(parts) > 1 else results[0].load
        rows = sum(len(x_TI) for x_TI, _ in parts)
        entropy = sum((each.entropy for each in results[1:]), results[0].entropy) / rows
        energies = [each.energy for each in results if each.energy is not None]
        energy = sum(energies[1:], energies[0]) / rows if energies else loss.new_zeros(())
        gates_TE = torch.cat([each.gates for each in results]) if len(parts) > 1 else results[0].gates
        scale = self.scale.clone()
        norm, skipped = self._update(loss, load_E, kernels)
        return StepResult(loss, gates_TE, norm, load_E, entropy, skipped, scale, energy)

    def _at_once(self, x_TI: Tensor, target_T: Tensor, kernel: ModuleType) -> StepResult:
        """By one kernel for all of it."""
        given = (x_TI, target_T.flatten(), self.model.lesson, self.workspace)
        learnt = self.optimizer.learn(kernel, self.scale, self.skipped, self.clip, *given)
        self._rebalance(learnt.load_E, learnt.skipped)
        return StepResult(*learnt, scale=self.scale.clone(), energy=self.scale.new_zeros(()))

    def choose(self, rows: int) -> Kernels:
        """The kernels for so many rows: admitted when a class of shapes is first met."""
        if rows not in self._chosen:
            self._chosen[rows] = choose(self.model.shape(rows, self.dtype), self.workspace, self._asked)
        self.kernels = self._chosen[rows]
        return self.kernels

    def ask(self, kernels: Mapping[str, str]) -> None:
        """Particular kernels by op, those of a run that goes on; one that is not admitted here is not used."""
        self._asked = kernels
        self._chosen.clear()
        self._graphs.clear()

    def _whole(self, parts: Sequence[tuple[Tensor, Target]]) -> Whole | None:
        """The load of the whole batch, which each part's balance term needs before its own backward."""
        if len(parts) == 1:
            return None
        load_E = torch.stack([self.model.load(self.weights, x_TI) for x_TI, _ in parts]).sum(0)
        return Whole(sum(x_TI.shape[0] for x_TI, _ in parts), load_E)

    def _part(
        self,
        x_TI: Tensor,
        target: Target,
        total: Mapping[str, Any],
        whole: Whole | None,
        accumulate: bool,
        kernels: Kernels,
    ) -> _Part:
        """Writes or adds the gradients of one micro-batch, times the loss scale."""
        output, saved = self.model.apply(self.weights, x_TI, whole, kernels)
        loss, kept = self.loss.forward(output.logits_TO, target, total, kernels)
        d_logits_TO = self.loss.backward(self.scale, kept, output.logits_TO, target, kernels)
        p_TE, load_E = self.model.routed(saved)
        energy_T = self.model.energy(saved)
        dy, grad_P = (d_logits_TO, self.scale), self.model.params.grad_P
        self.model.pull_back(
            self.weights, grad_P, dy, x_TI, saved, accumulate=accumulate, want_dx=False, kernels=kernels
        )
        energy = None if energy_T is None else energy_T.sum()
        return _Part(loss + output.aux, output.gates_TE, load_E, torch.special.entr(p_TE).sum(), energy)

    def _update(self, loss: Tensor, load_E: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """Unscale, clip, move the parameters; returns the norm and whether the step was skipped."""
        if kernels.update is not None:
            norm, skipped = self.optimizer.end(kernels.update, loss, self.scale, self.skipped, self.clip)
            if isinstance(self.weights, NarrowWeights):
                self.weights.refresh()
        else:
            norm, skipped = self._by_parts(loss, kernels)
        self._rebalance(load_E, skipped)
        if self.scaling:
            self._rescale(skipped)
        return norm, skipped

    def _by_parts(self, loss: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor]:
        """The same without a kernel for all of it: norm, clip factor and skip in torch, then AdamW."""
        norm = kernels.adamw.norm(self.model.params.grad_P) / self.scale
        skipped = 1 - (norm * 0 + loss * 0 == 0).float()  # not finite times zero is not zero
        divisor = self.scale
        if self.clip is not None:
            divisor = self.scale * ((norm + 1e-6) / self.clip).clamp(min=1.0)
        unscaled = self.scaling or self.clip is not None
        narrow_P = self.weights.flat_P if isinstance(self.weights, NarrowWeights) else None
        self.optimizer.step(divisor if unscaled else None, skipped, narrow_P, kernels.adamw)
        self.skipped += skipped
        return norm, skipped

    def _rebalance(self, load_E: Tensor, skipped: Tensor) -> None:
        if not self.model.buffers:
            return
        before = {name: buffer.clone() for name, buffer in self.model.buffers.items()}
        self.model.rebalance(load_E)
        for name, buffer in self.model.buffers.items():
            buffer.copy_(torch.where(skipped > 0, before[name], buffer))

    def _rescale(self, skipped: Tensor) -> None:
        """Half the scale after a skipped step, twice after many good ones in a row."""
        self.good += 1 - skipped
        grown = self.good >= GROW_AFTER
        self.scale.copy_(torch.where(skipped > 0, (self.scale / 2).clamp(min=1.0), self.scale * (1 + grown)))
        self.good *= (1 - skipped) * ~grown

    def state(self) -> dict[str, Tensor]:
        """Everything but the parameters that the next step depends on."""
        own = {"scale": self.scale, "good": self.good, "skipped": self.skipped}
        own |= {f"optimizer.{name}": tensor for name, tensor in self.optimizer.state().items()}
        return own | {f"buffer.{name}": tensor for name, tensor in self.model.buffers.items()}

    def load_state(self, state: Mapping[str, Tensor], steps: int) -> None:
        """Goes on after `steps` steps, where `state` was taken; the parameters are restored before."""
        for name, own in self.state().items():
            own.copy_(state[name])
        self.steps = steps
        if isinstance(self.weights, NarrowWeights):
            self.weights.refresh()


def _tensors(target: Target) -> tuple[Tensor, ...]:
    return target if isinstance(target, tuple) else (target,)
