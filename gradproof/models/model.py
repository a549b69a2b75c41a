"""The base of all models: parameters, tape, and checks that turn misuse into a clear message.

    forward(x_TI) -> (output, tape);   backward(d_logits_TO, tape, d_aux=0.0, accumulate=False) -> dx_TI

A transformer's input is tokens, which have no gradient: its dx is None.

`forward` hides nothing on the model, so two forwards may be in flight. A tape serves one backward, with the parameters
and the input that it was made with.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradproof.kernels.shapes import Shape
from gradproof.kernels.variants import REFERENCE, Kernels
from gradproof.ops.mixture import Mixture
from gradproof.ops.route import Whole
from gradproof.params import Entry, ParamSpace, Weights, version

# What the names of sizes mean for every family: the exact parameter counts of the MoE.
SIZES = {"nano": 195_540, "tiny": 84_984_276, "medium": 337_740_244, "full": 807_846_356}


class MoEOutput(NamedTuple):
    """The output of every model; a dense model has a single gate, which is 1."""

    logits_TO: Tensor
    gates_TE: Tensor
    aux: Tensor


@dataclass
class Tape:
    """What a forward saves for its backward."""

    owner: Model
    generation: int
    x_TI: Tensor
    x_version: int
    saved: Any
    used: bool = False


class Model(ABC):
    """The stateful wrapper: a config, a ParamSpace and buffers. Subclasses give two pure functions."""

    Config: type[Any]  # of `config`
    loss_options: Mapping[str, Mapping[str, Any]] = {}  # of a loss that is asked for by its name

    def __init__(
        self,
        config: Any,
        *,
        seed: int | None = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        flat_P: Tensor | None = None,
    ):
        """Without a seed the parameters stay as they are in `flat_P`, or are zeros: others are about to be put
        there."""
        self.config = config
        self.params = ParamSpace(self._entries(config), dtype=dtype, device=device, flat_P=flat_P)
        if seed is not None:
            self.params.initialise(seed)
        self.buffers: dict[str, Tensor] = {}

    def _entries(self, config: Any) -> list[Entry]:
        """The parameters that this model holds."""
        return config.spec()

    @abstractmethod
    def apply(
        self, weights: Weights, x_TI: Tensor, whole: Whole | None = None, kernels: Kernels = REFERENCE
    ) -> tuple[MoEOutput, Any]:
        """The forward as a function of parameters and input: (output, saved). `whole` is the batch that these rows are
        a part of, where the gradients of several parts are accumulated."""

    @abstractmethod
    def pull_back(
        self,
        weights: Weights,
        grad_P: Tensor,
        dy: tuple[Tensor, Tensor],
        x_TI: Tensor,
        saved: Any,
        *,
        accumulate: bool = False,
        want_dx: bool = True,
        kernels: Kernels = REFERENCE,
    ) -> Tensor | None:
        """The backward: writes the gradients to `grad_P`, or adds them to it, and returns dx_TI where that is wanted.
        `dy` is (d_logits_TO, d_aux)."""

    @abstractmethod
    def routed(self, saved: Any) -> tuple[Tensor, Tensor]:
        """Of what `apply` saved: p_TE, the router's distribution over the experts, and load_E, the rows of each."""

    def energy(self, saved: Any) -> Tensor | None:
        """Of what `apply` saved: energy_T, how far a sheaf router's patches disagree on each row."""
        return None

    @abstractmethod
    def shape(self, rows: int, dtype: torch.dtype) -> Shape:
        """What a step with this many rows and products in `dtype` requires of its kernels."""

    @property
    def lesson(self) -> tuple[Tensor | None, Mixture]:
        """The router's correction and the shape of the mixture, for a step in one call; mixtures only."""
        raise ValueError("this model is not a mixture")

    @property
    def experts(self) -> int:
        """The number of gates per row; one if the model has no router."""
        return 1

    @property
    def has_energy(self) -> bool:
        """Whether `energy` returns one value per row."""
        return False

    def draw_input(self, rows: int, generator: torch.Generator) -> Tensor:
        """Random rows of typical scale, on the model's device."""
        drawn = torch.randn(rows, self.config.inputs, generator=generator, device=generator.device)
        return drawn.to(self.params.flat_P)

    def settled(self, weights: Weights, x_TI: Tensor, /) -> Tensor:
        """The rows, with those whose routing is a near-tie replaced by others."""
        return x_TI

    def favouring(self, weights: Weights, x_TI: Tensor, rows: int) -> Tensor:
        """Selects rows, preferring those whose first choice is the same expert."""
        return x_TI[:rows]

    def rows(self, x_TI: Tensor, /) -> int:
        """The number of rows of logits for this input."""
        return x_TI.shape[0]

    def rebalance(self, load_E: Tensor) -> None:
        """Updates the selection bias from the load of the whole batch; a no-op for models without one."""
        raise ValueError("this model has no selection bias; set MoEConfig.correction above 0")

    @property
    def balanced(self) -> bool:
        """Whether the auxiliary loss depends on the load of the whole batch."""
        return False

    @property
    def held_alike(self) -> int:
        """How many numbers, at the beginning of the flat buffer, every rank holds that shares out the experts."""
        return self.params.flat_P.numel()

    def load(self, weights: Weights, x_TI: Tensor, kernels: Kernels = REFERENCE) -> Tensor:
        """load_E: the number of these rows that choose each expert."""
        return torch.full((1,), x_TI.shape[0], device=x_TI.device)

    def chosen(self, weights: Weights, x_TI: Tensor) -> Tensor:
        """chosen_TE: the experts of each row; a model without a router has one, which takes every row."""
        return torch.ones(x_TI.shape[0], 1, dtype=torch.bool, device=x_TI.device)

    def margin(self, weights: Weights, x_TI: Tensor) -> Tensor:
        """margin_T: the last chosen score minus the first rejected one; infinite without a router."""
        return x_TI.new_full((x_TI.shape[0],), torch.inf)

    def pull_router(self, weights: Weights, dz_TE: Tensor, x_TI: Tensor) -> Tensor:
        """dx_TI of Σ dz·z, z the router's logits alone: what it takes to move a choice."""
        return torch.zeros_like(x_TI)

    @torch.no_grad()
    def forward(self, x_TI: Tensor, whole: Whole | None = None) -> tuple[MoEOutput, Tape]:
        """Returns the output and the tape that `backward` needs. ValueError on a wrong width, dtype or device."""
        self.check_input(x_TI)
        output, saved = self.apply(self.params, x_TI, whole)
        return output, Tape(self, self.params.generation, x_TI, version(x_TI), saved)

    def check_input(self, x_TI: Tensor, /) -> None:
        """Raises ValueError if the input does not fit."""
        if x_TI.dim() != 2 or x_TI.shape[1] != self.config.inputs or x_TI.shape[0] == 0:
            raise ValueError(f"the input must be [rows ≥ 1, {self.config.inputs} inputs], not {list(x_TI.shape)}")
        self._check_like_params("the input", x_TI)

    def __call__(self, x_TI: Tensor) -> tuple[MoEOutput, Tape]:
        return self.forward(x_TI)

    @torch.no_grad()
    def backward(
        self, d_logits_TO: Tensor, tape: Tape, d_aux: Tensor | float = 0.0, accumulate: bool = False
    ) -> Tensor | None:
        """Writes the gradients to `params.grad_P` (or adds to it with `accumulate`) and returns dx_TI."""
        self._check_tape(tape)
        want = [self.rows(tape.x_TI), self.config.outputs]
        if list(d_logits_TO.shape) != want:
            raise ValueError(f"the cotangent must be {want}, like the logits, not {list(d_logits_TO.shape)}")
        self._check_like_params("the cotangent", d_logits_TO)
        d_aux = torch.as_tensor(d_aux, dtype=d_logits_TO.dtype, device=d_logits_TO.device)
        if d_aux.dim():
            raise ValueError(f"d_aux must be a scalar, not {list(d_aux.shape)}")
        dy, grad_P = (d_logits_TO, d_aux), self.params.grad_P
        dx_TI = self.pull_back(self.params, grad_P, dy, tape.x_TI, tape.saved, accumulate=accumulate)
        tape.used, tape.saved = True, None
        return dx_TI

    def _check_tape(self, tape: Tape) -> None:
        if tape.owner is not self:
            raise ValueError("this tape belongs to another model; run backward on the model whose forward made it")
        if tape.used:
            raise ValueError("this tape has already been used, and a tape serves one backward; run forward again")
        if tape.generation != self.params.generation:
            raise ValueError("the parameters changed after this tape was made; run forward again before backward")
        if tape.x_version != version(tape.x_TI):
            raise ValueError("the input was modified in place after forward; run forward again before backward")

    def _check_like_params(self, what: str, tensor: Tensor) -> None:
        flat_P = self.params.flat_P
        if tensor.dtype != flat_P.dtype:
            raise ValueError(f"{what} is {tensor.dtype} but the parameters are {flat_P.dtype}; convert one of them")
        if tensor.device != flat_P.device:
            raise ValueError(f"{what} is on {tensor.device}, the parameters are on {flat_P.device}; move one of them")


def spec_count(spec: list[Entry]) -> int:
    """The number of parameters of a spec."""
    return sum(math.prod(entry.shape) for entry in spec)


def draw_rows(sizes: Mapping[str, int], generator: torch.Generator, options: Mapping[str, Any]) -> dict[str, Any]:
    """x_TI for the models' contracts: T rows as wide as the config in the options says."""
    return dict(x=torch.randn(sizes["T"], options["config"].inputs, generator=generator, dtype=torch.float64))
