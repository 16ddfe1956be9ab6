"""Division of a data set: weights, or a table of clients and classes, become the rows of each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.apportion import mixes, share_out, top_up
from coterie.data.partitions.base import Rng, Share, Shares, require_classes, require_whole
from coterie.errors import PartitionError
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset


@dataclass(frozen=True)
class Pool:
    """The examples to divide: the class of every train and of every test example."""

    train: Array
    test: Array
    classes: int

    @property
    def counts(self) -> Array:
        """The number of train examples of each class."""
        return np.bincount(self.train, minlength=self.classes)


def by_class(data: Dataset, clients: int, minimum: int) -> Pool:
    """Return the examples by class, for partitions that divide each class; refuse too few for these clients."""
    classes = require_classes("this partition", data)
    _require_enough(data, clients, minimum)
    return Pool(data.y_train, data.y_test, classes)


def divide_by_weights(pool: Pool, weights: Array, minimum: int, rng: Rng, groups: Array | None = None) -> Shares:
    """Divide each class by its column of ``weights``, in train and test alike."""
    table, moved = _table(pool.counts, weights, minimum)
    return divide_by_table(pool, table, rng, groups, _topped_up(moved, minimum, "train"))


def divide_in_groups(pool: Pool, held: Array, weights: Sequence[Array], minimum: int, rng: Rng) -> Shares:
    """Divide what each group holds, ``(groups, classes)``, among its clients by the weights of the group."""
    filled = [_table(counts, own, minimum) for counts, own in zip(held, weights, strict=True)]
    table, moved = (np.concatenate(parts) for parts in zip(*filled, strict=True))
    groups = np.repeat(np.arange(len(held)), [len(own) for own in weights])
    return divide_by_table(pool, table, rng, groups, _topped_up(moved, minimum, "train"))


def divide_equally(data: Dataset, clients: int, minimum: int, rng: Rng) -> Shares:
    """Divide the whole set into equal parts at random, without regard to labels."""
    _require_enough(data, clients, minimum)
    as_one_class = Pool(np.zeros(len(data.y_train), np.int64), np.zeros(len(data.y_test), np.int64), 1)
    return divide_by_weights(as_one_class, np.ones((clients, 1)), minimum, rng)


def divide_by_table(
    pool: Pool, train: Array, rng: Rng, groups: Array | None = None, notes: tuple[str, ...] = ()
) -> Shares:
    """Draw as many train rows of each class as the table has for each client, and test rows in proportion."""
    test_counts = np.bincount(pool.test, minlength=pool.classes)
    plain = share_out(test_counts, train)
    test = top_up(plain, mixes(train), 1, "test")
    moved = np.maximum(test.sum(axis=1) - plain.sum(axis=1), 0)
    rows = zip(_draw_rows(pool.train, train, rng), _draw_rows(pool.test, test, rng), strict=True)
    clients = tuple(Share(own_train, own_test) for own_train, own_test in rows)
    left = np.stack([pool.counts - train.sum(axis=0), test_counts - test.sum(axis=0)])
    return Shares(clients, groups, notes=(*notes, *_topped_up(moved, 1, "test"), *_unused(left, train.sum(axis=0) > 0)))


def rows_of(owners: Array, clients: int) -> list[Array]:
    """Return the rows of each client, in order, given the owner of every row (-1 where it has none).

    >>> [rows.tolist() for rows in rows_of(np.array([1, -1, 0, 1]), 2)]
    [[2], [0, 3]]
    """
    order = np.argsort(owners, kind="stable")
    return np.split(order, np.searchsorted(owners[order], np.arange(clients)))[1:]


def even_groups(clients: int, groups: int) -> Array:
    """Return the number of clients of each group, as equal as possible.

    >>> even_groups(10, 4).tolist()
    [3, 3, 2, 2]
    """
    require_whole("groups", groups)
    if groups > clients:
        raise PartitionError(
            f"{groups} groups need as many clients and there are {clients}; use more clients or fewer groups"
        )
    return clients // groups + (np.arange(groups) < clients % groups)


def _require_enough(data: Dataset, clients: int, minimum: int) -> None:
    require_whole("clients", clients)
    require_whole("minimum", minimum)
    if clients * minimum > len(data.y_train):
        raise PartitionError(
            f"{clients} clients x {minimum} examples need {clients * minimum} train examples and {data.name} has "
            f"{len(data.y_train)}; use at most {len(data.y_train) // minimum} clients or a smaller minimum"
        )
    if clients > len(data.y_test):
        raise PartitionError(
            f"{clients} clients need a test example each and {data.name} has {len(data.y_test)}; "
            f"use at most {len(data.y_test)} clients"
        )


def _table(counts: Array, weights: Array, minimum: int) -> tuple[Array, Array]:
    """Return the train table of these weights, topped up to ``minimum``, and the examples that each client gained."""
    table = share_out(counts, weights)
    full = top_up(table, mixes(weights * counts), minimum, "train")
    return full, np.maximum(full.sum(axis=1) - table.sum(axis=1), 0)


def _draw_rows(labels: Array, table: Array, rng: Rng) -> list[Array]:
    """Return the rows of each client, in order: each class is shuffled, then cut by its column of the table."""
    owners = np.full(len(labels), -1)
    for column in range(table.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == column))
        owners[rows[: table[:, column].sum()]] = np.repeat(np.arange(len(table)), table[:, column])
    return rows_of(owners, len(table))


def _topped_up(moved: Array, minimum: int, what: str) -> tuple[str, ...]:
    """Return a note on the number of clients that were topped up, if any were."""
    count = int(np.count_nonzero(moved))
    if not count:
        return ()
    return (f"{count} of {len(moved)} clients were topped up to {minimum} {what} examples, {moved.sum()} in all",)


def _unused(left: Array, held: Array) -> tuple[str, ...]:
    """Return notes on examples ``left (2, classes)``: of classes that nobody holds, and of classes ``held``."""
    notes = []
    for kind, why in ((~held, "nobody holds class"), (held, "there are more than asked for of class")):
        numbers = np.flatnonzero(kind & left.any(axis=0))
        if numbers.size:
            unused_train, unused_test = left[:, numbers].sum(axis=1)
            which = ", ".join(map(str, numbers))
            notes.append(f"{unused_train} train and {unused_test} test examples are unused: {why} {which}")
    return tuple(notes)
