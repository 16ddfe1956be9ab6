"""Rows: the client, the label and the split (train, test or validation) of every row of a user's tables.

No feature is read here, so this takes one pass over a few columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.apportion import stratified_split
from coterie.data.array_memory import allocate, release
from coterie.data.federated import Split
from coterie.data.tables.cells import Block, Cells, Vocabulary
from coterie.data.tables.files import Table, open_table
from coterie.data.tables.labels import MOST_CLASSES, RawLabels
from coterie.data.tables.problems import BadFile, Problem, Problems
from coterie.data.tables.reading import Reading
from coterie.errors import DataError
from coterie.seeding import generator
from coterie.typing import Array

MOST_CLIENTS = 100_000
TRAIN, TEST, VALIDATION = range(3)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The client and the labels of every row, one table after the other; ``labels`` has an entry for each label column.

    ``tables`` are those that could be read and ``slices`` the rows of each; ``owners`` holds the number of each row's
    client among ``names``; ``groups`` is the true group of each client, where a column names it, and ``attributes`` the
    value of each client in each column that is one, empty where it has none.
    """

    tables: tuple[Table, ...]
    slices: tuple[slice, ...]
    names: tuple[str, ...]
    owners: Array
    labels: tuple[RawLabels, ...]
    groups: Array | None
    attributes: Mapping[str, tuple[str, ...]]


def with_labels(tables: Sequence[Table], reading: Reading) -> tuple[list[Table], tuple[str, ...]]:
    """Return the tables without the rows that lack a label, where the user asks for that, and a note of how many."""
    if not reading.drop_missing_labels:
        return list(tables), ()
    dropped = sum(int(_unlabelled(block, reading).sum()) for table in tables for block in table.blocks(reading.labels))
    kept = [_with_rows(table, reading.labels, lambda block: ~_unlabelled(block, reading)) for table in tables]
    return kept, (f"{dropped} rows without a label are left out",) if dropped else ()


def _unlabelled(block: Block, reading: Reading) -> Array:
    """Return which rows of a block lack a label, or one of several."""
    lacking: Array = np.any([block.cells(name).missing for name in reading.labels], axis=0)
    return lacking


def rows_with(table: Table, column: str, word: str) -> Table:
    """Return a table of the rows that have a word in a column."""
    return _with_rows(table, (column,), lambda block: (block.cells(column).words == word).fill_null(False).to_numpy())


Keep = Callable[[Block], Array]
"""Which rows of a block stay."""


def _with_rows(table: Table, needed: Sequence[str], keep: Keep) -> Table:
    """Return a table without the rows that do not stay, which is decided by the columns that are needed."""
    return replace(table, blocks=partial(_kept_blocks, table, needed, keep))


def _kept_blocks(table: Table, needed: Sequence[str], keep: Keep, columns: Sequence[str]) -> Iterator[Block]:
    """Yield the blocks of a table without the rows that do not stay; rows keep their numbers."""
    also = [name for name in needed if name not in columns]
    for block in table.blocks([*columns, *also]):
        rows = np.flatnonzero(keep(block)).tolist()
        if rows:
            yield Block(block.frame.select(columns)[rows], partial(_number_of_kept, block, rows))


def _number_of_kept(block: Block, rows: Sequence[int], row: int) -> int:
    return block.number_of(rows[row])


def read_rows(tables: Sequence[Table], reading: Reading, problems: Problems) -> Rows:
    """Read the label, client, group and attribute columns of all tables."""
    reader = _RowReader(reading, problems)
    kept = [table for table in tables if reader.read(table)]
    ends = np.cumsum([0, *(len(owners) for owners in reader.owners)]).tolist()
    names = sorted(reader.clients.words)
    numbers = {name: number for number, name in enumerate(names)}
    sorted_number = np.array([numbers[name] for name in reader.clients.words] or [0], np.int32)
    return Rows(
        tables=tuple(kept),
        slices=tuple(slice(start, end) for start, end in pairwise(ends)),
        names=tuple(names),
        owners=sorted_number[np.maximum(_joined(reader.owners, np.int32), 0)],
        labels=tuple(column.joined() for column in reader.labels),
        groups=None if reading.group is None else reader.true_groups(reading.group, names),
        attributes={column: reader.values(column, names) for column in reading.attribute},
    )


