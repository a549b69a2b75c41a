"""A daemon with a small gate, as the console's tests use it: with a token for each role, on a port that it keeps."""

from daemon_process import DaemonProcess

from gradproof.gate.daemon import tokens_of

NAMES = {"admin": "ann", "reviewer": "rob", "agent": "ci"}


class ConsoleGate:
    """`gate.decide("rm -rf /srv")`, `gate.url`, `gate.tokens["admin"]`; `stop` and `start`."""

    def __init__(self, folder):
        self.folder, self.port = folder, 0
        made = tokens_of(folder)
        self.tokens = {role: made.add(name, role) for role, name in NAMES.items()}
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def start(self):
        self.daemon = DaemonProcess(self.folder, "--no-learn", "--port", str(self.port))
        self.port = self.daemon.port

    def stop(self):
        self.daemon.end()

    def ask(self, method, path, body=None, role="admin"):
        """What the service answers."""
        status, answer = self.daemon.ask(method, path, body, token=self.tokens[role])
        assert status == 200, answer
        return answer

    def decide(self, command=None, **call):
        """A call of an agent."""
        call = {"tool": "Bash", "arguments": {"command": command}, "cwd": "/home/ann/app", "session": "s7", **call}
        return self.ask("POST", "/v1/decide", call, role="agent")
