"""Prepares the text of a shell command for the parser: bounds its length, and avoids what the parser is slow on."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from gradproof.gate import MISSING_EXTRA

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(?:'([^'\n]{1,200})'|\"([^\"\n]{1,200})\")")
MOST_HEREDOCS = 64  # that are kept out of the parser's way
MOST_OPEN_ENDS = 2  # heredocs without an end, each of which is a search through the whole text
BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")
RUNS = re.compile(rb"[][()<>|&;`${}]{12,}")  # of marks, as no shell has them and the parser takes long over
NESTING = re.compile(
    rb"(?P<opens>(?:^|[;&|\n]|\b(?:then|do|else|elif|if|while|until|for|case)\b)"
    rb"(?=[ \t]*(?:if|while|until|for|case|select)\b)|[({]|<<)"
    rb"|(?P<closes>\b(?:done|fi|esac)\b|[)}]|^EOF$)",
    re.MULTILINE,
)
MOST_NESTING = 24
JOINTS = re.compile(  # quoted text apart, in which nothing is joined
    rb"'[^']*'|\"[^\"\\$`]*\"|\\.|(?P<joins>(?:&&|\|\|)\s*)|(?P<pipes>\|\s*)|(?P<ends>[;\n]|(?<![<>|])&(?!>))"
    rb"|(?P<opens>[({])|(?P<closes>[)}])",
    re.DOTALL,
)
MOST_CHAINED = 40  # pipes of three commands and more
ASIDE = re.compile(r"^\ue010(\d+)\ue010\n\Z")


@cache
def parser() -> Parser:
    try:
        import tree_sitter_bash
        from tree_sitter import Language, Parser
    except ImportError:
        raise ValueError(MISSING_EXTRA) from None
    return Parser(Language(tree_sitter_bash.language()))


def last_end(source: bytes, room: int) -> int:
    """Where the last command ends that fits."""
    head = source[:room]
    return max(head.rfind(b"\n"), head.rfind(b";"), head.rfind(b"&&"), 0)


def too_deep(source: bytes) -> int | None:
    """Where a text gets so nested, or has so many marks in a row, as no shell has it and the parser takes long over."""
    depth, runs = 0, RUNS.search(source)
    for match in NESTING.finditer(source):
        depth += 1 if match.lastgroup == "opens" else -1
        if depth > MOST_NESTING:
            return min(match.start(), runs.start()) if runs else match.start()
        depth = max(depth, 0)
    return runs.start() if runs else None


def unchained(source: bytes) -> bytes:
    """A text whose chains of pipes, joined by `&&` and `||`, are broken by `;`: the parser compares all ways to read
    such a chain, and takes eight times as long over one that is twice as long."""
    places: list[int] = []
    levels = [(0, 0)]  # marks of the pipe under way, and long pipes of its chain, at each level of brackets
    for match in JOINTS.finditer(source) if source.count(b"|") > 2 * MOST_CHAINED else ():
        pipes, chained = levels[-1]
        if match.lastgroup == "pipes":
            levels[-1] = pipes + 1, chained
        elif match.lastgroup == "joins":
            chained += pipes > 1
            if chained > MOST_CHAINED:
                places.append(match.start())
                chained = 0
            levels[-1] = 0, chained
        elif match.lastgroup == "ends":
            levels[-1] = 0, 0
        elif match.lastgroup == "opens":
            levels.append((0, 0))
        elif match.lastgroup == "closes" and len(levels) > 1:
            levels.pop()
    if not places:
        return source
    pieces = [source[start + 2 * (start > 0) : end] for start, end in pairwise((0, *places, len(source)))]
    return b" ;".join(pieces)


def error_ends(root: Node) -> list[int]:
    """Where the errors in a tree end. One that ends with a text may be no more than the end of what was cut."""
    ends, waiting = [], [root] if root.has_error else []
    while waiting:
        node = waiting.pop()
        if node.type == "ERROR" or node.is_missing:
            ends.append(node.end_byte)
        waiting += [child for child in node.children if child.has_error]
    return ends


def set_aside(text: str) -> tuple[str, list[str]]:
    """A quoted heredoc is data: it is kept out of the parser's way, however long it is."""
    bodies: list[str] = []
    pieces, at, open_ends = [], 0, 0
    while len(bodies) < MOST_HEREDOCS and open_ends < MOST_OPEN_ENDS and (match := HEREDOC.search(text, at)):
        start, name = text.find("\n", match.end()) + 1, match[1] or match[2]
        if not start:
            break
        end = re.compile(rf"^[ \t]*{re.escape(name)}$", re.MULTILINE).search(text, start) if name in text else None
        if end is None:
            pieces.append(text[at:start])
            at, open_ends = start, open_ends + 1
            continue
        pieces += [text[at:start], f"\ue010{len(bodies)}\ue010\n"]
        bodies.append(text[start : end.start()])
        at = end.start()
    return "".join([*pieces, text[at:]]), bodies


def text_of(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def decoded(source: bytes, start: int, end: int) -> str:
    return source[start:end].decode("utf-8", "replace")
