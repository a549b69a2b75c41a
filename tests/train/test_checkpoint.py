import errno
import json
import os
import re

import pytest
import torch

from gradproof import files
from gradproof.train import checkpoint
from gradproof.train.checkpoint import MODEL, STATE, STEP, SUMS, load, newest, prune, save, steps

FILES = (MODEL, STEP, STATE, SUMS)
PROGRESS = {"progress": {"best": 3, "loss": 0.1 + 0.2, "none": None}, "environment": {"torch": "2"}}


def tensors(seed=0):
    """Weights and the rest: several dtypes, shapes, a number, negative zero, NaN and infinities."""
    generator = torch.Generator().manual_seed(seed)
    model = {
        "router.weight": torch.randn(4, 5, generator=generator),
        "experts.0.bias": torch.randn(3, generator=generator).double(),
        "odd": torch.tensor([-0.0, torch.nan, torch.inf, -torch.inf, 1e-45]),
    }
    rest = {"count": torch.tensor(7.0), "load": torch.arange(4), "m.a": torch.randn(2, 3, 1, generator=generator)}
    return model, rest


def write(folder, step, seed=0):
    return save(folder, step, *tensors(seed), PROGRESS)


def same_bits(loaded, right):
    assert set(loaded) == set(right)
    for name, tensor in right.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        assert loaded[name].numpy().tobytes() == tensor.numpy().tobytes(), name


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_round_trip_is_exact(tmp_path):
    """A dtype, a sign of zero, a NaN or a digit of the state that changes on the way would end bit-exact resuming."""
    written = write(tmp_path, 12)
    loaded = load(tmp_path / "step-12")
    assert loaded.step == written.step == 12 and loaded.folder == tmp_path / "step-12"
    assert {name: loaded.state[name] for name in PROGRESS} == PROGRESS and loaded.state == written.state
    for file, right in zip((MODEL, STEP), tensors(), strict=True):
        same_bits(loaded.tensors(file), right)
    assert sorted(path.name for path in (tmp_path / "step-12").iterdir()) == sorted(FILES)


def test_views_are_saved_as_what_they_show(tmp_path):
    """A parameter is a view of the flat buffer; saving its storage would save all of them."""
    flat = torch.arange(12.0)
    save(tmp_path, 1, {"a": flat[2:8].view(2, 3), "b": flat[8:]}, {}, {})
    same_bits(load(tmp_path / "step-1").tensors(MODEL), {"a": torch.arange(2.0, 8.0).view(2, 3), "b": flat[8:]})


def test_the_same_state_gives_the_same_bytes(tmp_path, monkeypatch):
    """A time, a host, a path or a hash seed in a tensor file would make two equal runs look different."""
    write(tmp_path / "one", 3)
    monkeypatch.setenv("HOSTNAME", "elsewhere")
    monkeypatch.setattr("time.time", lambda: 0.0)
    write(tmp_path / "another/place", 3)
    for file in (MODEL, STEP):
        assert (tmp_path / "one/step-3" / file).read_bytes() == (tmp_path / "another/place/step-3" / file).read_bytes()


def test_nothing_is_pickled(tmp_path):
    """A checkpoint of a stranger must not run code."""
    write(tmp_path, 1)
    for file in (MODEL, STEP):
        data = (tmp_path / "step-1" / file).read_bytes()
        assert json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    json.loads((tmp_path / "step-1" / STATE).read_text())


@pytest.mark.parametrize("file", FILES)
def test_any_flipped_byte_is_found(tmp_path, file):
    """A checksum of the tensors alone, or of what the text means in place of its bytes, would miss some."""
    write(tmp_path, 1)
    path = tmp_path / "step-1" / file
    data = bytearray(path.read_bytes())
    for i in range(len(data)):
        bit = 1 << (0 if data[i] in b"0123456789" else i % 8)  # of a digit its last bit: one number for another
        data[i] ^= bit
        path.write_bytes(data)
        with pytest.raises(ValueError, match="checkpoint step-1 cannot be read: "):
            load(tmp_path / "step-1")
        data[i] ^= bit
    path.write_bytes(data)
    load(tmp_path / "step-1")


