"""Lines that two readers could read in two ways are refused; everything else survives reading and writing."""

import json

import pytest

pytest.importorskip("mcp", reason="the extra `gate` is not installed")

from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate.mcp_proxy import messages
from gradproof.gate.mcp_proxy.messages import RefusedError, from_client, from_server, line

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":{}}}'
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def the_refusal(line):
    (message,) = from_client(line)
    assert isinstance(message, RefusedError), message
    return message


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_params_survive_as_they_are(params):
    """Unknown fields, big numbers, odd characters: nothing is dropped or changed on the way."""
    written = line({"jsonrpc": "2.0", "id": 1, "method": "x/y", "params": params})
    assert written.count(b"\n") == 1
    (read,) = from_client(written)
    assert read == json.loads(written)
    assert json.dumps(read["params"]) == json.dumps(params)
    assert from_server(written) == [read]


VARIANTS = ["tools/Call", "TOOLS/CALL", " tools/call", "tools/call ", "tools/call\\n", "tools//call", "tools.call"]
VARIANTS += ["tools\\u2215call", "tool\\u017f/call", "\\uff54ools/call", "tools/call\\u0000", "tools/cal\\u200bl"]


@pytest.mark.parametrize("method", VARIANTS)
def test_variants_of_the_method_do_not_pass(method):
    """A server that is careless with names would run what nobody has decided."""
    assert the_refusal(CALL.replace(b"tools/call", method.encode())).code == -32601, method


@pytest.mark.parametrize(
    "line",
    [
        CALL.replace(b'"id":1', b'"id":1,"Method":"ping"'),
        CALL.replace(b'"id":1', b'"id":1,"METHOD":"ping"'),
        CALL.replace(b'"name"', b'"Name":"delete","name"'),
        CALL.replace(b'"arguments"', b'"Arguments":{"path":"/"},"arguments"'),
        CALL.replace(b'"id":1', b'"id":1,"id":2'),
        CALL.replace(b'"name":"read"', b'"name":"read","name":"delete"'),
        CALL.replace(b"{}", b'{"path":"a","path":"b"}'),
        CALL.replace(b'"id":1', b'"id":1,"result":{}'),
        CALL.replace(b'"id":1', b'"id":null'),
        CALL.replace(b'"id":1', b'"id":true'),
        CALL.replace(b'"id":1', b'"id":1.0'),
        CALL.replace(b'"id":1', b'"id":[1]'),
        CALL.replace(b'"2.0"', b'"1.0"'),
        CALL.replace(b"{}", b'{"n":NaN}'),
        CALL.replace(b"{}", b'{"n":1e999}'),
        CALL.replace(b"{}", b"[]"),
        CALL.replace(b"{}", b"0"),
        CALL.replace(b'"read"', b'["read"]'),
        CALL.replace(b'{"name":"read","arguments":{}}', b"[]"),
        CALL.replace(b'{"name":"read","arguments":{}}', b"null"),
        CALL.replace(b"read", b"\xff"),
        b"\xef\xbb\xbf" + CALL,
        CALL + CALL,
        b"[" * 100_000,
        CALL.replace(b"{}", b'{"a":' + b"[" * 198 + b"]" * 198 + b"}"),
        b"[]",
        b"1",
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","result":{}}',
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(line):
    assert the_refusal(line).code in (-32700, -32600)


def test_a_refusal_names_the_request_where_it_can():
    assert the_refusal(CALL.replace(b"tools/call", b"Tools/Call")).reply()["id"] == 1
    assert the_refusal(CALL.replace(b'"2.0"', b'"1.0"').replace(b'"id":1', b'"id":true')).reply()["id"] is None


def test_a_batch_is_its_messages_and_one_bad_one_is_refused_alone():
    whole = b"[" + CALL + b"," + CALL.replace(b"tools/call", b"Tools/Call") + b"]"
    good, bad = from_client(whole)
    assert good == json.loads(CALL)
    assert isinstance(bad, RefusedError)
    assert len(from_client(b"[" + b",".join([CALL] * 101) + b"]")) == 1


def test_ids_keep_their_type():
    keys = [messages.key(id) for id in (1, "1", True, 1.0, None)]
    assert len(set(keys)) == 3 and keys[2:] == [None] * 3


@pytest.mark.parametrize("deep", [190, 900])
def test_what_is_read_can_be_written(deep):
    """From inside of many calls: a message that was read must not end the proxy when it is sent on."""
    nested = CALL.replace(b"{}", b'{"a":' + b"[" * deep + b"]" * deep + b"}")

    def written_below(calls):
        if calls:
            return written_below(calls - 1)
        return [line(message) for message in from_client(nested) if not isinstance(message, RefusedError)]

    assert len(written_below(300)) == (deep < 200)
    if deep > 200:
        with pytest.raises(ValueError, match="deep"):
            from_server(nested)


def test_half_a_surrogate_pair_of_a_server_can_be_sent_on():
    (message,) = from_server(rb'{"jsonrpc":"2.0","id":1,"result":{"a":"\ud800"}}')
    assert json.loads(line(message)) == message


@pytest.mark.parametrize("line", [b"Server running on stdio", b"3", b"[1]", b"[]", b"[" * 100_000])
def test_what_a_server_prints_beside_messages_is_told_apart(line):
    with pytest.raises(ValueError):
        from_server(line)
