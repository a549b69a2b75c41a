"""Replicas: compares the parameters of ranks that should be equal, and names a rank that has drifted.

Of each parameter a rank computes a digest of its bits: their sum, and their sum weighted by place. A rank is named if
its parameters were written outside the step, which torch counts, or if most of the others agree against it. Two ranks
that merely differ are both named.
"""

from __future__ import annotations

import json
from collections import Counter

import torch
from torch import Tensor

from gradproof.params import ParamSpace
from gradproof.ranks.mesh import Mesh


class Drifted(Exception):
    """Replicas differ; the sentence names the rank and the first parameter."""


class Replicas:
    """The parameters of this rank beside those of the others that hold parameters of the same names."""

    def __init__(self, mesh: Mesh, params: ParamSpace):
        self.mesh, self.params = mesh, params
        self._generation: int | None = None
        self.foreign = ""  # where the parameters were found changed by others than the step

    def before_step(self, step: int) -> None:
        """Notes whether the parameters are as the last step left them."""
        if self._generation not in (None, self.params.generation) and not self.foreign:
            self.foreign = f"before step {step}"

    def after_step(self) -> None:
        """The parameters as they are now are right: a step, or a checkpoint, has made them so."""
        self._generation = self.params.generation

    def compare(self, step: int) -> None:
        """Drifted, on every rank, where any two that should be alike are not."""
        said = {"sums": digests(self.params), "foreign": self.foreign}
        answers = [json.loads(text) for text in self.mesh.texts(json.dumps(said))]
        foreign = {rank: answer["foreign"] for rank, answer in enumerate(answers) if answer["foreign"]}
        for name in dict.fromkeys(name for answer in answers for name in answer["sums"]):
            sums = {rank: tuple(own["sums"][name]) for rank, own in enumerate(answers) if name in own["sums"]}
            if len(set(sums.values())) > 1:
                raise Drifted(_sentence(name, sums, foreign, step))


def digests(params: ParamSpace) -> dict[str, list[int]]:
    """Two sums of the bits of each parameter: any single change shows in them."""
    sums = [_digest(view) for view in params.values()]
    listed = torch.stack(sums).tolist() if sums else []
    return dict(zip(params, listed, strict=True))


def _digest(view: Tensor) -> Tensor:
    bits_N = view.reshape(-1).view(torch.int32)
    rows_R = torch.stack([part.sum() for part in bits_N.split(1 << 16)])
    place_R = torch.arange(1, 1 + len(rows_R), device=rows_R.device)
    within = sum((part * torch.arange(1, 1 + len(part), device=part.device)).sum() for part in bits_N.split(1 << 16))
    return torch.stack([rows_R.sum() + (rows_R * place_R).sum() * 31, torch.as_tensor(within)])


def _sentence(name: str, sums: dict[int, tuple[int, ...]], foreign: dict[int, str], step: int) -> str:
    own = [rank for rank in sums if rank in foreign]
    if own:
        when = foreign[own[0]]
        return f"rank {own[0]} drifted: {name} was changed outside the training step, {when} (found after step {step})"
    (most, count), *_ = Counter(sums.values()).most_common()
    odd = [rank for rank, own_sums in sums.items() if own_sums != most]
    if count > len(sums) / 2:
        ranks = f"rank {odd[0]}" if len(odd) == 1 else "ranks " + ", ".join(map(str, odd))
        return f"{ranks} drifted: {name} differs from the other ranks' after step {step}"
    ranks = " and ".join(map(str, sums)) if len(sums) == 2 else ", ".join(map(str, sums))
    return f"ranks {ranks} drifted apart: {name} differs after step {step}"
