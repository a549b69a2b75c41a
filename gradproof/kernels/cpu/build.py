"""Compiles the kernels with the C++ compiler of the machine when they are first needed, and loads them.

Plain C functions on pointers, called through ctypes: neither torch's nor Python's headers are compiled, so a build
takes seconds and needs nothing but g++. The library is kept in the user's cache directory under a name made of what it
depends on: the sources, the flags and the processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent
# No -ffast-math: NaN and infinity must reach the outputs.
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-std=c++17", "-shared", "-fPIC")
SECONDS = 300  # a compiler that takes longer has failed

# The arguments of each function: p a pointer, i an integer, f a float; and what it returns.
FUNCTIONS = {
    "experts_scratch": "piii i",
    "experts_forward": "pppipipppi",
    "experts_backward": "pppipippppiipi",
    "norm_gelu_forward": "ppppiiipi",
    "norm_gelu_backward": "pppppiiippppi",
    "ffn_forward": "ppiipi",
    "ffn_backward": "pppiipi",
    "reading_forward": "piipppi i",
    "route_forward": "ppiiiiiffippppppi",
    "route_backward": "pppppppiiiiiffipi",
    "dispatch_plan": "piippp i",
    "dispatch_forward": "ppiiipi",
    "dispatch_backward": "ppiiipi",
    "combine_forward": "ppppiiiipi",
    "combine_backward": "pppppiiiippi",
    "cross_entropy_forward": "pppifpiippi i",
    "cross_entropy_backward": "ppppiipi",
    "adamw_step": "pppppippppffffi",
    "adamw_norm": "pii f",
    "experts_path": "piiip",
    "crew": "iii i",
    "mixture_sizes": "piiip",
    "mixture_forward": "piiiffpppiipppppppppi",
    "mixture_backward": "piiiffpppppiipppppipi",
    "update_step": "pppppipppppfffffppi",
    "lesson_step": "piiiffpppppippppfffffpppippppppppppi i",
}
_KINDS = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_double}


@cache
def available() -> str | None:
    """None where the kernels can be used, otherwise one sentence why not."""
    try:
        library()
    except Exception as error:
        return f"the compiled CPU kernels are off: {error}"
    return None


@cache
def library() -> ctypes.CDLL:
    """The loaded kernels, built first where this machine has not built them yet."""
    with suppress(OSError):  # a cache that cannot be written, or holds what this machine cannot load
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _built(folder)
    with tempfile.TemporaryDirectory() as own:
        return _built(Path(own))


def _built(folder: Path) -> ctypes.CDLL:
    path = folder / f"kernels-{_key()}.so"
    if not path.exists():
        _compile(path)
    return _load(path)


def _load(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    for name, kinds in FUNCTIONS.items():
        function = getattr(loaded, f"gradproof_{name}")
        arguments, _, returned = kinds.partition(" ")
        function.argtypes = [_KINDS[kind] for kind in arguments]
        function.restype = _KINDS[returned] if returned else None
        setattr(loaded, name, function)
    return loaded


@cache
def compiler() -> str:
    """What builds the kernels, and its version; empty where there is none."""
    command = os.environ.get("CXX") or shutil.which("g++")
    if command is None:
        return ""
    try:
        told = subprocess.run([*command.split(), "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return command
    return told.split("\n")[0]


def _compile(path: Path) -> None:
    """Builds under a name of its own and renames: processes that build at once, or die, leave no half a library."""
    command_line = os.environ.get("CXX") or shutil.which("g++")
    if command_line is None:
        raise RuntimeError("no C++ compiler found; install g++ or set CXX to one")
    handle, partial = tempfile.mkstemp(prefix=f"{path.stem}-", suffix=".partial", dir=path.parent)
    os.close(handle)
    try:
        command = [*command_line.split(), *FLAGS, str(SOURCES / "kernels.cpp"), "-o", partial]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:300])
            raise RuntimeError(f"{command_line} could not build them: {first.strip()}")
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)


def _folder() -> Path:
    """Where libraries are kept: GRADPROOF_CACHE, or `gradproof` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("GRADPROOF_CACHE") or Path(base) / "gradproof") / "kernels"


def _key() -> str:
    """What a library depends on. A cache directory may be shared by machines with other processors."""
    digest = hashlib.sha256(repr((FLAGS, platform.machine(), processor(), compiler())).encode())
    for source in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def processor() -> list[str]:
    """The first processor's model and instruction sets, as Linux tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return [platform.processor()]
    told = ("model", "flags", "features", "cpu part", "cpu implementer")
    return [line for line in lines if line.lower().startswith(told)]
