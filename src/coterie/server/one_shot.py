"""Clustering once: when it happens, on whose replies, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from coterie.errors import UnknownName, UsageError
from coterie.limits import POWER, check_most
from coterie.protocol.replies import ROWS, UNPLACED, Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.aggregate import average
from coterie.server.assign import keep, placed
from coterie.server.clustering.advice import ADVICE, on_distances
from coterie.server.clustering.clusterers import Clusterer
from coterie.server.contract import Ask, Assign, Assignment, State, Weigh
from coterie.server.distances.vectors import KeyedMeasure, columns, cosines, pairwise
from coterie.typing import Array


def train(clients: Array, stack: Stack, labels: Array, fit: Fit, ask: Ask) -> Replies:
    """What these clients make of the models that their labels name."""
    return ask(Task(fit=(fit,)), stack, labels, clients)


def complete(replies: Replies, wanted: Array, stack: Stack, labels: Array, fit: Fit, ask: Ask) -> Replies:
    """The replies of all ``wanted`` clients; those that have not answered yet train now, if they can be reached.

    ``labels`` are those of all clients.
    """
    own = replies.without(~np.isin(replies.clients, wanted), {})
    others = np.setdiff1d(wanted, replies.clients)
    return joined(own, train(others, stack, labels[others], fit, ask)) if len(others) else own


def joined(one: Replies, other: Replies) -> Replies:
    """The rows of both, in the order of the clients."""
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


DISTANCES = "distances"
"""What ``State.memory`` calls the matrix of distances."""

MOST_KEPT = 500
"""The matrix is kept up to so many clients: it is saved with every state, and has 2 MB then."""


def remembered(sent: Stack, means: Stack) -> Mapping[str, Any]:
    """The model that was sent, and the mean of each cluster's models."""
    names = ("origin", "origin_buffers", "means", "means_buffers")
    return dict(zip(names, (*sent, *means), strict=True))


def matrix_of(clients: Array, distances: Array, count: int) -> Mapping[str, Any]:
    """The distances by which the clusters formed, among all ``count`` clients; NaN for those who were not measured.

    Nothing where there are more than ``MOST_KEPT``.

    >>> matrix_of(np.array([0, 2]), np.array([[0.0, 5.0], [5.0, 0.0]]), 3)["distances"].tolist()[0]
    [0.0, nan, 5.0]
    """
    if count > MOST_KEPT:
        return {}
    whole = np.full((count, count), np.nan)
    whole[np.ix_(clients, clients)] = distances
    return {DISTANCES: whole}


def have_formed(state: State) -> bool:
    """Whether there was such a round."""
    return "means" in state.memory


def origin(state: State) -> Stack:
    """The model from which clients trained when the clusters formed; before that, the one there is."""
    if have_formed(state):
        return Stack(state.memory["origin"], state.memory["origin_buffers"])
    return state.stack.take(slice(1))


def means(state: State) -> Stack:
    """The mean of each cluster's models when the clusters formed; before that, the models there are."""
    return Stack(state.memory["means"], state.memory["means_buffers"]) if have_formed(state) else state.stack


Event = Callable[[State, Replies], tuple[bool, Mapping[str, Any]]]
"""``(state, replies) -> (does it happen now, what to remember)``."""


def after(rounds: int) -> Event:
    """As soon as so many rounds are done."""
    if rounds < 0:
        raise UsageError(f"warmup is {rounds}; it must be at least 0")
    return lambda state, replies: (state.round >= rounds, {})


def temperature_rises(p: float = 2.0) -> Event:
    """At the first rise of the clustering temperature from one round to the next, so never in the first.

    The clients disagree less and less about a model that is far from all of them, until it is near and they begin to
    pull in different directions. With fewer than two answers there is no temperature and nothing happens.
    """
    if not p >= 1:
        raise UsageError(f"p is {p}; it must be at least 1")
    check_most("p", p, POWER)

    def event(state: State, replies: Replies) -> tuple[bool, Mapping[str, Any]]:
        if len(replies) < 2:
            return False, {}
        distances = pairwise(columns(replies, state.stack.params[replies.labels]), len(replies), "cosine")
        now, before = temperature(distances, p), state.memory.get("temperature")
        return before is not None and now > before, {"temperature": now}

    return event


def temperature(distances: Array, p: float = 2.0) -> float:
    """The p-norm of all cosine distances, as a share of the largest it can be: |D|_p / (n (n - 1) 2^p)^(1/p).

    >>> temperature(np.array([[0.0, 2.0], [2.0, 0.0]]))
    1.0
    >>> temperature(np.array([[0.0, 1.0], [1.0, 0.0]]), p=1)
    0.5
    """
    count = len(distances)
    return float((np.sum(distances**p) / (count * (count - 1) * 2**p)) ** (1 / p))


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
