"""Partitions by label: clients or groups of clients differ in the classes that they hold, and in what proportions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.apportion import apportion, balance, mixes, share_out, top_up
from coterie.data.partitions.base import (
    Divide,
    Rng,
    Shares,
    named,
    require_classes,
    require_default,
    require_positive,
    require_switch,
    require_whole,
)
from coterie.data.partitions.division import (
    by_class,
    divide_by_table,
    divide_by_weights,
    divide_in_groups,
    even_groups,
)
from coterie.errors import PartitionError
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

GROUPS = 10

# Groups are drawn again until each holds at least this share of what its clients would hold on average.
SMALLEST_GROUP = 0.3
GROUP_DRAWS = 2000
# A weight below this is as good as none, but a class of weight zero could not even be used to top a client up.
_TRACE = 1e-12

DEALS = 1000

BLOCK_CLASSES = 10
APART = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
OVERLAPPING = ((0, 1, 2, 3, 4), (3, 4, 5, 6, 7), (0, 6, 7, 8, 9))
PERCENT = (20, 47, 33)


@named
def dirichlet(
    alpha: float, inner: float | None = None, *, groups: int = GROUPS, equal: bool = False, minimum: int = 10
) -> Divide:
    """Each class divided over clients by Dir(alpha); or over groups by Dir(alpha), then over clients by Dir(inner).

    ``dirichlet(0.1)`` is client-wise and ``dirichlet(0.1,10)`` cluster-wise, with ``groups`` groups. Clients that
    come out with fewer than ``minimum`` train examples are topped up from the largest holder of the same class.
    ``equal=true`` gives clients of equal size: a Dirichlet per client over the classes, fitted to what there is.
    """
    require_positive("alpha", alpha)
    require_switch("equal", equal)
    if inner is None:
        require_default("groups", groups, GROUPS, "dirichlet(outer,inner)")
        return _dirichlet_of_equal_sizes(alpha, minimum) if equal else _dirichlet_by_client(alpha, minimum)
    require_positive("inner", inner)
    require_default("equal", equal, False, "dirichlet(alpha)")
    return _dirichlet_by_group(lambda clients: even_groups(clients, groups), alpha, inner, minimum)


@named
def skewed(*sizes: int, outer: float = 0.1, inner: float = 10, minimum: int = 10) -> Divide:
    """Cluster-wise Dirichlet with groups of any size, such as skewed(10,10,10,10,20,30,30,70) for 190 clients."""
    require_positive("outer", outer)
    require_positive("inner", inner)
    for size in sizes or (0,):
        require_whole("a group size", size)

    def group_sizes(clients: int) -> Array:
        if sum(sizes) != clients:
            raise PartitionError(
                f"the group sizes add up to {sum(sizes)} and there are {clients} clients; "
                f"use clients={sum(sizes)} or other sizes"
            )
        return np.array(sizes)

    return _dirichlet_by_group(group_sizes, outer, inner, minimum)


@named
def classes(held: int, each: int | None = None, *, groups: int = GROUPS, minimum: int = 10) -> Divide:
    """Each client holds n classes: classes(2); or each group holds c and each of its clients n of them: classes(3,2).

    A class is divided evenly over the clients that hold it. Classes are dealt like cards: the next client takes those
    that were taken least, at random among equals. So all are held about equally often, and none is left over if there
    are enough clients.
    """
    require_whole("the number of classes", held)
    if each is None:
        require_default("groups", groups, GROUPS, "classes(c,n)")
        return _classes_by_client(held, minimum)
    require_whole("the number of classes per client", each)
    if each > held:
        raise PartitionError(f"a client cannot hold {each} of its group's {held} classes; use classes({each},{held})")
    return _classes_by_group(held, each, groups, minimum)


@named
def shards(each: int, *, minimum: int = 10) -> Divide:
    """The set sorted by label and cut into equal shards, each client with a number of them at random: shards(2).

    McMahan et al. 2017 (arXiv:1602.05629). A shard may cross the border of two classes, and a client may get two
    shards of one class, so ``shards(3)`` gives from one to six classes. If each client is to have exactly three,
    as in lcfl's letters a-j on 200 devices, the partition is ``classes(3)``.
    """
    require_whole("the number of shards", each)

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        pool = by_class(data, clients, minimum)
        pieces, total = clients * each, len(pool.train)
        if pieces > total:
            raise PartitionError(
                f"{clients} clients x {each} shards need {pieces} train examples and {data.name} has {total}; "
                f"use at most shards({total // clients})"
            )
        borders = np.arange(pieces + 1) * total // pieces
        owners = rng.permutation(np.repeat(np.arange(clients), each))
        table = np.zeros((clients, pool.classes), np.int64)
        np.add.at(table, (np.repeat(owners, np.diff(borders)), np.sort(pool.train)), 1)
        return divide_by_weights(pool, table / np.maximum(pool.counts, 1), minimum, rng)

    return divide


@named
def blocks(*, overlap: bool = False, balanced: bool = True, alpha: float = 1, minimum: int = 10) -> Divide:
    """Three groups hold the classes 0-3, 4-6, 7-9, or overlapping 0-4, 3-7, 6-9 and 0: blocks(overlap=true).

    Balanced, the groups have equally many clients and a class is divided evenly over the clients that hold it.
    ``balanced=false``: the groups have 20, 47 and 33 % of the clients, each with a mix of its group's classes drawn
    by Dir(alpha); a class is divided in proportion to its holders' mixes.
    """
    require_switch("overlap", overlap)
    require_switch("balanced", balanced)
    require_positive("alpha", alpha)
    if balanced:
        require_default("alpha", alpha, 1, "blocks(balanced=false)")
    held = OVERLAPPING if overlap else APART

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        if require_classes("blocks", data) != BLOCK_CLASSES:
            raise PartitionError(
                f"blocks divide {BLOCK_CLASSES} classes and {data.name} has {data.classes}; use classes(3,2) instead"
            )
        pool = by_class(data, clients, minimum)
        sizes = even_groups(clients, len(held))
        if not balanced:
            sizes = apportion(clients, np.array(PERCENT))
        groups = np.repeat(np.arange(len(held)), sizes)
        weights = np.zeros((clients, BLOCK_CLASSES))
        for group, own in enumerate(held):
            rows = np.flatnonzero(groups == group)
            weights[np.ix_(rows, np.array(own))] = 1 if balanced else _draws(len(rows), len(own), alpha, rng)
        return divide_by_weights(pool, weights, minimum, rng, groups)

    return divide


def _dirichlet_by_client(alpha: float, minimum: int) -> Divide:
    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        pool = by_class(data, clients, minimum)
        return divide_by_weights(pool, _draws(pool.classes, clients, alpha, rng).T, minimum, rng)

    return divide


def _dirichlet_of_equal_sizes(alpha: float, minimum: int) -> Divide:
    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        pool = by_class(data, clients, minimum)
        sizes = even_groups(len(pool.train), clients)
        # Here a draw is a client's mix of classes; elsewhere it divides a class over clients.
        wanted = _draws(clients, pool.classes, alpha, rng) * (pool.counts > 0)
        table = share_out(pool.counts, balance(wanted, sizes, pool.counts))
        return divide_by_table(pool, top_up(table, mixes(wanted), sizes, "train"), rng)

    return divide


def _dirichlet_by_group(group_sizes: Callable[[int], Array], outer: float, inner: float, minimum: int) -> Divide:
    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        pool = by_class(data, clients, minimum)
        sizes = group_sizes(clients)
        held = _draw_groups(pool.counts, sizes, outer, minimum, rng)
        weights = [_draws(pool.classes, size, inner, rng).T for size in sizes]
        return divide_in_groups(pool, held, weights, minimum, rng)

    return divide


def _draw_groups(counts: Array, sizes: Array, outer: float, minimum: int, rng: Rng) -> Array:
    """Return the table of groups and classes, drawn again until every group has enough for its clients."""
    least = sizes * max(SMALLEST_GROUP * counts.sum() / sizes.sum(), minimum)
    for _ in range(GROUP_DRAWS):
        # Weighted by their clients, large groups get more examples but no other mix of classes.
        table = share_out(counts, _draws(len(counts), len(sizes), outer, rng).T * sizes[:, None])
        if (table.sum(axis=1) >= least).all():
            return table
    raise PartitionError(
        f"{GROUP_DRAWS} draws of {len(sizes)} groups by Dir({outer:g}) all left a group with less than "
        f"{SMALLEST_GROUP} of the mean or {minimum} examples a client; use fewer groups or clients, a larger outer or "
        f"another seed"
    )


def _draws(count: int, size: int, alpha: float, rng: Rng) -> Array:
    """Return weights ``(count, size)``: ``count`` draws of Dir(alpha), with no weight quite zero."""
    return np.maximum(rng.dirichlet(np.full(size, float(alpha)), count), _TRACE)


def _classes_by_client(held: int, minimum: int) -> Divide:
    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        pool = by_class(data, clients, minimum)
        hands = _deal(_present(pool.counts, held), clients, held, rng)
        return divide_by_weights(pool, _weights(hands, pool.classes), minimum, rng)

    return divide


def _classes_by_group(held: int, each: int, groups: int, minimum: int) -> Divide:
    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        pool = by_class(data, clients, minimum)
        sizes = even_groups(clients, groups)
        of_groups = _deal_distinct(_present(pool.counts, held), groups, held, rng)
        hands = np.concatenate([_deal(own, size, each, rng) for own, size in zip(of_groups, sizes, strict=True)])
        weights = _weights(hands, pool.classes)
        return divide_by_weights(pool, weights, minimum, rng, np.repeat(np.arange(groups), sizes))

    return divide


def _deal(cards: Array, hands: int, size: int, rng: Rng) -> Array:
    """Return hands ``(hands, size)`` without repeats, in which any two cards occur equally often or one time apart."""
    used = np.zeros(len(cards))
    dealt = np.empty((hands, size), np.int64)
    for hand in range(hands):
        taken = np.lexsort((rng.random(len(cards)), used))[:size]
        used[taken] += 1
        dealt[hand] = np.sort(cards[taken])
    return dealt


def _deal_distinct(cards: Array, hands: int, size: int, rng: Rng) -> Array:
    """Return hands of which no two are equal, because groups that hold the same classes would be one group."""
    possible = math.comb(len(cards), size)
    for _ in range(DEALS if hands <= possible else 0):
        dealt = _deal(cards, hands, size, rng)
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
