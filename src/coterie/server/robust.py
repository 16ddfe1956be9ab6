"""Robust rules in place of the mean inside a cluster, which a few wrong models cannot move arbitrarily far."""

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
"""Weiszfeld's steps to a geometric median; on a matrix of distances they cost little beside the matrix itself."""


MOST = 5000
"""Clients of a cluster that are compared pair by pair, at most."""


def mean() -> Combine | None:
    """Take the weighted mean, as the papers do: one client can move it as far as the norm bound lets it."""
    return None


def median() -> Combine:
    """Take the median of every coordinate: less than half of a cluster may lie. Weights are ignored.

    Yin et al. 2018. Where clients of a cluster differ the median is no client's model, and accuracy is lost without any
    attack.
    """
    return _by_column(lambda block: _inner(block, (len(block) - 1) // 2))


def trimmed(share: float = 0.2) -> Combine:
    """Take the mean of every coordinate without the lowest and the highest ``share`` of values. Weights are ignored.

    Yin et al. 2018. Of n models floor(share n) are cut at each end: up to this number of clients may lie. With fewer
    than 1 / share models nothing is cut.
    """
    if not 0 <= share < 0.5:
        raise UsageError(f"trimmed: share is {share}; it must be in [0, 0.5)")

    return _by_column(lambda block: _inner(block, int(share * len(block) + 1e-9)))  # 0.29 * 100 is less than 29


def krum(f: int = 1) -> Combine:
    """Take the one model that is nearest to its neighbours: up to ``f`` of a cluster may lie. Weights are ignored.

    Blanchard et al. 2017: the least sum of squared distances to the n - f - 2 nearest of n models; the guarantee needs
    n >= 2 f + 3. Models with equal sums are averaged: with at most f + 3 models only the nearest neighbour counts, so
    the result is the mean of the two models nearest to each other. One model instead of a mean: much accuracy is lost
    without any attack.
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
    """Take the point of least weighted sum of distances to all models: up to half of the weight may lie.

    Pillutla et al. 2022. It takes 100 of Weiszfeld's steps from the weighted mean; a distance counts as at least a
    millionth of the mean distance between models. Clients weigh as in the mean.
    """

    def shares(squares: Array, weights: Array) -> Array:
        found: Array = weights / weights.sum()
        least = 1e-6 * np.sqrt(squares).mean()
        for _ in range(STEPS if least > 0 else 0):
            apart = squares @ found - found @ squares @ found / 2  # squared distance of each model to the current point
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
"""Rules that combine the models of a cluster, by name."""


def _by_column(rule: Callable[[Array], Array]) -> Combine:
    """Apply a rule to blocks of coordinates ``(models, width)``, each coordinate by itself, parameters and buffers."""

    def combine(models: Stack, rows: Array, weights: Array) -> Stack:
        made = (np.concatenate([np.zeros(0), *map(rule, _blocks(array, rows))]) for array in models)
        return Stack(*(values[None].astype(array.dtype) for values, array in zip(made, models, strict=True)))

    return combine


def _inner(block: Array, cut: int) -> Array:
    """Return the mean of each column without its ``cut`` lowest and highest values."""
    kept: Array = np.sort(block, axis=0)[cut : len(block) - cut].mean(axis=0)
    return kept


def _by_distance(shares: Callable[[Array, Array], Array]) -> Combine:
    """Sum models by shares computed from their squared distances and weights; buffers by the same shares."""

    def combine(models: Stack, rows: Array, weights: Array) -> Stack:
        if len(rows) > MOST:
            raise UsageError(
                f"a cluster has {len(rows):,} clients; krum and geometric-median compare the pairs of up to {MOST:,}: "
                "take --robust median or trimmed, more clusters, or a lower participation"
            )
        found = shares(pairwise(_blocks(models.params, rows), len(rows), "euclidean") ** 2, weights)
        return Stack(*(_sum(array, rows, found) for array in models))

    return combine


def _blocks(array: Array, rows: Array) -> Iterator[Array]:
    """Yield these rows in double precision, a block of coordinates at a time: the array may be a mapped file."""
    width = max(1, BLOCK_BYTES // (8 * len(rows)))
    for i in range(0, array.shape[1], width):
        yield array[:, i : i + width][rows].astype(np.float64)


def _sum(array: Array, rows: Array, shares: Array) -> Array:
    total = np.zeros((1, array.shape[1]))
    for row, share in zip(rows, shares, strict=True):
        total += share * array[row] if share else 0
    return total.astype(array.dtype)
