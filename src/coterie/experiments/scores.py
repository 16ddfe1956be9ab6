"""Scores of a round: how well clients are served, and how good the clusters are."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn import metrics

from coterie.typing import Array

Scores = dict[str, Any]


WEIGHTS = ("test", "train")
"""The splits by which clients may be weighted in scores over clients: by the number of examples in one of them."""


def client_scores(table: Array, classes: int | None, unit: float = 1.0, weights: Array | None = None) -> Scores:
    """Return scores over clients from their rows of metrics (see ``protocol.replies``).

    Clients are weighted by ``weights``, by default their test examples. ``worst``, ``p10``, ``std`` and the means over
    clients (``accuracy_mean``, ``pf1``) are not weighted. ``unit`` converts errors to the units of the user's targets.
    """
    first, second, loss, examples = table.T
    shares = examples if weights is None else weights
    if classes is None:
        rmse = unit * np.sqrt(first)
        total = np.average(second, weights=shares)
        return {
            "rmse": float(unit * np.sqrt(np.average(first, weights=shares))),
            "r2": float(1 - np.average(first, weights=shares) / total) if total > 0 else float("nan"),
            "worst": float(rmse.max()),
            "test_loss": float(np.average(loss, weights=shares)),
        }
    return {
        "accuracy": float(np.average(first, weights=shares)),
        "macro_f1": float(np.average(second, weights=shares)),
        "accuracy_mean": float(first.mean()),
        "worst": float(first.min()),
        "p10": float(np.percentile(first, 10)),
        "std": float(first.std()),
        "pf1": float(second.mean()),
        "test_loss": float(np.average(loss, weights=shares)),
    }


def agreement(labels: Array, groups: Array) -> Scores:
    """Compare the clusters with the true groups, over the clients that are in a cluster.

    >>> s = agreement(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1]))
    >>> s["ari"], s["purity"], s["matched"]
    (1.0, 1.0, 1.0)
    """
    placed = labels >= 0
    found, true = labels[placed], groups[placed]
    if not len(found):
        return {}
    table = metrics.cluster.contingency_matrix(true, found)
    rows, columns = linear_sum_assignment(table, maximize=True)
    return {
        "ari": float(metrics.adjusted_rand_score(true, found)),
        "ami": float(metrics.adjusted_mutual_info_score(true, found)),
        "nmi": float(metrics.normalized_mutual_info_score(true, found)),
        "homogeneity": float(metrics.homogeneity_score(true, found)),
        "completeness": float(metrics.completeness_score(true, found)),
        "purity": float(table.max(axis=0).sum() / table.sum()),
        "matched": float(table[rows, columns].sum() / table.sum()),
    }


def cluster_shape(labels: Array, clusters: int) -> Scores:
    """Return cluster sizes, the effective number of clusters exp(entropy), and the largest share (collapse: near 1)."""
    sizes = np.bincount(labels[labels >= 0], minlength=clusters)
    shares = sizes[sizes > 0] / max(1, sizes.sum())
    return {
        "clusters": sizes.tolist(),
        "effective_clusters": float(np.exp(-(shares * np.log(shares)).sum())),
        "largest_share": float(shares.max(initial=0.0)),
    }


def clusterability(updates: Array, labels: Array, weights: Array) -> float:
    """Return the largest distance of a client's update from its cluster's mean, relative to the length of that mean.

    Thesis definition 3.4.7. 0 if updates within clusters are equal; the larger, the less clients belong together.
    """
    worst = 0.0
    for cluster in np.unique(labels[labels >= 0]):
        inside = labels == cluster
        mean = np.average(updates[inside], axis=0, weights=weights[inside])
        length = float(np.linalg.norm(mean))
        away = float(np.linalg.norm(updates[inside] - mean, axis=1).max())
        worst = max(worst, away / length if length else float("inf"))
    return worst


def silhouette(points: Array, labels: Array) -> float | None:
    """Return the mean silhouette coefficient, in [-1, 1]; None where it is undefined."""
    found = len(np.unique(labels))
    if not 2 <= found < len(points):
        return None
    return float(metrics.silhouette_score(points, labels))


def majority_correct(train: Array, test: Array) -> int:
    """Return how many test labels equal the most frequent train label.

    >>> majority_correct(np.array([0, 0, 1]), np.array([1, 1, 0, 1]))
    1
    """
    return int((test == np.bincount(train).argmax()).sum())