def test_what_is_damaged_is_named(tmp_path):
    """The sentence says which file."""
    write(tmp_path, 1)
    for file in (STATE, STEP, MODEL):
        path = tmp_path / "step-1" / file
        path.write_bytes(path.read_bytes() + b" ")
        with pytest.raises(ValueError, match=f"step-1 cannot be read: {re.escape(file)} is damaged"):
            load(tmp_path / "step-1")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("harm", ["missing", "empty", "cut short", "longer", "swapped"])
def test_any_damaged_file_is_found(tmp_path, file, harm):
    """And named in one sentence, so that the run can go on with the checkpoint before."""
    write(tmp_path, 1)
    write(tmp_path, 2, seed=5)
    path = tmp_path / "step-2" / file
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        other = (tmp_path / "step-1" / file).read_bytes()
        path.write_bytes({"empty": b"", "cut short": data[:-1], "longer": data + b"\0", "swapped": other}[harm])
    with pytest.raises(ValueError, match="checkpoint step-2 cannot be read: "):
        load(tmp_path / "step-2")


@pytest.mark.parametrize("text", ["[]", "3", "null", '"text"', "{}", '{"state.json": null}'])
def test_other_json_is_no_list_of_sums(tmp_path, text):
    """A sentence in place of a TypeError."""
    write(tmp_path, 1)
    (tmp_path / "step-1" / SUMS).write_text(text)
    with pytest.raises(ValueError, match="checkpoint step-1 cannot be read"):
        load(tmp_path / "step-1")


def test_newest_falls_back_and_says_so(tmp_path):
    """Taking a damaged one, or none at all, would cost the run."""
    said = []
    assert newest(tmp_path / "none yet", said.append) is None
    for step in (8, 9, 10):
        write(tmp_path, step, seed=step)
    assert newest(tmp_path, said.append).step == 10 and said == []
    (tmp_path / "step-10" / MODEL).write_bytes(b"")
    fallback = newest(tmp_path, said.append)
    assert fallback.step == 9
    same_bits(fallback.tensors(MODEL), tensors(9)[0])
    (sentence,) = said
    assert "step-10 cannot be read: model.safetensors is damaged" in sentence and "falling back" in sentence
    (tmp_path / "step-9" / STATE).unlink()
    assert newest(tmp_path, said.append).step == 8
    (tmp_path / "step-8" / STEP).unlink()
    assert newest(tmp_path, said.append) is None and "step-8" in said[-1]


def test_steps_are_numbers(tmp_path):
    """step-10 comes after step-9, and what is no checkpoint is none."""
    for name in ("step-9", "step-10", "step-100", ".partial-step-200", "step-", "step-x", "other-3"):
        (tmp_path / name).mkdir()
    assert steps(tmp_path) == [9, 10, 100] and steps(tmp_path / "nowhere") == []


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def nth(calls, original):
    """Fails at the nth call."""
    left = [calls]

    def call(*args, **kwargs):
        left[0] -= 1
        return no_space() if left[0] == 0 else original(*args, **kwargs)

    return call


FAILURES = {
    "first tensors": lambda patch: patch.setattr(checkpoint, "save_file", no_space),
    "second tensors": lambda patch: patch.setattr(checkpoint, "save_file", nth(2, checkpoint.save_file)),
    "folder": lambda patch: patch.setattr("pathlib.Path.mkdir", no_space),
    "state": lambda patch: patch.setattr("pathlib.Path.write_text", no_space),
    "first sync": lambda patch: patch.setattr(os, "fsync", no_space),
    "folder's sync": lambda patch: patch.setattr(os, "fsync", nth(5, os.fsync)),
    "rename": lambda patch: patch.setattr(os, "rename", no_space),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_full_disk_costs_nothing(tmp_path, monkeypatch, failure):
    """A half-written folder under its own name, or an older one removed first, would be the end of the run."""
    write(tmp_path, 1)
    write(tmp_path, 2, seed=2)
    before = snapshot(tmp_path)
    with monkeypatch.context() as patch:
        FAILURES[failure](patch)
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path, 3, seed=3)
    assert snapshot(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]
    write(tmp_path, 3, seed=3)
    assert newest(tmp_path, print).step == 3


