"""Records which sublayer of a model is running, for modes that watch the ops inside it.

A sublayer is a function with an argument `prefix`, what the names of its parameters begin with. Marked as one, it says
so while it runs; nested calls and threads each see their own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_PREFIX: ContextVar[str] = ContextVar("prefix", default="")


def running() -> str:
    """The prefix of the innermost running sublayer; empty outside sublayers."""
    return _PREFIX.get()


def sublayer(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorates the forward or backward of a sublayer."""
    place = list(signature(function).parameters).index("prefix")

    @wraps(function)
    def announced(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        token = _PREFIX.set(str(kwargs["prefix"] if "prefix" in kwargs else args[place]))
        try:
            return function(*args, **kwargs)
        finally:
            _PREFIX.reset(token)

    return announced
