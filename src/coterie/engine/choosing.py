"""A client's choice among the models it received: the highest weighted sum of scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coterie.engine.first_step import View, look
from coterie.engine.fitting import Work
from coterie.engine.plan import Plan
from coterie.engine.racing import ExampleLosses, race
from coterie.engine.workers import Workers
from coterie.models.layout import Array
from coterie.protocol.task import Agreement, BatchLoss, Loss, Race, Task

CrossLosses = Callable[[int | None], Array]
"""Every model's mean loss on every client's train split, or on its first so many examples, ``(r, K)``."""


class Choice(NamedTuple):
    """Each client's row, and for a race how many losses it evaluated."""

    rows: Array
    evaluations: Array | None = None


def choose(task: Task, work: Work, cross: CrossLosses, losses: ExampleLosses, plan: Plan, workers: Workers) -> Choice:
    """Ties go to the lowest number, never to a model that has diverged; pinned clients take their row."""
    total, evaluations = np.zeros((len(work.clients), len(work.stack) - work.references)), None
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
