import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradproof.ops import route
from gradproof.ops.route import Routed, Routing, Whole

SCORES = ("softmax", "sigmoid")
C_4 = torch.tensor([0.4, -0.3, 0.0, 0.2], dtype=torch.float64)


def slow(z_TE, c_E, routing):
    """Gates and aux from the definitions, one row and one expert at a time."""
    T, E = z_TE.shape
    rows, count_E, mean_E, squares = [], [0] * E, [0.0] * E, 0.0
    for z_E in z_TE:
        exp_E = [z.exp() for z in z_E]
        score_E = [exp / sum(exp_E) if routing.scores == "softmax" else exp / (1 + exp) for exp in exp_E]
        rank_E = [-(score.item() + c.item()) for score, c in zip(score_E, c_E, strict=True)]
        chosen = sorted(range(E), key=lambda e, rank=rank_E: (rank[e], e))[: routing.k]
        among = sum(score_E[e] for e in chosen) if routing.renormalise else 1
        rows.append(torch.stack([score_E[e] / among if e in chosen else torch.zeros_like(z_E[0]) for e in range(E)]))
        for e in range(E):
            count_E[e] += e in chosen
            mean_E[e] = mean_E[e] + score_E[e] / sum(score_E) / T
        squares = squares + sum(exp_E).log() ** 2 / T
    share_E = [count / (T * routing.k) for count in count_E]
    balance = routing.balance * E * sum(share * mean for share, mean in zip(share_E, mean_E, strict=True))
    return torch.stack(rows), balance + routing.z_loss * squares


def compare(agree, z_TE, c_E, routing, dgates_TE, daux):
    """Values and gradient against `slow` through autograd."""
    z_TE = z_TE.detach().requires_grad_()
    routed, saved = route.forward(z_TE, c_E, routing)
    right_TE, aux = slow(z_TE, torch.zeros(z_TE.shape[1]) if c_E is None else c_E, routing)
    agree(routed.gates_TE, right_TE, 1e-12)
    agree(routed.aux, aux, 1e-12)
    dz_TE = route.backward(Routed(dgates_TE, daux), saved, routing)
    (right,) = torch.autograd.grad((right_TE * dgates_TE).sum() + aux * daux, z_TE)
    agree(dz_TE, right, 1e-10, terms=right_TE * dgates_TE)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("options", list(product(SCORES, (False, True), (0.0, 0.3), (0.0, 0.07))))
def test_every_option_agrees_with_the_definition(normal, agree, options, corrected):
    """Fails on a wrong Jacobian, a differentiated share, or a correction that leaks into the gates."""
    z_TE, dgates_TE, daux = normal(0, (9, 4), (9, 4), ())
    compare(agree, z_TE, C_4 if corrected else None, Routing(2, *options), dgates_TE, daux)


@settings(max_examples=60)
@given(
    T=st.sampled_from([1, 2, 5]),
    E=st.sampled_from([1, 2, 3, 5]),
    seed=st.integers(0, 9999),
    scores=st.sampled_from(SCORES),
    renormalise=st.booleans(),
    data=st.data(),
)
def test_every_shape_agrees_with_the_definition(normal, agree, T, E, seed, scores, renormalise, data):
    """One row, one expert, K = E, and experts without rows: fails if the code assumes E = 4 or K = 2."""
    k = data.draw(st.integers(1, E))
    routing = Routing(k, scores, renormalise and k > 1, balance=0.3, z_loss=0.07)
    z_TE, c_E, dgates_TE, daux = normal(seed, (T, E), (E,), (T, E), ())
    compare(agree, z_TE, 0.3 * c_E, routing, dgates_TE, daux)


@pytest.mark.parametrize("options", list(product(SCORES, (False, True))))
def test_an_expert_without_rows(normal, agree, options):
    """Expert 3 is never chosen: its gates are exactly 0, and nothing is divided by its count."""
    z_TE, dgates_TE, daux = normal(1, (6, 4), (6, 4), ())
    z_TE[:, 3] -= 9
    compare(agree, z_TE, None, Routing(2, *options, balance=0.3), dgates_TE, daux)
    assert (route.forward(z_TE, None, Routing(2, *options))[0].gates_TE[:, 3] == 0).all()


