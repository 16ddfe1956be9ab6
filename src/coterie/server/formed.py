"""What the server remembers of the round in which clusters formed, for clients that come later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.protocol.stack import Stack
from coterie.server.state import State


def remembered(sent: Stack, means: Stack) -> Mapping[str, Any]:
    """The model that was sent, and the mean of each cluster's models."""
    names = ("origin", "origin_buffers", "means", "means_buffers")
    return dict(zip(names, (*sent, *means), strict=True))


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
