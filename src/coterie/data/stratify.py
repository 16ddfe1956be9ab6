"""Stratified draws: rows set aside or sampled so that every class keeps its share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.data.apportion import apportion
from coterie.errors import DataError
from coterie.seeding import generator
from coterie.typing import Array


def stratified_split(y: Array, fraction: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the rows to keep and the rows to set aside, each class in proportion (float targets count as one class).

    At least one row is set aside and at least one is kept, so ``y`` needs two.

    >>> keep, aside = stratified_split(np.array([0] * 8 + [1] * 2), 0.5, np.random.default_rng(1))
    >>> len(keep), len(aside), int((aside >= 8).sum())
    (5, 5, 1)
    """
    aside = stratified_sample(y, int(np.clip(round(len(y) * fraction), 1, len(y) - 1)), rng)
    return np.setdiff1d(np.arange(len(y)), aside), aside


def stratified_sample(y: Array, count: int, rng: np.random.Generator) -> Array:
    """Draw ``count`` rows, in ascending order, each class in proportion (float targets count as one class)."""
    kinds = np.zeros(len(y), np.int64) if y.dtype.kind == "f" else np.unique(y, return_inverse=True)[1]
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
