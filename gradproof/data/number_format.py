"""NumberFormat: the number format of a column, inferred from the whole column and saved with the run.

    $1,200.50   1 200,50 €   1.200,50   12.5%   (1,200)

A thousands separator stands before every third digit or nowhere. A number with a leading zero is a code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

SPACE = "[ \u00a0\u2009\u202f]"  # also no-break, thin, and narrow no-break
GROUPS = {",": ",", ".": r"\.", " ": SPACE, "'": "['\u2019]"}
MINUS = "\\-\u2212"  # inside a class: a hyphen, or the sign itself
PERCENT, ANY_CURRENCY = "%", "any"
CODES = "USD EUR GBP JPY CHF CAD AUD NZD CNY INR SEK NOK DKK PLN CZK HUF BRL MXN ZAR KRW TRY"
CURRENCY = rf"(?:US\$|C\$|A\$|R\$|[$€£¥₹₽₩₺₴₪₫₦₱฿₡₲₵₸₼₾]|{'|'.join(CODES.split())}|kr|zł|Kč|Ft)"
_CURRENCY = re.compile(CURRENCY)


@dataclass(frozen=True)
class NumberFormat:
    """The decimal mark, the thousands separator, and `%` or the currency, which may be left out in some rows."""

    decimal: str = "."
    group: str = ","
    unit: str = ""

    @property
    def example(self) -> str:
        """1234.5, or 12.5%, as it is written in this format."""
        number = f"1{self.group}234{self.decimal}5"
        if self.unit == PERCENT:
            return f"12{self.decimal}5%"
        return f"{self.unit} {number}" if self.unit.isalpha() else f"{self.unit}{number}"

    @property
    def pattern(self) -> str:
        """Matches every text that this format reads, in Python's and in polars' regular expressions."""
        return _pattern(self)

    def expression(self, text: pl.Expr) -> pl.Expr:
        """The numbers in a column of text, null where the text does not fit."""
        import polars as pl

        digits = text.str.replace_all(f"[^0-9{self.decimal}]", "")
        if self.decimal == ",":
            digits = digits.str.replace(",", ".", literal=True)
        value = digits.cast(pl.Float64, strict=False)
        signed = pl.when(text.str.contains(_NEGATIVE)).then(-value).otherwise(value)
        return pl.when(text.str.contains(self.pattern)).then(signed)

    def value(self, text: str) -> float | None:
        """The same of one text."""
        if re.search(self.pattern, text) is None:
            return None
        value = float(re.sub(f"[^0-9{self.decimal}]", "", text).replace(",", "."))
        return -value if re.search(_NEGATIVE, text) else value


_NEGATIVE = rf"^[^0-9]*[{MINUS}(]"

# In the order of preference where several fit every value: "1,200" alone has a thousands separator.
MARKS = ((".", ","), (",", "."), (",", " "), (".", " "), (".", "'"), (",", "'"))


@lru_cache
def _pattern(form: NumberFormat) -> str:
    group = GROUPS[form.group]
    whole = f"(?:[1-9][0-9]{{0,2}}(?:{group}[0-9]{{3}})+|0|[1-9][0-9]*)"
    # Prices have two decimals as a rule: three digits behind a mark are thousands.
    decimals = "[0-9]+" if form.unit in ("", PERCENT) else "(?:[0-9]{1,2}|[0-9]{4,})"
    mark = re.escape(form.decimal)
    number = f"(?:{whole}(?:{mark}{decimals})?|{mark}{decimals})"
    # "+33 612 345 678" is a telephone number.
    sign = f"[{MINUS}]?" if form.group == " " else f"[+{MINUS}]?"
    if form.unit == PERCENT:
        body = f"{number}{SPACE}?%"
    elif form.unit in ("", ANY_CURRENCY):
        body = number
    else:
        unit = re.escape(form.unit)
        body = f"(?:{unit}{SPACE}?{sign}{number}|{number}{SPACE}?{unit}|{number})"
    return rf"^(?:{sign}{body}|\({body}\))$"


@lru_cache(maxsize=4096)
def formats_of(text: str) -> frozenset[NumberFormat]:
    """The formats that read a text; one without a unit is also read where a currency is left out."""
    written = _CURRENCY.search(text)
    units = [written.group()] if written else [PERCENT] if "%" in text else ["", ANY_CURRENCY]
    formats = (NumberFormat(decimal, group, unit) for unit in units for decimal, group in MARKS)
    return frozenset(form for form in formats if re.search(form.pattern, text))
