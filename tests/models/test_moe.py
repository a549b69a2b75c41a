import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from gradproof.models.dense import Dense, DenseConfig
from gradproof.models.moe import MoE, MoEConfig
from gradproof.ops.route import Whole
from gradproof.params import ParamSpace
from gradproof.train.narrow import NarrowWeights

SMALL = dict(inputs=5, outputs=3, experts=4, hidden=6, depth=1)


def small(**options):
    """A float64 MoE of a few hundred parameters."""
    return MoE(MoEConfig(**{**SMALL, **options}), seed=1, dtype=torch.float64)


def slow(config, params, x_TI, c_E):
    """Logits, gates and aux: each row by itself, through each of its experts, from the definitions."""
    T, E = x_TI.shape[0], config.experts
    logits, gates, count_E, shares, squares = [], [], [0] * E, [], []
    for x_I in x_TI:
        z_E = F.linear(x_I, params["router.weight"], params["router.bias"])
        score_E = torch.softmax(z_E, 0) if config.scores == "softmax" else torch.sigmoid(z_E)
        rank_E = (score_E + c_E).tolist()
        chosen = sorted(range(E), key=lambda e, rank=rank_E: (-rank[e], e))[: config.k]
        among = sum(score_E[e] for e in chosen) if config.renormalise else 1
        gates.append(torch.stack([score_E[e] / among if e in chosen else 0 * score_E[e].detach() for e in range(E)]))
        logits.append(sum(gates[-1][e] * expert(config, params, e, x_I) for e in chosen))
        for e in chosen:
            count_E[e] += 1
        shares.append(score_E / score_E.sum())
        squares.append(torch.logsumexp(z_E, 0) ** 2)
    f_E = torch.tensor(count_E, dtype=torch.float64) / (T * config.k)
    aux = config.balance * E * (f_E * torch.stack(shares).mean(0)).sum() + config.z_loss * torch.stack(squares).mean()
    return torch.stack(logits), torch.stack(gates), aux


def expert(config, params, e, x_I):
    """(Linear → LayerNorm → GELU) × (1 + depth), then Linear."""
    for i in range(1 + config.depth):
        h_H = F.linear(x_I, params[f"experts.{e}.linear.{i}.weight"], params[f"experts.{e}.linear.{i}.bias"])
        gamma_H, beta_H = params[f"experts.{e}.norm.{i}.weight"], params[f"experts.{e}.norm.{i}.bias"]
        x_I = F.gelu(F.layer_norm(h_H, h_H.shape, gamma_H, beta_H), approximate="tanh")
    last = f"experts.{e}.linear.{1 + config.depth}"
    return F.linear(x_I, params[f"{last}.weight"], params[f"{last}.bias"])


def compare(agree, model, x_TI, dy_TO, d_aux):
    """Outputs and every gradient against `slow` through autograd."""
    leaves = {name: view.clone().requires_grad_() for name, view in model.params.items()}
    leaf_TI = x_TI.clone().requires_grad_()
    c_E = model.buffers.get("router.correction", torch.zeros(model.config.experts))
    right = slow(model.config, leaves, leaf_TI, c_E)
    scalar = (right[0] * dy_TO).sum() + right[2] * d_aux
    wanted = torch.autograd.grad(scalar, [leaf_TI, *leaves.values()], materialize_grads=True)

    output, tape = model.forward(x_TI)
    for ours, value in zip(output, right, strict=True):
        agree(ours, value, 1e-10)
    grads = [model.backward(dy_TO, tape, d_aux), *model.params.grads.values()]
    everything = torch.cat([grad.flatten() for grad in wanted])
    for grad, value in zip(grads, wanted, strict=True):
        # An expert without rows must be met exactly; elsewhere rounding is that of the whole gradient.
        agree(grad, value, 1e-10, terms=everything if value.any() else 0.0)


