"""How kernels of a GPU are judged: by errors that were observed, where `proof/admission.py` computes what they may be.

The witness is the op itself, in float64, on the same rounded arguments. A kernel may be as wrong as the op is when it
runs in the kernel's dtype, times a small factor, in every row of every output and gradient: a whole tensor's norm would
hide one unwritten row. Where an op knows that its terms cancel, a row is as large as its terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from gradproof.contract import Evidence, Example, Outputs
from gradproof.proof.claims import Poison, differing
from gradproof.proof.operation import argument_names, moved, wanted
from gradproof.proof.verdict import versions
from gradproof.streams import seeded

FACTOR = 4.0  # of the op's own error in the same dtype
UNITS = 8.0  # of the dtype, relative to the row
FAINT = 1e-3  # rows below this part of the largest are judged as if they were that large


class Observed(NamedTuple):
    """What one run gave."""

    outputs: Outputs
    grads: dict[str, Tensor]


def admit(
    op: ModuleType,
    variant: ModuleType,
    tried: Iterable[Example],
    *,
    dtype: torch.dtype,
    device: str,
    kernel: str,
    workspace: object = None,
) -> Iterator[Evidence]:
    """All evidence for `variant` as a way to run `op`; it is admitted if nothing is refuted. No workspace is tried."""
    del workspace
    for example in tried:
        for claim, value, measured, bound in _checks(op, variant, example, dtype, device):
            yield Evidence(
                claim,
                op.__name__.rpartition(".")[2],
                "proven" if measured <= bound else "refuted",  # NaN refutes
                measured,
                bound,
                value=value,
                example=example.label,
                kernel=kernel,
                device=device,
                dtype=str(dtype).removeprefix("torch."),
                shape=tuple(tuple(leaf.shape) for leaf in tree_leaves(example.arguments) if isinstance(leaf, Tensor)),
                versions=versions(),
            )


ObservedCheck = tuple[str, str | None, float, float]


def _checks(
    op: ModuleType, variant: ModuleType, example: Example, dtype: torch.dtype, device: str
) -> Iterator[ObservedCheck]:
    given = _given(op, example, dtype, device)
    exact_given = tree_map(_double, given)
    cotangents = _cotangents(op, example, given)
    exact = _run(op, op, exact_given, tree_map(_double, cotangents))
    terms = op.CONTRACT.terms(exact_given, tree_map(_double, cotangents)) if op.CONTRACT.terms else {}
    own = [_run(op, op, moved_by, cotangents) for moved_by in _perturbed(given, example.smooth, dtype)]
    before = [leaf.clone() for leaf in tree_leaves((given, cotangents)) if isinstance(leaf, Tensor)]
    fast = _run(op, variant, given, cotangents)
    after = [leaf for leaf in tree_leaves((given, cotangents)) if isinstance(leaf, Tensor)]
    changed = sum(int((~torch.isclose(a, b, 0, 0, equal_nan=True)).sum()) for a, b in zip(before, after, strict=True))
    yield "no_alias", None, float(changed), 0.0
    yield from _errors("matches_reference", op, example, fast, own, exact, dtype, terms)
    yield "deterministic", None, differing(fast, _run(op, variant, given, cotangents)), 0.0
    with Poison():
        yield "writes_all", None, differing(fast, _run(op, variant, given, cotangents)), 0.0
    for claim in op.CONTRACT.claims:
        if claim.check is not None and claim.dtype == "float64":
            measured, bound = claim.check(_placed(example, given), fast.outputs, dict(fast.grads))
            yield claim.name, None, measured, bound
    if op.CONTRACT.same is not None:
        placed = _placed(example, given)
        right, same = op.CONTRACT.same(op, placed), op.CONTRACT.same(variant, placed)
        yield "same_integers", None, differing(right, same), 0.0
    if op.CONTRACT.grads and {"out_EP", "out_P"} & set(argument_names(op.backward)):
        yield from _into_out(op, variant, example, given, cotangents, (fast, own, exact), dtype)


def _into_out(
    op: ModuleType,
    variant: ModuleType,
    example: Example,
    given: Mapping[str, Any],
    cotangents: Outputs,
    runs: tuple[Observed, list[Observed], Observed],
    dtype: torch.dtype,
) -> Iterator[ObservedCheck]:
    """Gradients that are written over, or added to, what is there; and without the input's."""
    _, own, exact = runs
    poisoned = torch.full_like(given["theta"], torch.nan)
    written = _run(op, variant, {**given, "out": poisoned, "want_dx": False}, cotangents)
    yield "writes_all", "x", float("x" in written.grads), 0.0
    alone = [Observed((), {"theta": run.grads["theta"]}) for run in (written, exact, *own)]
    yield from _errors("writes_all", op, example, alone[0], alone[2:], alone[1], dtype)
    generator = seeded("admission", example.label, "out")
    there = torch.randn(poisoned.shape, generator=generator).to(poisoned)
    added = _run(op, variant, {**given, "out": there.clone(), "accumulate": True}, cotangents)
    sums = (
        Observed((), {"theta": added.grads["theta"]}),
        [Observed((), {"theta": run.grads["theta"] + there}) for run in own],
        Observed((), {"theta": exact.grads["theta"] + there.double()}),
    )
    yield from _errors("accumulates", op, example, *sums, dtype)


