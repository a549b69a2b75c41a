"""`gradproof gate token …`: the tokens of the service. Everything heavy is imported inside."""

from __future__ import annotations

from datetime import datetime
from getpass import getuser
from typing import Annotated, Any

import typer

from gradproof.commands.gate_store import StoreFolder, opened_store, warn
from gradproof.commands.options import Debug, Json, NoSeed
from gradproof.commands.terminal import check_outputs, console_for, errors, write
from gradproof.commands.usage import DocumentedCommand

token = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Manage the tokens of the service.")
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the token: lowercase letters, digits, dots and hyphens.")
]


@token.command(cls=DocumentedCommand)
def add(
    name: NameArgument,
    store: StoreFolder,
    role: Annotated[
        str,
        typer.Option(
            metavar="agent|reviewer|admin",
            help="agent: asks, reads its own calls. reviewer: gives feedback, reads all. admin: also sets rules.",
        ),
    ],
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Create a token and print it once: the store keeps only its hash.

    \b
    Example:
      gradproof gate token add ann --role admin
    """
    with errors(debug):
        from gradproof.gate.changes import log_tokens

        warn(store)
        with _tokens(store) as (opened, tokens, giver):
            made = tokens.add(name, role)
            log_tokens(opened, giver, "made", name, role)
        print(made, flush=True)


@token.command(name="list", cls=DocumentedCommand)
def list_tokens(store: StoreFolder, json: Json = None, seed: NoSeed = 0, debug: Debug = False) -> None:
    """List the tokens, without their secrets.

    \b
    Example:
      gradproof gate token list
    """
    with errors(debug):
        from json import dumps

        check_outputs(json, None)
        with _tokens(store) as (_, tokens, _):
            record = {"tokens": [one.plain() for one in tokens.all()]}
        write(record, dumps(record, indent=1), json)
        for one in record["tokens"]:
            when = datetime.fromtimestamp(float(one["made"])).strftime("%Y-%m-%d %H:%M")
            console_for(json).print(f"{one['name']}  {one['role']}  made {when}", markup=False, soft_wrap=True)
        if not record["tokens"]:
            console_for(json).print("there are no tokens", markup=False)


@token.command(cls=DocumentedCommand)
def revoke(name: NameArgument, store: StoreFolder, seed: NoSeed = 0, debug: Debug = False) -> None:
    """Revoke a token, from the next request on.

    \b
    Example:
      gradproof gate token revoke ann
    """
    with errors(debug):
        from gradproof.gate.changes import log_tokens

        with _tokens(store) as (opened, tokens, giver):
            taken = tokens.revoke(name)
            log_tokens(opened, giver, "revoked", name, taken.role)
        print(f"{name} was revoked")


def _tokens(store: Any) -> Any:
    """The store, its tokens, and who changes them."""
    from contextlib import contextmanager

    from gradproof.gate.remarks import Giver
    from gradproof.gate.roles import ROLES
    from gradproof.gate.store import TOKENS, Store
    from gradproof.http.tokens import Tokens

    @contextmanager
    def opened():
        with opened_store(Store, store) as there:
            yield there, Tokens(there.folder / TOKENS, ROLES), Giver(getuser())

    return opened()
