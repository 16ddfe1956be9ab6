"""Comma-separated text, read in blocks of whole records that know the line on which they began.

A file is never read as a whole, so its size does not matter, and a record is never cut, even where a quoted field
runs over several lines. Everything that polars would guess, drop or fill in silently is an error here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from coterie.data.tables.cells import Block
from coterie.data.tables.columns import column_names
from coterie.data.tables.problems import BadFile

BLOCK = 1 << 22
"""Bytes read at a time."""

LONGEST = 1 << 26
"""Bytes after which a record without an end is taken for a quotation mark that was never closed."""

Record = tuple[int, list[str]]
"""The line on which a record begins, and its fields."""


def csv_columns(path: Path) -> list[str]:
    """Return the names in the header."""
    return next((_header(path, raw)[0] for _, raw in _pieces(path)), [])


def csv_blocks(path: Path, columns: Sequence[str]) -> Iterator[Block]:
    """Yield these columns of the file, as text."""
    names: list[str] = []
    for line, raw in _pieces(path):
        if not names:
            names, end = _header(path, raw)
            line, raw = line + raw.count(b"\n", 0, end), raw[end:]
        if raw and not raw.isspace():
            yield _parse(path, line, raw, names, columns)


def _pieces(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the file in pieces that end with a record, each with the number of its first line."""
    line, rest = 1, b""
    with path.open("rb") as file:
        while chunk := file.read(BLOCK):
            rest += chunk
            cut = _end_of_last_record(rest)
            if cut:
                yield line, rest[:cut]
                line, rest = line + rest.count(b"\n", 0, cut), rest[cut:]
            elif len(rest) > LONGEST:
                break
    if rest.count(b'"') % 2:
        raise BadFile(path, line, "a quotation mark is opened and never closed", "close or remove it")
    if len(rest) > LONGEST:
        raise BadFile(path, line, f"a line is longer than {LONGEST} bytes", "is this a .csv file? save it again")
    if rest:
        yield line, rest


def _end_of_last_record(raw: bytes) -> int:
    """Return where the last whole record ends: at the last line end outside of quotation marks."""
    cut = raw.rfind(b"\n") + 1
    inside = raw.count(b'"', 0, cut) % 2
    while inside and cut:
        before = raw.rfind(b"\n", 0, cut - 1) + 1
        inside ^= raw.count(b'"', before, cut) % 2
        cut = before
    return cut


def _header(path: Path, raw: bytes) -> tuple[list[str], int]:
    """Return the names of the columns, and where the records begin."""
    if raw.startswith(b"PAR1"):
        raise BadFile(path, None, "is a Parquet file by its content", "give it the suffix .parquet")
    if b"\n" not in raw and b"\r" in raw.rstrip():
        raise BadFile(path, 1, "lines end with a carriage return alone", "save it with ordinary line ends")
    end = raw.find(b"\n") + 1 or len(raw)
    while raw.count(b'"', 0, end) % 2:
        end = raw.find(b"\n", end) + 1 or len(raw)
    _check_text(path, 1, raw[:end])
    names = next(_records(raw[:end].removeprefix(b"\xef\xbb\xbf"), 1), (1, []))[1]
    for mark, word in (("\t", "tabs"), (";", "semicolons")):
        if len(names) == 1 and mark in names[0].strip():
            raise BadFile(path, 1, f"fields are separated by {word}", "save it with commas")
    if not names:
        raise BadFile(path, 1, "the header is blank", "begin the file with the names of its columns")
    return column_names(path, names), end


def _parse(path: Path, line: int, raw: bytes, names: Sequence[str], columns: Sequence[str]) -> Block:
    """Return a piece as a block, without its blank lines."""
    import polars as pl
    from polars.exceptions import PolarsError

    _check_text(path, line, raw)
    numbers = [str(i) for i in range(len(names))]
    number_of = dict(zip(names, numbers, strict=True))
    chosen = {number_of[column]: column for column in columns}
    try:
        # All columns are parsed, whichever are asked for, so that records of a wrong length are noticed.
        frame = pl.read_csv(io.BytesIO(",".join(numbers).encode() + b"\n" + raw), infer_schema=False)
    except PolarsError as error:
        _check_lengths(path, line, raw, len(names))
        what = f"cannot be read from line {line} on ({str(error).partition(chr(10))[0]})"
        raise BadFile(path, None, what, "look for stray quotation marks, or save it again as .csv") from error
    if frame.select(pl.all_horizontal(pl.all().is_null())).to_series().any():
        blank = [not fields for _, fields in _records(raw, line)]
        frame = frame.filter(~pl.Series(blank[: len(frame)], dtype=pl.Boolean))
    # polars fills a short record with nulls, so only a piece with nulls at the end can hold one.
    if frame[numbers[-1]].null_count() and (b'"' in raw or raw.count(b",") != len(frame) * (len(names) - 1)):
        _check_lengths(path, line, raw, len(names))
    return Block(frame.select(list(chosen)).rename(chosen), partial(_line, raw, line))


def _check_text(path: Path, line: int, raw: bytes) -> None:
    """Refuse bytes that are not UTF-8 text."""
    if b"\0" in raw:
        row = line + raw.count(b"\n", 0, raw.index(b"\0"))
        raise BadFile(path, row, "holds NUL bytes, which are not text", "save it as .csv in UTF-8")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        row = line + raw.count(b"\n", 0, error.start)
        value = f"the byte {raw[error.start]:#04x} is not UTF-8"
        raise BadFile(path, row, value, "save it as .csv in UTF-8") from None


def _check_lengths(path: Path, line: int, raw: bytes, width: int) -> None:
    """Refuse a record with more or fewer fields than the header."""
    for row, fields in _records(raw, line):
        if fields and len(fields) != width:
            what = f"has {len(fields)} fields where the header names {width}"
            raise BadFile(path, row, what, "complete it, or put quotation marks around a field with commas")


def _line(raw: bytes, line: int, row: int) -> int:
    """Return the line on which a record of a piece begins."""
    lines = (begin for begin, fields in _records(raw, line) if fields)
    return next(found for i, found in enumerate(lines) if i == row)


def _records(raw: bytes, line: int) -> Iterator[Record]:
    """Yield the records of a piece one by one, which is slow and only used to say what went wrong."""
    reader = csv.reader(io.StringIO(raw.decode(errors="replace"), newline=""))
    while True:
        before = reader.line_num
        try:
            yield line + before, next(reader)
        except StopIteration:
            return
        except csv.Error:
            # A field that is too long for this reader is not a problem of the file: count the record and go on.
            yield line + before, [""]
