"""Features: what an act does, and the words of its command, wherever it stands."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate.calls import Call
from gradproof.gate.features import MARK, NUMBERS, features, sorts
from gradproof.gate.reading import act_texts, read


def of(command, cwd="/home/dev/app", tool="Bash"):
    """The features of each act of a call."""
    call = Call(tool, {"command": command} if isinstance(command, str) else command, cwd)
    return [set(features(text).tolist()) for text in act_texts(call, read(call).acts)]


@given(st.text(max_size=80))
def test_any_text_can_be_read(written):
    """Ascending, each once, within the numbers; none of a text without an act."""
    feature_H = features(f"Bash\ncommand: {written}\n{MARK}{written}")
    assert (np.diff(feature_H) > 0).all() and feature_H[0] >= 0 and feature_H[-1] < NUMBERS
    assert len(features(written)) == 0 or MARK in written


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("http://10.0.0.1/a.py", ["url", "url of an address", "url ends in .py"]),
        ("https://$HOST", ["url", "url of an address"]),
        ("https://example.org/b", ["url", "url of a name"]),
        ("10.1.2.3:80", ["address"]),
        ("-12", ["number"]),
        ("--depth=3", ["--depth"]),
        ("/usr/lib/x9.so", ["in /usr", "in /usr/lib", "/usr/lib/x0.so", "ends in .so"]),
        ("/", ["in /"]),
        ("~", ["~"]),
        ("src/a.py", ["near", "ends in .py"]),
        ("run7.sh", ["run0.sh", "ends in .sh"]),
        ("main", ["main"]),
    ],
)
def test_the_sorts_of_a_word(word, expected):
    assert sorts(word) == expected


def test_names_and_numbers_do_not_count_and_folders_do():
    """Another address, another number: nearly the same; another folder, another program: not."""
    (one,), (other,) = of("nc 10.0.0.1 4444"), of("nc 192.168.7.9 81")
    assert one == other
    etc, tmp = of("tee /etc/x.sh")[0], of("tee /tmp/x.sh")[0]
    assert len(etc & tmp) < 0.6 * len(etc)


def test_an_act_has_features_of_its_own():
    """A harmful command has the same features alone and among others, and wrapped; sudo adds to them."""
    (alone,) = of("chmod -R 777 /etc")
    for line in (
        "make test && chmod -R 777 /etc; ls",
        "sh -c 'chmod -R 777 /etc'",
        "if true; then chmod -R 777 /etc; fi",
    ):
        assert any(alone <= own for own in of(line)), line
    assert any(alone < own for own in of("sudo chmod -R 777 /etc"))


def test_other_tools_have_features_of_their_own():
    """Arguments belong to their tool."""
    (read_it,), (write_it,) = (
        of({"file_path": "/etc/hosts"}, tool="Read"),
        of({"file_path": "/etc/hosts"}, tool="Write"),
    )
    assert read_it and read_it != write_it


def test_no_feature_is_made_of_a_secret():
    """A password in a target or a word is a placeholder before features are taken of it."""
    call = Call("Bash", {"command": "curl -u bob:hunter2 https://x.example/a; mysql -phunter2 -h db.example shop"})
    for text in act_texts(call, read(call).acts, b"k" * 32):
        assert "hunter2" not in text and "unter2" not in text
