import math
import random
import re

import pytest

from gradproof.report.page import render
from gradproof.report.plots import curves, decisions

OUTCOMES = ["allow", "deny", "escalate", "defer", "retry", "refund", "ship", "hold", "audit", "split", "merge", "other"]


def record(lines=200, classes=OUTCOMES, experts=4, metrics=2, seed=0):
    """A simulated record as `gradproof train` renders it: a run that learns, and its final decisions."""
    rng = random.Random(seed)
    final = 0.62 if len(classes) > 2 else 0.4
    model = "moe" if experts > 1 else "dense"
    return {
        "status": "finished",
        "summary": f"{model} nano decides 82.1% of 4,000 held-out rows correctly; Bayes-optimal is 85.0%.",
        "run": {
            **{"model": model, "size": "nano", "parameters": 195540, "data": "synthetic:regimes=4,rows=40000,seed=0"},
            **{"train_rows": 32000, "validation_rows": 4000, "test_rows": 4000, "steps": 10 * lines},
            **{"best_step": 9 * lines if lines else None, "seconds": 31.2, "device": "cpu", "precision": "fp32"},
            **{"inputs": 96, "experts": experts},
        },
        "scores": [
            {"name": f"{model} nano (best checkpoint)", "accuracy": 0.821, "log_loss": 0.6123, "note": ""},
            {"name": "Bayes-optimal", "accuracy": 0.85, "log_loss": None, "note": "the best any model can do"},
            {"name": "logistic regression", "accuracy": 0.612, "log_loss": 1.204, "note": "on the same inputs"},
            {"name": "majority class", "accuracy": 0.18, "log_loss": 2.41, "note": ""},
        ],
        "history": history(rng, lines, math.log(len(classes)), final, experts),
        "test": decided(rng, classes, metrics),
        "config": {"model": model, "size": "nano", "steps": 10 * lines, "lr": 3e-4, "weight_decay": 0.01, "clip": None},
        "schema": {"columns": 30, "left_out": {"id": "nearly every value is distinct", "note": "one value only"}},
        "notes": ["The last batch of each epoch is smaller than the others."],
        "evidence": {"claims": 12, "status": "proven"},
        "environment": {"python": "3.12.3", "torch": "2.11.0", "threads": 2},
    }


def history(rng, lines, first, final, experts):
    """A loss that falls from `first` to `final` with noise, and a router that becomes confident."""
    logged, ema = [], first
    lean = [rng.gauss(0, 1.5) for _ in range(experts)]
    for i in range(lines):
        done = (i + 1) / lines
        loss = final + (first - final) * math.exp(-7 * done) + 0.3 * done**6 + rng.gauss(0, 0.07)
        ema = 0.9 * ema + 0.1 * loss
        weights = [math.exp(lean[e] * math.exp(-3 * done) + rng.gauss(0, 0.1)) for e in range(experts)]
        line = {"step": 10 * (i + 1), "rows": 1280 * (i + 1), "loss": loss, "loss_ema": ema}
        line["lr"] = 3e-4 * min(1, done / 0.05) * (0.5 + 0.5 * math.cos(math.pi * done))
        line["grad_norm"] = math.exp(0.7 - 2 * done + rng.gauss(0, 0.3))
        line["router_entropy"] = math.log(experts) * (0.35 + 0.6 * math.exp(-5 * done)) + rng.gauss(0, 0.01)
        line["per_expert_share"] = [w / sum(weights) for w in weights]
        line |= {"rows_per_s": 40000 + rng.gauss(0, 500), "memory": 310e6, "skipped": 0}
        if (i + 1) % 10 == 0:
            line["validation_loss"] = final + (first - final) * math.exp(-7 * done) + 0.05 + 0.2 * done**6
            line["validation_accuracy"] = 0.83 - 0.7 * math.exp(-6 * done) + rng.gauss(0, 0.005)
        logged.append(line)
    return logged


