"""Git: what it publishes and discards, and the options that run other programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gradproof.gate.acts.act import ActScope, ActTarget, Effect
from gradproof.gate.acts.command import Command, reader
from gradproof.gate.acts.deeds import apply, assigned_parts
from gradproof.gate.acts.knowledge import Deed, WordPart
from gradproof.gate.acts.options import Parsed, parse
from gradproof.gate.acts.paths import TILDE, UNKNOWN, resolve, secret
from gradproof.gate.acts.places import here
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.targets import of_url, resolved
from gradproof.gate.acts.variables import assigned
from gradproof.gate.acts.word import Word

SHOWS = ("show", "log", "diff", "blame", "annotate", "cat-file", "whatchanged", "format-patch", "archive", "stash")
SHARED = {"main", "master", "develop", "development", "trunk", "production", "prod", "staging", "stable", "release"}
LEADING = Deed(values=frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"}))
RUNS = (  # settings whose value git runs, or loads
    *(
        "core.sshcommand",
        "core.pager",
        "core.editor",
        "core.fsmonitor",
        "core.hookspath",
        "core.askpass",
        "core.gitproxy",
    ),
    *(
        "sequence.editor",
        "diff.external",
        "credential.helper",
        "gpg.program",
        "uploadpack.packobjectshook",
        "init.templatedir",
    ),
    *(
        "include.path",
        "sendemail.smtpserver",
        "http.proxy",
        "core.worktree",
        "protocol.ext.allow",
        "interactive.difffilter",
    ),
)
RUNNING_PREFIXES = (
    "alias.",
    "filter.",
    "merge.",
    "difftool.",
    "mergetool.",
    "pager.",
    "browser.",
    "includeif.",
    "url.",
)
PUSH = Deed(values=frozenset({"-o", "--push-option", "--repo", "--receive-pack", "--exec"}))
LOSES = Deed(values=frozenset({"-s", "--source", "--pathspec-from-file", "-U"}))


@reader("git")
def git(command: Command) -> Output | None:
    """Options before the verb, then the verb."""
    parsed = parse(command.words, LEADING, stop=True)
    for setting in parsed.values("-c", "--config-env"):
        name, _, value = setting.text.partition("=")
        _setting(command, name, value)
    if (programs := parsed.value("--exec-path")) is not None:
        assigned(command.reading, "GIT_EXEC_PATH", [programs], command.state)
    for repository in parsed.values("--git-dir"):
        assigned(command.reading, "GIT_DIR", [repository], command.state)
    folder = parsed.value("-C") or parsed.value("--work-tree")
    if folder is not None:
        command.state = command.beside()
        texts = [resolve(text, cwd, command.reading.around.home) for text in folder.texts for cwd in command.state.cwds]
        command.state.cwds = tuple(text or UNKNOWN for text in texts)[:4]
    if not parsed.positional:
        command.act("read", "local")
        return None
    verb, *words = parsed.positional
    command.verb, command.words = verb.text.replace(UNKNOWN, "?"), words
    if command.verb in SHOWS:
        _shown(command)
    read = VERBS.get(command.verb)
    if read is not None:
        return read(command)
    known = command.deed.verbs
    deed = known.get(f"{command.verb} {words[0].text}") if words else None
    if deed is not None:
        command.verb, command.words = f"{command.verb} {words[0].text}", words[1:]
    deed = deed or known.get(command.verb)
    if deed is None:
        here(command, "execute")  # an alias, or a program called git-VERB
        return None
    apply(command, deed, parse(command.words, deed))
    return _printed(command)


def _shown(command: Command) -> None:
    """Secrets that are read out of commits: `show HEAD:.env`, `log -p -- .env`."""
    for word in command.words:
        path = word.text.rpartition(":")[2]
        if path and secret(path):
            command.touch("read", Word((path,)))


def _printed(command: Command) -> Output | None:
    around = command.reading.around
    if command.verb == "rev-parse":
        top = "--show-toplevel" in command.texts
        return Output(around.project or None, piped=True) if top else Output("0", piped=True)
    if command.verb in ("ls-files", "diff", "grep", "ls-tree") and (
        command.verb == "ls-files" or {"--name-only", "-l"} & set(command.texts)
    ):
        return Output(names=(".",), piped=True)
    if command.verb in ("describe", "branch", "symbolic-ref", "merge-base", "rev-list", "hash-object", "write-tree"):
        return None
    return None


def _setting(command: Command, name: str, value: str) -> None:
    """A setting by which git runs something is an act of its own."""
    name = name.lower()
    if (
        name in RUNS
        or name.startswith(RUNNING_PREFIXES)
        or name.endswith((".helper", ".program", ".command", ".textconv"))
    ):
        inner = command.beside(via=command.state.via | {"interpreter"})
        done = replace(command, state=inner)
        done.act("execute", "unknown", ActTarget("none", name), marks=(f"flag:{name}",))
        if value and name not in ("core.hookspath", "include.path", "core.worktree", "http.proxy"):
            command.shell(value.lstrip("!"), inner)


def _push(command: Command) -> None:
    """To which remote and branch, forced or not, and onto one that others use."""
    parsed = parse(command.words, PUSH)
    if runs := parsed.value("--receive-pack", "--exec"):
        command.act("execute", "unknown", ActTarget("none", runs.text), marks=("flag:receive-pack",))
    words = parsed.positional
    command.explain(*words)
    remote = words[0].text if words else "origin"
    forced = parsed.has("-f", "--force", "--force-with-lease", "--mirror", "--force-if-includes")
    deletes = parsed.has("-d", "--delete", "--mirror", "--prune")
    scope, name = _remote(command, remote)
    specs = [word for word in words[1:]] or [Word(("HEAD",))]
    if parsed.has("--all", "--mirror", "--tags"):
        specs.append(Word(("*",)))
    for spec in specs:
        for text in spec.texts:
            _published(command, name, scope, text, forced, deletes, parsed)


def _published(
    command: Command, remote: str, scope: ActScope, spec: str, forced: bool, deletes: bool, parsed: Parsed
) -> None:
    forced = forced or spec.startswith("+")
    source, colon, destination = spec.lstrip("+").partition(":")
    branch = (destination if colon else source).removeprefix("refs/heads/")
    deletes = deletes or (colon == ":" and not source)
    if UNKNOWN in branch:
        scope, branch = "unknown", "?"
    target = ActTarget("branch", f"{remote}/{branch}")
    marks = ["flag:no-verify"] if parsed.has("--no-verify") else []
    is_shared = branch in SHARED or branch.startswith(("release/", "releases/", "hotfix/")) or branch in ("*", "\ue000")
    if forced:
        marks += ["forced", *(["shared"] if is_shared else [])]
        command.act("rewrite_history", scope, target, marks=marks)
    if deletes:
        command.act("delete", scope, target, marks=[*marks, *(["forced", "shared"] if is_shared else [])])
    command.act("publish", scope, target, marks=marks)


def _remote(command: Command, remote: str) -> tuple[ActScope, str]:
    if remote.startswith("ext::") or "::" in remote:
        command.act("execute", "unknown", ActTarget("none", remote), marks=("flag:ext",))
    if UNKNOWN in remote:
        return "unknown", "?"
    if "://" in remote:
        target, scope = of_url(remote)
        return scope, str(target)
    if remote.startswith((".", "/", "~")):
        return "outside", remote
    if ":" in remote:
        return "remote", remote
    return "remote", remote


def _checkout(command: Command) -> None:
    """Switching is everyday work; overwriting what is not committed discards it."""
    parsed = parse(
        command.words, replace(LOSES, values=LOSES.values | {"-b", "-B", "--orphan", "-c", "-C", "-t", "--track"})
    )
    texts = command.texts
    discards = "--" in texts or parsed.has("-f", "--force", "--ours", "--theirs", "-p", "--discard-changes", "-B", "-C")
    discards = discards or any(text in (".", "*", "./", ":/") or ("/" in text and "." in text) for text in texts)
    if command.verb == "restore":
        discards = not (parsed.has("--staged", "-S") and not parsed.has("--worktree", "-W"))
    if not discards:
        here(command, "write")
        return
    marker = texts.index("--") + 1 if "--" in texts else 0
    paths = (
        [word for word in command.words[marker:] if not word.text.startswith("-")]
        if marker or command.verb == "restore"
        else []
    )
    for word in paths:
        command.touch("rewrite_history", word, folder=word.text in (".", ":/", "*"))
    if not paths:
        here(command, "rewrite_history")


def _update_ref(command: Command) -> None:
    """Moves a branch past all checks; what it led to may be lost."""
    texts = command.texts
    moved = next((text for text in texts if not text.startswith("-")), "")
    loses = {"-d", "--delete", "--stdin"} & set(texts) or moved == "HEAD" or moved.startswith("refs/heads/")
    here(command, "rewrite_history" if loses else "write")


def _bundle(command: Command) -> None:
    words = [word for word in command.words if not word.text.startswith("-")]
    creates = [word.text for word in words[:1]] == ["create"]
    for word in words[1:2]:
        command.touch("write" if creates else "read", word)
    if not words[1:]:
        here(command, "read")


def _apply(command: Command) -> None:
    """A patch: where to, and whether its paths may leave the folder."""
    parsed = parse(
        command.words, Deed(values=frozenset({"-p", "-C", "--directory", "--exclude", "--include", "-S", "-s"}))
    )
    for word in parsed.positional:
        command.touch("read", word)
    if parsed.has("--unsafe-paths"):
        command.touch("write", parsed.value("--directory") or Word((UNKNOWN,)), folder=True)
    elif folder := parsed.value("--directory"):
        command.touch("write", folder)
    here(command, "write")


def _format_patch(command: Command) -> None:
    parsed = parse(command.words, Deed(values=frozenset({"-o", "--output-directory", "-v", "--output"})))
    for folder in parsed.values("-o", "--output-directory", "--output"):
        command.touch("write", folder)
    here(command, "read" if parsed.has("--stdout") else "write")


def _maintenance(command: Command) -> None:
    """`start` has it run every hour."""
    command.act("persist", "home") if command.texts[:1] == ["start"] else here(command, "write")


def _lfs(command: Command) -> None:
    """`install` sets filters for all of the user's repositories."""
    if command.texts[:1] == ["install"] and not {"--local", "--worktree"} & set(command.texts):
        command.touch("write", Word((f"{TILDE}/.gitconfig",)))
    elif command.texts[:1] == ["push"]:
        command.act("publish", "remote", ActTarget("branch", "lfs"))
    else:
        here(command, "write")


