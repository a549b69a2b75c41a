"""The compiled CPU kernels against the ops in float64, on the same float32 inputs.

A kernel may be wrong by four times what the op itself is in float32, plus eight units.
"""

from itertools import pairwise

import pytest
import torch

from gradproof.kernels.cpu import (
    adamw,
    combine,
    cross_entropy,
    dispatch,
    experts,
    mixture,
    norm_gelu,
    reading,
    route,
    update,
)
from gradproof.kernels.cpu.build import available
from gradproof.ops import adamw as ref_adamw
from gradproof.ops import combine as ref_combine
from gradproof.ops import cross_entropy as ref_cross_entropy
from gradproof.ops import dispatch as ref_dispatch
from gradproof.ops import experts as ref_experts
from gradproof.ops import mixture as ref_mixture
from gradproof.ops import norm_gelu as ref_norm_gelu
from gradproof.ops import reading as ref_reading
from gradproof.ops import route as ref_route
from gradproof.ops import update as ref_update
from gradproof.ops.experts import Chain
from gradproof.ops.mixture import Mixed, Mixture
from gradproof.ops.reading import Reader
from gradproof.ops.route import Routed, Routing, Whole


@pytest.fixture(autouse=True, scope="module")
def compiled():
    reason = available()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(params=[1, 2, 3])
def threads(request, monkeypatch):
    """How many threads the kernels take; the reference stays with one, for it is slow with more where others work."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)
    return request.param


@pytest.fixture
def together(monkeypatch):
    """All threads share every product, as they do for models that are too large to test."""
    monkeypatch.setattr(experts, "APART", 0)
    experts._shape.cache_clear()
    yield
    experts._shape.cache_clear()


@pytest.fixture(params=[(1, False), (2, False), (3, False), (2, True), (3, True)], ids=str)
def schedule(request, monkeypatch):
    """(threads, whether they share every product)."""
    threads, shared = request.param
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    if shared:
        request.getfixturevalue("together")


class Workspace:
    """Buffers by name and shape, full of NaN at first."""

    def __init__(self):
        self.held = {}

    def take(self, name, shape, like):
        key = (name, shape)
        if key not in self.held:
            self.held[key] = torch.full(shape, torch.nan if like.is_floating_point() else -1, dtype=like.dtype)
        return self.held[key]

    def show(self, name, layer, rows, slices=None):
        """Nobody looks."""


def draw(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def near(fast, exact, own):
    """‖fast − exact‖ ≤ 4‖own − exact‖ + 8u‖exact‖, where `own` is the op's answer in float32."""
    assert (fast.shape, fast.dtype) == (exact.shape, torch.float32)
    u = torch.finfo(torch.float32).eps / 2
    error, allowed = (fast.double() - exact).norm(), 4 * (own.double() - exact).norm() + 8 * u * exact.norm()
    assert error <= allowed, f"off by {error:.3g}, allowed {allowed:.3g}, of {exact.norm():.3g}"


