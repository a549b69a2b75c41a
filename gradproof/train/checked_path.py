"""CheckedPath: the kernels of one path, each checked on its first call.

A training run rehearses its step beforehand (`train/rehearsal.py`); modules of `nn`, predictions and the gate are
called with rows that nobody knows beforehand, so the first call itself is the rehearsal. Every kernel of it is compared
with its op on the inputs that it got (`proof/row_trial.py`; the experts' backward layer by layer, `proof/chain.py`).
What is returned is what the kernel returned. Where that is refused, the op's own result takes its place, in this call
and in all later ones of the path, and a warning says so.

A path is that of every kernel, and the power of two of its rows. What was checked is kept under the machine's
fingerprint, forward and backward each by itself. Nothing is checked while a stream is captured or under a dispatch
mode; a call that is not checked, or whose numbers are none, leaves it to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from inspect import signature
from types import ModuleType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from gradproof import ops
from gradproof.kernels import admissions, cache
from gradproof.kernels.paths import path_of
from gradproof.kernels.settled import settled
from gradproof.kernels.shapes import Shape
from gradproof.kernels.variants import REFERENCE, Kernels, all_variants
from gradproof.proof.chain import Largest, watched
from gradproof.proof.operation import wanted
from gradproof.proof.row_trial import RowTrial, alike
from gradproof.proof.sizes import one_sign
from gradproof.train.rehearsal import CODE, HOW, Refusal, named_arguments

KIND = "first_calls"
ENDING = ("cross_entropy", "adamw", "update", "lesson")  # ops of a step, which no forward has
MOST_SKIPS = 8  # calls that cannot be judged, after which no other is tried
LARGEST = 1e9  # inputs beyond which sums of squares may overflow in one order and not in another

K = TypeVar("K")
T = TypeVar("T")


@dataclass
class CheckedCalls:
    """What is known of a path."""

    forward: bool = False
    backward: bool = False
    refused: list[Refusal] = field(default_factory=list)
    skips: int = 0  # calls that could not be judged


_known: dict[str, CheckedCalls] = {}


class CheckedPath(Generic[K]):
    """`path.forward(lambda kernels: …)` makes a call with the kernels; `kernels` is a dataclass with a module for each
    op and `chosen`, their names. Without `facts`, what the path is, nothing is checked."""

    def __init__(self, kernels: K, device: str = "cpu", facts: Mapping[str, Any] | None = None):
        self._all, self._kernels, self._without, self.device = kernels, kernels, 0, device
        chosen: Mapping[str, str] = getattr(kernels, "chosen", {})
        self.fast = {op: kernel for op, kernel in chosen.items() if kernel != "reference" and op not in ENDING}
        self._key, self.calls = "", CheckedCalls(True, True)
        if facts is not None and self.fast:
            self._key = cache.key_text({"kernels": self.fast, **facts, **cache.fingerprint(device, CODE)})
            self.calls = _remembered(self._key)

    @property
    def kernels(self) -> K:
        """Those to run by: without the refused ones."""
        if self._without != len(self.calls.refused):
            self._without = len(self.calls.refused)
            self._kernels = _without(self._all, self.calls.refused)
        return self._kernels

    def forward(self, call: Callable[[K], T]) -> T:
        """The call; the first one is checked."""
        return call(self.kernels) if self.calls.forward else self._checked("forward", call)

    def backward(self, call: Callable[[K], T]) -> T:
        """The same."""
        return call(self.kernels) if self.calls.backward else self._checked("backward", call)

    def _checked(self, way: str, call: Callable[[K], T]) -> T:
        if _get_current_dispatch_mode_stack() or (self.device == "cuda" and torch.cuda.is_current_stream_capturing()):
            return call(self.kernels)
        kernels: Any = self.kernels
        dropped, look = {refusal.op for refusal in self.calls.refused}, Look(self.device)
        kind = CheckedForward if way == "forward" else CheckedBackward
        checked: dict[str, Any] = {
            op: kind(op, getattr(kernels, op), kernel, look)
            for op, kernel in self.fast.items()
            if op not in dropped and getattr(kernels, op) is not None
        }
        returned = call(replace(kernels, **checked))
        for refusal in look.refused:
            cache.LOG.warning("%s", refusal)
        self.calls.refused += look.refused
        self.calls.skips += look.skipped
        if look.refused or not look.skipped:
            setattr(self.calls, way, not look.skipped)
            ways = {"forward": self.calls.forward, "backward": self.calls.backward}
            cache.keep(KIND, self._key, {**ways, "refused": [refusal._asdict() for refusal in self.calls.refused]})
        elif self.calls.skips >= MOST_SKIPS:  # for this process; another one tries again
            setattr(self.calls, way, True)
        return returned


UNCHECKED = CheckedPath(REFERENCE)  # there is nothing to check


def checked_path(shape: Shape, fused: bool = True) -> CheckedPath[Kernels]:
    """The kernels that are admitted for a shape."""
    kernels = admissions.choose(shape, fused=fused)
    chosen = {(op, kernel) for op, kernel in kernels.chosen.items() if op not in ENDING}
    paths = [asdict(path_of(v, shape)) for v in all_variants() if (v.op, v.kernel) in chosen]
    return CheckedPath(kernels, shape.device, {"paths": paths, "size": shape.rows.bit_length()} if paths else None)


def forget() -> None:
    """What this process knows; the cache keeps it."""
    _known.clear()


def _remembered(key: str) -> CheckedCalls:
    """Of this process, or of an earlier one."""
    if key not in _known:
        record: Any = cache.load(KIND, key) or {}
        try:
            refused = [Refusal(**refusal) for refusal in record.get("refused", [])]
            _known[key] = CheckedCalls(bool(record.get("forward")), bool(record.get("backward")), refused)
        except TypeError:
            _known[key] = CheckedCalls()
        for refusal in _known[key].refused:
            cache.LOG.warning("%s", refusal)
    return _known[key]


def _without(kernels: Any, refused: list[Refusal]) -> Any:
    """The ops themselves where a kernel was refused."""
    dropped = {refusal.op: ops.load(refusal.op) for refusal in refused}
    return replace(kernels, **dropped, chosen={**kernels.chosen, **dict.fromkeys(dropped, "reference")})


class Look:
    """At one call: what was refused, and whether something could not be judged."""

    def __init__(self, device: str):
        self.device, self.refused, self.skipped = device, list[Refusal](), False

    def passes(self, op: str, kernel: str, judge: Callable[[], dict[str, float]]) -> bool:
        """Whether a call is right, or cannot be judged for want of memory."""
        try:
            with settled(self.device):
                measured = judge()
        except torch.OutOfMemoryError:
            cache.LOG.info("%s of %s is not checked: too little memory is free", kernel, op)
            self.skipped = True
            return True
        wrong = [(name, ratio) for name, ratio in measured.items() if not ratio <= 1.0]
        self.refused += [Refusal(op, kernel, name, ratio) for name, ratio in wrong[:1]]
        return not wrong


class CheckedKernel:
    """A kernel that is held against its op in one way, and is itself in every other."""

    def __init__(self, op: str, module: ModuleType, kernel: str, look: Look):
        self.op, self.module, self.kernel, self.look, self.reference = op, module, kernel, look, ops.load(op)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def _held(self, returned: Any, given: Mapping[str, Any]) -> Any:
        """What the kernel returned, or the op's own where that is refused."""
        trial: list[RowTrial] = []

        def judge() -> dict[str, float]:
            trial.append(RowTrial(self.reference, given))
            return trial[0].off(returned)

        return returned if self.look.passes(self.op, self.kernel, judge) else trial[0].returned


