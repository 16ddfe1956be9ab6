"""A whole run beside the bare rounds of the engine: `python -m benchmarks.whole_run [MODEL CLIENTS [ALGORITHM ...]]`.

A run evaluates every 10 rounds and writes its folder, as `coterie run --eval-every 10` does; a round is 10 steps of
batch 32 for every client. Shown is the whole run, with its start and its summary, by round and as a multiple of what
the engine took for training and evaluation. The engine's part is timed inside the same run, call by call, so that a
noisy machine disturbs both alike; on one that is very busy read the processor times, which are less disturbed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np

import coterie as ct
from benchmarks.engine import BATCH, STEPS, Case, federation
from coterie.algorithms import build_algorithm
from coterie.engine.engine import Engine

SHAPES = {"lenet": (3, 32, 32), "cnn": (1, 28, 28), "mlp(512,128)": (1, 28, 28)}
ROUNDS = 20


def now() -> np.ndarray:
    """The time, and the processor time of this program."""
    return np.array([time.perf_counter(), time.process_time()])


def timed(method: str, seconds: np.ndarray) -> object:
    """A method of the engine that adds up how long it took."""
    plain = getattr(Engine, method)

    def work(*words: object, **more: object) -> object:
        begun = now()
        try:
            return plain(*words, **more)
        finally:
            seconds[:] += now() - begun

    return work


def measure(case: Case, algorithm: str) -> str:
    """One run: a line of the table."""
    data, engine = federation(case), np.zeros(2)
    made = build_algorithm(algorithm, fit=ct.Fit(steps=STEPS, batch=BATCH))
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(Engine, "run", timed("run", engine)),
        patch.object(Engine, "judge", timed("judge", engine)),
    ):
        begun = now()
        ct.run(made, data, model=case.model, rounds=ROUNDS, eval_every=10, seed=1, out=Path(folder) / "run")
        whole = now() - begun
    pairs = zip(whole / ROUNDS, whole / engine, strict=True)
    cells = [f"{seconds:.3f} s a round, {times:.3f} x engine" for seconds, times in pairs]
    return f"{case.model:14}{case.clients:6}  {algorithm:12}{cells[0]}; processor {cells[1]}"


def main() -> None:
    model, clients, *algorithms = sys.argv[1:] or ["lenet", "200"]
    for algorithm in algorithms or ["fedavg", "wecfl(4)", "ifca(4)"]:
        print(measure(Case(model, SHAPES[model], int(clients), 0), algorithm), flush=True)


if __name__ == "__main__":
    main()
