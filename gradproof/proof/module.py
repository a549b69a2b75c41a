"""`verify(module, inputs)`: is the backward pass of the user's own module right?

Autograd is the accused here, and torch's forward mode would stop at the same `detach`, so only differences of the
forward testify. The module is run in float64 where it can: as it is, or with its float32 casts promoted and grouped
products decomposed, or else in its own precision with bounds from its measured noise.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from gradproof.contract import Gradients, Outputs, Subject
from gradproof.heap import give_back
from gradproof.proof.conventions import INPUT, held_notes, immovable, judge_by_convention, refused_inputs
from gradproof.proof.differences import Judgement, judge
from gradproof.proof.probing import Probe
from gradproof.proof.recorder import AS_IT_IS, FLOAT32, Promotion, Recorder
from gradproof.proof.state import ModuleState, random_state_kept, wider
from gradproof.proof.verdict import Report, SubjectVerdict
from gradproof.streams import seeded

LARGE = 1 << 23  # numbers; above this, a run's freed memory is worth giving back before the next


IN_FLOAT64 = "judged in float64"  # what a verdict notes where nothing else need be said


class CannotRun(ValueError):
    """The module cannot be judged at all; the message says why in one sentence."""


def verify(
    module: nn.Module,
    inputs: Any,
    *,
    quick: bool = False,
    seed: int = 0,
    device: str | torch.device | None = None,
    name: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Judges the gradients of `module`'s parameters and of the floating tensors in `inputs` (a tuple of positional or a
    dict of keyword arguments). The module is left exactly as it was found.

    The projected loss is L = ⟨r, y⟩, y the first floating output with grad and r ~ N(0, 1)/√numel."""
    if not isinstance(module, nn.Module):
        raise CannotRun(f"verify judges a torch.nn.Module, not a {type(module).__name__}")
    device, seed = torch_device(device), seed % 2**63
    with random_state_kept(), torch.inference_mode(False), torch.enable_grad():
        state, name = ModuleState(module), name or type(module).__name__
        try:
            judged = judge_module(module, inputs, state, device, name, quick, seed, progress)
            return Report([judged], device=str(device or next((t.device for t in state.tensors), "cpu")))
        finally:
            state.restore()


def torch_device(device: str | torch.device | None) -> torch.device | None:
    try:
        parsed_device = torch.device(device) if device else None
    except RuntimeError as error:
        raise CannotRun(f"{device!r} is no device: {one_line(error)}") from None
    if parsed_device and parsed_device.type == "cuda" and not torch.cuda.is_available():
        raise CannotRun("torch sees no CUDA device here; judge on the CPU")
    return parsed_device


def judge_module(
    module: nn.Module,
    inputs: Any,
    state: ModuleState,
    device: torch.device | None,
    name: str,
    quick: bool,
    seed: int,
    progress: Callable[[int, int], None],
    promotion: Promotion = FLOAT32,
    held: frozenset[str] = frozenset(),
) -> SubjectVerdict:
    """`verify` on a module whose state is held by the caller."""
    runner, trial, recorder, notes, spent = first_run(module, inputs, state, device, seed, promotion, held)
    cotangent = draw_cotangent(trial, seed)
    base = Probe.of((trial,), (cotangent,), recorder)
    try:
        with Recorder(runner.promote) if runner.promote else nullcontext():
            (output,), grads = runner.run(runner.values, (cotangent,))
    except (Exception, SystemExit) as error:
        raise CannotRun(f"the module's backward raised {one_line(error)}") from error
    again = Probe.of((output,), (cotangent,), recorder)
    fixed, reasons = _fixed(module, runner)
    notes += reasons
    if runner.outputs > 1:
        notes.append(f"only the first of {runner.outputs} outputs with a gradient was judged")
    subject = Subject(name, runner.values, runner.run, frozenset(runner.inputs), fixed=fixed)
    if abs(again.loss - base.loss) > 1e-6 * base.terms:
        notes.append(
            "two forwards with the same seed and values differ, so differences mean nothing; draw random numbers from "
            "torch's default generator (it is seeded before each run), or switch the source off, e.g. with .eval()"
        )
        judged = {n: Judgement(n, "inconclusive", math.nan, math.nan, None, notes[-1]) for n in runner.values}
        return _verdict(name, "inconclusive", judged.values(), spent + 1, 0, seed, notes)
    verdict = judge(
        subject,
        (cotangent,),
        grads,
        seed=seed,
        quick=quick,
        promote=runner.promote,
        base=base,
        spent=spent + 1,
        progress=progress,
    )
    outside = immovable(verdict, runner.unasked)
    if outside and not held:
        return judge_module(module, inputs, state, device, name, quick, seed, progress, promotion, outside)
    verdict = judge_by_convention(verdict, subject, (cotangent,), quick=quick, promote=runner.promote)
    notes += verdict.notes
    return _verdict(name, verdict.status, verdict.judgements, verdict.forwards, verdict.directions, seed, notes)