OPTIONS = {
    "default": {},
    "K = 1": dict(k=1),
    "K = E": dict(k=4),
    "sigmoid": dict(scores="sigmoid"),
    "renormalise": dict(renormalise=True),
    "sigmoid, renormalise": dict(scores="sigmoid", renormalise=True, k=3),
    "balance, z-loss": dict(balance=0.3, z_loss=0.07),
    "everything": dict(scores="sigmoid", renormalise=True, balance=0.3, z_loss=0.07, correction=0.1),
    "depth 0": dict(depth=0),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_agrees_with_the_definition(normal, agree, options):
    """A gate applied twice, a masked Jacobian, a lost path to x or gradients in another order would fail."""
    model = small(**options)
    if "router.correction" in model.buffers:
        model.buffers["router.correction"] += torch.tensor([0.3, -0.2, 0.0, 0.1])
    compare(agree, model, *normal(0, (9, 5), (9, 3), ()))


def test_nano_agrees_with_the_definition(normal, agree):
    """Sizes that are multiples of the alignment: an offset that only fits padded entries would fail here or above."""
    model = MoE.sized("nano", dtype=torch.float64)
    compare(agree, model, *normal(1, (17, 96), (17, 20), ()))


@given(
    T=st.sampled_from([1, 2, 5]),
    E=st.sampled_from([1, 2, 3, 5]),
    inputs=st.sampled_from([1, 4]),
    outputs=st.sampled_from([1, 3]),
    hidden=st.sampled_from([3, 5]),
    depth=st.integers(0, 2),
    seed=st.integers(0, 9999),
    data=st.data(),
)
def test_every_shape_agrees_with_the_definition(normal, agree, T, E, inputs, outputs, hidden, depth, seed, data):
    """One row, one expert, one input, K = E, experts without rows: an assumed constant of the schema would fail."""
    k = data.draw(st.integers(1, E))
    model = small(inputs=inputs, outputs=outputs, experts=E, hidden=hidden, depth=depth, k=k, balance=0.1)
    compare(agree, model, *normal(seed, (T, inputs), (T, outputs), ()))


def test_a_hidden_width_of_one(normal):
    """The norm of one number is β: what comes before gets exactly 0; 1/√eps would enlarge any rounding."""
    model = small(hidden=1, depth=0)
    for e in range(4):
        model.params[f"experts.{e}.norm.0.bias"].fill_(0.5)
    x_TI, dy_TO = normal(20, (9, 5), (9, 3))
    assert model.backward(dy_TO, model.forward(x_TI)[1]).any()
    for name, grad in model.params.grads.items():
        assert grad.any() == ("linear.0" not in name and not name.endswith("norm.0.weight")), name


def test_ties_take_the_lower_experts(normal, agree):
    """With equal scores every row goes to experts 0 and 1; an unstable choice would scatter them."""
    model = small()
    model.params["router.weight"].zero_()
    model.params["router.bias"].zero_()
    given_ = normal(2, (6, 5), (6, 3), ())
    assert torch.equal(model.forward(given_[0])[0].gates_TE, torch.tensor([0.25, 0.25, 0, 0]).double().expand(6, 4))
    compare(agree, model, *given_)


def test_an_expert_without_rows(normal):
    """Its gradient is exactly 0 and nothing is NaN, even where the buffer held something before."""
    model = small(balance=0.1)
    model.params["router.bias"][3] = -60.0
    x_TI, dy_TO, d_aux = normal(3, (9, 5), (9, 3), ())
    output, tape = model.forward(x_TI)
    assert (output.gates_TE[:, 3] == 0).all()
    model.params.grad_P.fill_(torch.nan)
    assert model.backward(dy_TO, tape, d_aux).isfinite().all()
    for name, grad in model.params.grads.items():
        assert grad.isfinite().all() and (grad.any() == (not name.startswith("experts.3."))), name


def test_gates_off_the_chosen_are_exactly_zero(normal):
    """A metric counts the gates that are not zero."""
    output, _ = small(k=2).forward(normal(4, (33, 5))[0])
    assert ((output.gates_TE != 0).sum(1) == 2).all() and (output.gates_TE >= 0).all()


def test_accumulate_adds(normal, agree):
    """Overwriting would train on the last micro-batch only; adding without being asked, on stale gradients."""
    model = small(balance=0.1)
    batches = [normal(seed, (T, 5), (T, 3), ()) for seed, T in ((5, 4), (6, 9))]
    alone = []
    for x_TI, dy_TO, d_aux in batches:
        model.backward(dy_TO, model.forward(x_TI)[1], d_aux)
        alone.append(model.params.grad_P.clone())
    for accumulate, (x_TI, dy_TO, d_aux) in zip((False, True), batches, strict=True):
        model.backward(dy_TO, model.forward(x_TI)[1], d_aux, accumulate=accumulate)
    agree(model.params.grad_P, alone[0] + alone[1], 1e-14)


def test_two_forwards_in_flight(normal):
    """State hidden on the model would give the second forward's gradient to the first."""
    model = small(balance=0.1)
    batches = [normal(seed, (T, 5), (T, 3), ()) for seed, T in ((7, 4), (8, 9))]

    def pulled(tape, dy_TO, d_aux):
        dx_TI = model.backward(dy_TO, tape, d_aux)
        return torch.cat([dx_TI.flatten(), model.params.grad_P])

    alone = [pulled(model.forward(x_TI)[1], dy_TO, d_aux) for x_TI, dy_TO, d_aux in batches]
    tapes = [model.forward(x_TI)[1] for x_TI, _, _ in batches]
    assert torch.equal(pulled(tapes[0], *batches[0][1:]), alone[0])
    assert torch.equal(pulled(tapes[1], *batches[1][1:]), alone[1])


def test_same_bits_twice(normal):
    """Atomics in dispatch or combine would change the last bits from run to run."""
    x_TI, dy_TO = (tensor.float() for tensor in normal(9, (64, 96), (64, 20)))
    runs = []
    for _ in range(2):
        model = MoE.sized("nano")
        output, tape = model.forward(x_TI)
        runs.append((output.logits_TO, model.backward(dy_TO, tape), model.params.grad_P))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_padding_gets_no_gradient(normal):
    """A kernel that writes past an entry would make the norm of the flat gradient wrong."""
    model = small()
    x_TI, dy_TO = normal(10, (9, 5), (9, 3))
    model.backward(dy_TO, model.forward(x_TI)[1])
    in_views = sum(float(grad.square().sum()) for grad in model.params.grads.values())
    assert float(model.params.grad_P.square().sum()) == pytest.approx(in_views, rel=1e-14)
    padding = model.params.grad_P.clone()
    for name, grad in model.params.grads.items():
        padding[model.params.offsets[name] :][: grad.numel()] = 0
    assert not padding.any()


def test_inputs_are_left_alone(normal):
    """An op in place would change what the caller still needs."""
    model = small()
    x_TI, dy_TO = normal(11, (9, 5), (9, 3))
    before, flat_P = (x_TI.clone(), dy_TO.clone()), model.params.flat_P.clone()
    model.backward(dy_TO, model.forward(x_TI)[1])
    assert torch.equal(x_TI, before[0]) and torch.equal(dy_TO, before[1])
    assert torch.equal(model.params.flat_P, flat_P)


@pytest.mark.parametrize(
    ("name", "count"),
    [("nano", 195_540), ("tiny", 84_984_276), ("medium", 337_740_244), ("full", 807_846_356)],
)
def test_exact_parameter_counts(name, count):
    """The sizes of the design; the meta device lays out the real parameters and allocates none."""
    config = MoEConfig.sized(name)
    assert config.param_count() == count
    assert ParamSpace(config.spec(), device="meta").count == count


def test_experts_are_equal_shards():
    """An expert of another length would break the strided [E, out, in] view."""
    params = small().params
    w_EHI = params.stack("experts.*.linear.0.weight")
    assert w_EHI.shape == (4, 6, 5)
    for e in range(4):
        assert torch.equal(w_EHI[e], params[f"experts.{e}.linear.0.weight"])
    assert list(params)[:8] == [
        "router.weight",
        "router.bias",
        "experts.0.linear.0.weight",
        "experts.0.linear.0.bias",
        "experts.0.norm.0.weight",
        "experts.0.norm.0.bias",
        "experts.0.linear.1.weight",
        "experts.0.linear.1.bias",
    ]


@given(exponent=st.floats(5, 8.845))
def test_matching_meets_its_budget(exponent):
    """A width found by rounding the wrong way would miss a budget between 100,000 and 700,000,000 by over 1%."""
    budget = round(10**exponent)
    assert abs(MoEConfig.matching(budget).param_count() - budget) <= 0.01 * budget


SHEAF = dict(router="sheaf", patches=(9, 11, 14, 7, 5, 16, 8, 4, 22))


@pytest.mark.parametrize("options", [SHEAF, dict(router="sheaf"), dict(SHEAF, experts=1, k=1), dict(SHEAF, experts=7)])
def test_the_count_of_a_sheaf_router_is_exact(options):
    """Without allocating: the maps have E(E − 1)/2 numbers each, not E²; one patch has none."""
    config = MoEConfig.sized("nano", **options)
    model = MoE(config)
    assert config.param_count() == model.params.count == sum(view.numel() for view in model.params.values())
    assert {name.split(".")[0] for name in model.params} == {"router", "experts"}


def test_matching_keeps_what_is_fixed():
    """The router's own parameters are part of the budget."""
    config = MoEConfig.matching(200_000, experts=3, **SHEAF)
    assert config.cover and (config.experts, config.patches) == (3, SHEAF["patches"])
    assert abs(config.param_count() - 200_000) <= 2_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(router="hash"), "router = 'hash' must be softmax or sheaf"),
        (dict(patches=(3, 3)), r"patches = \(3, 3\): widths of at least 1 that add up to the 96 inputs"),
        (dict(patches=(96, 0)), "widths of at least 1"),
        (dict(gluing=-1.0), "gluing = -1.0"),
    ],
)
def test_refuses_a_router(options, message):
    with pytest.raises(ValueError, match=message):
        MoEConfig(**options)