def same_bits(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


# --- experts ----------------------------------------------------------------------------------------------------------

NANO = Chain((96, 128, 128, 128, 20), (True, True, True))
ODD = Chain((3, 129, 1, 17, 5), (True, False, True))


def _plan(rows, number, k, seed=0):
    score_TE = torch.rand(rows, number, generator=torch.Generator().manual_seed(seed))
    return ref_dispatch.plan(score_TE.argsort(1)[:, :k].contiguous(), number)


CASES = {
    "nano": (NANO, _plan(32, 4, 2)),
    "odd widths": (ODD, _plan(33, 4, 2)),
    "one row": (ODD, _plan(1, 4, 1)),
    "every expert": (Chain((7, 16, 4), (True,)), _plan(9, 3, 3)),
    "no norm": (Chain((4, 2), ()), _plan(21, 5, 2)),
    "linear layers": (Chain((20, 33, 64, 1), (False, False)), _plan(70, 2, 1)),
    "dense": (Chain((10, 40, 40, 6), (False, True)), ref_dispatch.all_rows(301)),
    "starved": (ODD, ref_dispatch.plan(torch.tensor([[0, 2], [2, 0], [0, 2]] * 11), 4)),
    "all in one": (Chain((5, 24, 3), (True,)), ref_dispatch.plan(torch.full((150, 1), 2), 4)),
    "uneven": (Chain((12, 48, 7), (True,)), ref_dispatch.plan((torch.arange(260)[:, None] ** 2 // 13000) % 4, 4)),
    "many rows": (Chain((20, 48, 33, 7), (True, True)), _plan(1500, 4, 2)),
}


def _inputs(chain, plan, seed=1):
    generator = torch.Generator().manual_seed(seed)
    drawn = ref_experts._arguments(plan, chain, generator)
    dy_NO = torch.randn(plan.slot_N.numel(), chain.widths[-1], generator=generator)
    return drawn["x"].float(), drawn["theta"].float(), dy_NO


def _reference(x_NI, theta_EP, dy_NO, plan, chain):
    y_NO, saved = ref_experts.forward(x_NI, theta_EP, plan, chain)
    return y_NO, *ref_experts.backward(dy_NO, saved, x_NI, theta_EP, plan, chain)


def _check(fast, x_NI, theta_EP, dy_NO, plan, chain, before_EP=None):
    """y, dx and the gradient of each parameter of each expert; `before_EP` is what the gradients were added to."""
    exact = _reference(x_NI.double(), theta_EP.double(), dy_NO.double(), plan, chain)
    own = _reference(x_NI, theta_EP, dy_NO, plan, chain)
    near(fast[0], exact[0], own[0])
    if fast[1] is not None:
        near(fast[1], exact[1], own[1])
    before_EP = torch.zeros_like(theta_EP) if before_EP is None else before_EP
    for fast_P, exact_P, own_P, before_P in zip(fast[2], exact[2], own[2], before_EP, strict=True):
        parts = [chain.views(grad_P) for grad_P in (fast_P, exact_P + before_P, own_P + before_P)]
        for name in parts[0]:
            near(*(part[name] for part in parts))


@pytest.mark.parametrize("name", CASES)
def test_experts(name, schedule):
    """A wrong tile edge, an expert's rows given to another, a lost thread's gradients, a wrong layer order."""
    chain, plan = CASES[name]
    x_NI, theta_EP, dy_NO = _inputs(chain, plan)
    before = [tensor.clone() for tensor in (x_NI, theta_EP, dy_NO, *plan)]
    y_NO, saved = experts.forward(x_NI, theta_EP, plan, chain)
    dx_NI, dtheta_EP = experts.backward(dy_NO, saved, x_NI, theta_EP, plan, chain)
    _check((y_NO, dx_NI, dtheta_EP), x_NI, theta_EP, dy_NO, plan, chain)
    again, saved_again = experts.forward(x_NI, theta_EP, plan, chain)
    grads_again = experts.backward(dy_NO, saved_again, x_NI, theta_EP, plan, chain)
    assert same_bits(y_NO, again) and same_bits(dx_NI, grads_again[0]) and same_bits(dtheta_EP, grads_again[1])
    assert all(torch.equal(a, b) for a, b in zip(before, (x_NI, theta_EP, dy_NO, *plan), strict=True))


@pytest.mark.parametrize("name", ["nano", "odd widths", "starved", "uneven"])
def test_experts_write_over_and_add(name, schedule):
    """Everything is written, experts without rows included; padding is left as it is; `accumulate` adds."""
    chain, plan = CASES[name]
    x_NI, theta_EP, dy_NO = _inputs(chain, plan)
    y_NO, saved = experts.forward(x_NI, theta_EP, plan, chain)
    out_EP = torch.full_like(theta_EP, torch.nan)
    dx_NI, found_EP = experts.backward(dy_NO, saved, x_NI, theta_EP, plan, chain, out_EP=out_EP, want_dx=False)
    assert dx_NI is None and found_EP is out_EP
    _check((y_NO, None, out_EP), x_NI, theta_EP, dy_NO, plan, chain)
    for (start, end), grad_P in zip(pairwise(plan.bounds()), out_EP, strict=True):
        views = chain.views(grad_P)
        assert int(grad_P.isnan().sum()) == chain.length - sum(view.numel() for view in views.values())
        assert start < end or all(bool((view == 0).all()) for view in views.values())

    (before_EP,) = draw(2, theta_EP.shape)
    out_EP = before_EP.clone()
    experts.backward(dy_NO, saved, x_NI, theta_EP, plan, chain, out_EP=out_EP, accumulate=True)
    _check((y_NO, None, out_EP), x_NI, theta_EP, dy_NO, plan, chain, before_EP)


def test_experts_at_a_distance(schedule):
    """Experts are rows of a larger buffer, and so are their gradients; what is between is not touched."""
    chain, plan = CASES["odd widths"]
    x_NI, theta_EP, dy_NO = _inputs(chain, plan)
    wide = torch.full((4, chain.length + 192), torch.nan)
    theta_view, out = wide[:, 64:-128], torch.full((4, chain.length + 64), 7.0)
    theta_view.copy_(theta_EP)
    y_NO, saved = experts.forward(x_NI, theta_view, plan, chain)
    dx_NI, _ = experts.backward(dy_NO, saved, x_NI, theta_view, plan, chain, out_EP=out[:, 64:])
    _check((y_NO, dx_NI, out[:, 64:]), x_NI, theta_EP, dy_NO, plan, chain)
    assert bool((out[:, :64] == 7).all())


def test_experts_reuse_a_workspace(threads):
    """The second step, with other rows and loads, finds the first one's leavings everywhere."""
    workspace, chain = Workspace(), NANO
    for seed in (3, 4):
        plan = _plan(50, 4, 2, seed)
        x_NI, theta_EP, dy_NO = _inputs(chain, plan, seed)
        out_EP = torch.zeros_like(theta_EP)
        y_NO, saved = experts.forward(x_NI, theta_EP, plan, chain, workspace=workspace)
        dx_NI, _ = experts.backward(dy_NO, saved, x_NI, theta_EP, plan, chain, out_EP=out_EP, workspace=workspace)
        _check((y_NO, dx_NI, out_EP), x_NI, theta_EP, dy_NO, plan, chain)
    assert saved.kept is workspace.held["experts.kept", tuple(saved.kept.shape)]


def test_experts_large_enough_to_bypass_the_caches(together, monkeypatch):
    """Gradients of 64 MiB are streamed to memory, and the widths need several blocks of every product."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    chain = Chain((16, 2048, 2048, 4), (True, True))
    plan = ref_dispatch.plan(torch.tensor([[0], [3], [0], [2], [3], [0], [0]]), 4)
    x_NI, theta_EP, dy_NO = _inputs(chain, plan)
    y_NO, saved = experts.forward(x_NI, theta_EP, plan, chain)
    dx_NI, dtheta_EP = experts.backward(dy_NO, saved, x_NI, theta_EP, plan, chain)
    _check((y_NO, dx_NI, dtheta_EP), x_NI, theta_EP, dy_NO, plan, chain)


def test_threads_are_those_of_torch(monkeypatch):
    """torch.set_num_threads is what decides."""
    chain, plan = CASES["uneven"]
    x_NI, theta_EP, dy_NO = _inputs(chain, plan)

    def gradients():
        _, saved = experts.forward(x_NI, theta_EP, plan, chain)
        return experts.backward(dy_NO, saved, x_NI, theta_EP, plan, chain)[1]

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    two_EP = gradients()
    torch.set_num_threads(before)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert same_bits(two_EP, gradients())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert not same_bits(two_EP, gradients())  # the sums are split elsewhere


def test_nan_stays_in_its_row(schedule):
    """In the outputs; gradients of its expert's parameters are NaN, those of others are not."""
    chain, plan = CASES["odd widths"]
    x_NI, theta_EP, dy_NO = _inputs(chain, plan)
    row = plan.bounds()[1] + 2
    x_NI[row, 1] = torch.nan
    y_NO, saved = experts.forward(x_NI, theta_EP, plan, chain)
    dx_NI, dtheta_EP = experts.backward(dy_NO, saved, x_NI, theta_EP, plan, chain)
    assert dx_NI is not None
    for rows in (y_NO, dx_NI):
        assert bool(rows[row].isnan().all()) and int(rows.isnan().any(1).sum()) == 1
    assert dtheta_EP.isnan().any(1).tolist() == [False, True, False, False]
    assert bool(chain.views(dtheta_EP[1])["linear.0.weight"].isnan().all())


def test_narrow_formats_run_the_reference():
    chain, plan = CASES["nano"]
    x_NI, theta_EP, _ = _inputs(chain, plan)
    narrow_EP = theta_EP.bfloat16()
    y_NO, _ = experts.forward(x_NI, theta_EP, plan, chain, narrow_EP)
    assert torch.equal(y_NO, ref_experts.forward(x_NI, theta_EP, plan, chain, narrow_EP)[0])


def test_float64_is_refused():
    chain, plan = CASES["nano"]
    x_NI, theta_EP, _ = _inputs(chain, plan)
    with pytest.raises(TypeError, match="float32"):
        experts.forward(x_NI.double(), theta_EP, plan, chain)
    with pytest.raises(TypeError, match="float32"):
        experts.forward(x_NI, theta_EP.double(), plan, chain)


def test_experts_refuse_what_they_would_misread():
    """Pointers know no shapes."""
    chain, plan = CASES["nano"]
    x_NI, theta_EP, dy_NO = _inputs(chain, plan)
    _, saved = experts.forward(x_NI, theta_EP, plan, chain)
    for wrong in ((x_NI[1:], theta_EP), (x_NI[:, 1:], theta_EP), (x_NI, theta_EP[1:]), (x_NI, theta_EP[:, ::2])):
        with pytest.raises(ValueError, match=r"expected|gaps"):
            experts.forward(*wrong, plan, chain)
    for out_EP in (theta_EP[:, 1:], theta_EP.T.contiguous().T):
        with pytest.raises(ValueError, match=r"expected|gaps"):
            experts.backward(dy_NO, saved, x_NI, theta_EP, plan, chain, out_EP=out_EP)


# --- norm_gelu --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows, width", [(1, 1), (1, 3), (5, 2), (7, 16), (64, 128), (63, 129), (700, 20)])
@pytest.mark.parametrize("active", [True, False])
def test_norm_gelu(rows, width, active, threads):
    """From one saturated tail of the GELU to the other, with a mean far above the spread in some rows."""
    h_TH, b_H, gamma_H, beta_H, dy_TH = draw(5, (rows, width), (width,), (width,), (width,), (rows, width))
    h_TH[1::3] += 30
    given = (h_TH, b_H, 4 * gamma_H, beta_H)
    y_TH, _ = norm_gelu.forward(*given, active)
    grads = norm_gelu.backward(dy_TH, None, *given, active)
    exact = [operand.double() for operand in given]
    near(y_TH, ref_norm_gelu.forward(*exact, active)[0], ref_norm_gelu.forward(*given, active)[0])
    right = ref_norm_gelu.backward(dy_TH.double(), None, *exact, active)
    own = ref_norm_gelu.backward(dy_TH, None, *given, active)
    for compared in zip(grads, right, own, strict=True):
        near(*compared)
    assert all(same_bits(a, b) for a, b in zip(grads, norm_gelu.backward(dy_TH, None, *given, active), strict=True))


def test_norm_gelu_far_out():
    """Pre-activations whose cube overflows: the GELU is 0 or n, its derivative 0 or 1."""
    h_TH = torch.tensor([[-1.0, 1.0, -1.0, 1.0]])
    gamma_H, zeros_H, dy_TH = torch.tensor([1e30, 1e30, 300.0, 300.0]), torch.zeros(4), torch.ones(1, 4)
    y_TH, _ = norm_gelu.forward(h_TH, zeros_H, gamma_H, zeros_H)
    assert bool((y_TH[0, [0, 2]].abs() < 1e-30).all()) and torch.allclose(y_TH[0, [1, 3]], gamma_H[[1, 3]])
    grads = norm_gelu.backward(dy_TH, None, h_TH, zeros_H, gamma_H, zeros_H)
    assert torch.allclose(grads.dbeta_H, torch.tensor([0.0, 1.0, 0.0, 1.0]), atol=1e-30)


def test_norm_gelu_nan_stays_in_its_row():
    h_TH, b_H, gamma_H, beta_H, dy_TH = draw(6, (9, 20), (20,), (20,), (20,), (9, 20))
    h_TH[4, 3] = torch.nan
    y_TH, _ = norm_gelu.forward(h_TH, b_H, gamma_H, beta_H)
    dh_TH = norm_gelu.backward(dy_TH, None, h_TH, b_H, gamma_H, beta_H).dh_TH
    for rows_TH in (y_TH, dh_TH):
        assert rows_TH.isnan().all(1).tolist() == rows_TH.isnan().any(1).tolist() == [row == 4 for row in range(9)]


# --- route ------------------------------------------------------------------------------------------------------------

ROUTINGS = [options["routing"] for options in ref_route.CONTRACT.options]


@pytest.mark.parametrize("routing", ROUTINGS, ids=str)
@pytest.mark.parametrize("rows", [1, 33, 1200])
def test_route(routing, rows, threads):
    """Every option, alone and as a part of a larger batch, with and without a correction."""
    experts_, whole = 5, Whole(3 * rows + 1, torch.tensor([20, 12, 3, 15, 1]))
    z_TE, c_E, dgates_TE, daux = draw(7, (rows, experts_), (experts_,), (rows, experts_), ())
    for correction, of in ((None, None), (0.3 * c_E, whole)):
        (gates_TE, aux), saved = route.forward(z_TE, correction, routing, of)
        dz_TE = route.backward(Routed(dgates_TE, daux), saved, routing)
        answers = []
        for to in (torch.float64, torch.float32):
            right, kept = ref_route.forward(z_TE.to(to), None if correction is None else correction.to(to), routing, of)
            assert torch.equal(saved.index_TK, kept.index_TK) and saved.rows == kept.rows
            right_dz_TE = ref_route.backward(Routed(dgates_TE.to(to), daux.to(to)), kept, routing)
            answers.append((*right, right_dz_TE, kept.q_TE, kept.share_E))
        for compared in zip((gates_TE, aux, dz_TE, saved.q_TE, saved.share_E), *answers, strict=True):
            near(*compared)
        assert torch.equal(gates_TE == 0, ref_route.forward(z_TE, correction, routing, of)[0].gates_TE == 0)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_route_ties_go_to_the_lower_index_and_nan_comes_first(scores):
    nan = torch.nan
    z_TE = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 2.0, 1.0], [0.0, nan, 3.0, nan], [-1.0, -1.0, -2.0, -1.0]])
    for k in (1, 2, 4):
        routing = Routing(k=k, scores=scores)
        (gates_TE, _), saved = route.forward(z_TE, None, routing)
        (right_TE, _), kept = ref_route.forward(z_TE, None, routing)
        assert torch.equal(saved.index_TK, kept.index_TK)
        assert torch.equal(gates_TE.isnan(), right_TE.isnan())


def test_route_in_the_tails():
    """Scores that underflow are renormalised in logarithms; logits of ±800 have a finite gradient."""
    z_TE = torch.tensor([[-800.0, -801.0, -799.5, -803.0], [800.0, -800.0, 0.0, 1.0]])
    routing = Routing(scores="sigmoid", renormalise=True, balance=0.1, z_loss=0.01)
    (gates_TE, aux), saved = route.forward(z_TE, None, routing)
    (right_TE, right), kept = ref_route.forward(z_TE.double(), None, routing)
    assert torch.allclose(gates_TE.double(), right_TE, rtol=1e-6, atol=1e-12)
    assert torch.allclose(aux.double(), right, rtol=1e-6)
    dy = Routed(torch.ones_like(z_TE), torch.ones(()))
    right = ref_route.backward(Routed(*(cotangent.double() for cotangent in dy)), kept, routing)
    assert torch.allclose(route.backward(dy, saved, routing).double(), right, rtol=1e-5, atol=1e-9)


def test_route_refuses_more_choices_than_experts():
    with pytest.raises(ValueError, match="k = 3"):
        route.forward(torch.zeros(2, 2), None, Routing(k=3))


# --- dispatch and combine ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows, number, k", [(1, 1, 1), (7, 4, 2), (33, 5, 5), (3000, 4, 2)])
@pytest.mark.parametrize("width", [1, 20, 33])
def test_dispatch_and_combine(rows, number, k, width, threads):
    right = _plan(rows, number, k)
    plan = dispatch.plan(right.index_TK, number)
    assert all(torch.equal(a, b) for a, b in zip(plan, right, strict=True))
    x_TI, drows_NI, gates_TE, dy_TI = draw(8, (rows, width), (rows * k, width), (rows, number), (rows, width))
    rows_NI, _ = dispatch.forward(x_TI, plan)
    assert torch.equal(rows_NI, ref_dispatch.forward(x_TI, plan)[0])
    near(
        dispatch.backward(drows_NI, None, plan),
        ref_dispatch.backward(drows_NI.double(), None, plan),
        ref_dispatch.backward(drows_NI, None, plan),
    )
    given = (drows_NI, gates_TE)
    exact = [operand.double() for operand in given]
    y_TI, _ = combine.forward(*given, plan)
    near(y_TI, ref_combine.forward(*exact, plan)[0], ref_combine.forward(*given, plan)[0])
    grads = combine.backward(dy_TI, None, *given, plan)
    right = ref_combine.backward(dy_TI.double(), None, *exact, plan)
    for compared in zip(grads, right, ref_combine.backward(dy_TI, None, *given, plan), strict=True):
        near(*compared)
    assert torch.equal(grads[1] == 0, right[1] == 0)


def test_dispatch_and_combine_reuse_a_workspace():
    workspace = Workspace()
    for seed in (9, 10):
        plan = _plan(40, 4, 2, seed)
        x_TI, dy_TI, gates_TE = draw(seed, (40, 6), (40, 6), (40, 4))
        rows_NI, _ = dispatch.forward(x_TI, plan, workspace)
        assert torch.equal(rows_NI, ref_dispatch.forward(x_TI, plan)[0])
        y_TI, _ = combine.forward(rows_NI, gates_TE, plan, workspace)
        assert torch.allclose(y_TI, ref_combine.forward(rows_NI, gates_TE, plan)[0], rtol=1e-5, atol=1e-6)
        drows_NI, dgates_TE = combine.backward(dy_TI, None, rows_NI, gates_TE, plan, workspace)
        right = ref_combine.backward(dy_TI, None, rows_NI, gates_TE, plan)
        assert torch.allclose(drows_NI, right[0]) and torch.allclose(dgates_TE, right[1], rtol=1e-5, atol=1e-6)
        dx_TI = dispatch.backward(drows_NI, None, plan, workspace)
        assert torch.allclose(dx_TI, ref_dispatch.backward(right[0], None, plan), rtol=1e-5, atol=1e-6)


def test_plan_refuses_an_expert_that_does_not_exist():
    with pytest.raises(ValueError, match="no expert 4"):
        dispatch.plan(torch.tensor([[0], [4]]), 4)


# --- cross_entropy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows, classes", [(1, 2), (7, 3), (64, 12), (1500, 20), (33, 100)])
def test_cross_entropy(rows, classes, threads):
    z_TC, weight_C, dloss = draw(11, (rows, classes), (classes,), ())
    z_TC[0] *= 400  # sure, and perhaps wrong
    target_T = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(12))
    for weights in (None, weight_C.abs()):
        for total in (None, 50.0, torch.tensor(50.0)):
            loss, saved = cross_entropy.forward(z_TC, target_T, weights, total)
            dz_TC = cross_entropy.backward(dloss, saved, z_TC, target_T)
            answers = []
            for to in (torch.float64, torch.float32):
                given = (z_TC.to(to), target_T, None if weights is None else weights.to(to), total)
                right, kept = ref_cross_entropy.forward(*given)
                answers.append((right, ref_cross_entropy.backward(dloss.to(to), kept, z_TC.to(to), target_T)))
            for compared in zip((loss, dz_TC), *answers, strict=True):
                near(*compared)


