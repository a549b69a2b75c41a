"""The wrong backwards of ops that `gradproof verify --mutants` plants.

The `subtle` ones change a gradient by under 5%, or only on some rows; a test holds them to it. Many are published bugs:
gate weight applied twice, masked softmax Jacobian, softmax over the chosen instead of over all, detached balance loss,
mean of means, uninitialised rows, erf against tanh GELU, LayerNorm's eps.

Each takes the right function first and then its arguments.
"""

from gradproof.proof.wrong_backwards import ends, layers, routing, tokens

MUTANTS = [*layers.MUTANTS, *routing.MUTANTS, *tokens.MUTANTS, *ends.MUTANTS]
