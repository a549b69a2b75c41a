"""`gradproof gate …`: the commands. Everything heavy is imported inside them."""

from __future__ import annotations

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="A gate on agents' tool calls that learns from every correction.",
)


@app.callback()
def gate() -> None:
    """A gate on agents' tool calls that learns from every correction."""
