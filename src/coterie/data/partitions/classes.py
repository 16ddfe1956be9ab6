"""Partitions by number of classes: clients hold a few classes each, and none of the others.

Classes are dealt like cards: whoever is next takes those that were taken least, at random among equals. So all
classes are held about equally often, and none is left over as long as there are enough hands.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.partitions.base import (
    Divide,
    Rng,
    Shares,
    by_class,
    even,
    hand_out,
    named,
    require_default,
    require_whole,
)
from coterie.errors import PartitionError
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

GROUPS = 10
TRIES = 1000


@named
def classes(held: int, each: int | None = None, *, groups: int = GROUPS, minimum: int = 10) -> Divide:
    """Each client holds n classes: classes(2); or each group holds c and each of its clients n of them: classes(3,2).

    A class is divided evenly over the clients that hold it.
    """
    require_whole("the number of classes", held)
    if each is None:
        require_default("groups", groups, GROUPS, "classes(c,n)")
        return _client_wise(held, minimum)
    require_whole("the number of classes per client", each)
    if each > held:
        raise PartitionError(f"a client cannot hold {each} of its group's {held} classes; use classes({each},{held})")
    return _cluster_wise(held, each, groups, minimum)


def _client_wise(held: int, minimum: int) -> Divide:
    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        pool = by_class(data, clients, minimum)
        hands = deal(_present(pool.counts, held), clients, held, rng)
        return hand_out(pool, _weights(hands, pool.classes), minimum, rng)

    return divide


def _cluster_wise(held: int, each: int, groups: int, minimum: int) -> Divide:
    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        pool = by_class(data, clients, minimum)
        sizes = even(clients, groups)
        owned = _deal_differently(_present(pool.counts, held), groups, held, rng)
        hands = np.concatenate([deal(own, size, each, rng) for own, size in zip(owned, sizes, strict=True)])
        weights = _weights(hands, pool.classes)
        return hand_out(pool, weights, minimum, rng, np.repeat(np.arange(groups), sizes))

    return divide


def deal(cards: Array, hands: int, size: int, rng: Rng) -> Array:
    """Hands ``(hands, size)`` without repeats, in which any two cards occur equally often or one time apart."""
    used = np.zeros(len(cards))
    dealt = np.empty((hands, size), np.int64)
    for hand in range(hands):
        taken = np.lexsort((rng.random(len(cards)), used))[:size]
        used[taken] += 1
        dealt[hand] = np.sort(cards[taken])
    return dealt


def _deal_differently(cards: Array, hands: int, size: int, rng: Rng) -> Array:
    """Hands of which no two are the same: groups that hold the same classes would be one group."""
    possible = math.comb(len(cards), size)
    for _ in range(TRIES if hands <= possible else 0):
        dealt = deal(cards, hands, size, rng)
        if len(np.unique(dealt, axis=0)) == hands:
            return dealt
    raise PartitionError(
        f"{hands} groups of {size} classes must differ and {len(cards)} classes allow at most {possible}; "
        f"use fewer groups"
    )


def _present(counts: Array, held: int) -> Array:
    present = np.flatnonzero(counts)
    if held > len(present):
        raise PartitionError(f"nobody can hold {held} classes of {len(present)}; use classes({len(present)}) or less")
    return present


def _weights(hands: Array, classes: int) -> Array:
    weights = np.zeros((len(hands), classes))
    np.put_along_axis(weights, hands, 1.0, axis=1)
    return weights