def _reset(command: Command) -> None:
    hard = {"--hard", "--merge", "--keep"} & set(command.texts)
    command.explain(Word(("HEAD",)))
    here(command, "rewrite_history" if hard else "write")


def _branch(command: Command) -> None:
    parsed = parse(
        command.words, Deed(values=frozenset({"--sort", "--format", "--contains", "--merged", "-u", "--points-at"}))
    )
    if parsed.has("-D") or (parsed.has("-d", "--delete") and parsed.has("-f", "--force")):
        _named(command, "rewrite_history", parsed)
    elif parsed.has("-d", "--delete", "-m", "-M", "--move", "-c", "-f", "--force", "-u") or parsed.positional:
        here(command, "rewrite_history" if parsed.has("-M", "-f", "--force") else "write")
    else:
        here(command, "read")


def _named(command: Command, effect: Effect, parsed: Parsed) -> None:
    for word in parsed.positional or [Word(("HEAD",))]:
        here_scope: ActScope = "project" if command.reading.around.project else "outside"
        command.act(effect, here_scope, ActTarget("branch", f"./{word.text.replace(UNKNOWN, '?')}"))


def _clean(command: Command) -> None:
    dry = {"-n", "--dry-run"} & set(command.texts) or not any(
        "f" in text for text in command.texts if text.startswith("-")
    )
    paths = [word for word in command.words if not word.text.startswith("-")]
    if dry:
        here(command, "read")
        return
    for word in paths:
        command.touch("delete", word, folder=True)
    if not paths:
        for cwd in command.state.cwds:
            command.act("delete", "outside", ActTarget("path", cwd))  # files that git tracks stay


