"""What does `verify` say of torch's own tables of modules and operators, whose samples nobody here wrote?

    python benchmarks/torch_tables.py --json torch_tables.json
    python benchmarks/torch_tables.py --only 'linalg.*' --table operators

`modules` is `common_modules.module_db`: the first two samples of each, in training and in evaluation mode. `operators`
is `common_methods_invocations.op_db`: the first sample of each differentiable operator, called by a small module whose
inputs are the sample's tensors that require a gradient and whose output is the part that the table differentiates
(`output_process_fn_grad`). Where the first sample is empty, the first that is not takes its place. The samples are
float32, or float64 and then complex64 where the table has none. An exception is recorded as `raises`.

Both tables are private to torch and import `expecttest` for a base class of tests. Where that package is not installed
an empty class stands in for it.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import importlib.util
import inspect
import json
import sys
import time
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

import gradproof
from gradproof.proof.verdict import environment

STATUSES = ("proven", "inconclusive", "refuted", "raises")
SAMPLES = 2  # of each module
DTYPES = (torch.float32, torch.float64, torch.complex64)
Made = Callable[[], tuple[nn.Module, Any]]


class Entry(NamedTuple):
    """One line of a table, and how to make its module and inputs."""

    name: str
    make: Made


class Operator(nn.Module):
    """An operator on one sample; the tensors that require a gradient are its inputs, the rest belongs to it."""

    def __init__(self, op: Callable[..., Any], sample: Any):
        super().__init__()
        self.op, self.process = op, sample.output_process_fn_grad
        self.leaves, self.structure = tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        self.places = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
        self.given = tuple(self.leaves[i].detach().requires_grad_() for i in self.places)
        for i in self.places:
            self.leaves[i] = None

    def forward(self, *inputs: Tensor) -> Any:
        leaves = list(self.leaves)
        for i, tensor in zip(self.places, inputs, strict=True):
            leaves[i] = tensor
        first, args, kwargs = tree_unflatten(leaves, self.structure)
        return self.process(self.op(first, *args, **kwargs))


def table(module: str, name: str) -> list[Any]:
    """A table of torch's, imported so that the process is left as it was."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    mutable = torch.backends.__allow_nonbracketed_mutation_flag
    try:
        return list(getattr(importlib.import_module(f"torch.testing._internal.{module}"), name))
    except ImportError as error:
        sys.exit(f"torch {torch.__version__} cannot import its own table {module}.{name}: {error}")
    finally:
        torch.backends.__allow_nonbracketed_mutation_flag = mutable


def modules() -> Iterator[Entry]:
    for info in table("common_modules", "module_db"):
        for training in (True, False):
            for number in range(len(_module_samples(info, training))):
                name = f"{info.name}[{number}] {'train' if training else 'eval'}"
                yield Entry(name, lambda info=info, number=number, training=training: made(info, number, training))


def _module_samples(info: Any, training: bool) -> list[Any]:
    torch.manual_seed(0)
    samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    return list(samples)[:SAMPLES]


def made(info: Any, number: int, training: bool) -> tuple[nn.Module, Any]:
    sample = _module_samples(info, training)[number]
    constructor, forward = sample.constructor_input, sample.forward_input
    module = info.module_cls(*constructor.args, **constructor.kwargs).train(training)
    if info.is_lazy:
        with torch.no_grad():
            module(*forward.args, **forward.kwargs)
    if not forward.kwargs:
        return module, tuple(forward.args)
    return module, dict(inspect.signature(module.forward).bind(*forward.args, **forward.kwargs).arguments)


def operators() -> Iterator[Entry]:
    for op in table("common_methods_invocations", "op_db"):
        dtypes = [dtype for dtype in DTYPES if dtype in op.supported_backward_dtypes("cpu")]
        if op.supports_autograd and dtypes:
            yield Entry(op.full_name, lambda op=op, dtype=dtypes[0]: applied(op, dtype))


def applied(op: Any, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    samples = (Operator(op.op, sample) for sample in op.sample_inputs("cpu", dtype, requires_grad=True))
    module = next(samples)
    if module.given and not any(tensor.numel() for tensor in module.given):
        module = next((later for later in samples if all(tensor.numel() for tensor in later.given)), module)
    return module, module.given


TABLES: dict[str, Callable[[], Iterator[Entry]]] = {"modules": modules, "operators": operators}


def judged(entry: Entry) -> dict[str, Any] | None:
    """The record of one entry; None where its sample has nothing to differentiate."""
    start = time.perf_counter()
    record: dict[str, Any] = {"name": entry.name}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module, inputs = entry.make()
            if isinstance(module, Operator) and not inputs:
                return None
            report = gradproof.verify(module, inputs, name=entry.name)
    except (Exception, SystemExit) as error:
        sentence = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return {**record, "status": "raises", "seconds": _since(start), "summary": sentence, "notes": []}
    (subject,) = report.subjects
    tensors = [f"{j.name} is {j.status}: {j.note}" for j in (*subject.parameters, *subject.inputs) if j.note]
    notes = [*subject.notes, *tensors]
    return {**record, "status": report.status, "seconds": _since(start), "summary": report.summary, "notes": notes}


def _since(start: float) -> float:
    return round(time.perf_counter() - start, 3)


def walk(name: str, pattern: str, every: int) -> Iterator[dict[str, Any]]:
    """The records of a table: every so many of those that match."""
    matching = [entry for entry in TABLES[name]() if fnmatch.fnmatch(entry.name, pattern)]
    for entry in matching[::every]:
        record = judged(entry)
        if record is not None:
            yield record


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", choices=TABLES, help="One table; default: both.")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="Names that match, with * and ?.")
    parser.add_argument("--every", metavar="N", type=int, default=1, help="Every N-th of them only.")
    parser.add_argument("--json", metavar="FILE", help="Writes every entry's status, time and summary.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {"environment": environment("cpu"), "counts": {}}
    for name in [options.table] if options.table else TABLES:
        entries = record[name] = []
        for judged_entry in walk(name, options.only, options.every):
            entries.append(judged_entry)
            progress(judged_entry)
        record["counts"][name] = dict(Counter(judged_entry["status"] for judged_entry in entries))
    print(f"{'':12}{''.join(f'{status:>14}' for status in (*STATUSES, 'share proven'))}")
    for name, counts in record["counts"].items():
        share = counts.get("proven", 0) / max(sum(counts.values()), 1)
        print(f"{name:12}{''.join(f'{counts.get(status, 0):14}' for status in STATUSES)}{share:14.1%}")
    if options.json:
        Path(options.json).write_text(json.dumps(record, indent=1) + "\n")


def progress(record: dict[str, Any]) -> None:
    """One line for what is not proven, as it comes."""
    if record["status"] != "proven":
        print(f"{record['status']:13} {record['name']:45} {record['summary']}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
