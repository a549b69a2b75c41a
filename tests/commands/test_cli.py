import errno
import json
import os
import shutil
import signal
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
        (("--op", "lineer"), "unknown op 'lineer'"),
        (("--model", "rnn"), "there is no model 'rnn'"),
        (("x.py:case", "--mutants"), "either a CASE or"),
        (("--json", "."), "is a directory"),
        (("--json", "cases_for_cli.py/r.json"), "cannot write"),
        (("--json", "same", "--html", "same"), "name the same file"),
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
    assert {"transformer-nano", "transformer-full", "gate"} <= counts.keys() and counts["gate"] < 2_000_000


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


# train

SMALL = """
data = "synthetic:rows=400"
steps = 12
batch = 32
validate_every = 4
[model_options]
hidden = 8
depth = 1
"""


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A folder with a config and tables, most of which cannot be trained on."""
    monkeypatch.chdir(tmp_path)
    rows = [(f"{0.37 * i % 1:.3f}", "ab"[i % 2], "xyz"[i % 3]) for i in range(60)]

    def table(name, header, lines):
        (tmp_path / name).write_text("\n".join([header, *lines]) + "\n")

    table("good.csv", "number,name,y", [",".join(row) for row in rows])
    table("one_class.csv", "number,name,y", [f"{n},{name},x" for n, name, _ in rows])
    table(
        "words.csv",
        "number,name,y,cost",
        [f"{n},{name},{y},{'dear' if i == 40 else i}" for i, (n, name, y) in enumerate(rows)],
    )
    table("dated.csv", "number,day", [f"{n},0{1 + i % 3}.05.2024" for i, (n, _, _) in enumerate(rows)])
    table("hollow.csv", "number,empty,y", [f"{n},,{y}" for n, _, y in rows])
    table("header.csv", "number,name,y", [])
    table("few.csv", "number,name,y", [",".join(row) for row in rows[:6]])
    table("ten.csv", "number,name,y", [f"{n},{name},{'pq'[i % 2]}" for i, (n, name, _) in enumerate(rows[:10])])
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "unknown.toml").write_text("steps = 5\nlearning_rate = 0.1\n")
    (tmp_path / "bad.toml").write_text("steps = = 5\n")
    (tmp_path / "bad.json").write_text("{steps: 5}")
    (tmp_path / "half.toml").write_text(SMALL + "k = 1.5\n")
    (tmp_path / "expert.toml").write_text(SMALL + "expert = 3\n")
    return tmp_path


def listing(folder):
    return {path.relative_to(folder).as_posix(): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--data", "missing.csv", "--target", "y"), "there is no file missing.csv"),
        (("--data", "empty.csv", "--target", "y"), "empty.csv is empty"),
        (("--data", "header.csv", "--target", "y"), "has a header but no rows"),
        (("--data", "good.csv"), "--target is missing: which column of good.csv"),
        (("--data", "good.csv", "--target", "z"), "no column 'z'"),
        (("--data", "good.csv", "--target", "y", "--metrics", "numbr"), "did you mean 'number'"),
        (("--data", "good.csv", "--target", "y", "--categorical", "nam"), "no column 'nam'; did you mean 'name'"),
        (("--data", "dated.csv", "--target", "day"), "holds dates; choose another target"),
        (("--data", "one_class.csv", "--target", "y"), "a classifier needs two classes"),
        (("--data", "words.csv", "--target", "y", "--metrics", "cost"), "'dear'"),
        (("--data", "hollow.csv", "--target", "y"), "hollow.csv has no value in any row"),
        (("--data", "synthetic", "--target", "y"), "has its own target"),
        (("--data", "synthetic:rows=no"), "is not understood"),
        (("--resume",), "--resume needs --out"),
        (("missing.toml",), "no config file"),
        (("unknown.toml",), "unknown option 'learning_rate'"),
        (("bad.toml",), "bad.toml is not valid TOML"),
        (("bad.json",), "bad.json is not valid JSON"),
        (("half.toml",), "1.5"),
        (("expert.toml",), "there is no option 'expert'"),
        (("--data", "synthetic:rows=300", "--size", "huge"), "no MoE size 'huge'"),
        (("--steps", "0"), "steps = 0 must be at least 1"),
        (("--lr", "nan"), "lr = nan"),
        (("--resume", "--data", "good.csv"), "--target"),
        (("small.toml", "--json", "."), "is a directory"),
    ],
)
def test_a_run_that_cannot_start(tables, args, sentence):
    """One sentence, exit 2, and nothing is left: neither a run that can never be resumed, nor a folder in its way."""
    before = listing(tables)
    result = call("train", *args, *(() if args == ("--resume",) else ("--out", "run")))
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr and result.stderr.startswith("gradproof: ")
    assert len(result.stderr.strip().splitlines()) == 1 and "Error:" not in result.stderr
    assert listing(tables) == before


@pytest.mark.parametrize("data", [("few.csv", "--target", "y"), ("ten.csv", "--target", "y"), ("synthetic:rows=5",)])
def test_a_table_too_small_to_split(tables, data):
    """It trains to the end, or is refused at the start by a sentence on its rows; not after the last step."""
    before = listing(tables)
    result = call("train", "small.toml", "--data", *data, "--steps", "4", "--out", "run")
    if result.exit_code == 0:
        assert (tables / "run/report.html").exists()
    else:
        assert result.exit_code == 2 and "rows" in result.stderr and "Error:" not in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1 and listing(tables) == before


def test_no_cuda_no_run(tables):
    """Before anything is written; and for --resume of a run that began on another machine."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    before = listing(tables)
    result = call("train", "small.toml", "--device", "cuda", "--out", "run")
    assert result.exit_code == 2 and "no CUDA device" in result.stderr and listing(tables) == before
    from gradproof.train.run import start

    start(tables / "run", {"device": "cuda", "data": "synthetic:rows=300"}, resume=False)
    result = call("train", "--resume", "--out", "run")
    assert result.exit_code == 2 and "no CUDA device" in result.stderr and (tables / "run/config.json").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run from the command line, and what that printed."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.toml").write_text(SMALL)
    result = call("train", str(folder / "small.toml"), "--out", str(folder / "run"), "--json", str(folder / "r.json"))
    return folder, result


