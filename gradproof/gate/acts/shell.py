"""Shell, read by tree-sitter-bash: which programs run, with which words, in which folder, fed by what.

The reader follows what the shell itself would know: literals assigned in the same call, words of a loop, the folder
after `cd`, functions and aliases, heredocs, substitutions. What it cannot know is UNKNOWN in a word. A node of error,
and text beyond the cap, become an act `unknown` beside what could be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice, pairwise, product
from time import thread_time
from typing import TYPE_CHECKING, Any

from gradproof.gate import MISSING_EXTRA
from gradproof.gate.acts.act import Act, ActScope, unknown
from gradproof.gate.acts.paths import ANY, RANGE, STAR, TILDE, UNKNOWN, Surroundings, unglobbed

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MOST_TEXT = 8 * 2**10  # bytes of shell that are parsed; quoted heredocs apart
MOST_DEPTH = 12  # of commands inside commands
MOST_ALTERNATIVES = 32  # that one word may stand for
MOST_BRACES = 12  # in one word
MOST_FOLDERS = 4
MOST_COMMANDS = 500
RESERVE = 60.0  # work that is left for the command that is being read, when no further one is
MOST_WORK = 600.0  # that one call is worth: one for a command, half as much again for an act, a tenth for a word
MOST_SAID = 2000  # characters of a command that an act keeps
OPEN, CLOSE, COMMA = "\ue004", "\ue005", "\ue006"  # unquoted { } ,
MARKS = str.maketrans({"*": STAR, "?": ANY, "[": RANGE, "{": OPEN, "}": CLOSE, ",": COMMA})
BRACES = str.maketrans({OPEN: "{", CLOSE: "}", COMMA: ","})
NUMERIC = {"$", "?", "#", "!", "RANDOM", "SECONDS", "EPOCHSECONDS", "UID", "EUID", "LINENO", "PPID", "COLUMNS", "LINES"}
SOME_NUMBER = "4242"
OTHER_SHELL = re.compile(
    r"(?mi)^[^\S\n]*(?:\$[a-z_]\w*\s*=\s|(?:get|set|remove|new|invoke|start|stop|write|import|copy|move|test|add|clear|out)-[a-z]+\b"
    r"|set -[lgxUe]{1,2} \w+ \S|end\s*$|function \w+\s*$|for \w+ in [^;\n]*\n(?!\s*do\b)\s*\w+[^\n]*\nend\b)"
)
BODIES = ("compound_statement", "do_group", "else_clause", "elif_clause", "case_item", "program", "subshell")
STATEMENTS = frozenset(
    (
        *("list", "pipeline", "subshell", "compound_statement", "negated_command", "if_statement", "elif_clause"),
        *("else_clause", "while_statement", "c_style_for_statement", "for_statement", "case_statement", "command"),
        *("function_definition", "variable_assignment", "variable_assignments", "declaration_command", "unset_command"),
        "redirected_statement",
    )
)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
ANSI = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)


SEQUENCE = re.compile(r"(-?\d{1,18}|\w)\.\.(-?\d{1,18}|\w)(?:\.\.-?\d+)?", re.ASCII)


class UnreadableError(Exception):
    """Nothing more of this call can be read."""


@dataclass(frozen=True)
class Word:
    """A word as the program gets it: one of `texts`. `fetched` names the host whose answer is in it, `secret` says that
    a secret is, `inner` is the text that a process substitution would deliver."""

    texts: tuple[str, ...] = ("",)
    fetched: str = ""
    secret: bool = False
    inner: str | None = None
    substituted: bool = False

    @property
    def known(self) -> bool:
        return not any(UNKNOWN in text for text in self.texts)

    @property
    def text(self) -> str:
        """One text, as it was written; UNKNOWN in it where it is not known, or where there are several."""
        return unglobbed(self.texts[0]) if len(self.texts) == 1 else UNKNOWN

    def starts(self, *prefixes: str) -> bool:
        return self.text.startswith(prefixes)


@dataclass(frozen=True)
class Output:
    """What a command is fed with, or gives: its text, if that is known; whether it comes from a host, or is secret."""

    text: str | None = None
    fetched: str = ""
    secret: bool = False
    piped: bool = False
    names: tuple[str, ...] = ()  # folders, where it is a list of files below them
    substituted: bool = False  # made by another program, though its text is known

    @classmethod
    def of(cls, acts: Sequence[Act], stdin: Output, text: str | None = None) -> Output:
        """Of a command that did these acts."""
        hosts = [str(act.target) for act in acts if act.effect == "read" and act.scope == "remote"]
        secret = stdin.secret or any(act.effect == "read" and act.scope == "secret" for act in acts)
        return cls(text, hosts[0] if hosts else stdin.fetched, secret, True)


NO_INPUT = Output()
STANDARD = ("0", "1", "2")  # descriptors: input, output, errors


@dataclass
class State:
    """What a shell would know at this point."""

    cwds: tuple[str, ...]
    variables: dict[str, list[Word]] = field(default_factory=dict)
    functions: dict[str, list[Any]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)  # path → what was written to it in this call
    fetched: dict[str, str] = field(default_factory=dict)  # path → the host that it came from
    via: frozenset[str] = frozenset()
    elsewhere: tuple[ActScope, str] | None = None  # where ssh, docker exec and the like have gone
    parameters: tuple[Word, ...] | None = None
    unsure: bool = False  # inside a branch or a loop: what is assigned may not be
    strict: bool = False  # set -e
    venv: bool = False  # a virtual environment of the project is in use
    context: frozenset[str] = frozenset()  # variables and wrappers that every command here runs under
    sockets: dict[str, Act] = field(default_factory=dict)  # descriptor → what opened it to /dev/tcp/HOST/PORT
    stdout: Act | None = None  # what `exec >/dev/tcp/HOST/PORT` has opened: all that is printed goes there

    def copy(self) -> State:
        return replace(
            self,
            variables=dict(self.variables),
            functions=dict(self.functions),
            aliases=dict(self.aliases),
            written=self.written,
            fetched=self.fetched,
            sockets=dict(self.sockets),
        )


class Reading:
    """One call being read: its surroundings, and the acts so far."""

    def __init__(self, around: Surroundings):
        self.around = around
        self.acts: list[Act] = []
        self.depth = 0
        self.parsed = 0
        self.written: dict[str, str] = {}  # path → what was written to it in this call, or before it
        self.fetched: dict[str, str] = {}  # path → the host that it came from
        self.explained: set[str] = set()  # words that are targets of acts
        self.running: set[int] = set()  # functions that are being read
        self.commands = 0
        self.left = MOST_WORK
        self.errors = 0  # in what was parsed
        self.seconds = 0.0  # that the parser has taken over them
        self.walks: list[_Walk] = []  # that are under way, the innermost last
        self.exhausted = False
        self.piped = False  # inside a pipe
        self._unknown: set[Act] = set()

    def pay(self, work: float = 1.0) -> None:
        """For what is read; UnreadableError when the call has had its share."""
        self.left -= work
        if self.left < 0:
            raise UnreadableError

    def state(self) -> State:
        return State((self.around.cwd,), written=self.written, fetched=self.fetched)

    def unknown(self, program: str, why: str, state: State | None = None) -> None:
        act = unknown(program, why, state.via if state else frozenset())
        if act not in self._unknown:
            self._unknown.add(act)
            self.acts.append(act)

    # texts

    def shell(self, text: str, state: State, stdin: Output = NO_INPUT) -> Output:
        """Reads a piece of shell in a state, which it changes."""
        self.depth += 1
        try:
            if self.depth > MOST_DEPTH:
                self.unknown("sh", "too many commands inside commands", state)
                return Output()
            if UNKNOWN in text:
                self.unknown("sh", "a command that is made while it runs", state)
                text = text.replace(UNKNOWN, "?")
            return self._shell(text, state, stdin)
        finally:
            self.depth -= 1

    def _shell(self, text: str, state: State, stdin: Output) -> Output:
        room = MOST_TEXT - self.parsed if self.left >= RESERVE else 0
        if text and room <= 0:
            self._leave(text, state)
            return Output()
        short, bodies = _set_aside(text) if "<<" in text else (text, [])
        short = BLANK_LINES.sub("\n", short)
        source = short.encode("utf-8", "replace")
        if len(source) > room:
            source = self._cut(source, room, state)
        if (too_deep := _too_deep(source)) is not None:
            source = self._cut(source, too_deep, state)
        if short and not source:
            return Output()  # all of it is beyond what is read
        root = self.tree(source, state)
        if root.has_error or OTHER_SHELL.search(short[:MOST_TEXT]):
            self.unknown("sh", "shell that cannot be parsed", state)
        self.walks.append(_Walk(self, bodies, source))
        output = self.walks[-1].statements(root.children, state, stdin)
        self.walks.pop()
        return output

    def rest(self) -> str:
        """What was not read of the texts under way: from the command on that is being read; around it, behind it."""
        *around, innermost = self.walks or [_Walk(self, ())]
        texts = [walk.source[walk.behind :] for walk in around] + [innermost.source[innermost.at :]]
        return b"\n".join(texts).decode("utf-8", "replace")

    def tree(self, source: bytes, state: State) -> Node:
        """The tree of a text. The parser takes long over errors, more than twice as long over twice the text, and
        cannot be stopped: a long text is tried by its beginning first, and where that is wrong or takes long, the rest
        is not read. Errors are paid for."""
        self.pay(len(source) / BYTES_PER_WORK)
        whole, source = source, _unchained(source)
        if source is not whole:
            self.unknown("sh", "more commands joined than are read together", state)
        size = FIRST_PIECE
        while size < len(source):
            end = _end(source, size)
            piece = source[: end if end > size // 2 else size]
            started = thread_time()
            root = _parser().parse(piece).root_node
            errors = _errors(root)
            self.seconds += max(0.0, thread_time() - started - (0.0 if errors else PATIENCE))
            wrong = len(errors) > MOST_ERRORS or any(end < len(piece) - size // 4 for end in errors)
            if wrong or self.seconds > MOST_SECONDS:
                self.parsed += len(piece)
                self.pay_for_errors(len(errors))
                self._cut(source, len(piece), state)  # its last command as well, which may not have been read
                return root
            size *= 2
        root = _parser().parse(source).root_node
        self.parsed += len(source)
        self.pay_for_errors(len(_errors(root)))
        return root

    def pay_for_errors(self, errors: int) -> None:
        """Those of a text that was parsed: they leave less work for what comes after it, but some."""
        self.errors += errors
        self.left -= min(errors * WORK_OF_ERROR, max(0.0, self.left - RESERVE))

    def _cut(self, source: bytes, room: int, state: State) -> bytes:
        """As much as is parsed, up to the end of a command."""
        end = _end(source, max(0, room))
        self._leave(_bytes(source, end, len(source)), state)
        return source[:end]

    def _leave(self, text: str, state: State) -> None:
        """Text that is not parsed."""
        self.unknown("sh", "more text than is read", state)
        self.acts += unread(text, state)


def _end(source: bytes, room: int) -> int:
    """Where the last command ends that fits."""
    head = source[:room]
    return max(head.rfind(b"\n"), head.rfind(b";"), head.rfind(b"&&"), 0)


def _too_deep(source: bytes) -> int | None:
    """Where a text gets so nested, or has so many marks in a row, as no shell has it and the parser takes long over."""
    depth, runs = 0, RUNS.search(source)
    for match in NESTING.finditer(source):
        depth += 1 if match.lastgroup == "opens" else -1
        if depth > MOST_NESTING:
            return min(match.start(), runs.start()) if runs else match.start()
        depth = max(depth, 0)
    return runs.start() if runs else None


def _unchained(source: bytes) -> bytes:
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


def _errors(root: Node) -> list[int]:
    """Where the errors in a tree end. One that ends with a text may be no more than the end of what was cut."""
    ends, waiting = [], [root] if root.has_error else []
    while waiting:
        node = waiting.pop()
        if node.type == "ERROR" or node.is_missing:
            ends.append(node.end_byte)
        waiting += [child for child in node.children if child.has_error]
    return ends


HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(?:'([^'\n]{1,200})'|\"([^\"\n]{1,200})\")")
MOST_HEREDOCS = 64  # that are kept out of the parser's way
MOST_OPEN_ENDS = 2  # heredocs without an end, each of which is a search through the whole text
BYTES_PER_WORK = 200.0
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
FIRST_PIECE = 2**10
MOST_ERRORS = 16  # in a piece of a longer text
WORK_OF_ERROR = 1.5
MOST_SECONDS = 0.0025  # for the pieces of a call with errors in them: twice as much would take four times as long
PATIENCE = 0.002  # seconds for a piece without one, ten times what it takes: what no bound above has foreseen
ASIDE = re.compile(r"^\ue010(\d+)\ue010\n\Z")


def _set_aside(text: str) -> tuple[str, list[str]]:
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


def unread(text: str, state: State) -> Iterator[Act]:
    """Of text that nobody parsed: what would be blocked if it were there is taken to be there."""
    from gradproof.gate.acts.knowledge import knowledge

    if match := _dangers(knowledge().dangerous).search(text):
        yield Act("delete", match.group().strip(), "root", via=state.via, why="in text that is too long to be read")


@cache
def _dangers(programs: tuple[str, ...]) -> Any:
    import re2

    words = "|".join(re2.escape(program) for program in programs)
    return re2.compile(
        rf"(?:^|[^\w.-])(?:{words})(?:[^\w-]|$)|/(?:etc|dev|usr|boot|sys|proc|var|bin|sbin|lib)\b|~|\$\(|`"
    )


@cache
def _parser() -> Parser:
    try:
        import tree_sitter_bash
        from tree_sitter import Language, Parser
    except ImportError:
        raise ValueError(MISSING_EXTRA) from None
    return Parser(Language(tree_sitter_bash.language()))


class _Walk:
    """Through one tree."""

    def __init__(self, reading: Reading, bodies: Sequence[str], source: bytes = b""):
        self.reading, self.bodies, self.source = reading, bodies, source
        self.at = self.behind = 0  # where the command begins that is being read, and where it ends

    # statements

    def statements(self, nodes: Iterable[Node], state: State, stdin: Output = NO_INPUT) -> Output:
        """One after the other. After a statement with a `cd`, which may have failed, both folders count."""
        output = Output("", piped=True)
        for node in nodes:
            if not node.is_named or node.type == "comment":
                continue
            if self.reading.exhausted:
                break
            before = state.cwds
            one = self.statement(node, state, stdin)
            if state.cwds != before and not state.strict and not _leaves_on_failure(node):
                state.cwds = _joined(state.cwds, before)
            output = _appended(output, one)
        return output

    def statement(self, node: Node, state: State, stdin: Output = NO_INPUT) -> Output:
        if node.type in STATEMENTS:
            return getattr(self, f"_{node.type}")(node, state, stdin)
        if node.type == "ERROR" or node.is_missing:
            self.reading.unknown("sh", "shell that cannot be parsed", state)
            return self.statements(node.children, state.copy(), stdin)
        if node.type in BODIES:
            return self.statements(node.children, state, stdin)
        self._inside(node, state)
        return Output()

    def _list(self, node: Node, state: State, stdin: Output) -> Output:
        """`a && b`: b runs where a has left off. `a || b`: where a failed."""
        output, operator, before = Output("", piped=True), "", state.cwds
        for child in node.children:
            if not child.is_named:
                operator = child.type
                continue
            if child.type == "comment":
                continue
            if operator == "||":
                after, was = state.cwds, state.unsure
                state.cwds, state.unsure = _joined(before, after), True
                output = _appended(output, self.statement(child, state, stdin))
                state.cwds, state.unsure = after if _exits(child) else _joined(after, state.cwds), was
            else:
                output = _appended(output, self.statement(child, state, stdin))
        return output

    def _pipeline(self, node: Node, state: State, stdin: Output) -> Output:
        stages = [child for child in node.children if child.is_named and child.type != "comment"]
        before, outermost = len(self.reading.acts), not self.reading.piped
        self.reading.piped = True
        output = self._stages(stages, state, stdin)
        if outermost:  # pipes may be inside pipes by the hundred, and the outermost has the last word
            self.reading.piped = False
            self._fed(before, _written(node))
        return output

    def _fed(self, first: int, whole: str) -> None:
        """What is fed by a pipe is told by the whole of it."""
        acts = self.reading.acts
        for i in range(first, len(acts)):
            if "pipe" in acts[i].via and acts[i].effect in ("fetch_and_run", "unknown", "send"):
                acts[i] = acts[i].but(text=whole)

    def _stages(self, stages: Sequence[Node], state: State, stdin: Output) -> Output:
        output = stdin
        for i, stage in enumerate(stages):
            own = state.copy()
            if i:
                own.via = own.via | {"pipe"}
            if i < len(stages) - 1:
                own.stdout = None
            before = len(self.reading.acts)
            given = self.statement(stage, own, output)
            if output.secret:
                self._carries_secret(before)
            keeps = given.fetched or (output.fetched if i else "")
            output = replace(given, fetched=keeps, secret=given.secret or (i > 0 and output.secret), piped=True)
        return output

    def _carries_secret(self, first: int, end: int | None = None) -> None:
        """What is sent from here on was fed with a secret."""
        acts = self.reading.acts
        for i in range(first, len(acts) if end is None else end):
            if acts[i].effect in ("send", "publish") or "elsewhere" in acts[i].via:
                acts[i] = acts[i].but(effect="send", marks=acts[i].marks | {"payload:secret"})

    def _subshell(self, node: Node, state: State, stdin: Output) -> Output:
        return self.statements(node.children, state.copy(), stdin)

    def _compound_statement(self, node: Node, state: State, stdin: Output) -> Output:
        return self.statements(node.children, state, stdin)

    def _negated_command(self, node: Node, state: State, stdin: Output) -> Output:
        return self.statements(node.children, state, stdin)

    def _if_statement(self, node: Node, state: State, stdin: Output) -> Output:
        output, before, was = Output(), state.cwds, state.unsure
        state.unsure = True
        for child in node.children:
            if child.is_named and child.type != "comment":
                self.statement(child, state, stdin)
                state.cwds = _joined(state.cwds, before)
        state.unsure = was
        return output

    def _elif_clause(self, node: Node, state: State, stdin: Output) -> Output:
        self.statements(node.children, state, stdin)
        return Output()

    _else_clause = _elif_clause

    def _while_statement(self, node: Node, state: State, stdin: Output) -> Output:
        before, was = state.cwds, state.unsure
        state.unsure = True
        self.statements(node.children, state, stdin)
        state.cwds, state.unsure = _joined(state.cwds, before), was
        return Output(secret=stdin.secret, fetched=stdin.fetched)

    def _c_style_for_statement(self, node: Node, state: State, stdin: Output) -> Output:
        for variable in _names(node):
            state.variables[variable] = [Word(("0",))]
        body = node.child_by_field_name("body")
        return self._while_statement(body, state, stdin) if body is not None else Output()

    def _for_statement(self, node: Node, state: State, stdin: Output) -> Output:
        variable = node.child_by_field_name("variable")
        words = [word for value in node.children_by_field_name("value") for word in self.words(value, state)]
        texts = tuple(dict.fromkeys(text for word in words for text in word.texts))
        if not words or len(texts) > MOST_ALTERNATIVES:
            texts = (UNKNOWN,)
        flags = dict(fetched=next((w.fetched for w in words if w.fetched), ""), secret=any(w.secret for w in words))
        if variable is not None:
            state.variables[_text(variable)] = [Word(texts, **flags)]  # type: ignore[arg-type]
        body = node.child_by_field_name("body")
        return self._while_statement(body, state, stdin) if body is not None else Output()

    def _case_statement(self, node: Node, state: State, stdin: Output) -> Output:
        before, was = state.cwds, state.unsure
        state.unsure = True
        for child in node.children:
            if child.type == "case_item":
                values = {value.id for value in child.children_by_field_name("value")}
                self.statements([part for part in child.children if part.id not in values], state, stdin)
                state.cwds = _joined(state.cwds, before)
            elif child.is_named:
                self._inside(child, state)
        state.unsure = was
        return Output()

    def _function_definition(self, node: Node, state: State, stdin: Output) -> Output:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            kept = state.functions.get(_text(name), []) if state.unsure else []
            state.functions[_text(name)] = [*kept, (self, body)]
        return Output()

    def call(self, body: Node, state: State, words: Sequence[Word], stdin: Output) -> Output:
        """A function, with its parameters."""
        reading = self.reading
        if reading.depth > MOST_DEPTH or body.id in reading.running:
            reading.unknown("sh", "a function that calls itself", state)
            return Output()
        reading.depth += 1
        reading.running.add(body.id)
        was, state.parameters = state.parameters, tuple(words)
        output = self.statement(body, state, stdin)
        state.parameters = was
        reading.running.discard(body.id)
        reading.depth -= 1
        return output

    # assignments

    def _variable_assignment(self, node: Node, state: State, stdin: Output) -> Output:
        self.assign(node, state)
        return Output("")

    def _variable_assignments(self, node: Node, state: State, stdin: Output) -> Output:
        for child in node.children:
            if child.type == "variable_assignment":
                self.assign(child, state)
        return Output("")

    def _declaration_command(self, node: Node, state: State, stdin: Output) -> Output:
        for child in node.children:
            if child.type == "variable_assignment":
                name, values = self.assign(child, state)
                state.context = state.context | {f"{name}={values[0].text if values else ''}"}
            elif child.is_named:
                self._inside(child, state)
        return Output("")

    def _unset_command(self, node: Node, state: State, stdin: Output) -> Output:
        from gradproof.gate.acts.programs import unset

        for child in node.children:
            if child.is_named:
                state.variables[_text(child)] = [Word((UNKNOWN,))]
                state.functions.pop(_text(child), None)
                unset(self.reading, _text(child), state)
        return Output("")

    def assign(self, node: Node, state: State) -> tuple[str, list[Word]]:
        """A variable's new value; in a branch, beside the old one."""
        from gradproof.gate.acts.programs import assigned

        name_node, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = _text(name_node) if name_node is not None else ""
        words = self._value(value, state)
        appended = any(child.type == "+=" for child in node.children)
        if name_node is not None and name_node.type == "subscript":
            name, words = name.partition("[")[0], [Word((UNKNOWN,))]
        if appended:
            words = [Word((UNKNOWN,))]
        if state.unsure and name in state.variables:
            old, new = state.variables[name], words
            varies = value is not None and value.type not in ("word", "number", "raw_string", "string")
            same = len(old) == len(new) == 1 and not varies
            words = [Word(_few((*old[0].texts, *new[0].texts)))] if same else [Word((UNKNOWN,))]
        state.variables[name] = words
        assigned(self.reading, name, words, state)
        return name, words

    def _value(self, node: Node | None, state: State) -> list[Word]:
        if node is None:
            return [Word()]
        if node.type == "array":
            return [word for child in node.children if child.is_named for word in self.words(child, state)]
        return [self.word(node, state)]

    # commands

    def _command(self, node: Node, state: State, stdin: Output) -> Output:
        return self.command(node, state, stdin, ())

    def command(self, node: Node, state: State, stdin: Output, more: Sequence[Word]) -> Output:
        from gradproof.gate.acts.programs import run

        inner, words = state, []
        self.at, self.behind = node.start_byte, node.end_byte
        self.reading.commands += 1
        if self.reading.commands > MOST_COMMANDS or self.reading.left < RESERVE:
            self._too_many(state)
            return Output()
        self.reading.pay()
        for child in node.children:
            if child.type == "variable_assignment":
                if inner is state:
                    inner = state.copy()
                name, values = self.assign(child, inner)
                inner.context = inner.context | {f"{name}={values[0].text if values else ''}"}
            elif child.type in ("file_redirect", "herestring_redirect"):
                stdin = self._redirect(child, state, stdin)
            elif child.type == "ERROR" or child.is_missing:
                self.reading.unknown("sh", "shell that cannot be parsed", state)
            elif child.type == "command_name":
                words += self.words(child.children[0], state) if child.children else [Word((_text(child),))]
            elif child.is_named and child.type != "comment":
                words += self.words(child, state)
        words += more
        if not words:
            return Output("")
        before = len(self.reading.acts)
        output = run(self.reading, words, inner, stdin, self)
        if output.secret and state.stdout is not None:
            sent = state.stdout.but(effect="send", via=state.via, text="")
            self.reading.acts.append(sent.but(marks=sent.marks | {"payload:secret"}))
        state.cwds = inner.cwds
        self._said(before, node)
        return output

    def _too_many(self, state: State) -> None:
        """From a command on that is beyond those that are read."""
        reading = self.reading
        if not reading.exhausted:
            reading.exhausted = True
            reading.unknown("sh", "more commands than are read", state)
            reading.acts += unread(reading.rest(), state)

    def _said(self, first: int, node: Node) -> None:
        """Notes of the acts since `first` which command did them; the innermost command counts."""
        acts = self.reading.acts
        for i in range(first, len(acts)):
            if not acts[i].text:
                acts[i] = acts[i].but(text=_written(node))

    def _redirected_statement(self, node: Node, state: State, stdin: Output) -> Output:
        acts, before = self.reading.acts, len(self.reading.acts)
        output = self._redirected(node, state, stdin)
        self._said(before, node)
        body = node.child_by_field_name("body")
        if body is not None and body.type == "command":  # its redirections belong to a command
            own, whole = _written(body), _written(node)
            acts[before:] = [act.but(text=whole) if act.text == own else act for act in acts[before:]]
        return output

    def _redirected(self, node: Node, state: State, stdin: Output) -> Output:
        """Where a statement is fed from and writes to ends with it, unless `exec` alone redirects the shell itself."""
        body = node.child_by_field_name("body")
        standard = {name: socket for name, socket in state.sockets.items() if name in STANDARD}
        output = self._with_redirects(node, body, state, stdin)
        if body is None or _text(body).strip() != "exec":
            opened = {name: socket for name, socket in state.sockets.items() if name not in STANDARD}
            state.sockets = opened | standard
        else:
            state.stdout = state.sockets.get("1")
        return output

    def _with_redirects(self, node: Node, body: Node | None, state: State, stdin: Output) -> Output:
        redirects = [child for child in node.children if child.type.endswith("_redirect")]
        before = len(self.reading.acts)
        more: list[Word] = []
        after: list[tuple[str, Node]] = []
        targets: list[Node] = []
        for redirect in redirects:
            if redirect.type == "heredoc_redirect":
                stdin = self._heredoc(redirect, state, more, after, targets)
            else:
                targets.append(redirect)
        for target in targets:
            stdin = self._redirect(target, state, stdin)
        redirected = len(self.reading.acts)
        if body is None:
            output = Output("")
        elif body.type == "command" and more:
            output = self.command(body, state, stdin, more)
        else:
            output = self.statement(body, state, stdin)
        self._written(targets, state, output)
        if output.secret:
            self._carries_secret(before, redirected)
        return self._after(after, state, output)

    def _heredoc(
        self, node: Node, state: State, more: list[Word], after: list[tuple[str, Node]], targets: list[Node]
    ) -> Output:
        """The text that a heredoc feeds; what stands behind `<<EOF` on its line belongs to the statement."""
        operator, text, quoted = "", "", False
        for child in node.children:
            if child.type == "heredoc_start":
                quoted = any(mark in _text(child) for mark in "'\"\\")
            elif child.type == "heredoc_body":
                text = _text(child)
            elif child.type in ("file_redirect", "herestring_redirect"):
                targets.append(child)
            elif child.type in ("&&", "||", "|", "|&"):
                operator = child.type
            elif child.type in ("heredoc_end", "<<", "<<-", "comment"):
                continue
            elif child.type == "ERROR" or child.is_missing:
                self.reading.unknown("sh", "shell that cannot be parsed", state)
            elif operator or child.type in ("pipeline", "list", "command"):
                after.append((operator or "|", child))
            elif child.is_named:
                more += self.words(child, state)
        if aside := ASIDE.match(text):
            return Output(self.bodies[int(aside[1])] if int(aside[1]) < len(self.bodies) else None, piped=True)
        return Output(text, piped=True) if quoted else self._unquoted(text, state)

    def _unquoted(self, text: str, state: State) -> Output:
        """The body of a heredoc, in which the shell still expands: it is read as one double-quoted word."""
        if not any(mark in text for mark in "$`\\"):
            return Output(text, piped=True)
        source = ': "' + text.replace('"', '\\"') + '"'
        root = self.reading.tree(source.encode("utf-8", "replace"), state)
        command = root.children[0] if root.children else None
        if root.has_error or command is None or command.type != "command":
            self.reading.unknown("sh", "a heredoc that cannot be parsed", state)
            return Output(None, piped=True)
        word = _Walk(self.reading, ()).word(command.children[-1], state)
        return Output(word.text if word.known else word.texts[0], word.fetched, word.secret, True)

    def _after(self, after: Sequence[tuple[str, Node]], state: State, output: Output) -> Output:
        """What stands behind a heredoc on its first line: a pipe, or further commands."""
        for operator, node in after:
            if operator in ("|", "|&"):
                stages = list(node.children) if node.type == "pipeline" else [node]
                stages = [stage for stage in stages if stage.is_named and stage.type != "comment"]
                output = self._stages_fed(stages, state, output)
            else:
                output = self.statement(node, state)
        return output

    def _stages_fed(self, stages: Sequence[Node], state: State, output: Output) -> Output:
        for stage in stages:
            own = state.copy()
            own.via = own.via | {"pipe"}
            before = len(self.reading.acts)
            given = self.statement(stage, own, output)
            if output.secret:
                self._carries_secret(before)
            output = replace(given, fetched=given.fetched or output.fetched, secret=given.secret or output.secret)
        return output

    def _redirect(self, node: Node, state: State, stdin: Output) -> Output:
        """`> f` writes, `< f` feeds, `<<<` feeds a text, `<(…)` is fed from a command."""
        from gradproof.gate.acts.programs import touch

        operator = next((child.type for child in node.children if not child.is_named), ">")
        if node.type == "herestring_redirect":
            word = self.word(node.children[-1], state)
            return Output(word.text if word.known else word.texts[0], word.fetched, word.secret, True)
        effect = "read" if operator in ("<", "<&") else "write"
        descriptor = _descriptor(node, effect)
        destinations = node.children_by_field_name("destination") or [c for c in node.children if c.is_named][-1:]
        for destination in destinations:
            for word in self.words(destination, state):
                if operator in (">&", "<&", "&>&") and re.fullmatch(r"\d+|-", word.text):
                    stdin = self._duplicated(word.text, descriptor, state, stdin)
                    continue
                if word.inner is not None or word.texts[0].startswith("/dev/fd/"):
                    stdin = Output(word.inner, word.fetched, word.secret, True)
                    continue
                acts = touch(self.reading, effect, "sh", word, state)
                # Nothing closes a socket here: the command that would may never run.
                state.sockets.update((descriptor, act) for act in acts if _is_socket(act, word))
                if effect == "read":
                    nothing = "" if word.text == "/dev/null" else None
                    host = _host_of(state.sockets.get(descriptor))
                    stdin = Output(nothing, host, any(act.scope == "secret" for act in acts), True)
        return stdin

    def _duplicated(self, source: str, descriptor: str, state: State, stdin: Output) -> Output:
        """`>&3` and `<&3`: where 3 leads to a host, what is written is sent there, and what is read comes from it."""
        socket = state.sockets.get(source)
        if socket is None:
            return stdin
        state.sockets[descriptor] = socket
        if descriptor == "0":
            return Output(None, _host_of(socket), False, True)
        self.reading.acts.append(socket.but(effect="send", via=state.via, text=""))
        return stdin

    def _written(self, targets: Sequence[Node], state: State, output: Output) -> None:
        """Remembers what a file holds that was written in this call."""
        from gradproof.gate.acts.programs import resolved

        for node in targets:
            if node.type != "file_redirect" or any(child.type == "<" for child in node.children):
                continue
            for destination in node.children_by_field_name("destination"):
                for path in resolved(self.reading, self.word(destination, state, quiet=True), state):
                    if output.fetched:
                        state.fetched[path] = output.fetched
                    elif output.text is not None:
                        state.written[path] = output.text

    # words

    def words(self, node: Node, state: State) -> list[Word]:
        """A node as the words that the shell makes of it: none, one, or several after splitting and braces."""
        if node.type in ("simple_expansion", "expansion"):
            return [piece for word in self._expansion(node, state) for piece in _split(word)]
        if node.type == "string":
            inner = [child for child in node.children if child.is_named]
            if len(inner) == 1 and inner[0].type in ("simple_expansion", "expansion") and _is_all(_text(inner[0])):
                return self._expansion(inner[0], state)
        word = self.word(node, state)
        if node.type == "command_substitution" and word.known:
            return _split(word)
        return _braced(word)

    def word(self, node: Node, state: State, quiet: bool = False) -> Word:
        """A node as one word, braces and blanks as they are."""
        self.reading.pay(0.1)
        kind = node.type
        if kind in ("word", "number", "test_operator", "extglob_pattern", "variable_name", "special_variable_name"):
            if node.children:
                return _concatenated([self.word(child, state, quiet) for child in node.children if child.is_named])
            return Word((_unquoted_text(_text(node)),))
        if kind == "raw_string":
            return Word((_text(node)[1:-1],))
        if kind == "ansi_c_string":
            return Word((ANSI.sub(_ansi, _text(node)[2:-1]),))
        if kind in ("string", "translated_string"):
            return self._string(node, state, quiet)
        if kind == "concatenation":
            return _concatenated(self._pieces(node, state, quiet))
        if kind in ("simple_expansion", "expansion"):
            words = self._expansion(node, state)
            return words[0] if len(words) == 1 else _joined_words(words)
        if kind == "command_substitution":
            return Word((UNKNOWN,)) if quiet else self._substitution(node, state)
        if kind == "process_substitution":
            return Word(("/dev/fd/63",)) if quiet else self._process(node, state)
        if kind == "arithmetic_expansion":
            self._inside(node, state)
            return Word(("0",))
        if kind == "brace_expression":
            return Word((_text(node).translate(MARKS),))
        if kind == "command_name":
            return self.word(node.children[0], state, quiet) if node.children else Word((_text(node),))
        if kind == "ERROR" or node.is_missing:
            self.reading.unknown("sh", "shell that cannot be parsed", state)
            return Word((UNKNOWN,))
        if kind == "string_content":
            return Word((_in_double_quotes(_text(node)),))
        self._inside(node, state)
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
                    Word((_in_double_quotes(_bytes(source, at - node.start_byte, child.start_byte - node.start_byte)),))
                )
            pieces.append(self.word(child, state, quiet))
            at = child.end_byte
        end = node.end_byte - 1
        if end > at:
            pieces.append(Word((_in_double_quotes(_bytes(source, at - node.start_byte, end - node.start_byte)),)))
        return _concatenated(pieces) if pieces else Word()

    def _expansion(self, node: Node, state: State) -> list[Word]:
        """`$X`, `${X}`, `${X:-d}`, `"$@"`, `${A[@]}`."""
        text = _text(node)
        named = [child for child in node.children if child.is_named]
        self._inside(node, state)
        if not named:
            return [Word((UNKNOWN,))]
        name = _text(named[0])
        if text.startswith("${#"):
            return [Word(("0",))]
        operators = [child.type for child in node.children if not child.is_named and child.type not in ("$", "${", "}")]
        if named[0].type == "subscript":
            array, _, index = name.partition("[")
            if index in ("@]", "*]") and array in state.variables and not operators:
                return state.variables[array]
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
        own = replace(state.copy(), stdout=None)
        before = len(self.reading.acts)
        if len(inner) == 1 and inner[0].type == "file_redirect":  # $(< f)
            output = self._redirect(inner[0], own, NO_INPUT)
        else:
            output = self.statements(inner, own)
        acts = self.reading.acts[before:]
        secret = output.secret or any(act.effect == "read" and act.scope == "secret" for act in acts)
        texts = (output.text.rstrip("\n"),) if output.text is not None else below(output.names) or (UNKNOWN,)
        return Word(texts, output.fetched, secret, substituted=True)

    def _process(self, node: Node, state: State) -> Word:
        output = self.statements([child for child in node.children if child.is_named], state.copy())
        return Word(("/dev/fd/63",), output.fetched, output.secret, output.text if output.text is not None else UNKNOWN)

    def _inside(self, node: Node, state: State) -> None:
        """Reads the substitutions anywhere inside a node, for what they do."""
        for child in node.children:
            if child.type in ("command_substitution", "process_substitution"):
                self.word(child, state)
            elif child.type == "ERROR" or child.is_missing:
                self.reading.unknown("sh", "shell that cannot be parsed", state)
            else:
                self._inside(child, state)


