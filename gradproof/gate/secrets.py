"""Redaction: secrets become placeholders before anything is stored or learned.

The gate decides on the raw call and stores the redacted one. Redaction keeps what a decision depends on: hosts, paths,
user names and the domains of e-mail addresses. Git hashes, UUIDs and digests are no secrets. A secret is recognized by
its form (tokens, private keys, card numbers), by its name (`password=…`, `--token …`, `"api_key": …`), by the program
that takes it as an argument (`mysql -p…`, `curl -u user:…`), or because it looks random. secrets.toml holds the rules.

    mysql -u root -phunter2 -h db.example.com    mysql -u root -p<password#1f0c…> -h db.example.com
    mail -s hi bob@example.com                   mail -s hi <email:@example.com#99ab…>

Redaction takes linear time. A text with too many candidates is cut: one placeholder replaces the rest.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from gradproof.files import sync
from gradproof.gate.secret_options import PlainCommand, PlainWord, find_in_words, find_options
from gradproof.gate.secret_rules import (
    LEAST_RANDOM,
    Name,
    Pattern,
    is_literal,
    is_secret,
    looks_random,
    looks_secret,
    named,
    rules,
    snake,
)
from gradproof.gate.secret_spans import Finder, Scan, masked, placeholder, replaced

KEY_FILE, KEY_BYTES = "redaction.key", 32
MOST_CANDIDATES = 1200  # in a text; keeps the time for 1 MB of any text below 100 ms
BYTES_PER_CANDIDATE = 1000  # that take as long to search as one candidate to look at
LONGEST_KEPT = 1 << 13  # characters of one text of a call that are read; half of them are kept, and a placeholder
MOST_TEXTS = 48  # in one set of texts
LEAST_LEFT = 16.0  # candidates; with fewer left for the texts of a call, the others are withheld
PLAIN_WORD = re.compile(r"[a-z][a-z_]{0,23}")  # never a secret by itself
MOST_ROUNDS = 4  # a placeholder can change how its neighbours are read; a text that keeps changing is withheld
MOST_DEPTH = 64  # of nested arguments
SHORT_NAME = 16  # characters; a shorter identifier is never a secret by itself
LONGEST_BLOCK = 1 << 14  # bytes of a private key
LONGEST_VALUE = 1 << 10  # bytes; a longer value with a secret name is always redacted
_OPENING = re.compile(rb"(?:[bBrRuUfFN@$]{1,2}(?=[\"']))?(\\*+[\"'])")
_PLAIN = re.compile(rb"[^\s\"'`;&|<>\xff]++")
_WITHIN = re.compile(rb"[^\"'`;&|<>\xff\r\n]++")
_LINE = re.compile(rb"[^\"'\r\n]++")
_NEXT_NAME = re.compile(rb"[,\s]++[\w.-]{1,64}+[=:]|\\[nrt\"']|" + "↵".encode())  # ↵: a line break in calls.py
_SCHEME = re.compile(rb"([A-Za-z][\w-]{1,20})[ \t]+(?=\S)")
_LINE_END = re.compile(rb"[\"' \t]*+(?:[\r\n]|\Z)")
_COOKIE = re.compile(rb"[\w.%-]++=")
_CLOSING = re.compile(rb"[\s;&|),\]}>]|\Z")
_DIGITS = re.compile(rb"\D+")
_PARTS = re.compile(rb"[^/]{%d,}+" % LEAST_RANDOM)


class Value(NamedTuple):
    """The span of a value without the quotes around it."""

    start: int
    end: int
    quote: bytes


def redact(text: str, key: bytes = b"") -> str:
    """Replaces each secret in a text by a placeholder. Redacting the result again changes nothing, under any key."""
    return _redact(text, key, MOST_CANDIDATES)[0]


def _redact(text: str, key: bytes, most: float) -> tuple[str, float]:
    """The redacted text, and what it cost."""
    if len(text) < SHORT_NAME and text.isidentifier():
        return text, 0.0
    data = _encoded(text)
    spent = 1 + len(data) / BYTES_PER_CANDIDATE
    for _ in range(MOST_ROUNDS):
        scan = Scan(data)
        _find_all(scan, most)
        spent += scan.spent
        spans = scan.merged()
        if not spans:
            break
        data = replaced(data, spans, key)
    else:
        data = placeholder("text", data, key)
    return _decoded(data), spent


class Redactor:
    """Redacts the texts of one call: each of them once, and all together at no more cost than one long text. What
    comes after that is withheld, each text as one placeholder, so that equal ones are still equal."""

    def __init__(self, key: bytes = b"", most: float = MOST_CANDIDATES):
        self.key, self.left = key, most
        self._known: dict[str, str] = {}
        self._sets: dict[frozenset[str], list[str]] = {}

    @classmethod
    def of(cls, key: bytes | Redactor) -> Redactor:
        return key if isinstance(key, Redactor) else cls(key)

    def text(self, text: str) -> str:
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._redacted(text)
        return known

    def texts(self, texts: frozenset[str]) -> list[str]:
        """In order; more than anybody reads are one placeholder, since they are only ever compared."""
        known = self._sets.get(texts)
        if known is None:
            few = len(texts) <= MOST_TEXTS and sum(map(len, texts)) <= LONGEST_KEPT
            ordered = sorted(texts)
            known = [self.text(text) for text in ordered] if few else [self.withheld("\n".join(ordered))]
            self._sets[texts] = known
        return known

    def value(self, name: str, value: str) -> str:
        """As `redact_value`."""
        secret = _named_secret(name, value, self.key)
        return self.text(value) if secret is None else secret

    def withheld(self, text: str) -> str:
        """A placeholder for all of a text."""
        return _decoded(placeholder("text", _encoded(text), self.key))

    def _redacted(self, text: str) -> str:
        if self.left < LEAST_LEFT and not PLAIN_WORD.fullmatch(text):
            return self.withheld(text)
        if len(text) > LONGEST_KEPT:  # redacted before it is cut, so that no half of a secret is left
            return self._redacted(text[: LONGEST_KEPT - 1])[: LONGEST_KEPT // 2] + self.withheld(text)
        redacted, spent = _redact(text, self.key, min(MOST_CANDIDATES, max(self.left, LEAST_LEFT)))
        self.left -= spent
        return redacted


def redact_value(name: str, value: str, key: bytes = b"") -> str:
    """Redacts the value of an argument: all of it if the name says that it is a secret."""
    secret = _named_secret(name, value, key)
    return redact(value, key) if secret is None else secret


def _named_secret(name: str, value: str, key: bytes) -> str | None:
    """The placeholder of a value that is a secret by its name; None for another."""
    rule = named(_encoded(name))
    if rule is None:
        return None
    data = masked(_encoded(value))
    if not is_secret(rule, data.strip(), b"'"):
        return None
    scheme = _SCHEME.match(data)
    kept = scheme.end() if scheme and scheme[1].lower() in rules().schemes else 0
    if kept and not is_literal(data[kept:]):
        return None
    secret = _encoded(value)
    return _decoded(secret[:kept] + placeholder(rule.kind, secret[kept:], key))


def redact_arguments(tool: str, arguments: Mapping[str, Any], key: bytes = b"") -> dict[str, Any]:
    """Redacts the arguments of a call and keeps their structure. A secret number becomes a placeholder, too."""
    label = "password" if rules().secret_tool.fullmatch(snake(_encoded(tool))) else ""
    return _redacted_fields("", arguments, key, MOST_DEPTH, label)


def store_key(folder: Path) -> bytes:
    """Reads the key for the placeholders of a store, or creates it. Only the owner can read the file."""
    path = folder / KEY_FILE
    if not path.exists():
        _make_key(path)
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} must hold {KEY_BYTES} bytes, not {len(key)}; restore it from a backup, or remove it")
    return key


def _make_key(path: Path) -> None:
    """Creates the key file atomically. If two processes do so at once, both use the first key."""
    aside = path.with_name(f".partial-{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, path)
    except FileExistsError:
        pass
    finally:
        aside.unlink()
    sync(path.parent)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


# nested arguments


def _redacted(name: str, value: Any, key: bytes, depth: int) -> Any:
    if isinstance(value, str):
        return redact_value(name, value, key)
    if depth == 0:
        return placeholder("text", b"nested too deeply", key).decode()
    if isinstance(value, Mapping):
        return _redacted_fields(name, value, key, depth)
    if isinstance(value, list | tuple):
        if snake(_encoded(name)).rpartition(b"_")[2] in rules().field_commands and _all_text(value):
            return redact_words(value, key)
        return [_redacted(name, part, key, depth - 1) for part in value]
    written = "" if value is None or isinstance(value, bool) else json.dumps(value, default=str)
    stored = redact_value(name, written, key)
    return value if stored == written else stored


def _redacted_fields(name: str, value: Mapping[str, Any], key: bytes, depth: int, label: str = "") -> dict[str, Any]:
    """Redacts each field under its dotted name. In {"name": "PASSWORD", "value": …}, one field names the other."""
    labels = (part for field, part in value.items() if _encoded(str(field)).lower() in rules().field_names)
    label = label or next((part for part in labels if isinstance(part, str) and _names_secret(part)), "")
    fields = {}
    for field, part in value.items():
        full = f"{name}.{field}" if name else str(field)
        if label and _encoded(str(field)).lower() in rules().field_values:
            full = label if named(_encoded(label)) else "password"
        fields[redact(str(field), key)] = _redacted(full, part, key, depth - 1)
    return fields


def _names_secret(label: str) -> bool:
    """True for PASSWORD, `#user_password`, `input[name=password]` and `Password field`."""
    words = snake(_encoded(label)).split(b"_")
    return len(label) <= 128 and (named(_encoded(label)) is not None or any(_is_password(word) for word in words))


def _is_password(word: bytes) -> bool:
    rule = named(word)
    return rule is not None and rule.kind in ("password", "pin") and len(word) > 2


def _all_text(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def redact_words(words: Sequence[str], key: bytes = b"") -> list[str]:
    """Redacts a command that is given as a list of words."""
    encoded = [_encoded(word) for word in words]
    scan, command, start = Scan(b" ".join(encoded)), PlainCommand(), 0
    for word in encoded:
        command.words.append(PlainWord(scan.data[start : start + len(word)], start, start + len(word), b"'"))
        start += len(word) + 1
    scan.begin(MOST_CANDIDATES)
    find_in_words(scan, command)
    _find_all(scan)
    spans = scan.merged()
    return [
        redact(_decoded(_replaced_within(data, word, spans, key)), key)
        for data, word in zip(encoded, command.words, strict=True)
    ]


def _replaced_within(data: bytes, word: PlainWord, spans: list[tuple[int, int, str]], key: bytes) -> bytes:
    """Replaces the parts of a command's spans that are in one of its words."""
    inside = ((max(start - word.start, 0), min(end - word.start, len(data)), kind) for start, end, kind in spans)
    return replaced(data, [span for span in inside if span[0] < span[1]], key)


