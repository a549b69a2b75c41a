"""HTTP requests by method and host, from curl, wget and tools that take a URL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gradproof.gate.acts.act import ActScope, ActTarget, Effect
from gradproof.gate.acts.command import Command, reader
from gradproof.gate.acts.deeds import apply, sent_along
from gradproof.gate.acts.knowledge import Deed
from gradproof.gate.acts.options import parse
from gradproof.gate.acts.paths import TILDE, UNKNOWN, is_loopback, secret
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.targets import of_url, resolved
from gradproof.gate.acts.word import Word

METHODS: dict[str, Effect] = {
    **dict.fromkeys(("GET", "HEAD", "OPTIONS", "TRACE"), "read"),
    "POST": "send",
    **dict.fromkeys(("PUT", "PATCH"), "write"),
    "DELETE": "delete",
}
DATA = (
    "-d",
    "--data",
    "--data-raw",
    "--data-binary",
    "--data-urlencode",
    "--data-ascii",
    "-F",
    "--form",
    "--json",
    "-T",
)
DATA += ("--upload-file", "--form-string", "--post-data", "--post-file", "--body-data", "--body-file")
CODE_URL, FILE_URL = re.compile(r"(?i)\s*(?:javascript|vbscript):"), re.compile(r"(?i)file:(?://(?:localhost)?)?(?=/)")
FETCHED_BY = ("http", "https", "ftp", "ftps", "sftp", "scp", "ws", "wss", "blob", "about", "chrome", "view-source")
ENCODED = ("--data-urlencode", "--variable", "--url-query")  # `name@file` is a file, unless there is a = in it
LISTS_OF_URLS = {"wget": ("-i", "--input-file")}
FILES = ("-T", "--upload-file", "--post-file", "--body-file")  # whose value is a file, without an @


def _says_all(url: str) -> bool:
    """Whether host and path are all that a URL says. Of a query, a user or a connection that others can read, a
    correction wants the same."""
    scheme, mark, rest = url.partition("://")
    authority = (rest if mark else url).partition("/")[0]
    open_ = not (mark and scheme.lower() == "https") and of_url(url)[1] == "remote"
    return "?" not in url and "@" not in authority and not open_


@reader("curl")
def curl(command: Command) -> Output | None:
    """Method, host, payload, and where the answer goes."""
    parsed = parse(command.words, command.deed)
    method = parsed.value("-X", "--request", "--method")
    payload = [word for name in DATA for word in parsed.values(name)]
    verb = method.text.upper() if method is not None else "POST" if payload else "GET"
    if parsed.has("-T", "--upload-file") and method is None:
        verb = "PUT"
    if parsed.has("-I", "--head"):
        verb = "HEAD"
    urls = parsed.positional + parsed.values("--url")
    plain = [url for url in urls if _says_all(url.text)]
    command.explain(*plain, method, *(word for word in payload if "@" not in word.text and word.known))
    for file in parsed.values("-K", "--config", *LISTS_OF_URLS.get(command.program, ())):
        command.touch("read", file)
        command.unknown("options that are read from a file")
    if command.program == "wget":
        for setting in parsed.values("-e", "--execute"):
            command.unknown(f"the setting {setting.text.replace(UNKNOWN, '?')}")
        for runs in parsed.values("--use-askpass"):
            command.shell(runs.text, command.beside())
    for name in ("-x", "--proxy", "--preproxy", "--socks5", "--resolve", "--connect-to"):
        for word in parsed.values(name):
            command.act("send", "unknown" if UNKNOWN in word.text else "remote", ActTarget("host", word.text))
    files = [_file(text) for word in parsed.values(*FILES) for text in word.texts]
    files += [name for word in payload for text in word.texts for name in _attached(text)]
    files += [
        _file(text.partition("@")[2]) for word in parsed.values(*ENCODED) for text in word.texts if "=" not in text
    ]
    files += [_file(text) for word in parsed.values("-b", "--cookie") for text in word.texts if "=" not in text]
    for name in files:
        if name not in ("", "-", "."):
            command.touch("read", Word((name,)))
    hidden = any(_is_secret(command, word) for word in payload) or any(_secret_file(command, name) for name in files)
    hidden = hidden or any(
        _mentions_secret(word)
        for name in ("-H", "--header", "-b", "--cookie", "-u", "--user")
        for word in parsed.values(name)
    )
    before = len(command.reading.acts)
    for url in urls:
        request(command, verb, url, payload=bool(payload), secret_payload=hidden)
    for name in ("-o", "--output", "-O", "--output-document", "-D", "--dump-header", "-c", "--cookie-jar"):
        for word in parsed.values(name):
            _saved(command, word, urls)
    if (parsed.has("-O", "--remote-name", "--remote-name-all") and command.program == "curl") or (
        command.program == "wget" and not parsed.values("-O", "--output-document") and verb == "GET"
    ):
        _saved_here(command, urls)
    if folder := parsed.value("-P", "--directory-prefix", "--output-dir"):
        command.touch("write", folder)
    if command.program == "wget" and not parsed.values("-O", "--output-document"):
        return Output("")
    if parsed.value("-o", "--output") is not None or parsed.has("-O"):
        stdout = {"-", "/dev/stdout"} & {
            word.text for word in parsed.values("-o", "--output", "-O", "--output-document")
        }
        if not stdout:
            return Output("")
    acts = command.reading.acts[before:]
    remote = [act for act in acts if act.scope in ("remote", "unknown") and act.target.kind == "host"]
    return Output(None, str(remote[0].target) if remote else "", hidden, True)


def _is_secret(command: Command, word: Word) -> bool:
    """A substitution, or standard input, may send one."""
    return word.secret or (command.stdin.secret and word.text.endswith(("@-", "-")))


def _attached(text: str) -> list[str]:
    """`@file`, `name=@file` and `name=<file` send a file."""
    mark = "@" if text.startswith("@") else next((mark for mark in ("=@", "=<") if mark in text), "")
    return [_file(text.split(mark, 1)[1].split(";")[0])] if mark else []


def _file(name: str) -> str:
    """As a path whose ~ means the home folder."""
    return TILDE + name[1:] if name.startswith("~") else name


def _secret_file(command: Command, name: str) -> bool:
    if not name or name == "-":
        return False
    paths = resolved(command.reading, Word((name,)), command.state) or [name]
    return any(secret(path) for path in paths)


def _mentions_secret(word: Word) -> bool:
    """A header may carry one's own token to its service; it is a payload only where a file was read for it."""
    return word.secret