def _descriptor(node: Node, effect: str) -> str:
    """The descriptor that is redirected. The parser counts the 0 of `>& f 0>&1` as a second destination of the first
    redirection, so a number right before this one is looked for there."""
    own = next((_text(child) for child in node.children if child.type == "file_descriptor"), "")
    before = node.prev_sibling
    if not own and before is not None and before.type == "file_redirect" and before.end_byte == node.start_byte:
        last = before.children[-1]
        own = _text(last) if last.type == "number" else ""
    return own or ("0" if effect == "read" else "1")


def _is_socket(act: Act, word: Word) -> bool:
    return act.target.kind == "host" and word.texts[0].startswith(("/dev/tcp/", "/dev/udp/"))


def _host_of(socket: Act | None) -> str:
    """The host that a descriptor leads to; none where that is this machine."""
    return str(socket.target) if socket is not None and socket.scope != "local" else ""


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _written(node: Node) -> str:
    """A command as an act keeps it."""
    return unglobbed(_text(node)[:MOST_SAID]).replace(UNKNOWN, "?")


def _bytes(source: bytes, start: int, end: int) -> str:
    return source[start:end].decode("utf-8", "replace")


def _unquoted_text(text: str) -> str:
    """A bare word: escapes are gone, patterns, braces and a leading ~ are marked as active."""
    if "\\" not in text:
        marked = text.translate(MARKS)
        return TILDE + marked[1:] if marked.startswith("~") else marked
    pieces, i = [], 0
    while i < len(text):
        if text[i] == "\\" and i + 1 < len(text):
            pieces.append("" if text[i + 1] == "\n" else text[i + 1])
            i += 2
        else:
            pieces.append(text[i].translate(MARKS))
            i += 1
    marked = "".join(pieces)
    return TILDE + marked[1:] if text.startswith("~") else marked