class CheckedForward(CheckedKernel):
    """Its forward is."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        returned, given = self.module.forward(*args, **kwargs), named_arguments(self.module.forward, args, kwargs)
        return self._held(returned, {name: value for name, value in given.items() if name not in HOW})

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """Of dispatch: integers, which must be the reference's."""
        fast, right = self.module.plan(*args, **kwargs), self.reference.plan(*args, **kwargs)
        same = all(torch.equal(a, b) for a, b in zip(fast, right, strict=True))
        return (
            fast if self.look.passes(self.op, self.kernel, lambda: {"plan": 0.0 if same else float("inf")}) else right
        )


class CheckedBackward(CheckedKernel):
    """Its backward is; that of the experts layer by layer, as it shows them."""

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        given = named_arguments(self.module.backward, args, kwargs)
        inputs = {name: value for name, value in given.items() if name not in (*HOW, "saved")}
        if given.get("accumulate") or not all(map(_is_ordinary, tree_leaves(inputs))):
            self.look.skipped = True
            return self.module.backward(*args, **kwargs)
        return self._chain(*args, **kwargs) if self.op == "experts" else self._rows(*args, **kwargs)

    def _rows(self, dy: Any, saved: Any, *args: Any, **kwargs: Any) -> Any:
        returned = self.module.backward(dy, saved, *args, **kwargs)
        _, _, *more = named_arguments(self.module.backward, (dy, saved, *args), kwargs).items()
        given = {"dy": dy, "saved": saved, **{name: value for name, value in more if name not in HOW}}
        return self._held(returned, given)

    def _chain(self, *args: Any, **kwargs: Any) -> Any:
        call = signature(self.module.backward).bind(*args, **kwargs).arguments
        given = named_arguments(self.module.backward, args, kwargs)
        forward = {name: value for name, value in wanted(self.module.forward, given).items() if name != "workspace"}
        y_NO, _ = self.module.forward(**forward)
        returned: list[Any] = []

        def judge() -> dict[str, float]:
            largest = RealRows(given["x"])
            returned.append(watched(self.module, call, given, y_NO, largest))
            measured = largest.read()
            if all(ratio <= 1.0 for ratio in measured.values()):
                return measured
            # Of many rows the chain judges by a sample, which others may be unlike: then by all of them.
            inputs = {name: value for name, value in given.items() if name not in HOW}
            return RowTrial(self.reference, inputs).off(returned[0])

        if not _is_ordinary(y_NO):
            self.look.skipped = True
            return self.module.backward(*args, **kwargs)
        if self.look.passes(self.op, self.kernel, judge) and returned:
            return returned[0]
        _, saved = self.reference.forward(**wanted(self.reference.forward, given))
        return self.reference.backward(**{**wanted(self.reference.backward, given), "saved": saved})


class RealRows(Largest):
    """How far off the parts of a chain are on rows that somebody uses: with what sums over such rows may cost."""

    def __init__(self, x_NI: Tensor):
        super().__init__()
        self.share, self.together = one_sign(len(x_NI)), alike(x_NI)

    def __call__(self, name: str, e: int, rows: slice, fast: Tensor, right: Tensor, allowed: Tensor) -> None:
        if right.numel() and name.startswith("theta"):
            allowed = allowed * self.together
            if right.dim() == 1 or "signs" in name:
                allowed += self.share * (right.abs() + right.square().mean().sqrt())
        super().__call__(name, e, rows, fast, right, allowed)


def _is_ordinary(value: Any) -> bool:
    """A number of the usual size: sums of squares overflow for others, in one order or the other."""
    return (
        not isinstance(value, Tensor)
        or not value.is_floating_point()
        or not value.numel()
        or bool(value.detach().abs().max() <= LARGEST)
    )
