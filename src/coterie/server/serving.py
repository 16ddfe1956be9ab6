"""Serving: which models clients are tested with, how they are mixed, and whether they are fine-tuned first.

Evaluation, ``Run.model_for``, the placement of newcomers and a federation all go through here, so that the model that
is handed over is the one that was scored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.report import Report
from coterie.protocol.stack import UNPLACED, Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.server.contract import Algorithm, Serving, State
from coterie.server.exchange import Meter, with_mean
from coterie.typing import Array

NOTHING = Report(params=None)
"""The report of a client that only says which model it works on."""


def evaluate(
    algorithm: Algorithm,
    federation: Federation,
    state: State,
    seed: int,
    *,
    split: str = "test",
    clients: Array | None = None,
    metric: str | None = None,
) -> Replies:
    """Return every client's metrics on one of its splits, with the model it is served; no cost is counted.

    ``clients``: only these. ``metric``: the name of one more number.
    """
    return serve(algorithm, federation, state, seed, Report(params=None, evaluate_on=split, metric=metric), clients)


def serve(
    algorithm: Algorithm,
    federation: Federation,
    state: State,
    seed: int,
    report: Report = NOTHING,
    clients: Array | None = None,
) -> Replies:
    """Send all clients, or these, the models that serve them, let them choose and fine-tune, and report on the result.

    Without a report they keep the result to themselves: that is how a model is handed over.
    """
    asked = np.arange(len(federation.names)) if clients is None else clients
    return _serve(algorithm.serve, federation, state, Key(seed, state.round), report, asked)


def with_clients(state: State, clients: Array) -> State:
    """Return the state with only these of its clients, in this order; the models stay."""
    return replace(
        state,
        labels=state.labels[clients],
        memberships=None if state.memberships is None else state.memberships[clients],
        members=tuple(with_clients(member, clients) for member in state.members),
    )


class Served(NamedTuple):
    """The models of one member of an ensemble, or of the only one, and the row that serves each client (-1: none)."""

    models: Stack
    rows: Array


def served_models(
    algorithm: Algorithm, federation: Federation, state: State, seed: int, clients: Array
) -> list[Served]:
    """Return the very models with which ``evaluate`` tests these clients, member by member."""
    key, serving = Key(seed, state.round), algorithm.serve
    chosen = _serve(replace(serving, fit=()), federation, state, key, NOTHING, clients)
    stack, rows = rows_that_serve(state, chosen)
    columns = np.atleast_2d(rows.T)
    if not serving.fit:
        return [Served(stack, column) for column in columns]
    task = Task(fit=serving.fit)
    return [_trained(federation.ask(task, Sent(stack), column, clients, key), clients) for column in columns]


def rows_that_serve(state: State, served: Replies | None = None) -> tuple[Stack, Array]:
    """Return the models, and the row that serves each client: its cluster's, its mixture, or the mean if it has none.

    For an ensemble these are the models of all members, one below the other, and rows ``(clients, members)``.
    ``served`` are the replies of the clients that were served, if not all clients by the labels of the state.
    """
    if not state.members:
        if served is None:
            return _rows_of(state)
        if state.memberships is not None:
            return state.models_of(served.clients)
        return with_mean(state.stack, served.rows, state.shares)
    stack, rows = _rows_of(state)
    columns = [rows]
    for member in state.members:
        models, rows = _rows_of(member)
        columns.append(len(stack) + rows)
        stack = stack.plus(models)
    return stack, np.column_stack(columns) if served is None else served.rows


def _rows_of(state: State) -> tuple[Stack, Array]:
    """Return the models of one member, and the row that serves each client."""
    if state.memberships is None:
        return with_mean(state.stack, state.labels, state.shares)
    return state.models_of(np.arange(len(state.labels)))


def _serve(serving: Serving, federation: Federation, state: State, key: Key, report: Report, clients: Array) -> Replies:
    """Let clients do what they do to get their models, and report on the result."""
    mix = serving.mix if state.members else None
    task = Task(choose=serving.choose, fit=serving.fit, report=replace(report, mix=mix))
    if mix is not None:
        stack, rows = rows_that_serve(state)
        return federation.ask(task, Sent(stack), rows[clients], clients, key)
    models, rows = state.models_of(clients)
    return Meter(federation, key, state.shares).ask(task, models, rows, clients)


def _trained(replies: Replies, clients: Array) -> Served:
    """Return the fine-tuned models, and the row of each client that answered."""
    rows = np.searchsorted(replies.clients, clients)
    return Served(replies.models(), np.where(np.isin(clients, replies.clients), rows, UNPLACED))
