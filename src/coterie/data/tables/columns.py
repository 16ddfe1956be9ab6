"""Columns: which ones a user's tables must have, and of what kind each is.

A site that is alone with its table shares two things about it: first, for each column, the number of values and how
many of them are numbers, from which all sites agree on the kinds; then its ``Sums`` for these kinds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.tables.cells import Vocabulary
from coterie.data.tables.problems import BadFile, Problem, Problems
from coterie.data.tables.reading import Reading
from coterie.data.tables.sums import RunningMoments, Sums
from coterie.limits import COLUMNS
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.tables.files import Table

MOSTLY = 0.9
"""A column with a larger share of numbers than this holds numbers, and its other values are errors."""

NUMBER, CATEGORY = "number", "category"
"""The kinds of columns."""

MOST_VALUES = 1000
"""Different words that a category may have."""

ID_FROM = 20
ID_SHARE = 0.9
"""A category with at least ID_FROM words, and a new one in more than this share of the rows, identifies the rows."""


def column_names(file: Path | str, names: Sequence[str]) -> list[str]:
    """Return the names of columns without outer spaces; refuse blank names, repeated names and too many."""
    if len(names) > COLUMNS:
        what = f"has {len(names):,} columns; at most {COLUMNS:,} are read one by one"
        raise BadFile(file, None, what, "leave some out, or save it as .npz with arrays x and y")
    found: dict[str, int] = {}
    for number, name in enumerate((name.strip() for name in names), 1):
        if not name:
            remedy = "name it, or save without the index (pandas: index=False)"
            raise BadFile(file, None, f"column {number} has no name", remedy)
        if name in found:
            what = f"columns {found[name]} and {number} are both named {name!r}"
            raise BadFile(file, None, what, "rename or remove one")
        found[name] = number
    return list(found)


def usable_tables(tables: Sequence[Table], reading: Reading, problems: Problems) -> tuple[list[Table], tuple[str, ...]]:
    """Return the tables with the same columns as the first good one, and the names of the features."""
    kept: list[Table] = []
    features: tuple[str, ...] = ()
    for table in tables:
        try:
            require_roles(table, reading)
            own = tuple(name for name in table.columns if name not in (*reading.roles, *reading.ignore))
            if not own:
                raise BadFile(table.file, None, "has no column besides the label", "add columns to learn from")
            if kept:
                _check_same(table.file, own, features, kept[0].file)
        except BadFile as error:
            problems.add(error.problem)
            continue
        features = features or own
        kept.append(table)
    _check_ignored(tables, reading, problems)
    return kept, features


def require_roles(table: Table, reading: Reading) -> None:
    """Refuse a table without a label, the client, the group or an attribute column."""
    for name in reading.roles:
        if name not in table.columns:
            remedy = f"name another with --{reading.option_of(name)}"
            raise BadFile(table.file, None, *absent(name, table.columns, remedy))


def absent(name: str, columns: Sequence[str], remedy: str) -> tuple[str, str]:
    """Return the problem of a column that a table does not have, and the remedy."""
    shown = ", ".join(columns[:10]) + (", ..." if len(columns) > 10 else "")
    return f"has no column {name!r} but {shown}", remedy


def _check_same(file: str, own: Sequence[str], features: Sequence[str], first: str) -> None:
    for name in features:
        if name not in own:
            raise BadFile(file, None, f"has no column {name!r}, which {first} has", "all need the same columns")
    for name in own:
        if name not in features:
            what = f"has the column {name!r}, which {first} has not"
            raise BadFile(file, None, what, f"all need the same columns; add it there, or --ignore {name}")


def _check_ignored(tables: Sequence[Table], reading: Reading, problems: Problems) -> None:
    for name in reading.ignore:
        if tables and not any(name in table.columns for table in tables):
            what, remedy = absent(name, tables[0].columns, "correct --ignore")
            problems.add(Problem(tables[0].file, None, what, remedy))


def are_numbers(numbers: int, values: int) -> bool:
    """Return whether a column holds numbers, from how many of its values are numbers.

    >>> are_numbers(10, 10), are_numbers(95, 100), are_numbers(5, 10)
    (True, True, False)
    """
    return numbers == values or numbers > MOSTLY * values


@dataclass(frozen=True)
class ColumnCounts:
    """Of the fields of a column, how many hold a value, how many of these are numbers, and how many are missing."""

    values: int = 0
    numbers: int = 0
    missing: int = 0

    def __add__(self, other: ColumnCounts) -> ColumnCounts:
        return ColumnCounts(self.values + other.values, self.numbers + other.numbers, self.missing + other.missing)

    @property
    def kind(self) -> str:
        """The kind of column that it is, perhaps with some errors."""
        return NUMBER if are_numbers(self.numbers, self.values) else CATEGORY


def kinds_of(counts: Mapping[str, ColumnCounts], reading: Reading) -> dict[str, str]:
    """Return the kind of each column, by its values."""
    return {name: own.kind for name, own in counts.items()}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The columns of one table: counts, words, and the moments of every client's train rows."""

    counts: Mapping[str, ColumnCounts]
    words: Mapping[str, Vocabulary]
    moments: RunningMoments
    rows: Array
    targets: int

    def sums(self, kinds: Mapping[str, str], classes: Sequence[str] = (), targets: Sequence[str] = ()) -> list[Sums]:
        """Return the sums of each client, given the kinds of columns; words leave it for categories only.

        The ``targets`` of several are among the numbers, by name.
        """
        columns = {name: i for i, name in enumerate(self.counts)}
        numbers = {name: i for name, i in columns.items() if kinds[name] == NUMBER}
        numbers |= {name: len(columns) + i for i, name in enumerate(targets)}
        categories = {name: tuple(sorted(self.words[name].words)) for name in columns if kinds[name] == CATEGORY}
        return [
            Sums(
                rows=int(self.rows[client]),
                numbers={name: self.moments.of(column, client) for name, column in numbers.items()},
                categories=categories,
                classes=tuple(classes),
                target=self.moments.of(len(columns), client) if self.targets == 1 else None,
            )
            for client in range(len(self.rows))
        ]


