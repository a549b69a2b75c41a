"""Starts a gate's daemon, detached from whoever needed it first.

Those who need one at the same time take turns at a lock: one starts it, the others wait for its socket.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time

SETTINGS = "store.json"
GRACE = 0.5  # seconds
LOG = "serve.log"  # in the store: what the daemon says, since it was started last
PASSED_ON = ("HOME", "PATH", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
PASSED_ON += ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")
PASSED_ON += ("OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "GRADPROOF_CACHE")
# The package that the caller runs, and with -I nothing of the working directory or of PYTHONPATH before it.
PROGRAM = (
    "import sys; sys.path.insert(0, {home!r}); import gradproof; del sys.path[0];"
    " from gradproof.cli import main; main()"
)


class DaemonStart:
    """A daemon that is being started by this process or by another one."""

    def __init__(self, store: str):
        self.store = store
        self._lock = -1
        self._process = None
        self._ended = 0.0

    def look(self) -> None:
        """Starts a daemon unless somebody does already. ValueError with a sentence where one cannot be started."""
        if self._process is not None:
            self._check_alive()
            return
        if self._lock < 0:
            self._lock = os.open(self.store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another process starts it
        self._start()

    def close(self) -> None:
        """Lets others start one."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        self._process = None  # it lives on: nobody waits for it

    def _start(self) -> None:
        import subprocess

        if not os.path.isfile(os.path.join(self.store, SETTINGS)):
            raise ValueError(
                f"there is no gate in {self.store}; make one with: gradproof gate init --store {self.store}"
            )
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(os.path.join(self.store, LOG), flags, 0o600)
        try:
            self._process = subprocess.Popen(
                command(self.store),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment(),
                start_new_session=True,
                umask=0o077,
            )
        finally:
            os.close(log)

    def _check_alive(self) -> None:
        """One that ended at once may have found another one at work, which is about to listen."""
        if self._process is None or self._process.poll() is None:
            return
        self._ended = self._ended or time.monotonic()
        if time.monotonic() - self._ended > GRACE:
            raise ValueError(f"it ended at once: {self._last_words()}")

    def _last_words(self) -> str:
        with open(os.path.join(self.store, LOG), "rb") as file:
            lines = file.read(2**16).decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"


def command(store: str) -> list[str]:
    """How the daemon of a store is started."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return [sys.executable, "-I", "-c", PROGRAM.format(home=home), "gate", "serve", "--store", store]


def environment() -> dict[str, str]:
    """What the daemon gets of this process's environment, which may be an agent's."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}
