"""MeshTraining: a Training whose gradients come from all ranks of a mesh.

Every rank moves the parameters that it holds, by the same gradient, so replicas stay alike. Where experts are shared
out, the norm is that of all of them. Where the optimizer is sharded, each rank keeps the moments of its pieces of the
flat buffer, moves those, and gathers the others'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from gradproof.kernels.admissions import choose
from gradproof.kernels.variants import Kernels
from gradproof.models.model import Model
from gradproof.ops import adamw as reference
from gradproof.ranks.mesh import Mesh, Pending
from gradproof.train.adamw import AdamW
from gradproof.train.gradient_sum import GradientSum
from gradproof.train.loss import Loss
from gradproof.train.training import Training


class MeshTraining(Training):
    """`sharded` spreads the optimizer's state along the axis `data`; `splits` where a batch may be several
    micro-batches."""

    def __init__(
        self,
        model: Model,
        loss: Loss,
        optimizer: AdamW,
        dtype: torch.dtype,
        clip: float | None,
        mesh: Mesh,
        sharded: bool = False,
        splits: bool = False,
    ):
        front = model.held_alike if mesh.shape.experts > 1 else 0
        self.mesh, self.sums = mesh, GradientSum(mesh, model.params, sharded, front)
        self.sharded, self._alone = sharded, False
        super().__init__(model, loss, optimizer, dtype, clip, self.sums.own if sharded else None)
        self._dtype, self.splits = dtype, splits

    @property
    def parted(self) -> bool:
        """Whether a rank sees less than the whole gradient."""
        return self.sharded or self.mesh.shape.experts > 1

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within, nothing is said to other ranks: what is judged of a step is this rank's part of it."""
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def written(self) -> dict[str, Tensor]:
        """Each number is written by one rank. Replicas along `data` are written by the first."""
        if self.mesh.first:
            return self.state()
        moments = {name: own for name, own in self.state().items() if name.startswith(("optimizer.m.", "optimizer.v."))}
        if not self.sharded and self.mesh.at("data"):
            return {}
        alike = tuple(f"optimizer.{m}.{name}" for m in "mv" for name in self.held_alike)
        return {key: own for key, own in moments.items() if key.partition("@")[0] not in alike}

    @property
    def held_alike(self) -> list[str]:
        """Parameters that ranks of all places along `experts` hold."""
        return [name for name, start in self.model.params.offsets.items() if start < self.sums.front]

    def written_model(self) -> dict[str, Tensor]:
        """The parameters and buffers that this rank writes."""
        if self.mesh.at("data"):
            return {}
        if self.mesh.first:
            return {**self.model.params, **self.model.buffers}
        return {name: own for name, own in self.model.params.items() if name not in self.held_alike}

    def end(self, loss: Tensor, load_E: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor]:
        if self.parted:
            kernels = replace(kernels, update=None, adamw=self._adamw(kernels) if self.sharded else kernels.adamw)
        return super().end(loss, load_E, kernels)

    def _adamw(self, kernels: Kernels):
        """The kernel that runs AdamW, if it is admitted for pieces of every length."""
        name = kernels.chosen.get("adamw", "reference")
        if name == "reference":
            return kernels.adamw
        lengths = {at.stop - at.start for at, _ in self.optimizer.pieces}
        shape = replace(self.model.shape(1, self._dtype), ops=("adamw",), fused=())
        of_pieces = [choose(replace(shape, parameters=length), only={"adamw": name}) for length in lengths]
        return kernels.adamw if all(own.chosen["adamw"] == name for own in of_pieces) else reference

    def counted(self) -> list[slice]:
        """Of what this rank has of the summed gradient, the parts that it counts towards the norm: each number is
        counted by one rank."""
        if not self.parted or self._alone:
            return self.sums.own if self.sharded else [slice(0, self.model.params.grad_P.numel())]
        if self.sharded:
            parts, counts_front = self.sums.own, self.mesh.rank == 0
        else:
            front, end = self.sums.front, self.model.params.grad_P.numel()
            parts, counts_front = [slice(0, front), slice(front, end)], self.mesh.at("experts") == 0
        return parts[1:] if self.sums.front and not counts_front else parts

    def _norm(self, kernels: Kernels) -> Tensor:
        if not self.parted:
            return super()._norm(kernels)
        grad_P = self.model.params.grad_P
        squares = [kernels.adamw.norm(grad_P[part]).double().square() for part in self.counted()]
        total = torch.stack(squares).sum() if squares else grad_P.new_zeros((), dtype=torch.float64)
        if not self._alone:
            self.mesh.sum_(total, "all" if self.sharded else "experts")
        return total.sqrt().to(grad_P.dtype)

    def _move(self, divisor: Tensor | None, skipped: Tensor, kernels: Kernels) -> None:
        if not self.sharded:
            super()._move(divisor, skipped, kernels)
            return
        under_way: list[Pending] = []
        moved = {piece.stop: bucket for bucket in self.sums.buckets for piece in [bucket.piece(self.mesh.at("data"))]}

        def gather(at: slice) -> None:
            """All ranks have pieces of all buckets, and move them in the same order."""
            if not self._alone and (bucket := moved.get(at.stop)) is not None:
                flat = self.model.params.flat_P[bucket.at]
                under_way.append(self.mesh.start_gather(flat, bucket.pieces, "data"))

        self.optimizer.step(divisor, skipped, None, kernels.adamw, gather)
        for pending in under_way:
            pending.wait()
        self.model.params.touch()
        self.refresh()
