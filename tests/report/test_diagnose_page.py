import math
import re

import pytest

from gradproof.report.page import render
from gradproof.report.plots import diagnosis

ROUTED, BUG = diagnosis.COLOURS["routing"], diagnosis.COLOURS["bug"]
UNITS = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp8_e4m3": 2.0**-4}


def tensor(name, verdict="noise", error=4e-3, noise=8e-3, z=0.5, ratio=1.002, cosine=0.99998, note=""):
    figures = {"norm_ratio": ratio, "cosine": cosine, "rel_error": error, "noise": noise, "z": z}
    return {"name": name, "verdict": verdict, **figures, "note": note}


def routing(decisions=0, flipped=(), margins=(), explained=None):
    return {
        **{"decisions": decisions, "flips": len(flipped), "margin_explained": explained},
        **{"error_from_flips": 0.061, "error_from_arithmetic": 0.032, "cross": -7.1e-05},
        **{"flipped": list(flipped), "margins": list(margins)},
    }


def flip(margin, noise, explained=True, op="topk"):
    figures = {"margin": margin, "noise": noise, "explained": explained}
    return {"decision": 0, "path": "router", "op": op, "row": 3, **figures}


def precision(name, verdict="noise", parameters=None, inputs=None, **changes):
    return {
        **{"format": name, "verdict": verdict, "summary": f"{name} in words", "unit": UNITS[name], "policy": "cast"},
        **{"scale": 1.0, "replicas": 16, "simulated_only": "", "rel_error": 4.3e-3, "noise": 7.7e-3},
        "parameters": [tensor("linear.weight"), tensor("linear.bias", "clean")] if parameters is None else parameters,
        "inputs": [tensor("x", z=1.5)] if inputs is None else inputs,
        **{"routing": routing(), "range": [], "first_divergence": None},
        **changes,
    }


def record(*precisions, verdict="noise", names=("linear.weight", "x")):
    """A record as `Diagnosis.to_dict` returns it."""
    first = precisions[0] if precisions else None
    points = [
        {"format": name, "unit": unit, "rel_error": 1.2 * unit, "parameters": dict.fromkeys(names, unit)}
        for name, unit in (("e8m4", 2.0**-5), ("bf16", 2.0**-8), ("e8m10", 2.0**-11), ("fp32", 2.0**-24))
    ]
    return {
        **{"verdict": verdict, "summary": f"mine is {verdict}, all in all.", "name": "mine"},
        **{key: first[key] if first else [] for key in ("parameters", "inputs")},
        **{key: first[key] if first else None for key in ("routing", "first_divergence")},
        "sweep": {"points": points if first else [], "slope": 1.0234 if first else None},
        "precisions": list(precisions),
        "verification": {"status": "proven", "summary": "the gradient is right in float64: 54 forward passes"},
        "notes": ["a note of its own"],
        "seed": 7,
        "environment": {"torch": "2.11.0", "device": "cpu"},
    }


