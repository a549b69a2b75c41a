"""The experts' chains by grouped products, in bf16: what an admission asks of them, against float64."""

import importlib

import pytest
import torch

from gradproof.contract import Example
from gradproof.kernels.workspace import Workspace
from gradproof.ops import dispatch, experts
from gradproof.ops.experts import Chain
from gradproof.proof.admission import admit
from gradproof.streams import seeded

BF16 = torch.bfloat16


@pytest.fixture
def kernel(triton_device):
    """Interpreting is decided when a kernel is decorated: an import from elsewhere may have come too early for it."""
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip(f"torch {torch.__version__} has no _grouped_mm")
    kernel = importlib.import_module("gradproof.kernels.grouped.experts")
    if triton_device == "cpu" and not kernel.INTERPRETED.value:
        kernel = importlib.reload(kernel)
    return kernel


def chain(*widths, active=None):
    return Chain(widths, (True,) * (len(widths) - 2) if active is None else active)


def spread(T, E, K, seed=0):
    """K different experts for each row."""
    score_TE = torch.rand(T, E, generator=torch.Generator().manual_seed(seed))
    return dispatch.plan(score_TE.argsort(1)[:, :K].contiguous(), E)


def loads(*counts):
    """So many rows for each expert, one choice a row."""
    return dispatch.plan(torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))[:, None], len(counts))


# Inputs and hidden widths are multiples of 8; the last width is anything.
CASES = {
    "one layer": (chain(8, 16, 3), spread(9, 4, 2)),
    "two layers that differ": (chain(16, 24, 8, 5), spread(21, 3, 1)),
    "three layers": (chain(8, 8, 8, 8, 20), spread(7, 2, 1)),
    "an aligned output": (chain(8, 16, 8), spread(6, 2, 1)),
    "an output of 1": (chain(8, 8, 1), spread(6, 2, 1)),
    "dense, one layer without GELU": (chain(8, 16, 24, 6, active=(False, True)), dispatch.all_rows(19)),
    "more than one tile": (chain(72, 40, 3), loads(5, 0, 37)),
    "the first without rows": (chain(8, 16, 3), loads(0, 5, 2)),
    "one in the middle without rows": (chain(8, 16, 3), loads(3, 0, 0, 17)),
    "the last without rows": (chain(8, 16, 3), loads(18, 1, 0)),
    "one has all rows": (chain(8, 16, 3), loads(0, 0, 33, 0, 0)),
    "K = E": (chain(8, 16, 16, 4), spread(5, 3, 3)),
    "one row": (chain(8, 16, 3), spread(1, 5, 1)),
    "one row, K = E": (chain(8, 16, 3), spread(1, 5, 5)),
}


def example(name, seed=0):
    of, plan = CASES[name]
    return Example(name, experts._arguments(plan, of, seeded(seed, name)), dict(chain=of))


def judged(kernel, device, name):
    return admit(experts, kernel, [example(name)], dtype=BF16, device=device, kernel="grouped")


FAST = {"two layers that differ", "more than one tile", "one in the middle without rows", "one row, K = E"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in CASES])
def test_the_contract_admits_the_kernel(kernel, triton_device, name):
    """A product over the border of two experts, a padded output that is not cut off, an expert without rows whose
    gradient stays as it was, or a weight gradient rounded to bf16 would fail."""
    evidence = list(judged(kernel, triton_device, name))
    claims = {"no_alias", "matches_reference", "deterministic", "writes_all", "zero_rows_safe", "accumulates"}
    assert {e.claim for e in evidence} >= claims
    assert not [e for e in evidence if e.status != "proven"]


def test_which_chains_it_serves(kernel):
    """Rows that are not aligned would be refused by the product, or be slow; the last width is padded."""
    for of, _ in CASES.values():
        assert kernel.serves(of)
    assert kernel.serves(chain(96, 2048, 2048, 20)) and kernel.serves(chain(8, 8, 1))
    for of in (Chain((8, 8), ()), chain(5, 8, 3), chain(8, 12, 3), chain(8, 8, 7, 3), chain(100, 104, 20)):
        assert not kernel.serves(of)


