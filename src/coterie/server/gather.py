"""Replies of more clients than were drawn for the round: the others train once, in a further exchange."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.models.layout import Array
from coterie.protocol.replies import ROWS, Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit, Task
from coterie.server.contract import Ask


def train(clients: Array, stack: Stack, labels: Array, fit: Fit, ask: Ask) -> Replies:
    """What these clients make of the models that their labels name."""
    return ask(Task(fit=(fit,)), stack, labels, clients)


def complete(replies: Replies, wanted: Array, stack: Stack, labels: Array, fit: Fit, ask: Ask) -> Replies:
    """The replies of all ``wanted`` clients; those that have not answered yet train now, if they can be reached.

    ``labels`` are those of all clients.
    """
    own = replies.without(~np.isin(replies.clients, wanted), {})
    others = np.setdiff1d(wanted, replies.clients)
    return joined(own, train(others, stack, labels[others], fit, ask)) if len(others) else own


def joined(one: Replies, other: Replies) -> Replies:
    """The rows of both, in the order of the clients."""
    if not len(other):
        return one
    if not len(one):
        return other
    order = np.argsort(np.concatenate([one.clients, other.clients]))
    rows: dict[str, Any] = {}
    for name in ("clients", *ROWS):
        parts = getattr(one, name), getattr(other, name)
        rows[name] = None if any(part is None for part in parts) else np.concatenate(parts)[order]
    return replace(one, **rows, missing={**one.missing, **other.missing})