def test_cross_entropy_of_masked_logits():
    """A logit of −∞ has probability 0 and no gradient; NaN stays in its row."""
    z_TC = torch.tensor([[0.0, -torch.inf, 1.0], [0.0, torch.nan, 1.0], [0.0, 0.0, 0.0]])
    target_T = torch.tensor([2, 0, 1])
    loss, saved = cross_entropy.forward(z_TC, target_T)
    dz_TC = cross_entropy.backward(torch.ones(()), saved, z_TC, target_T)
    assert bool(loss.isnan()) and dz_TC.isnan().any(1).tolist() == [False, True, False]
    assert float(dz_TC[0, 1]) == 0.0


@pytest.mark.parametrize("target", [torch.tensor([0, 3]), torch.tensor([0, -1]), torch.tensor([0]), torch.ones(2)])
def test_cross_entropy_refuses_a_wrong_target(target):
    """With the op's own sentence."""
    z_TC = torch.zeros(2, 3)
    with pytest.raises(ValueError) as right:
        ref_cross_entropy.forward(z_TC, target)
    with pytest.raises(ValueError) as refusal:
        cross_entropy.forward(z_TC, target)
    assert str(refusal.value) == str(right.value)


def test_cross_entropy_of_nothing_but_padding(threads):
    """No loss and no gradient, as the op has it; so too where all classes that occur weigh nothing."""
    (z_TC,) = draw(13, (700, 5))
    padding_T, weight_C = torch.full((700,), -1), torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0])
    for target_T, weights in ((padding_T, None), (padding_T, weight_C), (torch.ones_like(padding_T), weight_C)):
        for total in (None, 0.0, torch.tensor(0)):
            for module in (cross_entropy, ref_cross_entropy):
                loss, saved = module.forward(z_TC, target_T, weights, total, ignore=-1)
                assert float(loss) == 0 and (module.backward(torch.tensor(1.7), saved, z_TC, target_T) == 0).all()