def stamps(folder):
    return {path: (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in folder.rglob("*")}


def test_a_finished_run(finished):
    """Every file of the design is there, nothing half written, and the record is that of the report."""
    folder, result = finished
    assert result.exit_code == 0, result.output
    run = folder / "run"
    wanted = {
        "config.json",
        "schema.json",
        "evidence.jsonl",
        "metrics.jsonl",
        "checkpoints",
        "report.json",
        "report.html",
    }
    assert wanted <= {path.name for path in run.iterdir()} and not list(run.rglob(".partial*"))
    assert (run / "checkpoints/step-12").is_dir()
    assert json.loads((folder / "r.json").read_text()) == json.loads((run / "report.json").read_text())
    assert "moe nano" in result.stdout and "report.html" in result.stdout
    assert "step     12 of 12" in result.stderr


@pytest.mark.parametrize("flags", [(), ("--steps", "12", "--batch", "32")])
def test_resuming_a_finished_run_changes_nothing(finished, flags):
    """Neither bytes nor times: a second look must not make it look new."""
    folder, _ = finished
    before = stamps(folder / "run")
    result = call("train", "--resume", "--out", str(folder / "run"), *flags, "--json", "-")
    assert result.exit_code == 0 and "nothing to do" in result.stderr
    assert json.loads(result.stdout) == json.loads((folder / "run/report.json").read_text())
    assert stamps(folder / "run") == before


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--data", "synthetic:rows=400", "--steps", "13"), "has a different config: steps is 12 there and 13 here"),
        (("--resume", "--batch", "64"), "has a different config: batch is 32 there and 64 here"),
        (("--data", "synthetic:rows=400"), "already holds this run; resume it with --resume"),
    ],
)
def test_a_folder_that_is_taken(finished, flags, sentence):
    """Exit 2, and the run that is there stays as it is."""
    folder, _ = finished
    before = stamps(folder / "run")
    result = call("train", "--out", str(folder / "run"), *flags)
    assert result.exit_code == 2 and sentence in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert stamps(folder / "run") == before


def test_a_run_that_is_held_by_another(finished):
    """Two processes in one folder would write over each other."""
    from gradproof.train.run import Run, lock

    folder, _ = finished
    with lock(Run(folder / "run")):
        result = call("train", "--resume", "--out", str(folder / "run"))
    assert result.exit_code == 2 and "another process is training in" in result.stderr


def test_a_loss_that_is_not_finite(tables):
    """Exit 1: the run stopped. The sentence names the step; the run stays, to be looked at."""
    result = call("train", "small.toml", "--lr", "1e30", "--out", "run")
    assert result.exit_code == 1
    said = [line for line in result.stderr.splitlines() if line.startswith("gradproof: ")]
    assert len(said) == 1 and "is not finite" in said[0] and "a lower --lr" in said[0]
    assert (tables / "run/failed.json").exists() and not (tables / "run/report.json").exists()


def test_interrupted_and_resumed(tables, finished, monkeypatch):
    """Exit 130 and the command to go on with; in the same process too, so the folder must have been let go."""
    from gradproof.train.terminal_watch import TerminalWatch

    def interrupts(self, record, steps):
        if record["step"] == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TerminalWatch, "training", interrupts)
        result = call("train", "small.toml", "--out", "run")
    assert result.exit_code == 130 and "interrupted; to resume: gradproof train --resume --out run" in result.stderr
    result = call("train", "--resume", "--out", "run")
    assert result.exit_code == 0, result.stderr
    for file in ("model.safetensors", "step.safetensors"):
        right = finished[0] / "run/checkpoints/step-12" / file
        assert (tables / "run/checkpoints/step-12" / file).read_bytes() == right.read_bytes()


