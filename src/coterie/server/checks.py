"""What the parts of a method may not return: refused with the name of the part, before it is averaged or saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.errors import UsageError
from coterie.protocol.replies import Replies
from coterie.protocol.stack import UNPLACED
from coterie.server.contract import MEMORY_TYPES, Algorithm, Assignment, State
from coterie.typing import Array

PLAIN = (type(None), Mapping, Sequence, int, float, np.ndarray)
"""What can be remembered, and saved, without a type of its own."""


def check_assignment(algorithm: Algorithm, state: State, found: Any) -> None:
    """Refuse what an assign rule may not return, before it is averaged, saved or given to clients."""
    whose = f"the assign rule of {algorithm.name} returned"
    if not isinstance(found, Assignment):
        raise UsageError(f"{whose} {type(found).__name__}; it must return an Assignment")
    clients, clusters = len(state.labels), len(state.stack if found.parents is None else found.parents)
    labels, shares = np.asarray(found.labels), found.memberships
    if labels.shape != (clients,) or labels.dtype.kind not in "iu":
        kind = f"labels of shape {labels.shape} and type {labels.dtype}"
        raise UsageError(
            f"{whose} {kind}; it must be ({clients},) whole numbers, a cluster for each client of the state"
        )
    if clients and not UNPLACED <= labels.min() <= labels.max() < clusters:
        raise UsageError(f"{whose} labels from {labels.min()} to {labels.max()}; it must be -1 to {clusters - 1}")
    if shares is None and state.memberships is not None:
        raise UsageError(f"{whose} no memberships, and clusters are soft; give state.memberships to leave them alone")
    if shares is not None:
        check_memberships(f"{whose} memberships", shares, clients, clusters)
    memory = found.memory
    if not isinstance(memory, PLAIN) and MEMORY_TYPES.get(type(memory).__name__) is not type(memory):
        kind = type(memory).__name__
        raise UsageError(f"{whose} a {kind} as memory; it must be a frozen dataclass with @memory_type, or None")


def check_memberships(what: str, shares: Array, clients: int, clusters: int) -> None:
    """Refuse memberships that are no shares of clusters: a row for each client, from 0, with sum 1."""
    if shares.shape != (clients, clusters):
        raise UsageError(f"{what} of shape {shares.shape}; it must be ({clients}, {clusters}), clients and clusters")
    good = np.isfinite(shares).all(axis=1) & (shares >= 0).all(axis=1) & np.isclose(shares.sum(axis=1), 1, atol=1e-6)
    if not good.all():
        wrong = ", ".join(f"{each:.4g}" for each in shares[~good][0])
        raise UsageError(f"{what} with the row {wrong}; each must be shares of the clusters, from 0, with sum 1")


def checked_weights(algorithm: Algorithm, replies: Replies) -> Array:
    """Return how much each client counts in the mean of its cluster; refuse what is no weight."""
    weights = np.asarray(algorithm.weigh(replies))
    if weights.shape != (len(replies),) or not (np.isfinite(weights).all() and (weights >= 0).all()):
        shown = np.array2string(weights, threshold=6, precision=4)
        raise UsageError(
            f"the weigh rule of {algorithm.name} returned {shown}; it must be {len(replies)} numbers from 0"
        )
    return weights
