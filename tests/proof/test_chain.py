"""Chains judged part by part: what is right passes at every size, what is a little wrong is named."""

from itertools import pairwise

import pytest
import torch

from gradproof.kernels.workspace import Workspace
from gradproof.ops import dispatch, experts, linear, norm_gelu
from gradproof.ops.experts import Chain
from gradproof.proof.chain import FEW, PROJECTED, Largest, watched

DEEP = Chain((24, 48, 48, 48, 5), (True, False, True))


class Plain:
    """The chains by their ops, in any format, which shows what lies between; `spoil` may change what is made."""

    def __init__(self, spoil=lambda name, layer, tensor: tensor, shows_x=True):
        self.spoil, self.shows_x = spoil, shows_x

    def forward(self, x_NI, theta_EP, plan, chain, narrow_EP=None, workspace=None):
        matrices_EP = theta_EP if narrow_EP is None else narrow_EP
        outputs, kept = [], []
        for e, (start, end) in enumerate(pairwise(plan.bounds())):
            own, w = chain.views(theta_EP[e]), chain.views(matrices_EP[e])
            x, h = x_NI[start:end].to(matrices_EP.dtype), []
            for i in range(chain.layers):
                h.append(self.spoil("h", i, linear.wide_product(x, w[f"linear.{i}.weight"].T).to(x.dtype)))
                x = norm_gelu.forward(h[-1], *_norm(own, i), chain.active[i])[0]
            last = linear.wide_product(x, w[f"linear.{chain.layers}.weight"].T)
            outputs.append(self.spoil("y", 0, last + own[f"linear.{chain.layers}.bias"]))
            kept.append(h)
        return torch.cat(outputs), kept

    def backward(
        self, dy_NO, saved, x_NI, theta_EP, plan, chain, narrow_EP=None, out_EP=None, want_dx=True, workspace=None
    ):
        matrices_EP = theta_EP if narrow_EP is None else narrow_EP
        dtheta_EP = torch.zeros_like(theta_EP)
        slices = list(pairwise(plan.bounds()))
        dh = [dy_NO[start:end].to(matrices_EP.dtype) for start, end in slices]
        for e, (start, end) in enumerate(slices):
            bias = chain.views(dtheta_EP[e])[f"linear.{chain.layers}.bias"]
            bias.copy_(self.spoil("bias", chain.layers, dy_NO[start:end].sum(0)))
        for i in reversed(range(chain.layers + 1)):
            if i:
                workspace.show("h", i - 1, torch.cat([h[i - 1] for h in saved]))
            made_x = []
            for e, (start, end) in enumerate(slices):
                own, w, grads = (chain.views(theta[e]) for theta in (theta_EP, matrices_EP, dtheta_EP))
                x = x_NI[start:end].to(dh[e].dtype)
                x = norm_gelu.forward(saved[e][i - 1], *_norm(own, i - 1), chain.active[i - 1])[0] if i else x
                x = self.spoil("input", i, x)
                made_x.append(x)
                grads[f"linear.{i}.weight"].copy_(self.spoil("weight", i, linear.wide_product(dh[e].T, x)))
                dx = self.spoil("dx", i, linear.wide_product(dh[e], w[f"linear.{i}.weight"]))
                if i:
                    made = norm_gelu.backward(
                        dx.to(x.dtype), None, saved[e][i - 1], *_norm(own, i - 1), chain.active[i - 1]
                    )
                    names = (f"linear.{i - 1}.bias", f"norm.{i - 1}.weight", f"norm.{i - 1}.bias")
                    for name, vector in zip(names, made[1:], strict=True):
                        grads[name].copy_(self.spoil(name.split(".")[0] + "." + name.split(".")[2], i - 1, vector))
                    dh[e] = self.spoil("dh", i - 1, made.dh_TH)
                else:
                    dh[e] = self.spoil("x", 0, dx)
            if i and self.shows_x:
                workspace.show("x", i - 1, torch.cat(made_x))
            if i:
                workspace.show("dh", i - 1, torch.cat(dh))
        return torch.cat(dh), dtheta_EP


def _norm(own, i):
    return own[f"linear.{i}.bias"], own[f"norm.{i}.weight"], own[f"norm.{i}.bias"]


