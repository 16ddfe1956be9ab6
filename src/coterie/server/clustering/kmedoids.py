"""k-medoids of a distance matrix: PAM's BUILD and SWAP (Kaufman and Rousseeuw, 1990), with FasterPAM's eager swaps.

The loss of a set of medoids is the sum of the distances of all points to their nearest medoid. Let d1(i) and d2(i) be
the distances of point i to its nearest and second nearest medoid. If candidate c replaces medoid m, the loss changes by

    sum_i min(d(i,c) - d1(i), 0)  +  R(m)  +  sum_{i nearest to m} min(max(d(i,c), d1(i)) - d2(i), 0)

where R(m), the sum of d2(i) - d1(i) over the points nearest to m, is the loss of removing m. The first sum is the same
for all m, and only points with d(i,c) < d2(i) add to either sum, so one look at these gives the changes for all k
medoids (Schubert and Rousseeuw, "Fast and eager k-medoids clustering", Information Systems 101, 2021). Every sum is
added up in the order of the points: the same bits on every machine.

Most candidates do not help, and that can be said for a block of them at once. With g1(m) and g2(m) the sums of
min(d(i,c), d1(i)) and min(d(i,c), d2(i)) over the points nearest to m, the same change is

    sum_m g1(m)  -  loss  +  g2(m)  -  g1(m)

Products of matrices give these sums in single precision. Their error is at most a share of the sums themselves, and
only candidates that may help within it are evaluated exactly, so that which are taken is as if all had been.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coterie.server.clustering.candidate_order import candidate_order
from coterie.server.clustering.threads import one_thread
from coterie.typing import Array

RANDOM_STARTS = 4
"""Random starts of k-medoids, in addition to the greedy one."""

MOST_PASSES = 100
"""Passes over all candidates, at most, from one start."""

ROUNDING = 1e-12
"""A change of the loss by less than this share of it may be a rounding error."""

BLOCK, FIRST_BLOCK = 2**18, 2**14
"""Distances looked at once, at most, and right after a swap."""

SINGLE = np.finfo(np.float32)
"""The rounding of single precision: ``eps`` of a number, and ``tiny`` where numbers are too small for that."""


@dataclass(frozen=True)
class KMedoids:
    """Medoids in ascending order, for each point the position of its nearest medoid (the first of equals), the loss."""

    medoids: Array
    labels: Array
    loss: float


def kmedoids(distances: Array, clusters: int, seed: int, random_starts: int = RANDOM_STARTS) -> KMedoids:
    """Return the lowest loss that swaps reach from the greedy start and from random ones; the first of equals.

    ``distances`` must be symmetric with a zero diagonal, and ``clusters`` at most the number of points. Random start
    number r and its order of candidates depend on ``seed + r`` alone; the greedy start has the order of number 0.

    >>> points = np.array([0.0, 1.0, 3.0, 20.0, 22.0, 23.0])
    >>> kmedoids(np.abs(np.subtract.outer(points, points)), clusters=2, seed=1)
    KMedoids(medoids=array([1, 4]), labels=array([0, 0, 0, 1, 1, 1]), loss=6.0)
    """
    distances = np.ascontiguousarray(distances, dtype=np.float64)
    if clusters == 1:
        return _assigned(distances, build(distances, 1))
    rough = in_single(distances)
    with one_thread():
        starts = _starts(distances, clusters, seed, random_starts, rough)
        return min((swap(distances, start, order, rough) for start, order in starts), key=lambda one: one.loss)


def _starts(
    distances: Array, clusters: int, seed: int, random_starts: int, rough: Rough
) -> Iterator[tuple[Array, Array]]:
    points = len(distances)
    yield build(distances, clusters, rough), candidate_order(points, seed)
    for number in range(random_starts):
        drawn = np.random.RandomState(seed + number).choice(points, clusters, replace=False)
        yield drawn, candidate_order(points, seed + number)


@dataclass(frozen=True)
class Rough:
    """Distances in single precision, ``scale`` times as large so that none is beyond it, and the error of sums of them.

    ``share``: by how much of itself a sum over points may be wrong, whatever its order; ``least``: at least by this.
    """

    distances: Array
    scale: float
    share: float
    least: float


def in_single(distances: Array) -> Rough:
    """Return the distances in single precision."""
    points, scale = len(distances), 1 / float(distances.max(initial=np.finfo(np.float64).tiny))
    scaled = np.multiply(distances, scale, out=np.empty(distances.shape, np.float32), casting="same_kind")
    return Rough(scaled, scale, (points + 16) * float(SINGLE.eps), points * float(SINGLE.tiny))


def _blocks(points: int) -> list[slice]:
    size = max(1, BLOCK // max(1, points))
    return [slice(begin, begin + size) for begin in range(0, points, size)]


def build(distances: Array, clusters: int, rough: Rough | None = None) -> Array:
    """Return the greedy start: each medoid is the point that lowers the loss most, the first of equals."""
    rough = in_single(distances) if rough is None else rough
    chosen = [int(distances.sum(axis=0).argmin())]
    first = distances[chosen[0]]
    while len(chosen) < clusters:
        candidates = _possible_additions(rough, first, chosen)
        parts = np.array_split(candidates, -(-len(candidates) * len(distances) // BLOCK))
        changes = np.concatenate([_additions(distances, part, first) for part in parts])
        chosen.append(int(candidates[changes.argmin()]))
        first = np.minimum(first, distances[chosen[-1]])
    return np.array(chosen)


def _possible_additions(rough: Rough, first: Array, chosen: list[int]) -> Array:
    """Return the points that may lower the loss most, within rounding."""
    near = (first * rough.scale).astype(np.float32)
    ones = np.ones(len(near), dtype=np.float32)
    losses = np.concatenate([np.minimum(rough.distances[block], near) @ ones for block in _blocks(len(near))])
    low, high = (losses * (1 + sign * rough.share) + sign * rough.least for sign in (-1.0, 1.0))
    low[chosen] = high[chosen] = np.inf
    return np.flatnonzero(low <= high.min())


def _additions(distances: Array, candidates: Array, first: Array) -> Array:
    """Return the change of the loss if one of these points is added, its own fall summed first."""
    terms = np.empty((1 + len(distances), len(candidates)))
    np.subtract(distances[:, candidates], first[:, None], out=terms[1:])
    terms[1 + candidates, np.arange(len(candidates))] = 0
    terms[0] = -first[candidates]
    changes: Array = np.add.accumulate(np.minimum(terms, 0, out=terms), axis=0)[-1]
    return changes


@dataclass(frozen=True, kw_only=True)
class _State:
    """Medoids and their rows of distances; each point's nearest medoid, d1 and d2; R of each medoid; the loss.

    ``belongs (n, k)`` is 1 where a medoid is the nearest.
    """

    medoids: Array
    rows: Array
    nearest: Array
    first: Array
    second: Array
    removal: Array
    belongs: Array
    loss: float


def _state(medoids: Array, rows: Array) -> _State:
    nearest, points = rows.argmin(axis=0), np.arange(rows.shape[1])
    first, others = rows[nearest, points], rows.copy()
    others[nearest, points] = np.inf
    second = others.min(axis=0)
    return _State(
        medoids=medoids,
        rows=rows,
        nearest=nearest,
        first=first,
        second=second,
        removal=np.bincount(nearest, second - first, minlength=len(medoids)),
        belongs=(nearest[:, None] == np.arange(len(medoids))).astype(np.float32),
        loss=_total(first),
    )


def _total(numbers: Array) -> float:
    return float(np.add.accumulate(numbers)[-1])


def swap(distances: Array, medoids: Array, order: Array, rough: Rough | None = None) -> KMedoids:
    """Improve two or more medoids: each candidate in turn replaces the medoid that it is best to remove, if that helps.

    It ends when no candidate has helped since the last swap. Rounding can make a swap between equals look like an
    improvement; after a pass that has not lowered the loss, only an improvement beyond rounding counts.
    """
    rough = in_single(distances) if rough is None else rough
    state, idle, least = _state(medoids, distances[medoids]), 0, 0.0
    for _ in range(MOST_PASSES):
        before = state.loss
        state, idle = _one_pass(distances, rough, state, order, idle, least)
        if idle >= len(order):
            break
        if state.loss >= before:
            least = ROUNDING
    return _assigned(distances, state.medoids)


def _one_pass(
    distances: Array, rough: Rough, state: _State, order: Array, idle: int, least: float
) -> tuple[_State, int]:
    """Try the candidates in order; ``idle`` counts those since the last swap. Blocks grow as swaps become rare."""
    smallest, largest = (max(1, size // len(order)) for size in (FIRST_BLOCK, BLOCK))
    begin, size = 0, smallest
    while begin < len(order) and idle < len(order):
        block = order[begin : begin + size]
        found = _first_helpful(distances, state, block, _may_help(rough, state, block, least), least)
        if found is None:
            begin, idle, size = begin + len(block), idle + len(block), min(2 * size, largest)
        else:
            at, removed = found
            state = _swapped(state, removed, block[at], distances[block[at]])
            begin, idle, size = begin + at + 1, 0, smallest
    return state, idle


def _may_help(rough: Rough, state: _State, candidates: Array, least: float) -> Array:
    """Return the positions of the candidates that may lower the loss, judged in single precision."""
    rows, loss = rough.distances[candidates], rough.scale * state.loss
    bounds = ((rough.scale * bound).astype(np.float32) for bound in (state.first, state.second))
    inside, without = ((np.minimum(rows, bound) @ state.belongs).astype(np.float64) for bound in bounds)
    total = inside.sum(axis=1, keepdims=True)
    error = rough.share * (total + loss + without + inside) + rough.least
    lowest = (total - loss + without - inside - error).min(axis=1)
    medoid = (candidates[:, None] == state.medoids).any(axis=1)
    return np.flatnonzero((lowest < -least * loss) & ~medoid)


def _first_helpful(
    distances: Array, state: _State, candidates: Array, may_help: Array, least: float
) -> tuple[int, int] | None:
    """Return the position of the first of these candidates that lowers the loss, and of the medoid best removed."""
    begin, size = 0, 1
    while begin < len(may_help):
        some = may_help[begin : begin + size]
        changes, removed = _exchanges(distances[candidates[some]], state)
        helpful = np.flatnonzero(changes < -least * state.loss)
        if len(helpful):
            return int(some[helpful[0]]), int(removed[helpful[0]])
        begin, size = begin + size, min(2 * size, max(1, BLOCK // len(distances)))
    return None


def _exchanges(rows: Array, state: _State) -> tuple[Array, Array]:
    """Return, for candidates with these rows of distances, the change of the loss and the medoid best removed."""
    candidates, medoids = np.arange(len(rows)), len(state.medoids)
    which, point = np.nonzero(rows < state.second)
    near, first = rows[which, point], state.first[point]
    added = np.bincount(which, np.minimum(near - first, 0), minlength=len(rows))
    cells = np.concatenate([np.arange(len(rows) * medoids), which * medoids + state.nearest[point]])
    terms = np.concatenate([np.tile(state.removal, len(rows)), np.maximum(near, first) - state.second[point]])
    removals = np.bincount(cells, terms).reshape(len(rows), medoids)
    best = removals.argmin(axis=1)
    return added + removals[candidates, best], best


def _swapped(state: _State, position: int, candidate: int, row: Array) -> _State:
    medoids, rows = state.medoids.copy(), state.rows.copy()
    medoids[position], rows[position] = candidate, row
    return _state(medoids, rows)


def _assigned(distances: Array, medoids: Array) -> KMedoids:
    medoids = np.sort(medoids)
    rows = distances[medoids]
    return KMedoids(medoids, rows.argmin(axis=0), _total(rows.min(axis=0)))
