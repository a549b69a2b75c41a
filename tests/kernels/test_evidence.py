"""For every benchmarked row: which path each kernel takes, and which evidence admits it; `-m slow -s` lists it."""

import pytest
import torch
from test_paths import GPU_ROWS, ROWS, shape_of

from gradproof.kernels import admissions, cache
from gradproof.kernels.cpu import missing
from gradproof.kernels.paths import path_of

LEAST = {"matches_reference", "deterministic"}


def listed(shape):
    """(op, kernel, path, claims) of each kernel that a step of this shape runs by; no evidence is a failure."""
    chosen = admissions.choose(shape).chosen
    rows = {(row["op"], row["kernel"]): row for row in admissions.survey(shape)}
    for op, kernel in chosen.items():
        if kernel == "reference":
            continue
        row = rows[op, kernel]
        claims = {evidence["claim"].partition(",")[0] for evidence in row["evidence"]}
        assert row["status"] == "admitted" and claims >= LEAST, (op, kernel, claims)
        assert all(evidence["status"] == "proven" for evidence in row["evidence"])
        print(f"{op:14} {kernel:8} {row['path']}  by {len(row['evidence'])} claims: {', '.join(sorted(claims))}")
    return chosen


@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("size, rows", ROWS)
def test_every_path_of_a_cpu_row_has_evidence(size, rows):
    chosen = listed(shape_of(size, rows))
    if not size.startswith("transformer"):  # whose layers are torch's own, or the reference
        assert "reference" not in chosen.values(), chosen


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("size, rows", GPU_ROWS)
def test_every_path_of_a_gpu_row_has_evidence(size, rows):
    chosen = listed(shape_of(size, rows, device="cuda"))
    assert {op for op, kernel in chosen.items() if kernel == "reference"} <= {"embedding"}, chosen


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_an_admission_without_evidence_is_judged_again(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(admissions, "_judged", {})
    shape = shape_of("nano", 32)
    (variant,) = admissions.variants("combine", shape)
    key = admissions._key(path_of(variant, shape))
    cache.keep("admissions", key, dict(op="combine", kernel="cpu", admitted=True, reason="", evidence=[]))
    assert admissions.admission(variant, shape).evidence


def test_a_large_table_of_tokens_is_admitted(monkeypatch, tmp_path):
    """Its errors are held in float32, those of the rows that are added to it in float64."""
    monkeypatch.setenv("GRADPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(admissions, "_judged", {})
    shape = shape_of("transformer-gate", 4)
    assert [admissions.admission(variant, shape).reason for variant in admissions.variants("embedding", shape)] == [""]