# --- adamw ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [1, 37, 1200])
def test_adamw(blocks, threads):
    """Three steps, clipped and decayed, each from the same state as the op's."""
    p_P, g_P, m_P, v_P = draw(13, *[(64 * blocks,)] * 4)
    m_P, v_P = 0.1 * m_P, 0.01 * v_P.square()
    decayed_B = torch.arange(blocks) % 3 != 1
    rate, divisor, skip = torch.tensor(0.01), torch.tensor(3.7), torch.zeros(())
    for count in (1.0, 2.0, 500.0):
        given = (p_P, g_P, m_P, v_P, decayed_B, torch.tensor(count), rate, divisor, skip)
        exact_given = [tensor.double() if tensor.is_floating_point() else tensor for tensor in given]
        exact, _ = ref_adamw.forward(*exact_given, weight_decay=0.3)
        own, _ = ref_adamw.forward(*given, weight_decay=0.3)
        fast, _ = adamw.forward(*given, weight_decay=0.3)
        for compared in zip(fast, exact, own, strict=True):
            near(*compared)
        adamw.step(*given, weight_decay=0.3)
        assert all(same_bits(a, b) for a, b in zip(fast, (p_P, m_P, v_P), strict=True))


def test_adamw_skips():
    p_P, m_P, v_P = draw(14, (128,), (128,), (128,))
    before = [buffer_P.clone() for buffer_P in (p_P, m_P, v_P)]
    g_P, nan, one = torch.full((128,), torch.nan), torch.tensor(torch.nan), torch.ones(())
    adamw.step(p_P, g_P, m_P, v_P, torch.ones(2, dtype=torch.bool), one, one, nan, one)
    assert all(torch.equal(a, b) for a, b in zip(before, (p_P, m_P, v_P), strict=True))


