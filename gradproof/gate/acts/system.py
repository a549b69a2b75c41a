"""System programs that need more than a table entry: dd, tar, kill, systemctl, crontab, chmod, ln, mail."""

from __future__ import annotations

import re

from gradproof.gate.acts.act import ActScope, ActTarget, Effect
from gradproof.gate.acts.command import Command, reader
from gradproof.gate.acts.deeds import apply
from gradproof.gate.acts.held_files import fetched_from
from gradproof.gate.acts.knowledge import Deed, knowledge
from gradproof.gate.acts.options import parse
from gradproof.gate.acts.paths import TILDE, UNKNOWN
from gradproof.gate.acts.places import here, locate
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.targets import of_url, resolved
from gradproof.gate.acts.word import Word

SETUID = re.compile(r"(?:^|,)[ugoa]*[+=][rwxX]*s|^0*[2-7]\d{3}$")

GATE_PROCESSES = ("gradproof gate serve", "gradproof gate learn", "gradproof gate hook", "gradproof gate mcp-proxy")


@reader("dd")
def dd(command: Command) -> Output | None:
    for word in command.words:
        name, _, value = word.text.partition("=")
        if name in ("if", "of"):
            path = Word(tuple(text.partition("=")[2] for text in word.texts), word.fetched, word.secret)
            command.touch("read" if name == "if" else "write", path)
        del value
    return None


RUNS_FROM_TAR = (
    *("--to-command", "-I", "--use-compress-program", "--checkpoint-action", "--rsh-command", "--rmt-command"),
    *("-F", "--info-script", "--new-volume-script"),
)


@reader("tar")
def tar(command: Command) -> Output | None:
    """Creates or takes apart an archive; the first word may be flags without a dash."""
    words = command.words
    if words and not words[0].text.startswith("-") and re.fullmatch(r"[A-Za-z]+", words[0].text):
        words = [Word((f"-{words[0].text}",)), *words[1:]]
    deed = Deed(
        values=frozenset(
            {
                "-f",
                "-C",
                "--file",
                "--directory",
                "--exclude",
                "-T",
                "-X",
                *RUNS_FROM_TAR,
                "--transform",
            }
        )
    )
    parsed = parse(words, deed)
    for runs in parsed.values(*RUNS_FROM_TAR):
        text = runs.text.removeprefix("exec=")
        if text not in ("pigz", "zstd", "gzip", "xz", "bzip2", "lz4", "pbzip2", "zstdmt"):
            command.shell(text, command.beside())
    file, folder = parsed.value("-f", "--file"), parsed.value("-C", "--directory")
    creates = parsed.has("-c", "--create", "-r", "-u", "--append", "--update")
    lists = parsed.has("-t", "--list")
    host = (
        "" if file is None or parsed.has("--force-local") else file.text.partition(":")[0] if ":" in file.text else ""
    )
    there = bool(host) and "/" not in host
    if file is not None and there and not creates:
        _archive_there(command, "read", file)
    elif file is not None and there:
        pass  # once it is known what it holds
    elif file is not None and file.text != "-":
        command.touch("write" if creates else "read", file)
    state = command.beside()
    if folder is not None and creates:
        inner = Command(command.reading, "tar", [], state, command.stdin, command.walk)
        state.cwds = tuple(path for path in resolved(command.reading, folder, command.state)) or (UNKNOWN,)
    else:
        inner = command
    if creates:
        for word in parsed.positional:
            inner.touch("read", word, folder=True)
        if parsed.has("--remove-files"):
            for word in parsed.positional:
                inner.touch("delete", word, folder=True)
        if file is not None and there:
            _archive_there(command, "send", file)
    elif not lists:
        if parsed.has("-P", "--absolute-names"):
            command.act("write", "unknown", marks=("flag:absolute-names",))
        _unpacked(command, file, folder)
        if folder is not None:
            command.touch("write", folder, folder=True)
        elif not parsed.has("-O", "--to-stdout"):
            here(command, "write")
    return None


def _unpacked(command: Command, archive: Word | None, folder: Word | None) -> None:
    """What an archive holds that was fetched in this call was fetched for it, too."""
    state = command.state
    host = command.stdin.fetched if archive is None or archive.text == "-" else ""
    if archive is not None and not host:
        paths = resolved(command.reading, archive, state)
        host = next((host for path in paths if (host := fetched_from(state, path))), "")
    if host:
        folders = resolved(command.reading, folder, state) if folder is not None else state.cwds
        state.fetched.update(dict.fromkeys((path for path in folders if path), host))


