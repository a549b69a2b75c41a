"""Usage errors: an unknown option, a missing argument or a bad value is one sentence on standard error, exit code 2."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer
from typer.core import TyperGroup

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
            # Without a command the help is shown instead, and has been printed by now.
            if type(error).__name__ != "NoArgsIsHelpError":
                print(f"gradproof: {usage_sentence(error)}", file=sys.stderr)
            sys.exit(COULD_NOT_START)
        sys.exit(code if isinstance(code, int) else 0)


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
    return re.sub(r"\. (Did you mean .*\?)$", r" (\1)", said).replace("(Did", "(did").replace(". Choose", "; choose")