# finders: each adds one sort of secret and returns where to continue


def _find_all(scan: Scan, most: float = MOST_CANDIDATES) -> None:
    """Finds all secrets. E-mail addresses and random strings come last: they can be part of other secrets."""
    patterns = (Finder(pattern.regex, partial(_find_pattern, pattern)) for pattern in rules().patterns_for(scan.data))
    scan.run((*_finders(), *patterns), most)
    scan.mask()
    scan.run(_last_finders(), most)


@cache
def _last_finders() -> tuple[Finder, ...]:
    return Finder(rules().email, _find_email), Finder(rules().random, _find_random, cost=0.5)


@cache
def _finders() -> tuple[Finder, ...]:
    return (
        Finder(rules().begin, _find_private_key, cost=8.0),
        Finder(rules().token_start, _find_token),
        Finder(rules().assignment, _find_assignment),
        Finder(rules().flag, _find_flag),
        Finder(rules().program, find_options),
        Finder(rules().card, _find_card),
    )


def _find_private_key(scan: Scan, match: Any) -> int:
    """A private key ends with its END line or, without one, where the base64 ends. Public keys are kept."""
    bound, last = min(scan.end, match.end() + LONGEST_BLOCK), b"-----END " + match[1] + b"-----"
    close = scan.data.find(last, match.end(), bound)
    if rules().private not in match[1]:
        scan.keep(match.start(), close if close >= 0 else match.end())
        return match.end()
    body = None if close >= 0 else rules().body.match(scan.data, match.end(), bound)
    end = close + len(last) if close >= 0 else body.end() if body else match.start()
    scan.add(match.start(), end, "private-key")
    return max(end, match.end())


