"""What a server asks a client (a hello, a task, to keep a model), and how the client does a task, in any transport."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeVar

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

Part = TypeVar("Part")


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
    """The answer to a hello: a client's name, its version of coterie, and the form and the number of its examples.

    ``majority`` is how many of its test examples are of its most frequent train class, where it tells.
    """

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
    majority: float | None = None


@dataclass(frozen=True)
class Unread:
    """The answer to a hello of a client whose table has no schema yet: its name, and its version of coterie."""

    name: str
    version: str


@dataclass(frozen=True)
class Parcel:
    """What comes with a model that is handed over: its version, and what the server knows about it.

    ``cluster`` is the site's, None if it has none and gets the mean of all; ``sites`` is how many sites the cluster
    has. ``one_model`` and ``local_model`` are the site's own scores under one model for all and under a model that it
    trained alone, in the measure of the run, where the run had such references.
    """

    version: str
    algorithm: str
    rounds: int
    cluster: int | None
    clusters: int
    sites: int
    one_model: float | None = None
    local_model: float | None = None


@dataclass(frozen=True)
class Receipt:
    """The answer to a model that was handed over: the version that the site keeps, and whether it is in use there."""

    version: str
    current: bool


def pack_hello(run: str) -> bytes:
    """Pack the question who a client is and what data it has, as bytes."""
    return codec.encode({}, kind="hello", run=run)


def pack_task(run: str, task: Task, key: Key, model: Model, arrays: Arrays) -> bytes:
    """Pack a task and the arrays of ``message.down``, as bytes."""
    network = asdict(described(model))
    return codec.encode(arrays, kind="task", run=run, task=codec.to_json(task), key=list(key), model=network)


def pack_delivery(request: bytes, parcel: Parcel) -> bytes:
    """Pack a model that is handed over: the request by which the site gets its model, and what comes with it."""
    arrays, header = codec.decode(request)
    return codec.encode(arrays, **{**header, "kind": "deliver", "parcel": asdict(parcel)})


def read_part(kind: type[Part], value: Any, where: str) -> Part:
    """Return the part of this type that a header holds as a table; errors call it ``where``."""
    part: Part = codec.read_as(kind, {**value, "kind": kind.__name__} if isinstance(value, dict) else value, where)
    return part


def answer(engine: Engine, task: Task, arrays: Arrays, key: Key) -> tuple[Arrays, str | None]:
    """Do the task on the data of one client; return the arrays that its report names, or the reason for none."""
    sent = message.received(task, arrays, engine.model.layout)
    reply = engine.run(task, sent, arrays["row"], np.array([0]), key)
    return (message.up(reply), None) if len(reply) else ({}, next(iter(reply.missing.values())))
