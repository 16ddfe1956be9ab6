"""Assign rules: as clients trained, or k-means of the clients' parameters in every round; and who joins its centres.

Rules that cluster once are in ``one_shot``, k-means itself is in ``clustering.weighted_kmeans``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from coterie.errors import UsageError
from coterie.protocol.replies import Replies
from coterie.protocol.stack import UNPLACED
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.clustering.weighted_kmeans import WeightedKMeans
from coterie.server.contract import (
    Ask,
    Assign,
    Assignment,
    Place,
    Scores,
    State,
    Weigh,
    least_loss,
    memory_type,
)
from coterie.typing import Array


@memory_type
@dataclass(frozen=True)
class Clustered:
    """The memory of clustering every round: the last centres, and how many clusterings counted as shots."""

    centres: Array
    clusterings: int


def as_trained() -> Assign:
    """Put every client in the cluster whose model it trained: the one it chose, or its old one; soft clusters stay."""

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        if state.memberships is not None:
            return Assignment(state.labels, state.memory, memberships=state.memberships)
        return Assignment(labels_after(state, replies, replies.rows), state.memory)

    return assign


def cluster_by_part(part: str, clusterer: WeightedKMeans, weigh: Weigh) -> Assign:
    """Cluster one part of the clients' parameters every round; numbers follow the largest overlap with the old ones.

    Clients that did not answer stay in their clusters, or have none when one shared model splits: their old number
    named the whole. With fewer answers than clusters nobody moves.
    """

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        clusters = clusterer.clusters
        check_clusters(clusters, len(state.labels))
        if len(replies) < clusters:
            return Assignment(state.labels, state.memory)
        if not len(replies.layout.numbers(part)):
            raise UsageError(f"the model's part {part!r} is empty; name a submodule head, or cluster layer=all")
        splits = len(state.stack) != clusters
        points = replies.part(part)
        last: Clustered | None = state.memory
        new, centres = clusterer(points, weigh(replies), key, None if last is None else last.centres)
        numbers = match(new, state.labels[replies.clients], clusters)
        ordered = np.empty_like(centres)
        ordered[numbers] = centres
        before = replace(state, labels=np.full_like(state.labels, UNPLACED)) if splits else state
        labels = labels_after(before, replies, numbers[new])
        memory = Clustered(ordered, clusterings(state) + 1)
        return Assignment(labels, memory, parents=(0,) * clusters if splits else None, formed=True)

    return assign


def join_nearest(part: str) -> Assign:
    """Keep every client where it is; one without a cluster joins the nearest centre of the last clustering."""

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        labels, new = replies.rows.copy(), np.flatnonzero(replies.rows == UNPLACED)
        if len(new):
            points = replies.models().params[new][:, replies.layout.part(part)]
            labels[new] = scipy.spatial.distance.cdist(points, state.memory.centres).argmin(axis=1)
        return Assignment(labels_after(state, replies, labels), state.memory)

    return assign


def nearest_centre(part: str, fit: Fit) -> Place:
    """Score clusters by minus the distance to their centres, after one local training from the mean of their models.

    The mean has equal weights, or it would be nearest to the largest cluster before any training. Without a clustering
    yet the score is by least loss.
    """

    def place(state: State, ask: Ask, clients: Array) -> Scores:
        if state.memory is None:
            return least_loss(state, ask, clients)
        mean = state.stack.mix(np.full((1, len(state.stack)), 1 / len(state.stack)))
        replies = ask(Task(fit=(fit,)), mean, np.zeros(len(clients), dtype=np.int64), clients)
        if not len(replies):
            return Scores(replies.clients, np.empty((0, 1)))
        return Scores(
            replies.clients, -scipy.spatial.distance.cdist(replies.part(part).astype(np.float64), state.memory.centres)
        )

    return place


def until(shots: int | None, rule: Assign, then: Assign) -> Assign:
    """Apply a rule until it has clustered ``shots`` times (None: always), another afterwards."""
    if shots is not None and shots < 1:
        raise UsageError(f"shots is {shots}; it must be at least 1, or none")

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        chosen = rule if shots is None or clusterings(state) < shots else then
        return chosen(state, replies, key, ask)

    return assign


def match(new: Array, old: Array, clusters: int) -> Array:
    """Return numbers for new clusters, ``numbers[new]``, that overlap most with the old ones (Hungarian matching).

    >>> match(np.array([1, 1, 0]), np.array([0, 0, 1]), 2).tolist()
    [1, 0]
    """
    both = old >= 0
    overlap = np.zeros((clusters, clusters))
    np.add.at(overlap, (new[both], old[both]), 1)
    numbers = np.empty(clusters, dtype=np.int64)
    rows, columns = scipy.optimize.linear_sum_assignment(overlap, maximize=True)
    numbers[rows] = columns
    return numbers


def clusterings(state: State) -> int:
    """Return how often a rule that clusters every round has done so, apart from a clustering that ended a warm-up."""
    last: Clustered | None = state.memory
    return 0 if last is None else last.clusterings


def labels_after(state: State, replies: Replies, labels: Array) -> Array:
    """Return all clients' labels: new ones for those that answered, the old ones for the rest."""
    everyone = state.labels.copy()
    everyone[replies.clients] = labels
    return everyone


def check_clusters(clusters: int, clients: int) -> None:
    """Refuse more clusters than clients."""
    if not 1 <= clusters <= clients:
        raise UsageError(f"clusters is {clusters} for {clients} clients; it must be between 1 and {clients}")