def drawn(device, name, seed=0):
    """x, theta, narrow, dy and the plan of a case, on the device."""
    of, plan = CASES[name]
    made = experts._arguments(plan, of, seeded(seed, name))
    x_NI, theta_EP = made["x"].float().to(device), made["theta"].float().to(device)
    dy_NO = torch.randn(len(x_NI), of.widths[-1], generator=seeded(seed, name, "dy")).to(device)
    return x_NI, theta_EP, theta_EP.to(BF16), dy_NO, dispatch.DispatchPlan(*(indices.to(device) for indices in plan))


def run(module, of, x_NI, theta_EP, narrow_EP, dy_NO, plan, **options):
    """y, dx, dtheta."""
    workspace = options.pop("workspace", None)
    y_NO, saved = module.forward(x_NI, theta_EP, plan, of, narrow_EP, workspace=workspace)
    y_NO = y_NO.clone()
    given = dict(narrow_EP=narrow_EP, workspace=workspace, **options)
    return y_NO, *module.backward(dy_NO, saved, x_NI, theta_EP, plan, of, **given)


def test_results_are_fp32(kernel, triton_device):
    """Masters, gradients and what is combined stay in fp32; only the tape is narrow."""
    of, given = CASES["K = E"][0], drawn(triton_device, "K = E")
    assert {answer.dtype for answer in run(kernel, of, *given)} == {torch.float32}
    _, saved = kernel.forward(given[0], given[1], given[4], of, given[2])
    assert {tape.dtype for tape in (saved.x_NI, *saved.h)} == {BF16}


def test_strided_parameters(kernel, triton_device):
    """Experts further apart than they are long, and gradients in a buffer of another distance: what lies between is
    neither read nor written."""
    name = "one in the middle without rows"
    of, (x_NI, theta_EP, narrow_EP, dy_NO, plan) = CASES[name][0], drawn(triton_device, name)
    right = run(kernel, of, x_NI, theta_EP, narrow_EP, dy_NO, plan)

    def apart(tensor, more):
        held = tensor.new_full((tensor.shape[0], tensor.shape[1] + more), torch.nan)
        held[:, : tensor.shape[1]] = tensor
        return held, held[:, : tensor.shape[1]]

    held_EP, out_EP = apart(torch.zeros_like(theta_EP), 192)
    strided = run(kernel, of, x_NI, apart(theta_EP, 128)[1], apart(narrow_EP, 64)[1], dy_NO, plan, out_EP=out_EP)
    assert all(torch.equal(a, b) for a, b in zip(strided, right, strict=True))
    assert strided[2] is out_EP and held_EP[:, theta_EP.shape[1] :].isnan().all()


def test_accumulating(kernel, triton_device):
    """The sum of what was there and the gradient; an expert without rows and the padding keep what they had."""
    name = "one in the middle without rows"
    of, given = CASES[name][0], drawn(triton_device, name)
    y_NO, dx_NI, dtheta_EP = run(kernel, of, *given)
    there_EP = torch.randn(dtheta_EP.shape, generator=seeded("there")).to(triton_device)
    added = run(kernel, of, *given, out_EP=there_EP.clone(), accumulate=True)
    assert torch.equal(added[0], y_NO) and torch.equal(added[1], dx_NI)
    assert torch.allclose(added[2], there_EP + dtheta_EP, rtol=1e-6, atol=1e-6)
    assert torch.equal(added[2][1:3], there_EP[1:3]) and (dtheta_EP[1:3] == 0).all()
    padding = torch.ones_like(dtheta_EP, dtype=torch.bool)
    for padding_P in padding:
        for view in of.views(padding_P).values():
            view.fill_(False)
    assert padding.any() and (dtheta_EP[padding] == 0).all()
    written = run(kernel, of, *given, out_EP=there_EP.clone())[2]
    assert torch.equal(written[padding], there_EP[padding]) and torch.equal(written[~padding], dtheta_EP[~padding])


def test_without_the_gradient_of_the_input(kernel, triton_device):
    """The first layer of a model: one product less, and the parameters' gradients are the same bits."""
    of, given = CASES["K = E"][0], drawn(triton_device, "K = E")
    right = run(kernel, of, *given)
    y_NO, dx_NI, dtheta_EP = run(kernel, of, *given, want_dx=False)
    assert dx_NI is None and torch.equal(y_NO, right[0]) and torch.equal(dtheta_EP, right[2])


