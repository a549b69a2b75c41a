"""Conversion to plain torch layers and back."""

from __future__ import annotations

from torch import nn

from gradproof.models import dense, moe
from gradproof.nn.dense import Dense
from gradproof.nn.moe import MoE
from gradproof.nn.norm_gelu import LinearNormGELU
from gradproof.nn.torch_moe import TorchMoE


def to_torch(model: moe.MoE | dense.Dense | MoE | Dense | LinearNormGELU) -> nn.Module:
    """Converts one of our models, or one of these modules, to plain torch layers."""
    if isinstance(model, moe.MoE):
        return MoE.from_model(model).to_torch()
    if isinstance(model, dense.Dense):
        return Dense.from_model(model).to_torch()
    if not isinstance(model, (MoE, Dense, LinearNormGELU)):
        raise ValueError(f"to_torch takes a MoE, a Dense or a LinearNormGELU, not a {type(model).__name__}")
    return model.to_torch()


def from_torch(module: nn.Module) -> MoE | Dense | LinearNormGELU:
    """Converts plain torch layers to the corresponding module."""
    if isinstance(module, TorchMoE):
        return MoE.from_torch(module)
    if not isinstance(module, nn.Sequential) or not len(module):
        raise ValueError(f"from_torch takes a TorchMoE or a Sequential of layers, not a {type(module).__name__}")
    return Dense.from_torch(module) if isinstance(module[-1], nn.Linear) else LinearNormGELU.from_torch(module)