def test_adamw_moves_the_narrow_copy():
    p_P, g_P = draw(15, (128,), (128,))
    narrow_P = p_P.bfloat16()
    one = torch.ones(())
    decayed_B = torch.ones(2, dtype=torch.bool)
    adamw.step(p_P, g_P, torch.zeros(128), torch.zeros(128), decayed_B, one, 0.1 * one, narrow_P=narrow_P)
    assert torch.equal(narrow_P, p_P.bfloat16())


def test_adamw_refuses_buffers_it_would_misread():
    flat, one = [torch.zeros(128) for _ in range(4)], torch.ones(())
    with pytest.raises(ValueError, match="contiguous"):
        adamw.step(torch.zeros(256)[::2], *flat[1:], torch.ones(2, dtype=torch.bool), one, one)
    with pytest.raises(ValueError, match="expected"):
        adamw.step(*flat, torch.ones(3, dtype=torch.bool), one, one)
    with pytest.raises(TypeError, match="float32"):
        adamw.step(flat[0].double(), *flat[1:], torch.ones(2, dtype=torch.bool), one, one)


def test_norm(threads):
    """Summed in float64: squares that float32 cannot hold, and the same bits twice."""
    (g_P,) = draw(16, (64 * 1000,))
    for scaled_P in (g_P, 1e25 * g_P, 1e-25 * g_P):
        exact = scaled_P.double().norm()
        norm = adamw.norm(scaled_P)
        assert abs(float(norm) - float(exact)) <= 1e-7 * float(exact)
        assert torch.equal(norm, adamw.norm(scaled_P))
    g_P[70] = torch.inf
    assert float(adamw.norm(g_P)) == float("inf")
    g_P[71] = torch.nan
    assert bool(adamw.norm(g_P).isnan())


