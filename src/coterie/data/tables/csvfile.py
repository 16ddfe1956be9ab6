"""Comma-separated text, read in blocks of whole records, each of which knows the line it began on.

A file is never read as a whole, so its size does not matter, and a record is never cut, also where a quoted field
runs over several lines. What polars would guess, drop or fill in silently is an error here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from coterie.data.tables.problems import BadFile
from coterie.data.tables.rowblock import Block, check_names

BLOCK = 1 << 22
"""Bytes read in one go."""

LONGEST = 1 << 26
"""Bytes after which a record that has not ended is taken for a quotation mark that was never closed."""

Record = tuple[int, list[str]]


def csv_names(path: Path) -> list[str]:
    """The names in the header."""
    return next((_header(path, raw)[0] for _, raw in _pieces(path)), [])


def csv_blocks(path: Path, columns: Sequence[str]) -> Iterator[Block]:
    """These columns of the file, as text."""
    names: list[str] = []
    for line, raw in _pieces(path):
        if not names:
            names, end = _header(path, raw)
            line, raw = line + raw.count(b"\n", 0, end), raw[end:]
        if raw and not raw.isspace():
            yield _parse(path, line, raw, names, columns)


def _header(path: Path, raw: bytes) -> tuple[list[str], int]:
    """The names of the columns, and where the records begin."""
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
    return check_names(path, names), end


def _pieces(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file in pieces that end where a record ends, each with the number of its first line."""
    line, rest = 1, b""
    with path.open("rb") as file:
        while chunk := file.read(BLOCK):
            rest += chunk
            cut = _last_record(rest)
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


def _last_record(raw: bytes) -> int:
    """Where the last whole record ends: at the last line end with as many quotation marks opened as closed."""
    cut = raw.rfind(b"\n") + 1
    open_ = raw.count(b'"', 0, cut) % 2
    while open_ and cut:
        before = raw.rfind(b"\n", 0, cut - 1) + 1
        open_ ^= raw.count(b'"', before, cut) % 2
        cut = before
    return cut


def _parse(path: Path, line: int, raw: bytes, names: Sequence[str], columns: Sequence[str]) -> Block:
    """The frame of a piece, without its blank lines."""
    _check_text(path, line, raw)
    every = [str(i) for i in range(len(names))]
    places = dict(zip(names, every, strict=True))
    chosen = {places[column]: column for column in columns}
    try:
        # All columns, whatever is asked for: only so are all records seen to be of the right length.
        frame = pl.read_csv(io.BytesIO(",".join(every).encode() + b"\n" + raw), infer_schema=False)
    except PolarsError as error:
        _check_lengths(path, line, raw, len(names))
        what = f"cannot be read from line {line} on ({str(error).partition(chr(10))[0]})"
        raise BadFile(path, None, what, "look for stray quotation marks, or save it again as .csv") from error
    empty = frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
    if empty.any():
        blank = [not fields for _, fields in _records(raw, line)]
        frame = frame.filter(~pl.Series(blank[: len(frame)], dtype=pl.Boolean))
    if frame[every[-1]].null_count() and (b'"' in raw or raw.count(b",") != len(frame) * (len(names) - 1)):
        _check_lengths(path, line, raw, len(names))
    return Block(frame.select(list(chosen)).rename(chosen), partial(_line, raw, line))


def _check_text(path: Path, line: int, raw: bytes) -> None:
    if b"\0" in raw:
        row = line + raw.count(b"\n", 0, raw.index(b"\0"))
        raise BadFile(path, row, "holds NUL bytes, which are no text", "save it as .csv in UTF-8")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        row = line + raw.count(b"\n", 0, error.start)
        value = f"the byte {raw[error.start]:#04x} is not UTF-8"
        raise BadFile(path, row, value, "save it as .csv in UTF-8") from None


def _check_lengths(path: Path, line: int, raw: bytes, width: int) -> None:
    for row, fields in _records(raw, line):
        if fields and len(fields) != width:
            what = f"has {len(fields)} fields where the header names {width}"
            raise BadFile(path, row, what, "complete it, or put quotation marks around a field with commas")


def _line(raw: bytes, line: int, row: int) -> int:
    """The line on which a record of a piece begins."""
    lines = (row_line for row_line, fields in _records(raw, line) if fields)
    return next(found for i, found in enumerate(lines) if i == row)


def _records(raw: bytes, line: int) -> Iterator[Record]:
    """The records of a piece with the line they begin on, one by one: slow, and only for what went wrong."""
    reader = csv.reader(io.StringIO(raw.decode(errors="replace"), newline=""))
    while True:
        before = reader.line_num
        try:
            yield line + before, next(reader)
        except StopIteration:
            return
        except csv.Error:
            # A field too long for this reader is no problem of the file: count the record and go on.
            yield line + before, [""]
