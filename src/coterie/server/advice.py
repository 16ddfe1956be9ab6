"""Is one model enough, how many clusters, and how sure is that: an opinion, asked again of samples of the clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.models.layout import Array
from coterie.seeding import Key
from coterie.server.held_out import MOST, clusters_of
from coterie.server.matrix_clusterers import Clusterer
from coterie.server.raw_clusters import merged

ADVICE = "advice"
"""What ``State.memory`` calls it."""

SAMPLES = 50
LARGEST = 150
"""So many samples are drawn, none of more clients than this."""

SURE = 0.8
"""With a lower share of samples the advice says perhaps."""

Advice = Mapping[str, Any]
"""JSON values: one_model_enough, clusters, confidence, pairs, votes, by, text."""

Find = Callable[[Array], Array]
"""``clients -> labels``: the clusters of some of the clients, from 0 without gaps."""


def on_halves(products: Array, key: Key) -> Advice:
    """The advice of two halves of every client's data; see ``held_out``."""
    clients = np.arange(len(products) // 2)
    return consult(clusters_of(products, clients), lambda sample: clusters_of(products, sample), key, "halves", MOST)


def on_distances(clusterer: Clusterer, distances: Array, key: Key) -> Advice:
    """The advice of a matrix of distances: what the clusterer finds when it is not told how many there are.

    In samples average linkage, the quickest, stands in for those that could be told.
    """
    told = clusterer.clusters is not None
    free = replace(clusterer, clusters="auto") if told else clusterer
    quick = replace(free, find=merged, options={"linkage": "average"}) if told else clusterer
    by, most = (clusterer.by, clusterer.most) if told else (clusterer.find.__name__.replace("_", "-"), None)

    def find(sample: Array) -> Array:
        return quick(distances[np.ix_(sample, sample)], key) if len(sample) > 1 else np.zeros(1, dtype=np.int64)

    return consult(free(distances, key), find, key, by, most)


def consult(whole: Array, find: Find, key: Key, by: str, most: int | None = None) -> Advice:
    """What was found among all clients, and how much of it is found in samples of them.

    A sample is as many draws as there are clients, with replacement, each client that was drawn in it once: copies of
    one client would look like a cluster. ``confidence`` is the share of samples with the same number of clusters,
    ``votes`` that of every number, ``pairs`` the share of pairs of clients that are together or apart as among all.
    """
    clients, rng = len(whole), key.generator("advice")
    numbers: Counter[int] = Counter()
    agreed: list[float] = []
    for _ in range(SAMPLES):
        drawn = np.unique(rng.integers(clients, size=clients))
        sample = np.sort(rng.permutation(drawn)[:LARGEST])
        labels = find(sample)
        numbers[int(labels.max()) + 1] += 1
        agreed.append(float((_together(labels) == _together(whole[sample])).mean()))
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


def sentence(clusters: int, confidence: float, by: str, at_limit: bool = False) -> str:
    """The advice for a practitioner.

    >>> sentence(3, 0.5, "silhouette")
    'Perhaps 3 clusters: so many groups stand out among the clients (by silhouette); 50 % of samples of clients agree.'
    """
    sure = confidence >= SURE
    if clusters == 1:
        head = "One model is enough" if sure else "One model may be enough"
        why = "grouping the clients foretells the half of their data that was held back no better"
        reason = why if by == "halves" else "no groups stand out among the clients"
    else:
        some = f"{clusters} clusters or more (no more were tried)" if at_limit else f"{clusters} clusters"
        head = some if sure else f"Perhaps {some}"
        why = "grouped so, the clients best foretell the half of their data that was held back"
        reason = why if by == "halves" else "so many groups stand out among the clients"
    return f"{head}: {reason} (by {by}); {confidence:.0%} of samples of clients agree.".replace("%", " %")


def _together(labels: Array) -> Array:
    """Which pairs are in one cluster; for a single client the pair of itself."""
    pairs: Array = labels[:, None] == labels[None]
    return np.asarray(pairs[np.triu_indices(len(labels), 1)]) if len(labels) > 1 else pairs
