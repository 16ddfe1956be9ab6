"""A client's choice among the models it received: by loss, by a race, or by the minibatch of its first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.engine.local_training import Work, batches_of_group, groups, trainer_for
from coterie.engine.plan import Plan, Workers
from coterie.engine.trainer import Batch, Trainer
from coterie.protocol.report import Sample
from coterie.protocol.task import Agreement, BatchLoss, Fit, Loss, Race, Task, standard_error
from coterie.typing import Array

ExampleLosses = Callable[[int, Array], Array]
"""``(model, rows) -> losses``: the loss of one of the models on each of these rows of the pool."""

CrossLosses = Callable[[int | None], Array]
"""``examples -> (r, K)``: every model's mean loss on every client's first train examples (None: on all)."""


Slope = Callable[[int, Array, int], tuple[float, Array]]
"""``(model, rows, dropout seed) -> (loss, gradient)`` of one of the models on a minibatch, in training mode."""


class Choice(NamedTuple):
    """The model that each client chose, and for a race the number of losses that it evaluated."""

    rows: Array
    evaluations: Array | None = None


def choose(
    task: Task,
    work: Work,
    cross: CrossLosses,
    losses: ExampleLosses,
    plan: Plan,
    workers: Workers,
    slope: Slope | None = None,
) -> Choice:
    """Choose each client's model by the weighted sum of the task's scores; ``slope`` is the compiled library's, if any.

    Ties go to the lowest number, never to a model that has diverged; pinned clients take the model they are pinned to.
    """
    total, evaluations = np.zeros((len(work.clients), len(work.sent.models))), None
    agreement = next((score for score in task.choose if isinstance(score, Agreement)), None)
    seen = preview(work, task.fit[0], agreement, plan, workers, slope) if task.looks_ahead else None
    for score in task.choose:
        if isinstance(score, Race):
            total, evaluations = race(score, work, losses, workers)
        elif isinstance(score, Loss):
            total -= score.weight * cross(score.examples)
        else:
            assert seen is not None, "a task that looks ahead has a preview"
            total += score.weight * _score(seen, score, np.minimum(work.pool.sizes[work.clients], task.fit[0].batch))
    chosen: Array = np.where(np.isfinite(total), total, -np.inf).argmax(axis=1)
    pinned = dict(task.pinned)
    rows = [pinned.get(work.names[c], row) for c, row in zip(work.clients, chosen, strict=True)]
    return Choice(np.array(rows, dtype=np.int64), evaluations)


# A race: models that are clearly worse are left out before all examples are seen.


class Finish(NamedTuple):
    """Each client's score of each model, -inf for those left out, ``(r, K)``, and how many losses it evaluated."""

    scores: Array
    evaluations: Array


class RaceSums(NamedTuple):
    """Each client's number of examples seen, the sum of each model's losses and of the products of each two models."""

    seen: Array
    sums: Array
    products: Array


def race(rule: Race, work: Work, losses: ExampleLosses, workers: Workers) -> Finish:
    """Evaluate models on more and more examples until every client has one model left, or no examples."""
    clients, models = len(work.clients), len(work.sent.models)
    orders = [work.pool.shuffled(c, work.key.generator(work.names[c], "race"), rule.examples) for c in work.clients]
    sizes = np.array([len(order) for order in orders])
    sums = RaceSums(np.zeros(clients, int), np.zeros((clients, models)), np.zeros((clients, models, models)))
    running, evaluations = np.ones((clients, models), dtype=bool), np.zeros(clients, dtype=np.int64)
    part = Sample(0, rule.first)
    while (active := np.flatnonzero((running.sum(1) > 1) & (part.begin < sizes))).size:
        rows = [orders[position][part.begin : part.end] for position in active]
        _see_examples(active, rows, running, losses, sums, workers)
        evaluations[active] += running[active].sum(1) * part.count(sizes[active])
        running[active] = still_running(running, sums, sizes, rule.bound)[active]
        part = part.following
    with np.errstate(invalid="ignore"):
        means = sums.sums / np.maximum(sums.seen, 1)[:, None]
    return Finish(np.where(running, -means, -np.inf), evaluations)


def _see_examples(
    positions: Array, rows: list[Array], running: Array, losses: ExampleLosses, sums: RaceSums, workers: Workers
) -> None:
    """Evaluate the models that still run for these clients on these examples, and add the losses to the sums."""
    lengths = np.array([len(part) for part in rows])
    every, ends = np.concatenate(rows), np.cumsum(lengths)
    table = np.zeros((len(every), running.shape[1]))

    def evaluate(job: tuple[int, Array]) -> None:
        model, part = job
        table[part, model] = losses(model, every[part])

    wanted = [np.flatnonzero(np.repeat(running[positions, model], lengths)) for model in range(running.shape[1])]
    jobs = [(model, part) for model, whole in enumerate(wanted) for part in np.array_split(whole, workers.count)]
    workers.map(evaluate, [job for job in jobs if len(job[1])])
    with np.errstate(invalid="ignore", over="ignore"):
        for position, end, length in zip(positions, ends, lengths, strict=True):
            part = table[end - length : end]
            sums.sums[position] += part.sum(0)
            sums.products[position] += part.T @ part
    sums.seen[positions] += lengths


