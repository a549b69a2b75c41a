"""The expected result of a kernel, and the bound of each entry.

The witness is the plain reference in float64 on the same rounded arguments, its gradients by autograd. The allowance of
an entry is

    8 σ + u·|y|,  σ from the reference in float32 (`proof/fused_bounds.py`), u the unit in which y is stored

or, where the user gives the sum of absolute terms of each output, σ = u₃₂·terms; of gradients then that of the terms'
own gradient. An operation whose error nobody knows leaves σ to measurement: the reference's float32 error, smoothed
over rows and the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from gradproof.proof.bounds import TAILS, NoRule
from gradproof.proof.fused_bounds import OPERANDS, STORED, UNITS, FusedBounds
from gradproof.proof.kernel_calls import CallArguments, CallForm
from gradproof.proof.recorder import EVERY_FLOAT, Recorder

Cotangents = Sequence[Tensor | None]
Named = dict[str, Tensor | None]
WORDS = {
    "mm": "products",
    "bmm": "products",
    "addmm": "products",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "native_layer_norm": "layer_norm",
    "_to_copy": "conversions",
}


class KernelPair(NamedTuple):
    """The kernel and its reference, and how both are called."""

    form: CallForm
    fast: Callable[..., Any]
    reference: Callable[..., Any]
    backward: Callable[..., Any] | None
    terms: Callable[..., Any] | None


@dataclass
class KernelTruth:
    """Of one call: the right tensors by name, σ in the kernel's arithmetic, and where σ is from."""

    exact: Named
    sigma: dict[str, Tensor]
    wide: torch.dtype
    narrow: torch.dtype | None
    overflows: bool = False
    unknown: dict[str, str] = field(default_factory=dict)  # tensors whose σ is not computed, and why

    def allowed(self, name: str, stored: torch.dtype) -> Tensor:
        """What each entry of a tensor in this format may be off by. Beside numbers of usual size, those of the tails
        are judged as if they were a tenth of that; below the least normal number nothing is relative any more."""
        exact, sigma = self.right(name).double(), self.sigma[name].double()
        size = exact.nan_to_num(0, 0, 0).abs()
        usual = float(size.square().mean().sqrt()) if size.numel() else 0.0
        floor = torch.finfo(self.wide).tiny + UNITS * torch.finfo(self.wide).eps / 2 * TAILS * usual
        return UNITS * sigma + torch.where(sigma > 0, floor, 0.0) + self.rounding(name, stored)

    def rounding(self, name: str, stored: torch.dtype) -> Tensor:
        """What storing may add to what the arithmetic has done; it has stored in its own format already."""
        size, limits = self.right(name).double().nan_to_num(0, 0, 0).abs(), torch.finfo(stored)
        if limits.eps <= torch.finfo(self.wide).eps:
            return torch.zeros_like(size)
        return torch.where(size > 0, limits.eps / 2 * size.clamp(min=limits.tiny), 0.0)

    def right(self, name: str) -> Tensor:
        exact = self.exact[name]
        assert exact is not None
        return exact


def run(
    form: CallForm,
    function: Callable[..., Any],
    given: CallArguments,
    cotangents: Cotangents | None,
    backward: Any = None,
) -> Named:
    """Outputs as "output 0", gradients as "gradient of x"; gradients only where an output has one, or `backward` gives
    them. An output whose shape is not the cotangent's has none."""
    leaves = {name: given[name].detach().requires_grad_(backward is None) for name in form.wanted}
    with torch.enable_grad():
        outputs = tensors_of(form.call(function, {**given, **leaves}))
    named: Named = {f"output {i}": output.detach() for i, output in enumerate(outputs)}
    if cotangents is None or [y.shape for y in outputs] != [
        y.shape if c is None else c.shape for y, c in zip(outputs, cotangents, strict=True)
    ]:
        return named
    if backward is not None:
        floating = [cotangent for cotangent in cotangents if cotangent is not None]
        grads = form.call(backward, given, floating[0] if len(floating) == 1 else tuple(floating))
        return named | _by_name(form, grads)
    pairs = [(y, c) for y, c in zip(outputs, cotangents, strict=True) if y.requires_grad and c is not None]
    if not pairs:
        return named
    ys, cs = zip(*pairs, strict=True)
    grads = torch.autograd.grad(ys, list(leaves.values()), cs, allow_unused=True)
    return named | {gradient_of(name): grad for name, grad in zip(leaves, grads, strict=True)}


