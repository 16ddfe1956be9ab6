"""A race of models for each client's choice: those that are clearly worse on a part of its data see no more of it.

A client goes through its train data in an order drawn at its address: first a few examples, then twice as many, and so
on. A model leaves when its mean loss exceeds the best one's by more than ``bound`` standard errors of the paired
differences, corrected for drawing without replacement: nothing is uncertain once all examples are seen. So the race
ends with one model, or exactly. All clients run side by side, each model over many clients at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coterie.engine.fitting import Work
from coterie.engine.workers import Workers
from coterie.models.layout import Array
from coterie.protocol.sample import Sample, standard_error
from coterie.protocol.task import Race

ExampleLosses = Callable[[int, Array], Array]
"""The loss of a model, by its row, on each of these rows of the pool."""


class Finish(NamedTuple):
    """Of every client: minus the mean loss of each model still running, ``(r, K)``, and how many losses were made."""

    scores: Array
    evaluations: Array


class Tally(NamedTuple):
    """Of every client: how many examples were seen, the sums of each model's losses and of products of each two."""

    seen: Array
    sums: Array
    products: Array


def race(rule: Race, work: Work, losses: ExampleLosses, workers: Workers) -> Finish:
    """Run until every client has one model left, or no examples."""
    clients, models = len(work.clients), len(work.stack) - work.references
    orders = [work.pool.shuffled(c, work.key.generator(work.names[c], "race"), rule.examples) for c in work.clients]
    sizes = np.array([len(order) for order in orders])
    tally = Tally(np.zeros(clients, int), np.zeros((clients, models)), np.zeros((clients, models, models)))
    running, evaluations = np.ones((clients, models), dtype=bool), np.zeros(clients, dtype=np.int64)
    part = Sample(0, rule.first)
    while (active := np.flatnonzero((running.sum(1) > 1) & (part.begin < sizes))).size:
        rows = [orders[place][part.begin : part.end] for place in active]
        _run(active, rows, running, losses, tally, workers)
        evaluations[active] += running[active].sum(1) * part.count(sizes[active])
        running[active] = still_running(running, tally, sizes, rule.bound)[active]
        part = part.following
    with np.errstate(invalid="ignore"):
        means = tally.sums / np.maximum(tally.seen, 1)[:, None]
    return Finish(np.where(running, -means, -np.inf), evaluations)


def _run(
    places: Array, rows: list[Array], running: Array, losses: ExampleLosses, tally: Tally, workers: Workers
) -> None:
    """Let these clients see these examples under the models that still run for them, and enter it in the tally."""
    lengths = np.array([len(part) for part in rows])
    every, ends = np.concatenate(rows), np.cumsum(lengths)
    table = np.zeros((len(every), running.shape[1]))

    def judge(job: tuple[int, Array]) -> None:
        row, part = job
        table[part, row] = losses(row, every[part])

    wanted = [np.flatnonzero(np.repeat(running[places, row], lengths)) for row in range(running.shape[1])]
    jobs = [(row, part) for row, whole in enumerate(wanted) for part in np.array_split(whole, workers.count)]
    workers.map(judge, [job for job in jobs if len(job[1])])
    with np.errstate(invalid="ignore", over="ignore"):
        for place, end, length in zip(places, ends, lengths, strict=True):
            part = table[end - length : end]
            tally.sums[place] += part.sum(0)
            tally.products[place] += part.T @ part
    tally.seen[places] += lengths


def still_running(running: Array, tally: Tally, sizes: Array, bound: float) -> Array:
    """Which models are not clearly worse than the best so far; one whose loss is not a number is."""
    seen = np.maximum(tally.seen, 1)
    everyone = np.arange(len(seen))
    with np.errstate(invalid="ignore"):
        means = np.where(running & np.isfinite(tally.sums), tally.sums / seen[:, None], np.inf)
        best = means.argmin(1)
        behind = means - means[everyone, best][:, None]
        squares = np.diagonal(tally.products, axis1=1, axis2=2)
        both = tally.products[everyone, best]
        variance = (squares - 2 * both + squares[everyone, best][:, None]) / seen[:, None] - behind**2
        kept: Array = behind <= bound * standard_error(variance, seen[:, None], sizes[:, None])
    return kept
