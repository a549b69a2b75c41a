"""Our kernels as ordinary torch.nn modules: the speed alone, in anybody's training loop.

    moe = gradproof.nn.MoE(96, 20);   y = moe(x);   y, aux = moe(x, return_aux=True)

Forward and backward are those of `gradproof.MoE` and `gradproof.Dense`, by kernels that the registry has admitted for
the device, the dtype and the number of rows; float64, and whatever runs under a dispatch mode (`verify`, `diagnose`,
torch's FLOP counter), takes the reference.

The experts are one parameter, `experts.theta` [E, P], one expert a row: kernels read it without a copy, autograd and
optimizers see three leaves instead of 14 an expert. `state_dict()` has every matrix and vector under the name that it
has in our models (`experts.0.linear.1.weight`), and `views()` gives the live ones, for what goes by name: weight decay,
another initialisation, a look at one gradient.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gradproof.kernels import registry
from gradproof.kernels.registry import REFERENCE, Kernels
from gradproof.models import dense, moe
from gradproof.models.model import Model
from gradproof.ops import NARROW, experts, layernorm, norm_gelu, route, wide
from gradproof.ops.experts import Chain
from gradproof.params import ParamSpace
from gradproof.precision.probe import check_bf16_on_cpu
from gradproof.proof.admission import admit
from gradproof.proof.examples import examples

__all__ = ["Dense", "LinearNormGELU", "MoE", "NormGELU", "TorchMoE", "from_torch", "to_torch"]

SECOND = (
    "gradproof.nn has no second derivative: its backward is explicit and leaves no graph to differentiate again; "
    "use plain torch layers there, such as module.to_torch()"
)
T = TypeVar("T")


# --- modules ----------------------------------------------------------------------------------------------------------


class Chains(nn.Module):
    """The chains of E experts in one parameter, theta_EP; of one without a number where `copies` is None. Padding
    between its entries is zero and has a zero gradient."""

    def __init__(self, chain: Chain, copies: int | None, device: Any = None, dtype: torch.dtype | None = None):
        super().__init__()
        self.chain, self.copies = chain, copies
        self.theta = nn.Parameter(torch.zeros(copies or 1, chain.length, device=device, dtype=dtype))

    def named(self, theta_EP: Tensor) -> dict[str, Tensor]:
        """The entries of any tensor with this layout, by name."""
        rows = [("" if self.copies is None else f"{e}.", theta_P) for e, theta_P in enumerate(theta_EP)]
        return {f"{e}{name}": view for e, theta_P in rows for name, view in self.chain.views(theta_P).items()}

    def initialise(self, seed: int, prefix: str = "") -> None:
        """The bits that our models start from with this seed. One expert at a time, for some are large."""
        for e, theta_P in enumerate(self.theta.detach()):
            spec = experts.entries(f"{prefix}{'' if self.copies is None else f'{e}.'}", self.chain.widths)
            theta_P.copy_(ParamSpace(spec).initialise(seed).flat_P)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, view in self.named(destination.pop(f"{prefix}theta")).items():
            destination[prefix + name] = view

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *more: Any) -> None:
        _, _, missing, _, errors = more  # local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        old = self.named(self.theta.detach())
        given = {name: state_dict[prefix + name] for name in old if prefix + name in state_dict}
        # Where nothing is allocated yet (assign=True), the checkpoint says where to.
        like = next(iter(given.values())) if given and self.theta.is_meta else self.theta
        packed_EP = torch.zeros_like(self.theta, device=like.device)
        for name, view in self.named(packed_EP).items():
            value = given.get(name, old[name])
            if name not in given:
                missing.append(prefix + name)
            if value.shape != view.shape:
                shapes = f"{list(value.shape)} in the checkpoint, {list(view.shape)} in the module"
                errors.append(f"{prefix}{name} has the shape {shapes}")
            else:
                view.copy_(value)
        others = {key: value for key, value in state_dict.items() if key.removeprefix(prefix) not in old}
        super()._load_from_state_dict({**others, f"{prefix}theta": packed_EP}, prefix, *more)


class Router(nn.Module):
    """The router's parameters; `correction` is the bias of balancing, which only selects."""

    correction: Tensor | None

    def __init__(self, inputs: int, experts: int, correction: bool, device: Any, dtype: torch.dtype | None):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(experts, inputs, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(experts, device=device, dtype=dtype))
        self.register_buffer("correction", torch.zeros(experts, device=device, dtype=dtype) if correction else None)