def gradient_of(name: str) -> str:
    return f"gradient of {name}"


def tensors_of(returned: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]


def _by_name(form: CallForm, grads: Any) -> Named:
    """What `backward` returns: one gradient, several in the order of the floating inputs, or a dict by their names."""
    if isinstance(grads, dict):
        return {gradient_of(name): grads.get(name) for name in form.wanted}
    several = tuple(grads) if isinstance(grads, (tuple, list)) else (grads,)
    if len(several) != len(form.wanted):
        raise ValueError(
            f"backward returned {len(several)} gradients; the inputs that need one are {', '.join(form.wanted)}"
        )
    return {gradient_of(name): grad for name, grad in zip(form.wanted, several, strict=True)}


def exactly(pair: KernelPair, given: CallArguments, cotangents: Cotangents | None) -> Named:
    """The reference in float64; its own casts are as wide."""
    wide = converted(given, torch.float64)
    double = None if cotangents is None else [None if c is None else c.double() for c in cotangents]
    with Recorder(EVERY_FLOAT), sdpa_kernel(SDPBackend.MATH):
        return run(pair.form, pair.reference, wide, double)


def truth(pair: KernelPair, given: CallArguments, cotangents: Cotangents, exact: Named) -> KernelTruth:
    """What is right is `exact`; σ is computed, from the user's terms, or measured."""
    formats = {value.dtype for value in given.values() if isinstance(value, Tensor) and value.is_floating_point()}
    coarsest = max(formats, key=lambda dtype: torch.finfo(dtype).eps)
    wide = torch.float64 if coarsest == torch.float64 else torch.float32
    result = KernelTruth(exact, {}, wide, None if coarsest == wide else coarsest)
    computed, plain = _computed(pair, given, cotangents, result) if pair.terms is None else ({}, None)
    if plain is None:
        plain = run(pair.form, pair.reference, converted(given, wide), _widened(cotangents, wide))
    from_terms = _from_terms(pair, given, cotangents, wide) if pair.terms is not None else {}
    for name, right in exact.items():
        own = plain.get(name)
        if right is None or not right.is_floating_point():
            continue
        if name in from_terms:
            result.sigma[name] = torch.finfo(wide).eps / 2 * from_terms[name].to(right)
        elif name in computed:
            result.sigma[name] = computed[name]
        else:
            result.sigma[name] = _measured(right, right if own is None else own, wide)
            result.unknown.setdefault(name, "no terms are given for it")
        if own is not None:
            result.overflows |= bool((right.isfinite() & ~own.isfinite()).any())
    return result


def _computed(
    pair: KernelPair, given: CallArguments, cotangents: Cotangents, result: KernelTruth, only: str | None = None
) -> tuple[dict[str, Tensor], Named | None]:
    """σ by name and the tensors themselves; of outputs alone where the backward has no rule."""
    wide, narrow = converted(given, result.wide), _widened(cotangents, result.wide)
    for backward in (True, False):
        with FusedBounds(result.narrow, only) as bounds, sdpa_kernel(SDPBackend.MATH):
            try:
                named, sigma = _run_bounded(bounds, pair, wide, narrow if backward else None)
            except NoRule as missing:
                reason = str(missing).removesuffix(" has no rule for its rounding error")
                result.unknown |= {name: f"{reason} has no rule" for name in result.exact}
                continue
            for name in sigma:
                result.unknown.pop(name, None)
            return sigma, named if backward else None
    return {}, None


