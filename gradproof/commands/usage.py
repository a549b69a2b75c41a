"""Usage errors in one sentence on standard error, exit code 2; help with one form for defaults."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gradproof.commands.terminal import COULD_NOT_START

# Typer brings its own copy of click since 0.26; this is UsageError in either.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


class Commands(TyperGroup):
    """The commands, without the box that Typer draws around usage errors."""

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **options)
        try:
            code = super().main(*args, standalone_mode=False, **options)
        except UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # no command: the help is the message
                print(error.format_message())  # type: ignore[attr-defined]
            else:
                print(f"gradproof: {usage_sentence(error)}", file=sys.stderr)
            sys.exit(COULD_NOT_START)
        sys.exit(code if isinstance(code, int) else 0)


class DocumentedCommand(TyperCommand):
    """A command whose help says `Default: …`, whether Typer knows the default or our text gives it."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        words = [
            re.sub(r"^\{([^|]*)\}$", r"\1", word).replace("...]...", "...]") for word in self.collect_usage_pieces(ctx)
        ]
        formatter.write_usage(ctx.command_path, " ".join(words))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                rows[param.param_type_name].append((_form(record[0], param.param_type_name), _with_default(record[1])))
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            if rows[kind]:
                with formatter.section(title):
                    formatter.write_dl(rows[kind])


def _form(declared: str, kind: str) -> str:
    """`--rows <int>` as `--rows N`, and an argument without its type."""
    if kind == "argument":
        return re.sub(r" <[^ ]*>$", "", declared)
    for typed, written in (("<int", "N"), ("<float", "NUMBER"), ("<str", "TEXT")):
        declared = re.sub(f"{typed}( range)?>", written, declared)
    return re.sub(r"<([^ ]*)>$", r"\1", declared)


def _with_default(text: str) -> str:
    """`Port.  [default: 80; x>=0]` as `Port. At least 0. Default: 80.`"""
    said, _, extras = text.removesuffix("]").rpartition("  [")
    if not said:
        return text
    own, default = re.fullmatch(r"(.*?)( Default: .*)?", said, re.S).groups("")  # type: ignore[union-attr]
    rest = []
    for extra in extras.split("; "):
        if extra.startswith("default: "):
            default = f" Default: {extra.removeprefix('default: ').removesuffix('.0')}."
        elif bounds := re.fullmatch(r"(?:([\d.]+)<=)?x(?:>=([\d.]+)|<=([\d.]+))?", extra):
            low, least, high = ((bound or "").removesuffix(".0") for bound in bounds.groups())
            own += f" {low} to {high}." if high else "" if least == "0" else f" At least {least}."
        else:
            rest.append(extra)
    return own + default + (f"  [{'; '.join(rest)}]" if rest else "")


def usage_sentence(error: Any) -> str:
    """What is wrong, and the help to look at."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "gradproof"
    said = _message(error)
    return f"{said[:1].lower()}{said[1:]}; see `{path} --help`"


def _message(error: Any) -> str:
    """Typer's own message as part of a sentence, with the value that it leaves out."""
    possible = sorted(getattr(error, "possibilities", None) or ())
    if possible:
        return f"no such option: {error.option_name} (did you mean {' or '.join(possible)}?)"
    if hasattr(error.__cause__, "errors"):  # pydantic's, which Typer validates by since 0.26
        (first, *_) = error.__cause__.errors()
        expected = str(first["msg"]).split(", unable to")[0].removeprefix("Value error, ")
        expected = expected.replace("Input should be", "must be").removeprefix(f"{first['input']!r} is ")
        expected = expected.replace("not one of", "must be one of")
        return f"invalid value {first['input']!r} for {error.param.get_error_hint()}: {expected.rstrip('.')}"
    said = " ".join(error.format_message().split()).rstrip(".")
    said = re.sub(r"^Got unexpected extra argument\S* \((.*)\)$", r"unexpected argument \1", said)
    return re.sub(r"\. (Did you mean .*\?)$", r" (\1)", said).replace("(Did", "(did").replace(". Choose", "; choose")
