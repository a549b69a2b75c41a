"""docs/architecture.md says what is there: its generated parts, and the walk of one batch. One meaning per name."""

import ast
import importlib.util
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import gradproof

ROOT = Path(gradproof.__file__).parent
PAGE = ROOT.parent / "docs" / "architecture.md"
TOOLS = {"params.py", "streams.py", "files.py", "contract.py", "ops/__init__.py"}  # entered by everybody


def test_the_generated_parts_are_up_to_date():
    spec = importlib.util.spec_from_file_location("architecture", PAGE.with_suffix(".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.generated(PAGE.read_text()) == PAGE.read_text(), "python docs/architecture.py"


class Silent:
    """Looks on and says nothing."""

    unit = "rows"

    def say(self, sentence): ...
    def reading(self, done, total): ...
    def training(self, record, steps): ...


def entered(work):
    """The files that a call enters, each from another file, in order; one again only after another package."""
    order = []

    def package(file):
        return file.split("/")[0]

    def profile(frame, event, arg):
        if event != "call" or not frame.f_code.co_filename.startswith(str(ROOT)):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(str(ROOT)):
            caller = caller.f_back
        file = str(Path(frame.f_code.co_filename).relative_to(ROOT))
        if file in TOOLS or (
            caller is not None
            and caller.f_code is not frame.f_code
            and caller.f_code.co_filename == frame.f_code.co_filename
        ):
            return
        stretch = []
        for earlier in reversed(order):
            if package(earlier) != package(file):
                break
            stretch.append(earlier)
        if file not in stretch:
            order.append(file)

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return order


def walk(name):
    """(file, whether it is marked as entered again) for each line of a walk of the page."""
    block = re.search(rf"<!-- walk: {name} -->\n(.*?)<!-- /walk -->", PAGE.read_text(), re.S)
    lines = re.findall(r"^\d+\. `([\w/.]+)`(.*)$", block.group(1), re.M)
    return [(file, "again:" in text) for file, text in lines]


def marked(order):
    return [(file, file in order[:i]) for i, file in enumerate(order)]


@pytest.fixture
def trainer(tmp_path):
    """A run on a small CSV, as a function that opens it."""
    pytest.importorskip("polars")
    from gradproof.train.loop import Trainer
    from gradproof.train.run import start

    rows = [f"{'yes' if i % 3 else 'no'},{i % 3 + 0.1 * (i % 7)},{'abc'[i % 3]}" for i in range(120)]
    (tmp_path / "table.csv").write_text("\n".join(["outcome,number,name", *rows]) + "\n")
    options = {"data": str(tmp_path / "table.csv"), "target": "outcome", "steps": 20}
    run = start(tmp_path / "run", options, False)
    return lambda: Trainer(run, Silent())


def test_the_walk_of_a_table(trainer, tmp_path):
    from gradproof.data.source import open_source
    from gradproof.train.run import Run

    trainer()  # whatever must be imported, is
    options = Run(tmp_path / "run").config.source
    assert marked(entered(lambda: open_source(options, tmp_path))) == walk("opening")


@pytest.mark.parametrize("plan", ["fused", "parts"])
def test_the_walk_of_a_step(trainer, plan, monkeypatch):
    """The second step: the first also admits kernels."""
    if plan == "parts":
        monkeypatch.setenv("GRADPROOF_KERNELS", "reference")
    opened = trainer()
    opened.step(*opened.batch(0))
    if plan == "fused" and opened.step.kernels.lesson is None:
        pytest.skip("no kernel for a whole step is admitted on this machine")
    assert marked(entered(lambda: opened.step(*opened.batch(1)))) == walk(plan)


def trees():
    return {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


# What every op keeps and returns has the same name in each; a module of `nn` is named as the model that it wraps.
SHARED = {"Saved", "Grads", "MoE", "Dense"}


def test_a_class_or_type_has_one_meaning():
    homes = defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path))
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if re.fullmatch(r"[A-Z][a-z]\w*", name) and not _is_type_variable(node.value):
                    homes[name].append(str(path))
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1 and not name.startswith("_")}
    assert set(twice) <= SHARED, {name: paths for name, paths in twice.items() if name not in SHARED}


def _is_type_variable(value):
    return isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("TypeVar", "ParamSpec")


def test_local_names_say_what_they_hold():
    lines = defaultdict(set)
    for path, tree in trees().items():
        for node in ast.walk(tree):
            name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else None
            if name in ("found", "each"):
                lines[name].add((str(path), node.lineno))
    assert all(len(places) < 50 for places in lines.values()), lines
