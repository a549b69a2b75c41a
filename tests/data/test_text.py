import numpy as np
import pytest

from gradproof.data.split import TEST, TRAIN, VALIDATION
from gradproof.data.text import START, Windows, at_places, check, in_turn, open_text

SHARES = (0.1, 0.1)  # held out for validation and test


@pytest.fixture
def opened(tmp_path):
    """open(bytes, context): the text of a run, from a file with these bytes."""

    def open_(content, context=8):
        (tmp_path / "a.txt").write_bytes(content)
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        return open_text(str(tmp_path / "a.txt"), SHARES, run, context)

    return open_


def test_parts_are_stretches_in_order(opened):
    """A shuffled split would let the model see the neighbours of what it is scored on."""
    content = bytes(range(256)) * 4
    text = opened(content)
    parts = [text.part(part).tobytes() for part in (TRAIN, VALIDATION, TEST)]
    assert b"".join(parts) == content
    assert [len(part) for part in parts] == [1024 - 102 - 102, 102, 102]


def test_the_run_keeps_its_own_copy(opened, tmp_path):
    """Whoever changes the file while a run is interrupted must not change what it learns."""
    first = opened(b"one text, " * 30)
    (tmp_path / "a.txt").write_bytes(b"")
    again = open_text(str(tmp_path / "gone.txt"), SHARES, tmp_path / "run", 8)
    assert first.byte_N.tobytes() == again.byte_N.tobytes()


def test_too_short_a_text_is_refused(opened):
    with pytest.raises(ValueError, match="9 bytes: too few"):
        opened(b"too short", context=8)


def test_a_window_predicts_its_own_bytes():
    """Off by one, a model would learn to repeat what it reads."""
    byte_N = np.frombuffer(b"abcdefgh", np.uint8)
    token_BS, target_BS = at_places(byte_N, np.array([0, 5]), 3)
    assert target_BS.tolist() == [[97, 98, 99], [102, 103, 104]]
    assert token_BS.tolist() == [[START, 97, 98], [START, 102, 103]]
    assert token_BS.dtype == target_BS.dtype == np.int64


def test_windows_in_turn_predict_every_byte_once():
    """A last window that is dropped, or padding that counts, would change the bits per byte."""
    byte_N = np.arange(7, dtype=np.uint8)
    token_BS, target_BS = in_turn(byte_N, 3)
    assert target_BS.tolist() == [[0, 1, 2], [3, 4, 5], [6, -1, -1]]
    assert token_BS.tolist() == [[START, 0, 1], [START, 3, 4], [START, -1, -1]]


def test_batches_are_a_function_of_seed_and_step():
    """Resuming needs nothing but the step; the last window must fit, and the first and last places occur."""
    windows = Windows(20, 8, 64, seed=3)
    assert np.array_equal(windows[5], Windows(20, 8, 64, seed=3)[5])
    assert not np.array_equal(windows[5], windows[6])
    places = np.concatenate([windows[s] for s in range(20)])
    assert places.min() == 0 and places.max() == 12


@pytest.mark.parametrize(
    ("data", "named", "said"),
    [
        ("synthetic", [], "--data FILE.txt"),
        ("nowhere.txt", [], "no such file"),
        (__file__, ["label"], "no column 'label'"),
    ],
)
def test_what_cannot_be_learned_is_said_at_once(data, named, said):
    with pytest.raises(ValueError, match=said):
        check(data, named)


def test_a_table_is_no_text(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="is a table"):
        check(str(tmp_path / "a.csv"), [])
