"""Lines over pipes: whole, however they arrive; too long ones are left out, and nothing else is lost."""

import anyio
import pytest

pytest.importorskip("mcp", reason="the extra `gate` is not installed")

from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate.mcp_proxy.stdio import lines


def read(chunks, most):
    left = list(chunks)

    async def receive():
        return left.pop(0) if left else b""

    async def collect():
        return [line async for line in lines(receive, most)]

    return anyio.run(collect)


@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"x")), max_size=6), st.data())
def test_lines_are_whole_however_they_arrive(whole, data):
    text = b"".join(line + b"\n" for line in whole)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    most = data.draw(st.integers(0, 12))
    assert read(filter(None, chunks), most) == [line if len(line) <= most else None for line in whole]


def test_the_last_line_needs_no_end():
    assert read([b"a\nb"], 9) == [b"a", b"b"]
    assert read([b"a\n", b"bbb", b"bbb"], 4) == [b"a", None]
