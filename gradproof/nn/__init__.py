"""Gradproof's kernels as ordinary torch.nn modules, for your own training loop.

    moe = gradproof.nn.MoE(96, 20);   y = moe(x);   y, aux = moe(x, return_aux=True)

Forward and backward are those of `gradproof.MoE` and `gradproof.Dense`, by kernels that the registry has admitted for
the device, the dtype and the number of rows; float64, and whatever runs under a dispatch mode (`verify`, `diagnose`,
torch's FLOP counter), takes the reference.

The experts are one parameter, `experts.theta` [E, P], one expert a row: kernels read it without a copy, autograd and
optimizers see three leaves instead of 14 an expert. `state_dict()` has every matrix and vector under the name that it
has in our models (`experts.0.linear.1.weight`), and `views()` gives the live ones, for what goes by name: weight decay,
another initialisation, a look at one gradient.
"""

from gradproof.nn.convert import from_torch, to_torch
from gradproof.nn.dense import Dense
from gradproof.nn.moe import MoE
from gradproof.nn.norm_gelu import LinearNormGELU, NormGELU
from gradproof.nn.torch_moe import TorchMoE

__all__ = ["Dense", "LinearNormGELU", "MoE", "NormGELU", "TorchMoE", "from_torch", "to_torch"]
