"""Clusterers of a distance matrix: one frozen value for all of them, from a matrix and a key to cluster numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from coterie.errors import UnknownName, UsageError
from coterie.seeding import Key
from coterie.server.clustering import methods as raw
from coterie.server.clustering.number_of_clusters import LEAST_SILHOUETTE, by_gap, by_silhouette
from coterie.textforms import Catalogue
from coterie.typing import Array

NOISE = -1
LINKAGES = ("average", "complete", "single", "ward")
Find = Callable[..., Array]
"""``(distances, clusters, seed, **options) -> labels``, -1 for noise; 0 clusters: the method finds the number."""


@dataclass(frozen=True)
class Clusterer:
    """Maps distances to cluster numbers, counted from 0 in the order of their first members.

    ``clusters``: how many, ``auto``, or None where the method finds out itself. ``auto`` takes the number from 1 to
    ``most`` by silhouette (1 if none reaches ``least``) or gap. Noise joins the nearest cluster (least mean distance),
    or with ``apart`` each noise point is a cluster of its own. All noise is one cluster: no split. ``central``: only
    the distances to the middle of each cluster count.
    """

    find: Find
    clusters: int | str | None = None
    most: int = 10
    by: str = "silhouette"
    least: float = LEAST_SILHOUETTE
    apart: bool = False
    central: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.clusters not in (None, "auto") and (isinstance(self.clusters, str) or self.clusters < 1):
            raise UsageError(f"clusters is {self.clusters}; it must be at least 1, or auto")
        if self.most < 1:
            raise UsageError(f"most is {self.most}; it must be at least 1")
        if self.by not in ("silhouette", "gap"):
            raise UnknownName("way to find the number of clusters", self.by, ("silhouette", "gap"))

    def ties(self, distances: Array, labels: Array) -> Array:
        """The pairs on whose distance these clusters hang: those of a cluster, or of each member and the middle."""
        same = together(labels)
        if self.central:
            within = np.where(same, distances, 0).sum(axis=1)
            middle = np.zeros(len(labels), dtype=bool)
            for members in (np.flatnonzero(labels == label) for label in np.unique(labels)):
                middle[members[np.argmin(within[members])]] = True
            same &= middle | middle[:, None]
        return same

    @property
    def least_points(self) -> int:
        """How many points there must be for so many clusters."""
        return self.clusters if isinstance(self.clusters, int) else 1

    def __call__(self, distances: Array, key: Key) -> Array:
        """Every row's cluster."""
        number, seed = 0, key.number("clusterer") % 2**31

        def cut(matrix: Array, count: int) -> Array:
            return self._found(matrix, count, seed)

        if isinstance(self.clusters, int):
            number = self.clusters
        elif self.clusters == "auto" and self.by == "gap":
            number = by_gap(distances, self.most, cut, key)
        elif self.clusters == "auto":
            number = by_silhouette(distances, self.most, cut, self.least)
        return renumbered(settled(cut(distances, number), distances, self.apart))

    def _found(self, distances: Array, count: int, seed: int) -> Array:
        if count == 1 or not distances.any():
            return np.zeros(len(distances), dtype=np.int64)
        with warnings.catch_warnings():  # points that coincide, or that do not settle: the labels are still a partition
            for kind in (ConvergenceWarning, RuntimeWarning):
                warnings.simplefilter("ignore", kind)
            return self.find(distances, min(count, len(distances)), seed, **self.options)


def together(labels: Array) -> Array:
    """Which two are in the same cluster."""
    same: Array = labels[:, None] == labels
    return same


def settled(labels: Array, distances: Array, apart: bool) -> Array:
    """Labels without noise.

    >>> d = np.abs(np.subtract.outer([0.0, 1.0, 9.0, 10.0, 7.0], [0.0, 1.0, 9.0, 10.0, 7.0]))
    >>> settled(np.array([0, 0, 1, 1, -1]), d, apart=False).tolist()
    [0, 0, 1, 1, 1]
    >>> settled(np.array([0, 0, 1, 1, -1]), d, apart=True).tolist()
    [0, 0, 1, 1, 2]
    >>> settled(np.array([-1, -1, -1, -1, -1]), d, apart=True).tolist()
    [0, 0, 0, 0, 0]
    """
    noise, found = np.flatnonzero(labels == NOISE), np.unique(labels[labels != NOISE])
    if not len(found):
        return np.zeros(len(labels), dtype=np.int64)
    new = labels.astype(np.int64)
    if apart:
        new[noise] = found.max() + 1 + np.arange(len(noise))
    elif len(noise):
        means = [distances[np.ix_(noise, np.flatnonzero(labels == k))].mean(axis=1) for k in found]
        new[noise] = found[np.argmin(means, axis=0)]
    return new