def _archive_there(command: Command, effect: Effect, file: Word) -> None:
    """`tar cf HOST:FILE`: the archive lies on another machine."""
    host, _, path = file.text.partition(":")
    scope: ActScope = "unknown" if UNKNOWN in host else "remote"
    command.act(effect, scope, ActTarget("host", host.rpartition("@")[2].replace(UNKNOWN, "?"), within=path))


@reader("unzip")
def unzip(command: Command) -> Output | None:
    parsed = parse(command.words, command.deed)
    _unpacked(command, next(iter(parsed.positional), None), parsed.value("-d"))
    return apply(command, command.deed, parsed)


@reader("chmod")
def chmod(command: Command) -> Output | None:
    """The mode says whether rights are given for later."""
    parsed = parse(command.words, command.deed)
    words = parsed.positional
    reference = parsed.has("--reference")
    mode = "" if reference else words[0].text if words else ""
    taken = any(re.fullmatch(r"-[rwxXst]+", text) for text in command.texts)  # chmod -x f: the mode looks like a flag
    if command.program == "chattr":
        taken, words = True, [word for word in words if not word.text.startswith(("+", "="))]
    if taken:
        mode, words = "", [Word(("-",)), *words]
    folder = parsed.has("-R", "--recursive")
    for word in words if reference else words[1:]:
        acts = command.touch("change_rights", word, folder=folder)
        if command.program == "chmod" and SETUID.search(mode):
            for act in acts:
                command.act("escalate", act.scope, act.target)
    return None


@reader("install")
def install(command: Command) -> Output | None:
    """A copy, whose mode may give its owner's rights to whoever runs it."""
    parsed, acts = parse(command.words, command.deed), command.reading.acts
    first = len(acts)
    output = apply(command, command.deed, parsed)
    mode = parsed.value("-m", "--mode")
    if mode is not None and SETUID.search(mode.text):
        for act in [act for act in acts[first:] if act.effect == "write"]:
            command.act("escalate", act.scope, act.target)
    return output


@reader("kill")
def kill(command: Command) -> Output | None:
    """One's own processes; all of them are everything."""
    names = command.program in ("pkill", "killall")
    signal = re.compile(r"-(?:SIG)?[A-Z][A-Z0-9+-]+" if names else r"(?!)")
    parsed = parse(
        [word for word in command.words if not signal.fullmatch(word.text)],
        Deed(values=frozenset({"-s", "--signal", "-u", "-U", "-P", "-g", "-t", "-n"} - (set() if names else {"-u"}))),
    )
    words = parsed.positional
    if names and words and re.fullmatch(r"-\d+", words[0].text):
        words = words[1:]
    if (not names and len(words) > 1 and words[0].text.startswith("-") and words[0].text != "-1") or (
        not names and words and len(words) > 1 and words[0].text == "-1" and words[1].text != "-1"
    ):
        words = words[1:]
    if parsed.has("-l", "-L", "--list") or "-0" in command.texts[:1]:  # asks whether they are there
        command.act("read", "local")
        return None
    users = parsed.values("-u", "-U")
    for word in users:
        command.act("stop", "root" if not words else "local", ActTarget("process", f"user {word.text}"))
    for word in words:
        if names and _is_gate(word.text):
            command.act("stop", "own", ActTarget("process", word.text), marks=("judging",))
        elif names and word.text.strip("^$") in knowledge().daemons:
            command.act("stop", "system", ActTarget("process", word.text))
        else:
            locate(command, "stop", "process", word)
    if not words and not users:
        command.act("stop", "unknown" if command.stdin.piped else "local", ActTarget("process", "?"))
    return None


def _is_gate(pattern: str) -> bool:
    """Whether a pattern for processes is meant for the gate itself."""
    pattern = pattern.strip("^$").lower()
    return "gradproof" in pattern or (len(pattern) > 3 and any(pattern in name for name in GATE_PROCESSES))