def no_space(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_at_the_end_is_no_bad_input(tables, monkeypatch):
    """While the report is written: the run stopped (1), it did not fail to start (2); it is there to be resumed."""
    monkeypatch.setattr("gradproof.train.report.write_atomically", no_space)
    result = call("train", "small.toml", "--out", "run")
    assert result.exit_code == 1 and "no space left" in result.stderr
    assert (tables / "run/checkpoints/step-12").exists()


def test_a_full_disk_at_the_evidence(tables, monkeypatch):
    """Before the first step: either stopped, with a run to resume, or not started, with nothing left."""
    before = listing(tables)
    monkeypatch.setattr("gradproof.train.evidence.write_atomically", no_space)
    result = call("train", "small.toml", "--out", "run")
    assert "no space left" in result.stderr
    assert (result.exit_code, (tables / "run/config.json").exists()) in ((1, True), (2, False))
    assert result.exit_code == 1 or listing(tables) == before


@pytest.mark.parametrize("error", [RuntimeError("can't allocate memory"), MemoryError()], ids=["torch", "python"])
def test_a_model_too_large_for_the_machine_leaves_nothing(tables, monkeypatch, error):
    """torch's out-of-memory is no ValueError; the run that could not start must be taken back all the same."""

    def too_large(*args, **kwargs):
        raise error

    before = listing(tables)
    monkeypatch.setattr("gradproof.train.loop.build_model", too_large)
    result = call("train", "small.toml", "--out", "run")
    assert result.exit_code == 2 and len(result.stderr.strip().splitlines()) == 1
    assert listing(tables) == before


@pytest.mark.parametrize("lost", ["report.html", "report.json"])
def test_a_report_that_was_cut_off_is_made_again(finished, tmp_path, lost):
    """Killed after the last step: nothing is trained again, and the report is there."""
    shutil.copytree(finished[0] / "run", tmp_path / "run")
    (tmp_path / "run" / lost).unlink()
    before = stamps(tmp_path / "run/checkpoints")
    result = call("train", "--resume", "--out", str(tmp_path / "run"))
    assert result.exit_code == 0 and (tmp_path / "run" / lost).exists()
    assert stamps(tmp_path / "run/checkpoints") == before
    again, right = (json.loads((run / "run/report.json").read_text()) for run in (tmp_path, finished[0]))
    for report in (again, right):
        assert report["scores"][0]["seconds"] == right["run"]["seconds"]
        for row in report["scores"][1:]:  # the others are fitted again, which takes another time
            row.pop("seconds")
    assert again == right


def test_nobody_needs_to_look_on(tables):
    """`--json -` alone on standard output, the rest on standard error."""
    result = call("train", "small.toml", "--steps", "4", "--out", "run", "--json", "-")
    assert result.exit_code == 0 and json.loads(result.stdout)["run"]["steps"] == 4


def test_a_table_says_how_it_is_read_before_it_is_trained_on(tables):
    """So that a wrong reading is seen before the wait; the same is in the record and on the page."""
    rows = [f"${i % 7 * 1000:,}.50;{'Y' if i % 2 else 'no'};{'xyz'[i % 3]}" for i in range(120)]
    (tables / "priced.csv").write_text("\n".join(["price;sure;y", *rows]) + "\n")
    result = call("train", "--data", "priced.csv", "--target", "y", "--steps", "4", "--out", "run", "--json", "r.json")
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("step "))
    table = next(i for i, line in enumerate(lines) if line.startswith("column "))
    assert table < first and lines[table + 1].split()[:4] == ["price", "number", "$1,234.5", "100%"]
    record = json.loads((tables / "r.json").read_text())
    assert [column["kind"] for column in record["columns"]] == ["number", "boolean", "target"]
    assert "$1,234.5" in (tables / "run/report.html").read_text()
    assert "scored on 12 rows; worst class" in result.stdout and "warning: only 12 rows were held out" in result.stdout
    assert any("only 12 rows were held out" in warning for warning in record["warnings"])
    (tables / "new.csv").write_text("price;sure;note\nfree;maybe;a\n$2,000.50;n;b\n")
    result = call("predict", "run", "--data", "new.csv", "--keep", "note", "--out", "out.csv", "--json", "p.json")
    assert result.exit_code == 0 and "column 'price': 1 value is not a number like '$1,234.5'" in result.stderr
    assert [line[:2] for line in (tables / "out.csv").read_text().splitlines()[1:]] == ["a,", "b,"]
    assert json.loads((tables / "p.json").read_text())["unread"]["sure"]["values"] == 1
    assert call("predict", "run", "--data", "new.csv", "--keep", "nothing").exit_code == 2
    costs = ("predict", "run", "--data", "priced.csv", "--out", "out.csv", "--json", "p.json", "--costs")
    result = call(*costs, "z=1e9")
    assert result.exit_code == 0, result.output
    decided = [line.split(",")[0] for line in (tables / "out.csv").read_text().splitlines()[1:]]
    assert decided == ["z"] * 120
    assert json.loads((tables / "p.json").read_text())["cost"] == pytest.approx(2 / 3)
    assert "33.33% of the 120 with a known outcome correctly, mistakes cost 0.6667 per row" in result.stderr
    result = call(*costs, "w=2")
    assert result.exit_code == 2
    assert result.stderr == "gradproof: there is no class 'w'; the classes are 'x', 'y', 'z'\n"
