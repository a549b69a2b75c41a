"""The sparse Mixture-of-Experts as a module."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from gradproof.models import moe
from gradproof.nn.autograd import outside_graphs
from gradproof.nn.block import block
from gradproof.nn.chains import Chains, drawn_seed, live
from gradproof.nn.inputs import no_autocast, rows_of
from gradproof.nn.layers import as_layers, filled_layer, read_layers
from gradproof.nn.models import arguments, model_of, module_of, shown, undrawn
from gradproof.nn.torch_moe import TorchMoE
from gradproof.ops import experts, route, wide
from gradproof.params import ParamSpace


class Router(nn.Module):
    """The parameters of the router; `correction` is the selection bias for balancing."""

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
        """Draws new parameters."""
        if self.experts.theta.is_meta:
            return
        seed = drawn_seed() if seed is None else seed
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
        y, aux = outside_graphs(block)(moe.MoE, self.config, x, c_E, *tensors)
        return (y, aux) if return_aux else y

    def views(self, grads: bool = False) -> dict[str, Tensor]:
        """The live parameters, or their gradients, by their names in the state dict; writes take effect at once."""
        router = {"router.weight": live(self.router.weight, grads), "router.bias": live(self.router.bias, grads)}
        theta_EP = live(self.experts.theta, grads)
        return router | {f"experts.{name}": view for name, view in self.experts.named(theta_EP).items()}

    @torch.no_grad()
    def rebalance(self, x: Tensor) -> None:
        """Moves the selection bias by `correction` towards equal load; call it once per step, with the step's input."""
        if self.router.correction is None:
            raise ValueError("this module has no selection bias; create it with correction above 0")
        c_E, config = self.router.correction, self.config
        with no_autocast(x.device.type):
            x_TI, router = wide(rows_of(x, config.inputs)), self.router
            z_TE = nn.functional.linear(x_TI, wide(router.weight), wide(router.bias))
            _, saved = route.forward(z_TE, wide(c_E), config.routing)
        load_E = route.load(saved.index_TK, config.experts)
        c_E.copy_(route.rebalance(c_E, load_E, config.correction))

    @classmethod
    def from_model(cls, model: moe.MoE) -> MoE:
        """A module with the same parameters as one of our models, bit for bit."""
        made = module_of(cls, model)
        if made.router.correction is not None:
            made.router.correction.copy_(model.buffers["router.correction"])
        return made

    def to_model(self) -> moe.MoE:
        """One of our models with these parameters, bit for bit."""
        model = model_of(moe.MoE, self, self.experts.theta)
        if self.router.correction is not None:
            model.buffers["router.correction"].copy_(self.router.correction)
        return model

    def to_torch(self) -> TorchMoE:
        """The same module in plain torch layers with the same parameters: slower, but entirely torch's own."""
        with torch.no_grad():
            router = filled_layer(nn.Linear, self.router.weight, self.router.bias)
            chains = [as_layers(self.config.chain, self.config.chain.views(p)) for p in self.experts.theta.detach()]
            return TorchMoE(self.config, router, chains, self.router.correction)

    @classmethod
    def from_torch(cls, module: TorchMoE) -> MoE:
        """The inverse of `to_torch`."""
        like = module.router.weight
        made = undrawn(cls, arguments(module.config), like)
        with torch.no_grad():
            made.router.weight.copy_(like)
            made.router.bias.copy_(module.router.bias)
            for theta_P, sequential in zip(made.experts.theta, module.experts, strict=True):
                read_layers(cast(nn.Sequential, sequential), made.config.chain.views(theta_P), made.config.chain)
            if made.router.correction is not None and module.correction is not None:
                made.router.correction.copy_(module.correction)
        return made

    def extra_repr(self) -> str:
        return shown(self.config)
