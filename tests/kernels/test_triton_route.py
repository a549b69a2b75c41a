from dataclasses import replace

import pytest
import torch

from gradproof.ops import route
from gradproof.ops.route import Routed, Routing, Whole

OPTIONS = [
    Routing(),
    Routing(k=1),
    Routing(k=3, renormalise=True),
    Routing(scores="sigmoid"),
    Routing(scores="sigmoid", renormalise=True, k=3),
    Routing(balance=0.1),
    Routing(z_loss=0.01),
    Routing(renormalise=True, balance=0.2, z_loss=0.02),
    Routing(scores="sigmoid", balance=0.2, z_loss=0.02),
    Routing(scores="sigmoid", renormalise=True, balance=0.2, z_loss=0.02),
]


@pytest.fixture
def kernel(triton_device):
    from gradproof.kernels.triton import route

    return route


def run(op, z_TE, c_E, routing, whole, dy):
    """Everything that a router returns."""
    routed, saved = op.forward(z_TE, c_E, routing, whole)
    return routed, saved, op.backward(dy, saved, routing)


@pytest.fixture
def compare(kernel, near, normal, triton_device):
    """compare(z, routing): against the reference in float64 and in the format of z; returns the kernel's results."""

    def check(z_TE, routing, c_E=None, whole=None):
        z_TE = z_TE.to(triton_device)
        (dgates_TE,) = normal(9, z_TE.shape)
        dy = Routed(dgates_TE.to(z_TE), torch.tensor(0.7).to(z_TE))
        before = z_TE.clone()
        fast = run(kernel, z_TE, c_E, routing, whole, dy)
        assert torch.equal(z_TE, before)
        usual = run(route, z_TE, c_E, routing, whole, dy)
        exact = Routed(*(cotangent.double() for cotangent in dy))
        right = run(route, z_TE.double(), None if c_E is None else c_E.double(), routing, whole, exact)
        assert torch.equal(fast[1].index_TK, right[1].index_TK) and fast[1].rows == right[1].rows
        off = torch.ones_like(z_TE, dtype=torch.bool).scatter(1, fast[1].index_TK, False)
        assert (fast[0].gates_TE[off] == 0).all()
        for name in ("gates_TE", "aux"):
            near(*(getattr(answer[0], name) for answer in (fast, usual, right)))
        for name in ("q_TE", "share_E"):
            near(*(getattr(answer[1], name) for answer in (fast, usual, right)))
        near(fast[2], usual[2], right[2], scale=dgates_TE)
        return fast

    return check


@pytest.mark.parametrize("routing", OPTIONS, ids=str)
def test_every_option(compare, normal, routing):
    """A Jacobian of the masked p, a gate off S that is not 0, or a term of aux left out would fail."""
    (z_TE,) = normal(0, (21, 5))
    compare(z_TE.float(), routing)


