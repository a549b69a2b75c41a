"""The location of a store: the default folder, and whether it lies inside the project to be protected."""

from __future__ import annotations

import os
from os.path import expanduser
from pathlib import Path

from gradproof.gate.acts.paths import Surroundings


def default_folder() -> Path:
    """`$XDG_STATE_HOME/gradproof/gates/default`; ~/.local/state stands in for a variable that is unset or relative."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path(expanduser("~/.local/state"))) / "gradproof" / "gates" / "default"


def socket_path(store: Path) -> Path:
    """Where the daemon of a store listens for agents; `GRADPROOF_GATE_SOCKET` says otherwise. `client.py` computes the
    same."""
    named = os.environ.get("GRADPROOF_GATE_SOCKET")
    return Path(named) if named else Path(f"{os.path.abspath(store)}.socket") / "gate.sock"


def warning(store: Path) -> str:
    """One sentence where the store lies inside the project of the working directory; empty elsewhere."""
    project = Surroundings.of(os.getcwd(), expanduser("~")).project
    if not project or not store.resolve().is_relative_to(Path(project).resolve()):
        return ""
    return (
        f"the store {store} is inside the project {project}, where an agent's programs can change it; use a folder"
        f" outside the project, such as the default, {default_folder()}"
    )
