"""The training loop: batches, validation, checkpoints and early stopping, with one code path for every model.

Every random choice is a function of the seed and the step, so a run that resumes from a checkpoint ends with the same
bits as one that was never stopped.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from gradproof.data.feed import Feed
from gradproof.data.source import open_source
from gradproof.data.split import TEST, TRAIN, VALIDATION
from gradproof.files import write_atomically
from gradproof.models.model import Model
from gradproof.ranks.mesh import Mesh, watched
from gradproof.train import checkpoint, mesh_checkpoint
from gradproof.train.assembly import build_step, check_options, environment, summary_writer, thread_count
from gradproof.train.average import WeightAverage
from gradproof.train.config import VALIDATIONS
from gradproof.train.ensemble_step import EnsembleStep
from gradproof.train.evaluate import evaluate, evaluate_number, predictions, spaced
from gradproof.train.interruption import interruptible
from gradproof.train.interval import fit_reach, keep_reach, read_reach
from gradproof.train.load import build_model, restore
from gradproof.train.loss import Target
from gradproof.train.mesh_training import MeshTraining
from gradproof.train.metrics import KEPT, MetricsFile, ema, memory_bytes, trend
from gradproof.train.number_score import true_values
from gradproof.train.predictor import Predictor
from gradproof.train.recipe import TableSize, sized, steps_of
from gradproof.train.rehearsal import rehearse
from gradproof.train.replicas import Drifted
from gradproof.train.run import Run
from gradproof.train.score import balanced_accuracy, worst
from gradproof.train.step import TrainStep
from gradproof.train.step_plan import StepResult
from gradproof.train.stopped import Diverged, Stopped
from gradproof.train.temperature import fit_temperature, keep_temperature, read_temperature

VALIDATED_ROWS = 20_000  # of a larger validation part, evenly spaced
ONCE = 3.0  # seconds within which two signals are one
ONE_RANK = "one rank"
SETTLING, TIMED = 3, 12  # steps before a time budget becomes a number of steps, and those that are timed for it


class Watch(Protocol):
    """Who looks on: a bar on a terminal, lines elsewhere. `unit` is what a row is called."""

    unit: str

    def say(self, sentence: str) -> None: ...
    def reading(self, done: int, total: int) -> None: ...
    def training(self, record: dict[str, Any], steps: int) -> None: ...


@dataclass
class Progress:
    """What a checkpoint keeps beside tensors."""

    step: int = 0
    ema: float | None = None
    losses: list[float] = field(default_factory=list)
    best_step: int | None = None
    best_accuracy: float = 0.0
    best_loss: float = 0.0  # of the best step
    lowest_loss: float | None = None  # of any step
    since_best: int = 0  # validations that improved neither
    finished: str = ""  # "finished" or "stopped early"
    seconds: float = 0.0


class Trainer:
    """A run in memory: data, model, step, and how far it has come. On a table; text is `train/text.py`."""

    model: Model
    step: TrainStep | EnsembleStep
    average: WeightAverage | None = None

    def __init__(self, run: Run, watch: Watch, mesh: Mesh | None = None):
        """On a `mesh`, every rank makes one and calls the same methods; rank 0 writes."""
        self.run, self.watch, self.config, self.mesh = run, watch, run.config, mesh
        self.at, self.board = Progress(), None
        self._open()
        self.metrics = MetricsFile(run.path / "metrics.jsonl")

    @property
    def writes(self) -> bool:
        """Whether this process writes the run's files."""
        return self.mesh is None or self.mesh.first

    def _own(self, rows: int) -> slice:
        """Of a batch of so many rows, those of this rank."""
        return slice(0, rows) if self.mesh is None else self.mesh.share(rows)

    def _open(self) -> None:
        """Data, model and step."""
        check_options(self.config)
        self.source = open_source(self.config.source, self.run.path, self.watch.reading)
        held = self.source.index(VALIDATION)
        if not len(held) or not len(self.source.index(TEST)):
            raise ValueError(
                f"{self.config.data} has {self.source.rows.count} rows with a target: too few to hold some out for "
                "validation and test; ten or more are needed"
            )
        if not self.config.settled:
            self._size()
        self._build()
        self.validated = spaced(held, VALIDATED_ROWS)

    def _size(self) -> None:
        """What follows from the table's size; where a time is given, the steps follow when the step is proven."""
        schema = self.source.schema
        self.size = TableSize(len(self.source.index(TRAIN)), schema.inputs, len(schema.classes))
        self.config = replace(self.config, **sized(self.config, self.size))

    def _build(self) -> None:
        """Model, step and what feeds it."""
        self.model = build_model(self.config, self.source.schema, self.config.device, self.mesh)
        torch.set_num_threads(thread_count(self.config, self.model))
        self.predictor = Predictor(self.model, self.source.schema, device=self.config.device)
        self.predictor.temperature, self.predictor.reach = read_temperature(self.run.path), read_reach(self.run.path)
        self.predictor.mesh, self.encoder = self.mesh, self.predictor.encoder
        self.step = build_step(self.config, self.model, self.source, self.mesh)
        if self.config.average:
            if self.mesh is not None and self.mesh.shape.experts > 1:
                raise ValueError(f"average: mesh {self.mesh.shape} spreads the experts; omit one of the two")
            self.average = WeightAverage(self.model.params, self.config.average)
        rows, seed = (self.source.rows, self.source.index(TRAIN)), self.config.seed
        self.feed = Feed(*rows, self.encoder, self.config.batch, seed, self.config.members)
        self.feed.rate, self.feed.own = self.config.dropout, None if self.mesh is None else self.mesh.share
        self.rows_each = self.feed.batch

    def settle(self) -> None:
        """Turns a time budget into a number of steps, and keeps what was chosen in config.json. The steps that are
        timed move a model that is thrown away."""
        self.feed.encode_all()
        if self.config.settled or (self.config.recipe == "none" and self.config.minutes is None):
            return
        asked = dict(self.step.choose(self._most(self.feed.batch)).chosen)
        for s in range(SETTLING):
            self.take(s)
        begun = time.perf_counter()
        for s in range(SETTLING, SETTLING + TIMED):
            float(self.take(s).loss)
            if self.average is not None:
                self.average.add(s)
        trained = time.perf_counter()
        self._evaluate()
        seconds = [(trained - begun) / TIMED, VALIDATIONS * (time.perf_counter() - trained)]
        if self.mesh is not None:
            seconds = [self.mesh.largest(each) for each in seconds]
        steps = steps_of(self.config, self.size, *seconds)
        self.run.settle(write=self.writes, **{**sized(self.run.config, self.size), "steps": steps})
        self.config = self.run.config
        encoded = self.feed
        self._build()
        self.feed, encoded.rate = encoded, self.config.dropout
        self.step.ask(asked)

    def batch(self, s: int) -> tuple[Tensor, Target]:
        """Inputs and target of step s."""
        return self.feed(s)

    def take(self, s: int) -> StepResult:
        """Step s."""
        return self.step.take(self.feed, s) if isinstance(self.step, EnsembleStep) else self.step(*self.batch(s))

    def kernels(self) -> dict[str, str]:
        """Which way each op of this run is run."""
        rows = self._most(self.config.batch)
        return dict(self.step.choose(min(rows, self.config.micro_rows or rows)).chosen)

    def _most(self, rows: int) -> int:
        """Of so many rows, how many a rank has at most."""
        return rows if self.mesh is None else -(-rows // self.mesh.size)

    def rehearse(self) -> None:
        """Proves the step at this run's size, before it has begun: full batches, and those of a run's last rows."""
        whole = self._first_target()

        def target(rows: int) -> Target:
            """Of the first batch, over and over."""
            index_T = torch.arange(rows, device=self.config.device) % self._count(whole)
            return tuple(own[index_T] for own in whole) if isinstance(whole, tuple) else whole[index_T]

        sizes, count = list[int](), self._count(whole)
        for rows in (self._most(count), count // (self.mesh.size if self.mesh else 1) or 1):
            most = self.config.micro_rows or rows
            sizes += [min(most, rows), rows % most or most]
        training = self.first.training
        with training.alone() if isinstance(training, MeshTraining) else nullcontext():
            refused = rehearse(self.first, sizes, target, self.watch.say)
        if refused and isinstance(self.step, EnsembleStep):
            self.step.ask(dict(self.first.kernels.chosen))

    def _first_target(self) -> Target:
        """Of one member's first batch."""
        return self.feed.taken(self.feed.batches[0][0])[1]

    def _rows_of(self, s: int) -> np.ndarray:
        return np.concatenate([batches[s] for batches in self.feed.batches])

    @property
    def first(self) -> TrainStep:
        """The step, or that of an ensemble's first member: they are alike."""
        return self.step.first if isinstance(self.step, EnsembleStep) else self.step

    @staticmethod
    def _count(target: Target) -> int:
        return len(target[0]) if isinstance(target, tuple) else len(target)

    def resume(self) -> None:
        """Goes back to the newest whole checkpoint, or to step 0."""
        newest = checkpoint.newest(self.run.checkpoints, self.watch.say)
        if newest is None and checkpoint.steps(self.run.checkpoints):
            self.watch.say("no checkpoint is intact: starting again at step 0")
        if self.writes:
            checkpoint.set_aside(self.run.checkpoints, after=newest.step if newest else -1)
        if newest is not None:
            self._check_environment(newest.state["environment"])
            restore(self.model, newest)
            self.step.load_state(newest.tensors(checkpoint.STEP), newest.step)
            if self.average is not None:
                self.average.load_state(newest.tensors(checkpoint.STEP))
            self.at = Progress(**newest.state["progress"])
        if not self.writes:
            return
        self.metrics.cut(self.at.step)
        if self.config.tensorboard:
            self.board = summary_writer()(str(self.run.path / "tensorboard"), purge_step=self.at.step)

    def train(self) -> None:
        """To the last step, to where patience ends, or to the first Ctrl-C."""
        started, window_start, window = time.perf_counter(), time.perf_counter(), self.at.step
        before = self.at.seconds
        pending: list[tuple[int, StepResult]] = []
        with interruptible(0.0 if self.mesh is None else ONCE) as interrupted, watched(self.mesh):
            while not self.at.finished:
                s = self.at.step
                self._tell(interrupted)
                result = self.take(s)
                pending.append((s, result))
                self.at.step = s + 1
                if self.average is not None:
                    self.average.add(self.at.step)
                validating = self.at.step % self.config.interval == 0 or self.at.step == self.config.steps
                logging = self.at.step % self.config.log_every == 0 or validating or s == 0
                reading = self.config.device == "cpu" or logging
                stopping = self._stopping(interrupted, reading)
                if reading or stopping:
                    self._read(pending)
                if self.mesh is not None and (validating or self.at.step % self.config.compare_every == 0):
                    self._compare()
                self.at.seconds = before + time.perf_counter() - started
                if logging:
                    rate = (self.at.step - window) * self.rows_each / max(time.perf_counter() - window_start, 1e-9)
                    record = self._record(result, rate)
                    if validating:
                        with self._averaged():
                            record |= self._validate()
                    self._write(record)
                    window_start, window = time.perf_counter(), self.at.step
                stopping = stopping or (self.mesh is None and bool(interrupted))  # while it was written, say
                if validating or stopping:
                    self.save()
                if stopping and not self.at.finished:
                    raise KeyboardInterrupt
        if self.writes:
            (self.run.path / "failed.json").unlink(missing_ok=True)

    def _tell(self, interrupted: list[bool]) -> None:
        """The other ranks, with this step, that this one was interrupted; and that it lives."""
        if self.mesh is not None:
            self.mesh.wish = float(bool(interrupted))
            self.mesh.pulse.progress(f"step {self.at.step}")

    def _stopping(self, interrupted: list[bool], reading: bool) -> bool:
        """Whether this step is the last, because somebody was interrupted: all ranks stop at the same one."""
        if self.mesh is None:
            return bool(interrupted)
        return reading and self.mesh.heard is not None and bool(self.mesh.heard > 0)

    def _compare(self) -> None:
        """Stops where ranks that should hold the same parameters do not."""
        try:
            for step in self.step.steps if isinstance(self.step, EnsembleStep) else [self.step]:
                if isinstance(step.training, MeshTraining):
                    step.training.replicas.compare(self.at.step)
        except Drifted as drifted:
            raise Stopped(f"{drifted}; {self._last_good()}") from None

    def _read(self, pending: list[tuple[int, StepResult]]) -> None:
        """Takes the losses over and stops at the first that is not finite. Here the device is waited for."""
        for s, result in pending:
            # fp16 skips a step whose scaled gradient overflowed, until its scale cannot be halved any more.
            if bool(result.skipped) and float(result.scale) == 1:
                self._fail(s, result)
            loss = float(result.loss)
            if not bool(result.skipped):
                self.at.ema = ema(self.at.ema, loss)
                self.at.losses = [*self.at.losses, loss][-KEPT:]
        pending.clear()

    def _fail(self, s: int, result: StepResult) -> None:
        """Names the rows: those with outputs that are not finite, or else the whole batch."""
        index = self._rows_of(s)
        own, logits_TO = index[self._own(len(index))], self._logits(s)
        bad = own[(~logits_TO.isfinite()).view(len(own), -1).any(1).cpu().numpy()] if len(own) else own
        if self.mesh is not None:
            bad = np.array([row for text in self.mesh.texts(json.dumps(bad.tolist())) for row in json.loads(text)], int)
        named, what = (bad, "with outputs that are not finite") if len(bad) else (index, "in the batch")
        shown = ", ".join(map(str, named[:8])) + (f" and {len(named) - 8} more" if len(named) > 8 else "")
        kind = "gradient" if bool(result.loss.isfinite()) else "loss"
        record = {"step": s, "loss": str(float(result.loss)), "rows": index.tolist(), "not_finite": bad.tolist()}
        file = self.run.path / "failed.json"
        with suppress(OSError) if self.writes else nullcontext():  # a full disk must not hide what happened
            if self.writes:
                write_atomically(file, json.dumps(record) + "\n")
        raise Diverged(
            f"the {kind} of step {s} is not finite; rows {what}: {shown} (all in {file}); {self._last_good()}; "
            "try a lower --lr, with another --out"
        )

    def _logits(self, s: int) -> Tensor:
        """Of the rows of step s; of an ensemble, what each member says of its own."""
        if not isinstance(self.step, EnsembleStep):
            return self.model.apply(self.step.training.weights, self.batch(s)[0])[0].logits_TO
        members = [step.model for step in self.step.steps]
        return torch.cat([one.apply(one.params, self.feed(s, m)[0])[0].logits_TO for m, one in enumerate(members)])

    def _last_good(self) -> str:
        saved = checkpoint.steps(self.run.checkpoints)
        if not saved:
            return "no checkpoint was saved yet"
        return f"the last good checkpoint is {self.run.checkpoints / f'step-{saved[-1]}'}"

    def _record(self, result: StepResult, rate: float) -> dict[str, Any]:
        memory = memory_bytes(self.config.device)
        share_E = result.load.double() / result.load.sum()
        energy = {"router_energy": float(result.energy)} if self.config.router == "sheaf" else {}
        return {
            "step": self.at.step,
            "rows": self.at.step * self.rows_each,
            "loss": float(result.loss),
            "loss_ema": self.at.ema,
            "trend": trend(self.at.losses),
            "lr": self.first.optimizer.lr,
            "grad_norm": float(result.grad_norm),
            "router_entropy": float(result.entropy),
            **energy,
            "per_expert_share": share_E.tolist(),
            "rows_per_s": rate,
            "memory": memory if self.mesh is None else int(self.mesh.largest(memory)),
            "skipped": int(self.first.training.skipped),
        }

    def _evaluate(self) -> tuple[float, float, dict[str, Any]]:
        """Loss and accuracy of the validation rows, and what of them is logged; a number has no accuracy."""
        if self.source.schema.quantity:
            loss, rmse = evaluate_number(self.predictor, self.source.rows, self.validated)
            return loss, 0.0, {"validation_loss": loss, "validation_rmse": rmse}
        loss, accuracy, recall_C = evaluate(self.predictor, self.source.rows, self.validated)
        lowest = worst(recall_C)
        logged = {
            "validation_loss": loss,
            "validation_accuracy": accuracy,
            "validation_balanced_accuracy": balanced_accuracy(recall_C),
            "validation_worst_class": self.source.schema.classes[lowest],
            "validation_worst_recall": float(recall_C[lowest]),
        }
        return loss, accuracy, logged

    def _validate(self) -> dict[str, Any]:
        """Scores the validation rows, and decides what is best and whether to go on."""
        loss, accuracy, logged = self._evaluate()
        at = self.at
        if not math.isfinite(loss):
            raise Diverged(
                f"the model's outputs for validation rows are not finite after step {at.step}, which is not saved; "
                f"{self._last_good()}; try a lower --lr, with another --out"
            )
        surer = at.lowest_loss is None or loss < at.lowest_loss
        better = surer if self._by_loss() else self._more_accurate(accuracy, loss)
        patient = at.step > self.config.patience_after
        at.since_best = 0 if better or surer else at.since_best + patient
        if better:
            at.best_step, at.best_accuracy, at.best_loss = at.step, accuracy, loss
        if surer:
            at.lowest_loss = loss
        if at.step == self.config.steps:
            at.finished = "finished"
        elif self.config.patience is not None and at.since_best >= self.config.patience:
            at.finished = "stopped early"
        return logged

    def _by_loss(self) -> bool:
        return self.config.select == "loss" or self.source.schema.quantity is not None

    def _more_accurate(self, accuracy: float, loss: float) -> bool:
        return self.at.best_step is None or (accuracy, -loss) > (self.at.best_accuracy, -self.at.best_loss)

    def calibrate(self) -> None:
        """Fits the temperature of the model as it is to the validation rows, for a run that selects by log loss; of a
        number, how far its interval reaches."""
        if self.source.schema.quantity:
            self._calibrate_interval()
            return
        if self.config.select != "loss":
            return
        self.predictor.temperature = 1.0
        predicted, outcome_T = predictions(self.predictor, self.source.rows, self.validated), self._outcome()
        self.predictor.temperature = fit_temperature(predicted.probability_TC, outcome_T)
        keep_temperature(self.run.path, self.predictor.temperature, len(outcome_T))

    def _calibrate_interval(self) -> None:
        rows, index_T = self.source.rows, self.validated
        value_T = true_values(rows.take(index_T), self.source.schema)
        self.predictor.reach = fit_reach(predictions(self.predictor, rows, index_T).number_TV, value_T)
        keep_reach(self.run.path, self.predictor.reach, len(index_T))

    def _outcome(self) -> np.ndarray:
        return np.asarray(self.source.rows.outcome_R[self.validated])

    def _write(self, record: dict[str, Any]) -> None:
        if not self.writes:
            return
        try:
            self.metrics.append(record)
        except OSError as error:
            raise self._could_not_save(self.metrics.path, error) from None
        if self.board is not None:
            for name, value in record.items():
                if isinstance(value, (int, float)):
                    self.board.add_scalar(name, value, record["step"])
        self.watch.training(record, self.config.steps)

    def save(self) -> None:
        """A checkpoint of this moment; the one before survives a disk that is full."""
        here = environment(self.config, self.kernels())
        if self.mesh is not None:
            here["mesh"] = self._layout()
        state = {"progress": asdict(self.at), "environment": here}
        try:
            if self.writes:
                self.metrics.sync()
            with self._averaged():
                self._save(state)
            if self.writes:
                checkpoint.prune(self.run.checkpoints, self.at.best_step)
        except (OSError, SafetensorError) as error:
            raise self._could_not_save(self.run.checkpoints / f"step-{self.at.step}", error) from None

    def _save(self, state: dict[str, Any]) -> None:
        checkpoints, step, tensors = self.run.checkpoints, self.at.step, {**self.model.params, **self.model.buffers}
        moving = self.average.state() if self.average is not None and self.writes else {}
        if self.mesh is None:
            checkpoint.save(checkpoints, step, tensors, {**self.step.state(), **moving}, state)
            return
        training = self.first.training
        if isinstance(self.step, TrainStep) and isinstance(training, MeshTraining):
            tensors = training.written_model()
        elif not self.writes:
            tensors = {}
        mesh_checkpoint.save(self.mesh, checkpoints, step, tensors, {**self.step.written(), **moving}, state)
        self.mesh.pulse.advice = f"; {self._last_good()}; {self.again()}"

    def _averaged(self) -> AbstractContextManager[None]:
        """The model as it is validated and saved."""
        return nullcontext() if self.average is None else self.average.shown()

    def _layout(self) -> str:
        """How this run is spread over ranks."""
        if self.mesh is None:
            return ONE_RANK
        return f"{self.mesh.shape}{', sharded optimizer' if self.config.shard_optimizer else ''}"

    def again(self) -> str:
        """What to type to go on."""
        if self.mesh is None:
            return f"gradproof train --resume --out {self.run.path}"
        return f"torchrun --nproc-per-node N -m gradproof train --resume --out {self.run.path}, with any N"

    def alone(self) -> None:
        """Leaves the mesh: what comes now is done by one process, which holds the whole model."""
        if self.mesh is None:
            return
        self.mesh = self.predictor.mesh = None
        if getattr(self.model, "ranks", None) is not None:
            fitted = self.predictor.temperature, self.predictor.reach
            self.model = build_model(self.config, self.source.schema, self.config.device)
            self.predictor = Predictor(self.model, self.source.schema, device=self.config.device)
            self.predictor.temperature, self.predictor.reach = fitted

    def _could_not_save(self, path: Path, error: Exception) -> Stopped:
        again = f"free some space, then run: {self.again()}"
        return Stopped(f"{path} could not be written ({error}); {self._last_good()}; {again}")

    def _check_environment(self, then: dict[str, Any]) -> None:
        layouts = then.pop("mesh", ONE_RANK), self._layout()
        before = then.pop("kernels", {})
        if isinstance(before, dict):
            self.step.ask(before)
        now = environment(self.config, self.kernels())
        then |= {f"kernel of {op}": kernel for op, kernel in before.items()} if isinstance(before, dict) else {}
        now |= {f"kernel of {op}": kernel for op, kernel in now.pop("kernels").items()}
        if layouts[0] != layouts[1]:
            then["mesh"], now["mesh"] = layouts
        changed = [f"{name} {then.get(name)} → {now[name]}" for name in now if then.get(name) != now[name]]
        if changed:
            self.watch.say(f"the environment has changed ({', '.join(changed)}): the result will not be bit-exact")