def _find_token(scan: Scan, match: Any) -> int:
    token = rules().tokens[match[1]]
    rest = token.rest.match(scan.data, match.end(), scan.end)
    if rest is None:
        return match.end()
    if not rules().token_words.fullmatch(rest[0]) and (not token.looks or looks_secret(rest[0])):
        scan.add(match.start(1), rest.end(), token.kind)
    return rest.end()


def _find_pattern(pattern: Pattern, scan: Scan, match: Any) -> int:
    group = next((group for group in pattern.groups if match.start(group) >= 0), 0)
    secret = match[group].rstrip(b"\\")
    if is_literal(secret) and (not pattern.looks or looks_secret(secret)):
        scan.add(match.start(group), match.start(group) + len(secret), pattern.kind)
    return match.end()


def _find_assignment(scan: Scan, match: Any) -> int:
    """password=…, "api_key": "…", TOKEN := …"""
    rule = named(match[1])
    if rule is None or scan.data[match.start() - 3 : match.start()] == b"://":
        return match.end()
    quote = scan.data[match.start() - 1 : match.start()]
    if quote in (b'"', b"'") and match[2] is None and match[4] == b"=":  # 'password=…'
        return _find_value(scan, rule, match.end(), within=quote)
    empty = match[4] == b"=" and match[5] and not match[3]  # PASSWORD= ./run
    return _find_value(scan, rule, match.end(), colon=match[4] == b":", last=bool(empty))


