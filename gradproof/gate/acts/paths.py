"""Resolves paths against the folder of a call, and finds their scope.

Nothing but the search for `.git` touches the file system: a path means what it says, whether or not it exists.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from functools import cache
from os.path import exists

from gradproof.gate.acts.act import ActScope, ActTarget, Effect

UNKNOWN = "\0"  # stands in a text for what could not be resolved
STAR, ANY, RANGE, TILDE = "\ue000", "\ue001", "\ue002", "\ue003"  # an unquoted * ? [ and a leading ~
MOST_PATH, MOST_TOLD = 4096, 1024  # characters: of a path that systems have, of one that is too long
MOST_ANCESTORS = 64  # folders above cwd that are looked at for a project
GLOBS = STAR + ANY + RANGE
ACTIVE = str.maketrans({"*": STAR, "?": ANY, "[": RANGE})
BESIDE = (".socket", ".audit-head")  # behind the name of a store: the folder of its socket, the head of its audit log
NOWHERE = {"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/stdin"}
SOURCES = {"/dev/zero", "/dev/random", "/dev/urandom", "/dev/full"}  # harmless to read
AGENTS = (".claude", ".claude.json", ".gemini", ".cursor", ".codex", ".mcp.json", ".git/hooks")
SYSTEM = (
    *(
        "bin",
        "boot",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "opt",
        "proc",
        "run",
        "sbin",
        "snap",
        "sys",
        "usr",
        "var",
    ),
    *("System", "Library", "Applications", "private", "cores"),
)
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/private/tmp", "/var/folders")
MOUNTS = ("/mnt", "/media", "/Volumes")
HOMES = ("/home", "/Users")
SECRET_NAMES = (
    *(".env", ".env.*", "*.env", ".netrc", "_netrc", ".pgpass", ".my.cnf", ".git-credentials", ".pypirc", ".npmrc"),
    *(
        "id_rsa",
        "id_dsa",
        "id_ecdsa",
        "id_ed25519",
        "*.pem",
        "*.key",
        "*.p12",
        "*.pfx",
        "*.jks",
        "*.keystore",
        "*.kdbx",
    ),
    *(
        "credentials",
        "credentials.*",
        "*credentials.json",
        "secrets.*",
        "secret.*",
        ".secrets",
        "service-account*.json",
    ),
    *(".htpasswd", ".vault-token", "wallet.dat", "shadow", "gshadow", "shadow-", "master.passwd", "*.ovpn"),
    *(".*_history", "fish_history", ".s3cfg", ".boto", ".mylogin.cnf", ".vault_pass", "*.keytab", "krb5cc_*", "*.ppk"),
    *("logins.json", "key3.db", "key4.db", "signons.sqlite", "Login Data", "Login Data For Account", "Web Data"),
    *("Local State", "Cookies.binarycookies", "*.keychain", "*.keychain-db", "*.nmconnection", "opasswd", "spwd.db"),
    *("Cookies", "cookies.sqlite", "kubeconfig", "*.tfstate", "*.tfvars", "token", "tokens.json"),
    *("id_rsa.*", "*_rsa", "*_ed25519", ".dockercfg", "terraform.tfstate*", "auth.json", "sa.json"),
)
NOT_SECRET = (
    *("*.pub", "*.example", "*.sample", "*.template", "*.dist", ".env.test", "*.py", "*.js", "*.ts", "*.go", "*.rs"),
    *("*.tsx", "*.jsx", "*.kt", "*.swift", "*.cs", "*.dart", "*.vue", "*.svelte", "*.scala"),
    *("*.md", "*.html", "*.css", "*.java", "*.rb", "*.sh", "*.tf", "cacert.pem", "*.crt", "public*.pem", "public*.key"),
)
SECRET_FOLDERS = (".ssh", ".aws", ".gnupg", ".kube", ".azure", ".docker", ".password-store", "keyrings", "Keychains")
SECRET_FOLDER_SET = frozenset(SECRET_FOLDERS)
SECRET_PLACES = ("gcloud", "gh", "rclone", "op", "heroku", "doctl", "hub", "filezilla", "remmina")  # below .config
PUBLIC_NAMES = ("known_hosts", "known_hosts.old", "authorized_keys", "*.pub", "config")
SECRET_SYSTEM = re.compile(
    r"^/(?:private/)?(?:etc/(?:shadow|gshadow|sudoers|ssh/.*_key|ssl/private|kcpassword|ipsec\.secrets|wireguard/"
    r"|wpa_supplicant|ppp/(?:chap|pap)-secrets|NetworkManager/system-connections|rancher/"
    r"|security/o?passwd|kubernetes/(?:[\w-]+\.conf|pki/.*\.key))|proc/(?:[^/]+/(?:environ|mem)|kcore)|(?:var/)?run/secrets"
    r"|var/lib/(?:cloud/instances?/.*user-data|kubelet/pki|samba/private|sss/(?:db|secrets))|var/db/dslocal/.*/users)"
)
SECRET_STORES = re.compile(  # of browsers and of macOS: cookies, passwords, rights that users gave
    r"/(?:\.mozilla|\.thunderbird|\.config/(?:google-chrome|chromium|BraveSoftware|microsoft-edge)"
    r"|Library/(?:Keychains|Cookies|Safari"
    r"|Application Support/(?:Google/Chrome|Firefox|BraveSoftware|com\.apple\.TCC)))(?:/|$)"
)
KEPT_FROM_READERS = "/etc/sudoers"  # no keys are in it: to change it is to change the system


LOOPBACK = re.compile(r"127(?:\.\d{1,3}){1,3}", re.ASCII)  # not `127.0.0.1.example`, which is any host
START_FILES = (".bashrc", ".bash_profile", ".profile", ".zshrc", ".zprofile", ".zshenv", ".bash_login", ".bash_logout")
START_FILES += ("config.fish", ".xinitrc", ".xprofile", ".zlogin", ".zlogout", ".bash_aliases", ".kshrc", ".cshrc")
START_FILES += (".tcshrc", ".xsession", ".xsessionrc", ".pam_environment")
START_FOLDERS = (  # anywhere
    *("/Library/LaunchAgents", "/Library/LaunchDaemons", "/.config/systemd", "/.config/autostart"),
    *("/.local/share/systemd", "/.config/environment.d", "/.ssh/rc", "/.git/hooks/", "/.git/config"),
)
START_SYSTEM = (  # of this machine, not of an image that lies in a project
    *("/etc/cron", "/etc/init.d", "/etc/systemd", "/etc/rc", "/var/spool/cron", "/etc/xdg/autostart", "/etc/ld.so"),
    *("/etc/profile", "/etc/bash.bashrc", "/etc/bashrc", "/etc/zsh", "/etc/zprofile", "/etc/environment"),
    *("/etc/inittab", "/etc/udev/rules.d", "/etc/update-motd.d", "/etc/modules", "/etc/periodic", "/etc/X11/xinit"),
    *("/etc/NetworkManager/dispatcher.d", "/etc/network/if-", "/etc/apt/apt.conf.d", "/etc/emond.d"),
    *("/usr/lib/systemd", "/lib/systemd", "/usr/local/etc/rc.d", "/usr/local/etc/periodic", "/boot/loader.conf"),
    "/Library/StartupItems",
)
RIGHTS_FILES = (
    "/etc/sudoers",
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/etc/pam.d",
    "/root/.ssh",
    "/.ssh/authorized_keys",
)


@dataclass(frozen=True)
class Surroundings:
    """Where a call is made: `cwd` is empty where nobody said, `project` where there is none."""

    cwd: str = ""
    project: str = ""
    home: str = "/root"
    store: str = ""
    port: int = 0  # of the gate's service

    @classmethod
    def of(cls, cwd: str, home: str, store: str = "", port: int = 0) -> Surroundings:
        """Looks for the project: the nearest folder above cwd that holds `.git`, else cwd itself."""
        cwd = posixpath.normpath(cwd) if cwd.startswith("/") and len(cwd) <= MOST_PATH else ""
        cwd = "/" + cwd.lstrip("/") if cwd else ""
        home = posixpath.normpath(home)
        if not cwd or cwd == "/" or is_home(cwd, home):
            return cls(cwd, "", home, store, port)
        return cls(cwd, _project(cwd, home), home, store, port)

    def is_gates(self, path: str) -> bool:
        """Whether a path lies in the gate's store, or in what belongs to it and lies beside it."""
        return bool(self.store) and any(_within(path, self.store + end) for end in ("", *BESIDE))


