"""Distances of many clients without a matrix of all pairs: those of everybody to a sample of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coterie.errors import UsageError
from coterie.protocol.replies import Replies, Sketching
from coterie.seeding import generator
from coterie.typing import Array

CELLS = 1 << 23
"""Distances to the sample that are computed at once: 64 MB."""


@dataclass(frozen=True)
class Sampled:
    """The distances of ``count`` clients to some of them.

    sample   the clients of the sample, as rows, ascending
    among    the distances between them, ``(s, s)``
    away     from some rows to their distances from the sample, ``(rows, s)``
    by       what the distances were computed from, in words
    limit    the number of clients up to which all pairs are compared
    """

    sample: Array
    among: Array
    count: int
    away: Callable[[slice], Array]
    by: str
    limit: int

    def to_clusters(self, labels: Array) -> Array:
        """Return the mean distance of every client to the sampled clients of each cluster, ``(count, K)``.

        ``labels`` are the clusters of the sample, from 0 without gaps.
        """
        inside = (labels[:, None] == np.arange(labels.max() + 1)).astype(np.float64)
        weights, step = inside / inside.sum(axis=0), max(1, CELLS // len(labels))
        parts = [slice(i, i + step) for i in range(0, self.count, step)]
        return np.concatenate([self.away(part) @ weights for part in parts])

    def medoids(self, labels: Array) -> list[int]:
        """Return the client of each cluster nearest to the sampled ones in it; ``labels`` are of all clients."""
        means = self.to_clusters(labels[self.sample])
        inside = labels[:, None] == np.arange(means.shape[1])
        nearest: list[int] = np.where(inside, means, np.inf).argmin(axis=0).tolist()
        return nearest

    @property
    def note(self) -> str:
        """Return a line for the user: what was done, that other clusters are possible, and how to avoid it.

        It is the same for every clustering of a run, so that it is told once.
        """
        return (
            f"more clients than exact-clients ({self.limit:,}): {len(self.sample):,} were clustered by {self.by} "
            f"and the others joined the nearest cluster; comparing all pairs may give other clusters: raise "
            f"exact-clients for that, or sketch-sample where groups are small"
        )


Distances = Array | Sampled
"""The distances between clients: all of them in a square matrix, or those to a sample."""


def too_many(replies: Replies) -> bool:
    """Return whether these are more clients than all pairs are compared of."""
    return len(replies) > replies.sketching.exact_clients


def refuse_many(replies: Replies, why: str, remedy: str) -> None:
    """Refuse more clients than all pairs are compared of, where nothing else makes sense."""
    if too_many(replies):
        limit = replies.sketching.exact_clients
        raise UsageError(f"{len(replies):,} clients are more than exact-clients ({limit:,}), and {why}: {remedy}")


def drawn(count: int, sketching: Sketching) -> Array:
    """Return the rows of a sample of clients, ascending: at most as many as all pairs are compared of.

    >>> drawn(5, Sketching(exact_clients=3)).tolist(), len(drawn(2000, Sketching(exact_clients=1500)))
    ([2, 3, 4], 1000)
    """
    size = min(count, sketching.sample, sketching.exact_clients)
    return np.sort(generator(sketching.seed, "sample of clients", count).choice(count, size, replace=False))
