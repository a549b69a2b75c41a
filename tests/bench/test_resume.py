"""The suite `step` in several runs: what is kept, what is measured again, screening, and the file in between."""

import json
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from gradproof.bench import origin, row, step, timing
from gradproof.bench.case import StepCase
from gradproof.bench.timing import Timing
from gradproof.cli import app

MS = {"gradproof": 1.0, "dense-all": 2.0, "loop": 4.0, "grouped_mm": 2.2, "dense-all-compiled": 1.8}
PEERS = ",".join(name for name in MS if name != "gradproof")


@pytest.fixture
def machine(monkeypatch):
    """Figures from a table: nothing is built or run. Returns what was measured, (contestants, in full) each."""
    measured = []

    class Built:
        model, batches, kernels, peak_bytes = None, [], {}, 100
        run = staticmethod(lambda: None)

        def __init__(self, *args):
            pass

    class Contestant:
        graphs, settling = "none", 1

        def __init__(self, way, *args):
            if MS.get(_name(way)) is None:
                raise RuntimeError("does not compile")

        def __call__(self, *batch):
            pass

    def turns(contestants, device, rounds, seconds):
        measured.append((tuple(contestants)[-1], rounds == step.ROUNDS))
        return {name: Timing(MS[name], (MS[name], MS[name]), (MS[name],) * rounds, 1) for name in contestants}

    monkeypatch.setattr(step, "Ours", Built)
    monkeypatch.setattr(step, "Peer", Contestant)
    for name in ("free", "forget_peers", "forget_workspaces"):
        monkeypatch.setattr(step, name, lambda *args: None)
    monkeypatch.setattr(step, "_peak", lambda *args: 200)
    monkeypatch.setattr(step, "interleaved", turns)
    monkeypatch.setattr(step, "product_peaks", lambda device: timing.Peaks(2.0, 1.0))
    monkeypatch.setattr(step, "under_load", lambda device, run: {"clock_mhz": 1.0, "power_w": None})
    monkeypatch.setenv("GRADPROOF_COMMIT", "abc")
    monkeypatch.setattr(origin, "code", lambda: "one")
    monkeypatch.setattr(step, "code", lambda: "one")
    return measured


def _name(way):
    return next(name for name, other in step.peers_of("moe", "cuda").items() if other == way)


def bench(file, *args, peers=PEERS, rows=4):
    options = ("--size", "nano", "--rows", str(rows), "--peers", peers, "--json", str(file))
    return CliRunner().invoke(app, ["bench", "--suite", "step", *options, *args])


def contestants(file, i=0):
    return {entry["name"]: entry for entry in json.loads(file.read_text())["rows"][i]["contestants"]}


def test_only_who_is_close_to_the_best_is_measured_in_full(machine, tmp_path):
    """In the peers' order: dense-all-compiled 1.8, loop 4.0, dense-all 2.0, grouped_mm 2.2 times ours."""
    file = tmp_path / "step.json"
    assert bench(file).exit_code == 0
    assert [name for name, fully in machine if fully] == ["dense-all-compiled", "dense-all", "grouped_mm"]
    assert [name for name, fully in machine if not fully] == ["dense-all-compiled", "loop", "dense-all", "grouped_mm"]
    entries = contestants(file)
    assert list(entries) == ["gradproof", "dense-all-compiled", "loop", "dense-all", "grouped_mm"]
    assert entries["loop"]["rough"] and not entries["dense-all"]["rough"] and "clock_mhz" in entries["dense-all"]
    assert (entries["gradproof"]["ms"], entries["loop"]["memory_ratio"], entries["loop"]["commit"]) == (1.0, 2.0, "abc")
    written = json.loads(file.read_text())
    assert written["rows"][0]["speedup"] == 1.8 and written["rows"][0]["peers"] == list(step.peers_of("moe", "cpu"))
    assert (written["peak_tflops"], written["peak_tflops_cold"], written["peak_tflops_hot"]) == (1.0, 2.0, 1.0)


def test_kinds_are_screened_apart():
    """The best that users run without a graph is in the table too, however far behind it is."""
    captured = dict(name="a", graphs="whole", ratio=1.5)
    entry = dict(name="b", graphs="none", ratio=20.0)
    assert row.close(entry, [captured, dict(name="gradproof", ratio=1.0)])
    assert row.close(entry, [captured, dict(name="c", graphs="none", ratio=16.1), dict(name="d", error="no")])
    assert not row.close(entry, [captured, dict(name="c", graphs="none", ratio=15.9)])