def judged(module, rows, dtype, chain=DEEP, experts_=3, k=2, seed=0, dead=False, thorough=None, same=0,
           into_out=False, scale=1.0):  # fmt: skip
    """The largest ratio by name."""
    generator = torch.Generator().manual_seed(seed)
    score_TE = torch.rand(rows, experts_, generator=generator)
    score_TE[:, -1] -= 1  # the last expert has few rows, or none
    plan = dispatch.plan(score_TE.argsort(1, descending=True)[:, :k].contiguous(), experts_)
    theta_EP = experts.draw_theta(chain, experts_, generator).float()
    for theta_P in theta_EP if dead else ():  # GELU gives nothing in one column, next to nothing in another
        chain.view(theta_P, "norm.0.bias")[:2] = torch.tensor([-40.0, -6.0])
        chain.view(theta_P, "norm.0.weight")[:2] = 0.1
    x_NI = torch.randn(rows * k, chain.widths[0], generator=generator)
    x_NI = x_NI[torch.arange(rows * k) % same] if same else x_NI
    given = dict(x=x_NI, theta=theta_EP, plan=plan, chain=chain)
    narrow_EP = None if dtype == torch.float32 else theta_EP.to(dtype)
    given |= {} if narrow_EP is None else {"narrow": narrow_EP}
    y_NO, saved = module.forward(x_NI, theta_EP, plan, chain, narrow_EP)
    dy_NO = torch.randn(y_NO.shape, generator=generator) / rows
    dy_NO = dy_NO[torch.arange(rows * k) % same] if same else dy_NO
    dy_NO *= 1024 if dtype == torch.float16 else 1  # as a loss scale does it
    dy_NO *= scale
    dy_NO = dy_NO.abs() if dead else dy_NO  # and sums whose terms have one sign
    call = dict(dy_NO=dy_NO, saved=saved, x_NI=x_NI, theta_EP=theta_EP, plan=plan, chain=chain, narrow_EP=narrow_EP)
    call |= {"out_EP": torch.full_like(theta_EP, torch.nan)} if into_out else {}
    largest = Largest()
    watched(module, call, given, y_NO.clone(), largest, thorough=thorough)
    return largest.read()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 37, FEW, 3 * FEW + 5])
@pytest.mark.parametrize("shows_x", [True, False])
def test_what_is_right_passes(rows, dtype, shows_x):
    for seed in range(3):
        assert max(judged(Plain(shows_x=shows_x), rows, dtype, seed=seed).values()) <= 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [64, 4 * FEW])
@pytest.mark.parametrize("shows_x", [True, False])
def test_dead_columns_and_sums_of_one_sign_pass(rows, dtype, shows_x):
    assert max(judged(Plain(shows_x=shows_x), rows, dtype, dead=True).values()) <= 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_rounded_the_other_way_between_two_kernels_passes(dtype):
    """dx is rounded where a norm's backward takes it up; one entry that goes the other way moves its whole row."""
    generator = torch.Generator().manual_seed(0)

    def spoil(name, layer, tensor):
        noise = torch.randn(tensor.shape, generator=generator) if name == "dx" else 0.0
        return tensor + tensor * noise * 1.5e-6

    for seed in range(6):
        assert max(judged(Plain(spoil), FEW - 10, dtype, seed=seed).values()) <= 1.0


@pytest.mark.parametrize("thorough", [None, 0])
@pytest.mark.parametrize("shows_x", [True, False])
@pytest.mark.parametrize("same", [1, 2, 20])
def test_rows_that_are_the_same_are_rounded_alike(same, shows_x, thorough):
    """A network that has collapsed gives every row the same: what is rounded the other way is so in all of them."""

    def spoil(name, layer, tensor):
        generator = torch.Generator().manual_seed(layer)
        columns = torch.randn(tensor.shape[-1], generator=generator)
        return tensor + tensor * columns * 1.5e-6 if name == "dx" else tensor

    for seed in range(4):
        ratios = judged(
            Plain(spoil, shows_x), 1200, torch.bfloat16, experts_=1, k=1, seed=seed, thorough=thorough, same=same
        )
        assert max(ratios.values()) <= 1.0, {name: ratio for name, ratio in ratios.items() if ratio > 1}


@pytest.mark.parametrize("scale", [1e-15, 1e-24, 1e-30, 1e12])
@pytest.mark.parametrize("dtype, thorough", [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, 0)])
def test_gradients_that_fade_or_grow_pass(dtype, thorough, scale):
    """Where squares underflow, a bound must not become 0."""
    for rows in (64, 1200):
        ratios = judged(Plain(), rows, dtype, scale=scale, thorough=thorough)
        assert max(ratios.values()) <= 1.0, {name: ratio for name, ratio in ratios.items() if not ratio <= 1}


def test_a_gradient_that_is_written_over_later_is_named():
    """A layer is judged as soon as it is shown; what the backward still does to it afterwards counts too."""

    class TooLate(Plain):
        def backward(self, dy_NO, saved, x_NI, theta_EP, plan, chain, narrow_EP, out_EP, workspace):
            right = Plain().backward(dy_NO, saved, x_NI, theta_EP, plan, chain, narrow_EP, workspace=Workspace())
            out_EP.copy_(right[1])
            Plain().backward(dy_NO, saved, x_NI, theta_EP, plan, chain, narrow_EP, workspace=workspace)
            chain.view(out_EP[1], "linear.2.weight")[3, 5] *= 1.0001
            return right[0], out_EP

    ratios = judged(TooLate(), 64, torch.float32, into_out=True)
    wrong = [name for name, ratio in ratios.items() if not ratio <= 1.0]
    assert wrong == ["theta, written over later: linear.2.weight"]


