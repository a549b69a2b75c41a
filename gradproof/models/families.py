"""The families of models by name."""

from __future__ import annotations

from gradproof.models.dense import Dense
from gradproof.models.ensemble import Ensemble
from gradproof.models.model import Model
from gradproof.models.moe import MoE
from gradproof.models.transformer import Transformer

FAMILIES: dict[str, type[Model]] = {"moe": MoE, "dense": Dense, "ensemble": Ensemble, "transformer": Transformer}


def family(name: str) -> type[Model]:
    """The class of a model; ValueError for an unknown name."""
    if name not in FAMILIES:
        raise ValueError(f"there is no model {name!r}; the models are {', '.join(FAMILIES)}")
    return FAMILIES[name]
