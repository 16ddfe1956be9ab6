"""What the server knows between two rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.models.layout import Array
from coterie.protocol.stack import Stack

UNPLACED = -1
"""The label of a client that belongs to no cluster yet; it never indexes a row."""


@dataclass(frozen=True)
class State:
    """A stack of cluster models and every client's label.

    ``previous`` are the models before the last round, ``shares`` each cluster's share of the weight (examples, or
    clients) in the last aggregation, ``moments`` the server optimiser's rows, ``memory`` what an assign rule carries:
    arrays and JSON. ``members`` are the states of an ensemble's further members. ``formed`` is False as long as all
    clients work on one model because no clustering has taken place yet.
    """

    stack: Stack
    labels: Array
    round: int
    previous: Stack
    shares: Array
    moments: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    members: tuple[State, ...] = ()
    formed: bool = True

    @property
    def placed(self) -> Array:
        """Which clients have a cluster: clusters have formed, and the client is in one."""
        found: Array = (self.labels != UNPLACED) & self.formed
        return found

    def __repr__(self) -> str:
        placed, beside = int((self.labels >= 0).sum()), f", {len(self.members)} members beside" if self.members else ""
        return f"State({self.round} rounds: {self.stack!r}, {len(self.labels)} clients, {placed} placed{beside})"


@dataclass(frozen=True)
class Assignment:
    """Where an assign rule puts the clients.

    ``labels`` of all clients; ``parents[k]`` is the row from which cluster k goes on when the number of clusters
    changes (None: the same rows as before); ``finish`` turns the averaged models into the next, where a rule has a say;
    ``rounds`` is how many rounds the exchange counts as; ``formed`` says that clusters have formed, if only one.
    """

    labels: Array
    memory: Mapping[str, Any] = field(default_factory=dict)
    parents: tuple[int, ...] | None = None
    finish: Callable[[Stack], Stack] | None = None
    rounds: int = 1
    formed: bool = False