def _verdict(name: str, status: Any, judged: Any, forwards: int, directions: int, seed: int, notes: list[str]):
    judged = list(judged)
    inputs = [dataclasses.replace(j, name=j.name.removeprefix(INPUT)) for j in judged if j.name.startswith(INPUT)]
    parameters = [j for j in judged if not j.name.startswith(INPUT)]
    return SubjectVerdict(name, status, parameters, inputs, forwards, directions, seed, notes)


def first_run(
    module: nn.Module,
    inputs: Any,
    state: ModuleState,
    device: torch.device | None,
    seed: int,
    promotion: Promotion = FLOAT32,
    held: frozenset[str] = frozenset(),
):
    """Finds the precision that the module runs in: (runner, its projected output, the recorder, notes, forwards).
    float64 as it is, float64 with the `promotion` of what is narrower inside, or the module's own."""
    failure: BaseException | None = None
    usual = torch.get_default_dtype()
    ways = [(torch.float64, AS_IT_IS), (torch.float64, promotion), (None, AS_IT_IS)]
    for spent, (dtype, promote) in enumerate(ways, 1):
        state.swap(dtype, device)
        torch.set_default_dtype(torch.float64 if promote else usual)
        runner = Runner(module, inputs, state, dtype, device, promote, seed, held)
        try:
            with Recorder(promote) as recorder:
                trial = runner.forward(runner.values)
        except CannotRun:
            raise
        except (Exception, SystemExit) as error:
            failure = error
            for refused in refused_inputs(error, runner.unasked) if not held else ():
                with suppress(CannotRun):
                    return first_run(module, inputs, state, device, seed, promotion, refused)
            continue
        rounds_to_float32 = recorder.coarsest >= torch.finfo(torch.float32).eps
        if dtype is torch.float64 and not promote and rounds_to_float32:
            continue
        notes = [_precision_note(dtype, promote, recorder.coarsest, failure), *held_notes(held)]
        return runner, trial, recorder, notes, spent
    raise CannotRun(f"the module's forward raised {one_line(failure)}") from failure


def _precision_note(
    dtype: torch.dtype | None, promote: Promotion, coarsest: float, failure: BaseException | None
) -> str:
    if dtype is None:
        return f"judged in its own precision, because in float64 it raised {one_line(failure)}"
    if coarsest >= torch.finfo(torch.float32).eps:
        return f"judged in float64, but the forward rounds to a format of epsilon {coarsest:.1e} inside"
    narrow = "float32 casts" if promote is FLOAT32 else "narrower casts"
    return f"judged in float64, with the {narrow} inside promoted" if promote else IN_FLOAT64


