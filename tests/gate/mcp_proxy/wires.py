"""Real processes: a server, the proxy before it, a daemon that a test makes up, and lines to speak with both."""

import json
import os
import select
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from fake_daemon import FakeDaemon, answer_of, empty_store

PATIENCE = 60
EXAMPLE = [sys.executable, str(Path(__file__).with_name("example_server.py"))]
INFO = {"name": "test", "version": "1"}


def reads(file, text):
    """Whether the file has this text before patience ends."""
    until = time.monotonic() + PATIENCE
    while not (file.exists() and file.read_text() == text) and time.monotonic() < until:
        time.sleep(0.02)
    return file.exists() and file.read_text() == text


class Wire:
    """A process that is spoken to in lines, and what it said, as JSON."""

    def __init__(self, command, **options):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, **options)
        self._buffer = b""

    def says(self, message):
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def got(self):
        """The next message."""
        until = time.monotonic() + PATIENCE
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            if not chunk:
                raise EOFError(f"{'silence' if not ready else 'the end'}; {self.end() if ready else ''}")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def is_silent(self, seconds=0.05):
        """Whether no message comes for a moment."""
        return b"\n" not in self._buffer and not select.select([self.process.stdout], [], [], seconds)[0]

    def reply(self, id):
        """The answer to a request, and the messages before it."""
        before = []
        while True:
            message = self.got()
            if message.get("id") == id and "method" not in message:
                return message, before
            before.append(message)

    def ask(self, method, params=None, id="ask"):
        self.says({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}})
        return self.reply(id)[0]

    def initialize(self, version="2025-06-18", **capabilities):
        reply = self.ask("initialize", {"protocolVersion": version, "capabilities": capabilities, "clientInfo": INFO})
        self.says({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return reply

    def end(self):
        """Closes its input; exit status and what it logged."""
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        logged = self.process.stderr.read().decode()
        return status, logged


@contextmanager
def wire(command, **options):
    made = Wire(command, **options)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.wait()
        for pipe in (made.process.stdin, made.process.stdout, made.process.stderr):
            with suppress(OSError):
                pipe.close()


def proxy_command(store, *server, **options):
    """As a client's settings would have it."""
    flags = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    rest = ["--", *server] if server else []
    return [sys.executable, "-m", "gradproof", "gate", "mcp-proxy", "--store", str(store), *flags, *rest]


@contextmanager
def made_up_daemon(folder, decide):
    """A daemon whose decisions `decide` makes of a call; it keeps the calls, and what ran."""
    store = empty_store(folder)

    def answers(number, body):
        head = daemon.requests[number - 1][0].decode()
        if "/v1/decide" in head:
            call = json.loads(body)
            daemon.calls.append(call)
            return answer_of({"id": f"d{len(daemon.calls)}", "reason": "so it was made up", "decision": decide(call)})
        if "/v1/ran" in head:
            daemon.ran.append(json.loads(body)["id"])
            return answer_of({})
        return answer_of({"id": "d", "state": "waiting"})

    daemon = FakeDaemon(store, answers)
    daemon.calls, daemon.ran, daemon.store = [], [], store
    try:
        yield daemon
    finally:
        daemon.close()