def request(command: Command, method: str, url: Word, *, payload: bool = False, secret_payload: bool = False) -> None:
    """One request. A URL that holds a substitution may carry anything away."""
    for text in url.texts:
        if CODE_URL.match(text):
            command.unknown("an address that is code")
            continue
        if match := FILE_URL.match(text):
            command.touch("read", Word((text[match.end() :],)))
            continue
        text = text if "://" in text or text.startswith("/") else f"http://{text}"
        target, scope = of_url(text)
        effect = METHODS.get(method, "send")
        other = text.partition("://")[0].lower() not in FETCHED_BY
        if effect == "read" and (payload or UNKNOWN in text or url.substituted or other):
            effect = "send"
        port = command.reading.around.port
        if port and is_loopback(target.name) and f":{port}" in text:
            scope = "own"
        marks = ["payload:secret"] if secret_payload or url.secret else []
        if effect in ("write", "delete") and marks:
            effect = "send"
        command.verb = method
        command.act(effect, scope, target, marks=marks)


def _saved(command: Command, word: Word, urls: Sequence[Word]) -> None:
    if word.text in ("-", "/dev/stdout"):
        return
    command.touch("write", word)
    host = next((of_url(url.texts[0])[0].name for url in urls), "")
    for path in resolved(command.reading, word, command.state):
        command.state.fetched[path] = host


