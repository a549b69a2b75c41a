"""Places: acts on the folder that a command runs in, and on what its words name."""

from __future__ import annotations

from collections.abc import Sequence

from gradproof.gate.acts.act import ActScope, ActTarget, Effect
from gradproof.gate.acts.command import Command
from gradproof.gate.acts.held_files import recipe_from
from gradproof.gate.acts.paths import TILDE, UNKNOWN, is_loopback, looks_like_path, place, unglobbed, within
from gradproof.gate.acts.targets import fetch_and_run, of_url
from gradproof.gate.acts.word import Word


def here(command: Command, effect: Effect, marks: Sequence[str] = ()) -> None:
    """An act on the folder that the command runs in."""
    if command.state.elsewhere is not None:
        command.act(effect, "local", marks=marks)
        return
    for cwd in command.state.cwds:
        if not cwd:
            stays: ActScope = "project" if effect in ("read", "write") else "outside"
            command.act(effect, stays, ActTarget("path", "."), marks=marks)
            continue
        if UNKNOWN in cwd:
            command.act(effect, "unknown", ActTarget("path", "?"), marks=marks)
            continue
        if effect in ("execute", "install") and (host := recipe_from(command.state, cwd)):
            command.reading.acts.append(fetch_and_run(command.program, host, command.state))
            continue
        around = command.reading.around
        inside = around.project and within(cwd, around.project)
        located = place(cwd, effect if not inside else "write", around, cwd)
        if located is not None:
            command.act(effect, "project" if inside else located[1], located[0], marks=marks)


def locate(
    command: Command, effect: Effect, kind: str, word: Word, folder: bool = False, marks: Sequence[str] = ()
) -> None:
    """An act on what a word of some kind names."""
    if kind in ("path", "folder"):
        command.touch(effect, word, folder=folder or kind == "folder", marks=marks)
        return
    command.reading.explained.update(word.texts)
    for text in word.texts:
        text = unglobbed(text)
        if kind == "host" and text.startswith("+"):  # dig's options
            continue
        if UNKNOWN in text and kind not in ("package", "name", "process"):
            command.act(effect, "unknown", ActTarget("none", text.replace(UNKNOWN, "?")), marks=marks)
        elif kind == "url":
            target, scope = of_url(text)
            command.act(effect, scope, target, marks=marks)
        elif kind in ("host", "hostpath"):
            of_host(command, effect, text, kind, marks)
        elif kind == "process":
            everything = text in ("-1", "0", ".", ".*", "*", "1")
            scope = "unknown" if UNKNOWN in text else "root" if everything else "local"
            command.act(effect, scope, ActTarget("process", text.replace(UNKNOWN, "?")), marks=marks)
        elif kind == "device":
            command.act(effect, "device", ActTarget("path", text), marks=marks)
        elif kind == "resource":
            command.act(effect, "remote", ActTarget("resource", text), marks=marks)
        elif kind in ("service", "user"):
            command.act(effect, "system", ActTarget("resource", text), marks=marks)
        elif kind == "package":
            command.act(effect, "system", ActTarget("package", text.replace(UNKNOWN, "?")), marks=marks)
        elif kind == "container":
            command.act(effect, "local", ActTarget("resource", text), marks=marks)
        elif kind == "database":
            target, scope = of_url(text) if "://" in text else (ActTarget("table", text), "local")
            command.act(effect, scope, target, marks=marks)
        else:
            command.act(effect, "local", ActTarget("none", text), marks=marks)


def of_host(command: Command, effect: Effect, text: str, kind: str, marks: Sequence[str] = ()) -> None:
    """`user@host`, `host:path`; without a colon, `hostpath` is a path here."""
    if kind == "hostpath" and "://" not in text:
        host, colon, inner = text.partition(":")
        if not colon or "/" in host:
            command.touch("read" if effect == "read" else "write", Word((text,)), folder=False, marks=marks)
            return
        host = host.rsplit("@", 1)[-1]
        scope: ActScope = "local" if is_loopback(host) else "remote"
        command.act(effect, scope, ActTarget("host", host.lower(), within=inner), marks=marks)
        return
    target, scope = of_url(text)
    command.act(effect, scope, target, marks=marks)


def act_on_argument(command: Command, word: Word, effect: Effect) -> None:
    """A word of a program that is not known: a path, a URL or a host lends it its scope."""
    text = word.text
    value = text.partition("=")[2] if text.startswith("-") else text
    if not word.known:
        command.act(effect, "unknown", why="an argument that is made while the call runs")
    elif "://" in value:
        target, scope = of_url(value)
        command.act(effect, scope, target)
    elif looks_like_path(word.texts[0]) and not text.startswith("-") and " " not in text:
        command.touch(effect, word)
    elif value.startswith(("/", "~", "../")) and " " not in value:
        command.touch(effect, Word((TILDE + value[1:] if value.startswith("~") else value,)))