def _stash(command: Command) -> None:
    verb = next((text for text in command.texts if not text.startswith("-")), "push")
    command.verb = f"stash {verb}"
    here(command, "rewrite_history" if verb in ("drop", "clear") else "read" if verb in ("list", "show") else "write")


def _config(command: Command) -> None:
    """Settings: of the repository, of the user, of the machine; some make git run programs."""
    parsed = parse(command.words, Deed(values=frozenset({"-f", "--file", "--get", "--get-all", "--unset", "--type"})))
    words = [word.text for word in parsed.positional if word.text not in ("set", "unset", "get", "list", "edit")]
    reads = parsed.has("--get", "--get-all", "--list", "-l", "--get-regexp", "--show-origin") or "list" in command.texts
    reads = reads or (
        len(words) < 2 and not parsed.has("--unset", "--unset-all", "--add", "--replace-all", "-e", "--edit")
    )
    if parsed.value("--get"):
        reads = True
    if reads:
        command.act("read", "local")
        return
    name = words[0].lower() if words else ""
    runs = name in RUNS or name.startswith(RUNNING_PREFIXES) or name.endswith((".helper", ".program", ".command"))
    leads = name.startswith("remote.") and name.endswith((".url", ".pushurl", ".receivepack", ".uploadpack", ".proxy"))
    effect: Effect = "persist" if runs or leads else "write"
    if parsed.has("--system"):
        command.act(effect, "system", ActTarget("path", "/etc/gitconfig"))
    elif parsed.has("--global"):
        command.touch(effect, Word(("\ue003/.gitconfig",)))
    elif file := parsed.value("-f", "--file"):
        command.touch(effect, file)
    else:
        here(command, effect)
    if runs and len(words) > 1:
        command.shell(words[1].lstrip("!"), command.beside(via=command.state.via | {"interpreter"}))


