"""Exchanges as the server's parts see them: counted, bounded, and with a model for clients without a cluster.

The bounds are on the influence of one client: an update far longer than the others is left out, and a number of
examples far larger than the others is cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from coterie.protocol.federation import Federation
from coterie.protocol.replies import Combine, Cost, Replies, Sketching
from coterie.protocol.stack import UNPLACED, Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.typing import Array

FACTOR = 10.0
"""The default of the norm bound: how many times the median length an update may have."""

WEIGHT = 5.0
"""The default of the weight bound in a federation: how many times the median of examples a client may count as."""

FEWEST = 3
"""Fewer updates are not compared: the median of two cannot tell which of them is the outlier."""

ENOUGH = 5
"""With this number of updates or more, a cluster is compared with its own median."""

FAR = 0.5
"""A client without a cluster usually moves this share of the way to the farthest cluster model."""

AT_ONCE = 1 << 20
"""Parameters of clients that are compared with their starts at once."""

SHORT = 1e-2
"""The usual length is at least this share of the model's: clients that have all but converged move less."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server accepts from clients in every exchange of a run, and how models are combined.

    An update ``norm_bound`` times as long as the others is a missing row (0: all count). A client counts as at most
    ``weight_bound`` times the usual number of examples (0: no bound). ``combine`` replaces the weighted mean.
    ``sketching``: up to how many clients all pairs are compared, and how more are.
    """

    norm_bound: float = FACTOR
    weight_bound: float = 0
    combine: Combine | None = None
    sketching: Sketching = field(default_factory=Sketching)


UNLIMITED = Limits(norm_bound=0)


class Meter:
    """Asks clients in one round, adds up costs and the reasons of missing answers, and applies the limits.

    Clients without a cluster are sent the mean of all cluster models by ``shares``. A client that sent an update
    beyond the norm bound is left out of the round's further exchanges.
    """

    def __init__(
        self, federation: Federation, key: Key, shares: Array | None = None, limits: Limits = UNLIMITED
    ) -> None:
        self.federation, self.key, self.shares, self.limits = federation, key, shares, limits
        self.cost = Cost()
        self.refused: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def ask(self, task: Task, models: Stack, rows: Array, clients: Array, references: Stack | None = None) -> Replies:
        """Ask clients to do a task, and count what it cost; see ``contract.Ask``."""
        alone = None if task.choose or (rows >= 0).all() else mean_of(models, self.shares)
        sent = Sent(models, references if references is not None and len(references) else None, alone)
        replies = self.federation.ask(task, sent, rows, clients, self.key)
        self.cost += replies.cost
        ruled = replace(
            replies,
            combine=self.limits.combine,
            weight_bound=self.limits.weight_bound,
            sketching=replace(self.limits.sketching, seed=self.key.seed),
        )
        if task.report.params not in (None, "all") and len(replies):
            ruled = with_rest(ruled, task.report.params, sent)
        names = self.federation.names
        again = np.array([names[client] in self.refused for client in ruled.clients], dtype=bool)
        heard = ruled.without(again, {names[c]: self.refused[names[c]] for c in ruled.clients[again]})
        sound = bounded(heard, task, sent, names, self.limits.norm_bound)
        self.refused |= {name: why for name, why in sound.missing.items() if name not in ruled.missing}
        self.missing = {**sound.missing, **self.missing}
        return sound


def with_rest(replies: Replies, part: str, sent: Sent) -> Replies:
    """Return replies of whole models where clients sent back one part: the rest is as they received it."""
    where = replies.layout.part(part), replies.layout.buffer_part(part)
    received = sent.take(replies.rows)
    for rows, columns, values in zip(received, where, (replies.params, replies.buffers), strict=True):
        rows[:, columns] = values
    return replace(replies, params=received.params, buffers=received.buffers)


def mean_of(models: Stack, shares: Array | None) -> Stack:
    """Return the mean of models by their shares, or with equal weights: the model for clients without a cluster."""
    weights = np.full(len(models), 1 / len(models)) if shares is None else shares
    return models.mix(weights[None])


def with_mean(models: Stack, rows: Array, shares: Array | None) -> tuple[Stack, Array]:
    """Return the models and the row of each client; clients without a cluster get a further row, the mean."""
    if (rows >= 0).all():
        return models, rows
    return models.plus(mean_of(models, shares)), np.where(rows < 0, len(models), rows)


def bounded(replies: Replies, task: Task, sent: Sent, names: tuple[str, ...], factor: float) -> Replies:
    """Return the replies without updates longer than ``factor`` times the ``usual`` length.

    An update is the difference of a client's parameters before and after training, without buffers. With a factor of
    0, or fewer than three updates, all replies count.
    """
    if not factor or not task.fit or replies.params is None or len(replies) < FEWEST:
        return replies
    lengths = update_lengths(replies.params, sent.rows.params, replies.rows)
    limits = factor * usual(lengths, task, replies, sent)
    broken = lengths > limits
    reasons = {
        names[replies.clients[i]]: f"sent an update of length {lengths[i]:.3g}; at most {limits[i]:.3g}, "
        f"{factor:g} times what is usual in the round, is taken: lower the learning rate, or raise norm-bound"
        for i in np.flatnonzero(broken)
    }
    return replies.without(broken, reasons)


def update_lengths(params: Array, starts: Array, rows: Array) -> Array:
    """Return the Euclidean length of each update in double precision, some clients at a time: rows may be mapped files.

    >>> sent, starts = np.array([[3.0, 4.0], [1.0, 1.0]]), np.array([[1.0, 1.0], [0.0, 0.0]])
    >>> update_lengths(sent, starts, np.array([1, 0])).tolist()
    [5.0, 0.0]
    """
    found, some = np.empty(len(params)), max(1, AT_ONCE // max(1, params.shape[1]))
    for i in range(0, len(params), some):
        part = slice(i, i + some)
        updates = params[part].astype(np.float64) - starts[rows[part]]
        found[part] = np.sqrt(np.einsum("ij,ij->i", updates, updates))
    return found


def usual(lengths: Array, task: Task, replies: Replies, sent: Sent) -> Array:
    """Return the length that each client's update is expected to have.

    It is the median of the cluster where five or more began with its model, otherwise of all. For a client without a
    cluster it is at least half of the distance to the farthest cluster model; with more steps than the median it is
    as many times as long; and it is at least a hundredth of the length of the model itself.
    """
    rows, params = replies.rows, sent.rows.params
    found = medians(lengths, rows)
    for row in np.unique(rows):
        same = rows == row
        if row == UNPLACED:
            far = max(float(np.linalg.norm(model - params[row])) for model in sent.models.params)
            found[same] = np.maximum(found[same], FAR * far)
        found[same] = np.maximum(found[same], SHORT * np.linalg.norm(params[row]))
    sizes, inverse = np.unique(believed(replies), return_inverse=True)
    steps = np.array([sum(fit.minibatches(int(examples)) for fit in task.fit) for examples in sizes])[inverse]
    share: Array = np.maximum(1, steps / np.median(steps))
    return found * share


def medians(values: Array, rows: Array) -> Array:
    """Return each client's median: of those that began with its cluster's model if five or more, otherwise of all.

    Clients without a cluster do not count as one: some may have been left out before, and would set their own limit.

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
    """Return the train examples that each client counts as: at most ``weight_bound`` times the median of its cluster.

    A site's size cannot be verified. Nothing is bounded with a factor of 0, or where fewer than three answered.
    """
    if not replies.weight_bound or len(replies) < FEWEST:
        return replies.examples
    most = replies.weight_bound * medians(replies.examples, replies.rows)
    counted: Array = np.minimum(replies.examples, most.astype(replies.examples.dtype))
    return counted
