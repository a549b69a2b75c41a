"""A daemon with a small gate, as the console's tests use it: started as a process, on a free port of loopback."""

import json
import os
import re
import subprocess
import sys
import urllib.request

from gradproof.gate.daemon import tokens_of


class ConsoleGate:
    """`gate.decide("rm -rf /srv")`, `gate.url`, `gate.tokens["admin"]`. `stop` and `start` keep the port."""

    def __init__(self, folder):
        self.folder, self.port = folder, 0
        made = tokens_of(folder)
        self.tokens = {
            role: made.add(name, role) for role, name in (("admin", "ann"), ("reviewer", "rob"), ("agent", "ci"))
        }
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def start(self):
        command = [sys.executable, "-m", "gradproof", "gate", "serve", "--no-learn", "--store", str(self.folder)]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)], stdout=subprocess.PIPE, text=True, env=dict(os.environ, NO_COLOR="1")
        )
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                self.port = int(found[1])
                return
        raise AssertionError(f"the daemon ended with {self.process.wait()}")

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
        self.process.stdout.close()

    def ask(self, method, path, body=None, role="admin"):
        """What the service answers."""
        request = urllib.request.Request(
            self.url + path.lstrip("/"),
            json.dumps(body).encode() if body is not None else None,
            {"Authorization": f"Bearer {self.tokens[role]}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def decide(self, command=None, **call):
        """A call of an agent."""
        call = {"tool": "Bash", "arguments": {"command": command}, "cwd": "/home/ann/app", "session": "s7", **call}
        return self.ask("POST", "/v1/decide", call, role="agent")