def test_the_energy_joins_the_auxiliary_loss(normal, agree):
    """γ·mean energy, over the rows of the whole batch where these are a part of it."""
    x_TI = normal(30, (9, 5))[0]
    plain, glued = (small(router="sheaf", patches=(2, 1, 2), gluing=gluing, balance=0.1) for gluing in (0.0, 0.7))
    for whole in (None, Whole(25, torch.tensor([20, 12, 3, 15]))):
        (without, tape), (output, _) = (model.forward(x_TI, whole) for model in (plain, glued))
        energy_T = plain.energy(tape.saved)
        assert energy_T.shape == (9,) and float(energy_T.min()) > 0
        agree(output.aux - without.aux, 0.7 * energy_T.sum() / (25 if whole else 9), 1e-12)
        assert torch.equal(output.logits_TO, without.logits_TO)
    assert small().energy(small().forward(x_TI)[1].saved) is None


def test_matching_refuses_an_impossible_budget():
    """A model ten times too large would be compared as if it were equal."""
    with pytest.raises(ValueError, match="no MoE of 96 inputs and 20 outputs has as few as 100 parameters"):
        MoEConfig.matching(100)


def test_rebalance():
    """The correction moves by its rate against the load; without one there is nothing to move."""
    model = small(correction=0.125)
    model.rebalance(torch.tensor([9, 1, 5, 5]))
    assert model.buffers["router.correction"].tolist() == [-0.125, 0.125, 0.0, 0.0]
    with pytest.raises(ValueError, match="no selection bias"):
        small().rebalance(torch.tensor([9, 1, 5, 5]))


