"""Columns: which ones a user's tables must have, and of what kind each is.

A site that is alone with its table shares two things about it: first, for each column, the number of values and how
many of them are numbers or dates, from which all sites agree on the kinds; then its ``Sums`` for these kinds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.tables.cells import Vocabulary, canonical, is_whole
from coterie.data.tables.problems import BadFile, Problem, Problems
from coterie.data.tables.reading import Reading
from coterie.data.tables.spellings import spelt
from coterie.data.tables.sums import Dates, RunningMoments, Sums
from coterie.errors import did_you_mean
from coterie.limits import COLUMNS
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.tables.files import Table

MOSTLY = 0.9
"""A column with a larger share of numbers or dates than this holds these, and its other values are errors."""

NUMBER, COUNT, DATE, CATEGORY = "number", "count", "date", "category"
"""The kinds of columns; a count is a number that may also have an input for each of its values."""

MOST_COUNTS, ROWS_EACH = 32, 100
"""A column of whole numbers has an input for each value, too, if these are few and each has many train rows."""

MOST_VALUES = 1000
"""Different words for which a category has an input each; one with more must be declared, and shares inputs."""

SHOWN = 30
"""Columns that are named where one is missing."""

FEW = 3
"""Columns with missing values that are noted one by one."""

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
    _check_named(tables, reading, problems)
    return kept, features


def require_roles(table: Table, reading: Reading) -> None:
    """Refuse a table without a label, the client, the group or an attribute column."""
    for name in reading.roles:
        if name not in table.columns:
            remedy = f"name another with --{reading.option_of(name)}"
            raise BadFile(table.file, None, *absent(name, table.columns, remedy))


def absent(name: str, columns: Sequence[str], remedy: str) -> tuple[str, str]:
    """Return the problem of a column that a table does not have, and the remedy."""
    more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
    return (
        f"has no column {name!r} but {', '.join(columns[:SHOWN])}{more}",
        f"{did_you_mean(name, columns)} {remedy}".strip(),
    )


def _check_same(file: str, own: Sequence[str], features: Sequence[str], first: str) -> None:
    for name in features:
        if name not in own:
            raise BadFile(file, None, f"has no column {name!r}, which {first} has", "all need the same columns")
    for name in own:
        if name not in features:
            what = f"has the column {name!r}, which {first} has not"
            raise BadFile(file, None, what, f"all need the same columns; add it there, or --ignore {name}")


def _check_named(tables: Sequence[Table], reading: Reading, problems: Problems) -> None:
    named = [("ignore", name) for name in reading.ignore] + [("categorical", name) for name in reading.categorical]
    for option, name in named:
        if tables and not any(name in table.columns for table in tables):
            what, remedy = absent(name, tables[0].columns, f"correct --{option}")
            problems.add(Problem(tables[0].file, None, what, remedy))


def are_numbers(numbers: int, values: int) -> bool:
    """Return whether a column holds numbers (or dates), from how many of its values are numbers.

    >>> are_numbers(10, 10), are_numbers(95, 100), are_numbers(5, 10)
    (True, True, False)
    """
    return numbers == values or numbers > MOSTLY * values


@dataclass(frozen=True)
class ColumnCounts:
    """Of the fields of a column, how many hold a value, how many of these are numbers or dates; and how many none.

    ``distinct`` is the number of different values where these are few whole numbers, else more than MOST_COUNTS. Over
    several tables it is the most of any: how many they have together is known when their values are.
    """

    values: int = 0
    numbers: int = 0
    missing: int = 0
    dates: int = 0
    distinct: int = 0

    def __add__(self, other: ColumnCounts) -> ColumnCounts:
        return ColumnCounts(
            self.values + other.values,
            self.numbers + other.numbers,
            self.missing + other.missing,
            self.dates + other.dates,
            max(self.distinct, other.distinct),
        )

    @property
    def kind(self) -> str:
        """The kind of column that it is, perhaps with some errors."""
        if are_numbers(self.numbers, self.values):
            return COUNT if has_inputs_for_values(self.distinct, self.values) else NUMBER
        return DATE if are_numbers(self.dates, self.values) else CATEGORY


def has_inputs_for_values(distinct: int, rows: int) -> bool:
    """Return whether whole numbers are few enough, and recur often enough, for an input each.

    >>> has_inputs_for_values(12, 336776), has_inputs_for_values(12, 100), has_inputs_for_values(2, 336776)
    (True, False, False)
    """
    return 2 < distinct <= MOST_COUNTS and rows >= ROWS_EACH * distinct


def whole_values(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return the different whole numbers of a column in order; nothing where it has others, or too many."""
    words = vocabulary.words
    whole = {canonical(word) for word in words} if len(words) <= 2 * MOST_COUNTS else set()
    few = len(whole) <= MOST_COUNTS and all(map(is_whole, whole))
    return tuple(sorted(whole, key=int)) if few else ()


