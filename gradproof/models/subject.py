"""A model on one example as a Subject, and the judging of a model in all its options.

For the witnesses the forward is a function of the parameters; what is judged is the real forward and backward on the
flat buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from gradproof.contract import Contract, Example, Gradients, Outputs, Subject
from gradproof.models.families import family
from gradproof.models.model import Model
from gradproof.proof.examples import examples
from gradproof.proof.judge import judge_contract
from gradproof.proof.operation import moved
from gradproof.proof.verdict import SubjectVerdict

SMALL = dict(inputs=7, outputs=5, hidden=6, feedforward=9, depth=2, blocks=2)
SMALL_TRANSFORMER = dict(vocabulary=7, width=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=9, context=6)


def subject(kind: type[Model], name: str, example: Example, dtype: torch.dtype, device: str) -> Subject:
    """The example's options hold the `config` and perhaps `buffers` by name; its arguments are x and any parameters set
    to particular values."""
    model = kind(example.options["config"], seed=1, dtype=dtype, device=device)
    if "router.correction" in model.buffers:
        model.buffers["router.correction"] += torch.linspace(0.3, -0.3, model.config.experts).to(model.params.flat_P)
    for buffer, value in example.options.get("buffers", {}).items():
        model.buffers[buffer].copy_(value)
    whole = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, example.options.get("whole"))
    given = {argument: moved(value, dtype, device) for argument, value in example.arguments.items()}
    tokens = {argument: value for argument, value in given.items() if not value.is_floating_point()}
    floating = {argument: value for argument, value in given.items() if argument not in tokens}
    values = {**{parameter: view.clone() for parameter, view in model.params.items()}, **floating}

    def run(values: Mapping[str, Tensor], cotangents: Outputs | None) -> tuple[Outputs, Gradients]:
        x_TI = tokens["x"] if tokens else values["x"]
        if cotangents is None:
            output, _ = model.apply(model.params.pack(values), x_TI, whole)
            return (output.logits_TO, output.aux), {}
        for parameter, view in model.params.items():
            view.copy_(values[parameter])
        output, tape = model.forward(x_TI, whole)
        model.params.grad_P.fill_(torch.nan)  # what backward does not write stays visible
        dx_TI = model.backward(cotangents[0], tape, d_aux=cotangents[1])
        grads = {parameter: grad.clone() for parameter, grad in model.params.grads.items()}
        return (output.logits_TO, output.aux), {**grads, **({} if dx_TI is None else {"x": dx_TI})}

    return Subject(name, values, run, frozenset(floating))


def judge_model(
    name: str,
    kind: type[Model] | None = None,
    *,
    seed: int = 0,
    device: str = "cpu",
    quick: bool = False,
    first: str = "",
) -> Iterator[SubjectVerdict]:
    """Proves or refutes a model, one verdict for each of its options and edges; options that say `by_name` are judged
    tensor by tensor. `kind` is the class of a model that stands elsewhere, its contract beside it. The option labelled
    `first` comes before the others."""
    kind = kind or family(name)
    contract = _contract(kind)
    for options in sorted(contract.options, key=lambda options: options["label"] != first):
        label = f"{name}: {options['label']}"
        sizes = options.get("sizes", contract.sizes)
        tried = examples(label, replace(contract, options=(options,), sizes=sizes, edges=()), seed)
        yield _judge(kind, label, tried, seed, device, quick, options.get("by_name", False))
    for example in examples(name, replace(contract, options=()), seed):
        yield _judge(kind, f"{name}: {example.label}", [example], seed, device, quick)


def judge_config(name: str, config: Any, *, seed: int = 0) -> SubjectVerdict:
    """Judges the options of a config at a small width, in well under a second, before a run trains."""
    most = SMALL_TRANSFORMER if name == "transformer" else SMALL
    small: dict[str, Any] = {size: min(getattr(config, size), most[size]) for size in most if hasattr(config, size)}
    if getattr(config, "patches", ()):
        small["patches"] = small_patches(len(config.patches), small["inputs"])
    kind = family(name)
    contract = replace(_contract(kind), options=(dict(config=replace(config, **small)),), edges=())
    label = f"{name}: this run's options"
    return _judge(kind, label, examples(label, contract, seed), seed, "cpu", quick=True)


def small_patches(count: int, inputs: int) -> tuple[int, ...]:
    """Splits so many inputs into at most three patches."""
    count = min(count, inputs, 3)
    return (inputs - count + 1, *[1] * (count - 1))


def _contract(kind: type[Model]) -> Contract:
    return import_module(kind.__module__).CONTRACT


def _judge(
    kind: type[Model],
    label: str,
    tried: Iterable[Example],
    seed: int,
    device: str,
    quick: bool,
    by_name: bool = False,
) -> SubjectVerdict:
    def build(example: Example, dtype: torch.dtype) -> Subject:
        return subject(kind, label, example, dtype, device)

    how: dict[str, Any] = dict(seed=seed, device=device, quick=quick, by_name=by_name and not quick)
    return judge_contract(label, _contract(kind), tried, build, **how)
