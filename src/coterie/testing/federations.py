"""Small federations for tests of methods: clients in two groups, clients that do not answer, clients of one network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.data.federated import Federated, Split
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent
from coterie.protocol.task import Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.contract import Algorithm
from coterie.typing import Array

Client = tuple[Array, Array]


def federated(train: Sequence[Client], test: Sequence[Client], classes: int | None, groups: Array) -> Federated:
    """Return the federation of these clients, named ``client-0``, ..., with the attributes group and country."""
    names = tuple(f"client-{i}" for i in range(len(train)))
    known = {"group": tuple(map(str, groups.tolist())), "country": ("here",) * len(train)}
    return Federated(
        "made up", "by hand", names, Split.join(train), Split.join(test), classes, groups=groups, attributes=known
    )


def images(
    sizes: Sequence[int] = (24, 30, 18, 36, 24, 27, 33, 21),
    shape: tuple[int, ...] = (1, 8, 8),
    classes: int = 4,
    groups: int = 2,
    seed: int = 0,
) -> Federated:
    """Return noisy class prototypes; client i is of group ``i % groups``, and groups name the pictures differently."""
    rng = np.random.default_rng(seed)
    prototypes = rng.normal(size=(classes, *shape))

    def client(size: int, group: int) -> Client:
        kind = rng.integers(classes, size=size)
        x = prototypes[kind] + 0.5 * rng.normal(size=(size, *shape))
        return x.astype(np.float32), (kind + group) % classes

    truth = np.arange(len(sizes)) % groups
    train = [client(n, g) for n, g in zip(sizes, truth.tolist(), strict=True)]
    test = [client(max(2, n // 2), g) for n, g in zip(sizes, truth.tolist(), strict=True)]
    return federated(train, test, classes, truth)


def dressed(federation: Any, algorithm: Algorithm) -> Any:
    """Return the same federation with the network that an algorithm makes of its model; wrappers stay around it."""
    if "inner" in vars(federation):
        wrapper = object.__new__(type(federation))
        vars(wrapper).update(vars(federation), inner=dressed(federation.inner, algorithm))
        return wrapper
    network = algorithm.network(federation.model)
    if network is federation.model:
        return federation
    engine = federation.engine
    threads, options = engine.workers.count, {"plan": engine.plan, "device": str(engine.device), "spill": engine.spill}
    return Simulator(federation.data, network, threads, **options)


class Flaky:
    """A federation some of whose clients do not answer: ``absent[t]`` are those of round t."""

    def __init__(self, inner: Federation, absent: Mapping[int, Collection[int]]) -> None:
        self.inner, self.absent = inner, absent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def ask(self, task: Task, sent: Sent, rows: Array, clients: Array, key: Key) -> Replies:
        """Ask those that are there."""
        gone = np.isin(clients, list(self.absent.get(key.round, ())))
        replies = self.inner.ask(task, sent, rows[~gone], clients[~gone], key)
        missing = {self.inner.names[c]: "did not answer" for c in clients[gone]}
        return replace(replies, missing={**replies.missing, **missing})
