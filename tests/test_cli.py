import json
import subprocess
import sys
import textwrap

import pytest
from typer.testing import CliRunner

from gradproof.cli import app

CASES = """
    import torch
    from torch import nn

    def good():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), (torch.randn(3, 4),)

    def wrong():
        module, inputs = good()
        module[0].bias.register_hook(lambda g: 1.02 * g)
        return module, inputs

    def unclear():
        module, inputs = good()
        module[0].weight.data.zero_()
        module[0].bias.data.zero_()
        return nn.Sequential(module[0], nn.ReLU()), inputs

    def raises():
        raise KeyError("what\\nhappened")

    def number():
        return 3

    def four():
        return 1, 2, 3, 4

    def no_module():
        return torch.zeros(3), (torch.zeros(3),)

    def no_tuple():
        return nn.Linear(2, 2), torch.zeros(3, 2)

    def wrong_width():
        return nn.Linear(2, 2), (torch.zeros(3, 5),)

    def other_reference():
        return nn.Linear(2, 2), (torch.zeros(3, 2),), nn.Linear(2, 2, bias=False)

    not_callable = 7

    def exits():
        raise SystemExit(0)

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.held = nn.ParameterDict({"[/red]": torch.randn(2)})

        def forward(self, x):
            print("printed by the forward")
            return x * self.held["[/red]"]

    def odd():
        print("printed by the case")
        return Odd(), (torch.randn(3, 2),)
"""


@pytest.fixture
def cases(tmp_path, monkeypatch):
    (tmp_path / "cases_for_cli.py").write_text(textwrap.dedent(CASES))
    (tmp_path / "broken_case.py").write_text("import nothing_like_this\n")
    (tmp_path / "exits_on_import.py").write_text("raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*args):
    return CliRunner().invoke(app, list(args))


@pytest.mark.parametrize(
    ("case", "code", "status"), [("good", 0, "proven"), ("wrong", 1, "refuted"), ("unclear", 3, "inconclusive")]
)
def test_exit_code_and_record_of_a_case(cases, case, code, status):
    result = call("verify", f"cases_for_cli.py:{case}", "--json", "out/r.json", "--html", "out/r.html")
    assert result.exit_code == code, result.output
    record = json.loads((cases / "out/r.json").read_text())
    assert record["status"] == status and status in result.stdout
    (subject,) = record["subjects"]
    wanted = {"name", "status", "parameters", "inputs", "forwards", "directions", "seed"}
    assert wanted <= set(subject) and {"summary", "environment"} <= set(record)
    for judged in subject["parameters"] + subject["inputs"]:
        assert {"name", "status", "error", "bound", "resolution"} <= set(judged)
    assert status.lower() in (cases / "out/r.html").read_text()


def test_wrong_parameter_is_named(cases):
    result = call("verify", "cases_for_cli:wrong")
    assert result.exit_code == 1 and "parameter 0.bias" in result.stdout


def test_odd_names_and_prints_do_no_harm(cases):
    """A name that looks like markup, and a module that prints, in a record on standard output."""
    result = call("verify", "cases_for_cli.py:odd", "--json", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["subjects"][0]["parameters"][0]["name"] == "held.[/red]"


def test_json_alone_on_standard_output(cases):
    result = call("verify", "cases_for_cli.py:wrong", "--quick", "--json", "-")
    record = json.loads(result.stdout)
    assert [j["name"] for j in record["subjects"][0]["parameters"] if j["status"] == "refuted"] == ["0.bias"]


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("missing.py:good", "no file missing.py"),
        ("no_such_package:good", "importing no_such_package raised ModuleNotFoundError"),
        ("broken_case.py:good", "importing broken_case.py raised ModuleNotFoundError"),
        ("cases_for_cli.py:nothing", "no function 'nothing'"),
        ("cases_for_cli.py:not_callable", "not a function"),
        ("cases_for_cli.py:raises", "raised KeyError"),
        ("cases_for_cli.py:number", "must return (module, inputs)"),
        ("cases_for_cli.py:four", "must return (module, inputs)"),
        ("cases_for_cli.py:no_module", "torch.nn.Module first"),
        ("cases_for_cli.py:no_tuple", "inputs as a tuple"),
        ("cases_for_cli.py:wrong_width", "forward raised"),
        ("cases_for_cli.py:other_reference", "same parameter names"),
        ("cases_for_cli.py:exits", "raised SystemExit"),
        ("exits_on_import.py:good", "raised SystemExit"),
        ("no-colon", "not a case"),
        ("", "not a case"),
    ],
)
def test_bad_case_is_one_sentence_and_exit_2(cases, case, sentence):
    result = call("verify", case, "--json", "r.json")
    assert result.exit_code == 2
    assert sentence in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not (cases / "r.json").exists()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--op", "lineer"), "there is no op 'lineer'"),
        (("--model", "rnn"), "there is no model 'rnn'"),
        (("x.py:case", "--mutants"), "either a CASE or"),
        (("--json", "."), "is a directory"),
        (("--json", "cases_for_cli.py/r.json"), "cannot be written"),
        (("--json", "same", "--html", "same"), "both name"),
        (("--device", "cuda"), "no CUDA device"),
    ],
)
def test_bad_options_are_one_sentence_and_exit_2(cases, args, sentence):
    import torch

    if "cuda" in args and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    result = call("verify", *args)
    assert result.exit_code == 2 and sentence in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_the_unforeseen_is_no_verdict(cases, monkeypatch):
    """A crash inside Gradproof must not exit with 1, which says that the user's module is wrong."""
    import gradproof.proof.module as module

    def crashes(*args, **kwargs):
        raise RuntimeError("something\nbroke")

    monkeypatch.setattr(module, "verify", crashes)
    result = call("verify", "cases_for_cli.py:good")
    assert result.exit_code == 2 and "RuntimeError: something broke" in result.stderr


def test_debug_shows_the_traceback(cases):
    result = call("verify", "cases_for_cli.py:raises", "--debug")
    assert result.exit_code == 2 and "Traceback" in result.stderr and "KeyError" in result.stderr


def test_ops_and_mutants(cases):
    result = call("verify", "--op", "softmax", "--mutants", "--json", "-")
    record = json.loads(result.stdout)
    assert result.exit_code == 0 and record["subjects"][0]["name"] == "softmax"
    assert [m["status"] for m in record["mutants"]] == ["refuted"] * 4
    assert all({"name", "subject", "status", "claim", "parameter"} <= set(m) for m in record["mutants"])


def test_sizes(cases):
    record = json.loads(call("sizes", "--json", "-").stdout)
    counts = {size["name"]: size["parameters"] for size in record["sizes"]}
    assert counts["nano"] == 195_540 and counts["dense-0.7b"] == 706_055_188


def test_import_is_light():
    """Importing the package, or asking for help, must not import torch."""
    script = (
        "import sys, gradproof, gradproof.cli; print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"
    script = "import sys; sys.argv = ['gradproof', '--help']; from gradproof.cli import app; app(standalone_mode=False)"
    script += "; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip().endswith("False")


def test_public_names_exist():
    import gradproof

    assert all(getattr(gradproof, name) for name in gradproof.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gradproof.nothing