class Runner:
    """Runs the module at given values. Tensors that share memory are one value, named after all of them."""

    def __init__(
        self,
        module: nn.Module,
        inputs: Any,
        state: ModuleState,
        dtype: torch.dtype | None,
        device: torch.device | None,
        promote: Promotion,
        seed: int,
        held: frozenset[str] = frozenset(),
    ):
        self.module, self.state, self.promote, self.seed, self.held = module, state, promote, seed, held
        self.keyword = isinstance(inputs, Mapping)
        given = dict(inputs) if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
        leaves, self.structure = tree_flatten_with_path(given)
        self.leaves = [_copied(leaf, dtype, device) for _, leaf in leaves]
        names = _argument_names(module, self.keyword)
        self.inputs = {
            INPUT + _leaf_name(path, names): i
            for i, (path, _) in enumerate(leaves)
            if isinstance(self.leaves[i], Tensor) and _differentiable(self.leaves[i])
        }
        self.inputs = {name: i for name, i in self.inputs.items() if name not in held}
        self.unasked = frozenset(name for name, i in self.inputs.items() if not leaves[i][1].requires_grad)
        self.groups = _groups(module)
        self.values = {name: _extent([p.data for p in group]).clone() for name, group in self.groups.items()}
        self.values |= {name: _real(self.leaves[i]) for name, i in self.inputs.items()}
        self.large = sum(value.numel() for value in self.values.values()) > LARGE
        self.outputs = 0
        self._current = dict(self.values)
        self.chosen: int | None = None

    def run(self, values: Mapping[str, Tensor], cotangents: Outputs | None) -> tuple[Outputs, Gradients]:
        """The projected output and, given its cotangent, every gradient: `.backward()` on the module itself."""
        output = self.forward(values)
        if cotangents is None:
            return (output,), {}
        if output.requires_grad:
            output.backward(cotangents[0].to(output.dtype))
        grads: Gradients = {name: _gathered(group) for name, group in self.groups.items()}
        grads |= {name: _real(leaf.grad) for name, leaf in self._leaf_inputs.items()}
        for group in self.groups.values():
            for p in group:
                p.grad = None
        return (output,), grads

    def forward(self, values: Mapping[str, Tensor]) -> Tensor:
        """The first floating output with grad, at `values`, from the same state and seed every time."""
        with _disable_current_modes():  # the recorder watches the module, not its preparation
            given = self._prepare(values)
        output = self.module(**given) if self.keyword else self.module(*given)
        floating = [leaf for leaf in _output_tensors(output) if _differentiable(leaf)]
        if not floating:
            raise CannotRun("the module's output holds no floating tensor to project")
        if self.chosen is None:
            self.chosen = next((i for i, leaf in enumerate(floating) if leaf.requires_grad), 0)
            self.outputs = sum(leaf.requires_grad for leaf in floating)
        return _real(floating[self.chosen])

    def _prepare(self, values: Mapping[str, Tensor]) -> Any:
        """Puts the values in place and returns the arguments. Inputs are clones of leaves, so that the module may
        write into them."""
        if self.large:
            give_back()
        self.state.reset(self.seed)
        for name, group in self.groups.items():
            if values[name] is not self._current[name]:
                _extent([p.data for p in group]).copy_(values[name])
                self._current[name] = values[name]
        leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        self._leaf_inputs = {}
        for name, i in self.inputs.items():
            value = values[name].detach().clone()
            value = torch.view_as_complex(value) if leaves[i].dtype.is_complex else value
            self._leaf_inputs[name] = value.requires_grad_()
            leaves[i] = value.clone()
        return tree_unflatten(leaves, self.structure)


def _copied(leaf: Any, dtype: torch.dtype | None, device: torch.device | None) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    copied = leaf.detach().to(device=device or leaf.device, dtype=wider(leaf.dtype, dtype), copy=True)
    return copied.contiguous() if leaf.layout == torch.strided and not leaf.is_nested else copied