def _errors(
    claim: str,
    op: ModuleType,
    example: Example,
    fast: Observed,
    own: list[Observed],
    exact: Observed,
    dtype: torch.dtype,
    terms: Mapping[str, Tensor] | None = None,
) -> Iterator[ObservedCheck]:
    unit = torch.finfo(dtype).eps / 2
    runs = (fast, exact, *own)
    named = {f"output {i}": tensors for i, tensors in enumerate(zip(*(run.outputs for run in runs), strict=True))}
    named |= {name: tuple(run.grads[name] for run in runs) for name in exact.grads}
    for name, tensors in named.items():
        for label, of_found, of_exact, *of_own in _parts(op, example, name, *tensors):
            size = (terms or {}).get(name)
            allowed = FACTOR * max(row_error(tensor, of_exact, size) for tensor in of_own) + UNITS * unit
            yield claim, label, row_error(of_found, of_exact, size), allowed


def row_error(inexact: Tensor, exact: Tensor, terms: Tensor | None = None) -> float:
    """The largest relative error of a row; infinite for another shape or what is not finite."""
    if inexact.shape != exact.shape:
        return math.inf
    if not exact.numel():
        return 0.0
    width = exact.shape[-1] if exact.dim() else 1
    error_R = (inexact.double() - exact).reshape(-1, width).norm(dim=1)
    size_R = (exact if terms is None else terms).double().reshape(-1, width).norm(dim=1)
    size_R = size_R.clamp(min=FAINT * float(size_R.max()))
    worst = float(torch.where(error_R == 0, error_R, error_R / size_R).max())
    return worst if math.isfinite(worst) else math.inf


def _parts(op: ModuleType, example: Example, name: str, *tensors: Tensor) -> Iterator[tuple[str, *tuple[Tensor, ...]]]:
    """A tensor that holds many parameters is judged parameter by parameter."""
    split: Callable[[Tensor, Mapping[str, Any]], dict[str, Tensor]] | None = op.CONTRACT.parts.get(name)
    if split is None:
        yield name, *tensors
        return
    named = [split(tensor, example.options) for tensor in tensors]
    for part in named[0]:
        yield f"{name}: {part}", *(parts[part] for parts in named)


def _given(op: ModuleType, example: Example, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Arguments and options in float32 on the device, and in the narrow format where the op says so."""
    to = {"dtype": torch.float32, "device": device}
    given = tree_map(lambda leaf: moved(leaf, **to), {**example.arguments, **example.options})
    return op.narrowed(given, dtype) if dtype != torch.float32 else given


def _perturbed(given: dict[str, Any], smooth: bool, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """The arguments, and twice with each number moved by up to half a unit, unless that breaks a tie: the error of one
    run alone may be small by luck."""
    yield given
    for i in range(2 if smooth else 0):

        def nudged(leaf: Any, seed: int = i) -> Any:
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                return leaf
            generator = torch.Generator(leaf.device).manual_seed(seed)  # drawn where the tensor is: it may be large
            noise = 2 * torch.rand(leaf.shape, generator=generator, device=leaf.device) - 1
            return (leaf.double() * (1 + noise * torch.finfo(dtype).eps / 2)).to(leaf.dtype)

        yield tree_map(nudged, given)


def _placed(example: Example, given: Mapping[str, Any]) -> Example:
    arguments = {name: given[name] for name in example.arguments}
    return Example(example.label, arguments, {name: given[name] for name in example.options}, example.smooth)


def _cotangents(op: ModuleType, example: Example, given: Mapping[str, Any]) -> Outputs:
    """Random, each in the format of its output: that is what a backward gets."""
    generator = seeded("admission", op.__name__, example.label)
    y, _ = op.forward(**wanted(op.forward, given))
    outputs = tuple(y) if isinstance(y, tuple) else (y,)
    drawn = [torch.randn(output.shape, generator=generator).to(output.device) for output in outputs]
    return tuple(d.to(y.dtype) if y.is_floating_point() else d for d, y in zip(drawn, outputs, strict=True))


def _run(op: ModuleType, module: ModuleType, given: Mapping[str, Any], cotangents: Outputs) -> Observed:
    """Forward and backward of `module`, called as `op` is."""
    y, saved = module.forward(**wanted(module.forward, given))
    outputs = tuple(y) if isinstance(y, tuple) else (y,)
    if not op.CONTRACT.grads:
        return Observed(outputs, {})
    # The output is the caller's: a backward may not rely on it, nor a forward on its own earlier ones.
    outputs = tuple(output.clone() for output in outputs)
    dy = type(y)(*cotangents) if isinstance(y, tuple) else cotangents[0]
    grads = module.backward(dy, saved, **wanted(module.backward, given))
    named = zip(op.CONTRACT.grads, grads if isinstance(grads, tuple) else (grads,), strict=True)
    return Observed(outputs, {name: grad for name, grad in named if grad is not None})


def _double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
