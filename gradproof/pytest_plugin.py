"""The pytest plugin: a fixture `prove` that fails a test unless its module is proven, and one JSON file with the
reports of a session.

Loading the plugin imports neither torch nor the rest of Gradproof; using the fixture does.
"""

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

NAMES = ("gradproof", __name__)  # the entry point, and `-p gradproof.pytest_plugin`
OPTION = "--gradproof-json"
REPORTS = pytest.StashKey[list[dict[str, Any]]]()  # of one test, until a phase report collects them


@pytest.fixture
def prove(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """prove(module, inputs, **options): runs `gradproof.verify` and fails the test unless the module is proven.

    The options are those of `gradproof.verify` (quick, seed, device, name). With `allow_inconclusive=True` only a
    refuted gradient fails the test. Returns the Report.
    """

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
    """The summary, one line per tensor that is not proven, and the notes."""
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


# Reports of a session. They travel on pytest's test reports, which xdist sends from its workers.


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    # The module can be registered under two names: block the second one instead of failing.
    for name in NAMES:
        if not pluginmanager.has_plugin(name):
            pluginmanager.set_blocked(name)
    group = parser.getgroup("gradproof")
    group.addoption(
        OPTION, metavar="FILE", help="Write the reports of all `prove` calls of this session to FILE as JSON."
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(OPTION)
    if path is None or hasattr(config, "workerinput"):  # an xdist worker only passes its reports on
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise pytest.UsageError(f"{OPTION} {path}: the folder {folder} does not exist")
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
    """Collects the reports of all tests in the order in which they finish, and writes them when the session ends."""

    def __init__(self, path: Path):
        self.path = path
        self.tests: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.tests += getattr(report, "gradproof", [])

    def pytest_sessionfinish(self) -> None:
        text = json.dumps({"tests": self.tests}, indent=1, ensure_ascii=False, allow_nan=False)
        self.path.write_text(text + "\n", encoding="utf-8")