def _saved_here(command: Command, urls: Sequence[Word]) -> None:
    for url in urls:
        for text in url.texts:
            name = text.split("?", 1)[0].rstrip("/").rsplit("/", 1)[-1]
            if name and UNKNOWN not in name:
                _saved(command, Word((name,)), [url])


@reader("httpie")
def httpie(command: Command) -> Output | None:
    """`http POST host/path a=b`."""
    parsed = parse(
        command.words, Deed(values=frozenset({"-a", "--auth", "-o", "--output", "-A", "--session", "--timeout"}))
    )
    words = parsed.positional
    method = "GET"
    if words and words[0].text.isupper() and words[0].text in METHODS:
        method, words = words[0].text, words[1:]
    if not words:
        return None
    items = [word.text for word in words[1:] if ("==" not in word.text and "=" in word.text) or "@" in word.text]
    if items and method == "GET":
        method = "POST"
    files = [item.partition("@")[2] for item in items if "@" in item]
    hidden = any(_secret_file(command, name) for name in files) or command.stdin.secret
    request(command, method, words[0], payload=bool(items), secret_payload=hidden)
    if output := parsed.value("-o", "--output"):
        _saved(command, output, words[:1])
    return None


@reader("copy")
def copy(command: Command) -> Output | None:
    """scp, rsync, rclone: between here and a host, by where the colon is."""
    parsed = parse(command.words, command.deed)
    if len(parsed.positional) < 2:
        for word in parsed.positional:
            command.touch("read", word)
        return None
    for runs in parsed.values("-e", "--rsh", "--rsync-path", "-S"):
        command.shell(runs.text, command.beside())
    *sources, destination = parsed.positional
    command.explain(*parsed.positional)
    to_host = _host(destination.texts[0])
    users = {f"as {name}" for word in parsed.positional if (name := _user(word.text))}
    command.state = command.beside(context=command.state.context | users)
    hidden = False
    for source in sources:
        if host := _host(source.texts[0]):
            command.act("read", _reach(host), ActTarget("host", host, within=source.text.partition(":")[2]))
        else:
            acts = command.touch("read", source, folder=True)
            hidden = hidden or any(act.scope == "secret" for act in acts)
    moved = parsed.has("--remove-source-files") or command.verb in ("move",)
    if moved:
        for source in sources:
            if not _host(source.texts[0]):
                command.touch("delete", source)
    marks = ["payload:secret"] if hidden else []
    deletes = (
        parsed.has("--delete", "--delete-after", "--delete-before", "--del", "--delete-excluded")
        or command.verb == "sync"
    )
    if to_host:
        within = destination.text.partition(":")[2]
        scope: ActScope = "unknown" if UNKNOWN in to_host else _reach(to_host)
        command.act("send", scope, ActTarget("host", to_host.replace(UNKNOWN, "?"), within=within), marks=marks)
        if deletes:
            command.act("delete", scope, ActTarget("host", to_host, True, within=within), marks=("flag:delete",))
    else:
        command.touch("write", destination)
        if deletes:
            command.touch("delete", destination, folder=True, marks=("flag:delete",))
    return None


def _host(text: str) -> str:
    """The host of `user@host:path`, `rsync://host/…`; empty for a path."""
    if "://" in text:
        return of_url(text)[0].name
    host, colon, _ = text.partition(":")
    if not colon or "/" in host or not host:
        return ""
    return host.rsplit("@", 1)[-1].lower()


def _user(text: str) -> str:
    """The user of `user@host:path`."""
    place = text.partition("://")[2].partition("/")[0] or text.partition(":")[0]
    return place.rpartition("@")[0] if "@" in place and "/" not in place else ""


def _reach(host: str) -> ActScope:
    return "local" if is_loopback(host) else "remote"