def _in_double_quotes(text: str) -> str:
    return re.sub(r'\\([$`"\\\n])', lambda m: "" if m[1] == "\n" else m[1], text)


def _ansi(match: re.Match[str]) -> str:
    if code := match[1] or match[2] or match[3]:
        return chr(min(int(code, 16), 0x10FFFF)) if int(code, 16) else ""
    if match[4]:
        return chr(int(match[4], 8) & 0xFF)
    return ESCAPES.get(match[5], match[5])


def _concatenated(words: Sequence[Word]) -> Word:
    if not words:
        return Word()
    if len(words) == 1:
        return words[0]
    size = 1
    for word in words:
        size *= len(word.texts)
    texts = (
        (UNKNOWN,)
        if size > MOST_ALTERNATIVES
        else tuple("".join(parts) for parts in product(*(w.texts for w in words)))
    )
    return Word(
        _few(texts),
        next((word.fetched for word in words if word.fetched), ""),
        any(word.secret for word in words),
        substituted=any(word.substituted for word in words),
    )


def _joined_words(words: Sequence[Word]) -> Word:
    """Several words as one, with blanks between them."""
    if not words:
        return Word()
    blank = Word((" ",))
    return _concatenated([piece for word in words for piece in (blank, word)][1:])


def _few(texts: Iterable[str]) -> tuple[str, ...]:
    distinct = tuple(dict.fromkeys(texts))
    return distinct if len(distinct) <= MOST_ALTERNATIVES else (UNKNOWN,)


