"""Federated sums: what clients tell of their columns, so that all scale their numbers alike and nobody sees a row.

What leaves a client is a ``Sums`` and nothing else: how many train rows it has; for each number column how many
values these hold, their mean and their squared deviations from it; for each category and for the label, which values
occur, without saying where or how often. Test and validation rows never enter a mean or a deviation.

Sums are merged two by two (Chan, Golub and LeVeque, 1979), so that a column with mean 1e9 and deviation 1 keeps its
digits, as it would not in a sum of squares.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from coterie.typing import Array


@dataclass(frozen=True)
class Moments:
    """How many values there are, their mean, and the sum of their squared deviations from it."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def std(self) -> float:
        """The deviation that numbers are divided by; 1 where all are the same."""
        return math.sqrt(self.squares / self.count) if self.squares > 0 else 1.0


@dataclass(frozen=True)
class Sums:
    """What one client, or several together, tell of their columns."""

    rows: int = 0
    numbers: Mapping[str, Moments] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    target: Moments | None = None

    def table(self) -> dict[str, Any]:
        """As plain values, ready for JSON."""
        return {
            "rows": self.rows,
            "numbers": {name: _plain(each) for name, each in self.numbers.items()},
            "categories": {name: list(values) for name, values in self.categories.items()},
            "classes": list(self.classes),
            "target": None if self.target is None else _plain(self.target),
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Sums:
        """The sums that ``table`` was made of."""
        return cls(
            table["rows"],
            {name: Moments(*each) for name, each in table["numbers"].items()},
            {name: tuple(values) for name, values in table["categories"].items()},
            tuple(table["classes"]),
            None if table["target"] is None else Moments(*table["target"]),
        )


def _plain(moments: Moments) -> list[float]:
    return [moments.count, moments.mean, moments.squares]


def merge(many: Iterable[Sums]) -> Sums:
    """The sums of all together, as if their rows lay in one place.

    >>> told = [Sums(2, {"age": Moments(2, 1.0, 2.0)}), Sums(1, {"age": Moments(1, 4.0, 0.0)})]
    >>> merge(told).numbers["age"]
    Moments(count=3, mean=2.0, squares=8.0)
    """
    return reduce(_merge_two, many, Sums())


def _merge_two(left: Sums, right: Sums) -> Sums:
    return Sums(
        left.rows + right.rows,
        {
            name: merge_moments(left.numbers.get(name, Moments()), right.numbers.get(name, Moments()))
            for name in {**left.numbers, **right.numbers}
        },
        {
            name: _union(left.categories.get(name, ()), right.categories.get(name, ()))
            for name in {**left.categories, **right.categories}
        },
        _union(left.classes, right.classes),
        merge_moments(left.target or Moments(), right.target) if right.target else left.target,
    )


def _union(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*left, *right}))


def merge_moments(left: Moments, right: Moments) -> Moments:
    """The moments of two sets of values together.

    >>> merge_moments(Moments(1, 1e9, 0.0), Moments(1, 1e9 + 2, 0.0))
    Moments(count=2, mean=1000000001.0, squares=2.0)
    """
    count = left.count + right.count
    if not left.count or not right.count:
        return left if left.count else right
    apart = right.mean - left.mean
    share = right.count / count
    return Moments(count, left.mean + apart * share, left.squares + right.squares + apart * apart * left.count * share)


class Totals:
    """Running moments of several columns, for every client of a file at once, while its rows go by in blocks.

    Deviations are added up, one row after the other, from the first value that a client shows. So the size of the
    blocks changes nothing, and neither do the other clients' rows in between.
    """

    def __init__(self, columns: int, clients: int) -> None:
        self.first = np.full((columns, clients), np.nan)
        self.count = np.zeros((columns, clients), np.int64)
        self.sum = np.zeros((columns, clients))
        self.squares = np.zeros((columns, clients))

    def add(self, column: int, clients: Array, values: Array) -> None:
        """More finite values of a column, and whose they are."""
        first = self.first[column]
        if np.isnan(first).any():
            seen, places = np.unique(clients, return_index=True)
            first[seen] = np.where(np.isnan(first[seen]), values[places], first[seen])
        deviations = values - first[clients]
        self.count[column] += np.bincount(clients, minlength=len(first))
        np.add.at(self.sum[column], clients, deviations)
        np.add.at(self.squares[column], clients, deviations * deviations)

    def moments(self, column: int, client: int) -> Moments:
        """What a client's values of a column come to."""
        count = int(self.count[column, client])
        if not count:
            return Moments()
        mean = float(self.sum[column, client]) / count
        squares = float(self.squares[column, client]) - count * mean * mean
        return Moments(count, float(self.first[column, client]) + mean, max(0.0, squares))