# --- mixture ----------------------------------------------------------------------------------------------------------

MIXTURES = {
    "nano": (32, Mixture(4, NANO, Routing())),
    "odd widths": (33, Mixture(5, ODD, Routing(k=3, balance=0.2, z_loss=0.02))),
    "one row": (1, Mixture(3, Chain((4, 2), ()), Routing(k=1))),
    "more experts than lanes": (40, Mixture(35, Chain((19, 12, 3), (True,)), Routing(scores="sigmoid"))),
    "many rows": (1100, Mixture(4, Chain((20, 24, 7), (True,)), Routing(renormalise=True, balance=0.1))),
}


def _mixed(module, x_TI, theta_P, dy, of, **options):
    """Outputs, load and gradients; dy in the dtype of the input."""
    y, saved = module.forward(x_TI, theta_P, None, of)
    grads = module.backward(Mixed(*(cotangent.to(x_TI.dtype) for cotangent in dy)), saved, x_TI, theta_P, of, **options)
    return [output.clone() for output in y], saved.load_E, grads


def _mixture_inputs(name, seed=1):
    rows, of = MIXTURES[name]
    drawn = ref_mixture._arguments(rows, of, torch.Generator().manual_seed(seed))
    dy = Mixed(*draw(seed, (rows, of.chain.widths[-1]), (rows, of.experts), ()))
    return drawn["x"].float(), drawn["theta"].float(), dy, of


@pytest.mark.parametrize("name", MIXTURES)
def test_mixture(name, schedule):
    """A router's last columns, rows fetched for another expert, a lost cotangent of the gates; the same bits twice."""
    mixture.shape_of.cache_clear()
    x_TI, theta_P, dy, of = _mixture_inputs(name)
    outputs, load_E, grads = _mixed(mixture, x_TI, theta_P, dy, of)
    exact, right_E, exact_grads = _mixed(ref_mixture, x_TI.double(), theta_P.double(), dy, of)
    own, _, own_grads = _mixed(ref_mixture, x_TI, theta_P, dy, of)
    assert torch.equal(load_E, right_E)
    for compared in zip((*outputs, grads[0]), (*exact, exact_grads[0]), (*own, own_grads[0]), strict=True):
        near(*compared)
    parts = [of.by_name(grad_P) for grad_P in (grads[1], exact_grads[1], own_grads[1])]
    for part in parts[0]:
        near(*(grads_by_name[part] for grads_by_name in parts))
    again, _, grads_again = _mixed(mixture, x_TI, theta_P, dy, of)
    assert all(same_bits(a, b) for a, b in zip((*outputs, *grads), (*again, *grads_again), strict=True))


