"""Partition into three groups of classes, apart or overlapping, balanced or not.

The four settings of OCFL (section IV-A) for data of ten classes: the groups hold consecutive classes, and overlap in
two where they are to. Imbalance has two levels at once: groups of different sizes, and clients with mixes of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coterie.data.partitioning.dirichlet import draws
from coterie.data.partitioning.handout import by_class, even, hand_out
from coterie.data.partitioning.limits import require_classes, require_default, require_positive, require_switch
from coterie.data.partitioning.shares import Divide, Rng, Shares, named
from coterie.data.tables import apportion
from coterie.errors import PartitionError

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

CLASSES = 10
APART = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
OVERLAPPING = ((0, 1, 2, 3, 4), (3, 4, 5, 6, 7), (0, 6, 7, 8, 9))
PERCENT = (20, 47, 33)


@named
def blocks(*, overlap: bool = False, balanced: bool = True, alpha: float = 1, minimum: int = 10) -> Divide:
    """Three groups hold the classes 0-3, 4-6, 7-9, or overlapping 0-4, 3-7, 6-9 and 0: blocks(overlap=true).

    Balanced, the groups have equally many clients and a class is divided evenly over the clients that hold it.
    ``balanced=false``: the groups have 20, 47 and 33 % of the clients, each with a mix of its group's classes drawn
    by Dir(alpha); a class is divided in proportion to its holders' mixes.
    """
    require_switch("overlap", overlap)
    require_switch("balanced", balanced)
    require_positive("alpha", alpha)
    if balanced:
        require_default("alpha", alpha, 1, "blocks(balanced=false)")
    held = OVERLAPPING if overlap else APART

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        if require_classes("blocks", data) != CLASSES:
            raise PartitionError(
                f"blocks are blocks of {CLASSES} classes and {data.name} has {data.classes}; use classes(3,2) instead"
            )
        pool = by_class(data, clients, minimum)
        sizes = even(clients, len(held))
        if not balanced:
            sizes = apportion(clients, np.array(PERCENT))
        groups = np.repeat(np.arange(len(held)), sizes)
        weights = np.zeros((clients, CLASSES))
        for group, own in enumerate(held):
            members = np.flatnonzero(groups == group)
            weights[np.ix_(members, np.array(own))] = 1 if balanced else draws(len(members), len(own), alpha, rng)
        return hand_out(pool, weights, minimum, rng, groups)

    return divide