def _split(word: Word) -> list[Word]:
    """An expansion outside quotes falls apart at blanks."""
    if len(word.texts) != 1 or not re.search(r"\s", word.texts[0]):
        return [word] if word.texts != ("",) else []
    return [
        replace(word, texts=(piece.translate(str.maketrans({"*": STAR, "?": ANY, "[": RANGE})),))
        for piece in word.texts[0].split()
    ]


def _braced(word: Word) -> list[Word]:
    """`{a,b}` are two words; other braces are what they are. More words than are told apart are one unknown one."""
    if not any(OPEN in text for text in word.texts):
        if any(mark in text for text in word.texts for mark in (CLOSE, COMMA)):
            return [replace(word, texts=tuple(text.translate(BRACES) for text in word.texts))]
        return [word]
    try:
        texts = _within_cap(expanded for text in word.texts for expanded in _braces(text))
    except UnreadableError:
        return [replace(word, texts=(UNKNOWN,))]
    return [replace(word, texts=(text.translate(BRACES),)) for text in texts]


def _within_cap(texts: Iterable[str]) -> list[str]:
    """UnreadableError before there are more texts than one word may become."""
    few = list(islice(texts, 4 * MOST_ALTERNATIVES + 1))
    if len(few) > 4 * MOST_ALTERNATIVES:
        raise UnreadableError
    return few


