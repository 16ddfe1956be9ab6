"""How often the advice on clusters is right where the truth is known: `python benchmarks/advice.py`.

Simulated clients of five kinds. ``iid``: all the same. ``groups``: three groups that differ in features and in what
follows from them. ``different``: every client has a rule of its own. ``labels``: three groups that see the same
features and name them differently. ``features``: three groups that see other features and follow one rule: one model
serves all. Right is: one model, three clusters, local models, three clusters, one model. What is in the file already
is not run again, so that a run that was stopped goes on. An advice of an earlier version counts as "cannot tell" where
it says "perhaps" or "may", and "10 clusters or more" counts as right where every client differs.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

import coterie as ct

Array = NDArray[Any]

FEATURES, GROUPS = 8, 3
RIGHT = {"iid": "one", "groups": "3", "different": "local", "labels": "3", "features": "one"}
TASKS = ("classes", "numbers")
SIZES = ((12, 200), (30, 60), (30, 400))
"""Clients, and rows of each, of which a fifth is for tests."""

SETTINGS: dict[str, dict[str, Any]] = {"sgd": {}, "adam": {"optimizer": "adam", "lr": 0.01}}
MODEL = "mlp(16)"


class Case(NamedTuple):
    """One federation: its kind, what is predicted, its size, the optimiser and the seed."""

    kind: str
    task: str
    clients: int
    rows: int
    optimizer: str
    seed: int

    @property
    def name(self) -> str:
        """Return the case as the key of a table."""
        return "/".join(map(str, self))


def rule(rng: np.random.Generator) -> Callable[[Array], Array]:
    """Return a smooth function of the features, of mean about 0 and spread about 1: a line and a bend."""
    line, bend = rng.normal(size=(2, FEATURES)) / FEATURES**0.5
    return lambda x: x @ line + np.sin(2 * (x @ bend))


def federation(case: Case) -> ct.Federated:
    """Return the clients of a case; columns are standardised over all clients, as those of tables are."""
    rng = np.random.default_rng([case.seed, *case.kind.encode(), case.clients, case.rows])
    rules = [rule(rng) for _ in range(case.clients)]
    centres = 0.5 * rng.normal(size=(GROUPS, FEATURES))
    drawn: list[tuple[Array, Array]] = []
    for i in range(case.clients):
        group = i % GROUPS
        moved = case.kind in ("groups", "features")
        which = {"different": i, "groups": group, "labels": group}.get(case.kind, 0)
        x = rng.normal(size=(case.rows, FEATURES)) + (centres[group] if moved else 0.0)
        drawn.append((x, rules[which](x) + 0.3 * rng.normal(size=case.rows)))
    every, values = (np.concatenate(part) for part in zip(*drawn, strict=True))
    clients = {}
    for i, (x, value) in enumerate(drawn):
        y = value > 0 if case.task == "classes" else ((value - values.mean()) / values.std()).astype(np.float32)
        clients[f"client-{i:03}"] = (((x - every.mean(axis=0)) / every.std(axis=0)).astype(np.float32), y)
    return ct.from_arrays(clients, seed=case.seed)


def answer(advice: dict[str, Any]) -> str:
    """Return an advice as one word: one, a number of clusters, local, or cannot tell."""
    if "decision" in advice:
        words = {"one model": "one", "local models": "local", "cannot tell": "cannot tell"}
        return words.get(advice["decision"], str(advice["clusters"]))
    if advice["confidence"] < 0.8:
        return "cannot tell"
    if "or more" in advice["text"]:
        return "local"
    return "one" if advice["one_model_enough"] else str(advice["clusters"])


def ask(case: Case) -> dict[str, Any]:
    """Return the advice of a run of one round, whatever that round has learnt."""
    run = ct.run("fedavg", federation(case), MODEL, rounds=1, seed=case.seed, advise=True, **SETTINGS[case.optimizer])
    return dict(run.state.advice or {})


def outcome(case: Case, said: str) -> str:
    """Return whether an answer is right, wrong, or none."""
    return said if said == "cannot tell" else "right" if said == RIGHT[case.kind] else "wrong"


def show(results: dict[str, str], cases: Sequence[Case], console: Console) -> None:
    """Print how often the advice was right / could not tell / was wrong, by kind and size."""
    table = Table(box=MARKDOWN)
    columns = list(dict.fromkeys((case.task, case.clients, case.rows) for case in cases))
    for title in ("truth", "optimiser", *(f"{t}, {c} x {r}" for t, c, r in columns)):
        table.add_column(title)
    for kind, optimizer in dict.fromkeys((case.kind, case.optimizer) for case in cases):
        row = []
        for column in columns:
            some = [c for c in cases if (c.kind, c.optimizer, c.task, c.clients, c.rows) == (kind, optimizer, *column)]
            counts = Counter(outcome(case, results[case.name]) for case in some if case.name in results)
            row.append(" / ".join(str(counts[each]) for each in ("right", "cannot tell", "wrong")))
        table.add_row(kind, optimizer, *row)
    console.print(table)


def main() -> None:
    """Ask for advice in every case, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="101..120", help="a range; 1..3 were used to make the rules")
    parser.add_argument("--kinds", nargs="+", default=list(RIGHT), choices=list(RIGHT))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--optimizers", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--sizes", nargs="+", default=[f"{c}x{r}" for c, r in SIZES], help="clients x rows")
    parser.add_argument("--out", type=Path, default=Path("runs/advice.json"))
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(".."))
    cases = [
        Case(kind, task, *map(int, size.split("x")), optimizer, seed)
        for size in given.sizes
        for task in given.tasks
        for kind in given.kinds
        for optimizer in given.optimizers
        for seed in range(first, last + 1)
    ]
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for case in cases:
        if case.name not in results:
            results[case.name] = answer(ask(case))
            given.out.write_text(json.dumps(results, indent=1))
    show(results, cases, Console(width=200))


if __name__ == "__main__":
    main()