def test_mixture_writes_over_and_adds(schedule):
    """Into a given buffer, without dx; what is between the parameters is left as it is."""
    mixture.shape_of.cache_clear()
    x_TI, theta_P, dy, of = _mixture_inputs("odd widths")
    _, _, (_, right_P) = _mixed(mixture, x_TI, theta_P, dy, of)
    out_P = torch.full_like(theta_P, torch.nan)
    _, _, (dx_TI, found_P) = _mixed(mixture, x_TI, theta_P, dy, of, out_P=out_P, want_dx=False)
    assert dx_TI is None and found_P is out_P
    (before_P,) = draw(2, theta_P.shape)
    _, _, (_, added_P) = _mixed(mixture, x_TI, theta_P, dy, of, out_P=before_P.clone(), accumulate=True)
    for written, right, added, before in zip(
        *(of.by_name(grad_P).values() for grad_P in (out_P, right_P, added_P, before_P)), strict=True
    ):
        assert same_bits(written, right) and torch.allclose(added - before, right, rtol=1e-4, atol=1e-4)
    assert int(out_P.isnan().sum()) == theta_P.numel() - sum(view.numel() for view in of.by_name(theta_P).values())


def test_mixture_reuses_a_workspace(threads):
    """The second step, with other rows, finds the first one's leavings everywhere; the gates are the caller's own."""
    workspace, of = Workspace(), MIXTURES["nano"][1]
    kept = []
    for seed in (3, 4):
        x_TI, theta_P, dy, _ = _mixture_inputs("nano", seed)
        fast, saved = mixture.forward(x_TI, theta_P, None, of, workspace=workspace)
        grads = mixture.backward(dy, saved, x_TI, theta_P, of, workspace=workspace)
        right, _, right_grads = _mixed(mixture, x_TI, theta_P, dy, of)
        assert all(same_bits(a, b) for a, b in zip((*fast, *grads), (*right, *right_grads), strict=True))
        kept.append((fast.gates_TE, right[1]))
    assert all(same_bits(*gates) for gates in kept)


def test_whole_experts_are_dealt_to_threads_alike(monkeypatch):
    """Loads that neighbours would share badly: the busiest first. Which thread takes an expert changes no bit."""
    chain, plan = (
        Chain((5, 24, 3), (True,)),
        ref_dispatch.plan(torch.tensor([0] * 4 + [1] * 26 + [2] * 24 + [3] * 6)[:, None], 4),
    )
    x_NI, theta_EP, dy_NO = _inputs(chain, plan)
    answers = []
    for threads in (1, 2, 3, 4):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        y_NO, saved = experts.forward(x_NI, theta_EP, plan, chain)
        answers.append((y_NO, *experts.backward(dy_NO, saved, x_NI, theta_EP, plan, chain)))
    for answer in answers[1:]:
        assert all(same_bits(a, b) for a, b in zip(answers[0], answer, strict=True))


def test_mixture_refuses_what_it_would_misread():
    """Pointers know no shapes."""
    x_TI, theta_P, _, of = _mixture_inputs("odd widths")
    for wrong in ((x_TI[:, 1:], theta_P), (x_TI, theta_P[64:])):
        with pytest.raises(ValueError, match="expected"):
            mixture.forward(*wrong, None, of)
    with pytest.raises(TypeError, match="float32"):
        mixture.forward(x_TI, theta_P.double(), None, of)


# --- update -----------------------------------------------------------------------------------------------------------


def _ending(blocks, spoilt=None, scale=1.0, loss=0.7):
    p_P, g_P, m_P, v_P = draw(13, *[(64 * blocks,)] * 4)
    if spoilt is not None:
        g_P[-1] = spoilt
    state = (p_P, g_P, 0.1 * m_P, 0.01 * v_P.square(), torch.arange(blocks) % 3 != 1)
    return state, [torch.tensor(scalar) for scalar in (6.0, 2.0, 0.01, scale, loss)]


@pytest.mark.parametrize("blocks", [1, 37, 1200])
@pytest.mark.parametrize("clip", [None, 0.5, 1e6])
def test_update(blocks, clip, threads):
    """Threads that clip by their own part of the norm, or count each for itself."""
    state, scalars = _ending(blocks, scale=8.0)
    fast, _ = update.forward(*state, *scalars, clip=clip)
    exact, _ = ref_update.forward(
        *(tensor.double() if tensor.is_floating_point() else tensor for tensor in state),
        *(scalar.double() for scalar in scalars),
        clip=clip,
    )
    own, _ = ref_update.forward(*state, *scalars, clip=clip)
    for compared in zip(fast, exact, own, strict=True):
        near(*compared)
    again, _ = update.forward(*state, *scalars, clip=clip)
    assert all(same_bits(a, b) for a, b in zip(fast, again, strict=True))


@pytest.mark.parametrize("spoilt, loss", [(torch.nan, 0.7), (torch.inf, 0.7), (None, torch.nan), (None, -torch.inf)])
def test_update_skips(spoilt, loss, threads):
    """One entry at the far end: every thread must learn of it before it moves anything."""
    state, scalars = _ending(1200, spoilt, loss=loss)
    count, skips = scalars[0].clone(), scalars[1].clone()
    p_P, g_P, m_P, v_P, decayed_B = (tensor.clone() for tensor in state)
    norm, skipped = update.step(p_P, g_P, m_P, v_P, decayed_B, count, skips, *scalars[2:], clip=1.0)
    assert all(torch.equal(a, b) for a, b in zip((p_P, m_P, v_P), (state[0], state[2], state[3]), strict=True))
    assert (float(count), float(skips), float(skipped)) == (6, 3, 1)
    assert bool(norm.isfinite()) == (spoilt is None)


