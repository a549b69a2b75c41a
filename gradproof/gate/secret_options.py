"""Secrets among the arguments of programs: mysql -pSECRET, curl -u user:SECRET, echo SECRET | sudo -S.

Commands are found by the program names in secrets.toml and split into words roughly as a shell does it. An unclosed
quote extends to the end of the text. Quoted text may be a command, too, and is searched again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from gradproof.gate.secret_rules import Program, is_literal, is_secret, named, rules
from gradproof.gate.secret_spans import Scan

MOST_DEPTH = 3  # of commands in quotes
MOST_PROGRAMS = 6  # in one command: sudo docker exec db mysql
SUB_WITHIN = 3  # the subcommand is among this many words: option values may come first
MOST_IN_PARENTHESES = 8  # commands whose output is piped together
LONGEST_HEREDOC = 1 << 14  # bytes
COST_OF_WORD = 0.1  # for reading a word, and for each rule that looks at it
OPERATOR, WORD = 1, 2
_TOKENS = re.compile(
    rb"""(<<<|<<-?|\d{0,2}(?:>>|>&|<&|>\||[<>])|&>>?|\|\|?|&&|[;&()`\n]|\\\r?\n)"""
    rb"""|((?:[^\s\\"'`;|&()<>]++|\\[^\r\n]|"(?:[^"\\]++|\\.)*+"?|'[^']*+'?)++)""",
    re.DOTALL,
)
_REDIRECTION = re.compile(rb"\d*[<>]|&>")
_GROUP = re.compile(rb"-[A-Za-z]{1,6}\Z")
_OPTION = re.compile(rb"[-+]|/[A-Za-z?]+(?::|\Z)")
_LOGIN = re.compile(rb"[^\s@/]+@[^\s@/]")
_SPACE = re.compile(rb"\s")
_QUOTE = re.compile(rb"\\*+[\"']")
_FORMAT = re.compile(rb"-[neEr]+\Z|(?:%[-\d.]*[a-z]|\\[a-z0-9]|\W)*+\Z")
_PRINTERS = frozenset((b"echo", b"printf", b"print", b"yes"))


class PlainWord(NamedTuple):
    """A word of a command without the quotes around it, and its span."""

    text: bytes
    start: int
    end: int
    quote: bytes = b""


@dataclass(frozen=True)
class PlainCommand:
    """A simple command. `piped`: its input is the output of the previous one. `here`: the words after <<<.
    `documents`: where the delimiters of its here-documents start."""

    piped: bool = False
    words: list[PlainWord] = field(default_factory=list)
    here: list[PlainWord] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)


def find_options(scan: Scan, match: Any) -> int:
    """Adds the secrets of all commands on the line of a program name, and returns where the line ends."""
    return _find_on_line(scan, scan.data.rfind(b"\n", 0, match.end() - 1) + 1, scan.end, 0)


def _find_on_line(scan: Scan, start: int, end: int, depth: int) -> int:
    commands, end = _line(scan, start, end, depth)
    for place, command in enumerate(commands):
        find_in_words(scan, command, _piped(commands, place) if command.piped else ())
    return end


def _piped(commands: list[PlainCommand], place: int) -> list[PlainWord]:
    """What is piped into a command by the one before it, or by those in parentheses: (echo a; echo b) | …"""
    closed = not commands[place - 1].words
    earlier = commands[max(0, place - MOST_IN_PARENTHESES) : place] if closed else [commands[place - 1]]
    return [word for command in earlier for word in _printed(command)]


def _printed(command: PlainCommand) -> list[PlainWord]:
    """The arguments of echo or printf."""
    printer = next((place for place, word in enumerate(command.words[:3]) if word.text in _PRINTERS), None)
    words = [] if printer is None else command.words[printer + 1 :]
    return [word for word in words if not _FORMAT.match(word.text)]


def _line(scan: Scan, start: int, end: int, depth: int) -> tuple[list[PlainCommand], int]:
    """The commands of a line, and where it ends. A backslash at the end continues the line."""
    commands, last, before, reserve = [PlainCommand()], start, b"", scan.left / 2
    for match in _TOKENS.finditer(scan.data, start, end):
        if not scan.afford(match.start(), COST_OF_WORD, reserve):
            break
        last, text = match.end(), match[0]
        if match.lastindex == WORD:
            word = PlainWord(text, match.start(), last)
            if b'"' in text or b"'" in text:
                _find_within(scan, word, depth)
                word = _unquoted(word)
            if before == b"<<<":
                commands[-1].here.append(word)
            elif not _REDIRECTION.match(before):
                commands[-1].words.append(word)
            before = b""
        elif text == b"\n":
            break
        elif text[:1] != b"\\":
            before = text
            if text in (b"<<", b"<<-"):
                commands[-1].documents.append(last)
            elif not _REDIRECTION.match(text):
                commands.append(PlainCommand(piped=text == b"|"))
    return commands, max(last, start + 1)


