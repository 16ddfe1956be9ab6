"""Assign rules: from what the clients sent to every client's cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.distance import cdist

from coterie.errors import UsageError
from coterie.protocol.replies import Replies
from coterie.protocol.stack import UNPLACED
from coterie.seeding import Key
from coterie.server.clustering.kmeans import KMeansClusters, match
from coterie.server.contract import Ask, Assign, Assignment, State, Weigh, memory_type
from coterie.typing import Array


@memory_type
@dataclass(frozen=True)
class Clustered:
    """The memory of clustering every round: the last centres, and how many clusterings counted as shots."""

    centres: Array
    clusterings: int


def keep() -> Assign:
    """Keep every client in the cluster it worked for: the one it chose, or its old one; soft clusters as they are."""

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        if state.memberships is not None:
            return Assignment(state.labels, state.memory, memberships=state.memberships)
        return Assignment(placed(state, replies, replies.labels), state.memory)

    return assign


def cluster_parts(part: str, clusterer: KMeansClusters, weigh: Weigh) -> Assign:
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
        points = replies.part(part).astype(np.float64)
        last: Clustered | None = state.memory
        new, centres = clusterer(points, weigh(replies), key, None if last is None else last.centres)
        numbers = match(new, state.labels[replies.clients], clusters)
        ordered = np.empty_like(centres)
        ordered[numbers] = centres
        before = replace(state, labels=np.full_like(state.labels, UNPLACED)) if splits else state
        labels = placed(before, replies, numbers[new])
        memory = Clustered(ordered, clusterings(state) + 1)
        return Assignment(labels, memory, parents=(0,) * clusters if splits else None, formed=True)

    return assign


def join_nearest(part: str) -> Assign:
    """Keep every client where it is; one without a cluster joins the nearest centre of the last clustering."""

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        labels, new = replies.labels.copy(), np.flatnonzero(replies.labels == UNPLACED)
        if len(new):
            points = replies.models().params[new][:, replies.layout.part(part)]
            labels[new] = cdist(points, state.memory.centres).argmin(axis=1)
        return Assignment(placed(state, replies, labels), state.memory)

    return assign


def until(shots: int | None, rule: Assign, then: Assign) -> Assign:
    """Apply a rule until it has clustered ``shots`` times (None: always), another afterwards."""
    if shots is not None and shots < 1:
        raise UsageError(f"shots is {shots}; it must be at least 1, or none")

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        chosen = rule if shots is None or clusterings(state) < shots else then
        return chosen(state, replies, key, ask)

    return assign


def clusterings(state: State) -> int:
    """Return how often a rule that clusters every round has done so, apart from a clustering that ended a warm-up."""
    last: Clustered | None = state.memory
    return 0 if last is None else last.clusterings


def placed(state: State, replies: Replies, labels: Array) -> Array:
    """Return all clients' labels: new ones for those that answered, the old ones for the rest."""
    everyone = state.labels.copy()
    everyone[replies.clients] = labels
    return everyone


def check_clusters(clusters: int, clients: int) -> None:
    """Refuse more clusters than clients."""
    if not 1 <= clusters <= clients:
        raise UsageError(f"clusters is {clusters} for {clients} clients; it must be between 1 and {clients}")