def _remotes(command: Command) -> None:
    verb = command.texts[0] if command.words else ""
    command.verb = f"remote {verb}".strip()
    if verb == "set-url":  # a push that somebody allowed would go elsewhere
        return here(command, "persist", ("flag:url",))
    return here(
        command, "write" if verb in ("add", "set-url", "remove", "rm", "rename", "set-head", "set-branches") else "read"
    )


def _clone(command: Command) -> None:
    parsed = parse(command.words, command.deed.verbs["clone"])
    if config := parsed.value("-c", "--config"):
        _setting(command, *config.text.partition("=")[::2])
    if parsed.value("--upload-pack", "-u"):
        command.act("execute", "unknown", marks=("flag:upload-pack",))
    _template(command)
    words = parsed.positional
    for word in words[:1]:
        _source(command, word)
        _cloned(command, word, words[1:2])
    if len(words) > 1:
        command.touch("write", words[1])
    else:
        here(command, "write")


def _cloned(command: Command, source: Word, folder: Sequence[Word]) -> None:
    """What is run in the same call of a repository that was just cloned was fetched for it."""
    name = source.text.rstrip("/").removesuffix(".git").rpartition("/")[2].rpartition(":")[2]
    if command.reading.past or not name or not re.search(r"://|^[\w.-]+@[\w.-]+:", source.text):
        return
    for path in resolved(command.reading, folder[0] if folder else Word((name,)), command.state):
        command.state.fetched[path] = of_url(source.text)[0].name