def _unquoted(word: PlainWord) -> PlainWord:
    """The word without the quotes around it."""
    quote = word.text[:1]
    if quote not in (b'"', b"'"):
        return word
    closed = len(word.text) > 1 and word.text.endswith(quote)
    return PlainWord(word.text[1 : len(word.text) - closed], word.start + 1, word.end - closed, quote)


def _find_within(scan: Scan, word: PlainWord, depth: int) -> None:
    """Adds the secrets of commands in quotes: bash -c "…", ssh host '…'."""
    if depth == MOST_DEPTH or not _SPACE.search(word.text):
        return
    inner = min(at for at in (word.text.find(b'"'), word.text.find(b"'")) if at >= 0) + 1
    start, end = word.start + inner, word.end - word.text.endswith(word.text[inner - 1 : inner])
    while (match := rules().program.search(scan.data, start - 1, min(word.end, scan.end))) and scan.afford(start):
        line = scan.data.rfind(b"\n", start, match.end() - 1) + 1
        start = max(_find_on_line(scan, line or start, end, depth + 1), match.end())


def _heredoc(scan: Scan, start: int) -> Iterator[PlainWord]:
    """The lines of a here-document."""
    name = _TOKENS.search(scan.data, start, scan.end)
    body = scan.data.find(b"\n", start, scan.end) + 1
    if name is None or name.lastindex != WORD or not body:
        return
    delimiter = name[WORD].strip(b"\"'\\")
    for line in scan.data[body : min(scan.end, body + LONGEST_HEREDOC)].splitlines(keepends=True):
        text = line.strip()
        if text == delimiter or not scan.afford(body, 2 * COST_OF_WORD):
            return
        at = body + line.find(text)
        yield PlainWord(text, at, at + len(text))
        body += len(line)


def find_in_words(scan: Scan, command: PlainCommand, printed: Sequence[PlainWord] = ()) -> None:
    """Adds the secrets of one command, for each known program among its words. `printed` is its input."""
    table, applied = rules().programs, 0
    for index, word in enumerate(command.words):
        programs = table.get(word.text) or table.get(_base(word.text))
        if programs is None:
            continue
        words = _affordable(scan, command.words[index + 1 :], len(programs))
        for program in programs:
            _apply(scan, program, words, command, printed)
        applied += 1
        if applied == MOST_PROGRAMS:
            break


def _affordable(scan: Scan, words: list[PlainWord], times: int) -> list[PlainWord]:
    """The words that the budget allows to be looked at so many times."""
    for count, word in enumerate(words):
        if not scan.afford(word.start, COST_OF_WORD * times):
            return words[:count]
    return words


def _base(word: bytes) -> bytes:
    """The program name in /usr/bin/mysql or .\\mysql.exe. A relative path without a dot is an argument."""
    if word[:1] in (b"/", b".", b"~", b"$"):
        word = word.rpartition(b"/")[2]
    if b"\\" in word:
        word = word.rpartition(b"\\")[2]
    return word[:-4] if word[-4:].lower() == b".exe" else word


def _apply(
    scan: Scan, program: Program, words: list[PlainWord], command: PlainCommand, printed: Sequence[PlainWord]
) -> None:
    arguments = _after_sub(program, words)
    if arguments is None or not _has_needed(program, words):
        return
    if program.logins:
        for word in words:
            if _LOGIN.match(word.text):
                scan.keep(word.start, word.end)
    if program.options or program.glued:
        _find_option_values(scan, program, words)
    if program.words:
        _find_positions(scan, program, arguments)
    if program.pairs or program.named:
        _find_pairs(scan, program, arguments)
    if program.stdin is not None:
        _find_input(scan, program, command, printed)


def _after_sub(program: Program, words: list[PlainWord]) -> list[PlainWord] | None:
    """The words after the subcommand, or None if it is a different one."""
    if not program.sub:
        return words
    others = (place for place, word in enumerate(words) if word.text[:1] != b"-" or word.text in program.sub)
    places = list(islice(others, SUB_WITHIN + len(program.sub)))
    for first in range(min(SUB_WITHIN, len(places) - len(program.sub) + 1)):
        chosen = places[first : first + len(program.sub)]
        if all(words[place].text == sub for place, sub in zip(chosen, program.sub, strict=True)):
            return words[chosen[-1] + 1 :]
    return None


