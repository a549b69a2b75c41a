"""ExpertRanks: the experts of a mixture distributed over the ranks of a mesh axis. Every rank routes its own rows.

A rank holds E/X experts, X the ranks along `experts`. Rows are sorted by expert, so those for one rank are contiguous:

    counts are exchanged, then the rows; each rank applies its own experts; the outputs go back the way the rows came

The backward sends cotangents the same way. Nothing is dropped, whatever the load, and an expert or a rank without rows
is legal. The gradient of an expert is complete for all rows of these X ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.kernels.variants import Kernels
from gradproof.models.expert_turns import ExpertsInTurn, experts_kernel
from gradproof.ops.dispatch import DispatchPlan
from gradproof.ops.experts import Chain
from gradproof.ops.mixture import MixtureOps
from gradproof.params import Entry
from gradproof.ranks.mesh import Mesh
from gradproof.ranks.mesh_shape import MeshShape


class ExpertRanks:
    """The experts that this rank holds. While `alone`, nothing is exchanged: rows for another rank's experts go to this
    rank's, which is how a step is rehearsed."""

    def __init__(self, mesh: Mesh, experts: int):
        mesh.shape.check_experts(experts)
        self.mesh, self.held = mesh, experts // mesh.shape.experts
        self.first = mesh.at("experts") * self.held
        self.alone = False

    def spec(self, spec: list[Entry]) -> list[Entry]:
        """The parameters that this rank holds: all but the experts of other ranks."""
        return held_entries(spec, self.first, self.held)

    def parts(self, kernels: Kernels) -> MixtureOps:
        """The parts of a mixture, with the exchange around the experts."""
        return kernels.parts._replace(experts=ExchangedExperts(self, kernels))  # type: ignore[arg-type]


def held_entries(spec: list[Entry], first: int, held: int) -> list[Entry]:
    """All entries except experts outside first : first + held."""
    own = tuple(f"experts.{e}." for e in range(first, first + held))
    return [entry for entry in spec if not entry.name.startswith("experts.") or entry.name.startswith(own)]


def entries_of_rank(spec: list[Entry], experts: int, shape: MeshShape, at: int) -> list[Entry]:
    """The entries that rank `at` of the axis `experts` holds."""
    held = experts // shape.experts
    return held_entries(spec, at * held, held)


class Saved(NamedTuple):
    """What the forward saves: the exchange of rows, this rank's rows by expert, and what its experts saved."""

    gives: list[int]
    takes: list[int]
    order_M: Tensor  # of the rows as they came, sorted by expert
    plan: DispatchPlan  # of those rows
    rows_MI: Tensor
    experts: Any
    module: Any


class ExchangedExperts:
    """Replaces the op `experts`; `theta_EP` has the rows of the experts held here."""

    def __init__(self, ranks: ExpertRanks, kernels: Kernels):
        self.ranks, self.mesh, self.kernels = ranks, ranks.mesh, kernels

    def forward(
        self,
        x_NI: Tensor,
        theta_EP: Tensor,
        plan: DispatchPlan,
        chain: Chain,
        narrow_EP: Tensor | None = None,
        workspace: object | None = None,
    ) -> tuple[Tensor, Saved]:
        load_E = plan.offset_F.diff()
        counts_XE = self._counts(load_E)
        gives, takes = load_E.view(-1, self.ranks.held).sum(1).tolist(), counts_XE.sum(1).tolist()
        came_MI = self._send(x_NI, gives, takes)
        order_M, own = _sorted(counts_XE)
        rows_MI = came_MI[order_M]
        module = self._module(rows_MI, chain, narrow_EP)
        y_MO, saved = module.forward(rows_MI, theta_EP, own, chain, narrow_EP, workspace=workspace)
        back_MO = torch.empty_like(y_MO)
        back_MO[order_M] = y_MO
        y_NO = self._send(back_MO, takes, gives)
        return y_NO, Saved(gives, takes, order_M, own, rows_MI, saved, module)

    def backward(
        self,
        dy_NO: Tensor,
        saved: Saved,
        x_NI: Tensor,
        theta_EP: Tensor,
        plan: DispatchPlan,
        chain: Chain,
        narrow_EP: Tensor | None = None,
        out_EP: Tensor | None = None,
        accumulate: bool = False,
        want_dx: bool = True,
        workspace: object | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        dy_MO = self._send(dy_NO, saved.gives, saved.takes)[saved.order_M]
        dx_MI, dtheta_EP = saved.module.backward(
            dy_MO,
            saved.experts,
            saved.rows_MI,
            theta_EP,
            saved.plan,
            chain,
            narrow_EP=narrow_EP,
            out_EP=out_EP,
            accumulate=accumulate,
            want_dx=want_dx,
            workspace=workspace,
        )
        if dx_MI is None:
            return None, dtheta_EP
        back_MI = torch.empty_like(dx_MI)
        back_MI[saved.order_M] = dx_MI
        return self._send(back_MI, saved.takes, saved.gives), dtheta_EP

    def _counts(self, load_E: Tensor) -> Tensor:
        """counts_XE: the rows that each rank sends here, by expert of this rank."""
        own_XE = load_E.view(-1, self.ranks.held)
        if self.ranks.alone:
            return own_XE
        each = [1] * len(own_XE)
        return self.mesh.exchange(own_XE, each, each, "experts")

    def _send(self, rows: Tensor, gives: list[int], takes: list[int]) -> Tensor:
        return rows if self.ranks.alone else self.mesh.exchange(rows, gives, takes, "experts")

    def _module(self, rows_MI: Tensor, chain: Chain, narrow_EP: Tensor | None) -> Any:
        if self.kernels.in_turns and rows_MI.is_cpu:
            return ExpertsInTurn(self.kernels, self.ranks.first)
        return experts_kernel(self.kernels, rows_MI, self.ranks.held, chain, narrow_EP)


def _sorted(counts_XE: Tensor) -> tuple[Tensor, DispatchPlan]:
    """The order by expert of rows that came by sender and expert, and the plan of the rows in that order."""
    held = counts_XE.shape[1]
    expert_M = torch.arange(held, device=counts_XE.device).repeat(len(counts_XE))
    expert_M = expert_M.repeat_interleave(counts_XE.flatten())
    order_M = torch.sort(expert_M, stable=True).indices
    slot_M = torch.arange(len(order_M), device=order_M.device)
    offset_F = torch.nn.functional.pad(counts_XE.sum(0).cumsum(0), (1, 0))
    return order_M, DispatchPlan(slot_M, slot_M[:, None], expert_M[order_M][:, None], offset_F)
