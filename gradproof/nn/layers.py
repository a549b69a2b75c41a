"""Converts a chain to a sequence of plain torch layers, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from gradproof.ops import layernorm
from gradproof.ops.experts import Chain


def as_layers(chain: Chain, views: dict[str, Tensor]) -> nn.Sequential:
    """A chain as a list of torch layers."""
    layers: list[nn.Module] = []
    for i in range(chain.layers + 1):
        layers.append(filled_layer(nn.Linear, views[f"linear.{i}.weight"], views[f"linear.{i}.bias"]))
        if i < chain.layers:
            layers.append(filled_layer(nn.LayerNorm, views[f"norm.{i}.weight"], views[f"norm.{i}.bias"]))
            layers += [nn.GELU("tanh")] * chain.active[i]
    return nn.Sequential(*layers)


def filled_layer(kind: type[Any], weight: Tensor, bias: Tensor) -> Any:
    layer: Any = skip_init(kind, *reversed(weight.shape), device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer


@torch.no_grad()
def read_layers(module: nn.Sequential, views: dict[str, Tensor], chain: Chain) -> None:
    """Copies torch layers into a chain; ValueError if a layer does not match."""
    layers = list(module)
    for i in range(chain.layers + 1):
        read_linear(layers.pop(0) if layers else None, views[f"linear.{i}.weight"], views[f"linear.{i}.bias"])
        if i < chain.layers:
            norm = layers.pop(0) if layers else None
            read_norm(norm, views[f"norm.{i}.weight"], views[f"norm.{i}.bias"])
            if chain.active[i]:
                check_gelu(layers.pop(0) if layers else None)
    if layers:
        raise ValueError(f"after the last Linear there is {layers[0]}; our chains end there")


def read_linear(layer: nn.Module | None, weight: Tensor, bias: Tensor) -> None:
    if not isinstance(layer, nn.Linear) or layer.weight.shape != weight.shape or layer.bias is None:
        outputs, inputs = weight.shape
        raise ValueError(f"expected Linear({inputs}, {outputs}) with a bias, found {layer}")
    weight.copy_(layer.weight)
    bias.copy_(layer.bias)


def read_norm(layer: Any, gamma: Tensor, beta: Tensor) -> None:
    right = isinstance(layer, nn.LayerNorm) and layer.normalized_shape == tuple(gamma.shape)
    if not right or layer.eps != layernorm.EPS or layer.weight is None or layer.bias is None:
        raise ValueError(f"expected LayerNorm({len(gamma)}, eps={layernorm.EPS}), found {layer}")
    gamma.copy_(layer.weight)
    beta.copy_(layer.bias)


def check_gelu(layer: nn.Module | None) -> None:
    if not isinstance(layer, nn.GELU) or layer.approximate != "tanh":
        raise ValueError(f"expected GELU('tanh'), found {layer}")
