"""Programs of the system whose words need more than a table: dd, tar, kill, systemctl, crontab, chmod, sed, cloud
tools."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gradproof.gate.acts.act import ActScope, ActTarget, Effect
from gradproof.gate.acts.knowledge import Deed, knowledge
from gradproof.gate.acts.paths import TILDE, UNKNOWN
from gradproof.gate.acts.programs import (
    Command,
    _argument,
    apply,
    here,
    locate,
    marked,
    of_url,
    parse,
    reader,
    resolved,
)
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.word import Word

HANDS_OUT_KEYS = re.compile(
    r"\b(?:secretsmanager get-secret|ssm get-parameter\S* .*--with-decryption|secrets versions access"
    r"|keyvault secret show"
    r"|get-login-password|print-access-token|get-access-token|sts assume-role|get-session-token|create-access-key"
    r"|credentials)"
)
GIVES_RIGHTS = re.compile(
    r"\b(?:add-iam-policy-binding|set-iam-policy|put-bucket-acl|put-bucket-policy|role assignment|attach-\S*policy"
    r"|put-\S*policy|authorize-security-group)"
)
SETUID = re.compile(r"(?:^|,)[ugoa]*[+=][rwxX]*s|^0*[2-7]\d{3}$")


@reader("dd")
def dd(command: Command) -> Output | None:
    for word in command.words:
        name, _, value = word.text.partition("=")
        if name in ("if", "of"):
            path = Word(tuple(text.partition("=")[2] for text in word.texts), word.fetched, word.secret)
            command.touch("read" if name == "if" else "write", path)
        del value
    return None


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
                "--to-command",
                "-I",
                "--use-compress-program",
                "--checkpoint-action",
                "--transform",
            }
        )
    )
    parsed = parse(words, deed)
    for runs in parsed.values("--to-command", "-I", "--use-compress-program", "--checkpoint-action", "--rsh-command"):
        text = runs.text.removeprefix("exec=")
        if text not in ("pigz", "zstd", "gzip", "xz", "bzip2", "lz4", "pbzip2", "zstdmt"):
            command.shell(text, command.beside())
    file, folder = parsed.value("-f", "--file"), parsed.value("-C", "--directory")
    creates = parsed.has("-c", "--create", "-r", "-u", "--append", "--update")
    lists = parsed.has("-t", "--list")
    if file is not None and file.text != "-":
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
    elif not lists:
        if parsed.has("-P", "--absolute-names"):
            command.act("write", "unknown", marks=("flag:absolute-names",))
        if folder is not None:
            command.touch("write", folder, folder=True)
        elif not parsed.has("-O", "--to-stdout"):
            here(command, "write")
    return None


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
    if parsed.has("-l", "-L", "--list", "-0"):
        command.act("read", "local")
        return None
    users = parsed.values("-u", "-U")
    for word in users:
        command.act("stop", "root" if not words else "local", ActTarget("process", f"user {word.text}"))
    for word in words:
        if names and word.text.strip("^$") in knowledge().daemons:
            command.act("stop", "system", ActTarget("process", word.text))
        else:
            locate(command, "stop", "process", word)
    if not words and not users:
        command.act("stop", "unknown" if command.stdin.piped else "local", ActTarget("process", "?"))
    return None


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


RUNS_FROM_EDITOR = re.compile(
    r"(?:^|[:|\s])(?:r|w|sil(?:ent)?!?)?\s*!\s*(?P<shell>\S.*)|system\w*\(|(?:^|[:|])\s*(?:lua|py\w*|perl|ruby)\b"
)


@reader("vim")
def vim(command: Command) -> Output | None:
    """Files to edit; what it is told to do at the start may run programs."""
    parsed = parse([word for word in command.words if not word.text.startswith("+")], command.deed)
    orders = parsed.values("-c", "--cmd") + [Word((w.text[1:],)) for w in command.words if w.text.startswith("+")]
    for order in orders:
        match = RUNS_FROM_EDITOR.search(order.text)
        if match is not None and match["shell"]:
            command.shell(match["shell"], command.beside(via=command.state.via | {"interpreter"}))
        elif match is not None or not order.known:
            command.unknown("an editor that is told to run code")
    for script in parsed.values("-S", "-u"):
        command.touch("execute" if script.text != "NONE" else "read", script)
    for word in parsed.positional:
        command.touch("write", word)
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


@reader("sed")
def sed(command: Command) -> Output | None:
    """A script, then files; the script may write files and run programs."""
    parsed = parse(command.words, Deed(values=frozenset({"-e", "--expression", "-f", "--file", "-l", "--line-length"})))
    words = parsed.positional
    scripts = parsed.values("-e", "--expression")
    if not scripts and not parsed.values("-f", "--file"):
        scripts, words = words[:1], words[1:]
    in_place = any(name.startswith(("-i", "--in-place")) for name, _ in parsed.options)
    for script in scripts:
        for text in script.texts:
            if re.search(r"(?:^|[;{}\s\d$/])e\s+\S|/[gpiIm0-9]*e[gpiIm0-9]*\s*(?:$|[;}])", text) and re.search(
                r"[/|#,]e\b|(?:^|[;{}\s\d])e\s", text
            ):
                command.unknown("a sed script that runs commands")
            for match in re.finditer(r"(?:^|[;{}\s/])w\s+([^\s;}]+)", text):
                command.touch("write", Word((match[1],)))
    for file in parsed.values("-f", "--file"):
        command.touch("read", file)
    if in_place and words and words[0].text == "":
        words = words[1:]
    for word in words:
        command.touch("write" if in_place else "read", word)
    return None


@reader("awk")
def awk(command: Command) -> Output | None:
    parsed = parse(
        command.words, Deed(values=frozenset({"-F", "-v", "-f", "--field-separator", "--assign", "--file"})), stop=False
    )
    words = parsed.positional
    if not parsed.values("-f", "--file"):
        scripts, words = words[:1], words[1:]
        for script in scripts:
            text = script.text
            if re.search(r"system\s*\(|\|\s*getline|\|&|\|\s*\"|\|\s*[a-z]+\b", text) or UNKNOWN in text:
                command.unknown("an awk script that runs commands")
            for match in re.finditer(r">>?\s*\"([^\"]+)\"", text):
                command.touch("write", Word((match[1],)))
    if any(name == "-i" and value is not None and value.text == "inplace" for name, value in parsed.options):
        for word in words:
            command.touch("write", word)
        return None
    for word in words:
        if "=" not in word.text:
            command.touch("read", word)
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


@reader("cloud")
def cloud(command: Command) -> Output | None:
    """aws, gcloud, az, gh, doctl and the like: groups of words, then a verb."""
    parsed = parse(command.words, command.deed)
    words = [word.text for word in parsed.positional]
    verbs = knowledge().verbs
    program = command.program
    effect: Effect = "read"
    spoken = ""
    for word in words[:5]:
        for part in re.split(r"[-_:]", word):
            if part in verbs:
                effect, spoken = verbs[part], word
                break
        if spoken:
            break
    index = words.index(spoken) if spoken else min(2, len(words))
    command.verb = " ".join(words[: index + 1]).replace(UNKNOWN, "?") if words else ""
    rest = " ".join(words[index + 1 :]).replace(UNKNOWN, "?")
    joined = " ".join(words)
    if not words:
        command.act("read", "local")
        return None
    if words[0] in ("configure", "config", "auth", "login", "logout", "init", "version", "help", "completion"):
        return _own_settings(command, words, parsed)
    scope: ActScope = "remote"
    if HANDS_OUT_KEYS.search(" ".join(command.texts)) and effect == "read":
        scope = "secret"
    if words[0] in ("iam", "role", "ad", "policy") and effect in ("write", "delete", "send", "publish"):
        effect = "change_rights"
    if GIVES_RIGHTS.search(joined):
        effect = "change_rights"
    if UNKNOWN in joined and effect != "read":
        scope = "unknown"
    if endpoint := parsed.value("--endpoint-url", "--endpoint"):
        scope = of_url(endpoint.text)[1]
    if program in ("aws", "gsutil", "gcloud", "s3cmd", "az", "mc") and _storage(command, words, parsed, scope):
        return None
    extra = [
        f"flag:{name.lstrip('-')}"
        for name, _ in parsed.options
        if name in ("--force", "--admin", "--recursive", "--all")
    ]
    command.act(effect, scope, ActTarget("resource", rest), marks=[*extra, *marked(command.deed, parsed)])
    return None


HANDS_OUT_OWN = frozenset({"token", "print-access-token", "print-identity-token", "export-credentials"})


def _own_settings(command: Command, words: list[str], parsed) -> None:
    reads = words[0] in ("version", "help", "completion") or any(
        word in ("list", "get", "get-value", "status", "show", "whoami", *HANDS_OUT_OWN) for word in words[1:]
    )
    token = not HANDS_OUT_OWN.isdisjoint(words[1:])
    if reads:
        command.act("read", "secret" if token else "local")
    else:
        command.touch("write", Word((f"{TILDE}/.config/{command.program}/config",)))


def _storage(command: Command, words: list[str], parsed, scope: ActScope) -> bool:
    """Copies between here and a bucket."""
    verbs = [
        word
        for word in words
        if word in ("cp", "mv", "sync", "rm", "rb", "ls", "mb", "rsync", "upload", "download", "cat", "presign")
    ]
    buckets = [word for word in words if word.startswith(("s3://", "gs://"))]
    if not verbs or not (
        buckets or "s3" in words[:1] or "storage" in words[:1] or command.program in ("gsutil", "s3cmd", "mc")
    ):
        return False
    verb = verbs[0]
    command.verb = f"{words[0]} {verb}" if words[0] != verb else verb
    paths = words[words.index(verb) + 1 :]
    if verb in ("rm", "rb"):
        recursive = parsed.has("--recursive", "--force", "-r", "-R")
        for path in paths:
            command.act(
                "delete",
                scope,
                ActTarget("host", _bucket(path), recursive, within=_key(path)),
                marks=["flag:recursive"] if recursive else [],
            )
        return True
    if verb in ("ls", "cat", "presign"):
        command.act(
            "send" if verb == "presign" else "read", scope, ActTarget("host", _bucket(paths[0]) if paths else "")
        )
        return True
    if len(paths) < 2:
        command.act("write", scope, ActTarget("host", _bucket(paths[0]) if paths else ""))
        return True
    source, destination = paths[-2:]
    hidden = False
    if "://" in source:
        command.act("read", scope, ActTarget("host", _bucket(source), within=_key(source)))
        if verb == "mv":
            command.act("delete", scope, ActTarget("host", _bucket(source), within=_key(source)))
    else:
        acts = command.touch("read", Word((source,)), folder=True)
        hidden = any(act.scope == "secret" for act in acts)
    if "://" in destination:
        command.act(
            "send",
            scope,
            ActTarget("host", _bucket(destination), within=_key(destination)),
            marks=["payload:secret"] if hidden else [],
        )
        if parsed.has("--delete", "-d"):
            command.act("delete", scope, ActTarget("host", _bucket(destination), True), marks=("flag:delete",))
    else:
        command.touch("write", Word((destination,)))
        if parsed.has("--delete", "-d"):
            command.touch("delete", Word((destination,)), folder=True)
    return True


def _bucket(url: str) -> str:
    return url.split("://", 1)[-1].split("/", 1)[0].replace(UNKNOWN, "?")


def _key(url: str) -> str:
    return url.split("://", 1)[-1].partition("/")[2].replace(UNKNOWN, "?")


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


@reader("npm")
def npm(command: Command) -> Output | None:
    """npm, yarn, pnpm, bun: scripts of the project, its packages, or global ones."""
    parsed = parse(
        command.words,
        Deed(values=frozenset({"--prefix", "-w", "--workspace", "--registry", "--filter", "-C", "--cwd", "--dir"})),
    )
    words = [word.text for word in parsed.positional]
    verb = words[0] if words else "install"
    command.verb = verb
    is_global = parsed.has("-g", "--global", "--location") or words[:2] == ["global", "add"]
    if registry := parsed.value("--registry"):
        locate(command, "fetch_and_run", "url", registry)
    name = ActTarget("package", " ".join(words[1:]).replace(UNKNOWN, "?"))
    if verb in ("install", "i", "add", "ci", "update", "up", "upgrade", "link", "dedupe", "rebuild"):
        for text in words[1:]:
            if "://" in text or text.startswith("git+"):
                locate(command, "fetch_and_run", "url", Word((text.removeprefix("git+"),)))
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
    elif verb in ("token", "login", "adduser", "logout"):
        command.act("change_rights", "remote", name)
    elif verb in ("dlx", "create") and len(words) > 1:
        command.act("fetch_and_run", "remote", name)
    elif verb in ("exec", "x", "init") and len(words) > 1:
        command.act("execute", "project" if command.reading.around.project else "outside", name)
    elif verb == "cache":
        command.act(
            "read" if "ls" in words or "verify" in words else "delete", "home" if "clean" in words else "local", name
        )
    else:
        here(command, "execute")
    return None


def _installed(command: Command, effect: Effect, is_global: bool, name: ActTarget) -> None:
    if is_global:
        command.act(effect, "system", name, marks=("flag:global",))
    else:
        command.act(effect, "project" if command.reading.around.project else "outside", name)


@reader("make")
def make(command: Command) -> Output | None:
    """Runs what the folder's own file says."""
    parsed = parse(command.words, command.deed)
    folder = parsed.value("-C", "--directory", "--cwd", "--dir", "--manifest-path")
    file = parsed.value("-f", "--file", "--makefile")
    if folder is not None:
        command.touch("execute", folder)
    elif file is not None:
        command.touch("execute", file)
    else:
        here(command, "execute")
    for word in parsed.positional:
        name, equals, value = word.text.partition("=")
        if equals and value.startswith(("/", "~", "..")):
            command.touch("execute", Word((value,)))
        del name
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


