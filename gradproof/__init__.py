"""Gradproof: decision models with explicit backward passes, and the proof that they are right.

Importing the package loads nothing heavy: each public name is imported when it is first used.
"""

from importlib import import_module

from gradproof.version import __version__

# Type checkers know the name; importing it from typing would take a tenth of the time that the gate's hook has.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from gradproof.diagnosis.diagnose import diagnose
    from gradproof.models.dense import Dense, DenseConfig
    from gradproof.models.moe import MoE, MoEConfig, MoEOutput
    from gradproof.models.transformer import Transformer, TransformerConfig
    from gradproof.params import ParamSpace
    from gradproof.proof.case import KernelCase
    from gradproof.proof.kernel import check_kernel
    from gradproof.proof.module import verify
    from gradproof.proof.rank_case import RankCase
    from gradproof.train.adamw import AdamW
    from gradproof.train.step import TrainStep
    from gradproof.train.step_plan import StepResult

__all__ = [
    "AdamW",
    "Dense",
    "DenseConfig",
    "KernelCase",
    "MoE",
    "MoEConfig",
    "MoEOutput",
    "ParamSpace",
    "RankCase",
    "StepResult",
    "TrainStep",
    "Transformer",
    "TransformerConfig",
    "__version__",
    "check_kernel",
    "diagnose",
    "verify",
]

_HOMES = {
    "AdamW": "gradproof.train.adamw",
    "Dense": "gradproof.models.dense",
    "DenseConfig": "gradproof.models.dense",
    "KernelCase": "gradproof.proof.case",
    "MoE": "gradproof.models.moe",
    "MoEConfig": "gradproof.models.moe",
    "MoEOutput": "gradproof.models.moe",
    "ParamSpace": "gradproof.params",
    "RankCase": "gradproof.proof.rank_case",
    "StepResult": "gradproof.train.step_plan",
    "TrainStep": "gradproof.train.step",
    "Transformer": "gradproof.models.transformer",
    "TransformerConfig": "gradproof.models.transformer",
    "check_kernel": "gradproof.proof.kernel",
    "diagnose": "gradproof.diagnosis.diagnose",
    "verify": "gradproof.proof.module",
}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'gradproof' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
