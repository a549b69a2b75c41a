"""Text filters, and the other effects of their languages: sed, awk, grep, vim."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gradproof.gate.acts.act import ActTarget
from gradproof.gate.acts.command import Command, reader
from gradproof.gate.acts.deeds import apply
from gradproof.gate.acts.knowledge import Deed, WordPart
from gradproof.gate.acts.options import parse
from gradproof.gate.acts.paths import UNKNOWN, is_loopback, may_be_secret
from gradproof.gate.acts.places import here
from gradproof.gate.acts.shell_state import Output
from gradproof.gate.acts.word import Word

RUNS_FROM_EDITOR = re.compile(
    r"(?:^|[:|\s])(?:r|w|sil(?:ent)?!?)?\s*!\s*(?P<shell>\S.*)|system\w*\(|(?:^|[:|])\s*(?:lua|py\w*|perl|ruby)\b"
)

PLAIN_ORDER = re.compile(  # moves about, sets options, replaces, saves under the same name
    r":?(?:\d*|\$|[GFg]|/[^|]*|(?:set?|setlocal|syntax|filetype|colorscheme) [\w\s=,:+-]*"
    r"|%?(?:\d+,\d+)?s(/|#)[^|]*\1[^|]*\1[gicn]*|(?:g|v)/[^|]*/d|help(?: \w+)?"
    r"|(?:w|x|q|wq|qa|wqa|xa|wa|cq|noh|e|normal [\w=$]+)!?)"
)


@reader("pager")
def pager(command: Command) -> Output | None:
    """less: files, and with `+` what is typed first, which may run a program."""
    parsed = parse([word for word in command.words if not word.text.startswith("+")], command.deed)
    for word in command.words:
        if word.text.startswith("+"):
            _ordered(command, Word((word.text.lstrip("+"),)))
    for log in parsed.values("-o", "-O"):
        command.touch("write", log)
    return apply(command, replace(command.deed, args=(WordPart("read", "path", True),)), parsed)


def _ordered(command: Command, order: Word) -> None:
    """What an editor or a pager is told to do at its start."""
    match = RUNS_FROM_EDITOR.search(order.text)
    if match is not None and match["shell"]:
        command.shell(match["shell"], command.beside(via=command.state.via | {"interpreter"}))
    elif match is not None or not order.known or not PLAIN_ORDER.fullmatch(order.text):
        command.unknown("an editor that is told to run code")


@reader("vim")
def vim(command: Command) -> Output | None:
    """Files to edit; what it is told to do at the start may run programs."""
    parsed = parse([word for word in command.words if not word.text.startswith("+")], command.deed)
    orders = parsed.values("-c", "--cmd") + [Word((w.text[1:],)) for w in command.words if w.text.startswith("+")]
    for order in orders:
        _ordered(command, order)
    for script in parsed.values("-S", "-u"):
        command.touch("execute" if script.text != "NONE" else "read", script)
    for word in parsed.positional:
        command.touch("write", word)
    return None


@reader("emacs")
def emacs(command: Command) -> Output | None:
    """Files to edit; Lisp that it is told to run may do anything."""
    parsed = parse(command.words, command.deed)
    if parsed.has("--eval", "-eval", "--execute", "-execute", "-f", "--funcall"):
        command.unknown("an editor that is told to run code")
    for script in parsed.values("-l", "--load", "--script"):
        command.touch("execute", script)
    for word in parsed.positional:
        command.touch("write", word)
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


RUNS_FROM_AWK = re.compile(r"system\s*\(|\|\s*getline|\|&|\|\s*\"|\|\s*[a-z]+\b|@(?:load|include)\b")


@reader("awk")
def awk(command: Command) -> Output | None:
    parsed = parse(
        command.words, Deed(values=frozenset({"-F", "-v", "-f", "--field-separator", "--assign", "--file"})), stop=False
    )
    words, files = parsed.positional, parsed.values("-f", "--file")
    scripts, words = ([], words) if files else (words[:1], words[1:])
    in_place = any(name == "-i" and value is not None and value.text == "inplace" for name, value in parsed.options)
    for word in words:
        if "=" not in word.text or in_place:
            command.touch("write" if in_place else "read", word)
    for file in files:
        command.touch("execute", file)
    for script in scripts:
        _awk_script(command, script.text)
    return None


def _awk_script(command: Command, text: str) -> None:
    """Programs that it starts, and files and hosts that it writes to."""
    if RUNS_FROM_AWK.search(text) or UNKNOWN in text:
        command.unknown("an awk script that runs commands")
        for match in re.finditer(r'(?:system\s*\(|\|&?)\s*"([^"\n]{1,500})"', text):
            command.shell(match[1], command.beside(via=command.state.via | {"interpreter"}), command.stdin)
    for match in re.finditer(r'>>?\s*"([^"]+)"', text):
        command.touch("write", Word((match[1],)))
    for match in re.finditer(r"/inet[46]?/\w+/\w+/([^/\s\"]+)", text):
        command.act("send", "local" if is_loopback(match[1]) else "remote", ActTarget("host", match[1]))


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
                "--pre",
                "--pre-glob",
            }
        )
    )
    parsed = parse(command.words, deed)
    words = parsed.positional
    if not parsed.values("-e", "-f", "--regexp", "--file") and not parsed.has("--files"):
        words = words[1:]
    for file in parsed.values("-f", "--file"):
        command.touch("read", file)
    for pattern in parsed.values("-g", "--glob", "--iglob", "--include"):
        if may_be_secret(pattern.text.rpartition("/")[2]):
            command.act("read", "secret", ActTarget("path", pattern.text))
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


def carried(command: Command, words: Sequence[Word]) -> list[str]:
    """Files that leave with an act: whether one is a secret."""
    acts = [act for word in words for act in command.touch("read", word)]
    return ["payload:secret"] if any(act.scope == "secret" for act in acts) else []
