"""Rules in the place of the mean inside a cluster, which a few wrong models cannot move as far as they like."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from coterie.errors import UsageError
from coterie.protocol.replies import Combine
from coterie.protocol.stack import Stack
from coterie.server.distances.vectors import BLOCK_BYTES, pairwise
from coterie.textforms import Catalogue
from coterie.typing import Array

STEPS = 100
"""Weiszfeld's steps to a geometric median; they are taken on a matrix of distances and cost nothing beside it."""


def mean() -> Combine | None:
    """The weighted mean, as the papers have it: one client can move it as far as the norm bound lets it."""
    return None


def median() -> Combine:
    """The median of every coordinate: less than half of a cluster may lie. Weights are ignored: all count the same.

    Yin et al. 2018. Where clients of a cluster differ it is nobody's model, and it costs accuracy without any attack.
    """
    return _by_column(lambda block: _inner(block, (len(block) - 1) // 2))


def trimmed(share: float = 0.2) -> Combine:
    """The mean of every coordinate without the lowest and the highest ``share`` of values. Weights are ignored.

    Yin et al. 2018. Of n members floor(share n) are cut at each end: up to so many may lie. With fewer than 1 / share
    members nothing is cut.
    """
    if not 0 <= share < 0.5:
        raise UsageError(f"trimmed: share is {share}; it must be in [0, 0.5)")

    return _by_column(lambda block: _inner(block, int(share * len(block) + 1e-9)))  # 0.29 * 100 is less than 29


def krum(f: int = 1) -> Combine:
    """The one model that is nearest to its neighbours, where up to ``f`` of a cluster may lie. Weights are ignored.

    Blanchard et al. 2017: the least sum of squared distances to the n - f - 2 nearest, of n members; it holds with
    n >= 2 f + 3. Of equal sums the mean is taken: with at most f + 3 members only the nearest counts, and that makes it
    the mean of the two that are nearest to each other. One model instead of a mean: much is lost without any attack.
    """
    if f < 0:
        raise UsageError(f"krum: f is {f}; it must be at least 0")

    def shares(squares: Array, weights: Array) -> Array:
        others = np.sort(squares, axis=1)[:, 1:]  # the first is the distance to itself
        sums = others[:, : max(1, len(squares) - f - 2)].sum(axis=1)
        best: Array = np.equal(sums, sums.min())
        even: Array = best / best.sum()
        return even

    return _by_distance(shares)


def geometric_median() -> Combine:
    """The model with the least weighted sum of distances to all: members with up to half of the weight may lie.

    Pillutla et al. 2022. Weiszfeld's steps, 100 of them, from the weighted mean; a distance counts as at least a
    millionth of the mean distance between members. Clients weigh as in the mean.
    """

    def shares(squares: Array, weights: Array) -> Array:
        found: Array = weights / weights.sum()
        least = 1e-6 * np.sqrt(squares).mean()
        for _ in range(STEPS if least > 0 else 0):
            apart = squares @ found - found @ squares @ found / 2  # of each member from the sum of all by their shares
            pulls = weights / np.maximum(np.sqrt(np.maximum(apart, 0)), least)
            found = pulls / pulls.sum()
        return found

    return _by_distance(shares)


rules = Catalogue(
    "robust rule",
    {
        "mean": mean,
        "median": median,
        "trimmed": trimmed,
        "krum": krum,
        "geometric-median": geometric_median,
    },
    typed=True,
)
"""How the models of a cluster's members become one, by name."""


def _by_column(rule: Callable[[Array], Array]) -> Combine:
    """A rule for blocks of coordinates ``(members, width)``, each coordinate by itself; buffers as parameters."""

    def combine(models: Stack, members: Array, weights: Array) -> Stack:
        made = (np.concatenate([np.zeros(0), *map(rule, _blocks(rows, members))]) for rows in models)
        return Stack(*(values[None].astype(rows.dtype) for values, rows in zip(made, models, strict=True)))

    return combine


def _inner(block: Array, cut: int) -> Array:
    """The mean of each column without so many of its lowest and its highest values."""
    kept: Array = np.sort(block, axis=0)[cut : len(block) - cut].mean(axis=0)
    return kept


def _by_distance(shares: Callable[[Array, Array], Array]) -> Combine:
    """A sum of the members by shares that follow from their parameters' squared distances and weights; buffers too."""

    def combine(models: Stack, members: Array, weights: Array) -> Stack:
        count = len(members)
        found = shares(pairwise(_blocks(models.params, members), count, "euclidean") ** 2, weights)
        return Stack(*(_sum(rows, members, found) for rows in models))

    return combine


def _blocks(rows: Array, members: Array) -> Iterator[Array]:
    """The members' rows in double precision, a block of coordinates at a time: rows may be a mapped file."""
    width = max(1, BLOCK_BYTES // (8 * len(members)))
    for i in range(0, rows.shape[1], width):
        yield rows[:, i : i + width][members].astype(np.float64)


def _sum(rows: Array, members: Array, shares: Array) -> Array:
    total = np.zeros((1, rows.shape[1]))
    for member, share in zip(members, shares, strict=True):
        total += share * rows[member] if share else 0
    return total.astype(rows.dtype)
