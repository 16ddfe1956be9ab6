"""Clients that are reached only through bytes, one at a time: what a real federation does, without the network.

Each client has its own engine and its own data, gets a packed message and answers with one. It shows that the
simulator's numbers are what a deployment would give, and that the cost derived from a task is what is really sent.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coterie.data.federated import Federated, Split
from coterie.engine.engine import Engine
from coterie.models.model import Model
from coterie.protocol import message
from coterie.protocol.replies import Cost, Replies
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.typing import Array
from coterie.wire import codec
from coterie.wire import requests as answering
from coterie.wire.remote import PackedReplies, Remote


def answer(engine: Engine, request: bytes) -> bytes:
    """The client's side: unpack, do the task on the own data, pack exactly what the report names, or why it failed."""
    arrays, header = codec.decode(request)
    task, key = codec.from_json(header["task"]), Key(*header["key"])
    reply, problem = answering.answer(engine, task, arrays, key)
    return codec.encode(reply, problem=problem)


class Loopback:
    """A federation of one engine per client behind a wall of bytes; ``payload`` adds up the arrays that went over."""

    def __init__(self, data: Federated, model: Model, plan: str = "workers") -> None:
        self.engines = [Engine(model, data.select([i]), threads=1, plan=plan) for i in range(len(data))]
        self.remote = Remote(data.names, model, self._exchange, sizes=sizes_of(data))
        self.payload = Cost()

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names."""
        return self.remote.names

    @property
    def model(self) -> Model:
        """The network that the clients train."""
        return self.remote.model

    @property
    def kept(self) -> dict[str, Array]:
        """Return nothing: what clients keep between rounds stays with them."""
        return self.remote.kept

    def present(self, number: int) -> Array:
        """Return the positions of all clients."""
        return self.remote.present(number)

    def judge(self, models: Stack, split: Split, rows: Array | None = None, mix: str | None = None) -> None:
        """Return nothing: there are no examples that belong to no client."""
        return self.remote.judge(models, split, rows, mix)

    def close(self) -> None:
        """Close the federation inside."""
        self.remote.close()

    def ask(self, task: Task, sent: Sent, labels: Array, clients: Array, key: Key) -> Replies:
        """Do one packed exchange with each client."""
        return self.remote.ask(task, sent, labels, clients, key)

    def _exchange(self, requests: Mapping[int, bytes]) -> PackedReplies:
        answers = {client: answer(self.engines[client], request) for client, request in requests.items()}
        self.payload += Cost(_content(requests), _content(answers))
        return PackedReplies(answers, {})


def sizes_of(data: Federated) -> tuple[message.Sizes, ...]:
    """How many examples of each split each client has."""
    splits = (data.train, data.test, data.validation)
    counts = [np.zeros(len(data), dtype=np.int64) if split is None else split.sizes for split in splits]
    return tuple(message.Sizes(*row) for row in np.column_stack(counts).tolist())


def _content(messages: Mapping[int, bytes]) -> int:
    """The bytes of all arrays in messages."""
    return sum(array.nbytes for content in messages.values() for array in codec.decode(content)[0].values())
