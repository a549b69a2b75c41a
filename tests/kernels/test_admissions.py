"""Which kernel runs: admitted by evidence, refused with the claim that failed, forced by the environment."""

import json
import logging
import sys
from dataclasses import replace
from functools import wraps
from inspect import signature
from itertools import count, pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from gradproof.kernels import admissions, cache, variants
from gradproof.kernels.admissions import admission, choose
from gradproof.kernels.paths import path_of
from gradproof.kernels.shapes import Block, Shape
from gradproof.kernels.variants import REFERENCE, Variant, all_variants
from gradproof.models.moe import MoE, MoEConfig
from gradproof.ops import combine, dispatch, experts, lesson, mixture, reading, route, update
from gradproof.ops.experts import Chain
from gradproof.train.adamw import AdamW
from gradproof.train.step import TrainStep

CHAIN = Chain((5, 6, 6, 3), (True, True))
SHAPE = Shape("cpu", "float32", 9, 4, 2, CHAIN, route.Routing())
READ = Shape(
    "cpu", "float32", 9, 1, 1, Chain((12, 1), ()), block=Block(11, 12, 3, 20, 20, layers=2), ops=(), fused=("reading",)
)
PLANTED = (experts, dispatch, combine, route, mixture, update, lesson, reading)
HOMES = {op.__name__.rpartition(".")[2]: op for op in PLANTED}


