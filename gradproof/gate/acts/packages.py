"""Package managers: what they install, and where."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from gradproof.gate.acts.act import ActTarget, Effect
from gradproof.gate.acts.command import READERS, Command, reader
from gradproof.gate.acts.deeds import lead_out
from gradproof.gate.acts.held_files import recipe_from
from gradproof.gate.acts.knowledge import Deed, knowledge
from gradproof.gate.acts.options import parse
from gradproof.gate.acts.paths import TILDE, UNKNOWN
from gradproof.gate.acts.places import act_on_argument, here, locate
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.targets import fetch_and_run
from gradproof.gate.acts.variables import assigned
from gradproof.gate.acts.word import Word

FROM_REPOSITORY = re.compile(r"(?:github|gitlab|bitbucket|gist):|[\w-][\w.-]*/[\w.-]+(?:#|$)")  # not @scope/name
MOST_PACKAGE = 2**15  # characters of a package.json that is read
MAY_RUN = re.compile(r"\$\(|\$\{|[`;|&<>]")  # in a variable that is given to make


@reader("pip")
def pip(command: Command) -> Output | None:
    """Into a virtual environment of the project, the user's home, or the system."""
    deed = Deed(
        values=frozenset(
            {
                "-r",
                "--requirement",
                "-c",
                "--constraint",
                "-i",
                "--index-url",
                "--extra-index-url",
                "-t",
                "--target",
                "--prefix",
                "-e",
                "--editable",
                "-f",
                "--find-links",
                "--proxy",
                "--cert",
                "--python",
                "--root",
            }
        )
    )
    parsed = parse(command.words, deed)
    words = parsed.positional
    verb = words[0].text if words else "help"
    command.verb = verb
    if verb == "config" and {"set", "unset", "edit"} & {word.text for word in words}:
        command.touch("write", Word((f"{TILDE}/.config/pip/pip.conf",)))
        return None
    if verb in (
        "list",
        "show",
        "freeze",
        "check",
        "search",
        "index",
        "help",
        "config",
        "debug",
        "inspect",
        "hash",
        "cache",
    ):
        command.act("read", "local")
        return None
    if verb in ("download", "wheel"):
        here(command, "write")
        return None
    for name in ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--proxy"):
        for url in parsed.values(name):
            locate(command, "fetch_and_run", "url", url)
    packages = [*words[1:], *parsed.values("-e", "--editable")]
    for package in packages:
        if "://" in package.text:
            locate(command, "fetch_and_run", "url", Word((package.text.removeprefix("git+"),)))
    effect: Effect = "install" if verb == "install" else "delete" if verb == "uninstall" else "execute"
    target = parsed.value("-t", "--target", "--prefix", "--root")
    name = ActTarget("package", " ".join(word.text for word in packages).replace(UNKNOWN, "?"))
    if target is not None:
        command.touch("write", target)
    if parsed.has("--break-system-packages", "--system"):
        command.act(effect, "system", name, marks=("flag:system",))
    elif parsed.has("--user"):
        command.act(effect, "home", name)
    else:
        command.act(effect, "project" if command.state.venv or target is not None else "system", name)
    return None


EXEC = Deed(values=frozenset({"-c", "--call", "-p", "--package", "-w", "--workspace"}))


