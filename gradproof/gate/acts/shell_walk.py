"""Walks the tree of a shell command: the programs that run, with their order, state and input."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from gradproof.gate.acts.act import Act
from gradproof.gate.acts.paths import UNKNOWN, is_descriptor, unglobbed
from gradproof.gate.acts.shell_state import MOST_DEPTH, MOST_HELD, NO_INPUT, Output, State, appended, either_folder
from gradproof.gate.acts.shell_text import ASIDE, text_of
from gradproof.gate.acts.shell_words import WordReader
from gradproof.gate.acts.unread import unread
from gradproof.gate.acts.word import MOST_ALTERNATIVES, Word, few

if TYPE_CHECKING:
    from tree_sitter import Node

    from gradproof.gate.acts.shell import Reading


MOST_COMMANDS = 500
WORK_OF_OVERLOOKED = 2.0  # a text of its own is parsed for it
RESERVE = 60.0  # work that is left for the command that is being read, when no further one is
MOST_SAID = 2000  # characters of a command that an act keeps
NAMEREFS = ("declare", "local", "typeset")
INDEXED = re.compile(r"\[[^\]]*(?:\$\(|`)")
SUBSTITUTES = re.compile(rb"[$<>]\(|`")
LEFT_OVER = re.compile(rb"(?<!\\)(?:\\\\)*(?:`|\$\()")  # in a node that should hold plain text
SUBSTITUTIONS = ("command_substitution", "process_substitution")
UNEXPANDED = ("heredoc_redirect", "raw_string", "ansi_c_string", "comment", "function_definition")
STANDARD = ("0", "1", "2")  # descriptors: input, output, errors
BODIES = ("compound_statement", "do_group", "else_clause", "elif_clause", "case_item", "program", "subshell")
Stage: TypeAlias = "Node | tuple[Node, Node]"  # of a pipe; a pair is a redirected statement, and what it redirects
STATEMENTS = frozenset(
    (
        *("list", "pipeline", "subshell", "compound_statement", "negated_command", "if_statement", "elif_clause"),
        *("else_clause", "while_statement", "c_style_for_statement", "for_statement", "case_statement", "command"),
        *("function_definition", "variable_assignment", "variable_assignments", "declaration_command", "unset_command"),
        "redirected_statement",
    )
)


class Walk:
    """Through one tree."""

    def __init__(self, reading: Reading, bodies: Sequence[str], source: bytes = b""):
        self.reading, self.bodies, self.source = reading, bodies, source
        self.expand = WordReader(self)
        self.at = self.behind = 0  # where the command begins that is being read, and where it ends
        self.substituted: set[int] = set()  # substitutions that were read

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
                state.cwds = either_folder(state.cwds, before)
            output = appended(output, one)
        return output

    def statement(self, node: Node, state: State, stdin: Output = NO_INPUT) -> Output:
        if node.type in STATEMENTS:
            return getattr(self, f"_{node.type}")(node, state, stdin)
        if node.type == "ERROR" or node.is_missing:
            self.reading.unknown("sh", "shell that cannot be parsed", state)
            return self.statements(node.children, state.copy(), stdin)
        if node.type in BODIES:
            return self.statements(node.children, state, stdin)
        self._indexed(node, state)
        self.expand.inside(node, state)
        return Output()

    def _list(self, node: Node, state: State, stdin: Output, last: Callable[[Node], Output] | None = None) -> Output:
        """`a && b`: b runs where a has left off. `a || b`: where a failed. `last` reads what stands last."""
        output, operator, before = Output("", piped=True), "", state.cwds
        end = max((child.end_byte for child in node.children if child.is_named and child.type != "comment"), default=0)
        for child in node.children:
            if not child.is_named:
                operator = child.type
                continue
            if child.type == "comment":
                continue
            after, was = state.cwds, state.unsure
            if operator == "||":
                state.cwds, state.unsure = either_folder(before, after), True
            own = last is not None and child.end_byte == end
            output = appended(output, last(child) if own and last else self.statement(child, state, stdin))
            if operator == "||":
                state.cwds, state.unsure = after if _exits(child) else either_folder(after, state.cwds), was
        return output

    def _pipeline(self, node: Node, state: State, stdin: Output) -> Output:
        """`a && b 2>&1 | c` pipes b alone; to the parser all before the pipe is its first stage."""
        first, *others = (child for child in node.children if child.is_named and child.type != "comment")
        if first.type == "list":
            return self._list(first, state, stdin, lambda last: self._piped(node, [last, *others], state, stdin))
        body = first.child_by_field_name("body") if first.type == "redirected_statement" else None
        if body is not None and body.type == "list":
            return self._list(
                body, state, stdin, lambda last: self._piped(node, [(first, last), *others], state, stdin)
            )
        return self._piped(node, [first, *others], state, stdin)

    def _piped(self, node: Node, stages: Sequence[Stage], state: State, stdin: Output) -> Output:
        before, outermost = len(self.reading.acts), not self.reading.piped
        self.reading.piped = True
        output = self._stages(stages, state, stdin)
        if outermost:  # pipes may be inside pipes by the hundred, and the outermost has the last word
            self.reading.piped = False
            self._fed(before, kept_text(node))
        return output

    def _fed(self, first: int, whole: str) -> None:
        """What is fed by a pipe is told by the whole of it."""
        acts = self.reading.acts
        for i in range(first, len(acts)):
            if "pipe" in acts[i].via and acts[i].effect in ("fetch_and_run", "unknown", "send"):
                acts[i] = acts[i].but(text=whole)

    def _stages(self, stages: Sequence[Stage], state: State, stdin: Output) -> Output:
        output = stdin
        for i, stage in enumerate(stages):
            own = state.copy()
            if i:
                own.via = own.via | {"pipe"}
            if i < len(stages) - 1:
                own.stdout = None
            before = len(self.reading.acts)
            if isinstance(stage, tuple):
                redirected, body = stage
                given = self._redirected_body(redirected, body, own, output)
            else:
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
        first, before, was = len(self.reading.acts), state.cwds, state.unsure
        state.unsure = True
        for child in node.children:
            if child.is_named and child.type != "comment":
                self.statement(child, state, stdin)
                state.cwds = either_folder(state.cwds, before)
        state.unsure = was
        return Output.of(self.reading.acts[first:], stdin)

    def _elif_clause(self, node: Node, state: State, stdin: Output) -> Output:
        return self.statements(node.children, state, stdin)

    _else_clause = _elif_clause

    def _while_statement(self, node: Node, state: State, stdin: Output) -> Output:
        first, before, was = len(self.reading.acts), state.cwds, state.unsure
        state.unsure = True
        self.statements(node.children, state, stdin)
        state.cwds, state.unsure = either_folder(state.cwds, before), was
        return Output.of(self.reading.acts[first:], stdin)

    def _c_style_for_statement(self, node: Node, state: State, stdin: Output) -> Output:
        for variable in _names(node):
            state.variables[variable] = [Word(("0",))]
        body = node.child_by_field_name("body")
        for child in node.children:
            if body is None or child.id != body.id:
                self.expand.inside(child, state)
        return self._while_statement(body, state, stdin) if body is not None else Output()

    def _for_statement(self, node: Node, state: State, stdin: Output) -> Output:
        variable = node.child_by_field_name("variable")
        words = [word for value in node.children_by_field_name("value") for word in self.expand.words(value, state)]
        texts = tuple(dict.fromkeys(text for word in words for text in word.texts))
        if not words or len(texts) > MOST_ALTERNATIVES:
            texts = (UNKNOWN,)
        flags = dict(fetched=next((w.fetched for w in words if w.fetched), ""), secret=any(w.secret for w in words))
        if variable is not None:
            state.variables[text_of(variable)] = [Word(texts, **flags)]  # type: ignore[arg-type]
        body = node.child_by_field_name("body")
        return self._while_statement(body, state, stdin) if body is not None else Output()

    def _case_statement(self, node: Node, state: State, stdin: Output) -> Output:
        first, before, was = len(self.reading.acts), state.cwds, state.unsure
        state.unsure = True
        for child in node.children:
            if child.type == "case_item":
                values = {value.id: value for value in child.children_by_field_name("value")}
                for value in values.values():
                    self.expand.inside(value, state)
                self.statements([part for part in child.children if part.id not in values], state, stdin)
                state.cwds = either_folder(state.cwds, before)
            elif child.is_named:
                self.expand.inside(child, state)
        state.unsure = was
        return Output.of(self.reading.acts[first:], stdin)

    def _function_definition(self, node: Node, state: State, stdin: Output) -> Output:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            kept = state.functions.get(text_of(name), []) if state.unsure else []
            state.functions[text_of(name)] = [*kept, (self, body)]
        return Output()

    def call(self, body: Node, state: State, words: Sequence[Word], stdin: Output) -> Output:
        """A function, with its parameters."""
        reading = self.reading
        if reading.depth > MOST_DEPTH or body.id in reading.running:
            reading.unknown("sh", "a function that calls itself", state)
            return Output()
        reading.depth += 1
        reading.running.add(body.id)
        reading.called.add(body.id)
        was, state.parameters = state.parameters, tuple(words)
        output = self.statement(body, state, stdin)
        self.look_back(body, state)
        state.parameters = was
        reading.running.discard(body.id)
        reading.depth -= 1
        return output

    def look_back(self, node: Node, state: State) -> None:
        """Reads the substitutions that nobody came by, wherever the parser has put them."""
        if not SUBSTITUTES.search(node.text or b"") or self.reading.exhausted:
            return
        for overlooked in self._overlooked(node):
            self.reading.pay(WORK_OF_OVERLOOKED)
            self.reading.unknown("sh", "a substitution where none is expected", state)
            if overlooked.type in SUBSTITUTIONS:
                self.expand.word(overlooked, state.copy())
            else:  # the parser takes backquotes in `${x:=…}` for a word
                self.reading.shell(text_of(overlooked).replace("`", " "), state.copy())

    def _overlooked(self, node: Node) -> Iterator[Node]:
        for child in node.children:
            if child.type in UNEXPANDED or (child.type in SUBSTITUTIONS and child.id not in self.substituted):
                if child.type in SUBSTITUTIONS:
                    yield child
            elif child.children:
                yield from self._overlooked(child)
            elif child.is_named and LEFT_OVER.search(child.text or b""):
                yield child

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
        self._indexed(node, state)
        for child in node.children:
            if child.type == "variable_assignment":
                name, values = self.assign(child, state)
                state.context = state.context | {f"{name}={values[0].text if values else ''}"}
            elif child.is_named:
                self.expand.inside(child, state)
                option = text_of(child)
                if option.startswith("-") and "n" in option and text_of(node).startswith(NAMEREFS):
                    self.reading.unknown("declare", "a variable that stands for another", state)
                elif option == "-f" and text_of(node).startswith("export"):
                    self._exported(node, state)
        return Output("")

    def _exported(self, node: Node, state: State) -> None:
        """Functions that other programs may run."""
        for name in text_of(node).split():
            for walk, body in state.functions.get(name, []):
                walk.call(body, state.copy(), [Word((UNKNOWN,))], NO_INPUT)

    def _indexed(self, node: Node, state: State) -> None:
        """An index in which quotes have kept a substitution so far: it runs when the index is evaluated."""
        if INDEXED.search(text_of(node)) and any(INDEXED.search(text) for text in _quoted(node)):
            self.reading.unknown("sh", "an index that runs a command", state)

    def _unset_command(self, node: Node, state: State, stdin: Output) -> Output:
        from gradproof.gate.acts.variables import unset

        for child in node.children:
            if child.is_named:
                state.variables[text_of(child)] = [Word((UNKNOWN,))]
                state.functions.pop(text_of(child), None)
                unset(self.reading, text_of(child), state)
        return Output("")

    def assign(self, node: Node, state: State) -> tuple[str, list[Word]]:
        """A variable's new value; in a branch, beside the old one."""
        from gradproof.gate.acts.variables import assigned

        name_node, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = text_of(name_node) if name_node is not None else ""
        words = self._value(value, state)
        appended = any(child.type == "+=" for child in node.children)
        if name_node is not None and name_node.type == "subscript":
            name, words = name.partition("[")[0], [Word((UNKNOWN,))]
        if appended:
            words = [Word((UNKNOWN,))]
        self._indexed(node, state)
        if state.unsure and name in state.variables:
            old, new = state.variables[name], words
            varies = value is not None and value.type not in ("word", "number", "raw_string", "string")
            same = len(old) == len(new) == 1 and not varies
            words = [Word(few((*old[0].texts, *new[0].texts)))] if same else [Word((UNKNOWN,))]
        state.variables[name] = words
        assigned(self.reading, name, words, state)
        return name, words

    def _value(self, node: Node | None, state: State) -> list[Word]:
        if node is None:
            return [Word()]
        if node.type == "array":
            return [word for child in node.children if child.is_named for word in self.expand.words(child, state)]
        return [self.expand.word(node, state)]

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
                stdin = self.redirect(child, state, stdin)
            elif child.type == "ERROR" or child.is_missing:
                self.reading.unknown("sh", "shell that cannot be parsed", state)
            elif child.type == "command_name":
                words += self.expand.words(child.children[0], state) if child.children else [Word((text_of(child),))]
            elif child.is_named and child.type != "comment":
                words += self.expand.words(child, state)
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
                acts[i] = acts[i].but(text=kept_text(node))

    def _redirected_statement(self, node: Node, state: State, stdin: Output) -> Output:
        """`a && b > f` redirects b alone, though the parser counts a to it."""
        body = node.child_by_field_name("body")
        if body is not None and body.type == "list":
            return self._list(body, state, stdin, lambda last: self._redirected_body(node, last, state, stdin))
        return self._redirected_body(node, body, state, stdin)

    def _redirected_body(self, node: Node, body: Node | None, state: State, stdin: Output) -> Output:
        acts, before = self.reading.acts, len(self.reading.acts)
        output = self._redirected(node, body, state, stdin)
        self._said(before, node)
        if body is not None and body.type == "command":  # its redirections belong to a command
            own, whole = kept_text(body), kept_text(node)
            acts[before:] = [act.but(text=whole) if act.text == own else act for act in acts[before:]]
        return output

    def _redirected(self, node: Node, body: Node | None, state: State, stdin: Output) -> Output:
        """Where a statement is fed from and writes to ends with it, unless `exec` alone redirects the shell itself."""
        standard = {name: socket for name, socket in state.sockets.items() if name in STANDARD}
        output = self._with_redirects(node, body, state, stdin)
        if body is None or text_of(body).strip() != "exec":
            opened = {name: socket for name, socket in state.sockets.items() if name not in STANDARD}
            state.sockets = opened | standard
        else:
            state.stdout = state.sockets.get("1")
            self.reading.connected = self.reading.connected or bool(state.sockets)
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
            stdin = self.redirect(target, state, stdin)
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
                quoted = any(mark in text_of(child) for mark in "'\"\\")
            elif child.type == "heredoc_body":
                text = text_of(child)
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
                more += self.expand.words(child, state)
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
        walk = Walk(self.reading, ())
        word = walk.expand.word(command.children[-1], state)
        walk.look_back(root, state)
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

    def redirect(self, node: Node, state: State, stdin: Output) -> Output:
        """`> f` writes, `< f` feeds, `<<<` feeds a text, `<(…)` is fed from a command."""
        from gradproof.gate.acts.command import Command
        from gradproof.gate.acts.held_files import held
        from gradproof.gate.acts.targets import touch

        operator = next((child.type for child in node.children if not child.is_named), ">")
        if node.type == "herestring_redirect":
            word = self.expand.word(node.children[-1], state)
            return Output(word.text if word.known else word.texts[0], word.fetched, word.secret, True)
        effect = "read" if operator in ("<", "<&") else "write"
        descriptor = _descriptor(node, effect)
        destinations = node.children_by_field_name("destination") or [c for c in node.children if c.is_named][-1:]
        for destination in destinations:
            for word in self.expand.words(destination, state):
                if operator in (">&", "<&", "&>&") and re.fullmatch(r"\d+|-", word.text):
                    stdin = self._duplicated(word.text, descriptor, state, stdin)
                    continue
                if word.inner is not None or is_descriptor(word.texts[0]):
                    stdin = Output(word.inner, word.fetched, word.secret, True)
                    continue
                if operator in (">&", "<&") and not word.known:
                    self.reading.connected = True
                acts = touch(self.reading, effect, "sh", word, state)
                # Nothing closes a socket here: the command that would may never run.
                state.sockets.update((descriptor, act) for act in acts if _is_socket(act, word))
                if effect == "read":
                    nothing = "" if word.text == "/dev/null" else None
                    host = _host_of(state.sockets.get(descriptor))
                    if (known := held(Command(self.reading, "sh", [], state), [word])) is not None:
                        nothing, host = known.text, known.fetched
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
        from gradproof.gate.acts.targets import resolved

        for node in targets:
            if node.type != "file_redirect" or any(child.type == "<" for child in node.children):
                continue
            appends = _appends(node)  # once: a redirection may have hundreds of destinations
            for destination in node.children_by_field_name("destination"):
                for path in resolved(self.reading, self.expand.word(destination, state, quiet=True), state):
                    if output.fetched:
                        state.fetched[path] = output.fetched
                    elif output.text is not None:
                        kept = state.written.get(path, "") if appends else ""
                        state.written[path] = (kept + output.text)[:MOST_HELD]

    # words


