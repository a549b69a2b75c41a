"""`gradproof gate …`: assembles the commands of the gate. Each is a file of its own, which imports what is heavy
inside."""

from __future__ import annotations

import typer

from gradproof.commands.gate_audit import audit
from gradproof.commands.gate_corrections import corrections
from gradproof.commands.gate_decide import decide
from gradproof.commands.gate_evaluate import evaluate
from gradproof.commands.gate_feedback import feedback
from gradproof.commands.gate_hook import hook
from gradproof.commands.gate_init import init
from gradproof.commands.gate_install import install, uninstall
from gradproof.commands.gate_learn import learn
from gradproof.commands.gate_mcp_proxy import mcp_proxy
from gradproof.commands.gate_rollback import rollback
from gradproof.commands.gate_serve import serve
from gradproof.commands.gate_status import status
from gradproof.commands.gate_token import token
from gradproof.commands.usage import DocumentedCommand

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Guard agents' tool calls, and learn from every correction.",
)

for command in (init, decide, feedback, corrections, learn, status, audit, rollback, evaluate):  # as --help has them
    app.command(cls=DocumentedCommand)(command)
for command in (serve, hook, install, uninstall):
    app.command(cls=DocumentedCommand)(command)
app.command("mcp-proxy", cls=DocumentedCommand)(mcp_proxy)
app.add_typer(token, name="token")
