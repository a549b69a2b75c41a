"""The sheaf router: patches of the inputs vote on the experts, and patches that contradict their neighbours count less.

U patches, M edges (pairs of patches that share inputs), S = 2 sides of an edge, G = E(E − 1)/2 parameters of a map; X =
U·E, Y = M·E.

    s_u = x|_u W_uᵀ + b_u                                      the logits of patch u
    A skew, R = (I − A)(I + A)⁻¹ = 2Q − I, Q = (I + A)⁻¹       an orthogonal map for each side of each edge
    (δs)_m = R_m0 s_i − R_m1 s_j, edge m = (i, j);   e_u = mean of ‖(δs)_m‖² over the edges of u
    s³ = D³ s, D = I − α δᵀδ, α = 1/(2·d_max)                  three steps; the eigenvalues of D are in [0, 1]
    z = Σ_u a_u s³_u,  a = softmax_u(−e/τ), τ = exp(θ);   energy = mean_u e_u

    da_u = ⟨dz, s³_u⟩, ds³_u = a_u dz;  l = −e/τ: dl = a(da − ⟨a, da⟩), dθ = −Σ l·dl, de = −dl/τ + denergy/U
    ds = D³ ds³, C = Σ_T s ds³ᵀ, dD = C D² + D C D + D² C, dδ = −α δ(dD + dDᵀ)
    with f = 2 δs · Σ_{u∈m} de_u/deg_u:  ds += δᵀf, dδ += Σ_T f sᵀ;   dA = −2 Qᵀ dR Qᵀ
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gradproof.contract import EVERY_OP, Claim, Contract, Example, Gradients, Outputs, equivariant
from gradproof.ops import linear, softmax
from gradproof.params import Entry, padded


@dataclass(frozen=True)
class Cover:
    """Overlapping patches of the inputs: each of the consecutive `blocks` (given by width), and each pair of
    neighbours.
    """

    blocks: tuple[int, ...]
    experts: int

    @cached_property
    def patches(self) -> tuple[tuple[int, int], ...]:
        """The half-open range of inputs of each patch: first the blocks, then the pairs."""
        ends = tuple(accumulate(self.blocks))
        starts = (0, *ends[:-1])
        return (*zip(starts, ends, strict=True), *zip(starts[:-1], ends[1:], strict=True))

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The pairs of patches that share inputs."""
        numbered = combinations(enumerate(self.patches), 2)
        return tuple((i, j) for (i, a), (j, b) in numbered if max(a[0], b[0]) < min(a[1], b[1]))

    @property
    def turns(self) -> int:
        """G: the free parameters of a skew matrix."""
        return self.experts * (self.experts - 1) // 2

    @cached_property
    def degrees(self) -> list[int]:
        """The number of edges of each patch."""
        return [sum(u in edge for edge in self.edges) for u in range(len(self.patches))]

    @property
    def products(self) -> int:
        """Multiplications per row: the patches' logits, their diffusion, the disagreements."""
        X, Y = self.experts * len(self.patches), self.experts * len(self.edges)
        return self.experts * sum(b - a for a, b in self.patches) + ((X + Y) * X if Y else 0)

    @property
    def rate(self) -> float:
        """α."""
        return 1 / (2 * max(self.degrees))

    @cached_property
    def spec(self) -> list[Entry]:
        """The parameters in order. A single patch has no neighbours, hence no maps and no temperature."""
        E = self.experts
        spec = [Entry(f"patches.{u}.weight", (E, b - a), "matrix") for u, (a, b) in enumerate(self.patches)]
        spec.append(Entry("bias", (len(self.patches), E), "bias"))
        if self.edges and self.turns:
            spec.append(Entry("maps", (len(self.edges), 2, self.turns), "matrix"))
        if self.edges:
            spec.append(Entry("temperature", (1,), "beta"))
        return spec

    @cached_property
    def _lengths(self) -> list[int]:
        """The length of each parameter, alternating with that of the padding after it."""
        lengths = [math.prod(entry.shape) for entry in self.spec]
        return [size for length in lengths for size in (length, padded(length) - length)]

    @property
    def length(self) -> int:
        """P: the length of the parameters with padding."""
        return sum(self._lengths)

    def views(self, theta_P: Tensor) -> dict[str, Tensor]:
        """The parameters by name, split in one call since every step needs them often."""
        pieces = theta_P.split(self._lengths)[::2]
        return {entry.name: piece.view(entry.shape) for entry, piece in zip(self.spec, pieces, strict=True)}

    def saved_per_row(self) -> int:
        """How many numbers a forward keeps per row."""
        U, M = len(self.patches), len(self.edges)
        return (2 * U + M) * self.experts + 2 * U if M else 0


