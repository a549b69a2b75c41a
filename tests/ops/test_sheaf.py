import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.ops import sheaf
from gradproof.ops.sheaf import Cover, Glued
from gradproof.precision.mode import rounding

QUALITY = Cover((9, 11, 14, 7, 5, 16, 8, 4, 22), 4)


def drawn(cover, T=5, seed=0):
    """x_TI and theta_P in float64; the maps are far from the identity."""
    arguments = sheaf._draw(dict(T=T), torch.Generator().manual_seed(seed), dict(cover=cover))
    return arguments["x"], arguments["theta"]


def orthogonal(skew_G, E):
    """(I − A)(I + A)⁻¹, with A filled entry by entry."""
    a_EE = skew_G.new_zeros(E, E)
    entries = iter(skew_G)
    for e in range(E):
        for f in range(e + 1, E):
            one = next(entries)
            unit_EE = torch.zeros_like(a_EE)
            unit_EE[e, f], unit_EE[f, e] = 1, -1
            a_EE = a_EE + one * unit_EE
    eye_EE = torch.eye(E, dtype=a_EE.dtype)
    return torch.linalg.solve(eye_EE + a_EE, eye_EE - a_EE, left=False)


def slow(x_TI, theta_P, cover):
    """z and energy from the definitions: one row, one patch, one edge at a time."""
    views, E, U = cover.views(theta_P), cover.experts, len(cover.patches)
    edges = [
        (i, j) for i in range(U) for j in range(i) if set(range(*cover.patches[i])) & set(range(*cover.patches[j]))
    ]
    edges = sorted((j, i) for i, j in edges)
    maps = [
        [orthogonal(views["maps"][m, side], E) for side in (0, 1)] if E > 1 else [1.0, 1.0] for m in range(len(edges))
    ]
    degree = [sum(u in edge for edge in edges) for u in range(U)]

    def disagreement(m, s_U):
        i, j = edges[m]
        return (maps[m][0] @ s_U[i] - maps[m][1] @ s_U[j]) if E > 1 else s_U[i] - s_U[j]

    z_T, energy_T = [], []
    for x_I in x_TI:
        s_U = [
            F.linear(x_I[a:b], views[f"patches.{u}.weight"], views["bias"][u]) for u, (a, b) in enumerate(cover.patches)
        ]
        e_U = [
            sum(disagreement(m, s_U).square().sum() for m, edge in enumerate(edges) if u in edge) / degree[u]
            for u in range(U)
        ]
        for _ in range(3):
            step_U = [torch.zeros_like(s_E) for s_E in s_U]
            for m, (i, j) in enumerate(edges):
                delta_E = disagreement(m, s_U)
                step_U[i] = step_U[i] + (maps[m][0].T @ delta_E if E > 1 else delta_E)
                step_U[j] = step_U[j] - (maps[m][1].T @ delta_E if E > 1 else delta_E)
            s_U = [s_E - step_E / (2 * max(degree)) for s_E, step_E in zip(s_U, step_U, strict=True)]
        a_U = torch.softmax(-torch.stack(e_U) / views["temperature"].exp(), 0)
        z_T.append(sum(a * s_E for a, s_E in zip(a_U, s_U, strict=True)))
        energy_T.append(sum(e_U) / U)
    return torch.stack(z_T), torch.stack(energy_T)


def compare(agree, cover, T, seed):
    """Values and both gradients against `slow` through autograd."""
    leaves = [tensor.requires_grad_() for tensor in drawn(cover, T, seed)]
    generator = torch.Generator().manual_seed(seed + 1)
    dz_TE, denergy_T = (torch.randn(s, generator=generator).double() for s in ((T, cover.experts), (T,)))
    right = slow(*leaves, cover)
    wanted = torch.autograd.grad((right[0] * dz_TE).sum() + (right[1] * denergy_T).sum(), leaves)
    with torch.no_grad():
        glued, saved = sheaf.forward(*leaves, cover)
        grads = sheaf.backward(Glued(dz_TE, denergy_T), saved, *leaves, cover)
    for one, other in zip((*glued, *grads), (*right, *wanted), strict=True):
        agree(one, other.detach(), 1e-10)


@given(
    T=st.sampled_from([1, 3]),
    E=st.sampled_from([1, 2, 4, 5]),
    blocks=st.lists(st.integers(1, 4), min_size=2, max_size=5).map(tuple),
    seed=st.integers(0, 9999),
)
def test_every_cover_agrees_with_the_definition(agree, T, E, blocks, seed):
    """Fails on a map on the wrong side of an edge, the degree of the wrong patch, an extra step, or a lost term."""
    compare(agree, Cover(blocks, E), T, seed)


def test_the_quality_schema_agrees_with_the_definition(agree):
    compare(agree, QUALITY, 2, 0)


def test_patches_and_edges():
    """Blocks, then pairs of neighbours; a pair overlaps its two members and the adjacent pairs."""
    cover = Cover((2, 1, 3), 4)
    assert cover.patches == ((0, 2), (2, 3), (3, 6), (0, 3), (2, 6))
    assert cover.edges == ((0, 3), (1, 3), (1, 4), (2, 4), (3, 4))
    assert (len(QUALITY.patches), len(QUALITY.edges), max(QUALITY.degrees), QUALITY.rate) == (17, 23, 4, 1 / 8)


