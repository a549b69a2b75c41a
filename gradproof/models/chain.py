"""The chain that experts and the dense model are made of.

    layer i: Linear → LayerNorm → GELU where active[i];   then a last Linear

Parameters of layer i are `{prefix}linear.{i}.weight|bias` and `{prefix}norm.{i}.weight|bias`.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from gradproof.ops import gelu, layernorm, linear
from gradproof.params import Entry

Params = Mapping[str, Tensor]


class Layer(NamedTuple):
    """What the backward of one layer needs: its input, the linear's output, the norm's statistics and output."""

    x_TI: Tensor
    h_TH: Tensor
    stats: layernorm.Saved
    n_TH: Tensor


class Saved(NamedTuple):
    layers: list[Layer]
    last_TH: Tensor


def linear_entries(name: str, inputs: int, outputs: int) -> list[Entry]:
    """A linear layer's parameters, weight first."""
    return [Entry(f"{name}.weight", (outputs, inputs), "matrix"), Entry(f"{name}.bias", (outputs,), "bias")]


def entries(prefix: str, widths: Sequence[int]) -> list[Entry]:
    """The parameters of a chain through `widths`: input, each layer's output, output."""
    spec: list[Entry] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths[:-1])):
        spec += linear_entries(f"{prefix}linear.{i}", inputs, outputs)
        spec.append(Entry(f"{prefix}norm.{i}.weight", (outputs,), "gamma"))
        spec.append(Entry(f"{prefix}norm.{i}.bias", (outputs,), "beta"))
    return spec + linear_entries(f"{prefix}linear.{len(widths) - 2}", widths[-2], widths[-1])


def forward(params: Params, prefix: str, x_TI: Tensor, active: Sequence[bool]) -> tuple[Tensor, Saved]:
    """y_TO. Products and what is kept are in the format of the weights."""
    x_TI = x_TI.to(params[f"{prefix}linear.0.weight"].dtype)
    layers: list[Layer] = []
    for i, activate in enumerate(active):
        h_TH, _ = linear.forward(x_TI, params[f"{prefix}linear.{i}.weight"], params[f"{prefix}linear.{i}.bias"])
        n_TH, stats = layernorm.forward(h_TH, params[f"{prefix}norm.{i}.weight"], params[f"{prefix}norm.{i}.bias"])
        layers.append(Layer(x_TI, h_TH, stats, n_TH))
        x_TI = gelu.forward(n_TH)[0] if activate else n_TH
    last = f"{prefix}linear.{len(active)}"
    return linear.forward(x_TI, params[f"{last}.weight"], params[f"{last}.bias"])[0], Saved(layers, x_TI)


def backward(params: Params, grads: Params, prefix: str, dy_TO: Tensor, saved: Saved, active: Sequence[bool]) -> Tensor:
    """Adds the parameters' gradients to `grads` and returns dx_TI."""
    dy_TO = dy_TO.to(saved.last_TH.dtype)
    dx_TH = linear_backward(params, grads, f"{prefix}linear.{len(active)}", dy_TO, saved.last_TH)
    for i in reversed(range(len(active))):
        dx_TH = _layer_backward(params, grads, prefix, i, dx_TH, saved.layers[i], active[i])
    return dx_TH


def _layer_backward(
    params: Params, grads: Params, prefix: str, i: int, dy_TH: Tensor, layer: Layer, activate: bool
) -> Tensor:
    """One layer's backward; what it needs on the way is gone when it returns."""
    norm = f"{prefix}norm.{i}"
    dn_TH = gelu.backward(dy_TH, None, layer.n_TH) if activate else dy_TH
    dh_TH, dgamma_H, dbeta_H = layernorm.backward(dn_TH, layer.stats, layer.h_TH, params[f"{norm}.weight"])
    grads[f"{norm}.weight"].add_(dgamma_H)
    grads[f"{norm}.bias"].add_(dbeta_H)
    return linear_backward(params, grads, f"{prefix}linear.{i}", dh_TH, layer.x_TI)


def linear_backward(params: Params, grads: Params, name: str, dy_TO: Tensor, x_TI: Tensor) -> Tensor:
    """One linear layer's backward, its gradients added to `grads` under its own names."""
    dx_TI, dw_OI, db_O = linear.backward(dy_TO, None, x_TI, params[f"{name}.weight"])
    grads[f"{name}.weight"].add_(dw_OI)
    grads[f"{name}.bias"].add_(db_O)
    return dx_TI


# Arrays as wide as the layer that its backward holds at once, at the worst moment: the cotangent, tanh and its factors.
WORKING = 8


def saved_per_row(widths: Sequence[int], active: Sequence[bool]) -> int:
    """How many numbers a forward keeps for each row, the chain's own input not counted."""
    return sum((3 if activate else 2) * width + 2 for width, activate in zip(widths[1:-1], active, strict=True))
