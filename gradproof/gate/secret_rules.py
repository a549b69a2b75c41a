"""The redaction rules of secrets.toml, compiled, and the checks that tell a secret from an ordinary value."""

from __future__ import annotations

import re
import tomllib
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gradproof.gate import MISSING_EXTRA

FILE = Path(__file__).with_name("secrets.toml")
LONGEST_NAME = 128  # bytes; only the end of a longer name is compared
LEAST_RANDOM = 24  # bytes; a shorter string never counts as random
LEAST_HEX = 16  # digits of a hexadecimal key
LONGEST_RANDOM = 1 << 12  # bytes; only the beginning of a longer string is checked
LEAST_DISTINCT = 12  # different bytes in a random string
LEAST_WORD, WORDS = 4, 0.4  # share of runs of ≥ 4 letters of one case: 0.1 in random base64, over 0.5 in identifiers
AWS_SECRET = 40  # bytes of an AWS secret key, in which runs of capitals do not count as words
CHANGES = 0.3  # runs of one character class per character: 0.6 in random base64
_CAMEL = re.compile(rb"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS = re.compile(rb"[^a-z0-9]+")
_HEX = re.compile(rb"(?:0[xX])?[0-9a-fA-F]++\Z")
_UUID = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LETTER, _DIGIT = re.compile(rb"[A-Za-z]"), re.compile(rb"[0-9]")
_MARKS = re.compile(rb"[\x00-/:-@\[-`{-\x7f\xff]*+\Z")  # ASCII punctuation and masked bytes
_EMPTY = frozenset(b"*.-_ \t<>,:;=\xff")  # a value made only of these is a mask or a separator
_RUNS = re.compile(rb"a++|b++|c++")
_CLASSES = bytes(ord("b" if chr(i).isupper() else "c" if chr(i).isdigit() else "a") for i in range(256))


class TokenShape(NamedTuple):
    """A token with a known prefix: `rest` must match right after it."""

    kind: str
    rest: Any
    looks: bool


class Pattern(NamedTuple):
    """A secret recognized by its context: the first group that matched, or the whole match."""

    kind: str
    regex: Any
    groups: range
    looks: bool


class Name(NamedTuple):
    """What a name says about its value. Without a kind, the value is not a secret."""

    kind: str
    value: Any
    least: int
    looks: bool
    colon_looks: bool
    line: bool


@dataclass(frozen=True)
class Program:
    """Which arguments of a program are secrets; secrets.toml explains the fields. `options` maps an option to the
    separators after which its value is a secret: the empty one for `secret`, the others for `after`."""

    kind: str
    options: dict[bytes, tuple[bytes, ...]]
    sub: tuple[bytes, ...] = ()
    needs: tuple[bytes, ...] = ()
    leading: bool = False
    glued: tuple[bytes, ...] = ()
    cluster: bool = False
    words: tuple[int, ...] = ()
    separator: bytes = b""
    until: bytes = b""
    pairs: bool = False
    named: bool = False
    stdin: bytes | None = None
    logins: bool = False


@dataclass(frozen=True)
class SecretRules:
    """All of secrets.toml, compiled."""

    tokens: dict[bytes, TokenShape]
    token_start: Any
    token_words: Any
    patterns: tuple[Pattern, ...]  # repeated for each of its keywords
    pattern_keywords: Any
    begin: Any
    private: bytes
    body: Any
    random: Any
    public: Any
    public_before: Any
    email: Any
    accounts: frozenset[bytes]
    files: frozenset[bytes]
    card: Any
    issuers: tuple[tuple[str, str, frozenset[int]], ...]
    assignment: Any
    flag: Any
    switches: frozenset[bytes]
    names: tuple[Name, ...]
    name: Any
    reference: Any
    variable: Any
    code: Any
    ordinary: Any
    schemes: frozenset[bytes]
    programs: dict[bytes, tuple[Program, ...]]
    program: Any
    field_names: frozenset[bytes]
    field_values: frozenset[bytes]
    field_commands: frozenset[bytes]
    secret_tool: Any

    def patterns_for(self, data: bytes) -> list[Pattern]:
        """The patterns that have a keyword in the text."""
        numbers = self.pattern_keywords.Match(data) or ()
        return list(dict.fromkeys(self.patterns[number] for number in sorted(numbers)))


@cache
def rules() -> SecretRules:
    """Compiles the rules once. Raises ValueError if RE2 is not installed."""
    data = tomllib.loads(FILE.read_text(encoding="utf-8"))
    tokens = {
        keyword.encode(): TokenShape(row.get("kind", "key"), compiled(row["rest"]), row.get("looks", False))
        for row in data["token"]
        for keyword in row["keywords"]
    }
    programs = _programs(data["program"])
    stems = "|".join(data["names"]["stems"])
    email, card, values, fields = data["email"], data["card"], data["values"], data["fields"]
    return SecretRules(
        tokens=tokens,
        token_start=compiled(rf"(?:^|[^0-9A-Za-z])({_alternatives(tokens)})"),
        token_words=compiled(data["tokens"]["words"]),
        patterns=tuple(_pattern(row) for row in data["pattern"] for _ in row["keywords"]),
        pattern_keywords=_keyword_set(keyword for row in data["pattern"] for keyword in row["keywords"]),
        begin=compiled(data["private_key"]["begin"]),
        private=data["private_key"]["private"].encode(),
        body=compiled(data["private_key"]["body"]),
        random=compiled(data["random"]["regex"]),
        public=compiled(data["random"]["public"]),
        public_before=compiled(data["random"]["public_before"]),
        email=compiled(email["regex"]),
        accounts=_set(email["accounts"]),
        files=_set(email["files"]),
        card=compiled(card["regex"]),
        issuers=tuple((*_first_and_last(digits), frozenset(lengths)) for digits, lengths in card["issuers"]),
        assignment=compiled(rf"""(?i)([\w.-]*(?:{stems})[\w.-]*)(\\*["'])?\]?([ \t]*)(=>|:=|=+|:)([ \t]*)"""),
        flag=compiled(
            rf"""(?i)(?:^|[\s"'(\[,`])--?([\w.-]*(?:{stems})[\w.-]*)(?:\\*["'],?[ \t]*|[ \t]+|[ \t]*\\\r?\n[ \t]*)"""
        ),
        switches=_set(data["names"]["switches"]),
        names=tuple(map(_name, data["name"])),
        name=compiled("|".join(f"({_with_lists(row['regex'], data['names'])})" for row in data["name"])),
        reference=compiled(values["reference"]),
        variable=compiled(f"{values['reference']}|{values['variable']}"),
        code=compiled(f"{values['reference']}|{values['variable']}|{values['code']}"),
        ordinary=compiled(values["ordinary"]),
        schemes=_set(values["schemes"]),
        programs=programs,
        program=compiled(rf"(?:^|[^\w.-])(?:{_alternatives(programs)})(?:\.exe)?(?:[\s\"'\\]|$)"),
        field_names=_set(fields["names"]),
        field_values=_set(fields["values"]),
        field_commands=_set(fields["commands"]),
        secret_tool=compiled(fields["tool"]),
    )


def compiled(regex: str) -> Any:
    """An RE2 pattern on bytes. A dot matches any byte, including a line break."""
    try:
        import re2
    except ImportError:
        raise ValueError(MISSING_EXTRA) from None
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.dot_nl = True
    return re2.compile(regex.encode("ascii"), options)


def _alternatives(words: Iterable[bytes]) -> str:
    """Longest first, because RE2 takes the first alternative that matches."""
    return "|".join(re.escape(word.decode()) for word in sorted(words, key=lambda word: (-len(word), word)))


def _set(words: Iterable[str]) -> frozenset[bytes]:
    return frozenset(word.encode() for word in words)


def _pattern(row: dict[str, Any]) -> Pattern:
    regex = compiled(row["regex"])
    return Pattern(row.get("kind", "key"), regex, range(1, regex.groups + 1), row.get("looks", False))


def _keyword_set(words: Iterable[str]) -> Any:
    """Finds in one pass which words occur in a text, ignoring case."""
    import re2

    options = re2.Options()
    options.encoding, options.case_sensitive, options.literal = re2.Options.Encoding.LATIN1, False, True
    options.max_mem = 1 << 26  # far more than a set of literal words needs
    chosen = re2.Set.SearchSet(options)
    for word in words:
        chosen.Add(word.encode())
    chosen.Compile()
    return chosen


def _name(row: dict[str, Any]) -> Name:
    flags = (row.get(flag, False) for flag in ("looks", "colon_looks", "line"))
    value = compiled(row["value"]) if "value" in row else None
    return Name(row.get("kind", ""), value, row.get("least", 1), *flags)


def _with_lists(regex: str, lists: dict[str, list[str]]) -> str:
    """Replaces each {list} in an expression by its alternatives."""
    for name, words in lists.items():
        regex = regex.replace(f"{{{name}}}", "|".join(words))
    return regex


def _programs(rows: list[dict[str, Any]]) -> dict[bytes, tuple[Program, ...]]:
    programs: dict[bytes, tuple[Program, ...]] = {}
    for row in rows:
        names, kind = row.pop("names"), row.pop("kind", "password")
        options: dict[bytes, tuple[bytes, ...]] = {}
        for separator, listed in {"": row.pop("secret", ()), **row.pop("after", {})}.items():
            for option in map(str.encode, listed):
                options[option] = (*options.get(option, ()), separator.encode())
        program = Program(kind, options, **{field: _bytes(value) for field, value in row.items()})
        for name in map(str.encode, names):
            programs[name] = (*programs.get(name, ()), program)
    return programs


def _bytes(value: Any) -> Any:
    """Encodes strings, and turns lists into tuples."""
    if isinstance(value, list):
        return tuple(map(_bytes, value))
    return value.encode() if isinstance(value, str) else value


def _first_and_last(digits: str) -> tuple[str, str]:
    """51-55 is a range of prefixes, 4 a single one."""
    first, _, last = digits.partition("-")
    return first, last or first


@lru_cache(8192)
def snake(name: bytes) -> bytes:
    """x_api_key for X-Api-Key, api_key for apiKey and API_KEY."""
    return _SEPARATORS.sub(b"_", _CAMEL.sub(b"_", name[-LONGEST_NAME:]).lower()).strip(b"_")


@lru_cache(8192)
def named(name: bytes) -> Name | None:
    """The rule for a name whose values are secrets, or None."""
    match = rules().name.fullmatch(snake(name))
    rule = rules().names[(match.lastindex or 1) - 1] if match else None
    return rule if rule and rule.kind else None


def is_secret(rule: Name, value: bytes, quote: bytes = b"", colon: bool = False) -> bool:
    """Whether a value with a secret name is a secret."""
    if len(value) < rule.least or not is_literal(value, quote, code=not quote):
        return False
    if rule.value is not None and not rule.value.fullmatch(value):
        return False
    return looks_secret(value) if rule.looks or (colon and rule.colon_looks) else True


PATTERNS = (b"\\w", b"\\S", b"[^", b")\\", b")[", b").")  # of a search: what it looks for, not what it is


def is_literal(value: bytes, quote: bytes = b"", code: bool = False) -> bool:
    """Whether a value stands for itself: it is not a variable, file, placeholder or, with `code`, expression."""
    if _MARKS.match(value) and not (quote and len(set(value) - _EMPTY) >= 3):
        return False
    if value == b"-" or value.startswith(PATTERNS):
        return False
    other = rules().reference if quote.endswith(b"'") else rules().code if code else rules().variable
    return not other.fullmatch(value)


def looks_secret(value: bytes) -> bool:
    """Whether a value could be a key: letters and digits, but no word, path, version, UUID or short hex number."""
    if _HEX.match(value):
        return len(value) >= LEAST_HEX
    if _is_basic(value):
        return True
    mixed = len(value) >= 8 and _LETTER.search(value) and _DIGIT.search(value)
    return bool(mixed) and not rules().ordinary.fullmatch(value)


def _is_basic(value: bytes) -> bool:
    """Whether a value is user:password in base64."""
    if len(value) % 4 or not 8 <= len(value) <= LONGEST_NAME:
        return False
    try:
        decoded = b64decode(value, validate=True)
    except ValueError:
        return False
    return b":" in decoded[1:] and decoded.isascii() and decoded.decode().isprintable()


def looks_random(text: bytes) -> bool:
    """Whether upper case, lower case and digits are mixed as in base64. Digests and identifiers are not."""
    text = _UUID.sub(b"", text)
    if len(text) < LEAST_RANDOM or text.islower() or text.isupper() or _HEX.match(text):
        return False
    characters = text[:LONGEST_RANDOM].translate(_CLASSES, delete=b"+/_=-")
    runs = _RUNS.findall(characters)
    cases = b"a" if len(text) == AWS_SECRET else b"ab"
    wordy = sum(len(run) for run in runs if len(run) >= LEAST_WORD and run[0] in cases)
    mixed = len(runs) >= CHANGES * len(characters) and wordy < WORDS * len(characters)
    return mixed and len(set(text)) >= LEAST_DISTINCT and {b"a", b"b", b"c"} <= {run[:1] for run in runs}
