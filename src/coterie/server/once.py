"""An assign rule that clusters when something happens, and only then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from coterie.errors import UnknownName, UsageError
from coterie.models.layout import Array
from coterie.protocol.replies import UNPLACED, Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit
from coterie.seeding import Key
from coterie.server.advice import ADVICE, on_distances
from coterie.server.aggregate import average
from coterie.server.assign import keep, placed
from coterie.server.contract import Ask, Assign, Assignment, State, Weigh
from coterie.server.distances import KeyedMeasure
from coterie.server.events import Event
from coterie.server.formed import have_formed, matrix_of, means, origin, remembered
from coterie.server.gather import complete, train
from coterie.server.matrix_clusterers import Clusterer
from coterie.server.place import cosines

Rule = Callable[[State, Replies, Key, Ask], Assignment | None]
"""An assign rule that may find that it cannot be applied yet."""

STARTS = ("mean", "global", "medoid")


def once(when: Event, rule: Rule, then: Assign, shots: int = 1) -> Assign:
    """Keep labels until an event, apply ``rule`` in that round and in the next ``shots - 1``, and ``then`` for ever.

    Where the rule cannot be applied (too few answers), the event has not happened.
    """
    if shots < 1:
        raise UsageError(f"shots is {shots}; it must be at least 1")

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        done = state.memory.get("shots", 0)
        if done >= shots:
            kept = {name: value for name, value in state.memory.items() if name != "temperature"}
            return then(replace(state, memory=kept), replies, key, ask)
        happens, learnt = (True, {}) if done else when(state, replies)
        known = replace(state, memory={**state.memory, **learnt})
        found = rule(known, replies, key, ask) if happens else None
        if found is None:
            return keep()(known, replies, key, ask)
        return replace(found, memory={**found.memory, "shots": done + 1})

    return assign


def cluster_once(
    measure: KeyedMeasure,
    clusterer: Clusterer,
    weigh: Weigh,
    fit: Fit,
    all_clients: bool = True,
    start: str = "mean",
    compared: Fit | None = None,
) -> Rule:
    """Cluster the clients by a measure of what they made of one model.

    ``all_clients``: those that were not drawn in this round train as well. ``start`` of the cluster models: the mean of
    the members' models, the model that all were sent (global), or that of the member nearest to the others (medoid);
    without ``all_clients`` they are what the round's own update makes of them. When applied again, the clients that
    answered train once more from the model of the first time. ``compared``: all clients train so in a further exchange
    to make the models that are measured, whatever the round's training is; the mean with which clusters begin is that
    of the round's.
    """
    if start not in STARTS:
        raise UnknownName("start", start, STARTS)

    enough = max(2, clusterer.least_points)

    def rule(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment | None:
        answers, sent = _answers(state, replies, fit, all_clients, ask, compared), origin(state)
        if len(answers) < enough:
            return None
        starts = np.broadcast_to(sent.params[0], (len(answers), sent.params.shape[1]))
        answers, distances = measure(key)(answers, starts, ask)
        if len(answers) < enough:
            return None
        found = _numbered(state, answers, clusterer(distances, key), weigh)
        same, again = len(found.parents) == len(state.stack), "shots" in state.memory
        old = state if same else replace(state, labels=np.full_like(state.labels, UNPLACED))
        labels = placed(old, answers, found.labels)
        advice = {} if ADVICE in state.memory else {ADVICE: on_distances(clusterer, distances, key)}
        kept = {**remembered(sent, found.means), **matrix_of(answers.clients, distances, len(state.labels))}
        finish = None
        if len(found.parents) > 1 and all_clients and not again:
            kind = sent.take([0] * len(found.parents))
            own = average(replies, labels[replies.clients], weigh(replies), kind)[0] if compared else found.means
            finish = _begin(start, answers, found.labels, distances, own, sent)
        parents = None if same else found.parents
        return Assignment(labels, {**state.memory, **kept, **advice}, parents, finish, formed=True)

    return rule


class _Numbered(NamedTuple):
    """Clusters that follow the old ones: the labels of those that answered, where each goes on from, mean models."""

    labels: Array
    parents: tuple[int, ...]
    means: Stack


def _numbered(state: State, answers: Replies, new: Array, weigh: Weigh) -> _Numbered:
    """New clusters with numbers that follow the old ones; in a further shot those that formed before stay."""
    sent, weights, old = origin(state), weigh(answers), state.labels[answers.clients]
    found = average(answers, new, weights, sent.take([0] * (int(new.max()) + 1)))[0]
    if not have_formed(state):
        numbers, parents = follow(new, old, len(state.stack))
        return _Numbered(numbers[new], parents, found.take(np.argsort(numbers)))
    part, formed = answers.layout.part("all"), means(state)
    likeness = cosines((found.params - sent.params)[:, part], (formed.params - sent.params)[:, part])
    numbers, parents = join_or_follow(new, old, likeness)
    return _Numbered(numbers[new], parents, average(answers, numbers[new], weights, formed.take(list(parents)))[0])


def _answers(
    state: State, replies: Replies, fit: Fit, all_clients: bool, ask: Ask, compared: Fit | None = None
) -> Replies:
    """The models to compare: all trained from one and the same."""
    everyone = np.arange(len(state.labels))
    if compared is not None or "shots" in state.memory:
        asked = replies.clients if compared is None else everyone
        return train(asked, origin(state), np.zeros_like(asked), compared or fit, ask)
    return complete(replies, everyone, state.stack, state.labels, fit, ask) if all_clients else replies


def _begin(
    start: str, answers: Replies, labels: Array, distances: Array, means: Stack, sent: Stack
) -> Callable[[Stack], Stack]:
    """The models that the clusters begin with."""
    if start == "medoid":
        means = answers.models().take(medoids(distances, labels))
    elif start == "global":
        means = sent.take([0] * len(means))
    return lambda averaged: means


def medoids(distances: Array, labels: Array) -> list[int]:
    """The member of each cluster that is nearest to the others in it.

    >>> medoids(np.abs(np.subtract.outer([0, 1, 3, 9], [0, 1, 3, 9])), np.array([0, 0, 0, 1]))
    [1, 3]
    """
    groups = [np.flatnonzero(labels == k) for k in range(labels.max() + 1)]
    return [int(g[distances[np.ix_(g, g)].sum(axis=1).argmin()]) for g in groups]


def join_or_follow(new: Array, old: Array, likeness: Array) -> tuple[Array, tuple[int, ...]]:
    """Numbers for the clusters of a further sample among those that formed before, and where each goes on from.

    A new cluster is like an old one as its mean update points the same way (``likeness``, new x old), and as far as its
    members were in it, as a share: two samples need not have a client in common. It joins the old one that it is most
    like; two may be like the same one, where a sample has few of the others. Only if there are more new clusters than
    old do those that are left over by the best matching get numbers of their own. Old ones stay, joined or not.

    >>> join_or_follow(np.array([0, 0, 1]), np.array([-1, -1, -1]), np.array([[0.9, 0.1], [0.7, 0.0]]))
    (array([0, 0]), (0, 1))
    """
    count, clusters = likeness.shape
    overlap = np.zeros((count, clusters))
    np.add.at(overlap, (new[old >= 0], old[old >= 0]), 1)
    alike = likeness + overlap / np.maximum(overlap.sum(axis=1, keepdims=True), 1)
    numbers = alike.argmax(axis=1)
    matched, _ = linear_sum_assignment(alike, maximize=True)
    more = np.setdiff1d(np.arange(count), matched)
    parents = (*range(clusters), *numbers[more].tolist())
    numbers[more] = clusters + np.arange(len(more))
    return numbers, parents


def follow(new: Array, old: Array, clusters: int) -> tuple[Array, tuple[int, ...]]:
    """Numbers for new clusters that overlap most with the old ones, and the old cluster that each goes on from.

    ``numbers[new]`` are the labels. The new clusters may be more or fewer than the old; those without a counterpart go
    on from the old cluster of most of their members.

    >>> follow(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 0]), 1)
    (array([0, 1]), (0, 0))
    >>> follow(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]), 2)
    (array([1, 0]), (0, 1))
    """
    count = int(new.max()) + 1
    overlap = np.zeros((count, clusters))
    np.add.at(overlap, (new[old >= 0], old[old >= 0]), 1)
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    rank = np.full(count, clusters)
    rank[rows] = columns
    numbers = np.empty(count, dtype=np.int64)
    numbers[np.argsort(rank, kind="stable")] = np.arange(count)
    most = np.where(rank < clusters, rank, overlap.argmax(axis=1))
    parents = np.empty(count, dtype=np.int64)
    parents[numbers] = most
    return numbers, tuple(parents.tolist())
