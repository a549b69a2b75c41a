"""MeshParts: a step by parts on the rows of this rank; quantities of the global batch are summed over all ranks.

Before the forward: the number of rows, what the loss divides by, and the experts' load, which the balance term needs.
During the backward: the gradients, bucket by bucket. After it: loss, load, entropy, energy, and what ranks wish to say
to each other. Gradients are sums over all rows of all ranks, never means of means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradproof.kernels.variants import REFERENCE, Kernels
from gradproof.ops.route import Whole
from gradproof.train.mesh_training import MeshTraining
from gradproof.train.parts import Backed, Parts, added_up
from gradproof.train.step_plan import MicroBatch


class MeshParts(Parts):
    """`gates` of the result are those of this rank's rows; everything else is of the whole batch."""

    training: MeshTraining

    def __init__(self, training: MeshTraining, kernels: Kernels):
        # One bucket is sent at the end in any case.
        final = training.sums.final if len(training.sums.buckets) > 1 else None
        super().__init__(training, replace(kernels, final=final))
        self.mesh = training.mesh

    def gradients(self, batches: Sequence[MicroBatch]) -> Backed:
        self.training.replicas.before_step(self.training.taken)
        self.training.taken += 1
        batches = self._as_many(batches)
        total, whole = self._agreed(batches)
        sums, backed, last = self.training.sums, list[Backed](), len(batches) - 1
        for i, batch in enumerate(batches):
            if i == last:
                sums.begin()
            backed.append(self._one(batch, total, whole, accumulate=i > 0))
        together = self._together(added_up(backed))
        sums.finish()
        return together().per_row(whole.rows)

    def _one(self, batch: MicroBatch, total: Mapping[str, Any], whole: Whole | None, accumulate: bool) -> Backed:
        if batch[0].shape[0]:
            return super()._one(batch, total, whole, accumulate)
        return self._none(batch[0], whole, accumulate)

    def _none(self, x_TI: Tensor, whole: Whole | None, accumulate: bool) -> Backed:
        """No rows at all, for which no kernel is admitted. The experts of this rank may still get rows of others."""
        training, chosen = self.training, self.kernels
        kernels = replace(
            REFERENCE,
            experts=chosen.experts,
            chosen=chosen.chosen,
            workspace=chosen.workspace,
            final=chosen.final,  # ranks announce the same things in the same order
        )
        model, weights, grad_P = training.model, training.weights, training.model.params.grad_P
        output, saved = model.apply(weights, x_TI, whole, kernels)
        dy = torch.zeros_like(output.logits_TO), training.scale
        model.pull_back(weights, grad_P, dy, x_TI, saved, accumulate=accumulate, want_dx=False, kernels=kernels)
        zero = training.scale.new_zeros(())
        energy = None if model.energy(saved) is None else zero
        return Backed(zero, output.gates_TE, model.routed(saved)[1], zero, energy)

    def _as_many(self, batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """As many micro-batches as the rank that has most: where experts are spread, all ranks take part in each."""
        if self.mesh.shape.experts == 1 or not self.training.splits:
            return batches
        missing = int(self.mesh.largest(len(batches))) - len(batches)
        x_TI, target = batches[0]
        none = tuple(own[:0] for own in target) if isinstance(target, tuple) else target[:0]
        return [*batches, *[(x_TI[:0], none)] * missing]

    def _agreed(self, batches: Sequence[MicroBatch]) -> tuple[Mapping[str, Any], Whole]:
        """What the loss of the whole batch divides by, and its rows and load."""
        training, model = self.training, self.training.model
        counts = training.loss.total([target for _, target in batches])
        if not counts:
            raise ValueError("this loss has no count(*target), so the parts of several ranks cannot be added up")
        numbers = {"rows": sum(x_TI.shape[0] for x_TI, _ in batches), **counts}
        on_host = [name for name, value in numbers.items() if not isinstance(value, Tensor)]
        host = torch.tensor([float(numbers[name]) for name in on_host], dtype=torch.float64)
        measured = [value for value in numbers.values() if isinstance(value, Tensor)]
        if model.balanced:
            measured += [model.load(training.weights, x_TI, self.kernels) for x_TI, _ in batches]
        flat_P = model.params.flat_P
        device = torch.cat([value.double().flatten() for value in measured]) if measured else host[:0]
        if device.is_cuda:
            self.mesh.sum_(host)
            self.mesh.sum_(device)
        else:
            host, device = self.mesh.sum_(torch.cat([host, device])).split([len(host), len(device)])
        agreed: dict[str, Any] = dict(zip(on_host, (int(n) for n in host.tolist()), strict=True))
        measured_names = [name for name, value in numbers.items() if isinstance(value, Tensor)]
        agreed |= {name: device[i].to(flat_P.dtype) for i, name in enumerate(measured_names)}
        load_E = flat_P.new_zeros(model.experts, dtype=torch.int64)
        if model.balanced:
            load_E = device[len(measured_names) :].view(len(batches), -1).sum(0).to(torch.int64)
        rows = agreed.pop("rows")
        return agreed, Whole(rows, load_E)

    def _together(self, own: Backed):
        """Begins to add up the numbers of all ranks; what it returns waits for them."""
        energy = own.energy if own.energy is not None else own.loss.new_zeros(())
        wish = own.loss.new_full((), self.mesh.wish)
        scalars = torch.stack([n.double() for n in (own.loss, own.entropy, energy, wish)])
        numbers = torch.cat([scalars, own.load.double()])
        pending = self.mesh.start_sum(numbers, "all")

        def added() -> Backed:
            pending.wait()
            dtype = own.loss.dtype
            loss, entropy, energy, self.mesh.heard = numbers[:4].to(dtype).unbind(0)
            load_E = numbers[4:].to(own.load.dtype)
            return Backed(loss, own.gates, load_E, entropy, None if own.energy is None else energy)

        return added
