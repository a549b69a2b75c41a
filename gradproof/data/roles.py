"""The role of each column of a table."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from gradproof.data.cells import unreadable
from gradproof.data.table import Table


def check_columns(columns: Sequence[str], target: str, named: Sequence[str] = ()) -> None:
    """A ValueError unless `columns` has the target and all that is `named`."""
    for name in (target, *named):
        if name in columns:
            continue
        lowered = {column.lower(): column for column in columns}
        if close := get_close_matches(name.lower(), lowered, cutoff=0.5):
            hint = f"did you mean {' or '.join(repr(lowered[match]) for match in close)}?"
        else:
            hint = f"its columns are {', '.join(columns[:12])}{', …' if len(columns) > 12 else ''}"
        raise ValueError(f"the table has no column {name!r}; {hint}")


class Roles:
    """What each column of the table is there for, checked."""

    def __init__(
        self, table: Table, target: str, metrics: Sequence[str], categorical: Sequence[str], ignore: Sequence[str]
    ):
        self.table, self.target, self.metrics = table, target, list(dict.fromkeys(metrics))
        self.categorical, self.ignore = set(categorical), set(ignore)
        check_columns(table.columns, target, [*metrics, *categorical, *ignore])
        roles: dict[str, str] = {target: "the target"}
        others = {"a metric": self.metrics, "categorical": self.categorical, "ignored": self.ignore}
        for role, name in ((role, name) for role, names in others.items() for name in sorted(names)):
            if name in roles:
                raise ValueError(f"column {name!r} cannot be both {roles[name]} and {role}")
            roles[name] = role
        for name in (target, *self.metrics):
            if unreadable(dtype := table.dtypes[name]):
                raise ValueError(f"column {name!r} of {table.path} must have plain values; it has type {dtype}")
        self.candidates = [name for name in table.columns if roles.get(name, "categorical") == "categorical"]
        self.features = [name for name in self.candidates if not unreadable(table.dtypes[name])]
        if not self.features:
            raise ValueError(
                f"no column of {table.path} is left to learn from; it needs at least one besides the target"
            )