@pytest.fixture
def planted(monkeypatch, tmp_path):
    """Plants a kernel that is the op itself but for the functions given, and asks for its admission."""
    monkeypatch.setenv("GRADPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(admissions, "_judged", {})
    monkeypatch.setattr(admissions, "say", lambda sentence: None)

    def plant(op, **functions):
        package, name = ModuleType("gradproof.kernels.planted"), f"gradproof.kernels.planted.{op}"
        package.missing = lambda: None
        module = ModuleType(name)
        module.__dict__.update({**vars(HOMES[op]), **functions, "__name__": name})
        monkeypatch.setitem(sys.modules, package.__name__, package)
        monkeypatch.setitem(sys.modules, name, module)
        variant = Variant(op, "planted", "cpu")
        monkeypatch.setattr(variants, "all_variants", lambda: (variant,))
        return variant

    return plant


def test_the_op_itself_is_admitted_with_evidence_for_each_claim(planted):
    for op in HOMES:
        judged = admission(planted(op), READ if op == "reading" else SHAPE)
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


def nothing_in_a_workspace(dy_NO, saved, x_NI, theta_EP, plan, chain, workspace=None, **options):
    """Right as long as nobody hands in a workspace, as every training step does."""
    dx_NI, dtheta_EP = experts.backward(dy_NO, saved, x_NI, theta_EP, plan, chain, **options)
    return dx_NI, dtheta_EP if workspace is None else dtheta_EP.zero_()


def ignores_strides(x_NI, theta_EP, plan, chain, **options):
    """Reads its input as if it lay side by side."""
    if not x_NI.is_contiguous():
        x_NI = x_NI.as_strided(x_NI.shape, (x_NI.shape[1], 1))
    return experts.forward(x_NI, theta_EP, plan, chain, **options)


def swallows_nan(x_NI, theta_EP, plan, chain, **options):
    return experts.forward(x_NI.nan_to_num(0.0), theta_EP, plan, chain, **options)


@pytest.mark.parametrize(
    "function, rows, claim",
    [
        (nothing_in_a_workspace, 9, "workspace"),
        (ignores_strides, 9, "strides"),
        (swallows_nan, 9, "loud"),
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


def masked_softmax(dy, saved, x_TI, theta_P, mixture, **options):
    """The router's gradient by the gates in place of the unmasked p: what is off S gets none."""
    wrong = saved._replace(routed=saved.routed._replace(q_TE=saved.routed.gates_TE))
    return MIXED(dy, wrong, x_TI, theta_P, mixture, **options)


def shrunken_bias(dy, saved, x_TI, theta_P, mixture, **options):
    """The gradient of the router's bias one part in a thousand too small."""
    dx_TI, dtheta_P = MIXED(dy, saved, x_TI, theta_P, mixture, **options)
    mixture.views(dtheta_P).b_E.mul_(0.999)
    return dx_TI, dtheta_P


def swapped_experts(x_TI, theta_P, c_E, mixture, whole=None):
    """Right but for the rows of experts 0 and 1, which each get the other's parameters."""
    turned_P = theta_P.clone()
    if mixture.experts > 1:
        mixture.views(turned_P).theta_EP[[0, 1]] = mixture.views(theta_P).theta_EP[[1, 0]]
    return forward_of_mixture(x_TI, turned_P, c_E, mixture, whole)


def miscounted(x_TI, theta_P, c_E, mixture, whole=None):
    """Everything right but the load that is reported."""
    y, saved = forward_of_mixture(x_TI, theta_P, c_E, mixture, whole)
    return y, Miscounted(*saved)._replace(counted=saved.load_E + 1) if len(x_TI) > 32 else saved


class Miscounted(NamedTuple):
    routed: object
    plan: object
    rows_NI: object
    experts: object
    rows_NO: object
    counted: object = None

    @property
    def load_E(self):
        return self.counted


MIXED, forward_of_mixture = mixture.backward, mixture.forward


@pytest.mark.parametrize(
    "function, claim",
    [
        (masked_softmax, "matches_reference"),
        (shrunken_bias, "matches_reference of theta: router.bias"),
        (swapped_experts, "matches_reference of output 0"),
        (miscounted, "same_integers"),
    ],
)
def test_broken_mixtures_are_refused(planted, function, claim):
    """What would run instead of four proven kernels is judged as a whole; refused, the parts run."""
    takes = "backward" if "saved" in function.__code__.co_varnames[:2] else "forward"
    judged = admission(planted("mixture", **{takes: function}), SHAPE)
    assert not judged.admitted and claim in judged.reason
    assert choose(SHAPE).mixture is None and "mixture" not in choose(SHAPE).chosen


def planted_update(change):
    """The op, called with what `change` makes of its arguments, or with its result changed."""

    @wraps(update.forward)
    def forward(*args, **given):
        return change(dict(signature(update.forward).bind(*args, **given).arguments))

    return forward


def _clips_the_scaled(given):
    clip = given.get("clip")
    return RIGHT_UPDATE(**{**given, "clip": clip and clip / float(given["scale"])})


def _never_skips_nan(given):
    right, _ = RIGHT_UPDATE(**given)
    if not bool(given["g_P"].isnan().any()):
        return right, None
    return right._replace(skipped=right.skipped * 0), None


def _counts_a_skipped_step(given):
    right, _ = RIGHT_UPDATE(**given)
    return right._replace(count=given["count"] + 1), None


def _ignores_the_loss(given):
    return RIGHT_UPDATE(**{**given, "loss": given["loss"] * 0 if given["loss"].isfinite() else given["rate"]})


def _decays_when_skipped(given):
    right, _ = RIGHT_UPDATE(**given)
    return right._replace(p_P=torch.where(right.skipped > 0, right.p_P * 0.9999, right.p_P)), None


def _no_floor_under_the_norm(given):
    clip = given.get("clip")
    return RIGHT_UPDATE(**{**given, "clip": clip and clip * (1 + 1e-6 / float(given["g_P"].norm()))})


RIGHT_UPDATE = update.forward


@pytest.mark.parametrize(
    "change",
    [
        _clips_the_scaled,
        _never_skips_nan,
        _counts_a_skipped_step,
        _ignores_the_loss,
        _decays_when_skipped,
        _no_floor_under_the_norm,
    ],
)
def test_broken_updates_are_refused(planted, change):
    judged = admission(planted("update", forward=planted_update(change)), SHAPE)
    assert not judged.admitted
    assert choose(SHAPE).update is None


def _entropy_of_the_gates(right, given):
    return right._replace(entropy=torch.special.entr(right.gates_TE).sum() / len(right.gates_TE))


def _aux_left_out(right, given):
    return right._replace(loss=right.loss - right.loss.sign() * 1e-3)


def _gradient_unscaled(right, given):
    return right._replace(g_P=right.g_P / given["scale"])


def _first_row_lost(right, given):
    own = {**given, "x_TI": given["x_TI"][1:], "target_T": given["target_T"][1:]} if len(given["x_TI"]) > 1 else given
    return right._replace(g_P=RIGHT_LESSON(**own)[0].g_P)


def _one_expert_not_moved(right, given):
    of = given["mixture"]
    p_P = right.p_P.clone()
    of.views(p_P).theta_EP[-1] = of.views(given["p_P"]).theta_EP[-1]
    return right._replace(p_P=p_P)


def _load_of_another(right, given):
    return right._replace(load_E=right.load_E.roll(1) if len(given["x_TI"]) == 33 else right.load_E)


RIGHT_LESSON = lesson.forward
BROKEN_LESSONS = (
    *(_entropy_of_the_gates, _aux_left_out, _gradient_unscaled),
    *(_first_row_lost, _one_expert_not_moved, _load_of_another),
)


@pytest.mark.parametrize("change", BROKEN_LESSONS)
def test_broken_lessons_are_refused(planted, change):
    @wraps(lesson.forward)
    def forward(*args, **given):
        bound = dict(signature(lesson.forward).bind(*args, **given).arguments)
        return change(RIGHT_LESSON(**bound)[0], bound), None

    judged = admission(planted("lesson", forward=forward), SHAPE)
    assert not judged.admitted
    assert choose(SHAPE).lesson is None


def _padding_is_a_token(token_BS, theta_P, reader):
    return reading.forward(token_BS.clamp(min=0), theta_P, reader)


def _places_close_up(token_BS, theta_P, reader):
    """Padding is left out, and with it the place that it had."""
    order_BS = (token_BS < 0).int().argsort(1, stable=True)
    return reading.forward(token_BS.gather(1, order_BS), theta_P, reader)


def _last_token_lost(token_BS, theta_P, reader):
    """Of sequences that fill no tile of 16."""
    many = token_BS.shape[1]
    return reading.forward(token_BS[:, :-1] if many % 16 and many > 16 else token_BS, theta_P, reader)


def _one_layer_less(token_BS, theta_P, reader):
    layers = reader.views(theta_P)
    own = theta_P.clone()
    for name, view in reader.views(own).items():
        if reader.layers > 1 and name.startswith(f"encoder.{reader.layers - 1}.ffn.down"):
            view.copy_(layers[name] * 0)
    return reading.forward(token_BS, own, reader)


def _another_width_of_heads(token_BS, theta_P, reader):
    y_BO, _ = reading.forward(token_BS, theta_P, reader)
    return (y_BO * (1 + 1e-4) if reader.width // reader.heads == 4 and reader.heads == 3 else y_BO), None


BROKEN_READINGS = (
    *(_padding_is_a_token, _places_close_up, _last_token_lost),
    *(_one_layer_less, _another_width_of_heads),
)


@pytest.mark.parametrize("forward", BROKEN_READINGS)
def test_broken_readings_are_refused(planted, forward):
    assert not admission(planted("reading", forward=forward), READ).admitted
    assert choose(READ).reading is None


def test_a_right_reading_is_taken_in_float32_alone(planted):
    planted("reading")
    assert choose(READ).chosen["reading"] == "planted"
    assert choose(replace(READ, dtype="bfloat16")).reading is None


def test_a_right_lesson_is_taken_where_there_is_a_mixture(planted):
    planted("lesson")
    assert choose(SHAPE).chosen["lesson"] == "planted"
    assert choose(replace(SHAPE, routing=None, experts=1, k=1)).lesson is None
    assert choose(replace(SHAPE, dtype="bfloat16")).lesson is None


def test_a_dense_model_has_no_mixture(planted):
    """Nor has a batch so large that the calls between the parts are nothing."""
    planted("mixture")
    assert choose(SHAPE).chosen["mixture"] == "planted"
    assert choose(replace(SHAPE, routing=None, experts=1, k=1)).mixture is None
    cpu = next(v for v in all_variants() if v.op == "mixture")
    assert cpu.fits(SHAPE) and not cpu.fits(replace(SHAPE, rows=10**8))


def test_an_unstable_sort_is_refused(planted):
    """The rows of an expert in another order: gradients and outputs agree, the plan does not."""

    def plan(index_TK, experts):
        right = dispatch.plan(index_TK, experts)
        bounds = right.bounds()
        slot_N = torch.cat([right.slot_N[a:b].flip(0) for a, b in pairwise(bounds)])
        row_TK = torch.empty_like(slot_N).scatter_(0, slot_N, torch.arange(len(slot_N))).view_as(index_TK)
        return dispatch.DispatchPlan(slot_N, row_TK, index_TK, right.offset_F)

    judged = admission(planted("dispatch", plan=plan), SHAPE)
    assert not judged.admitted and "same_integers" in judged.reason


def test_what_raises_is_refused(planted):
    def forward(x_NI, theta_EP, plan, chain, **options):
        raise RuntimeError("out of shared memory")

    judged = admission(planted("experts", forward=forward), SHAPE)
    assert not judged.admitted and "out of shared memory" in judged.reason


def test_admissions_are_kept_and_read_back(planted, tmp_path, monkeypatch):
    """A second process judges nothing; a corrupt file is no file."""
    variant = planted("combine")
    first = admission(variant, SHAPE)
    (file,) = (tmp_path / "admissions").iterdir()
    monkeypatch.setattr(admissions, "_judged", {})
    with monkeypatch.context() as patch:
        patch.setattr(admissions, "admit", lambda *a, **k: pytest.fail("judged again"))
        assert admission(variant, SHAPE) == first
    for content in ("{", json.dumps({"key": "another"}), "", "[]"):
        file.write_text(content)
        assert admissions._remembered(admissions._key(path_of(variant, SHAPE))) is None


@pytest.mark.parametrize("what", ["processor", "compiler", "switches", "_versions", "digest"])
def test_another_machine_is_judged_again(planted, monkeypatch, what):
    """A cache may be shared by machines with other processors, compilers, libraries or switches."""
    variant, judged = planted("combine"), []
    right = admissions._judge
    monkeypatch.setattr(admissions, "_judge", lambda *a: judged.append(1) or right(*a))
    admission(variant, SHAPE)
    monkeypatch.setattr(cache, what, lambda *a: {"other": "machine"})
    monkeypatch.setattr(admissions, "_judged", {})
    admission(variant, SHAPE)
    assert len(judged) == 2
    monkeypatch.undo()


def test_another_number_of_threads_is_judged_again(planted, monkeypatch):
    """With that many threads, whoever asks."""
    variant, seen = planted("combine"), []
    right = admissions.admit
    monkeypatch.setattr(admissions, "admit", lambda *a, **k: seen.append(torch.get_num_threads()) or right(*a, **k))
    for threads in (1, 2, 1):
        admission(variant, replace(SHAPE, threads=threads))
    assert list(dict.fromkeys(seen)) == [1, 2] and seen == sorted(seen)


def test_another_driver_is_judged_again(monkeypatch):
    """The key of a GPU names the driver, so that an admission is not found under another one."""
    keys = []
    for driver in ("570.1", "570.2"):
        monkeypatch.setattr(cache, "_gpu", lambda driver=driver: {"gpu": "H200", "driver": driver})
        keys.append(cache.key_text(cache.fingerprint("cuda")))
    assert keys[0] != keys[1]


def test_proving_is_announced_once(planted, monkeypatch):
    planted("combine")
    told = []
    monkeypatch.setattr(admissions, "say", told.append)
    choose(SHAPE)
    choose(SHAPE)
    assert told == ["proving 1 kernel for this machine and model size, once; this can take a minute"]


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
    first = planted("experts")
    second = Variant("experts", "other", "cpu")
    monkeypatch.setitem(sys.modules, "gradproof.kernels.other", SimpleNamespace(missing=lambda: None))
    monkeypatch.setitem(sys.modules, "gradproof.kernels.other.experts", experts)
    monkeypatch.setattr(variants, "all_variants", lambda: (first, second))
    assert [v.kernel for v in admissions.variants("experts", SHAPE)] == ["planted", "other"]
    admissions.tune("experts", SHAPE, ["other", "planted"])
    assert [v.kernel for v in admissions.variants("experts", SHAPE)] == ["other", "planted"]
    assert [v.kernel for v in admissions.variants("experts", replace(SHAPE, rows=10))] == ["planted", "other"]


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


@pytest.mark.parametrize(
    "changed",
    ["kernels/triton/norm_gelu.py", "kernels/cpu/product.h", "ops/attention.py", "proof/bounds.py", "/contract.py"],
)
def test_an_admission_does_not_outlive_the_code_that_it_judged(monkeypatch, changed):
    """Kernels call one another across folders (cuBLAS's experts the Triton norm), and what judges is code too."""
    before, read = cache.digest.__wrapped__(cache.JUDGING), Path.read_bytes
    assert cache.digest.__wrapped__(cache.JUDGING) == before
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b" " * path.as_posix().endswith(changed))
    assert cache.digest.__wrapped__(cache.JUDGING) != before
