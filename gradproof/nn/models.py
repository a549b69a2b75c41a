"""Converts our models to modules, and modules to our models."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradproof.models.model import Model
from gradproof.ops import NARROW

if TYPE_CHECKING:
    from gradproof.nn.dense import Dense
    from gradproof.nn.moe import MoE


def module_of(cls: type[Any], model: Model) -> Any:
    """A module with the same parameters as a model, bit for bit."""
    made = undrawn(cls, arguments(model.config), model.params.flat_P)
    for name, view in made.views().items():
        view.copy_(model.params[name])
    return made


def model_of(kind: type[Any], module: MoE | Dense, theta_EP: Tensor) -> Any:
    """A model with the parameters of a module, in fp32 if those are narrower."""
    dtype = torch.float32 if theta_EP.dtype in NARROW else theta_EP.dtype
    model = kind(module.config, device=theta_EP.device, dtype=dtype)
    for name, view in module.views().items():
        model.params[name].copy_(view)
    return model


def arguments(config: Any) -> dict[str, Any]:
    """The arguments of a module with this config; the sheaf router has no module."""
    if getattr(config, "router", "softmax") != "softmax":
        raise ValueError(f"router = {config.router!r}: gradproof.nn.MoE only has the softmax router; use gradproof.MoE")
    return {name: value for name, value in asdict(config).items() if name not in ("router", "patches", "gluing")}


def undrawn(cls: type[Any], sizes: dict[str, Any], like: Tensor) -> Any:
    """A module with zero parameters; torch's generator does not advance."""
    made = cls(**sizes, device="meta", dtype=like.dtype).to_empty(device=like.device)
    for parameter in made.parameters():
        parameter.detach().zero_()
    return made


def shown(config: Any) -> str:
    """The arguments for `repr`."""
    return ", ".join(f"{name}={value!r}" for name, value in arguments(config).items())
