"""Clustering once: when it happens, on which replies, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy

from coterie.errors import UnknownName, UsageError
from coterie.limits import POWER, check_most
from coterie.protocol.replies import ROWS, Replies
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.aggregate import average
from coterie.server.assign import as_trained, labels_after
from coterie.server.clustering.advice import on_distances
from coterie.server.clustering.by_sample import find_clusters
from coterie.server.clustering.clusterers import Clusterer
from coterie.server.contract import Ask, Assign, Assignment, State, Weigh, memory_type
from coterie.server.distances.many_clients import Distances, Sampled, too_many
from coterie.server.distances.sketches import between_sketches, mean_square_of_cosine_distances
from coterie.server.distances.vectors import KeyedMeasure, columns, cosines, pairwise, starts_from
from coterie.typing import Array

STARTS = ("mean", "global", "medoid")

MOST_KEPT = 500
"""Distances are kept up to this number of clients: they are saved with every state, and have 2 MB then."""


@memory_type
@dataclass(frozen=True)
class Formed:
    """The round in which clusters formed: the model that was sent, each cluster's mean, and the distances, if few.

    ``descriptions`` and ``scale``: where clients were clustered by descriptions, the one of each cluster, and the
    numbers by which descriptions are divided before they are compared.
    """

    sent: Stack
    means: Stack
    distances: Array | None
    descriptions: Array | None = None
    scale: Array | None = None


@memory_type
@dataclass(frozen=True)
class OneShot:
    """The memory of clustering once: what its event has seen, how often it has clustered, and how clusters formed."""

    seen: float | None = None
    shots: int = 0
    formed: Formed | None = None

    def for_clients(self, rows: Array) -> OneShot:
        """Return the memory for other clients; distances are of those that were there when clusters formed."""
        return self if self.formed is None else replace(self, formed=replace(self.formed, distances=None))


def formed_of(state: State) -> Formed | None:
    """Return how the clusters of a state formed; None if they have not, or not by clustering once."""
    return state.memory.formed if isinstance(state.memory, OneShot) else None


def sent_when_formed(state: State) -> Stack:
    """Return the model from which clients trained when the clusters formed; before that, the one there is."""
    formed = formed_of(state)
    return state.stack.take(slice(1)) if formed is None else formed.sent


def means_when_formed(state: State) -> Stack:
    """Return the mean of each cluster's models when the clusters formed; before that, the models there are."""
    formed = formed_of(state)
    return state.stack if formed is None else formed.means


Event = Callable[[float | None, State, Replies], tuple[bool, float | None]]
"""``(seen, state, replies) -> (happens, seen)``: whether to cluster now, and what to remember for the next round."""

Rule = Callable[[State, Replies, Key, Ask], Assignment | None]
"""An assign rule that returns None if it cannot be applied yet."""


def once(when: Event, rule: Rule, then: Assign, shots: int = 1) -> Assign:
    """Keep labels until an event, apply ``rule`` in that round and in the next ``shots - 1``, and ``then`` ever after.

    If the rule cannot be applied (too few answers), the event has not happened.
    """
    if shots < 1:
        raise UsageError(f"shots is {shots}; it must be at least 1")

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        memory = state.memory or OneShot()
        if memory.shots >= shots:
            return then(replace(state, memory=replace(memory, seen=None)), replies, key, ask)
        happens, seen = (True, memory.seen) if memory.shots else when(memory.seen, state, replies)
        known = replace(state, memory=replace(memory, seen=seen))
        found = rule(known, replies, key, ask) if happens else None
        if found is None:
            return as_trained()(known, replies, key, ask)
        return replace(found, memory=replace(found.memory, shots=memory.shots + 1))

    return assign


def after(rounds: int) -> Event:
    """Happen as soon as this number of rounds is done."""
    if rounds < 0:
        raise UsageError(f"warmup is {rounds}; it must be at least 0")
    return lambda seen, state, replies: (state.round >= rounds, None)


def temperature_rises(p: float = 2.0) -> Event:
    """Happen at the first rise of the clustering temperature from one round to the next, so never in the first.

    Clients agree more and more while the model is far from all of their optima, until it is near and they begin to pull
    in different directions. With fewer than two answers there is no temperature and nothing happens.
    """
    if not p >= 1:
        raise UsageError(f"p is {p}; it must be at least 1")
    check_most("p", p, POWER)

    def event(before: float | None, state: State, replies: Replies) -> tuple[bool, float | None]:
        if len(replies) < 2:
            return False, before
        now = temperature_of(replies, starts_from(state.stack.params, replies.rows), p)
        return before is not None and now > before, now

    return event


def temperature_of(replies: Replies, starts: Array, p: float = 2.0) -> float:
    """Return the temperature of clients' updates; of many clients with p = 2 from sums, otherwise that of a sample."""
    if not too_many(replies):
        return temperature(pairwise(columns(replies, starts), len(replies), "cosine"), p)
    if p == 2:
        return float(mean_square_of_cosine_distances(replies, starts) ** 0.5 / 2)
    return temperature(between_sketches(replies, starts, "cosine").among, p)


