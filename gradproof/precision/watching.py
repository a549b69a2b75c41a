"""A dispatch mode that records a run, and can replay the random draws and decisions of another run.

It records each top-k, sort and argmax with its scores, every random draw, a sample of each op's result by place, and
the calls that leave torch, which it cannot follow.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from gradproof.precision.decisions import CHOOSERS, Decision, decision

aten = torch.ops.aten


def _packets(names: str) -> frozenset[Any]:
    return frozenset(getattr(aten, name) for name in names.split())


DRAWS = _packets(
    "bernoulli bernoulli_ rand rand_like randn randn_like randint randint_like randperm normal normal_ uniform_ "
    "exponential_ cauchy_ geometric_ log_normal_ random_ multinomial poisson"
)
# These compute nothing: their results are values of their arguments.
EXACT = _packets(
    "detach alias clone _unsafe_view _reshape_alias lift_fresh lift_fresh_copy empty empty_like empty_strided "
    "new_empty new_empty_strided zeros zeros_like new_zeros zero_ ones ones_like index_select gather cat stack index "
    "embedding resize_ set_ select_backward slice_backward repeat flip roll permute_copy"
)
LEAVES_TORCH = ("numpy", "__array__", "data_ptr", "__dlpack__")
BACKWARD = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)
SAMPLE = 256  # values kept per result


class Place(NamedTuple):
    """Where an op ran: module path, forward or backward, op, and the number of the call there."""

    path: str
    phase: str
    op: str
    call: int


class WatchedComparison(NamedTuple):
    """The result of comparing or casting a floating-point number: a truth value or an integer."""

    path: str
    op: str
    result: Tensor


class Unrepeatable(RuntimeError):
    """The run decided or drew differently from the run that it should replay."""


class Watching(TorchDispatchMode):
    """Records what runs inside. `like` is a finished run: its random draws are replayed and, with `routing`, so are its
    decisions. The decisions that the scores here would give are still recorded. `compares` records comparisons;
    `compared` replays their results. `within` are contexts to enter together with the mode.
    """

    def __init__(
        self,
        *,
        like: Watching | None = None,
        routing: bool = False,
        places: Places | None = None,
        trace: bool = False,
        compares: bool = False,
        compared: Sequence[WatchedComparison] | None = None,
        within: Sequence[AbstractContextManager[Any]] = (),
    ):
        super().__init__()
        self.like, self.routing, self.places, self.trace, self.within = like, routing, places, trace, within
        self.compares, self.compared = compares, compared
        self.choices: list[Decision | None] = []
        self.comparisons: list[WatchedComparison] = []
        self.branches: list[bool] = []  # truth values read by Python
        self.draws: list[Tensor] = []
        self.samples: dict[Place, Tensor] = {}
        self.left: set[str] = set()  # calls that cannot be followed
        self._calls: Counter[Any] = Counter()
        self._sorts: dict[int, tuple[Decision, Any]] = {}  # by address, valid while the sort's results are alive
        self._here = ("", "")
        self._stack = ExitStack()

    @property
    def decisions(self) -> list[Decision]:
        return [d for d in self.choices if d is not None and d.index_RK is not None]

    def __enter__(self):
        with ExitStack() as stack:
            for context in (*filter(None, [self.places]), Leaving(self.left), *self.within):
                stack.enter_context(context)
            self._stack = stack.pop_all()
        return super().__enter__()

    def __exit__(self, *failure):
        super().__exit__(*failure)
        self._stack.close()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(t not in (Tensor, nn.Parameter) for t in types):
            return NotImplemented  # a wrapper subclass: its inner ops come here again
        with torch._C.DisableTorchFunction():  # the modes in `within` are for the recorded code, not for this one
            return self._dispatched(func, args, kwargs or {})

    def _dispatched(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        packet = getattr(func, "overloadpacket", None)
        if packet is None or func.namespace not in ("aten", "prims", "prim", "profiler"):
            self.left.add(str(func))
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled() and func._can_decompose():
            _push_mode(self)  # in inference mode composite ops arrive undecomposed
            try:
                return func.decompose(*args, **kwargs)
            finally:
                _pop_mode()
        self._here = self.places.current() if self.places else ("", "")
        if packet is aten.native_dropout:
            return self._dropout(func, args, kwargs)
        if packet in DRAWS:
            return self._draw(func, args, kwargs)
        if packet is aten.rrelu_with_noise:
            return self._rrelu(func, args, kwargs)
        if packet in CHOOSERS:
            return self._choose(func, args, kwargs)
        if packet in (aten.slice, aten.select):
            self._take(packet, args)
        if _moves(func):
            return func(*args, **kwargs)
        if packet in EXACT:
            return self.copy_values(func, args, kwargs)
        if packet is aten._local_scalar_dense:
            return self._read(func, args)
        out = self.compute(func, args, kwargs)
        if self.trace:
            self._sample(packet, out)
        return self._compare(packet, out) if self.compares and _compares(args, out) else out

    def compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs the op."""
        return func(*args, **kwargs)

    def copy_values(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs an op whose results are values of its arguments."""
        return func(*args, **kwargs)

    def where(self) -> tuple[str, str]:
        """The path of the running module, and the phase."""
        return self._here

    def _draw(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        out = func(*args, **kwargs)
        again = self._again(out)
        self.draws.append(out.detach().clone() if again is None else again)
        return self.compute(aten.copy_.default, (out, self.draws[-1]), {})

    def _rrelu(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        """rrelu_with_noise(x, noise, lower, upper, train) → x·noise, which stores the drawn slopes in `noise`."""
        x, noise = args[:2]
        if not args[4]:
            return self.compute(func, args, kwargs)
        wide = torch.promote_types(x.dtype, torch.float32)  # some dtypes have no kernel
        drawn = torch.empty_like(noise, dtype=wide)
        func(x.to(wide), drawn, *args[2:], **kwargs)
        again = self._again(drawn)
        self.draws.append(drawn if again is None else again)
        return self.compute(aten.mul.Tensor, (x, self.compute(aten.copy_.default, (noise, self.draws[-1]), {})), {})

    def _dropout(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """native_dropout(x, p, train) → (x·mask/(1 − p), mask)."""
        x, p, train = args
        _, mask = func(x, p, train)
        again = self._again(mask)
        mask = mask if again is None else again
        self.draws.append(mask)
        scale = 1.0 if not train else 0.0 if p == 1 else 1.0 / (1.0 - p)
        kept = self.compute(aten.mul.Tensor, (x, mask.to(x.dtype)), {})
        return self.compute(aten.mul.Scalar, (kept, scale), {}), mask

    def _again(self, out: Tensor) -> Tensor | None:
        """The draw of the run that this one replays."""
        if self.like is None:
            return None
        if len(self.draws) >= len(self.like.draws) or self.like.draws[len(self.draws)].shape != out.shape:
            raise Unrepeatable("it draws different random numbers than in float64")
        return self.like.draws[len(self.draws)].to(out.device)

    def _choose(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        out = self.compute(func, args, kwargs)
        choice = decision(func, args, kwargs, out, self.where()[0])
        self.choices.append(choice)
        if choice is None:
            return out
        if self.routing and self.like is not None:
            out = self._as_before(choice, args[0], out)
        if choice.index_RK is None:
            self._sorts |= {tensor.untyped_storage()._cdata: (choice, out) for tensor in out}
        return out

    def _as_before(self, choice: Decision, x: Tensor, out: Any) -> Any:
        """The op's result with the decision of the run that this one replays."""
        assert self.like is not None
        number = len(self.choices) - 1
        before = self.like.choices[number] if number < len(self.like.choices) else None
        if before is None or before.shape != choice.shape or before.op != choice.op:
            raise Unrepeatable("it makes different decisions than in float64, so they cannot be replayed")
        index = before.indices().to(x.device)
        if isinstance(out, Tensor):
            return index.reshape(out.shape)
        values = self.compute(aten.gather.default, (x, choice.axis, index), {})
        return type(out)((values.reshape(out[0].shape), index.reshape(out[1].shape)))

    def _read(self, func: Any, args: Any) -> Any:
        """A number that Python reads. A truth value counts as a decision."""
        value = func(*args)
        if args[0].dtype != torch.bool:
            return value
        self.branches.append(value)
        if self.routing and self.like is not None:
            number = len(self.branches) - 1
            if number >= len(self.like.branches):
                raise Unrepeatable("it branches more often than in float64")
            return self.like.branches[number]
        return value

    def _compare(self, packet: Any, out: Tensor) -> Tensor:
        number = len(self.comparisons)
        self.comparisons.append(WatchedComparison(self.where()[0], packet.__name__, out))
        if self.compared is None:
            return out
        if number >= len(self.compared) or self.compared[number].result.shape != out.shape:
            raise Unrepeatable("it makes different comparisons than the run that it should replay")
        return self.compared[number].result

    def _take(self, packet: Any, args: Any) -> None:
        """Handles a slice of a sort: the first or the last K along its axis."""
        sort, _ = self._sorts.get(args[0].untyped_storage()._cdata, (None, None)) if self._sorts else (None, None)
        if sort is None or args[0].shape != sort.shape:
            return
        x, dim, *bounds = args if len(args) > 1 else (*args, 0)
        n = x.shape[dim]
        if dim % x.dim() != sort.axis or bounds[2:] not in ([], [1]):
            return
        if packet is aten.select:
            start = bounds[0] % n
            sort.take(start, start + 1)
            return
        start, end = (*bounds, None, None)[:2]
        start = 0 if start is None else max(start + n, 0) if start < 0 else min(start, n)
        end = n if end is None else max(end + n, 0) if end < 0 else min(end, n)
        sort.take(start, end)

    def _sample(self, packet: Any, out: Any) -> None:
        path, phase = self.where()
        for result in out if isinstance(out, (tuple, list)) else (out,):
            if not isinstance(result, Tensor) or result.layout != torch.strided:
                continue
            if result.dtype.is_floating_point and result.numel():
                key = (path, phase, packet.__name__)
                place = Place(*key, self._calls[key])
                self._calls[key] += 1
                self.samples[place] = sample(result)
                return


def sample(x: Tensor) -> Tensor:
    """Evenly spaced values of x."""
    flat = x.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE].to(torch.float64, copy=True)


