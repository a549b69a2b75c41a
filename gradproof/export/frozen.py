"""Frozen: the parts of a run that a decision needs, as constants: encoding, weights, temperature.

C categorical columns, N numbers, H one-hot inputs, P pieces, D p-adic numbers, L levels; M members, E experts of each,
X patches times experts and Y edges times experts of a sheaf router, U patches. A model without members is one of one,
a dense model has one expert. Matrices are [M, E, in, out], so that one product serves all experts of all members.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradproof.data.encoders import Encoder
from gradproof.models.dense import Dense
from gradproof.models.ensemble import Ensemble
from gradproof.models.model import Model
from gradproof.models.moe import MoE
from gradproof.ops import sheaf
from gradproof.ops.experts import Chain
from gradproof.ops.padic import digits
from gradproof.ops.route import Routing
from gradproof.train.predictor import Predictor

BASE, AT_ONCE = 2, 12  # of the p-adic digits: so many are turned round by one look into a table


@dataclass(frozen=True)
class Frozen:
    """`constants` by name; the rest says which of them there are and how to combine them."""

    constants: dict[str, np.ndarray]
    classes: int
    chain: Chain
    routing: Routing | None  # none for a dense model
    glued: bool  # by a sheaf router


def freeze(predictor: Predictor) -> Frozen:
    """Of a run's predictor."""
    model = predictor.model
    members = model.members if isinstance(model, Ensemble) else [model]
    first = members[0]
    if not isinstance(first, MoE | Dense):
        raise ValueError(f"a {type(first).__name__} cannot be exported: it does not predict rows of a table")
    routing = first.config.routing if isinstance(first, MoE) else None
    glued = isinstance(first, MoE) and first.config.cover is not None
    constants = {**_encoding(predictor.encoder), **_experts(members, first.config.chain)}
    if routing is not None:
        constants |= _stacked([_glued_router(m) if glued else _router(m) for m in members])
        constants["lower"] = np.tri(first.experts, k=-1, dtype=bool)  # [e, f]: f has the lower index
    schema = predictor.schema
    constants["temperature"] = np.array(predictor.temperature, np.float32)
    if schema.metrics:
        constants["low"] = np.array([metric.low for metric in schema.metrics])
        constants["span"] = np.array([metric.high - metric.low for metric in schema.metrics])
    return Frozen(constants, len(schema.classes), first.config.chain, routing, glued)


def _encoding(encoder: Encoder) -> dict[str, np.ndarray]:
    """Without those that have no entries: a table may have no names, no number with pieces, …"""
    widths = [category.width for category in encoder.schema.categories]
    constants = {
        "hot_column": np.repeat(np.arange(len(widths)), widths),
        "hot_slot": np.concatenate([np.zeros(0, np.int64), *map(np.arange, widths)]),
        "mean": encoder.mean_N,
        "std": encoder.std_N,
        "piece_number": encoder.piece_P,
        "piece_start": encoder.start_P,
        "piece_width": encoder.stop_P - encoder.start_P,
        "piece_loud": encoder.loud_N[encoder.piece_P],
        "place": encoder.place_N if encoder.place_N.any() else encoder.place_N[:0],
        "place_first": encoder.first_N,
        "place_step": encoder.step_PN,
        "digit_number": encoder.whole_D,
        "digit_unit": encoder.unit_D,
        "digit_long": encoder.long,
        "flag_number": encoder.flagged,
        "flag_loud": encoder.loud_N[encoder.flagged],
        "level_number": encoder.number_L,
        "level": encoder.level_L,
        "level_loud": encoder.loud_N[encoder.number_L],
    }
    arrays = {name: value.cpu().numpy() if isinstance(value, Tensor) else value for name, value in constants.items()}
    if len(encoder.whole_D):
        bits = np.arange(BASE**AT_ONCE)[:, None] >> np.arange(AT_ONCE) & 1
        arrays["turned"] = (bits << np.arange(AT_ONCE)[::-1]).sum(1)
        assert digits(BASE) == 2 * AT_ONCE
    return {name: array for name, array in arrays.items() if len(array)}


def _experts(members: list[Model], chain: Chain) -> dict[str, np.ndarray]:
    """w{i} [M, E, in, out]; b{i}, g{i} and h{i}, a layer's bias, scale and shift, [M, E, 1, out]."""

    def of(member: Model, name: str) -> Tensor:
        copies = member.experts if isinstance(member, MoE) else 1
        theta_EP, _ = member.params.shards("experts." if isinstance(member, MoE) else "", copies)
        return torch.stack([chain.view(theta_P, name) for theta_P in theta_EP])

    constants = {}
    for i in range(chain.layers + 1):
        names = {"w": f"linear.{i}.weight", "b": f"linear.{i}.bias"}
        if i < chain.layers:
            names |= {"g": f"norm.{i}.weight", "h": f"norm.{i}.bias"}
        for letter, name in names.items():
            value = torch.stack([of(member, name) for member in members])
            value = value.transpose(2, 3) if letter == "w" else value[:, :, None]
            constants[f"{letter}{i}"] = value.contiguous().cpu().numpy()
    return constants


def _router(member: Model) -> dict[str, Tensor]:
    own = {"router_w": member.params["router.weight"].T, "router_b": member.params["router.bias"][None]}
    return own | _correction(member)


def _glued_router(member: Model) -> dict[str, Tensor]:
    """The patches' logits as one product, whose matrix is 0 outside of each patch; and what glues them."""
    assert isinstance(member, MoE) and member.config.cover is not None
    cover, theta_P = member.config.cover, member.params.shards("router.", 1)[0][0]
    views, U, E = cover.views(theta_P), len(cover.patches), cover.experts
    w_IUE = theta_P.new_zeros(member.config.inputs, U, E)
    for u, (start, stop) in enumerate(cover.patches):
        w_IUE[start:stop, u] = views[f"patches.{u}.weight"].T
    own = {"router_w": w_IUE.flatten(1), "router_b": views["bias"].reshape(1, -1)} | _correction(member)
    own["patch_sum"] = torch.eye(E, device=theta_P.device).repeat(U, 1)
    _, saved = sheaf.forward(theta_P.new_zeros(1, member.config.inputs), theta_P, cover)
    if saved is None:
        return own
    share_MU = sheaf.frame(cover, theta_P.device, theta_P.dtype).share_MU
    return own | {
        "disagree": saved.delta_YX.T,
        "edge_share": share_MU.repeat_interleave(E, 0) * torch.exp(-views["temperature"]),
        "diffuse": saved.d_XX @ saved.d_XX @ saved.d_XX,
        "patch_spread": torch.eye(U, device=theta_P.device).repeat_interleave(E, 1),
    }


def _correction(member: Model) -> dict[str, Tensor]:
    c_E = member.buffers.get("router.correction")
    return {} if c_E is None else {"correction": c_E[None]}


def _stacked(own: list[dict[str, Tensor]]) -> dict[str, np.ndarray]:
    return {name: torch.stack([expert[name] for expert in own]).contiguous().cpu().numpy() for name in own[0]}
