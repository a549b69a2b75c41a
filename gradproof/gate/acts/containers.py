"""Containers and clusters: docker, podman, kubectl, helm. What runs inside them acts there, not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradproof.gate.acts.act import ActScope, ActTarget, Effect
from gradproof.gate.acts.command import Command, reader
from gradproof.gate.acts.knowledge import Deed
from gradproof.gate.acts.options import Parsed, parse
from gradproof.gate.acts.paths import UNKNOWN
from gradproof.gate.acts.places import here
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.word import Word

LOCAL_CONTEXTS = (
    "minikube",
    "docker-desktop",
    "kind-",
    "k3d-",
    "rancher-desktop",
    "colima",
    "localhost",
    "orbstack",
    "microk8s",
)
RUN = Deed(
    values=frozenset(
        [
            "-v",
            "--volume",
            "--mount",
            "-p",
            "--publish",
            "-e",
            "--env",
            "--env-file",
            "-w",
            "--workdir",
            "--name",
            "-u",
            "--user",
            "--network",
            "--net",
            "-h",
            "--hostname",
            "--entrypoint",
            "-l",
            "--label",
            "-m",
            "--memory",
            "--cpus",
            "--platform",
            "--restart",
            "--add-host",
            "--device",
            "--cap-add",
            "--cap-drop",
            "--gpus",
            "--pid",
            "--ipc",
            "--shm-size",
            "--tmpfs",
            "--ulimit",
            "--dns",
            "--link",
            "--log-driver",
            "--log-opt",
            "--security-opt",
            "--pull",
            "--volumes-from",
            "--userns",
            "--uts",
            "--cgroupns",
            "--privileged-mode",
            "-a",
            "--attach",
            "--expose",
            "--health-cmd",
            "--ip",
            "--runtime",
            "--stop-signal",
            "-c",
            "--context",
            "-H",
            "--host",
            "--index",
            "-t",
            "--tag",
            "-f",
            "--file",
            "--target",
            "--build-arg",
            "--cache-from",
            "--secret",
            "--ssh",
            "-o",
            "--output",
        ]
    )
    - {"-t"}
)
KUBE = Deed(
    values=frozenset(
        [
            "-n",
            "--namespace",
            "--context",
            "--cluster",
            "--kubeconfig",
            "-l",
            "--selector",
            "-f",
            "--filename",
            "-o",
            "--output",
            "-c",
            "--container",
            "-k",
            "--kustomize",
            "--replicas",
            "--timeout",
            "--as",
            "--user",
            "--token",
            "--server",
            "-s",
            "--field-selector",
            "--image",
            "--since",
            "--tail",
            "--grace-period",
            "-p",
            "--patch",
            "--type",
            "--from-literal",
            "--from-file",
            "--port",
            "--sort-by",
            "--from",
            "--dry-run",
            "--cascade",
        ]
    )
    - {"--dry-run", "--cascade"}
)
KINDS = {"po": "pod", "pods": "pod", "deploy": "deployment", "deployments": "deployment", "svc": "service"}
KINDS |= {"services": "service", "ns": "namespace", "namespaces": "namespace", "secrets": "secret", "cm": "configmap"}
KINDS |= {"pvc": "persistentvolumeclaim", "pv": "persistentvolume", "nodes": "node", "no": "node", "jobs": "job"}
KUBE_VERBS: dict[str, Effect] = {
    **dict.fromkeys(
        [
            "get",
            "describe",
            "logs",
            "top",
            "explain",
            "version",
            "api-resources",
            "api-versions",
            "cluster-info",
            "events",
            "diff",
            "wait",
        ],
        "read",
    ),
    **dict.fromkeys(
        [
            "apply",
            "create",
            "scale",
            "set",
            "label",
            "annotate",
            "patch",
            "edit",
            "replace",
            "expose",
            "autoscale",
            "rollout",
            "run",
            "cp",
            "taint",
        ],
        "write",
    ),
    **dict.fromkeys(["delete", "drain", "evict"], "delete"),
    **dict.fromkeys(["cordon", "uncordon"], "write"),
    **dict.fromkeys(["auth", "certificate"], "change_rights"),
}


@reader("docker_run")
def docker_run(command: Command) -> Output | None:
    """`docker run`: an image, which runs in a container of its own; what is mounted is acted on here."""
    parsed = parse(command.words, RUN, stop=True)
    if command.verb.endswith(("exec",)):
        words = parsed.positional
        inside(command, words[0] if words else Word(), words[1:])
        return None
    mounts = parsed.values("-v", "--volume", "--mount")
    for word in mounts:
        _mount(command, word)
    if parsed.has("--privileged") or any(
        value.text in ("host", "ALL", "SYS_ADMIN") for value in parsed.values("--pid", "--cap-add", "--ipc", "--userns")
    ):
        command.act("escalate", "local", ActTarget("resource", "host"), marks=("flag:privileged",))
    for word in parsed.values("--device"):
        command.touch("write", Word((word.text.split(":")[0],)))
    for word in parsed.values("--env-file"):
        command.touch("read", word)
    for word in parsed.values("--volumes-from"):  # whatever folders of this machine those are
        command.act("write", "unknown", ActTarget("resource", word.text.replace(UNKNOWN, "?")))
    if not parsed.positional:
        return None
    image, *words = parsed.positional
    command.act(
        "execute",
        "unknown" if UNKNOWN in image.text else "local",
        ActTarget("resource", image.text.replace(UNKNOWN, "?")),
    )
    if words:
        before = len(command.reading.acts)
        inside(command, image, words)
        if not mounts:  # what is inside is thrown away, or named
            acts = command.reading.acts
            for i in range(before, len(acts)):
                if acts[i].scope == "local" and acts[i].effect in ("delete", "change_rights", "persist", "stop"):
                    acts[i] = acts[i].but(effect="execute")
    return None


def _chosen(command: Command, more: Sequence[tuple[str, Word | None]] = ()) -> frozenset[str]:
    """Options of what leads into a container: a user, rights, a folder."""
    parsed = parse(command.words, command.deed, stop=True)
    quiet = ("-i", "-t", "-it", "-ti", "--rm", "--interactive", "--tty", "-d", "--detach")
    return frozenset(
        f"{command.program} {flag} {value.text.replace(UNKNOWN, '?') if value else ''}"
        for flag, value in (*parsed.options, *more)
        if flag not in quiet
    )


def inside(command: Command, container: Word, words: list[Word]) -> None:
    """A command in a container."""
    name = container.text.replace(UNKNOWN, "?")
    state = command.beside(
        via=command.state.via | {"elsewhere"},
        elsewhere=("local", name),
        cwds=(f"/{UNKNOWN}",),
        context=command.state.context | _chosen(command),
    )
    if not words:
        command.act("execute", "local", ActTarget("resource", name))
        return
    before = len(command.reading.acts)
    command.again(words, state)
    if len(command.reading.acts) == before:
        command.act("execute", "local", ActTarget("resource", name))


def _mount(command: Command, word: Word) -> None:
    """A folder of this machine that a container may change."""
    for text in word.texts:
        if "source=" in text or "src=" in text:
            fields = {part.partition("=")[0]: part.partition("=")[2] for part in text.split(",")}
            source, mode = fields.get("source", fields.get("src", "")), "ro" if "readonly" in text else ""
            if fields.get("type") == "volume":
                continue
        else:
            source, _, rest = text.partition(":")
            mode = rest.rpartition(":")[2]
        if "docker.sock" in source or "containerd.sock" in source:
            command.act("escalate", "system", ActTarget("path", source))
        elif source.startswith((".", "/", "\ue003", "~", UNKNOWN)) or "/" in source:
            command.touch("read" if mode.startswith("ro") else "write", Word((source,)))


@reader("compose")
def compose(command: Command) -> Output | None:
    """`docker compose`: services of a file of the project."""
    parsed = parse(
        command.words,
        Deed(
            values=frozenset(
                {
                    "-f",
                    "--file",
                    "-p",
                    "--project-name",
                    "--profile",
                    "--env-file",
                    "--project-directory",
                    "-H",
                    "--host",
                    "-c",
                    "--context",
                }
            )
        ),
        stop=True,
    )
    words = parsed.positional
    verb = words[0].text if words else ""
    for file in parsed.values("-f", "--file"):  # it says what runs, and which folders that may change
        command.touch("execute" if verb in ("up", "run", "create", "start", "build", "watch") else "read", file)
    if host := parsed.value("-H", "--host", "-c", "--context"):
        command.state = command.beside(elsewhere=("remote", host.text.replace(UNKNOWN, "?")))
    command.verb, rest = f"compose {verb}".strip(), words[1:]
    texts = [word.text for word in rest]
    if verb in ("exec", "run"):
        given = parse(rest, RUN, stop=True)
        for word in given.values("-v", "--volume"):
            _mount(command, word)
        inside(command, given.positional[0] if given.positional else Word(), given.positional[1:])
    elif verb in ("down", "rm"):
        volumes = {"-v", "--volumes", "--rmi"} & set(texts)
        command.act("delete", "local", ActTarget("resource", "compose"), marks=["flag:volumes"] if volumes else [])
    elif verb in ("stop", "kill", "pause"):
        command.act("stop", "local", ActTarget("resource", " ".join(texts)))
    elif verb in ("ps", "logs", "config", "images", "ls", "top", "version", "events", "port"):
        command.act("read", "local")
    elif verb == "push":
        command.act("publish", "remote", ActTarget("resource", " ".join(texts)))
    else:
        here(command, "execute")
    return None


@reader("kubectl")
def kubectl(command: Command) -> Output | None:
    """By its verb, namespace and kind of resource."""
    leading = parse(command.words, KUBE, stop=True)
    words = leading.positional
    verb = words[0].text if words else "version"
    parsed = parse(words[1:], KUBE, stop=verb in ("exec", "run"))
    parsed.options = [*leading.options, *parsed.options]
    command.verb, command.deed = verb, KUBE
    context = parsed.value("--context")
    command.explain(words[0] if words else None, context, parsed.value("-n", "--namespace"))
    scope: ActScope = "local" if context is not None and context.text.startswith(LOCAL_CONTEXTS) else "remote"
    namespace = parsed.value("-n", "--namespace")
    space = namespace.text if namespace is not None else "*" if parsed.has("-A", "--all-namespaces") else "default"
    if UNKNOWN in space or (context is not None and UNKNOWN in context.text):
        scope = "unknown"
    place = f"{context.text}/{space}" if context is not None else space
    if verb == "exec":
        return _kube_exec(command, parsed, scope, place)
    if verb in ("port-forward", "proxy", "attach", "debug"):
        command.act("execute", scope, ActTarget("resource", place))
        return None
    if verb == "config":
        sub = parsed.positional[0].text if parsed.positional else "view"
        if sub in ("view", "get-contexts", "current-context", "get-clusters", "get-users"):
            secret = parsed.has("--raw")
            command.act("read", "secret" if secret else "local", ActTarget("path", "kubeconfig"))
        else:
            command.touch("write", Word(("\ue003/.kube/config",)))
        return None
    for file in parsed.values("-f", "--filename", "-k", "--kustomize"):
        if "://" in file.text:
            command.act("fetch_and_run", "remote", ActTarget("host", file.text))
        elif file.text != "-":
            command.touch("read", file)
    effect = KUBE_VERBS.get(verb, "execute")
    if verb == "rollout" and parsed.positional and parsed.positional[0].text in ("status", "history"):
        effect = "read"
    if verb == "auth" and parsed.positional and parsed.positional[0].text in ("can-i", "whoami"):
        effect = "read"
    if any(name == "--dry-run" or name.startswith("--dry-run") for name, _ in parsed.options):
        effect = "read"
    if verb == "cp":
        return _kube_cp(command, parsed, scope, place)
    if verb in ("create", "label", "set", "patch") and "rolebinding" in " ".join(
        word.text for word in parsed.positional
    ):
        effect = "change_rights"
    if verb == "scale" and (replicas := parsed.value("--replicas")) is not None and replicas.text == "0":
        effect = "stop"
    _resources(command, effect, scope, place, parsed)
    return None


def _resources(command: Command, effect: Effect, scope: ActScope, place: str, parsed: Parsed) -> None:
    words = [word.text for word in parsed.positional]
    command.explain(*parsed.positional)
    kind, names = (words[0], words[1:]) if words else ("*", [])
    kind, slash, name = kind.partition("/")
    if slash:  # every word has its own kind: `pod/a deploy/b`
        names = [name, *(one.removeprefix(f"{kind}/") for one in names)]
    kinds = {KINDS.get(one, one).partition(".")[0] for one in kind.lower().split(",")}
    kind = KINDS.get(kind, kind)
    if command.verb in ("logs",):
        kind, names = "pod", words
    shown = parsed.value("-o", "--output")
    raw = parsed.has("--raw") and any("secret" in text for text in words)
    if effect == "read" and (raw or ("secret" in kinds and (names or shown is not None or command.verb == "describe"))):
        scope = "secret"
    if parsed.has("--all") or (parsed.value("-l", "--selector") is not None and not names):
        names = ["*"]
    if any(UNKNOWN in text for text in words) and effect not in ("read",):
        scope = "unknown"
    for one in names or ["*" if effect != "read" else ""]:
        command.act(effect, scope, ActTarget("resource", f"{place}/{kind}/{one}".replace(UNKNOWN, "?")))


def _kube_exec(command: Command, parsed: Parsed, scope: ActScope, place: str) -> None:
    pod, *words = parsed.positional or [Word()]
    more = parse(words, KUBE, stop=True)
    words = more.positional
    if space := more.value("-n", "--namespace"):
        place = space.text
    name = f"{place}/{pod.text}".replace(UNKNOWN, "?")
    state = command.beside(
        via=command.state.via | {"elsewhere"},
        elsewhere=(scope, name),
        cwds=(f"/{UNKNOWN}",),
        context=command.state.context | _chosen(command, more.options),
    )
    if not words:
        command.act("execute", scope, ActTarget("resource", name))
        return
    before = len(command.reading.acts)
    command.again(words, state)
    if len(command.reading.acts) == before:
        command.act("read", scope, ActTarget("resource", name))


def _kube_cp(command: Command, parsed: Parsed, scope: ActScope, place: str) -> None:
    if len(parsed.positional) < 2:
        return
    source, destination = parsed.positional[:2]
    if ":" in destination.text:
        acts = command.touch("read", source)
        marks = ["payload:secret"] if any(act.scope == "secret" for act in acts) else []
        command.act("send", scope, ActTarget("resource", f"{place}/{destination.text}"), marks=marks)
    else:
        command.act("read", scope, ActTarget("resource", f"{place}/{source.text}"))
        command.touch("write", destination)


@reader("helm")
def helm(command: Command) -> Output | None:
    parsed = parse(
        command.words,
        replace(
            KUBE,
            values=KUBE.values
            | {"--set", "--set-string", "--values", "--version", "--repo", "--kube-context", "--post-renderer"},
        ),
    )
    for runs in parsed.values("--post-renderer"):
        command.shell(runs.text, command.beside())
    words = [word.text for word in parsed.positional]
    verb = words[0] if words else "version"
    command.verb = verb
    effects: dict[str, Effect] = {
        **dict.fromkeys(
            [
                "list",
                "ls",
                "status",
                "get",
                "history",
                "show",
                "search",
                "template",
                "lint",
                "version",
                "env",
                "repo",
                "dependency",
                "pull",
            ],
            "read",
        ),
        **dict.fromkeys(["install", "upgrade", "rollback", "test"], "write"),
        **dict.fromkeys(["uninstall", "delete"], "delete"),
        "push": "publish",
    }
    effect = effects.get(verb, "execute")
    if verb == "repo" and words[1:2] in (["add"], ["remove"], ["update"]):
        effect = "write"
    context = parsed.value("--kube-context")
    local = context is not None and context.text.startswith(LOCAL_CONTEXTS)
    namespace = parsed.value("-n", "--namespace")
    if verb in ("template", "lint", "show", "search", "version", "dependency", "repo"):
        here(command, effect)
        return None
    space = namespace.text if namespace is not None else "default"
    if parsed.has("--dry-run"):
        effect = "read"
    name = words[1] if len(words) > 1 else ""
    command.act(
        effect, "local" if local else "remote", ActTarget("resource", f"{space}/release/{name}".replace(UNKNOWN, "?"))
    )
    return None