def _find_flag(scan: Scan, match: Any) -> int:
    """--password …, --token … and "--secret", "…" """
    rule, switch = named(match[1]), snake(match[1]).partition(b"_")[0]
    if rule is None or switch in rules().switches or scan.data[match.end() : match.end() + 1] == b"-":
        return match.end(1)
    return _find_value(scan, rule, match.end())


def _find_value(scan: Scan, rule: Name, at: int, colon: bool = False, last: bool = False, within: bytes = b"") -> int:
    """The value after a name. `last`: it must be the last word of its line. `within`: the quote around both."""
    value = _value(scan, at, rule.line and colon, within)
    if value is None or (last and not _LINE_END.match(scan.data, value.end, scan.end)):
        return at
    value = _after_scheme(scan, rule, value)
    text = scan.data[value.start : value.end]
    if len(text) < LONGEST_VALUE and not is_secret(rule, text, value.quote, colon):
        return at
    name = _COOKIE.match(text) if rule.kind == "cookie" else None
    if name is None or is_literal(text[name.end() :], value.quote):
        scan.add(value.start + (name.end() if name else 0), value.end, rule.kind)
    return value.end


def _after_scheme(scan: Scan, rule: Name, value: Value) -> Value:
    """Skips the scheme in `Bearer token`. An unquoted value ends at the space, so the token comes next."""
    scheme = _SCHEME.match(scan.data, value.start, min(scan.end, value.start + 64)) if rule.kind == "key" else None
    if not scheme or scheme[1].lower() not in rules().schemes:
        return value
    if value.quote or value.end > scheme.end():
        return value._replace(start=scheme.end())
    return _value(scan, scheme.end(), False) or value


