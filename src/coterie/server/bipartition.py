"""An assign rule that splits a cluster in two where its clients pull in different directions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from coterie.errors import UsageError
from coterie.limits import LARGEST, check_most
from coterie.protocol.replies import Replies
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit
from coterie.seeding import Key
from coterie.server.aggregate import average
from coterie.server.clustering.by_sample import find_clusters
from coterie.server.clustering.clusterers import Clusterer, agglomerative
from coterie.server.clustering.number_of_clusters import clearest
from coterie.server.contract import Ask, Assign, Assignment, Place, State, Weigh, memory_type
from coterie.server.distances.many_clients import Distances, Sampled
from coterie.server.distances.measures import by_updates
from coterie.server.distances.vectors import columns, starts_from
from coterie.server.one_shot import complete, joined
from coterie.server.placement import join
from coterie.typing import Array


@memory_type
@dataclass(frozen=True)
class Longest:
    """The length of the longest update of the run so far."""

    length: float


class Sides(NamedTuple):
    """A cluster that splits, the replies of its clients, the side of each, 0 or 1, and a line for the user."""

    cluster: int
    replies: Replies
    side: Array
    note: str | None = None


def bipartition(
    stationary: Stationary,
    *,
    minimum: int,
    linkage: str,
    weigh: Weigh,
    fit: Fit,
    place: Place,
    least: float | None = None,
) -> Assign:
    """Split every stationary cluster of more than two clients in two, after ``minimum`` rounds.

    Clients of the cluster that were not drawn in this round train as well; those that cannot be reached do not count,
    and are placed when they answer. One side keeps the number of the cluster, the other gets the next free one, so
    labels are of all clients. Sides stay together if their silhouette is not above ``least``.
    """
    if minimum < 0:
        raise UsageError(f"minimum is {minimum}; it must be at least 0")
    finder = SideFinder(stationary, agglomerative(clusters=2, linkage=linkage), fit, least)

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        kept = join(place)(state, replies, key, ask)
        at_home = replies.without(replies.rows == UNPLACED, {})
        if not len(at_home):
            return kept
        before: Longest | None = state.memory
        norms = norms_of(at_home, starts_from(state.stack.params, at_home.rows))[1]
        memory = Longest(max(0.0 if before is None else before.length, longest(norms)))
        clusters = range(len(state.stack)) if state.round > minimum else ()
        found = [finder(cluster, state, at_home, memory.length, key, ask) for cluster in clusters]
        splits = [sides for sides in found if sides is not None]
        return split(state, kept.labels, splits, memory, weigh) if splits else replace(kept, memory=memory)

    return assign


@dataclass(frozen=True)
class SideFinder:
    """Finds the two sides of a cluster."""

    stationary: Stationary
    clusterer: Clusterer
    fit: Fit
    least: float | None

    def __call__(
        self, cluster: int, state: State, replies: Replies, largest: float, key: Key, ask: Ask
    ) -> Sides | None:
        """Return the sides of one cluster; None if it stays whole."""
        clients = np.flatnonzero(state.labels == cluster)
        own = replies.without(~np.isin(replies.clients, clients), {})
        starts = starts_from(state.stack.params, own.rows)
        if len(clients) <= 2 or not len(own) or not self.stationary(own, starts, largest):
            return None
        own = complete(own, clients, state.stack, state.labels, self.fit, ask)
        if len(own) <= 2:
            return None
        _, distances = by_updates("cosine")(own, starts_from(state.stack.params, own.rows), ask)
        side = find_clusters(self.clusterer, distances, key)
        if not self._apart(distances, side):
            return None
        return Sides(cluster, own, side, distances.note if isinstance(distances, Sampled) else None)

    def _apart(self, distances: Distances, side: Array) -> bool:
        """Return whether the sides are clear enough, by the silhouette of all clients or of a sample."""
        if isinstance(distances, Sampled):
            return self._apart(distances.among, side[distances.sample])
        return self.least is None or clearest(distances, [side], self.least) is not None


def split(state: State, labels: Array, splits: list[Sides], memory: Longest, weigh: Weigh) -> Assignment:
    """Return the clusters after these splits; both sides begin with the mean of their clients that were compared."""
    labels, parents = labels.copy(), list(range(len(state.stack)))
    for cluster, own, side, _ in splits:
        labels[state.labels == cluster] = UNPLACED
        labels[own.clients] = np.where(side == 0, cluster, len(parents))
        parents.append(cluster)
    compared = reduce(joined, (sides.replies for sides in splits))
    note = next((sides.note for sides in splits if sides.note is not None), None)

    def finish(averaged: Stack) -> Stack:
        return average(compared, labels[compared.clients], weigh(compared), averaged)[0]

    return Assignment(labels, memory, parents=tuple(parents), finish=finish, note=note)


@dataclass(frozen=True)
class Stationary:
    """Whether a cluster's model rests while its clients still move: |mean u_i| < eps1 and max |u_i| > eps2.

    Relative: eps1 is in units of the largest update of the cluster in this round, eps2 in units of the ``longest`` of
    the run. Absolute thresholds depend on the rate and on the number of steps.
    """

    eps1: float
    eps2: float
    relative: bool = True

    def __post_init__(self) -> None:
        for name, value in (("eps1", self.eps1), ("eps2", self.eps2)):
            if not value >= 0:
                raise UsageError(f"{name} is {value}; it must be >= 0")
            check_most(name, value, LARGEST)

    def __call__(self, replies: Replies, starts: Array, largest: float) -> bool:
        """Return whether it holds for a cluster's replies; ``largest`` is the norm of the longest update so far."""
        mean, norms = norms_of(replies, starts)
        scales = (norms.max(), largest) if self.relative else (1.0, 1.0)
        return bool(mean < self.eps1 * scales[0] and norms.max() > self.eps2 * scales[1])


def norms_of(replies: Replies, starts: Array) -> tuple[float, Array]:
    """Return the norm of the mean update, and the norm of every update."""
    mean, each = 0.0, np.zeros(len(replies))
    for block in columns(replies, starts):
        mean += float((block.mean(axis=0) ** 2).sum())
        each += (block**2).sum(axis=1)
    return mean**0.5, np.sqrt(each)


def longest(norms: Array) -> float:
    """Return the largest norm that is at most twice the median.

    All later rounds are compared with it, so no single client may set it, or it could prevent all splits.

    >>> longest(np.array([1.0, 2.0, 3.0, 3.5, 50.0])), longest(np.array([0.0, 0.0, 4.0]))
    (3.5, 0.0)
    """
    return float(norms[norms <= 2 * np.median(norms)].max())
