"""Handing out: from a table of how many examples of each class every client gets to the rows it gets.

Most partitions only decide weights, clients x classes. Every row goes to one client at most, because it is the row
that is marked with its owner; each class of the test set is divided as that class was in train.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.partitioning.limits import require_classes, require_whole
from coterie.data.partitioning.shares import Array, Rng, Share, Shares
from coterie.data.tables import mixes, share_out, top_up
from coterie.errors import PartitionError

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset


@dataclass(frozen=True)
class Pool:
    """What is to be handed out: the class of every train and of every test example."""

    train: Array
    test: Array
    classes: int

    @property
    def counts(self) -> Array:
        """How many train examples each class has."""
        return np.bincount(self.train, minlength=self.classes)

    @property
    def test_counts(self) -> Array:
        """How many test examples each class has."""
        return np.bincount(self.test, minlength=self.classes)


def by_class(data: Dataset, clients: int, minimum: int) -> Pool:
    """The data set as classes, for partitions that divide each class on its own; enough for these clients."""
    classes = require_classes("this partition", data)
    _check_room(data, clients, minimum)
    return Pool(data.y_train, data.y_test, classes)


def as_one(data: Dataset, clients: int, minimum: int) -> Pool:
    """The data set as a single class, for partitions that do not look at labels; enough for these clients."""
    _check_room(data, clients, minimum)
    return Pool(np.zeros(len(data.y_train), np.int64), np.zeros(len(data.y_test), np.int64), 1)


def _check_room(data: Dataset, clients: int, minimum: int) -> None:
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


def _fill(counts: Array, weights: Array, minimum: int) -> tuple[Array, Array]:
    """The train table of these weights, topped up to ``minimum``, and how many examples that moved to each client."""
    table = share_out(counts, weights)
    full = top_up(table, mixes(weights * counts), minimum, "train")
    return full, np.maximum(full.sum(axis=1) - table.sum(axis=1), 0)


def hand_out(pool: Pool, weights: Array, minimum: int, rng: Rng, groups: Array | None = None) -> Shares:
    """Divide each class by its column of ``weights``, in train and test alike."""
    table, moved = _fill(pool.counts, weights, minimum)
    return settle(pool, table, rng, groups, _topped_up(moved, minimum, "train"))


def hand_to_groups(pool: Pool, held: Array, weights: Sequence[Array], minimum: int, rng: Rng) -> Shares:
    """Divide what each group holds, ``(groups, classes)``, over its clients by the group's own weights."""
    filled = [_fill(counts, own, minimum) for counts, own in zip(held, weights, strict=True)]
    table, moved = (np.concatenate(parts) for parts in zip(*filled, strict=True))
    groups = np.repeat(np.arange(len(held)), [len(own) for own in weights])
    return settle(pool, table, rng, groups, _topped_up(moved, minimum, "train"))


def equal_shares(data: Dataset, clients: int, minimum: int, rng: Rng) -> Shares:
    """Divide the whole set into equal parts at random, whatever its labels."""
    pool = as_one(data, clients, minimum)
    return hand_out(pool, np.ones((clients, 1)), minimum, rng)


def settle(pool: Pool, train: Array, rng: Rng, groups: Array | None = None, notes: tuple[str, ...] = ()) -> Shares:
    """Turn a train table into shares: each class of the test set is divided as in train, rows are drawn at random."""
    plain = share_out(pool.test_counts, train)
    test = top_up(plain, mixes(train), 1, "test")
    moved = np.maximum(test.sum(axis=1) - plain.sum(axis=1), 0)
    rows = zip(_rows(pool.train, train, rng), _rows(pool.test, test, rng), strict=True)
    clients = tuple(Share(own, check) for own, check in rows)
    return Shares(clients, groups, (*notes, *_topped_up(moved, 1, "test"), *_unused(pool, train, test)))


def _topped_up(moved: Array, minimum: int, what: str) -> tuple[str, ...]:
    """A note of how many clients were topped up, if any were."""
    count = int(np.count_nonzero(moved))
    if not count:
        return ()
    return (f"{count} of {len(moved)} clients were topped up to {minimum} {what} examples, {moved.sum()} in all",)


def _unused(pool: Pool, train: Array, test: Array) -> tuple[str, ...]:
    """A note of what is left over: classes that nobody holds, and classes of which fewer were asked for."""
    left = np.stack([pool.counts - train.sum(axis=0), pool.test_counts - test.sum(axis=0)])
    held = train.any(axis=0)
    notes = []
    for kind, why in ((~held, "nobody holds class"), (held, "there are more than asked for of class")):
        numbers = np.flatnonzero(kind & left.any(axis=0))
        if numbers.size:
            own, check = left[:, numbers].sum(axis=1)
            which = ", ".join(map(str, numbers))
            notes.append(f"{own} train and {check} test examples are unused: {why} {which}")
    return tuple(notes)


def _rows(labels: Array, table: Array, rng: Rng) -> list[Array]:
    """The rows of each client, in order: each class shuffled, then cut by its column."""
    owners = np.full(len(labels), -1)
    for column in range(table.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == column))
        owners[rows[: table[:, column].sum()]] = np.repeat(np.arange(len(table)), table[:, column])
    return rows_of(owners, len(table))


def rows_of(owners: Array, clients: int) -> list[Array]:
    """The rows of each client, in order, from the owner of every row (-1 where it has none).

    >>> [rows.tolist() for rows in rows_of(np.array([1, -1, 0, 1]), 2)]
    [[2], [0, 3]]
    """
    order = np.argsort(owners, kind="stable")
    return np.split(order, np.searchsorted(owners[order], np.arange(clients)))[1:]


def even(clients: int, groups: int) -> Array:
    """Clients per group, as equal as possible.

    >>> even(10, 4).tolist()
    [3, 3, 2, 2]
    """
    require_whole("groups", groups)
    if groups > clients:
        raise PartitionError(
            f"{groups} groups need as many clients and there are {clients}; use more clients or fewer groups"
        )
    return clients // groups + (np.arange(groups) < clients % groups)
