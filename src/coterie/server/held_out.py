"""How many clusters the unseen half of everyone's data supports.

Every client has two vectors, of two disjoint halves of its data. Clusters are found on one half and judged on the
other, so that what is chance in one client's data cannot pass for a difference between clients.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy.cluster.hierarchy import fcluster
from scipy.cluster.hierarchy import linkage as merges
from scipy.spatial.distance import squareform

from coterie.models.layout import Array

MOST = 10
"""More clusters than this are not tried."""

ROUNDING = 1e-9
"""Errors of unit vectors that differ by less are the same."""


def clusters_of(products: Array, clients: Array) -> Array:
    """The clusters of some clients: as many as their halves support, of the mean of both.

    ``products (2 n, 2 n)`` are inner products of all first halves, then all second.

    >>> vectors = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]] * 2)
    >>> clusters_of(vectors @ vectors.T, np.arange(4)).tolist()
    [0, 1, 0, 1]
    """
    both = np.concatenate([clients, clients + len(products) // 2])
    known = products[np.ix_(both, both)]
    mean: Array = np.mean([_block(known, a, b) for a in (0, 1) for b in (0, 1)], axis=0)
    return next(iter(cuts(mean, [by_halves(known)])))


def by_halves(products: Array, most: int = MOST) -> int:
    """The smallest number of clusters whose error is within one standard error of the least.

    The standard error is that of the clients' differences to the number of least error.
    """
    errors = held_out(products, most)
    worse = errors - errors[:, [errors.mean(axis=0).argmin()]]
    slack = worse.std(axis=0) / np.sqrt(max(1, len(worse) - 1))
    return int(np.argmax(worse.mean(axis=0) <= slack + ROUNDING)) + 1


def held_out(products: Array, most: int = MOST) -> Array:
    """``(n, k)``: |b_i - mean of a_j over j in i's cluster|^2 for 1, 2, ... clusters, mean of it and of a, b exchanged.

    The clusters are found on the a alone. Too few mix clients that differ; too many average over too few, and follow
    chance that the b do not share.
    """
    count = len(products) // 2
    numbers = range(1, max(1, min(most, count - 1)) + 1)
    errors = np.zeros((count, len(numbers)))
    for seen, unseen in ((0, 1), (1, 0)):
        inside, across = _block(products, seen, seen), _block(products, unseen, seen)
        own = np.diag(_block(products, unseen, unseen))
        for place, labels in enumerate(cuts(inside, numbers)):
            members = labels[:, None] == np.arange(labels.max() + 1)
            weights = members / members.sum(axis=0)
            apart = (members * (across @ weights)).sum(axis=1)
            errors[:, place] += (own - 2 * apart + members @ np.diag(weights.T @ inside @ weights)) / 2
    return errors


def cuts(products: Array, numbers: Iterable[int]) -> Iterable[Array]:
    """The labels of vectors with these inner products for each number of clusters: one tree of Ward's merges, cut."""
    if len(products) < 2:
        yield from (np.zeros(len(products), dtype=np.int64) for _ in numbers)
        return
    lengths = np.diag(products)
    squares = lengths[:, None] + lengths[None] - 2 * products
    tree = merges(np.sqrt(np.maximum(squareform(squares, checks=False), 0)), method="ward")
    for number in numbers:
        yield fcluster(tree, number, criterion="maxclust").astype(np.int64) - 1


def _block(products: Array, rows: int, columns: int) -> Array:
    half = len(products) // 2
    part: Array = products[rows * half : (rows + 1) * half, columns * half : (columns + 1) * half]
    return part