@reader("netcat")
def netcat(command: Command) -> Output | None:
    """A raw connection: sends what it is fed with, or listens."""
    parsed = parse(
        command.words, Deed(values=frozenset({"-p", "-w", "-s", "-e", "-c", "--exec", "--sh-exec", "-q", "-i"}))
    )
    for code in parsed.values("-e", "-c", "--exec", "--sh-exec"):
        command.act(
            "fetch_and_run", "remote", ActTarget("host", parsed.positional[0].text if parsed.positional else "?")
        )
        command.shell(code.text, command.beside(via=command.state.via | {"elsewhere"}))
    marks = ["payload:secret"] if command.stdin.secret else []
    if command.program == "socat":
        return _socat(command, parsed.positional, marks, from_first=parsed.has("-u"))
    host = next((word.text for word in parsed.positional), "")
    if parsed.has("-z"):
        command.act("read", "local" if is_loopback(host) else "remote", ActTarget("host", host))
    elif parsed.has("-l", "--listen") or not host:
        command.act("send", "local", ActTarget("host", "localhost"), marks=marks)
    else:
        scope: ActScope = "unknown" if UNKNOWN in host else _reach(host)
        port = next((f":{word.text}" for word in parsed.positional[1:2] if word.text.isdigit()), "")
        own = port if scope == "local" else ""
        command.act("send", scope, ActTarget("host", host.replace(UNKNOWN, "?"), within=own), marks=marks)
    return Output(None, host, False, True)


@reader("smbclient")
def smbclient(command: Command) -> Output | None:
    """A share on a host: `-c` holds its own commands, of which `put` and its like read files here."""
    parsed, first = parse(command.words, command.deed), len(command.reading.acts)
    for told in parsed.values("-c", "--command"):
        for piece in told.text.split(";"):
            verb, *files = piece.split() or [""]
            if verb in ("put", "mput", "reput"):
                for file in files if verb == "mput" else files[:1]:
                    command.touch("read", replace(told, texts=(file.strip("\"'"),)))
    output = apply(command, command.deed, parsed)
    sent_along(command, parsed, first)
    return output


def _socat(command: Command, addresses: Sequence[Word], marks: list[str], from_first: bool) -> Output | None:
    """Two addresses, `TYPE:value,options`: what one of them says, the other gets."""
    parts = [word.text.split(",", 1)[0].partition(":") for word in addresses]
    hosts = [value.rpartition(":")[0] or value for kind, _, value in parts if kind.upper() in CONNECTS]
    host = next(iter(hosts), "")
    outside = any("LISTEN" in kind.upper() for kind, _, _ in parts) or any(not is_loopback(name) for name in hosts)
    for (kind, _, value), word in zip(parts, addresses, strict=True):
        if kind.upper() in ("EXEC", "SYSTEM", "SHELL"):
            scope: ActScope = "remote" if outside else "local"
            command.act("fetch_and_run", scope, ActTarget("host", host.replace(UNKNOWN, "?") or "?"))
            command.shell(value, command.beside(via=command.state.via | {"elsewhere"}))
        elif value.endswith(("docker.sock", "containerd.sock")):
            command.act("escalate", "system", ActTarget("path", value))
        elif kind.upper() in ("OPEN", "CREATE", "FILE", "GOPEN"):
            reads = (from_first and word is addresses[0]) or "rdonly" in word.text
            acts = command.touch("read" if reads else "write", replace(word, texts=(_file(value),)))
            marks = ["payload:secret"] if any(act.scope == "secret" for act in acts) and reads else marks
    for name in hosts:
        scope = "unknown" if UNKNOWN in name else _reach(name)
        command.act("send", scope, ActTarget("host", name.replace(UNKNOWN, "?")), marks=marks)
    if not hosts:
        command.act("send", "local", ActTarget("host", "localhost"), marks=marks)
    return Output(None, host, False, True)


CONNECTS = frozenset(
    [
        "TCP",
        "TCP4",
        "TCP6",
        "UDP",
        "UDP4",
        "UDP6",
        "OPENSSL",
        "SSL",
        "TCP-CONNECT",
        "UDP-SENDTO",
        "UDP-DATAGRAM",
        "SOCKS4A",
    ]
)
