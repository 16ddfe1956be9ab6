"""Place rules: the cluster of a client that was never seen, by the rule by which the method places its own.

A rule asks the newcomers and gives each a score in every cluster; the highest is its cluster.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.spatial.distance import cdist

from coterie.errors import FederationError
from coterie.models.layout import Array
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit, Report, Task
from coterie.server.assign import Ask
from coterie.server.state import State

Place = Callable[[State, Ask, Array], Array]
"""``(state, ask, clients) -> scores (clients, K)``."""


def least_loss(state: State, ask: Ask, clients: Array) -> Array:
    """Minus the mean loss of each cluster model on a newcomer's data: it chooses as clients that choose do."""
    replies = _ask_all(Task(report=Report(params=None, losses=True)), state.stack, ask, clients)
    assert replies.losses is not None, "the task asked for losses"
    return -replies.losses


def nearest_centre(part: str, fit: Fit) -> Place:
    """Minus the distance to each centre of the last clustering, after one local training from the middle of the models.

    All cluster models count the same in the middle, or it would lie nearest to the largest cluster before any training.
    Without a clustering yet it is by least loss.
    """

    def place(state: State, ask: Ask, clients: Array) -> Array:
        if "centres" not in state.memory:
            return least_loss(state, ask, clients)
        middle = state.stack.mix(np.full((1, len(state.stack)), 1 / len(state.stack)))
        replies = _ask_all(Task(fit=(fit,)), middle, ask, clients)
        distances: Array = cdist(replies.part(part).astype(np.float64), state.memory["centres"])
        return -distances

    return place


def _ask_all(task: Task, stack: Stack, ask: Ask, clients: Array) -> Replies:
    """The replies of all of them, who work on the first row; a newcomer that does not answer cannot be placed."""
    replies = ask(task, stack, np.zeros(len(clients), dtype=np.int64), clients)
    if len(replies) < len(clients):
        raise FederationError(f"a newcomer could not be placed: {dict(replies.missing)}; look at its data")
    return replies
