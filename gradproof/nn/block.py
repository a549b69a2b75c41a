"""One call of a model, forward and backward, as a single node of torch's graph."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.kernels.variants import Kernels
from gradproof.models import moe
from gradproof.models.model import Model
from gradproof.nn import kernels
from gradproof.nn.autograd import emptied, filled, once
from gradproof.nn.inputs import narrow_dtype, no_autocast, rows_of
from gradproof.ops import wide
from gradproof.train.checked_path import CheckedPath


class BlockWeights:
    """The parameters that a model's forward reads: at least fp32, and a low-precision copy of theta for products."""

    def __init__(self, theta_EP: Tensor, narrow_EP: Tensor | None, named: dict[str, Tensor]):
        self.theta_EP, self.narrow_EP, self.named = theta_EP, narrow_EP, named

    def __getitem__(self, name: str) -> Tensor:
        return self.named[name]

    def operand(self, name: str) -> Tensor:
        return self.named[name]

    def shards(self, prefix: str, copies: int) -> tuple[Tensor, Tensor | None]:
        return self.theta_EP, self.narrow_EP


class BlockCall(NamedTuple):
    """The options of a forward, besides its tensors: those of the router, if there is one, and theta."""

    model: Model
    path: CheckedPath[Kernels]
    stored: torch.dtype  # of the parameters
    narrow: torch.dtype | None  # of products, where it is not that of the rest
    returned: torch.dtype

    def weights(self, tensors: Sequence[Tensor], narrow_EP: Tensor | None) -> BlockWeights:
        named: dict[str, Tensor] = dict(zip(("router.weight", "router.bias"), tensors[:-1], strict=False))
        return BlockWeights(tensors[-1], narrow_EP, named)

    def gradients(self, grad_P: Tensor, count: int) -> list[Tensor]:
        """The gradient of each tensor, taken from a buffer in the layout of the model."""
        space = self.model.params
        if count == 1:
            return [space.shards_of(grad_P, "", 1)]
        router = [space.view_of(grad_P, name) for name in ("router.weight", "router.bias")]
        return [*router, space.shards_of(grad_P, "experts.", self.model.config.experts)]


class _Block(torch.autograd.Function):
    """A model's own forward and backward, as one node of torch's graph."""

    @staticmethod
    def forward(ctx: Any, call: BlockCall, x_TI: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        with no_autocast(x_TI.device.type):
            tensors = [wide(tensor) for tensor in parameters]
            narrow_EP = None if call.narrow is None else parameters[-1].to(call.narrow)
            weights, wide_TI = call.weights(tensors, narrow_EP), wide(x_TI)
            output, saved = call.path.forward(lambda kernels: call.model.apply(weights, wide_TI, None, kernels))
        held: list[Tensor] = []
        ctx.call, ctx.kernels, ctx.used = call, call.path.kernels, False
        ctx.shape = emptied((tensors, narrow_EP, saved), held)
        ctx.save_for_backward(x_TI, *held)
        return output.logits_TO.to(call.returned), output.aux

    @staticmethod
    def backward(ctx: Any, dy_TO: Tensor, d_aux: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        call, (x_TI, *held) = ctx.call, ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        with torch.no_grad(), no_autocast(x_TI.device.type):
            tensors, narrow_EP, saved = filled(ctx.shape, iter(held))
            weights, wide_TI = call.weights(tensors, narrow_EP), wide(x_TI)
            # With retain_graph kernels may have worked in what was saved; or one of them was refused since.
            if ctx.used or ctx.kernels is not call.path.kernels:
                saved = call.model.apply(weights, wide_TI, None, call.path.kernels)[1]
            ctx.used, ctx.kernels = True, call.path.kernels
            grad_P = wide_TI.new_zeros(call.model.params.flat_P.numel())
            dy = (wide(dy_TO).contiguous(), d_aux)
            dx_TI = call.path.backward(
                lambda kernels: call.model.pull_back(
                    weights, grad_P, dy, wide_TI, saved, want_dx=needed[0], kernels=kernels
                )
            )
            # Views of one buffer, unless one of them would keep it alive for others that nobody wants.
            pairs = zip(call.gradients(grad_P, len(tensors)), needed[1:], strict=True)
            apart = not all(needed[1:])
            grads = [grad.to(call.stored, copy=apart) if wanted else None for grad, wanted in pairs]
        return None, *once([None if dx_TI is None else dx_TI.to(x_TI.dtype), *grads])


def block(kind: type[Model], config: Any, x: Tensor, c_E: Tensor | None, *parameters: Tensor) -> tuple[Tensor, Tensor]:
    """y and aux for any x[..., I]."""
    theta_EP, model = parameters[-1], kernels.bare(kind, config)
    narrow = narrow_dtype(x, theta_EP)
    x_TI = rows_of(x, config.inputs)
    if c_E is not None:
        model = copy.copy(model)
        model.buffers = {"router.correction": wide(c_E).clone()}  # as it is now, for a second backward
    autocast = narrow if torch.is_autocast_enabled(x.device.type) else None
    returned = x.dtype if kind is moe.MoE else autocast or x.dtype
    path = kernels.of_model(kind, config, x.device.type, narrow or theta_EP.dtype, x_TI.shape[0])
    y_TO, aux = _Block.apply(BlockCall(model, path, theta_EP.dtype, narrow, returned), x_TI, *parameters)
    return y_TO.view(*x.shape[:-1], config.outputs), aux
