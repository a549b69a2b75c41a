"""Did an upgrade change my gradients? A record of them, and what has moved since.

Of each gradient, in the dtype that trains, a digest of its bits and a few random projections are kept, with how far
rounding alone moves these (`proof/as_trained.py`). The same bits are the same gradient; other bits within that noise
are the same gradient rounded otherwise; beyond it something has moved, and is named.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradproof.contract import Gradients
from gradproof.precision.watching import Watching
from gradproof.proof.as_trained import Jitter
from gradproof.proof.module import Options
from gradproof.proof.recorder import AS_IT_IS
from gradproof.proof.runner import INPUT, CannotRun, Runner, draw_cotangents, one_line
from gradproof.proof.state import ModuleState, random_state_kept
from gradproof.proof.verdict import environment
from gradproof.streams import seeded

VERSION = 1
PROJECTIONS = 8
REPLICAS = 4
MOVED = 8.0  # times the noise


@dataclass
class GradientRecord:
    """One gradient: its bits, its size, its projections, and how far rounding moves these at most."""

    digest: str
    norm: float
    projections: list[float]
    noise: float


@dataclass
class Movement:
    """One tensor beside its record: `same` bits, `noise`, `moved`, `new` or `gone`; by how much of its size."""

    name: str
    status: str
    change: float | None = None


@dataclass
class GradientComparison:
    """What has moved since a record was made, and what else has changed."""

    recorded: dict[str, Any]
    changed: dict[str, list[Any]]  # of the environment: before and now
    tensors: list[Movement] = field(default_factory=list)

    @property
    def moved(self) -> list[Movement]:
        return [t for t in self.tensors if t.status in ("moved", "new", "gone")]

    @property
    def summary(self) -> str:
        """In one sentence."""
        since = ", ".join(f"{name} {before} → {now}" for name, (before, now) in self.changed.items())
        lead = f"Since the record ({since or 'nothing else has changed'})"
        if not self.moved:
            same, count = sum(t.status == "same" for t in self.tensors), len(self.tensors)
            rest = "" if same == count else ", the others differ by rounding"
            return f"{lead} no gradient has moved: {same} of {count} have the same bits{rest}."
        told = ", ".join(
            f"{t.name} ({t.status if t.change is None else f'by {t.change:.2g} of its size'})" for t in self.moved
        )
        return f"{lead} {len(self.moved)} of {len(self.tensors)} gradients have moved: {told}."

    def to_dict(self) -> dict[str, Any]:
        return {"moved": [t.name for t in self.moved], "summary": self.summary, **asdict(self)}


def record(module: nn.Module, inputs: Any, options: Options, name: str) -> dict[str, Any]:
    """The gradients of a module as they are here and now, as plain data."""
    with random_state_kept(), torch.inference_mode(False), torch.enable_grad():
        state = ModuleState(module)
        try:
            state.swap(options.dtype, options.device, attributes=options.dtype is None)
            runner = Runner(
                module, inputs, state, options.dtype, options.device, AS_IT_IS, options.seed, options.gradient_of,
                options.autocast,
            )  # fmt: skip
            return _recorded(runner, options, name, str(options.device or "cpu"))
        except CannotRun:
            raise
        except (Exception, SystemExit) as error:
            raise CannotRun(f"the module's gradients could not be recorded: it raised {one_line(error)}") from error
        finally:
            state.restore()


def _recorded(runner: Runner, options: Options, name: str, device: str) -> dict[str, Any]:
    cotangents = draw_cotangents(runner.forward(runner.values), options.seed)
    watch = Watching()
    with watch:
        runner.run(runner.values, cotangents)
    _, grads = runner.run(runner.values, cotangents)
    replicas = []
    for seed in range(1, REPLICAS + 1):
        with Jitter(seed, like=watch, routing=True):
            replicas.append(runner.run(runner.values, cotangents)[1])
    values = hashlib.sha256(b"".join(_bytes(value) for value in runner.values.values())).hexdigest()
    return {
        "version": VERSION,
        "name": name,
        "seed": options.seed,
        "values": values,
        "environment": environment(device),
        "gradients": {n.removeprefix(INPUT): asdict(one) for n, one in _each(grads, replicas, options.seed)},
    }


def _each(grads: Gradients, replicas: list[Gradients], seed: int):
    for name, grad in grads.items():
        if grad is None:
            continue
        plain = _projected(grad, name, seed)
        others = [_projected(own, name, seed) for one in replicas if (own := one.get(name)) is not None]
        noise = max((abs(a - b) for other in others for a, b in zip(other, plain, strict=True)), default=0.0)
        least = torch.finfo(grad.dtype).eps * float(grad.double().norm())
        yield name, GradientRecord(_digest(grad), float(grad.double().norm()), plain, max(noise, least))


def compare_with(before: Mapping[str, Any], now: Mapping[str, Any]) -> GradientComparison:
    """Two records of one case."""
    if before["values"] != now["values"] or before["seed"] != now["seed"]:
        raise CannotRun(
            "the case's parameters, inputs or seed are not those of the record, so that its gradients cannot be "
            "compared; make the case deterministic (torch.manual_seed in it), or record it again"
        )
    old, new = before["environment"], now["environment"]
    changed = {key: [old.get(key), new.get(key)] for key in (*old, *new) if old.get(key) != new.get(key)}
    about = {"name": before["name"], "environment": old}
    tensors = []
    for name in dict.fromkeys((*before["gradients"], *now["gradients"])):
        was, own = before["gradients"].get(name), now["gradients"].get(name)
        if was is None or own is None:
            tensors.append(Movement(name, "new" if was is None else "gone"))
            continue
        pairs = zip(was["projections"], own["projections"], strict=True)
        far = math.sqrt(sum((a - b) ** 2 for a, b in pairs) / PROJECTIONS)
        change = far / was["norm"] if was["norm"] else math.inf if far else 0.0
        within = far <= MOVED * max(was["noise"], own["noise"])
        status = "same" if was["digest"] == own["digest"] else "noise" if within else "moved"
        tensors.append(Movement(name, status, change))
    return GradientComparison(about, changed, tensors)


def load_record(path: Path) -> dict[str, Any]:
    """A record that `verify --record` wrote; a sentence for anything else."""
    try:
        kept = json.loads(path.read_text())
        if kept["version"] != VERSION or not isinstance(kept["gradients"], dict):
            raise KeyError("version")
    except FileNotFoundError:
        raise CannotRun(f"there is no file {path}; write it with `gradproof verify CASE --record {path}`") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise CannotRun(f"{path} was not written by this version of `gradproof verify --record`") from None
    return kept


def _projected(grad: Tensor, name: str, seed: int) -> list[float]:
    flat = grad.detach().double().flatten().cpu()
    signs = (
        torch.randn(flat.shape, generator=seeded(seed, "record", name, k), dtype=torch.float64)
        for k in range(PROJECTIONS)
    )
    return [float(flat @ r) for r in signs]


def _digest(grad: Tensor) -> str:
    return hashlib.sha256(_bytes(grad)).hexdigest()[:32]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()