def decided(rng, classes, metrics, rows=4000):
    """Decisions that are right four times out of five; the errors mostly go to the next class."""
    n = len(classes)
    confusion = [[0] * n for _ in range(n)]
    for _ in range(rows):
        true = min(int(rng.expovariate(3 / n)), n - 1)
        near = (true + rng.choice((1, 1, 1, 2, 5))) % n
        confusion[true][true if rng.random() < 0.82 else near] += 1
    columns = [sum(row[i] for row in confusion) for i in range(n)]
    by_class = []
    for i, name in enumerate(classes):
        right, support = confusion[i][i], sum(confusion[i])
        precision, recall = right / columns[i] if columns[i] else None, right / support if support else None
        f1 = 2 * right / (columns[i] + support) if columns[i] + support else None
        by_class.append({"name": name, "precision": precision, "recall": recall, "f1": f1, "support": support})
    bins = []
    for i in range(10):
        count = 0 if i < 1 else 8 * 2**i
        middle = (i + 0.5) / 10
        right = min(1, max(0, middle - 0.05 + rng.gauss(0, 0.4) / math.sqrt(count + 1)))
        seen = {"confidence": middle, "accuracy": right} if count else {"confidence": None, "accuracy": None}
        bins.append({"low": i / 10, "high": (i + 1) / 10, "count": count, **seen})
    figures = [{"name": f"metric_{i}", "mae": 0.05 + i / 100, "rmse": 0.08, "r2": None} for i in range(metrics)]
    right = {"rows": rows, "accuracy": 0.821, "log_loss": 0.6123, "ece": 0.031, "macro_f1": 0.804}
    return {**right, "classes": by_class, "confusion": confusion, "calibration": bins, "metrics": figures}


def emptied(value):
    """The same structure with every number removed, as if nothing was finite."""
    if isinstance(value, dict):
        return {k: v if k in ("step", "support", "count", "confusion") else emptied(v) for k, v in value.items()}
    if isinstance(value, list):
        return [emptied(v) for v in value]
    return value if isinstance(value, str) else None


def test_page_shows_every_part_in_order():
    """Fails if a section is missing from the template, a figure is drawn twice, or a plot has no labels."""
    page = render("train.html", record())
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "Scores on the test rows",
        "Training",
        "Decisions on the test rows",
        "Classes",
        "Metrics",
        "Details",
    ]
    captions = re.findall(r"<figcaption><b>(.*?)</b>", page)
    assert captions[:4] == ["Loss", "Validation accuracy", "Learning rate", "Gradient norm"]
    assert captions[4:] == ["Rows by expert", "Router entropy", "Confusion", "Calibration"]
    assert page.count("<svg") == 8
    assert page.index('class="verdict"') < page.index("82.1% of 4,000") < page.index("<table") < page.index("<svg")
    for text in ("85.0%", "0.6123", "best: step 1,800", "ln 4 = 1.39", "share of routed rows, %", "nearly every value"):
        assert text in page
    assert re.search(r">allow</td>.*>904<", page)
    assert "Only the" not in page and "all others" not in page  # twelve classes fit


def test_page_refers_to_nothing_outside_and_escapes_names():
    """Fails if a name becomes markup or a formula, or if the page loads a link, font or picture."""
    names = [
        "<script>alert(1)</script>",
        'a"b',
        "cost $5 to $6^",
        "漢字",
        "two\nlines",
        *("x" * 90 + str(i) for i in (0, 1)),
    ]
    report = record(lines=20, classes=names)
    report["scores"][2]["name"] = report["run"]["data"] = "<b>$\\frac$</b>"
    page = render("train.html", report)
    assert page.count("<script") == 1 and "<b>$" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page  # complete, in the table
    svgs = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert "&lt;script" in svgs and "cost $5 to $6^" in svgs and "&lt;b&gt;$\\frac$" in svgs
    assert "http" not in page and "url(" not in page.replace("url(#", "") and "@import" not in page
    assert not re.search(r'(?:src|href)\s*=\s*["\']?(?!["\']?#)', page)


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_nothing_needs_to_be_finite(lines):
    """Fails if a null is formatted, compared or drawn, also with a history too short for a line."""
    report = record(lines)
    empty = emptied(report) | {"config": {"a": None}, "environment": {}, "evidence": None, "schema": report["schema"]}
    page = render("train.html", empty)
    assert not re.search(r"None|\bnan\b|>Loss<", page)
    assert "not verified" in page and "<svg" in page  # the confusion matrix needs counts only
    assert ("No step was logged" in page) == (lines == 0)


