"""Builders of small federations, shared by all tests as fixtures that return functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from coterie.algorithms import build_algorithm
from coterie.data.federated import Federated, Split
from coterie.models.zoo import build_model
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent
from coterie.protocol.task import Fit, Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.contract import Algorithm
from coterie.server.exchange import Limits
from coterie.server.loop import Conditions, Round, rounds

Array = np.ndarray[Any, Any]
Client = tuple[Array, Array]
QUICK = Fit(steps=4, batch=8, lr=0.05)

# A change is judged by the same cases each time; `make check-slow` looks for new ones.
settings.register_profile("same cases", deadline=None, derandomize=True)
settings.register_profile("new cases", deadline=None)
settings.load_profile("same cases")


def _federated(train: Sequence[Client], test: Sequence[Client], classes: int | None, groups: Array) -> Federated:
    names = tuple(f"client-{i}" for i in range(len(train)))
    known = {"group": tuple(map(str, groups.tolist())), "country": ("here",) * len(train)}
    return Federated(
        "made up", "by hand", names, Split.join(train), Split.join(test), classes, groups=groups, attributes=known
    )


def make_images(
    sizes: Sequence[int] = (24, 30, 18, 36, 24, 27, 33, 21),
    shape: tuple[int, ...] = (1, 8, 8),
    classes: int = 4,
    groups: int = 2,
    seed: int = 0,
) -> Federated:
    """Noisy class prototypes; client i is of group ``i % groups``, and groups name the same pictures differently."""
    rng = np.random.default_rng(seed)
    prototypes = rng.normal(size=(classes, *shape))

    def client(size: int, group: int) -> Client:
        kind = rng.integers(classes, size=size)
        x = prototypes[kind] + 0.5 * rng.normal(size=(size, *shape))
        return x.astype(np.float32), (kind + group) % classes

    truth = np.arange(len(sizes)) % groups
    train = [client(n, g) for n, g in zip(sizes, truth, strict=True)]
    test = [client(max(2, n // 2), g) for n, g in zip(sizes, truth, strict=True)]
    return _federated(train, test, classes, truth)


def make_targets(sizes: Sequence[int] = (3, 7, 8, 20, 13), features: int = 5, seed: int = 0) -> Federated:
    """Regression on a noisy linear function."""
    rng = np.random.default_rng(seed)
    slopes = rng.normal(size=features)

    def client(size: int) -> Client:
        x = rng.normal(size=(size, features))
        return x.astype(np.float32), (x @ slopes + 0.1 * rng.normal(size=size)).astype(np.float32)

    return _federated([client(n) for n in sizes], [client(4) for _ in sizes], None, np.zeros(len(sizes), int))


def make_lines(slopes: Sequence[float], pairs: Sequence[int]) -> Federated:
    """Client i holds ``pairs[i]`` times the two points (1, slope) and (-1, -slope).

    Its squared loss under weight w and bias b is exactly (w - slope)^2 + b^2, whatever its size.
    """
    train = []
    for slope, count in zip(slopes, pairs, strict=True):
        x = np.tile(np.array([1.0, -1.0], np.float32), count)
        train.append((x[:, None], np.float32(slope) * x))
    return _federated(train, train, None, (np.asarray(slopes) > 0).astype(int))


def dress(federation: Federation, algorithm: Algorithm) -> Federation:
    """The same federation with the network that an algorithm makes of its model; wrappers stay around it."""
    if "inner" in vars(federation):
        wrapper = object.__new__(type(federation))
        vars(wrapper).update(vars(federation), inner=dress(federation.inner, algorithm))
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

    def ask(self, task: Task, sent: Sent, labels: Array, clients: Array, key: Key) -> Replies:
        gone = np.isin(clients, list(self.absent.get(key.round, ())))
        replies = self.inner.ask(task, sent, labels[~gone], clients[~gone], key)
        missing = {self.inner.names[c]: "did not answer" for c in clients[gone]}
        return replace(replies, missing={**replies.missing, **missing})


def make_simulator(data: Federated, model: str = "mlp(16)", **options: Any) -> Simulator:
    """All clients of ``data`` with a model that a text names."""
    return Simulator(data, build_model(model, data.shape, data.classes), **options)


def run_rounds(
    text: str,
    federation: Federation,
    count: int = 3,
    clusters: int | None = 2,
    fit: Fit = QUICK,
    **options: Any,
) -> list[Round]:
    """The first rounds of the algorithm that a text names; options of ``rounds``, its conditions and its limits."""
    algorithm = build_algorithm(text, clusters, fit)
    given = {name: options.pop(name) for name in ("seed", "state") if name in options}
    steps = rounds(algorithm, dress(federation, algorithm), **{"seed": 1, **given}, conditions=conditions(**options))
    return list(islice(steps, count))


def conditions(**options: Any) -> Conditions:
    """The conditions of rounds, with those of their limits among the options."""
    limits = {f.name: options.pop(f.name) for f in fields(Limits) if f.name in options}
    return Conditions(**options, limits=Limits(**limits))


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """The networks here are tiny: threads would only wait for each other. The engine sets its own."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def images() -> Callable[..., Federated]:
    return make_images


@pytest.fixture(scope="session")
def targets() -> Callable[..., Federated]:
    return make_targets


@pytest.fixture(scope="session")
def lines() -> Callable[..., Federated]:
    return make_lines


@pytest.fixture(scope="session")
def simulator() -> Callable[..., Simulator]:
    return make_simulator


@pytest.fixture(scope="session")
def dressed() -> Callable[..., Federation]:
    return dress


@pytest.fixture(scope="session")
def flaky() -> type[Flaky]:
    return Flaky


@pytest.fixture(scope="session")
def train() -> Callable[..., list[Round]]:
    return run_rounds
