"""DateFormat: the date format of a column that is not ISO 8601, inferred from the whole column.

    05/01/2023   31.12.2024 18:30   12/31/2024 6:30 PM   2024/12/31

The year has four digits: with two, nothing tells it from the day. A time may follow; it is UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

_FIELDS = {"y": "(?P<y>[0-9]{4})", "m": "(?P<m>[0-9]{1,2})", "d": "(?P<d>[0-9]{1,2})"}
_SECONDS = r"(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]+))?)?"
_TIME = rf"(?:(?:T| +)(?P<hour>[0-9]{{1,2}}):(?P<minute>[0-9]{{2}}){_SECONDS}(?: ?(?P<half>[AaPp])[Mm])?)?"
_WORDS = {"y": "year", "m": "month", "d": "day"}


@dataclass(frozen=True)
class DateFormat:
    """`order` is dmy, mdy or ymd."""

    order: str
    separator: str

    @property
    def example(self) -> str:
        """day/month/year, and so on."""
        return self.separator.join(_WORDS[field] for field in self.order)

    @property
    def pattern(self) -> str:
        """Matches every text of this form, also one with a 30th of February."""
        return f"^{re.escape(self.separator).join(_FIELDS[field] for field in self.order)}{_TIME}$"

    def expression(self, text: pl.Expr) -> pl.Expr:
        """The moments in a column of text, null where the text does not fit."""
        import polars as pl

        field = text.str.extract_groups(self.pattern).struct.field
        day = pl.concat_str(field("y"), field("m"), field("d"), separator="-")
        day = day.str.to_datetime("%Y-%m-%d", strict=False, time_unit="us").dt.timestamp("us")
        hour, minute, second = (field(unit).cast(pl.Int64).fill_null(0) for unit in ("hour", "minute", "second"))
        half = field("half").str.to_lowercase()
        past = field("fraction").fill_null("").str.pad_end(6, "0").str.slice(0, 6).cast(pl.Int64)
        known = (
            (field("y") != "0000")
            & (hour < 24)
            & (minute < 60)
            & (second < 60)
            & (half.is_null() | hour.is_between(1, 12))
        )
        hour = pl.when(half.is_null()).then(hour).otherwise(hour % 12 + 12 * (half == "p"))
        moment = day + ((hour * 60 + minute) * 60 + second) * 1_000_000 + past
        return pl.when(known).then(moment).cast(pl.Datetime("us"))

    def value(self, text: str) -> datetime | None:
        """The same of one text."""
        found = re.fullmatch(self.pattern[1:-1], text)
        if found is None:
            return None
        hour, minute, second = (int(found[unit] or 0) for unit in ("hour", "minute", "second"))
        if found["half"]:
            if not 1 <= hour <= 12:
                return None
            hour = hour % 12 + 12 * (found["half"] in "Pp")
        past = int((found["fraction"] or "")[:6].ljust(6, "0"))
        try:
            year, month, day = (int(found[field]) for field in "ymd")
            return datetime(year, month, day, hour, minute, second, past, UTC)
        except ValueError:  # the 30th of February
            return None


# Where every day and month is at most 12, the order that comes first is assumed: month/day is what spreadsheets in the
# United States write, with dots and dashes the day comes first nearly everywhere.
_ORDERS = {"/": ("mdy", "dmy", "ymd"), ".": ("dmy", "mdy", "ymd"), "-": ("dmy", "mdy")}
FORMATS = tuple(DateFormat(order, separator) for separator, orders in _ORDERS.items() for order in orders)


@lru_cache(maxsize=4096)
def date_formats_of(text: str) -> tuple[DateFormat, ...]:
    """The formats whose form a text has."""
    return tuple(form for form in FORMATS if re.search(form.pattern, text))
