"""The cache of this machine: admissions, rehearsals and measured speeds, each under a fingerprint.

A fingerprint names all that a judgement depends on beside the call: processor or GPU, driver, compiler and flags,
library versions, numeric switches, and a digest of the code that is judged and that judges.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from gradproof.files import write_atomically
from gradproof.kernels.cpu.build import FLAGS, compiler, processor
from gradproof.proof.verdict import versions

LOG = logging.getLogger("gradproof.kernels")
JUDGING = ("ops", "kernels", "proof", "contract.py")  # the code whose digest an admission is kept under


def folder() -> Path:
    """Where it is kept: GRADPROOF_CACHE, or `gradproof` in the user's cache directory."""
    own = os.environ.get("GRADPROOF_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "gradproof"


def fingerprint(device: str, code: tuple[str, ...] = JUDGING) -> dict[str, Any]:
    """All that a judgement on this device depends on beside the call."""
    of_device = _gpu() if device == "cuda" else {"processor": processor(), "compiler": compiler(), "flags": FLAGS}
    return {**of_device, **switches(), "versions": _versions(), "code": digest(code)}


def switches() -> dict[str, Any]:
    """Numeric switches that change what torch's own kernels compute."""
    return {
        "tf32": [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32],
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "flush": bool(torch.tensor(1e-40).mul(1.0).item() == 0.0),
        "reduced": [
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        ],
        "isa": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
    }


def _versions() -> dict[str, str]:
    triton = next((v for name in ("triton", "pytorch-triton") if (v := _version(name))), "")
    return {**versions(), "triton": triton, "cuda": str(torch.version.cuda), "machine": platform.machine()}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def _gpu() -> dict[str, Any]:
    own = torch.cuda.get_device_properties(0)
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.split("\n")[0].strip()
    except OSError:
        driver = ""
    facts = {"gpu": own.name, "capability": [own.major, own.minor], "multiprocessors": own.multi_processor_count}
    return {**facts, "memory": own.total_memory, "driver": driver}


@cache
def digest(parts: tuple[str, ...]) -> str:
    """Of all code under these files and folders of the package."""
    package = Path(__file__).parent.parent
    files = [
        path for part in parts for path in ([package / part] if part.endswith(".py") else (package / part).rglob("*.*"))
    ]
    code = sorted(path for path in files if path.suffix in (".py", ".h", ".cpp"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in code)).hexdigest()


def key_text(facts: Mapping[str, Any]) -> str:
    """As a record is named."""
    return json.dumps(facts, sort_keys=True, default=str)


def load(kind: str, key: str) -> dict[str, Any] | None:
    """What was kept under this very key; anything unreadable counts as nothing."""
    try:
        record = json.loads(_file(kind, key).read_text())
        return record if isinstance(record, dict) and record.pop("key") == key else None
    except (OSError, ValueError, KeyError):
        return None


def keep(kind: str, key: str, record: Mapping[str, Any]) -> None:
    """Kept for the next process, if that can be written."""
    try:
        _file(kind, key).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(_file(kind, key), json.dumps({"key": key, **record}))
    except OSError:
        LOG.info("%s is not kept: %s cannot be written", kind, folder())


def _file(kind: str, key: str) -> Path:
    return folder() / kind / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
