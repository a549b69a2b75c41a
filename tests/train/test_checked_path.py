"""The first call of each path checks its kernels: a planted fault is found there, a right kernel is never refused, and
nothing else notices."""

from functools import wraps
from importlib import import_module

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import gradproof
from gradproof import nn
from gradproof.data import synthetic
from gradproof.data.rows import Rows
from gradproof.kernels import cache, cpu
from gradproof.models.dense import Dense
from gradproof.models.moe import MoE
from gradproof.nn import kernels as nn_kernels
from gradproof.proof import row_trial
from gradproof.train import checked_path
from gradproof.train.checked_path import CheckedPath
from gradproof.train.predictor import Predictor

pytestmark = pytest.mark.skipif(cpu.missing() is not None, reason="the CPU kernels cannot be built here")
ROWS, SPOILT = 5001, 4500  # more than any example of a contract; a row in the middle


def new_process():
    """Nothing but the cache is left."""
    checked_path.forget()
    nn_kernels._chosen.cache_clear()
    nn_kernels._layer.cache_clear()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADPROOF_CACHE", str(tmp_path / "cache"))
    new_process()
    yield
    new_process()


@pytest.fixture
def judged(monkeypatch):
    """The ops that were judged, in order: of forwards and backwards alike."""
    ops, own, chain = [], row_trial.RowTrial.off, checked_path.watched

    def off(self, returned):
        ops.append(self.op.__name__.split(".")[-1])
        return own(self, returned)

    def watched(*args, **kwargs):
        ops.append("experts")
        return chain(*args, **kwargs)

    monkeypatch.setattr(row_trial.RowTrial, "off", off)
    monkeypatch.setattr(checked_path, "watched", watched)
    return ops


@pytest.fixture
def plant(monkeypatch):
    """plant(op, way, spoil): from now on spoil(result) is what the kernel returns of a call of many rows."""

    def planted(op, way, spoil, least=ROWS):
        module = import_module(f"gradproof.kernels.cpu.{op}")
        right = getattr(module, way)

        @wraps(right)
        def wrong(*args, **kwargs):
            returned = right(*args, **kwargs)
            first = next(iter((*args, *kwargs.values())))
            return spoil(returned) if len(first[0] if isinstance(first, tuple) else first) >= least else returned

        monkeypatch.setattr(module, way, wrong)

    return planted