def test_update_of_a_gradient_whose_squares_overflow():
    """1e30 has a finite norm, though no float holds its square: it is clipped, not skipped."""
    state, scalars = _ending(3)
    state[1].zero_()[5] = 1e30
    norm, skipped = update.step(*state[:5], *scalars, clip=1.0)
    assert float(norm) == pytest.approx(1e30, rel=1e-6) and float(skipped) == 0 and bool(state[0].isfinite().all())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "width", "inner"), [(1, 3, 1), (7, 8, 33), (65, 16, 64)])
def test_ffn_writes_and_adds(rows, width, inner, threads):
    """Bias and GELU in one pass, tails included, with gradients that are returned, written over NaN, or added."""
    from gradproof.kernels.cpu import ffn as kernel
    from gradproof.ops import ffn

    generator = torch.Generator().manual_seed(rows)
    shapes = (rows, width), (inner, width), (inner,), (width, inner), (width,), (rows, width)
    x, w1, b1, w2, b2, dy = (torch.randn(shape, generator=generator) for shape in shapes)
    given = (x * 4, w1, b1, w2, b2)
    right, kept = ffn.forward(*(operand.double() for operand in given))
    expected = ffn.backward(dy.double(), kept, *(operand.double() for operand in (x * 4, w1, w2)))[1:]
    torch.set_num_threads(threads)
    try:
        for start, accumulate in ((None, False), (torch.nan, False), (1.5, True)):
            y, saved = kernel.forward(*given)
            out = None if start is None else tuple(torch.full_like(parameter, start) for parameter in (w1, b1, w2, b2))
            grads = kernel.backward(dy, saved, x * 4, w1, w2, out, accumulate)[1:]
            torch.testing.assert_close(y.double(), right, rtol=1e-4, atol=1e-4)
            for a, b in zip(grads, expected, strict=True):
                torch.testing.assert_close(a.double(), b + (start if accumulate else 0), rtol=1e-4, atol=1e-4)
            assert out is None or all(a is b for a, b in zip(out, grads, strict=True))
    finally:
        torch.set_num_threads(1)


READERS = (Reader(30, 192, 6, 2, 384, 256), Reader(9, 24, 2, 1, 40, 300, 2), Reader(5, 10, 1, 2, 3, 70))


def read(reader, *shape):
    given = ref_reading._draw(
        dict(zip("BS", shape, strict=True)), torch.Generator().manual_seed(5), dict(reader=reader)
    )
    return given["token"], given["theta"].float()


@pytest.mark.parametrize("tokens", [1, 16, 47, 64, 256])
@pytest.mark.parametrize("reader", READERS, ids=str)
def test_readings(reader, tokens, threads):
    token_BS, theta_P = read(reader, 4, tokens)
    fast, own = (module.forward(token_BS, theta_P, reader)[0] for module in (reading, ref_reading))
    near(fast, ref_reading.forward(token_BS, theta_P.double(), reader)[0], own)


def test_a_sequence_is_read_the_same_alone_and_among_others(threads):
    """Whatever was read before, by whichever thread, in whatever room."""
    reader = READERS[0]
    token_BS, theta_P = read(reader, 7, 90)
    together = reading.forward(token_BS, theta_P, reader)[0]
    for token_S, y_O in zip(token_BS, together, strict=True):
        assert torch.equal(reading.forward(token_S[None], theta_P, reader)[0][0], y_O)
    assert torch.equal(
        reading.forward(token_BS[:, ::2], theta_P, reader)[0],
        reading.forward(token_BS[:, ::2].contiguous(), theta_P, reader)[0],
    )


def test_a_reading_of_nan_is_nan():
    reader = READERS[1]
    token_BS, theta_P = read(reader, 2, 9)
    reader.views(theta_P)["encoder.0.ffn.up.weight"][3, 5] = torch.nan
    assert reading.forward(token_BS, theta_P, reader)[0].isnan().all()


def test_readings_that_would_leave_their_memory_are_refused():
    reader = READERS[1]
    token_BS, theta_P = read(reader, 2, 9)
    for strange in (9, -2, 2**40):
        token_BS[1, 4] = strange
        with pytest.raises(ValueError, match=r"must be in 0\.\.8, or"):
            reading.forward(token_BS, theta_P, reader)
    with pytest.raises(ValueError, match="do not fit"):
        reading.forward(torch.zeros(1, 301, dtype=torch.int64), theta_P, reader)
    with pytest.raises(ValueError, match="do not fit"):
        reading.forward(torch.zeros(1, 3, dtype=torch.int64), theta_P[: reader.offsets[1] - 1], reader)
    with pytest.raises(TypeError, match="float32"):
        reading.forward(torch.zeros(1, 3, dtype=torch.int64), theta_P.double(), reader)
    with pytest.raises(TypeError, match="int64"):
        reading.forward(torch.zeros(1, 3, dtype=torch.int32), theta_P, reader)
    assert reading.forward(torch.zeros(0, 3, dtype=torch.int64), theta_P, reader)[0].shape == (0, 2)
