"""The experts' chains in one kernel each way, by what an admission asks: the contract's claims against float64."""

import pytest
import torch

from gradproof.contract import Example
from gradproof.kernels.workspace import Workspace
from gradproof.ops import dispatch, experts
from gradproof.ops.experts import Chain
from gradproof.proof.admission import admit
from gradproof.streams import seeded

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture
def kernel(triton_device):
    from gradproof.kernels.triton import experts

    return experts


def chain(*widths):
    return Chain(widths, (True,) * (len(widths) - 2))


def spread(T, E, K, seed=0):
    """K different experts for each row."""
    return dispatch.plan(
        torch.rand(T, E, generator=torch.Generator().manual_seed(seed)).argsort(1)[:, :K].contiguous(), E
    )


def loads(*counts):
    """So many rows for each expert, one choice a row."""
    return dispatch.plan(torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))[:, None], len(counts))


# Depth 1 to 3, E 1 to 5, tiles of 16 rows that are short, full and one too many.
CASES = {
    "one layer": (chain(5, 6, 3), spread(9, 4, 2)),
    "two layers, odd widths": (chain(20, 17, 17, 3), spread(21, 3, 1)),
    "three layers": (chain(3, 5, 5, 5, 20), spread(7, 2, 1)),
    "a width of 16": (chain(16, 16, 16), spread(5, 2, 1)),
    "wider than 16": (chain(17, 4, 19), spread(6, 2, 1)),
    "one expert": (chain(4, 7, 7, 5), dispatch.all_rows(19)),
    "the first without rows": (chain(4, 6, 3), loads(0, 5, 2)),
    "one in the middle without rows": (chain(4, 6, 3), loads(3, 0, 0, 17)),
    "the last without rows": (chain(4, 6, 3), loads(18, 1, 0)),
    "one has all rows": (chain(4, 6, 3), loads(0, 0, 33, 0, 0)),
    "K = E": (chain(6, 9, 9, 4), spread(5, 3, 3)),
    "one row": (chain(3, 8, 1), spread(1, 5, 1)),
    "one row, K = E": (chain(3, 8, 1), spread(1, 5, 5)),
    "whole tiles": (chain(5, 4, 2), loads(16, 32, 0, 16)),
}


def example(name, seed=0):
    of, plan = CASES[name]
    return Example(name, experts._arguments(plan, of, seeded(seed, name)), dict(chain=of))


def judged(kernel, device, tried, dtype):
    return list(admit(experts, kernel, tried, dtype=dtype, device=device, kernel="triton"))


WIDE = ["three layers", "wider than 16", "one expert", "one in the middle without rows", "K = E", "one row"]
FAST = {"two layers, odd widths", "one has all rows", "the last without rows", "one row, K = E"}  # in bf16


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(pytest.param(name, torch.bfloat16, marks=[pytest.mark.slow] * (name not in FAST)) for name in CASES),
        *((name, torch.float32) for name in WIDE),
    ],
    ids=lambda parameter: str(parameter).removeprefix("torch."),
)
def test_the_contract_admits_the_kernel(kernel, triton_device, name, dtype):
    """A tile over the border of two experts, statistics over the padding of a width, an expert without rows that gets
    others', a layer read from another's place, or a row, a gradient or a part of `out` left unwritten would fail."""
    evidence = judged(kernel, triton_device, [example(name)], dtype)
    assert {e.claim for e in evidence} >= {
        "no_alias",
        "matches_reference",
        "deterministic",
        "writes_all",
        "zero_rows_safe",
        "accumulates",
    }
    assert not [e for e in evidence if e.status != "proven"]


def test_fp16(kernel, triton_device):
    """The other narrow format that it is offered for."""
    evidence = judged(kernel, triton_device, [example("two layers, odd widths")], torch.float16)
    assert evidence and not [e for e in evidence if e.status != "proven"]


def test_parts_of_an_expert_are_added_up(kernel, triton_device, monkeypatch):
    """Rows enough for several parts would be slow here: so the layout is asked for them, and for the larger tile."""
    layout = kernel._layout
    monkeypatch.setattr(kernel, "_layout", lambda *args: layout(*args)._replace(tile=64, parts=3))
    evidence = judged(kernel, triton_device, [example("one in the middle without rows")], torch.float32)
    assert evidence and not [e for e in evidence if e.status != "proven"]


