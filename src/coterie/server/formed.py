"""What the server remembers of the round in which clusters formed, for clients that come later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.models.layout import Array
from coterie.protocol.stack import Stack
from coterie.server.contract import State

DISTANCES = "distances"
"""What ``State.memory`` calls the matrix of distances."""

MOST_KEPT = 500
"""The matrix is kept up to so many clients: it is saved with every state, and has 2 MB then."""


def remembered(sent: Stack, means: Stack) -> Mapping[str, Any]:
    """The model that was sent, and the mean of each cluster's models."""
    names = ("origin", "origin_buffers", "means", "means_buffers")
    return dict(zip(names, (*sent, *means), strict=True))


def matrix_of(clients: Array, distances: Array, count: int) -> Mapping[str, Any]:
    """The distances by which the clusters formed, among all ``count`` clients; NaN for those who were not measured.

    Nothing where there are more than ``MOST_KEPT``.

    >>> matrix_of(np.array([0, 2]), np.array([[0.0, 5.0], [5.0, 0.0]]), 3)["distances"].tolist()[0]
    [0.0, nan, 5.0]
    """
    if count > MOST_KEPT:
        return {}
    whole = np.full((count, count), np.nan)
    whole[np.ix_(clients, clients)] = distances
    return {DISTANCES: whole}


def have_formed(state: State) -> bool:
    """Whether there was such a round."""
    return "means" in state.memory


def origin(state: State) -> Stack:
    """The model from which clients trained when the clusters formed; before that, the one there is."""
    if have_formed(state):
        return Stack(state.memory["origin"], state.memory["origin_buffers"])
    return state.stack.take(slice(1))


def means(state: State) -> Stack:
    """The mean of each cluster's models when the clusters formed; before that, the models there are."""
    return Stack(state.memory["means"], state.memory["means_buffers"]) if have_formed(state) else state.stack
