"""`gradproof gate learn`. Everything heavy is imported inside."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from gradproof.commands.gate_store import StoreFolder, opened_store, warn
from gradproof.commands.options import INTERRUPTED, Debug, Seed
from gradproof.commands.terminal import errors


def learn(
    store: StoreFolder,
    follow: Annotated[bool, typer.Option("--follow", help="Keep running, and learn whenever a round is due.")] = False,
    nice: Annotated[int, typer.Option(help="Niceness of the process.", min=0, max=19)] = 0,
    parent: Annotated[int, typer.Option(hidden=True)] = 0,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Learn from new feedback.

    Trains a new version of the model; decisions continue meanwhile. The new version serves only if it is no worse on
    held-back calls and on pinned mistakes.

    \b
    Examples:
      gradproof gate learn
      gradproof gate learn --follow &
    """
    with errors(debug):
        import signal

        from gradproof.gate.learner import Learner, told
        from gradproof.gate.learner import follow as learn_on
        from gradproof.gate.store import Store

        try:
            # A shell starts a job in the background with SIGINT ignored; `kill -INT` must end it all the same.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.default_int_handler)
            os.nice(nice)
            with opened_store(Store, store) as opened, opened.learning():
                warn(store)
                learner = Learner(opened, seed)
                if follow:
                    orphan = (lambda: os.getppid() != parent) if parent else (lambda: False)
                    learn_on(learner, lambda line: print(line, flush=True), orphan)
                else:
                    done = learner.round()
                    print("no new feedback; nothing to learn" if done is None else told(done))
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # a second one must not end it halfway out
            raise typer.Exit(INTERRUPTED) from None