def profile(
    table: Table,
    features: Sequence[str],
    *,
    owners: Array,
    train: Array,
    clients: int,
    targets: Array | None = None,
) -> Profile:
    """Read all features of a table.

    ``owners`` holds the client of every row, ``train`` whether it is for training, and ``targets`` its target in a
    regression, ``(n,)``, or its several targets, ``(n, k)``.
    """
    predicted = () if targets is None else targets.reshape(len(owners), -1).T
    counts = dict.fromkeys(features, ColumnCounts())
    words = {name: Vocabulary(MOST_VALUES) for name in features}
    moments = RunningMoments(len(features) + len(predicted), clients)
    for rows, block in table.numbered_blocks(features, len(owners)):
        for column, name in enumerate(features):
            cells = block.cells(name)
            spelled, missing = int((~np.isnan(cells.numbers)).sum()), int(cells.missing.sum())
            counts[name] += ColumnCounts(len(block) - missing, spelled, missing)
            words[name].add(cells)
            _add_train(moments, column, owners[rows], train[rows], cells.numbers)
    for column, values in enumerate(predicted, len(features)):
        _add_train(moments, column, owners, train, values)
    return Profile(
        counts=counts,
        words=words,
        moments=moments,
        rows=np.bincount(owners[train], minlength=clients),
        targets=len(predicted),
    )


def _add_train(moments: RunningMoments, column: int, owners: Array, train: Array, numbers: Array) -> None:
    counted = train & np.isfinite(numbers)
    moments.add(column, owners[counted], numbers[counted])


def total_counts(profiles: Sequence[Profile], features: Sequence[str]) -> dict[str, ColumnCounts]:
    """Return the counts of each column over all tables."""
    return {name: sum((each.counts[name] for each in profiles), ColumnCounts()) for name in features}


def total_words(profiles: Sequence[Profile], features: Sequence[str]) -> dict[str, set[str]]:
    """Return the different words of each column over all tables; more than ``MOST_VALUES`` are not all listed."""
    return {name: {word for each in profiles for word in each.words[name].words} for name in features}


def check_columns(
    file: str,
    counts: Mapping[str, ColumnCounts],
    kinds: Mapping[str, str],
    words: Mapping[str, Collection[str]],
    problems: Problems,
) -> None:
    """Refuse columns without values, and categories with too many words to recur in other rows."""
    for name, own in counts.items():
        if not own.values:
            _refuse(file, name, "has no value at all", problems)
        elif kinds[name] == CATEGORY:
            distinct = len(words[name])
            many = distinct > MOST_VALUES
            if many or (distinct >= ID_FROM and distinct > ID_SHARE * own.values):
                count = f"more than {MOST_VALUES}" if many else str(distinct)
                _refuse(file, name, f"has {count} different words in {own.values} rows{_hint(own)}", problems)


def _hint(counts: ColumnCounts) -> str:
    others = counts.values - counts.numbers
    return f", and {others} that are not numbers among {counts.numbers} numbers" if counts.numbers > others else ""


def _refuse(file: str, name: str, what: str, problems: Problems) -> None:
    problems.add(Problem(file, None, f"column {name!r} {what}", f"leave it out with --ignore {name}"))


def column_notes(counts: Mapping[str, ColumnCounts], kinds: Mapping[str, str], merged: Sums, missing: str) -> list[str]:
    """Return what a user should know about the columns."""
    notes = []
    for name, own in counts.items():
        if kinds[name] == NUMBER and merged.numbers[name].squares == 0:
            notes.append(f"column {name!r} is constant in the train rows, so nothing can be learned from it")
        if kinds[name] == CATEGORY and own.numbers:
            notes.append(f"column {name!r} is taken as a category: {own.numbers} of {own.values} are numbers")
        if own.missing and missing == "mean":
            instead = "the train mean" if kinds[name] == NUMBER else "none of its values"
            notes.append(f"column {name!r} has {own.missing} missing values, which become {instead}")
    return notes