def _braces(text: str, depth: int = 0) -> list[str]:
    """What braces make of a text; UnreadableError where that is too much, or nested too deeply."""
    start = text.find(OPEN)
    if start < 0:
        return [text]
    if depth > MOST_BRACES:
        raise UnreadableError
    level, parts, last = 0, [], start + 1
    for i in range(start, len(text)):
        if text[i] == OPEN:
            level += 1
        elif text[i] == CLOSE:
            level -= 1
            if not level:
                parts.append(text[last:i])
                rests = _braces(text[i + 1 :], depth + 1)
                return _within_cap(text[:start] + piece + rest for piece in _inner(parts, depth) for rest in rests)
        elif text[i] == COMMA and level == 1:
            parts.append(text[last:i])
            last = i + 1
    return [text]


def _inner(parts: Sequence[str], depth: int) -> list[str]:
    if len(parts) == 1:
        ends = SEQUENCE.fullmatch(parts[0])
        if ends is None:
            return [f"{{{part}}}" for part in _braces(parts[0], depth + 1)]
        if ends[1].lstrip("-").isdigit() and ends[2].lstrip("-").isdigit():
            low, high = sorted((int(ends[1]), int(ends[2])))
            return [str(n) for n in range(low, high + 1)] if high - low <= MOST_ALTERNATIVES else [UNKNOWN]
        low, high = sorted((ord(ends[1][0]), ord(ends[2][0])))
        return [chr(n) for n in range(low, high + 1)] if high - low <= MOST_ALTERNATIVES else [UNKNOWN]
    return _within_cap(expanded for part in parts for expanded in _braces(part, depth + 1))


