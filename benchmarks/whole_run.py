"""A whole run beside the bare rounds of the engine: `python benchmarks/whole_run.py [MODEL CLIENTS [ALGORITHM ...]]`.

A run evaluates every 10 rounds and writes its folder, as `coterie run --eval-every 10` does; a round is 10 steps of
batch 32 for every client. Shown are, for one round on average: what the run took, what it took outside of the engine,
and that as a share; then the share of the whole run, with its start and its summary. The engine's part is timed inside
the same run, call by call, so that a noisy machine disturbs both alike.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import coterie as ct
from coterie.algorithms import build_algorithm
from coterie.engine.engine import Engine
from engine import BATCH, STEPS, Case, federation

SHAPES = {"lenet": (3, 32, 32), "cnn": (1, 28, 28), "mlp(512,128)": (1, 28, 28)}
ROUNDS = 20


def timed(method: str, seconds: list[float]) -> object:
    """A method of the engine that adds up how long it took."""
    plain = getattr(Engine, method)

    def work(*words: object, **more: object) -> object:
        begun = time.perf_counter()
        try:
            return plain(*words, **more)
        finally:
            seconds.append(time.perf_counter() - begun)

    return work


def measure(case: Case, algorithm: str) -> str:
    """One run: a line of the table."""
    data, seconds = federation(case), list[float]()
    made = build_algorithm(algorithm, fit=ct.Fit(steps=STEPS, batch=BATCH))
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(Engine, "run", timed("run", seconds)),
        patch.object(Engine, "judge", timed("judge", seconds)),
    ):
        begun = time.perf_counter()
        run = ct.run(made, data, model=case.model, rounds=ROUNDS, eval_every=10, seed=1, out=Path(folder) / "run")
        whole = time.perf_counter() - begun
    of_rounds, engine = sum(record["seconds"] for record in run.history), sum(seconds)
    outside = (of_rounds - engine) / ROUNDS
    return (
        f"{case.model:14}{case.clients:6}  {algorithm:12}{of_rounds / ROUNDS:9.3f} s a round, {outside:.3f} outside of "
        f"the engine: {of_rounds / engine:.3f} x, whole run {whole / engine:.3f} x"
    )


def main() -> None:
    model, clients, *algorithms = sys.argv[1:] or ["lenet", "200"]
    for algorithm in algorithms or ["fedavg", "wecfl(4)", "ifca(4)"]:
        print(measure(Case(model, SHAPES[model], int(clients), 0), algorithm), flush=True)


if __name__ == "__main__":
    main()