@pytest.mark.parametrize("T", [1, 4])
def test_one_patch_is_a_linear_router(agree, T):
    """There is no disagreement: the logits are those of the patch, the energy is 0, and there are no other
    parameters.
    """
    cover = Cover((6,), 4)
    x_TI, theta_P = drawn(cover, T)
    views = cover.views(theta_P)
    assert set(views) == {"patches.0.weight", "bias"}
    glued, saved = sheaf.forward(x_TI, theta_P, cover)
    agree(glued.z_TE, F.linear(x_TI, views["patches.0.weight"], views["bias"][0]))
    assert saved is None and not glued.energy_T.any()


def test_patches_that_agree_are_left_as_they_are(agree):
    """With identity maps, equal logits form a global section: no energy, and diffusion changes nothing."""
    example = sheaf._agreed(torch.Generator().manual_seed(0))
    cover, theta_P = example.options["cover"], example.arguments["theta"]
    glued, _ = sheaf.forward(example.arguments["x"], theta_P, cover)
    agree(glued.z_TE, cover.views(theta_P)["bias"][0].expand(4, 3))
    assert float(glued.energy_T.max()) < 1e-30


def test_who_contradicts_the_others_counts_less():
    """Three blocks agree and one does not: it gets the smallest weight. With +e/τ it would get the largest."""
    cover = Cover((1, 1, 1, 1), 3)
    theta_P = torch.zeros(cover.length, dtype=torch.float64)
    bias_UE = cover.views(theta_P)["bias"]
    bias_UE += torch.tensor([2.0, 0.0, -2.0])
    bias_UE[0] = torch.tensor([-2.0, 0.0, 2.0])
    _, saved = sheaf.forward(torch.zeros(1, 4).double(), theta_P, cover)
    assert int(saved.a_TU[0].argmin()) == 0 and float(saved.a_TU[0, 0]) < 1e-3 * float(saved.a_TU[0, 3])


def test_diffusion_is_stable():
    """α = 1/(2·d_max) keeps the eigenvalues of I − αδᵀδ in [0, 1]; with 1/d_max some would be −1."""
    _, saved = sheaf.forward(*drawn(QUALITY), QUALITY)
    eigenvalues = torch.linalg.eigvalsh(saved.d_XX)
    assert -1e-12 < float(eigenvalues[0]) < 0.5 and float(eigenvalues[-1]) < 1 + 1e-12


@pytest.mark.parametrize("size", [0.0, 1.0, 30.0])
def test_maps_are_orthogonal_in_float32(size):
    """Elimination without pivoting would lose digits if a pivot could be small."""
    x_TI, theta_P = (tensor.float() for tensor in drawn(QUALITY))
    QUALITY.views(theta_P)["maps"].mul_(size)
    _, saved = sheaf.forward(x_TI, theta_P, QUALITY)
    r_NEE = 2 * saved.q_NEE.double() - torch.eye(4)
    error = float((r_NEE @ r_NEE.mT - torch.eye(4)).abs().max())
    assert error < 2e-6 * max(1.0, size) and (size == 0) == (error == 0)


def test_what_is_kept_is_never_rounded():
    """A frame created inside a rounding mode would round 1/3 to bf16 for all later users."""
    sheaf.frame.cache_clear()
    x_TI, theta_P = (tensor.float() for tensor in drawn(QUALITY))
    with rounding("bf16"):
        sheaf.forward(x_TI, theta_P, QUALITY)
    assert float(sheaf.frame(QUALITY, x_TI.device, x_TI.dtype).share_MU[0, 9]) == pytest.approx(1 / 3, rel=1e-7)
    with torch.inference_mode():
        sheaf.frame.cache_clear()
        sheaf.forward(x_TI, theta_P, QUALITY)
    assert sheaf.forward(x_TI, theta_P.requires_grad_(), QUALITY)[0].z_TE.requires_grad


def test_without_dx(normal):
    """Training needs only the parameter gradients."""
    x_TI, theta_P = drawn(QUALITY)
    _, saved = sheaf.forward(x_TI, theta_P, QUALITY)
    dy = Glued(*normal(0, (5, 4), (5,)))
    dx_TI, dtheta_P = sheaf.backward(dy, saved, x_TI, theta_P, QUALITY)
    nothing, again_P = sheaf.backward(dy, saved, x_TI, theta_P, QUALITY, want_dx=False)
    assert nothing is None and dx_TI is not None and torch.equal(dtheta_P, again_P)


def test_what_it_costs():
    """Exact, from the sizes alone."""
    pairs = sum(QUALITY.blocks) * 2 - QUALITY.blocks[0] - QUALITY.blocks[-1]
    count = 4 * (96 + pairs) + 17 * 4 + 23 * 2 * 6 + 1
    assert sum(math.prod(entry.shape) for entry in QUALITY.spec) == count
    _, saved = sheaf.forward(*drawn(QUALITY), QUALITY)
    kept = (saved.s_TX, saved.late_TX, saved.found_TME, saved.energy_TU, saved.a_TU)
    assert QUALITY.saved_per_row() == sum(tensor.numel() for tensor in kept) / 5


def test_nothing_is_read_by_the_host():
    """Meta tensors have no data: reading a value, which graph capture does not allow, fails."""
    x_TI, theta_P = (tensor.to("meta") for tensor in drawn(QUALITY))
    glued, saved = sheaf.forward(x_TI, theta_P, QUALITY)
    dx_TI, dtheta_P = sheaf.backward(glued, saved, x_TI, theta_P, QUALITY)
    assert (dx_TI.shape, dtheta_P.shape) == (x_TI.shape, theta_P.shape)
