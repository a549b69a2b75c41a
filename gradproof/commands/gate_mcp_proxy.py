"""`gradproof gate mcp-proxy`. Everything heavy is imported inside."""

from __future__ import annotations

import os
import secrets
import sys
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradproof.commands.gate_store import StoreFolder
from gradproof.commands.options import Debug, NoSeed
from gradproof.commands.terminal import errors
from gradproof.gate.place import default_folder

if TYPE_CHECKING:
    from gradproof.gate.mcp_proxy.doorkeeper import ProxiedClient

SERVER_ENDED = 1
TOKEN = "GRADPROOF_GATE_TOKEN"


def mcp_proxy(
    store: StoreFolder,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="Command that starts an MCP server on standard input and output."),
    ] = None,
    url: Annotated[
        str, typer.Option(metavar="URL", help="URL of a streamable HTTP server, instead of a command.")
    ] = "",
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:VALUE", help="HTTP header for every request; $NAME is taken from the environment."),
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the server in rules and decisions: mcp__NAME__tool.")
    ] = "server",
    wait: Annotated[float, typer.Option(metavar="SECONDS", help="Time that a call waits for a person.", min=0)] = 120,
    cwd: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the project. Default: the working directory.")
    ] = None,
    session: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the session in decisions. Default: a new name.")
    ] = "",
    actor: Annotated[str, typer.Option(metavar="NAME", help="Name of the agent in decisions.")] = "mcp",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"File with a reviewer's token, to record answers given at the client. Default: ${TOKEN}.",
        ),
    ] = None,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Put the gate between an MCP client and a server.

    Every tool call is decided before the server sees it. Allowed calls reach the server unchanged. Blocked calls are
    answered with a tool result that gives the reason. Questions go to the client if it can ask (elicitation), and
    otherwise wait for an answer on the console. If no decision can be made, the call does not run.

    \b
    Examples:
      gradproof gate mcp-proxy --name files -- npx -y my-mcp-server /srv/files
      gradproof gate mcp-proxy --name tickets --url https://example.com/mcp
    """
    with errors(debug):
        try:
            import anyio
            import mcp  # noqa: F401
        except ImportError:
            raise ValueError("the MCP proxy needs its extra: pip install 'gradproof[gate,serve,mcp]'") from None
        from gradproof.gate.mcp_proxy.doorkeeper import ProxiedClient, inmost

        given = command or []
        if bool(given) == bool(url) or (header and not url):
            raise ValueError("name a server: `gradproof gate mcp-proxy -- COMMAND...`, or --url URL with its --header")
        _check_name(name)
        folder = os.path.abspath(cwd or os.getcwd())
        if not os.path.isdir(folder):
            raise ValueError(f"{folder} is not a folder")
        visitor = ProxiedClient(name, folder, session or f"mcp-{secrets.token_hex(6)}", actor, getuser(), wait)
        try:
            said = anyio.run(_run, store, given, url, _headers(header or []), visitor, _token(token_file))
        except BaseExceptionGroup as errors_of_tasks:
            raise inmost(errors_of_tasks) from None
        if said is not None:
            print(f"gradproof: {said}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(0 if said is None else SERVER_ENDED)  # a thread that waits for the gate must not keep the client waiting


async def _run(
    store: Path, command: list[str], url: str, headers: dict[str, str], visitor: ProxiedClient, token: str
) -> str | None:
    """Until the client ends; or until the server does: then, why."""
    import shlex
    import signal

    import anyio

    from gradproof.gate.mcp_proxy.asking import one_line
    from gradproof.gate.mcp_proxy.doorkeeper import Doorkeeper
    from gradproof.gate.mcp_proxy.http_server import http_server
    from gradproof.gate.mcp_proxy.known_tools import KnownTools, file_for
    from gradproof.gate.mcp_proxy.proxy import Proxy
    from gradproof.gate.mcp_proxy.served_gate import ServedGate
    from gradproof.gate.mcp_proxy.stdio import server_process, stdio_client

    def tell(line: str) -> None:
        print(f"gradproof: {visitor.server}: {one_line(line, 1000)}", file=sys.stderr, flush=True)

    async def until_told_to_end() -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                group.cancel_scope.cancel()

    known = KnownTools(file_for(_first_seen(store), url or shlex.join(command)), url or shlex.join(command))
    doorkeeper = Doorkeeper(ServedGate(store, token, visitor.session), visitor)
    said: str | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(until_told_to_end)
        started = (
            http_server(url, headers, lambda tool: (known.get(tool) or {}).get("inputSchema"), tell)
            if url
            else server_process(command, tell, but=(TOKEN,))  # it must not answer for a person
        )
        async with started as server, stdio_client() as client:
            said = await Proxy(client, server, doorkeeper, known, tell).run()
        group.cancel_scope.cancel()
    return said


def _first_seen(store: Path) -> Path:
    """The folder in which it is kept how servers' tools were first seen: in the store, where that is this user's."""
    return (store if os.access(store, os.W_OK) else default_folder().parent.parent) / "mcp_tools"


def _check_name(name: str) -> None:
    plain = name.replace("_", "").replace("-", "")
    if not (plain.isascii() and plain.isalnum()) or "__" in name or name.strip("_") != name or len(name) > 64:
        raise ValueError(
            f"--name {name[:80]!r} must consist of letters, digits, hyphens and single underscores between them"
        )


def _headers(given: list[str]) -> dict[str, str]:
    headers = {}
    for header in given:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"--header {name[:40]!r} must be NAME:VALUE")
        headers[name.strip()] = os.path.expandvars(value.strip())
    return headers


def _token(file: Path | None) -> str:
    token = file.read_text(encoding="utf-8").strip() if file is not None else os.environ.get(TOKEN, "").strip()
    if token and not (token.isascii() and token.isprintable()):
        raise ValueError("the reviewer's token contains characters that are not allowed in a token")
    return token
