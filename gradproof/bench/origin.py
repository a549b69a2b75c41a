"""The origin of figures: commit and code, date, device, power and clock."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from gradproof.kernels.cache import digest

PACKAGE = Path(__file__).parent.parent
# The code whose change makes figures of a step old.
MEASURED = (
    *("ops", "kernels", "models", "train", "params.py"),
    *(f"bench/{name}.py" for name in ("case", "memory", "ours", "peers", "row", "step", "timing", "transformer")),
)
VARIABLE = "GRADPROOF_COMMIT"
SECONDS = 20  # that git and nvidia-smi are given


def origin() -> dict[str, str | None]:
    """Commit, digest of the measured code, and the date."""
    return {"commit": commit(), "code": code(), "date": now()}


def now() -> str:
    """In UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def code() -> str:
    """A digest of the measured code: the same figures are meant by two records that agree in it."""
    return digest(MEASURED)[:16]


def commit(root: Path = PACKAGE.parent) -> str | None:
    """What $GRADPROOF_COMMIT says, for a copy without .git; otherwise git's HEAD, with `-dirty` where the measured code
    differs from it; None where there is neither."""
    given = os.environ.get(VARIABLE, "").strip()
    if given:
        return given
    answer = _output(["git", "-C", str(root), "rev-parse", "--show-toplevel", "HEAD"]).split("\n")
    if len(answer) < 2 or Path(answer[0]).resolve() != root.resolve():  # another project's, which has us installed
        return None
    changed = _output(["git", "-C", str(root), "status", "--porcelain", "--", *(f"gradproof/{p}" for p in MEASURED)])
    return answer[1] + ("-dirty" if changed else "")


def machine(device: str) -> dict[str, Any]:
    """Processor, its power limit in watts and its highest clock in MHz; None for what is not told."""
    if device != "cuda":
        return {
            "processor": _processor(),
            "threads": torch.get_num_threads(),
            "power_limit_w": None,
            "clock_max_mhz": None,
        }
    asked = ("power.limit", "clocks.max.sm", "driver_version")
    limit, clock, driver = _told(_output(_query(asked)), asked)
    name = torch.cuda.get_device_name()
    return {"processor": name, "power_limit_w": _number(limit), "clock_max_mhz": _number(clock), "driver": driver}


def under_load(device: str, run: Callable[[], object]) -> dict[str, float | None]:
    """Clock in MHz and power in watts while `run` is repeated; None for what is not told."""
    if device != "cuda":
        return {"clock_mhz": _cpu_clock(), "power_w": None}
    asked = ("clocks.sm", "power.draw")
    try:
        query = subprocess.Popen(_query(asked), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return {"clock_mhz": None, "power_w": None}
    started = time.monotonic()
    while query.poll() is None and time.monotonic() - started < SECONDS:
        for _ in range(8):
            run()
        torch.cuda.synchronize()
    query.kill()  # does nothing to one that has ended
    clock, power = _told(query.communicate()[0], asked)
    return {"clock_mhz": _number(clock), "power_w": _number(power)}


def _query(asked: Sequence[str]) -> list[str]:
    own = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    which = [] if own is None else [f"--id=GPU-{own}"]
    return ["nvidia-smi", *which, f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits"]


def _told(output: str, asked: Sequence[str]) -> list[str | None]:
    """The first line's values; None for each where that is not an answer to what was asked."""
    values = [value.strip() for value in output.strip().split("\n")[0].split(",")]
    return [value or None for value in values] if len(values) == len(asked) else [None] * len(asked)


def _number(value: str | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:  # [N/A]
        return None


def _output(command: list[str]) -> str:
    """What it prints; nothing where it fails or is not there."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""


def _cpuinfo(name: str) -> list[str]:
    """The values of a field of /proc/cpuinfo, one a processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name]


def _processor() -> str | None:
    return next(iter(_cpuinfo("model name")), None)


def _cpu_clock() -> float | None:
    clocks = [clock for value in _cpuinfo("cpu MHz") if (clock := _number(value)) is not None]
    return round(sum(clocks) / len(clocks)) if clocks else None
