"""The generated parts of docs/architecture.md: the layers from pyproject.toml, the files from their docstrings.

python docs/architecture.py writes them; with --check it exits with 1 where the page is out of date (`make lint`).
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"


def layers() -> list[str]:
    """The lines of the contract, highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return next(contract["layers"] for contract in contracts if contract["name"] == "Layers")


def picture() -> str:
    """The layers as a stack of boxes, highest first."""
    rows = []
    for layer in layers():
        names = re.split(r" [|:] ", layer)
        about = _sentence(ROOT / "gradproof" / names[0] / "__init__.py") if len(names) == 1 else ""
        rows.append((" │ ".join(names) if "|" in layer else "  ".join(names), about))
    width = max(len(names) for names, _ in rows if "  " not in names) + 2
    lines = [f"│ {names:<{width}} {about}".rstrip() for names, about in rows]
    return "\n".join(["```text", *lines, "```"])


def files() -> str:
    """Every file with the first sentence of its docstring, package by package, lowest first."""
    order = [name for layer in reversed(layers()) for name in re.split(r" [|:] ", layer)]
    packages = [name for name in order if (ROOT / "gradproof" / name).is_dir()]
    alone = sorted(path for path in (ROOT / "gradproof").glob("*.py"))
    parts = [_table("gradproof/", "", alone)]
    for package in packages:
        folder = ROOT / "gradproof" / package
        own = sorted(path for path in folder.rglob("*.py") if path.name != "__init__.py")
        parts.append(_table(f"gradproof/{package}/", _sentence(folder / "__init__.py"), own))
    return "\n\n".join(parts)


def _table(title: str, about: str, paths: list[Path]) -> str:
    base = ROOT / title
    rows = [f"| `{path.relative_to(base)}` | {_sentence(path)} |" for path in paths]
    return "\n".join([f"### {title}", "", *([about, ""] if about else []), "| file | |", "|---|---|", *rows])


def _sentence(path: Path) -> str:
    """The first sentence of a file's docstring, on one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) if path.exists() else None
    if not docstring:
        return ""
    first = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.?])\s(?=[A-Z`])", first)[0].rstrip(":").replace("|", "\\|")


def generated(page: str) -> str:
    """The page with its generated parts made anew."""
    for name, made in (("layers", picture()), ("files", files())):
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{made}\n{end}{after}"
    return page


def main() -> None:
    page = PAGE.read_text()
    made = generated(page)
    if "--check" not in sys.argv:
        PAGE.write_text(made)
    elif made != page:
        sys.exit("docs/architecture.md is out of date: python docs/architecture.py")


if __name__ == "__main__":
    main()
