"""One HTTP request over a unix socket, with a deadline for the whole exchange.

`http.client` is not used: importing it takes longer than all the rest of a hook, and its time limit is one for each
read, so that a server that sends a byte a second would hold an agent for hours.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import time

MOST_BYTES = 4 * 2**20  # of an answer
MOST_HEAD = 64 * 2**10  # of its status line and headers
CHUNK = 2**16
SOCKET = "gate.sock"


class NoAnswer(Exception):
    """There is no answer; the message is a sentence that says why."""


class NobodyThere(NoAnswer):
    """No daemon listens on the socket, or it went away before it answered."""


def left(until: float) -> float:
    """Seconds left until a time of the monotonic clock; NoAnswer where it has passed."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise NoAnswer("the gate gave no decision in time")
    return seconds


def connect(folder: str, name: str, owner: int, until: float) -> socket.socket:
    """A connection to the daemon whose socket has this name in a folder. Both folder and daemon must belong to `owner`
    or to root.

    The folder is opened first and the socket reached through it: nobody can put another folder in its place in between,
    and the path may be longer than the 107 bytes that an address holds."""
    try:
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NobodyThere(f"no gate is listening in {folder}") from None
    except OSError as error:
        raise NoAnswer(f"the folder of the gate's socket, {folder}, cannot be opened: {error.strerror}") from None
    try:
        there = os.fstat(opened)
        if there.st_uid not in (owner, 0) or there.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise NoAnswer(f"{folder} does not belong to the owner of the gate, or others can write to it")
        return _connected(f"/proc/self/fd/{opened}/{name}", owner, until)
    finally:
        os.close(opened)


def _connected(address: str, owner: int, until: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(left(until))
        connection.connect(address)
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (owner, 0):
            raise NoAnswer(f"the process behind the gate's socket belongs to user {uid}, not to the gate's owner")
    except BaseException as error:
        connection.close()
        if isinstance(error, FileNotFoundError | ConnectionRefusedError | ConnectionResetError):
            raise NobodyThere("no gate is listening on the socket") from None
        raise _told(error) from None
    return connection


def exchange(connection: socket.socket, method: str, path: str, body: bytes, until: float) -> tuple[int, bytes]:
    """Status and body of the answer. HTTP/1.0: the answer is one piece, and the connection ends with it."""
    head = f"{method} {path} HTTP/1.0\r\nHost: gate\r\nAccept: application/json\r\n"
    if body or method == "POST":
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    try:
        _send(connection, f"{head}\r\n".encode("ascii") + body, until)
        return _answer(connection, until)
    except OSError as error:
        raise _told(error) from None
    finally:
        connection.close()


def _send(connection: socket.socket, request: bytes, until: float) -> None:
    rest = memoryview(request)
    while rest:
        connection.settimeout(left(until))
        try:
            rest = rest[connection.send(rest) :]
        except BrokenPipeError:
            return  # a server may refuse a body before it has read the whole of it: what it says is read


def _answer(connection: socket.socket, until: float) -> tuple[int, bytes]:
    received = bytearray()
    while (end := received.find(b"\r\n\r\n")) < 0:
        if len(received) > MOST_HEAD:
            raise NoAnswer("the answer on the gate's socket is not HTTP")
        received += _some(connection, until, nothing=not received)
    status, length = _head(bytes(received[:end]))
    if length > MOST_BYTES:
        raise NoAnswer(f"the gate's answer has {length:,} bytes")
    body = received[end + 4 :]
    while len(body) < length:
        body += _some(connection, until)
    return status, bytes(body[:length])


def _some(connection: socket.socket, until: float, nothing: bool = False) -> bytes:
    connection.settimeout(left(until))
    try:
        some = connection.recv(CHUNK)
    except ConnectionResetError:
        some = b""
    if not some:
        raise (NobodyThere if nothing else NoAnswer)("the gate's daemon closed the connection without an answer")
    return some


def _head(head: bytes) -> tuple[int, int]:
    """The status, and the length of the body: an answer without one could be half an answer."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    fields = [line.partition(":") for line in lines]
    lengths = {value.strip() for name, _, value in fields if name.strip().lower() == "content-length"}
    length = lengths.pop() if len(lengths) == 1 else ""
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not _number(words[1]) or not _number(length):
        raise NoAnswer("the answer on the gate's socket is not HTTP")
    return int(words[1]), int(length)


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _told(error: BaseException) -> BaseException:
    """An error of the socket as a sentence."""
    if isinstance(error, TimeoutError | BlockingIOError):
        return NoAnswer("the gate gave no decision in time")
    if isinstance(error, OSError):
        return NoAnswer(f"the gate's daemon cannot be reached: {error.strerror or error}")
    return error


def decoded(body: bytes) -> dict:
    """The object that an answer holds; NoAnswer where it holds none."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise NoAnswer("the gate's answer is not a JSON object")
    return answer
