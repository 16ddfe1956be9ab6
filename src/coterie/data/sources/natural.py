"""Examples with owners: a test set for every owner, where the data come without one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.data.apportion import set_aside
from coterie.errors import DataError
from coterie.seeding import generator
from coterie.typing import Array


def set_aside_by_owner(data: str, names: Sequence[str], owners: Array, y: Array) -> tuple[Array, Array]:
    """Rows for training and for testing, owner after owner: one in five of each owner's for testing, by class.

    The split is part of the data set, so its seed is no run's seed; it depends on the data's and the owner's name.

    >>> train, test = set_aside_by_owner("toy", ["a", "b"], np.arange(20) % 2, np.zeros(20, int))
    >>> len(train), len(test), sorted({*train, *test}) == list(range(20))
    (16, 4, True)
    """
    kept, aside = [], []
    for number, name in enumerate(names):
        rows = np.flatnonzero(owners == number)
        if len(rows) < 2:
            raise DataError(
                f"{name} of {data} has {len(rows)} examples, none to test on; leave out who has fewer than 2"
            )
        keep, test = set_aside(y[rows], 0.2, generator(0, data, name))
        kept.append(rows[keep])
        aside.append(rows[test])
    return np.concatenate(kept), np.concatenate(aside)