class Frame(NamedTuple):
    """Constants that depend only on the cover."""

    side_MUS: Tensor  # +1 if a patch is the first of an edge, −1 if it is the second
    share_MU: Tensor  # 1/deg_u if patch u belongs to edge m
    turn_GW: Tensor  # a basis of the skew matrices, W = E·E
    eye_EE: Tensor
    eye_XX: Tensor


@cache
def frame(cover: Cover, device: torch.device, dtype: torch.dtype) -> Frame:
    """Cached, since nothing may be copied to a device during graph capture. Built outside of all dispatch modes, which
    would round or poison the cached tensors.
    """
    U, M, E = len(cover.patches), len(cover.edges), cover.experts
    with _disable_current_modes(), torch.inference_mode(False):
        side_MUS, turn_GEE = torch.zeros(M, U, 2), torch.zeros(cover.turns, E, E)
        for m, (i, j) in enumerate(cover.edges):
            side_MUS[m, i, 0], side_MUS[m, j, 1] = 1, -1
        for g, (e, f) in enumerate(combinations(range(E), 2)):
            turn_GEE[g, e, f], turn_GEE[g, f, e] = 1, -1
        share_MU = side_MUS.double().abs().sum(2) / torch.tensor(cover.degrees)
        tensors = (side_MUS, share_MU, turn_GEE.flatten(1), torch.eye(E), torch.eye(U * E))
        return Frame(*(tensor.to(device, dtype) for tensor in tensors))


class Glued(NamedTuple):
    z_TE: Tensor
    energy_T: Tensor  # the disagreement of the patches on a row


class Saved(NamedTuple):
    s_TX: Tensor  # before diffusion
    late_TX: Tensor  # after diffusion
    q_NEE: Tensor  # N = M·S maps
    delta_YX: Tensor
    d_XX: Tensor
    found_TME: Tensor  # δs
    energy_TU: Tensor
    a_TU: Tensor


def forward(x_TI: Tensor, theta_P: Tensor, cover: Cover) -> tuple[Glued, Saved | None]:
    """z_TE and energy_T. With a single patch, z is that patch's logits and the energy is 0."""
    views = cover.views(theta_P)
    s_TUE = _opinions(x_TI, views, cover)
    T, U, E = s_TUE.shape
    if not cover.edges:
        return Glued(s_TUE[:, 0], x_TI.new_zeros(T)), None
    fixed = frame(cover, x_TI.device, x_TI.dtype)
    q_NEE = _halved(views, fixed, cover)
    delta_YX = _coboundary(q_NEE, fixed, cover)
    s_TX = s_TUE.reshape(T, U * E)
    found_TME = (s_TX @ delta_YX.T).view(T, -1, E)
    energy_TU = found_TME.square().sum(2) @ fixed.share_MU
    a_TU, _ = softmax.forward(-energy_TU * torch.exp(-views["temperature"]))
    d_XX = fixed.eye_XX - cover.rate * (delta_YX.T @ delta_YX)
    late_TX = s_TX @ (d_XX @ d_XX @ d_XX)
    z_TE = (a_TU[:, :, None] * late_TX.view(T, U, E)).sum(1)
    return Glued(z_TE, energy_TU.mean(1)), Saved(s_TX, late_TX, q_NEE, delta_YX, d_XX, found_TME, energy_TU, a_TU)


