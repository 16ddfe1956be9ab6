"""Clustering by descriptions: arrays that clients compute from their data, compared by the server before it averages.

All clients are asked for a description (``Report.describe``), the distances between descriptions are clustered once,
and one description of each cluster is remembered, to which newcomers and late clients are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from coterie.errors import FederationError, UsageError
from coterie.protocol.message import ABSURD
from coterie.protocol.replies import Replies
from coterie.protocol.report import Describe, Report
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.server.aggregate import average
from coterie.server.clustering.advice import on_distances
from coterie.server.clustering.by_sample import find_clusters
from coterie.server.clustering.clusterers import Clusterer
from coterie.server.contract import Ask, Assignment, Place, Scores, State, Weigh, least_loss
from coterie.server.distances.many_clients import Distances, Sampled, drawn, too_many
from coterie.server.one_shot import Formed, OneShot, Rule, among_all, follow, formed_of, medoids
from coterie.typing import Array

RIGHT = 90.0
"""The angle in degrees of two spaces that have nothing in common."""

ANGLES = ("smallest", "mean")

Compare = Callable[[Array, Array], Array]
"""``(n descriptions, k descriptions) -> (n, k) distances``."""

Centre = Callable[[Array, Distances, Array], Array]
"""``(descriptions, distances, labels) -> one description of each cluster``."""


def medoid_of_each(descriptions: Array, distances: Distances, labels: Array) -> Array:
    """Return the description of the client of each cluster that is nearest to the others in it."""
    found: Array = descriptions[medoids(distances, labels)]
    return found


def not_scaled(descriptions: Array) -> Array:
    """Compare descriptions as they are."""
    return np.ones((1,) * (descriptions.ndim - 1))


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """How clients are described, and how the server compares descriptions.

    function  the client function that describes a client
    compare   the distances between descriptions
    scale     from all descriptions to the numbers by which each is divided before it is compared
    centre    the description of a cluster to which newcomers are compared
    far       the distance of descriptions that have nothing in common; one that is so far from itself says nothing
    advises   whether the distances tell how many clusters there are
    codes     whether descriptions are codes, of which only equal ones belong together
    """

    function: str
    compare: Compare
    scale: Callable[[Array], Array] = not_scaled
    centre: Centre = medoid_of_each
    far: float = np.inf
    advises: bool = True
    codes: bool = False


def described(function: str, model: Stack, clients: Array, ask: Ask) -> Replies:
    """Ask clients for their descriptions under one model; nothing else leaves them.

    Absurd numbers are made smaller, so that whatever a client claims its distances are finite.
    """
    task = Task(report=Report(params=None, describe=Describe(function)))
    answers = ask(task, model, np.zeros(len(clients), dtype=np.int64), clients)
    if answers.description is None:
        return answers
    return replace(answers, description=np.clip(answers.description, -ABSURD, ABSURD))


def cluster_described(by: Descriptor, clusterer: Clusterer, weigh: Weigh) -> Rule:
    """Cluster all clients by their descriptions under the model that they were sent in this round.

    The round is averaged by the new clusters, so in round 0 it is as if clients had been clustered before training. A
    client that does not answer, or whose description tells nothing, has no cluster; it is placed when it answers.
    """
    enough = max(1, clusterer.least_points)

    def rule(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment | None:
        sent, everyone = state.stack.take(slice(1)), np.arange(len(state.labels))
        answers = described(by.function, sent, everyone, ask)
        refuse_silence(by.function, answers, f"{len(replies)} clients trained in round {state.round}")
        seen = compared(by, answers)
        if len(seen.clients) < enough:
            return None
        new = find_clusters(clusterer, seen.distances, key)
        numbers, parents = follow(new, state.labels[seen.clients], len(state.stack))
        same = len(parents) == len(state.stack)
        labels = state.labels.copy() if same else np.full_like(state.labels, UNPLACED)
        labels[seen.clients] = numbers[new]
        formed = Formed(
            sent,
            average(replies, labels[replies.clients], weigh(replies), sent.take([0] * len(parents)))[0],
            among_all(seen.clients, seen.distances, len(everyone)),
            descriptions=by.centre(seen.descriptions, seen.distances, numbers[new]),
            scale=seen.scale,
        )
        return Assignment(
            labels,
            replace(state.memory or OneShot(), formed=formed),
            parents=None if same else parents,
            formed=True,
            advice=on_distances(clusterer, seen.distances, key, new) if by.advises and state.advice is None else None,
            note=seen.distances.note if isinstance(seen.distances, Sampled) and not by.codes else None,
        )

    return rule


def refuse_silence(function: str, answers: Replies, others: str) -> None:
    """Raise an error if nobody described itself: without clusters the run would go on as fedavg, unnoticed."""
    if not len(answers):
        raise FederationError(
            f"{others} and none answered {function}; sites list it as one of the functions in their policy.toml; "
            f"reasons: {dict(list(answers.missing.items())[:3])}"
        )


class Compared(NamedTuple):
    """The clients whose descriptions say anything, these descriptions, their scale, and the distances between them."""

    clients: Array
    descriptions: Array
    scale: Array
    distances: Distances


def compared(by: Descriptor, answers: Replies) -> Compared:
    """Compare the descriptions that clients sent; refuse them if none says anything."""
    assert answers.description is not None
    scale = by.scale(answers.description)
    scaled = answers.description / scale
    tells = np.concatenate([by.compare(each[None], each[None])[0] for each in scaled]) < by.far
    if not tells.any():
        raise UsageError(f"{by.function} says nothing about any client; check its arguments, and what the data hold")
    heard, scaled = answers.without(~tells, {}), scaled[tells]
    distances = to_a_sample(by, scaled, heard) if too_many(heard) else between(by, scaled)
    return Compared(heard.clients, answers.description[tells], scale, distances)


def between(by: Descriptor, scaled: Array) -> Array:
    """Return the distances between all of these descriptions."""
    distances = by.compare(scaled, scaled)
    apart = np.maximum(distances, distances.T)
    np.fill_diagonal(apart, 0)
    return apart


def to_a_sample(by: Descriptor, scaled: Array, answers: Replies) -> Sampled:
    """Return the distances of many descriptions to those of a sample; of codes, to one of each."""
    sample = drawn(len(scaled), answers.sketching)
    if by.codes:
        sample = np.sort(np.unique(scaled, axis=0, return_index=True)[1])
        refuse_codes(len(sample), answers.sketching.exact_clients)
    some, words = scaled[sample], by.function.rpartition(":")[2]

    def away(rows: slice) -> Array:
        return by.compare(scaled[rows], some)

    return Sampled(sample, between(by, some), len(scaled), away, words, answers.sketching.exact_clients)


def refuse_codes(count: int, limit: int) -> None:
    """Refuse a column with more values than are compared with each other."""
    if count > limit:
        raise UsageError(
            f"the column has {count:,} values, each a cluster, and at most exact-clients ({limit:,}) are compared: "
            "take a coarser column, or raise exact-clients"
        )


def nowhere(state: State, ask: Ask, clients: Array) -> Scores:
    """Place nobody."""
    return Scores(clients[:0], np.empty((0, 1)))


def nearest_description(by: Descriptor, groups: slice = slice(None), otherwise: Place = least_loss) -> Place:
    """Score clusters by minus the distance of a newcomer's description to theirs, under the model of that time.

    ``groups``: the part of a cluster's description to which the function's is compared. Those that have nothing in
    common with any cluster, and all as long as there are no clusters, are placed ``otherwise``.
    """

    def place(state: State, ask: Ask, clients: Array) -> Scores:
        formed = formed_of(state)
        if formed is None or formed.descriptions is None or formed.scale is None:
            return otherwise(state, ask, clients)
        answers = described(by.function, formed.sent, clients, ask)
        if answers.description is None or not len(answers):
            return nowhere(state, ask, clients)
        scale = formed.scale[groups] if len(formed.scale) > 1 else formed.scale
        distances = by.compare(answers.description / scale, formed.descriptions[:, groups] / scale)
        near = distances.min(axis=1) < by.far
        found = Scores(answers.clients[near], -distances[near])
        return found if near.all() else both(found, otherwise(state, ask, answers.clients[~near]))

    return place


def both(one: Scores, other: Scores) -> Scores:
    """Return the scores of two sets of clients, in the order of the clients."""
    if not len(other.clients):
        return one
    if not len(one.clients):
        return other
    clients, values = (np.concatenate(parts) for parts in zip(one, other, strict=True))
    order = np.argsort(clients)
    return Scores(clients[order], values[order])


# Values of a column.


def differing(one: Array, other: Array) -> Array:
    """Return 0 for equal codes and 1 for others; zeros, which stand for no value, are equal to nothing.

    >>> differing(np.array([[1.0, 2.0], [0.0, 0.0]]), np.array([[1.0, 2.0], [1.0, 3.0], [0.0, 0.0]])).tolist()
    [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    differs: Array = np.any(one[:, None] != other, axis=-1)
    nothing: Array = np.all(one == 0, axis=-1, keepdims=True)
    return (differs | nothing).astype(np.float64)


# Angles between spaces.


def angles_between(of: str) -> Compare:
    """Return the distances of clients by the principal angles between their spaces, ``(classes, features, p)``.

    The mean over the classes that both have of the ``smallest`` angle, or of the ``mean`` of all; a right angle where
    they have no class in common. In degrees. A column of zeros is no direction.
    """

    def compare(one: Array, other: Array) -> Array:
        return np.array([_angles(each, other, of) for each in one]).reshape(len(one), len(other))

    return compare


def _angles(one: Array, others: Array, of: str) -> Array:
    """Return the distance of one client to each of others."""
    cosines = np.linalg.svd(np.einsum("cfp,kcfq->kcpq", one, others), compute_uv=False)
    angles = np.rad2deg(np.arccos(np.clip(cosines, 0, 1)))
    directions = np.minimum((one != 0).any(axis=1).sum(axis=-1), (others != 0).any(axis=2).sum(axis=-1))
    both = directions > 0
    if of == "mean":
        kept = np.arange(angles.shape[-1]) < directions[..., None]
        found = np.where(kept, angles, 0).sum(axis=-1) / np.maximum(directions, 1)
    else:
        found = angles[..., 0]
    shared = both.sum(axis=-1)
    mean: Array = np.where(both, found, 0).sum(axis=-1) / np.maximum(shared, 1)
    return np.where(shared > 0, mean, RIGHT)


# Moments of latent features, ``(groups, 2, dims)``: of all examples and of each class, mean and deviation.


def moments_apart(one: Array, other: Array) -> Array:
    """Return the root of the mean squared distance over the groups that both have.

    >>> a = np.array([[[[0.0], [1.0]], [[5.0], [-1.0]]]])
    >>> moments_apart(a, a + np.array([[[3.0], [4.0]], [[9.0], [0.0]]])).tolist()
    [[5.0]]
    """
    return np.array([_moments_from(each, other) for each in one]).reshape(len(one), len(other))


def _moments_from(one: Array, others: Array) -> Array:
    """Return the distance of one client to each of others."""
    both = _has(one) & _has(others)
    squares = ((one - others) ** 2).sum(axis=(-2, -1))
    mean: Array = np.where(both, squares, 0).sum(axis=-1) / np.maximum(both.sum(axis=-1), 1)
    return np.sqrt(mean)


def ranges_of_moments(descriptions: Array) -> Array:
    """Return how far apart the largest and the least mean, and deviation, of each group are; 1 where they are equal."""
    has = _has(descriptions)[..., None, None]
    high = np.where(has, descriptions, -np.inf).max(axis=(0, -1))
    low = np.where(has, descriptions, np.inf).min(axis=(0, -1))
    widths: Array = np.ones_like(high)
    np.subtract(high, low, where=high > low, out=widths)
    return widths[..., None]


def mean_moments(descriptions: Array, distances: Distances, labels: Array) -> Array:
    """Return the mean of each group over the clients of each cluster that have it."""
    has = _has(descriptions)[..., None, None]
    found = []
    for label in range(labels.max() + 1):
        own, held = descriptions[labels == label], has[labels == label]
        count = held.sum(axis=0)
        absent = np.broadcast_to(np.array([0.0, -1.0])[:, None], own.shape[1:])
        found.append(np.where(count > 0, np.where(held, own, 0).sum(axis=0) / np.maximum(count, 1), absent))
    return np.array(found)


def _has(descriptions: Array) -> Array:
    """Return which groups a client has: those with a deviation that is not negative."""
    found: Array = descriptions[..., 1, 0] >= 0
    return found
