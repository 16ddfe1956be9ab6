"""The second look at a user's tables: what kind each column is, and the federated sums of the train rows.

A site that is alone with its table tells two things: first, for each column, how many values it has and how many of
them are numbers, from which all agree on the kinds; then its ``Sums`` for these kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.data.tables.cells import Codes, read_cells
from coterie.data.tables.problems import Problem, Problems
from coterie.data.tables.sums import Sums, Totals
from coterie.data.tables.tablefile import Table, numbered
from coterie.data.tables.target import are_numbers
from coterie.typing import Array

MOST_VALUES = 1000
ID_FROM = 20
ID_SHARE = 0.9
"""A category with at least ID_FROM values, and a new one in more than this share of rows, names the rows."""


@dataclass(frozen=True)
class Tally:
    """How many fields of a column hold a value, how many of these are numbers, and how many fields hold none."""

    values: int = 0
    numbers: int = 0
    missing: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.values + other.values, self.numbers + other.numbers, self.missing + other.missing)

    @property
    def is_number(self) -> bool:
        """Whether it is a column of numbers, perhaps with some dirt."""
        return are_numbers(self.numbers, self.values)


@dataclass(frozen=True)
class Survey:
    """What a table holds, column by column, for every one of its clients."""

    tallies: Mapping[str, Tally]
    words: Mapping[str, Codes]
    totals: Totals
    rows: Array
    has_target: bool

    def sums(self, kinds: Mapping[str, bool], classes: Sequence[str] = ()) -> list[Sums]:
        """What each client tells, knowing which columns are numbers; words are told for the other columns only."""
        columns = {name: place for place, name in enumerate(self.tallies)}
        numbers = [name for name in columns if kinds[name]]
        categories = {name: tuple(sorted(self.words[name].words)) for name in columns if not kinds[name]}
        return [
            Sums(
                int(self.rows[client]),
                {name: self.totals.moments(columns[name], client) for name in numbers},
                categories,
                tuple(classes),
                self.totals.moments(len(columns), client) if self.has_target else None,
            )
            for client in range(len(self.rows))
        ]


def survey(
    table: Table, features: Sequence[str], owners: Array, train: Array, clients: int, targets: Array | None = None
) -> Survey:
    """Read all features of a table, whose rows belong to ``owners`` and are for training where ``train`` says so."""
    tallies = dict.fromkeys(features, Tally())
    words = {name: Codes(MOST_VALUES) for name in features}
    totals = Totals(len(features) + 1, clients)
    for rows, block in numbered(table, features, len(owners)):
        for column, name in enumerate(features):
            cells = read_cells(block.frame[name])
            spelled, gone = int((~np.isnan(cells.numbers)).sum()), int(cells.missing.sum())
            tallies[name] += Tally(len(block.frame) - gone, spelled, gone)
            words[name].note(cells)
            _add(totals, column, owners[rows], train[rows], cells.numbers)
    if targets is not None:
        _add(totals, len(features), owners, train, targets)
    return Survey(tallies, words, totals, np.bincount(owners[train], minlength=clients), targets is not None)


def _add(totals: Totals, column: int, owners: Array, train: Array, numbers: Array) -> None:
    told = train & np.isfinite(numbers)
    totals.add(column, owners[told], numbers[told])


def check_columns(
    file: str, tallies: Mapping[str, Tally], words: Mapping[str, Sequence[Codes]], problems: Problems
) -> None:
    """Refuse columns without values, and categories with so many that they say nothing about other rows."""
    for name, tally in tallies.items():
        if not tally.values:
            _refuse(file, name, "has no value at all", problems)
        elif not tally.is_number:
            distinct = len({word for codes in words[name] for word in codes.words})
            many = any(codes.many for codes in words[name]) or distinct > MOST_VALUES
            if many or (distinct >= ID_FROM and distinct > ID_SHARE * tally.values):
                count = f"more than {MOST_VALUES}" if many else str(distinct)
                _refuse(file, name, f"has {count} different words in {tally.values} rows{_hint(tally)}", problems)


def _hint(tally: Tally) -> str:
    others = tally.values - tally.numbers
    return f", and {others} that are no numbers among {tally.numbers} numbers" if tally.numbers > others else ""


def _refuse(file: str, name: str, what: str, problems: Problems) -> None:
    problems.add(Problem(file, None, f"column {name!r} {what}", f"leave it out with --ignore {name}"))


def column_notes(tallies: Mapping[str, Tally], merged: Sums, missing: str) -> list[str]:
    """What a user should know of the columns."""
    notes = []
    for name, tally in tallies.items():
        if tally.is_number and merged.numbers[name].squares == 0:
            notes.append(f"column {name!r} is constant in the train rows and says nothing")
        if not tally.is_number and tally.numbers:
            notes.append(f"column {name!r} is taken as a category: {tally.numbers} of {tally.values} are numbers")
        if tally.missing and missing == "mean":
            instead = "the train mean" if tally.is_number else "none of its values"
            notes.append(f"column {name!r} has {tally.missing} missing values, which become {instead}")
    return notes