@reader("systemctl")
def systemctl(command: Command) -> Output | None:
    parsed = parse(
        command.words,
        Deed(values=frozenset({"-H", "--host", "-n", "-t", "--type", "-p", "--property", "-o", "--lines"})),
    )
    words = parsed.positional
    if command.program in ("service", "rc-service"):
        words = [words[1], words[0]] if len(words) > 1 else words
    verb = words[0].text if words else "status"
    command.verb = verb
    effects: dict[str, Effect] = {
        **dict.fromkeys(
            [
                "status",
                "show",
                "list-units",
                "list-unit-files",
                "is-active",
                "is-enabled",
                "cat",
                "list-timers",
                "is-failed",
                "help",
            ],
            "read",
        ),
        **dict.fromkeys(
            [
                "stop",
                "kill",
                "restart",
                "reload",
                "try-restart",
                "isolate",
                "poweroff",
                "reboot",
                "halt",
                "suspend",
                "hibernate",
                *("force-reload", "onestop", "onerestart", "faststop", "forcestop"),
            ],
            "stop",
        ),
        **dict.fromkeys(["enable", "reenable", "preset", "link", "edit", "add-wants", "set-default"], "persist"),
        **dict.fromkeys(
            ["start", "disable", "mask", "unmask", "daemon-reload", "reset-failed", "revert", "daemon-reexec"], "write"
        ),
    }
    effect = effects.get(verb, "execute")
    if verb == "start":
        effect = "execute"
    scope: ActScope = "home" if parsed.has("--user") else "system"
    if verb in ("poweroff", "reboot", "halt", "isolate"):
        scope = "root"
    for word in words[1:] or [Word(("",))]:
        command.act(
            effect, "local" if effect == "read" else scope, ActTarget("resource", word.text.replace(UNKNOWN, "?"))
        )
    return None


CHANGES_NETWORK = frozenset(
    [
        "add",
        "del",
        "delete",
        "set",
        "flush",
        "change",
        "replace",
        "append",
        "up",
        "down",
        "netmask",
        "mtu",
        "hw",
        "promisc",
        "-promisc",
        "--set",
        "--delete",
    ]
)


@reader("network")
def network(command: Command) -> Output | None:
    """`ip`, `ifconfig`, `route`, `arp`: they show, or change, how this machine is connected."""
    changes = not CHANGES_NETWORK.isdisjoint(command.texts)
    changes |= command.program == "arp" and not {"-s", "-d"}.isdisjoint(command.texts)
    command.act("write" if changes else "read", "system" if changes else "local")
    return None


@reader("defaults")
def defaults(command: Command) -> Output | None:
    """macOS's settings: of the user, or of the machine where the domain is a file of the system."""
    words = parse(command.words, Deed(values=frozenset({"-host"}))).positional
    verb, domain = [*words, Word(), Word()][:2]
    command.verb = verb.text
    effects: dict[str, Effect] = {"write": "write", "import": "write", "rename": "write", "delete": "delete"}
    effect = effects.get(verb.text, "read")
    if effect == "write" and any(word.text in ("LoginHook", "LogoutHook") for word in words):
        effect = "persist"
    if verb.text == "export" and len(words) > 2:
        command.touch("write", words[2])
    if domain.texts[0].startswith(("/", TILDE)):
        command.touch(effect, domain)
    else:
        command.act(effect, "local" if effect == "read" else "home", ActTarget("resource", domain.text))
    return None


ASKS_ONLY = re.compile(r"\s*(?:\Z|Q\b|QUIT\b|(?:GET|HEAD) )")


@reader("tls_client")
def tls_client(command: Command) -> Output | None:
    """`openssl s_client`: looks at a certificate, or sends what it is fed with."""
    host = parse(command.words, command.deed).value("-connect", "-host") or Word(("localhost",))
    feed = command.stdin
    silent = feed.text is not None and not feed.substituted and ASKS_ONLY.match(feed.text) and UNKNOWN not in feed.text
    sends = feed.secret or (feed.piped and not silent)
    target, scope = of_url(host.text)
    command.explain(host)
    command.act("send" if sends else "read", scope, target, marks=["payload:secret"] if feed.secret else [])
    return None


@reader("crontab")
def crontab(command: Command) -> Output | None:
    texts = command.texts
    if "-l" in texts:
        command.act("read", "local")
    elif "-r" in texts:
        command.act("delete", "home", ActTarget("path", "crontab"))
    else:
        scope: ActScope = "system" if "-u" in texts else "home"
        command.act("persist", scope, ActTarget("path", "crontab"))
        if command.stdin.text:
            for line in command.stdin.text.splitlines():
                fields = line.split(None, 5)
                if len(fields) == 6 and not line.startswith("#"):
                    command.shell(fields[5], command.beside())
    return None


