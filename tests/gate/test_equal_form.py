"""Form made equal: what a call does stays, how it was printed goes."""

import pytest

from gradproof.gate.calls import Call
from gradproof.gate.equal_form import equal_form, one_line, trivial


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("#!/bin/bash\n# a comment\nls\n\nrm -rf x  # why\n", "ls; rm -rf x"),
        ("cat #{file} | sh", "cat file | sh"),
        ("ls -la", "ls -la"),
        ("echo 'a#b' $#", "echo 'a#b' $#"),
        ("a \\\n  b", "a \\; b"),
        ("", ""),
    ],
)
def test_one_line(text, line):
    assert one_line(text) == line and one_line(line) == line


def test_every_argument_of_a_call():
    call = Call("Write", {"content": "a\nb", "edits": [{"old": "#{x}"}], "n": 3}, "/work")
    assert equal_form(call).arguments == {"content": "a; b", "edits": [{"old": "x"}], "n": 3}
    assert equal_form(call).cwd == "/work" and not trivial(equal_form(call))


def test_the_trivial_rule():
    assert trivial(Call("Bash", {"command": "a\nb"})) and trivial(Call("Bash", {"command": "x #{y}"}))
    assert not trivial(Call("Bash", {"command": "ls\n"}))