def test_resume_measures_what_is_missing(machine, tmp_path):
    file = tmp_path / "step.json"
    bench(file, peers="dense-all,loop")
    done = contestants(file)
    machine.clear()
    assert bench(file, "--resume").exit_code == 0
    assert {name for name, _ in machine} == {"dense-all-compiled", "grouped_mm"}
    assert contestants(file)["dense-all"] == done["dense-all"]
    machine.clear()
    before = file.read_text()
    result = bench(file, "--resume")
    assert result.exit_code == 0 and "nothing is left to measure" in result.output
    assert machine == [] and file.read_text() == before, "nothing is left, nothing is touched"
    bench(file, "--resume", "--retry", peers="loop")
    assert set(contestants(file)) == {"gradproof", *PEERS.split(",")}
    bench(file, "--resume", rows=8)
    assert [written["rows"] for written in json.loads(file.read_text())["rows"]] == [4, 8]
    assert contestants(file)["dense-all"] == done["dense-all"]


def test_resume_measures_again_what_other_code_has_made(machine, monkeypatch, tmp_path):
    file = tmp_path / "step.json"
    bench(file, peers="dense-all,loop")
    machine.clear()
    monkeypatch.setattr(origin, "code", lambda: "two")
    monkeypatch.setattr(step, "code", lambda: "two")
    bench(file, "--resume", peers="dense-all")
    assert {name for name, _ in machine} == {"dense-all"}
    assert set(contestants(file)) == {"gradproof", "dense-all"}, "figures of two codes never share a row"
    assert {entry["code"] for entry in contestants(file).values()} == {"two"}


def test_rough_figures_are_measured_again_where_they_may_matter(machine, tmp_path):
    file = tmp_path / "step.json"
    bench(file, "--quick")
    assert all(entry["rough"] for entry in contestants(file).values())
    machine.clear()
    bench(file, "--resume", "--quick")
    assert machine == []
    bench(file, "--resume")
    assert {name for name, _ in machine} == {"dense-all-compiled", "dense-all", "grouped_mm"}
    assert {name: entry["rough"] for name, entry in contestants(file).items() if entry["rough"]} == {"loop": True}


def test_who_failed_is_tried_again_only_when_asked(machine, monkeypatch, tmp_path):
    file = tmp_path / "step.json"
    monkeypatch.setitem(MS, "loop", None)
    assert bench(file).exit_code == 0
    assert contestants(file)["loop"]["error"] == "RuntimeError: does not compile"
    monkeypatch.setitem(MS, "loop", 4.0)
    bench(file, "--resume")
    assert "error" in contestants(file)["loop"]
    bench(file, "--resume", "--retry")
    assert contestants(file)["loop"]["ms"] == 4.0


def test_the_file_is_whole_after_each_contestant(machine, monkeypatch, tmp_path):
    """Cut off by Ctrl-C: what was measured until then is there, and the one that was cut off is not held to have
    failed."""
    file, seen = tmp_path / "step.json", []
    against = step._against

    def watched(name, *args):
        seen.append(set(contestants(file)))
        if name == "grouped_mm":
            raise KeyboardInterrupt
        return against(name, *args)

    monkeypatch.setattr(step, "_against", watched)
    assert bench(file).exit_code == 130
    assert [len(names) for names in seen] == [2, 3, 4, 5]
    assert set(contestants(file)) == {"gradproof", "dense-all-compiled", "loop", "dense-all"}
    monkeypatch.setattr(step, "_against", against)
    machine.clear()
    bench(file, "--resume")
    assert {name for name, _ in machine} == {"grouped_mm"}


def test_a_peer_that_ends_the_process_gets_a_second_try_and_no_third(machine, tmp_path):
    file = tmp_path / "step.json"
    bench(file)
    for tries, again in ((1, True), (2, False)):
        record = json.loads(file.read_text())
        entries = record["rows"][0]["contestants"]
        lost = dict(name="dense-all", error=row.UNFINISHED, tries=tries, code="one")
        record["rows"][0]["contestants"] = [lost if e["name"] == "dense-all" else e for e in entries]
        file.write_text(json.dumps(record))
        machine.clear()
        bench(file, "--resume")
        assert ({name for name, _ in machine} == {"dense-all"}) == again
    known = {"a": dict(name="a", error=row.UNFINISHED, tries=1)}
    assert row.missing(known, ["a", "b"]) == ["b", "a"], "after the others"


