"""Aggregation: average clients' models in each cluster, and turn the mean into the next model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy

from coterie.errors import UnknownName, require
from coterie.limits import LARGEST, check_most
from coterie.models.layout import Coordinates, Layout
from coterie.protocol.replies import Combine, Replies
from coterie.protocol.stack import Stack
from coterie.server.contract import Moments, Update, by_examples, replace_models
from coterie.typing import Array

CHUNK_BYTES = 64 << 20
"""Client models are read in chunks of about this size, so that a memory-mapped reply never fills the memory."""

BLOCK_BYTES = 1 << 20
"""Doubles that are multiplied at once: a block of columns that stays in a core's cache."""


def average(
    replies: Replies, labels: Array, weights: Array, kept: Stack, shared: str | None = None
) -> tuple[Stack, Array]:
    """Return each cluster's mean model, or what the rule of the replies combines, and its share of the total weight.

    ``labels`` and ``weights`` are of the clients that answered; soft clusters have memberships ``(r, K)`` in the place
    of labels. A cluster without any client keeps its row of ``kept``. The part named ``shared`` is averaged over all
    clients instead and is the same in all rows.
    """
    mean = _means(replies.models(), labels, weights, kept, replies.combine)
    if shared is not None:
        _share(mean, replies, weights, shared)
    found = totals(labels, weights, len(kept))
    return mean, found / found.sum() if found.any() else np.full(len(kept), 1 / len(kept))


def _means(models: Stack, labels: Array, weights: Array, kept: Stack, combine: Combine | None) -> Stack:
    """Return the mean of each cluster's models; the row of ``kept`` where a cluster has none."""
    if combine is None:
        A = matrix(labels, weights, len(kept))
        return Stack(multiply(A, models.params, kept.params), multiply(A, models.buffers, kept.buffers))
    made = Stack(*(rows.copy() for rows in kept))
    counted = memberships(labels, len(kept)) * weights[:, None]
    for cluster in np.flatnonzero(counted.any(axis=0)):
        own = np.flatnonzero(counted[:, cluster])
        for target, row in zip(made, combine(models, own, counted[own, cluster]), strict=True):
            target[cluster] = row[0]
    return made


def _share(mean: Stack, replies: Replies, weights: Array, part: str) -> None:
    """Overwrite one part of every row with its mean over all clients that answered."""
    layout = replies.layout
    where: tuple[Coordinates, Coordinates] = (layout.part(part), layout.buffer_part(part))
    models, first = (
        Stack(*(rows[:, columns] for rows, columns in zip(stack, where, strict=True)))
        for stack in (replies.models(), mean.take(slice(1)))
    )
    everyone = _means(models, np.zeros(len(weights), int), weights, first, replies.combine)
    for target, row, columns in zip(mean, everyone, where, strict=True):
        target[:, columns] = row


