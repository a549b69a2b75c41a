"""`gradproof gate install`, `gradproof gate uninstall`: the hook in an agent's settings. Imports inside."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradproof.commands.gate_hook import Socket
from gradproof.commands.gate_store import StoreFolder, warn
from gradproof.commands.options import Debug, NoSeed
from gradproof.commands.terminal import errors

if TYPE_CHECKING:
    from gradproof.gate.agent_settings import Agent


class AgentName(StrEnum):
    claude = "claude"
    gemini = "gemini"


ChosenAgent = Annotated[AgentName, typer.Argument(metavar="claude|gemini", help="The agent.")]
User = Annotated[
    bool, typer.Option("--user", help="Change the user's settings, for every project. This is the default.")
]
Project = Annotated[
    bool, typer.Option("--project", help="Change the settings of the project in the working directory.")
]
Local = Annotated[
    bool, typer.Option("--local", help="Claude Code: change the project's local settings, which are not shared.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the change without making it.")]


def install(
    agent: ChosenAgent,
    store: StoreFolder,
    user: User = False,
    project: Project = False,
    local: Local = False,
    socket: Socket = None,
    auto_approve: Annotated[
        bool,
        typer.Option("--auto-approve", help="Let the agent run calls that the gate allows without asking its user."),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Put the gate in front of Claude Code or Gemini CLI.

    Adds the gate's hook to the agent's settings. Shows the change and asks before writing it. The rest of the file is
    kept, including comments. If the hook is already installed, only its options are updated.

    \b
    Examples:
      gradproof gate install claude
      gradproof gate install gemini --project --store /srv/gate --dry-run
    """
    with errors(debug):
        from gradproof.gate.agent_settings import AGENTS, entries, hook_command, installed, script, settings_file

        of = AGENTS[agent.value]
        file = settings_file(of, _place(user, project, local))
        wanted = entries(of, hook_command(of, store, script(), auto_approve, socket))
        before = _read(file)
        after = _changed(file, before or "", lambda text: installed(text, of, wanted))
        if not (store / "store.json").is_file():
            how = f"create it with: gradproof gate init --store {store}"
            print(f"gradproof: warning: there is no gate in {store} yet; {how}", file=sys.stderr)
        warn(store)
        if after == before:
            print(f"the hook is already in {file}; nothing to change")
            return
        if _write(of, file, before, after, yes, dry_run):
            print(f"{of.title} will ask the gate from its next session on; {_how_to_check(of)}")
            if project:
                print(f"{file} contains paths of this machine; other users of the file need a gate in the same place")


def uninstall(
    agent: ChosenAgent,
    user: User = False,
    project: Project = False,
    local: Local = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    seed: NoSeed = 0,
    debug: Debug = False,
) -> None:
    """Remove the gate's hook from Claude Code or Gemini CLI.

    Only the agent's settings change; the gate itself stays.

    \b
    Example:
      gradproof gate uninstall claude
    """
    with errors(debug):
        from gradproof.gate.agent_settings import AGENTS, settings_file, uninstalled

        of = AGENTS[agent.value]
        file = settings_file(of, _place(user, project, local))
        before = _read(file)
        after = _changed(file, before or "", lambda text: uninstalled(text, of))
        if after == (before or ""):
            print(f"there is no hook of the gate in {file}; nothing to change")
            return
        if _write(of, file, before, after, yes, dry_run):
            print(f"{of.title} will no longer ask the gate, from its next session on")


def _place(user: bool, project: bool, local: bool) -> str:
    if user + project + local > 1:
        raise ValueError("give one of --user, --project and --local")
    return "local" if local else "project" if project else "user"


def _read(file: Path) -> str | None:
    """What a settings file holds; None where there is none."""
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            return opened.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise ValueError(f"{file} cannot be read: it is not valid UTF-8; nothing was changed") from None


def _changed(file: Path, text: str, change) -> str:
    try:
        return change(text)
    except ValueError as error:
        raise ValueError(f"{file} cannot be changed: {error}; nothing was changed") from None


def _write(agent: Agent, file: Path, before: str | None, after: str, yes: bool, dry_run: bool) -> bool:
    """Shows the change, asks, and writes it; whether it was written."""
    from difflib import unified_diff

    from gradproof.files import write_atomically
    from gradproof.gate.agent_settings import EMPTY

    names = (f"{file}" if before is not None else "/dev/null", f"{file}")
    for line in unified_diff((before or "").splitlines(), after.splitlines(), *names, lineterm=""):
        print(line)
    if dry_run:
        print("nothing was changed: --dry-run")
        return False
    if not yes and not _agreed(f"Change the settings of {agent.title}?"):
        print("nothing was changed")
        raise typer.Exit(1)
    if _read(file) != before:
        raise ValueError(f"{file} was changed in the meantime; nothing was written; run the command again")
    target = file.resolve()  # a link stays one
    if after == EMPTY and before is not None:
        target.unlink()  # it held the hook and nothing else
        return True
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, after, mode=target.stat().st_mode & 0o7777 if target.exists() else 0o600)
    return True


def _agreed(question: str) -> bool:
    try:
        return typer.confirm(question)
    except typer.Abort:  # nobody is there to answer
        print()
        return False


def _how_to_check(agent: Agent) -> str:
    return "its command /hooks lists the hook" if agent.name == "claude" else "its command /hooks panel lists the hook"