def _descriptor(node: Node, effect: str) -> str:
    """The descriptor that is redirected. The parser counts the 0 of `>& f 0>&1` as a second destination of the first
    redirection, so a number right before this one is looked for there."""
    own = next((text_of(child) for child in node.children if child.type == "file_descriptor"), "")
    before = node.prev_sibling
    if not own and before is not None and before.type == "file_redirect" and before.end_byte == node.start_byte:
        last = before.children[-1]
        own = text_of(last) if last.type == "number" else ""
    return own or ("0" if effect == "read" else "1")


def _appends(node: Node) -> bool:
    return any(child.type in (">>", "&>>") for child in node.children)


def _is_socket(act: Act, word: Word) -> bool:
    return act.target.kind == "host" and word.texts[0].startswith(("/dev/tcp/", "/dev/udp/"))


def _host_of(socket: Act | None) -> str:
    """The host that a descriptor leads to; none where that is this machine."""
    return str(socket.target) if socket is not None and socket.scope != "local" else ""


def kept_text(node: Node) -> str:
    """A command as an act keeps it."""
    return unglobbed(text_of(node)[:MOST_SAID]).replace(UNKNOWN, "?")


def _quoted(node: Node) -> Iterator[str]:
    """The texts inside single quotes."""
    if node.type in ("raw_string", "ansi_c_string"):
        yield text_of(node)
    for child in node.children:
        yield from _quoted(child)


def _names(node: Node) -> Iterator[str]:
    """The variables that a node names."""
    for child in node.children:
        if child.type == "variable_name":
            yield text_of(child)
        elif child.type != "do_group":
            yield from _names(child)


def _exits(node: Node) -> bool:
    """`exit 1`, `return`, `{ …; exit; }`."""
    if node.type == "compound_statement":
        inner = [child for child in node.children if child.is_named]
        return bool(inner) and _exits(inner[-1])
    return node.type == "command" and text_of(node).split()[:1] in (["exit"], ["return"], ["break"], ["continue"])


def _leaves_on_failure(node: Node) -> bool:
    """`cd d || exit 1`: where the next statement runs, the folder was changed."""
    if node.type != "list":
        return False
    children = [child for child in node.children if child.type != "comment"]
    return len(children) >= 3 and children[-2].type == "||" and _exits(children[-1])
