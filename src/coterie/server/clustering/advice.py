"""Advice: how many clusters there are, if any, judged on data that did not form them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from coterie.seeding import Key
from coterie.server.clustering.by_sample import for_sample
from coterie.server.clustering.clusterers import Clusterer, together
from coterie.server.clustering.methods import merged
from coterie.server.distances.many_clients import Distances, Sampled
from coterie.typing import Array

MOST = 10
"""More clusters than this are not tried."""

SAMPLES, LARGEST = 50, 150
"""The number of samples of clients, and the most clients in one."""

SURE = 0.8
"""With a lower share of samples the advice says perhaps."""

ROUNDING = 1e-9
"""Errors of unit vectors that differ by less are equal."""

Advice = Mapping[str, Any]
"""JSON values: one_model_enough, clusters, confidence, pairs, votes, by, text; of a probe also a decision and more."""

Find = Callable[[Array], Array]
"""``clients -> labels``: the clusters of some of the clients, from 0 without gaps."""


def on_halves(products: Array, key: Key) -> Advice:
    """Return advice from two halves of every client's data; see ``held_out``."""
    clients = np.arange(len(products) // 2)
    return consult(clusters_of(products, clients), lambda sample: clusters_of(products, sample), key, "halves", MOST)


def on_distances(clusterer: Clusterer, distances: Distances, key: Key, labels: Array | None = None) -> Advice:
    """Return advice from distances: what the clusterer finds if the number of clusters is not given.

    ``labels``: what it has found, which is not found again if no number was given. In samples, average linkage, the
    fastest, replaces clusterers that take a number. Of many clients only those of the sample to which all were compared
    are asked about.
    """
    if isinstance(distances, Sampled):
        return on_distances(for_sample(clusterer, distances), distances.among, key)
    takes_number = clusterer.clusters is not None
    free = replace(clusterer, clusters="auto") if takes_number else clusterer
    quick = replace(free, find=merged, options={"linkage": "average"}) if takes_number else clusterer
    by, most = (clusterer.by, clusterer.most) if takes_number else (clusterer.find.__name__.replace("_", "-"), None)

    def find(sample: Array) -> Array:
        return quick(distances[np.ix_(sample, sample)], key) if len(sample) > 1 else np.zeros(1, dtype=np.int64)

    whole = labels if labels is not None and free == clusterer else free(distances, key)
    return consult(whole, find, key, by, most)


def consult(whole: Array, find: Find, key: Key, by: str, most: int | None = None) -> Advice:
    """Return the clusters found among all clients, and how much of them is found again in samples of clients.

    A sample has as many draws as there are clients, with replacement, and each client drawn counts once: copies of one
    client would look like a cluster. ``confidence`` is the share of samples with the same number of clusters, ``votes``
    the share of every number, ``pairs`` the share of pairs of clients that are together or apart as among all.
    """
    clients, rng = len(whole), key.generator("advice")
    numbers: Counter[int] = Counter()
    agreed: list[float] = []
    for _ in range(SAMPLES):
        drawn = np.unique(rng.integers(clients, size=clients))
        sample = np.sort(rng.permutation(drawn)[:LARGEST])
        labels = find(sample)
        numbers[int(labels.max()) + 1] += 1
        agreed.append(float((_pairs_together(labels) == _pairs_together(whole[sample])).mean()))
    found = int(whole.max()) + 1
    confidence = numbers[found] / SAMPLES
    return {
        "one_model_enough": found == 1,
        "clusters": found,
        "confidence": confidence,
        "pairs": float(np.mean(agreed)),
        "votes": {str(number): numbers[number] / SAMPLES for number in sorted(numbers)},
        "by": by,
        "text": sentence(found, confidence, by, found == most),
    }


def _pairs_together(labels: Array) -> Array:
    """Return which pairs are in one cluster; a single client makes a pair with itself."""
    pairs = together(labels)
    return np.asarray(pairs[np.triu_indices(len(labels), 1)]) if len(labels) > 1 else pairs


def sentence(clusters: int, confidence: float, by: str, at_limit: bool = False) -> str:
    """Return the advice as a sentence for a practitioner.

    >>> sentence(3, 0.5, "silhouette")
    'Perhaps 3 clusters: as many groups stand out among clients (by silhouette); 50 % of samples of clients agree.'
    """
    sure = confidence >= SURE
    if clusters == 1:
        head = "One model is enough" if sure else "One model may be enough"
        why = "grouping the clients does not help to predict the half of their data that was held out"
        reason = why if by == "halves" else "no groups stand out among the clients"
    else:
        some = f"{clusters} clusters or more (no more were tried)" if at_limit else f"{clusters} clusters"
        head = some if sure else f"Perhaps {some}"
        why = "these groups best predict the half of the clients' data that was held out"
        reason = why if by == "halves" else "as many groups stand out among clients"
    return f"{head}: {reason} (by {by}); {confidence:.0%} of samples of clients agree.".replace("%", " %")


# The clusters that two halves of every client's data support.


def clusters_of(products: Array, clients: Array) -> Array:
    """Return the clusters of some clients, by the mean of their halves: as many as the halves support.

    ``products (2 n, 2 n)`` are inner products of all first halves, then all second.

    >>> vectors = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]] * 2)
    >>> clusters_of(vectors @ vectors.T, np.arange(4)).tolist()
    [0, 1, 0, 1]
    """
    both = np.concatenate([clients, clients + len(products) // 2])
    known = products[np.ix_(both, both)]
    mean: Array = np.mean([block(known, a, b) for a in (0, 1) for b in (0, 1)], axis=0)
    return next(iter(cuts(mean, [by_halves(known)])))


def by_halves(products: Array, most: int = MOST) -> int:
    """Return the smallest number of clusters with an error within one standard error of the least.

    The standard error is that of the clients' differences to the number of least error.
    """
    errors = held_out(products, most)
    worse = errors - errors[:, [errors.mean(axis=0).argmin()]]
    slack = worse.std(axis=0) / np.sqrt(max(1, len(worse) - 1))
    return int(np.argmax(worse.mean(axis=0) <= slack + ROUNDING)) + 1


def held_out(products: Array, most: int = MOST) -> Array:
    """Return the errors ``(n, k)`` of 1, 2, ... clusters for each client, found on one half and judged on the other.

    With a_i and b_i the halves of client i, the error is |b_i - mean of a_j over j in i's cluster|^2, averaged with
    that of a and b exchanged. The clusters are found on the a alone. Too few mix clients that differ; too many average
    over too few clients, and follow noise that the b do not share.
    """
    count = len(products) // 2
    numbers = range(1, max(1, min(most, count - 1)) + 1)
    errors = np.zeros((count, len(numbers)))
    for seen, unseen in ((0, 1), (1, 0)):
        inside, across = block(products, seen, seen), block(products, unseen, seen)
        own = np.diag(block(products, unseen, unseen))
        for column, labels in enumerate(cuts(inside, numbers)):
            in_cluster = labels[:, None] == np.arange(labels.max() + 1)
            weights = in_cluster / in_cluster.sum(axis=0)
            apart = (in_cluster * (across @ weights)).sum(axis=1)
            errors[:, column] += (own - 2 * apart + in_cluster @ np.diag(weights.T @ inside @ weights)) / 2
    return errors


def cuts(products: Array, numbers: Iterable[int]) -> Iterable[Array]:
    """Yield the labels of vectors with these inner products for each number of clusters: cuts of one Ward tree."""
    if len(products) < 2:
        yield from (np.zeros(len(products), dtype=np.int64) for _ in numbers)
        return
    lengths = np.diag(products)
    squares = lengths[:, None] + lengths[None] - 2 * products
    tree = scipy.cluster.hierarchy.linkage(
        np.sqrt(np.maximum(scipy.spatial.distance.squareform(squares, checks=False), 0)), method="ward"
    )
    for number in numbers:
        yield scipy.cluster.hierarchy.fcluster(tree, number, criterion="maxclust").astype(np.int64) - 1


def block(products: Array, rows: int, columns: int) -> Array:
    """Return the inner products of one half of all clients, 0 or 1, with one half of all."""
    count = len(products) // 2
    part: Array = products[rows * count : (rows + 1) * count, columns * count : (columns + 1) * count]
    return part
