"""The service in process: requests as they come from TCP with a token, or from the socket of a user."""

import asyncio
import json
import os

import httpx

from gradproof.gate.daemon import DaemonOptions, doors, tokens_of
from gradproof.gate.decider import Decider
from gradproof.gate.service import ROLES, GateService
from gradproof.http.door import own_hosts

HOST = "127.0.0.1:8377"


class ServiceClient:
    """`client("POST", "/v1/decide", call, role="agent")`; `role` is also the token's name, "socket" the socket."""

    def __init__(self, store, strangers=1e6, **options):
        self.store = store
        self.decider = Decider(store, wait=True)
        self.tokens = tokens_of(store.folder)
        self.secrets = {role: self.tokens.add(role, role) for role in ROLES}
        self.service = GateService(store, self.decider, self.tokens, HOST)
        self.unix, self.tcp = doors(
            self.service, DaemonOptions(strangers=strangers, **options), own_hosts("127.0.0.1", 8377)
        )

    def __call__(self, method, path, content=None, *, role="admin", headers=None, body=None):
        """One answer."""
        return self.talk(
            lambda client: self.send(client, method, path, content, role=role, headers=headers, body=body), role
        )

    def talk(self, conversation, role="admin"):
        """What a coroutine function of a client returns."""

        async def run():
            unix = role == "socket"
            peer = ("uid", os.getuid()) if unix else ("127.0.0.1", 5000)
            transport = httpx.ASGITransport(self.unix if unix else self.tcp, raise_app_exceptions=False, client=peer)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
                return await conversation(client)

        return asyncio.run(run())

    async def send(self, client, method, path, content=None, *, role="admin", headers=None, body=None):
        own = {"authorization": f"Bearer {self.secrets[role]}"} if role in self.secrets else {}
        body = json.dumps(content).encode() if content is not None else body
        return await client.request(method, path, content=body, headers={**own, **(headers or {})})

    def decided(self, command, role="agent", **more):
        """The answer to a shell command."""
        answer = self("POST", "/v1/decide", {"command": command, "cwd": "/work/app", **more}, role=role)
        assert answer.status_code == 200, answer.text
        self.decider.flush()
        return answer.json()

    def close(self):
        self.service.close()
        self.decider.close()


def reason(answer, status):
    """The error's sentence; the answer holds nothing else."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json"), answer.text
    assert list(answer.json()) == ["error"]
    return answer.json()["error"]
