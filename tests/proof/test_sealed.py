"""The sealed set: no wrong module is called proven, no right one refuted, none raises."""

import hashlib
import importlib.util
import sys
import time
from pathlib import Path

import pytest
import torch

import gradproof

FOLDER = Path(__file__).parent / "sealed"


SETS = ("modules", "modules_2", "modules_3")


@pytest.mark.parametrize("name", SETS)
def test_the_set_is_the_one_that_was_sealed(name):
    digest, _ = (FOLDER / f"{name}.sha256").read_text().split()
    assert hashlib.sha256((FOLDER / f"{name}.py").read_bytes()).hexdigest() == digest


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_every_module_of_the_sealed_set(name):
    spec = importlib.util.spec_from_file_location(f"sealed_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[f"sealed_{name}"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for case in module.CASES:
            started = time.perf_counter()
            report = gradproof.verify(*getattr(module, case.name)(), **case.options)
            assert report.status != ("proven" if case.truth == "wrong" else "refuted"), f"{case.name}: {report.summary}"
            assert time.perf_counter() - started < 10  # 3 s on a quiet machine
    finally:
        torch.set_num_threads(threads)
