"""The parameters of E experts as one parameter, which kernels read without a copy, and a state dict with every name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradproof.ops import experts
from gradproof.ops.experts import Chain
from gradproof.params import ParamSpace


class Chains(nn.Module):
    """The chains of E experts in one parameter, theta_EP; of a single unnumbered one if `copies` is None. Padding
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
        """Sets the same initial values as our models with this seed. One expert at a time, for some are large."""
        for e, theta_P in enumerate(self.theta.detach()):
            spec = experts.entries(f"{prefix}{'' if self.copies is None else f'{e}.'}", self.chain.widths)
            theta_P.copy_(ParamSpace(spec).initialise(seed).flat_P)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, view in self.named(destination.pop(f"{prefix}theta")).items():
            destination[prefix + name] = view

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        old = self.named(self.theta.detach())
        given = {name: state_dict[prefix + name] for name in old if prefix + name in state_dict}
        # Where nothing is allocated yet (assign=True), the checkpoint says where to.
        like = next(iter(given.values())) if given and self.theta.is_meta else self.theta
        packed_EP = torch.zeros_like(self.theta, device=like.device)
        for name, view in self.named(packed_EP).items():
            value = given.get(name, old[name])
            if name not in given:
                missing_keys.append(prefix + name)
            if value.shape != view.shape:
                shapes = f"{list(value.shape)} in the checkpoint, {list(view.shape)} in the module"
                error_msgs.append(f"{prefix}{name} has the shape {shapes}")
            else:
                view.copy_(value)
        others = {key: value for key, value in state_dict.items() if key.removeprefix(prefix) not in old}
        more = (local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        super()._load_from_state_dict({**others, f"{prefix}theta": packed_EP}, prefix, *more)


def live(parameter: Tensor, grads: bool) -> Tensor:
    """The values of a parameter, or of its gradient, without a graph; ValueError if there is no gradient yet."""
    if not grads:
        return parameter.detach()
    if parameter.grad is None:
        raise ValueError("there is no gradient yet; run a backward first")
    return parameter.grad


def drawn_seed() -> int:
    """A seed from torch's own generator."""
    return int(torch.randint(2**62, (), device="cpu"))
