"""Looking on: lines where there is no terminal, and the table at the end."""

import io
import shlex

from rich.console import Console

from gradproof.train.terminal_watch import TerminalWatch, show_scores, watching

LINE = dict(step=20, loss=1.5, loss_ema=1.25, lr=3e-3, rows_per_s=12345.6)


def test_lines_without_a_terminal(capsys):
    """One a validation, on standard error: standard output is for records."""
    with watching() as watch:
        watch.reading(1, 0)
        watch.training(LINE, 100)
        watch.training({**LINE, "loss_ema": None, "validation_accuracy": 0.5, "validation_loss": 1.0}, 100)
        watch.say("damaged")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "step     20 of 100  loss 1.5000  lr 3.0e-03  12,346 rows/s  validation 50.00%\ndamaged\n"


def test_a_bar_on_a_terminal():
    """It keeps the last validation in sight, and moves."""

    class Bar:
        def add_task(self, what, **fields):
            return 7

        def update(self, task, **fields):
            self.shown = (task, fields)

    bar = Bar()
    watch = TerminalWatch(bar)
    watch.training({**LINE, "validation_accuracy": 0.5}, 100)
    watch.training({**LINE, "step": 30}, 100)
    task, fields = bar.shown
    assert (task, fields["completed"], fields["total"]) == (7, 30, 100)
    assert fields["figures"] == "loss 1.2500  12,346 rows/s  validation 50.00%"


def test_the_last_lines_are_honest(tmp_path):
    """On how many rows, the class that fares worst, and what is wrong with the score."""
    out = io.StringIO()
    run = dict(model="moe", size="nano", inputs=9, parameters=1234, steps=1000, seconds=1.25, best_step=500)
    own = dict(accuracy=0.9, balanced_accuracy=0.5, auc=0.75, log_loss=1.0, brier=0.5, seconds=1.25, rows=9000)
    scores = [dict(name="moe nano", **own, note="best")]
    test = dict(rows=1234, worst_class=dict(name="[b]fraud", recall=0.25, support=8))
    record = dict(scores=scores, test=test, warnings=["too sure"], notes=[], status="finished", run=run)
    show_scores(record, tmp_path, Console(file=out, width=100, highlight=False))
    lines = out.getvalue().splitlines()
    assert " ".join(lines[0].split()) == "held-out score accuracy balanced AUC log loss seconds train rows"
    assert lines[1].split() == ["moe", "nano", "90.00%", "50.00%", "0.7500", "1.0000", "1.2", "9,000"]
    assert lines[2] == "scored on 1,234 rows; worst class '[b]fraud': recall 25.00% on its 8 rows"
    assert lines[3] == "warning: too sure"


def test_the_table_shows_names_as_they_are(tmp_path):
    """A class or column name in brackets is no markup, and a score that is not known is blank."""
    out = io.StringIO()
    run = dict(model="moe", size="nano", inputs=9, parameters=1234, steps=1000, seconds=1.25, best_step=500)
    scores = [
        dict(name="moe nano", accuracy=0.5, log_loss=1.0, note="best"),
        dict(name="logistic regression", accuracy=None, log_loss=None, note="needs scikit-learn"),
    ]
    record = dict(scores=scores, notes=["column '[red]x' is left out"], status="finished", run=run)
    show_scores(record, tmp_path, Console(file=out, width=100, highlight=False))
    text = out.getvalue()
    assert "50.00%" in text and "needs scikit-learn" in text and "[red]x" in text and "None" not in text
    assert "finished after 1,000 steps in 1.2 s, best at step 500" in text and "1,234 parameters" in text


def test_the_table_fits_a_terminal(tmp_path):
    """80 columns, with the widest figures there are; what has no figure is said below, whole and only once."""
    out = io.StringIO()
    run = dict(model="moe", size="nano", inputs=9, parameters=1234, steps=1000, seconds=1.25, best_step=500)
    own = dict(accuracy=1.0, balanced_accuracy=1.0, auc=0.75, log_loss=12.0, seconds=10000.0, rows=1234567)
    none = dict.fromkeys(own)
    scores = [
        dict(name="logistic regression", **own, note="fitted to 1,234,567 rows"),
        dict(name="boosted trees", **none, note="needs [scikit-learn]: pip install it, and train once more after that"),
        dict(name="Bayes-optimal", **{**none, "accuracy": 0.9}, note="the best possible accuracy"),
    ]
    test = dict(rows=12, worst_class=dict(name="a", recall=0.25, support=8))
    record = dict(scores=scores, test=test, notes=[], status="finished", run=run)
    show_scores(record, tmp_path, Console(file=out, width=80, highlight=False))
    lines = out.getvalue().splitlines()
    assert len(lines[0].rstrip()) <= 80 and lines[0].rstrip().endswith("train rows")
    assert lines[1].split()[2:] == ["100.00%", "100.00%", "0.7500", "12.0000", "10000.0", "1,234,567"]
    assert lines[2].split() == ["Bayes-optimal", "90.00%"]
    assert lines[3] == "boosted trees: " + scores[1]["note"]
    assert lines[4] == "Bayes-optimal: the best possible accuracy"
    assert lines[5].startswith("scored on 12 rows")


def test_a_record_from_before_auc(tmp_path):
    """`train --resume` shows the report of a finished run, whatever version wrote it."""
    out = io.StringIO()
    run = dict(model="moe", size="nano", inputs=9, parameters=1234, steps=1000, seconds=1.25, best_step=500)
    scores = [dict(name="moe nano", accuracy=0.5, balanced_accuracy=0.4, log_loss=1.0, note="best checkpoint")]
    record = dict(scores=scores, test=dict(rows=12), notes=[], status="finished", run=run)
    show_scores(record, tmp_path, Console(file=out, width=80, highlight=False))
    lines = out.getvalue().splitlines()
    assert lines[1].split() == ["moe", "nano", "50.00%", "40.00%", "1.0000"]
    assert lines[2:4] == ["moe nano: best checkpoint", "scored on 12 rows"]


def test_the_thresholds_and_how_to_use_them(tmp_path):
    """In 80 columns; the command can be pasted, whatever the class is named."""
    out = io.StringIO()
    run = dict(model="moe", size="nano", inputs=9, parameters=1234, steps=1000, seconds=1.25, best_step=500)
    rows = [
        dict(ratio=1, threshold=0.5, decided=0, recall=0.0, precision=None),
        dict(ratio=10, threshold=1 / 11, decided=9, recall=1.0, precision=0.25),
    ]
    name = "[b]isn't " + "very " * 10
    record = dict(scores=[], test=dict(rows=12, costs={"class": name, "rows": rows}), notes=[], status="x", run=run)
    show_scores(record, tmp_path / "a run", Console(file=out, width=80, highlight=False))
    lines = out.getvalue().splitlines()[2:]
    assert lines[0].rstrip() == f'cost ratio  threshold for "{name[:29]}…"  recall   precision'
    assert lines[1].split() == ["1:1", "0.500", "0.00%"] and lines[2].split() == ["10:1", "0.091", "100.00%", "25.00%"]
    assert "a missed row" in lines[3] and len(lines[3]) <= 80
    command = ["gradproof", "predict", str(tmp_path / "a run"), "--data", "FILE", "--costs", f"{name}=5"]
    assert lines[4] == "predict with these costs:" and shlex.split(lines[5]) == command
