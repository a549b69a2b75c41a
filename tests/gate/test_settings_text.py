"""Settings as text: what is put in can be read, what was there stays as it was, and taking it out restores the file."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate.settings_text import insert, parse_settings, remove

WITH_COMMENTS = """// my settings
{
    "theme": "dark", // as it should be
    /* what runs
       when */
    "hooks": {
        "PreToolUse": [
            { "matcher": "Bash", "hooks": [] } // mine: "not a { bracket"
        ]
    },
    "url": "http://x//y" /* no comment inside */
}
"""

leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
objects = st.dictionaries(st.text(max_size=4), values, max_size=4)


def written(value: dict, indent: int | str | None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


@given(objects, st.sampled_from([None, 2, 4, "\t"]))
def test_parsing_says_what_is_there_and_where(value, indent):
    text = written(value, indent)
    root = parse_settings(text)
    assert root.value == value
    for item in root.items:
        assert json.loads(text[item.start : item.end]) == item.value
        assert json.loads(f"{{{text[item.begin : item.end]}}}") == {item.key: item.value}


@given(objects, values, st.sampled_from([None, 2, 4, "\t"]), st.sampled_from(["", "\n", "\n\n"]))
def test_what_was_put_in_is_there_and_can_be_taken_out_again(value, new, indent, tail):
    text = written(value, indent) + tail
    after = insert(text, parse_settings(text), new, "new key")
    root = parse_settings(after)
    assert root.value == {**value, "new key": new}
    assert list(root.value) == [*value, "new key"]
    assert remove(after, root, len(root.items) - 1) == text


@given(st.lists(values, max_size=4), values, st.sampled_from([None, 2, "\t"]))
def test_the_same_for_lists(items, new, indent):
    text = written({"a": items, "b": 1}, indent)
    after = insert(text, parse_settings(text).items[0], new)
    root = parse_settings(after)
    assert root.value == {"a": [*items, new], "b": 1}
    assert remove(after, root.items[0], len(items)) == text


@given(st.dictionaries(st.text(max_size=4), values, min_size=1, max_size=4), st.data(), st.sampled_from([None, 2]))
def test_any_member_can_be_taken_out(value, data, indent):
    text = written(value, indent)
    root = parse_settings(text)
    index = data.draw(st.integers(0, len(root.items) - 1))
    key = root.items[index].key
    assert parse_settings(remove(text, root, index)).value == {k: v for k, v in value.items() if k != key}


def test_comments_stay():
    root = parse_settings(WITH_COMMENTS)
    assert root.value["url"] == "http://x//y"
    pre = root.get("hooks").get("PreToolUse")
    after = insert(WITH_COMMENTS, pre, {"matcher": "*"})
    lines = set(after.splitlines())
    assert set(WITH_COMMENTS.splitlines()) - lines == {
        '            { "matcher": "Bash", "hooks": [] } // mine: "not a { bracket"'
    }
    assert '            { "matcher": "Bash", "hooks": [] }, // mine: "not a { bracket"' in lines
    again = parse_settings(after)
    assert again.value["hooks"]["PreToolUse"][1] == {"matcher": "*"}
    assert remove(after, again.get("hooks").get("PreToolUse"), 1) == WITH_COMMENTS
    after = insert(WITH_COMMENTS, root, 1, "last")
    again = parse_settings(after)
    assert again.value["last"] == 1
    assert remove(after, again, len(again.items) - 1) == WITH_COMMENTS


def test_a_comment_in_an_empty_list_stays():
    text = '{\n  "a": [\n    // nothing yet\n  ]\n}\n'
    after = insert(text, parse_settings(text).items[0], 1)
    assert parse_settings(after).value == {"a": [1]}
    assert "// nothing yet" in after
    assert remove(after, parse_settings(after).items[0], 0) == text


def test_windows_line_ends_stay():
    text = '{\r\n    "a": 1\r\n}\r\n'
    after = insert(text, parse_settings(text), {"b": [2]}, "c")
    assert "\n" not in after.replace("\r\n", "")
    assert parse_settings(after).value == {"a": 1, "c": {"b": [2]}}
    assert remove(after, parse_settings(after), 1) == text


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "Expecting value"),
        ("[]", "object"),
        ('"x"', "object"),
        ("{'a': 1}", "property name"),
        ('{"a": 1,}', "property name"),
        ('{"a": 1} x', "Extra data"),
        ('{"a": 1', "delimiter"),
        ('{"a": 1, "a": 2}', "twice"),
        ('\ufeff{"a": 1}', "BOM|Expecting value"),
        ('{"a": "\n"}', "control character"),
        ('{"a": 1} /* open', "Extra data"),
        ('{"a": ' * 100_000, "nested too deeply"),
        ('{"a": ' * 200 + "1" + "}" * 200, "nested too deeply"),
    ],
)
def test_what_is_no_settings_file_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        parse_settings(text)