@functools.cache
def _moves(func: Any) -> bool:
    """Whether the op only changes the view of memory."""
    return func.is_view or torch.Tag.inplace_view in func.tags


def _compares(args: Any, out: Any) -> bool:
    """Whether an op turned floating-point numbers into truth values or integers."""
    floating = any(isinstance(arg, Tensor) and arg.is_floating_point() for arg in args)
    return floating and isinstance(out, Tensor) and out.dtype in (torch.bool, torch.int32, torch.int64)


def backward(mode: TorchFunctionMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Runs a backward call with the mode active again inside it: for checkpoints and custom functions."""
    run = torch.autograd._engine_run_backward  # pyright: ignore

    def with_mode(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return run(*args, **kwargs)

    torch.autograd._engine_run_backward = with_mode  # pyright: ignore
    try:
        return func(*args, **kwargs)
    finally:
        torch.autograd._engine_run_backward = run  # pyright: ignore


class Leaving(TorchFunctionMode):
    """Records the calls through which values leave torch: numpy, and pointers for C++ or Triton."""

    def __init__(self, left: set[str]):
        super().__init__()
        self.left = left

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if func in BACKWARD:
            return backward(self, func, args, kwargs or {})
        if name in LEAVES_TORCH and args and isinstance(args[0], Tensor) and args[0].dtype.is_floating_point:
            self.left.add(f"Tensor.{name}()")
        return func(*args, **(kwargs or {}))


class Places(Protocol):
    """Locates ops: entered with the recorded run, and asked at each op."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *failure: Any) -> None: ...

    def current(self) -> tuple[str, str]:
        """The path, and "forward" or "backward"."""
        ...


class ModulePlaces:
    """Locates ops by module: forward by hooks, backward by the forward op that created each graph node."""

    def __init__(self, module: nn.Module):
        self.names = {id(m): name for name, m in module.named_modules()}
        self._running: list[tuple[str, int | None]] = []  # paths, and the graph node that they run in
        self._nodes: dict[int, str] = {}
        self._hooks: list[Any] = []

    def __enter__(self):
        self._running, self._nodes = [], {}
        register = torch.nn.modules.module
        self._hooks = [
            register.register_module_forward_pre_hook(self._enter),
            register.register_module_forward_hook(self._leave, always_call=True),
        ]
        return self

    def __exit__(self, *failure):
        for hook in self._hooks:
            hook.remove()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        outer = self._running[-1][0] if self._running else ""
        self._running.append((self.names.get(id(module), outer), _node()))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._running.pop()

    def current(self) -> tuple[str, str]:
        node = _node()
        path, within = self._running[-1] if self._running else ("", None)
        backward = node is not None and node != within  # a checkpoint reruns modules inside a node
        if backward:
            path = self._nodes.get(node, "")  # pyright: ignore
        # An op's node was created just before it; an op without a node must not take that of the previous op.
        self._nodes.setdefault(torch._C._autograd._get_sequence_nr() - 1, path)  # pyright: ignore
        return path, "backward" if backward else "forward"


def _node() -> int | None:
    """The sequence number of the graph node that is running backward."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()
