"""Table: a CSV or Parquet file read in chunks, so that it need not fit into memory.

A CSV is cut into blocks of whole lines. Where every quote stands at the edge of its field and every line has as many
fields as the header, polars parses the block; any other block is read field by field, which either succeeds or names
the line that is wrong. Every CSV column is text: what a column holds is decided over all of its rows, not the first.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO, StringIO
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    import polars as pl

DELIMITERS = ",;\t|"
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?", "-")
BLANK = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
CSV, PARQUET = (".csv", ".tsv", ".txt"), (".parquet", ".pq")

_BLOCK = 8 << 20
_LONGEST = 64 << 20  # of a record; a quote that is never closed would otherwise fill the memory
_SAMPLE = 64 << 10  # by which the delimiter is chosen
_RECORDS = 8192  # of a frame that is read field by field
_BOM = b"\xef\xbb\xbf"
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'


class Table:
    """A file of columns. Opening it reads the header only; `chunks` reads the rows, in the file's order."""

    def __init__(self, path: str | Path):
        _require_polars()
        self.path = Path(path)
        name = self.path.name.lower()
        self._packed, self._parquet = name.endswith(".gz"), name.endswith(PARQUET)
        if self.path.is_dir():
            raise ValueError(f"{self.path} is a folder; name one CSV or Parquet file in it")
        if not self.path.exists():
            raise ValueError(f"there is no file {self.path}")
        if not self._parquet and not name.removesuffix(".gz").endswith(CSV):
            endings = ", ".join(CSV + PARQUET)
            raise ValueError(f"{self.path} is not a table; its name must end in {endings} or .csv.gz")
        if not self.path.stat().st_size:
            raise ValueError(f"{self.path} is empty; it needs a header and rows")
        self.dtypes: dict[str, pl.DataType] = self._read_parquet_header() if self._parquet else self._read_csv_header()
        self.columns = list(self.dtypes)
        if patterns := [name for name in self.columns if name == "*" or (name[:1] == "^" and name[-1:] == "$")]:
            raise ValueError(
                f"{self.path} has a column named {patterns[0]!r}, which would be read as a pattern; rename it"
            )

    def chunks(
        self, columns: Sequence[str] | None = None, rows: int = 65_536, raw: bool = False
    ) -> Iterator[pl.DataFrame]:
        """Frames of `rows` rows, the last one shorter: `columns` in the given order, missing values as nulls; `raw`:
        as they are, for `clean`."""
        names = self.columns if columns is None else list(columns)
        if unknown := [name for name in names if name not in self.dtypes]:
            raise ValueError(f"{self.path} has no column {unknown[0]!r}; its columns are {', '.join(self.columns)}")
        frames = self._parquet_frames(names, rows) if self._parquet else self._csv_frames(names)
        for frame in _regrouped(frames, rows):
            yield frame if raw else clean(frame)

    def _read_parquet_header(self) -> dict[str, pl.DataType]:
        import polars as pl

        try:
            dtypes = dict(pl.read_parquet_schema(self.path))
            rows = pl.scan_parquet(self.path, glob=False).select(pl.len()).collect().item()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _damaged(self.path, error) from None
        if not rows:
            raise ValueError(f"{self.path} has a header but no rows")
        return dtypes

    def _parquet_frames(self, names: list[str], rows: int) -> Iterator[pl.DataFrame]:
        import polars as pl

        try:
            yield from pl.scan_parquet(self.path, glob=False).select(names).collect_batches(chunk_size=rows, lazy=True)
        except pl.exceptions.PolarsError as error:
            raise _damaged(self.path, error) from None

    def _read_csv_header(self) -> dict[str, pl.DataType]:
        import polars as pl

        try:
            with self._open() as file:
                self._delimiter = _delimiter(file.read(_SAMPLE).decode(errors="replace"))
            with self._open() as file:
                header, _ = self._skip_header(file)
                filled = any(line.strip(b"\r\n") for line in file)
        except _PACKING_ERRORS as error:
            raise _damaged(self.path, error) from None
        names = [name.strip() or f"column_{i}" for i, name in enumerate(header, 1)]
        if twice := [name for i, name in enumerate(names) if name in names[:i]]:
            raise ValueError(f"{self.path} has two columns named {twice[0]!r}; rename one of them")
        if not filled:
            raise ValueError(f"{self.path} has a header but no rows")
        return dict.fromkeys(names, pl.String())

    def _open(self) -> IO[bytes]:
        """The file's bytes, unpacked, after the byte order mark."""
        file = cast(IO[bytes], gzip.open(self.path) if self._packed else open(self.path, "rb"))  # noqa: SIM115
        if file.read(len(_BOM)) != _BOM:
            file.seek(0)
        return file

    def _skip_header(self, file: IO[bytes]) -> tuple[list[str], int]:
        """The header's fields and its last line's number; the file then stands at the line after it."""
        for record, line in self._records(iter(lambda: file.readline(_LONGEST), b""), 0):
            return record, line
        raise ValueError(f"{self.path} has only blank lines; it needs a header and rows")

    def _csv_frames(self, names: list[str]) -> Iterator[pl.DataFrame]:
        try:
            with self._open() as file:
                _, line = self._skip_header(file)
                rest = b""
                while data := rest + file.read(_BLOCK):
                    last = len(data) == len(rest)
                    data += b"\n" * (last and not data.endswith(b"\n"))
                    layout = _Layout(data, self._delimiter, len(self.columns))
                    stuck = layout.end < len(data) if last else not layout.end and len(data) > _LONGEST
                    if stuck or not layout.quotes:
                        # Quotes that are out of place do not tell where a record ends: no blocks from here on.
                        remaining = chain(BytesIO(data + file.readline()), file)
                        yield from self._by_field(remaining, line, names)
                        return
                    rest, data = data[layout.end :], data[: layout.end]
                    yield from self._block(data, line, names, layout.fields)
                    line += data.count(b"\n")
        except _PACKING_ERRORS as error:
            raise _damaged(self.path, error) from None

    def _block(self, data: bytes, line: int, names: list[str], regular: bool) -> Iterator[pl.DataFrame]:
        """The rows of a block of whole records that starts after line `line`."""
        import polars as pl

        if regular:
            try:
                frame = pl.read_csv(
                    data,
                    has_header=False,
                    schema=dict.fromkeys(self.columns, pl.String),
                    columns=sorted(map(self.columns.index, names)),
                    separator=self._delimiter,
                )
            except pl.exceptions.PolarsError:
                pass  # bytes that are not UTF-8: field by field, the line is found
            else:
                yield frame.select(names)
                return
        yield from self._by_field(BytesIO(data), line, names)

    def _by_field(self, lines: Iterable[bytes], line: int, names: list[str]) -> Iterator[pl.DataFrame]:
        """The rows of any lines, a record at a time."""
        import polars as pl

        def frame(records: list[list[str]]) -> pl.DataFrame:
            columns = dict(zip(self.columns, zip(*records, strict=True), strict=True))
            return pl.DataFrame({name: pl.Series(name, columns[name], pl.String) for name in names})

        records: list[list[str]] = []
        for record, at in self._records(lines, line):
            if len(record) != len(self.columns):
                raise ValueError(
                    f"line {at} of {self.path} has {len(record)} fields where the header has {len(self.columns)}; "
                    "correct or remove that line"
                )
            records.append(record)
            if len(records) == _RECORDS:
                yield frame(records)
                records = []
        if records:
            yield frame(records)

    def _records(self, lines: Iterable[bytes], line: int) -> Iterator[tuple[list[str], int]]:
        """Each record that is not blank, and the number of its last line; `line` is that of the line before."""
        reader = csv.reader((raw.decode() for raw in lines), delimiter=self._delimiter, strict=True)
        try:
            for record in reader:
                if record:
                    yield record, line + reader.line_num
        except UnicodeDecodeError:
            at = line + reader.line_num + 1
            raise ValueError(f"line {at} of {self.path} is not UTF-8; save the file as UTF-8") from None
        except csv.Error as error:
            raise ValueError(f"line {line + reader.line_num} of {self.path} is not CSV: {error}; correct it") from None