@pytest.mark.parametrize(("T", "E"), [(1, 4), (2, 1), (7, 2), (33, 9), (70, 64), (300, 4), (257, 3)])
def test_every_shape(compare, normal, T, E):
    """Rows or experts of the padding that are counted, or blocks that are not added up, would fail."""
    (z_TE,) = normal(1, (T, E))
    compare(z_TE.float(), Routing(k=min(2, E), balance=0.1, z_loss=0.01))


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_all_experts_chosen(compare, normal, scores):
    (z_TE,) = normal(2, (9, 4))
    compare(z_TE.float(), Routing(k=4, scores=scores, renormalise=True, balance=0.1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_logits(kernel, normal, triton_device, dtype):
    """Computed in fp32 and rounded once: as near as the format allows."""
    (z_TE,) = normal(3, (11, 4))
    z_TE = z_TE.to(triton_device, dtype)
    routed, saved = kernel.forward(z_TE, None, Routing(balance=0.1))
    right, exact = route.forward(z_TE.double(), None, Routing(balance=0.1))
    assert routed.gates_TE.dtype == dtype and torch.equal(saved.index_TK, exact.index_TK)
    assert torch.allclose(routed.gates_TE.double(), right.gates_TE, rtol=torch.finfo(dtype).eps, atol=0)


def test_correction_chooses_and_does_not_weigh(compare, normal, triton_device):
    (z_TE,) = normal(4, (40, 4))
    c_E = torch.tensor([0.9, 0.0, -0.9, 0.1], device=triton_device)
    fast = compare(z_TE.float(), Routing(balance=0.1), c_E)
    assert (fast[1].index_TK[:, 0] == 0).all()


@pytest.mark.parametrize("T", [7, 300])
def test_part_of_a_batch(compare, normal, triton_device, T):
    """The shares of the whole batch, from the loads that are given, with one block and with several."""
    (z_TE,) = normal(5, (T, 4))
    whole = Whole(2 * T, torch.tensor([T, 2 * T, 0, T], device=triton_device))
    fast = compare(z_TE.float(), Routing(balance=0.1, z_loss=0.01), whole=whole)
    assert fast[1].share_E.tolist() == [0.25, 0.5, 0.0, 0.25]


def test_ties_go_to_the_lower_index(compare, normal):
    (z_TE,) = normal(6, (40, 6))
    z_TE = z_TE.round()
    z_TE[0] = 0.0
    fast = compare(z_TE.float(), Routing(k=3, balance=0.1))
    assert fast[1].index_TK[0].tolist() == [0, 1, 2]


def test_an_expert_that_nobody_chooses(compare, normal):
    (z_TE,) = normal(7, (20, 4))
    z_TE[:, 2] -= 30
    assert compare(z_TE.float(), Routing(balance=0.1))[1].share_E[2] == 0


def test_scores_that_underflow_and_logits_that_overflow(compare, normal):
    """0/0 unless renormalised gates are taken in logarithms; ∞/∞ unless the maximum is taken off first."""
    (z_TE,) = normal(8, (5, 4))
    compare(-800 + z_TE.float(), Routing(scores="sigmoid", renormalise=True))
    compare(800 + z_TE.float(), Routing(z_loss=0.01))


def test_nan_stays_in_its_row(kernel, normal, triton_device):
    """NaN comes first, as in a sort; the indices stay in range, and the other rows as they were."""
    (z_TE,) = normal(9, (6, 4))
    z_TE = z_TE.float().to(triton_device)
    right, _ = kernel.forward(z_TE, None, Routing())
    z_TE[2, 1] = torch.nan
    routed, saved = kernel.forward(z_TE, None, Routing(balance=0.1))
    assert saved.index_TK[2].tolist() == [0, 1] and routed.gates_TE[2, :2].isnan().all() and routed.aux.isnan()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(routed.gates_TE[others], right.gates_TE[others])


def test_a_cotangent_from_the_host_and_rows_of_a_wider_buffer(kernel, normal, triton_device):
    z_TE, dgates_TE = (wide_TE.float().to(triton_device)[:, 3:7] for wide_TE in normal(10, (9, 8), (9, 8)))
    routing = Routing(balance=0.1, z_loss=0.01)
    aux = torch.tensor(0.5, device=triton_device)
    for op in (kernel, route):
        _, saved = op.forward(z_TE, None, routing)
        dz = [kernel.backward(Routed(dgates_TE, daux), saved, routing) for daux in (aux, 0.5)]
        assert torch.equal(*dz)
    assert torch.allclose(dz[0], route.backward(Routed(dgates_TE, aux), saved, routing), rtol=1e-5, atol=1e-7)


def test_loads_and_same_bits_twice(kernel, normal, triton_device):
    (z_TE,) = normal(11, (600, 5))
    z_TE = z_TE.float().to(triton_device)
    routing = Routing(balance=0.1, z_loss=0.01)
    (first, saved), (second, _) = (kernel.forward(z_TE, None, routing) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert kernel.load(saved.index_TK, 5).tolist() == route.load(saved.index_TK.cpu(), 5).tolist()


def test_refuses_what_it_cannot_hold(kernel):
    with pytest.raises(ValueError, match="E = 65"):
        kernel.forward(torch.zeros(2, 65), None, Routing())
    with pytest.raises(ValueError, match="k = 5"):
        kernel.forward(torch.zeros(2, 4), None, replace(Routing(), k=5))
