"""Autograd as a witness for our own ops: reverse mode, forward mode, and the scale that rounding acts on."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gradproof.contract import Outputs, Subject


def reverse_mode(subject: Subject, cotangents: Outputs) -> dict[str, Tensor]:
    """The gradients of Σ⟨cotangent, output⟩ by autograd through the forward; None becomes 0."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in subject.values.items()}
    with torch.enable_grad():
        outputs, _ = subject.run(leaves, None)
    paired = [(y, c) for y, c in zip(outputs, cotangents, strict=True) if y.requires_grad]
    gradients = torch.autograd.grad(
        [y for y, _ in paired], list(leaves.values()), [c for _, c in paired], allow_unused=True
    )
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), gradients, strict=True)
    }


def forward_mode(subject: Subject, tangents: Mapping[str, Tensor]) -> Outputs:
    """J v, the outputs' derivative along `tangents`."""
    with forward_ad.dual_level():
        values = {
            name: forward_ad.make_dual(value, tangents[name]) if name in tangents else value
            for name, value in subject.values.items()
        }
        outputs, _ = subject.run(values, None)
        derivatives = [forward_ad.unpack_dual(output).tangent for output in outputs]
    return tuple(torch.zeros_like(y) if t is None else t for y, t in zip(outputs, derivatives, strict=True))


def scale(
    subject: Subject, coarse: Subject, cotangents: Outputs, exact: Mapping[str, Tensor], generator: torch.Generator
) -> dict[str, float]:
    """s, the norm of the sum of the absolute values of a gradient's terms, from below: the larger of the root sum of
    squares over the cotangent's entries (by random signs, under which it is the expected norm) and what float32
    rounding, which acts on every term, really did to the gradient."""
    u32 = torch.finfo(torch.float32).eps / 2
    rounded = reverse_mode(coarse, tuple(c.to(torch.float32) for c in cotangents))
    scales = {name: float((rounded[name].double() - exact[name]).norm()) / u32 for name in exact}
    for _ in range(2):
        signed = tuple(c * _signs(c, generator) for c in cotangents)
        for name, grad in reverse_mode(subject, signed).items():
            scales[name] = max(scales[name], float(grad.norm()))
    return scales


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    return (torch.randint(0, 2, like.shape, generator=generator) * 2 - 1).to(like)