def is_home(path: str, home: str) -> bool:
    """Whether a folder is somebody's whole home."""
    return path in (home, "/root") or posixpath.dirname(path) in HOMES


def _project(cwd: str, home: str) -> str:
    candidate = cwd
    for _ in range(MOST_ANCESTORS):
        if candidate == "/" or is_home(candidate, home):
            break
        if exists(f"{candidate}/.git"):
            return candidate
        candidate = posixpath.dirname(candidate)
    return cwd


def resolve(text: str, cwd: str, home: str) -> str | None:
    """An absolute path without `.`, `..` and `//`; None where it depends on what nobody knows."""
    if UNKNOWN in text:
        return None
    text = from_home(text, home)
    if UNKNOWN in text:
        return None
    if not text.startswith("/"):
        if not cwd:
            return None
        text = f"{cwd}/{text}"
    return "/" + posixpath.normpath(text).lstrip("/")


def from_home(text: str, home: str) -> str:
    """A text with the folder that a leading ~ stands for; UNKNOWN where that is the current or the last one."""
    if not text.startswith(TILDE):
        return text
    user, slash, rest = text[1:].partition("/")
    if user in ("+", "-"):
        return UNKNOWN
    base = home if not user else "/root" if user == "root" else f"{posixpath.dirname(home) or '/home'}/{user}"
    return f"{base}{slash}{rest}"