def renumbered(labels: Array) -> Array:
    """The same clusters, numbered in the order of their first members.

    >>> renumbered(np.array([7, 3, 7, 0])).tolist()
    [0, 1, 0, 2]
    """
    _, first, places = np.unique(labels, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[places]


def kmedoids(
    clusters: int | str = "auto", most: int = 10, by: str = "silhouette", least: float = LEAST_SILHOUETTE
) -> Clusterer:
    """Each cluster is around one of its members (PAM): the least sum of distances to the medoids."""
    return Clusterer(raw.kmedoids, clusters, most, by, least, central=isinstance(clusters, int))


def agglomerative(
    clusters: int | str = "auto",
    cut: float | None = None,
    linkage: str = "average",
    most: int = 10,
    by: str = "silhouette",
    least: float = LEAST_SILHOUETTE,
) -> Clusterer:
    """Merge the two nearest clusters again and again: until so many are left, or as long as they are within ``cut``.

    ``linkage``: average, complete, single, or ward, which wants euclidean distances. A ``cut`` finds the number itself.
    """
    if linkage not in LINKAGES:
        raise UnknownName("linkage", linkage, LINKAGES)
    if cut is None:
        return Clusterer(raw.merged, clusters, most, by, least, options={"linkage": linkage})
    if not cut >= 0:
        raise UsageError(f"cut is {cut}; it must be >= 0, a distance")
    return Clusterer(raw.merged_within, options={"linkage": linkage, "cut": cut})


def dbscan(eps: float = 0.5, members: int = 2, apart: bool = False) -> Clusterer:
    """Chains of points with at least ``members`` (themselves included) within ``eps``; others are noise."""
    if not eps > 0:
        raise UsageError(f"eps is {eps}; it must be > 0, a distance")
    return Clusterer(raw.dbscan, options={"eps": eps, "members": members}, apart=apart)


def hdbscan(members: int | None = None, apart: bool = False) -> Clusterer:
    """Density clusters that persist over all scales; ``members``: the least size (none: a fifth of all, at least 2)."""
    return Clusterer(raw.hdbscan, options={"members": _checked(members)}, apart=apart)


def optics(members: int | None = None, apart: bool = False) -> Clusterer:
    """Density clusters as valleys of the reachability plot; ``members`` as for hdbscan."""
    return Clusterer(raw.optics, options={"members": _checked(members)}, apart=apart)


def affinity(damping: float = 0.5, least: float = LEAST_SILHOUETTE) -> Clusterer:
    """Affinity propagation: points elect exemplars by messages. It is given similarities, minus the distances.

    It always finds several clusters; below the silhouette ``least`` they are taken for one (-1: never).
    """
    if not 0.5 <= damping < 1:
        raise UsageError(f"damping is {damping}; it must be in [0.5, 1)")
    return Clusterer(raw.affinity, options={"damping": damping, "least": least})


def meanshift(share: float | None = None, least: float = LEAST_SILHOUETTE, bandwidth: str | None = None) -> Clusterer:
    """Mean shift on the rows of the matrix as features: every row climbs to a peak of the density.

    The width of the density is that of the highest silhouette among twelve, and there is one cluster if none is above
    ``least``; or the mean distance to the row that closes the nearest ``share`` of the others; or, with
    ``bandwidth=sklearn``, scikit-learn's own estimate.
    """
    if share is not None and not 0 < share <= 1:
        raise UsageError(f"share is {share}; it must be in (0, 1], or none")
    if bandwidth not in (None, "sklearn"):
        raise UsageError(f"bandwidth is {bandwidth}; it must be sklearn, or none")
    if bandwidth is not None and share is not None:
        raise UsageError(f"share is {share} and bandwidth {bandwidth}; one of them is the width: leave the other out")
    return Clusterer(raw.meanshift, options={"share": share, "least": least, "estimated": bandwidth is not None})


def kmeans(
    clusters: int | str = "auto", most: int = 10, by: str = "silhouette", least: float = LEAST_SILHOUETTE
) -> Clusterer:
    """K-means on the rows of the matrix as features: near are those with the same near and far ones."""
    return Clusterer(raw.kmeans, clusters, most, by, least)


def spectral(
    clusters: int | str = "auto", most: int = 10, by: str = "silhouette", least: float = LEAST_SILHOUETTE
) -> Clusterer:
    """Cut the graph of affinities exp(-d^2 / (2 s^2)) where it is thinnest; s is the median distance."""
    return Clusterer(raw.spectral, clusters, most, by, least)


def _checked(members: int | None) -> int | None:
    if members is not None and members < 2:
        raise UsageError(f"members is {members}; it must be at least 2, or none")
    return members


clusterers = Catalogue(
    "clusterer",
    {
        "kmedoids": kmedoids,
        "agglomerative": agglomerative,
        "dbscan": dbscan,
        "hdbscan": hdbscan,
        "optics": optics,
        "affinity": affinity,
        "meanshift": meanshift,
        "kmeans": kmeans,
        "spectral": spectral,
    },
    typed=True,
)
"""Clusterers of a distance matrix, by name; ``kmeans.KMeansClusters`` works on weighted points, for fesem and wecfl."""