class _Layout:
    """What the bytes of a block tell, if the block starts with a record.

    `end`: behind the last whole record; `quotes`: up to there every quote opens, closes or is doubled, as it should;
    `fields`: every record has as many fields as the header, and no line is blank."""

    def __init__(self, data: bytes, delimiter: str, columns: int):
        byte_B = np.frombuffer(data, np.uint8)
        outside_B = _outside(byte_B) if b'"' in data else None
        ends = _where(byte_B == _NEWLINE, outside_B)
        self.end = int(ends[-1]) + 1 if len(ends) else 0
        self.quotes = outside_B is None or _placed(byte_B[: self.end], outside_B[: self.end], ord(delimiter))
        self.fields = False
        between = _where(byte_B[: self.end] == ord(delimiter), None if outside_B is None else outside_B[: self.end])
        # With one column nothing tells a blank line from an empty field.
        if columns > 1 and len(between) == len(ends) * (columns - 1):
            first, last = between[:: columns - 1], between[columns - 2 :: columns - 1]
            self.fields = bool((last < ends).all() and (first[1:] > ends[:-1]).all())


def _outside(byte_B: np.ndarray) -> np.ndarray:
    """Which bytes have an even number of quotes up to and with them."""
    quote = np.flatnonzero(byte_B == _QUOTE)
    lengths = np.diff(quote, prepend=0, append=len(byte_B))
    return np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)