def _has_needed(program: Program, words: list[PlainWord]) -> bool:
    if not program.needs:
        return True
    for word in words:
        text = word.text
        if any(text == need or text.startswith((need + b"=", need + b".")) for need in program.needs):
            return True
        letters = {need[1:] for need in program.needs if len(need) == 2} if program.cluster else ()
        if letters and _GROUP.match(text) and any(letter in text for letter in letters):
            return True
    return False


def _find_option_values(scan: Scan, program: Program, words: list[PlainWord]) -> None:
    taken = False
    for place, word in enumerate(words):
        if taken:
            taken = False
            continue
        if word.text[:1] not in (b"-", b"/", b"+") and word.text not in program.options:
            if program.leading:
                return
            continue
        for option in program.glued:
            if word.text.startswith(option) and len(word.text) > len(option) and word.text[:2] != b"--":
                _add(scan, program.kind, _part(scan, word, len(option)))
        taken = _find_option_value(scan, program, word, words[place + 1] if place + 1 < len(words) else None)


def _find_option_value(scan: Scan, program: Program, word: PlainWord, following: PlainWord | None) -> bool:
    """Adds the secret in the value of an option. Returns whether the value is the next word."""
    text, options = word.text, program.options
    name = b"-" + text[-1:] if program.cluster and _GROUP.match(text) else text
    if name in options and following is not None and (following.quote or following.text[:2] != b"--"):
        _add_after(scan, program, following, options[name])
        return True
    name = text.partition(b":" if text[:1] == b"/" else b"=")[0]
    if name in options:
        _add_after(scan, program, _part(scan, word, len(name) + 1), options[name])
    elif text[:2] in options:
        _add_after(scan, program, _part(scan, word, 2), tuple(filter(None, options[text[:2]])))
    return False


def _add_after(scan: Scan, program: Program, value: PlainWord, separators: tuple[bytes, ...]) -> None:
    for separator in separators:
        _add(scan, program.kind, _after(scan, value, separator))


def _find_positions(scan: Scan, program: Program, arguments: list[PlainWord]) -> None:
    others = [word for word in arguments if word.quote or not _OPTION.match(word.text)]
    for position in program.words:
        if -len(others) <= position < len(others):
            word = others[position]
            if program.separator:
                before, _, secret = word.text.partition(program.separator)
                if not before or before[:1] == b"@":
                    continue
                length = secret.rfind(program.until)
                word = _part(scan, word, len(before) + len(program.separator), length if length > 0 else len(secret))
            _add(scan, program.kind, word)


def _find_pairs(scan: Scan, program: Program, arguments: list[PlainWord]) -> None:
    for place, word in enumerate(arguments):
        if program.pairs and b"=" in word.text and not word.text.startswith((b"-", b"@")):
            _add(scan, program.kind, _after(scan, word, b"="))
        if b"=" in word.text or b"\xff" in word.text:
            continue
        if program.named and place + 1 < len(arguments) and not _OPTION.match(arguments[place + 1].text):
            value, rule = arguments[place + 1], named(word.text)
            if rule and is_secret(rule, value.text, value.quote):
                _add(scan, rule.kind, value)


def _find_input(scan: Scan, program: Program, command: PlainCommand, printed: Sequence[PlainWord]) -> None:
    """Adds what is piped in, the words after <<< and the lines of here-documents."""
    documents = (word for start in command.documents for word in _heredoc(scan, start))
    for word in (*printed, *command.here, *documents):
        _add(scan, program.kind, _after(scan, word, program.stdin or b""))


def _after(scan: Scan, word: PlainWord, separator: bytes) -> PlainWord | None:
    """The part of a word after a separator, or None without the separator."""
    at = word.text.find(separator)
    return _part(scan, word, at + len(separator)) if at >= 0 else None


def _part(scan: Scan, word: PlainWord, offset: int, length: int | None = None) -> PlainWord:
    """A part of a word, without the quotes around it. It ends before a later quote that contains spaces."""
    start = word.start + offset
    text = scan.data[start : word.end if length is None else start + length]
    opening = text.lstrip(b"\\")[:1]
    if opening and opening in b"\"'":
        inner = text.find(opening) + 1
        text, quote = text[inner:].partition(text[:inner])[0], opening
        return PlainWord(text, start + inner, start + inner + len(text), quote)
    later = _QUOTE.search(text) if not word.quote else None
    if later and (later[0][:1] == b"\\" or _SPACE.search(text, later.end())):
        text = text[: later.start()]
    return PlainWord(text, start, start + len(text), word.quote)


def _add(scan: Scan, kind: str, word: PlainWord | None) -> None:
    if word is not None and is_literal(word.text, word.quote):
        scan.add(word.start, word.end, kind)
