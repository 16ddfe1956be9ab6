"""Exactly the arrays that travel, derived from the task; communication cost is their size, in every runtime alike.

The task's own text (a few hundred bytes) and a transport's framing are not counted.
"""

from __future__ import annotations

import numpy as np

from coterie.models.layout import Array, Layout
from coterie.protocol.stack import Stack
from coterie.protocol.task import Task

Arrays = dict[str, Array]


def down(task: Task, stack: Stack, row: int) -> Arrays:
    """What one client is sent: every model where the task needs them, otherwise the one it works on."""
    sent = stack if task.receives_all else stack.take([row])
    return {"params": sent.params, "buffers": sent.buffers, "row": np.array([row if task.receives_all else 0])}


def bytes_down(task: Task, stack: Stack) -> int:
    """The size of ``down`` for one client."""
    return stack.nbytes // (1 if task.receives_all else len(stack)) + 8


def bytes_up(task: Task, layout: Layout, models: int, itemsize: int) -> int:
    """The size of one client's reply: label and train size, and what the report names."""
    numbers = 0
    if task.report.params is not None:
        part = task.report.params
        numbers += layout.part_size(part) + len(layout.buffer_parts[part])
    scalars = 2 + (models if task.report.losses else 0) + (4 if task.report.metrics else 0) + bool(task.fit)
    return numbers * itemsize + 8 * scalars
