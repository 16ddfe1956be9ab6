"""What a run cost in models, as multiples of what FedAvg would have: the units of the thesis' table 7.6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.models.layout import Array
from coterie.models.model import Model
from coterie.protocol.federation import Federation
from coterie.protocol.message import down, form
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key


@dataclass(frozen=True)
class Unit:
    """The bytes that FedAvg sends to one client in one round, and gets back."""

    down: int
    up: int


def fedavg_unit(model: Model) -> Unit:
    """The unit for a network as the user gave it, before an algorithm makes another of it."""
    task, layout = Task(fit=(Fit(steps=1),)), model.layout
    stack = Stack(np.zeros((1, layout.size), np.float32), np.zeros((1, layout.buffer_size), np.float32))
    sent = sum(array.nbytes for array in down(task, stack, 0, layout).values())
    back = sum(field.nbytes for field in form(task, stack, layout).values())
    return Unit(sent, back)


def in_models(history: Sequence[dict[str, Any]], unit: Unit) -> dict[str, float]:
    """Models sent down and up for each client asked in each round, and the most that a client had to store at once.

    FedAvg has 1 of each, ifca as many down and stored as it has clusters, and 1 up. A warm-up that counts as several
    rounds is one exchange in the place of as many. Table 7.6 counts the same storage, that of a client's device, and as
    communication the way down alone. Where a record does not say, nothing is told.

    >>> record = {"round": 1, "asked": 5, "bytes_down": 200, "bytes_up": 100, "bytes_stored": 40}
    >>> in_models([record], Unit(down=10, up=10))
    {'models_down': 2.0, 'models_up': 1.0, 'models_stored': 4.0}
    """
    if any("bytes_stored" not in record for record in history):
        return {}  # begun before this was recorded
    numbers = [-1, *(record["round"] for record in history)]
    asked = sum(record["asked"] * rounds for record, rounds in zip(history, np.diff(numbers).tolist(), strict=True))
    return {
        "models_down": sum(record["bytes_down"] for record in history) / (asked * unit.down),
        "models_up": sum(record["bytes_up"] for record in history) / (asked * unit.up),
        "models_stored": max(record["bytes_stored"] for record in history) / unit.down,
    }


class Weighed:
    """A federation as it is, which notes the most bytes that one client was sent in one exchange."""

    def __init__(self, inner: Federation) -> None:
        self.inner, self.names, self.model = inner, inner.names, inner.model
        self.most = 0

    def ask(self, task: Task, stack: Stack, labels: Array, clients: Array, key: Key) -> Replies:
        """Ask, and note what a client had to store."""
        replies = self.inner.ask(task, stack, labels, clients, key)
        self.most = max(self.most, replies.cost.bytes_down // max(1, len(clients)))
        return replies

    def take(self) -> int:
        """The most bytes since this was last taken."""
        most, self.most = self.most, 0
        return most
