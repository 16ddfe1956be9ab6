"""The methods behind the clusterers: from distances, a number and a seed to raw labels, -1 for noise."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from scipy.cluster.hierarchy import cut_tree, fcluster
from scipy.cluster.hierarchy import linkage as merges
from scipy.spatial.distance import cdist, squareform
from sklearn import cluster

from coterie.server.clustering import kmedoids as pam
from coterie.server.clustering.number_of_clusters import clearest
from coterie.typing import Array

MOST_STEPS, HARDLY = 301, 1e-3
"""Mean shift climbs so many steps at most; a step of less than this share of the width is none."""

NEAR, WIDTHS = 0.02, 12
"""Mean shift tries so many widths, from this quantile of the distances between rows to the largest."""


def kmedoids(distances: Array, clusters: int, seed: int) -> Array:
    """Swaps of medoids until none helps, from the greedy start and some at random: the least sum of distances.

    One start alone ends where the path leads, which hangs on distances that do not count in the sum.
    """
    return pam.kmedoids(distances, clusters, seed).labels


def _tree(distances: Array, linkage: str) -> Array:
    tree: Array = merges(squareform(distances, checks=False), method=linkage)
    return tree


def merged(distances: Array, clusters: int, seed: int, linkage: str) -> Array:
    """The tree of merges, cut where so many clusters are left."""
    labels: Array = cut_tree(_tree(distances, linkage), n_clusters=clusters)[:, 0]
    return labels


def merged_within(distances: Array, clusters: int, seed: int, linkage: str, cut: float) -> Array:
    """The tree of merges, cut at a distance."""
    return np.asarray(fcluster(_tree(distances, linkage), cut, criterion="distance"), dtype=np.int64)


def dbscan(distances: Array, clusters: int, seed: int, eps: float, members: int) -> Array:
    """Chains of dense points."""
    return _labels(cluster.DBSCAN(eps=eps, min_samples=members, metric="precomputed"), distances)


def _least(members: int | None, points: int) -> int:
    """The least size of a cluster among so many points: as asked, or a fifth of them."""
    return min(members or max(2, round(0.2 * points)), points)


def hdbscan(distances: Array, clusters: int, seed: int, members: int | None) -> Array:
    """Clusters that persist; the least size follows the number of points."""
    least = _least(members, len(distances))
    return _labels(cluster.HDBSCAN(min_cluster_size=least, metric="precomputed", copy=True), distances)


def optics(distances: Array, clusters: int, seed: int, members: int | None) -> Array:
    """Valleys of reachability; the least size follows the number of points."""
    return _labels(cluster.OPTICS(min_samples=_least(members, len(distances)), metric="precomputed"), distances)


def affinity(distances: Array, clusters: int, seed: int, damping: float, least: float) -> Array:
    """Exemplars elected by messages, from similarities: minus the distances."""
    apart = distances[~np.eye(len(distances), dtype=bool)]
    if np.ptp(apart) == 0:  # nobody is nearer to anybody: nothing to elect by
        return np.zeros(len(distances), dtype=np.int64)
    method = cluster.AffinityPropagation(damping=damping, affinity="precomputed", max_iter=1000, random_state=seed)
    return _clearest(distances, [_labels(method, -distances)], least)


def meanshift(distances: Array, clusters: int, seed: int, share: float | None, least: float, estimated: bool) -> Array:
    """Peaks of the density of rows; the width is never so small that rounding parts rows that coincide."""
    apart = cdist(distances, distances)
    if not apart.any():  # all rows coincide
        return np.zeros(len(distances), dtype=np.int64)
    narrowest = 1e-6 * apart.max()
    if estimated:
        return peaks(distances, max(cluster.estimate_bandwidth(distances), narrowest))
    if share is not None:
        others = ceil(share * (len(distances) - 1))
        return peaks(distances, max(np.sort(apart, axis=1)[:, others].mean(), narrowest))
    near = max(np.quantile(apart[np.triu_indices(len(apart), 1)], NEAR), narrowest)
    widths = np.geomspace(near, apart.max(), WIDTHS, endpoint=False)
    return _clearest(distances, [peaks(distances, width) for width in widths], least)


def peaks(points: Array, width: float) -> Array:
    """Mean shift with a flat kernel, as scikit-learn's, for all points at once: a hundred times as fast for few points.

    Every point climbs to the mean of all points within ``width``, until it hardly moves. Of ends within ``width`` of
    each other the one with most points around it stays, and a point's label is the nearest end that stayed.
    """
    means, around, climbing = points.copy(), np.zeros(len(points), dtype=np.int64), np.arange(len(points))
    for _ in range(MOST_STEPS):
        within = cdist(means[climbing], points) <= width
        around[climbing] = within.sum(axis=1)
        new = within @ points / around[climbing, None]
        moved = np.linalg.norm(new - means[climbing], axis=1)
        means[climbing] = new
        climbing = climbing[moved > HARDLY * width]
        if not len(climbing):
            break
    order = np.lexsort((*means.T[::-1], around))[::-1]
    near, stays = cdist(means[order], means[order]) <= width, np.ones(len(points), dtype=bool)
    for place in range(len(order)):
        if stays[place]:
            stays[place + 1 :] &= ~near[place, place + 1 :]
    labels: Array = cdist(points, means[order][stays]).argmin(axis=1)
    return labels


def kmeans(distances: Array, clusters: int, seed: int) -> Array:
    """The lowest inertia of five starts, on rows as features."""
    return _labels(cluster.KMeans(clusters, n_init=5, random_state=seed), distances)


def spectral(distances: Array, clusters: int, seed: int) -> Array:
    """A spectral cut of gaussian affinities, without a random start."""
    width = np.median(distances[np.triu_indices(len(distances), 1)]) or 1.0
    affinities = np.exp(-(distances**2) / (2 * width**2))
    method = cluster.SpectralClustering(clusters, affinity="precomputed", assign_labels="cluster_qr", random_state=seed)
    return _labels(method, affinities)


def _clearest(distances: Array, clusterings: Sequence[Array], least: float) -> Array:
    place = clearest(distances, clusterings, least)
    return np.zeros(len(distances), dtype=np.int64) if place is None else clusterings[place]


def _labels(method: cluster.KMeans, matrix: Array) -> Array:
    return np.asarray(method.fit(matrix).labels_, dtype=np.int64)
