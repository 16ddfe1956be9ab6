"""Clusters that only merge: each client begins alone, clusters with similar mean updates of one anchor unite."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.errors import UsageError
from coterie.limits import check_memory
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit
from coterie.seeding import Key
from coterie.server.aggregate import average
from coterie.server.assign import as_trained
from coterie.server.contract import Ask, Assign, Assignment, Prepare, Start, State, Weigh, memory_type
from coterie.server.distances.vectors import BLOCK_BYTES, cosine_from_products
from coterie.server.one_shot import train
from coterie.server.start import initial, unplaced
from coterie.typing import Array


@memory_type
@dataclass(frozen=True)
class Merged:
    """The memory of clusters that merge.

    anchor   the model from which every client trained once, so that updates can be compared
    everyone the model of all clients, from which new clusters begin
    sums     for each cluster the sum of its clients' updates of the anchor, ``(K, P)``
    counts   for each cluster the number of these clients
    """

    anchor: Stack
    everyone: Stack
    sums: Array
    counts: Array


def nobody_seen() -> Start:
    """Start with one model, which is the anchor, and without clusters: clients are placed when they are first asked."""

    def start(federation: Federation, key: Key, ask: Ask) -> State:
        first = initial(federation, key, 1)
        memory = Merged(first, first, np.zeros((0, first.params.shape[1]), first.params.dtype), np.zeros(0, np.int64))
        return replace(unplaced(federation, first), memory=memory)

    return start


def merge_similar(threshold: float, fit: Fit) -> Prepare:
    """Let clients that were never seen train the anchor once, each as a new cluster, and merge similar clusters.

    Two clusters merge, the most similar first, while the cosine of their mean updates is at least ``threshold``.
    """

    def prepare(state: State, clients: Array, key: Key, ask: Ask) -> State:
        unseen = clients[state.labels[clients] == UNPLACED]
        if not len(unseen):
            return state
        replies = train(unseen, state.memory.anchor, np.zeros_like(unseen), fit, ask)
        return with_new(state, replies, threshold) if len(replies) else state

    return prepare


def with_new(state: State, replies: Replies, threshold: float) -> State:
    """Return the state in which the clients that answered are new clusters, after all similar clusters have merged."""
    memory: Merged = state.memory
    old, new = len(memory.counts), len(replies)
    limit = replies.sketching.exact_clients
    if old + new > limit:
        raise UsageError(
            f"{old + new:,} clusters are more than exact-clients ({limit:,}): each new client is one, and all pairs "
            f"are compared before they merge; lower participation or threshold, or raise exact-clients"
        )
    needed = 16 * (old + new) * memory.sums.shape[1]  # three stacks of models and the sums, 4 bytes a number
    check_memory(f"a round of {old + new:,} clusters", needed, "lower threshold, or take a smaller model")
    sums = np.concatenate([memory.sums, replies.models().params - memory.anchor.params])
    counts = np.concatenate([memory.counts, np.ones(new, np.int64)])
    numbers = merged(products(sums), threshold)
    before = state.stack.take(slice(old)).plus(memory.everyone.take([0] * new))
    stack, known = before.mix(shares_in_merged(numbers, counts, old)), sum_rows(counts, numbers)
    return replace(
        state,
        stack=stack,
        previous=stack,
        labels=renumbered(state.labels, numbers, replies.clients, old),
        shares=known / known.sum(),
        memory=replace(memory, sums=sum_rows(sums, numbers), counts=known),
    )


def renumbered(labels: Array, numbers: Array, new: Array, old: int) -> Array:
    """Return the labels of all clients after merging; ``new`` clients were the rows from ``old`` on.

    >>> renumbered(np.array([1, UNPLACED, 0, UNPLACED]), np.array([0, 0, 1]), np.array([3]), 2).tolist()
    [0, -1, 0, 1]
    """
    found = np.where(labels == UNPLACED, UNPLACED, numbers[labels])
    found[new] = numbers[old:]
    return found


def products(rows: Array) -> Array:
    """Return the inner products of all rows in double precision, a block of coordinates at a time."""
    total, width = np.zeros((len(rows), len(rows))), max(1, BLOCK_BYTES // (8 * len(rows)))
    for i in range(0, rows.shape[1], width):
        block = rows[:, i : i + width].astype(np.float64)
        total += block @ block.T
    return total


def merged(products: Array, threshold: float) -> Array:
    """Return the number of the cluster in which each row ends, from the inner products of sums of updates.

    The cosine of two sums is that of the two means. Numbers keep the order of the first row of each cluster.

    >>> turned = np.deg2rad([0, 40, 80, 120])
    >>> merged(np.cos(np.subtract.outer(turned, turned)), np.cos(np.deg2rad(45))).tolist()
    [0, 0, 1, 1]
    """
    products, ends = products.copy(), np.arange(len(products))
    gone = np.tri(len(products), dtype=bool)
    while not gone.all():
        alike = np.where(gone, -np.inf, cosine_from_products(products))
        a, b = np.unravel_index(alike.argmax(), alike.shape)
        if alike[a, b] < threshold:
            break
        products[a] += products[b]
        products[:, a] += products[:, b]
        gone[b], gone[:, b], ends[ends == b] = True, True, a
    numbers: Array = np.unique(ends, return_inverse=True)[1]
    return numbers


def shares_in_merged(numbers: Array, counts: Array, old: int) -> Array:
    """Return the share of each row's model in the cluster it merged into, ``(clusters, rows)``.

    Rows from ``old`` on are new: they have only the model of all clients, so they count where nothing else does.

    >>> shares_in_merged(np.array([0, 0, 0, 1]), np.array([3, 1, 1, 1]), 2).tolist()
    [[0.75, 0.25, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    """
    weights = (numbers == np.arange(numbers.max() + 1)[:, None]) * counts
    trained = weights * (np.arange(len(numbers)) < old)
    weights = np.where(trained.any(axis=1, keepdims=True), trained, weights)
    shares: Array = weights / weights.sum(axis=1, keepdims=True)
    return shares


def sum_rows(rows: Array, numbers: Array) -> Array:
    """Return the sum of the rows of each number."""
    total = np.zeros((int(numbers.max()) + 1, *rows.shape[1:]), rows.dtype)
    np.add.at(total, numbers, rows)
    return total


def train_for_everyone(fit: Fit, weigh: Weigh) -> Assign:
    """Keep clusters, and let the clients that answered train the model of all clients too, by a further exchange."""

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        kept, memory = as_trained()(state, replies, key, ask), state.memory
        alone = np.zeros_like(replies.clients)
        answers = train(replies.clients, memory.everyone, alone, fit, ask)
        if not len(answers):
            return kept
        mean = average(answers, answers.rows, weigh(answers), memory.everyone)[0]
        return replace(kept, memory=replace(memory, everyone=mean))

    return assign


def model_of_everyone(state: State) -> Stack:
    """Return the model that all clients train."""
    everyone: Stack = state.memory.everyone
    return everyone


def updates_of_anchor(state: State) -> tuple[Stack, Array]:
    """Return the anchor, and for each cluster the sum of its clients' updates of it."""
    return state.memory.anchor, state.memory.sums
