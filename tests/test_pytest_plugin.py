"""The pytest plugin, in pytest runs of its own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = """
    import torch
    from torch import nn


    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2.02 * g


    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            return Double.apply(self.linear(x))


    def at_a_kink():
        module = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
        nn.init.zeros_(module[0].weight)
        nn.init.zeros_(module[0].bias)
        return module, (torch.randn(3, 6),)


    def test_right(prove):
        report = prove(nn.Linear(6, 3), (torch.randn(4, 6),), quick=True, name="a linear layer")
        assert report.status == "proven" and "a linear layer" in report.summary


    def test_wrong(prove):
        prove(Wrong(), (torch.randn(4, 6),), quick=True)


    def test_unclear(prove):
        prove(*at_a_kink(), quick=True)


    def test_unclear_is_allowed(prove):
        assert prove(*at_a_kink(), quick=True, allow_inconclusive=True).status == "inconclusive"


    def test_wrong_is_not_allowed(prove):
        prove(Wrong(), (torch.randn(4, 6),), quick=True, allow_inconclusive=True)


    def test_cannot_run(prove):
        prove(nn.Linear(6, 3), (torch.randn(4, 5),))
"""


def run(pytester, *options):
    """In a process of its own: torch's compiler, which a verdict loads, cannot be loaded twice in one."""
    return pytester.runpytest_subprocess("-p", "gradproof.pytest_plugin", *options)


def test_failures_read_like_assertions(pytester, tmp_path):
    """The message without the inner frames, the test's own line, and what was collected in JSON."""
    pytester.makepyfile(TESTS)
    result = run(pytester, "--gradproof-json", str(tmp_path / "reports.json"))
    result.assert_outcomes(passed=2, failed=4)
    result.stdout.fnmatch_lines(
        [
            ">       prove(Wrong(), (torch.randn(4, 6),), quick=True)",
            "E       AssertionError: 3 of 3 tensors judged. Wrong is wrong: parameter linear.weight, *",
            "E         parameter linear.weight is refuted: error 1.0e-02, bound *",
            "E         judged in float64",
            "E       AssertionError: 1 of 3 tensors judged. Sequential is inconclusive: *",
            "E         parameter 0.weight is inconclusive (the gradient is *",
            "E       AssertionError: Linear could not be judged: the module's forward raised RuntimeError: *",
        ]
    )
    assert "pytest_plugin.py" not in result.stdout.str().split("test_cannot_run")[0]
    collected = json.loads((tmp_path / "reports.json").read_text())["tests"]
    assert [(test["test"].split("::")[1], test["status"]) for test in collected] == [
        ("test_right", "proven"),
        ("test_wrong", "refuted"),
        ("test_unclear", "inconclusive"),
        ("test_unclear_is_allowed", "inconclusive"),
        ("test_wrong_is_not_allowed", "refuted"),
    ]
    assert collected[0]["subjects"][0]["parameters"][0]["name"] == "weight"


def test_reports_come_from_the_workers_too(pytester, tmp_path):
    pytest.importorskip("xdist")
    body = "    import torch\n    prove(torch.nn.Linear(6, 3), (torch.randn(4, 6),), quick=True)\n"
    pytester.makepyfile(test_a=f"def test_a(prove):\n{body}", test_b=f"def test_b(prove):\n{body}")
    result = run(pytester, "-n", "1", "--gradproof-json", str(tmp_path / "reports.json"))
    result.assert_outcomes(passed=2)
    collected = json.loads((tmp_path / "reports.json").read_text())["tests"]
    assert sorted(test["test"] for test in collected) == ["test_a.py::test_a", "test_b.py::test_b"]


def test_folder_that_is_not_there_is_said_before_anything_runs(pytester):
    result = run(pytester, "--gradproof-json", "nowhere/reports.json")
    result.stderr.fnmatch_lines(["*--gradproof-json nowhere/reports.json: the folder *nowhere does not exist"])


@pytest.mark.parametrize("options", [(), ("-p", "gradproof.pytest_plugin"), ("-p", "gradproof")])
def test_the_entry_point_and_the_name_of_the_module_may_meet(pytester, options):
    """Installed, asked for by a conftest under its own name, and by the command line: it is loaded once."""
    installed = pytester.mkdir("made-1.0.dist-info")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: made\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[pytest11]\ngradproof = gradproof.pytest_plugin\n")
    pytester.syspathinsert()
    pytester.makeconftest('pytest_plugins = ["gradproof.pytest_plugin"]')
    pytester.makepyfile("def test_it(prove): assert callable(prove)")
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=1)


def test_loading_it_imports_nothing_heavy():
    script = "import sys, gradproof.pytest_plugin; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0


def test_the_keys_of_the_record_are_those_of_the_page():
    """A key that is renamed breaks what others read."""
    import torch

    import gradproof

    page = (Path(__file__).parents[1] / "docs" / "verify.md").read_text()
    tables = re.findall(r"^\| (key[^|]*?) \| \|\n\|---\|---\|\n((?:\|.*\n)+)", page, re.M)
    documented = {
        title: {key for line in rows.splitlines() for key in re.findall(r"`(\w+)`", line.split("|")[1])}
        for title, rows in tables
    }
    record = gradproof.verify(torch.nn.Linear(6, 3), (torch.randn(4, 6),), quick=True).to_dict()
    (subject,) = record["subjects"]
    assert documented["key"] == {*record, "mutants", "kernels", "against"}
    assert documented["key of a subject"] == set(subject)
    assert documented["key of a tensor"] == set(subject["inputs"][0])