def test_a_number_of_rows_and_torchs_own_kernels_agree_with_row_by_row():
    """More rows than are judged one by one: nothing comes near its bound in fp32."""
    assert max(judged(Plain(), 2 * FEW, torch.float32).values()) < 0.5


def some_off(by, share):
    """`share` of the entries of at least the usual size are off by so much, always the same ones."""

    def spoil(tensor):
        flat = tensor.clone().flatten()
        usual = flat.float().square().mean().sqrt()
        large = (flat.float().abs() >= usual).nonzero().flatten()
        chosen = large[:: max(1, int(1 / share))]
        flat[chosen] = (flat[chosen].float() * (1 + by)).to(flat.dtype)
        return flat.view_as(tensor)

    return spoil


PLACES = [
    ("h", 1),
    ("input", 2),
    ("y", 0),
    ("dh", 0),
    ("weight", 0),
    ("weight", 2),
    ("x", 0),
    ("linear.bias", 1),
    ("norm.weight", 0),
]


@pytest.mark.parametrize("rows", [64, 3 * FEW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0]} {place[1]}")
def test_a_thousandth_of_the_entries_off_by_a_hundredth_is_refused(place, dtype, rows):
    few = dtype == torch.bfloat16 and place[0] == "dh" and rows == 64  # two or three entries, each half rounded away
    spoil = some_off(0.02 if few else 0.01, 0.001)
    module = Plain(lambda name, layer, tensor: spoil(tensor) if (name, layer) == place else tensor)
    worst = max(judged(module, rows, dtype).items(), key=lambda item: item[1])
    assert worst[1] > 1.0, worst


def test_a_large_gradient_in_fp32_is_seen_along_signs():
    chain = Chain((8, 520, 512, 3), (True, True))
    assert PROJECTED < 520 * 512
    spoil = some_off(0.01, 0.001)
    right = judged(Plain(), 20, torch.float32, chain)
    assert "theta, along signs: linear.1.weight" in right and max(right.values()) <= 1.0
    module = Plain(lambda name, layer, tensor: spoil(tensor) if (name, layer) == ("weight", 1) else tensor)
    assert judged(module, 20, torch.float32, chain)["theta, along signs: linear.1.weight"] > 1.0


def test_an_expert_without_rows_has_no_gradient():
    def leave(name, layer, tensor):
        return tensor + 1e-6 if name == "weight" and layer == 1 and not tensor.any() else tensor

    assert max(judged(Plain(leave), 5, torch.float32).values()) > 1.0


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_infinitely_wrong(number):
    def spoilt(name, layer, tensor):
        if (name, layer) != ("weight", 1) or not tensor.numel():
            return tensor
        return tensor.index_fill(0, torch.tensor([0]), number)

    assert judged(Plain(spoilt), 40, torch.float32)["theta: linear.1.weight"] == float("inf")


NARROW = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("rows", [1, 37, 3 * FEW + 5])
@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("shows_x", [True, False])
def test_what_is_right_passes_in_outline(rows, dtype, dead, shows_x):
    for seed in range(3):
        ratios = judged(Plain(shows_x=shows_x), rows, dtype, seed=seed, dead=dead, thorough=0)
        assert any("in outline" in name for name in ratios) and max(ratios.values()) <= 1.0


def _cut(tensor, dim):
    tensor = tensor.clone()
    tensor.narrow(dim, tensor.shape[dim] - 1, 1).zero_()
    return tensor


ROUGH = {
    "zero": lambda tensor: tensor * 0,
    "a last row of zeros": lambda tensor: _cut(tensor, 0),
    "a last column of zeros": lambda tensor: _cut(tensor, -1),
    "a scale": lambda tensor: tensor * 1.03,
}


@pytest.mark.parametrize("fault", ROUGH)
@pytest.mark.parametrize("where", ["h", "input", "weight", "dh", "linear.bias", "norm.weight", "norm.bias"])
def test_what_is_wrong_is_seen_in_outline(where, fault):
    """In layer 1 to 3, of which none is judged number by number."""
    vector = where.endswith(("bias", "norm.weight"))
    if vector and fault in ("a last row of zeros", "a scale"):
        pytest.skip("a vector has no rows; its outline is coarser")

    def spoil(name, layer, tensor):
        middle = layer == (2 if name in ("input", "weight") else 1)
        return ROUGH[fault](tensor) if name == where and middle else tensor

    ratios = judged(Plain(spoil), 300, torch.bfloat16, experts_=1, k=1, thorough=0)
    wrong = [name for name, ratio in ratios.items() if not ratio <= 1.0]
    assert any("in outline" in name for name in wrong), ratios


def test_a_rehearsal_judges_so_many_layers_number_by_number():
    ratios = judged(Plain(), 64, torch.bfloat16, experts_=1, k=1, thorough=1)
    assert sum(name.startswith("dh") and "in outline" in name for name in ratios) == 1  # of the two in the middle
