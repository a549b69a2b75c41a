"""The learner as a separate process with low priority, restarted whenever it ends.

A learner that keeps ending is started less and less often. It ends with the daemon, however that ends: it looks
whether its parent is still the one that started it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

NICE = 10
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before it is started again
WELL = 60.0  # seconds after which a learner counts as one that works
GRACE = 10.0  # seconds that it has to end by itself


class LearnerSupervisor:
    """Keeps `command` running. `say` is told what happens to it."""

    def __init__(self, command: Sequence[str], say: Callable[[str], None], first_pause: float = FIRST_PAUSE):
        self.command, self.say, self.first_pause = command, say, first_pause
        self.restarts, self.last = 0, ""
        self._process: asyncio.subprocess.Process | None = None

    def plain(self) -> Mapping[str, Any]:
        """For `status`: `last` is the last line that the learner wrote."""
        process = self._process
        running = process is not None and process.returncode is None
        pid = process.pid if running and process is not None else None
        return {"running": running, "pid": pid, "restarts": self.restarts, "last": self.last}

    async def run(self) -> None:
        """Until cancelled; then the learner is ended too."""
        pause, said = self.first_pause, ""
        try:
            while True:
                started = time.monotonic()
                code = await self._once()
                pause = self.first_pause if time.monotonic() - started > WELL else pause
                ended = f"the learner ended with {code}{f': {self.last}' if self.last else ''}"
                if ended != said:  # the same again and again is told once
                    self.say(f"{ended}; starting it again")
                    said = ended
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                self.restarts += 1
        finally:
            await self._end()

    async def _once(self) -> int:
        """Starts it, and waits for its end."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 16,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # a line longer than any of ours
                continue
            if not line:
                return await self._process.wait()
            self.last = line.decode("utf-8", "replace").strip()[:500]

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(GRACE):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def learner_command(store: Path, seed: int) -> list[str]:
    """What runs the learner, as a child of this process."""
    options = {"--store": store, "--nice": NICE, "--parent": os.getpid(), "--seed": seed}
    said = [str(word) for pair in options.items() for word in pair]
    return [sys.executable, "-m", "gradproof", "gate", "learn", "--follow", *said]
