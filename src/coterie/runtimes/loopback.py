"""Clients that are reached only through bytes, one at a time: what a real federation does, without the network.

Each client has its own engine and its own data, gets a packed message and answers with one. It shows that the
simulator's numbers are what a deployment would give, and that the cost derived from a task is what is really sent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.data.federated import Federated
from coterie.engine.engine import Engine
from coterie.models.layout import Array
from coterie.models.model import Model
from coterie.protocol import message
from coterie.protocol.address import Key
from coterie.protocol.replies import Cost, Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Task
from coterie.runtimes import answering, codec
from coterie.runtimes.simulator import drop_broken


def answer(engine: Engine, request: bytes) -> bytes:
    """The client's side: unpack, do the task on the own data, pack exactly what the report names, or why it failed."""
    arrays, header = codec.decode(request)
    task, key = codec.from_json(header["task"]), Key(*header["key"])
    reply, problem = answering.answer(engine, task, arrays, key)
    return codec.encode(reply, problem=problem)


class Loopback:
    """A federation of one engine per client behind a wall of bytes."""

    def __init__(self, data: Federated, model: Model, plan: str = "workers") -> None:
        self.names = data.names
        self.model = model
        self.engines = [Engine(model, data.select([i]), threads=1, plan=plan) for i in range(len(data))]
        self.payload = Cost()

    def ask(self, task: Task, stack: Stack, labels: Array, clients: Array, key: Key) -> Replies:
        """One packed exchange with each client; ``payload`` adds up the array bytes that went over the wall."""
        wanted = message.form(task, stack, self.model.layout, np.size(labels) // max(len(clients), 1))
        answers: dict[int, message.Arrays] = {}
        missing: dict[str, str] = {}
        for client, label in zip(clients.tolist(), labels, strict=True):
            sent = message.down(task, stack, label)
            packed = answering.pack_task("", task, key, self.model, sent)
            reply, header = codec.decode(answer(self.engines[client], packed))
            self.payload += Cost(sum(a.nbytes for a in sent.values()), sum(a.nbytes for a in reply.values()))
            if header["problem"]:
                missing[self.names[client]] = header["problem"]
            else:
                own = {} if task.receives_all else {"labels": np.array([label])}
                answers[client] = {**reply, **own}
        replies = drop_broken(message.collect(self.model.layout, wanted, answers, missing), self.names)
        return replace(replies, cost=message.cost(task, stack, replies, len(clients)))
