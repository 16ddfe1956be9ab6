"""Partition by shards: the examples sorted by label, cut into equal pieces, a few pieces to each client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coterie.data.partitioning.handout import by_class, hand_out
from coterie.data.partitioning.limits import require_whole
from coterie.data.partitioning.shares import Divide, Rng, Shares, named
from coterie.errors import PartitionError

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset


@named
def shards(each: int, *, minimum: int = 10) -> Divide:
    """The set sorted by label and cut into equal shards, so many to each client at random: shards(2).

    McMahan et al. 2017 (arXiv:1602.05629). A shard may cross the border of two classes, and a client may get two
    shards of one class, so ``shards(3)`` gives from one to six classes. Where each client is to have exactly three,
    as in lcfl's letters a-j on 200 devices, the partition is ``classes(3)``.
    """
    require_whole("the number of shards", each)

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        pool = by_class(data, clients, minimum)
        pieces, total = clients * each, len(pool.train)
        if pieces > total:
            raise PartitionError(
                f"{clients} clients x {each} shards need {pieces} train examples and {data.name} has {total}; "
                f"use at most shards({total // clients})"
            )
        borders = np.arange(pieces + 1) * total // pieces
        owners = rng.permutation(np.repeat(np.arange(clients), each))
        table = np.zeros((clients, pool.classes), np.int64)
        np.add.at(table, (np.repeat(owners, np.diff(borders)), np.sort(pool.train)), 1)
        return hand_out(pool, table / np.maximum(pool.counts, 1), minimum, rng)

    return divide