def matrix(labels: Array, weights: Array, clusters: int) -> scipy.sparse.csr_array:
    """Return A ``(K, r)``: row k holds the normalised weights of the clients in cluster k, zeros if it is empty.

    >>> matrix(np.array([0, 1, 0]), np.array([1.0, 5.0, 3.0]), 3).toarray().tolist()
    [[0.25, 0.0, 0.75], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    found = totals(labels, weights, clusters)
    if labels.ndim == 2:
        return scipy.sparse.csr_array((labels * weights[:, None]).T / np.where(found > 0, found, 1)[:, None])
    placed = np.flatnonzero(labels >= 0)
    shares = weights[placed] / found[labels[placed]]
    return scipy.sparse.csr_array((shares, (labels[placed], placed)), shape=(clusters, len(labels)))


def totals(labels: Array, weights: Array, clusters: int) -> Array:
    """Return the weight in each cluster, of clients with these labels, or these memberships ``(r, K)``.

    >>> totals(np.array([0, 2, 0, -1]), np.ones(4), 3).tolist()
    [2.0, 0.0, 1.0]
    """
    if labels.ndim == 2:
        found: Array = weights @ labels
        return found
    return np.bincount(labels[labels >= 0], weights[labels >= 0], minlength=clusters)


def memberships(labels: Array, clusters: int) -> Array:
    """Return how much every client belongs to each cluster, ``(r, K)``: 1 where its label says so."""
    return labels if labels.ndim == 2 else (labels[:, None] == np.arange(clusters)).astype(np.float64)


def multiply(A: scipy.sparse.csr_array, rows: Array, kept: Array) -> Array:
    """Return ``A @ rows`` in double precision, reading rows by chunks; empty rows of A give those of ``kept``.

    Only a block of columns is doubles at a time: a copy of all rows would take longer than their sum.
    """
    chunk = max(1, CHUNK_BYTES // max(1, rows.shape[1] * 8))
    width = max(1, BLOCK_BYTES // max(1, min(chunk, len(rows)) * 8))
    total = np.zeros(kept.shape)
    for i in range(0, len(rows), chunk):
        weights, models = A[:, i : i + chunk], rows[i : i + chunk]
        for j in range(0, rows.shape[1], width):
            total[:, j : j + width] += weights @ models[:, j : j + width].astype(np.float64)
    empty = np.diff(A.indptr) == 0
    total[empty] = kept[empty]
    return total.astype(kept.dtype)


def with_part(models: Stack, source: Stack, layout: Layout, part: str) -> Stack:
    """Return the models with one part taken from ``source``, row by row, or from its single row."""
    changed = Stack(*(rows.copy() for rows in models))
    for rows, values, columns in zip(changed, source, (layout.part(part), layout.buffer_part(part)), strict=True):
        rows[:, columns] = values[:, columns]
    return changed


def uniform(replies: Replies) -> Array:
    """Weigh all clients equally."""
    return np.ones(len(replies))


def weighing(name: str) -> Callable[[Replies], Array]:
    """Return the rule that weighs clients, by name."""
    known = {"examples": by_examples, "uniform": uniform}
    if name not in known:
        raise UnknownName("weights", name, known)
    return known[name]


SERVERS = ("sgd", "adam", "yogi", "adagrad")


def server_optimiser(server: str, lr: float, momentum: float, beta1: float, beta2: float, tau: float) -> Update:
    """Take ``mean - model`` as a descent direction (Reddi et al. 2021); no bias correction, second moment from tau^2.

    sgd: m = momentum m + d, x += lr m. Others: m = beta1 m + (1 - beta1) d, x += lr m / (sqrt(v) + tau), with
    adagrad v += d^2; adam v = beta2 v + (1 - beta2) d^2; yogi v -= (1 - beta2) d^2 sign(v - d^2).
    """
    if server not in SERVERS:
        raise UnknownName("server optimiser", server, SERVERS)
    for name, value, good, limit in (
        ("lr", lr, lr > 0, "> 0"),
        ("tau", tau, tau > 0, "> 0"),
        ("momentum", momentum, 0 <= momentum < 1, "in [0, 1)"),
        ("beta1", beta1, 0 <= beta1 < 1, "in [0, 1)"),
        ("beta2", beta2, 0 <= beta2 < 1, "in [0, 1)"),
    ):
        require(good, f"the server's {name}", value, limit)
        check_most(f"the server's {name}", value, LARGEST)

    def update(models: Stack, mean: Stack, moments: Moments, answered: Array) -> tuple[Stack, Moments]:
        old = models.params.astype(np.float64)
        delta = mean.params - old
        first = moments.get("first", np.zeros_like(old))
        second = moments.get("second", np.full_like(old, tau**2))
        if server == "sgd":
            new_first, new_second = momentum * first + delta, second
            new = old + lr * new_first
        else:
            new_first = beta1 * first + (1 - beta1) * delta
            new_second = _second_moment(server, second, delta**2, beta2)
            new = old + lr * new_first / (np.sqrt(new_second) + tau)
        rows = answered[:, None]
        params = np.where(rows, new, old).astype(models.params.dtype)
        kept = {"first": np.where(rows, new_first, first)}
        if server != "sgd":
            kept["second"] = np.where(rows, new_second, second)
        return Stack(params, mean.buffers), kept

    return update


def optimiser_named(server: str | None, lr: float) -> Update:
    """Return a server optimiser by name with the constants of Reddi et al.; None: the mean is the new model."""
    return replace_models if server is None else server_optimiser(server, lr, 0.0, 0.9, 0.99, 1e-3)


def _second_moment(server: str, second: Array, square: Array, beta2: float) -> Array:
    if server == "adagrad":
        return second + square
    if server == "adam":
        return beta2 * second + (1 - beta2) * square
    yogi: Array = second - (1 - beta2) * square * np.sign(second - square)
    return yogi
