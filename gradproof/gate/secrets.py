"""Secrets become placeholders before anything is stored or learned.

What is known by its form (private key blocks, tokens of well-known services, JWTs, passwords in URLs, e-mail
addresses), what is named as a secret (`password=…`, `--token …`, `Authorization: …`), and long strings that look
random. Ordinary paths, words and hexadecimal digests stay: they say what a call does."""

from __future__ import annotations

import math
import re
from collections import Counter

# No pattern below may take longer than about the length of its text: who can stall a gate has passed it.
MOST_ORDINARY = 24  # characters; a longer string without a path or a word in it may be a key
WORDS = 0.3  # of its characters, from which a string is words with marks between them
RANDOM_BITS = 3.9  # entropy a character; base64 of 24 random bytes has 4.3 or more, names have less

_BLOCK = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY(?: BLOCK)?)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_BLOCK_END = re.compile(r"\A(?:(?!-----BEGIN ).)*-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----", re.DOTALL)
_URL_PASSWORD = re.compile(r"(?<=://)([^\s/:@'\"]*):([^\s/@'\"<][^\s/@'\"]*)@")
_JWT = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?")
_KNOWN = re.compile(
    r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA|ABIA|ACCA)[A-Z0-9]{12,}\b"  # AWS
    r"|\bgh[opusr]_\w{16,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"  # GitHub, GitLab
    r"|\bxox[abeoprs]-[\w-]{10,}|\bxapp-[\w-]{10,}|hooks\.slack\.com/services/[\w/]{10,}"  # Slack
    r"|\bsk-(?:[\w-]+-)?[\w-]{16,}|\b[prs]k_(?:live|test)_\w{10,}|\bwhsec_\w{16,}"  # OpenAI and others, Stripe
    r"|\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}"  # Google
    r"|\bhf_\w{20,}|\bnpm_\w{20,}|\bpypi-[\w-]{20,}|\bdop_v1_\w{20,}|\bSG\.[\w-]{16,}\.[\w-]{16,}"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic|token)(\s+)(?=[\w+/.=~-]*\d)[\w+/.=~-]{12,}")
_NAMED = re.compile(
    r"(?i)((?:passw(?:or)?d|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?token"
    r"|access[_-]?token|credential|token)[\w-]{0,40}[\"']?(?:\s{0,8}[=:]\s{0,8}|\s{1,8}=>\s{1,8}))([\"']?)([^\s\"'<$`;|&)}{(]{4,})"
)
_FLAG = re.compile(
    r"(?i)(?<!\S)((?!--?no-)--?(?:\w+-)*(?:password|passwd|pass|token|secret|api-?key)[ =])"
    r"([\"']?)([^\s\"'<$`;|&-][^\s\"'<$`;|&]{3,})"
)
_DOMAIN = r"[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}\.[A-Za-z]{2,24}"
_EMAIL = re.compile(rf"\b[A-Za-z0-9][\w.+-]{{0,64}}@{_DOMAIN}\b")
_LONG = re.compile(rf"[A-Za-z0-9+_/=-]{{{MOST_ORDINARY},}}")
_LOWER, _UPPER, _MARKS = re.compile(r"[a-z]"), re.compile(r"[A-Z]"), re.compile(r"[/_=+-]")
_WORD = re.compile(r"[a-z]*(?:[A-Z][a-z]+)*\d*|[A-Z]+\d*")
_AWS_SECRET = re.compile(
    r"(?<![\w+/.-])(?=[\w+/]*\d)(?=[\w+/]*[a-z])(?=[\w+/]*[A-Z])[A-Za-z0-9+][A-Za-z0-9+/]{39}(?![\w+/=.-])"
)
_HEX = re.compile(r"\A(?:0[xX])?[0-9a-fA-F-]+\Z")


def redact(text: str) -> str:
    """The text with a placeholder for each secret: <PRIVATE_KEY>, <KEY>, <PASSWORD>, <EMAIL>. Twice changes nothing."""
    text = _BLOCK.sub("<PRIVATE_KEY>", text)
    text = _BLOCK_END.sub("<PRIVATE_KEY>", text)
    text = _URL_PASSWORD.sub(r"\1:<PASSWORD>@", text)
    text = _KNOWN.sub("<KEY>", _JWT.sub("<KEY>", text))
    text = _BEARER.sub(r"\1\2<KEY>", text)
    text = _NAMED.sub(r"\1\2<PASSWORD>", _FLAG.sub(r"\1\2<PASSWORD>", text))
    text = _AWS_SECRET.sub(_aws, _EMAIL.sub("<EMAIL>", text))
    return _LONG.sub(_random, text)


def _aws(match: re.Match[str]) -> str:
    """Forty characters of base64 are a secret access key, but forty of hexadecimal a digest."""
    return match.group() if _HEX.match(match.group()) else "<KEY>"


def _random(match: re.Match[str]) -> str:
    """Each part of a path is judged alone; one long run of base64 may have slashes in it."""
    text = match.group()
    if _looks_random(text):
        return "<KEY>"
    return "/".join("<KEY>" if len(part) >= MOST_ORDINARY and _looks_random(part) else part for part in text.split("/"))


def _looks_random(text: str) -> bool:
    """Upper case, lower case and digits thoroughly mixed; no digest, and not made of words with marks between them."""
    if _HEX.match(text) or sum(map(str.isdigit, text)) < 3 or not (_LOWER.search(text) and _UPPER.search(text)):
        return False
    words = sum(len(part) for part in _MARKS.split(text) if len(part) >= 3 and _WORD.fullmatch(part))
    if words >= WORDS * len(text):
        return False
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values()) >= RANDOM_BITS
