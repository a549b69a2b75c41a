"""A store of an earlier format: refused, left untouched, and taken over by a new gate."""

import json
from itertools import islice

import lmdb
import pytest
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.gate import founding
from gradproof.gate.old_store import call_of, rows_of
from gradproof.gate.store import Store


@pytest.fixture(params=[1, 2])
def old(tmp_path, request):
    """As the earlier formats wrote it."""
    folder = tmp_path / "old"
    (folder / "journal").mkdir(parents=True)
    (folder / "store.json").write_text(json.dumps({"schema": request.param, "journal_mebibytes": 4}))
    env = lmdb.open(str(folder / "journal"), map_size=4 << 20, max_dbs=16)
    signals = env.open_db(b"signals")
    said = [
        ("a", "Bash\ncommand: git push origin x\n@ /work", "false_block", 2.0, 4.0),
        ("b", "Bash\ncommand: rm -rf /↵ls", "false_allow", -1.0, 4.0),
        ("c", "Bash\ncommand: ls", "allow", 1.0, 1.0),
        ("d", "Bash\ncommand: x…y", "override_block", -0.5, 2.0),
    ]
    with env.begin(write=True, db=signals) as txn:
        for key, text, kind, label, weight in said:
            record = dict(decision=key, text=text, kind=kind, label=label, weight=weight)
            txn.put(key.encode(), json.dumps(record).encode())
    env.close()
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock.mdb"}


def test_it_is_refused_in_one_sentence_and_left_untouched(old):
    before = contents(old)
    result = CliRunner().invoke(app, ["gate", "status", "--store", str(old)])
    assert result.exit_code == 2 and "init --store NEW --from OLD" in result.stderr
    assert len(result.stderr.splitlines()) == 1 and contents(old) == before


def test_what_people_said_is_taken_over(old, tmp_path, monkeypatch, trained):
    """Not the gate's own echo, nor what was not kept whole."""
    before, rows = contents(old), rows_of(old)
    first = {row.call: (row.allow, row.text.split("\n")[1]) for row in reversed(rows)}
    assert set(first.values()) == {(True, "command: git push origin x"), (False, "command: rm -rf /")}
    assert all(call < 0 for call in first)
    starter = founding.starter
    monkeypatch.setattr(founding, "starter", lambda seed: islice(starter(seed), 0, None, 50))
    monkeypatch.setattr(founding, "fit_rows", lambda rows, **options: trained.copy())
    args = ["gate", "init", "--store", str(tmp_path / "new"), "--from", str(old)]
    assert CliRunner().invoke(app, args).exit_code == 0 and contents(old) == before
    store = Store(tmp_path / "new")
    texts = [example.text for where in ("replay", "held") for example in store.journal.examples(where)]
    assert any("git push origin x" in text for text in texts)
    store.close()


@pytest.mark.parametrize("schema", [None, 3])
def test_only_earlier_formats_are_taken_over(tmp_path, schema):
    if schema:
        (tmp_path / "store.json").write_text(json.dumps({"schema": schema}))
    with pytest.raises(ValueError, match=r"no gate in|is a store of format 3"):
        rows_of(tmp_path)


def test_a_text_is_a_call_again():
    call = call_of("Write\nfile_path: a.py\ncontent: x↵y\n@ /work\n< Bash command: ls")
    assert call is not None and call.arguments == {"file_path": "a.py", "content": "x\ny"}