def backward(
    dy: Glued, saved: Saved | None, x_TI: Tensor, theta_P: Tensor, cover: Cover, want_dx: bool = True
) -> tuple[Tensor | None, Tensor]:
    """Returns dx_TI, dtheta_P. dx is None if `want_dx` is false."""
    views = cover.views(theta_P)
    dtheta_P = torch.zeros_like(theta_P)
    grads = cover.views(dtheta_P)
    if saved is None:
        ds_TUE = dy.z_TE[:, None]
    else:
        ds_TUE = _glued_backward(dy, saved, views, grads, cover)
    return _opinions_backward(ds_TUE, x_TI, views, grads, cover, want_dx), dtheta_P


def _glued_backward(
    dy: Glued, saved: Saved, views: dict[str, Tensor], grads: dict[str, Tensor], cover: Cover
) -> Tensor:
    """ds_TUE, and the gradients of maps and temperature."""
    T, U, E = dy.z_TE.shape[0], len(cover.patches), cover.experts
    fixed = frame(cover, dy.z_TE.device, dy.z_TE.dtype)
    ds_TX = (saved.a_TU[:, :, None] * dy.z_TE[:, None]).view(T, U * E)
    de_TU, dtemperature = _attention_backward(dy.z_TE, saved, views["temperature"])
    grads["temperature"].copy_(dtemperature)
    ds_TX, ddelta_YX = _diffusion_backward(ds_TX, saved, cover)
    more_TX, more_YX = _energy_backward(de_TU + dy.energy_T[:, None] / U, saved, fixed)
    if cover.turns:
        dr_NEE = _coboundary_backward(ddelta_YX + more_YX, fixed, cover)
        da_NEE = _cayley_backward(dr_NEE, saved.q_NEE)
        grads["maps"].copy_((da_NEE.flatten(1) @ fixed.turn_GW.T).view_as(grads["maps"]))
    return (ds_TX + more_TX).view(T, U, E)


def _opinions(x_TI: Tensor, views: dict[str, Tensor], cover: Cover) -> Tensor:
    """s_TUE: the logits of each patch."""
    opinions = [x_TI[:, a:b] @ views[f"patches.{u}.weight"].T for u, (a, b) in enumerate(cover.patches)]
    return torch.stack(opinions, 1) + views["bias"]


def _opinions_backward(
    ds_TUE: Tensor,
    x_TI: Tensor,
    views: dict[str, Tensor],
    grads: dict[str, Tensor],
    cover: Cover,
    want_dx: bool,
) -> Tensor | None:
    """dx_TI if `want_dx`, and the gradients of the patches' own parameters."""
    grads["bias"].copy_(ds_TUE.sum(0))
    dx_TI = torch.zeros_like(x_TI) if want_dx else None
    for u, (a, b) in enumerate(cover.patches):
        name, ds_TE = f"patches.{u}.weight", ds_TUE[:, u]
        grads[name].copy_(ds_TE.T @ x_TI[:, a:b])
        if dx_TI is not None:
            dx_TI[:, a:b] += linear.input_gradient(ds_TE, views[name])
    return dx_TI


def _halved(views: dict[str, Tensor], fixed: Frame, cover: Cover) -> Tensor:
    """Q of every map, by elimination. The symmetric part of I + A is I, so all pivots are at least 1 and no pivoting is
    needed. The host reads nothing, so a graph can capture it.
    """
    E, N = cover.experts, 2 * len(cover.edges)
    eye_EE = fixed.eye_EE
    turns_NG = views["maps"].reshape(N, -1) if cover.turns else eye_EE.new_zeros(N, 0)
    a_NEE = (turns_NG @ fixed.turn_GW).view(N, E, E)
    both_NEF = torch.cat([eye_EE + a_NEE, eye_EE.expand(N, E, E)], 2)
    for e in range(E):
        row_N1F = both_NEF[:, e : e + 1] / both_NEF[:, e : e + 1, e : e + 1]
        both_NEF = both_NEF - (both_NEF[:, :, e : e + 1] - eye_EE[:, e : e + 1]) * row_N1F
    return both_NEF[:, :, E:]