def titles(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


def text_of(page):
    """The text of the page, without plots."""
    return re.sub(r"<[^>]+>", " ", re.sub(r"<(svg|style|script)\b.*?</\1>", " ", page, flags=re.DOTALL))


def test_page_shows_every_part_in_order():
    """Fails if a part is missing from the template, or if the verdict comes after the figures that it summarises."""
    place = {"path": "blocks.1", "phase": "backward", "op": "mul", "call": 2}
    report = record(
        precision("bf16"),
        precision(
            "fp16",
            "bug",
            [tensor("linear.weight", "bug", 0.25, 0.01, 11.6, 1.25, note="25 times"), tensor("linear.bias")],
            routing=routing(96, [flip(0.002, 0.01)], [{"margin": 0.002, "noise": 0.01}], explained=1.0),
            range=[{"path": "", "phase": "forward", "op": "exp", "overflow": 0, "underflow": 288}],
            first_divergence={"format": "fp16", "run": "real", "error": 0.25, "noise": 0.0043, **place},
            scale=2.0**15,
        ),
        precision("fp8_e4m3", "clean", simulated_only="not run on this cpu"),
        verdict="bug",
    )
    page = render("diagnose.html", report)
    parts = ["Formats", "Tensors", "Sweep over units", "Routing", "First divergence", "Range", "Parameters and inputs"]
    assert titles(page) == [*parts, "Details"]
    assert page.index("--c: var(--bug)") < page.index("mine is bug, all in all.") < page.index("<table")
    assert page.count("<svg") == 3 + 1 + 1 and page.count("<details") == 2 + 2
    text = " ".join(text_of(page).split())
    assert "2^15" in text and text.count("2^") == 1  # a loss scale of 1 is not shown
    assert "simulated only: not run on this cpu" in text and "fp16 in words" in text
    assert "The fitted slope is 1.02 ." in text
    assert "fp16: 1 of 96 decisions flipped" in text and "explain 100% of the flips" in text
    assert "6.1e-02 from flips, 3.2e-02 from arithmetic (cross term -7.1e-05)" in text
    assert "fp16 , real run: mul in blocks.1 , backward, call 3. The result is off by 2.5e-01" in text
    assert "a note of its own" in text and "seed 7" in text and "proven ; the gradient is right" in text
    tables = page[page.index("<h2>Parameters") :]
    assert tables.index("<code>fp16") < tables.index(">linear.weight<") < tables.index("<details")  # the worst is open
    assert tables.index("25 times") < tables.index("<details") and ">1.25<" in tables and ">25<" in tables


def test_words_have_colours():
    """Fails if a verdict falls back to plain text, or has different colours in plot and page."""
    page = render("diagnose.html", record(precision("bf16")))
    for word, colour in diagnosis.COLOURS.items():
        assert f"--{word}: {colour};" in page and re.search(rf"\.{word} {{ color: var\(--{word}\)", page)
    drawn = diagnosis.tensors(precision("bf16", parameters=[tensor(w, w) for w in diagnosis.COLOURS], inputs=[]))
    assert all(colour in drawn for colour in diagnosis.COLOURS.values())


def test_the_worst_come_first():
    """Fails on an order by z alone: flipped decisions, judged with decisions replayed, would come after plain noise."""
    parameters = [
        tensor("fine", "noise", z=2.0),
        tensor("flipped", "routing", z=0.9),
        tensor("exact", "clean", error=0.0, z=None),
        tensor("near", "clean", z=-3.0),
        tensor("wrong", "bug", noise=0.0, z=None),
        tensor("drifts", "bug", z=6.0),
    ]
    order = [j["name"] for j in diagnosis.judged(precision("bf16", "bug", parameters, []))]
    assert order == ["wrong", "drifts", "flipped", "fine", "near", "exact"]
    formats = [precision("bf16", "noise"), precision("fp16", "inconclusive"), precision("fp8_e4m3", "routing")]
    assert [p["format"] for p in diagnosis.worst_first(formats)] == ["fp8_e4m3", "fp16", "bf16"]


def test_nothing_needs_to_be_finite():
    """Fails if a null is formatted, compared or drawn."""
    nothing = tensor("gone", "overflow", None, None, None, None, None)
    figures = {"rel_error": None, "noise": None}
    lost = routing(9, [flip(None, None, False, "branch"), flip(None, 0.0)], [{"margin": 0.0, "noise": None}])
    lost |= dict.fromkeys(("error_from_flips", "error_from_arithmetic", "cross"))
    place = {"format": "fp16", "run": "simulated", "error": None, "noise": None, "path": "", "phase": "", "op": "pow"}
    divergence = place | {"overflow": 303, "underflow": 0}
    report = record(
        precision("fp16", "overflow", [nothing], [nothing], routing=lost, first_divergence=divergence, **figures),
        precision("bf16", "bug", first_divergence=place),
        verdict="overflow",
    )
    report["sweep"]["slope"] = -1e-4
    assert "The fitted slope is <b>0.00</b>" in render("diagnose.html", report)
    report["sweep"]["slope"] = None
    for point in report["sweep"]["points"]:
        point["parameters"]["x"] = None
    report["sweep"]["points"][1]["rel_error"] = None
    page = render("diagnose.html", report)
    text = " ".join(text_of(page).split())
    assert not re.search(r"None[^ ]|\bnan\b|\binf\b|Infinity", page)
    assert "303 values overflow there" in text and "pow in the top-level module, run. The result is not finite" in text
    assert "Flipped Python branches, which have no margin: 1." in text and "At the edges: 0 or infinite" in text
    assert "No slope could be fitted" in text and "drawn at the edge" in text
    assert "not finite or above the axis" in page
    for point in report["sweep"]["points"]:
        point["rel_error"] = None
    assert not diagnosis.sweep(report["sweep"]) and "Sweep" not in titles(render("diagnose.html", report))


@pytest.mark.parametrize("error", [1e13, None])
def test_an_error_of_a_gradient_that_cancels_does_not_squeeze_the_others(error):
    """Fails if one relative error of 1e13 squeezes all others into the left end of the log axis."""
    ordinary = [tensor(f"layer.{i}", error=2e-3 * (i + 1)) for i in range(4)]
    drawn = diagnosis.tensors(precision("bf16", parameters=[*ordinary, tensor("cancels", error=error, noise=1e13)]))
    assert "1e13" not in drawn and ">100<" in drawn and ">1e-3<" in drawn
    assert "not finite or above the axis" in drawn
    assert "beyond the axis" not in diagnosis.tensors(precision("bf16", parameters=ordinary))
    assert "0 or below the axis" in diagnosis.tensors(precision("bf16", parameters=[tensor("exact", error=0.0)]))


def test_a_correct_module_in_one_format_has_no_routing():
    """Fails if the page shows plots or text about decisions for a module that makes none."""
    page = render("diagnose.html", record(precision("bf16")))
    assert "Routing" not in titles(page) and page.count("<svg") == 2 and "<details" not in page
    assert "None: no format has a bug" in page and "No value left the range" in page
    assert "No dot" not in page and "drawn at the edge" not in page and "do not show by how much" not in page


def test_a_gradient_that_is_wrong_in_float64_already():
    """Fails if the page shows small errors per format next to the verdict bug without an explanation."""
    wrong = tensor("0.weight", "bug", 0.05, 0.0, None, 0.95, None, "0.95x the reference")
    report = record(precision("bf16", "bug", [wrong]), verdict="bug")
    report["verification"] = {"status": "refuted", "summary": "the gradient is wrong in float64 already: 0.weight"}
    page = render("diagnose.html", report)
    assert "do not show by how much" in page and "None in bf16" in page and "already wrong in float64." in page
    assert "No dot for the cosine" in page and page.count(">∞<") == 2  # error/noise and z


def test_page_refers_to_nothing_outside_and_escapes_names():
    """Fails if a name becomes markup or a formula, or if the page loads a link, font or picture."""
    evil = "<script>alert(1)</script>"
    names = [evil, 'a"b', "cost $5 to $6^", "漢字", "two\nlines", "x" * 300]
    place = {"path": evil, "phase": evil, "op": evil, "overflow": 1, "underflow": 0}
    divergence = {"format": evil, "run": evil, "error": 1.0, "noise": None, **place, "call": 0}
    decided = routing(2, [flip(1e-3, 1e-3, False) | {"path": evil, "op": evil}])
    changes = {"simulated_only": evil, "summary": evil, "range": [place], "first_divergence": divergence}
    parameters = [tensor(name, "bug", note=evil) for name in names]
    report = record(
        precision("bf16", "bug", parameters, routing=decided, policy=evil, **changes), verdict="bug", names=names
    )
    report |= {"name": evil, "summary": evil, "notes": [evil], "environment": {evil: evil}}
    report["verification"]["summary"] = report["sweep"]["points"][0]["format"] = evil
    page = render("diagnose.html", report)
    assert page.count("<script") == 1
    svgs = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert "&lt;script&gt;alert(1)" in svgs and "cost $5 to $6^" in svgs and "x" * 50 not in svgs
    assert "http" not in page and "url(" not in page and "@import" not in page  # also no shared clip paths
    assert not re.search(r'(?:src|href)\s*=\s*["\']?(?!["\']?#)', page)


def test_many_parameters_show_the_worst_and_say_so():
    """Fails on plots with a thousand rows, on a cut that the page does not mention, and on one that hides what is
    wrong.
    """
    names = [f"model.layers.{i}.mlp.experts.gate_up_projection.weight" for i in range(1200)]
    parameters = [tensor(name, z=math.sin(i)) for i, name in enumerate(names)]
    parameters[777] |= {"verdict": "underflow", "z": 0.1}
    lost = [{"path": n, "phase": "forward", "op": "exp", "overflow": 0, "underflow": 5} for n in names[:50]]
    lost[49] |= {"overflow": 3}
    report = record(precision("fp16", "underflow", parameters, range=lost), precision("bf16", parameters=parameters))
    report["sweep"]["points"][-1]["parameters"] = dict.fromkeys(names, 1e-7)
    page = render("diagnose.html", report)
    assert len(page) < 1_500_000
    assert page.count("The worst 40 of 1,201 tensors") == 2 and "Of 1,200 tensors, the 40 with the largest" in page
    svgs = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert "model.layers.777.mlp.expe…ection.weight" in svgs[0]
    assert all(float(height) < 800 for height in re.findall(r'viewBox="0 0 [\d.]+ ([\d.]+)"', page))
    assert page.count('<td class="name">model.layers') == 2 * 1200 + 30 and "20 more places are not shown" in page
    ranges = page[page.index("<h2>Range") :]
    assert ranges.index("layers.49.") < ranges.index("layers.0.")  # overflows first


def test_inconclusive_without_any_format():
    """Nothing was measured: the page says why instead of showing empty sections."""
    report = record(verdict="inconclusive")
    report["verification"] = {"status": "inconclusive", "summary": "not clear: x is not finite"}
    page = render("diagnose.html", report)
    assert report["parameters"] == [] and report["routing"] is None
    assert "var(--inconclusive)" in page and "No format was measured." in page
    assert titles(page) == ["Details"] and "<svg" not in page and "<table" not in page
    empty = record(precision("bf16", "inconclusive", [], []), verdict="inconclusive")
    assert "No tensor was judged." in render("diagnose.html", empty)


def test_flips_lie_left_of_the_line_where_noise_explains_them():
    """Fails if margin and noise are swapped, or if an unexplained flip has the colour of an explained one."""
    explained, not_explained = flip(1e-4, 1e-3), flip(1e-1, 1e-3, explained=False)
    sampled = [{"margin": 10.0**-i, "noise": 1e-3} for i in range(6)]
    drawn = diagnosis.margins(routing(6, [explained, not_explained], sampled, 0.5))
    at = [re.findall(rf'<use [^>]*x="([\d.]+)" y="([\d.]+)" style="fill: {c}', drawn) for c in (ROUTED, BUG)]
    ((near, height), *_), ((far, same), *_) = at  # the last one is in the legend
    assert [len(marks) for marks in at] == [2, 2] and float(near) < float(far) and height == same
    assert "margin = 2 · noise" in drawn and "flipped, not explained" in drawn
    assert not diagnosis.margins(routing(3, [flip(None, None, False, "branch")]))


def test_powers_of_two():
    assert [diagnosis.power(v) for v in (2.0**16, 2.0**-24, 1.0, 3.0, 0.0)] == [
        "2^16",
        "2^-24",
        "2^0",
        "3.0e+00",
        "0.0e+00",
    ]
