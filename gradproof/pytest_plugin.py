"""The pytest plugin: a fixture `prove` that fails a test unless its module is proven, and the reports of a session in
one JSON file. Loading it imports neither torch nor anything else of Gradproof; using the fixture does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradproof.proof.differences import Judgement
    from gradproof.proof.verdict import Report

NAMES = ("gradproof", __name__)  # the entry point's, and that of `-p gradproof.pytest_plugin`
OPTION = "--gradproof-json"
REPORTS = pytest.StashKey[list[dict[str, Any]]]()  # of one test, until one of its phases hands them on


@pytest.fixture
def prove(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """prove(module, inputs, **options): `gradproof.verify`, and the test fails unless the module is proven.

    The options are those of `gradproof.verify` (quick, seed, device, name). With `allow_inconclusive=True` only a
    refuted gradient fails the test. Returns the Report."""

    def prove(module: Any, inputs: Any, *, allow_inconclusive: bool = False, **options: Any) -> Report:
        __tracebackhide__ = True
        import gradproof
        from gradproof.proof.module import CannotRun

        try:
            report = gradproof.verify(module, inputs, **options)
        except CannotRun as error:
            name = options.get("name") or type(module).__name__
            raise AssertionError(f"{name} could not be judged: {error}") from error.__cause__
        reports = request.node.stash.setdefault(REPORTS, [])
        reports.append({"test": request.node.nodeid, **report.to_dict()})
        if not report and not (allow_inconclusive and report.status == "inconclusive"):
            raise AssertionError(failure(report))
        return report

    return prove


def failure(report: Report) -> str:
    """The summary, a line for each tensor that is not proven, and the notes of the judgement."""
    lines = [report.summary]
    for subject in report.subjects:
        judged = [("parameter", j) for j in subject.parameters] + [("input", j) for j in subject.inputs]
        lines += [f"  {kind} {_line(j)}" for kind, j in judged if j.status in ("refuted", "inconclusive")]
        lines += [f"  {note}" for note in subject.notes]
    return "\n".join(lines)


def _line(judgement: Judgement) -> str:
    figures = {"error": judgement.error, "bound": judgement.bound, "resolution": judgement.resolution}
    known = [f"{name} {value:.1e}" for name, value in figures.items() if value is not None and math.isfinite(value)]
    line = f"{judgement.name} is {judgement.status}"
    line += f": {', '.join(known)}" if known else ""
    return line + (f" ({judgement.note})" if judgement.note else "")


# The reports of a session. They travel on pytest's own test reports, which xdist carries from its workers.


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    # One module, two names: whichever comes second is skipped instead of being an error.
    for name in NAMES:
        if not pluginmanager.has_plugin(name):
            pluginmanager.set_blocked(name)
    group = parser.getgroup("gradproof")
    group.addoption(OPTION, metavar="FILE", help="Write the report of every `prove` of this session to FILE as JSON.")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(OPTION)
    if path is None or hasattr(config, "workerinput"):  # a worker of xdist hands its reports on
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise pytest.UsageError(f"{OPTION} {path}: there is no folder {folder}")
    config.pluginmanager.register(SessionReports(Path(path).absolute()), "gradproof-session-reports")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    reports = item.stash.get(REPORTS, [])
    if reports and item.config.getoption(OPTION) is not None:
        report.gradproof = reports[:]
    reports.clear()
    return report


class SessionReports:
    """Collects the reports of all tests, in the order in which they ended, and writes them with the session's end."""

    def __init__(self, path: Path):
        self.path = path
        self.tests: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.tests += getattr(report, "gradproof", [])

    def pytest_sessionfinish(self) -> None:
        text = json.dumps({"tests": self.tests}, indent=1, ensure_ascii=False, allow_nan=False)
        self.path.write_text(text + "\n", encoding="utf-8")
