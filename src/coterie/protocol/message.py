"""Exactly the arrays that travel, derived from the task; communication cost is their size, in every runtime alike.

The task's own text (a few hundred bytes) and a transport's framing are not counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.models.layout import Array, Layout
from coterie.protocol.replies import ROWS, Cost, Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Task

Arrays = dict[str, Array]


def down(task: Task, stack: Stack, row: int) -> Arrays:
    """What one client is sent: every model where the task needs them, otherwise the one it works on."""
    sent = stack if task.receives_all else stack.take([row])
    return {"params": sent.params, "buffers": sent.buffers, "row": np.array([row if task.receives_all else 0])}


def up(reply: Replies) -> Arrays:
    """What one client sends back: the fields of its reply, of one row, that the task asked for."""
    found = {name: getattr(reply, name) for name in ROWS}
    return {name: np.ascontiguousarray(rows) for name, rows in found.items() if rows is not None}


def collect(layout: Layout, clients: list[int], answers: list[Arrays]) -> Replies:
    """The replies of several clients, given in ascending order, as one value."""
    names = answers[0] if answers else ("labels", "examples")
    nobody = np.zeros(0, dtype=np.int64)
    rows: dict[str, Any] = {name: np.concatenate([a[name] for a in answers] or [nobody]) for name in names}
    return Replies(layout, np.array(clients, dtype=np.int64), **rows)


def cost(task: Task, layout: Layout, stack: Stack, asked: int, answered: int) -> Cost:
    """The bytes of all ``down`` to the clients asked and all ``up`` from those that answered."""
    down = stack.nbytes // (1 if task.receives_all else len(stack)) + 8
    numbers, report = 0, task.report
    if report.params is not None:
        numbers = len(layout.numbers(report.params)) + len(layout.buffer_parts[report.params])
    scalars = 2 + (len(stack) if report.losses else 0) + (4 if report.metrics else 0) + bool(task.fit)
    return Cost(asked * down, answered * (numbers * stack.params.itemsize + 8 * scalars))