def is_descriptor(path: str) -> bool:
    """`/dev/fd/63`, as a shell names a pipe; not what leads out of that folder again."""
    return path.startswith("/dev/fd/") and path[8:].isalnum()


def climbs(text: str) -> bool:
    """Whether a relative path leaves the folder that it starts in."""
    return text.startswith(("/", TILDE)) or posixpath.normpath(text).startswith("..")


def place(
    text: str, effect: Effect, around: Surroundings, cwd: str | None = None, *, folder: bool = False
) -> tuple[ActTarget, ActScope] | None:
    """What a path names and its scope for an effect; None for what is not a target, such as /dev/null."""
    cwd, deep = around.cwd if cwd is None else cwd, folder
    folder = folder or text.endswith(("/", "/.", "/..")) or text in (".", "..", TILDE)
    stem, pattern = _split_glob(text)
    path = resolve(stem, cwd, around.home)
    if path is not None and len(path) + len(pattern) > MOST_PATH:
        return ActTarget("path", f"{path[:MOST_TOLD]}…", folder), "unknown"
    if path is None:
        return _without_cwd(text, effect, around, folder)
    if path in NOWHERE or is_descriptor(path) or (path in SOURCES and effect == "read"):
        return None
    if path.startswith(("/dev/tcp/", "/dev/udp/")):
        host, _, port = path.split("/", 3)[3].partition("/")
        if is_loopback(host) and port == str(around.port or None):
            return ActTarget("host", host), "own"
        return ActTarget("host", host), "local" if is_loopback(host) else "remote"
    if pattern:
        return _place_glob(path, pattern, effect, around)
    return ActTarget("path", path, folder), scope(path, effect, around, folder=deep if effect == "read" else folder)