def _template(command: Command) -> None:
    """The hooks of a template are run by what is done in the new repository."""
    if any(text == "--template" or text.startswith("--template=") for text in command.texts):
        here(command, "persist", ("flag:template",))


def _init(command: Command) -> None:
    parsed = parse(
        command.words, Deed(values=frozenset({"-b", "--initial-branch", "--template", "--separate-git-dir"}))
    )
    _template(command)
    for word in [*parsed.positional, *parsed.values("--separate-git-dir")]:
        command.touch("write", word)
    if not parsed.positional:
        here(command, "write")


def _index(command: Command) -> None:
    """What overwrites files with those of a commit discards changes."""
    overwrites = {"-f", "--force", "--reset", "-u", "-a", "--all"} & set(command.texts)
    here(command, "rewrite_history" if overwrites else "write")


def _moved(command: Command) -> None:
    for word in parse(command.words, Deed()).positional:
        command.touch("write", word)


def _removed(command: Command) -> None:
    """Files that git knows, so that they can be brought back; with -f their changes are lost."""
    parsed = parse(command.words, Deed(values=frozenset({"--pathspec-from-file"})))
    if parsed.has("--cached", "-n", "--dry-run"):
        return here(command, "write")
    forced = parsed.has("-f", "--force") or any("f" in name for name, _ in parsed.options if not name.startswith("--"))
    for word in parsed.positional:
        command.touch("delete", word, folder=parsed.has("-r", "-rf", "-fr"))
    if forced:
        here(command, "rewrite_history")
    return None


def _tool(command: Command) -> None:
    """Shows differences in another program."""
    parsed = parse(command.words, Deed(values=frozenset({"-x", "--extcmd", "-t", "--tool"})))
    for code in parsed.values("-x", "--extcmd"):
        command.shell(code.text, command.beside(via=command.state.via | {"interpreter"}))
    here(command, "execute")


def _svn(command: Command) -> None:
    if {"dcommit", "set-tree", "commit-diff"} & set(command.texts):
        command.act("publish", "remote", ActTarget("none", "svn"))
    else:
        here(command, "write")


def _sent(command: Command) -> None:
    """Commands that push past `git push`, or have their own way to."""
    command.act("publish", "remote", ActTarget("branch", " ".join(command.texts).replace(UNKNOWN, "?")[:120]))


def _source(command: Command, word: Word) -> None:
    text = word.text
    if text.startswith("ext::") or "::" in text:
        command.act("execute", "unknown", ActTarget("none", text), marks=("flag:ext",))
    elif "://" in text:
        target, scope = of_url(text)
        command.act("read", scope, target)
    elif ":" in text and not text.startswith((".", "/")):
        command.act(
            "read",
            "remote",
            ActTarget("host", text.partition(":")[0].rsplit("@", 1)[-1], within=text.partition(":")[2]),
        )
    else:
        command.touch("read", word)


def _fetch(command: Command) -> None:
    parsed = parse(
        command.words, Deed(values=frozenset({"--depth", "-j", "--upload-pack", "-o", "--refmap", "-s", "-X"}))
    )
    if parsed.value("--upload-pack"):
        command.act("execute", "unknown", marks=("flag:upload-pack",))
    remote = parsed.positional[0].text if parsed.positional else "origin"
    if "::" in remote:
        command.act("execute", "unknown", ActTarget("none", remote), marks=("flag:ext",))
    command.act("read", "remote", ActTarget("host", remote.replace(UNKNOWN, "?")))
    if command.verb == "pull":
        here(command, "rewrite_history" if parsed.has("-f", "--force") else "write")


