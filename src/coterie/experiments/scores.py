"""Scores of a round: how well clients are served, how good the clusters are, and how clients' updates fit them.

On request also how their gradients do, which takes one more exchange.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import scipy

from coterie.engine.metrics import Metric
from coterie.errors import UsageError
from coterie.experiments.verdict import ENOUGH
from coterie.models.layout import Layout
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.aggregate import matrix, multiply
from coterie.server.clustering.threads import one_thread
from coterie.server.contract import State
from coterie.server.distances.vectors import columns, pairwise
from coterie.server.exchange import update_lengths, with_mean
from coterie.server.loop import Round
from coterie.server.one_shot import temperature
from coterie.typing import Array

Scores = dict[str, Any]

MOST_CLIENTS, MOST_BYTES = 500, 128 << 20
"""With more clients, or larger replies, diagnostics that need quadratic time or much memory are left out."""

MOST_EXAMPLES = 10_000
"""A gradient is computed over all examples of a client at once; more than this would need too much memory."""

GRADIENT = Task(fit=(Fit(epochs=1, batch=MOST_EXAMPLES, lr=1.0, momentum=0.0),))
"""One plain step of rate 1 on all examples: the gradient is the start minus the end, and the loss is the start's."""

WEIGHTS = ("test", "train")
"""The splits by which clients may be weighted in scores over clients: by the number of examples in one of them."""


def client_scores(table: Array, classes: int | None, unit: float = 1.0, weights: Array | None = None) -> Scores:
    """Return scores over clients from their rows of metrics (see ``protocol.replies``).

    Clients are weighted by ``weights``, by default their test examples. ``worst``, ``p10``, ``std`` and the means over
    clients (``accuracy_mean``, ``pf1``) are not weighted; ``worst_judged`` is among clients with enough examples for a
    judgement. ``unit`` converts errors to the units of the user's targets.
    """
    first, second, loss, examples = table.T
    enough = examples >= ENOUGH
    shares = examples if weights is None else weights
    if classes is None:
        errors = unit * np.sqrt(first)
        total = np.average(second, weights=shares)
        return {
            "rmse": float(unit * np.sqrt(np.average(first, weights=shares))),
            "r2": float(1 - np.average(first, weights=shares) / total) if total > 0 else float("nan"),
            **worst_scores(errors, enough, smaller=True),
            "test_loss": float(np.average(loss, weights=shares)),
        }
    return {
        "accuracy": float(np.average(first, weights=shares)),
        "macro_f1": float(np.average(second, weights=shares)),
        "accuracy_mean": float(first.mean()),
        **worst_scores(first, enough, smaller=False),
        **spread_scores(first, smaller=False),
        "pf1": float(second.mean()),
        "test_loss": float(np.average(loss, weights=shares)),
    }


def worst_scores(values: Array, enough: Array, smaller: bool) -> Scores:
    """Return the worst score of a client, and of those with ``enough`` examples if there are such; NaN if none has one.

    >>> worst_scores(np.array([3.0, 1.0, 2.0]), np.array([False, True, True]), smaller=True)
    {'worst': 3.0, 'worst_judged': 2.0}
    """
    if not len(values):
        return {"worst": float("nan")}
    worst = np.max if smaller else np.min
    return {"worst": float(worst(values)), **({"worst_judged": float(worst(values[enough]))} if enough.any() else {})}


def spread_scores(values: Array, smaller: bool) -> Scores:
    """Return the score that nine of ten clients reach, and the standard deviation; NaN where no client has a score.

    >>> [spread_scores(np.arange(11.0), smaller)["p10"] for smaller in (False, True)]
    [1.0, 9.0]
    """
    if not len(values):
        return {"p10": float("nan"), "std": float("nan")}
    return {"p10": float(np.percentile(values, 90 if smaller else 10)), "std": float(values.std())}


OF_MAIN_SCORE = ("worst", "worst_judged", "p10", "std")
"""Scores over clients that are those of the main score."""


