"""Other clients in a state: keep what is known of those that stay, forget those that left, and add newcomers.

A state knows clients by position. A run that begins with the models of an earlier one may have other clients, or the
same in another order: here the rows of each are found by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from coterie.protocol.stack import UNPLACED
from coterie.server.contract import Algorithm, State, go_on
from coterie.typing import Array

NEW = -1
"""The old position of a client that was not there before."""


def positions(before: Sequence[str], now: Sequence[str]) -> Array:
    """Return where each client of now was before, ``NEW`` for newcomers.

    >>> positions(["a", "b", "c"], ["c", "d", "a"]).tolist()
    [2, -1, 0]
    """
    known = {name: at for at, name in enumerate(before)}
    return np.array([known.get(name, NEW) for name in now], dtype=np.int64)


def with_clients(algorithm: Algorithm, state: State, before: Sequence[str], now: Sequence[str]) -> State:
    """Return a state of the clients ``before`` as one of the clients ``now``.

    Models, shares and moments stay. Who is known by name keeps its cluster; newcomers have none until the algorithm's
    rule places them, unless there is one model for all.
    """
    rows = positions(before, now)
    members = zip(algorithm.members, state.members, strict=True)
    return replace(
        state,
        labels=taken(state.labels, rows, _first_label(algorithm, state)),
        memberships=None if state.memberships is None else taken(state.memberships, rows, 1 / len(state.stack)),
        memory=state.memory.for_clients(rows) if hasattr(state.memory, "for_clients") else state.memory,
        members=tuple(with_clients(member, own, before, now) for member, own in members),
    )


def taken(values: Array, rows: Array, fill: float) -> Array:
    """Return the values at these rows, and ``fill`` for newcomers.

    >>> taken(np.array([5, 6, 7]), np.array([2, NEW]), UNPLACED).tolist()
    [7, -1]
    """
    found = values[np.maximum(rows, 0)].copy()
    found[rows == NEW] = fill
    return found


def _first_label(algorithm: Algorithm, state: State) -> int:
    """Return the label of a newcomer; methods that find clusters before clients train must see that it has none."""
    return 0 if len(state.stack) == 1 and algorithm.prepare is go_on else UNPLACED
