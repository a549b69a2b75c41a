"""`gradproof train` in the ranks of a pool, as torchrun would start it, and what may happen to a rank."""

import io
import os
import signal
import sys
import time
from contextlib import nullcontext, redirect_stderr, redirect_stdout

import torch

from gradproof.cli import app
from gradproof.train.loop import Trainer


def drift(trainer):
    """Somebody writes to a parameter outside the step, where most comparisons of losses would not notice it."""
    name = next(name for name in trainer.model.params if name.endswith("linear.1.weight"))
    with torch.no_grad():
        trainer.model.params[name][0, 1] += 1e-6


EVENTS = {
    "interrupt": lambda trainer: os.kill(os.getpid(), signal.SIGINT),
    "kill": lambda trainer: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda trainer: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": lambda trainer: time.sleep(3600),
    "drift": drift,
}


def train(arguments, event=None, rank=0, step=0):
    """(exit code, what was printed) on this rank. The event happens to that rank, before that step; what is printed
    then goes to the standard streams, because the process may end there."""
    streams, take = (sys.stdout, sys.stderr), Trainer.take

    def disturbed(trainer, s):
        if event is not None and (trainer.mesh.rank, s) == (rank, step):
            EVENTS[event](trainer)
        return take(trainer, s)

    Trainer.take = disturbed
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed) if event is None else nullcontext():
            code = app(["train", *arguments], standalone_mode=False) or 0
    finally:
        Trainer.take = take
        sys.stdout, sys.stderr = streams
    return code, printed.getvalue()
