"""One of our models on a batch, for `diagnose`: the loss and gradients of its training step.

In bf16 and fp16 the products read a narrow copy of the weights, and what the model keeps wide stays fp32, as in
`TrainStep`; the loss scale is the run's own where it trained in fp16.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradproof.contract import Gradients, Outputs, Subject
from gradproof.data.batches import Batches
from gradproof.data.encoders import Encoder
from gradproof.data.source import open_source
from gradproof.data.split import TRAIN
from gradproof.data.text import Windows, at_places, open_text
from gradproof.diagnosis.specimen import Prepared
from gradproof.models.model import Model
from gradproof.models.sublayer import running
from gradproof.ops import NARROW
from gradproof.proof.differences import judge
from gradproof.proof.runner import INPUT
from gradproof.proof.verdict import SubjectVerdict
from gradproof.train import checkpoint
from gradproof.train.assembly import build_step
from gradproof.train.load import load_model
from gradproof.train.loss import Loss, Target
from gradproof.train.narrow import NarrowWeights
from gradproof.train.run import Run
from gradproof.train.text import load_text_model

X = INPUT + "x"
WINDOWS = 2  # of a text, in which a run of ours is diagnosed


class ModelSpecimen:
    """A model of ours with its loss and a batch. `scale` is the loss scale, where training has one. Tokens have no
    gradient: they are no input that is judged."""

    native = True

    def __init__(
        self,
        model: Model,
        loss: Loss,
        x_TI: Tensor,
        target: Target,
        *,
        name: str,
        seed: int = 0,
        scale: float | None = None,
        notes: Sequence[str] = (),
    ):
        self.model, self.loss, self.x_TI, self.target = model, loss, x_TI, target
        self.name, self.seed, self.scale, self.notes = name, seed, scale, list(notes)
        self.inputs = frozenset({X}) if x_TI.is_floating_point() else frozenset()
        self.cotangents: Outputs = (torch.ones((), dtype=torch.float64, device=x_TI.device),)
        self.places = OpPlaces()

    def verify(self, quick: bool, progress: Callable[[int, int], None]) -> SubjectVerdict:
        """Step 1: the explicit backward of this very state against differences of the forward."""
        prepared = self.reference()
        subject = Subject(self.name, prepared.values, prepared.run, self.inputs)
        _, grads = prepared.run(prepared.values, self.cotangents)
        verdict = judge(subject, self.cotangents, grads, seed=self.seed, quick=quick, progress=progress)
        parameters = [j for j in verdict.judgements if j.name != X]
        inputs = [j for j in verdict.judgements if j.name == X]
        for j in inputs:
            j.name = "x"
        return SubjectVerdict(
            self.name,
            verdict.status,
            parameters,
            inputs,
            verdict.forwards,
            verdict.directions,
            self.seed,
            verdict.notes,
        )

    def reference(self) -> Prepared:
        return self._prepared(torch.float64, torch.float64)

    def narrow(self, dtype: torch.dtype) -> Prepared:
        return self._prepared(torch.float32, dtype)

    def close(self) -> None:
        """Nothing of the run was changed."""

    def _prepared(self, masters: torch.dtype, dtype: torch.dtype) -> Prepared:
        own = self.model
        model = type(own)(own.config, dtype=masters, device=own.params.flat_P.device)
        for name, buffer in own.buffers.items():
            model.buffers[name] = buffer.to(masters)
        values = {name: view.to(masters, copy=True) for name, view in own.params.items()}
        values |= {X: self.x_TI.to(masters)} if self.inputs else {}
        return Prepared(values, lambda v, c: self._run(model, dtype, v, c))

    @torch.no_grad()
    def _run(
        self, model: Model, dtype: torch.dtype, values: Mapping[str, Tensor], cotangents: Outputs | None
    ) -> tuple[Outputs, Gradients]:
        for name, view in model.params.items():
            view.copy_(values[name])
        weights = NarrowWeights(model.params, dtype) if dtype in NARROW else model.params
        masters = model.params.flat_P.dtype
        x_TI, target = values[X] if self.inputs else self.x_TI, _like(self.target, masters)
        self.places.phase = "forward"
        output, saved = model.apply(weights, x_TI)
        loss, kept = self.loss.forward(output.logits_TO, target, self.loss.total([target]))
        if cotangents is None:
            return (loss + output.aux,), {}
        self.places.phase = "backward"
        scale = cotangents[0].to(masters)
        d_logits_TO = self.loss.backward(scale, kept, output.logits_TO, target)
        dx_TI = model.pull_back(weights, model.params.grad_P, (d_logits_TO, scale), x_TI, saved)
        grads: Gradients = {name: g.clone() for name, g in model.params.grads.items()}
        return (loss + output.aux,), grads if dx_TI is None else {**grads, X: dx_TI}


class OpPlaces:
    """Where an op of ours ran: the sublayer by its prefix, and the op. `phase` is set by whoever runs the model."""

    phase = "forward"

    def __enter__(self) -> OpPlaces:
        return self

    def __exit__(self, *failure: Any) -> None:
        pass

    def current(self) -> tuple[str, str]:
        return running() + _innermost_op(), self.phase


def _innermost_op() -> str:
    """The op whose code is running, by the module of the functions that were called."""
    frame = sys._getframe(1)
    while frame is not None:
        package, _, op = frame.f_globals.get("__name__", "").rpartition(".")
        if package == "gradproof.ops":
            return op
        frame = frame.f_back
    return ""


def _like(target: Any, dtype: torch.dtype) -> Any:
    """The target with its floating tensors in `dtype`."""
    if isinstance(target, tuple):
        return tuple(_like(part, dtype) for part in target)
    return target.to(dtype) if target.is_floating_point() and target.dtype != dtype else target


def run_specimen(path: Path, device: str, seed: int) -> ModelSpecimen:
    """The best checkpoint of a run, on the batch that would come next."""
    run = Run(path)
    if run.config.model == "transformer":
        return _text_specimen(run, device, seed)
    model, schema, step = load_model(path, device)
    source = open_source(run.config.source, path)
    rows = source.rows.take(Batches(source.index(TRAIN), run.config.batch, run.config.seed)[step])
    encoder = Encoder(schema, device, torch.float32)
    return ModelSpecimen(
        model,
        build_step(run.config, model, source).loss,
        encoder.inputs(rows),
        encoder.target(rows),
        name=str(path),
        seed=seed,
        scale=_scale(run, step) if run.config.precision == "fp16" else None,
        notes=[f"checkpoint {step}, a batch of {rows.count} of its training rows"],
    )


def _text_specimen(run: Run, device: str, seed: int) -> ModelSpecimen:
    """A few windows are enough, and differences take many forwards."""
    model, best = load_text_model(run.path, device)
    context = model.config.context
    shares = (run.config.validation, run.config.test)
    train_N = open_text(run.config.data, shares, run.path, context).part(TRAIN)
    windows = Windows(len(train_N), context, min(run.config.batch, WINDOWS), run.config.seed)
    token_BS, target_BS = (
        torch.from_numpy(array_BS).to(device) for array_BS in at_places(train_N, windows[best.step], context)
    )
    return ModelSpecimen(
        model,
        Loss("cross_entropy", **model.loss_options["cross_entropy"]),
        token_BS,
        target_BS,
        name=str(run.path),
        seed=seed,
        scale=_scale(run, best.step) if run.config.precision == "fp16" else None,
        notes=[f"checkpoint {best.step}, {len(token_BS)} windows of its training text"],
    )


def _scale(run: Run, step: int) -> float | None:
    """The loss scale of the checkpoint."""
    best = checkpoint.best(run.checkpoints, lambda sentence: None)
    return float(best.tensors(checkpoint.STEP)["scale"]) if best is not None and best.step == step else None
