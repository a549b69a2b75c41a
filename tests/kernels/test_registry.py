"""Which kernel runs: admitted by evidence, refused with the claim that failed, forced by the environment."""

import json
import logging
import sys
from itertools import count, pairwise
from types import ModuleType, SimpleNamespace

import pytest
import torch

from gradproof.kernels import registry
from gradproof.kernels.registry import REFERENCE, Shape, Variant, admission, choose
from gradproof.models.moe import MoE, MoEConfig
from gradproof.ops import combine, dispatch, experts, route
from gradproof.ops.experts import Chain
from gradproof.train.adamw import AdamW
from gradproof.train.step import TrainStep

CHAIN = Chain((5, 6, 6, 3), (True, True))
SHAPE = Shape("cpu", "float32", 9, 4, 2, CHAIN, route.Routing())
HOMES = dict(experts=experts, dispatch=dispatch, combine=combine, route=route)


@pytest.fixture
def planted(monkeypatch, tmp_path):
    """Plants a kernel that is the op itself but for the functions given, and asks for its admission."""
    monkeypatch.setenv("GRADPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(registry, "_judged", {})

    def plant(op, **functions):
        package, name = ModuleType("gradproof.kernels.planted"), f"gradproof.kernels.planted.{op}"
        package.missing = lambda: None
        module = ModuleType(name)
        module.__dict__.update({**vars(HOMES[op]), **functions, "__name__": name})
        monkeypatch.setitem(sys.modules, package.__name__, package)
        monkeypatch.setitem(sys.modules, name, module)
        variant = Variant(op, "planted", "cpu")
        monkeypatch.setattr(registry, "VARIANTS", (variant,))
        return variant

    return plant


def test_the_op_itself_is_admitted_with_evidence_for_each_claim(planted):
    for op in HOMES:
        judged = admission(planted(op), SHAPE)
        assert judged.admitted, judged
        claims = {e.claim for e in judged.evidence}
        assert {"matches_reference", "deterministic", "writes_all", "no_alias"} <= claims
        assert all(e.kernel == "planted" and e.dtype == "float32" and e.versions["torch"] for e in judged.evidence)


def off_by_one_tile(x_NI, theta_EP, plan, chain, **options):
    """The last row of every 16 is taken from its neighbour."""
    x_NI = x_NI.clone()
    x_NI[15::16] = x_NI[14::16][: len(x_NI[15::16])]
    return experts.forward(x_NI, theta_EP, plan, chain, **options)


def missing_mask(h_dy, saved, x_NI, theta_EP, plan, chain, **options):
    """A tile that is not full reads one row of the next expert into its weights' gradient."""
    bounds = [min(b + (0 < i < len(saved.bounds) - 1), saved.bounds[-1]) for i, b in enumerate(saved.bounds)]
    dx_NI, dtheta_EP = experts.backward(h_dy, saved, x_NI, theta_EP, plan, chain, **options)
    for e, theta_P in enumerate(dtheta_EP):
        if bounds[e + 1] > saved.bounds[e + 1]:
            chain.views(theta_P)[f"linear.{chain.layers}.bias"].add_(h_dy[saved.bounds[e + 1]])
    return dx_NI, dtheta_EP


def unwritten_row(x_NI, theta_EP, plan, chain, **options):
    """The last row is left as the memory was."""
    y_NO, saved = experts.forward(x_NI, theta_EP, plan, chain, **options)
    out_NO = torch.empty_like(y_NO)
    out_NO[:-1] = y_NO[:-1]
    return out_NO, saved


def wrong_for_one_width(x_NI, theta_EP, plan, chain, **options):
    """Right everywhere but at hidden width 6 with an input of 5: no example of another width shows it."""
    y_NO, saved = experts.forward(x_NI, theta_EP, plan, chain, **options)
    return (y_NO * 1.001 if chain.widths == (5, 6, 6, 3) else y_NO), saved


def wrong_for_many_rows(x_NI, theta_EP, plan, chain, **options):
    """Only where there are more rows than any example of the contract has."""
    y_NO, saved = experts.forward(x_NI, theta_EP, plan, chain, **options)
    if len(y_NO) > 500:
        y_NO[500] = 0
    return y_NO, saved


def writes_its_input(x_NI, theta_EP, plan, chain, **options):
    y_NO, saved = experts.forward(x_NI, theta_EP, plan, chain, **options)
    x_NI.mul_(1.0000001)
    return y_NO, saved


def never_the_same(x_NI, theta_EP, plan, chain, calls=count(), **options):  # noqa: B008
    y_NO, saved = experts.forward(x_NI, theta_EP, plan, chain, **options)
    return y_NO * (1 + 1e-6 * (next(calls) % 2)), saved


def forgets_to_add(dy_NO, saved, x_NI, theta_EP, plan, chain, out_EP=None, accumulate=False, want_dx=True):
    return experts.backward(dy_NO, saved, x_NI, theta_EP, plan, chain, out_EP=out_EP, want_dx=want_dx)


@pytest.mark.parametrize(
    "function, rows, claim",
    [
        (off_by_one_tile, 9, "matches_reference"),
        (missing_mask, 9, "matches_reference"),
        (unwritten_row, 9, ""),
        (wrong_for_one_width, 9, "matches_reference"),
        (wrong_for_many_rows, 400, "matches_reference"),
        (writes_its_input, 9, ""),
        (never_the_same, 9, "deterministic"),
        (forgets_to_add, 9, "accumulates"),
    ],
)
def test_broken_kernels_are_refused(planted, caplog, function, rows, claim):
    """Each is right in what most tests look at; the log says what gave it away, and the reference runs."""
    takes = "backward" if "saved" in function.__code__.co_varnames[:2] else "forward"
    variant, shape = planted("experts", **{takes: function}), Shape(**{**vars(SHAPE), "rows": rows})
    with caplog.at_level(logging.WARNING):
        judged = admission(variant, shape)
    assert not judged.admitted and claim in judged.reason and judged.reason in caplog.text
    assert choose(shape).chosen["experts"] == "reference"


def test_an_unstable_sort_is_refused(planted):
    """The rows of an expert in another order: gradients and outputs agree, the plan does not."""

    def plan(index_TK, experts):
        right = dispatch.plan(index_TK, experts)
        bounds = right.bounds()
        slot_N = torch.cat([right.slot_N[a:b].flip(0) for a, b in pairwise(bounds)])
        row_TK = torch.empty_like(slot_N).scatter_(0, slot_N, torch.arange(len(slot_N))).view_as(index_TK)
        return dispatch.Plan(slot_N, row_TK, index_TK, right.offset_F)

    judged = admission(planted("dispatch", plan=plan), SHAPE)
    assert not judged.admitted and "same_integers" in judged.reason


def test_what_raises_is_refused(planted):
    def forward(x_NI, theta_EP, plan, chain, **options):
        raise RuntimeError("out of shared memory")

    judged = admission(planted("experts", forward=forward), SHAPE)
    assert not judged.admitted and "out of shared memory" in judged.reason


def test_admissions_are_kept_and_read_back(planted, tmp_path, monkeypatch):
    """A second process judges nothing; another width, version or source is judged anew; a corrupt file is no file."""
    variant = planted("combine")
    first = admission(variant, SHAPE)
    (file,) = (tmp_path / "admissions").iterdir()
    monkeypatch.setattr(registry, "_judged", {})
    monkeypatch.setattr(registry, "admit", lambda *a, **k: pytest.fail("judged again"))
    assert admission(variant, SHAPE) == first
    monkeypatch.undo()
    for content in ("{", json.dumps({"key": "another"}), ""):
        file.write_text(content)
        assert registry._cached(registry._key_text("combine", "planted", SHAPE)) is None


def test_a_cache_that_cannot_be_written_is_no_cache(planted, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADPROOF_CACHE", str(tmp_path / "file"))
    assert admission(planted("combine"), SHAPE).admitted


def test_the_environment_forces_the_reference(planted, monkeypatch):
    planted("experts")
    assert choose(SHAPE).chosen["experts"] == "planted"
    monkeypatch.setenv("GRADPROOF_KERNELS", "reference")
    assert choose(SHAPE) is REFERENCE


def test_a_measured_order_decides(planted, monkeypatch):
    planted("experts")
    second = Variant("experts", "other", "cpu")
    monkeypatch.setitem(sys.modules, "gradproof.kernels.other", SimpleNamespace(missing=lambda: None))
    monkeypatch.setitem(sys.modules, "gradproof.kernels.other.experts", experts)
    monkeypatch.setattr(registry, "VARIANTS", (*registry.VARIANTS, second))
    assert [v.kernel for v in registry.variants("experts", SHAPE)] == ["planted", "other"]
    registry.tune("experts", SHAPE, ["other", "planted"])
    assert [v.kernel for v in registry.variants("experts", SHAPE)] == ["other", "planted"]
    registry._tuned.cache_clear()


def test_a_step_asks_for_the_kernels_of_its_shape(planted):
    """And a run that resumes asks for those it had."""
    planted("experts")
    model = MoE(MoEConfig(5, 3, hidden=6, depth=1), seed=1)
    x_TI, target_T = torch.randn(9, 5), torch.zeros(9, dtype=torch.int64)
    step = TrainStep(model, "cross_entropy", AdamW())
    step(x_TI, target_T)
    assert step.kernels.chosen["experts"] == "planted" and step.kernels.chosen["route"] == "reference"
    step = TrainStep(MoE(MoEConfig(5, 3, hidden=6, depth=1), seed=1), "cross_entropy", AdamW(), kernels={})
    step(x_TI, target_T)
    assert step.kernels.chosen["experts"] == "reference"