def _value(scan: Scan, at: int, line: bool, within: bytes = b"") -> Value | None:
    """The value that starts here. Inside quotes around it or around name and value, it can contain spaces."""
    opening = _OPENING.match(scan.data, at, min(scan.end, at + 16))
    if opening is not None:
        return _quoted(scan, opening.end(), opening[1])
    bound = min(scan.end, at + LONGEST_VALUE)
    run = _LINE if line else _WITHIN if within else _PLAIN
    match = run.match(scan.data, at, bound)
    if match and match.end() == bound < scan.end:
        match = run.match(scan.data, at, scan.end)
        return Value(at, match.end(), b"") if match else None
    if match and run is _WITHIN and not scan.data.startswith(within, match.end()):
        return _value(scan, at, line)
    if match is None:
        return None
    text = match[0].rstrip()
    cut = None if line else _NEXT_NAME.search(text)
    text = text[: cut.start()] if cut else text
    return Value(at, at + len(text.rstrip(b"\\" if line else b",;:)}]\\")), b"")


def _quoted(scan: Scan, start: int, quote: bytes) -> Value | None:
    """A value that ends at the closing quote or, without one, at the end of the line."""
    data, bound = scan.data, min(scan.end, start + LONGEST_VALUE)
    if _CLOSING.match(data, start, scan.end) and _is_open(data, start - len(quote), quote):
        return None
    line, close = data.find(b"\n", start, bound), data.find(quote, start, bound)
    while close > 0 and quote == b'"' and data[close - 1] == 0x5C and (line < 0 or close < line):
        close = data.find(quote, close + 1, bound)
    if close < 0 and line < 0 and bound < scan.end:
        close, line, bound = data.find(quote, bound, scan.end), data.find(b"\n", bound, scan.end), scan.end
    return Value(start, min((end for end in (close, line) if end >= 0), default=bound), quote)


def _is_open(data: bytes, at: int, quote: bytes) -> bool:
    """Whether a quote is already open here, so that the next one closes it: echo "password: "; …"""
    line = max(data.rfind(b"\n", max(0, at - LONGEST_VALUE), at) + 1, at - LONGEST_VALUE, 0)
    return data.count(quote, line, at) % 2 == 1


def _find_card(scan: Scan, match: Any) -> int:
    if is_card(match[0]):
        scan.add(match.start(), match.end(), "card")
        return match.end()
    group = _DIGITS.search(match[0])  # the next group of digits can start one
    return match.start() + group.start() if group else match.end()


def is_card(number: bytes) -> bool:
    """Whether some issuer uses this prefix and length, and the Luhn check passes."""
    digits = _DIGITS.sub(b"", number).decode()
    issued = any(
        first <= digits[: len(first)] <= last and len(digits) in lengths for first, last, lengths in rules().issuers
    )
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return issued and (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def _find_email(scan: Scan, match: Any) -> int:
    account, _, domain = match[0].rpartition(b"@")
    last = domain.rpartition(b".")[2].lower()
    ordinary = account.lower() in rules().accounts or last in rules().files
    if not ordinary and len(last) >= 2 and last.isalpha() and not _in_url(scan.data, match.start()):
        scan.add(match.start(), match.end(), "email")
    return match.end()


def _in_url(data: bytes, at: int) -> bool:
    """Whether this is the user in https://user@host."""
    before = data[max(0, at - 256) : at]
    scheme = before.rfind(b"://")
    return scheme >= 0 and not re.search(rb"[\s/\"'<>]", before[scheme + 3 :])


def _find_random(scan: Scan, match: Any) -> int:
    """A run of base64 characters that looks random, or parts of a path that do."""
    start, end = match.span()
    if end - start < LEAST_RANDOM:
        return end
    text = scan.data[start:end]
    spans = [(0, len(text))] if looks_random(text) else [part.span() for part in _PARTS.finditer(text)]
    for first, last in spans:
        if not looks_random(text[first:last]):
            continue
        if scan.afford(start + first) and not _is_public(scan.data, start + first, start + last):
            scan.add(start + first, start + last, "key")
    return end


def _is_public(data: bytes, start: int, end: int) -> bool:
    """Whether this is a digest, a fingerprint, a public key or an address."""
    before = data[max(0, start - 32) : start]
    return bool(rules().public.fullmatch(data[start:end]) or rules().public_before.search(before))
