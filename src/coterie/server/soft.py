"""Soft clusters: every client has a share of each cluster's model, estimated by a client function."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie.errors import FederationError, require
from coterie.protocol.federation import Federation
from coterie.protocol.report import Describe, Report
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.server.contract import Ask, Place, Prepare, Scores, Start, State, memory_type
from coterie.server.roster import taken
from coterie.typing import Array

NEVER = -1
"""The round of the last estimate of a client without one."""


@memory_type
@dataclass(frozen=True)
class Estimated:
    """The memory of soft clusters: the round in which each client's memberships were last estimated."""

    rounds: Array

    def for_clients(self, rows: Array) -> Estimated:
        """Return the memory for other clients; newcomers have no estimate."""
        return Estimated(taken(self.rounds, rows, NEVER))


def equal_memberships(start: Start) -> Start:
    """Make the same start with clients that belong equally to all clusters until their shares are estimated."""

    def begin(federation: Federation, key: Key, ask: Ask) -> State:
        state, clients = start(federation, key, ask), len(federation.names)
        equal = np.full((clients, len(state.stack)), 1 / len(state.stack))
        return replace(state, memberships=equal, memory=Estimated(np.full(clients, NEVER, dtype=np.int64)))

    return begin


def estimate_memberships(function: str, every: int) -> Prepare:
    """Ask clients for their memberships before they train, where they have none or those are ``every`` rounds old.

    A client's label is the cluster of its largest membership.
    """
    require(every >= 1, "interval", every, "at least 1")
    place = by_description(function)

    def prepare(state: State, clients: Array, key: Key, ask: Ask) -> State:
        rounds = state.memory.rounds
        due = clients[(rounds[clients] == NEVER) | (state.round - rounds[clients] >= every)]
        found = place(state, ask, due)
        if not len(found.clients) and (rounds == NEVER).all():
            raise FederationError(
                f"none of {len(due)} clients told its shares of the clusters in round {state.round}, at least 1 must; "
                f"sites must have functions = ['{function}'] in policy.toml"
            )
        assert state.memberships is not None, "equal_memberships begins with some"
        memberships, labels, rounds = state.memberships.copy(), state.labels.copy(), rounds.copy()
        if len(found.clients):
            memberships[found.clients], labels[found.clients] = found.values, found.clusters
            rounds[found.clients] = state.round
        return replace(state, memberships=memberships, labels=labels, memory=Estimated(rounds))

    return prepare


def by_description(function: str) -> Place:
    """Score clusters by the array of a client function that reads all cluster models: a client's memberships.

    They are made to sum to 1, whatever a client sends; one that sends nothing positive has not answered.
    """
    task = Task(report=Report(params=None, describe=Describe(function, all_models=True)))

    def place(state: State, ask: Ask, clients: Array) -> Scores:
        if not len(clients):
            return Scores(clients, np.empty((0, len(state.stack))))
        replies = ask(task, state.stack, np.zeros(len(clients), dtype=np.int64), clients)
        assert replies.description is not None, "the task asks for it"
        shares = np.maximum(replies.description, 0)
        totals = shares.sum(axis=1)
        return Scores(replies.clients[totals > 0], shares[totals > 0] / totals[totals > 0, None])

    return place
