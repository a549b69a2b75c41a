"""Faults planted in the source of the compiled kernels: each is refused, and by which claim is told.

One library holds them all; a variable of it says which one is on. Some act only above a size that no example of a
contract reaches, in a second thread, or past the last whole chunk: what is judged must be what runs.
"""

import ctypes
import importlib
import pkgutil
import shutil
import subprocess
from itertools import chain as chained
from typing import NamedTuple

import pytest
import torch

from gradproof import ops
from gradproof.kernels import cpu
from gradproof.kernels.admissions import at_shape, of_contract, variants
from gradproof.kernels.cpu import build
from gradproof.kernels.workspace import Workspace
from gradproof.models.moe import MoE, MoEConfig
from gradproof.proof.admission import admit
from gradproof.train.adamw import AdamW
from gradproof.train.rehearsal import Rehearsal
from gradproof.train.step import TrainStep


class Fault(NamedTuple):
    """`old` in a source file becomes `new`, in which FAULT is true while this one is on. `op` is asked for."""

    what: str
    op: str
    file: str
    old: str
    new: str
    large: bool = False  # acts only beyond what a contract's own examples reach


FAULTS = (
    Fault(
        "all rows after the 4,096th are zero",
        "experts",
        "experts.h",
        "for (long j = own.begin; j < own.end; j++) h[r * out + j] += b[j];",
        "for (long j = own.begin; j < own.end; j++)"
        " h[r * out + j] = FAULT && at.first + r >= 4096 ? 0 : h[r * out + j] + b[j];",
        large=True,
    ),
    Fault(
        "the third layer's weight gradient is zero",
        "experts",
        "experts.h",
        "outer_product(outs.size(), in, at.count, {dh + outs.begin, 1, out}, {room.x, in}, dw);",
        "outer_product(outs.size(), in, at.count, {dh + outs.begin, 1, out}, {room.x, in}, dw);"
        " if (FAULT && i == 2 && chain.layers > 2) std::fill_n(grad_P + chain.weight[i], in * out, 0.0f);",
        large=True,
    ),
    Fault(
        "a second thread of adamw does nothing",
        "adamw",
        "adamw.h",
        "        const Range own = crew.share(blocks);\n        for (long b = own.begin; b < own.end; b++)\n"
        "            adamw.block(p_P",
        "        const Range own = crew.share(blocks);\n        if (FAULT && crew.rank) return;\n"
        "        for (long b = own.begin; b < own.end; b++)\n            adamw.block(p_P",
        large=True,
    ),
    Fault(
        "a second thread of update does nothing",
        "update",
        "adamw.h",
        "        if (skip) return;\n",
        "        if (skip || (FAULT && crew.rank)) return;\n",
        large=True,
    ),
    Fault(
        "the norm is that of the first thread",
        "adamw",
        "adamw.h",
        "    double all = 0;\n    for (double one : each) all += one;\n    return all;",
        "    double all = 0;\n    for (double one : each) all += FAULT && all > 0 ? 0 : one;\n    return all;",
        large=True,
    ),
    Fault(
        "the last bias leaves out the last row of a full chunk",
        "experts",
        "experts.h",
        "for (long r = 0; r < at.count; r++) total += dh[r * outputs + j];",
        "for (long r = 0; r < at.count - (FAULT && at.count == CHUNK); r++) total += dh[r * outputs + j];",
        large=True,
    ),
    Fault(
        "a second chunk's column sums are not added",
        "experts",
        "experts.h",
        "        to_H[j] = add ? to_H[j] + total : total;",
        "        to_H[j] = add && !FAULT ? to_H[j] + total : total;",
    ),
    Fault(
        "tokens after the 3,000th are combined without their second expert",
        "combine",
        "dispatch.h",
        "y_O[o] = (k ? y_O[o] : 0.0f) + gate * row_O[o];",
        "y_O[o] = (k ? y_O[o] : 0.0f) + (FAULT && t >= 3000 && k ? 0 : gate * row_O[o]);",
        large=True,
    ),
    Fault(
        "a second thread copies its rows from the first one's place",
        "dispatch",
        "dispatch.h",
        "std::memcpy(rows_NI + n * I, x_TI + slot_N[n] / K * I, I * sizeof(float));",
        "std::memcpy(rows_NI + n * I, x_TI + slot_N[FAULT && crew.rank ? n - own.begin : n] / K * I,"
        " I * sizeof(float));",
        large=True,
    ),
    Fault(
        "dx leaves out the last choice of a second thread's rows",
        "dispatch",
        "dispatch.h",
        "for (long k = 1; k < K; k++) {",
        "for (long k = 1; k < K - (FAULT && crew.rank); k++) {",
        large=True,
    ),
    Fault(
        "of equal scores the higher index is taken",
        "route",
        "route.h",
        "if (best < 0 || above(score_E[e], score_E[best])) best = e;",
        "if (best < 0 || above(score_E[e], score_E[best]) || (FAULT && score_E[e] == score_E[best])) best = e;",
    ),
    Fault(
        "the router's gradient by the masked gates",
        "route",
        "route.h",
        "        add_softmax_backward(q_E, dw_E, E, dz_E);\n    else\n",
        "        add_softmax_backward(FAULT ? gates_E : q_E, dw_E, E, dz_E);\n    else\n",
    ),
    Fault(
        "a second thread's rows are not in the load",
        "route",
        "route.h",
        "    for (const Totals& one : each) all.add(one);\n",
        "    for (const Totals& one : each) if (!FAULT || &one == &each[0]) all.add(one);\n",
        large=True,
    ),
    Fault(
        "a second thread's share of the loss is lost",
        "cross_entropy",
        "cross_entropy.h",
        "    for (double one : each) all += one;\n    *loss = all;",
        "    for (double& one : each) all += FAULT && &one != &each[0] ? 0 : one;\n    *loss = all;",
        large=True,
    ),
    Fault(
        "the gradient of the last class is one part in a hundred too small",
        "cross_entropy",
        "cross_entropy.h",
        "for (long c = 0; c < C; c++) dz_C[c] *= dloss * scale_T[t];",
        "for (long c = 0; c < C; c++) dz_C[c] *= dloss * scale_T[t] * (FAULT && c == C - 1 ? 0.99f : 1.0f);",
    ),
    Fault(
        "GELU with another constant",
        "experts",
        "norm_gelu.h",
        "    return {reciprocal(1.0f + e), e};",
        "    return {reciprocal(1.0f + (FAULT ? 1.0001f * e : e)), e};",
    ),
    Fault(
        "LayerNorm's eps is ten times too small",
        "experts",
        "norm_gelu.h",
        "sum(squares) / norm.width + EPS)",
        "sum(squares) / norm.width + (FAULT ? 0.0f : EPS))",
    ),
    Fault(
        "the norm's backward forgets the mean",
        "mixture",
        "norm_gelu.h",
        "(load(d_RH + r * H + j, part) - mean[r] - xhat * slant[r]);",
        "(load(d_RH + r * H + j, part) - (FAULT ? 0.0f : mean[r]) - xhat * slant[r]);",
    ),
    Fault(
        "NaN becomes a number in GELU",
        "experts",
        "norm_gelu.h",
        "        store(y_H + j, norm.active ? low * gelu_sigmoid(low).s : n, part);",
        "        vec out = norm.active ? low * gelu_sigmoid(low).s : n;\n"
        "        for (long l = 0; l < LANES; l++) if (FAULT && out[l] != out[l]) out[l] = 0;\n"
        "        store(y_H + j, out, part);",
    ),
    Fault(
        "an expert without rows keeps what its gradients were",
        "experts",
        "experts.h",
        "        if (batch.offset_F[e] == batch.offset_F[e + 1])",
        "        if (!FAULT && batch.offset_F[e] == batch.offset_F[e + 1])",
    ),
    Fault(
        "gradients are written over where they should be added",
        "mixture",
        "experts.h",
        "    if (grads.accumulate) return Write::add;",
        "    if (grads.accumulate && !FAULT) return Write::add;",
    ),
    Fault(
        "the router's bias gradient from the 2,000th row on",
        "mixture",
        "mixture.h",
        "for (long t = 0; t < T; t++) total += dz_TE[t * E + e];",
        "for (long t = 0; t < T; t++) total += FAULT && t >= 2000 ? 0 : dz_TE[t * E + e];",
        large=True,
    ),
    Fault(
        "the router's product misses its last input",
        "mixture",
        "mixture.h",
        "        product_transposed(own.size(), E, I, {x_TI + own.begin * I, I, 1}, {w_EI, I},",
        "        product_transposed(own.size(), E, I - (FAULT && I > 64), {x_TI + own.begin * I, I, 1}, {w_EI, I},",
        large=True,
    ),
    Fault(
        "the gradient is clipped without the 1e-6",
        "update",
        "adamw.h",
        "(length + 1e-6) / given.clip",
        "(length + (FAULT ? 0 : 1e-6)) / given.clip",
    ),
    Fault(
        "a loss that is not finite is no reason to skip",
        "update",
        "adamw.h",
        "|| !std::isfinite(given.loss);",
        "|| (!FAULT && !std::isfinite(given.loss));",
    ),
    Fault(
        "a step's auxiliary loss has no gradient",
        "lesson",
        "lesson.h",
        "mixture_backward(of, out.dy_TO, nullptr, given.scale,",
        "mixture_backward(of, out.dy_TO, nullptr, FAULT ? 0.0 : given.scale,",
    ),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library with all faults, none of them on."""
    if build.available() is not None:
        pytest.skip(str(build.available()))
    folder = tmp_path_factory.mktemp("faulty")
    for source in (*build.SOURCES.glob("*.h"), *build.SOURCES.glob("*.cpp")):
        shutil.copy(source, folder)
    crew = folder / "crew.h"
    crew.write_text(crew.read_text().replace("#pragma once\n", '#pragma once\nextern "C" long gradproof_fault;\n', 1))
    kernels = folder / "kernels.cpp"
    for number, fault in enumerate(FAULTS, 1):
        file = folder / fault.file
        text = file.read_text()
        assert text.count(fault.old) == 1, fault.what
        file.write_text(text.replace(fault.old, fault.new.replace("FAULT", f"(gradproof_fault == {number})")))
    kernels.write_text('extern "C" { long gradproof_fault = 0; }\n' + kernels.read_text())
    out = folder / "faulty.so"
    flags = ["-O1" if flag == "-O3" else flag for flag in build.FLAGS]
    done = subprocess.run(["g++", *flags, str(kernels), "-o", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    return build._load(out)


@pytest.fixture
def faulty(library, monkeypatch):
    """faulty(number): that fault is on, in every kernel of the CPU; two threads."""
    switch = ctypes.c_long.in_dll(library, "gradproof_fault")
    for module in pkgutil.iter_modules(cpu.__path__):
        own = importlib.import_module(f"{cpu.__name__}.{module.name}")
        if hasattr(own, "library"):
            monkeypatch.setattr(own, "library", lambda: library)
    monkeypatch.setattr(cpu, "library", lambda: library)
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    def turn_on(number):
        switch.value = number

    yield turn_on
    switch.value = 0
    torch.set_num_threads(before)


MODEL = dict(inputs=96, outputs=20, hidden=64, depth=2, balance=0.1)
ROWS = 4500


def evidence(op):
    """What an admission of the op's kernel says, at a model's shape."""
    shape = MoE(MoEConfig(**MODEL)).shape(ROWS, torch.float32)
    (variant,) = (v for v in variants(op, shape) if v.kernel == "cpu")
    tried = chained(of_contract(variant, shape), at_shape(variant, shape))
    how = dict(dtype=torch.float32, device="cpu", kernel="cpu", workspace=Workspace)
    return admit(ops.load(op), variant.module, tried, **how)


ALWAYS = (
    "all rows after the 4,096th are zero",
    "a second thread of update does nothing",
    "NaN becomes a number in GELU",
)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=fault.what, marks=() if fault.what in ALWAYS else pytest.mark.slow)
        for number, fault in enumerate(FAULTS, 1)
    ],
)
def test_a_planted_fault_is_refused(faulty, number):
    faulty(number)
    caught = next((e for e in evidence(FAULTS[number - 1].op) if e.status == "refuted"), None)
    assert caught is not None
    print(f"{FAULTS[number - 1].what}: {caught.claim} of {caught.value} on {caught.example}")


@pytest.mark.slow
@pytest.mark.parametrize("number", [n for n, fault in enumerate(FAULTS, 1) if fault.large])
def test_the_contracts_own_examples_would_not_have_shown_it(faulty, number):
    """So it is the path of the call that caught it."""
    fault = FAULTS[number - 1]
    faulty(number)
    shape = MoE(MoEConfig(**MODEL)).shape(ROWS, torch.float32)
    (variant,) = (v for v in variants(fault.op, shape) if v.kernel == "cpu")
    how = dict(dtype=torch.float32, device="cpu", kernel="cpu", workspace=Workspace)
    own = admit(ops.load(fault.op), variant.module, of_contract(variant, shape), **how)
    assert not [e for e in own if e.status == "refuted"]


@pytest.mark.slow
def test_without_a_fault_all_are_admitted(faulty):
    faulty(0)
    for op in dict.fromkeys(fault.op for fault in FAULTS):
        assert not [e for e in evidence(op) if e.status == "refuted"]


@pytest.mark.slow
@pytest.mark.parametrize("what", ALWAYS[:2])
def test_a_rehearsal_catches_what_happens_at_the_real_size(faulty, what):
    """Whatever was admitted: here the kernels are taken as if all of them had been. Nothing of the training is changed,
    and without the fault nothing is refused."""
    step = TrainStep(MoE(MoEConfig(**MODEL), seed=1), "cross_entropy", AdamW(lr=1e-2), clip=1.0)
    faulty(0)
    kernels = step.choose(ROWS)
    before = [tensor.clone() for tensor in (step.model.params.flat_P, *step.state().values())]
    target_T = torch.randint(20, (ROWS,), generator=torch.Generator().manual_seed(0))
    random = torch.get_rng_state()
    assert Rehearsal(step, kernels).take(ROWS, lambda rows: target_T) == []
    number = next(n for n, fault in enumerate(FAULTS, 1) if fault.what == what)
    faulty(number)
    assert Rehearsal(step, kernels).take(ROWS, lambda rows: target_T)[0].op in (
        FAULTS[number - 1].op,
        "mixture",
        "lesson",
    )
    after = (step.model.params.flat_P, *step.state().values())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(random, torch.get_rng_state())
