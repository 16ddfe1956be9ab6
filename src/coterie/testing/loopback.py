"""A federation for tests in which clients are reached only through bytes, as in a deployment, without a network.

Each client has an engine with its own data, receives a packed message and answers with one. Tests show with it that a
simulation gives the numbers of a deployment, and that the cost derived from a task is the number of bytes sent.
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
from coterie.wire import codec, requests
from coterie.wire.remote import PackedReplies, Remote


def answer(engine: Engine, request: bytes) -> bytes:
    """Unpack a request on the client's side, do its task, and pack what its report names, or why it failed."""
    arrays, header = codec.decode(request)
    task, key = codec.from_json(header["task"]), Key(*header["key"])
    reply, problem = requests.answer(engine, task, arrays, key)
    return codec.encode(reply, problem=problem)


class Loopback:
    """A federation with one engine for each client, reached through bytes; ``payload`` counts the bytes of arrays."""

    def __init__(self, data: Federated, model: Model, plan: str = "native") -> None:
        self.engines = [Engine(model, data.select([i]), threads=1, plan=plan) for i in range(len(data))]
        self.remote = Remote(data.names, model, self._exchange, sizes=sizes_of(data))
        self.payload = Cost()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the clients."""
        return self.remote.names

    @property
    def model(self) -> Model:
        """Return the network that clients train."""
        return self.remote.model

    @property
    def kept(self) -> dict[str, Array]:
        """Return nothing: clients keep their arrays to themselves."""
        return self.remote.kept

    def present(self, number: int) -> Array:
        """Return the positions of all clients."""
        return self.remote.present(number)

    def judge(self, models: Stack, split: Split, rows: Array | None = None, mix: str | None = None) -> None:
        """Return nothing: the server has no examples."""
        return self.remote.judge(models, split, rows, mix)

    def close(self) -> None:
        """Close the federation inside."""
        self.remote.close()

    def ask(self, task: Task, sent: Sent, rows: Array, clients: Array, key: Key) -> Replies:
        """Exchange one packed message with each client."""
        return self.remote.ask(task, sent, rows, clients, key)

    def _exchange(self, messages: Mapping[int, bytes]) -> PackedReplies:
        answers = {client: answer(self.engines[client], message) for client, message in messages.items()}
        self.payload += Cost(_array_bytes(messages), _array_bytes(answers))
        return PackedReplies(answers, {})


def sizes_of(data: Federated) -> tuple[message.Sizes, ...]:
    """Return the numbers of examples of each client in each split."""
    splits = (data.train, data.test, data.validation)
    counts = [np.zeros(len(data), dtype=np.int64) if split is None else split.sizes for split in splits]
    return tuple(message.Sizes(*row) for row in np.column_stack(counts).tolist())


def _array_bytes(messages: Mapping[int, bytes]) -> int:
    """Return the bytes of all arrays in messages."""
    return sum(array.nbytes for content in messages.values() for array in codec.decode(content)[0].values())
