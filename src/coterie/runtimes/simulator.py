"""All clients in this process: the engine runs on the data of all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.data.federated import Federated, Split
from coterie.engine.engine import SPILL, Engine
from coterie.models.model import Model
from coterie.protocol import message
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.typing import Array


class Simulator:
    """A federation of any number of clients on one machine."""

    def __init__(
        self,
        data: Federated,
        model: Model,
        threads: int | None = None,
        *,
        plan: str = "auto",
        device: str = "cpu",
        spill: int = SPILL,
    ) -> None:
        self.data, self.model, self.names = data, model, data.names
        self.engine = Engine(model, data, threads, plan=plan, device=device, spill=spill)
        self.kept = self.engine.kept

    def present(self, number: int) -> Array:
        """Return the positions of all clients: everybody takes part in every round."""
        return np.arange(len(self.names))

    def ask(self, task: Task, sent: Sent, rows: Array, clients: Array, key: Key) -> Replies:
        """Run the engine on these clients; a result that is not finite is a missing row."""
        replies = message.drop_broken(self.engine.run(task, sent, rows, clients, key), self.names)
        return replace(replies, cost=message.cost(task, sent, replies, len(clients)))

    def judge(self, models: Stack, split: Split, rows: Array | None = None, mix: str | None = None) -> Array:
        """Return the metrics of models on examples that belong to no client; see ``Engine.judge``."""
        return self.engine.judge(models, split, rows, mix)

    def close(self) -> None:
        """Do nothing: a simulator starts nothing that must be ended."""