def test_killed_while_a_peer_is_measured(tmp_path):
    """In a process of its own: the peer is named in the file before it is begun."""
    file, script = tmp_path / "step.json", tmp_path / "run.py"
    script.write_text(
        "import time\n"
        "from gradproof.bench import step\n"
        "from gradproof.cli import main\n"
        "step._against = lambda *args: time.sleep(60)\n"
        "step.product_peaks = lambda device: (1.0, 1.0)\n"
        "main()\n"
    )
    options = ("bench", "--suite", "step", "--size", "nano", "--rows", "4", "--json", file)
    process = subprocess.Popen([sys.executable, script, *options], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    started = time.monotonic()
    while not file.exists() and time.monotonic() - started < 60:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    ours, peer = contestants(file).values()
    assert "ms" not in ours and (peer["error"], peer["tries"]) == (row.UNFINISHED, 1)


def test_time_ends_a_run(machine, tmp_path):
    file = tmp_path / "step.json"
    result = bench(file, "--minutes", "0")
    assert result.exit_code == 0 and machine == [] and not file.exists()
    assert "4 contestants in 1 rows are left" in result.output


def test_a_lost_device_ends_a_run(machine, monkeypatch, tmp_path):
    def lost(device, name):
        raise step.DeviceLost(f"{name} has left the GPU unusable")

    monkeypatch.setattr(step, "check_alive", lost)
    file = tmp_path / "step.json"
    result = bench(file)
    assert result.exit_code == 1 and "dense-all-compiled has left the GPU" in result.stderr
    assert "ms" in contestants(file)["dense-all-compiled"]


def test_a_record_from_elsewhere_is_refused(machine, tmp_path):
    file = tmp_path / "step.json"
    bench(file)
    record = json.loads(file.read_text())
    record["environment"]["torch"] = "1.0"
    for text, sentence in (
        (json.dumps(record), "was measured with torch 1.0"),
        ('{"suite": "ops"}', "is not a record of the suite step"),
        ("[", "is not valid JSON"),
    ):
        file.write_text(text)
        result = bench(file, "--resume")
        assert result.exit_code == 2 and sentence in result.stderr and len(result.stderr.strip().splitlines()) == 1
        assert file.read_text() == text


def test_rows_in_the_order_of_the_table():
    listed = [*step.DEFAULTS["cuda"], StepCase("nano", 7)]
    rows = [dict(size=case.size, rows=case.rows) for case in reversed(listed)]
    assert [(r["size"], r["rows"]) for r in step.in_order(rows, "cuda")] == [tuple(case) for case in listed]


def test_the_commit(monkeypatch, tmp_path):
    """From the environment; from git, marked where the measured code differs; from nowhere."""
    monkeypatch.setenv("GRADPROOF_COMMIT", "abc")
    assert origin.commit() == "abc"
    monkeypatch.delenv("GRADPROOF_COMMIT")
    assert origin.commit(tmp_path) is None

    def git(*args):
        options = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        ran = subprocess.run(["git", "-C", tmp_path, *options, *args], capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    measured, other = tmp_path / "gradproof/ops/linear.py", tmp_path / "README.md"
    measured.parent.mkdir(parents=True)
    measured.write_text("1")
    other.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    assert origin.commit(tmp_path) == git("rev-parse", "HEAD")
    other.write_text("2")
    assert origin.commit(tmp_path) == git("rev-parse", "HEAD")
    measured.write_text("2")
    assert origin.commit(tmp_path) == git("rev-parse", "HEAD") + "-dirty"
    assert origin.commit(tmp_path / "gradproof") is None, "a commit of the project around us"


def test_measured_code_is_there():
    assert all((origin.PACKAGE / part).exists() for part in origin.MEASURED)


def test_what_a_gpu_tells(monkeypatch):
    class Query:
        def __init__(self, command, **options):
            self.command, self.polls = command, 0

        def poll(self):
            self.polls += 1
            return None if self.polls < 3 else 0

        def kill(self):
            assert self.polls == 3

        def communicate(self):
            return "1575, 690.5\n", ""

    runs = []
    monkeypatch.setattr(origin, "_query", lambda asked: ["nvidia-smi", *asked])
    monkeypatch.setattr(origin.subprocess, "Popen", Query)
    monkeypatch.setattr(origin.torch.cuda, "synchronize", lambda: None)
    assert origin.under_load("cuda", lambda: runs.append(1)) == {"clock_mhz": 1575.0, "power_w": 690.5}
    assert runs, "it worked while it was asked"
    monkeypatch.setattr(origin.torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    for output, limit in (("700.00, 1980, 580.1", 700.0), ("[N/A], 1980, 580.1", None), ("", None)):
        monkeypatch.setattr(origin, "_output", lambda command, output=output: output)
        told = origin.machine("cuda")
        assert told["processor"] == "NVIDIA H200" and told["power_limit_w"] == limit
        assert (told["clock_max_mhz"], told["driver"]) == ((1980.0, "580.1") if output else (None, None))
