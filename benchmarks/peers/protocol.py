"""The contestant's side of the protocol: one process, one workload, a line of JSON for every line it is told.

A contestant says that it is ready, with the versions of its packages. For each ``go`` it does one round and answers
the seconds; for ``model PATH`` it writes the mean of the trained models there, as a flat vector in the order of the
torch module's parameters; at ``quit``, or the end of its input, it stops. What a library prints goes to the log.
This module runs in every environment: it needs numpy alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import numpy as np


@dataclass(frozen=True)
class Task:
    """A workload as contestants read it: every client has as many examples and takes as many steps as the others."""

    folder: Path
    model: str
    shape: tuple[int, ...]
    clients: int
    examples: int
    steps: int
    batch: int
    epochs: int
    lr: float
    momentum: float

    def examples_of(self, clients: range) -> tuple[np.ndarray, np.ndarray]:
        """Return the examples and labels of these clients, a row for each client."""
        x, y = (np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in "xy")
        rows = slice(clients.start * self.examples, clients.stop * self.examples)
        lead = (len(clients), self.examples)
        return np.array(x[rows]).reshape(*lead, *self.shape), np.array(y[rows]).reshape(lead)

    def module(self) -> Any:
        """Return the torch network with the parameters from which every client starts."""
        import torch

        return torch.load(self.folder / "start.pt", weights_only=False)


def task() -> Task:
    """Return the workload that this process was started with."""
    folder = Path(sys.argv[1])
    numbers = json.loads((folder / "workload.json").read_text())
    return Task(folder, **{**numbers, "shape": tuple(numbers["shape"])})


def flat(module: Any) -> np.ndarray:
    """Return the parameters of a torch module as one vector."""
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


def claim_output() -> TextIO:
    """Keep the standard output for answers; what libraries print there goes to the log from now on."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


ANSWERS = claim_output() if os.environ.get("CONTESTANT") == str(os.getppid()) else sys.stdout
"""Where answers go: only the process that the driver itself started has claimed it."""


def serve(work: Callable[[], object], mean_model: Callable[[], np.ndarray], *packages: str) -> None:
    """Say that everything is ready, then do what the driver asks for, line by line."""
    _say(ready=True, versions={name: version(name) for name in packages})
    while line := sys.stdin.readline():
        command, _, path = line.strip().partition(" ")
        if command == "go":
            _say(seconds=_seconds(work))
        elif command == "model":
            np.save(path, mean_model())
            _say(saved=True)
        else:
            break


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _say(**what: object) -> None:
    print(json.dumps(what), file=ANSWERS, flush=True)