@reader("plain")
def plain(command: Command) -> Output | None:
    return apply(command, command.deed, parse(command.words, command.deed))


@reader("printenv")
def printenv(command: Command) -> Output | None:
    """The whole environment may hold secrets; a variable is one by its name."""
    names = [word.text for word in command.words if not word.text.startswith("-")]
    hidden = not names or any(re.search(r"(?i)key|token|secret|pass|credential", name) for name in names)
    command.act("read", "secret" if hidden else "local", ActTarget("none", " ".join(names) or "environment"))
    return Output(None, "", hidden, True)


@reader("grep")
def grep(command: Command) -> Output | None:
    """A pattern, then files; names of files where only those are printed."""
    deed = Deed(
        values=frozenset(
            {
                "-e",
                "-f",
                "-A",
                "-B",
                "-C",
                "-m",
                "--include",
                "--exclude",
                "--exclude-dir",
                "-g",
                "--glob",
                "-t",
                "--type",
                "-d",
                "--max-count",
                "--color",
                "-r0",
                "--context",
                "-T",
                "--replace",
                "--iglob",
            }
        )
    )
    parsed = parse(command.words, deed)
    words = parsed.positional
    if not parsed.values("-e", "-f", "--regexp", "--file") and not parsed.has("--files"):
        words = words[1:]
    for file in parsed.values("-f", "--file"):
        command.touch("read", file)
    for runs in parsed.values("--pre"):
        command.shell(runs.text, command.beside())
    for word in words:
        command.touch("read", word, folder=parsed.has("-r", "-R", "--recursive"))
    if not words and (parsed.has("-r", "-R", "--recursive") or command.program != "grep") and not command.stdin.piped:
        here(command, "read")
    names = parsed.has("-l", "--files-with-matches", "-L", "--files", "--files-without-match")
    if names:
        return Output(names=tuple(text for word in words for text in word.texts) or (".",), piped=True)
    if not words and command.stdin.names and not parsed.has("-o", "--only-matching", "-c"):
        return command.stdin
    return None