def test_correction_is_not_a_parameter(normal):
    """Were it counted or saved with the weights, an optimizer would decay it."""
    assert small(correction=0.1).params.count == small().params.count
    x_TI, _ = normal(12, (9, 5), (9, 3))
    model = small(correction=0.1, k=1)
    model.buffers["router.correction"] = torch.tensor([0.0, 0.0, 0.0, 2.0]).double()
    output, _ = model.forward(x_TI)
    assert (output.gates_TE[:, :3] == 0).all() and (output.gates_TE[:, 3] < 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(k=5), "k = 5 .* from 4"),
        (dict(k=0), "k = 0"),
        (dict(k=1, renormalise=True), "k = 1 with renormalise"),
        (dict(scores="relu"), "'relu'"),
        (dict(hidden=0), "hidden"),
        (dict(depth=-1), "depth"),
    ],
)
def test_refuses_a_config(options, message):
    """Each would build a model that fails later, or never learns."""
    with pytest.raises(ValueError, match=message):
        MoEConfig(**{**SMALL, **options})


def test_refuses_an_unknown_size():
    """The message lists the sizes there are."""
    with pytest.raises(ValueError, match=r"'huge'.*nano, tiny, medium, full"):
        MoEConfig.sized("huge")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(4, 6).double(), r"5 inputs\], not \[4, 6\]"),
        (torch.zeros(4, 5), r"input is torch\.float32 but the parameters are torch\.float64"),
        (torch.zeros(0, 5).double(), r"rows ≥ 1.*\[0, 5\]"),
        (torch.zeros(5).double(), r"not \[5\]"),
        (torch.zeros(2, 4, 5).double(), r"not \[2, 4, 5\]"),
        (torch.zeros(4, 5, dtype=torch.int64), r"input is torch\.int64"),
        (torch.zeros(4, 5, dtype=torch.float64, device="meta"), "input is on meta, the parameters are on cpu"),
    ],
)
def test_refuses_an_input(x, message):
    """A sentence in place of a shape error from inside a product."""
    with pytest.raises(ValueError, match=message):
        small().forward(x)