@reader("npm")
def npm(command: Command) -> Output | None:
    """npm, yarn, pnpm, bun: scripts of the project, its packages, or global ones."""
    parsed = parse(
        command.words,
        Deed(
            values=frozenset(
                {
                    "--prefix",
                    "-w",
                    "--workspace",
                    "--registry",
                    "--filter",
                    "-C",
                    "--cwd",
                    "--dir",
                    "--script-shell",
                    "--node-options",
                }
            )
        ),
    )
    words = [word.text for word in parsed.positional]
    if command.program == "bun" and parsed.has("-e", "--eval", "-p", "--print"):
        at = next(i for i, text in enumerate(command.texts) if text.startswith(("-e", "--eval", "-p", "--print")))
        return READERS["interpreter"](replace(command, program="node", words=command.words[at:]))
    is_global = parsed.has("-g", "--global", "--location") or words[:1] == ["global"]
    if words[:1] == ["global"]:
        words = words[1:]
    verb = words[0] if words else "install"
    command.verb = verb
    _scripts(command, words[1] if verb in ("run", "run-script") and len(words) > 1 else verb)
    elsewhere = parsed.values("--prefix", "-C", "--cwd", "--dir")
    for folder in elsewhere:
        command.touch("execute", folder, folder=True)
    if parsed.has("--script-shell", "--node-options"):
        command.act("execute", "unknown", marks=("flag:script-shell",))
    if registry := parsed.value("--registry"):
        locate(command, "fetch_and_run", "url", registry)
    name = ActTarget("package", " ".join(words[1:]).replace(UNKNOWN, "?"))
    if verb in ("install", "i", "add", "ci", "update", "up", "upgrade", "link", "dedupe", "rebuild"):
        for text in words[1:]:
            if "://" in text or text.startswith("git+"):
                locate(command, "fetch_and_run", "url", Word((text.removeprefix("git+"),)))
            elif FROM_REPOSITORY.match(text):
                _fetched(command, Word((text,)))
            elif (path := text.removeprefix("file:")).startswith((".", "/", "~")):  # its scripts run
                command.touch("execute", Word((TILDE + path[1:] if path.startswith("~") else path,)))
        _installed(command, "install", is_global, name)
    elif verb in ("uninstall", "remove", "rm", "un", "prune"):
        _installed(command, "install", is_global, name)
    elif verb in ("publish", "unpublish", "deprecate", "dist-tag", "owner", "access", "team"):
        reads = verb in ("dist-tag", "owner", "access", "team") and words[1:2] in (["ls"], ["list"])
        effect: Effect = (
            "read"
            if reads
            else "delete"
            if verb == "unpublish"
            else "publish"
            if verb in ("publish", "dist-tag", "deprecate")
            else "change_rights"
        )
        if effect == "publish" and parsed.has("--dry-run"):
            effect = "read"
        command.act(effect, "remote", name)
    elif verb in (
        "ls",
        "list",
        "outdated",
        "view",
        "info",
        "why",
        "audit",
        "search",
        "config",
        "root",
        "bin",
        "prefix",
        "whoami",
        "help",
        "explain",
        "doctor",
        "fund",
        "ping",
    ):
        if verb == "config" and words[1:2] == ["set"]:
            command.touch("write", Word((f"{TILDE}/.npmrc",)))
        elif verb == "audit" and "fix" in words:
            here(command, "install")
        else:
            command.act("read", "local")
    elif verb == "set":
        command.touch("write", Word((f"{TILDE}/.npmrc",)))
    elif verb in ("token", "login", "adduser", "logout"):
        command.act("change_rights", "remote", name)
    elif verb in ("dlx", "create") and len(words) > 1:
        command.act("fetch_and_run", "remote", name)
    elif verb in ("exec", "x", "init") and len(words) > 1:
        return _executed(command, verb)
    elif verb == "cache":
        command.act(
            "read" if "ls" in words or "verify" in words else "delete", "home" if "clean" in words else "local", name
        )
    else:
        here(command, "execute")
        if command.program == "bun":
            lead_out(command, command.deed, parsed)
    return None


