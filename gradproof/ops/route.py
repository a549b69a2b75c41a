"""The router: logits to gates, with every option.

softmax: l = z, score = p = softmax(z) over all E          sigmoid: l = log σ(z), score = s = σ(z)
S = the K largest scores (+ c, a correction that affects only the choice); q = softmax(l) over all E
gates on S, 0 off S: the score, or renormalised w = softmax of l over S
aux = balance·E·Σ_e f_e·mean_T(q_e) + z_loss·mean_T(logsumexp(z)²),  f_e = count_e/(T·K) not differentiated;
      if these rows are part of a batch, T and count_e are those of the whole batch, so that the aux of the parts add up

dl, from dw (the gates' cotangent, read on S only):
    renormalised        w(dw − Σ_S w·dw) on S, 0 off S
    softmax             p(dw − Σ_j p_j·dw_j) for every e: the Jacobian of the unmasked p, not zero off S
    sigmoid             s·dw on S
and from the balance term q(dq − ⟨q, dq⟩), dq = balance·E·f/T·daux
dz = dl·(1 or 1 − s) + z_loss·2·logsumexp(z)·softmax(z)/T·daux
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant
from gradproof.ops import softmax, topk


@dataclass(frozen=True)
class Routing:
    """How a router chooses and weights its K experts."""

    k: int = 2
    scores: Literal["softmax", "sigmoid"] = "softmax"
    renormalise: bool = False
    balance: float = 0.0
    z_loss: float = 0.0

    def __post_init__(self):
        if self.k < 1:
            raise ValueError(f"k = {self.k}: each row needs at least 1 expert")
        if self.scores not in ("softmax", "sigmoid"):
            raise ValueError(f"scores = {self.scores!r}: must be 'softmax' or 'sigmoid'")
        for name in ("balance", "z_loss"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} = {getattr(self, name)}: a loss weight must be finite and at least 0")
        if self.renormalise and self.k == 1:
            raise ValueError(
                "k = 1 with renormalise: the gate is always 1 and the router's gradient identically zero; "
                "use k ≥ 2 or renormalise=False"
            )


class Whole(NamedTuple):
    """The batch that some rows belong to: its number of rows, and its load per expert."""

    rows: int
    load_E: Tensor


class Routed(NamedTuple):
    gates_TE: Tensor  # exactly 0 off S
    aux: Tensor


class Saved(NamedTuple):
    z_TE: Tensor
    q_TE: Tensor
    gates_TE: Tensor
    index_TK: Tensor
    share_E: Tensor
    rows: int


def forward(z_TE: Tensor, c_E: Tensor | None, routing: Routing, whole: Whole | None = None) -> tuple[Routed, Saved]:
    """Gates and the auxiliary loss; the chosen experts are `saved.index_TK`."""
    T, E = z_TE.shape
    l_TE = z_TE if routing.scores == "softmax" else torch.nn.functional.logsigmoid(z_TE)
    q_TE, _ = softmax.forward(l_TE)
    score_TE = q_TE if routing.scores == "softmax" else torch.sigmoid(z_TE)
    _, chosen = topk.forward((score_TE if c_E is None else score_TE + c_E).detach(), routing.k)
    index_TK = chosen.index_TK
    if routing.renormalise:
        gate_TK, _ = softmax.forward(l_TE.gather(1, index_TK))
    else:
        gate_TK = score_TE.gather(1, index_TK)
    gates_TE = torch.zeros_like(z_TE).scatter(1, index_TK, gate_TK)

    rows, load_E = whole or Whole(T, load(index_TK, E))
    share_E = load_E.to(z_TE.dtype) / (rows * routing.k)
    aux = z_TE.new_zeros(())
    if routing.balance:
        aux = aux + routing.balance * E / rows * (share_E * q_TE.sum(0)).sum()
    if routing.z_loss:
        aux = aux + routing.z_loss / rows * torch.logsumexp(z_TE, -1).square().sum()
    return Routed(gates_TE, aux), Saved(z_TE, q_TE, gates_TE, index_TK, share_E, rows)


def backward(dy: Routed, saved: Saved, routing: Routing) -> Tensor:
    """Returns dz_TE."""
    z_TE, q_TE, gates_TE, index_TK, share_E, rows = saved
    T, E = z_TE.shape
    # Gates off S are constants, so their cotangent is ignored.
    dw_TE = torch.zeros_like(z_TE).scatter(1, index_TK, dy.gates_TE.gather(1, index_TK))
    if routing.renormalise:
        dl_TE = softmax.backward(dw_TE, gates_TE)
    elif routing.scores == "softmax":
        dl_TE = softmax.backward(dw_TE, q_TE)
    else:
        dl_TE = gates_TE * dw_TE
    if routing.balance:
        dl_TE = dl_TE + softmax.backward((dy.aux * routing.balance * E / rows * share_E).expand(T, E), q_TE)
    dz_TE = dl_TE if routing.scores == "softmax" else dl_TE * torch.sigmoid(-z_TE)
    if routing.z_loss:
        lse_T1 = torch.logsumexp(z_TE, -1, keepdim=True)
        dz_TE = dz_TE + dy.aux * routing.z_loss * 2 / rows * lse_T1 * torch.softmax(z_TE, -1)
    return dz_TE


def load(index_TK: Tensor, experts: int) -> Tensor:
    """count_E: the number of rows that chose each expert."""
    return torch.bincount(index_TK.flatten(), minlength=experts)


NEAR = 1e-3  # a decision with a smaller margin may differ in another arithmetic


def margin(z_TE: Tensor, c_E: Tensor | None, routing: Routing) -> Tensor:
    """margin_T: the last chosen score minus the first rejected one; 1 if all experts are chosen."""
    score_TE = torch.sigmoid(z_TE) if routing.scores == "sigmoid" else torch.softmax(z_TE, 1)
    ordered_TE = (score_TE if c_E is None else score_TE + c_E).sort(1, descending=True).values
    k = routing.k
    return ordered_TE[:, k - 1] - ordered_TE[:, k] if k < z_TE.shape[1] else z_TE.new_ones(z_TE.shape[0])


def firm(margin_T: Tensor) -> Tensor:
    """index_T: each row itself if its margin is above NEAR, otherwise another row whose margin is."""
    index_T, firm_T = torch.arange(len(margin_T), device=margin_T.device), margin_T > NEAR
    if not firm_T.any():
        return margin_T.argmax().expand_as(index_T)
    chosen = index_T[firm_T]
    return torch.where(firm_T, index_T, chosen[index_T % len(chosen)])


def _settled(arguments: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    z_TE = arguments["z"]
    return {**arguments, "z": z_TE[firm(margin(z_TE, arguments["c"], options["routing"]))]}


def rebalance(c_E: Tensor, load_E: Tensor, rate: float) -> Tensor:
    """The next correction: c_e + rate·sign(mean load − load_e). It makes busy experts less likely to be chosen."""
    load_E = load_E.to(c_E.dtype)
    return c_E + rate * torch.sign(load_E.mean() - load_E)


def _gates(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """At most K gates per row, none negative; renormalised rows sum to 1."""
    gates_TE, routing = outputs[0], example.options["routing"]
    if bool((gates_TE < 0).any()) or bool(((gates_TE != 0).sum(-1) > routing.k).any()):
        return float("inf"), 0.0
    if not routing.renormalise:
        return 0.0, 0.0
    return float((gates_TE.sum(-1) - 1).abs().max()), torch.finfo(gates_TE.dtype).eps * (2 + routing.k)


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    return dict(c=None)


def _example(label: str, z_TE: Tensor, c_E: Tensor | None = None, smooth: bool = True, **routing: Any) -> Example:
    return Example(label, dict(z=z_TE, c=c_E), dict(routing=Routing(**routing)), smooth)


def _corrected(generator: torch.Generator) -> Example:
    z_TE, c_E = torch.randn(9, 4, generator=generator).double(), torch.tensor([0.4, 0.0, -0.4, 0.1]).double()
    return _example("correction", z_TE, c_E, balance=0.1)


def _part(generator: torch.Generator) -> Example:
    """Seven rows of a batch of 25."""
    whole = Whole(25, torch.tensor([20, 12, 3, 15]))
    example = _example("part of a batch", torch.randn(7, 4, generator=generator).double(), balance=0.1, z_loss=0.01)
    return replace(example, options={**example.options, "whole": whole})


def _all_chosen(generator: torch.Generator) -> Example:
    return _example("K = E", torch.randn(7, 4, generator=generator).double(), k=4, renormalise=True, balance=0.1)


def _starved(generator: torch.Generator) -> Example:
    """No row chooses expert 3."""
    z_TE = torch.randn(7, 4, generator=generator).double()
    z_TE[:, 3] -= 12
    return _example("expert without rows", z_TE, balance=0.1, z_loss=0.01)


def _ties(generator: torch.Generator) -> Example:
    z_TE = torch.randn(6, 4, generator=generator).double().round()
    z_TE[0] = 0.0
    return _example("ties", z_TE, smooth=False, balance=0.1)


def _saturated(generator: torch.Generator) -> Example:
    """Scores that underflow: 0/0 unless the renormalised gates are computed from logarithms."""
    z_TE = -800 + torch.randn(5, 4, generator=generator).double()
    return _example("scores underflow", z_TE, smooth=False, scores="sigmoid", renormalise=True)


CONTRACT = Contract(
    shapes="z[T,E] c[E] -> gates[T,E] aux[]",
    sizes=dict(T=(1, 2, 7, 33), E=(4, 5, 9)),
    grads=("z",),
    draw=_draw,
    options=(
        dict(routing=Routing()),
        dict(routing=Routing(k=1)),
        dict(routing=Routing(k=4)),
        dict(routing=Routing(renormalise=True)),
        dict(routing=Routing(scores="sigmoid")),
        dict(routing=Routing(scores="sigmoid", renormalise=True, k=3)),
        dict(routing=Routing(balance=0.1)),
        dict(routing=Routing(z_loss=0.01)),
        dict(routing=Routing(renormalise=True, balance=0.2, z_loss=0.02)),
        dict(routing=Routing(scores="sigmoid", balance=0.2, z_loss=0.02)),
        dict(routing=Routing(scores="sigmoid", renormalise=True, balance=0.2)),
    ),
    claims=(*EVERY_OP, equivariant("T"), Claim("conserves", check=_gates)),
    edges=(_corrected, _part, _all_chosen, _starved, _ties, _saturated),
    settled=_settled,
)
