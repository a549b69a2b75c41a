"""Does a bf16 product run on this CPU? Some virtual machines trap AMX: torch then dies of an illegal instruction."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache

VARIABLE, VALUE = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
PRODUCT = "import torch; a = torch.ones(96, 96, dtype=torch.bfloat16); torch.nn.functional.linear(a, a, a[0]) @ a"


@lru_cache
def check_bf16_on_cpu() -> None:
    """Tries one in another process, so that only that one dies; a sentence that names the cure if it does. Who has set
    the variable has chosen already."""
    if VARIABLE in os.environ:
        return
    tried = subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True)
    if tried.returncode:
        raise ValueError(
            f"bf16 products die on this CPU (exit {tried.returncode}); set {VARIABLE}={VALUE} before starting, "
            "or use fp32"
        )
