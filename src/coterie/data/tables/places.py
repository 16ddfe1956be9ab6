"""Where every row of a user's tables goes: to which client's train, test or validation examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.data.apportion import set_aside
from coterie.data.federated import Split
from coterie.data.store import release, room
from coterie.data.tables.problems import Problem, Problems
from coterie.data.tables.reading import Reading
from coterie.data.tables.rows import Rows
from coterie.seeding import generator
from coterie.typing import Array

TRAIN, TEST, VALIDATION = range(3)


@dataclass(frozen=True)
class Places:
    """For every row the split it belongs to and its place there; ``offsets`` says where clients begin, per split."""

    split: Array
    place: Array
    offsets: tuple[Array, ...]

    def splits(self, width: int, dtype: type) -> tuple[Split, ...]:
        """Splits of the right size, not yet filled."""
        sizes = [int(offsets[-1]) for offsets in self.offsets]
        return tuple(
            Split(room((size, width), np.float32), room((size,), dtype), offsets)
            for size, offsets in zip(sizes, self.offsets, strict=True)
        )

    def fill(self, splits: tuple[Split, ...], rows: slice, x: Array, y: Array) -> None:
        """Put the arrays of some rows where they belong."""
        for which, split in enumerate(splits):
            own = np.flatnonzero(self.split[rows] == which)
            to = self.place[rows][own]
            split.x[to], split.y[to] = x[own], y[own]
            release(split.x)


def find_places(rows: Rows, y: Array, reading: Reading, file: str, problems: Problems) -> Places:
    """Divide every client's rows, by class; drawn from the seed and the client's name and rows alone."""
    split = np.zeros(len(y), np.int8)
    place = np.zeros(len(y), np.min_scalar_type(len(y)))
    clients = len(rows.names)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows.owners, minlength=clients))])
    order = np.argsort(rows.owners, kind="stable")
    filled = np.zeros((3, clients + 1), np.int64)
    for client, name in enumerate(rows.names):
        own = order[starts[client] : starts[client + 1]]
        for which, part in enumerate(_divide(y[own], name, reading, file, problems)):
            split[own[part]] = which
            place[own[part]] = filled[which, client] + np.arange(len(part))
            filled[which, client + 1] = filled[which, client] + len(part)
    return Places(split, place, tuple(filled if reading.validation else filled[:VALIDATION]))


def _divide(y: Array, name: str, reading: Reading, file: str, problems: Problems) -> tuple[Array, Array, Array]:
    """The rows of one client for train, test and validation, each in order."""
    least = 3 if reading.validation else 2
    if len(y) < least:
        what = f"client {name!r} has {len(y)} row{'s' * (len(y) > 1)}; train and test need {least} at least"
        problems.add(Problem(file, None, what, "add rows, or leave the client out"))
        return np.arange(len(y)), np.arange(0), np.arange(0)
    keep, test = set_aside(y, reading.test, generator(reading.seed, "test", name))
    if not reading.validation:
        return keep, test, np.arange(0)
    own, other = set_aside(y[keep], reading.validation, generator(reading.seed, "validation", name))
    return keep[own], test, keep[other]
