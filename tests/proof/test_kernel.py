"""`check_kernel`: right kernels pass, planted faults are refused, and the report says where and by how much."""

import importlib.util
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

import gradproof
from gradproof.cli import app

SOURCE = Path(__file__).with_name("own_kernels.py")
FORMATS = [torch.float32, torch.bfloat16]


def _drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


INPUTS = {
    "softmax": ((_drawn(9, 21),), "x[T,I]"),
    "layernorm": ((_drawn(9, 21), _drawn(21, seed=1), _drawn(21, seed=2), 1e-5), "x[T,D] gamma[D] beta[D]"),
    "matmul": ((_drawn(18, 20), _drawn(20, 17, seed=1)), "a[M,K] b[K,N]"),
    "attention": (tuple(_drawn(2, 18, 8, seed=i) for i in range(3)), "q[B,S,W] k[B,S,W] v[B,S,W]"),
    "cross_entropy": ((_drawn(9, 21), torch.arange(9) * 5 % 21), "z[T,C] target[T]"),
    "dropout": ((_drawn(9, 21), 0.3, 7), "x[T,I]"),
}


class PlantedFault(NamedTuple):
    """`old` in the source of the kernels becomes `new`."""

    what: str
    kernel: str
    old: str
    new: str


FAULTS = (
    PlantedFault("no maximum is subtracted", "softmax", "values - tl.max(values, 0)", "values"),
    PlantedFault(
        "the padding counts",
        "softmax",
        "tl.where(inside, tl.exp(shifted), 0.0)",
        "tl.exp(tl.where(inside, shifted, 0))",
    ),
    PlantedFault("the inner product is missing", "softmax", "(p * (g - inner))", "(p * g)"),
    PlantedFault("eps is missing", "layernorm", "0) / n + eps)", "0) / n)"),
    PlantedFault("the mean over the padded width", "layernorm", "tl.sum(values, 0) / n", "tl.sum(values, 0) / BLOCK"),
    PlantedFault("a term of dx is missing", "layernorm", "(g - normed * along - level)", "(g - normed * along)"),
    PlantedFault("the tail of the sum is left out", "matmul", "range(0, K, D)", "range(0, K - K % D, D)"),
    PlantedFault(
        "the last column is never written",
        "matmul",
        "total.to(c.dtype.element_ty), mask=(row < M)[:, None] & (column < N)",
        "total.to(c.dtype.element_ty), mask=(row < M)[:, None] & (column < N - 1)",
    ),
    PlantedFault("strides are ignored", "matmul", "*b.stride()", "b.shape[1], 1"),
    PlantedFault("a query sees the next key", "attention", "<= query[:, None])", "<= query[:, None] + 1)"),
    PlantedFault("the running sum does not fade", "attention", "sum_R * fade_R", "sum_R"),
    PlantedFault("a term of ds is missing", "attention", "(dp_RC - inner_R[:, None])", "dp_RC"),
    PlantedFault("the sum instead of the mean", "cross_entropy", "(tl.sum(total, 0) / rows)", "tl.sum(total, 0)"),
    PlantedFault("the target's class is not special", "cross_entropy", "p - 1, p)", "p, p)"),
    PlantedFault("the last class is left out", "cross_entropy", "mask=column < n, other", "mask=column < n - 1, other"),
    PlantedFault("what stays is not scaled", "dropout", "values * scale", "values"),
    PlantedFault("the backward draws other numbers", "dropout", "*ctx.drawn)", "ctx.drawn[0], ctx.drawn[1] + 1)"),
    PlantedFault(
        "one buffer serves every call",
        "dropout",
        "    y = torch.empty_like(x)\n    grid",
        "    y = _dropped.__dict__.setdefault(x.shape, torch.empty_like(x))\n    grid",
    ),
)
QUICK = ("softmax", "dropout")


def _marked(kernel, *values, ids):
    return pytest.param(*values, id=ids, marks=() if kernel in QUICK else pytest.mark.slow)


