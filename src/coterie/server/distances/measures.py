"""Measures of the distances between any number of clients: of all pairs up to a limit, beyond it to a sample."""

from __future__ import annotations

from coterie.limits import check_memory
from coterie.protocol.replies import Replies
from coterie.server.contract import Ask
from coterie.server.distances.landmarks import of_landmark_losses
from coterie.server.distances.many_clients import Distances, too_many
from coterie.server.distances.sketches import (
    of_sketched_parameters,
    of_sketched_updates,
)
from coterie.server.distances.vectors import Measure, of_losses, of_parameters, of_updates
from coterie.typing import Array

MATRICES = 3
"""Matrices of all pairs that are there at once: distances, what a clusterer makes of them, and a copy of either."""


def up_to_the_limit(exact: Measure, beyond: Measure) -> Measure:
    """Compare all pairs of clients up to the run's limit, and more clients in another way."""

    def measure(replies: Replies, starts: Array, ask: Ask) -> tuple[Replies, Distances]:
        if too_many(replies):
            return beyond(replies, starts, ask)
        check_pairs(len(replies))
        return exact(replies, starts, ask)

    return measure


def check_pairs(clients: int) -> None:
    """Refuse a matrix of all pairs that does not fit the machine's memory."""
    check_memory(f"comparing all pairs of {clients:,} clients", MATRICES * 8 * clients**2, "lower exact-clients")


def by_updates(metric: str) -> Measure:
    """Measure distances between the clients' updates, beyond the limit by sketches."""
    return up_to_the_limit(of_updates(metric), of_sketched_updates(metric))


def by_parameters(metric: str) -> Measure:
    """Measure distances between the clients' trained parameters, beyond the limit by sketches."""
    return up_to_the_limit(of_parameters(metric), of_sketched_parameters(metric))


def by_losses(symmetric_in: str = "data", bounded: str | None = None) -> Measure:
    """Measure distances by losses under each other's models, beyond the limit under the models of a sample."""
    return up_to_the_limit(of_losses(symmetric_in, bounded), of_landmark_losses(symmetric_in, bounded))