@reader("at")
def at(command: Command) -> Output | None:
    if not {"-l", "-c"}.isdisjoint(command.texts):
        command.act("read", "local")
        return None
    if not {"-r", "-d"}.isdisjoint(command.texts):
        command.act("delete", "home", ActTarget("path", "at"))
        return None
    command.act("persist", "home", ActTarget("path", "at"))
    if command.stdin.text:
        command.shell(command.stdin.text, command.beside())
    return None


@reader("ln")
def ln(command: Command) -> Output | None:
    """A link acts on what it leads to."""
    parsed = parse(command.words, Deed(values=frozenset({"-t", "--target-directory", "-S"})))
    words = parsed.positional
    symbolic, link = parsed.has("-s", "--symbolic"), words[-1] if len(words) > 1 else Word((".",))
    for word in words:
        command.touch("write", _from_link(word, link) if symbolic and word is not words[-1] else word)
    return None


def _from_link(word: Word, link: Word) -> Word:
    """What a symbolic link holds is read from the folder that the link lies in."""
    folder = link.texts[0].rpartition("/")[0] if not link.texts[0].endswith("/") else link.texts[0].rstrip("/")
    if not folder:
        return word
    return Word(tuple(t if t.startswith(("/", TILDE)) or UNKNOWN in t else f"{folder}/{t}" for t in word.texts))


@reader("move")
def move(command: Command) -> Output | None:
    """mv: what is moved is gone from where it was; inside the project that is a change."""
    parsed = parse(command.words, Deed(values=frozenset({"-t", "--target-directory", "-S", "--suffix"})))
    *sources, destination = parsed.positional or [Word()]
    if target := parsed.value("-t", "--target-directory"):
        sources, destination = parsed.positional, target
    for word in sources:
        command.touch("delete", word, folder=True)
    command.touch("write", destination)
    return None


WRITES_REPORTS = Deed(values=frozenset({"--json", "--html", "--out"}))


@reader("gradproof")
def gradproof(command: Command) -> Output | None:
    """The gate's own commands that judge or configure are nobody's but people's. Reports are files that are written."""
    words = [word.text for word in command.words if not word.text.startswith("-")]
    for file in parse(command.words, WRITES_REPORTS).values("--json", "--html", "--out"):
        if file.text != "-":
            command.touch("write", file)
    if words[:1] == ["gate"]:
        verb = words[1] if len(words) > 1 else "status"
        command.verb = f"gate {verb}"
        if verb in ("evaluate", "status", "audit", "decide", "hook", "--help"):
            command.act("read", "local")
        else:
            command.act("write", "own", ActTarget("resource", f"gate {verb}"), marks=("judging",))
        return None
    here(command, "execute")
    return None


@reader("mail")
def mail(command: Command) -> Output | None:
    """Letters, with what they carry."""
    parsed = parse(command.words, command.deed)
    hidden = command.stdin.secret
    for file in parsed.values("-a", "-A", "--attach", "--attachment"):
        hidden = hidden or any(act.scope == "secret" for act in command.touch("read", file))
    marks = ["payload:secret"] if hidden else []
    for word in parsed.positional or [Word(("?",))]:
        command.act("send", "remote", ActTarget("recipient", word.text.replace(UNKNOWN, "?").lower()), marks=marks)
    return None


@reader("ssh_keygen")
def ssh_keygen(command: Command) -> Output | None:
    parsed = parse(
        command.words,
        Deed(values=frozenset({"-t", "-b", "-C", "-f", "-N", "-P", "-R", "-F", "-i", "-m", "-Y", "-I", "-n", "-s"})),
    )
    if parsed.has("-l", "-F", "-y", "-B"):
        file = parsed.value("-f")
        if parsed.has("-y") and file is not None:
            command.touch("read", file)
        else:
            command.act("read", "local")
        return None
    command.touch("write", parsed.value("-f") or Word((f"{TILDE}/.ssh/id_ed25519",)))
    return None


@reader("tmux")
def tmux(command: Command) -> Output | None:
    """A command in a session of its own; keys are typed into one."""
    deed = Deed(values=frozenset({"-s", "-t", "-n", "-c", "-x", "-y", "-S", "-L", "-F", "-e"}))
    words = [word for word in parse(command.words, deed).positional if word.text not in ("Enter", "C-m", "C-c")]
    if words:
        command.shell(" ".join(word.text for word in words), command.beside(via=command.state.via | {"interpreter"}))
    else:
        command.act("execute", "local")
    return None


@reader("sshpass")
def sshpass(command: Command) -> Output | None:
    words = parse(command.words, Deed(values=frozenset({"-p", "-f", "-d"})), stop=True).positional
    return command.again(words) if words else None