def _carried(command: Command, words: Sequence[Word]) -> list[str]:
    """Files that leave with an act: whether one is a secret."""
    acts = [act for word in words for act in command.touch("read", word)]
    return ["payload:secret"] if any(act.scope == "secret" for act in acts) else []


@reader("npx")
def npx(command: Command) -> Output | None:
    """A package's program; with -y, one that is fetched for it."""
    parsed = parse(command.words, Deed(values=frozenset({"-p", "--package", "-c", "--call"})), stop=True)
    for code in parsed.values("-c", "--call"):
        command.shell(code.text, command.beside())
    words = parsed.positional
    if parsed.has("-y", "--yes", "-p", "--package") or command.program in ("uvx", "bunx"):
        name = words[0].text if words else ""
        command.act("fetch_and_run", "remote", ActTarget("package", name.replace(UNKNOWN, "?")))
        return None
    if words and words[0].text in knowledge().programs:
        return command.again(words)
    here(command, "execute")
    for word in words[1:]:
        _argument(command, word, "execute")
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


GH_READS = ("view", "list", "status", "diff", "checks", "checkout", "watch", "download", "browse", "search", "co")


@reader("gh")
def gh(command: Command) -> Output | None:
    """GitHub's and GitLab's command lines."""
    parsed = parse(command.words, command.deed)
    words = [word.text for word in parsed.positional]
    group, verb = [*words, "", ""][:2]
    command.verb = f"{group} {verb}".strip().replace(UNKNOWN, "?")
    repository = parsed.value("-R", "--repo")
    rest = "/".join([*([repository.text] if repository is not None else []), *words[2:]]).replace(UNKNOWN, "?")
    if group == "api":
        method = parsed.value("-X", "--method")
        fields = parsed.values("-f", "--field", "-F", "--raw-field", "--input")
        kind = method.text.upper() if method is not None else "POST" if fields else "GET"
        from gradproof.gate.acts.requests import METHODS

        command.act(METHODS.get(kind, "send"), "remote", ActTarget("resource", verb))
        return None
    if group == "auth":
        command.act(
            "read" if verb == "status" else "write",
            "secret" if verb == "token" else "local" if verb == "status" else "home",
        )
        if verb == "token":
            command.act("read", "secret", ActTarget("resource", "token"))
        return None
    if group == "repo" and verb == "clone":
        command.act("read", "remote", ActTarget("resource", rest))
        here(command, "write")
        return None
    if group in ("alias", "extension", "config") and verb in ("set", "install", "create"):
        command.act("install" if group == "extension" else "write", "home", ActTarget("resource", rest))
        return None
    if group == "secret" and verb in GH_READS:
        command.act("read", "remote", ActTarget("resource", rest))
        return None
    effects: dict[str, Effect] = {
        **dict.fromkeys(GH_READS, "read"),
        **dict.fromkeys(("merge", "release", "ready", "publish", "enable"), "publish"),
        **dict.fromkeys(("delete", "remove", "archive"), "delete"),
        **dict.fromkeys(
            (
                "create",
                "edit",
                "comment",
                "close",
                "reopen",
                "review",
                "set",
                "fork",
                "sync",
                "rename",
                "lock",
                "pin",
                "add",
            ),
            "write",
        ),
        **dict.fromkeys(("run", "rerun"), "execute"),
        "cancel": "stop",
        "upload": "publish",
    }
    effect = effects.get(verb, "read" if not verb or group in ("status", "search", "browse") else "execute")
    if (group in ("release",) and verb == "create") or (group == "gist" and verb == "create"):
        effect = "publish"
    if group == "repo" and verb == "edit" and parsed.has("--visibility"):
        effect = "change_rights"
    marks = [
        f"flag:{name.lstrip('-')}"
        for name, _ in parsed.options
        if name in ("--admin", "--force", "--delete-branch", "--visibility", "--auto")
    ]
    if group == "gist" and verb == "create":
        marks += _carried(command, parsed.positional[2:])
    command.act(effect, "remote", ActTarget("resource", rest), marks=marks)
    if verb == "checkout":
        here(command, "write")
    return None
