"""The runs of a study on a Ray cluster. The study's folder must be on a disk that all of its machines share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from gradproof.ablate.runs import Failed, StudyWatch
from gradproof.ablate.unit import Unit, work


def check_ray() -> Any:
    """Ray itself; one sentence where it is not installed."""
    try:
        return import_module("ray")
    except ImportError:
        raise ValueError(
            "--ray needs Ray: pip install 'gradproof[ray]'; without --ray, everything runs on this machine"
        ) from None


def run_on_ray(unfinished: Sequence[Unit], watch: StudyWatch, device: str = "cpu") -> None:
    """Every unit as a task of one core (or one GPU). Connects to the cluster of RAY_ADDRESS, or starts one here."""
    ray = check_ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False, configure_logging=False)
    environment = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    task = ray.remote(num_cpus=1, num_gpus=int(device == "cuda"), max_retries=2)(_unit)
    task = task.options(runtime_env={"env_vars": environment})
    flying = {}
    try:
        for unit in unfinished:
            flying[task.remote(unit, os.getcwd())] = unit
            watch.started(unit)
        while flying:
            (done, *_), _ = ray.wait(list(flying), num_returns=1)
            unit = flying.pop(done)
            try:
                result = ray.get(done)
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None) or error
                raise Failed(f"{unit.name}: {' '.join(str(cause).split())}") from None
            watch.ended(unit, result)
    finally:
        for reference in flying:
            ray.cancel(reference, force=True)
        ray.shutdown()


def _unit(unit: Unit, folder: str) -> dict[str, Any]:
    """In a worker of the cluster: relative paths are those of whoever started the study."""
    os.chdir(folder)
    return work(unit, lambda done, total: None)
