"""Goals: a score that a run is to reach, and the first round in which it does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from coterie.experiments.data_facts import DataFacts

OF_CLASSES, OF_TARGETS, OF_CLUSTERS = ("accuracy", "macro_f1"), ("rmse",), ("purity", "ari")
"""Scores that may be a goal: of classification, of regression (an error: at most), and of clusters with true groups."""


@dataclass(frozen=True)
class Goal:
    """A score and the value that it is to reach: at least this value, or at most this value if it is an error."""

    name: str
    value: float

    def __str__(self) -> str:
        return f"{self.name}={self.value:g}"

    @property
    def key(self) -> str:
        """Return the key of a summary for the first round that reached the goal."""
        return f"rounds_to_{self.name}"

    def holds(self, record: dict[str, Any]) -> bool:
        """Return whether a round reached the goal; a round without the score did not."""
        score = record.get(self.name)
        if score is None:
            return False
        return bool(score <= self.value if self.name in OF_TARGETS else score >= self.value)

    def first(self, history: Sequence[dict[str, Any]]) -> int | None:
        """Return the number of the first round, from 0, that reached the goal; None if none did."""
        return next((record["round"] for record in history if self.holds(record)), None)

    def check(self, facts: DataFacts) -> None:
        """Refuse a score that runs on these data do not have."""
        scores = OF_TARGETS if facts.classes is None else OF_CLASSES
        possible = scores if facts.groups is None else (*scores, *OF_CLUSTERS)
        if self.name not in possible:
            what = "the true groups are not known" if self.name in OF_CLUSTERS else f"{facts.data} has no such score"
            raise UsageError(f"until is {self}, but {what}; take {' or '.join(possible)}")


PURE = Goal("purity", 0.9)
"""The goal of the joint paper, recorded in every run with true groups."""


def read_goal(text: str) -> Goal:
    """Parse a goal.

    >>> read_goal("accuracy=0.9")
    Goal(name='accuracy', value=0.9)
    """
    name, _, number = (word.strip() for word in text.partition("="))
    scores = (*OF_CLASSES, *OF_TARGETS, *OF_CLUSTERS)
    if name not in scores:
        raise UnknownName("score to reach", name, scores)
    try:
        value = float(number)
    except ValueError:
        raise UsageError(f"until is {text!r}; write a score and a number, such as {name}=0.9") from None
    if not 0 < value <= (math.inf if name in OF_TARGETS else 1) or math.isinf(value):
        raise UsageError(f"until is {text!r}; the number must be {'> 0' if name in OF_TARGETS else 'in (0, 1]'}")
    return Goal(name, value)