@pytest.mark.parametrize(
    ("dy", "d_aux", "message"),
    [
        (torch.zeros(4, 2).double(), 0.0, r"cotangent must be \[4, 3\].*not \[4, 2\]"),
        (torch.zeros(1, 3).double(), 0.0, r"cotangent must be \[4, 3\].*not \[1, 3\]"),
        (torch.zeros(()).double(), 0.0, r"cotangent must be \[4, 3\]"),
        (torch.zeros(4, 3), 0.0, r"cotangent is torch\.float32 but the parameters are torch\.float64"),
        (torch.zeros(4, 3).double(), torch.zeros(4), r"d_aux .*\[4\]"),
    ],
)
def test_refuses_a_cotangent(normal, dy, d_aux, message):
    """[1, 3] would broadcast to a gradient that is wrong in silence; the tape stays good for another try."""
    model = small()
    x_TI, dy_TO = normal(13, (4, 5), (4, 3))
    _, tape = model.forward(x_TI)
    with pytest.raises(ValueError, match=message):
        model.backward(dy, tape, d_aux)
    model.backward(dy_TO, tape)


def spoil_by_view(model, x_TI):
    model.params["experts.2.linear.0.weight"][0, 0] += 1


def spoil_by_touch(model, x_TI):
    model.params.touch()


def spoil_by_initialise(model, x_TI):
    model.params.initialise(5)


def spoil_by_input(model, x_TI):
    x_TI[1, 2] += 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_by_view, "parameters changed"),
        (spoil_by_touch, "parameters changed"),
        (spoil_by_initialise, "parameters changed"),
        (spoil_by_input, "input was modified in place"),
    ],
)
def test_refuses_a_stale_tape(normal, spoil, message):
    """The gradient would be that of no function: activations of the old values, weights of the new."""
    model = small()
    x_TI, dy_TO = normal(14, (4, 5), (4, 3))
    _, tape = model.forward(x_TI)
    spoil(model, x_TI)
    with pytest.raises(ValueError, match=message):
        model.backward(dy_TO, tape)


def test_outputs_are_not_the_tape(normal):
    """A caller who scales the gates for a plot must not change the gradient in silence."""
    model = small()
    x_TI, dy_TO = normal(21, (4, 5), (4, 3))
    right_TI = model.backward(dy_TO, model.forward(x_TI)[1])
    output, tape = model.forward(x_TI)
    output.logits_TO.mul_(2)
    output.gates_TE.mul_(2)
    output.aux.add_(1)
    assert torch.equal(model.backward(dy_TO, tape), right_TI)


def test_refuses_a_tape_twice(normal):
    """A second backward would add the same gradient again, or find its activations gone."""
    model = small()
    x_TI, dy_TO = normal(15, (4, 5), (4, 3))
    _, tape = model.forward(x_TI)
    model.backward(dy_TO, tape)
    with pytest.raises(ValueError, match="tape has already been used"):
        model.backward(dy_TO, tape)


def test_refuses_the_tape_of_another_model(normal):
    """Two models of one shape would mix activations and weights in silence."""
    x_TI, dy_TO = normal(16, (4, 5), (4, 3))
    _, tape = small().forward(x_TI)
    with pytest.raises(ValueError, match="another model"):
        small().backward(dy_TO, tape)
    with pytest.raises(ValueError, match="another model"):
        Dense(DenseConfig(5, 3, 6, 9, 1), dtype=torch.float64).backward(dy_TO, tape)


