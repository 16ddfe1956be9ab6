"""Clusterers of a distance matrix: frozen values that turn a matrix and a key into cluster numbers."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from coterie.errors import UnknownName, UsageError
from coterie.seeding import Key
from coterie.server.clustering import methods
from coterie.server.clustering.number_of_clusters import LEAST_SILHOUETTE, by_gap, by_silhouette
from coterie.server.clustering.threads import one_thread
from coterie.textforms import Catalogue, text_of
from coterie.typing import Array

NOISE = -1
ELBOW = "elbow"
ONE_THREAD = 1000
"""Up to this number of points, products of matrices take one thread."""

LINKAGES = ("average", "complete", "single", "ward")
Find = Callable[..., Array]
"""``(distances, clusters, seed, **options) -> labels``, -1 for noise; 0 clusters: the method finds the number."""


@dataclass(frozen=True)
class Clusterer:
    """Maps distances to cluster numbers, counted from 0 in the order of their first points.

    ``clusters``: how many, ``auto``, or None where the method finds the number itself. ``auto`` takes the number from 1
    to ``most`` by silhouette (1 if none reaches ``least``) or gap. Noise joins the nearest cluster (least mean
    distance), or with ``apart`` each noise point is a cluster. If all is noise there is one cluster: no split.
    ``central``: the clusters depend on the distances to their medoids alone. ``text`` is the call that made it.
    """

    find: Find
    clusters: int | str | None = None
    _: KW_ONLY
    most: int = 10
    by: str = "silhouette"
    least: float = LEAST_SILHOUETTE
    apart: bool = False
    central: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.text or repr(self)

    def __post_init__(self) -> None:
        if self.clusters not in (None, "auto") and (isinstance(self.clusters, str) or self.clusters < 1):
            raise UsageError(f"clusters is {self.clusters}; it must be at least 1, or auto")
        if self.most < 1:
            raise UsageError(f"most is {self.most}; it must be at least 1")
        if self.by not in ("silhouette", "gap"):
            raise UnknownName("way to find the number of clusters", self.by, ("silhouette", "gap"))

    def ties(self, distances: Array, labels: Array) -> Array:
        """Return the pairs on which these clusters depend: within a cluster, or of each point and its medoid."""
        same = together(labels)
        if self.central:
            within = np.where(same, distances, 0).sum(axis=1)
            medoid = np.zeros(len(labels), dtype=bool)
            for points in (np.flatnonzero(labels == label) for label in np.unique(labels)):
                medoid[points[np.argmin(within[points])]] = True
            same &= medoid | medoid[:, None]
        return same

    @property
    def least_points(self) -> int:
        """Return the least number of points that can be clustered."""
        return self.clusters if isinstance(self.clusters, int) else 1

    def __call__(self, distances: Array, key: Key) -> Array:
        """Return the cluster of every row."""
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
        from sklearn.exceptions import ConvergenceWarning

        with (
            one_thread(len(distances) <= ONE_THREAD),
            warnings.catch_warnings(),  # equal points, or no convergence: the labels are still a partition
        ):
            for kind in (ConvergenceWarning, RuntimeWarning):
                warnings.simplefilter("ignore", kind)
            return self.find(distances, min(count, len(distances)), seed, **self.options)


def together(labels: Array) -> Array:
    """Return which pairs are in the same cluster."""
    same: Array = labels[:, None] == labels
    return same


def settled(labels: Array, distances: Array, apart: bool) -> Array:
    """Return labels without noise: each noise point in the nearest cluster, or ``apart`` as a cluster itself.

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
    """Return the same clusters, numbered in the order of their first points.

    >>> renumbered(np.array([7, 3, 7, 0])).tolist()
    [0, 1, 0, 2]
    """
    _, first, numbers = np.unique(labels, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[numbers]


Make = TypeVar("Make", bound=Callable[..., Clusterer])


def named(make: Make, name: str | None = None) -> Make:
    """Name a clusterer by the text of the call that made it, so that an algorithm can be named by it."""

    @wraps(make)
    def build(*args: Any, **kwargs: Any) -> Clusterer:
        bound = inspect.signature(make).bind(*args, **kwargs)
        return replace(make(*args, **kwargs), text=text_of(bound, name or make.__name__, leave_out=(), keep=()))

    return cast(Make, build)


@named
def kmedoids(
    clusters: int | str = "auto", most: int = 10, by: str = "silhouette", least: float = LEAST_SILHOUETTE
) -> Clusterer:
    """Cluster around medoids (PAM): the least sum of distances of all points to the medoid of their cluster."""
    return Clusterer(methods.kmedoids, clusters, most=most, by=by, least=least, central=isinstance(clusters, int))


@named
def agglomerative(
    clusters: int | str = "auto",
    cut: float | None = None,
    linkage: str = "average",
    most: int = 10,
    by: str = "silhouette",
    least: float = LEAST_SILHOUETTE,
) -> Clusterer:
    """Merge the two nearest clusters again and again, until ``clusters`` are left or none are within ``cut``.

    ``linkage``: average, complete, single, or ward, which needs euclidean distances. A ``cut`` decides the number.
    """
    if linkage not in LINKAGES:
        raise UnknownName("linkage", linkage, LINKAGES)
    if cut is None:
        return Clusterer(methods.merged, clusters, most=most, by=by, least=least, options={"linkage": linkage})
    if not cut >= 0:
        raise UsageError(f"cut is {cut}; it must be >= 0, a distance")
    return Clusterer(methods.merged_within, options={"linkage": linkage, "cut": cut})


@named
def dbscan(eps: float | str = 0.5, members: int = 2, apart: bool = False, factor: float = 1.0) -> Clusterer:
    """Cluster chains of points with at least ``members`` (themselves included) within ``eps``; others are noise.

    ``eps=elbow`` is ``factor`` times the distance at the elbow of all points' distances to their nearest others.
    """
    if isinstance(eps, str) and eps != ELBOW:
        raise UsageError(f"eps is {eps!r}; it must be a distance, or {ELBOW}")
    if not isinstance(eps, str) and not eps > 0:
        raise UsageError(f"eps is {eps}; it must be > 0, a distance")
    if not factor > 0:
        raise UsageError(f"factor is {factor}; it must be > 0")
    width = None if isinstance(eps, str) else eps
    return Clusterer(methods.dbscan, options={"eps": width, "members": members, "factor": factor}, apart=apart)


@named
def hdbscan(members: int | None = None, apart: bool = False) -> Clusterer:
    """Cluster by density over all scales; ``members``: the least size (none: a fifth of all, at least 2)."""
    return Clusterer(methods.hdbscan, options={"members": _checked(members)}, apart=apart)


@named
def optics(members: int | None = None, apart: bool = False) -> Clusterer:
    """Cluster by density, as valleys of the reachability plot; ``members`` as for hdbscan."""
    return Clusterer(methods.optics, options={"members": _checked(members)}, apart=apart)


@named
def affinity(damping: float = 0.5, least: float = LEAST_SILHOUETTE) -> Clusterer:
    """Cluster by affinity propagation: points elect exemplars by messages. Similarities are minus the distances.

    It always finds several clusters; below the silhouette ``least`` they count as one (-1: never).
    """
    if not 0.5 <= damping < 1:
        raise UsageError(f"damping is {damping}; it must be in [0.5, 1)")
    return Clusterer(methods.affinity, options={"damping": damping, "least": least})


@named
def meanshift(share: float | None = None, least: float = LEAST_SILHOUETTE, bandwidth: str | None = None) -> Clusterer:
    """Cluster by mean shift on the rows of the matrix as features: every row climbs to a peak of the density.

    The width of the kernel is the one of the highest silhouette among twelve, and there is one cluster if none is above
    ``least``; or the mean distance within which a row has the nearest ``share`` of the others; or, with
    ``bandwidth=sklearn``, scikit-learn's estimate.
    """
    if share is not None and not 0 < share <= 1:
        raise UsageError(f"share is {share}; it must be in (0, 1], or none")
    if bandwidth not in (None, "sklearn"):
        raise UsageError(f"bandwidth is {bandwidth}; it must be sklearn, or none")
    if bandwidth is not None and share is not None:
        raise UsageError(f"share is {share} and bandwidth {bandwidth}; one of them is the width: leave the other out")
    return Clusterer(methods.meanshift, options={"share": share, "least": least, "estimated": bandwidth is not None})


@named
def kmeans(
    clusters: int | str = "auto", most: int = 10, by: str = "silhouette", least: float = LEAST_SILHOUETTE
) -> Clusterer:
    """Cluster by k-means on the rows of the matrix as features: points are near if the same points are near to both."""
    return Clusterer(methods.kmeans, clusters, most=most, by=by, least=least)


@named
def spectral(
    clusters: int | str = "auto", most: int = 10, by: str = "silhouette", least: float = LEAST_SILHOUETTE
) -> Clusterer:
    """Cut the graph of affinities exp(-d^2 / (2 s^2)) where it is thinnest; s is the median distance."""
    return Clusterer(methods.spectral, clusters, most=most, by=by, least=least)


def _checked(members: int | None) -> int | None:
    if members is not None and members < 2:
        raise UsageError(f"members is {members}; it must be at least 2, or none")
    return members


def users_clusterer(function: Callable[..., Any], name: str) -> Callable[..., Clusterer]:
    """Turn a user's function that returns a clusterer, or ``find(distances, clusters, seed)``, into a clusterer's."""

    @wraps(function)
    def build(*args: Any, **kwargs: Any) -> Clusterer:
        made = function(*args, **kwargs)
        if isinstance(made, Clusterer):
            return made
        if not callable(made):
            form = "a Clusterer, or a function (distances, clusters, seed) -> labels"
            raise UsageError(f"clusterer {name!r} gives a {type(made).__name__}; it must return {form}")
        return Clusterer(made, kwargs.get("clusters"))

    return named(build, name)


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
    adopt=users_clusterer,
)
"""Clusterers of a distance matrix, by name; ``weighted_kmeans`` clusters weighted points, for fesem and wecfl."""
