"""K-means of weighted points, as wecfl, fesem and clove use it on parameters and loss vectors in every round.

K-means on the rows of a distance matrix, for ocfl-kmeans and ``clusterer=kmeans``, is ``methods.kmeans``.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import UsageError
from coterie.seeding import Key
from coterie.server.aggregate import matrix, multiply
from coterie.typing import Array

MANY = 20_000
"""With more points than this, a sample of this size decides between the starts of k-means."""


@dataclass(frozen=True)
class WeightedKMeans:
    """K-means of weighted points: of ``restarts`` k-means++ starts and the previous centres, the lowest inertia.

    Of more than ``MANY`` points a sample decides between the starts. From the best one all points are clustered, with
    distances in the precision of the points; centres are means in double precision.
    """

    clusters: int
    restarts: int = 5

    def __post_init__(self) -> None:
        if self.clusters < 1:
            raise UsageError(f"clusters is {self.clusters}; it must be at least 1")

    def __call__(self, points: Array, weights: Array, key: Key, centres: Array | None) -> tuple[Array, Array]:
        """Return the labels of the points and the centres."""
        if len(points) <= MANY:
            return self._best(points, weights, key, centres)
        sample = np.sort(key.generator("k-means sample").choice(len(points), MANY, replace=False))
        _, start = self._best(points[sample], weights[sample], key, centres)
        all_points = self._from(points, weights, start.astype(points.dtype), 0)
        labels = all_points.labels_.astype(np.int64)
        return labels, multiply(matrix(labels, weights, self.clusters), points, start)

    def _best(self, points: Array, weights: Array, key: Key, centres: Array | None) -> tuple[Array, Array]:
        """Try every start in double precision."""
        starts: list[tuple[str | Array, int]] = [
            ("k-means++", key.number("k-means", i) % 2**32) for i in range(self.restarts)
        ]
        if centres is not None:
            starts.append((centres, 0))
        precise = points.astype(np.float64)
        best = min((self._from(precise, weights, *start) for start in starts), key=lambda run: run.inertia_)
        return best.labels_.astype(np.int64), best.cluster_centers_

    def _from(self, points: Array, weights: Array, start: str | Array, seed: int) -> Any:
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():  # with fewer distinct points than clusters some stay empty, as they should
            warnings.simplefilter("ignore", ConvergenceWarning)
            return KMeans(self.clusters, init=start, n_init=1, random_state=seed).fit(points, sample_weight=weights)