def test_a_workspace_serves_other_routing(kernel, triton_device):
    """Steps of other row counts in the same buffers: rows that an earlier step left would come back."""
    workspace, names = (
        Workspace(),
        ["the last without rows", "the first without rows", "one in the middle without rows"],
    )
    for name in (*names, names[0]):
        of, given = CASES[name][0], drawn(triton_device, name)
        fast = [answer.clone() for answer in run(kernel, of, *given, workspace=workspace)]
        right = run(kernel, of, *given)
        assert all(torch.equal(a, b) for a, b in zip(fast, right, strict=True)), name
    held = workspace.bytes()
    run(kernel, CASES[names[1]][0], *drawn(triton_device, names[1]), workspace=workspace)
    assert workspace.bytes() == held


# The weight gradients alone.


def gradients(kernel, device, outputs, inputs, counts, accumulate=False):
    """What was there, what it wrote, and Σ dyᵀx and Σ |dy|ᵀ|x| in float64, [E, O, I] each, in a wider buffer."""
    N, E = sum(counts), len(counts)
    generator = seeded(outputs, inputs, *counts)
    wide_O, wide_I = (8 * (width // 8 + 2) for width in (outputs, inputs))  # rows are aligned to 16 bytes
    dy_NO = torch.randn(N, wide_O, generator=generator).to(device, BF16)[:, :outputs]
    x_NI = torch.randn(N, wide_I, generator=generator).to(device, BF16)[:, 8 : inputs + 8]
    held_EP = torch.randn(E, outputs * inputs + 64, generator=generator).to(device)
    before_EP = held_EP.clone()
    out_EOI = held_EP.as_strided((E, outputs, inputs), (held_EP.stride(0), inputs, 1), 32)
    there_EOI = out_EOI.double()
    offset_F = torch.tensor([0, *counts]).cumsum(0).to(device)
    kernel.weight_gradients(dy_NO, x_NI, offset_F, out_EOI, accumulate)
    right, size = [], []
    for dy_nO, x_nI in zip(dy_NO.double().split(counts), x_NI.double().split(counts), strict=True):
        right.append(dy_nO.T @ x_nI)
        size.append(dy_nO.abs().T @ x_nI.abs())
    around = torch.ones_like(held_EP, dtype=torch.bool)
    around[:, 32 : 32 + outputs * inputs] = False
    assert torch.equal(held_EP[around], before_EP[around])  # nothing beside the matrices is touched
    return there_EOI, out_EOI.double(), torch.stack(right), torch.stack(size)


SHAPES = [(1, 1), (1, 65), (33, 1), (31, 63), (32, 64), (33, 65), (3, 130), (129, 7)]


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("counts", [(1,), (0, 33, 5, 0), (32, 65)], ids=str)
def test_weight_gradients(kernel, triton_device, outputs, inputs, counts):
    """A tile or a chunk of rows that is short, full or one more than full: each row counts once, in its own expert;
    products of bf16 are exact in fp32, so the sums are off by their own rounding alone."""
    _, dw_EOI, right, size = gradients(kernel, triton_device, outputs, inputs, counts)
    assert ((dw_EOI - right).abs() <= 4 * max(counts) * 2**-24 * size).all()
    for e, count in enumerate(counts):
        assert count or (dw_EOI[e] == 0).all()


@pytest.mark.parametrize(("outputs", "inputs"), [(128, 128), (129, 257)])
def test_weight_gradients_in_large_tiles(kernel, triton_device, outputs, inputs):
    """From 128 by 128 on: 128 by 256 numbers at a time, 64 rows deep."""
    counts = (65, 0, 3)
    _, dw_EOI, right, size = gradients(kernel, triton_device, outputs, inputs, counts)
    assert ((dw_EOI - right).abs() <= 4 * max(counts) * 2**-24 * size).all() and (dw_EOI[1] == 0).all()


def test_weight_gradients_of_others_stay_theirs(kernel, triton_device):
    """The last tile of rows reaches into the next expert, whose NaN, times zero, would be NaN."""
    dy_NO, x_NI = torch.ones(2, 9, 8, dtype=BF16, device=triton_device)
    offset_F, out_EOI = torch.tensor([0, 5, 9], device=triton_device), torch.zeros(2, 8, 8, device=triton_device)
    for rows_N in (dy_NO, x_NI):
        spoilt = rows_N.clone()
        spoilt[5:] = torch.nan
        pair = (spoilt, x_NI) if rows_N is dy_NO else (dy_NO, spoilt)
        kernel.weight_gradients(*pair, offset_F, out_EOI, False)
        assert (out_EOI[0] == 5).all() and out_EOI[1].isnan().all()


def test_weight_gradients_are_added(kernel, triton_device):
    """To what is there, in fp32; an expert without rows keeps its bits."""
    counts = (3, 0, 40)
    there, dw_EOI, right, size = gradients(kernel, triton_device, 33, 65, counts, accumulate=True)
    assert ((dw_EOI - there - right).abs() <= 4 * max(counts) * 2**-24 * (size + there.abs())).all()
    assert torch.equal(dw_EOI[1], there[1])


# What is planted: each is right in all but a few rows, tiles or columns, and stays inside the buffers.


class Launched:
    """A kernel whose grid or arguments are changed on the way."""

    def __init__(self, inner, change):
        self.inner, self.change = inner, change

    def __getitem__(self, grid):
        def launch(*args, **options):
            changed_grid, changed_args, changed_options = self.change(grid, args, options)
            return self.inner[changed_grid](*changed_args, **changed_options)

        return launch


def launched(kernel, monkeypatch, change):
    monkeypatch.setattr(kernel, "_weight_gradients", Launched(kernel._weight_gradients, change))


def tiles_off_by_one(kernel, monkeypatch):
    """The last tile of each matrix is left as it was."""
    launched(kernel, monkeypatch, lambda grid, args, options: ((max(1, grid[0] - 1), grid[1]), args, options))


def an_expert_too_few(kernel, monkeypatch):
    """The last expert's weights get no gradient."""
    launched(kernel, monkeypatch, lambda grid, args, options: ((grid[0], grid[1] - 1), args, options))


def a_row_too_few(kernel, monkeypatch):
    """The mask of outputs ends before the last one."""
    launched(kernel, monkeypatch, lambda grid, args, options: (grid, (*args[:5], args[5] - 1, *args[6:]), options))


def never_adds(kernel, monkeypatch):
    """`accumulate` is not passed on."""
    launched(kernel, monkeypatch, lambda grid, args, options: (grid, args, {**options, "ACCUMULATE": False}))


def over_the_border(kernel, monkeypatch):
    """The products take the first row of the last expert to the one before it."""
    grouped = kernel._grouped

    def shifted(a_NI, b_EIO, ends_E):
        ends_E = ends_E.clone()
        ends_E[-2] += 1
        return grouped(a_NI, b_EIO, ends_E)

    monkeypatch.setattr(kernel, "_grouped", shifted)


def the_border_of_biases(kernel, monkeypatch):
    """The first row of an expert is counted to the one before it, in the last bias alone."""

    def wrong(ends_E, rows):
        return torch.searchsorted(ends_E, torch.arange(rows, device=ends_E.device, dtype=torch.int32))

    monkeypatch.setattr(kernel, "_experts", wrong)


PLANTED = {
    tiles_off_by_one: ("more than one tile", {"matches_reference", "writes_all"}),
    an_expert_too_few: ("more than one tile", {"matches_reference", "writes_all"}),
    a_row_too_few: ("one layer", {"matches_reference", "writes_all"}),
    never_adds: ("one layer", {"accumulates"}),
    over_the_border: ("more than one tile", {"matches_reference"}),
    the_border_of_biases: ("more than one tile", {"matches_reference"}),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_faults_are_refused(kernel, triton_device, monkeypatch, plant):
    """By the same admission that lets the kernel run: a factor or an example that let one pass would show here."""
    name, claims = PLANTED[plant]
    plant(kernel, monkeypatch)
    evidence = judged(kernel, triton_device, name)
    assert any(e.status == "refuted" and e.claim in claims for e in evidence), plant.__doc__
