"""The main score of a run: the metric that the user named, else accuracy or rmse. Everything is judged by it.

Its column has the same name in records of rounds, in summaries and in ``clients.csv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.engine.metrics import find_metric
from coterie.typing import Array

METRIC, ACCURACY, RMSE = "metric", "accuracy", "rmse"
"""The columns that may hold it."""

SPLIT = "test"
"""The split of each client that scores are of, unless their name begins with ``validation_``."""

LARGE = 10
"""Values without a unit from here on are shown with four digits, wherever the point is."""


@dataclass(frozen=True)
class Score:
    """The score by which clients and methods are compared: its column, and how a text shows it.

    squared   over clients it is the root of the mean of its squares, as that of errors is; otherwise it is the mean
    pooled    that of a run is of all clients' examples together, not a mean over clients
    why       why a client may have no value, in words
    """

    column: str
    name: str
    smaller: bool = False
    squared: bool = False
    scale: float = 1.0
    unit: str = ""
    pooled: bool = False
    why: str = ""

    @property
    def sign(self) -> int:
        """Return 1 if larger is better, else -1."""
        return -1 if self.smaller else 1

    @property
    def digits(self) -> int:
        """Return the digits after the point that tables show."""
        return 1 if self.unit else 3

    @property
    def title(self) -> str:
        """Return the heading of its column."""
        return f"{self.name} {self.unit}".rstrip()

    @property
    def difference(self) -> str:
        """Return what a gain is measured in.

        >>> main_score(False).difference, main_score(True).difference, main_score(False, "auroc").difference
        ('points', 'lower rmse', 'auroc')
        """
        return "points" if self.unit else f"lower {self.name}" if self.smaller else self.name

    @property
    def of_clients(self) -> Score:
        """Return the score of single clients, which has another name where a run's is of all examples together."""
        return Score(self.column, f"each client's own {self.name}", self.smaller, why=self.why) if self.pooled else self

    def over_clients(self, values: Array, weights: Array) -> Array:
        """Return the score over clients, by weights ``(..., clients)``."""
        mean: Array = weights @ (values**2 if self.squared else values) / weights.sum(axis=-1)
        return np.sqrt(mean) if self.squared else mean

    def show(self, value: float, sign: str = "") -> str:
        """Return a value of this score, or with a sign a difference of two, as a text shows it."""
        shown = f"{value * self.scale:{sign}.{self.digits}f}"
        return f"{value * self.scale:{sign}.4g}" if not self.unit and abs(value) >= LARGE else shown

    def in_unit(self, value: float) -> str:
        """Return a value of this score with its unit."""
        return f"{self.show(value)} {self.unit}".rstrip()

    def of_round(self, record: Mapping[str, Any]) -> str:
        """Return what a line of progress says of a round; nothing if it was not evaluated.

        >>> main_score(False, "auroc").of_round({"metric": 0.81, "worst": 0.7})
        'auroc 0.810 worst 0.700'
        """
        known = ((self.name, record.get(self.column)), ("worst", record.get("worst")))
        return " ".join(
            f"{name} {value:.4g}" if value >= LARGE else f"{name} {value:.3f}"
            for name, value in known
            if value is not None
        )


def main_score(regression: bool, metric: str | None = None) -> Score:
    """Return the main score of a run on such data, with the metric that the user named.

    >>> main_score(True).name, main_score(False, "balanced_accuracy").column
    ('rmse', 'metric')
    """
    if metric is not None:
        found, call = find_metric(metric)
        name = str(call).rpartition(":")[2]
        return Score(METRIC, name, found.smaller, pooled=found.pool is not None, why=found.undefined)
    if regression:
        return Score(RMSE, RMSE, smaller=True, squared=True)
    return Score(ACCURACY, ACCURACY, scale=100.0, unit="%")


def score_of(found: Mapping[str, Any]) -> Score:
    """Return the main score of a run from its summary."""
    return main_score(RMSE in found, found.get("metric_name"))