@given(levels=st.lists(st.lists(st.integers(0, 1), min_size=5, max_size=5), min_size=1, max_size=9))
def test_ties_go_to_the_lower_index(levels):
    """Logits of 0 and 1 tie in every row. `torch.topk` guarantees no order, so two machines would route differently."""
    z_TE = torch.tensor(levels, dtype=torch.float64)
    for scores in SCORES:
        _, saved = route.forward(z_TE, None, Routing(3, scores))
        assert saved.index_TK.tolist() == [sorted(range(5), key=lambda e, row=row: (-row[e], e))[:3] for row in levels]


def test_gates_off_the_chosen_are_exactly_zero(normal):
    """A small number off S would let an expert count that was not computed."""
    (z_TE,) = normal(2, (33, 7))
    for scores, renormalise in product(SCORES, (False, True)):
        routed, saved = route.forward(z_TE, None, Routing(3, scores, renormalise))
        chosen_TE = torch.zeros(33, 7, dtype=torch.bool).scatter(1, saved.index_TK, True)
        assert torch.equal(routed.gates_TE != 0, chosen_TE)
        if renormalise:
            torch.testing.assert_close(routed.gates_TE.sum(1), torch.ones(33).double(), rtol=1e-15, atol=0)


def test_softmax_gradient_off_the_chosen_is_not_zero(normal, agree):
    """Masking p in the Jacobian drops −p_e·Σ_S p_j·dw_j for the experts that were not chosen."""
    z_TE, dgates_TE = normal(3, (7, 4), (7, 4))
    _, saved = route.forward(z_TE, None, Routing())
    dz_TE = route.backward(Routed(dgates_TE, torch.zeros(()).double()), saved, Routing())
    p_TE = torch.softmax(z_TE, -1)
    for t in range(7):
        inner = sum(p_TE[t, e] * dgates_TE[t, e] for e in saved.index_TK[t])
        off = [e for e in range(4) if e not in saved.index_TK[t]]
        assert (dz_TE[t, off] != 0).all()
        agree(dz_TE[t, off], -p_TE[t, off] * inner)


@pytest.mark.parametrize("routing", [Routing(renormalise=True), Routing(scores="sigmoid")])
def test_other_gradients_off_the_chosen_are_zero(normal, routing):
    """Only the softmax over all experts couples those that were not chosen."""
    z_TE, dgates_TE = normal(4, (7, 4), (7, 4))
    routed, saved = route.forward(z_TE, None, routing)
    dz_TE = route.backward(Routed(dgates_TE, torch.zeros(()).double()), saved, routing)
    assert torch.equal(dz_TE != 0, routed.gates_TE != 0)


@pytest.mark.parametrize("options", list(product(SCORES, (False, True))))
def test_cotangents_off_the_chosen_are_not_read(normal, options):
    """Gates off S are constants; reading their cotangent would spread the NaN."""
    z_TE, dgates_TE, daux = normal(5, (7, 4), (7, 4), ())
    routing = Routing(2, *options, balance=0.1)
    routed, saved = route.forward(z_TE, None, routing)
    spoilt_TE = dgates_TE.masked_fill(routed.gates_TE == 0, torch.nan)
    right_TE = route.backward(Routed(dgates_TE, daux), saved, routing)
    assert torch.equal(route.backward(Routed(spoilt_TE, daux), saved, routing), right_TE)


def test_auxiliary_losses_by_hand():
    """Two rows and three experts by hand: fails on a count not divided by T·K, or a sum in place of a mean."""
    z_TE = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, -1.0]], dtype=torch.float64)
    p_TE = [[math.exp(z) / sum(map(math.exp, row)) for z in row] for row in z_TE.tolist()]
    share_E = [2 / 4, 2 / 4, 0 / 4]
    balance = 0.3 * 3 * sum(share_E[e] * (p_TE[0][e] + p_TE[1][e]) / 2 for e in range(3))
    z_loss = 0.07 * sum(math.log(sum(map(math.exp, row))) ** 2 for row in z_TE.tolist()) / 2
    assert float(route.forward(z_TE, None, Routing(balance=0.3))[0].aux) == pytest.approx(balance, rel=1e-14)
    assert float(route.forward(z_TE, None, Routing(z_loss=0.07))[0].aux) == pytest.approx(z_loss, rel=1e-14)
    both = route.forward(z_TE, None, Routing(balance=0.3, z_loss=0.07))[0].aux
    assert float(both) == pytest.approx(balance + z_loss, rel=1e-14)
    assert float(route.forward(z_TE, None, Routing())[0].aux) == 0


