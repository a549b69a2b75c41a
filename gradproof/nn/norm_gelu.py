"""The fused layer as a module: bias, LayerNorm and GELU in one pass, alone or after a linear layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradproof.nn import kernels
from gradproof.nn.autograd import once, outside_graphs
from gradproof.nn.inputs import check_rows, narrow_dtype, no_autocast, rows_of
from gradproof.nn.kernels import LayerKernels
from gradproof.nn.layers import check_gelu, filled_layer, read_linear, read_norm
from gradproof.ops import wide
from gradproof.train.checked_path import CheckedPath


class NormGELU(nn.Module):
    """GELU(LayerNorm(h + bias; gamma, beta)) over the last axis, without the GELU where `activate` is false.

    One pass over memory each way; h is all that is kept for the backward, and y has its dtype. GELU is the tanh form,
    LayerNorm's eps 1e-5, and the mathematics fp32 at least."""

    def __init__(self, width: int, activate: bool = True, *, device: Any = None, dtype: torch.dtype | None = None):
        super().__init__()
        if width < 1:
            raise ValueError(f"width = {width} must be at least 1")
        self.width, self.activate = width, activate
        self.bias = nn.Parameter(torch.zeros(width, device=device, dtype=dtype))
        self.gamma = nn.Parameter(torch.ones(width, device=device, dtype=dtype))
        self.beta = nn.Parameter(torch.zeros(width, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Sets the norm to the identity, without a bias."""
        with torch.no_grad():
            self.bias.zero_()
            self.gamma.fill_(1.0)
            self.beta.zero_()

    def forward(self, h: Tensor) -> Tensor:
        return outside_graphs(_fused)(h, self.width, self.activate, self.bias, self.gamma, self.beta)

    def extra_repr(self) -> str:
        return f"{self.width}, activate={self.activate}"


class LinearNormGELU(NormGELU):
    """Linear → LayerNorm → GELU, the linear's bias added in the fused pass. Parameters: `weight` [width, inputs],
    `bias`, `gamma`, `beta`."""

    def __init__(
        self,
        inputs: int,
        width: int,
        activate: bool = True,
        *,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        if inputs < 1:
            raise ValueError(f"inputs = {inputs} must be at least 1")
        super().__init__(width, activate, device=device, dtype=dtype)
        self.inputs = inputs
        self.weight = nn.Parameter(torch.empty(width, inputs, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """U(±1/√inputs) for weight and bias, as in nn.Linear."""
        super().reset_parameters()
        if hasattr(self, "weight"):
            for parameter in (self.weight, self.bias):
                nn.init.uniform_(parameter, -(self.inputs**-0.5), self.inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        check_rows(x, self.inputs)
        return super().forward(nn.functional.linear(x, self.weight))

    def to_torch(self) -> nn.Sequential:
        """nn.Linear, nn.LayerNorm and nn.GELU with the same parameters."""
        with torch.no_grad():
            linear: nn.Module = filled_layer(nn.Linear, self.weight, self.bias)
            norm = filled_layer(nn.LayerNorm, self.gamma, self.beta)
        return nn.Sequential(linear, norm, *[nn.GELU("tanh")] * self.activate)

    @classmethod
    def from_torch(cls, module: nn.Sequential) -> LinearNormGELU:
        """The inverse of `to_torch`: takes Linear, LayerNorm and optionally GELU("tanh")."""
        linear = module[0] if len(module) in (2, 3) else None
        if not isinstance(linear, nn.Linear):
            raise ValueError("LinearNormGELU.from_torch takes a Sequential of Linear, LayerNorm and optionally GELU")
        active, like = len(module) == 3, linear.weight
        made = cls(linear.in_features, linear.out_features, active, device=like.device, dtype=like.dtype)
        with torch.no_grad():
            read_linear(linear, made.weight, made.bias)
            read_norm(module[1], made.gamma, made.beta)
            if active:
                check_gelu(module[2])
        return made

    def extra_repr(self) -> str:
        return f"{self.inputs}, {super().extra_repr()}"


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, path: CheckedPath[LayerKernels], activate: bool, h_TH: Tensor, *parameters: Tensor) -> Tensor:
        ctx.path, ctx.activate = path, activate
        ctx.save_for_backward(h_TH, *parameters)
        with no_autocast(h_TH.device.type):
            given = (h_TH, *map(wide, parameters), activate)
            return path.forward(lambda kernels: kernels.norm_gelu.forward(*given)[0])

    @staticmethod
    def backward(ctx: Any, dy_TH: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        h_TH, *parameters = ctx.saved_tensors
        with torch.no_grad(), no_autocast(h_TH.device.type):
            given = (dy_TH.contiguous(), None, h_TH, *map(wide, parameters), ctx.activate)
            kernel_grads = ctx.path.backward(lambda kernels: kernels.norm_gelu.backward(*given))
            triples = zip(kernel_grads, (h_TH, *parameters), ctx.needs_input_grad[2:], strict=True)
            grads = [grad.to(like.dtype) if wanted else None for grad, like, wanted in triples]
        return None, None, *once(grads)


def _fused(h: Tensor, width: int, activate: bool, *parameters: Tensor) -> Tensor:
    narrow_dtype(h, parameters[0])  # or a sentence
    h_TH = rows_of(h, width)
    path = kernels.of_norm_gelu(h.device.type, h.dtype, width, h_TH.shape[0])
    return _Fused.apply(path, activate, h_TH, *parameters).view(h.shape)