def still_running(running: Array, sums: RaceSums, sizes: Array, bound: float) -> Array:
    """Return which models are not clearly worse than the best so far; a loss that is not a number is."""
    seen = np.maximum(sums.seen, 1)
    everyone = np.arange(len(seen))
    with np.errstate(invalid="ignore"):
        means = np.where(running & np.isfinite(sums.sums), sums.sums / seen[:, None], np.inf)
        best = means.argmin(1)
        behind = means - means[everyone, best][:, None]
        squares = np.diagonal(sums.products, axis1=1, axis2=2)
        both = sums.products[everyone, best]
        variance = (squares - 2 * both + squares[everyone, best][:, None]) / seen[:, None] - behind**2
        kept: Array = behind <= bound * standard_error(variance, seen[:, None], sizes[:, None])
    return kept


# A preview: what the minibatch of the first step shows of every model.


class Preview(NamedTuple):
    """Each client's mean loss under each model, and the agreement if it was asked for, ``(r, K)`` each."""

    losses: Array
    agreements: Array


def preview(
    work: Work, fit: Fit, agreement: Agreement | None, plan: Plan, workers: Workers, slope: Slope | None = None
) -> Preview:
    """Evaluate every model on the minibatch of every client's first step.

    A client that fails has no numbers here, and fails to train for the same reason.
    """
    previewer = _Previewer(work, replace(fit, steps=1, epochs=None), agreement, workers, slope)
    shape = (len(work.clients), len(work.sent.models))
    seen = Preview(np.full(shape, np.nan), np.full(shape, np.nan))
    if plan.kind == "lockstep":
        together = groups(work, previewer.fit, plan.group)
        workers.map(lambda positions: previewer.preview_group(positions, seen), together)
    else:
        run = workers.here if plan.kind == "single" else workers.map
        run(lambda position: previewer.preview_one(position, seen), range(len(work.clients)))
    return seen


@dataclass(frozen=True)
class _Previewer:
    """Evaluates models for clients, and writes into the clients' rows of a preview."""

    work: Work
    fit: Fit
    agreement: Agreement | None
    workers: Workers
    slope: Slope | None = None

    def preview_one(self, position: int, seen: Preview) -> None:
        work = self.work
        rows = work.batches(position, self.fit, 0).rows(0) + work.pool.offsets[work.clients[position]]
        try:
            if self.slope is not None:
                self._preview_natively(self.slope, rows, position, seen)
                return
            trainer = trainer_for(work, self.workers)
            self._preview(trainer, Batch(*work.pool.take(rows)), position, seen)
        except (RuntimeError, ValueError):
            return

    def preview_group(self, positions: Array, seen: Preview) -> None:
        batches = [self.work.batches(position, self.fit, 0) for position in positions]
        trainer = trainer_for(self.work, self.workers, len(positions))
        self._preview(trainer, next(batches_of_group(self.work, positions, batches)), positions, seen)

    def _preview(self, trainer: Trainer, batch: Batch, positions: int | Array, seen: Preview) -> None:
        sent, device = self.work.sent, self.work.pool.like.device
        for row in range(len(sent.models)):
            params, buffers = (torch.from_numpy(part[row]).to(device) for part in sent.models)
            if isinstance(positions, int):
                trainer.seed_dropout(self.work.dropout(positions, 0))
                trainer.buffers.copy_(buffers)
            loss, gradient = trainer.loss_and_gradient(params.expand_as(trainer.params), batch)
            seen.losses[positions, row] = loss.cpu().numpy()
            self._compare(gradient, row, positions, seen)

    def _preview_natively(self, slope: Slope, rows: Array, position: int, seen: Preview) -> None:
        for row in range(len(self.work.sent.models)):
            seen.losses[position, row], gradient = slope(row, rows, self.work.dropout(position, 0))
            self._compare(torch.from_numpy(gradient), row, position, seen)

    def _compare(self, gradient: Tensor, row: int, positions: int | Array, seen: Preview) -> None:
        """Write how well these gradients agree with the last movement of a model, if that was asked for."""
        if self.agreement is None:
            return
        sent = self.work.sent
        assert sent.references is not None, "an agreement needs the models of the round before"
        movement = torch.from_numpy(sent.models.params[row]) - torch.from_numpy(sent.references.params[row])
        found = agree(gradient, movement.to(gradient.device), self.agreement, self.work.rate(self.fit))
        seen.agreements[positions, row] = found.cpu().numpy()


def agree(gradient: Tensor, movement: Tensor, score: Agreement, lr: float) -> Tensor:
    """Return how well steps down these gradients ``(..., P)`` agree with a movement ``(P,)``.

    >>> agree(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), torch.tensor([3.0, 0.0]), Agreement(), 0.1).tolist()
    [1.0, -1.0]
    """
    step = gradient if score.printed else -gradient
    if score.euclidean:
        apart: Tensor = (step * lr - movement).norm(dim=-1)
        return -apart
    lengths = step.norm(dim=-1) * movement.norm()
    return torch.where(lengths > 0, step @ movement / lengths, torch.zeros_like(lengths))


def _score(seen: Preview, score: BatchLoss | Agreement, batch: Array) -> Array:
    """Return a score from a preview on minibatches of these sizes."""
    if isinstance(score, Agreement):
        return seen.agreements
    return -seen.losses * (batch[:, None] if score.total else 1)
