"""Clients that were not there when the clusters formed: how they join while training goes on."""

from __future__ import annotations

from coterie.protocol.replies import UNPLACED, Replies
from coterie.seeding import Key
from coterie.server.assign import placed
from coterie.server.contract import Ask, Assign, Assignment, Place, State


def join(place: Place) -> Assign:
    """Every client stays where it is; one without a cluster is placed when it answers, by a further exchange."""

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        labels = placed(state, replies, replies.labels)
        newcomers = replies.clients[labels[replies.clients] == UNPLACED]
        if len(newcomers):
            found = place(state, ask, newcomers)
            labels[found.clients] = found.clusters
        return Assignment(labels, state.memory)

    return assign
