"""The client that is served worst, among those with enough test examples to tell, and how sure its score is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy

from coterie.experiments.main_score import ACCURACY, Score
from coterie.experiments.statistics import LEVEL
from coterie.experiments.verdict import ENOUGH, column_of


def exact_interval(share: float, count: int, level: float = LEVEL / 100) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) interval of a share that was seen in ``count`` examples.

    >>> [round(end, 3) for end in exact_interval(0.9, 10)]
    [0.555, 0.997]
    """
    right, tail = share * count, (1 - level) / 2
    low = scipy.special.betaincinv(right, count - right + 1, tail) if right > 0 else 0.0
    high = scipy.special.betaincinv(right + 1, count - right, 1 - tail) if right < count else 1.0
    return float(low), float(high)


@dataclass(frozen=True)
class Worst:
    """The client with the worst score: among those with enough test examples, or of all if there are none.

    ``low`` to ``high``: the interval of its accuracy, wide enough for the worst of so many ``among`` which it was
    sought; None for other scores.
    """

    client: str
    value: float
    test: int
    among: int
    enough: bool
    low: float | None = None
    high: float | None = None


def worst_client(rows: Sequence[Mapping[str, Any]], score: Score) -> Worst | None:
    """Return the client with the worst score, with an interval where it is an accuracy; None if nobody has a score."""
    scored = [row for row in rows if np.isfinite(column_of([row], score.column)[0])]
    enough = [row for row in scored if int(row["test"]) >= ENOUGH]
    among = enough or scored
    if not among:
        return None
    worst = (max if score.smaller else min)(among, key=lambda row: (float(row[score.column]), str(row["client"])))
    value, test = float(worst[score.column]), int(worst["test"])
    level = 1 - (1 - LEVEL / 100) / len(among)
    ends = exact_interval(value, max(test, 1), level) if score.column == ACCURACY else (None, None)
    return Worst(str(worst["client"]), value, test, len(among), bool(enough), *ends)


def worst_of(rows: Sequence[Mapping[str, Any]], score: Score) -> dict[str, Any]:
    """Return what a summary says of the worst client; nothing if nobody has a score."""
    found = worst_client(rows, score)
    return {} if found is None else {"worst": asdict(found)}