@pytest.fixture
def load(monkeypatch, tmp_path):
    """load(fault): the kernels as a module, on the GPU if there is one, otherwise in Triton's interpreter."""
    pytest.importorskip("triton") if torch.cuda.is_available() else _interpreter(monkeypatch)

    def imported(fault=None):
        source = SOURCE.read_text()
        if fault is not None:
            assert source.count(fault.old), f"{fault.what}: the source has changed"
            source = source.replace(fault.old, fault.new, 1)
        path = tmp_path / "own_kernels_copy.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(f"own_kernels_{tmp_path.name}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where Triton looks for what a kernel names
        spec.loader.exec_module(module)
        return module

    return imported


def _interpreter(monkeypatch):
    """Interpreting is decided when Triton is imported, and again when a kernel is decorated. Where a GPU rounds to
    nearest, the interpreter cuts off: bf16 numbers are made as torch makes them."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    tl = pytest.importorskip("triton.language")
    from triton.runtime import interpreter

    if not isinstance(tl.sum, interpreter.InterpretedFunction):
        pytest.skip("triton was imported before TRITON_INTERPRET could be set, and there is no GPU")
    convert = interpreter._convert_float

    def converted(data, given, wanted, mode):
        if (given, wanted) != (tl.float32, tl.bfloat16):
            return convert(data, given, wanted, mode)
        wide = torch.from_numpy(data.astype("float32", copy=True))
        return wide.to(torch.bfloat16).view(torch.uint16).numpy().reshape(data.shape)

    monkeypatch.setattr(interpreter, "_convert_float", converted)


def judged(module, kernel, dtype, seed=0):
    inputs, shapes = INPUTS[kernel]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = tuple(value.to(device) if isinstance(value, torch.Tensor) else value for value in inputs)
    fast, reference = getattr(module, kernel), getattr(module, f"{kernel}_reference")
    return gradproof.check_kernel(fast, reference, inputs, shapes=shapes, dtypes=(dtype,), seed=seed)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinities in the interpreter
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("kernel", [_marked(kernel, kernel, ids=kernel) for kernel in INPUTS])
def test_a_right_kernel_is_proven(load, kernel, dtype):
    report = judged(load(), kernel, dtype)
    assert report.status == "proven", report.summary
    (subject,) = report.subjects
    claims = {evidence.claim for evidence in subject.evidence}
    wanted = {"matches_reference", "no_alias", "deterministic", "writes_all", "strides", "sizes", "loud"}
    assert wanted <= claims and subject.calls > 15
    assert any(judgement.name.startswith("gradient of") for judgement in subject.inputs)
    finest = 1e-4 if dtype == torch.float32 else 2e-2
    assert all(judgement.resolution <= finest for judgement in subject.inputs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("fault", [_marked(f.kernel, f, ids=f"{f.kernel}: {f.what}") for f in FAULTS])
def test_a_planted_fault_is_refused(load, fault, dtype):
    report = judged(load(fault), fault.kernel, dtype)
    assert report.status == "refuted", report.summary
    print(f"{fault.kernel}: {fault.what}: {report.summary}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("seed", range(1, 5))
def test_no_right_kernel_is_refused_over_seeds(load, seed, dtype):
    """A false alarm: the bounds would be too tight."""
    module = load()
    for kernel in INPUTS:
        report = judged(module, kernel, dtype, seed)
        assert report.status == "proven", report.summary


def test_every_kernel_has_three_faults():
    assert all(sum(fault.kernel == kernel for fault in FAULTS) >= 3 for kernel in INPUTS)


# Kernels in plain Python: one promise broken at a time.

PAIR = ((_drawn(12, 10), _drawn(6, 10, seed=1)), "x[T,I] w[O,I]")


def linear(x, w):
    return x @ w.T


def _by_hand(dy, x, w):
    wide = [operand.float() for operand in (dy, x, w)]
    return (wide[0] @ wide[2]).to(x.dtype), (wide[0].T @ wide[1]).to(w.dtype)


def check(fast, reference=linear, pair=PAIR, **options):
    return gradproof.check_kernel(fast, reference, pair[0], shapes=pair[1], **options)


def refuted_claims(report):
    return {evidence.claim for evidence in report.subjects[0].evidence if evidence.status == "refuted"}


@pytest.mark.parametrize("backward", [None, _by_hand], ids=["autograd", "backward"])
def test_a_plain_kernel_is_proven(backward):
    report = check(lambda x, w: (x.float() @ w.float().T).to(x.dtype), backward=backward, dtypes=FORMATS)
    assert report, report.summary
    names = {judgement.name for judgement in report.subjects[0].inputs}
    assert {"output 0 (float32)", "gradient of x (float32)", "gradient of w (bfloat16)"} <= names


def test_a_wrong_backward_is_named():
    report = check(linear, backward=lambda dy, x, w: (dy @ w, 1.01 * dy.T @ x))
    assert not report and "gradient of w" in report.summary and "gradient of x" not in report.summary


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_a_thousandth_of_the_entries_off_by_a_hundredth_is_refused(seed, dtype):
    """And the report names the entry, what was expected there, and what its bound is made of."""
    pair = ((_drawn(40, 10), _drawn(25, 10, seed=1)), "x[T,I] w[O,I]")

    def nearly(x, w):
        y = x.float() @ w.float().T
        off = torch.zeros(y.shape, device=y.device)
        if y.numel() == 1000:
            off[7, 3] = 0.01
        return (y * (1 + off)).to(x.dtype)

    report = check(nearly, pair=pair, seed=seed, dtypes=dtype)
    judgement = report.subjects[0].inputs[0]
    assert report.status == "refuted" and judgement.name == "output 0" and "[7, 3]" in judgement.note
    assert "expected" in judgement.note and "8 σ" in judgement.note and "products of up to" in judgement.note
    assert judgement.note in report.summary


def test_a_scale_that_is_slightly_off_shows_in_bf16():
    """0.6% is less than two roundings of an entry; over many rows it does not average out."""
    pair = ((_drawn(80, 16), _drawn(48, 16, seed=1)), "x[T,I] w[O,I]")
    fast = lambda x, w: (1.006 * (x.float() @ w.float().T)).to(x.dtype)  # noqa: E731
    assert check(fast, pair=pair, dtypes=(torch.bfloat16,)).status == "refuted"


def test_a_kernel_without_a_gradient_is_judged_forward_only():
    with torch.no_grad():
        report = check(torch.no_grad()(linear))
    assert report and "Only the forward was judged" in report.summary
    assert [judgement.name for judgement in report.subjects[0].inputs] == ["output 0"]


def test_a_reference_without_a_gradient_leaves_gradients_open():
    report = check(linear, lambda x, w: (x @ w.T).detach())
    assert report.status == "inconclusive" and "no gradient to compare it with" in report.summary


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_other_formats(dtype):
    wide = {torch.float16: torch.float32}.get(dtype, dtype)
    assert check(lambda x, w: (x.to(wide) @ w.to(wide).T).to(dtype), dtypes=dtype)
    assert check(lambda x, w: (1.01 * (x.to(wide) @ w.to(wide).T)).to(dtype), dtypes=dtype).status == "refuted"


def _overwrites(x, w):
    y = x @ w.T
    x.data[:1] *= 1.5
    return y


CALLS = []


def _restless(x, w):
    CALLS.append(None)
    return x @ w.T * (1 + 1e-7 * (len(CALLS) % 2))


def _unwritten(x, w):
    y = torch.empty(len(x), len(w), dtype=x.dtype)
    y[: len(x) - 1] = (x @ w.T)[: len(x) - 1]
    y[len(x) - 1 :] = torch.where(y[len(x) - 1 :].isnan(), y[len(x) - 1 :], (x @ w.T)[len(x) - 1 :])
    return y


def _ignores_strides(x, w):
    return x.as_strided(x.shape, (x.shape[1], 1)) @ w.T


def _swallows(x, w):
    return x.nan_to_num(0.0) @ w.T


def _even_only(x, w):
    even = x.shape[1] // 2 * 2
    return x[:, :even] @ w[:, :even].T


def _fails_when_empty(x, w):
    if not len(x):
        raise RuntimeError("invalid configuration")
    return x @ w.T


@pytest.mark.parametrize(
    ("fast", "claim"),
    [
        (_overwrites, "no_alias"),
        (_restless, "deterministic"),
        (_unwritten, "writes_all"),
        (_ignores_strides, "strides"),
        (_swallows, "loud"),
        (_even_only, "sizes"),
        (_fails_when_empty, "empty"),
    ],
)
def test_each_promise_is_enforced(fast, claim):
    report = check(fast)
    assert claim in refuted_claims(report), report.summary


class FlatCotangent(torch.autograd.Function):
    """Reads the cotangent as if its numbers lay side by side."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        if 0 in dy.stride():
            dy = torch.zeros(dy.shape, dtype=dy.dtype)
        return dy @ w, dy.T @ x