def kinds_of(counts: Mapping[str, ColumnCounts], reading: Reading) -> dict[str, str]:
    """Return the kind of each column: by its values, unless the user declared it a category."""
    return {name: CATEGORY if name in reading.categorical else own.kind for name, own in counts.items()}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The columns of one table: counts, words, and the moments of every client's train rows.

    ``dates`` holds the moments of days and hours of the columns in which there are dates, and ``gaps`` the number of
    missing values of every column in the train rows of every client.
    """

    counts: Mapping[str, ColumnCounts]
    words: Mapping[str, Vocabulary]
    moments: RunningMoments
    dates: Mapping[str, RunningMoments]
    gaps: Array
    rows: Array
    targets: int

    def sums(self, kinds: Mapping[str, str], classes: Sequence[str] = (), targets: Sequence[str] = ()) -> list[Sums]:
        """Return the sums of each client, given the kinds of columns; words leave it for categories only.

        The ``targets`` of several are among the numbers, by name.
        """
        columns = {name: i for i, name in enumerate(self.counts)}
        numbers = {name: i for name, i in columns.items() if kinds[name] in (NUMBER, COUNT)}
        values = {name: whole_values(self.words[name]) for name in columns if kinds[name] == COUNT}
        numbers |= {name: len(columns) + i for i, name in enumerate(targets)}
        categories = {name: tuple(sorted(self.words[name].words)) for name in columns if kinds[name] == CATEGORY}
        dates = [name for name in columns if kinds[name] == DATE]
        return [
            Sums(
                rows=int(self.rows[client]),
                numbers={name: self.moments.of(column, client) for name, column in numbers.items()},
                categories=categories,
                classes=tuple(classes),
                target=self.moments.of(len(columns), client) if self.targets == 1 else None,
                dates={name: self._dates(name, client) for name in dates},
                values=values,
                missing={name: int(self.gaps[i, client]) for name, i in columns.items() if self.gaps[i, client]},
            )
            for client in range(len(self.rows))
        ]

    def _dates(self, name: str, client: int) -> Dates:
        found = self.dates.get(name)
        return Dates() if found is None else Dates(found.of(0, client), found.of(1, client))


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
    moments, dates = RunningMoments(len(features) + len(predicted), clients), dict[str, RunningMoments]()
    gaps = np.zeros((len(features), clients), np.int64)
    for rows, block in table.numbered_blocks(features, len(owners)):
        for column, name in enumerate(features):
            cells = block.cells(name)
            spelled, missing = int((~np.isnan(cells.numbers)).sum()), int(cells.missing.sum())
            days = cells.dates if spelled < len(block) - missing else np.empty(0)
            found = int((~np.isnan(days)).sum())
            counts[name] += ColumnCounts(len(block) - missing, spelled, missing, found)
            words[name].add(cells)
            _add_train(moments, column, owners[rows], train[rows], cells.numbers)
            if found:
                own = dates.setdefault(name, RunningMoments(2, clients))
                for part, values in enumerate((days, days % 1 * 24)):
                    _add_train(own, part, owners[rows], train[rows], values)
            if missing:
                gaps[column] += np.bincount(owners[rows][train[rows] & cells.missing], minlength=clients)
    for column, values in enumerate(predicted, len(features)):
        _add_train(moments, column, owners, train, values)
    distinct = {name: len(whole_values(own)) or MOST_COUNTS + 1 for name, own in words.items() if counts[name].numbers}
    return Profile(
        counts={name: replace(own, distinct=distinct.get(name, 0)) for name, own in counts.items()},
        words=words,
        moments=moments,
        dates=dates,
        gaps=gaps,
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
    declared: Collection[str] = (),
) -> None:
    """Refuse columns without values, and categories with too many words to recur in other rows, unless declared."""
    for name, own in counts.items():
        if not own.values:
            _refuse(file, name, "has no value at all", problems)
        elif kinds[name] == CATEGORY and name not in declared and _identifies(own, len(words[name])):
            many, way = len(words[name]) > MOST_VALUES, spelt(words[name])
            count = f"more than {MOST_VALUES}" if many else str(len(words[name]))
            what = f"has {count} different words in {own.values} rows{_hint(own)}"
            if way is not None:
                _refuse(file, name, f"{way} and {what}", problems, f"{way.remedy}, or ")
            else:
                declare = "if its values recur, declare it with --categorical; or " if many else ""
                _refuse(file, name, what, problems, declare)


def _identifies(counts: ColumnCounts, distinct: int) -> bool:
    """Return whether a category has too many words to recur in other rows."""
    return distinct > MOST_VALUES or (distinct >= ID_FROM and distinct > ID_SHARE * counts.values)


def _hint(counts: ColumnCounts) -> str:
    others = counts.values - counts.numbers
    return f", and {others} that are not numbers among {counts.numbers} numbers" if counts.numbers > others else ""


def _refuse(file: str, name: str, what: str, problems: Problems, also: str = "") -> None:
    problems.add(Problem(file, None, f"column {name!r} {what}", f"{also}leave it out with --ignore {name}"))


def column_notes(
    counts: Mapping[str, ColumnCounts], kinds: Mapping[str, str], merged: Sums, reading: Reading
) -> list[str]:
    """Return what a user should know about the columns."""
    notes = []
    for name, own in counts.items():
        kind = kinds[name]
        if kind in (NUMBER, COUNT) and merged.numbers[name].squares == 0:
            notes.append(f"column {name!r} is constant in the train rows, so nothing can be learned from it")
        way = spelt(merged.categories[name]) if kind == CATEGORY and name not in reading.categorical else None
        if way is not None and not _identifies(own, len(merged.categories[name])):
            notes.append(f"column {name!r} {way} and is taken as a category: if it is none, {way.remedy}")
        elif kind == CATEGORY and own.numbers and name not in reading.categorical:
            notes.append(f"column {name!r} is taken as a category: {own.numbers} of {own.values} are numbers")
        if name in reading.categorical and len(merged.categories[name]) > MOST_VALUES:
            notes.append(f"column {name!r} has more than {MOST_VALUES} values, so that some share an input")
        if kind == DATE:
            hours = "the weekday and the hour" if merged.dates[name].hours.squares else "and the weekday"
            notes.append(f"column {name!r} holds dates: its inputs are the day, the time of the year, {hours}")
    return notes if reading.missing == "error" else [*notes, *_missing_notes(counts, kinds, reading)]


def _missing_notes(counts: Mapping[str, ColumnCounts], kinds: Mapping[str, str], reading: Reading) -> list[str]:
    """Return what becomes of missing values: for each column that has some, or for many together."""
    said = ", with an input that says so" if reading.missing == "indicator" else ""
    gaps = {name: own.missing for name, own in counts.items() if own.missing}
    if len(gaps) > FEW:
        most = max(gaps, key=lambda name: gaps[name])
        share = gaps[most] / (gaps[most] + counts[most].values)
        become = f"they become the train mean, and for words none of the values{said}"
        return [f"{len(gaps)} columns have missing values, most of all {most!r} ({share:.0%}); {become}"]
    instead = {name: "none of its values" if kinds[name] == CATEGORY else "the train mean" for name in gaps}
    return [
        f"column {name!r} has {count} missing values, which become {instead[name]}{said}"
        for name, count in gaps.items()
    ]
