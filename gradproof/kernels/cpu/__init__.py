"""Compiled kernels for the CPU, float32: C++ that g++ builds when it is first needed, called through ctypes."""

from gradproof.kernels.cpu.build import available


def missing() -> str | None:
    """Why they cannot run on this machine, or None."""
    return available()
