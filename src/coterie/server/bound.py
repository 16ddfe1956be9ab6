"""The norm bound: an update far longer than the others of its exchange does not count, so that one cannot ruin many."""

from __future__ import annotations

import numpy as np

from coterie.models.layout import Array
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Task

FACTOR = 10.0
"""How many times the median length an update may have, where nothing is said."""

FEWEST = 3
"""Of fewer updates none is compared: the median of two cannot tell which of them is the strange one."""

ENOUGH = 5
"""So many updates from one model have a median of their own."""

SHORT = 1e-2
"""A median shorter than this share of the model itself is that of clients that have nothing left to learn."""


def bounded(
    replies: Replies, task: Task, stack: Stack, clusters: int, names: tuple[str, ...], factor: float
) -> Replies:
    """The replies to a training without those whose update is longer than ``factor`` times what is ``usual``.

    An update is what a client added to the parameters that it began with, buffers left aside. ``replies.labels`` name
    rows of ``stack``, of which the first ``clusters`` are cluster models. With a factor of 0, or fewer than three
    updates, all replies count.
    """
    if not factor or not task.fit or replies.params is None or len(replies) < FEWEST:
        return replies
    lengths = update_lengths(replies.params, stack.params, replies.labels)
    limits = factor * usual(lengths, task, replies, stack, clusters)
    broken = lengths > limits
    reasons = {
        names[replies.clients[i]]: f"sent an update of length {lengths[i]:.3g}; at most {limits[i]:.3g}, "
        f"{factor:g} times what is usual in the round, is taken: lower the learning rate, or raise norm-bound"
        for i in np.flatnonzero(broken)
    }
    return replies.without(broken, reasons)


def update_lengths(params: Array, starts: Array, rows: Array) -> Array:
    """The Euclidean length of each client's update in double precision, a client at a time: rows may be mapped files.

    >>> sent, starts = np.array([[3.0, 4.0], [1.0, 1.0]]), np.array([[1.0, 1.0], [0.0, 0.0]])
    >>> update_lengths(sent, starts, np.array([1, 0])).tolist()
    [5.0, 0.0]
    """
    found = np.empty(len(params))
    for i, row in enumerate(rows):
        update = params[i].astype(np.float64) - starts[row]
        found[i] = np.sqrt(np.einsum("i,i->", update, update))
    return found


def usual(lengths: Array, task: Task, replies: Replies, stack: Stack, clusters: int) -> Array:
    """How long each client's update may be expected to be.

    The median of those that began with the same model where there are five or more, otherwise of all. A client without
    a cluster begins far from all of them and may go as far as the farthest; one that takes more steps than the median
    may go as many times as far; and where models are all but done a hundredth of their own length is nothing strange.
    """
    rows, found = replies.labels, np.full(len(lengths), np.median(lengths))
    for row in np.unique(rows):
        same = rows == row
        if same.sum() >= ENOUGH:
            found[same] = np.median(lengths[same])
        elif row >= clusters:
            found[same] = np.maximum(found[same], _farthest(stack.params, row, clusters))
        found[same] = np.maximum(found[same], SHORT * np.linalg.norm(stack.params[row]))
    steps = np.array([sum(fit.count(int(examples)) for fit in task.fit) for examples in replies.examples])
    share: Array = np.maximum(1, steps / np.median(steps))
    return found * share


def _farthest(params: Array, row: int, clusters: int) -> float:
    """How far one of the models sent is from the cluster model that is farthest from it."""
    return max(float(np.linalg.norm(params[k] - params[row])) for k in range(clusters))
