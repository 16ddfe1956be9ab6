"""A user's files: which there are, and tables opened so that they can be read in blocks of rows.

``.csv`` and ``.parquet`` files and frames in memory are all read through ``Table``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.data.tables.cells import Block
from coterie.data.tables.columns import column_names
from coterie.data.tables.csv import csv_blocks, csv_columns
from coterie.data.tables.frames import as_frame, is_frame
from coterie.data.tables.problems import FRAME, BadFile, Problems
from coterie.errors import DataError, did_you_mean
from coterie.limits import inflated

if TYPE_CHECKING:
    import polars as pl

SUFFIXES = (".npz", ".csv", ".parquet")
"""The kinds of files that are read."""

A_FOLDER = "name a folder that holds a .npz, .csv or .parquet file per client"

ROWS = 1 << 17
"""Rows of a Parquet file or a frame that are read at a time."""

ALIKE = 0.75
"""How alike names of files are that may be meant: all have the same few suffixes."""

CELL = 4
"""Bytes that a cell of a table takes as a number."""


def folder_files(folder: Path, problems: Problems) -> list[Path]:
    """Return the files of a folder, sorted by stem, the client's name; unusable ones are added to the problems.

    Hidden files and files of other kinds are passed over. Nothing outside the folder is read.
    """
    check_name(folder)
    if not folder.exists():
        raise missing("file or folder", folder, f"{A_FOLDER}, or one such file and --client")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; {A_FOLDER}")
    try:
        found = [file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.name[0] != "."]
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}); check its permissions") from error
    if not found:
        raise DataError(f"{folder} holds no .npz, .csv or .parquet file; put one per client there")
    found.sort(key=lambda file: (file.stem, file.name))
    _check_one_kind(folder, found)
    return [file for file in found if _is_usable(folder, file, problems)]


def check_file(path: Path) -> None:
    """Refuse a path that is not a file of a kind that is read."""
    check_name(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder; name one file, or leave the client column out to take a client per file")
    if not path.is_file():
        raise missing("file", path, "name a .npz, .csv or .parquet file")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path} is of a kind that is not read; save it as .csv, .parquet or .npz")


def missing(what: str, path: Path, remedy: str) -> DataError:
    """Return the error of a path where there is nothing: with the nearest name that is there, and the remedy."""
    beside: list[str] = []
    with suppress(OSError):
        beside = [each.name for each in path.parent.iterdir()]
    return DataError(f"there is no {what} {path};{did_you_mean(path.name, beside, ALIKE)} {remedy}")


def check_name(path: Path) -> None:
    """Refuse a name that is not valid text, because it could not be recorded."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BadFile(path, None, "has a name that is not UTF-8", "rename it") from None


def content_hash(files: Iterable[Path]) -> str:
    """Return a hash of the names and bytes of files, the same on every machine."""
    whole = hashlib.blake2b(digest_size=16)
    for file in files:
        with file.open("rb") as content:
            own = hashlib.file_digest(content, hashlib.blake2b)
        whole.update(f"{file.name}\x1f{own.hexdigest()}\x1f".encode(errors="surrogateescape"))
    return whole.hexdigest()


def own_hash(path: Path) -> str | None:
    """Return the hash of a user's file or of the files of a folder, or None if there is nothing at the path."""
    if not path.exists():
        return None
    return content_hash(folder_files(path, Problems()) if path.is_dir() else [path])


def _check_one_kind(folder: Path, files: list[Path]) -> None:
    first = files[0]
    for other in files[1:]:
        if other.suffix.lower() != first.suffix.lower():
            raise DataError(f"{folder} holds {first.name} and {other.name}; keep files of one kind")
    for left, right in pairwise(files):
        if left.stem == right.stem:
            raise DataError(f"{folder} holds {left.name} and {right.name}, both of client {left.stem!r}; rename one")


def _is_usable(folder: Path, file: Path, problems: Problems) -> bool:
    try:
        if folder.resolve() not in file.resolve().parents:
            raise BadFile(file, None, f"is a link to {file.resolve()}, outside the folder", "copy the file itself")
        if not file.is_file():
            raise BadFile(file, None, "is not a file", "rename or remove it")
        check_name(file)
    except BadFile as error:
        problems.add(error.problem)
        return False
    return True


