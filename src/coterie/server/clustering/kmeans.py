"""K-means of weighted points, for fesem and wecfl, and cluster numbers that follow those of the round before.

K-means on the rows of a distance matrix, for ocfl-kmeans and ``clusterer=kmeans``, is ``methods.kmeans``.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from coterie.errors import UsageError
from coterie.seeding import Key
from coterie.typing import Array


@dataclass(frozen=True)
class KMeansClusters:
    """Weighted k-means: the lowest inertia of ``restarts`` fresh k-means++ starts and of the previous centres."""

    clusters: int
    restarts: int = 5

    def __post_init__(self) -> None:
        if self.clusters < 1:
            raise UsageError(f"clusters is {self.clusters}; it must be at least 1")

    def __call__(self, points: Array, weights: Array, key: Key, centres: Array | None) -> tuple[Array, Array]:
        """Return the labels of the points and the centres."""
        runs = [self._run(points, weights, "k-means++", key.number("k-means", i) % 2**32) for i in range(self.restarts)]
        if centres is not None:
            runs.append(self._run(points, weights, centres, 0))
        best = min(runs, key=lambda run: run.inertia_)
        return best.labels_.astype(np.int64), best.cluster_centers_

    def _run(self, points: Array, weights: Array, init: str | Array, seed: int) -> KMeans:
        with warnings.catch_warnings():  # with fewer distinct points than clusters some stay empty, as they should
            warnings.simplefilter("ignore", ConvergenceWarning)
            return KMeans(self.clusters, init=init, n_init=1, random_state=seed).fit(points, sample_weight=weights)


def match(new: Array, old: Array, clusters: int) -> Array:
    """Return numbers for new clusters, ``numbers[new]``, that overlap most with the old ones (Hungarian matching).

    >>> match(np.array([1, 1, 0]), np.array([0, 0, 1]), 2).tolist()
    [1, 0]
    """
    both = old >= 0
    overlap = np.zeros((clusters, clusters))
    np.add.at(overlap, (new[both], old[both]), 1)
    numbers = np.empty(clusters, dtype=np.int64)
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    numbers[rows] = columns
    return numbers
