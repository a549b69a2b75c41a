"""`gradproof train` in the ranks of a pool, as torchrun would start it."""

import io
import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout

from gradproof.cli import app
from gradproof.train.loop import Trainer


def train(arguments, interrupt=None):
    """(exit code, what was printed) on this rank. `interrupt` is (rank, step): that rank gets Ctrl-C there."""
    streams, take = (sys.stdout, sys.stderr), Trainer.take

    def interrupted(trainer, s):
        if interrupt == (trainer.mesh.rank, s):
            os.kill(os.getpid(), signal.SIGINT)
        return take(trainer, s)

    if interrupt is not None:
        Trainer.take = interrupted
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            code = app(["train", *arguments], standalone_mode=False) or 0
    finally:
        Trainer.take = take
        sys.stdout, sys.stderr = streams
    return code, printed.getvalue()