@dataclass(frozen=True)
class Table:
    """An open table: its file, its columns, and ``blocks``, which reads some of the columns as often as needed.

    ``client`` is the client that all rows belong to; None where a column names the clients.
    """

    file: str
    columns: tuple[str, ...]
    blocks: Callable[[Sequence[str]], Iterator[Block]]
    client: str | None = None

    def numbered_blocks(self, columns: Sequence[str], rows: int) -> Iterator[tuple[slice, Block]]:
        """Yield the blocks with the rows that each holds, of a table that had this number of rows before."""
        start = 0
        for block in self.blocks(columns):
            part = slice(start, start + len(block))
            start = part.stop
            if start <= rows:
                yield part, block
        if start != rows:
            raise BadFile(self.file, None, f"had {rows} rows and now {start}", "leave it alone while it is read")


def open_table(source: Any, client: str | None = None) -> Table:
    """Open a .csv or .parquet file, or a table in memory: of polars, pandas or pyarrow; one that is open stays so.

    >>> import polars as pl
    >>> table = open_table(pl.DataFrame({"age": [31, 47]}))
    >>> [block.frame["age"].to_list() for block in table.blocks(["age"])]
    [[31, 47]]
    """
    if isinstance(source, Table):
        return source
    if is_frame(source):
        return _scanned(FRAME, as_frame(source).lazy(), client)
    path = Path(source)
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise BadFile(path, None, f"has the suffix {path.suffix!r}", "a table needs .csv or .parquet; save it as one")
    with _guarded(path):
        if not path.stat().st_size:
            raise BadFile(path, None, "is empty", "leave it out or save it again")
        if path.suffix.lower() == ".parquet":
            return _scanned(str(path), _scan_parquet(path), client)
        return Table(str(path), tuple(csv_columns(path)), partial(_guarded_csv_blocks, path), client)


def _scan_parquet(path: Path) -> pl.LazyFrame:
    """Scan a Parquet file, unless it would become far larger than it is."""
    import polars as pl

    table = pl.scan_parquet(path, glob=False)
    cells = len(table.collect_schema()) * int(table.select(pl.len()).collect().item())
    too_much = inflated(path.stat().st_size, CELL * cells)
    if too_much:
        raise BadFile(path, None, too_much, "if that is intended, save it as .csv")
    return table


def _scanned(file: str, scan: pl.LazyFrame, client: str | None) -> Table:
    import polars as pl

    words = (pl.Boolean, pl.String, pl.Categorical, pl.Enum, pl.Null, pl.Date, pl.Datetime)
    schema = scan.collect_schema()
    given = dict(zip(column_names(file, list(schema)), schema, strict=True))
    total = int(scan.select(pl.len()).collect().item())

    def blocks(columns: Sequence[str]) -> Iterator[Block]:
        for name in columns:
            kind = schema[given[name]]
            if not (kind.is_numeric() or kind in words):
                what = f"column {name!r} holds {kind}, neither numbers, words nor dates"
                raise BadFile(file, None, what, f"turn it into numbers, or --ignore {name}")
        chosen = scan.select(pl.col(given[name]).alias(name) for name in columns)
        with _guarded(file):
            for start in range(0, total, ROWS):
                yield Block(chosen.slice(start, ROWS).collect(), partial(add, start + 1))

    return Table(file, tuple(given), blocks, client)


def _guarded_csv_blocks(path: Path, columns: Sequence[str]) -> Iterator[Block]:
    with _guarded(path):
        yield from csv_blocks(path, columns)


@contextmanager
def _guarded(path: Path | str) -> Iterator[None]:
    """Turn any failure to read a file into a problem of that file."""
    from polars.exceptions import PanicException, PolarsError

    try:
        yield
    except OSError as error:
        raise BadFile(path, None, f"cannot be read ({error.strerror or error})", "check its permissions") from error
    except (PolarsError, PanicException) as error:
        reason = str(error).partition("\n")[0]
        raise BadFile(path, None, f"is damaged or no {Path(path).suffix} file ({reason})", "save it again") from error