def _joined(arrays: Sequence[Array], dtype: Any) -> Array:
    return np.concatenate([np.empty(0, dtype), *arrays])


class _LabelColumn:
    """What has been read of a label column so far: for each table its labels as numbers and as codes."""

    def __init__(self, name: str) -> None:
        self.name, self.words, self.present = name, Vocabulary(MOST_CLASSES), 0
        self.numbers: list[Array] = []
        self.codes: list[Array] = []

    def read(self, block: Block) -> tuple[Array, Array]:
        """Return the numbers and the codes of a block."""
        cells = block.cells(self.name)
        self.present += int((~cells.missing).sum())
        return cells.numbers, self.words.encode(cells)

    def joined(self) -> RawLabels:
        """Return the labels of all tables."""
        return RawLabels(
            numbers=_joined(self.numbers, np.float64),
            codes=_joined(self.codes, np.int32),
            words=tuple(self.words.words),
            overflowed=self.words.overflowed,
            present=self.present,
        )


class _RowReader:
    """What has been read so far: for each table its owners and its labels."""

    def __init__(self, reading: Reading, problems: Problems) -> None:
        self.reading, self.problems = reading, problems
        self.clients = Vocabulary(MOST_CLIENTS)
        self.labels = [_LabelColumn(name) for name in reading.labels]
        constant = [name for name in (reading.group, *reading.attribute) if name is not None]
        self.constant = {name: (Vocabulary(MOST_CLIENTS), dict[int, int]()) for name in constant}
        self.owners: list[Array] = []

    def read(self, table: Table) -> bool:
        """Read one table; add a problem and return False if that is impossible."""
        try:
            parts = list(self._read_blocks(table))
            if not parts:
                raise BadFile(table.file, None, "holds no rows", "leave it out or add rows")
        except BadFile as error:
            self.problems.add(error.problem)
            return False
        every = [self.owners, *chain.from_iterable((column.numbers, column.codes) for column in self.labels)]
        for held, new in zip(every, zip(*parts, strict=True), strict=True):
            held.append(np.concatenate(new))
        return True

    def _read_blocks(self, table: Table) -> Iterator[tuple[Array, ...]]:
        for block in table.blocks(self.reading.roles):
            labels = [column.read(block) for column in self.labels]
            owners = self._read_owners(table, block)
            for name in self.constant:
                self._read_constant(table.file, block, name, owners)
            yield owners, *chain.from_iterable(labels)

    def _read_owners(self, table: Table, block: Block) -> Array:
        if table.client is not None:
            return np.full(len(block), self.clients.number(table.client), np.int32)
        name = self.reading.client or ""
        cells = block.cells(name)
        self._refuse_missing(table.file, block, name, cells)
        owners = self.clients.encode(cells)
        if self.clients.overflowed:
            what = f"column {name!r} names more than {MOST_CLIENTS} clients"
            raise BadFile(table.file, None, what, "is it an id of rows? name another with --client")
        return owners

    def _read_constant(self, file: str, block: Block, name: str, owners: Array) -> None:
        """Read a column with one value for each client; a true group must be there, an attribute may be missing."""
        cells, is_group = block.cells(name), name == self.reading.group
        if is_group:
            self._refuse_missing(file, block, name, cells)
        vocabulary, code_of = self.constant[name]
        codes = vocabulary.encode(cells)
        for owner, row in zip(*np.unique(owners, return_index=True), strict=True):
            own = code_of.setdefault(int(owner), int(codes[row]))
            other = np.flatnonzero((owners == owner) & (codes != own))
            if len(other):
                what = f"column {name!r} has more than one value for client {self.clients.words[int(owner)]!r}"
                one = "a client has one true group; leave --group out"
                remedy = one if is_group else f"an attribute has one; leave {name} out of --attribute"
                self._refuse(file, block, what, other[:1], remedy)

    def _refuse_missing(self, file: str, block: Block, name: str, cells: Cells) -> None:
        rows = np.flatnonzero(cells.missing)
        if len(rows):
            self._refuse(file, block, f"column {name!r} is missing a value", rows, "fill it in")

    def _refuse(self, file: str, block: Block, what: str, rows: Array, remedy: str) -> None:
        first = int(rows[0])
        self.problems.add_rows(file, what, len(rows), lambda: Problem(file, block.number_of(first), what, remedy))

    def values(self, column: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return the value of every client in a column; empty where it is missing, or there are too many values."""
        vocabulary, code_of = self.constant[column]
        words = dict(enumerate(vocabulary.words))
        codes = {name: code for code, name in enumerate(self.clients.words)}
        return tuple(words.get(code_of[codes[name]], "") for name in names)

    def true_groups(self, column: str, names: Sequence[str]) -> Array:
        """Return the group of every client, numbered in the order of the groups' names."""
        numbers = {word: number for number, word in enumerate(sorted(self.constant[column][0].words))}
        return np.array([numbers.get(word, 0) for word in self.values(column, names)], np.int64)


def read_constants(source: Path | Table, columns: Sequence[str]) -> dict[str, str]:
    """Return the one value of each of these columns in one client's table; leave out columns that it has not."""
    table, found = open_table(source), dict[str, str]()
    for name in (name for name in columns if name in table.columns):
        words = Vocabulary(1)
        for block in table.blocks((name,)):
            words.add(block.cells(name))
        if words.overflowed:
            raise DataError(f"{table.file} has more than one value in column {name!r}; a client has one: correct it")
        if words.words:
            found[name] = words.words[0]
    return found


@dataclass(frozen=True)
class RowSplit:
    """The split of every row (``TRAIN``, ``TEST`` or ``VALIDATION``) and its position there.

    ``offsets`` holds, for each split, where the rows of each client begin.
    """

    split: Array
    position: Array
    offsets: tuple[Array, ...]

    def allocate(self, width: int, dtype: type, labels: tuple[int, ...] = ()) -> tuple[Split, ...]:
        """Return splits of the right size, not yet filled; ``labels`` is the shape of the label of one row."""
        sizes = [int(offsets[-1]) for offsets in self.offsets]
        return tuple(
            Split(allocate((size, width), np.float32), allocate((size, *labels), dtype), offsets)
            for size, offsets in zip(sizes, self.offsets, strict=True)
        )

    def fill(self, splits: tuple[Split, ...], rows: slice, x: Array, y: Array) -> None:
        """Copy the arrays of some rows to their positions."""
        for which, split in enumerate(splits):
            own = np.flatnonzero(self.split[rows] == which)
            to = self.position[rows][own]
            split.x[to], split.y[to] = x[own], y[own]
            release(split.x)


def split_rows(rows: Rows, y: Array, reading: Reading, file: str, problems: Problems) -> RowSplit:
    """Split the rows of every client by class; the draw depends on the seed, the client's name and its rows alone."""
    split = np.zeros(len(y), np.int8)
    position = np.zeros(len(y), np.min_scalar_type(len(y)))
    clients = len(rows.names)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows.owners, minlength=clients))])
    order = np.argsort(rows.owners, kind="stable")
    offsets = np.zeros((3, clients + 1), np.int64)
    for client, name in enumerate(rows.names):
        own = order[starts[client] : starts[client + 1]]
        for which, part in enumerate(_split_client(y[own], name, reading, file, problems)):
            split[own[part]] = which
            position[own[part]] = offsets[which, client] + np.arange(len(part))
            offsets[which, client + 1] = offsets[which, client] + len(part)
    return RowSplit(split, position, tuple(offsets if reading.validation else offsets[:VALIDATION]))


def _split_client(y: Array, name: str, reading: Reading, file: str, problems: Problems) -> tuple[Array, Array, Array]:
    """Return the train, test and validation rows of one client, each in order."""
    least = 3 if reading.validation else 2
    if len(y) < least:
        what = f"client {name!r} has {len(y)} row{'s' * (len(y) > 1)}; train and test need {least} at least"
        problems.add(Problem(file, None, what, "add rows, or leave the client out"))
        return np.arange(len(y)), np.arange(0), np.arange(0)
    keep, test = stratified_split(y, reading.test, generator(reading.seed, "test", name))
    if not reading.validation:
        return keep, test, np.arange(0)
    own, other = stratified_split(y[keep], reading.validation, generator(reading.seed, "validation", name))
    return keep[own], test, keep[other]
