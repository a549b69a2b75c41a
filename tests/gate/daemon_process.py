"""A daemon as a process of its own, and requests to it."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from gradproof.gate.place import socket_path

START_SECONDS = 60


class DaemonProcess:
    """`gradproof gate serve` on a store; `daemon.ask("POST", "/v1/decide", call)` goes to its socket, with a token to
    TCP."""

    def __init__(self, folder, *options):
        self.folder, self.path = folder, socket_path(folder)
        command = [sys.executable, "-m", "gradproof", "gate", "serve", "--store", str(folder), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said = ""
        assert self.process.stdout is not None
        while "http://" not in self.said:
            line = self.process.stdout.readline()
            self.said += line
            assert line, self.said
        self.port = int(re.search(r"127\.0\.0\.1:(\d+)", self.said)[1])

    def ask(self, method, path, content=None, token=None, timeout=30):
        """(status, content)."""
        connection = self.connection(token, timeout)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            connection.request(method, path, None if content is None else json.dumps(content), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    def connection(self, token=None, timeout=30):
        if token:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection = http.client.HTTPConnection("gate", timeout=timeout)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout)
        connection.sock.connect(str(self.path))
        return connection

    def end(self, how=signal.SIGTERM):
        """The exit code, and what it printed."""
        with suppress(ProcessLookupError):
            self.process.send_signal(how)
        rest, _ = self.process.communicate(timeout=30)
        return self.process.returncode, self.said + rest


def until(look, seconds=START_SECONDS):
    """What `look` finds, as soon as it finds something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("nothing came of it")


def daemons_of(store: Path) -> list[int]:
    """The processes that serve a store, where a client has started them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cmdline").read_bytes().split(b"\0")[-4:-1] == [b"serve", b"--store", bytes(store)]:
                found.append(int(folder.name))
    return found
