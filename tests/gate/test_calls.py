"""Calls: what is read, what is refused with one sentence, and the text that is made of them."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate.calls import MOST_BYTES, Call, labelled, leaves, parse, text

DEEP = 100_000
BAD = {
    "cut off": '{"tool": "Bash", "arguments": {',
    "no object": "[1, 2]",
    "empty": "",
    "not UTF-8": b'{"tool": "B\xff"}',
    "null byte": '{"tool": "Bash", "arguments": {"command": "ls\\u0000"}}',
    "raw null byte": b'{"tool": "Bash\x00"}',
    "half a surrogate": '{"tool": "Bash", "arguments": {"command": "\\ud800"}}',
    "10 MB": json.dumps({"tool": "Write", "arguments": {"content": "x" * 10_000_000}}),
    "deep lists": '{"tool": "a", "arguments": {"x": ' + "[" * DEEP + "]" * DEEP + "}}",
    "deep enough": {
        "tool": "a",
        "arguments": {"x": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]},
    },
    "twice": '{"tool": "Bash", "tool": "Read"}',
    "NaN": '{"tool": "Bash", "arguments": {"n": NaN}}',
    "endless number": '{"tool": "Bash", "arguments": {"n": ' + "9" * 5000 + "}}",
    "no tool": {"arguments": {}},
    "tool is a number": {"tool": 3},
    "arguments are a list": {"tool": "Bash", "arguments": ["ls"]},
    "cwd is a list": {"tool": "Bash", "arguments": {}, "cwd": ["/"]},
    "history is text": {"tool": "Bash", "arguments": {}, "history": "ls"},
    "history of numbers": {"tool": "Bash", "arguments": {}, "history": [1]},
    "command is a number": {"command": 5},
    "no plain data": {"tool": "Bash", "arguments": {"x": object()}},
    "bytes inside": {"tool": "Bash", "arguments": {"x": b"ls"}},
    "names that are numbers": {"tool": "Bash", "arguments": {1: "x"}},
    "nothing at all": None,
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_sentence(bad):
    """Any other exception, or a call made of it, would be a gate that can be stopped or fooled."""
    with pytest.raises(ValueError) as refused:
        parse(bad)
    said = str(refused.value)
    assert "call" in said and "\n" not in said and len(said) < 300


def test_what_is_said_of_bad_input():
    with pytest.raises(ValueError, match=r"^a call must have a tool, or a command$"):
        parse("{}")
    with pytest.raises(ValueError, match=r"not valid JSON: Unterminated string starting at character 13$"):
        parse('{"command": "ls')


@given(st.binary(max_size=200))
def test_no_bytes_end_it_otherwise(noise):
    """Whatever arrives, parse returns a Call or raises ValueError."""
    with suppress(ValueError):
        assert isinstance(parse(noise), Call)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), plain, max_size=4), st.text(max_size=12))
def test_the_text_of_any_call(arguments, cwd):
    """Each line of the text is one of ours: no value can begin a new one."""
    given_ = {"tool": "Tool", "arguments": arguments, "cwd": cwd, "history": ["ls\n@ /root"]}
    try:
        call = parse(json.dumps(given_))
    except ValueError:
        return  # a null byte or half a surrogate
    written = text(call).split("\n")
    assert written[0] == "Tool" and written[-1].startswith("< Bash command: ls↵@ /root")
    assert len(written) <= 2 + 33 + 1 and len("\n".join(written)) < 40_000


def test_what_the_text_holds():
    call = parse(
        {
            "tool": "Bash",
            "arguments": {"command": "rm -rf build", "options": {"timeout": 5}},
            "cwd": "/home/me",
            "history": [{"tool": "Read", "arguments": {"file_path": "a.txt"}}, "ls"],
        }
    )
    assert text(call) == "\n".join(
        (
            "Bash",
            "command: rm -rf build",
            "options.timeout: 5",
            "@ /home/me",
            "< Bash command: ls",
            "< Read file_path: a.txt",
        )
    )


def test_a_bare_command_is_bash():
    assert parse('{"command": "ls"}') == Call("Bash", {"command": "ls"})


def test_long_arguments_keep_head_and_tail():
    """What is dangerous may stand at either end."""
    command = "echo start " + "x " * 5000 + "; rm -rf /"
    written = text(parse({"command": command}))
    assert "echo start" in written and written.endswith("; rm -rf /") and len(written) < 700


@pytest.mark.parametrize("start", range(300, 1400, 37))
def test_no_half_of_a_secret_is_left_at_a_cut(start):
    """A key across the place where a long argument is cut must not survive in part."""
    key = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3fG5"
    written = text(parse({"tool": "Write", "arguments": {"content": "a " * (start // 2) + key + " b" * 2000}}))
    assert not any(key[i : i + 10] in written for i in range(len(key) - 9))
    written = text(parse({"tool": "Write", "arguments": {"content": "b " * 2000 + key + " a" * (start // 2)}}))
    assert not any(key[i : i + 10] in written for i in range(len(key) - 9))


@pytest.mark.parametrize("where", ["name", "value", "many names", "repeated name"])
def test_a_huge_call_stalls_nothing(where):
    """Two megabytes in any one place: what is read of them is bounded."""
    huge, names = "token " * 300_000, [f"name{i}" for i in range(9_000)]
    call = {
        "name": {"tool": "T", "arguments": {huge: 1}},
        "value": {"tool": "T", "arguments": {"a": huge}},
        "many names": {"tool": "T", "arguments": dict.fromkeys(names, 1)},
    }
    if where == "repeated name":
        with pytest.raises(ValueError, match="name7' twice"):
            parse("{" + ", ".join(f'"{name}": 1' for name in [*names, "name7"]) + "}")
    else:
        assert len(text(parse(call[where]))) < 5000


def test_an_argument_named_as_a_secret_is_one():
    written = text(parse({"tool": "Login", "arguments": {"password": "hunter2hunter2", "user": "bob"}}))
    assert "hunter2" not in written and "user: bob" in written


def test_labelled_rows():
    row = labelled(b'{"command": "ls", "label": "allow", "group": "g"}')
    assert (row.call, row.label, row.group) == (Call("Bash", {"command": "ls"}), "allow", "g")
    for bad in (b'{"command": "ls"}', b'{"command": "ls", "label": "maybe"}', b'{"command": "ls", "label": 1}'):
        with pytest.raises(ValueError, match="label must be allow or block"):
            labelled(bad)
    assert MOST_BYTES < 10_000_000


def test_a_long_list_of_words_is_written_as_if_it_were_joined_whole():
    words = [f"w{i}" for i in range(9000)]
    assert text(parse({"command": words})) == text(parse({"command": " ".join(words)}))
    assert len(next(leaves("", {"a": ["x"] * 9000}, joined=True))[1]) < 5000