def _joined(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    """Folders that may be the current one."""
    both = tuple(dict.fromkeys((*first, *second)))
    return both if len(both) <= MOST_FOLDERS else (UNKNOWN,)


def _appended(first: Output, second: Output) -> Output:
    text = None if first.text is None or second.text is None else first.text + second.text
    names = second.names if first.text == "" else first.names if second.text == "" else ()
    return Output(text, first.fetched or second.fetched, first.secret or second.secret, True, names)


def below(names: Sequence[str]) -> tuple[str, ...]:
    """Any file below some folders, as texts of a word; a pattern at the end of a name stands for files already."""
    ends = (any(mark in name.rpartition("/")[2] for mark in (STAR, ANY, RANGE)) for name in names)
    return tuple(name if pattern else f"{name.rstrip('/')}/{STAR}" for name, pattern in zip(names, ends, strict=True))


def _is_all(text: str) -> bool:
    return text in ("$@", "${@}") or text.endswith("[@]}")


def _names(node: Node) -> Iterator[str]:
    """The variables that a node names."""
    for child in node.children:
        if child.type == "variable_name":
            yield _text(child)
        elif child.type != "do_group":
            yield from _names(child)


def _exits(node: Node) -> bool:
    """`exit 1`, `return`, `{ …; exit; }`."""
    if node.type == "compound_statement":
        inner = [child for child in node.children if child.is_named]
        return bool(inner) and _exits(inner[-1])
    return node.type == "command" and _text(node).split()[:1] in (["exit"], ["return"], ["break"], ["continue"])


def _leaves_on_failure(node: Node) -> bool:
    """`cd d || exit 1`: where the next statement runs, the folder was changed."""
    if node.type != "list":
        return False
    children = [child for child in node.children if child.type != "comment"]
    return len(children) >= 3 and children[-2].type == "||" and _exits(children[-1])
