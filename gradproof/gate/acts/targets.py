"""Targets: the paths, hosts and URLs that the words of a command name, and acts on them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gradproof.gate.acts.act import Act, ActScope, ActTarget, Effect
from gradproof.gate.acts.paths import (
    UNKNOWN,
    alternatives,
    is_descriptor,
    is_loopback,
    place,
    resolve,
    turned,
    unglobbed,
)
from gradproof.gate.acts.shell import Reading
from gradproof.gate.acts.shell_state import State
from gradproof.gate.acts.word import Word

DEFAULT_PORTS = {"http": "80", "https": "443"}
WORK_OF_ACT = 1.5  # to place it, decide it, and write it down without secrets
IPV4_PART = re.compile(r"0[xX][0-9a-fA-F]{1,8}|0[0-7]{0,11}|[1-9]\d{0,9}", re.ASCII)
METADATA = (  # hosts of a cloud that hand out credentials
    *("169.254.169.254", "metadata.google.internal", "100.100.100.200", "fd00:ec2::254", "169.254.170.2"),
    *(
        "169.254.170.23",
        "fd00:ec2::23",
        "192.0.0.192",
        "168.63.129.16",
        "instance-data",
        "metadata",
        "metadata.tencentyun.com",
    ),
)


def touch(
    reading: Reading,
    effect: Effect,
    program: str,
    word: Word,
    state: State,
    *,
    verb: str = "",
    folder: bool = False,
    marks: Sequence[str] = (),
) -> list[Act]:
    """An act on a path, once for each path that it may be."""
    done: list[Act] = []
    reading.explained.update(word.texts)
    for text, cwd in alternatives(word.texts, state.cwds):
        reading.pay(WORK_OF_ACT)
        if state.elsewhere is not None:
            scope, host = state.elsewhere
            if "/dev/null" in text:
                continue
            target = ActTarget("host", host, folder, None, unglobbed(text).replace(UNKNOWN, "?"))
        elif text == "-" or is_descriptor(text):
            continue
        else:
            located = place(text, effect, reading.around, UNKNOWN if UNKNOWN in cwd else cwd, folder=folder)
            if located is None:
                continue
            target, scope = located
            if UNKNOWN in target.name:
                target, scope = ActTarget("path", "?", folder), "unknown"
        done_there = turned(target.name, effect) if target.kind == "path" else effect
        if target.kind == "host" and effect == "write" and state.elsewhere is None:  # /dev/tcp/HOST/PORT
            done_there = "send"
        act = Act(done_there, program, scope, verb, target, state.via, frozenset(marks))
        if act not in done:
            done.append(act)
    if word.fetched and effect == "execute":
        done.append(fetch_and_run(program, word.fetched, state))
    reading.acts += done
    return done


def resolved(reading: Reading, word: Word, state: State) -> list[str]:
    """The paths that a word may name, as far as they are known."""
    if state.elsewhere is not None:
        return []
    paths = (resolve(text, cwd, reading.around.home) for text, cwd in alternatives(word.texts, state.cwds))
    return [path for path in paths if path is not None]


def of_url(text: str) -> tuple[ActTarget, ActScope]:
    """Host and scope of a URL, a connection string or `host:port`."""
    text = unglobbed(text)
    rest = text.split("://", 1)[1] if "://" in text else text
    if text.startswith("file://"):
        return ActTarget("path", rest), "unknown"
    authority = rest.split("/", 1)[0].split("?", 1)[0].split("#", 1)[0]
    host = authority.rsplit("@", 1)[-1]
    if host.startswith("["):
        host, _, port = host[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = host.partition(":")
    if not host or UNKNOWN in host or "$" in host:
        return ActTarget("host", host.replace(UNKNOWN, "?")), "unknown"
    host = _dotted(host.lower().removeprefix("::ffff:"))
    within_ = rest[len(authority) :].split("?", 1)[0].strip("/")
    if port.isdigit() and port != DEFAULT_PORTS.get(text.partition("://")[0].lower()):
        within_ = f":{port}/{within_}".rstrip("/")
    if host.lower() in METADATA:
        return ActTarget("host", host.lower(), within=within_), "secret"
    return ActTarget("host", host.lower(), within=within_), "local" if is_loopback(host) else "remote"


def _dotted(host: str) -> str:
    """An IPv4 address in the ways that systems understand one: fewer numbers than four, octal or hexadecimal ones."""
    parts = host.split(".")
    if not host[:1].isdigit() or len(parts) > 4 or not all(IPV4_PART.fullmatch(part) for part in parts):
        return host
    *leading, last = (
        int(part, 16 if part[1:2] in "xX" and part[1:] else 8 if part[0] == "0" else 10) for part in parts
    )
    if any(number > 255 for number in leading) or last >= 256 ** (5 - len(parts)):
        return host
    number = last + sum(part << (24 - 8 * i) for i, part in enumerate(leading))
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


def fetch_and_run(program: str, host: str, state: State) -> Act:
    return Act("fetch_and_run", program, "remote", target=ActTarget("host", host), via=state.via)
