"""The skeleton of a call: what stays when file names, the order of flags and quotes change.

Two calls can only be paraphrases of one another where the **hard** part is equal: the tool, the programs, and whatever
makes a call dangerous (sudo, the root folder, a system folder, a secret, a host, a substitution, a pipe into a shell).
How alike they are then is a number:

    s = ¾·Σmin(a, b)/Σmax(a, b) over weighed features (programs, flags, sorts of arguments)  +  ¼·(Jaccard of 3-grams)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

CUT = "cut"  # the danger of a value whose middle nobody kept
WORD = re.compile(
    r"""\s*?(?:(?P<op>\n|&&|\|\||>>|<<<?|[|;&<>()])
    |(?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\([^)]*\)|`[^`]*`|[^\s|;&<>()'"\\])+)
    |(?P<odd>\S))""",
    re.VERBOSE | re.DOTALL,
)
QUOTES = re.compile(r"""\\(.)|['"]""", re.DOTALL)
URL = re.compile(r"^[a-z][a-z0-9+.-]*://(?:[^/@\s]*@)?([^/:?#\s]+)", re.IGNORECASE)
LOOPBACK = re.compile(r"^(?:localhost|127(?:\.\d+){3}|\[?::1\]?)$", re.IGNORECASE)
ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
NUMBER = re.compile(r"^[+-]?\d+(?:\.\d+)?[a-zA-Z%]{0,2}$")
ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
SYSTEM = re.compile(r"^/(bin|boot|dev|etc|lib|lib64|opt|proc|root|run|sbin|sys|usr|var|System|Library)(?:/|$)")
# A whole folder right under the root, or somebody's whole home.
TOP = re.compile(r"^(?:/[^/]+|/(?:home|Users)/[^/]+|~[^/]*|\$HOME|\$\{HOME\})?/?\*?$")
SECRET = re.compile(
    r"(?:^|[/@=:])\.(?:ssh|aws|gnupg|kube|docker|netrc|env|bash_history|zsh_history|git-credentials)\b"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)|/etc/(?:passwd|shadow|sudoers|gshadow)|credentials|\.(?:pem|key|pfx|p12|keychain)$"
)
# One program for another that does the same.
SAME = {
    **dict.fromkeys(("less", "more", "head", "tail", "bat"), "cat"),
    **dict.fromkeys(("bash", "zsh", "dash", "ksh"), "sh"),
    **dict.fromkeys(("ncat", "netcat"), "nc"),
    **dict.fromkeys(("egrep", "fgrep", "rg", "ag"), "grep"),
    **dict.fromkeys(("vi", "vim", "nvim", "emacs"), "nano"),
    **{"python3": "python", "python2": "python", "pip3": "pip", "wget": "curl", "ll": "ls", "apt-get": "apt"},
    "tofu": "terraform",
}
# The same said in other words, at the beginning of a command.
SAID = {
    ("python", "-m", "pip"): ("pip",),
    ("uv", "pip"): ("pip",),
    ("docker", "container"): ("docker",),
    ("docker-compose",): ("docker", "compose"),
    **{(runner, "run"): () for runner in ("uv", "poetry", "pipenv")},
}
# One verb for another that does the same.
SAME_VERB = {("npm", "i"): "install", ("npm", "add"): "install", ("helm", "delete"): "uninstall"}
IDLE = {"cd", "sleep"}  # before a command they change nothing but where and when it runs
WRAPPERS = {"sudo", "doas", "env", "nohup", "time", "command", "exec", "builtin", "nice", "xargs", "timeout", "stdbuf"}
PRIVILEGED = {"sudo", "doas"}
_KEYWORDS = "for do done if then else elif fi while until case esac in { } !"
KEYWORDS = frozenset(_KEYWORDS.split())
SHELLS = {"sh", "python", "perl", "ruby", "node", "php"}  # after SAME; a pipe into one runs what it is fed
_SUBCOMMANDS = """apt aws az brew cargo conda dnf docker docker-compose dotnet flutter gcloud gem gh git go helm
journalctl kubectl launchctl npm npx openssl pacman pip podman poetry rustup service snap systemctl terraform uv yarn"""
# Programs whose first plain word says what they do, where it is a file's name for others.
SUBCOMMANDS = frozenset(_SUBCOMMANDS.split())
# Of these the second says it: a group of verbs stands before the verb.
_GROUPS = {
    "docker": "compose image network system volume",
    "git": "remote stash worktree",
    "helm": "repo",
    "kubectl": "config create rollout",
    "terraform": "state workspace",
}
GROUPS = frozenset(f"{program} {group}" for program, groups in _GROUPS.items() for group in groups.split())
GROUPED = {"aws", "az", "gcloud", "gh"}
# Options that take a value and may stand before the verb, which that value is not.
_LEADING = """-C -H -R -c -f -n -p --cluster --context --endpoint-url --file --host --kube-context --kubeconfig
--namespace --prefix --profile --project --project-name --region --registry --repo"""
LEADING = frozenset(_LEADING.split())
RUNS_NEXT = {"-exec", "-execdir", "-ok", "-okdir"}  # find's: the next word is a program
# These change what a program does to others; for the programs in USUAL, force is an everyday matter.
GRAVE = {"force", "hard", "delete", "mirror", "no-verify", "no-preserve-root", "privileged", "insecure", "purge"}
USUAL = {"rm", "cp", "mv", "ln"}
DESTROYERS = {"rm", "mv", "chmod", "chown", "shred"}
APART = {"\n", "&&", "||", ";", "&"}
HERE = re.compile(r"\$\(pwd\)|`pwd`")
INSIDE = re.compile(r"\$\(([^)]*)\)|`([^`]*)`")
SHELL_ARGUMENTS = {"command", "cmd", "script", "shell"}


class Skeleton(NamedTuple):
    hard: tuple[str, frozenset[str], frozenset[str]]  # tool, programs, dangers
    features: Mapping[str, float]
    grams: frozenset[str]


def skeleton(text: str) -> Skeleton:
    """Of a call's text, as `calls.text` writes it; where it stands and what came before it do not count."""
    tool, *lines = text.split("\n")
    collected, literal = _Found(), [tool]
    for line in lines:
        name, colon, value = line.partition(": ")
        if not colon or name[:1] in "@<":
            continue
        literal.append(value)
        if name.rsplit(".", 1)[-1] in SHELL_ARGUMENTS:
            _shell(collected, value.replace("↵", "\n"))
        else:
            collected.add(f"argument:{name}:{_sort(collected, value)}")
        if "…" in value:
            collected.dangers.add(CUT)
    plain = re.sub(r"""[\s'"\\]+""", " ", " ".join(literal))
    grams = frozenset(plain[i : i + 3] for i in range(max(1, len(plain) - 2)))
    return Skeleton((tool, frozenset(collected.programs), frozenset(collected.dangers)), collected.features, grams)


def parts(text: str) -> list[Skeleton]:
    """Of each command of a shell line that has several, a pipeline being one; none where it has only one."""
    tool, *lines = text.split("\n")
    skeletons = []
    for line in lines:
        name, colon, value = line.partition(": ")
        if colon and name[:1] not in "@<" and name.rsplit(".", 1)[-1] in SHELL_ARGUMENTS:
            pieces = _pieces(value.replace("↵", "\n"))
            skeletons += [skeleton(f"{tool}\n{name}: {piece}") for piece in pieces if len(pieces) > 1]
    return skeletons


def _pieces(command: str) -> list[str]:
    """A shell line taken apart where one command ends and the next begins."""
    ends = [match for match in WORD.finditer(command) if match["op"] in APART]
    starts = [0, *(match.end() for match in ends)]
    pieces = (command[a:b] for a, b in zip(starts, [*(m.start("op") for m in ends), len(command)], strict=True))
    return [" ".join(piece.split()) for piece in pieces if piece.strip()]


def alike(a: Skeleton, b: Skeleton) -> float:
    """s in [0, 1]; 0 where the hard parts differ."""
    if a.hard != b.hard:
        return 0.0
    names = a.features.keys() | b.features.keys()
    low = sum(min(a.features.get(name, 0.0), b.features.get(name, 0.0)) for name in names)
    high = sum(max(a.features.get(name, 0.0), b.features.get(name, 0.0)) for name in names)
    grams = len(a.grams & b.grams) / max(1, len(a.grams | b.grams))
    return 0.75 * (low / high if high else 1.0) + 0.25 * grams


def may_be_alike(own: Skeleton, text: str) -> bool:
    """False where a text lacks the tool or one of the programs: no need to read it."""
    tool, programs, _ = own.hard
    return text.partition("\n")[0] == tool and all(
        any(name in text for name in _spelled(word)) for program in programs for word in program.split()
    )


@cache
def _spelled(program: str) -> tuple[str, ...]:
    verbs = (own for (_, own), same in SAME_VERB.items() if same == program)
    return (program, *(name for name, same in SAME.items() if same == program), *verbs)


class _Found:
    """What is collected on the way through a call."""

    def __init__(self) -> None:
        self.programs: set[str] = set()
        self.dangers: set[str] = set()
        self.features: Counter[str] = Counter()
        self.program = ""  # whose words are being read

    def add(self, feature: str, weight: float = 1.0, most: float = 2.0) -> None:
        self.features[feature] = min(most, self.features[feature] + weight)  # type: ignore[assignment]


def _shell(collected: _Found, command: str) -> None:
    """Splits at the shell's operators, and reads each simple command."""
    words: list[str] = []
    before, piped = "", False
    for match in WORD.finditer(HERE.sub("$PWD", command)):
        op = match["op"]
        if op is None:
            word = match["word"] or match["odd"]
            if before in (">", ">>", "<", "<<", "<<<"):
                collected.add(f"redirect:{before[0]}:{_sort(collected, _bare(word))}")
                before = ""
                continue
            words.append(word)
        elif op in (">", ">>", "<", "<<", "<<<"):
            before = op
        else:
            idle = op in APART and not piped and _is_idle(words)
            if not idle:
                _simple(collected, words, piped)
                if words and op not in ("\n", ";"):
                    collected.add(f"operator:{op}")
            words, before, piped = [], "", op == "|"
    _simple(collected, words, piped)


def _simple(collected: _Found, words: list[str], piped: bool) -> None:
    """One program with its flags and arguments."""
    program, verbs, leads = "", "", False
    for word in _said(words):
        for inner in INSIDE.findall(word):
            collected.dangers.add("substitution")
            _shell(collected, inner[0] or inner[1])
        bare, led, leads = _bare(word), leads, False
        if not program:
            program = verbs = collected.program = _program(collected, bare, piped)
        elif bare in RUNS_NEXT:
            program, piped = "", False
        elif bare == "--":
            continue
        elif bare.startswith("-") and len(bare) > 1 and not NUMBER.match(bare):
            _flag(collected, program, bare)
            leads = bare in LEADING
        elif not led and _wants_verb(program, verbs) and bare[:1].isalpha() and "." not in bare:
            verbs = f"{verbs} {SAME_VERB.get((program, bare), bare)}"
            collected.programs.add(verbs)
        elif program in SHELLS and " " in bare:
            collected.add("code")
            _shell(collected, bare)
        else:
            collected.add(f"word:{_sort(collected, bare)}")


def _is_idle(words: list[str]) -> bool:
    """`cd somewhere` or `sleep 2`, with more to come; a folder that is dangerous to be in is not any somewhere."""
    if len(words) != 2 or words[0] not in IDLE:
        return False
    aside = _Found()
    return _sort(aside, _bare(words[1])) in ("name", "number") and not aside.dangers


def _said(words: list[str]) -> list[str]:
    """The command in the words that are used for it here; what only leads to the program stays before it."""
    first = next((i for i, word in enumerate(words) if not _leads(_bare(word))), len(words))
    for size in (3, 2, 1):
        own = tuple(_bare(word) for word in words[first : first + size])
        own = (SAME.get(own[0], own[0]), *own[1:]) if own else own
        if len(own) == size and own in SAID:
            return [*words[:first], *SAID[own], *words[first + size :]]
    return words


def _leads(word: str) -> bool:
    """Whether a word stands before the program that a command runs."""
    return bool(word in KEYWORDS or word in WRAPPERS or ASSIGNMENT.match(word))


def _wants_verb(program: str, verbs: str) -> bool:
    """Whether the next plain word says what is done: `verbs` is the program with those that were read."""
    depth = verbs.count(" ")
    grouped = depth == 1 and (program in GROUPED or verbs in GROUPS)
    return program in SUBCOMMANDS and (depth == 0 or grouped)


def _program(collected: _Found, word: str, piped: bool) -> str:
    """The program that a word names, or nothing where it only leads to one."""
    if assigned := ASSIGNMENT.match(word):
        _sort(collected, word[assigned.end() :])  # for its dangers
        return ""
    if word in KEYWORDS or word.startswith("-") or NUMBER.match(word):
        return ""
    name = word.rsplit("/", 1)[-1]
    name = SAME.get(name, name)
    if name in WRAPPERS:
        (collected.dangers.add("privileged") if name in PRIVILEGED else collected.add(f"through:{name}"))
        return ""
    if piped and name in SHELLS:
        collected.dangers.add("pipe into a shell")
    collected.programs.add(name)
    collected.add(f"program:{name}", 3.0, 3.0)
    return name


def _flag(collected: _Found, program: str, flag: str) -> None:
    """-rf, -fr, -r -f and --recursive --force are the same; a long flag counts by its first letter."""
    name, _, value = flag.lstrip("-").partition("=")
    grave = "force" if (program, flag) == ("git", "-f") else name
    if grave in GRAVE and program not in USUAL:
        collected.dangers.add(f"flag {grave}")
    if flag.startswith("--") or len(name) > 3 or not name.isalpha():
        collected.add(f"flag:{name[:1].lower()}", most=1.0)
        if not flag.startswith("--"):
            collected.add(f"flag:{name}", most=1.0)
    else:
        for letter in name.lower():
            collected.add(f"flag:{letter}", most=1.0)
    if value:
        collected.add(f"word:{_sort(collected, value)}")


def _sort(collected: _Found, word: str) -> str:
    """What sort of thing a word is; dangerous ones are noted as such."""
    match = URL.match(word)
    hosts = [match[1]] if match else ADDRESS.findall(word)
    away = [host.lower() for host in hosts if not LOOPBACK.match(host)]
    collected.dangers.update(f"host {host}" for host in away)
    if match or away:
        return "url"
    if SECRET.search(word):
        collected.dangers.add("secret")
        return "secret"
    if word in ("/dev/null", "/dev/stdout", "/dev/stderr"):
        return "nowhere"
    if match := SYSTEM.match(word):
        collected.dangers.add(f"system {match[1]}")
        return f"system {match[1]}"
    if word and word[0] in "/~$" and TOP.match(word) and word.rstrip("/") != "/tmp":
        collected.dangers.add("everything")
        return "everything"
    if word in ("*", ".", "./", "./*") and collected.program in DESTROYERS:
        collected.dangers.add("everything here")
    if word.startswith("../") or "/../" in word or word == "..":
        return "up"
    if NUMBER.match(word):
        return "number"
    return "text" if word.count(" ") > 2 else "variable" if word.startswith("$") else "name"


def _bare(word: str) -> str:
    """Without quotes and escapes."""
    return QUOTES.sub(lambda match: match[1] or "", word)