def temperature(distances: Array, p: float = 2.0) -> float:
    """Return the p-norm of all cosine distances as a share of its maximum: |D|_p / (n (n - 1) 2^p)^(1/p).

    >>> temperature(np.array([[0.0, 2.0], [2.0, 0.0]]))
    1.0
    >>> temperature(np.array([[0.0, 1.0], [1.0, 0.0]]), p=1)
    0.5
    """
    count = len(distances)
    return float((np.sum(distances**p) / (count * (count - 1) * 2**p)) ** (1 / p))


def cluster_once(
    measure: KeyedMeasure,
    clusterer: Clusterer,
    weigh: Weigh,
    fit: Fit,
    *,
    all_clients: bool = True,
    start: str = "mean",
    compared: Fit | None = None,
) -> Rule:
    """Cluster the clients by the distances between their trainings of one model.

    ``all_clients``: clients that were not drawn in this round train as well. ``start`` of the cluster models: the mean
    of their clients' models, the model that all were sent (global), or that of the client nearest to the others
    (medoid); without ``all_clients`` they are what the round's update makes of them. When applied again, the clients
    that answered train once more from the model of the first time. ``compared``: a different local training, in a
    further exchange with all clients, of the models that are compared; the means with which clusters begin are still of
    the round's models.
    """
    if start not in STARTS:
        raise UnknownName("start", start, STARTS)
    enough = max(2, clusterer.least_points)

    def rule(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment | None:
        state = replace(state, memory=state.memory or OneShot())
        answers, sent = models_to_compare(state, replies, fit, ask, all_clients, compared), sent_when_formed(state)
        if len(answers) < enough:
            return None
        starts = np.broadcast_to(sent.params[0], (len(answers), sent.params.shape[1]))
        answers, distances = measure(key)(answers, starts, ask)
        if len(answers) < enough:
            return None
        new = find_clusters(clusterer, distances, key)
        found = follow_old_numbers(state, answers, new, weigh)
        same, again = len(found.parents) == len(state.stack), state.memory.shots > 0
        old = state if same else replace(state, labels=np.full_like(state.labels, UNPLACED))
        labels = labels_after(old, answers, found.labels)
        finish = None
        if len(found.parents) > 1 and all_clients and not again:
            means = found.means
            if compared is not None:
                kind = sent.take([0] * len(found.parents))
                means = average(replies, labels[replies.clients], weigh(replies), kind)[0]
            models = first_models(start, answers, found.labels, distances, means, sent)
            finish = replace_by(models)
        formed = Formed(sent, found.means, among_all(answers.clients, distances, len(state.labels)))
        return Assignment(
            labels,
            replace(state.memory, formed=formed),
            parents=None if same else found.parents,
            finish=finish,
            formed=True,
            advice=on_distances(clusterer, distances, key, new) if state.advice is None else None,
            note=distances.note if isinstance(distances, Sampled) else None,
        )

    return rule


def models_to_compare(
    state: State, replies: Replies, fit: Fit, ask: Ask, all_clients: bool, compared: Fit | None
) -> Replies:
    """Return replies that can be compared: all trained from one and the same model."""
    everyone = np.arange(len(state.labels))
    if compared is not None or state.memory.shots:
        asked = replies.clients if compared is None else everyone
        return train(asked, sent_when_formed(state), np.zeros_like(asked), compared or fit, ask)
    return complete(replies, everyone, state.stack, state.labels, fit, ask) if all_clients else replies


def replace_by(models: Stack) -> Callable[[Stack], Stack]:
    """Replace what was averaged by these models."""
    return lambda averaged: models


def first_models(start: str, answers: Replies, labels: Array, distances: Distances, means: Stack, sent: Stack) -> Stack:
    """Return the models that the clusters begin with."""
    if start == "medoid":
        return answers.models().take(medoids(distances, labels))
    return sent.take([0] * len(means)) if start == "global" else means


def among_all(clients: Array, distances: Distances, count: int) -> Array | None:
    """Return the distances of some clients in a matrix of all, NaN for the others; None beyond ``MOST_KEPT`` clients.

    >>> among_all(np.array([0, 2]), np.array([[0.0, 5.0], [5.0, 0.0]]), 3).tolist()[0]
    [0.0, nan, 5.0]
    """
    if count > MOST_KEPT or isinstance(distances, Sampled):
        return None
    whole = np.full((count, count), np.nan)
    whole[np.ix_(clients, clients)] = distances
    return whole


def train(clients: Array, stack: Stack, rows: Array, fit: Fit, ask: Ask) -> Replies:
    """Let these clients train the models of these rows."""
    return ask(Task(fit=(fit,)), stack, rows, clients)


def complete(replies: Replies, wanted: Array, stack: Stack, labels: Array, fit: Fit, ask: Ask) -> Replies:
    """Return the replies of all ``wanted`` clients; those that have not trained in this round train now.

    ``labels`` are of all clients.
    """
    own = replies.without(~np.isin(replies.clients, wanted), {})
    others = np.setdiff1d(wanted, replies.clients)
    return joined(own, train(others, stack, labels[others], fit, ask)) if len(others) else own


def joined(one: Replies, other: Replies) -> Replies:
    """Return the rows of both, in the order of the clients."""
    if not len(other):
        return one
    if not len(one):
        return other
    order = np.argsort(np.concatenate([one.clients, other.clients]))
    rows: dict[str, Any] = {}
    for name in ("clients", *ROWS):
        parts = getattr(one, name), getattr(other, name)
        rows[name] = None if any(part is None for part in parts) else np.concatenate(parts)[order]
    return replace(one, **rows, missing={**one.missing, **other.missing})


class Numbered(NamedTuple):
    """Clusters with numbers that follow the old ones: labels of those that answered, parents and mean models."""

    labels: Array
    parents: tuple[int, ...]
    means: Stack


def follow_old_numbers(state: State, answers: Replies, new: Array, weigh: Weigh) -> Numbered:
    """Number new clusters so that they follow the old ones; in a further shot, clusters that formed before stay."""
    sent, weights, old = sent_when_formed(state), weigh(answers), state.labels[answers.clients]
    found = average(answers, new, weights, sent.take([0] * (int(new.max()) + 1)))[0]
    formed = formed_of(state)
    if formed is None:
        numbers, parents = follow(new, old, len(state.stack))
        return Numbered(numbers[new], parents, found.take(np.argsort(numbers)))
    part, means = answers.layout.part("all"), formed.means
    likeness = cosines((found.params - sent.params)[:, part], (means.params - sent.params)[:, part])
    numbers, parents = join_or_follow(new, old, likeness)
    return Numbered(numbers[new], parents, average(answers, numbers[new], weights, means.take(list(parents)))[0])


def medoids(distances: Distances, labels: Array) -> list[int]:
    """Return the client of each cluster that is nearest to the others in it.

    >>> medoids(np.abs(np.subtract.outer([0, 1, 3, 9], [0, 1, 3, 9])), np.array([0, 0, 0, 1]))
    [1, 3]
    """
    if isinstance(distances, Sampled):
        return distances.medoids(labels)
    groups = [np.flatnonzero(labels == k) for k in range(labels.max() + 1)]
    return [int(g[distances[np.ix_(g, g)].sum(axis=1).argmin()]) for g in groups]


def join_or_follow(new: Array, old: Array, likeness: Array) -> tuple[Array, tuple[int, ...]]:
    """Number the clusters of a further sample among those that formed before, and return the parent of each.

    The similarity of a new cluster to an old one is the cosine of their mean updates (``likeness``, new x old) plus the
    share of its clients that were in the old one: two samples need not have a client in common. A new cluster joins the
    old one of the highest similarity; two may join the same one, where a sample has few clients of the others. Only if
    there are more new clusters than old do those that the best matching leaves over get new numbers. Old clusters stay,
    joined or not.

    >>> join_or_follow(np.array([0, 0, 1]), np.array([-1, -1, -1]), np.array([[0.9, 0.1], [0.7, 0.0]]))
    (array([0, 0]), (0, 1))
    """
    count, clusters = likeness.shape
    overlap = np.zeros((count, clusters))
    np.add.at(overlap, (new[old >= 0], old[old >= 0]), 1)
    alike = likeness + overlap / np.maximum(overlap.sum(axis=1, keepdims=True), 1)
    numbers = alike.argmax(axis=1)
    matched, _ = scipy.optimize.linear_sum_assignment(alike, maximize=True)
    more = np.setdiff1d(np.arange(count), matched)
    parents = (*range(clusters), *numbers[more].tolist())
    numbers[more] = clusters + np.arange(len(more))
    return numbers, parents


def follow(new: Array, old: Array, clusters: int) -> tuple[Array, tuple[int, ...]]:
    """Number new clusters by their largest overlap with the old ones, and return the parent of each.

    ``numbers[new]`` are the labels. There may be more new clusters than old, or fewer; the parent of one without a
    counterpart is the old cluster of most of its clients.

    >>> follow(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 0]), 1)
    (array([0, 1]), (0, 0))
    >>> follow(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]), 2)
    (array([1, 0]), (0, 1))
    """
    count = int(new.max()) + 1
    overlap = np.zeros((count, clusters))
    np.add.at(overlap, (new[old >= 0], old[old >= 0]), 1)
    rows, columns = scipy.optimize.linear_sum_assignment(overlap, maximize=True)
    rank = np.full(count, clusters)
    rank[rows] = columns
    numbers = np.empty(count, dtype=np.int64)
    numbers[np.argsort(rank, kind="stable")] = np.arange(count)
    most = np.where(rank < clusters, rank, overlap.argmax(axis=1))
    parents = np.empty(count, dtype=np.int64)
    parents[numbers] = most
    return numbers, tuple(parents.tolist())
