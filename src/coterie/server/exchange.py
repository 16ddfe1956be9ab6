"""Exchanges as the server's parts see them: counted, bounded, and with a model for clients without a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.protocol.federation import Federation
from coterie.protocol.replies import Combine, Cost, Replies
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.server.bounds import FACTOR, bounded
from coterie.typing import Array


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server accepts from clients in every exchange of a run, and how models are combined.

    An update ``norm_bound`` times as long as the others is a missing row (0: all count). A client counts as at most
    ``weight_bound`` times the usual number of examples (0: no bound). ``combine`` replaces the weighted mean.
    """

    norm_bound: float = FACTOR
    weight_bound: float = 0
    combine: Combine | None = None


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

    def ask(self, task: Task, models: Stack, labels: Array, clients: Array, references: Stack | None = None) -> Replies:
        """Ask clients to do a task, and count what it cost; see ``contract.Ask``."""
        alone = None if task.choose or (labels >= 0).all() else mean_of(models, self.shares)
        sent = Sent(models, references if references is not None and len(references) else None, alone)
        replies = self.federation.ask(task, sent, labels, clients, self.key)
        self.cost += replies.cost
        ruled = replace(replies, combine=self.limits.combine, weight_bound=self.limits.weight_bound)
        heard = self._within_bounds(task, with_rest(ruled, task.report.params, sent), sent)
        self.missing = {**heard.missing, **self.missing}
        return heard

    def _within_bounds(self, task: Task, replies: Replies, sent: Sent) -> Replies:
        """Return the replies without those beyond the norm bound, now or before in this round."""
        names = self.federation.names
        again = np.array([names[client] in self.refused for client in replies.clients], dtype=bool)
        heard = replies.without(again, {names[c]: self.refused[names[c]] for c in replies.clients[again]})
        sound = bounded(heard, task, sent, names, self.limits.norm_bound)
        self.refused |= {name: why for name, why in sound.missing.items() if name not in replies.missing}
        return sound


def with_rest(replies: Replies, part: str | None, sent: Sent) -> Replies:
    """Return replies of whole models where clients sent back one part: the rest is as they received it."""
    if part in (None, "all") or not len(replies):
        return replies
    where = replies.layout.part(part), replies.layout.buffer_part(part)
    received = sent.take(replies.labels)
    for rows, columns, values in zip(received, where, (replies.params, replies.buffers), strict=True):
        rows[:, columns] = values
    return replace(replies, params=received.params, buffers=received.buffers)


def mean_of(models: Stack, shares: Array | None) -> Stack:
    """Return the mean of models by their shares, or with equal weights: the model for clients without a cluster."""
    weights = np.full(len(models), 1 / len(models)) if shares is None else shares
    return models.mix(weights[None])


def with_mean(models: Stack, labels: Array, shares: Array | None) -> tuple[Stack, Array]:
    """Return the models and the row of each label; clients without a cluster get a further row, the mean."""
    if (labels >= 0).all():
        return models, labels
    return models.plus(mean_of(models, shares)), np.where(labels < 0, len(models), labels)
