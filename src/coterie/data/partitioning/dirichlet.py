"""Partitions by Dirichlet draws: label skew of any strength, client by client or group by group.

A small parameter gives each class to few holders, a large one spreads it evenly (Hsu, Qi and Brown 2019,
arXiv:1909.06335). The cluster-wise form draws twice: classes over groups, then each group's examples over its
clients, so that clients of one group resemble each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.partitioning.handout import by_class, even, hand_out, hand_to_groups, settle
from coterie.data.partitioning.limits import require_default, require_positive, require_switch, require_whole
from coterie.data.partitioning.shares import Array, Divide, Rng, Shares, named
from coterie.data.tables import balance, mixes, share_out, top_up
from coterie.errors import PartitionError

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