def test_gaps_in_the_history_are_left_out():
    """A line with a null affects only that line."""
    whole, gaps = record(40), record(40)
    for i, key in enumerate(("loss", "loss_ema", "validation_loss", "lr", "grad_norm", "router_entropy", "step")):
        gaps["history"][i + 9][key] = None
    gaps["history"][20]["per_expert_share"] = [0.5, None, 0.2, 0.3]
    gaps["history"][21]["per_expert_share"] = None
    for draw in (curves.loss, curves.learning_rate, curves.gradient_norm, curves.shares, curves.entropy):
        assert 0 < len(draw(gaps)) < len(draw(whole))
    assert [s for s, _ in curves.series(gaps["history"], "loss")][:11] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 110, 120]


def test_a_run_that_failed_early():
    """Without scores and test rows the page still says what happened."""
    report = record(1) | {"status": "failed", "summary": "The loss is not finite.", "scores": [], "test": None}
    report["history"][0] |= {"loss": None, "skipped": 3}
    page = render("train.html", report)
    assert "var(--refuted)" in page and "The loss is not finite." in page
    assert "skipped because a gradient was not finite: 3." in page and "without a finite loss: 1." in page
    assert "The test rows were not evaluated" in page


def test_dense_has_no_expert_plots():
    """A single expert with all rows gives plots without information."""
    report = record(20, classes=["no", "yes"], experts=1, metrics=0)
    page = render("train.html", report)
    assert not curves.shares(report) and not curves.entropy(report) and ">Loss<" in page
    assert "expert" not in page and "ntropy" not in page and "<h2>Metrics" not in page


def test_many_classes_show_the_most_confused_and_say_so():
    """Fails if the page holds a matrix of a thousand classes, does not mention the cut, or picks the wrong classes."""
    names = [f"species {i:04d} of many more kinds" for i in range(1000)]
    report = record(1500, classes=names, experts=64)
    report["test"]["confusion"][700][701] += 500
    page = render("train.html", report)
    assert len(page) < 1_500_000
    assert "Only the 20 classes with the most errors, of 1,000" in page and "all others" in page
    assert page.count(">…0700…<") == page.count(">…0701…<") == 2 and ">500<" in page
    assert page.count('<td class="name">species') == 1000 + 2 * 10
    first = decisions.pairs(report["test"])[0]
    assert (first["true"], first["predicted"], first["rows"]) == (names[700], names[701], 500)


def test_confusion_rows_add_up_and_colour_follows_the_share_of_the_row():
    """Fails if columns and rows are swapped, colours follow counts, or rows between the shown classes are lost."""
    classes = [{"name": n} for n in "abc"]
    test = {"classes": classes, "confusion": [[90, 10, 0], [4, 76, 0], [0, 0, 1000]]}
    svg = decisions.confusion(test)
    alphas = [float(a) for a in re.findall(r"fill-opacity: ([\d.]+)", svg)]
    shares = [0.9, 0.1, 0.05, 0.95, 1.0]
    assert alphas == pytest.approx([0.06 + 0.69 * s for s in shares], abs=0.011)
    assert [decisions.BLUE in c for c in re.findall(r"fill: #\w+", svg)][:5] == [True, False, False, True, True]
    cut = decisions.confusion(test, most=1)  # a and b have equally many errors: the first wins
    assert "all others" in cut and ">90<" in cut and ">10<" in cut


