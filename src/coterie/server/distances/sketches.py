"""Sketches: a few hundred numbers for each client, by which many clients are compared.

A vector of more than ``size`` numbers is added up into ``size``: each coordinate goes, with a random sign, to one of
them (count sketch: Charikar et al. 2002, Weinberger et al. 2009). That reads every number once, as a dense projection
would ``size`` times. Inner products stay the same on average, and the cosine of two sketches has a standard error of
about (1 - cos^2) / size^(1/2), 0.04 at 512. Shorter vectors stay as they are, so small models are compared exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import scipy

from coterie.errors import UsageError
from coterie.protocol.replies import Replies, Sketching
from coterie.seeding import generator
from coterie.server.contract import Ask
from coterie.server.distances.many_clients import Distances, Sampled, drawn
from coterie.server.distances.vectors import BLOCK_BYTES, Measure, check_metric
from coterie.typing import Array

LOOKED_AT = 100
"""Clients with which everybody's update is compared for the mean of squared cosines."""


def of_sketched_updates(metric: str) -> Measure:
    """Measure distances of the clients' updates to those of a sample, by sketches."""
    check_metric(metric)

    def measure(replies: Replies, starts: Array, ask: Ask) -> tuple[Replies, Distances]:
        return replies, between_sketches(replies, starts, metric)

    return measure


def of_sketched_parameters(metric: str) -> Measure:
    """Measure distances of the clients' trained parameters to those of a sample, by sketches."""
    check_metric(metric)

    def measure(replies: Replies, starts: Array, ask: Ask) -> tuple[Replies, Distances]:
        return replies, between_sketches(replies, None, metric)

    return measure


def between_sketches(replies: Replies, starts: Array | None, metric: str) -> Sampled:
    """Return the distances of all clients to a sample of them, by sketches of their updates, or of their parameters."""
    rules, points = replies.sketching, sketches(replies, starts, metric)
    sample = drawn(len(points), rules)
    some = points[sample]

    def away(rows: slice) -> Array:
        found: Array = (
            1 - np.clip(points[rows] @ some.T, -1, 1)
            if metric == "cosine"
            else scipy.spatial.distance.cdist(points[rows], some)
        )
        return found

    among = (
        scipy.spatial.distance.cdist(some, some)
        if metric == "euclidean"
        else 1 - np.clip(some.astype(np.float64) @ some.T, -1, 1)
    )
    np.fill_diagonal(among, 0)
    return Sampled(sample, among, len(points), away, f"sketches of {points.shape[1]} numbers", rules.exact_clients)


def sketches(replies: Replies, starts: Array | None, metric: str) -> Array:
    """Return the sketch of every client in single precision, of length 1 (or 0) where directions are compared."""
    if metric == "manhattan":
        raise UsageError(
            f"metric is manhattan for {len(replies):,} clients, and sketches do not keep such distances; with more "
            f"than exact-clients ({replies.sketching.exact_clients:,}) take metric=cosine or euclidean, or raise it"
        )
    sketch = sketcher(len(replies.layout.numbers("all")), replies.sketching)
    points = (sketch(block) for block in vectors(replies, starts))
    scaled = (directions(some) if metric == "cosine" else some for some in points)
    return np.concatenate([some.astype(np.float32) for some in scaled])


def vectors(replies: Replies, starts: Array | None) -> Iterator[Array]:
    """Yield the clients' parameters (minus their starts) in double precision, a block of clients at a time."""
    part, params = replies.layout.part("all"), replies.models().params
    height = max(1, BLOCK_BYTES // max(1, 8 * params.shape[1]))
    for i in range(0, len(params), height):
        block = params[i : i + height][:, part].astype(np.float64)
        yield block if starts is None else block - starts[i : i + height][:, part]


def sketcher(width: int, sketching: Sketching) -> Callable[[Array], Array]:
    """Return what makes sketches of rows of this width."""
    if width <= sketching.size:
        return lambda rows: rows
    matrix = projection(width, sketching)
    return lambda rows: rows @ matrix


def projection(width: int, sketching: Sketching) -> scipy.sparse.csr_array:
    """Return the matrix ``(width, size)`` that adds each coordinate, with a sign, to one number of a sketch.

    >>> abs(projection(4, Sketching(size=2))).sum(axis=1).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    rng = generator(sketching.seed, "sketch", sketching.size)
    places, signs = rng.integers(sketching.size, size=width), rng.choice((-1.0, 1.0), size=width)
    return scipy.sparse.csr_array((signs, places, np.arange(width + 1)), shape=(width, sketching.size))


def directions(rows: Array) -> Array:
    """Return rows of length 1; rows of zeros stay zeros.

    >>> directions(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    found: Array = rows / np.where(lengths > 0, lengths, 1)
    return found


def mean_square_of_cosine_distances(replies: Replies, starts: Array) -> float:
    """Return the mean of (1 - cos)^2 over all pairs of updates, in time that is linear in the clients.

    The sum of the cosines of all pairs is the squared length of the sum of all directions. The sum of their squares is
    that of a matrix, coordinates x coordinates, where updates are short; otherwise it is estimated by the cosines of
    everybody with a few clients, the same in every round. A sketch would be off by more than rounds differ.
    """
    width, count = len(replies.layout.numbers("all")), len(replies)
    few = drawn(count, replace(replies.sketching, sample=LOOKED_AT))
    part, params = replies.layout.part("all"), replies.models().params
    looked_at = directions(params[few][:, part].astype(np.float64) - starts[few][:, part])
    short = width <= replies.sketching.size
    total, products, squares, moved = np.zeros(width), np.zeros((width, width) if short else (1, 1)), 0.0, 0
    for block in vectors(replies, starts):
        units = directions(block)
        total += units.sum(axis=0)
        moved += int(units.any(axis=1).sum())
        if short:
            products += units.T @ units
        else:
            squares += float(((units @ looked_at.T) ** 2).sum())
    own, share = (moved, 1.0) if short else (int(looked_at.any(axis=1).sum()), len(few) / count)
    squares = (float((products**2).sum()) if short else squares) - own
    pairs = count * (count - 1)
    return max(0.0, (pairs - 2 * (float(total @ total) - moved) + squares / share) / pairs)