def _without_cwd(text: str, effect: Effect, around: Surroundings, folder: bool) -> tuple[ActTarget, ActScope]:
    """A path that depends on a variable, or a relative one without a folder to start from."""
    if UNKNOWN in text or text.startswith(TILDE):
        return ActTarget("path", text.replace(UNKNOWN, "?"), folder), "unknown"
    plain = posixpath.normpath(unglobbed(text))
    if secret(plain):
        return ActTarget("path", plain, folder), "secret"
    if own_part(plain):
        return ActTarget("path", plain, folder), "own"
    stays = not climbs(plain) and effect in ("read", "write")
    return ActTarget("path", plain, folder), "project" if stays else "outside"


def _split_glob(text: str) -> tuple[str, str]:
    """What stands before the first part with a pattern, and the rest."""
    if not any(mark in text for mark in GLOBS):
        return text, ""
    parts = text.split("/")
    first = next(i for i, part in enumerate(parts) if any(mark in part for mark in GLOBS))
    stem = "/".join(parts[:first]) or ("/" if text.startswith("/") else ".")
    return stem, "/".join(parts[first:])


def _place_glob(path: str, pattern: str, effect: Effect, around: Surroundings) -> tuple[ActTarget, ActScope]:
    """The scope of what a pattern could match."""
    first, _, deeper = pattern.partition("/")
    shape = unglobbed(first)
    whole = f"{path.rstrip('/')}/{unglobbed(pattern)}"
    if ".." in deeper.split("/"):
        return ActTarget("path", whole, True), "unknown"
    if deeper and secret(whole):
        return ActTarget("path", whole), "secret"
    if not shape.strip("*?") or shape.startswith(("[", ".*", ".?", ".[")):  # nearly everything in the folder
        hidden = shape.startswith((".", "["))
        reached = scope(path, effect, around, folder=True, contents=not hidden)
        return ActTarget("path", path, True), reached
    if path.endswith("/etc") and any(fnmatchcase(name, shape) for name in ("shadow", "gshadow", "sudoers")):
        return ActTarget("path", whole), scope(f"{path}/shadow", effect, around)
    names = [*AGENTS_HERE, *SECRET_EXAMPLES] if effect != "read" or not shape.startswith("*.") else SECRET_EXAMPLES
    for name in names:
        if fnmatchcase(name, shape) and not shape.startswith("*."):
            matched = scope(f"{path}/{name}", effect, around, folder=True)
            if matched in ("own", "secret"):
                return ActTarget("path", whole), matched
    reached = scope(f"{path.rstrip('/')}/{shape}", effect, around, folder=bool(deeper))
    return ActTarget("path", whole), reached


AGENTS_HERE = (".claude", ".gemini", ".cursor", ".mcp.json", ".git")
SECRET_EXAMPLES = (".env", ".netrc", "id_rsa", "id_ed25519", "credentials", ".ssh", ".aws", ".gnupg", "secrets.json")


def unglobbed(text: str) -> str:
    """With the marks of unquoted characters as the characters that they were."""
    return text.replace(STAR, "*").replace(ANY, "?").replace(RANGE, "[").replace(TILDE, "~")


def scope(path: str, effect: Effect, around: Surroundings, *, folder: bool = False, contents: bool = False) -> ActScope:
    """The first scope that applies to an absolute path. `contents`: what is in the folder, but no hidden files."""
    if owned(path, effect, around, folder and not contents):
        return "own"
    if secret(path) and (effect == "read" or not path.startswith(KEPT_FROM_READERS)):
        return "secret"
    if _is_root(path, around):
        return "root"
    if any(path == temp or path.startswith(f"{temp}/") for temp in TEMPORARY):
        return "project" if around.project and _within(path, around.project) else "temp"
    if path == "/dev" or path.startswith("/dev/"):
        return "device"
    if around.project and _within(path, around.project):
        return _in_project(path, effect, around)
    if path.split("/")[1] in SYSTEM:
        return "system"
    if not around.project and around.cwd and effect in ("read", "write") and _within(path, around.cwd):
        return "project" if around.cwd != "/" else "outside"
    return "home" if _within(path, around.home) else "outside"


