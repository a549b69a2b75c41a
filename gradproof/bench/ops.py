"""The suite `ops`: fused ops compared with eager and compiled torch.

    norm_gelu    bias + LayerNorm + GELU, forward and backward
    adamw        one update of all parameters of a model

A contestant for norm_gelu is a pair of functions with the op's own signatures; `suite` takes more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gradproof.bench.memory import free
from gradproof.bench.peers import DECAY, DTYPES, EPS, RATE
from gradproof.bench.step import QUICK_ROUNDS, QUICK_SECONDS, ROUNDS, SECONDS, first_line
from gradproof.bench.timing import Timing, interleaved
from gradproof.streams import seeded

# (rows, width): rows as there are in a step of that width.
SHAPES = {
    "cpu": ((4096, 128), (512, 2048), (512, 4096)),
    "cuda": ((65536, 128), (32768, 2048), (65536, 4096)),
}
ADAMW_SIZES = {"cpu": ("nano", "tiny"), "cuda": ("nano", "tiny", "medium")}
REFERENCE = "reference"


class ForwardBackward(NamedTuple):
    """forward(h_TH, b_H, gamma_H, beta_H, activate) -> (y_TH, saved) and backward(dy_TH, saved, h_TH, b_H, gamma_H,
    beta_H, activate) -> (dh_TH, db_H, dgamma_H, dbeta_H). `autograd` ones are given tensors that require gradients."""

    forward: Callable[..., tuple[Tensor, Any]]
    backward: Callable[..., Sequence[Tensor]]
    autograd: bool = False


def layers(h_TH: Tensor, b_H: Tensor, gamma_H: Tensor, beta_H: Tensor, activate: bool = True) -> Tensor:
    """The op as a PyTorch user writes it; what is between is in float32, as autocast does it."""
    n_TH = F.layer_norm(h_TH.float() + b_H, h_TH.shape[-1:], gamma_H, beta_H, EPS)
    return (F.gelu(n_TH, approximate="tanh") if activate else n_TH).to(h_TH.dtype)


def by_autograd(function: Callable[..., Tensor]) -> ForwardBackward:
    """A function of tensors as a contestant."""

    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        y_TH = function(*inputs)
        return y_TH, y_TH

    def backward(dy_TH: Tensor, saved: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(saved, inputs[:4], dy_TH)

    return ForwardBackward(forward, backward, autograd=True)


def pairs(extra: Mapping[str, ForwardBackward] | None = None) -> dict[str, Callable[[], ForwardBackward]]:
    """The contestants for norm_gelu; what cannot even be made is known when it is asked for."""

    def reference() -> ForwardBackward:
        from gradproof.ops import norm_gelu

        return ForwardBackward(norm_gelu.forward, norm_gelu.backward)

    made: dict[str, Callable[[], ForwardBackward]] = {
        name: partial(ForwardBackward, *pair) for name, pair in (extra or {}).items()
    }
    made |= {REFERENCE: reference, "eager": lambda: by_autograd(layers)}
    return made | {"compiled": lambda: by_autograd(torch.compile(layers))}


def suite(
    device: str,
    precision: str,
    rows: int | None = None,
    quick: bool = False,
    say: Callable[[str], object] = lambda what: None,
    extra: Mapping[str, ForwardBackward] | None = None,
    updates: Mapping[str, Callable[[Any], object]] | None = None,
) -> Iterator[dict[str, Any]]:
    """The record, again after each shape with one more in `rows`. `extra` are further pairs for norm_gelu, `updates`
    further ways to take a step of a bound `gradproof.AdamW`; the first given one is what ratios are to."""
    from gradproof.proof.verdict import environment

    record = {"suite": "ops", "device": device, "environment": environment(device)}
    done: list[dict[str, Any]] = []
    for usual, width in SHAPES[device]:
        say(f"norm_gelu, {width} wide")
        done.append(norm_gelu(device, precision, rows or usual, width, pairs(extra), quick))
        yield {**record, "rows": done}
    for size in ADAMW_SIZES[device]:
        say(f"adamw, {size}")
        done.append(adamw(device, size, updates or {}, quick))
        yield {**record, "rows": done}


def norm_gelu(
    device: str,
    precision: str,
    rows: int,
    width: int,
    made: Mapping[str, Callable[[], ForwardBackward]],
    quick: bool = False,
) -> dict[str, Any]:
    """All contestants on one shape: forward and backward together, and the forward alone."""
    dy_TH, *given = inputs(device, precision, rows, width)
    leaves = [tensor.detach().requires_grad_() for tensor in given]
    whole: dict[str, Callable[[], object]] = {}
    alone: dict[str, Callable[[], object]] = {}
    failed: dict[str, str] = {}
    for name, make in made.items():
        try:
            pair = make()
            both = partial(_both, pair, dy_TH, leaves if pair.autograd else given)
            both()
            whole[name] = both
            alone[name] = partial(pair.forward, *(leaves if pair.autograd else given), True)
        except Exception as error:
            failed[name] = first_line(error)
    moved = 5 * rows * width * dy_TH.element_size()  # h in, y out; dy and h in, dh out
    timings, forward = _turns(whole, device, quick), _turns(alone, device, quick)
    entries = _entries(timings, moved, [name for name in made if name in timings])
    for entry in entries:
        entry["forward_ms"] = forward[entry["name"]].ms
    entries += [{"name": name, "error": error} for name, error in failed.items()]
    del whole, alone
    free(device)
    return {"op": "norm_gelu", "rows": rows, "width": width, "precision": precision, "contestants": entries}


def inputs(device: str, precision: str, rows: int, width: int) -> tuple[Tensor, ...]:
    """(dy_TH, h_TH, b_H, gamma_H, beta_H): what goes through memory in the precision asked for, parameters in fp32."""
    generator = seeded("bench", "ops", rows, width)
    dy_TH, h_TH = (torch.randn(rows, width, generator=generator).to(DTYPES[precision]) for _ in range(2))
    b_H, gamma_H, beta_H = torch.randn(3, width, generator=generator)
    return tuple(tensor.to(device) for tensor in (dy_TH, h_TH, b_H, gamma_H, beta_H))


def _both(pair: ForwardBackward, dy_TH: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    y_TH, saved = pair.forward(*given, True)
    return (y_TH, *pair.backward(dy_TH, saved, *given, True))


def adamw(
    device: str, size: str, updates: Mapping[str, Callable[[Any], object]], quick: bool = False
) -> dict[str, Any]:
    """One update of a model of this size: ours, and torch's fused AdamW over its parameters or one flat buffer."""
    import gradproof

    model = gradproof.MoE.sized(size, seed=0, device=device)
    params = model.params
    params.grad_P.normal_(generator=torch.Generator(device).manual_seed(0)).mul_(1e-3)
    ways: dict[str, Callable[[Any], object]] = {**updates, REFERENCE: lambda optimizer: optimizer.step()}
    contestants: dict[str, Callable[[], object]] = {}
    failed: dict[str, str] = {}
    for name, way in ways.items():
        update = partial(way, gradproof.AdamW(lr=RATE, weight_decay=DECAY, decay="all").bind(params))
        try:
            update()
            contestants[name] = update
        except Exception as error:
            failed[name] = first_line(error)
    contestants["torch, each parameter"] = _torch_adamw([(params[name], params.grads[name]) for name in params])
    contestants["torch, one buffer"] = _torch_adamw([(params.flat_P, params.grad_P)])
    timings = _turns(contestants, device, quick)
    entries = _entries(timings, 28 * params.count, list(contestants))  # p, g, m, v in; p, m, v out
    entries += [{"name": name, "error": error} for name, error in failed.items()]
    del contestants, model, params
    free(device)
    return {"op": "adamw", "size": size, "precision": "fp32", "contestants": entries}


def _torch_adamw(values: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], object]:
    """torch's own, over the same memory."""
    parameters = [torch.nn.Parameter(value) for value, _ in values]
    for parameter, (_, grad) in zip(parameters, values, strict=True):
        parameter.grad = grad
    return torch.optim.AdamW(parameters, lr=RATE, weight_decay=DECAY, fused=True).step


def _turns(contestants: Mapping[str, Callable[[], object]], device: str, quick: bool) -> dict[str, Timing]:
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, SECONDS)
    return interleaved(contestants, device, rounds, seconds)


def _entries(timings: Mapping[str, Timing], moved: int, order: Sequence[str]) -> list[dict[str, Any]]:
    """`moved` is the least that must go through memory."""
    entries = []
    for name in order:
        timing = timings[name]
        entry = {"name": name, "ms": timing.ms, "quartiles": list(timing.quartiles)}
        entry |= {"ratio": timing.ms / timings[order[0]].ms, "gb_per_s": moved / (timing.ms * 1e-3) / 1e9}
        entries.append(entry)
    return entries
