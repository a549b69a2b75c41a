"""The command lines of cloud providers and code hosts: aws, gcloud, az, gh."""

from __future__ import annotations

import re

from gradproof.gate.acts.act import ActScope, ActTarget, Effect
from gradproof.gate.acts.command import Command, reader
from gradproof.gate.acts.deeds import marked
from gradproof.gate.acts.filters import carried
from gradproof.gate.acts.knowledge import knowledge
from gradproof.gate.acts.options import Parsed, parse
from gradproof.gate.acts.paths import TILDE, UNKNOWN
from gradproof.gate.acts.places import here
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.targets import of_url
from gradproof.gate.acts.word import Word

GH_READS = ("view", "list", "status", "diff", "checks", "checkout", "watch", "download", "browse", "search", "co")


HANDS_OUT_OWN = frozenset({"token", "print-access-token", "print-identity-token", "export-credentials"})


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


@reader("cloud")
def cloud(command: Command) -> Output | None:
    """aws, gcloud, az, gh, doctl and the like: groups of words, then a verb."""
    parsed = parse(command.words, command.deed)
    words = [word.text for word in parsed.positional]
    verbs = knowledge().verbs
    program = command.program
    effect: Effect = "write"  # what no verb is known of may change something
    spoken = ""
    for i, word in enumerate(words[:5]):
        part = next((part for part in re.split(r"[-_:]", word) if part in verbs), "")
        if part and (i or not spoken):
            effect, spoken = verbs[part], word
        if spoken and i:  # the first word may be a service that is called like a verb: `aws logs delete-log-group`
            break
    index = words.index(spoken) if spoken else min(2, len(words))
    command.verb = " ".join(words[: index + 1]).replace(UNKNOWN, "?") if words else ""
    rest = " ".join(words[index + 1 :]).replace(UNKNOWN, "?")
    joined = " ".join(words)
    if not words:
        command.act("read", "local")
        return None
    if "ssh" in words:
        _on_machine(command, words, parsed)
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
    if words[:1] == ["s3api"] and words[1:2] == ["get-object"]:
        for file in parsed.positional[2:3]:
            command.touch("write", file)
    if (file := parsed.value("--body")) is not None and (hidden := carried(command, [file])):
        effect, extra = "send", [*extra, *hidden]
    command.act(effect, scope, ActTarget("resource", rest), marks=[*extra, *marked(command.deed, parsed)])
    return None


def _on_machine(command: Command, words: list[str], parsed: Parsed) -> None:
    """A shell, or a command, on a machine of the cloud."""
    machine = words[-1].replace(UNKNOWN, "?")
    code = parsed.value("--command", "-C")
    command.act("execute", "remote", ActTarget("host", machine))
    if code is not None:
        state = command.beside(elsewhere=("remote", machine), via=command.state.via | {"elsewhere"})
        command.shell(code.text, state)


def _own_settings(command: Command, words: list[str], parsed: Parsed) -> None:
    reads = words[0] in ("version", "help", "completion") or any(
        word in ("list", "get", "get-value", "status", "show", "whoami", *HANDS_OUT_OWN) for word in words[1:]
    )
    token = not HANDS_OUT_OWN.isdisjoint(words[1:])
    if reads:
        command.act("read", "secret" if token else "local")
    else:
        command.touch("write", Word((f"{TILDE}/.config/{command.program}/config",)))


def _storage(command: Command, words: list[str], parsed: Parsed, scope: ActScope) -> bool:
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


TOLD = ("-b", "--body", "-t", "--title", "-n", "--notes", "-d", "--description", "-f", "--field", "--raw-field")
TOLD_FROM = ("-F", "--body-file", "--notes-file")


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
        command.touch("write", parsed.positional[3]) if words[3:] else here(command, "write")
        return None
    for folder in parsed.values("-D", "--dir", "-O", "--output") if verb == "download" else ():
        command.touch("write", folder)
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
        marks += carried(command, parsed.positional[2:])
    told = [word for name in TOLD for word in parsed.values(name)]
    if effect in ("write", "publish"):
        hidden = carried(command, [word for name in TOLD_FROM for word in parsed.values(name) if word.text != "-"])
        if hidden or command.stdin.secret or any(word.secret for word in told):
            effect, marks = "send", [*marks, "payload:secret"]
    command.act(effect, "remote", ActTarget("resource", rest), marks=marks)
    if verb == "checkout":
        here(command, "write")
    return None