def test_balance_is_least_when_the_load_is_even():
    """Even load and even probabilities give exactly the loss weight; an extra factor of E or K would not."""
    z_TE = 20 * torch.eye(4, dtype=torch.float64) + 20 * torch.eye(4, dtype=torch.float64).roll(1, 1)
    even = float(route.forward(z_TE, None, Routing(balance=0.5))[0].aux)
    skewed = float(route.forward(z_TE[:1].expand(4, 4), None, Routing(balance=0.5))[0].aux)
    assert even == pytest.approx(0.5, rel=1e-8) and skewed == pytest.approx(1.0, rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_that_underflow(normal, agree, dtype):
    """σ(−800) is 0 in float64: renormalising scores instead of their logarithms is 0/0."""
    z_TE, dgates_TE = (tensor.to(dtype) for tensor in normal(6, (5, 4), (5, 4)))
    z_TE, routing = z_TE - 800, Routing(scores="sigmoid", renormalise=True)
    routed, saved = route.forward(z_TE, None, routing)
    gate_TK = routed.gates_TE.gather(1, saved.index_TK)
    # At these values log σ(z) = z.
    agree(gate_TK, torch.softmax(z_TE.gather(1, saved.index_TK), -1), 8 * torch.finfo(dtype).eps)
    dz_TE = route.backward(Routed(dgates_TE, torch.zeros((), dtype=dtype)), saved, routing)
    assert dz_TE.isfinite().all() and (dz_TE.gather(1, saved.index_TK) != 0).all()


def test_huge_logits(normal):
    """Logits of ±1e4 must leave gates, aux and gradient finite."""
    z_TE, dgates_TE, daux = normal(7, (6, 4), (6, 4), ())
    for options in product(SCORES, (False, True), (0.1,), (0.1,)):
        routing = Routing(2, *options)
        routed, saved = route.forward(1e4 * z_TE, None, routing)
        assert routed.gates_TE.isfinite().all() and routed.aux.isfinite()
        assert route.backward(Routed(dgates_TE, daux), saved, routing).isfinite().all()


def test_correction_selects_and_does_not_weigh(normal):
    """A correction added to the gates themselves would show in their values."""
    (z_TE,) = normal(8, (9, 4))
    c_E = torch.tensor([0.0, 0.0, 0.0, 2.0], dtype=torch.float64)
    routed, saved = route.forward(z_TE, c_E, Routing(1))
    assert (saved.index_TK == 3).all()
    assert torch.equal(routed.gates_TE[:, 3], torch.softmax(z_TE, -1)[:, 3])


def test_rebalance_moves_against_the_load():
    """The wrong sign would send more rows to the busy expert."""
    c_E = route.rebalance(torch.tensor([0.5, 0.5, 0.5, 0.5]), torch.tensor([9, 1, 5, 5]), 0.125)
    assert c_E.tolist() == [0.375, 0.625, 0.5, 0.5]


def test_rebalance_evens_a_skewed_router(normal):
    """Applied repeatedly, the correction must bring rows to a starved expert."""
    (z_TE,) = normal(9, (256, 4))
    z_TE[:, 0] += 2
    z_TE[:, 3] -= 2
    c_E = torch.zeros(4, dtype=torch.float64)
    loads = []
    for _ in range(200):
        loads.append(route.load(route.forward(z_TE, c_E, Routing())[1].index_TK, 4))
        c_E = route.rebalance(c_E, loads[-1], 0.005)
    assert loads[0].max() > 200 and loads[0].min() < 30
    assert (loads[-1] - 128).abs().max() <= 16


def test_load_counts_every_choice():
    """A load without the unused experts would have the wrong length."""
    assert route.load(torch.tensor([[0, 2], [2, 1], [2, 0]]), 5).tolist() == [2, 1, 3, 0, 0]


def test_same_bits_twice(normal):
    """Sums without a fixed order would change the last bits from run to run."""
    z_TE, dgates_TE, daux = normal(10, (65, 9), (65, 9), ())
    routing = Routing(3, balance=0.1, z_loss=0.1)
    first, second = (route.forward(z_TE, None, routing) for _ in range(2))
    assert torch.equal(first[0].gates_TE, second[0].gates_TE) and torch.equal(first[0].aux, second[0].aux)
    dz_TE = [route.backward(Routed(dgates_TE, daux), saved, routing) for _, saved in (first, second)]
    assert torch.equal(*dz_TE)


def test_refusals():
    """Each of these would give a model that silently learns nothing, or that routes no rows."""
    with pytest.raises(ValueError, match="k = 0"):
        Routing(k=0)
    with pytest.raises(ValueError, match=r"k = 1 with renormalise.*zero"):
        Routing(k=1, renormalise=True)
    with pytest.raises(ValueError, match="scores = 'relu'"):
        Routing(scores="relu")
    with pytest.raises(ValueError, match=r"k = 5: .*E = 4"):
        route.forward(torch.zeros(3, 4), None, Routing(k=5))


def test_no_z_loss_is_zero_even_where_its_square_overflows():
    """0·∞ would make the whole loss NaN."""
    (_, aux), _ = route.forward(torch.full((2, 4), 1e20), None, Routing())
    assert float(aux) == 0.0


@pytest.mark.parametrize("options", list(product(SCORES, (False, True))))
@pytest.mark.parametrize("cuts", [(4, 5), (1, 7, 1), (1,) * 9])
def test_parts_of_a_batch_add_up(normal, agree, options, cuts):
    """With `whole`, the parts' aux and gradients add up to those of one batch; shares counted per part would not."""
    z_TE, dgates_TE, daux = normal(11, (9, 4), (9, 4), ())
    routing = Routing(2, *options, balance=0.3, z_loss=0.07)
    routed, saved = route.forward(z_TE, C_4, routing)
    dz_TE = route.backward(Routed(dgates_TE, daux), saved, routing)
    whole = Whole(9, route.load(saved.index_TK, 4))
    aux, gates, grads, own = 0, [], [], 0
    for z, dgates in zip(z_TE.split(cuts), dgates_TE.split(cuts), strict=True):
        part, kept = route.forward(z, C_4, routing, whole)
        aux, own = aux + part.aux, own + route.forward(z, C_4, routing)[0].aux
        gates.append(part.gates_TE)
        grads.append(route.backward(Routed(dgates, daux), kept, routing))
    agree(aux, routed.aux)
    agree(torch.cat(gates), routed.gates_TE)
    agree(torch.cat(grads), dz_TE, terms=dgates_TE)
    assert abs(float(own / routed.aux) - 1) > 0.1  # the result without `whole`


def test_the_whole_of_itself_changes_nothing(normal):
    """The same bits: `whole` only replaces the counted rows and load."""
    z_TE, dgates_TE, daux = normal(12, (9, 4), (9, 4), ())
    routing = Routing(2, balance=0.3, z_loss=0.07)
    routed, saved = route.forward(z_TE, None, routing)
    again, kept = route.forward(z_TE, None, routing, Whole(9, route.load(saved.index_TK, 4)))
    assert torch.equal(again.aux, routed.aux)
    dy = Routed(dgates_TE, daux)
    assert torch.equal(route.backward(dy, kept, routing), route.backward(dy, saved, routing))


def test_a_part_that_chose_nobody_of_some_experts(normal):
    """One row of a large batch: its balance term uses the load of experts that the row did not choose."""
    (z_TE,) = normal(13, (1, 4))
    routing, q_TE = Routing(1, balance=0.5), torch.softmax(z_TE, -1)
    load_E = torch.tensor([7, 1, 0, 2])
    aux = route.forward(z_TE, None, routing, Whole(10, load_E))[0].aux
    right = 0.5 * 4 / 10 * sum(float(load_E[e]) / 10 * float(q_TE[0, e]) for e in range(4))
    assert float(aux) == pytest.approx(right, rel=1e-14)
