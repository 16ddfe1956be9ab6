"""The one port to the clients."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from coterie.models.model import Model
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.typing import Array


class Federation(Protocol):
    """Named clients that answer tasks. A simulator, a loopback of bytes and a real federation all look like this."""

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' stable names; everywhere else a client is its position here."""

    @property
    def model(self) -> Model:
        """The network that the clients train."""

    def ask(self, task: Task, stack: Stack, labels: Array, clients: Array, key: Key) -> Replies:
        """Give ``clients`` a task on the models they need and collect what comes back, a row for each that answered.

        ``labels`` names, for each of ``clients``, the row of ``stack`` that it works on, or ``(clients, members)`` the
        rows that serve it, where the report mixes outputs.
        """


def present(federation: Federation, number: int) -> Array:
    """The positions of the clients that are there in a round: all, unless the federation has a ``present`` itself."""
    own = getattr(federation, "present", None)
    found: Array = np.arange(len(federation.names)) if own is None else own(number)
    return found
