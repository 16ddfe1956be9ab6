"""Every model's losses on every client's train data, or on parts of it: their means and their spreads."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import NamedTuple

import numpy as np

from coterie.engine.batches import half_of
from coterie.engine.evaluator import Verdicts
from coterie.engine.metrics import segment_mean
from coterie.engine.pool import Pool
from coterie.engine.racing import ExampleLosses
from coterie.engine.workers import Workers
from coterie.errors import UsageError
from coterie.models.layout import Array
from coterie.protocol.sample import Sample
from coterie.protocol.task import Fit
from coterie.seeding import Key

RowsOf = Callable[[Array], tuple[Array, Array]]
"""The rows of the pool that these clients look at, and where each client's begin and end."""


class Judged(NamedTuple):
    """Means of the losses and their mean squared deviations from them, ``(r, K)`` each."""

    losses: Array
    spreads: Array


def judge(losses: ExampleLosses, models: int, clients: Array, rows_of: RowsOf, workers: Workers) -> Judged:
    """Each model over the rows of many clients at a time."""
    shards = [s for s in np.array_split(np.arange(len(clients)), workers.count) if len(s)]

    def one(job: tuple[int, Array]) -> tuple[Array, Array]:
        row, shard = job
        where, offsets = rows_of(clients[shard])
        return mean_and_spread(losses(row, where), offsets)

    jobs = [(row, shard) for shard in shards for row in range(models)]
    found = Judged(*np.empty((2, len(clients), models)))
    for (row, shard), columns in zip(jobs, workers.map(one, jobs), strict=True):
        found.losses[shard, row], found.spreads[shard, row] = columns
    return found


def own_losses(
    found: Judged, rows: Array, losses: ExampleLosses, clients: Array, rows_of: RowsOf, workers: Workers
) -> Array:
    """Each client's mean loss under the model of its row, which may be beyond those that were judged."""
    judged = found.losses.shape[1]

    def one(place: int) -> float:
        if rows[place] < judged:
            return float(found.losses[place, rows[place]])
        where, offsets = rows_of(clients[place : place + 1])
        return float(segment_mean(losses(int(rows[place]), where), offsets)[0])

    return np.array(workers.map(one, range(len(clients))))


def differences(found: Judged, own: Array) -> Judged:
    """How far every loss is from the client's own, whichever is larger.

    >>> differences(Judged(np.array([[1.0, 4.0]]), np.zeros((1, 2))), np.array([3.0])).losses.tolist()
    [[2.0, 1.0]]
    """
    with np.errstate(invalid="ignore"):
        return found._replace(losses=np.abs(found.losses - own[:, None]))


def bound(found: Verdicts, truth: Array, kind: str, classes: int | None) -> Array:
    """Losses in [0, 1]: whether a prediction is wrong, or the loss clipped, cross entropy in units of a guess.

    >>> bound(Verdicts(np.array([0.5, np.nan, 9.0]), np.array([2, 0, 1])), np.array([2, 0, 0]), "zero-one", 3).tolist()
    [0.0, 0.0, 1.0]
    >>> bound(Verdicts(np.array([0.25, np.nan, 9.0]), np.zeros(3)), np.zeros(3), "clipped", None).tolist()
    [0.25, 1.0, 1.0]
    """
    if kind == "zero-one":
        wrong: Array = (found.predictions != truth).astype(np.float64)
        return wrong
    unit = 1.0 if classes is None else log(max(classes, 2))
    return np.where(found.losses < unit, found.losses / unit, 1.0)


def mean_and_spread(values: Array, offsets: Array) -> tuple[Array, Array]:
    """Of each segment ``offsets[i]:offsets[i+1]``: the mean, and the mean squared deviation from it.

    >>> [column.tolist() for column in mean_and_spread(np.array([1.0, 3.0, 7.0]), np.array([0, 2, 3]))]
    [[2.0, 7.0], [1.0, 0.0]]
    """
    mean = segment_mean(values, offsets)
    with np.errstate(invalid="ignore", over="ignore"):
        return mean, segment_mean((values - np.repeat(mean, np.diff(offsets))) ** 2, offsets)


def rows_of_half(half: int, pool: Pool, names: tuple[str, ...], key: Key) -> RowsOf:
    """The half of each client's data that a pass on the other half, under the same key, does not see."""

    def rows_of(clients: Array) -> tuple[Array, Array]:
        sizes, fit = pool.sizes[clients], Fit(half=half)
        drawn = [half_of(int(n), fit, key.generator(names[c], "halves")) for c, n in zip(clients, sizes, strict=True)]
        parts = [part + pool.offsets[c] for c, part in zip(clients, drawn, strict=True)]
        return np.concatenate(parts), np.cumsum([0, *map(len, parts)])

    return rows_of


def rows_of_sample(sample: Sample, pool: Pool, names: tuple[str, ...], key: Key) -> RowsOf:
    """A part of each client's data, in the order drawn at its address; one that has nothing in it is refused."""

    def rows_of(clients: Array) -> tuple[Array, Array]:
        sizes = pool.sizes[clients]
        if sizes.min() <= sample.begin:
            few = clients[int(sizes.argmin())]
            raise UsageError(
                f"client {names[few]!r} has {pool.sizes[few]} train examples, and the sample begins after "
                f"{sample.begin}; ask only clients that have more"
            )
        orders = [pool.shuffled(c, key.generator(names[c], "sample")) for c in clients]
        parts = [order[sample.begin : sample.end] for order in orders]
        return np.concatenate(parts), np.concatenate([[0], np.cumsum(sample.count(sizes))])

    return rows_of
