"""An assign rule that clusters when something happens, and only then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from coterie.errors import UnknownName, UsageError
from coterie.models.layout import Array, Layout
from coterie.protocol.address import Key
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit
from coterie.server.advice import ADVICE, on_distances
from coterie.server.aggregate import average
from coterie.server.assign import Ask, Assign, Weigh, keep, placed
from coterie.server.distances import KeyedMeasure
from coterie.server.events import Event
from coterie.server.formed import have_formed, matrix_of, means, origin, remembered
from coterie.server.gather import complete, train
from coterie.server.matrix_clusterers import Clusterer
from coterie.server.place import cosines
from coterie.server.state import UNPLACED, Assignment, State

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

    def rule(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment | None:
        enough, sent, count = max(2, clusterer.least_points), origin(state), len(state.labels)
        answers = _answers(state, replies, fit, all_clients, ask, compared)
        if len(answers) < enough:
            return None
        starts = np.broadcast_to(sent.params[0], (len(answers), sent.params.shape[1]))
        answers, distances = measure(key)(answers, starts, ask)
        if len(answers) < enough:
            return None
        new = clusterer(distances, key)
        found = average(answers, new, weigh(answers), sent.take([0] * (int(new.max()) + 1)))[0]
        likeness = likeness_to_formed(state, found, answers.layout)
        numbers, parents = follow(new, state.labels[answers.clients], len(state.stack), likeness)
        labels, clusters = numbers[new], len(parents)
        one_each, ordered = sent.take([0] * clusters), found.take(np.argsort(numbers))
        advice = {} if ADVICE in state.memory else {ADVICE: on_distances(clusterer, distances, key)}
        same, again = clusters == len(state.stack), "shots" in state.memory
        old = state if same else replace(state, labels=np.full_like(state.labels, UNPLACED))
        every = placed(old, answers, labels)
        first = ordered if compared is None else average(replies, every[replies.clients], weigh(replies), one_each)[0]
        return Assignment(
            every,
            {**state.memory, **remembered(sent, ordered), **matrix_of(answers.clients, distances, count), **advice},
            None if same else parents,
            None
            if clusters == 1 or again or not all_clients
            else _begin(start, answers, labels, distances, first, sent),
            formed=True,
        )

    return rule


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


def likeness_to_formed(state: State, found: Stack, layout: Layout) -> Array | None:
    """The cosine of each new cluster's mean update with those of the clusters that formed before; None before that."""
    if not have_formed(state):
        return None
    part, sent = layout.part("all"), origin(state).params
    return cosines((found.params - sent)[:, part], (means(state).params - sent)[:, part])


def follow(new: Array, old: Array, clusters: int, likeness: Array | None = None) -> tuple[Array, tuple[int, ...]]:
    """Numbers for new clusters that are most like the old ones, and the old cluster that each goes on from.

    ``numbers[new]`` are the labels. A new cluster is like an old one as far as its members were in it, as a share, and
    as its mean update points the same way (``likeness``, new x old): two samples need not have a client in common. The
    new clusters may be more or fewer than the old; those without a counterpart go on from the one they are most like.

    >>> follow(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 0]), 1)
    (array([0, 1]), (0, 0))
    >>> follow(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]), 2)
    (array([1, 0]), (0, 1))
    """
    count = int(new.max()) + 1
    overlap = np.zeros((count, clusters))
    np.add.at(overlap, (new[old >= 0], old[old >= 0]), 1)
    if likeness is not None:
        overlap = overlap / np.maximum(overlap.sum(axis=1, keepdims=True), 1) + likeness
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    rank = np.full(count, clusters)
    rank[rows] = columns
    numbers = np.empty(count, dtype=np.int64)
    numbers[np.argsort(rank, kind="stable")] = np.arange(count)
    most = np.where(rank < clusters, rank, overlap.argmax(axis=1))
    parents = np.empty(count, dtype=np.int64)
    parents[numbers] = most
    return numbers, tuple(parents.tolist())
