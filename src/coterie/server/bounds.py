"""Bounds on what one client can do: an update far longer than the others is left out, a far larger size is cut."""

from __future__ import annotations

import numpy as np

from coterie.protocol.replies import Replies
from coterie.protocol.stack import UNPLACED, Sent
from coterie.protocol.task import Task
from coterie.typing import Array

FACTOR = 10.0
"""How many times the median length an update may have, where nothing is said."""

WEIGHT = 5.0
"""How many times the median of examples a client of a federation may count as, where nothing is said."""

FEWEST = 3
"""Of fewer updates none is compared: the median of two cannot tell which of them is the strange one."""

ENOUGH = 5
"""So many updates from one model have a median of their own."""

FAR = 0.5
"""This share of the way to the farthest cluster model is usual for a client without a cluster."""

SHORT = 1e-2
"""A median shorter than this share of the model itself is that of clients that have nothing left to learn."""


def bounded(replies: Replies, task: Task, sent: Sent, names: tuple[str, ...], factor: float) -> Replies:
    """Return the replies to a training without updates longer than ``factor`` times what is ``usual``.

    An update is what a client added to the parameters that it began with, buffers left aside. With a factor of 0, or
    fewer than three updates, all replies count.
    """
    if not factor or not task.fit or replies.params is None or len(replies) < FEWEST:
        return replies
    lengths = update_lengths(replies.params, sent.rows.params, replies.labels)
    limits = factor * usual(lengths, task, replies, sent)
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


def usual(lengths: Array, task: Task, replies: Replies, sent: Sent) -> Array:
    """How long each client's update may be expected to be.

    The median of the cluster where five or more began with its model, otherwise of all. A client without a cluster
    begins far from all of them, and half of the way to the farthest is usual; one that takes more steps than the median
    may go as many times as far; and where models are all but done a hundredth of their own length is nothing strange.
    """
    labels, rows = replies.labels, sent.rows.params
    found = medians(lengths, labels)
    for label in np.unique(labels):
        same = labels == label
        if label == UNPLACED:
            found[same] = np.maximum(found[same], FAR * _farthest(rows[label], sent.models.params))
        found[same] = np.maximum(found[same], SHORT * np.linalg.norm(rows[label]))
    sizes = believed(replies)
    steps = np.array([sum(fit.count(int(examples)) for fit in task.fit) for examples in sizes])
    share: Array = np.maximum(1, steps / np.median(steps))
    return found * share


def medians(values: Array, rows: Array) -> Array:
    """For each client the median of those that began with its cluster's model, of five or more; otherwise of all.

    Those without a cluster are none: who was left out before may be among them, and would be measured by its like.

    >>> medians(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 60.0, 70.0]), np.array([0, 0, 0, 0, 0, 1, 1])).tolist()
    [3.0, 3.0, 3.0, 3.0, 3.0, 4.0, 4.0]
    """
    found = np.full(len(values), np.median(values))
    for row in np.unique(rows[rows != UNPLACED]):
        same = rows == row
        if same.sum() >= ENOUGH:
            found[same] = np.median(values[same])
    return found


def believed(replies: Replies) -> Array:
    """How many train examples each client counts as: at most ``weight_bound`` times the median of its cluster.

    A site's size is its own word. Nothing is bounded with a factor of 0, or where fewer than three answered.
    """
    if not replies.weight_bound or len(replies) < FEWEST:
        return replies.examples
    most = replies.weight_bound * medians(replies.examples, replies.labels)
    counted: Array = np.minimum(replies.examples, most.astype(replies.examples.dtype))
    return counted


def _farthest(params: Array, models: Array) -> float:
    """Return how far a model is from the cluster model that is farthest from it."""
    return max(float(np.linalg.norm(model - params)) for model in models)
