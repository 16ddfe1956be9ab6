"""Partition by a printed table: the number of examples of each class for every group of devices.

The tables are those of "joint gradient and loss based clustered federated learning", Fig. 2: four groups that each
lack two of ten classes, for MNIST, Fashion-MNIST and CIFAR-10. The paper has eight groups of 40 of EMNIST's 47 merged
classes "in the same manner" but prints no table, so the one here follows a rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.apportion import share_out
from coterie.data.partitions.base import Divide, Rng, Shares, named, require_classes, require_switch
from coterie.data.partitions.division import Pool, by_class, divide_in_groups, even_groups
from coterie.data.partitions.label_noise import rename
from coterie.errors import PartitionError, UnknownName
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset


@dataclass(frozen=True)
class ClassTable:
    """Examples of each class for every group; or, if not ``counted``, the proportions in which to divide all."""

    rows: tuple[tuple[int, ...], ...]
    counted: bool = True

    @property
    def classes(self) -> int:
        """The number of classes that the table has a column for."""
        return len(self.rows[0])

    def divide(self, available: Array) -> Array:
        """Return what each group holds: the printed numbers, scaled down for a class with fewer examples."""
        rows = np.array(self.rows)
        return share_out(np.minimum(available, rows.sum(axis=0)) if self.counted else available, rows)


def absences(groups: int, classes: int, absent: int) -> ClassTable:
    """Return a table in which each group in turn lacks the next ``absent`` classes; the others share them evenly.

    >>> absences(3, 4, 2).rows
    ((0, 0, 1, 1), (1, 1, 0, 0), (0, 0, 1, 1))
    """
    rows = np.ones((groups, classes), np.int64)
    lacking = np.arange(groups * absent).reshape(groups, absent) % classes
    np.put_along_axis(rows, lacking, 0, axis=1)
    return ClassTable(tuple(map(tuple, rows.tolist())), counted=False)


CLASS_TABLES = {
    "mnist": ClassTable(
        (
            (1500, 1500, 1500, 2000, 1500, 2000, 1500, 0, 6000, 0),
            (1500, 1500, 1500, 2000, 1500, 0, 1500, 2000, 0, 3000),
            (1500, 1500, 1500, 0, 1500, 2000, 1500, 2000, 0, 3000),
            (1500, 1500, 1500, 2000, 1500, 2000, 1500, 2000, 0, 0),
        )
    ),
    "fashion-mnist": ClassTable(
        (
            (1500, 1500, 1500, 2000, 1500, 0, 1500, 0, 2000, 3000),
            (1500, 1500, 1500, 0, 1500, 3000, 1500, 3000, 2000, 0),
            (1500, 1500, 1500, 2000, 1500, 0, 1500, 3000, 2000, 0),
            (1500, 1500, 1500, 2000, 1500, 3000, 1500, 0, 0, 3000),
        )
    ),
    "cifar-10": ClassTable(
        (
            (1250, 1250, 1250, 1250, 1666, 0, 2500, 1666, 0, 1666),
            (1250, 1250, 1250, 1250, 0, 1666, 0, 1667, 2500, 1667),
            (1250, 1250, 1250, 1250, 1667, 1667, 2500, 0, 2500, 0),
            (1250, 1250, 1250, 1250, 1667, 1667, 0, 1667, 0, 1667),
        )
    ),
    "emnist": absences(groups=8, classes=47, absent=7),
}


@named
def table(name: str | None = None, *, relabel: bool = False, minimum: int = 10) -> Divide:
    """Four groups (emnist: eight) with the class counts of the joint paper's Fig. 2: table, or table(mnist) on any set.

    As printed where there are enough examples of a class, otherwise in the printed proportions; a surplus is unused.
    Clients are divided evenly over the groups, 80 in the paper (200 for emnist), and a group's examples evenly over
    its clients. ``relabel=true`` numbers the classes of each group from 0, as the paper's networks of 8 outputs do:
    then groups disagree on labels. No table for emnist is printed: each group lacks 7 classes in turn, and a class is
    divided evenly over the groups that have it.
    """
    require_switch("relabel", relabel)
    if name is not None and name not in CLASS_TABLES:
        raise UnknownName("class table", str(name), CLASS_TABLES)

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        chosen = _find(name or _name_of(data), data)
        pool = by_class(data, clients, minimum)
        sizes = even_groups(clients, len(chosen.rows))
        weights = [np.ones((size, pool.classes)) for size in sizes]
        shares = divide_in_groups(pool, chosen.divide(pool.counts), weights, minimum, rng)
        shares = replace(shares, notes=(*_scaled_down(chosen, pool), *shares.notes))
        return _renumbered(shares, np.array(chosen.rows) > 0, sizes) if relabel else shares

    return divide


def _name_of(data: Dataset) -> str:
    """Return the name of the data set's table; variants such as emnist-balanced share one."""
    return data.name if data.name in CLASS_TABLES else data.name.partition("-")[0]


def _find(name: str, data: Dataset) -> ClassTable:
    classes = require_classes("a class table", data)
    fitting = [f"table({other})" for other, each in CLASS_TABLES.items() if each.classes == classes]
    remedy = f"use {' or '.join(fitting) or 'classes(3,2)'}"
    if name not in CLASS_TABLES:
        raise PartitionError(f"{data.name} has {classes} classes and there is no class table for it; {remedy}")
    chosen = CLASS_TABLES[name]
    if chosen.classes != classes:
        raise PartitionError(f"the table {name} has {chosen.classes} classes and {data.name} has {classes}; {remedy}")
    return chosen


def _scaled_down(chosen: ClassTable, pool: Pool) -> tuple[str, ...]:
    """Return a note on the classes with fewer examples than the table needs."""
    wanted = np.array(chosen.rows).sum(axis=0)
    short = np.flatnonzero(pool.counts < wanted) if chosen.counted else ()
    which = ", ".join(f"class {i} has {pool.counts[i]} of {wanted[i]}" for i in short)
    return (f"the class table is scaled down where it asks for more than there is: {which}",) if which else ()


def _renumbered(shares: Shares, has: Array, sizes: Array) -> Shares:
    """Return the same shares with the classes of each group numbered from 0 in order."""
    names = np.where(has, has.cumsum(axis=1) - 1, -1)
    seen = zip(shares.clients, np.repeat(names, sizes, axis=0), strict=True)
    clients = tuple(share.through(partial(rename, names=own)) for share, own in seen)
    return replace(shares, clients=clients, classes=int(has.sum(axis=1).max()))
