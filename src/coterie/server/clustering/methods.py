"""The methods behind the clusterers: from distances, a number of clusters and a seed to labels, -1 for noise."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
import scipy

from coterie.server.clustering import kmedoids as pam
from coterie.server.clustering.number_of_clusters import clearest
from coterie.typing import Array

MOST_STEPS, HARDLY = 301, 1e-3
"""The most steps of mean shift, and the share of the width below which a step counts as none."""

NEAR, WIDTHS = 0.02, 12
"""Mean shift tries widths from this quantile of the distances between rows to the largest: this number of them."""


def kmedoids(distances: Array, clusters: int, seed: int) -> Array:
    """Cluster around medoids with the least sum of distances, from the greedy start and some random ones.

    The result of a single start depends on distances that do not count in the sum.
    """
    return pam.kmedoids(distances, clusters, seed).labels


def _tree(distances: Array, linkage: str) -> Array:
    tree: Array = scipy.cluster.hierarchy.linkage(
        scipy.spatial.distance.squareform(distances, checks=False), method=linkage
    )
    return tree


def merged(distances: Array, clusters: int, seed: int, linkage: str) -> Array:
    """Merge the nearest clusters until ``clusters`` are left; they are numbered in the order of their first points."""
    tree = _tree(distances, linkage)
    heights, done = tree[:, 2], len(distances) - clusters
    if done and heights[:done].max() < heights[done:].min():  # as almost always: no tie decides what is merged
        found = scipy.cluster.hierarchy.fcluster(tree, heights[:done].max(), criterion="distance")
        _, first, numbers = np.unique(found, return_index=True, return_inverse=True)
        return np.asarray(first.argsort().argsort()[numbers], dtype=np.int64)
    labels: Array = scipy.cluster.hierarchy.cut_tree(tree, n_clusters=clusters)[:, 0]
    return labels


def merged_within(distances: Array, clusters: int, seed: int, linkage: str, cut: float) -> Array:
    """Merge the nearest clusters as long as they are within ``cut``."""
    return np.asarray(
        scipy.cluster.hierarchy.fcluster(_tree(distances, linkage), cut, criterion="distance"), dtype=np.int64
    )


def dbscan(distances: Array, clusters: int, seed: int, eps: float | None, members: int, factor: float = 1.0) -> Array:
    """Cluster chains of dense points; without ``eps`` it is ``factor`` times the distance at the elbow."""
    from sklearn import cluster

    width = factor * elbow(distances) if eps is None else eps
    return _labels(cluster.DBSCAN(eps=width, min_samples=members, metric="precomputed"), distances)


def elbow(distances: Array) -> float:
    """Return the distance at the elbow: of all points' distances to their nearest others, in order of size.

    It is where the curve is farthest below its chord, and a hair more, so that rounding does not decide about the very
    pair whose distance it is.

    >>> points = np.array([0.0, 1.0, 10.0, 11.1, 30.0])
    >>> round(elbow(np.abs(np.subtract.outer(points, points))), 6)
    1.1
    """
    others = np.where(np.eye(len(distances), dtype=bool), np.inf, distances)
    curve = np.sort(others.min(axis=1))
    below = np.linspace(curve[0], curve[-1], len(curve)) - curve
    return max(float(curve[below.argmax()]) * (1 + 1e-9), float(np.finfo(np.float64).tiny))


def _least(members: int | None, points: int) -> int:
    """Return the least size of a cluster: as asked, or a fifth of the points."""
    return min(members or max(2, round(0.2 * points)), points)


def hdbscan(distances: Array, clusters: int, seed: int, members: int | None) -> Array:
    """Cluster by density over all scales; the least size follows the number of points."""
    from sklearn import cluster

    least = _least(members, len(distances))
    return _labels(cluster.HDBSCAN(min_cluster_size=least, metric="precomputed", copy=True), distances)


def optics(distances: Array, clusters: int, seed: int, members: int | None) -> Array:
    """Cluster by valleys of reachability; the least size follows the number of points."""
    from sklearn import cluster

    return _labels(cluster.OPTICS(min_samples=_least(members, len(distances)), metric="precomputed"), distances)


def affinity(distances: Array, clusters: int, seed: int, damping: float, least: float) -> Array:
    """Cluster by affinity propagation on similarities: minus the distances."""
    from sklearn import cluster

    apart = distances[~np.eye(len(distances), dtype=bool)]
    if np.ptp(apart) == 0:  # all are equally far from each other
        return np.zeros(len(distances), dtype=np.int64)
    method = cluster.AffinityPropagation(damping=damping, affinity="precomputed", max_iter=1000, random_state=seed)
    return _clearest(distances, [_labels(method, -distances)], least)


def meanshift(distances: Array, clusters: int, seed: int, share: float | None, least: float, estimated: bool) -> Array:
    """Cluster rows by the peaks of their density; the width is large enough that rounding cannot split equal rows."""
    apart = scipy.spatial.distance.cdist(distances, distances)
    if not apart.any():  # all rows coincide
        return np.zeros(len(distances), dtype=np.int64)
    narrowest = 1e-6 * apart.max()
    if estimated:
        from sklearn import cluster

        return peaks(distances, max(cluster.estimate_bandwidth(distances), narrowest))
    if share is not None:
        others = ceil(share * (len(distances) - 1))
        return peaks(distances, max(np.sort(apart, axis=1)[:, others].mean(), narrowest))
    near = max(np.quantile(apart[np.triu_indices(len(apart), 1)], NEAR), narrowest)
    widths = np.geomspace(near, apart.max(), WIDTHS, endpoint=False)
    return _clearest(distances, [peaks(distances, width, apart) for width in widths], least)


def peaks(points: Array, width: float, apart: Array | None = None) -> Array:
    """Cluster by mean shift with a flat kernel, as scikit-learn's, for all points at once.

    Every point climbs to the mean of all points within ``width``, until it hardly moves. Of peaks within ``width`` of
    each other the one with most points around it is kept, and a point's label is that of the nearest peak kept.
    ``apart``: the distances between the points, if they are known.
    """
    means, around = _climbed(points, width, scipy.spatial.distance.cdist(points, points) if apart is None else apart)
    order = np.lexsort((*means.T[::-1], around))[::-1]
    near, stays = scipy.spatial.distance.cdist(means[order], means[order]) <= width, np.ones(len(means), dtype=bool)
    for i in range(len(order)):
        if stays[i]:
            stays[i + 1 :] &= ~near[i, i + 1 :]
    labels: Array = scipy.spatial.distance.cdist(points, means[order][stays]).argmin(axis=1)
    return labels


def _climbed(points: Array, width: float, distances: Array) -> tuple[Array, Array]:
    """Return the peaks at which points end, and how many points are around each.

    Points with the same others around them climb to the same mean, and from there on as one.
    """
    now, ends, counts = points, list[Array](), list[Array]()
    for step in range(MOST_STEPS):
        within = distances <= width
        around = within.sum(axis=1)
        means = within @ points / around[:, None]
        climbs = np.linalg.norm(means - now, axis=1) > HARDLY * width
        rests = ~climbs if step < MOST_STEPS - 1 else np.ones(len(means), dtype=bool)
        ends.append(means[rests])
        counts.append(around[rests])
        distinct = {row.tobytes(): i for i, row in zip(np.flatnonzero(climbs), within[climbs], strict=True)}
        if not distinct:
            break
        now = means[list(distinct.values())]
        distances = scipy.spatial.distance.cdist(now, points)
    return np.concatenate(ends), np.concatenate(counts)


def kmeans(distances: Array, clusters: int, seed: int) -> Array:
    """Cluster rows by k-means: the lowest inertia of five starts."""
    from sklearn import cluster

    return _labels(cluster.KMeans(clusters, n_init=5, random_state=seed), distances)


def spectral(distances: Array, clusters: int, seed: int) -> Array:
    """Cluster by a spectral cut of gaussian affinities, without a random start."""
    from sklearn import cluster

    width = np.median(distances[np.triu_indices(len(distances), 1)]) or 1.0
    affinities = np.exp(-(distances**2) / (2 * width**2))
    method = cluster.SpectralClustering(clusters, affinity="precomputed", assign_labels="cluster_qr", random_state=seed)
    return _labels(method, affinities)


def _clearest(distances: Array, clusterings: Sequence[Array], least: float) -> Array:
    best = clearest(distances, clusterings, least)
    return np.zeros(len(distances), dtype=np.int64) if best is None else clusterings[best]


def _labels(method: Any, matrix: Array) -> Array:
    return np.asarray(method.fit(matrix).labels_, dtype=np.int64)
