"""A client's choice among the models it received: by loss, by a race, or by its first minibatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.engine.local_training import Work, desk, feed, groups
from coterie.engine.plan import Plan, Workers
from coterie.engine.trainer import Batch, Trainer
from coterie.protocol.task import Agreement, BatchLoss, Fit, Loss, Race, Sample, Task, standard_error
from coterie.typing import Array

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
    clients, models = len(work.clients), len(work.sent.models)
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


class View(NamedTuple):
    """Of every client on every model, ``(r, K)``: the mean loss, and the agreement where it was asked for."""

    losses: Array
    agreements: Array


def look(work: Work, fit: Fit, agreement: Agreement | None, plan: Plan, workers: Workers) -> View:
    """Let every client look at every model; one that fails has no numbers, and fails to train for the same reason."""
    eye = _Eye(work, replace(fit, steps=1, epochs=None), agreement, workers)
    shape = (len(work.clients), len(eye.models))
    view = View(np.full(shape, np.nan), np.full(shape, np.nan))
    if plan.kind == "lockstep":
        workers.map(lambda places: eye.look_together(places, view), groups(work, eye.fit, plan.group))
    else:
        go = workers.here if plan.kind == "single" else workers.map
        go(lambda place: eye.look_alone(place, view), range(len(work.clients)))
    return view


@dataclass(frozen=True)
class _Eye:
    """Looks at models for clients, and writes into their rows of a view."""

    work: Work
    fit: Fit
    agreement: Agreement | None
    workers: Workers

    @property
    def models(self) -> range:
        return range(len(self.work.sent.models))

    def look_alone(self, place: int, view: View) -> None:
        work, trainer = self.work, desk(self.work, self.workers)
        rows = work.batches(place, self.fit, 0).rows(0) + work.pool.offsets[work.clients[place]]
        try:
            self._look(trainer, Batch(*work.pool.take(rows)), place, view)
        except (RuntimeError, ValueError):
            return

    def look_together(self, places: Array, view: View) -> None:
        batches = [self.work.batches(place, self.fit, 0) for place in places]
        trainer = desk(self.work, self.workers, len(places))
        self._look(trainer, next(feed(self.work, places, batches)), places, view)

    def _look(self, trainer: Trainer, batch: Batch, places: int | Array, view: View) -> None:
        sent, device = self.work.sent, self.work.pool.like.device
        for row in self.models:
            params, buffers = (torch.from_numpy(part[row]).to(device) for part in sent.models)
            if isinstance(places, int):
                trainer.seed_dropout(self.work.dropout(places, 0))
                trainer.buffers.copy_(buffers)
            loss, gradient = trainer.look(params.expand_as(trainer.params), batch)
            view.losses[places, row] = loss.cpu().numpy()
            if self.agreement is not None:
                assert sent.references is not None, "an agreement needs the models of the round before"
                before = torch.from_numpy(sent.references.params[row]).to(device)
                found = agree(gradient, params - before, self.agreement, self.work.rate(self.fit))
                view.agreements[places, row] = found.cpu().numpy()


def agree(gradient: Tensor, movement: Tensor, score: Agreement, lr: float) -> Tensor:
    """How well steps down these gradients ``(..., P)`` agree with a movement ``(P,)``.

    >>> agree(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), torch.tensor([3.0, 0.0]), Agreement(), 0.1).tolist()
    [1.0, -1.0]
    """
    step = gradient if score.printed else -gradient
    if score.euclidean:
        apart: Tensor = (step * lr - movement).norm(dim=-1)
        return -apart
    lengths = step.norm(dim=-1) * movement.norm()
    return torch.where(lengths > 0, step @ movement / lengths, torch.zeros_like(lengths))


CrossLosses = Callable[[int | None], Array]
"""Every model's mean loss on every client's train split, or on its first so many examples, ``(r, K)``."""


class Choice(NamedTuple):
    """Each client's row, and for a race how many losses it evaluated."""

    rows: Array
    evaluations: Array | None = None


def choose(task: Task, work: Work, cross: CrossLosses, losses: ExampleLosses, plan: Plan, workers: Workers) -> Choice:
    """Ties go to the lowest number, never to a model that has diverged; pinned clients take their row."""
    total, evaluations = np.zeros((len(work.clients), len(work.sent.models))), None
    agreement = next((score for score in task.choose if isinstance(score, Agreement)), None)
    view = look(work, task.fit[0], agreement, plan, workers) if task.looks_ahead else None
    for score in task.choose:
        if isinstance(score, Race):
            total, evaluations = race(score, work, losses, workers)
        elif isinstance(score, Loss):
            total -= score.weight * cross(score.examples)
        else:
            assert view is not None, "a task that looks ahead has a view"
            total += score.weight * _of(view, score, np.minimum(work.pool.sizes[work.clients], task.fit[0].batch))
    chosen: Array = np.where(np.isfinite(total), total, -np.inf).argmax(axis=1)
    pinned = dict(task.pinned)
    rows = [pinned.get(work.names[c], row) for c, row in zip(work.clients, chosen, strict=True)]
    return Choice(np.array(rows, dtype=np.int64), evaluations)


def _of(view: View, score: BatchLoss | Agreement, batch: Array) -> Array:
    """A score from what the minibatches, of these sizes, have shown."""
    if isinstance(score, Agreement):
        return view.agreements
    return -view.losses * (batch[:, None] if score.total else 1)
