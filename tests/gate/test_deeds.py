"""Deeds: what a command does, whoever wrote it and wherever it stands."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate.calls import Call, text
from gradproof.gate.deeds import NUMBERS, deeds, sorts


def of(command):
    return set(deeds(text(Call("Bash", {"command": command}))).tolist())


@given(st.text(max_size=80))
def test_any_text_has_deeds(written):
    """Ascending, each once, within the numbers; none of a text without an argument."""
    deed_H = deeds(written)
    assert (np.diff(deed_H) > 0).all() and (not len(deed_H) or (deed_H[0] >= 0 and deed_H[-1] < NUMBERS))
    assert len(deeds("Bash")) == 0


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
    """Another address, another number: the same; another folder, another program: not."""
    assert of("nc 10.0.0.1 4444") == of("nc 192.168.7.9 81")
    assert (
        of("curl -o /etc/x.sh http://a.b/c")
        != of("curl -o /tmp/x.sh http://a.b/c")
        != of("wget -o /tmp/x.sh http://a.b/c")
    )


def test_a_program_and_its_argument_are_one_deed():
    """What two commands do is more than their words: sharing all words, they differ in the pairs."""
    one, other = of("cat /etc/shadow; rm notes"), of("rm /etc/shadow; cat notes")
    assert one != other and len(one & other) > len(one) // 3
    assert of("sudo wget x") > of("wget x") - of("")  # a wrapper hides nothing
    assert of("FOO=1 wget x") >= of("wget x") - of("")


def test_other_tools_have_deeds_of_their_own():
    """An argument belongs to its tool; where the call stands, and what came before it, is none of it."""
    call = Call("Read", {"file_path": "/etc/shadow"})
    alone = deeds(text(call))
    around = Call("Read", {"file_path": "/etc/shadow"}, "/root", (Call("Bash", {"command": "id"}),))
    assert len(alone) and np.array_equal(alone, deeds(text(around)))
    assert not np.array_equal(alone, deeds(text(Call("Write", {"file_path": "/etc/shadow"}))))
