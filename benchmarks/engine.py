"""Speed of the engine beside a plain loop: `make bench`.

One measurement is one round of local training: every client takes 10 SGD steps of batch 32. The plain loop is what
research code usually does: deepcopy the model and make a DataLoader for each client, torch using all cores. Runs are
interleaved in random order and the median of 5 is shown, so that a noisy machine disturbs all alike. Peak is a
2048 x 2048 float32 matrix product on all cores, one of the things interleaved. At the end it says which ratios are
worse than in baseline.json; `--save` writes them there.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks import baseline
from coterie.data import Federated, Split
from coterie.engine.engine import Engine
from coterie.engine.plan import available_cores, torch_threads
from coterie.models.zoo import build_model
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key

REPEATS, STEPS, BATCH, LR, MOMENTUM = 5, 10, 32, 0.01, 0.9
PEAK = "GEMM peak"


@dataclass(frozen=True)
class Case:
    """A model, how many clients train it, and how much faster than the plain loop the engine has to be."""

    model: str
    shape: tuple[int, ...]
    clients: int
    goal: float


CASES = (
    Case("cnn", (1, 28, 28), 40, 1.8),
    Case("lenet", (3, 32, 32), 60, 1.3),
    Case("mlp(512,128)", (1, 28, 28), 100, 1.5),
    Case("logistic", (64,), 2000, 20.0),
)


def federation(case: Case) -> Federated:
    """Clients with 320 examples each (64 for vectors), class prototypes plus noise."""
    rng = np.random.default_rng(0)
    examples = STEPS * BATCH if len(case.shape) == 3 else 64
    prototypes = rng.normal(size=(10, *case.shape)).astype(np.float32)
    y = rng.integers(0, 10, case.clients * examples)
    x = prototypes[y] + rng.normal(size=(len(y), *case.shape)).astype(np.float32)
    offsets = np.arange(case.clients + 1) * examples
    few = Split(x[: case.clients], y[: case.clients], np.arange(case.clients + 1))
    names = tuple(f"client-{i:04d}" for i in range(case.clients))
    return Federated("bench", "iid", names, Split(x, y, offsets), few, 10)


def plain_module(case: Case) -> nn.Module:
    """The network as people write it: the thesis' cnn has ReLU before pooling; the others are the zoo's."""
    if case.model == "cnn":
        block = lambda i, o: [nn.Conv2d(i, o, 5, padding=2), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2)]  # noqa: E731
        return nn.Sequential(*block(1, 16), *block(16, 32), nn.Flatten(), nn.Linear(1568, 10))
    return build_model(case.model, case.shape, 10).build()


def plain_loop(case: Case, data: Federated) -> Callable[[], nn.Module]:
    """A deepcopy, an optimiser and a DataLoader for each client; a round returns the last client's model."""
    start, loss = plain_module(case), nn.CrossEntropyLoss()
    sets = [torch.utils.data.TensorDataset(*map(torch.from_numpy, data.train.of(i))) for i in range(len(data))]

    def work() -> nn.Module:
        with torch_threads(available_cores()):
            for examples in sets:
                model = copy.deepcopy(start).train()
                optimiser = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
                taken = 0
                while taken < STEPS:
                    for x, y in torch.utils.data.DataLoader(examples, BATCH, shuffle=True):
                        optimiser.zero_grad()
                        loss(model(x), y).backward()
                        optimiser.step()
                        taken += 1
                        if taken == STEPS:
                            break
        return model

    return work


def engine_round(case: Case, data: Federated, plan: str) -> Callable[[], object]:
    """The same work as one task for the engine."""
    model = build_model(case.model, case.shape, 10)
    engine, stack = Engine(model, data, plan=plan), Stack(*(part[None] for part in model.initial(0)))
    task = Task(fit=(Fit(steps=STEPS, batch=BATCH, lr=LR, momentum=MOMENTUM),))
    everyone, rows = np.arange(len(data)), np.zeros(len(data), dtype=np.int64)
    return lambda: engine.run(task, Sent(stack), rows, everyone, Key(1, 0))


def products(count: int = 10) -> Callable[[], object]:
    """Large float32 matrix products on all cores: what the machine can do at best, at this hour."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)

    def work() -> None:
        with torch_threads(available_cores()):
            for _ in range(count):
                a @ b

    return work


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def interleaved(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median time of each, after one warm-up, in turns of random order: what ran before leaves its traces."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    order = random.Random(1)
    for _ in range(REPEATS):
        for name in order.sample(list(works), len(works)):
            times[name].append(seconds(works[name]))
    return {name: statistics.median(t) for name, t in times.items()}


def measured(case: Case) -> dict[str, float]:
    """Return the seconds of a round of the plain loop and of every plan, and of the products."""
    data, model = federation(case), build_model(case.model, case.shape, 10)
    plans = ["auto", "single", "workers", *(["lockstep"] if model.can_lockstep else [])]
    works = {"plain loop": plain_loop(case, data), PEAK: products()}
    return interleaved(works | {plan: engine_round(case, data, plan) for plan in plans})


def fill(table: Table, case: Case, found: dict[str, float], top: float) -> None:
    """Add a row for everything that was measured of a case, beside the machine's peak."""
    work = 3 * build_model(case.model, case.shape, 10).flops * BATCH * STEPS * case.clients
    for name, time_taken in found.items():
        goal = f"{case.goal:g}" if name == "auto" else ""
        rate = case.clients * STEPS / time_taken
        ratio = found["plain loop"] / time_taken
        share = 100 * work / time_taken / top
        speed = f"{work / time_taken / 1e9:.0f}"
        cells = (f"{time_taken:.2f}", f"{rate:,.0f}", speed, f"{share:.1f}", f"{ratio:.2f}", goal)
        table.add_row(case.model, name, str(case.clients), *cells, end_section=name == list(found)[-1])


def empty_table() -> Table:
    table = Table(title=f"one round of 10 steps, {available_cores()} cores", title_justify="left")
    for title in ("model", "who", "clients", "s/round", "client-steps/s", "GFLOP/s", "% of peak", "x plain", "goal"):
        table.add_column(title, justify="left" if title in ("model", "who") else "right", no_wrap=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the engine beside a plain loop.")
    parser.add_argument("models", nargs="*", help=f"of {', '.join(case.model for case in CASES)}; all if none is named")
    parser.add_argument("--save", action="store_true", help="write the ratios to baseline.json")
    options, console, table = parser.parse_args(), Console(width=120), empty_table()
    ratios: baseline.Ratios = {}
    for case in (case for case in CASES if not options.models or case.model in options.models):
        found = measured(case)
        top = 10 * 2 * 2048**3 / found.pop(PEAK)
        ratios[case.model] = baseline.ratios(found)
        fill(table, case, found, top)
        console.print(f"{case.model}: GEMM peak {top / 1e9:.0f} GFLOP/s")
    console.print(table)
    console.print(baseline.verdict(ratios), highlight=False)
    if options.save:
        baseline.save(ratios)


if __name__ == "__main__":
    main()