@pytest.mark.parametrize("failure", [name for name in FAILURES if name != "rename"])
def test_a_failed_second_save_keeps_the_first(tmp_path, monkeypatch, failure):
    """The step that is saved again (after a fall back) is replaced only by a whole one."""
    write(tmp_path, 1)
    before = snapshot(tmp_path)
    with monkeypatch.context() as patch:
        FAILURES[failure](patch)
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path, 1, seed=3)
    assert snapshot(tmp_path) == before


def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    """A second Ctrl-C is no OSError."""

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "publish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_everything_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    """After a power cut a name without content would be taken for a checkpoint."""
    events = []
    sync, rename = files.sync, os.rename
    monkeypatch.setattr(files, "sync", lambda path: (events.append(path.name), sync(path)))
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append("rename"), rename(a, b)))
    write(tmp_path, 4)
    at = events.index("rename")
    assert sorted(events[:at]) == sorted([*FILES, ".partial-step-4"])
    assert events[at + 1 :] == [tmp_path.name]


def test_what_a_crash_left_is_written_over(tmp_path):
    """A file of a save that was killed must not get into the next one."""
    aside = tmp_path / ".partial-step-5"
    aside.mkdir()
    (aside / "left over").write_text("x")
    write(tmp_path, 5)
    assert sorted(path.name for path in (tmp_path / "step-5").iterdir()) == sorted(FILES)
    assert not aside.exists()


@pytest.mark.parametrize(
    ("best", "kept"), [(None, [40, 50]), (10, [10, 40, 50]), (30, [30, 40, 50]), (40, [40, 50]), (50, [40, 50])]
)
def test_prune_keeps_the_newest_two_and_the_best(tmp_path, best, kept):
    """One alone would be lost to a damaged file; the best is what the report is about."""
    for step in (10, 20, 30, 40, 50):
        write(tmp_path, step)
    prune(tmp_path, best)
    assert steps(tmp_path) == kept
    for step in kept:
        load(tmp_path / f"step-{step}")


def test_prune_with_few(tmp_path):
    """Nothing to take away from one or two."""
    prune(tmp_path / "none", None)
    write(tmp_path, 10)
    prune(tmp_path, None)
    write(tmp_path, 20)
    prune(tmp_path, None)
    assert steps(tmp_path) == [10, 20]


def test_set_aside(tmp_path):
    """What is damaged keeps its bytes, under a name that is no checkpoint's; what is half written goes."""
    for step in (10, 20, 30):
        write(tmp_path, step)
    (tmp_path / ".partial-step-40").mkdir()
    for _ in range(2):
        checkpoint.set_aside(tmp_path, after=20)
        assert sorted(path.name for path in tmp_path.iterdir()) == [".damaged-step-30", "step-10", "step-20"]
    checkpoint.set_aside(tmp_path / "none", after=-1)


def test_best_falls_back_to_the_newest(tmp_path):
    """A model that decides must come from a whole file, and say that it is not the best one."""
    said = []
    model, rest = tensors()
    for step in (10, 20):
        save(tmp_path, step, model, rest, {"progress": {"best_step": 10}})
    assert checkpoint.best(tmp_path, said.append).step == 10 and not said
    (tmp_path / "step-10" / MODEL).write_bytes(b"")
    assert checkpoint.best(tmp_path, said.append).step == 20
    assert len(said) == 1 and "step-10 cannot be read" in said[0] and "taking the newest, step 20" in said[0]
    assert checkpoint.best(tmp_path / "none", said.append) is None
