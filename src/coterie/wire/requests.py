"""What a server asks a client, a hello or a task, and how the client does the task: the same for every transport."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from coterie.engine.engine import Engine
from coterie.models.combined import additive
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.protocol import message
from coterie.protocol.message import Arrays
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.wire import codec


@dataclass(frozen=True)
class Network:
    """A model as a message names it: its text, which half belongs to a cluster, and the data that it is for.

    ``frozen`` is a hash of the numbers that do not travel: whoever builds the model must have the same.

    >>> described(Network("mlp(4)", "cluster", (8, 8), 10).build())
    Network(text='mlp(4)', half='cluster', shape=(8, 8), classes=10, columns=None, vocabulary=None, frozen='')
    """

    text: str
    half: str
    shape: tuple[int, ...]
    classes: int | None
    columns: int | None = None
    vocabulary: int | None = None
    frozen: str = ""

    def build(self) -> Model:
        """Build the model."""
        plain = build_model(self.text, self.shape, self.classes, self.columns, self.vocabulary)
        return additive(plain) if self.half else plain


def described(model: Model) -> Network:
    """Return the name of a model for a message."""
    part, shape = model.cluster_part, tuple(model.shape)
    return Network(model.text, part, shape, model.classes, model.columns, model.vocabulary, model.frozen)


@dataclass(frozen=True)
class SiteDescription:
    """The answer to a hello: a client's name, its version of coterie, and the form and the number of its examples."""

    name: str
    version: str
    shape: tuple[int, ...]
    classes: int | None
    class_names: tuple[str, ...]
    train: int
    test: int
    validation: int
    unit: float
    columns: int | None = None
    vocabulary: int | None = None


def pack_hello(run: str) -> bytes:
    """Pack the question who a client is and what data it has, as bytes."""
    return codec.encode({}, kind="hello", run=run)


def pack_task(run: str, task: Task, key: Key, model: Model, arrays: Arrays) -> bytes:
    """Pack a task and the arrays of ``message.down``, as bytes."""
    network = asdict(described(model))
    return codec.encode(arrays, kind="task", run=run, task=codec.to_json(task), key=list(key), model=network)


def answer(engine: Engine, task: Task, arrays: Arrays, key: Key) -> tuple[Arrays, str | None]:
    """Do the task on the data of one client; return the arrays that its report names, or the reason for none."""
    sent = message.received(task, arrays, engine.model.layout)
    reply = engine.run(task, sent, arrays["row"], np.array([0]), key)
    return (message.up(reply), None) if len(reply) else ({}, next(iter(reply.missing.values())))