class MoE(nn.Module):
    """A sparse Mixture-of-Experts: `forward(x[..., inputs]) -> y[..., outputs]`, in the dtype of x.

    With `return_aux` it returns (y, aux): aux is the balance loss and the z-loss, weighed, to be added to your loss.
    Without a seed the initial values come from torch's own generator; with one they are those of `gradproof.MoE`.

    Parameters: `router.weight`, `router.bias`, `experts.theta`. An optimizer's weight decay falls on all of theta; for
    matrices alone set it to 0 and scale them yourself: `for w in moe.views().values(): w.mul_(...)` where w.dim() == 2.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        experts: int = 4,
        hidden: int = 128,
        depth: int = 2,
        k: int = 2,
        scores: Literal["softmax", "sigmoid"] = "softmax",
        renormalise: bool = False,
        balance: float = 0.0,
        z_loss: float = 0.0,
        seed: int | None = None,
        *,
        correction: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.config = moe.MoEConfig(
            inputs, outputs, experts, hidden, depth, k, scores, renormalise, balance, z_loss, correction
        )
        self.router = Router(inputs, experts, correction > 0, device, dtype)
        self.experts = Chains(self.config.chain, experts, device, dtype)
        self.reset_parameters(seed)

    def reset_parameters(self, seed: int | None = None) -> None:
        """Draws the parameters anew."""
        if self.experts.theta.is_meta:
            return
        seed = _seed() if seed is None else seed
        spec = experts.linear_entries("router", self.config.inputs, self.config.experts)
        drawn = ParamSpace(spec).initialise(seed)
        with torch.no_grad():
            self.router.weight.copy_(drawn["router.weight"])
            self.router.bias.copy_(drawn["router.bias"])
            self.experts.initialise(seed, "experts.")

    def forward(self, x: Tensor, return_aux: bool = False) -> Any:
        """y, or (y, aux)."""
        c_E = self.router.correction
        tensors = (self.router.weight, self.router.bias, self.experts.theta)
        y, aux = _outside_graphs(_block)(moe.MoE, self.config, x, c_E, *tensors)
        return (y, aux) if return_aux else y

    def views(self, grads: bool = False) -> dict[str, Tensor]:
        """The live parameters by the names of the state dict, or their gradients; writing to one is seen at once."""
        router = {"router.weight": _of(self.router.weight, grads), "router.bias": _of(self.router.bias, grads)}
        theta_EP = _of(self.experts.theta, grads)
        return router | {f"experts.{name}": view for name, view in self.experts.named(theta_EP).items()}

    @torch.no_grad()
    def rebalance(self, x: Tensor) -> None:
        """Moves the correction by `MoEConfig.correction` towards equal load; once a step, with the step's input."""
        if self.router.correction is None:
            raise ValueError("this module has no correction to move; make it with correction above 0")
        c_E, config = self.router.correction, self.config
        with _no_autocast(x.device.type):
            x_TI, router = wide(_rows(x, config.inputs)), self.router
            z_TE = nn.functional.linear(x_TI, wide(router.weight), wide(router.bias))
            _, saved = route.forward(z_TE, wide(c_E), config.routing)
        load_E = route.load(saved.index_TK, config.experts)
        c_E.copy_(route.rebalance(c_E, load_E, config.correction))

    @classmethod
    def from_model(cls, model: moe.MoE) -> MoE:
        """A module with the parameters of one of our models, bit for bit."""
        made = _from_model(cls, model)
        if made.router.correction is not None:
            made.router.correction.copy_(model.buffers["router.correction"])
        return made

    def to_model(self) -> moe.MoE:
        """One of our models with these parameters, bit for bit."""
        model = _to_model(moe.MoE, self, self.experts.theta)
        if self.router.correction is not None:
            model.buffers["router.correction"].copy_(self.router.correction)
        return model

    def to_torch(self) -> TorchMoE:
        """The same in plain torch layers, with the same numbers: slower, but torch's own from end to end."""
        with torch.no_grad():
            router = _filled_layer(nn.Linear, self.router.weight, self.router.bias)
            chains = [_sequential(self.config.chain, self.config.chain.views(p)) for p in self.experts.theta.detach()]
            return TorchMoE(self.config, router, chains, self.router.correction)

    @classmethod
    def from_torch(cls, module: TorchMoE) -> MoE:
        """The way back."""
        like = module.router.weight
        made = _made(cls, _sizes(module.config), like)
        with torch.no_grad():
            made.router.weight.copy_(like)
            made.router.bias.copy_(module.router.bias)
            for theta_P, sequential in zip(made.experts.theta, module.experts, strict=True):
                _read(cast(nn.Sequential, sequential), made.config.chain.views(theta_P), made.config.chain)
            if made.router.correction is not None and module.correction is not None:
                made.router.correction.copy_(module.correction)
        return made

    def extra_repr(self) -> str:
        return _shown(self.config)


