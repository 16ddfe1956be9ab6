"""The numbers of a run that tables and pictures show: the scores of its last rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.errors import UsageError

Record = dict[str, Any]

LONG, SEVERAL = 10, 3
"""A run of at least 10 rounds is shown by the mean of its last 3, as in the thesis; a shorter one by its last."""

SCORES = {"accuracy": "accuracy", "macro_f1": "macro_f1", "rmse": "rmse", "r2": "r2", "worst": "worst_client"}
"""The scores that are shown: their names in a record and in a summary."""


def judged(history: Sequence[Record]) -> list[Record]:
    """Return the records of the rounds that were evaluated."""
    return [record for record in history if "worst" in record]


def of_last(history: Sequence[Record], last: int) -> Record:
    """Return the mean scores of the last evaluated rounds of a run, and the number of these rounds.

    >>> of_last([{"worst": 0.2, "accuracy": 0.5}, {}, {"worst": 0.4, "accuracy": 0.7}], 2)
    {'last': 2, 'accuracy': 0.6, 'worst_client': 0.30000000000000004}
    """
    evaluated = judged(history)
    check_last(last, len(evaluated), "evaluated rounds")
    final = evaluated[-last:]
    return {"last": last} | {name: _mean(final, key) for key, name in SCORES.items() if key in final[-1]}


def _mean(records: Sequence[Record], key: str) -> float | None:
    """Return the mean of a score; None where a round has none, so that better rounds do not hide a divergence."""
    values = [record[key] for record in records if record.get(key) is not None]
    return float(np.mean(values)) if len(values) == len(records) else None


def with_shown(summary: Record, history: Sequence[Record], last: int | None) -> Record:
    """Return a summary with the scores of the ``last`` rounds under ``shown``; None: as many rounds as usual."""
    return {**summary, "shown": of_last(history, usual_last([history]) if last is None else last)}


def usual_last(histories: Sequence[Sequence[Record]]) -> int:
    """Return the usual number of last rounds that are shown: one for all runs of a table, so the shortest decides.

    A warm-up that counts as many rounds, or a run that stopped early, may have fewer evaluated ones than three.
    """
    if min(history[-1]["round"] + 1 for history in histories) < LONG:
        return 1
    return min(SEVERAL, *(len(judged(history)) for history in histories))


def check_last(last: int | None, most: int, what: str = "rounds") -> None:
    """Refuse a number of last rounds that a run does not have."""
    if last is not None and not 1 <= last <= most:
        raise UsageError(f"last is {last}; the run has {most} {what}, so 1 to {most}")


def which(last: int) -> str:
    """Return in words which rounds are shown."""
    return "last round" if last == 1 else f"mean of the last {last} rounds"
