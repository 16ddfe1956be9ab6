"""The verdicts of a comparison: each method against guessing, and against those named fedavg and local, over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.experiments.main_score import score_of
from coterie.experiments.references import ALGORITHMS, with_references
from coterie.experiments.summary import Row
from coterie.experiments.sweep import Done
from coterie.experiments.verdict import Verdict, column_of, corrected_together, judge
from coterie.typing import Array


def verdicts_of(runs: Mapping[str, Sequence[Done]]) -> dict[str, Verdict]:
    """Return the verdict on each method of a comparison, whose runs are of the same seeds in the same order."""
    some = next(iter(runs.values()))[0]
    score = score_of(some.summary)
    natural = str(some.summary["partition"]).startswith("natural")
    found = {}
    for name, each in runs.items():
        others = {which: runs[other] for which, other in ALGORITHMS.items() if other != name and other in runs}
        beside = [
            with_references(run.rows, {which: other[i].rows for which, other in others.items()}, score.column)
            for i, run in enumerate(each)
        ]
        absent = {which: other for which, other in ALGORITHMS.items() if other not in runs}
        missing = {which: f"not compared; add {other} to the comparison" for which, other in absent.items()}
        found[name] = judge(over_seeds(beside, natural), score, some.settings.weigh_by, missing)
    return corrected_together(found)


def over_seeds(runs: Sequence[Sequence[Row]], same_clients: bool) -> list[Row]:
    """Return one row for each client: its means over seeds, or where every seed draws its own clients, one for each.

    >>> over_seeds([[{"client": "a", "rmse": 1.0}], [{"client": "a", "rmse": 2.0}]], same_clients=True)
    [{'client': 'a', 'rmse': 1.5}]
    """
    if not same_clients:
        return [{**row, "client": f"{row['client']}, run {i}"} for i, rows in enumerate(runs) for row in rows]
    by_client: dict[str, list[Row]] = {}
    for row in (row for rows in runs for row in rows):
        by_client.setdefault(str(row["client"]), []).append(row)
    return [{"client": client, **_means(rows)} for client, rows in by_client.items()]


def _means(rows: Sequence[Row]) -> dict[str, float | str]:
    """Return the mean of each column of numbers; where a run has none it is empty, or NaN if its model diverged."""
    columns = {name: column_of(rows, name) for name in rows[0] if name != "client"}
    return {name: _mean(values, [row.get(name, "") for row in rows]) for name, values in columns.items()}


def _mean(values: Array, given: Sequence[object]) -> float | str:
    """Return the mean of numbers; NaN if one that was given is none, empty if one was not given."""
    diverged = any(np.isnan(value) and each != "" for value, each in zip(values, given, strict=True))
    return "" if np.isnan(values).any() and not diverged else float(values.mean())
