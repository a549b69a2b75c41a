"""The settings files of agents: adds and removes the gate's hook, and changes nothing else."""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

from gradproof.gate.settings_text import SettingsNode, insert, parse_settings, remove

SCRIPT = "gradproof-hook"
EMPTY = "{}\n"
FAILED = "gradproof: the hook failed, so the call is blocked"


class Agent(NamedTuple):
    """An agent whose settings take hooks. `timeout` is in its own unit; it must be far above what the hook ever takes,
    since agents run a call whose hook takes too long."""

    name: str
    title: str
    folder: str
    home: str  # the variable that names another folder for the user's settings
    before: str
    after: str
    timeout: int
    own: dict[str, Any]  # what else its hooks hold


AGENTS = {
    # onFailure: from Claude Code 2.1.295 on, a hook that cannot be started or takes too long blocks the call.
    "claude": Agent(
        *("claude", "Claude Code", ".claude", "CLAUDE_CONFIG_DIR", "PreToolUse", "PostToolUse", 30),
        {"onFailure": "block"},
    ),
    "gemini": Agent(
        *("gemini", "Gemini CLI", ".gemini", "GEMINI_CLI_HOME", "BeforeTool", "AfterTool", 30_000),
        {"name": "gradproof-gate"},
    ),
}


def settings_file(agent: Agent, place: str) -> Path:
    """Of the `user`, of the `project` of the working directory, or the project's `local` one, which is not shared."""
    if place == "local":
        if agent.name != "claude":
            raise ValueError(f"{agent.title} has no local settings; use --project or --user")
        return Path(agent.folder).absolute() / "settings.local.json"
    if place == "project":
        return Path(agent.folder).absolute() / "settings.json"
    other = os.environ.get(agent.home, "")
    if agent.name == "claude" and other:
        return Path(other).absolute() / "settings.json"
    return (Path(other).absolute() if other else Path.home()) / agent.folder / "settings.json"


def script() -> Path:
    """The console script of this installation; ValueError where it is not there."""
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    for folder in folders:
        if (folder / SCRIPT).is_file():
            return (folder / SCRIPT).absolute()
    raise ValueError(f"{SCRIPT} is not in {folders[0]}; reinstall Gradproof: pip install 'gradproof[gate,serve]'")


def hook_command(
    agent: Agent, store: Path, script: Path, auto_approve: bool = False, socket: Path | None = None
) -> list[str]:
    """The hook as a command: by this interpreter with -I, so that no PYTHON* variable of the agent's environment and no
    file of its working directory has a say."""
    argv = [str(script), "--store", os.path.abspath(store), "--format", agent.name]
    argv += ["--socket", os.path.abspath(socket)] if socket is not None else []
    argv += ["--auto-approve"] if auto_approve else []
    return [sys.executable, "-I", *argv] if script.read_bytes()[:2] == b"#!" else argv


def entries(agent: Agent, argv: list[str]) -> dict[str, dict[str, Any]]:
    """What is added for each event. Gemini blocks by the exit code 2 only if something is said on standard error."""
    run = shlex.join(argv)
    before = f"{run} || {{ echo {shlex.quote(FAILED)} >&2; false; }} || exit 2"
    common = {"type": "command", "timeout": agent.timeout}
    named = {name: value for name, value in agent.own.items() if name == "name"}
    return {
        agent.before: {"matcher": "*", "hooks": [{**common, "command": before, **agent.own}]},
        agent.after: {"matcher": "*", "hooks": [{**common, "command": f"{run} || exit 0", **named}]},
    }


def installed(text: str, agent: Agent, wanted: dict[str, dict[str, Any]]) -> str:
    """The settings with these entries; ValueError with a sentence where they cannot be put in."""
    text = text if text.strip() else EMPTY
    root = _checked(text, agent)
    if _ours(root, agent) == list(wanted.items()):
        return text
    text = uninstalled(text, agent)
    for event, entry in wanted.items():
        root = parse_settings(text)
        hooks = root.get("hooks")
        groups = hooks.get(event) if hooks is not None else None
        if groups is not None:
            text = insert(text, groups, entry)
        elif hooks is not None:
            text = insert(text, hooks, [entry], event)
        else:
            text = insert(text, root, {event: [entry]}, "hooks")
    return text


def uninstalled(text: str, agent: Agent) -> str:
    """The settings without the gate's hook, and without lists and objects that it leaves empty."""
    if not text.strip():
        return text
    _checked(text, agent, any_switch=True)
    while (step := _without_first(text, agent)) != text:
        text = step
    return text


def _without_first(text: str, agent: Agent) -> str:
    root = parse_settings(text)
    hooks = root.get("hooks")
    for event in (agent.before, agent.after):
        groups = hooks.get(event) if hooks is not None else None
        for i, group in enumerate(groups.items if groups is not None else []):
            handlers = group.get("hooks")
            for j, handler in enumerate(handlers.items if handlers is not None else []):
                if _is_ours(handler.value):
                    assert hooks is not None and groups is not None and handlers is not None
                    path = [(root, root.items.index(hooks)), (hooks, hooks.items.index(groups)), (groups, i)]
                    return _removed(text, [*path, (handlers, j)])
    return text


def _removed(text: str, path: list[tuple[SettingsNode, int]]) -> str:
    """Without the last one of a path, or the outermost one that would be left empty."""
    *above, (inside, index) = path
    if len(inside.items) > 1 or not above:
        return remove(text, inside, index)
    return _removed(text, above)


def _ours(root: SettingsNode, agent: Agent) -> list[tuple[str, Any]]:
    """The groups that hold the gate's hook, by event."""
    hooks = root.value.get("hooks", {})
    groups = [(event, group) for event in (agent.before, agent.after) for group in hooks.get(event, [])]
    return [(event, group) for event, group in groups if any(map(_is_ours, group.get("hooks", [])))]


def _is_ours(handler: Any) -> bool:
    command = handler.get("command") if isinstance(handler, dict) else None
    if not isinstance(command, str):
        return False
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    return any(os.path.basename(word) == SCRIPT for word in words)


def _checked(text: str, agent: Agent, any_switch: bool = False) -> SettingsNode:
    """The settings, in the form that the agent reads; ValueError where they are not, or where they switch hooks off."""
    root = parse_settings(text)
    hooks = root.value.get("hooks", {})
    if not isinstance(hooks, dict):
        raise ValueError("its hooks are not an object")
    for event in (agent.before, agent.after):
        groups = hooks.get(event, [])
        if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
            raise ValueError(f"its hooks.{event} is not a list of objects")
        if not all(isinstance(group.get("hooks", []), list) for group in groups):
            raise ValueError(f"in its hooks.{event} there is an entry whose hooks are not a list")
    if not any_switch and (switch := switched_off(root.value, agent)):
        raise ValueError(f"{switch} switches the hook off: change that first")
    return root


def switched_off(settings: dict[str, Any], agent: Agent) -> str:
    """The setting by which an agent does not run the gate's hook; empty where there is none."""
    if agent.name == "claude":
        return "disableAllHooks" if settings.get("disableAllHooks") is True else ""
    config, tools = settings.get("hooksConfig"), settings.get("tools")
    config, tools = (part if isinstance(part, dict) else {} for part in (config, tools))
    if config.get("enabled") is False:
        return "hooksConfig.enabled"
    if isinstance(config.get("disabled"), list) and agent.own["name"] in config["disabled"]:
        return "hooksConfig.disabled"
    return "tools.enableHooks" if tools.get("enableHooks") is False else ""