def _cayley_backward(dr_NEE: Tensor, q_NEE: Tensor) -> Tensor:
    """dA_NEE of R = 2Q − I."""
    return -2 * q_NEE.mT @ dr_NEE @ q_NEE.mT


def _coboundary(q_NEE: Tensor, fixed: Frame, cover: Cover) -> Tensor:
    """delta_YX: the block row of an edge holds R_m0 at its first patch and −R_m1 at its second."""
    M, U, E = len(cover.edges), len(cover.patches), cover.experts
    r_NEE = 2 * q_NEE - fixed.eye_EE
    delta_MUEE = (fixed.side_MUS @ r_NEE.reshape(M, 2, E * E)).view(M, U, E, E)
    return delta_MUEE.transpose(1, 2).reshape(M * E, U * E)


def _coboundary_backward(ddelta_YX: Tensor, fixed: Frame, cover: Cover) -> Tensor:
    """dR_NEE."""
    M, U, E = len(cover.edges), len(cover.patches), cover.experts
    ddelta_MUW = ddelta_YX.view(M, E, U, E).transpose(1, 2).reshape(M, U, E * E)
    return (fixed.side_MUS.mT @ ddelta_MUW).view(2 * M, E, E)


def _diffusion_backward(ds_TX: Tensor, saved: Saved, cover: Cover) -> tuple[Tensor, Tensor]:
    """ds_TX and dδ_YX, from ds³."""
    d_XX = saved.d_XX
    dd_XX = _cube_backward(saved.s_TX.T @ ds_TX, d_XX)
    return ds_TX @ (d_XX @ d_XX @ d_XX), -cover.rate * _square_backward(dd_XX, saved.delta_YX)


def _cube_backward(dc_XX: Tensor, d_XX: Tensor) -> Tensor:
    """dD of D³."""
    left_XX = d_XX @ dc_XX
    return dc_XX @ d_XX @ d_XX + left_XX @ d_XX + d_XX @ left_XX


def _square_backward(dl_XX: Tensor, delta_YX: Tensor) -> Tensor:
    """dδ_YX of δᵀδ."""
    return delta_YX @ (dl_XX + dl_XX.T)


def _attention_backward(dz_TE: Tensor, saved: Saved, temperature_1: Tensor) -> tuple[Tensor, Tensor]:
    """de_TU through the patches' weights, and dθ."""
    T, U = saved.a_TU.shape
    da_TU = (saved.late_TX.view(T, U, -1) * dz_TE[:, None]).sum(2)
    dl_TU = softmax.backward(da_TU, saved.a_TU)
    cold_1 = torch.exp(-temperature_1)
    return -dl_TU * cold_1, (dl_TU * saved.energy_TU).sum() * cold_1


def _energy_backward(de_TU: Tensor, saved: Saved, fixed: Frame) -> tuple[Tensor, Tensor]:
    """The contribution of e to ds_TX and dδ_YX."""
    f_TY = (2 * (de_TU @ fixed.share_MU.T)[:, :, None] * saved.found_TME).flatten(1)
    return f_TY @ saved.delta_YX, f_TY.T @ saved.s_TX


