"""The words of a shell command, after expansion, quoting and substitution."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gradproof.gate.acts.paths import UNKNOWN
from gradproof.gate.acts.shell_state import NO_INPUT, State
from gradproof.gate.acts.shell_text import decoded, text_of
from gradproof.gate.acts.word import (
    ANSI,
    MARKS,
    Word,
    ansi_escape,
    bare_text,
    below,
    braced,
    concatenated,
    fields,
    in_double_quotes,
    joined_words,
    side_by_side,
)

if TYPE_CHECKING:
    from tree_sitter import Node

    from gradproof.gate.acts.shell_walk import Walk

NUMERIC = {"$", "?", "#", "!", "RANDOM", "SECONDS", "EPOCHSECONDS", "UID", "EUID", "LINENO", "PPID", "COLUMNS", "LINES"}
SOME_NUMBER = "4242"
EXPANSIONS = ("simple_expansion", "expansion", "command_substitution")


class WordReader:
    """Of one walk, which reads the commands inside words."""

    def __init__(self, walk: Walk):
        self.walk, self.reading = walk, walk.reading

    def words(self, node: Node, state: State) -> list[Word]:
        """A node as the words that the shell makes of it: none, one, or several after splitting and braces."""
        if node.type in EXPANSIONS or (
            node.type == "concatenation" and any(c.type in EXPANSIONS for c in node.children)
        ):
            return self._split(node, state)
        if node.type == "string":
            inner = [child for child in node.children if child.is_named]
            if len(inner) == 1 and inner[0].type in ("simple_expansion", "expansion") and is_all(text_of(inner[0])):
                return self._expansion(inner[0], state)
        return braced(self.word(node, state))

    def _split(self, node: Node, state: State) -> list[Word]:
        """A word with expansions outside quotes, as it falls apart."""
        parts = [node] if node.type != "concatenation" else [c for c in node.children if c.is_named or c.type in "{}"]
        pieces = []
        for part in parts:
            if part.type not in EXPANSIONS:
                pieces.append([self.word(part, state)])
                continue
            words = [self.word(part, state)] if part.type == "command_substitution" else self._expansion(part, state)
            pieces.append([field for word in words for field in self._fields(word, state)] or [Word()])
        bare = all(part.type in EXPANSIONS for part in parts)
        whole = [word for word in side_by_side(pieces) if not bare or word.texts != ("",)]
        return [word for field in whole for word in braced(field)]

    def _fields(self, word: Word, state: State) -> list[Word]:
        if self._separated(state) and word.texts != ("",):
            return [replace(word, texts=(UNKNOWN,))]
        return fields(word)

    def _separated(self, state: State) -> bool:
        """Where IFS holds more than blanks, nobody knows where a word falls apart."""
        return any(text.strip(" \t\n") for word in state.variables.get("IFS", []) for text in word.texts)

    def word(self, node: Node, state: State, quiet: bool = False) -> Word:
        """A node as one word, braces and blanks as they are."""
        self.reading.pay(0.1)
        kind = node.type
        if kind in ("word", "number", "test_operator", "extglob_pattern", "variable_name", "special_variable_name"):
            if node.children:
                return concatenated([self.word(child, state, quiet) for child in node.children if child.is_named])
            return Word((bare_text(text_of(node)),))
        if kind == "raw_string":
            return Word((text_of(node)[1:-1],))
        if kind == "ansi_c_string":
            return Word((ANSI.sub(ansi_escape, text_of(node)[2:-1]),))
        if kind in ("string", "translated_string"):
            return self._string(node, state, quiet)
        if kind == "concatenation":
            return concatenated(self._pieces(node, state, quiet))
        if kind in ("simple_expansion", "expansion"):
            words = self._expansion(node, state)
            return words[0] if len(words) == 1 else joined_words(words)
        if kind == "command_substitution":
            return Word((UNKNOWN,)) if quiet else self._substitution(node, state)
        if kind == "process_substitution":
            return Word(("/dev/fd/63",)) if quiet else self._process(node, state)
        if kind == "arithmetic_expansion":
            self.inside(node, state)
            return Word(("0",))
        if kind == "brace_expression":
            return Word((text_of(node).translate(MARKS),))
        if kind == "command_name":
            return self.word(node.children[0], state, quiet) if node.children else Word((text_of(node),))
        if kind == "ERROR" or node.is_missing:
            self.reading.unknown("sh", "shell that cannot be parsed", state)
            return Word((UNKNOWN,))
        if kind == "string_content":
            return Word((in_double_quotes(text_of(node)),))
        self.inside(node, state)
        return Word((UNKNOWN,))

    def _pieces(self, node: Node, state: State, quiet: bool) -> list[Word]:
        """Of a concatenation; between its children nothing is lost."""
        return [self.word(child, state, quiet) for child in node.children if child.is_named or child.type in ("{", "}")]

    def _string(self, node: Node, state: State, quiet: bool) -> Word:
        """A double-quoted string: the parser leaves out blanks between its parts, so they are taken from the source."""
        pieces, at, source = [], node.start_byte + (node.text or b"").find(b'"') + 1, node.text or b""
        for child in node.children:
            if not child.is_named:
                continue
            if child.start_byte > at:
                pieces.append(
                    Word((in_double_quotes(decoded(source, at - node.start_byte, child.start_byte - node.start_byte)),))
                )
            pieces.append(self.word(child, state, quiet))
            at = child.end_byte
        end = node.end_byte - 1
        if end > at:
            pieces.append(Word((in_double_quotes(decoded(source, at - node.start_byte, end - node.start_byte)),)))
        return concatenated(pieces) if pieces else Word()

    def _expansion(self, node: Node, state: State) -> list[Word]:
        """`$X`, `${X}`, `${X:-d}`, `"$@"`, `${A[@]}`."""
        text = text_of(node)
        named = [child for child in node.children if child.is_named]
        self.inside(node, state)
        if not named:
            return [Word((UNKNOWN,))]
        name = text_of(named[0])
        if text.endswith("@P}"):
            self.reading.unknown("sh", "a value that is expanded as a prompt", state)
        if text.startswith("${#"):
            return [Word(("0",))]
        operators = [child.type for child in node.children if not child.is_named and child.type not in ("$", "${", "}")]
        if named[0].type == "subscript":
            array, _, index = name.partition("[")
            if index == "*]" and self._separated(state):
                return [Word((UNKNOWN,))]
            if index in ("@]", "*]") and array in state.variables and not operators:
                return state.variables[array]
            return [Word((UNKNOWN,))]
        if name == "*" and self._separated(state):
            return [Word((UNKNOWN,))]
        known = self._variable(name, state)
        if not operators and len(named) == 1:
            return known
        if operators in ([":-"], ["-"], [":="], ["="]) and len(named) == 2:
            other = self.word(named[1], state)
            if name not in state.variables and known == [Word((UNKNOWN,))]:
                return [Word((UNKNOWN,), other.fetched, other.secret)]
            return known
        return [Word((UNKNOWN,))]

    def _variable(self, name: str, state: State) -> list[Word]:
        if name in state.variables:
            return state.variables[name]
        if name in ("@", "*") and state.parameters is not None:
            return list(state.parameters)
        if name.isdecimal() and state.parameters is not None:
            at = int(name[:9]) - 1
            return [state.parameters[at]] if 0 <= at < len(state.parameters) else [Word()]
        if name in NUMERIC:
            return [Word((SOME_NUMBER,))]
        if state.elsewhere is None:
            if name == "HOME":
                return [Word((self.reading.around.home,))]
            if name == "PWD":
                return [Word(state.cwds if all(state.cwds) else (UNKNOWN,))]
            if name in ("TMPDIR", "TMP", "TEMP"):
                return [Word(("/tmp",))]
            if name in ("USER", "LOGNAME"):
                return [Word((self.reading.around.home.rsplit("/", 1)[-1],))]
        return [Word((UNKNOWN,))]

    def _substitution(self, node: Node, state: State) -> Word:
        """What a command prints, as far as that is known."""
        inner = [child for child in node.children if child.is_named]
        self.walk.substituted.add(node.id)
        own = replace(state.copy(), stdout=None)
        before = len(self.reading.acts)
        if len(inner) == 1 and inner[0].type == "file_redirect":  # $(< f)
            output = self.walk.redirect(inner[0], own, NO_INPUT)
        else:
            output = self.walk.statements(inner, own)
        acts = self.reading.acts[before:]
        secret = output.secret or any(act.effect == "read" and act.scope == "secret" for act in acts)
        texts = (output.text.rstrip("\n"),) if output.text is not None else below(output.names) or (UNKNOWN,)
        return Word(texts, output.fetched, secret, substituted=True)

    def _process(self, node: Node, state: State) -> Word:
        self.walk.substituted.add(node.id)
        output = self.walk.statements([child for child in node.children if child.is_named], state.copy())
        return Word(("/dev/fd/63",), output.fetched, output.secret, output.text if output.text is not None else UNKNOWN)

    def inside(self, node: Node, state: State) -> None:
        """Reads the substitutions anywhere in a node, for what they do."""
        if node.type in ("command_substitution", "process_substitution"):
            self.word(node, state)
        elif node.type == "ERROR" or node.is_missing:
            self.reading.unknown("sh", "shell that cannot be parsed", state)
        else:
            for child in node.children:
                self.inside(child, state)


def is_all(text: str) -> bool:
    return text in ("$@", "${@}") or text.endswith("[@]}")
