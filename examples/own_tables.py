"""Your own tables: a .csv file for each client, checked, trained on, and a later file scored.

The files are made up here, so that the script runs anywhere: six hospitals, in three of which a high value means "ill"
and in the other three "well". One model for all cannot serve both.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import torch

import coterie as ct

HOSPITALS = {"bern": 1, "chur": -1, "davos": 1, "genf": -1, "lugano": 1, "zug": -1}
"""Name, and the direction in which the value points there."""


def write_tables(folder: Path) -> None:
    """Write a table of 120 patients for each hospital; with files of your own, leave this out."""
    for seed, (name, direction) in enumerate(HOSPITALS.items()):
        rng = np.random.default_rng(seed)
        value, age = rng.normal(5, 2, 120), rng.integers(20, 90, 120)
        outcome = np.where(direction * (value - 5) + rng.normal(0, 0.3, 120) > 0, "ill", "well")
        pl.DataFrame({"value": value, "age": age, "outcome": outcome}).write_csv(folder / f"{name}.csv")


def main() -> None:
    """Check the folder, train one model and two, and look up what a patient of Zug would be told."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tables(folder)
        print(*ct.check_own(folder, label="outcome").lines(), sep="\n")  # every problem at once, with file and line
        clients = ct.load_own(folder, label="outcome")

        for algorithm in (ct.fedavg(), ct.wecfl(clusters=2)):
            run = ct.run(algorithm, clients, rounds=10, seed=1)
            print(f"{algorithm.name}: accuracy {run.summary['accuracy']:.2f}")
        for cluster in sorted(set(run.labels.tolist())):
            print(
                "together:", *(each for each, label in zip(clients.names, run.labels, strict=True) if label == cluster)
            )

        # Later rows go through the schema of the run: the same columns and scaling, or an error that says why not.
        patient = pl.DataFrame({"value": [9.0], "age": [50]})
        outputs = run.model_for("zug")(torch.as_tensor(clients.schema.features_from(patient)))
        print("a patient of Zug with value 9:", clients.class_names[outputs.argmax().item()])


if __name__ == "__main__":
    main()
