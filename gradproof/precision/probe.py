"""Checks whether bf16 products run on this CPU. On virtual machines that trap AMX, torch dies with an illegal
instruction.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache

VARIABLE, VALUE = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
PRODUCT = "import torch; a = torch.ones(96, 96, dtype=torch.bfloat16); torch.nn.functional.linear(a, a, a[0]) @ a"


@lru_cache
def check_bf16_on_cpu() -> None:
    """Tries a product in a subprocess. If that dies, raises ValueError with the fix. Skipped if the variable is already
    set.
    """
    if VARIABLE in os.environ:
        return
    tried = subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True)
    if tried.returncode:
        raise ValueError(
            f"bf16 products crash on this CPU (exit code {tried.returncode}); set {VARIABLE}={VALUE} before starting, "
            "or use fp32"
        )