def _draw(sizes: Any, generator: torch.Generator, options: Any) -> dict[str, Any]:
    """Logits of typical size, maps far from the identity, τ not near 1."""
    cover = options["cover"]
    theta_P = torch.zeros(cover.length, dtype=torch.float64)
    for name, view in cover.views(theta_P).items():
        scale = 1 / math.sqrt(view.shape[-1]) if name.endswith("weight") else 0.7
        view.copy_(scale * torch.randn(view.shape, generator=generator))
    x_TI = torch.randn(sizes["T"], sum(cover.blocks), generator=generator, dtype=torch.float64)
    return dict(x=x_TI, theta=theta_P)


def _agreed(generator: torch.Generator) -> Example:
    """All patches agree on every row: the energy is at its minimum, and its gradient is 0."""
    cover = Cover((2, 3), 3)
    drawn = _draw(dict(T=4), generator, dict(cover=cover))
    views = cover.views(drawn["theta"])
    for name in ("patches.0.weight", "patches.1.weight", "patches.2.weight", "maps", "bias"):
        views[name].zero_()
    views["bias"] += torch.tensor([1.0, -2.0, 0.5])
    return Example("all patches agree", drawn, dict(cover=cover))


def _cold(generator: torch.Generator) -> Example:
    """τ = e⁻⁵: the patch with the lowest energy decides almost alone."""
    cover = Cover((2, 1, 2), 4)
    drawn = _draw(dict(T=5), generator, dict(cover=cover))
    cover.views(drawn["theta"])["temperature"].fill_(-5.0)
    return Example("cold", drawn, dict(cover=cover))


def _turned(generator: torch.Generator) -> Example:
    """Maps near −I, the limit of the Cayley transform: A of size 100."""
    cover = Cover((2, 1, 2), 4)
    drawn = _draw(dict(T=5), generator, dict(cover=cover))
    cover.views(drawn["theta"])["maps"].mul_(100)
    return Example("maps near −I", drawn, dict(cover=cover))


def _kept(example: Example, outputs: Outputs, grads: Gradients) -> tuple[float, float]:
    """The maps are orthogonal, diffusion never increases disagreement, no energy is negative, and padding has no
    gradient. Measured: the deviation from orthogonality; infinite if one of the others fails.
    """
    cover, theta_P, x_TI = example.options["cover"], example.arguments["theta"], example.arguments["x"]
    dtheta_P = grads["theta"]
    assert dtheta_P is not None
    rest_P = dtheta_P.clone()
    for view in cover.views(rest_P).values():
        view.zero_()
    wrong = bool(rest_P.any()) or bool((outputs[1] < 0).any())
    _, saved = forward(x_TI, theta_P, cover)
    if saved is None:
        return math.inf if wrong else 0.0, 0.0
    u = torch.finfo(x_TI.dtype).eps
    before, after = (float((each_TX @ saved.delta_YX.T).norm()) for each_TX in (saved.s_TX, saved.late_TX))
    wrong |= not after <= before * (1 + 64 * u)
    eye_EE = torch.eye(cover.experts, dtype=x_TI.dtype, device=x_TI.device)
    r_NEE = 2 * saved.q_NEE - eye_EE
    size = max(1.0, float(cover.views(theta_P)["maps"].abs().max())) if cover.turns else 1.0
    return math.inf if wrong else float((r_NEE @ r_NEE.mT - eye_EE).abs().max()), 64 * u * cover.experts * size


CONTRACT = Contract(
    shapes="x[T,I] theta[P] -> z[T,E] energy[T]",
    sizes=dict(T=(1, 7)),
    grads=("x", "theta"),
    parameters=("theta",),
    draw=_draw,
    options=(
        dict(cover=Cover((2, 1, 3), 4)),
        dict(cover=Cover((5,), 4)),
        dict(cover=Cover((1, 1), 3)),
        dict(cover=Cover((2, 3), 1)),
        dict(cover=Cover((1, 3, 2, 1), 2)),
    ),
    claims=(*EVERY_OP, equivariant("T"), Claim("conserves", check=_kept)),
    edges=(_agreed, _cold, _turned),
    parts={"theta": lambda theta_P, options: options["cover"].views(theta_P)},
)
