"""Partitions by class: Dirichlet shares, blocks of them, and shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.apportion import apportion, balance, mixes, share_out, top_up
from coterie.data.partitions.base import (
    Divide,
    Rng,
    Shares,
    by_class,
    even,
    hand_out,
    hand_to_groups,
    named,
    require_classes,
    require_default,
    require_positive,
    require_switch,
    require_whole,
    settle,
)
from coterie.errors import PartitionError
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

GROUPS = 10
# A group must hold this much of what its clients would hold on average, else the groups are drawn again.
SMALLEST_GROUP = 0.3
TRIES = 2000
# Below this, a weight is as good as nothing; but a class of no weight could not even serve a top-up.
_TRACE = 1e-12


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
        return _equal_sizes(alpha, minimum) if equal else _client_wise(alpha, minimum)
    require_positive("inner", inner)
    require_default("equal", equal, False, "dirichlet(alpha)")
    return _cluster_wise(lambda clients: even(clients, groups), alpha, inner, minimum)


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

    return _cluster_wise(group_sizes, outer, inner, minimum)


def _client_wise(alpha: float, minimum: int) -> Divide:
    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        pool = by_class(data, clients, minimum)
        return hand_out(pool, draws(pool.classes, clients, alpha, rng).T, minimum, rng)

    return divide


def _equal_sizes(alpha: float, minimum: int) -> Divide:
    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        pool = by_class(data, clients, minimum)
        sizes = even(len(pool.train), clients)
        # Here a draw is a client's mix of classes; elsewhere it divides a class over clients.
        wanted = draws(clients, pool.classes, alpha, rng) * (pool.counts > 0)
        table = share_out(pool.counts, balance(wanted, sizes, pool.counts))
        return settle(pool, top_up(table, mixes(wanted), sizes, "train"), rng)

    return divide


def _cluster_wise(group_sizes: Callable[[int], Array], outer: float, inner: float, minimum: int) -> Divide:
    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        pool = by_class(data, clients, minimum)
        sizes = group_sizes(clients)
        held = _draw_groups(pool.counts, sizes, outer, minimum, rng)
        weights = [draws(pool.classes, size, inner, rng).T for size in sizes]
        return hand_to_groups(pool, held, weights, minimum, rng)

    return divide


def _draw_groups(counts: Array, sizes: Array, outer: float, minimum: int, rng: Rng) -> Array:
    """The table of groups and classes, drawn again until every group has enough for its clients."""
    least = sizes * max(SMALLEST_GROUP * counts.sum() / sizes.sum(), minimum)
    for _ in range(TRIES):
        # Weighted by their clients, large groups get more examples but no other mix of classes.
        table = share_out(counts, draws(len(counts), len(sizes), outer, rng).T * sizes[:, None])
        if (table.sum(axis=1) >= least).all():
            return table
    raise PartitionError(
        f"{TRIES} draws of {len(sizes)} groups by Dir({outer:g}) all left a group with less than {SMALLEST_GROUP} of "
        f"the mean or {minimum} examples a client; use fewer groups or clients, a larger outer or another seed"
    )


def draws(count: int, size: int, alpha: float, rng: Rng) -> Array:
    """Weights ``(count, size)``: so many draws of Dir(alpha), none of them quite zero anywhere."""
    return np.maximum(rng.dirichlet(np.full(size, float(alpha)), count), _TRACE)


if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

CLASSES = 10
APART = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
OVERLAPPING = ((0, 1, 2, 3, 4), (3, 4, 5, 6, 7), (0, 6, 7, 8, 9))
PERCENT = (20, 47, 33)


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
        if require_classes("blocks", data) != CLASSES:
            raise PartitionError(
                f"blocks are blocks of {CLASSES} classes and {data.name} has {data.classes}; use classes(3,2) instead"
            )
        pool = by_class(data, clients, minimum)
        sizes = even(clients, len(held))
        if not balanced:
            sizes = apportion(clients, np.array(PERCENT))
        groups = np.repeat(np.arange(len(held)), sizes)
        weights = np.zeros((clients, CLASSES))
        for group, own in enumerate(held):
            members = np.flatnonzero(groups == group)
            weights[np.ix_(members, np.array(own))] = 1 if balanced else draws(len(members), len(own), alpha, rng)
        return hand_out(pool, weights, minimum, rng, groups)

    return divide


if TYPE_CHECKING:
    from coterie.data.dataset import Dataset


@named
def shards(each: int, *, minimum: int = 10) -> Divide:
    """The set sorted by label and cut into equal shards, so many to each client at random: shards(2).

    McMahan et al. 2017 (arXiv:1602.05629). A shard may cross the border of two classes, and a client may get two
    shards of one class, so ``shards(3)`` gives from one to six classes. Where each client is to have exactly three,
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
        return hand_out(pool, table / np.maximum(pool.counts, 1), minimum, rng)

    return divide