def test_a_cotangent_of_a_sum_is_read_as_it_is():
    report = check(FlatCotangent.apply)
    assert refuted_claims(report) == {"strides"} and "sum()" in report.summary


def test_a_refusal_in_a_sentence_is_no_failure():
    def picky(x, w):
        if not (x.is_contiguous() and w.is_contiguous()):
            raise ValueError("x and w must be contiguous")
        if x.shape[1] % 2:
            raise NotImplementedError("I must be even")
        return x @ w.T

    report = check(picky)
    notes = " ".join(report.subjects[0].notes)
    assert report and "must be contiguous" in notes and "I=11 O=6; T=7 I=5 O=3: not supported, I must be even" in notes


def test_sizes_that_the_reference_does_not_take_are_noted():
    def paired(x):
        a, b = x.unflatten(1, (-1, 2)).unbind(2)
        return a * b

    report = check(paired, paired, ((_drawn(5, 8),), "x[T,I]"))
    assert report and any(
        re.search("T=5 I=7;.*: not tried, because the reference raises", n) for n in report.subjects[0].notes
    )


def test_empty_sizes_are_tried():
    report = check(linear)
    assert {"empty", "sizes"} <= {evidence.claim for evidence in report.subjects[0].evidence}


def test_an_index_stays_inside_a_shrunken_axis():
    """Class indices up to C − 1 are drawn anew when C shrinks, so one class is tried as well."""
    report = check(F.cross_entropy, F.cross_entropy, ((_drawn(6, 9), torch.arange(6) + 3), "z[T,C] target[T]"))
    assert report and not any("C=1:" in note for note in report.subjects[0].notes)


