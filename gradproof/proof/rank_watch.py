"""StageWatch: writes to a file where a rank is if a stage takes long, for the process that waits for it."""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

OWN = ("gradproof/proof/", "gradproof/ranks/")
SHARE = 0.6  # of the timeout, after which a rank says where it is
BUSY = 0.2  # of a core; where cores are scarce a rank that computes gets less, but Linux tells
LOOKS = 10  # at the state of the main thread


class Whereabouts(NamedTuple):
    """What a rank's main thread is doing: the function of torch that it is in, the user's line that called it, and
    whether it computes."""

    stage: str
    function: str
    line: str
    busy: bool


class StageWatch:
    """While inside, a thread that speaks up when this takes more than a part of the timeout."""

    def __init__(self, folder: str, rank: int, stage: str, timeout: float):
        self.file, self.stage, self.wait = Path(folder) / f"rank-{rank}.json", stage, SHARE * timeout
        self.pause = min(1.0, 0.1 * timeout)
        self._main, self._thread = threading.get_ident(), threading.get_native_id()
        self._left = threading.Event()

    def __enter__(self) -> StageWatch:
        self.file.unlink(missing_ok=True)
        threading.Thread(target=self._look, name="stage", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._left.set()

    def _look(self) -> None:
        if self._left.wait(self.wait):
            return
        while not self._left.is_set():
            before = time.process_time(), time.monotonic()
            runs = any([_runnable(self._thread) for _ in range(LOOKS) if not self._left.wait(self.pause / LOOKS)])
            share = (time.process_time() - before[0]) / (time.monotonic() - before[1])
            frame = sys._current_frames().get(self._main)
            if frame is not None and not self._left.is_set():
                self._say(*_place(frame), runs or share > BUSY)

    def _say(self, function: str, line: str, busy: bool) -> None:
        about: dict[str, Any] = dict(stage=self.stage, function=function, line=line, busy=busy)
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(about))
        partial.rename(self.file)


def _runnable(thread: int) -> bool:
    """Whether Linux would run a thread, if it had a core for it; False elsewhere."""
    try:
        return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] in "RD"
    except (OSError, IndexError):
        return False


def whereabouts(folder: str, rank: int) -> Whereabouts | None:
    """What a rank has said; None where it has said nothing."""
    try:
        return Whereabouts(**json.loads((Path(folder) / f"rank-{rank}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _place(frame: FrameType) -> tuple[str, str]:
    """The public name in torch.distributed (or the innermost function), and the innermost line outside torch."""
    frames = list(reversed(traceback.extract_stack(frame)))
    ours = [f.name for f in frames if "/torch/distributed/" in f.filename]
    # Not what is private, nor what c10d wraps around each collective to log it.
    function = next((name for name in ours if not name.startswith("_") and name != "wrapper"), frames[0].name)
    users = (f for f in frames if "/torch/" not in f.filename and not any(own in f.filename for own in OWN))
    user = next((f for f in users if not f.filename.startswith("<") and "/multiprocessing/" not in f.filename), None)
    function = "backward" if function == "_engine_run_backward" else function
    return function, f"{Path(user.filename).name}:{user.lineno}" if user else ""