class Dense(Chains):
    """The plain stack: `forward(x[..., inputs]) -> y[..., outputs]`. It ends with a linear layer, so under autocast
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
        """Draws the parameters anew."""
        if not self.theta.is_meta:
            self.initialise(_seed() if seed is None else seed)

    def forward(self, x: Tensor) -> Tensor:
        return _outside_graphs(_block)(dense.Dense, self.config, x, None, self.theta)[0]

    def views(self, grads: bool = False) -> dict[str, Tensor]:
        """The live parameters by the names of the state dict, or their gradients; writing to one is seen at once."""
        return self.named(_of(self.theta, grads))

    @classmethod
    def from_model(cls, model: dense.Dense) -> Dense:
        """A module with the parameters of one of our models, bit for bit."""
        return _from_model(cls, model)

    def to_model(self) -> dense.Dense:
        """One of our models with these parameters, bit for bit."""
        return _to_model(dense.Dense, self, self.theta)

    def to_torch(self) -> nn.Sequential:
        """The same as nn.Linear, nn.LayerNorm and nn.GELU in a row, with the same numbers."""
        return _sequential(self.chain, self.views())

    @classmethod
    def from_torch(cls, module: nn.Sequential) -> Dense:
        """The way back, from any such row of layers."""
        widths = [layer.in_features for layer in module if isinstance(layer, nn.Linear)]
        last = module[-1] if len(module) else None
        if not isinstance(last, nn.Linear) or len(widths) < 2 or len(widths) % 2:
            raise ValueError("Dense.from_torch takes Linear, LayerNorm, then blocks of two Linears, then a Linear")
        feedforward = widths[2] if len(widths) > 2 else widths[1]
        sizes = dict(hidden=widths[1], feedforward=feedforward, blocks=len(widths) // 2 - 1)
        made = _made(cls, dict(inputs=widths[0], outputs=last.out_features, **sizes), last.weight)
        _read(module, made.views(), made.chain)
        return made

    def extra_repr(self) -> str:
        return _shown(self.config)


class NormGELU(nn.Module):
    """GELU(LayerNorm(h + bias; gamma, beta)) over the last axis, without the GELU where `activate` is false.

    One pass over memory each way; h is all that is kept for the backward, and y has its dtype. GELU is the tanh form,
    LayerNorm's eps 1e-5, and the mathematics fp32 at least."""

    def __init__(self, width: int, activate: bool = True, *, device: Any = None, dtype: torch.dtype | None = None):
        super().__init__()
        if width < 1:
            raise ValueError(f"width = {width}: a row has at least one number")
        self.width, self.activate = width, activate
        self.bias = nn.Parameter(torch.zeros(width, device=device, dtype=dtype))
        self.gamma = nn.Parameter(torch.ones(width, device=device, dtype=dtype))
        self.beta = nn.Parameter(torch.zeros(width, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """The norm as the identity, no bias."""
        with torch.no_grad():
            self.bias.zero_()
            self.gamma.fill_(1.0)
            self.beta.zero_()

    def forward(self, h: Tensor) -> Tensor:
        return _outside_graphs(_fused)(h, self.width, self.activate, self.bias, self.gamma, self.beta)

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
            raise ValueError(f"inputs = {inputs}: a row has at least one number")
        super().__init__(width, activate, device=device, dtype=dtype)
        self.inputs = inputs
        self.weight = nn.Parameter(torch.empty(width, inputs, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """U(±1/√inputs) for weight and bias, as nn.Linear does."""
        super().reset_parameters()
        if hasattr(self, "weight"):
            for parameter in (self.weight, self.bias):
                nn.init.uniform_(parameter, -(self.inputs**-0.5), self.inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        _check_rows(x, self.inputs)
        return super().forward(nn.functional.linear(x, self.weight))

    def to_torch(self) -> nn.Sequential:
        """nn.Linear, nn.LayerNorm and nn.GELU with the same numbers."""
        with torch.no_grad():
            linear: nn.Module = _filled_layer(nn.Linear, self.weight, self.bias)
            norm = _filled_layer(nn.LayerNorm, self.gamma, self.beta)
        return nn.Sequential(linear, norm, *[nn.GELU("tanh")] * self.activate)

    @classmethod
    def from_torch(cls, module: nn.Sequential) -> LinearNormGELU:
        """The way back, from any Linear, LayerNorm and, or not, GELU("tanh") in a row."""
        linear = module[0] if len(module) in (2, 3) else None
        if not isinstance(linear, nn.Linear):
            raise ValueError("LinearNormGELU.from_torch takes Linear, LayerNorm and, or not, GELU, in a Sequential")
        active, like = len(module) == 3, linear.weight
        made = cls(linear.in_features, linear.out_features, active, device=like.device, dtype=like.dtype)
        with torch.no_grad():
            _read_linear(linear, made.weight, made.bias)
            _read_norm(module[1], made.gamma, made.beta)
            if active:
                _check_gelu(module[2])
        return made

    def extra_repr(self) -> str:
        return f"{self.inputs}, {super().extra_repr()}"


# --- one call, forward and backward -----------------------------------------------------------------------------------


class Weights:
    """The parameters as a model's forward reads them: at least fp32, and a narrow copy of theta for products."""

    def __init__(self, theta_EP: Tensor, narrow_EP: Tensor | None, named: dict[str, Tensor]):
        self.theta_EP, self.narrow_EP, self.named = theta_EP, narrow_EP, named

    def __getitem__(self, name: str) -> Tensor:
        return self.named[name]

    def operand(self, name: str) -> Tensor:
        return self.named[name]

    def shards(self, prefix: str, copies: int) -> tuple[Tensor, Tensor | None]:
        return self.theta_EP, self.narrow_EP


class Call(NamedTuple):
    """What a forward does, beside its tensors: these are the router's two, if there is one, and theta."""

    model: Model
    kernels: Kernels
    stored: torch.dtype  # of the parameters
    narrow: torch.dtype | None  # of products, where it is not that of the rest
    returned: torch.dtype

    def weights(self, tensors: Sequence[Tensor], narrow_EP: Tensor | None) -> Weights:
        named: dict[str, Tensor] = dict(zip(("router.weight", "router.bias"), tensors[:-1], strict=False))
        return Weights(tensors[-1], narrow_EP, named)

    def gradients(self, grad_P: Tensor, count: int) -> list[Tensor]:
        """Of each tensor, taken from a buffer in the layout of the model."""
        space = self.model.params
        if count == 1:
            return [space.shards_of(grad_P, "", 1)]
        router = [space.view_of(grad_P, name) for name in ("router.weight", "router.bias")]
        return [*router, space.shards_of(grad_P, "experts.", self.model.config.experts)]


class _Block(torch.autograd.Function):
    """A model's own forward and backward, as one node of torch's graph."""

    @staticmethod
    def forward(ctx: Any, call: Call, x_TI: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        with _no_autocast(x_TI.device.type):
            tensors = [wide(tensor) for tensor in parameters]
            narrow_EP = None if call.narrow is None else parameters[-1].to(call.narrow)
            output, saved = call.model.apply(call.weights(tensors, narrow_EP), wide(x_TI), None, call.kernels)
        held: list[Tensor] = []
        ctx.call, ctx.used, ctx.shape = call, False, _emptied((tensors, narrow_EP, saved), held)
        ctx.save_for_backward(x_TI, *held)
        return output.logits_TO.to(call.returned), output.aux

    @staticmethod
    def backward(ctx: Any, dy_TO: Tensor, d_aux: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        call, (x_TI, *held) = ctx.call, ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        with torch.no_grad(), _no_autocast(x_TI.device.type):
            tensors, narrow_EP, saved = _filled(ctx.shape, iter(held))
            weights, wide_TI = call.weights(tensors, narrow_EP), wide(x_TI)
            if ctx.used:  # with retain_graph; kernels may have worked in what was saved
                saved = call.model.apply(weights, wide_TI, None, call.kernels)[1]
            ctx.used = True
            grad_P = wide_TI.new_zeros(call.model.params.flat_P.numel())
            dy = (wide(dy_TO).contiguous(), d_aux)
            dx_TI = call.model.pull_back(weights, grad_P, dy, wide_TI, saved, want_dx=needed[0], kernels=call.kernels)
            # Views of one buffer, unless one of them would keep it alive for others that nobody wants.
            each = zip(call.gradients(grad_P, len(tensors)), needed[1:], strict=True)
            apart = not all(needed[1:])
            grads = [grad.to(call.stored, copy=apart) if wanted else None for grad, wanted in each]
        return None, *_once([None if dx_TI is None else dx_TI.to(x_TI.dtype), *grads])


def _block(kind: type[Model], config: Any, x: Tensor, c_E: Tensor | None, *parameters: Tensor) -> tuple[Tensor, Tensor]:
    """y and aux of any x[..., I]."""
    theta_EP, model = parameters[-1], _bare(kind, config)
    narrow = _narrow(x, theta_EP)
    x_TI = _rows(x, config.inputs)
    if c_E is not None:
        model = copy.copy(model)
        model.buffers = {"router.correction": wide(c_E).clone()}  # as it is now, for a second backward
    autocast = narrow if torch.is_autocast_enabled(x.device.type) else None
    returned = x.dtype if kind is moe.MoE else autocast or x.dtype
    kernels = _kernels(kind, config, x.device.type, narrow or theta_EP.dtype, x_TI.shape[0])
    y_TO, aux = _Block.apply(Call(model, kernels, theta_EP.dtype, narrow, returned), x_TI, *parameters)
    return y_TO.view(*x.shape[:-1], config.outputs), aux


class _NormGELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: ModuleType, activate: bool, h_TH: Tensor, *parameters: Tensor) -> Tensor:
        ctx.kernel, ctx.activate = kernel, activate
        ctx.save_for_backward(h_TH, *parameters)
        with _no_autocast(h_TH.device.type):
            return kernel.forward(h_TH, *map(wide, parameters), activate)[0]

    @staticmethod
    def backward(ctx: Any, dy_TH: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        h_TH, *parameters = ctx.saved_tensors
        with torch.no_grad(), _no_autocast(h_TH.device.type):
            found = ctx.kernel.backward(dy_TH.contiguous(), None, h_TH, *map(wide, parameters), ctx.activate)
            each = zip(found, (h_TH, *parameters), ctx.needs_input_grad[2:], strict=True)
            grads = [grad.to(like.dtype) if wanted else None for grad, like, wanted in each]
        return None, None, *_once(grads)


def _fused(h: Tensor, width: int, activate: bool, *parameters: Tensor) -> Tensor:
    _narrow(h, parameters[0])  # or a sentence
    h_TH = _rows(h, width)
    kernel = _norm_gelu_kernel(h.device.type, h.dtype, width, h_TH.shape[0])
    return _NormGELU.apply(kernel, activate, h_TH, *parameters).view(h.shape)


class _Refused(torch.autograd.Function):
    """Gradients that cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(grad.view_as(grad) for grad in grads)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError(SECOND)


def _once(grads: list[Tensor | None]) -> list[Tensor | None]:
    """The same; where a graph of them is wanted (create_graph=True), one that says what cannot be done."""
    if not torch.is_grad_enabled():
        return grads
    refused = iter(_Refused.apply(*(grad.detach().requires_grad_() for grad in grads if grad is not None)))
    return [None if grad is None else next(refused) for grad in grads]


_HOLE = object()


def _emptied(value: Any, tensors: list[Tensor]) -> Any:
    """The structure without its tensors, which go into the list: autograd keeps them, so that it can free them, watch
    for writes, and hand them to saved-tensor hooks."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _HOLE
    return _mapped(lambda each: _emptied(each, tensors), value) if isinstance(value, (tuple, list)) else value


def _filled(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The structure with its tensors back in their places."""
    if value is _HOLE:
        return next(tensors)
    return _mapped(lambda each: _filled(each, tensors), value) if isinstance(value, (tuple, list)) else value


def _mapped(f: Callable[[Any], Any], value: Any) -> Any:
    inside = [f(each) for each in value]
    return type(value)(*inside) if hasattr(value, "_fields") else type(value)(inside)


# --- which kernels, in which dtype ------------------------------------------------------------------------------------


def _narrow(x: Tensor, parameter: Tensor) -> torch.dtype | None:
    """The dtype of products where that is bf16 or fp16: autocast's, or the parameters' own. ValueError, in a sentence,
    for an input that does not go with the parameters."""
    if x.device != parameter.device:
        raise ValueError(f"the input is on {x.device}, the parameters are on {parameter.device}; move one of them")
    stored, given = parameter.dtype, x.dtype
    casting = torch.is_autocast_enabled(x.device.type) and torch.float64 not in (stored, given)
    if stored != given and not (casting and given.is_floating_point):
        raise ValueError(f"the input is {given} but the parameters are {stored}; convert one of them")
    narrow = torch.get_autocast_dtype(x.device.type) if casting else stored
    if narrow is torch.bfloat16 and x.device.type == "cpu":
        check_bf16_on_cpu()
    return narrow if narrow in NARROW else stored if stored in NARROW else None


def _rows(x: Tensor, width: int) -> Tensor:
    _check_rows(x, width)
    return x.reshape(-1, width)


def _check_rows(x: Tensor, width: int) -> None:
    if x.dim() == 0 or x.shape[-1] != width:
        raise ValueError(f"the input's last axis must have {width} entries, but the input is {list(x.shape)}")
    if not x.numel():
        raise ValueError(f"the input {list(x.shape)} has no rows; give at least one")


def _no_autocast(device: str) -> AbstractContextManager[Any]:
    """Where autocast is on: off, for the explicit passes say themselves what is narrow."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def _kernels(kind: type[Model], config: Any, device: str, dtype: torch.dtype, rows: int) -> Kernels:
    """Those of the registry; the reference where a dispatch mode watches each op."""
    if _get_current_dispatch_mode_stack():
        return REFERENCE
    return _chosen(kind, config, device, dtype, rows, os.environ.get("GRADPROOF_KERNELS"))


@lru_cache(maxsize=4096)
def _chosen(kind: type[Model], config: Any, device: str, dtype: torch.dtype, rows: int, asked: str | None) -> Kernels:
    with _settled(device):
        shape = replace(_bare(kind, config).shape(rows, dtype), device=device)
        # Without fast experts nothing is gained, and their reference has narrow gradients that other kernels refuse.
        return registry.choose(shape, fused=False) if registry.variants("experts", shape) else REFERENCE


def _norm_gelu_kernel(device: str, dtype: torch.dtype, width: int, rows: int) -> ModuleType:
    """The fused kernel where it has passed the op's contract at this width, otherwise the reference."""
    if _get_current_dispatch_mode_stack() or os.environ.get("GRADPROOF_KERNELS") == "reference":
        return norm_gelu
    return _admitted_norm_gelu(device, dtype, width, min(2 ** rows.bit_length() - 1, registry.MOST_ROWS))


@cache
def _admitted_norm_gelu(device: str, dtype: torch.dtype, width: int, rows: int) -> ModuleType:
    """The registry chooses among the ops of a step, of which this is none."""
    kernel = {"cpu": "cpu", "cuda": "triton"}.get(device)
    served = dtype in (torch.float32, *(NARROW if device == "cuda" else ()))
    if kernel is None or not served or import_module(f"gradproof.kernels.{kernel}").missing() is not None:
        return norm_gelu
    module, contract = import_module(f"gradproof.kernels.{kernel}.norm_gelu"), norm_gelu.CONTRACT
    at_width = replace(contract, sizes=dict(T=tuple({rows, min(rows, 3)}), H=(width,)), edges=())
    with _settled(device):
        tried = [*examples("norm_gelu", contract, 0), *examples("norm_gelu at width", at_width, 1)]
        try:
            evidence = admit(norm_gelu, module, tried, dtype=dtype, device=device, kernel=kernel)
            failed = next((e.claim for e in evidence if e.status == "refuted"), None)
        except Exception as error:
            failed = f"it stopped with {type(error).__name__}: {error}"
    if failed is not None:
        registry.LOG.warning("%s of norm_gelu does not run: %s", kernel, failed)
    return module if failed is None else norm_gelu


@contextmanager
def _settled(device: str) -> Iterator[None]:
    """Kernels are judged as they are by themselves, whatever the caller has switched on."""
    usual = torch.get_default_dtype()
    with ExitStack() as stack:
        for each in {"cpu", device}:
            stack.enter_context(torch.autocast(each, enabled=False))
        stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.callback(torch.set_default_dtype, usual)
        torch.set_default_dtype(torch.float32)
        yield


@cache
def _bare(kind: type[Model], config: Any) -> Any:
    """The model's functions and layout; the parameters come with each call."""
    model = kind.__new__(kind)
    model.config, model.buffers = config, {}
    model.params = ParamSpace(config.spec(), device="meta")
    return model


_opaque: dict[Any, Any] = {}


def _outside_graphs(function: Callable[..., T]) -> Callable[..., T]:
    """Under torch.compile the graph ends before such a call and begins again after it. Importing dynamo takes seconds,
    so that is left to those who compile."""
    if "torch._dynamo" not in sys.modules:
        return function
    if function not in _opaque:
        _opaque[function] = torch.compiler.disable(
            function, reason="gradproof.nn runs its own kernels, outside of the graph"
        )
    return _opaque[function]


# --- to and from plain torch, and our models --------------------------------------------------------------------------


class TorchMoE(nn.Module):
    """The Mixture-of-Experts in plain torch layers: nn.Linear, nn.LayerNorm, nn.GELU and autograd. The router is fp32
    under autocast too."""

    correction: Tensor | None

    def __init__(
        self,
        config: moe.MoEConfig,
        router: nn.Linear,
        experts: Sequence[nn.Sequential],
        correction: Tensor | None = None,
    ):
        super().__init__()
        self.config, self.router, self.experts = config, router, nn.ModuleList(experts)
        self.register_buffer("correction", None if correction is None else correction.detach().clone())

    def forward(self, x: Tensor, return_aux: bool = False) -> Any:
        """y in the dtype of x, or (y, aux)."""
        config, x_TI = self.config, x.reshape(-1, self.config.inputs)
        with torch.autocast(x.device.type, enabled=False):
            z_TE = nn.functional.linear(wide(x_TI), wide(self.router.weight), wide(self.router.bias))
            l_TE = z_TE if config.scores == "softmax" else nn.functional.logsigmoid(z_TE)
            q_TE, score_TE = l_TE.softmax(-1), z_TE.softmax(-1) if config.scores == "softmax" else z_TE.sigmoid()
            ranked_TE = score_TE if self.correction is None else score_TE + self.correction
            index_TK = ranked_TE.detach().sort(dim=-1, descending=True, stable=True).indices[:, : config.k]
            gate_TK = l_TE.gather(1, index_TK).softmax(-1) if config.renormalise else score_TE.gather(1, index_TK)
        y_TO = z_TE.new_zeros(len(x_TI), config.outputs)
        for e, expert in enumerate(self.experts):
            row_n, choice_n = (index_TK == e).nonzero(as_tuple=True)
            y_TO = y_TO.index_add(0, row_n, gate_TK[row_n, choice_n, None] * wide(expert(x_TI[row_n])))
        y = y_TO.view(*x.shape[:-1], -1).to(x.dtype)
        if not return_aux:
            return y
        share_E = torch.bincount(index_TK.flatten(), minlength=config.experts).to(q_TE) / index_TK.numel()
        balance = config.balance * config.experts * (share_E * q_TE.mean(0)).sum()
        return y, balance + config.z_loss * z_TE.logsumexp(-1).square().mean()


def to_torch(model: moe.MoE | dense.Dense | MoE | Dense | LinearNormGELU) -> nn.Module:
    """One of our models, or one of these modules, in plain torch layers."""
    if isinstance(model, moe.MoE):
        return MoE.from_model(model).to_torch()
    if isinstance(model, dense.Dense):
        return Dense.from_model(model).to_torch()
    if not isinstance(model, (MoE, Dense, LinearNormGELU)):
        raise ValueError(f"to_torch takes a MoE, a Dense or a LinearNormGELU, not a {type(model).__name__}")
    return model.to_torch()


def from_torch(module: nn.Module) -> MoE | Dense | LinearNormGELU:
    """The module of ours that does what these plain layers do."""
    if isinstance(module, TorchMoE):
        return MoE.from_torch(module)
    if not isinstance(module, nn.Sequential) or not len(module):
        raise ValueError(f"from_torch takes a TorchMoE or a Sequential of layers, not a {type(module).__name__}")
    return Dense.from_torch(module) if isinstance(module[-1], nn.Linear) else LinearNormGELU.from_torch(module)


def _from_model(cls: type[Any], model: Model) -> Any:
    made = _made(cls, _sizes(model.config), model.params.flat_P)
    for name, view in made.views().items():
        view.copy_(model.params[name])
    return made


def _to_model(kind: type[Any], module: MoE | Dense, theta_EP: Tensor) -> Any:
    dtype = torch.float32 if theta_EP.dtype in NARROW else theta_EP.dtype
    model = kind(module.config, device=theta_EP.device, dtype=dtype)
    for name, view in module.views().items():
        model.params[name].copy_(view)
    return model


def _sizes(config: Any) -> dict[str, Any]:
    """The arguments of a module with this config; those of the sheaf router have no module here."""
    if getattr(config, "router", "softmax") != "softmax":
        raise ValueError(
            f"router = {config.router!r}: gradproof.nn.MoE has the softmax router alone; use gradproof.MoE"
        )
    return {name: value for name, value in asdict(config).items() if name not in ("router", "patches", "gluing")}


def _made(cls: type[Any], sizes: dict[str, Any], like: Tensor) -> Any:
    """A module whose parameters are zeros, not drawn: torch's generator stays as it is."""
    made = cls(**sizes, device="meta", dtype=like.dtype).to_empty(device=like.device)
    for parameter in made.parameters():
        parameter.detach().zero_()
    return made


def _sequential(chain: Chain, views: dict[str, Tensor]) -> nn.Sequential:
    """A chain as a row of layers."""
    layers: list[nn.Module] = []
    for i in range(chain.layers + 1):
        layers.append(_filled_layer(nn.Linear, views[f"linear.{i}.weight"], views[f"linear.{i}.bias"]))
        if i < chain.layers:
            layers.append(_filled_layer(nn.LayerNorm, views[f"norm.{i}.weight"], views[f"norm.{i}.bias"]))
            layers += [nn.GELU("tanh")] * chain.active[i]
    return nn.Sequential(*layers)


def _filled_layer(kind: type[Any], weight: Tensor, bias: Tensor) -> Any:
    layer: Any = skip_init(kind, *reversed(weight.shape), device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer


@torch.no_grad()
def _read(module: nn.Sequential, views: dict[str, Tensor], chain: Chain) -> None:
    """Copies a row of layers into a chain; ValueError, in a sentence, where one is not what stands there."""
    layers = list(module)
    for i in range(chain.layers + 1):
        _read_linear(layers.pop(0) if layers else None, views[f"linear.{i}.weight"], views[f"linear.{i}.bias"])
        if i < chain.layers:
            norm = layers.pop(0) if layers else None
            _read_norm(norm, views[f"norm.{i}.weight"], views[f"norm.{i}.bias"])
            if chain.active[i]:
                _check_gelu(layers.pop(0) if layers else None)
    if layers:
        raise ValueError(f"after the last Linear stands {layers[0]}; our chains end there")


def _read_linear(layer: nn.Module | None, weight: Tensor, bias: Tensor) -> None:
    if not isinstance(layer, nn.Linear) or layer.weight.shape != weight.shape or layer.bias is None:
        outputs, inputs = weight.shape
        raise ValueError(f"where Linear({inputs}, {outputs}) with a bias should stand is {layer}")
    weight.copy_(layer.weight)
    bias.copy_(layer.bias)


def _read_norm(layer: Any, gamma: Tensor, beta: Tensor) -> None:
    right = isinstance(layer, nn.LayerNorm) and layer.normalized_shape == tuple(gamma.shape)
    if not right or layer.eps != layernorm.EPS or layer.weight is None or layer.bias is None:
        raise ValueError(f"where LayerNorm({len(gamma)}, eps={layernorm.EPS}) should stand is {layer}")
    gamma.copy_(layer.weight)
    beta.copy_(layer.bias)


def _check_gelu(layer: nn.Module | None) -> None:
    if not isinstance(layer, nn.GELU) or layer.approximate != "tanh":
        raise ValueError(f"where GELU('tanh') should stand is {layer}")


def _of(parameter: Tensor, grads: bool) -> Tensor:
    if not grads:
        return parameter.detach()
    if parameter.grad is None:
        raise ValueError("there is no gradient yet; run a backward first")
    return parameter.grad


def _seed() -> int:
    return int(torch.randint(2**62, (), device="cpu"))


def _shown(config: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in _sizes(config).items())
