"""Whether a run has learnt what it could: how often clients saw their data, and whether the loss still falls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from coterie.experiments.records import Record
from coterie.protocol.task import Fit
from coterie.typing import Array

WINDOW = 5
"""Rounds over which the loss is compared with the rounds before."""

FALLS = 0.02
"""A loss that fell by more than this share still falls."""


@dataclass(frozen=True)
class Epochs:
    """Counts how often clients see their train data: ``sizes`` examples each, in a pass of ``fit`` a round.

    ``asked`` gives the clients that a round asked; those that did not answer are in its record. Where a round took more
    steps than one pass of each client, such as a warm-up, they count for all of its clients alike.
    """

    fit: Fit
    sizes: Array
    asked: Callable[[int], Array]
    names: Sequence[str]

    def of_round(self, record: Record) -> Array:
        """Return how often every client saw its train data in a round."""
        seen, absent = np.zeros(len(self.sizes)), set(record.get("missing", ()))
        there = np.array([one for one in self.asked(record["round"]) if self.names[one] not in absent], int)
        steps, walks = self._planned
        planned = steps[there].sum()
        if planned:
            seen[there] = record["steps"] / planned * walks[there] / np.maximum(self.sizes[there], 1)
        return seen

    def seen(self, history: Sequence[Record]) -> Array:
        """Return how often every client has seen its train data in the rounds of a run."""
        return sum(map(self.of_round, history), np.zeros(len(self.sizes)))

    @cached_property
    def _planned(self) -> tuple[Array, Array]:
        """Return the steps of one pass of each client, and the examples that it sees in them."""
        counts = (self.fit.minibatches, self.fit.examples_passed)
        steps, passed = (np.array([count(int(n)) for n in self.sizes]) for count in counts)
        return steps, passed


def loss_fall(history: Sequence[Record]) -> tuple[float, int] | None:
    """Return by which share the train loss fell over the last rounds, against as many before, and how many these are.

    >>> loss_fall([{"loss": 1.0}, {"loss": 1.0}, {"loss": 0.8}, {"loss": 0.7}])
    (0.25, 2)
    """
    losses = [record["loss"] for record in history if record.get("loss") is not None]
    window = min(WINDOW, len(losses) // 2)
    if window < 2:
        return None
    before, after = np.mean(losses[-2 * window : -window]), np.mean(losses[-window:])
    return (float(1 - after / before), window) if before > 0 else None


def learning(history: Sequence[Record], seen: Array) -> Record:
    """Return the entries of a summary: least, median and most epochs, and the fall of the loss."""
    trained, fall, found = seen[seen > 0], loss_fall(history), Record()
    if len(trained):
        least, median, most = np.quantile(trained, [0, 0.5, 1]).tolist()
        found["epochs_seen"] = {"min": least, "median": median, "max": most}
    return found if fall is None else found | {"loss_fall": fall[0], "loss_fall_rounds": fall[1]}


def learning_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return what a summary says about learning, in sentences.

    >>> learning_lines({"epochs_seen": {"min": 2.5, "median": 4, "max": 30}, "loss_fall": 0.04, "loss_fall_rounds": 5})
    ['each client has seen its data 2.5 to 30 times (median 4)', \
'the train loss still fell by 4% over the last 5 rounds: more --rounds may help']
    """
    lines = []
    if "epochs_seen" in summary:
        least, median, most = (f"{summary['epochs_seen'][name]:.3g}" for name in ("min", "median", "max"))
        often = f"{least} to {most} times (median {median})" if least != most else f"{least} times"
        lines.append(f"each client has seen its data {often}")
    fall, rounds = summary.get("loss_fall"), summary.get("loss_fall_rounds")
    if fall is not None and fall > FALLS:
        lines.append(f"the train loss still fell by {fall:.0%} over the last {rounds} rounds: more --rounds may help")
    return lines
