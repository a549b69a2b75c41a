"""Starts a gate's daemon, detached from the process that needed it.

Who starts one locks the store's folder until it answers; others wait for its socket meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time

SETTINGS = "store.json"
RUNNING = "daemon.lock"  # locked by a daemon as long as it lives
GRACE = 0.5  # seconds
LOG = "serve.log"  # in the store: what daemons that were started from here say
MOST_LOGGED = 2**20  # bytes; then the log begins anew
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

    def __init__(self, store: str, socket: str = ""):
        self.store, self.socket = store, socket
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
        if not _locked(os.path.join(self.store, RUNNING)):
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
                f"there is no gate in {self.store}; create it with: gradproof gate init --store {self.store}"
            )
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(os.path.join(self.store, LOG), flags, 0o600)
        try:
            if os.fstat(log).st_size > MOST_LOGGED:
                os.ftruncate(log, 0)
            self._process = subprocess.Popen(
                command(self.store, self.socket),
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
            raise ValueError(f"it exited at once: {self._last_words()}")

    def _last_words(self) -> str:
        with open(os.path.join(self.store, LOG), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2**14))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "without a message"


def being_started(store: str) -> bool:
    """Whether somebody starts a daemon at this moment: it may listen already, and cannot decide yet."""
    return _locked(store)


def _locked(path: str) -> bool:
    """Whether another process holds the lock of a file or folder; False where that cannot be known."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(opened)


def command(store: str, socket: str = "") -> list[str]:
    """How the daemon of a store is started; `socket` is where it listens if not beside the store."""
    at = ["--socket", socket] if socket else []
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return [sys.executable, "-I", "-c", PROGRAM.format(home=home), "gate", "serve", "--store", store, *at]


def environment() -> dict[str, str]:
    """What the daemon gets of this process's environment, which may be an agent's."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}
