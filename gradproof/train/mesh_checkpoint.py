"""A checkpoint that several ranks write together, completely or not at all.

Rank 0 makes the folder; each rank writes what only it has, or the first of those that have it; when all parts are on
disk, rank 0 gives the folder its name. All ranks see the same file system.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gradproof.ranks.mesh import Mesh
from gradproof.train import checkpoint


class PartMissing(OSError):
    """A rank could not write its part; the sentence names it."""


def save(
    mesh: Mesh,
    checkpoints: Path,
    step: int,
    model: Mapping[str, Tensor],
    rest: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> None:
    """Writes step-N, or nothing. `model` and `rest` are this rank's parts; every rank calls it."""
    aside = checkpoints / f".partial-step-{step}"
    with mesh.pulse.watched(False):
        try:
            _together(mesh, lambda: checkpoint.begin(checkpoints, step) if mesh.first else None)
            parts = _together(mesh, lambda: checkpoint.write_part(aside, model, rest, mesh.rank))
            sums = {file: digest for part in parts for file, digest in part.items()}
            _together(mesh, lambda: checkpoint.finish(aside, step, sums, state) if mesh.first else None)
        except BaseException:
            if mesh.first:
                shutil.rmtree(aside, ignore_errors=True)
            raise


def _together(mesh: Mesh, work: Callable[[], Any]) -> list[Any]:
    """What each rank's work returned, where that is plain data; if it failed on one, it has failed on all."""
    try:
        result = work()
        said = json.dumps({"result": result if isinstance(result, dict) else None})
    except Exception as error:
        said = json.dumps({"failed": " ".join(str(error).split())})
    mesh.meet()
    answers = [json.loads(text) for text in mesh.texts(said)]
    for rank, answer in enumerate(answers):
        if "failed" in answer:
            raise PartMissing(f"rank {rank}: {answer['failed']}")
    return [answer["result"] for answer in answers]