def _differentiable(tensor: Tensor) -> bool:
    dense = tensor.layout == torch.strided and not tensor.is_nested
    return dense and (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _real(tensor: Tensor | None) -> Any:
    """A complex tensor as its real and imaginary parts, which torch's gradients are with respect to."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor is not None and tensor.dtype.is_complex else tensor


def _argument_names(module: nn.Module, keyword: bool) -> list[str]:
    if keyword:
        return []
    try:
        kinds = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _leaf_name(path: Any, names: list[str]) -> str:
    """`x`, or `x[0]` inside a structure; by number where the signature has no name."""
    first, *rest = path
    key = getattr(first, "idx", getattr(first, "key", None))
    name = names[key] if isinstance(key, int) and key < len(names) else str(key)
    return name + keystr(tuple(rest))


def _groups(module: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Trainable parameters by name; those that overlap in memory together."""
    groups: list[tuple[list[str], list[nn.Parameter], int, int]] = []
    for name, p in module.named_parameters():
        if not p.requires_grad or not _differentiable(p):
            continue
        last = sum((size - 1) * stride for size, stride in zip(p.shape, p.stride(), strict=True))
        start = p.data_ptr()
        end = start + (last + 1) * p.element_size() if p.numel() else start
        merged = ([name], [p], start, end)
        for group in [g for g in groups if start < g[3] and g[2] < end and g[1][0].dtype == p.dtype]:
            groups.remove(group)
            low, high = min(group[2], merged[2]), max(group[3], merged[3])
            merged = ([*group[0], *merged[0]], [*group[1], *merged[1]], low, high)
        groups.append(merged)
    return {" = ".join(names): parameters for names, parameters, _, _ in groups}


def _fixed(module: nn.Module, runner: Runner) -> tuple[dict[str, Tensor], list[str]]:
    """Entries that are not judged, and why: padding rows of embeddings, which torch leaves out of the gradient on
    purpose; what is not finite; and, in inputs, sentinels such as the −1e9 of an additive mask."""
    fixed, reasons = {}, []
    for name, value in runner.values.items():
        mask = ~value.isfinite()
        if name in runner.inputs and value.numel():
            size = value[~mask].abs()
            usual = float(size.median()) if size.numel() else 0.0
            mask = mask | (value.abs() > 1e6 * max(usual, 1.0))
        if bool(mask.any()):
            fixed[name] = mask
            reasons.append(f"entries of {name.removeprefix(INPUT)} that are infinite or sentinels are not judged")
    for m in module.modules():
        if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.padding_idx is not None:
            for name, group in runner.groups.items():
                if len(group) == 1 and group[0] is m.weight:
                    fixed[name] = fixed.get(name, torch.zeros_like(m.weight, dtype=torch.bool)).clone()
                    fixed[name][m.padding_idx] = True
                    reasons.append(f"the padding row of {name} has no gradient by definition and is not judged")
    return fixed, reasons


def _extent(tensors: list[Tensor]) -> Tensor:
    """A single tensor as it is; several that overlap as the stretch of memory that they cover."""
    if len(tensors) == 1:
        return _real(tensors[0])
    first = min(t.storage_offset() for t in tensors)
    ends = [t.storage_offset() + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) for t in tensors]
    return _real(tensors[0].as_strided((max(ends) - first + 1,), (1,), first))


def _gathered(group: list[nn.Parameter]) -> Tensor | None:
    """The gradient of a value: the parameter's own, or those of all that share the memory, added up in place."""
    grads = [None if p.grad is None else p.grad.to_dense().detach() for p in group]
    if len(group) == 1:
        return _real(grads[0])
    if all(grad is None for grad in grads):
        return None
    extent = _extent([p.data for p in group])
    total = torch.zeros(extent.shape[0], dtype=group[0].dtype, device=group[0].device)
    first = min(p.storage_offset() for p in group)
    for p, grad in zip(group, grads, strict=True):
        if grad is not None:
            total.as_strided(p.shape, p.stride(), p.storage_offset() - first).add_(grad)
    return _real(total)


def _output_tensors(output: Any) -> Iterator[Tensor]:
    """The tensors of an output in order: tensor, tuple, dict, dataclass, Hugging Face output."""
    if isinstance(output, Tensor):
        yield output if output.layout in (torch.strided, torch.jagged) else output.to_dense()
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _output_tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _output_tensors(value)
    elif dataclasses.is_dataclass(output):
        for item in dataclasses.fields(output):
            yield from _output_tensors(getattr(output, item.name))


def draw_cotangent(output: Tensor, seed: int) -> Tensor:
    drawn = torch.randn(output.shape, generator=seeded(seed, "cotangent"), dtype=torch.float64)
    return drawn.to(output.device) / math.sqrt(max(output.numel(), 1))


def one_line(error: BaseException | None) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