def with_metric(
    scores: Scores, metric: Metric, reported: Array, table: Array, weights: Array | None, unit: float
) -> Scores:
    """Return the scores over clients with the metric that the user named, from what clients reported of it.

    ``metric`` is the mean over the ``metric_clients`` at which it is defined, by weights, or that of all examples
    together, with the largest error of its bins and the mean beside. A model that diverged has no mean: the others
    shall not hide it. Worst client and spread are those of this metric.
    """
    own = metric.own(reported)
    known, examples = np.isfinite(own), table[:, 3]
    diverged = (~known & ~np.isfinite(table[:, 2])).any()
    mean = float("nan") if diverged else metric_mean(own, examples if weights is None else weights, unit)
    values, found = unit * own[known], {"metric": mean, "metric_clients": int(known.sum())}
    if metric.pool is not None:
        total = metric.pool(reported.sum(axis=0))
        found = {"metric": total.value, "metric_error": total.error, "metric_mean": mean, "metric_clients": len(own)}
    worst = worst_scores(values, examples[known] >= ENOUGH, metric.smaller)
    others = {name: value for name, value in scores.items() if name not in OF_MAIN_SCORE}
    return {**others, **found, **worst, **spread_scores(values, metric.smaller)}


def metric_mean(values: Array, weights: Array, unit: float = 1.0) -> float:
    """Return the weighted mean of a metric over the clients at which it is defined; NaN if there is none.

    >>> metric_mean(np.array([1.0, np.inf, 3.0]), np.array([1, 5, 3]))
    2.5
    """
    known = np.isfinite(values)
    return float(unit * np.average(values[known], weights=weights[known])) if known.any() else float("nan")


def agreement(labels: Array, groups: Array) -> Scores:
    """Compare the clusters with the true groups, over the clients that are in a cluster.

    >>> s = agreement(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 1]))
    >>> s["ari"], s["purity"], s["matched"]
    (1.0, 1.0, 1.0)
    """
    placed = labels >= 0
    found, true = (each[placed].astype(np.int64).tobytes() for each in (labels, groups))
    return dict(_agreement(found, true)) if found else {}


