"""KEEL's tables: a header that declares every column, then one example a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import DataError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Column:
    """A declared column: its categories in their declared order, or none for a number."""

    name: str
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Declared columns, and their values ``(n, columns)``: numbers, and the numbers of categories counted from 0."""

    columns: tuple[Column, ...]
    values: Array

    def place(self, name: str) -> int:
        """The place of the column of that name."""
        names = [column.name for column in self.columns]
        if name not in names:
            raise DataError(f"the table has no column {name}; it has {', '.join(names)}")
        return names.index(name)


def keel(raw: bytes) -> Table:
    """The table of a ``.dat`` file; a value that was not declared is an error that names its line.

    >>> table = keel(b"@relation r\\n@attribute SIZE real [0,9]\\n@attribute SEX {f,m}\\n@data\\n7,m\\n8,f\\n")
    >>> table.columns[1].categories, table.values.tolist()
    (('f', 'm'), [[7.0, 1.0], [8.0, 0.0]])
    """
    header, mark, body = raw.decode("utf-8", errors="replace").partition("@data")
    if not mark:
        raise DataError(f"not a KEEL table: it has no @data and starts with {raw[:20]!r}")
    columns = tuple(_column(line) for line in header.splitlines() if line.strip().lower().startswith("@attribute"))
    readers = [_reader(column) for column in columns]
    first = header.count("\n") + 1
    lines = [(number, line) for number, line in enumerate(body.splitlines(), first) if line.strip()]
    values = np.empty((len(lines), len(columns)))
    for row, (number, line) in enumerate(lines):
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(columns):
            raise DataError(f"line {number} has {len(words)} values for {len(columns)} columns; the file is cut short")
        try:
            values[row] = [read(word) for read, word in zip(readers, words, strict=True)]
        except (KeyError, ValueError) as error:
            raise DataError(f"line {number} has a value that its column does not declare: {error}") from None
    return Table(columns, values)


def _column(line: str) -> Column:
    """The column of a line such as ``@attribute SEX {Male,Female}``; a category that is declared twice counts once."""
    name, _, kind = line.strip().split(maxsplit=1)[1].partition(" ")
    kind = kind.strip()
    if not kind.startswith("{"):
        return Column(name)
    return Column(name, tuple(dict.fromkeys(word.strip() for word in kind.strip("{}").split(","))))


def _reader(column: Column) -> Callable[[str], float]:
    if not column.categories:
        return float
    return {category: code for code, category in enumerate(column.categories)}.__getitem__