def _scripts(command: Command, name: str) -> None:
    """The script that is run, where its package.json was written in this session."""
    names = ("preinstall", "install", "postinstall", "prepare") if name in ("install", "i", "ci") else ()
    for cwd in command.state.cwds:
        text = command.state.written.get(f"{cwd}/package.json", "")
        if not text or len(text) > MOST_PACKAGE:
            continue
        try:
            scripts = json.loads(text)["scripts"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        for script in (f"pre{name}", name, f"post{name}", *names):
            if isinstance(scripts, dict) and isinstance(code := scripts.get(script), str):
                command.shell(code, command.beside(via=command.state.via | {"interpreter"}))


def _executed(command: Command, verb: str) -> Output | None:
    """`npm exec -- tsc --noEmit`: a command, in which names are first those of the project's packages."""
    at = next(i for i, word in enumerate(command.words) if word.text == verb) + 1
    parsed = parse(command.words[at:], EXEC, stop=True)
    for code in parsed.values("-c", "--call"):
        command.shell(code.text, command.beside())
    if parsed.has("-y", "--yes", "-p", "--package"):
        _fetched(command, parsed.value("-p", "--package") or next(iter(parsed.positional), Word()))
    elif parsed.positional and (verb == "init" or parsed.positional[0].text not in knowledge().programs):
        _packaged(command, parsed.positional[0])
        for word in parsed.positional[1:]:
            act_on_argument(command, word, "execute")
    else:
        return command.again(parsed.positional)
    return None


def _installed(command: Command, effect: Effect, is_global: bool, name: ActTarget) -> None:
    hosts = (host for cwd in command.state.cwds if (host := recipe_from(command.state, cwd)))
    if host := next(hosts, ""):  # its scripts run
        command.reading.acts.append(fetch_and_run(command.program, host, command.state))
    if is_global:
        command.act(effect, "system", name, marks=("flag:global",))
    else:
        command.act(effect, "project" if command.reading.around.project else "outside", name)


TOOLS = {"remove_directory": "rm", "remove": "rm", "copy": "cp", "copy_directory": "cp", "rename": "mv"}
TOOLS |= {"create_symlink": "ln", "make_directory": "mkdir", "rm": "rm"}


@reader("make")
def make(command: Command) -> Output | None:
    """Runs what the folder's own file says."""
    if command.program == "cmake" and command.texts[:1] == ["-E"]:  # tools of its own: rm, copy, env …
        return command.again(
            [Word((TOOLS.get(w.text, w.text),)) if not i else w for i, w in enumerate(command.words[1:])]
        )
    parsed = parse(command.words, command.deed)
    if command.program in ("cmake", "gradle", "gradlew", "mvn"):
        for file in parsed.values("-P", "-p", "--project-dir", "-f", "--file", "-C", "-I", "--init-script"):
            command.touch("execute", file)
    for code in parsed.values("--eval", "-E") if command.program in ("make", "gmake") else ():
        command.unknown(f"a rule that is given to make: {code.text[:60].replace(UNKNOWN, '?')}")
    folder = parsed.value("-C", "--directory", "--cwd", "--dir", "--manifest-path")
    file = parsed.value("-f", "--file", "--makefile")
    if folder is not None:
        command.touch("execute", folder)
    elif file is not None and (file.text in ("-", "/dev/stdin") or file.inner is not None):
        command.unknown("rules that come out of a pipe")
    elif file is not None:
        command.touch("execute", file)
    else:
        here(command, "execute")
    if parsed.has("--shell", "--shell-arg"):
        command.unknown("another shell for its rules")
    lead_out(command, command.deed, parsed)
    if command.program == "lerna" and parsed.positional[:1] and parsed.positional[0].text == "exec":
        command.again(parsed.positional[1:])
    for word in parsed.positional:
        name, equals, value = word.text.partition("=")
        if equals and knowledge().variable(name) is not None:
            assigned(command.reading, name, [Word((value,))], command.state)
        elif equals and value.startswith(("/", "~", "..")):
            command.touch("execute", Word((value,)))
        elif equals and MAY_RUN.search(value):
            command.unknown("a variable that make may run")
    return None


@reader("npx")
def npx(command: Command) -> Output | None:
    """A package's program; with -y, one that is fetched for it."""
    parsed = parse(command.words, Deed(values=frozenset({"-p", "--package", "-c", "--call"})), stop=True)
    for code in parsed.values("-c", "--call"):
        command.shell(code.text, command.beside())
    words = parsed.positional
    if parsed.has("-y", "--yes", "-p", "--package") or command.program in ("uvx", "bunx"):
        _fetched(command, words[0] if words else Word())
        return None
    known = knowledge()
    if words and (words[0].text in known.programs or known.interpreters.get(words[0].text) == "node"):
        return command.again(words)
    for word in words[:1]:
        _packaged(command, word)
    for word in words[1:]:
        act_on_argument(command, word, "execute")
    return None


def _packaged(command: Command, name: Word) -> None:
    """A program of a package: one that projects have, or one that would be fetched."""
    if name.text in knowledge().programs or name.text in knowledge().packaged or name.starts("./", "node_modules/"):
        here(command, "execute")
    else:
        _fetched(command, name)


def _fetched(command: Command, name: Word) -> None:
    command.act("fetch_and_run", "remote", ActTarget("package", name.text.replace(UNKNOWN, "?")))


@reader("go_run")
def go_run(command: Command) -> Output | None:
    """A package of this module, or with a version or a host in its name one that is fetched."""
    parsed = parse(command.words, command.deed, stop=True)
    for code in parsed.values("-exec"):
        command.shell(code.text, command.beside())
    for word in parsed.positional[:1]:
        if "@" in word.text or (
            not word.starts(".", "/", "~") and "." in word.text.partition("/")[0] and "/" in word.text
        ):
            _fetched(command, word)
        else:
            command.touch("execute", word)
    for word in parsed.positional[1:]:
        act_on_argument(command, word, "execute")
    return None


@reader("pipx")
def pipx(command: Command) -> Output | None:
    verb = next((text for text in command.texts if not text.startswith("-")), "list")
    command.verb = verb
    if verb == "run":
        command.act("fetch_and_run", "remote", ActTarget("package", command.texts[-1].replace(UNKNOWN, "?")))
    else:
        command.act("read" if verb in ("list", "environment") else "install", "local" if verb == "list" else "home")
    return None


@reader("uv")
def uv(command: Command) -> Output | None:
    """`uv pip` is pip, `uv run` runs."""
    parsed = parse(
        command.words,
        Deed(
            values=frozenset(
                {"--directory", "--project", "--python", "-p", "--with", "--index-url", "--extra", "--group"}
            )
        ),
        stop=True,
    )
    words = parsed.positional
    verb = words[0].text if words else "help"
    if verb == "pip":
        return command.again([Word(("pip",)), *words[1:]], command.beside(venv=not parsed.has("--system")))
    if verb == "run":
        inner = parse(
            words[1:],
            Deed(values=frozenset({"--with", "--python", "-p", "--extra", "--group", "--env-file", "--directory"})),
            stop=True,
        ).positional
        return command.again(inner) if inner else None
    command.verb = verb
    if verb == "publish":
        command.act("publish", "remote")
    elif verb in ("tool", "python") and len(words) > 1 and words[1].text in ("install", "upgrade", "uninstall"):
        command.act("install", "home")
    elif verb in ("add", "sync", "lock", "remove", "venv", "init", "export"):
        here(command, "install")
    elif verb in ("tree", "version", "help", "cache") or (verb in ("tool", "python") and "list" in command.texts):
        command.act("read", "local")
    else:
        here(command, "execute")
    return None
