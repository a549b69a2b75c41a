"""How small a wrong factor in the training dtype does `verify` still refute, tensor by tensor?

    python benchmarks/smallest_factor.py
    python benchmarks/smallest_factor.py --model qwen2_moe --dtype bf16 --seeds 5 --json factors.json
    python benchmarks/smallest_factor.py --model mixtral --dtype autocast --each 'gate.weight'

The models are those of tests/proof/test_huggingface.py. The gradient of a parameter is multiplied by a factor wherever
it is not float64, so that the proof in float64 succeeds and only the check `dtype` can see it. A hook on a parameter
changes no other gradient, so one run of `verify` plants the factor in every parameter at once; the factors rise along
FACTORS until each parameter has been refuted. `--each PATTERN` plants it in one parameter at a time, which is slower.

Printed are, for each model and dtype, the median and the largest of the smallest refuted factors, then every parameter
above what is asked (1.001 in float32, 1.05 in bf16), and those refuted at no factor: their gradient is zero, so that a
factor changes nothing. Factor 1 comes first: what is refuted there is a false alarm.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gradproof
from gradproof.proof.calls import WAYS
from gradproof.proof.verdict import environment

FACTORS = (
    1.0, 1.0001, 1.0002, 1.0005, 1.001, 1.002, 1.005, 1.01, 1.015, 1.02, 1.025, 1.03, 1.035, 1.04, 1.045, 1.05, 1.06,
    1.08, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.7, 2.0,
)  # fmt: skip
MODELS = ("mixtral", "qwen2_moe", "gpt2", "bert")
DTYPES: dict[str, dict[str, Any]] = {"float32": {}, "bf16": {"dtype": "bf16"}, "autocast": {"autocast": "bf16"}}
ASKED = {"float32": 1.001, "bf16": 1.05, "autocast": 1.05}
LEAST = {"float32": 1.0001, "bf16": 1.01, "autocast": 1.01}  # the first factor that is tried
TESTS = Path(__file__).resolve().parent.parent / "tests" / "proof"


def smallest(make: Callable[[], nn.Module], dtype: str, seed: int, pattern: str | None) -> dict[str, float | None]:
    """By parameter, the smallest factor that is refuted; None where none is."""
    names = [name for name, p in make().named_parameters() if p.requires_grad]
    if pattern is None:
        return _raised(make, dtype, seed, names, names)
    return {name: _raised(make, dtype, seed, [name], [name])[name] for name in names if pattern in name}


def _raised(
    make: Callable[[], nn.Module], dtype: str, seed: int, planted: Collection[str], sought: Collection[str]
) -> dict[str, float | None]:
    smallest_factors: dict[str, float | None] = dict.fromkeys(sought)
    for factor in (1.0, *(f for f in FACTORS if f >= LEAST[dtype])):
        for name in refuted(make, dtype, seed, factor, planted) & set(sought):
            if smallest_factors[name] is None:
                smallest_factors[name] = factor
        if None not in smallest_factors.values():
            break
    return smallest_factors


def refuted(make: Callable[[], nn.Module], dtype: str, seed: int, factor: float, planted: Collection[str]) -> set[str]:
    """The parameters that `verify` refutes with the factor planted."""
    torch.manual_seed(seed)
    model = make()
    for name, p in model.named_parameters():
        if name in planted and factor != 1:
            p.register_hook(_narrow_hook(factor))
    tokens = torch.randint(0, 64, (2, 10))
    report = gradproof.verify(model, (tokens,), quick=True, seed=seed, skip=tuple(WAYS), **DTYPES[dtype])
    (subject,) = report.subjects
    return {j.name for j in subject.parameters if j.status == "refuted"}


def _narrow_hook(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda g: g if g.dtype == torch.float64 else g * factor


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, help="One model; default: all.")
    parser.add_argument("--dtype", choices=DTYPES, help="One dtype; autocast is that of bf16; default: all.")
    parser.add_argument("--seeds", metavar="N", type=int, default=1, help="Models with other values; default: 1.")
    parser.add_argument("--each", metavar="PATTERN", help="One parameter at a time, of those whose name contains it.")
    parser.add_argument("--json", metavar="FILE", help="Writes every parameter's factor.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(TESTS))
    models = importlib.import_module("test_huggingface")
    record: dict[str, Any] = {"environment": environment("cpu"), "factors": []}
    print(f"{'model':12}{'dtype':10}{'seed':>5}{'tensors':>9}{'median':>9}{'largest':>9}   above what is asked")
    for model in [options.model] if options.model else MODELS:
        for dtype in [options.dtype] if options.dtype else DTYPES:
            for seed in range(options.seeds):
                factors = smallest(getattr(models, model), dtype, seed, options.each)
                record["factors"].append({"model": model, "dtype": dtype, "seed": seed, "smallest": factors})
                print(line(model, dtype, seed, factors), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(record, indent=1) + "\n")


def line(model: str, dtype: str, seed: int, factors: dict[str, float | None]) -> str:
    seen = [factor for factor in factors.values() if factor is not None]
    above = [f"{name} {f}" for name, f in factors.items() if f is not None and (f > ASKED[dtype] or f == 1)]
    above += [f"{name} none" for name, f in factors.items() if f is None]
    figures = f"{statistics.median(seen):9.5g}{max(seen):9.5g}" if seen else f"{'-':>9}{'-':>9}"
    return f"{model:12}{dtype:10}{seed:5}{len(factors):9}{figures}   {', '.join(above)}"


if __name__ == "__main__":
    main()