def spoil_row(tensor, row=SPOILT, size=1e-3):
    """One number of one row is off by this share of the usual size."""
    flat = tensor.detach().flatten(1) if tensor.dim() > 1 else tensor.detach()[:, None]
    flat[row, flat.shape[1] // 2] += size * flat.float().square().mean().sqrt()


def after(change):
    def spoil(returned):
        change(returned)
        return returned

    return spoil


def pulled(module, x, dy, **options):
    """The output, and all gradients by name."""
    module.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_()
    y = module(x, **options)
    (y * dy).sum().backward()
    return y.detach(), {"x": x.grad} | {name: p.grad.clone() for name, p in module.named_parameters()}


def right_numbers(module, x, dy, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("GRADPROOF_KERNELS", "reference")
        return pulled(module, x, dy)


def close(results, right):
    (y, grads), (right_y, right_grads) = results, right
    for name, own, exact in (("y", y, right_y), *((name, grads[name], right_grads[name]) for name in right_grads)):
        assert float((own - exact).abs().max()) <= 2e-5 * float(exact.abs().max()), name


MODULES = {
    "MoE": lambda: nn.MoE(6, 5, hidden=8, depth=1, seed=0),
    "Dense": lambda: nn.Dense(6, 5, hidden=8, feedforward=12, blocks=1, seed=0),
    "NormGELU": lambda: nn.NormGELU(6),
}
OF_MODULE = {"MoE": ["route", "dispatch", "experts", "combine"], "Dense": ["experts"], "NormGELU": ["norm_gelu"]}


def admitted(module):
    """The kernels of a call of many rows have passed their contracts: what comes now is the first call."""
    if isinstance(module, nn.NormGELU):
        return nn_kernels.of_norm_gelu("cpu", torch.float32, module.width, ROWS)
    kind = gradproof.MoE if isinstance(module, nn.MoE) else gradproof.Dense
    return nn_kernels.of_model(kind, module.config, "cpu", torch.float32, ROWS)


def drawn(rows, width, seed=0):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


FORWARDS = (
    ("MoE", "experts", after(lambda returned: spoil_row(returned[0], 2 * SPOILT))),
    ("MoE", "route", after(lambda returned: spoil_row(returned[0].gates_TE))),
    ("MoE", "route", lambda returned: (returned[0], returned[1]._replace(index_TK=returned[1].index_TK.flip(0)))),
    ("MoE", "dispatch", after(lambda returned: spoil_row(returned[0], 2 * SPOILT))),
    ("MoE", "combine", after(lambda returned: spoil_row(returned[0]))),
    ("Dense", "experts", after(lambda returned: spoil_row(returned[0]))),
    ("Dense", "experts", after(lambda returned: returned[0][SPOILT:].zero_())),
    ("NormGELU", "norm_gelu", after(lambda returned: spoil_row(returned[0]))),
)
BACKWARDS = (
    ("MoE", "experts", after(lambda grads: spoil_row(grads[0], 2 * SPOILT, 0.5))),
    ("MoE", "experts", after(lambda grads: grads[1][1].mul_(1.01))),
    ("MoE", "route", after(lambda dz_TE: spoil_row(dz_TE))),
    ("MoE", "dispatch", after(lambda dx_TI: spoil_row(dx_TI))),
    ("MoE", "combine", after(lambda grads: spoil_row(grads[0], 2 * SPOILT))),
    ("MoE", "combine", after(lambda grads: spoil_row(grads[1]))),
    ("Dense", "experts", after(lambda grads: spoil_row(grads[0], size=0.5))),
    ("NormGELU", "norm_gelu", after(lambda grads: spoil_row(grads.dh_TH))),
    ("NormGELU", "norm_gelu", after(lambda grads: grads.dgamma_H.mul_(1.01))),
)


@pytest.mark.parametrize(
    "name, op, way, spoil",
    [(*f[:2], "forward", f[2]) for f in FORWARDS] + [(*b[:2], "backward", b[2]) for b in BACKWARDS],
)
def test_a_fault_in_a_module_is_found_at_its_first_call(name, op, way, spoil, plant, judged, monkeypatch, caplog):
    module, x, dy = MODULES[name](), drawn(ROWS, 6), drawn(ROWS, 6 if name == "NormGELU" else 5, 1)
    right = right_numbers(module, x, dy, monkeypatch)
    assert not judged
    path = admitted(module)
    plant(op, way, spoil)
    close(pulled(module, x, dy), right)
    assert f"cpu of {op} is not used: at this size" in caplog.text
    assert [refusal.op for refusal in path.calls.refused] == [op]
    assert set(OF_MODULE[name]) <= set(judged)
    judged.clear(), caplog.clear()
    close(pulled(module, x, dy), right)  # by the op itself, unchecked
    assert not judged and not caplog.text
    new_process()
    close(pulled(module, x, dy), right)
    assert not judged and f"cpu of {op} is not used" in caplog.text


def test_an_unplanned_row_is_refused(plant, monkeypatch, caplog):
    """Where dispatch's plan is wrong the reference's is used."""
    module, x, dy = MODULES["MoE"](), drawn(ROWS, 6), drawn(ROWS, 5, 1)
    right = right_numbers(module, x, dy, monkeypatch)
    admitted(module)
    plant("dispatch", "plan", lambda plan: plan._replace(slot_N=plan.slot_N.flip(0)))
    close(pulled(module, x, dy), right)
    assert "cpu of dispatch is not used: at this size plan" in caplog.text


def test_a_call_in_flight_changes_over(plant, monkeypatch, caplog):
    """Two forwards, then the backward that refuses a kernel: the other backward runs without it too."""
    module, x, dy = MODULES["MoE"](), drawn(ROWS, 6), drawn(ROWS, 5, 1)
    _, right = right_numbers(module, x, dy, monkeypatch)
    admitted(module)
    plant("experts", "backward", after(lambda grads: grads[1].mul_(1.5)))
    first, second = module(x), module(x)
    theta = module.experts.theta
    for y in (second, first):
        (dtheta,) = torch.autograd.grad((y * dy).sum(), theta)
        assert torch.allclose(
            dtheta, right["experts.theta"], rtol=1e-4, atol=1e-4 * float(right["experts.theta"].max())
        )
    assert caplog.text.count("is not used") == 1


# --- a right kernel ---------------------------------------------------------------------------------------------------


def rows_of_a_kind(kind, rows, width):
    x = drawn(rows, width)
    if kind == "zero":
        x.zero_()
    elif kind == "constant":
        x[:] = 3.0
    elif kind == "large":
        x *= 1e5
    elif kind == "small":
        x *= 1e-12
    elif kind == "uneven":
        x *= torch.logspace(-6, 4, rows)[:, None]
    elif kind == "one sign":
        x = x.abs() + 5
    elif kind == "overflowing":
        x[rows // 2] = 1e30
    elif kind == "no number":
        x[rows // 2, 0] = torch.nan
    return x


KINDS = ("normal", "zero", "constant", "large", "small", "uneven", "one sign", "overflowing", "no number")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", (1, 37, 1500))
@pytest.mark.parametrize(
    "make",
    (
        lambda: nn.MoE(7, 3, hidden=33, depth=2, balance=0.1, z_loss=0.01, seed=1),
        lambda: nn.MoE(7, 3, experts=3, hidden=8, k=3, scores="sigmoid", renormalise=True, seed=1),
        lambda: nn.Dense(7, 1, hidden=19, feedforward=40, blocks=1, seed=2),
        lambda: nn.NormGELU(7),
    ),
    ids=("MoE", "sigmoid", "Dense", "NormGELU"),
)
def test_a_right_kernel_is_not_refused(make, rows, kind, caplog):
    module, x = make(), rows_of_a_kind(kind, rows, 7)
    for _ in range(2):
        y = module(x)
        (y.square() if kind == "normal" else y).mean().backward()
    assert "is not used" not in caplog.text


def test_equal_scores_are_no_fault(caplog):
    """A router whose scores are all the same, or nearly so: what falls otherwise is as right."""
    module, x = nn.MoE(6, 3, hidden=8, seed=0), drawn(3000, 6)
    with torch.no_grad():
        module.router.weight.mul_(1e-7)
        module.router.bias.zero_()
    module(x).sum().backward()
    assert "is not used" not in caplog.text


# --- once, and kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_it_is_checked_once(name, judged, monkeypatch):
    module, x, dy = MODULES[name](), drawn(ROWS, 6), drawn(ROWS, 6 if name == "NormGELU" else 5, 1)
    with torch.no_grad():
        module(x)
    assert judged == OF_MODULE[name]
    judged.clear()
    pulled(module, x, dy)
    assert sorted(judged) == sorted(OF_MODULE[name])  # the backward, which comes first now
    judged.clear()
    for again in (x, x[: ROWS - 7]):  # the same path, as large
        pulled(module, again, dy[: len(again)])
    assert not judged
    new_process()
    pulled(module, x, dy)
    assert not judged
    new_process()
    monkeypatch.setattr(cache, "switches", lambda: {"another": "machine"})
    pulled(module, x, dy)
    assert judged


def test_an_unreadable_record_is_none(judged, tmp_path):
    module, x = MODULES["Dense"](), drawn(40, 6)
    with torch.no_grad():
        module(x)
        (record,) = (tmp_path / "cache" / checked_path.KIND).iterdir()
        record.write_text(record.read_text().replace('"refused": []', '"refused": [{"op": 1}]'))
        judged.clear()
        new_process()
        module(x)
    assert judged == ["experts"]


def test_where_nothing_is_checked(judged, monkeypatch):
    module, x = MODULES["MoE"](), drawn(40, 6)
    with FlopCounterMode(display=False):
        module(x).sum().backward()
    monkeypatch.setenv("GRADPROOF_KERNELS", "reference")
    module(x).sum().backward()
    monkeypatch.delenv("GRADPROOF_KERNELS")
    path = nn_kernels.of_model(gradproof.MoE, module.config, "cpu", torch.float32, 40)
    path.device = "cuda"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    module(x).sum().backward()
    assert not judged and not path.calls.forward  # the next call is still the first
    path.device = "cpu"
    module(x).sum().backward()
    assert judged and path.calls.forward and path.calls.backward


def test_rows_that_cannot_be_judged_do_not_last(judged):
    """The backward of numbers that are none is left to the next call, but not for ever."""
    module, x = MODULES["Dense"](), torch.full((5, 6), torch.nan)
    for _ in range(checked_path.MOST_SKIPS):
        module(x).sum().backward()
    path = nn_kernels.of_model(gradproof.Dense, module.config, "cpu", torch.float32, 5)
    assert path.calls.backward and not path.calls.refused


def test_too_little_memory_checks_nothing(monkeypatch):
    def too_little(*given):
        raise torch.OutOfMemoryError("none is left")

    monkeypatch.setattr(checked_path, "RowTrial", too_little)
    module, x = MODULES["Dense"](), drawn(40, 6)
    with torch.no_grad():
        y = module(x)
    assert torch.equal(y, module(x))
    assert not nn_kernels.of_model(gradproof.Dense, module.config, "cpu", torch.float32, 40).calls.forward


# --- nothing else notices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_the_first_call_gives_the_bits_of_the_second(name, judged):
    module, x, dy = MODULES[name](), drawn(300, 6), drawn(300, 6 if name == "NormGELU" else 5, 1)
    torch.manual_seed(7)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    (y, grads), checked = pulled(module, x, dy), len(judged)
    again, more = pulled(module, x, dy)
    assert checked and len(judged) == checked
    assert torch.equal(y, again) and all(torch.equal(grads[key], more[key]) for key in grads)
    assert torch.equal(state, torch.get_rng_state()) and threads == torch.get_num_threads()
    assert torch.is_grad_enabled() and torch.get_default_dtype() is torch.float32


def test_under_whatever_is_switched_on(judged, caplog):
    module, x = MODULES["MoE"](), drawn(50, 6)
    usual = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.inference_mode():
            y = module(x.clone())
        assert torch.get_default_dtype() is torch.float64 and y.is_inference()
    finally:
        torch.set_default_dtype(usual)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        module(x).sum().backward()
    first = len(kept)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        module(x).sum().backward()
    assert judged and len(kept) == 2 * first and not caplog.text


# --- predictions and the gate -----------------------------------------------------------------------------------------


def rows_of(schema, count):
    generator = np.random.default_rng(0)
    codes = [generator.integers(-1, category.width, count) for category in schema.categories]
    codes_RC = np.stack(codes, 1).astype(np.int32) if codes else np.zeros((count, 0), np.int32)
    numbers_RN = generator.normal(0, 1, (count, len(schema.numbers)))
    return Rows(codes_RC, numbers_RN, np.full(count, -1), np.full((count, len(schema.metrics)), np.nan, np.float32))


@pytest.mark.parametrize("kind", (MoE, Dense))
def test_a_fault_is_found_at_the_first_prediction(kind, plant, judged, caplog):
    schema = synthetic.schema()
    model, rows = kind(kind.Config(schema.inputs, schema.outputs, hidden=16), seed=0), rows_of(schema, ROWS)
    right = Predictor(model, schema)(rows)
    assert not judged
    fast = Predictor(model, schema, fast=True)
    fast._path(ROWS)
    plant("experts", "forward", after(lambda returned: spoil_row(returned[0], len(returned[0]) - 300)))
    for warned in (True, False):
        predicted = fast(rows)
        for own, exact in zip(predicted, right, strict=True):
            np.testing.assert_allclose(own, exact, rtol=1e-4, atol=1e-5)
        assert ("cpu of experts is not used" in caplog.text) == warned == bool(judged)
        judged.clear(), caplog.clear()
    few = rows.slice(0, 20)  # by the reference
    np.testing.assert_array_equal(fast(few).probability_TC, Predictor(model, schema)(few).probability_TC)
    assert not fast(rows.slice(0, 0)).count and not judged


@pytest.mark.parametrize("options", (dict(), dict(router="sheaf"), dict(correction=0.01, scores="sigmoid")))
def test_right_predictions_are_not_refused(options, judged, caplog):
    schema = synthetic.schema()
    model = MoE(MoE.Config(schema.inputs, schema.outputs, hidden=16, **options), seed=0)
    slow, fast = Predictor(model, schema), Predictor(model, schema, fast=True)
    for count in (256, 1001, ROWS):
        rows = rows_of(schema, count)
        for own, exact in zip(fast(rows), slow(rows), strict=True):
            np.testing.assert_allclose(own, exact, rtol=1e-4, atol=1e-5)
    assert set(judged) == set(OF_MODULE["MoE"]) and not caplog.text


def test_a_wide_model_predicts_by_the_reference(judged):
    schema = synthetic.schema()
    model = MoE(MoE.Config(schema.inputs, schema.outputs, hidden=8), seed=0, dtype=torch.float64)
    rows = rows_of(schema, 300)
    fast, slow = Predictor(model, schema, fast=True)(rows), Predictor(model, schema)(rows)
    np.testing.assert_array_equal(fast.probability_TC, slow.probability_TC)
    assert not judged


def test_a_fault_is_found_at_the_gates_first_call(plant, judged, caplog):
    pytest.importorskip("tokenizers", reason="the extra `gate` is not installed")
    from gradproof.gate.network import GateConfig, GateModel

    config = GateConfig(width=16, heads=2, encoder_layers=1, feedforward=32, context=64, buckets=256, features=16)
    gate = GateModel.fresh(0, config)
    rows = [gate.encode(f"Bash\ncommand: rm -rf /tmp/{i} " + "and more " * (i % 5)) for i in range(30)]
    output, _ = gate.network.apply(gate.network.params, gate.batch(rows))
    right = output.logits_TO[:, 0].double().numpy()
    np.testing.assert_allclose(gate.logits(rows), right, rtol=1e-5, atol=1e-6)
    assert judged == ["reading"] and not caplog.text
    gate.logits(rows)
    gate.copy().logits(rows[:20])
    assert judged == ["reading"]

    judged.clear()
    checked_path.forget()
    gate.paths.clear()
    monkeyed = cache.folder() / checked_path.KIND
    for record in monkeyed.iterdir():
        record.unlink()
    plant("reading", "forward", after(lambda returned: returned[0][17].add_(0.01)), least=30)
    for _ in range(2):
        np.testing.assert_allclose(gate.logits(rows), right, rtol=1e-5, atol=1e-6)
        assert judged == ["reading"] and caplog.text.count("cpu of reading is not used") == 1
    gate.logits(rows[:1])
    assert judged == ["reading", "reading"] and caplog.text.count("is not used") == 1


def test_a_path_without_facts_is_not_checked(judged):
    path = CheckedPath(checked_path.REFERENCE)
    assert path.forward(lambda kernels: kernels) is checked_path.REFERENCE and not judged
