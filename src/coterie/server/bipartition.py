"""An assign rule that splits a cluster in two where its members pull in different directions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from coterie.errors import UsageError
from coterie.limits import LARGEST, check_most
from coterie.protocol.replies import Replies
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit
from coterie.seeding import Key
from coterie.server.aggregate import average
from coterie.server.clustering.clusterers import agglomerative
from coterie.server.clustering.number_of_clusters import clearest
from coterie.server.contract import Ask, Assign, Assignment, Place, State, Weigh, memory_type
from coterie.server.distances.vectors import columns, of_updates
from coterie.server.one_shot import complete, joined
from coterie.server.placement import join
from coterie.typing import Array


@memory_type
@dataclass(frozen=True)
class Longest:
    """The length of the longest update of the run so far."""

    length: float


@dataclass(frozen=True)
class Stationary:
    """A cluster's model has come to rest although its members have not: |mean u_i| < eps1 and max |u_i| > eps2.

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
        """Whether it holds of the cluster of these replies; ``largest``: norm of the longest update so far."""
        mean, norms = norms_of(replies, starts)
        scales = (norms.max(), largest) if self.relative else (1.0, 1.0)
        return bool(mean < self.eps1 * scales[0] and norms.max() > self.eps2 * scales[1])


def norms_of(replies: Replies, starts: Array) -> tuple[float, Array]:
    """The norm of the mean update, and that of every update."""
    mean, each = 0.0, np.zeros(len(replies))
    for block in columns(replies, starts):
        mean += float((block.mean(axis=0) ** 2).sum())
        each += (block**2).sum(axis=1)
    return mean**0.5, np.sqrt(each)


def longest(norms: Array) -> float:
    """The largest norm that is at most twice the median: one client alone, a liar or not, cannot stop all splits.

    What is remembered here is what later rounds are measured by, for ever.

    >>> longest(np.array([1.0, 2.0, 3.0, 3.5, 50.0])), longest(np.array([0.0, 0.0, 4.0]))
    (3.5, 0.0)
    """
    return float(norms[norms <= 2 * np.median(norms)].max())


def bipartition(
    stationary: Stationary,
    minimum: int,
    linkage: str,
    weigh: Weigh,
    fit: Fit,
    place: Place,
    least: float | None = None,
) -> Assign:
    """Split, after ``minimum`` rounds, every stationary cluster of more than two clients, one in two a round.

    The members that were not drawn in this round train as well; those that cannot be reached do not count, and are
    placed when they answer. One half keeps the number of the whole, the other gets the next free one, so labels are of
    all clients. Halves are left together whose silhouette is not above ``least``.
    """
    if minimum < 0:
        raise UsageError(f"minimum is {minimum}; it must be at least 0")
    halves = agglomerative(clusters=2, linkage=linkage)

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        kept = join(place)(state, replies, key, ask)
        at_home = replies.without(replies.labels == UNPLACED, {})
        if not len(at_home):
            return kept
        norms = norms_of(at_home, state.stack.params[at_home.labels])[1]
        before: Longest | None = state.memory
        largest = max(0.0 if before is None else before.length, longest(norms))
        labels, parents, compared = kept.labels.copy(), list(range(len(state.stack))), []
        for cluster in range(len(state.stack)) if state.round > minimum else ():
            members = np.flatnonzero(state.labels == cluster)
            own = at_home.without(~np.isin(at_home.clients, members), {})
            if len(members) <= 2 or not len(own) or not stationary(own, state.stack.params[own.labels], largest):
                continue
            own = complete(own, members, state.stack, state.labels, fit, ask)
            if len(own) <= 2:
                continue
            _, distances = of_updates("cosine")(own, state.stack.params[own.labels], ask)
            half = halves(distances, key)
            if least is not None and clearest(distances, [half], least) is None:
                continue
            labels[members] = UNPLACED
            labels[own.clients] = np.where(half == 0, cluster, len(parents))
            parents.append(cluster)
            compared.append(own)
        memory = Longest(largest)
        if not compared:
            return replace(kept, memory=memory)
        return Assignment(labels, memory, tuple(parents), _halves(compared, labels, weigh))

    return assign


def _halves(compared: list[Replies], labels: Array, weigh: Weigh) -> Callable[[Stack], Stack]:
    """The halves begin with the mean of all their members that were compared; other clusters are as averaged."""
    everyone = compared[0]
    for more in compared[1:]:
        everyone = joined(everyone, more)
    return lambda averaged: average(everyone, labels[everyone.clients], weigh(everyone), averaged)[0]
