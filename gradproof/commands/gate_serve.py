"""`gradproof gate serve`. Everything heavy is imported inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradproof.commands.gate_store import StoreFolder, opened_store, warn
from gradproof.commands.options import Debug, Seed
from gradproof.commands.terminal import errors


def serve(
    store: StoreFolder,
    socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            envvar="GRADPROOF_GATE_SOCKET",
            help="Where agents connect. Default: gate.sock in STORE.socket, a folder beside the store.",
        ),
    ] = None,
    group: Annotated[str, typer.Option(metavar="NAME", help="Group whose members may use the socket.")] = "",
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Also listen on this TCP port, for people with a token; 0 picks a free one.",
            min=0,
            max=65535,
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address of the TCP port; any but loopback needs a token.")
    ] = "127.0.0.1",
    public_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Additional host name to accept in requests; repeatable.")
    ] = None,
    rate: Annotated[
        float, typer.Option(metavar="N", help="Requests per second allowed for each client.", min=1)
    ] = 1000.0,
    shadow: Annotated[
        bool | None,
        typer.Option("--shadow/--no-shadow", help="Allow every call, and record the decision that was not enforced."),
    ] = None,
    learn: Annotated[bool, typer.Option("--learn/--no-learn", help="Run the learner beside the daemon.")] = True,
    idle: Annotated[
        float, typer.Option(metavar="MINUTES", help="Exit after this time without a request; 0 means never.", min=0)
    ] = 0,
    seed: Seed = 0,
    debug: Debug = False,
) -> None:
    """Run the gate as a service, for agents and for people.

    Agents connect to a unix socket; --port also opens a TCP port for people. Agents may ask for decisions, report that
    a call ran, and read the answers to their own questions. Everything else needs a token from `gradproof gate token
    add`. The routes are in docs/gate-service.md.

    \b
    Examples:
      gradproof gate serve --port 8377
      gradproof gate serve --store /var/lib/gate --group agents --shadow
    """
    with errors(debug):
        from gradproof.gate import changes
        from gradproof.gate.remarks import Giver
        from gradproof.gate.store import Store
        from gradproof.http.listening import need_serve

        need_serve()
        warn(store)
        with opened_store(Store, store) as opened, opened.deciding():
            if shadow is not None and shadow != opened.settings.shadow:
                changes.write_settings(opened, {"shadow": shadow}, Giver("gate serve"))
            from gradproof.gate import daemon  # after the lock: a second daemon is refused before it loads anything

            hosts = tuple(public_host or ())
            where = daemon.DaemonOptions(socket, group, host, port, hosts, rate, learn=learn, idle=idle, seed=seed)
            daemon.run(opened, where)
