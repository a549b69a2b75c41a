"""Wrong backwards of routers, dispatch, combine and experts."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradproof.proof.mutants import Mutant, but_last, registering

MUTANTS: list[Mutant] = []
wrong = registering(MUTANTS)


# The router: returns dz.


def plain_softmax(routing):
    return routing.scores == "softmax" and not routing.renormalise


@wrong("route", "masked softmax Jacobian: nothing off S")
def _(right, dy, saved, routing):
    return right(dy, saved._replace(q_TE=saved.gates_TE) if plain_softmax(routing) else saved, routing)


@wrong("route", "softmax over the chosen instead of over all")
def _(right, dy, saved, routing):
    return right(dy, saved, replace(routing, renormalise=True) if routing.k > 1 else routing)


@wrong("route", "renormalised gates treated as plain")
def _(right, dy, saved, routing):
    return right(dy, saved, replace(routing, renormalise=False))


@wrong("route", "σ' taken for σ")
def _(right, dy, saved, routing):
    dz = right(dy, saved, routing)
    return dz / torch.sigmoid(-saved.z_TE) if routing.scores == "sigmoid" else dz


@wrong("route", "the balance loss is detached")
def _(right, dy, saved, routing):
    return right(dy, saved, replace(routing, balance=0.0))


@wrong("route", "the z-loss is detached")
def _(right, dy, saved, routing):
    return right(dy, saved, replace(routing, z_loss=0.0))


@wrong("route", "the balance loss 1% too light", subtle=True)
def _(right, dy, saved, routing):
    return right(dy, saved, replace(routing, balance=0.99 * routing.balance))


@wrong("route", "a part of a batch takes itself for the whole")
def _(right, dy, saved, routing):
    return right(dy, saved._replace(rows=saved.z_TE.shape[0]), routing)


@wrong("route", "expert 0's dz 1% too small", subtle=True)
def _(right, dy, saved, routing):
    dz = right(dy, saved, routing)
    return torch.cat([0.99 * dz[:, :1], dz[:, 1:]], 1)


@wrong("route", "nothing off S in the last row", subtle=True)
def _(right, dy, saved, routing):
    dz = right(dy, saved, routing)
    return torch.cat([dz[:-1], dz[-1:] * (saved.gates_TE[-1:] != 0)])


@wrong("route", "the last row's gate cotangent is dropped", subtle=True)
def _(right, dy, saved, routing):
    return right(dy._replace(gates_TE=but_last(dy.gates_TE)), saved, routing)


# The sheaf router: returns dx, dtheta; its parts are planted too.


def of_sheaf(name):
    return f"gradproof.ops.sheaf:{name}"


@wrong("sheaf", "the maps have no gradient", target=of_sheaf("_cayley_backward"))
def _(right, dr, q):
    return torch.zeros_like(dr)


@wrong("sheaf", "the Cayley transform as if the maps were near I", target=of_sheaf("_cayley_backward"))
def _(right, dr, q):
    return -2 * dr


@wrong("sheaf", "Q not transposed", target=of_sheaf("_cayley_backward"))
def _(right, dr, q):
    return right(dr, q.mT)


@wrong("sheaf", "the transpose in the gradient of δᵀδ is dropped", target=of_sheaf("_square_backward"))
def _(right, dl, delta):
    return 2 * delta @ dl


@wrong("sheaf", "one of three steps of diffusion has no gradient", target=of_sheaf("_cube_backward"))
def _(right, dc, d):
    return right(dc, d) - d @ dc @ d


@wrong("sheaf", "the energy taken after diffusion")
def _(right, dy, saved, x, theta, cover, want_dx=True):
    if saved is not None:
        late_TY = saved.late_TX @ saved.delta_YX.T
        saved = saved._replace(found_TME=late_TY.view_as(saved.found_TME))
    return right(dy, saved, x, theta, cover, want_dx)


@wrong("sheaf", "softmax of +e/τ", target=of_sheaf("_attention_backward"))
def _(right, dz, saved, temperature):
    de, dtemperature = right(dz, saved, temperature)
    return -de, -dtemperature


@wrong("sheaf", "the gradient of τ, not of its logarithm", target=of_sheaf("_attention_backward"))
def _(right, dz, saved, temperature):
    de, dtemperature = right(dz, saved, temperature)
    return de, dtemperature * torch.exp(-temperature)


@wrong("sheaf", "the patches' weights are taken for constants", target=of_sheaf("_attention_backward"))
def _(right, dz, saved, temperature):
    de, dtemperature = right(dz, saved, temperature)
    return torch.zeros_like(de), dtemperature


@wrong("sheaf", "only the first patch of an edge is pulled", target=of_sheaf("_energy_backward"))
def _(right, de, saved, fixed):
    E = saved.q_NEE.shape[1]
    first_YX = fixed.side_MUS[:, :, 0].repeat_interleave(E, 0).repeat_interleave(E, 1)
    return right(de, saved._replace(delta_YX=saved.delta_YX * first_YX), fixed)


@wrong("sheaf", "the energy is a sum over edges, not their mean", target=of_sheaf("_energy_backward"))
def _(right, de, saved, fixed):
    return right(de, saved, fixed._replace(share_MU=(fixed.share_MU != 0).to(de.dtype)))


@wrong("sheaf", "the energy of a row has no gradient")
def _(right, dy, saved, x, theta, cover, want_dx=True):
    return right(dy._replace(energy_T=torch.zeros_like(dy.energy_T)), saved, x, theta, cover, want_dx)


@wrong("sheaf", "the last patch does not reach the inputs")
def _(right, dy, saved, x, theta, cover, want_dx=True):
    _, dtheta = right(dy, saved, x, theta, cover, want_dx)
    blind = theta.clone()
    cover.views(blind)[f"patches.{len(cover.patches) - 1}.weight"].zero_()
    return right(dy, saved, x, blind, cover, want_dx)[0], dtheta


@wrong("sheaf", "the rate of diffusion 1% too small", subtle=True, target=of_sheaf("_diffusion_backward"))
def _(right, ds, saved, cover):
    ds, ddelta = right(ds, saved, cover)
    return ds, 0.99 * ddelta


@wrong("sheaf", "the last row's energy is dropped", subtle=True)
def _(right, dy, saved, x, theta, cover, want_dx=True):
    return right(dy._replace(energy_T=but_last(dy.energy_T)), saved, x, theta, cover, want_dx)


@wrong("sheaf", "one patch's matrix 2% too large", subtle=True)
def _(right, dy, saved, x, theta, cover, want_dx=True):
    dx, dtheta = right(dy, saved, x, theta, cover, want_dx)
    cover.views(dtheta)["patches.0.weight"].mul_(1.02)
    return dx, dtheta


# Dispatch: returns dx. Combine: returns drows, dgates.


@wrong("dispatch", "the mean over the choices, not their sum")
def _(right, drows, saved, plan):
    return right(drows, saved, plan) / plan.row_TK.shape[1]


@wrong("dispatch", "only the first choice comes back")
def _(right, drows, saved, plan):
    return drows[plan.row_TK[:, 0]]


@wrong("dispatch", "the last token's row is never written", subtle=True)
def _(right, drows, saved, plan):
    dx = right(drows, saved, plan)
    return torch.cat([dx[:-1], torch.empty_like(dx[-1:])])


@wrong("dispatch", "the last routed row is left out", subtle=True)
def _(right, drows, saved, plan):
    return right(but_last(drows), saved, plan)


@wrong("combine", "the gate applied twice")
def _(right, dy, saved, rows, gates, plan):
    _, dgates = right(dy, saved, rows, gates, plan)
    return right(dy, saved, rows, gates.square(), plan)[0], dgates


@wrong("combine", "the gate not applied")
def _(right, dy, saved, rows, gates, plan):
    _, dgates = right(dy, saved, rows, gates, plan)
    return right(dy, saved, rows, torch.ones_like(gates), plan)[0], dgates


@wrong("combine", "rows in token order, not in expert order")
def _(right, dy, saved, rows, gates, plan):
    drows, dgates = right(dy, saved, rows, gates, plan)
    return drows[plan.row_TK.flatten()], dgates


@wrong("combine", "the gate's gradient times the gate")
def _(right, dy, saved, rows, gates, plan):
    drows, dgates = right(dy, saved, rows, gates, plan)
    return drows, dgates * gates


@wrong("combine", "the last token's gate gradient is zero", subtle=True)
def _(right, dy, saved, rows, gates, plan):
    drows, dgates = right(dy, saved, rows, gates, plan)
    return drows, but_last(dgates)


@wrong("combine", "the gates' gradient 2% too small", subtle=True)
def _(right, dy, saved, rows, gates, plan):
    drows, dgates = right(dy, saved, rows, gates, plan)
    return drows, 0.98 * dgates


# Mixture: dy is (y, gates, aux); returns dx, dtheta.


@wrong("mixture", "the gates' own cotangent is left out")
def _(right, dy, saved, x, theta, mixture, *rest):
    return right(dy._replace(gates_TE=None), saved, x, theta, mixture, *rest)


# Experts: returns dx, dtheta.


@wrong("experts", "each expert takes its neighbour's rows")
def _(right, dy, saved, x, theta, plan, chain, *rest):
    return right(dy.roll(1, 0), saved, x, theta, plan, chain, *rest)


@wrong("experts", "the input of a layer is its h, not its activation")
def _(right, dy, saved, x, theta, plan, chain, *rest):
    dx, dtheta = right(dy, saved, x, theta, plan, chain, *rest)
    for e, h in enumerate(saved.h):
        if h:
            start, end = saved.bounds[e], saved.bounds[e + 1]
            chain.views(dtheta[e])[f"linear.{chain.layers}.weight"].copy_(dy[start:end].T @ h[-1])
    return dx, dtheta


@wrong("experts", "one matrix of expert 0 2% too large", subtle=True)
def _(right, dy, saved, x, theta, plan, chain, *rest):
    dx, dtheta = right(dy, saved, x, theta, plan, chain, *rest)
    chain.views(dtheta[0])["linear.0.weight"].mul_(1.02)
    return dx, dtheta
