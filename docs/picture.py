"""docs/images/verify.svg: what `gradproof verify` measured of the README's first example, drawn as in its HTML report.

python docs/picture.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gradproof.report.plots.proof import tensors

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "verify.svg"


def example() -> str:
    """The README's first Python block, which is the file that its first command judges."""
    found = re.search(r"```python[^\n]*\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    return found[1]


def standing_alone(drawn: str) -> str:
    """The plot of a page as a file of its own: in black on white, whatever the colours of the page that shows it."""
    head = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" color="#1f2328" '
    drawn = drawn.replace("<svg ", head, 1).replace(' style="width:100%;height:auto;max-width:60rem"', "", 1)
    return re.sub(r"(<svg[^>]*>)", r'\1<rect width="100%" height="100%" fill="white"/>', drawn, count=1)


def measured() -> dict[str, Any]:
    """The record of the README's first command."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "my_model.py").write_text(example())
        command = [sys.executable, "-m", "gradproof", "verify", "my_model.py:case", "--json", "record.json"]
        subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
        return json.loads((Path(folder) / "record.json").read_text())


def main() -> None:
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(standing_alone(str(tensors(measured()["subjects"][0]))) + "\n")


if __name__ == "__main__":
    main()