def test_thinning_keeps_ends_and_spikes():
    """Fails if a plot starts late, ends early, or smooths away a spike."""
    points = [(float(i), math.sin(i / 500)) for i in range(5000)]
    points[1234] = (1234.0, 99.0)
    points[3210] = (3210.0, -99.0)
    few = curves.thin(points, 100)
    assert len(few) <= 100 and few == sorted(few) and set(few) <= set(points)
    assert {points[0], points[-1], points[1234], points[3210]} <= set(few)
    assert curves.thin(points[:100], 100) == points[:100]
    assert all(curves.thin(points[:n], 100)[:: n - 1 or 1] for n in (1, 2, 101))
    assert curves.spread(list(range(1000)), 7)[::6] == [0, 999] and len(curves.spread(list(range(8)), 7)) == 7


def test_warnings_and_the_worst_class_are_on_the_page():
    report = record(20) | {"warnings": ["the score is of <7> rows"]}
    report["test"] |= {"balanced_accuracy": 0.4321, "worst_class": report["test"]["classes"][3]}
    report["scores"][0]["balanced_accuracy"] = 0.7531  # the others have none: an older run
    page = render("train.html", report)
    assert "Warning: the score is of &lt;7&gt; rows." in page and "balanced accuracy 43.2%" in page
    assert '<td class="n">75.3%</td>' in page
    assert f'worst class <span class="name">{OUTCOMES[3]}</span>' in page


def test_auc_brier_and_seconds_are_on_the_page():
    """Every row shows the values it has; an unknown value is a dash, not None or 0."""
    report = record(20)
    report["test"] |= {"auc": 0.98765, "brier": 0.2345}
    report["scores"][0] |= {"auc": 0.98765, "brier": 0.2345, "seconds": 1234.56}
    report["scores"][1] |= {"auc": None, "brier": None, "seconds": None}  # the others have none: an older run
    page = render("train.html", report)
    table = page[page.index("Scores on the test rows") : page.index("<h2>Training")]
    assert re.findall(r"<th(?: [^>]*)?>(.*?)</th>", table) == [
        *("model", "accuracy", "balanced", "AUC", "log loss", "Brier", "seconds")
    ]
    rows = [re.findall(r'<td class="n">([^<]*)</td>', row) for row in table.split("<tr")[2:]]
    assert rows[0] == ["–", "0.9877", "0.6123", "0.2345", "1,234.6"] and rows[1] == ["–"] * 5
    assert rows[2] == ["–", "–", "1.2040", "–", "–"]
    assert "AUC 0.9877, log loss 0.6123 nats, Brier score 0.2345," in page


def test_the_cost_of_mistakes_is_on_the_page():
    """Only for two classes; more classes, and older runs, have no such table."""
    report = record(20, classes=["no", "<yes>"])
    assert "Cost of mistakes" not in render("train.html", report)
    report["test"]["costs"] = None
    assert "Cost of mistakes" not in render("train.html", report)
    first = {"ratio": 1, "threshold": 0.5, "decided": 0, "recall": 0.0, "precision": None}
    last = {"ratio": 10, "threshold": 1 / 11, "decided": 1234, "recall": 0.875, "precision": 0.25}
    report["test"]["costs"] = {"class": "<yes>", "rows": [first, last]}
    page = render("train.html", report)
    table = page[page.index("Cost of mistakes") :]
    rows = [re.findall(r'<td class="n">([^<]*)</td>', row) for row in table.split("<tr")[2:4]]
    assert rows == [["1:1", "0.500", "0.0%", "–", "0"], ["10:1", "0.091", "87.5%", "25.0%", "1,234"]]
    assert "<yes>" not in page and "--costs '&lt;yes&gt;=5'" in page


def test_how_columns_are_read_is_on_the_page():
    """Names come from a file and are escaped. An older run shows its reasons instead."""
    column = {"name": "<b>price", "kind": "number", "format": "$1,234.5", "fits": 0.995, "distinct": 1234}
    report = record(20) | {"columns": [column | {"missing": 0.25, "note": "',' is assumed"}]}
    page = render("train.html", report)
    assert all(text in page for text in ("&lt;b&gt;price", "$1,234.5", "99.5%", "1,234", "25.0%", "is assumed"))
    assert "nearly every value is distinct" not in page and "nearly every value is distinct" in render(
        "train.html", record(20)
    )
