"""A daemon that answers as it is told: a decision, garbage, half an answer, or nothing."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path


def answer_of(content: object, status: int = 200) -> bytes:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def decision(outcome: str, **more: object) -> bytes:
    return answer_of({"id": "01a1e6", "decision": outcome, "reason": "deletes /etc/hosts", **more})


def empty_store(folder: Path) -> Path:
    """What a client looks at of a store: that it is there."""
    folder.mkdir(mode=0o700)
    (folder / "store.json").write_text("{}")
    return folder


class FakeDaemon:
    """Listens at `STORE.socket/gate.sock`. `answers` is called with the number of the request and its body, and returns
    the bytes that are sent, or None for silence."""

    def __init__(self, store: Path, answers: Callable[[int, bytes], bytes | None], folder: Path | None = None):
        self.folder = folder or Path(f"{store}.socket")
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.answers, self.requests, self._open = answers, [], []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.folder / "gate.sock"))
        self.listener.listen(64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(65536)
        head, _, body = request.partition(b"\r\n\r\n")
        lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        length = int(lengths[0].split(b":")[1]) if lengths else 0
        while len(body) < length:
            body += connection.recv(65536)
        self.requests.append((head, body))
        answer = self.answers(len(self.requests), body)
        if answer is not None:
            try:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()

    def close(self) -> None:
        """Ends it, and leaves the socket's file behind as a daemon that was killed does."""
        if self.listener.fileno() < 0:
            return
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self._open:
            connection.close()
        self._thread.join(5)
