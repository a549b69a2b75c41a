from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradproof.ops import combine, dispatch


def random_plan(T, E, K, seed):
    """K distinct experts out of E for each of T rows."""
    score_TE = torch.rand(T, E, generator=torch.Generator().manual_seed(seed))
    return dispatch.plan(score_TE.argsort(1)[:, :K].contiguous(), E)


def slow(rows_NO, gates_TE, plan):
    """y_t = Σ gate·row, one row of one expert at a time."""
    y = [0.0] * gates_TE.shape[0]
    for e in range(gates_TE.shape[1]):
        for n in range(*plan.bounds()[e : e + 2]):
            t = int(plan.slot_N[n]) // plan.index_TK.shape[1]
            y[t] = y[t] + gates_TE[t, e] * rows_NO[n]
    return torch.stack(y)


@given(
    T=st.sampled_from([1, 2, 7]),
    E=st.sampled_from([1, 2, 5]),
    O=st.sampled_from([1, 3, 20]),
    seed=st.integers(0, 9999),
    data=st.data(),
)
def test_agrees_with_a_loop(normal, agree, T, E, O, seed, data):
    """Fails on the gate of another expert, a gate applied twice, or rows in the wrong order."""
    K = data.draw(st.integers(1, E))
    plan = random_plan(T, E, K, seed)
    rows_NO, gates_TE, dy_TO = normal(seed, (T * K, O), (T, E), (T, O))
    inputs = [rows_NO.requires_grad_(), gates_TE.requires_grad_()]
    right_TO = slow(rows_NO, gates_TE, plan)
    y_TO, saved = combine.forward(rows_NO, gates_TE, plan)
    agree(y_TO, right_TO, 1e-14, terms=slow(rows_NO.abs(), gates_TE.abs(), plan))
    grads = combine.backward(dy_TO, saved, rows_NO, gates_TE, plan)
    for grad, right in zip(grads, torch.autograd.grad(right_TO, inputs, dy_TO), strict=True):
        agree(grad, right, 1e-13, terms=dy_TO)


def test_gate_gradient_off_the_chosen_is_exactly_zero(normal):
    """A gather without the matching scatter would leave gradients at the wrong experts."""
    plan = random_plan(9, 5, 2, 0)
    rows_NO, gates_TE, dy_TO = normal(0, (18, 3), (9, 5), (9, 3))
    _, dgates_TE = combine.backward(dy_TO, None, rows_NO, gates_TE, plan)
    chosen_TE = torch.zeros(9, 5, dtype=torch.bool).scatter(1, plan.index_TK, True)
    assert torch.equal(dgates_TE != 0, chosen_TE)


def test_the_gate_is_carried_once(normal, agree):
    """Doubling the gates doubles the rows' gradient; a gate applied twice would quadruple it."""
    plan = random_plan(7, 4, 2, 1)
    rows_NO, gates_TE, dy_TO = normal(1, (14, 3), (7, 4), (7, 3))
    drows_NO, dgates_TE = combine.backward(dy_TO, None, rows_NO, gates_TE, plan)
    doubled_NO, same_TE = combine.backward(dy_TO, None, rows_NO, 2 * gates_TE, plan)
    assert torch.equal(doubled_NO, 2 * drows_NO) and torch.equal(same_TE, dgates_TE)


@given(T=st.sampled_from([1, 2, 33]), E=st.sampled_from([1, 4, 5]), seed=st.integers(0, 9999), data=st.data())
def test_round_trip_is_the_identity(normal, T, E, seed, data):
    """combine(dispatch(x), 1/K) = x up to 2u: fails if a row is lost, doubled or misplaced."""
    K = data.draw(st.integers(1, E))
    plan = random_plan(T, E, K, seed)
    (x_TI,) = normal(seed, (T, 3))
    gates_TE = torch.full((T, E), 1 / K, dtype=torch.float64)
    y_TI, _ = combine.forward(dispatch.forward(x_TI, plan)[0], gates_TE, plan)
    assert ((y_TI - x_TI).abs() <= (1 + K // 2) * torch.finfo(torch.float64).eps * x_TI.abs()).all()


@given(E=st.integers(1, 12), seed=st.integers(0, 99), data=st.data())
def test_the_identity_is_claimed_of_any_number_of_choices(E, seed, data):
    """In float32 a right combine stays within the bound, although 1/K is inexact and K rows are added up. One that is
    off by a few roundings more does not."""
    K = data.draw(st.integers(1, E))
    drawn = combine.CONTRACT.edges_at({}, dict(T=9, E=E, K=K, O=5))[0](torch.Generator().manual_seed(seed))
    rows, gates = (drawn.arguments[name].float() for name in ("rows", "gates"))
    placed = replace(drawn, arguments={**drawn.arguments, "rows": rows, "gates": gates})
    (claim,) = (claim for claim in combine.CONTRACT.claims if claim.name == "conserves")
    y_TO, _ = combine.forward(rows, gates, drawn.arguments["plan"])
    measured, bound = claim.check(placed, (y_TO,), {})
    assert measured <= bound <= (K + 2) * 2**-24
    spoilt, bound = claim.check(placed, (y_TO * (1 + 2 * (K + 2) * 2**-24),), {})
    assert spoilt > bound


def test_same_bits_twice(normal):
    """Atomics in the sum over the K choices would change the last bits from run to run."""
    plan = random_plan(64, 9, 8, 2)
    rows_NO, gates_TE, dy_TO = normal(2, (512, 33), (64, 9), (64, 33))
    first, second = (combine.forward(rows_NO, gates_TE, plan)[0] for _ in range(2))
    assert torch.equal(first, second)
    first, second = (combine.backward(dy_TO, None, rows_NO, gates_TE, plan) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
