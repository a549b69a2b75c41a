"""Connections that never come to a request: bounded in number, in seconds and in bytes, whoever makes them."""

import asyncio
import socket
import threading
from contextlib import contextmanager

import pytest

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")

import uvicorn

from gradproof.http import connections
from gradproof.http.connections import HEAD_BYTES, bounded_protocol

PATIENCE = 30
OK = b"HTTP/1.1 200 OK"
REQUEST = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"


async def app(scope, receive, send):
    """Answers with the length of the body; `/wait` only when the client has gone."""
    length, more = 0, True
    while more:
        message = await receive()
        length, more = length + len(message.get("body", b"")), message.get("more_body", False)
    if scope["path"] == "/wait":
        await asyncio.sleep(1.0)
    body = b"%d" % length
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(most=100):
    """A server of its own; gives a function that connects to it."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=bounded_protocol(most), log_level="error", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    opened = []

    def connect():
        opened.append(socket.create_connection(listener.getsockname(), timeout=PATIENCE))
        return opened[-1]

    try:
        yield connect
    finally:
        for connection in opened:
            connection.close()
        server.should_exit = True
        thread.join(PATIENCE)


def rest(connection):
    """What comes until the server closes the connection."""
    said = b""
    try:
        while some := connection.recv(1 << 16):
            said += some
    except ConnectionResetError:
        pass
    return said


def answer(connection):
    """(status line, body) of the next answer."""
    said = b""
    while b"\r\n\r\n" not in said:
        some = connection.recv(1 << 16)
        assert some, "the connection was closed"
        said += some
    head, _, body = said.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(1 << 16)
    return head.split(b"\r\n")[0], body


@pytest.mark.parametrize("piece", [b"a" * 1000, b"X-%d: y\r\n"], ids=["one long value", "many fields"])
def test_a_head_without_end_is_cut_off(piece):
    with serving() as connect:
        connection, sent = connect(), 0
        connection.sendall(REQUEST % 0 + b"X: ")
        try:
            while sent < 50 * HEAD_BYTES:
                connection.sendall(piece)
                sent += len(piece)
        except OSError:
            pass
        assert sent < 50 * HEAD_BYTES
        said = rest(connection)
        assert not said or said.startswith(b"HTTP/1.1 431 ")


def test_what_a_chunked_body_adds_to_its_content_is_bounded():
    """Trailers are headers, and extensions of chunks are text; neither is the body that the door bounds."""
    head = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    for junk in (b"0\r\nX: " + b"a" * 40 * HEAD_BYTES, b"1;" + b"a" * 40 * HEAD_BYTES):
        with serving() as connect:
            connection = connect()
            try:
                connection.sendall(head + junk)
                connection.sendall(b"\r\n\r\n")
            except OSError:
                pass
            assert b" 200 " not in rest(connection)


def test_bodies_of_any_form_and_several_requests_pass():
    with serving() as connect:
        connection = connect()
        for _ in range(3):
            connection.sendall(REQUEST % (30 * HEAD_BYTES) + b"\r\n" + b"a" * 30 * HEAD_BYTES)
            assert answer(connection) == (OK, b"%d" % (30 * HEAD_BYTES))
        chunked = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(chunked + b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n")
        assert answer(connection) == (OK, b"100000")


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\nHo", b"\r\n", REQUEST % 0 + b"\r\n" + b"GET /"], ids=["", "head", "line", "next"]
)
def test_a_connection_on_which_no_request_comes_is_closed(monkeypatch, said):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    with serving() as connect:
        connection = connect()
        connection.sendall(said)
        assert rest(connection).count(b"HTTP/1.1 200") == said.count(b"\r\n\r\n")


def test_a_request_that_is_being_answered_is_not_cut_off(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    with serving() as connect:
        connection = connect()
        connection.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer(connection)[0] == OK


def test_beyond_its_bound_a_connection_is_answered_429_and_others_go_on():
    with serving(most=3) as connect:
        three = [connect() for _ in range(3)]
        for connection in three:
            connection.sendall(REQUEST % 0 + b"\r\n")
            assert answer(connection)[0] == OK
        said = rest(connect())
        assert said.startswith(b"HTTP/1.1 429 ") and b'{"error": "more than 3 connections' in said
        three[0].sendall(REQUEST % 0 + b"\r\n")
        assert answer(three[0])[0] == OK
        three.pop().close()

        def again():
            connection = connect()
            connection.sendall(REQUEST % 0 + b"\r\n")
            return answer(connection)[0]

        assert any(again() == OK for _ in range(100))
