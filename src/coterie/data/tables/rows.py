"""The first look at a user's tables: whose every row is, and what its label says. No feature is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from coterie.data.tables.cells import Cells, Codes, read_cells
from coterie.data.tables.problems import BadFile, Problem, Problems
from coterie.data.tables.reading import Member, Reading
from coterie.data.tables.rowblock import Block
from coterie.typing import Array

MOST_CLASSES = 1000
MOST_CLIENTS = 100_000


@dataclass(frozen=True)
class Labels:
    """The labels of all rows: ``numbers`` where they are, ``codes`` into ``words`` unless these are too ``many``.

    ``present`` is how many rows have a label at all.
    """

    numbers: Array
    codes: Array
    words: tuple[str, ...]
    many: bool
    present: int


@dataclass(frozen=True)
class Rows:
    """Whose every row is, table after table; ``members`` are those that could be read, ``parts`` their rows."""

    members: tuple[Member, ...]
    parts: tuple[slice, ...]
    names: tuple[str, ...]
    owners: Array
    labels: Labels
    groups: Array | None


def read_rows(members: Sequence[Member], reading: Reading, problems: Problems) -> Rows:
    """Read the label, client and group columns of all tables."""
    looks = _Looks(reading, problems)
    kept = [member for member in members if looks.take(member)]
    ends = np.cumsum([0, *(len(owners) for owners in looks.owners)]).tolist()
    order = sorted(looks.clients.words)
    numbers = {name: number for number, name in enumerate(order)}
    places = np.array([numbers[name] for name in looks.clients.words] or [0], np.int32)
    return Rows(
        tuple(kept),
        tuple(slice(start, end) for start, end in pairwise(ends)),
        tuple(order),
        places[np.maximum(_joined(looks.owners, np.int32), 0)],
        Labels(
            _joined(looks.numbers, np.float64),
            _joined(looks.codes, np.int32),
            tuple(looks.labels.words),
            looks.labels.many,
            looks.present,
        ),
        None if reading.group is None else looks.true_groups(order),
    )


def _joined(arrays: Sequence[Array], dtype: Any) -> Array:
    return np.concatenate([np.empty(0, dtype), *arrays])


class _Looks:
    """What has been seen so far: per table its owners, its labels as numbers and as codes."""

    def __init__(self, reading: Reading, problems: Problems) -> None:
        self.reading, self.problems = reading, problems
        self.clients, self.labels, self.groups = Codes(MOST_CLIENTS), Codes(MOST_CLASSES), Codes(MOST_CLIENTS)
        self.owners: list[Array] = []
        self.numbers: list[Array] = []
        self.codes: list[Array] = []
        self.group_of: dict[int, int] = {}
        self.present = 0

    def take(self, member: Member) -> bool:
        """Read one table; False, and a problem, if it cannot be."""
        try:
            parts = list(self._blocks(member))
            if not parts:
                raise BadFile(member.table.file, None, "holds no rows", "leave it out or add rows")
        except BadFile as error:
            self.problems.add(error.problem)
            return False
        for held, new in zip((self.owners, self.numbers, self.codes), zip(*parts, strict=True), strict=True):
            held.append(np.concatenate(new))
        return True

    def _blocks(self, member: Member) -> Iterator[tuple[Array, Array, Array]]:
        file = member.table.file
        for block in member.table.blocks(self.reading.special):
            label = read_cells(block.frame[self.reading.label])
            self.present += int((~label.missing).sum())
            owners = self._owners(file, block, member.client)
            if self.reading.group is not None:
                self._note_groups(file, block, self.reading.group, owners)
            yield owners, label.numbers, self.labels.encode(label)

    def _owners(self, file: str, block: Block, client: str | None) -> Array:
        if client is not None:
            return np.full(len(block.frame), self.clients.code(client), np.int32)
        name = self.reading.client or ""
        cells = read_cells(block.frame[name])
        self._refuse_missing(file, block, name, cells)
        owners = self.clients.encode(cells)
        if self.clients.many:
            what = f"column {name!r} names more than {MOST_CLIENTS} clients"
            raise BadFile(file, None, what, "is it an id of rows? name another with --client")
        return owners

    def _note_groups(self, file: str, block: Block, name: str, owners: Array) -> None:
        cells = read_cells(block.frame[name])
        self._refuse_missing(file, block, name, cells)
        codes = self.groups.encode(cells)
        for owner, row in zip(*np.unique(owners, return_index=True), strict=True):
            group = self.group_of.setdefault(int(owner), int(codes[row]))
            other = np.flatnonzero((owners == owner) & (codes != group))
            if len(other):
                self._refuse_group(file, block, name, int(owner), int(other[0]))

    def _refuse_group(self, file: str, block: Block, name: str, owner: int, row: int) -> None:
        what = f"column {name!r} has more than one value for client {self.clients.words[owner]!r}"
        self.problems.add_rows(
            file, what, 1, lambda: Problem(file, block.row(row), what, "a client has one true group; leave --group out")
        )

    def _refuse_missing(self, file: str, block: Block, name: str, cells: Cells) -> None:
        rows = np.flatnonzero(cells.missing)
        if len(rows):
            what = f"column {name!r} is missing a value"
            self.problems.add_rows(
                file, what, len(rows), lambda: Problem(file, block.row(int(rows[0])), what, "fill it in")
            )

    def true_groups(self, names: Sequence[str]) -> Array:
        """The group of every client, numbered in the order of the groups' names."""
        numbers = {word: number for number, word in enumerate(sorted(self.groups.words))}
        places = {code: numbers[word] for code, word in enumerate(self.groups.words)}
        codes = {name: code for code, name in enumerate(self.clients.words)}
        own = [self.group_of[codes[name]] for name in names]
        return np.array([places.get(code, 0) for code in own], np.int64)