def _in_project(path: str, effect: Effect, around: Surroundings) -> ActScope:
    """The project folder as a whole, and its `.git`, are not to be removed, moved or given to others."""
    git = f"{around.project}/.git"
    if effect in ("delete", "change_rights") and (path == around.project or _within(path, git)):
        return "outside"
    return "project"


def owned(path: str, effect: Effect, around: Surroundings, folder: bool = False) -> bool:
    """Whether this is the gate's own, or an agent's settings; for what removes or moves a folder, whether they lie in
    it."""
    if around.is_gates(path) or own_part(path):
        return True
    if effect == "read" and folder:
        return bool(around.store) and _within(around.store, path)
    if effect not in ("delete", "change_rights") or not folder:
        return False
    holders = [around.store, around.project, f"{around.project}/.git" if around.project else "", around.home]
    return any(holder and _within(holder, path) for holder in holders) and not _is_root(path, around)


def own_part(path: str) -> bool:
    """Whether a path leads through an agent's settings or a repository's hooks. Some systems do not tell case apart."""
    padded = f"/{path.strip('/').lower()}/"
    return any(f"/{name}/" in padded for name in AGENTS)


def secret(path: str) -> bool:
    """Whether a file of that name is known to hold secrets."""
    if (lower := path.lower()) != path and secret(lower):  # some systems do not tell case apart
        return True
    *folders, name = path.strip("/").split("/")
    if _any_of(NOT_SECRET).match(name):
        return False
    if not SECRET_FOLDER_SET.isdisjoint(folders):
        return not _any_of(PUBLIC_NAMES).match(name) or ".kube" in folders
    if name in SECRET_FOLDERS and name.startswith(".") and name not in (".docker",):
        return True
    if ".config" in folders and folders[-1] in SECRET_PLACES:
        return True
    return bool(_any_of(SECRET_NAMES).match(name) or SECRET_SYSTEM.match(path) or SECRET_STORES.search(path))


def may_be_secret(pattern: str) -> bool:
    """Whether a pattern that programs search for is, or matches, the name of a well-known secret."""
    if secret(pattern):
        return True
    if not set("*?[") & set(pattern) or pattern.startswith("*.") or not pattern.strip("*?."):
        return False
    return any(fnmatchcase(name, pattern) for name in SECRET_EXAMPLES)


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for many patterns of a name."""
    return re.compile("|".join(map(translate, patterns)))


def _is_root(path: str, around: Surroundings) -> bool:
    """Everything: the root, a whole home or all of them, a whole mount."""
    whole = path in ("/", *HOMES, *MOUNTS) or posixpath.dirname(path) in MOUNTS
    return whole or (is_home(path, around.home) and path != around.project)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def within(path: str, folder: str) -> bool:
    """Whether a resolved path is a folder or lies below it."""
    return _within(path, folder)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    host = host.lower().strip("[]").removesuffix(".")
    named = host in ("localhost", "::1", "0.0.0.0", "0", "host.docker.internal") or host.endswith(".localhost")
    return named or LOOPBACK.fullmatch(host) is not None


def turned(path: str, effect: Effect) -> Effect:
    """Writing some files is more than writing: they run again later, or give rights."""
    if effect != "write":
        return effect
    if any(path.startswith(name) or (name.startswith("/.") and name in path) for name in RIGHTS_FILES):
        return "escalate"
    starts = path.startswith(START_SYSTEM) or any(folder in path for folder in START_FOLDERS)
    if starts or path.rsplit("/", 1)[-1] in START_FILES:
        return "persist"
    return effect


def looks_like_path(text: str) -> bool:
    """Whether a word can only be meant as a path."""
    return text.startswith((".", TILDE)) or "/" in text or any(mark in text for mark in GLOBS)


def alternatives(texts: tuple[str, ...], cwds: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each text from each folder that it may be meant from."""
    for text in texts:
        for cwd in cwds if not text.startswith(("/", TILDE)) else cwds[:1]:
            yield text, cwd