def _run_bounded(
    bounds: FusedBounds, pair: KernelPair, given: CallArguments, cotangents: Cotangents | None
) -> tuple[Named, dict[str, Tensor]]:
    """The tensors and their σ; that of an output is from before it is stored."""
    sigma: dict[str, Tensor] = {}

    def reference(*args: Any, **kwargs: Any) -> list[Tensor]:
        outputs = tensors_of(pair.reference(*args, **kwargs))
        for i, output in enumerate(outputs):
            sigma[f"output {i}"] = bounds.of(output).clone()
            bounds.stored(output)
        return outputs

    named = run(pair.form, reference, given, cotangents)
    return named, {name: bounds.of(tensor) for name, tensor in named.items() if tensor is not None} | sigma


def made_of(
    pair: KernelPair,
    given: CallArguments,
    cotangents: Cotangents,
    result: KernelTruth,
    name: str,
    place: tuple[int, ...],
) -> list[tuple[str, float]]:
    """8 σ of one entry by source, largest first. The squares of the parts add up to the square of the whole."""
    if name in result.unknown or pair.terms is not None:
        return []
    with FusedBounds(result.narrow) as bounds, sdpa_kernel(SDPBackend.MATH):
        _run_bounded(bounds, pair, converted(given, result.wide), _widened(cotangents, result.wide))
    parts: dict[str, float] = {}
    for source, terms in bounds.sources.items():
        sigma, _ = _computed(pair, given, cotangents, result, only=source)
        if name in sigma:
            label = _label(source, terms, result.narrow)
            parts[label] = (parts.get(label, 0.0) ** 2 + (UNITS * float(sigma[name][place])) ** 2) ** 0.5
    whole = max(parts.values(), default=0.0)
    return sorted(((k, v) for k, v in parts.items() if v > 0.05 * whole), key=lambda part: -part[1])


def _label(source: str, terms: int, narrow: torch.dtype | None) -> str:
    if source in (OPERANDS, STORED):
        return f"{source} in {str(narrow).removeprefix('torch.')}"
    word = WORDS.get(source, source.strip("_"))
    return f"{word} of up to {terms} terms" if terms > 1 else word


def _from_terms(pair: KernelPair, given: CallArguments, cotangents: Cotangents, wide: torch.dtype) -> dict[str, Tensor]:
    """The user's sums of absolute terms. Their derivative along |dy| is that of a gradient."""
    assert pair.terms is not None
    sizes = [None if c is None else c.double().abs() for c in cotangents]
    try:
        with Recorder(EVERY_FLOAT):
            named = run(pair.form, pair.terms, converted(given, torch.float64), sizes)
    except ValueError as error:
        raise ValueError(f"terms must return one tensor for each output: {error}") from error
    return {name: tensor.abs() for name, tensor in named.items() if tensor is not None}


def _measured(right: Tensor, own: Tensor, wide: torch.dtype) -> Tensor:
    """σ from the reference's own error in the kernel's arithmetic: that of the row, a quarter of the tensor's, and four
    units of the entry."""
    square = (own.double() - right.double()).nan_to_num(0, 0, 0).square()
    rows = square.mean(-1, True) if right.dim() and right.numel() else square
    whole = square.mean() / 16 if right.numel() else 0.0
    unit = 4 * torch.finfo(wide).eps / 2 * right.double().nan_to_num(0, 0, 0)
    return (rows + whole + unit.square()).sqrt().expand(right.shape)


def converted(given: CallArguments, dtype: torch.dtype) -> CallArguments:
    """The floating tensors in another format."""
    return {name: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for name, v in given.items()}


def _widened(cotangents: Cotangents, dtype: torch.dtype) -> Cotangents:
    return [None if c is None else c.to(dtype) for c in cotangents]
