import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("compile_for_hopper.py")
KERNELS = {
    "norm_gelu": ("_forward", "_backward", "_add_up"),
    "route": ("_forward", "_add_up", "_backward"),
    "dispatch": ("_count", "_first", "_rank", "_gather", "_add_choices"),
    "combine": ("_forward", "_backward"),
    "cross_entropy": ("_forward", "_add_up", "_backward"),
    "adamw": ("_step", "_squares", "_total"),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the other tests compile and run the kernels for this GPU")
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: its kernels cannot be compiled")
def test_every_kernel_compiles_for_an_h200(tmp_path):
    """What only the interpreter accepts would be found when somebody first has a GPU."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    run = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    made = {tuple(line.split()[:2]) for line in run.stdout.splitlines()}
    assert made == {(module, name) for module, names in KERNELS.items() for name in names}
