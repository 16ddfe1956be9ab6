"""What a client's first minibatch says about every model it received: its loss there, and whether it would go on the
way that the model came.

The minibatch, the dropout and the mode are those of the first step itself. Gradients are made one model at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.engine.fitting import Work, desk, feed, groups
from coterie.engine.plan import Plan
from coterie.engine.trainer import Batch, Trainer
from coterie.engine.workers import Workers
from coterie.models.layout import Array
from coterie.protocol.task import Agreement, Fit


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
        return range(len(self.work.stack) - self.work.references)

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
        for row, (params, buffers) in zip(self.models, self._rows(self.models), strict=True):
            if isinstance(places, int):
                trainer.seed_dropout(self.work.dropout(places, 0))
                trainer.buffers.copy_(buffers)
            loss, gradient = trainer.look(params.expand_as(trainer.params), batch)
            view.losses[places, row] = loss.cpu().numpy()
            if self.agreement is not None:
                ((before, _),) = self._rows([len(self.models) + row])
                found = agree(gradient, params - before, self.agreement, self.work.rate(self.fit))
                view.agreements[places, row] = found.cpu().numpy()

    def _rows(self, rows: Iterable[int]) -> Iterable[tuple[Tensor, Tensor]]:
        device, stack = self.work.pool.like.device, self.work.stack
        for row in rows:
            yield torch.from_numpy(stack.params[row]).to(device), torch.from_numpy(stack.buffers[row]).to(device)


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
