"""Every Triton kernel that is launched compiles for an H200, on a machine without one."""

import ast
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import gradproof.kernels

SCRIPT = Path(__file__).with_name("compile_for_hopper.py")
PACKAGE = Path(gradproof.kernels.__file__).parent


@cache
def kernels():
    """(module, name) of each function under triton.jit, with its syntax tree."""
    jitted = {}
    for module, tree in trees().items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
                if any(decorator.partition("(")[0] == "triton.jit" for decorator in decorators):
                    jitted[module, function.name] = function
    return jitted


@cache
def trees():
    """The syntax tree of each module under gradproof.kernels, by its name there."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text()) for path in paths}


def origins(tree):
    """Names that a module imports from another one under gradproof.kernels: where each comes from."""
    prefix = "gradproof.kernels."
    return {
        alias.asname or alias.name: (node.module.removeprefix(prefix), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(prefix)
        for alias in node.names
    }


def named(node, module, imported):
    """The (module, name) that a plain name or `module.name` stands for; None for anything else."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, (module, node.id))
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
        return ".".join(imported[node.value.id]), node.attr
    return None


def launched():
    """Kernels that a wrapper launches: `kernel[grid](...)`."""
    found = set()
    for module, tree in trees().items():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript):
                found.add(named(call.func.value, module, origins(tree)))
    return found & set(kernels())


def called():
    """Kernels that are called inside another one, and compiled with it."""
    found, parsed = set(), trees()
    for (module, _), function in kernels().items():
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        found |= {named(call.func, module, origins(parsed[module])) for call in calls}
    return found & set(kernels())


def test_every_kernel_is_launched_or_called():
    """The list of launched kernels would miss one that is launched in a way that this file does not read."""
    assert set(kernels()) == launched() | called()
    assert {("triton.weights", "add_up"), ("grouped.experts", "_weight_gradients")} <= launched()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the other tests compile and run the kernels for this GPU")
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: its kernels cannot be compiled")
def test_every_kernel_compiles_for_an_h200(tmp_path):
    """What only the interpreter accepts would be found when somebody first has a GPU."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    run = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    made = {tuple(line.split()[:2]) for line in run.stdout.splitlines()}
    assert made == launched(), "add the missing kernels to compile_for_hopper.py"
