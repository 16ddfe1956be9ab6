"""Federated sums: what clients share about their columns, so that all scale numbers alike and no row is shared.

Only a ``Sums`` leaves a client: the number of its train rows; for each number column the number of values, their mean
and the sum of their squared deviations from it, and for dates the same of the day and of the hour of the day; for each
category, for whole numbers of which all clients have few, and for the label the values that occur, but not where or how
often; and for each column how many values are missing. Test and validation rows never enter a mean or a deviation.

Sums are merged two by two (Chan, Golub and LeVeque, 1979), so that a column with mean 1e9 and deviation 1 keeps its
digits, which a sum of squares would lose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from coterie.typing import Array

Words = tuple[str, ...]


@dataclass(frozen=True)
class Moments:
    """The number of some values, their mean, and the sum of their squared deviations from it."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def std(self) -> float:
        """The standard deviation that numbers are divided by; 1 where all values are equal."""
        return math.sqrt(self.squares / self.count) if self.squares > 0 else 1.0


@dataclass(frozen=True)
class Dates:
    """The moments of dates: of their days since the beginning of 2000, and of their hours of the day."""

    days: Moments = Moments()
    hours: Moments = Moments()


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What one client shares about its columns, or several clients together.

    ``dates`` holds for each column of dates the moments of its days and of its hours of the day; ``missing`` counts the
    train rows in which a column has no value, where there are any; ``values`` are the different whole numbers of
    columns that have few.
    """

    rows: int = 0
    numbers: Mapping[str, Moments] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    target: Moments | None = None
    dates: Mapping[str, Dates] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def table(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "rows": self.rows,
            "numbers": {name: _plain(each) for name, each in self.numbers.items()},
            "categories": {name: list(values) for name, values in self.categories.items()},
            "classes": list(self.classes),
            "target": None if self.target is None else _plain(self.target),
            "dates": {name: [_plain(each.days), _plain(each.hours)] for name, each in self.dates.items()},
            "missing": dict(self.missing),
            "values": {name: list(values) for name, values in self.values.items()},
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Sums:
        """Return the sums that ``table`` was made from."""
        return cls(
            rows=table["rows"],
            numbers={name: Moments(*each) for name, each in table["numbers"].items()},
            categories={name: tuple(values) for name, values in table["categories"].items()},
            classes=tuple(table["classes"]),
            target=None if table["target"] is None else Moments(*table["target"]),
            dates={name: Dates(*(Moments(*each) for each in pair)) for name, pair in table.get("dates", {}).items()},
            missing=dict(table.get("missing", {})),
            values={name: tuple(values) for name, values in table.get("values", {}).items()},
        )


def merge(many: Iterable[Sums]) -> Sums:
    """Return the sums of all clients together, as if their rows were in one table.

    >>> one, other = Moments(2, 1.0, 2.0), Moments(1, 4.0, 0.0)
    >>> merge([Sums(rows=2, numbers={"age": one}), Sums(rows=1, numbers={"age": other})]).numbers["age"]
    Moments(count=3, mean=2.0, squares=8.0)
    """
    return reduce(_merge_two, many, Sums())


def merge_moments(left: Moments, right: Moments) -> Moments:
    """Return the moments of two sets of values together.

    >>> merge_moments(Moments(1, 1e9, 0.0), Moments(1, 1e9 + 2, 0.0))
    Moments(count=2, mean=1000000001.0, squares=2.0)
    """
    count = left.count + right.count
    if not left.count or not right.count:
        return left if left.count else right
    apart = right.mean - left.mean
    share = right.count / count
    return Moments(count, left.mean + apart * share, left.squares + right.squares + apart * apart * left.count * share)


def _merge_two(left: Sums, right: Sums) -> Sums:
    return Sums(
        rows=left.rows + right.rows,
        numbers={
            name: merge_moments(left.numbers.get(name, Moments()), right.numbers.get(name, Moments()))
            for name in {**left.numbers, **right.numbers}
        },
        categories=_union_each(left.categories, right.categories),
        values=_union_each(left.values, right.values),
        classes=_union(left.classes, right.classes),
        target=merge_moments(left.target or Moments(), right.target) if right.target else left.target,
        dates={
            name: _merge_dates(left.dates.get(name, Dates()), right.dates.get(name, Dates()))
            for name in {**left.dates, **right.dates}
        },
        missing={
            name: left.missing.get(name, 0) + right.missing.get(name, 0) for name in {**left.missing, **right.missing}
        },
    )


def _merge_dates(left: Dates, right: Dates) -> Dates:
    return Dates(merge_moments(left.days, right.days), merge_moments(left.hours, right.hours))


def _union_each(left: Mapping[str, Words], right: Mapping[str, Words]) -> dict[str, Words]:
    return {name: _union(left.get(name, ()), right.get(name, ())) for name in {**left, **right}}


def _union(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*left, *right}))


def _plain(moments: Moments) -> list[float]:
    return [moments.count, moments.mean, moments.squares]


class RunningMoments:
    """The moments of several columns for every client of a table, updated block by block.

    Deviations are added up, one row after the other, from the first value that a client has. So the size of the
    blocks changes nothing, nor do other clients' rows in between.
    """

    def __init__(self, columns: int, clients: int) -> None:
        self.first = np.full((columns, clients), np.nan)
        self.count = np.zeros((columns, clients), np.int64)
        self.sum = np.zeros((columns, clients))
        self.squares = np.zeros((columns, clients))

    def add(self, column: int, clients: Array, values: Array) -> None:
        """Add finite values of a column, each with the number of its client."""
        first = self.first[column]
        if np.isnan(first).any():
            seen, rows = np.unique(clients, return_index=True)
            first[seen] = np.where(np.isnan(first[seen]), values[rows], first[seen])
        deviations = values - first[clients]
        self.count[column] += np.bincount(clients, minlength=len(first))
        np.add.at(self.sum[column], clients, deviations)
        np.add.at(self.squares[column], clients, deviations * deviations)

    def of(self, column: int, client: int) -> Moments:
        """Return the moments of a client's values of a column."""
        count = int(self.count[column, client])
        if not count:
            return Moments()
        mean = float(self.sum[column, client]) / count
        squares = float(self.squares[column, client]) - count * mean * mean
        return Moments(count, float(self.first[column, client]) + mean, max(0.0, squares))