def test_an_update_between_forwards_is_legal(normal):
    """Only the tape from before the update is refused."""
    model = small()
    x_TI, dy_TO = normal(17, (4, 5), (4, 3))
    model.forward(x_TI)
    model.params.flat_P.mul_(0.9)
    model.backward(dy_TO, model.forward(x_TI)[1])


def test_input_from_inference_mode(normal):
    """Such tensors have no version counter; reading it would raise."""
    with torch.inference_mode():
        x_TI, dy_TO = (tensor.clone() for tensor in normal(18, (4, 5), (4, 3)))
    model = small()
    assert model.backward(dy_TO, model.forward(x_TI)[1]).isfinite().all()


def test_nothing_is_recorded_for_autograd(normal):
    """A graph kept alive by an input that requires gradients would hold the memory of every step."""
    x_TI, dy_TO = normal(19, (4, 5), (4, 3))
    model = small()
    output, tape = model.forward(x_TI.requires_grad_())
    assert not output.logits_TO.requires_grad
    assert not model.backward(dy_TO, tape).requires_grad


@pytest.mark.parametrize("options", [OPTIONS["balance, z-loss"], OPTIONS["everything"]], ids=["softmax", "everything"])
def test_parts_of_a_batch_add_up(normal, agree, options):
    """Given the load of the whole, accumulated parts are the batch; a share of each part's own would not be."""
    model = small(**options)
    x_TI, dy_TO, d_aux = normal(22, (9, 5), (9, 3), ())
    output, tape = model.forward(x_TI)
    dx_TI = model.backward(dy_TO, tape, d_aux)
    gradient_P = model.params.grad_P.clone()
    cuts = [4, 1, 4]
    whole = Whole(9, sum(model.load(model.params, part) for part in x_TI.split(cuts)))
    assert torch.equal(whole.load_E, (output.gates_TE != 0).sum(0))
    aux, grads, loads, shares = 0, [], 0, []
    for i, (x, dy) in enumerate(zip(x_TI.split(cuts), dy_TO.split(cuts), strict=True)):
        part, tape = model.forward(x, whole)
        p_TE, load_E = model.routed(tape.saved)
        aux, loads = aux + part.aux, loads + load_E
        shares.append(p_TE)
        grads.append(model.backward(dy, tape, d_aux, accumulate=i > 0))
    agree(aux, output.aux)
    agree(torch.cat(grads), dx_TI, terms=gradient_P)
    agree(model.params.grad_P, gradient_P)
    assert torch.equal(loads, whole.load_E)
    p_TE = torch.cat(shares)
    assert p_TE.shape == (9, 4) and torch.allclose(p_TE.sum(1), torch.ones(9).double(), rtol=1e-14)


def test_load_sees_the_correction(normal):
    """The rows that are chosen, not those that the scores alone would choose."""
    model = small(correction=0.1, k=1)
    model.buffers["router.correction"] = torch.tensor([0.0, 0.0, 0.0, 2.0]).double()
    assert model.load(model.params, normal(23, (9, 5))[0]).tolist() == [0, 0, 0, 9]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_weights_leave_the_routing_as_it_is(normal, dtype):
    """Gates and aux come from fp32 products: the same bits; the outputs are those of narrow experts, summed in fp32."""
    model = MoE(MoEConfig(**SMALL, balance=0.1), seed=1)
    x_TI = normal(24, (33, 5))[0].float()
    narrow, saved = model.apply(NarrowWeights(model.params, dtype), x_TI)
    right, _ = model.apply(model.params, x_TI)
    assert torch.equal(narrow.gates_TE, right.gates_TE) and torch.equal(narrow.aux, right.aux)
    assert narrow.logits_TO.dtype == torch.float32 and saved.experts.h[0][0].dtype == dtype
    error = float((narrow.logits_TO - right.logits_TO).norm() / right.logits_TO.norm())
    assert torch.finfo(dtype).eps / 16 < error < 8 * torch.finfo(dtype).eps


def test_without_a_seed_there_is_nothing_to_draw():
    """For a model that is about to be loaded: drawing its first weights is most of what making one takes."""
    assert not MoE(MoEConfig.sized("nano"), seed=None).params.flat_P.any()