def test_inputs_by_name_and_only_what_requires_a_gradient():
    inputs = {"w": _drawn(6, 10), "x": _drawn(12, 10).requires_grad_()}
    report = gradproof.check_kernel(linear, linear, inputs, shapes="x[T,I] w[O,I]")
    assert report and [j.name for j in report.subjects[0].inputs] == ["output 0", "gradient of x"]


def _conv(x, w):
    return F.conv1d(x, w)


CONV = ((_drawn(2, 3, 9), _drawn(4, 3, 3, seed=1)), "x[B,3,L] w[O,3,3]")


def test_an_unknown_operation_is_judged_by_measurement():
    def slower(x, w):
        return torch.einsum("bclk,ock->bol", x.unfold(2, 3, 1), w)

    report = check(slower, _conv, CONV)
    assert report, report.summary
    assert any("measured, not computed: aten.convolution" in note for note in report.subjects[0].notes)
    assert check(lambda x, w: 1.001 * _conv(x, w), _conv, CONV).status == "refuted"


def test_the_terms_of_an_unknown_operation():
    def terms(x, w):
        return F.conv1d(x.abs(), w.abs())

    report = check(_conv, _conv, CONV, terms=terms)
    assert report and not any("measured" in note for note in report.subjects[0].notes)
    assert "your terms" in report.summary
    assert check(lambda x, w: (1 + 1e-4) * _conv(x, w), _conv, CONV, terms=terms).status == "refuted"