@lru_cache(maxsize=8)
def _agreement(found: bytes, true: bytes) -> Scores:
    """Compare two clusterings, given as the bytes of their numbers, and remember: most rounds leave clusters alone."""
    from sklearn import metrics

    clusters, groups = np.frombuffer(found, np.int64), np.frombuffer(true, np.int64)
    table = metrics.cluster.contingency_matrix(groups, clusters)
    rows, columns = scipy.optimize.linear_sum_assignment(table, maximize=True)
    return {
        "ari": float(metrics.adjusted_rand_score(groups, clusters)),
        "ami": float(metrics.adjusted_mutual_info_score(groups, clusters)),
        "nmi": float(metrics.normalized_mutual_info_score(groups, clusters)),
        "homogeneity": float(metrics.homogeneity_score(groups, clusters)),
        "completeness": float(metrics.completeness_score(groups, clusters)),
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
    placed = np.flatnonzero(labels >= 0)
    clusters, rows = np.unique(labels[placed], return_inverse=True)
    shares, nothing = matrix(rows, weights[placed], len(clusters)), np.zeros((len(clusters), updates.shape[1]))
    means = multiply(shares, updates[placed], nothing)
    length, away = np.linalg.norm(means, axis=1)[rows], update_lengths(updates[placed], means, rows)
    return float(np.divide(away, length, out=np.full(len(rows), np.inf), where=length > 0).max(initial=0.0))


def silhouette(points: Array, labels: Array) -> float | None:
    """Return the mean silhouette coefficient, in [-1, 1]; None where it is undefined."""
    from sklearn.metrics import silhouette_score

    found = len(np.unique(labels))
    if not 2 <= found < len(points):
        return None
    return float(silhouette_score(points, labels))


def round_diagnostics(step: Round) -> dict[str, Any]:
    """Return the temperature of a round and, if every client that answered is in a cluster, how well clusters fit.

    ``silhouette`` and ``clustering_objective`` compare the heads of clients' models, ``clusterability`` their updates.
    """
    replies, labels = step.replies, step.state.labels[step.replies.clients]
    if replies.params is None or len(replies) > MOST_CLIENTS or replies.params.nbytes > MOST_BYTES:
        return {}
    starts = starts_of(step.trained, replies)
    found = {"temperature": round_temperature(replies, starts)}
    if (labels >= 0).all():
        heads, head = replies.part("head_weight"), replies.layout.part("head_weight")
        found["silhouette"] = silhouette(heads, labels)
        models, rows = step.state.models_of(replies.clients)
        found["clustering_objective"] = clustering_objective(heads, models.params[rows][:, head], replies.examples)
        found |= _clusterabilities("clusterability", replies.params - starts, labels, replies)
    return {name: value for name, value in found.items() if value is not None}


def starts_of(state: State, replies: Replies) -> Array:
    """Return the parameters from which each client that answered trained: its cluster's, the mean, or its mixture."""
    if state.memberships is not None:
        return state.models_of(replies.clients)[0].params
    models, rows = with_mean(state.stack, replies.rows, state.shares)
    starts: Array = models.params[rows]
    return starts


def clustering_objective(points: Array, centres: Array, weights: Array) -> float:
    """Return the clustering objective, thesis eq. 3.3b (of cam 7.10): sum_i psi_i |g_i - G_c(i)|^2 / sum_i psi_i.

    Row i of ``centres`` is the averaged model of the cluster in which the round put client i.

    >>> clustering_objective(np.array([[1.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0], [3.0, 2.0]]), np.array([3, 1]))
    1.75
    """
    squares = np.square(points.astype(np.float64) - centres).sum(axis=1)
    return float(np.average(squares, weights=weights))


def check_gradients(train: Array, layout: Layout) -> None:
    """Refuse gradients that are too large to be computed and compared; ``train`` are the clients' examples."""
    largest, size = int(train.max()), len(train) * layout.size * 4
    if largest > MOST_EXAMPLES:
        raise UsageError(f"diagnose takes up to {MOST_EXAMPLES} examples a client, one has {largest}; leave it out")
    if size > MOST_BYTES:
        most = MOST_BYTES >> 20
        raise UsageError(f"diagnose takes up to {most} MB of gradients, these have {size >> 20}; take a smaller model")


def ask_gradients(federation: Federation, state: State, seed: int, clients: Array) -> Replies | None:
    """Ask clients that have a cluster for one step from its model; the cost of this measurement is not counted."""
    placed = clients[state.labels[clients] >= 0]
    if not len(placed):
        return None
    models, rows = state.models_of(placed)
    return federation.ask(GRADIENT, Sent(models), rows, placed, Key(seed, state.round))


def gradient_diagnostics(state: State, replies: Replies) -> dict[str, Any]:
    """Return the clusterability of the thesis from gradients at the cluster models, and the objective of training.

    ``objective`` is the mean train loss of clients with their clusters' models, weighted by examples: thesis eq. 3.3a
    (of cam 7.3).
    """
    if not len(replies):
        return {}
    assert replies.training_loss is not None, "training reports its loss"
    gradients = starts_of(state, replies) - replies.models().params
    objective = float(np.average(replies.training_loss, weights=replies.examples))
    labels = state.labels[replies.clients]
    return {"objective": objective} | _clusterabilities("gradient_clusterability", gradients, labels, replies)


def _clusterabilities(name: str, moves: Array, labels: Array, replies: Replies) -> dict[str, float | None]:
    """Return the clusterability of all parameters and, for models of two halves, of each half.

    In the global half all clients are one cluster.
    """
    layout, weights = replies.layout, replies.examples
    found: dict[str, float | None] = {name: clusterability(moves, labels, weights)}
    if "cluster" in layout.parts:
        found[f"{name}_cluster"] = clusterability(moves[:, layout.part("cluster")], labels, weights)
        found[f"{name}_global"] = clusterability(moves[:, layout.part("global")], np.zeros_like(labels), weights)
    return found


def round_temperature(replies: Replies, starts: Array) -> float | None:
    """Return the clustering temperature of the updates (ocfl eq. 4 with p = 2), by which ocfl decides to cluster.

    For models of two halves it is that of the cluster half. None for fewer than two clients, or if nothing was trained.
    """
    parts = replies.layout.parts
    half = replace(replies.layout, parts={**parts, "all": parts.get("cluster", parts["all"])})
    replies, part = replace(replies, layout=half), half.part("all")
    if len(replies) < 2 or np.array_equal(replies.models().params[:, part], starts[:, part]):
        return None
    with one_thread():
        return temperature(pairwise(columns(replies, starts), len(replies), "cosine"))
