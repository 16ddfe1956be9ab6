"""Apportionment: whole numbers in given proportions, such as how many examples of each class each client gets.

A table has a row per client and a column per class. Weights become a table by largest remainder, and rows that come
out too small are topped up. Every loop ends: each step of a top-up brings one client one example nearer to its minimum.
At the end are stratified draws: row numbers, set aside or sampled so that every class keeps its share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from coterie.errors import DataError, PartitionError
from coterie.seeding import generator
from coterie.typing import Array

Transfer = tuple[int, int, int]


def apportion(total: int, weights: Array, held: Array | None = None) -> Array:
    """Divide ``total`` in proportion to the weights, by largest remainder; ties go to the smallest ``held``.

    >>> apportion(10, np.array([3.0, 3.0, 1.0])).tolist()
    [4, 4, 2]
    """
    if not weights.any():
        return np.zeros(len(weights), np.int64)
    quotas = total * (weights / weights.sum())
    shares: Array = np.floor(quotas).astype(np.int64)
    order = np.lexsort((np.zeros(len(weights)) if held is None else held, shares - quotas))
    shares[order[: total - int(shares.sum())]] += 1
    return shares


def share_out(totals: Array, weights: Array) -> Array:
    """Return the table with columns that add up to ``totals``, each divided by its weights; nobody gets a zero column.

    >>> share_out(np.array([4, 3]), np.array([[1.0, 1.0], [3.0, 1.0]])).tolist()
    [[1, 2], [3, 1]]
    """
    table = np.zeros(weights.shape, np.int64)
    for column, total in enumerate(totals):
        table[:, column] = apportion(int(total), weights[:, column], table.sum(axis=1))
    return table


def mixes(table: Array) -> Array:
    """Return each row divided by its sum: the share of each class in a client's examples."""
    sums = table.sum(axis=1, keepdims=True)
    shares: Array = np.divide(table, sums, out=np.full(table.shape, 1 / table.shape[1]), where=sums > 0)
    return shares


def top_up(table: Array, mix: Array, least: int | Array, what: str) -> Array:
    """Return the table with every row raised to ``least`` by taking from the largest holders of its classes.

    A row takes the class it lacks most compared with its ``mix``, and never one that is absent from it. Where all
    holders are at their minimum themselves, the example is passed on along a chain that starts at a client with more;
    so this fails only if there is no such table.

    >>> top_up(np.array([[0, 0], [9, 1], [5, 5]]), np.array([[0.5, 0.5]] * 3), 2, "train").tolist()
    [[1, 1], [8, 1], [5, 4]]
    """
    table, least = table.copy(), np.broadcast_to(least, len(table))
    for poor in np.flatnonzero(table.sum(axis=1) < least):
        while table[poor].sum() < least[poor]:
            chain = _chain(table, mix, least, int(poor))
            if not chain:
                raise PartitionError(
                    f"client {poor} cannot have its minimum of {least[poor]} {what} examples: its classes have too few "
                    f"for all their holders; use fewer clients, a smaller minimum or another seed"
                )
            for giver, taker, column in chain:
                table[giver, column] -= 1
                table[taker, column] += 1
    return table


def balance(weights: Array, rows: Array, columns: Array, steps: int = 500) -> Array:
    """Scale weights by rows and columns in turn until these are their sums, at most ``steps`` times."""
    for _ in range(steps):
        weights = weights * (rows / weights.sum(axis=1))[:, None]
        weights = weights * (columns / weights.sum(axis=0))
        if np.abs(weights.sum(axis=1) - rows).max() < 0.5:
            break
    return weights


def _chain(table: Array, mix: Array, least: Array, poor: int) -> list[Transfer]:
    """Return the shortest chain of transfers ``(giver, taker, class)`` to ``poor``; empty if there is none."""
    spare = table.sum(axis=1) > least
    reached: dict[int, list[Transfer]] = {poor: []}
    queue = deque([poor])
    while queue:
        taker = queue.popleft()
        for column in _lacking(table[taker], mix[taker]):
            holders = np.flatnonzero(table[:, column])
            rich = holders[spare[holders]]
            if rich.size:
                giver = int(rich[np.argmax(table[rich, column])])
                return [(giver, taker, column), *reached[taker]]
            for holder in map(int, holders):
                if holder not in reached:
                    reached[holder] = [(holder, taker, column), *reached[taker]]
                    queue.append(holder)
    return []


def _lacking(row: Array, mix: Array) -> list[int]:
    """Return the classes of a mix, beginning with the one that the row lacks most."""
    gaps = mix * (row.sum() + 1) - row
    order = np.argsort(-gaps, kind="stable")
    return [int(column) for column in order if mix[column] > 0]


def stratified_split(y: Array, fraction: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the rows to keep and the rows to set aside, each class in proportion.

    Rows with targets, or several labels, count as of one class.

    At least one row is set aside and at least one is kept, so ``y`` needs two.

    >>> keep, aside = stratified_split(np.array([0] * 8 + [1] * 2), 0.5, np.random.default_rng(1))
    >>> len(keep), len(aside), int((aside >= 8).sum())
    (5, 5, 1)
    """
    aside = stratified_sample(y, int(np.clip(round(len(y) * fraction), 1, len(y) - 1)), rng)
    return np.setdiff1d(np.arange(len(y)), aside), aside


def stratified_sample(y: Array, count: int, rng: np.random.Generator) -> Array:
    """Draw ``count`` rows, in ascending order, each class in proportion (targets, or several labels, are one class)."""
    kinds = np.zeros(len(y), np.int64) if y.dtype.kind == "f" or y.ndim > 1 else np.unique(y, return_inverse=True)[1]
    shares = apportion(count, np.bincount(kinds))
    rows = [rng.permutation(np.flatnonzero(kinds == kind)) for kind in range(len(shares))]
    return np.sort(np.concatenate([own[:share] for own, share in zip(rows, shares, strict=True)]))


def split_by_owner(data: str, names: Sequence[str], owners: Array, y: Array) -> tuple[Array, Array]:
    """Return rows for training and for testing, owner after owner: one in five rows of each owner tests, by class.

    The split is part of the data set, so it does not depend on a run's seed but on the names of data and owner.

    >>> train, test = split_by_owner("toy", ["a", "b"], np.arange(20) % 2, np.zeros(20, int))
    >>> len(train), len(test), sorted({*train, *test}) == list(range(20))
    (16, 4, True)
    """
    kept, aside = [], []
    for number, name in enumerate(names):
        rows = np.flatnonzero(owners == number)
        if len(rows) < 2:
            raise DataError(
                f"{name} of {data} has {len(rows)} examples, none to test on; leave out owners with fewer than 2"
            )
        keep, test = stratified_split(y[rows], 0.2, generator(0, data, name))
        kept.append(rows[keep])
        aside.append(rows[test])
    return np.concatenate(kept), np.concatenate(aside)
