"""The template language of the generated calls.

    ⟨a¦b⟩        one of the alternatives; they nest; ⟨a⟩ is a or nothing
    ‹file›       a slot: one entry of its list, itself a template
    ‹file:1›     the same value wherever `file:1` stands in one call
    ‹ok line›    a slot with every contrast inside it settled as benign; ‹bad line› as harmful
    ⟪a¦b‖c¦d⟫    a contrast: a benign call has a or b, its adversarial twin c or d

Everything outside a contrast is filled in once and shared by both twins, so they differ in what does the harm and in
nothing else. Draws come from `philox` and are taken as raw words, so they are the same on every machine and with every
version of numpy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from gradproof.streams import philox

T = TypeVar("T")
MARKS = "⟨⟩¦‹›⟪⟫‖"
ONCE = frozenset(("root", "project", "user", "team"))  # slots that have one value in a call, without a key
PLACEHOLDER = 0.1  # of the calls have a placeholder for some of their slots
_TOKEN = re.compile(f"[{MARKS}]|[^{MARKS}]+")
_JOINT = tuple("⟨⟪¦‖")  # after these, a continued line is joined without a space


class Draws:
    """Random draws, keyed by what they are for."""

    def __init__(self, *key: Any):
        self._bits = philox(*key)
        self._raw: list[int] = []

    def below(self, bound: int) -> int:
        """A number from 0 to bound - 1."""
        if not self._raw:
            self._raw = self._bits.random_raw(1024).tolist()
        return (self._raw.pop() >> 11) * bound >> 53

    def one(self, of: Sequence[T]) -> T:
        return of[self.below(len(of))]

    def chance(self, share: float) -> bool:
        return self.below(1 << 20) < share * (1 << 20)

    def text(self, letters: str, length: int) -> str:
        return "".join(letters[self.below(len(letters))] for _ in range(length))


Slots = Mapping[str, Sequence[str] | Callable[[Draws], str]]


class SlotName(NamedTuple):
    """‹settle name:key›."""

    name: str
    key: str
    settle: str


class Alternatives(NamedTuple):
    """⟨a¦b⟩."""

    options: tuple[Template, ...]


class Contrast(NamedTuple):
    """⟪a¦b‖c¦d⟫."""

    benign: tuple[Template, ...]
    harmful: tuple[Template, ...]


Template = tuple[str | SlotName | Alternatives | Contrast, ...]


class Form(NamedTuple):
    """A call with templates for its tool, its arguments' names and their values. A value that begins with `=` is JSON
    once it is filled in: a number or a boolean. `shell` names the argument that holds a command, if there is one."""

    tool: str
    arguments: Mapping[str, Any]
    shell: str = ""


class Filled(NamedTuple):
    """A form with everything filled in."""

    tool: str
    arguments: dict[str, Any]


def lines(text: str) -> tuple[str, ...]:
    """One template a line; an indented line continues the one before."""
    templates: list[str] = []
    for line in text.strip("\n").splitlines():
        if line.startswith("    ") and templates:
            joint = "" if templates[-1].endswith(_JOINT) or line.lstrip()[0] in MARKS[1:3] + "⟫‖" else " "
            templates[-1] += joint + line.lstrip()
        elif line.strip():
            templates.append(line)
    return tuple(templates)


def blocks(text: str) -> tuple[str, ...]:
    """Templates of several lines, divided by lines of dashes; after `¦` or `‖`, a line goes on in the next one."""
    text = re.sub(r"([¦‖⟨⟪])\n *", r"\1", text.strip("\n")) + "\n"
    return tuple(block.strip("\n") for block in re.split(r"^-{4,}\n", text, flags=re.M))


def words(text: str) -> tuple[str, ...]:
    """One template a word."""
    return tuple(text.split())


def weight(template: str) -> int:
    """How often a template is drawn: the more alternatives it has, the more calls it stands for."""
    return 1 + min(4, template.count("¦") // 6)


def weighted(templates: Iterable[str]) -> tuple[str, ...]:
    """Each template as often as its weight."""
    return tuple(template for template in templates for _ in range(weight(template)))


@cache
def parsed(template: str) -> Template:
    """The tree of a template; ValueError if its marks do not match."""
    tokens = _TOKEN.findall(template)
    tree, rest = _sequence(tokens, 0)
    if rest != len(tokens):
        raise ValueError(f"{tokens[rest]!r} does not match in {template!r}")
    return tree


def _sequence(tokens: list[str], i: int) -> tuple[Template, int]:
    nodes: list[str | SlotName | Alternatives | Contrast] = []
    while i < len(tokens) and tokens[i] not in ("¦", "‖", "⟩", "⟫", "›"):
        token = tokens[i]
        if token == "⟨":
            options, i = _options(tokens, i + 1, "⟩")
            nodes.append(Alternatives(options if len(options) > 1 else (*options, ())))
        elif token == "⟪":
            benign, i = _options(tokens, i + 1, "‖")
            harmful, i = _options(tokens, i, "⟫")
            nodes.append(Contrast(benign, harmful))
        elif token == "‹":
            if tokens[i + 2 : i + 3] != ["›"]:
                raise ValueError(f"a slot is not closed in {''.join(tokens)!r}")
            nodes.append(_slot(tokens[i + 1]))
            i += 3
        else:
            nodes.append(token)
            i += 1
    return tuple(nodes), i


def _options(tokens: list[str], i: int, end: str) -> tuple[tuple[Template, ...], int]:
    options = []
    while True:
        option, i = _sequence(tokens, i)
        options.append(option)
        if tokens[i : i + 1] == [end]:
            return tuple(options), i + 1
        if tokens[i : i + 1] != ["¦"]:
            raise ValueError(f"{end!r} is missing in {''.join(tokens)!r}")
        i += 1


def _slot(inner: str) -> SlotName:
    settle, _, rest = inner.rpartition(" ")
    name, _, key = rest.partition(":")
    if settle not in ("", "ok", "bad") or not name:
        raise ValueError(f"‹{inner}› is not a slot")
    return SlotName(name, rest if key else name if name in ONCE else "", settle)


class Twins:
    """`Twins(form, slots, draws)` fills in what both twins share; `settled` makes one of them."""

    def __init__(self, form: Form, slots: Slots, draws: Draws):
        self._slots, self._draws, self._kept = slots, draws, {}
        self._placeholders = draws.one(PLACEHOLDERS) if draws.chance(PLACEHOLDER) else None
        self.form = form
        self._tool = tuple(self._outside(parsed(form.tool)))
        self._shared = self._part(form.arguments)

    def settled(self, harmful: bool) -> Filled:
        """One of the twins; each call draws the contrasts anew."""
        kept = dict(self._kept)
        arguments = self._settled(self._shared, kept, harmful)
        return Filled(self._text(self._tool, kept, harmful), arguments)

    @property
    def root(self) -> str:
        """The project's folder, if it has come up."""
        return self._kept.get("root", "")

    def fill(self, template: str) -> str:
        """A template for both twins, with the values that this call keeps."""
        return self._text(parsed(template), self._kept, False)

    def _part(self, value: Any) -> Any:
        """The values with everything outside contrasts filled in."""
        if isinstance(value, Mapping):
            return {self._text(parsed(name), self._kept, False): self._part(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self._part(part) for part in value]
        return tuple(self._outside(parsed(value), named=not value.startswith("=")))

    def _outside(self, template: Iterable[Any], named: bool = True) -> Iterable[str | Contrast]:
        """`named`: a slot may become a placeholder."""
        for node in template:
            if isinstance(node, str | Contrast):
                yield node
            elif isinstance(node, Alternatives):
                yield from self._outside(self._draws.one(node.options), named)
            elif node.settle or node.key:
                yield self._slot_text(node, self._kept, False)
            elif named and (placeholder := self._placeholder(node.name)):
                yield placeholder
            else:
                entries = self._entries(node.name)
                if callable(entries):
                    yield entries(self._draws)
                else:
                    yield from self._outside(parsed(self._draws.one(entries)), named)

    def _settled(self, part: Any, kept: dict[str, str], harmful: bool) -> Any:
        if isinstance(part, dict):
            return {name: self._settled(inner, kept, harmful) for name, inner in part.items()}
        if isinstance(part, list):
            return [self._settled(inner, kept, harmful) for inner in part]
        named = not (part and isinstance(part[0], str) and part[0].startswith("="))
        text = self._text(part, kept, harmful, named).rstrip(" ")
        return json.loads(text[1:]) if text.startswith("=") else text

    def _text(self, template: Iterable[Any], kept: dict[str, str], harmful: bool, named: bool = False) -> str:
        written = []
        for node in template:
            if isinstance(node, str):
                written.append(node)
            elif isinstance(node, Alternatives):
                written.append(self._text(self._draws.one(node.options), kept, harmful, named))
            elif isinstance(node, Contrast):
                options = node.harmful if harmful else node.benign
                written.append(self._text(self._draws.one(options), kept, harmful, named))
            elif named and not node.key and node.name not in UNDECIDED and (own := self._placeholder(node.name)):
                written.append(own)
            else:
                written.append(self._slot_text(node, kept, harmful, named))
        return "".join(written)

    def _placeholder(self, name: str) -> str:
        """What stands for a slot, where this call has placeholders; mostly."""
        if self._placeholders is None or name not in NAMED or self._draws.chance(0.6):
            return ""
        return self._placeholders.replace("x", NAMED[name]).replace("X", NAMED[name].upper())

    def _slot_text(self, slot: SlotName, kept: dict[str, str], harmful: bool, named: bool = False) -> str:
        if slot.key in kept:
            return kept[slot.key]
        entries = self._entries(slot.name)
        harmful = slot.settle == "bad" if slot.settle else harmful
        if callable(entries):
            text = entries(self._draws)
        else:
            text = self._text(parsed(self._draws.one(entries)), kept, harmful, named and not slot.settle)
        if slot.key:
            kept[slot.key] = text
        if slot.key in ONCE:
            self._kept[slot.key] = text
        return text

    def _entries(self, name: str) -> Sequence[str] | Callable[[Draws], str]:
        try:
            return self._slots[name]
        except KeyError:
            raise ValueError(f"there is no slot ‹{name}›") from None


# How people write a value that is filled in later, and the slots that may be left to it; where they decide, some may
# not: nobody can say what `rm -rf #{folder}` removes.
PLACEHOLDERS = ("#{x}", "#{x}", "#{x}", "#{x}", "${X}", "$X", "{{ x }}", "<x>", "%x%")
NAMED = {
    "file": "input_file",
    "code": "source_file",
    "data": "data_file",
    "dir": "folder",
    "out": "output_dir",
    "tmp": "temp_path",
    "log": "log_file",
    "table": "table_name",
    "service": "service_name",
    "image": "image_name",
    "branch": "branch_name",
    "noun": "name",
    "n": "count",
    "person": "user_name",
    "payload": "script_url",
    "ip": "remote_host",
    "port": "port",
}
UNDECIDED = frozenset(("out", "tmp", "dir", "file", "ip"))


def slot_names(template: str) -> set[str]:
    """The slots that a template mentions, for a check that all of them exist."""
    names: set[str] = set()
    waiting: list[Any] = [parsed(template)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, SlotName):
            names.add(node.name)
        elif isinstance(node, Alternatives | Contrast) or (isinstance(node, tuple) and not isinstance(node, str)):
            waiting.extend(node)
    return names