@pytest.mark.parametrize(
    ("inputs", "shapes", "sentence"),
    [
        (PAIR[0], "x[T,I] w", "not of the form name"),
        (PAIR[0], "x[T,I]", "names 1 tensors"),
        (PAIR[0], "x[T,I] x[O,I]", "twice"),
        (PAIR[0], "x[T,I] w[I,O]", "I is 10 in x and 6 in w"),
        (PAIR[0], "x[T,9] w[O,I]", "axis of 9"),
        (PAIR[0], "x[T,I,K] w[O,I]", "shape (12, 10)"),
        ({"x": PAIR[0][0], "v": PAIR[0][1]}, "x[T,I] w[O,I]", "must name every tensor"),
        (PAIR[0][0], "x[T,I]", "must be a tuple"),
        ((torch.arange(3),), "x[T]", "no floating tensor"),
        ((_drawn(12, 10), _drawn(6, 7)), "x[T,I] w[O,J]", "the reference raised RuntimeError"),
    ],
)
def test_bad_inputs_are_one_sentence(inputs, shapes, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as error:
        gradproof.check_kernel(linear, linear, inputs, shapes=shapes)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("fast", "reference", "sentence"),
    [
        (linear, lambda x, w: (x @ w.T).argmax(1), "no floating tensor|is float32 of the kernel"),
        (lambda x, w: (x, w), linear, "returns 2 tensors and the reference 1"),
        (lambda x, w: x.nothing, linear, "the kernel raised AttributeError"),
        (None, linear, "the kernel must be a function, not a NoneType"),
    ],
)
def test_functions_that_cannot_be_compared(fast, reference, sentence):
    with pytest.raises(ValueError, match=sentence):
        check(fast, reference)


# The command line.

CASES = """
    import torch
    from gradproof import KernelCase

    x, w = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), torch.ones(4, 6)

    def plain(x, w):
        return x @ w.T

    def cancels(x, w):
        return (x + 1e9) - 1e9

    def good():
        return KernelCase(lambda x, w: torch.einsum("ti,oi->to", x, w), plain, (x, w), shapes="x[T,I] w[O,I]")

    def wrong():
        return KernelCase(lambda x, w: plain(x, w) * 1.01, plain, (x, w), shapes="x[T,I] w[O,I]")

    def unclear():
        return KernelCase(cancels, cancels, (x, w), shapes="x[T,I] w[O,I]")

    def misnamed():
        return KernelCase(plain, plain, (x, w), shapes="x[T,I]")
"""


@pytest.fixture
def cases(tmp_path, monkeypatch):
    (tmp_path / "kernel_cases.py").write_text(textwrap.dedent(CASES))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("case", "code", "status"), [("good", 0, "proven"), ("wrong", 1, "refuted"), ("unclear", 3, "inconclusive")]
)
def test_exit_code_record_and_page(cases, case, code, status):
    result = CliRunner().invoke(app, ["verify", f"kernel_cases.py:{case}", "--json", "r.json", "--html", "r.html"])
    assert result.exit_code == code, result.output
    record = json.loads((cases / "r.json").read_text())
    assert record["status"] == status and status in result.stdout and status in (cases / "r.html").read_text()
    (subject,) = record["subjects"]
    wanted = {"name", "status", "parameters", "inputs", "forwards", "directions", "seed", "notes", "evidence"}
    assert wanted | {"kind", "calls", "detail"} <= set(subject) and subject["kind"] == "kernel"
    for judgement in subject["inputs"]:
        assert {"name", "status", "error", "bound", "resolution", "note"} <= set(judgement)


def test_a_bad_kernel_case_is_one_sentence_and_exit_2(cases):
    result = CliRunner().invoke(app, ["verify", "kernel_cases.py:misnamed"])
    assert result.exit_code == 2 and "names 1 tensors" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_diagnose_says_who_judges_a_kernel(cases):
    result = CliRunner().invoke(app, ["diagnose", "kernel_cases.py:good"])
    assert result.exit_code == 2 and "gradproof verify kernel_cases.py:good" in result.stderr
