"""Tables, block by block: ``.csv`` and ``.parquet`` files and frames in memory look the same from here on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import add
from pathlib import Path

import polars as pl
from polars.exceptions import PanicException, PolarsError

from coterie.data.tables.csvfile import csv_blocks, csv_names
from coterie.data.tables.problems import BadFile
from coterie.data.tables.rowblock import Block, check_names
from coterie.limits import inflated

ROWS = 1 << 17
"""Rows of a Parquet file or a frame that are read in one go."""

CELL = 4
"""Bytes that a cell of a table takes as a number."""

_WORDS = (pl.Boolean, pl.String, pl.Categorical, pl.Enum, pl.Null)


@dataclass(frozen=True)
class Table:
    """A table by its name and columns, to be read in blocks of some of its columns as often as needed."""

    file: str
    columns: tuple[str, ...]
    blocks: Callable[[Sequence[str]], Iterator[Block]]


def open_table(source: Path | str | pl.DataFrame) -> Table:
    """The table of a .csv or .parquet file, or of a polars frame.

    >>> table = open_table(pl.DataFrame({"age": [31, 47]}))
    >>> [block.frame["age"].to_list() for block in table.blocks(["age"])]
    [[31, 47]]
    """
    if isinstance(source, pl.DataFrame):
        return _scanned("the frame", source.lazy())
    path = Path(source)
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise BadFile(path, None, "is no table by its name", "give it the suffix .csv or .parquet")
    with _guarded(path):
        if not path.stat().st_size:
            raise BadFile(path, None, "is empty", "leave it out or save it again")
        if path.suffix.lower() == ".parquet":
            table = pl.scan_parquet(path, glob=False)
            cells = len(table.collect_schema()) * int(table.select(pl.len()).collect().item())
            too_much = inflated(path.stat().st_size, CELL * cells)
            if too_much:
                raise BadFile(path, None, too_much, "if it is no mistake, save it as .csv")
            return _scanned(str(path), table)
        return Table(str(path), tuple(csv_names(path)), partial(_csv_blocks, path))


def numbered(table: Table, columns: Sequence[str], total: int) -> Iterator[tuple[slice, Block]]:
    """The blocks of a table that is known to have ``total`` rows, with the rows that each holds."""
    start = 0
    for block in table.blocks(columns):
        rows = slice(start, start + len(block.frame))
        start = rows.stop
        if start <= total:
            yield rows, block
    if start != total:
        raise BadFile(table.file, None, f"had {total} rows and now {start}", "leave it alone while it is read")


def _csv_blocks(path: Path, columns: Sequence[str]) -> Iterator[Block]:
    with _guarded(path):
        yield from csv_blocks(path, columns)


def _scanned(file: str, scan: pl.LazyFrame) -> Table:
    schema = scan.collect_schema()
    given = dict(zip(check_names(file, list(schema)), schema, strict=True))
    total = int(scan.select(pl.len()).collect().item())

    def blocks(columns: Sequence[str]) -> Iterator[Block]:
        for name in columns:
            kind = schema[given[name]]
            if not (kind.is_numeric() or kind in _WORDS):
                what = f"column {name!r} holds {kind}, neither numbers nor words"
                raise BadFile(file, None, what, f"turn it into numbers, or --ignore {name}")
        chosen = scan.select(pl.col(given[name]).alias(name) for name in columns)
        with _guarded(file):
            for start in range(0, total, ROWS):
                yield Block(chosen.slice(start, ROWS).collect(), partial(add, start + 1))

    return Table(file, tuple(given), blocks)


@contextmanager
def _guarded(path: Path | str) -> Iterator[None]:
    """Whatever fails while a file is read is a problem of that file."""
    try:
        yield
    except OSError as error:
        raise BadFile(path, None, f"cannot be read ({error.strerror or error})", "check its permissions") from error
    except (PolarsError, PanicException) as error:
        reason = str(error).partition("\n")[0]
        raise BadFile(path, None, f"is damaged or no {Path(path).suffix} file ({reason})", "save it again") from error
