"""A run that trains in a fraction of a second, and somebody who looks on."""

import pytest

from gradproof.train import baselines
from gradproof.train.loop import Trainer
from gradproof.train.run import start


class Watch:
    """Keeps what it is shown; `hook(record)` is called at each logged step."""

    def __init__(self, hook=None):
        self.said, self.records, self.hook = [], [], hook

    def say(self, sentence):
        self.said.append(sentence)

    def reading(self, done, total):
        pass

    def training(self, record, steps):
        self.records.append(record)
        if self.hook is not None:
            self.hook(record)


@pytest.fixture
def tiny():
    """Options of a run of 12 steps with three validations; every step is logged, so a hook can act at any."""
    return dict(
        data="synthetic:rows=400",
        steps=12,
        batch=32,
        validate_every=4,
        log_every=1,
        model_options=dict(hidden=8, depth=1, balance=0.02, correction=0.01),
    )


@pytest.fixture
def open_run(monkeypatch):
    """open_run(path, options, hook): a Trainer of the run in `path`, made or resumed, and who watches it. The trees of
    its report grow for three rounds: a hundred take longer than the run."""
    monkeypatch.setattr(baselines, "ROUNDS", 3)

    def opened(path, options, hook=None):
        watch = Watch(hook)
        trainer = Trainer(start(path, options, resume=True), watch)
        trainer.resume()
        return trainer, watch

    return opened
