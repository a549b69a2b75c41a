"""Loads a Case, the form in which users provide their own code. `path/to/file.py:function` or
`package.module:function`; the function takes nothing and returns (module, inputs), (module, inputs, reference), a
KernelCase or a RankCase."""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn

from gradproof.proof.rank_case import RankCase


class CaseError(ValueError):
    """The case could not be loaded; the message is one sentence that names the input and the fix."""


class Case(NamedTuple):
    name: str
    module: nn.Module
    inputs: Any
    reference: nn.Module | None


class KernelCase(NamedTuple):
    """A kernel with its plain reference, as `check_kernel` takes them."""

    fast: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: Any
    shapes: str
    backward: Callable[..., Any] | None = None
    terms: Callable[..., Any] | None = None
    dtypes: Sequence[torch.dtype] | torch.dtype | None = None


def load_case(text: str, seed: int = 0) -> Case | KernelCase | RankCase:
    """Imports the function, calls it, and checks its result. Generators are seeded first, so that a case that seeds
    nothing gives the same module and inputs each time."""
    where, colon, attribute = text.rpartition(":")
    if not colon or not where or not attribute:
        raise CaseError(f"{text!r} is not a case; give path/to/file.py:function or package.module:function")
    _seed(seed)
    function = _function(where, attribute)
    _seed(seed)  # importing may draw; once imported, it does not
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        sentence = f"{text} raised {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if "process group" in sentence.lower() and not torch.distributed.is_initialized():
            sentence += "; a case for several ranks needs --ranks"
        raise CaseError(sentence) from error
    if isinstance(returned, RankCase) and (fault := returned.fault()):
        raise CaseError(f"{text}: {fault}")
    if isinstance(returned, (KernelCase, RankCase)):
        return returned
    return Case(text, *_checked(text, returned))


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed % 2**63)


def _function(where: str, attribute: str) -> Callable[[], Any]:
    path = Path(where)
    if where.endswith(".py") or "/" in where:
        if not path.is_file():
            raise CaseError(f"there is no file {where}; a case is path/to/file.py:function")
        module = _import(where, lambda: _from_file(path))
    elif path.is_file():
        raise CaseError(f"{where} is not a Python file; a case is path/to/file.py:function")
    else:
        sys.path.insert(0, "")
        module = _import(where, lambda: importlib.import_module(where))
    function = getattr(module, attribute, None)
    if function is None:
        defined = [
            n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__
        ]
        others = f"; it defines {', '.join(defined[:8])}" if defined else ""
        raise CaseError(f"{where} has no function {attribute!r}{others}")
    if not callable(function):
        raise CaseError(f"{attribute!r} in {where} is a {type(function).__name__}, not a function")
    return function


def _import(where: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:
        sentence = " ".join(str(error).split())[:300]
        raise CaseError(f"importing {where} raised {type(error).__name__}: {sentence}") from error


def _from_file(path: Path) -> Any:
    """The file as a module; its own folder is importable from it, as when it is run as a script."""
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(f"gradproof_case_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _checked(text: str, returned: Any) -> tuple[nn.Module, Any, nn.Module | None]:
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        kind = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        expected = "(module, inputs), (module, inputs, reference), a KernelCase or a RankCase"
        raise CaseError(f"{text} must return {expected}, not {kind}")
    module, inputs, reference = (*returned, None)[:3]
    if not isinstance(module, nn.Module):
        raise CaseError(f"{text} must return a torch.nn.Module first, not a {type(module).__name__}")
    if not isinstance(inputs, (tuple, Mapping)):
        raise CaseError(f"{text} must return the inputs as a tuple (or a dict by keyword), not {type(inputs).__name__}")
    if reference is not None:
        _check_reference(text, module, reference)
    return module, inputs, reference


def _check_reference(text: str, module: nn.Module, reference: Any) -> None:
    if not isinstance(reference, nn.Module):
        raise CaseError(f"{text}: the reference must be a torch.nn.Module, not a {type(reference).__name__}")
    differ = {n for n, _ in module.named_parameters()} ^ {n for n, _ in reference.named_parameters()}
    if differ:
        raise CaseError(
            f"{text}: module and reference must have the same parameter names; {min(differ)!r} is in one only"
        )