def _where(mask_B: np.ndarray, outside_B: np.ndarray | None) -> np.ndarray:
    return np.flatnonzero(mask_B if outside_B is None else mask_B & outside_B)


def _placed(byte_B: np.ndarray, outside_B: np.ndarray, delimiter: int) -> bool:
    """Whether each opening quote follows a delimiter or a line's end, and each closing one is followed by one; a
    doubled quote closes and opens again."""
    quote = np.flatnonzero(byte_B == _QUOTE)
    closing = outside_B[quote]
    before = np.where(quote[~closing] == 0, _NEWLINE, byte_B[quote[~closing] - 1])
    after = byte_B[quote[closing] + 1]  # a record ends in a newline, so there is one byte more
    return bool(
        np.isin(before, [delimiter, _NEWLINE, _QUOTE]).all()
        and np.isin(after, [delimiter, _NEWLINE, _RETURN, _QUOTE]).all()
    )


def clean(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with text stripped, and null where it is blank or says that the value is missing."""
    import polars as pl

    text = pl.col(pl.String)
    frame = frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    return frame.with_columns(text.str.strip_chars()).with_columns(pl.when(~text.is_in(MISSING)).then(text))


def plain(text: str) -> str | None:
    """What `clean` makes of one text."""
    text = text.strip(BLANK)
    return None if text in MISSING else text


def _regrouped(frames: Iterable[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    """The same rows, `rows` at a time, whatever the file's own blocks are: figures then do not depend on the format."""
    import polars as pl

    held: list[pl.DataFrame] = []
    for frame in frames:
        held.append(frame)
        if sum(block.height for block in held) < rows:
            continue
        whole, start = pl.concat(held), 0
        for start in range(0, whole.height - rows + 1, rows):
            yield whole[start : start + rows]
        held = [whole[start + rows :]]
    if any(frame.height for frame in held):
        yield pl.concat(held)


def _delimiter(sample: str) -> str:
    """The delimiter by which most records of the sample have as many fields as the header, and more than one."""

    def score(delimiter: str) -> tuple[int, int]:
        try:
            records = [record for record in csv.reader(StringIO(sample, newline=""), delimiter=delimiter) if record]
        except csv.Error:
            return 0, 0
        fields = len(records[0]) if records else 0
        return sum(len(record) == fields for record in records) if fields > 1 else 0, fields

    return max(DELIMITERS, key=score)


_PACKING_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)


def _damaged(path: Path, error: Exception) -> ValueError:
    reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
    return ValueError(f"{path} is damaged, or its format does not match its name ({reason})")


def _require_polars() -> None:
    try:
        import polars  # noqa: F401
    except ImportError:
        raise ValueError("CSV and Parquet files need polars: pip install 'gradproof[data]'") from None


def changed(path: Path) -> ValueError:
    """What to raise where a second pass over a file finds other rows than the first."""
    return ValueError(f"{path} changed while it was being read; try again when it no longer changes")
