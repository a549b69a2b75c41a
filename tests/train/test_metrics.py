import json
import math

import pytest

from gradproof.train.metrics import MetricsFile, ema, finite, memory_bytes, trend


def test_ema():
    """0.99·ema + 0.01·loss from the first loss on; starting at 0 would take hundreds of steps to arrive."""
    assert ema(None, 3.0) == 3.0
    assert ema(3.0, 1.0) == pytest.approx(2.98, rel=1e-15)
    smoothed = None
    for loss in (4.0, 2.0, 1.0):
        smoothed = ema(smoothed, loss)
    assert smoothed == pytest.approx(0.99 * (0.99 * 4 + 0.01 * 2) + 0.01, rel=1e-15)


@pytest.mark.parametrize(
    ("losses", "right"),
    [
        ([], 0.0),
        ([5.0] * 10 + [1.0] * 9, 0.0),
        ([5.0] * 10 + [1.0] * 10, -4.0),
        ([100.0] * 7 + [1.0] * 10 + [2.0] * 10, 1.0),
        ([float(i) for i in range(20)], 10.0),
    ],
)
def test_trend(losses, right):
    """The last ten against the ten before; 0 until there are twenty."""
    assert trend(losses) == pytest.approx(right, abs=1e-12)


def test_finite():
    """NaN is no JSON; other values pass unchanged."""
    assert finite(math.nan) is None and finite(-math.inf) is None
    assert finite([1.0, math.inf, 2]) == [1.0, None, 2]
    assert [finite(value) for value in (0.0, 3, "x", None, True)] == [0.0, 3, "x", None, True]


def test_a_line_a_record(tmp_path):
    """Another reader's JSON parser must take every line, NaN included."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    assert metrics.read() == []
    metrics.append({"step": 1, "loss": 0.1 + 0.2, "per_expert_share": [0.25, math.nan]})
    metrics.append({"step": 2, "loss": math.inf})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in lines]
    assert records == [{"step": 1, "loss": 0.1 + 0.2, "per_expert_share": [0.25, None]}, {"step": 2, "loss": None}]
    assert metrics.read() == records


@pytest.mark.parametrize(
    "torn", [b'{"step": 3, "lo', b'{"step": 3, "loss": 1', b'"step"', b"\xff\xfe{", b"null", b"[3]"]
)
def test_a_torn_line_is_none(tmp_path, torn):
    """What a power cut left at the end must neither stop the resume nor hide the lines before."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.append({"step": 1, "loss": 1.5})
    with open(metrics.path, "ab") as file:
        file.write(torn)
    assert [record["step"] for record in metrics.read()] == [1]
    metrics.cut(9)
    metrics.append({"step": 2, "loss": 1.25})
    assert [record["step"] for record in metrics.read()] == [1, 2]


def test_cut_forgets_what_came_after(tmp_path):
    """Lines of steps that are done again would stand there twice."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.cut(3)
    assert not metrics.path.exists()
    for step in range(1, 6):
        metrics.append({"step": step, "loss": 1 / (3 * step)})
    kept = metrics.path.read_bytes().splitlines(keepends=True)[:3]
    metrics.cut(3)
    assert metrics.path.read_bytes() == b"".join(kept)  # the same digits
    metrics.cut(0)
    assert metrics.path.exists() and metrics.read() == []
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_memory_of_this_process():
    """Bytes, not kilobytes or pages: torch alone takes more than 100 MB, and no test takes 1 TB."""
    import torch  # noqa: F401

    assert 2**26 < memory_bytes("cpu") < 2**40
