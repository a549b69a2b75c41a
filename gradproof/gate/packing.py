"""Serialises a gate and the learner's state for the store: safetensors, never pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from gradproof.gate.network import Calibration, GateConfig, GateModel, GateNetwork


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    return save({name: tensor.detach().numpy() for name, tensor in tensors.items()})


def unpack(packed: bytes) -> dict[str, Tensor]:
    try:
        return {name: torch.from_numpy(array) for name, array in load(packed).items()}
    except SafetensorError as error:
        raise ValueError(
            f"the store's weights are damaged: {error}; `gradproof gate rollback` returns to an earlier version"
        ) from None


def described(gate: GateModel) -> dict[str, Any]:
    """What a gate is but its weights, as plain data."""
    return {"config": asdict(gate.network.config), "calibration": asdict(gate.calibration)}


def tensors_of(gate: GateModel) -> dict[str, Tensor]:
    return {**gate.network.params, **gate.network.buffers}


def weights_of(gate: GateModel) -> bytes:
    return pack(tensors_of(gate))


def gate_of(weights: bytes, record: Mapping[str, Any]) -> GateModel:
    """The gate that `weights_of` and `described` told of."""
    network = GateNetwork(GateConfig(**record["config"]), seed=None)  # decisions go on meanwhile, on the same core
    tensors = unpack(weights)
    for name, own in (*network.params.items(), *network.buffers.items()):
        own.copy_(tensors[name].view_as(own))
    return GateModel(network, Calibration(**record["calibration"]))
