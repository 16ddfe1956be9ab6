"""Builders of small federations, shared by all tests as fixtures that return functions."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import typer.testing
from hypothesis import settings

from coterie.algorithms import build_algorithm
from coterie.data.federated import Federated
from coterie.engine.evaluation import Evaluator
from coterie.engine.native import Native
from coterie.models.zoo import build_model
from coterie.protocol.federation import Federation
from coterie.protocol.task import Fit
from coterie.runtimes.simulator import Simulator
from coterie.server.exchange import Limits
from coterie.server.loop import Conditions, Round, rounds
from coterie.terminal import console
from coterie.testing import federations as testing
from coterie.testing.federations import dressed as dressed_for
from coterie.testing.federations import federated

Array = np.ndarray[Any, Any]
Client = tuple[Array, Array]
QUICK = Fit(steps=4, batch=8, lr=0.05)

# A change is judged by the same cases each time; `make check-slow` looks for new ones.
settings.register_profile("same cases", deadline=None, derandomize=True)
settings.register_profile("new cases", deadline=None)
settings.load_profile("same cases")


def make_targets(sizes: Sequence[int] = (3, 7, 8, 20, 13), features: int = 5, seed: int = 0) -> Federated:
    """Regression on a noisy linear function."""
    rng = np.random.default_rng(seed)
    slopes = rng.normal(size=features)

    def client(size: int) -> Client:
        x = rng.normal(size=(size, features))
        return x.astype(np.float32), (x @ slopes + 0.1 * rng.normal(size=size)).astype(np.float32)

    return federated([client(n) for n in sizes], [client(4) for _ in sizes], None, np.zeros(len(sizes), int))


def make_lines(slopes: Sequence[float], pairs: Sequence[int]) -> Federated:
    """Client i holds ``pairs[i]`` times the two points (1, slope) and (-1, -slope).

    Its squared loss under weight w and bias b is exactly (w - slope)^2 + b^2, whatever its size.
    """
    train = []
    for slope, count in zip(slopes, pairs, strict=True):
        x = np.tile(np.array([1.0, -1.0], np.float32), count)
        train.append((x[:, None], np.float32(slope) * x))
    return federated(train, train, None, (np.asarray(slopes) > 0).astype(int))


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
    steps = rounds(
        algorithm, dressed_for(federation, algorithm), **{"seed": 1, **given}, conditions=conditions(**options)
    )
    return list(islice(steps, count))


def conditions(**options: Any) -> Conditions:
    """The conditions of rounds, with those of their limits among the options."""
    limits = {f.name: options.pop(f.name) for f in fields(Limits) if f.name in options}
    return Conditions(**options, limits=Limits(**limits))


def pytest_configure() -> None:
    """Print as wide as without a terminal: readline, which pytest loads, tells its parallel processes 80 columns."""
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    console.width = 120


def pytest_collection_finish() -> None:
    """Leave what exists before the first test, above a million objects, out of every collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _commands_are_read_once() -> Iterator[None]:
    """Typer would make all commands anew from their functions in every call of a test; a program does so once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(typer.testing, "_get_command", cache(typer.testing._get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """The networks here are tiny: threads would only wait for each other. The engine sets its own."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def images() -> Callable[..., Federated]:
    return testing.images


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
    return dressed_for


@pytest.fixture(scope="session")
def flaky() -> type[testing.Flaky]:
    return testing.Flaky


@pytest.fixture(scope="session")
def train() -> Callable[..., list[Round]]:
    return run_rounds


@pytest.fixture
def given_to(monkeypatch):
    """How many examples networks were given in each evaluation, by PyTorch or by the compiled engine."""
    counts, outputs, natively = [], Evaluator.outputs, Native._evaluate

    def count(self, params, buffers, pool, rows):
        counts.append(len(rows))
        return outputs(self, params, buffers, pool, rows)

    def count_natively(self, stack, models, pool, rows, **results):
        counts.append(len(models) * len(rows))
        return natively(self, stack, models, pool, rows, **results)

    monkeypatch.setattr(Evaluator, "outputs", count)
    monkeypatch.setattr(Native, "_evaluate", count_natively)
    return counts
