"""When something happens that is to happen once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coterie.errors import UsageError
from coterie.limits import POWER, check_most
from coterie.models.layout import Array
from coterie.protocol.replies import Replies
from coterie.server.contract import State
from coterie.server.distances import columns, pairwise

Event = Callable[[State, Replies], tuple[bool, Mapping[str, Any]]]
"""``(state, replies) -> (does it happen now, what to remember)``."""


def after(rounds: int) -> Event:
    """As soon as so many rounds are done."""
    if rounds < 0:
        raise UsageError(f"warmup is {rounds}; it must be at least 0")
    return lambda state, replies: (state.round >= rounds, {})


def temperature_rises(p: float = 2.0) -> Event:
    """At the first rise of the clustering temperature from one round to the next, so never in the first.

    The clients disagree less and less about a model that is far from all of them, until it is near and they begin to
    pull in different directions. With fewer than two answers there is no temperature and nothing happens.
    """
    if not p >= 1:
        raise UsageError(f"p is {p}; it must be at least 1")
    check_most("p", p, POWER)

    def event(state: State, replies: Replies) -> tuple[bool, Mapping[str, Any]]:
        if len(replies) < 2:
            return False, {}
        distances = pairwise(columns(replies, state.stack.params[replies.labels]), len(replies), "cosine")
        now, before = temperature(distances, p), state.memory.get("temperature")
        return before is not None and now > before, {"temperature": now}

    return event


def temperature(distances: Array, p: float = 2.0) -> float:
    """The p-norm of all cosine distances, as a share of the largest it can be: |D|_p / (n (n - 1) 2^p)^(1/p).

    >>> temperature(np.array([[0.0, 2.0], [2.0, 0.0]]))
    1.0
    >>> temperature(np.array([[0.0, 1.0], [1.0, 0.0]]), p=1)
    0.5
    """
    count = len(distances)
    return float((np.sum(distances**p) / (count * (count - 1) * 2**p)) ** (1 / p))
