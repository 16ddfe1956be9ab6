"""Placement after clustering once: find the cluster of a client that has none, also while training goes on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie.protocol.replies import Replies
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.assign import labels_after
from coterie.server.contract import Ask, Assign, Assignment, Place, Scores, State, score_by_loss
from coterie.server.distances.vectors import cosines
from coterie.server.one_shot import means_when_formed, sent_when_formed
from coterie.typing import Array


def least_loss_when_formed(state: State, ask: Ask, clients: Array) -> Scores:
    """Score clusters by minus the mean train loss of their models as they were when the clusters formed."""
    return score_by_loss(means_when_formed(state), ask, clients)


def updates_when_formed(state: State) -> tuple[Stack, Array]:
    """Return the model that was sent when the clusters formed, and the mean update of each cluster in that round."""
    sent = sent_when_formed(state)
    return sent, means_when_formed(state).params - sent.params


def nearest_update(fit: Fit, compared: Callable[[State], tuple[Stack, Array]] = updates_when_formed) -> Place:
    """Score clusters by the cosine of a newcomer's update with their mean updates when the clusters formed.

    The newcomer trains once from the model that was sent in that round: updates from other models cannot be compared.
    ``compared`` returns that model and a multiple of each cluster's mean update.
    """

    def place(state: State, ask: Ask, clients: Array) -> Scores:
        sent, formed = compared(state)
        replies = ask(Task(fit=(fit,)), sent, np.zeros(len(clients), dtype=np.int64), clients)
        if not len(replies):
            return Scores(replies.clients, np.empty((0, 1)))
        part = replies.layout.part("all")
        updates = replies.models().params - sent.params
        return Scores(replies.clients, cosines(updates[:, part], formed[:, part]))

    return place


def join(place: Place) -> Assign:
    """Keep every client where it is; place one without a cluster when it answers, by a further exchange."""

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        labels = labels_after(state, replies, replies.rows)
        newcomers = replies.clients[labels[replies.clients] == UNPLACED]
        if len(newcomers):
            found = place(state, ask, newcomers)
            labels[found.clients] = found.clusters
        return Assignment(labels, state.memory)

    return assign
