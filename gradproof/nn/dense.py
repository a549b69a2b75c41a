"""The dense baseline as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradproof.models import dense
from gradproof.nn.autograd import outside_graphs
from gradproof.nn.block import block
from gradproof.nn.chains import Chains, drawn_seed, live
from gradproof.nn.layers import as_layers, read_layers
from gradproof.nn.models import model_of, module_of, shown, undrawn


class Dense(Chains):
    """The dense baseline: `forward(x[..., inputs]) -> y[..., outputs]`. It ends with a linear layer, so under autocast
    y is in that dtype. One parameter, `theta`; names, seed and weight decay are as in `MoE`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: int = 128,
        feedforward: int = 512,
        blocks: int = 2,
        seed: int | None = None,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        config = dense.DenseConfig(inputs, outputs, hidden, feedforward, blocks)
        super().__init__(config.chain, None, device, dtype)
        self.config = config
        self.reset_parameters(seed)

    def reset_parameters(self, seed: int | None = None) -> None:
        """Draws new parameters."""
        if not self.theta.is_meta:
            self.initialise(drawn_seed() if seed is None else seed)

    def forward(self, x: Tensor) -> Tensor:
        return outside_graphs(block)(dense.Dense, self.config, x, None, self.theta)[0]

    def views(self, grads: bool = False) -> dict[str, Tensor]:
        """The live parameters, or their gradients, by their names in the state dict; writes take effect at once."""
        return self.named(live(self.theta, grads))

    @classmethod
    def from_model(cls, model: dense.Dense) -> Dense:
        """A module with the same parameters as one of our models, bit for bit."""
        return module_of(cls, model)

    def to_model(self) -> dense.Dense:
        """One of our models with these parameters, bit for bit."""
        return model_of(dense.Dense, self, self.theta)

    def to_torch(self) -> nn.Sequential:
        """The same layers as nn.Linear, nn.LayerNorm and nn.GELU, with the same parameters."""
        return as_layers(self.chain, self.views())

    @classmethod
    def from_torch(cls, module: nn.Sequential) -> Dense:
        """The inverse of `to_torch`, for any such sequence of layers."""
        widths = [layer.in_features for layer in module if isinstance(layer, nn.Linear)]
        last = module[-1] if len(module) else None
        if not isinstance(last, nn.Linear) or len(widths) < 2 or len(widths) % 2:
            raise ValueError("Dense.from_torch takes Linear, LayerNorm, then blocks of two Linears, then a Linear")
        feedforward = widths[2] if len(widths) > 2 else widths[1]
        sizes = dict(hidden=widths[1], feedforward=feedforward, blocks=len(widths) // 2 - 1)
        made = undrawn(cls, dict(inputs=widths[0], outputs=last.out_features, **sizes), last.weight)
        read_layers(module, made.views(), made.chain)
        return made

    def extra_repr(self) -> str:
        return shown(self.config)