def test_parts_come_with_rows(kernel, triton_device):
    """One part where rows are few; more, but no more than PARTS, where they are many; tiles enough for any routing."""
    of, theta_EP = CASES["one layer"][0], torch.empty(4, 1, device="meta")
    few, some, many = (kernel._layout(N, 4, theta_EP, of) for N in (40, 2048, 10**6))
    assert (few.parts, some.parts, many.parts) == (1, 4, kernel.PARTS)
    assert (few.tile, many.tile) == (16, 64)
    for N, cut in ((40, few), (2048, some), (10**6, many)):
        worst = [N - 3, 1, 1, 1]  # each expert may end in the middle of a tile
        assert sum(-(-count // cut.tile) for count in worst) <= cut.tiles


def test_which_chains_it_serves(kernel):
    """A kernel asked for what it does not do must not be chosen, and says so where it is called."""
    for of, _ in CASES.values():
        assert kernel.serves(of)
    assert kernel.serves(chain(96, 128, 128, 128, 20)) and kernel.serves(chain(128, 1, 128))
    refused = [
        Chain((4, 2), ()),  # no layer
        chain(4, 6, 5, 2),  # hidden widths that differ
        chain(4, 129, 2),
        chain(129, 6, 2),
        chain(4, 6, 129),
        Chain((4, 6, 6, 2), (True, False)),  # a layer without GELU
        Chain((4, 6, 2), (False,)),
    ]
    for of in refused:
        assert not kernel.serves(of)
        theta_EP = torch.zeros(2, of.length)
        with pytest.raises(ValueError, match="equal hidden widths up to 128"):
            kernel.forward(torch.zeros(3, of.widths[0]), theta_EP, loads(1, 2), of)


def test_float64_is_refused(kernel):
    """Computed in fp32 without a word, half of its digits would be missing."""
    of = CASES["one layer"][0]
    with pytest.raises(ValueError, match="float64"):
        kernel.forward(torch.zeros(3, 5).double(), torch.zeros(2, of.length).double(), loads(1, 2), of)


def drawn(device, name, dtype, seed=0):
    """x, theta, narrow, dy and the plan of a case, on the device."""
    of, plan = CASES[name]
    made = experts._arguments(plan, of, seeded(seed, name))
    x_NI, theta_EP = made["x"].float().to(device), made["theta"].float().to(device)
    dy_NO = torch.randn(len(x_NI), of.widths[-1], generator=seeded(seed, name, "dy")).to(device)
    narrow_EP = None if dtype == torch.float32 else theta_EP.to(dtype)
    return x_NI, theta_EP, narrow_EP, dy_NO, dispatch.DispatchPlan(*(indices.to(device) for indices in plan))


def run(module, of, x_NI, theta_EP, narrow_EP, dy_NO, plan, **options):
    """y, dx, dtheta."""
    workspace = options.pop("workspace", None)
    y_NO, saved = module.forward(x_NI, theta_EP, plan, of, narrow_EP, workspace=workspace)
    y_NO = y_NO.clone()
    given = dict(narrow_EP=narrow_EP, workspace=workspace, **options)
    return y_NO, *module.backward(dy_NO, saved, x_NI, theta_EP, plan, of, **given)


@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
def test_strided_parameters(kernel, triton_device, dtype):
    """Experts further apart than they are long, rows of a wider input, and gradients in a buffer of another distance:
    what lies between is neither read nor written."""
    of = CASES["one in the middle without rows"][0]
    x_NI, theta_EP, narrow_EP, dy_NO, plan = drawn(triton_device, "one in the middle without rows", dtype)
    right = run(kernel, of, x_NI, theta_EP, narrow_EP, dy_NO, plan)

    def apart(tensor, more):
        held = tensor.new_full((tensor.shape[0], tensor.shape[1] + more), torch.nan)
        held[:, : tensor.shape[1]] = tensor
        return held[:, : tensor.shape[1]]

    narrow_EP = None if narrow_EP is None else apart(narrow_EP, 64)
    held_EP = theta_EP.new_full((theta_EP.shape[0], theta_EP.shape[1] + 192), torch.nan)
    out_EP = held_EP[:, : theta_EP.shape[1]].zero_()
    strided = run(kernel, of, apart(x_NI, 3), apart(theta_EP, 128), narrow_EP, dy_NO, plan, out_EP=out_EP)
    assert all(torch.equal(a, b) for a, b in zip(strided, right, strict=True))
    assert strided[2] is out_EP and held_EP[:, theta_EP.shape[1] :].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
def test_accumulating(kernel, triton_device, dtype):
    """The sum of what was there and the gradient, to the bit; an expert without rows keeps what it had, and so does the
    padding, written or not."""
    name = "one in the middle without rows"
    of, given = CASES[name][0], drawn(triton_device, name, dtype)
    y_NO, dx_NI, dtheta_EP = run(kernel, of, *given)
    there_EP = torch.randn(dtheta_EP.shape, generator=seeded("there")).to(triton_device)
    added = run(kernel, of, *given, out_EP=there_EP.clone(), accumulate=True)
    assert torch.equal(added[0], y_NO) and torch.equal(added[1], dx_NI)
    assert torch.equal(added[2], there_EP + dtheta_EP)
    padding = torch.ones_like(dtheta_EP, dtype=torch.bool)
    for padding_P in padding:
        for view in of.views(padding_P).values():
            view.fill_(False)
    assert padding.any() and (dtheta_EP[padding] == 0).all()
    written = run(kernel, of, *given, out_EP=there_EP.clone())[2]
    assert torch.equal(written[padding], there_EP[padding]) and torch.equal(written[~padding], dtheta_EP[~padding])


def test_without_the_gradient_of_the_input(kernel, triton_device):
    """The first layer of a model: nothing is made for it, and the parameters' gradients are the same bits."""
    of, given = CASES["K = E"][0], drawn(triton_device, "K = E", torch.float32)
    right = run(kernel, of, *given)
    y_NO, dx_NI, dtheta_EP = run(kernel, of, *given, want_dx=False)
    assert dx_NI is None and torch.equal(y_NO, right[0]) and torch.equal(dtheta_EP, right[2])


@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
def test_a_workspace_serves_other_routing(kernel, triton_device, dtype):
    """Steps of other row counts in the same buffers: sums of tiles, parts or rows that an earlier step left would be
    counted again. More rows than at first, fewer, and other experts without any."""
    workspace, names = (
        Workspace(),
        ["the last without rows", "the first without rows", "one in the middle without rows"],
    )
    for name in (*names, names[0]):
        of, given = CASES[name][0], drawn(triton_device, name, dtype)
        fast = [answer.clone() for answer in run(kernel, of, *given, workspace=workspace)]
        right = run(kernel, of, *given)
        assert all(torch.equal(a, b) for a, b in zip(fast, right, strict=True)), name
    held = workspace.bytes()
    for name in names:
        run(kernel, CASES[name][0], *drawn(triton_device, name, dtype), workspace=workspace)
    assert workspace.bytes() == held


def test_a_strided_cotangent(kernel, triton_device):
    """Columns of a wider gradient, as `combine` or a user may hand them over."""
    of, (x_NI, theta_EP, narrow_EP, dy_NO, plan) = CASES["K = E"][0], drawn(triton_device, "K = E", torch.float32)
    wide_NO = torch.full((dy_NO.shape[0], 2 * dy_NO.shape[1]), torch.nan, device=triton_device)
    wide_NO[:, ::2] = dy_NO
    right = run(kernel, of, x_NI, theta_EP, narrow_EP, dy_NO, plan)
    strided = run(kernel, of, x_NI, theta_EP, narrow_EP, wide_NO[:, ::2], plan)
    assert all(torch.equal(a, b) for a, b in zip(strided, right, strict=True))


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_tails(kernel, triton_device):
    """n of hundreds: exp(−2v) and n² overflow, and 0·∞ would be NaN in every gradient."""
    of, (x_NI, theta_EP, _, dy_NO, plan) = CASES["one layer"][0], drawn(triton_device, "one layer", torch.float32)
    for theta_P in theta_EP:
        of.views(theta_P)["norm.0.weight"].mul_(1e3)
        of.views(theta_P)["norm.0.weight"][0] = 1e25
    fast = run(kernel, of, x_NI, theta_EP, None, dy_NO, plan)
    exact = run(experts, of, x_NI.double(), theta_EP.double(), None, dy_NO.double(), plan)
    assert all(answer.isfinite().all() for answer in fast)
    assert float((fast[0] - exact[0]).norm() / exact[0].norm()) < 1e-5


# What is planted: each is right in all but a few rows, tiles or columns, and stays inside the buffers.


class Launched:
    """A kernel whose grid or options are changed on the way."""

    def __init__(self, inner, change):
        self.inner, self.change = inner, change

    def __getitem__(self, grid):
        def launch(*args, **options):
            changed_grid, changed_options = self.change(grid, options)
            return self.inner[changed_grid](*args, **changed_options)

        return launch


def launched(kernel, monkeypatch, name, change):
    monkeypatch.setattr(kernel, name, Launched(getattr(kernel, name), change))


def laid_out(kernel, monkeypatch, change):
    layout = kernel._layout
    monkeypatch.setattr(kernel, "_layout", lambda *args: change(layout(*args)))


def constants(kernel, monkeypatch, **change):
    """Each is a function of all of them."""

    def planted(made):
        return made._replace(constants={**made.constants, **{name: f(made.constants) for name, f in change.items()}})

    laid_out(kernel, monkeypatch, planted)


def tiles_off_by_one(kernel, monkeypatch):
    """As many tiles as the rows fill, without those that experts begin in the middle of, less one."""
    for name in ("_forward", "_backward"):
        launched(kernel, monkeypatch, name, lambda grid, options: ((grid[0] - options["E"] - 1,), options))


def tiles_of_the_backward_alone(kernel, monkeypatch):
    """The last tile has its output, but no gradient."""
    launched(kernel, monkeypatch, "_backward", lambda grid, options: ((grid[0] - options["E"],), options))


def a_norm_too_wide(kernel, monkeypatch):
    """The mean over one column more than there are."""
    constants(kernel, monkeypatch, H=lambda c: c["H"] + 1)


def a_column_too_few(kernel, monkeypatch):
    """The mask ends before the last column of the input."""
    constants(kernel, monkeypatch, I=lambda c: c["I"] - 1)


def the_wrong_place(kernel, monkeypatch):
    """γ read where β stands, from the second layer on."""
    constants(kernel, monkeypatch, GAMMA1=lambda c: c["BETA1"])


def an_expert_too_few(kernel, monkeypatch):
    """The last expert's rows belong to nobody."""
    constants(kernel, monkeypatch, E=lambda c: c["E"] - 1)


def sums_of_other_tiles(kernel, monkeypatch):
    """Biases and norms add up tiles of another size than the backward made."""
    launched(kernel, monkeypatch, "add_up", lambda grid, options: (grid, {**options, "M": 2 * options["M"]}))


def a_lost_part(kernel, monkeypatch):
    """One of the parts that an expert's rows are cut into is not added up."""
    laid_out(kernel, monkeypatch, lambda made: made._replace(parts=3))
    launched(kernel, monkeypatch, "add_up", lambda grid, options: (grid, {**options, "S": options["S"] - 1}))


def rows_of_weights_left_out(kernel, monkeypatch):
    """The last eight rows of each matrix are never written."""
    launched(kernel, monkeypatch, "add_up", lambda grid, options: ((*grid[:2], grid[2] - 2), options))


def never_adds(kernel, monkeypatch):
    """`accumulate` is not passed on."""
    launched(kernel, monkeypatch, "add_up", lambda grid, options: (grid, {**options, "ACCUMULATE": False}))


PLANTED = {
    tiles_off_by_one: ("one in the middle without rows", {"matches_reference", "writes_all"}),
    tiles_of_the_backward_alone: ("one in the middle without rows", {"matches_reference", "writes_all"}),
    a_norm_too_wide: ("two layers, odd widths", {"matches_reference"}),
    a_column_too_few: ("two layers, odd widths", {"matches_reference"}),
    the_wrong_place: ("two layers, odd widths", {"matches_reference"}),
    an_expert_too_few: ("one in the middle without rows", {"matches_reference", "writes_all"}),
    sums_of_other_tiles: ("one has all rows", {"matches_reference"}),
    a_lost_part: ("one has all rows", {"matches_reference"}),
    rows_of_weights_left_out: ("two layers, odd widths", {"matches_reference"}),
    never_adds: ("one layer", {"accumulates"}),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_faults_are_refused(kernel, triton_device, monkeypatch, plant):
    """By the same admission that lets the kernel run: a factor or an example that let one pass would show here."""
    name, claims = PLANTED[plant]
    plant(kernel, monkeypatch)
    evidence = admit(experts, kernel, [example(name)], dtype=torch.float32, device=triton_device, kernel="planted")
    assert any(e.status == "refuted" and e.claim in claims for e in evidence), plant.__doc__