def _rebase(command: Command) -> None:
    """Commits are made anew: the old ones are gone from their branch."""
    parsed = parse(command.words, Deed(values=frozenset({"-x", "--exec", "-s", "-X", "--onto"})))
    for code in parsed.values("-x", "--exec"):
        command.shell(code.text, command.beside())
    goes_on = parsed.has("--abort", "--continue", "--skip", "--quit", "--edit-todo", "--show-current-patch")
    here(command, "write" if goes_on else "rewrite_history")


def _submodule(command: Command) -> None:
    texts = command.texts
    if texts[:1] == ["deinit"] and {"-f", "--force"} & set(texts):
        return here(command, "rewrite_history")
    if "foreach" in texts:
        rest = [text for text in texts[texts.index("foreach") + 1 :] if not text.startswith("--")]
        command.shell(" ".join(rest), command.beside())
    return here(command, "read" if texts[:1] in ([], ["status"]) else "write")


def _bisect(command: Command) -> Output | None:
    if command.texts[:1] == ["run"]:
        return command.again(command.words[1:])
    here(command, "write")
    return None


def _grep(command: Command) -> Output | None:
    parsed = parse(command.words, Deed(values=frozenset({"-e", "-f", "-A", "-B", "-C", "-m", "--threads", "-O"})))
    if runs := parsed.value("-O", "--open-files-in-pager"):
        command.shell(runs.text, command.beside())
    here(command, "read")
    for part, word in assigned_parts((WordPart(), WordPart("read", "path", True)), parsed.positional):
        if part.effect:
            command.touch("read", word)
    return Output(names=(".",), piped=True) if parsed.has("-l", "--name-only") else None


def _archive(command: Command) -> None:
    parsed = parse(
        command.words, Deed(values=frozenset({"-o", "--output", "--prefix", "--format", "--remote", "--exec"}))
    )
    if remote := parsed.value("--remote"):
        _source(command, remote)
    else:
        here(command, "read")
    if parsed.value("--exec"):
        command.act("execute", "unknown", marks=("flag:exec",))
    if output := parsed.value("-o", "--output"):
        command.touch("write", output)


def _worktree(command: Command) -> None:
    verb = command.texts[0] if command.words else "list"
    command.verb = f"worktree {verb}"
    words = [word for word in command.words[1:] if not word.text.startswith("-")]
    if verb in ("add", "move"):
        for word in words[:1]:
            command.touch("write", word)
    elif verb == "remove":
        for word in words[:1]:
            command.touch("delete", word, folder=True)
    else:
        here(command, "read" if verb == "list" else "write")


def _tag(command: Command) -> None:
    texts = command.texts
    if {"-d", "--delete", "-f", "--force"} & set(texts):
        here(command, "rewrite_history")
    else:
        here(command, "write" if any(not text.startswith("-") for text in texts) else "read")


def _commit(command: Command) -> None:
    here(command, "write", ("flag:amend",) if "--amend" in command.texts else ())


VERBS = {
    "push": _push,
    **dict.fromkeys(("checkout", "switch", "restore"), _checkout),
    "reset": _reset,
    "branch": _branch,
    "clean": _clean,
    "stash": _stash,
    "config": _config,
    "remote": _remotes,
    "clone": _clone,
    **dict.fromkeys(("fetch", "pull", "ls-remote"), _fetch),
    "rebase": _rebase,
    "submodule": _submodule,
    "bisect": _bisect,
    "grep": _grep,
    "archive": _archive,
    "worktree": _worktree,
    "tag": _tag,
    "commit": _commit,
    "update-ref": _update_ref,
    "bundle": _bundle,
    "apply": _apply,
    "format-patch": _format_patch,
    "maintenance": _maintenance,
    "lfs": _lfs,
    "init": _init,
    **dict.fromkeys(("checkout-index", "read-tree"), _index),
    "mv": _moved,
    "rm": _removed,
    **dict.fromkeys(("difftool", "mergetool"), _tool),
    "svn": _svn,
    **dict.fromkeys(("send-pack", "http-push", "p4", "annex"), _sent),
}
