"""Find the number of clusters, for clusterers that need one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coterie.seeding import Key
from coterie.typing import Array

Cut = Callable[[Array, int], Array]
"""``(distances, clusters) -> labels``: cluster into this number."""

LEAST_SILHOUETTE = 0.25
"""Below this there is no substantial structure (Kaufman and Rousseeuw, 1990): one cluster."""

REFERENCES = 10
"""Sets of random points that the gap statistic compares with."""


def by_silhouette(distances: Array, most: int, cut: Cut, least: float = LEAST_SILHOUETTE) -> int:
    """Return the number from 2 to ``most`` of the highest silhouette; 1 if even that is below ``least``.

    Ties go to the smaller number. A cluster of one has silhouette 0, so n clusters of n are never tried. One cloud of a
    few points in few dimensions can reach 0.4: raise ``least`` there.
    """
    counts = range(2, min(most, len(distances) - 1) + 1)
    best = clearest(distances, [cut(distances, count) for count in counts], least)
    return 1 if best is None else counts[best]


def clearest(distances: Array, clusterings: Sequence[Array], least: float) -> int | None:
    """Return the index of the clustering of the highest silhouette, the first of equals; None below ``least``."""
    scores = [silhouette(distances, labels) for labels in clusterings]
    best = int(np.argmax(scores)) if scores else 0
    return best if scores and scores[best] > least else None


def silhouette(distances: Array, labels: Array) -> float:
    """Return the mean silhouette (Rousseeuw, 1987): 0 for a point alone; minus infinity if all are, or are together.

    A point at mean distance a from the others of its cluster and at least b from those of another has (b - a) / max(a,
    b). The number is that of scikit-learn, bit for bit, without its checks, which take longer for a few hundred points.

    >>> points = np.array([0.0, 1.0, 9.0, 10.0])
    >>> round(silhouette(np.abs(np.subtract.outer(points, points)), np.array([0, 0, 1, 1])), 4)
    0.8885
    """
    found, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if not 1 < len(found) < len(labels):
        return float(-np.inf)
    totals = np.array([np.bincount(numbers, row) for row in distances])
    own = np.arange(len(labels)), numbers
    inside = totals[own] / np.maximum(sizes[numbers] - 1, 1)
    totals[own] = np.inf
    nearest = (totals / sizes).min(axis=1)
    larger = np.maximum(inside, nearest)
    counts = (sizes[numbers] > 1) & (larger > 0)
    return float(np.divide(nearest - inside, larger, out=np.zeros(len(labels)), where=counts).mean())


def by_gap(distances: Array, most: int, cut: Cut, key: Key) -> int:
    """Return the smallest number with a gap within one standard error of the largest (Tibshirani et al. 2001).

    gap(k) is how much lower log W(k) is than for points without clusters, uniform in the box of the data's principal
    axes; classical scaling gives the points from the distances. The paper stops at the first k that is not beaten by
    k + 1, which takes three equidistant clusters for one; this is the rule of Dudoit and Fridlyand, 2002.
    """
    counts = range(1, max(1, min(most, len(distances) - 1)) + 1)
    sides = np.ptp(scaled(distances), axis=0)
    rng = key.generator("gap")
    drawn = [rng.uniform(size=(len(distances), len(sides))) * sides for _ in range(REFERENCES)]
    plain = [np.sqrt(((one[:, None] - one[None]) ** 2).sum(axis=-1)) for one in drawn]
    wanted = np.array([[spread(one, cut(one, k)) for k in counts] for one in plain])
    gaps = wanted.mean(axis=0) - [spread(distances, cut(distances, k)) for k in counts]
    slack = wanted.std(axis=0) * np.sqrt(1 + 1 / REFERENCES)
    return counts[int(np.argmax(gaps >= gaps.max() - slack[gaps.argmax()]))]


def spread(distances: Array, labels: Array) -> float:
    """Return log W: the squared distances inside clusters, each cluster's sum divided by twice its size."""
    squares = distances**2
    groups = [np.flatnonzero(labels == k) for k in np.unique(labels)]
    inside = sum(float(squares[np.ix_(g, g)].sum()) / (2 * len(g)) for g in groups)
    return float(np.log(max(inside, np.finfo(float).tiny)))


def scaled(distances: Array) -> Array:
    """Return points along principal axes with about these distances (classical scaling).

    >>> points = scaled(np.array([[0.0, 3.0], [3.0, 0.0]]))
    >>> float(abs(points[0] - points[1]).max().round(9))
    3.0
    """
    count = len(distances)
    centre = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-centre @ distances**2 @ centre / 2)
    kept = values > 1e-9 * max(values.max(), np.finfo(float).tiny)
    points: Array = vectors[:, kept] * np.sqrt(values[kept])
    return points
