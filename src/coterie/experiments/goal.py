"""A score that a run is to reach: the round in which it first did, and whether that ends the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from coterie.experiments.data_facts import DataFacts

OF_CLASSES, OF_TARGETS, OF_CLUSTERS = ("accuracy", "macro_f1"), ("rmse",), ("purity", "ari")
"""The scores that may be a goal: of a classification, of a regression (an error: at most), and beside a known truth."""


@dataclass(frozen=True)
class Goal:
    """A score of a round and the value that it is to reach: at least this, or at most this where it is an error."""

    name: str
    value: float

    def __str__(self) -> str:
        return f"{self.name}={self.value:g}"

    @property
    def key(self) -> str:
        """Return the key of a summary for the first round in which the goal held."""
        return f"rounds_to_{self.name}"

    def holds(self, record: dict[str, Any]) -> bool:
        """Return whether a round reached the goal; a round without the score did not."""
        found = record.get(self.name)
        if found is None:
            return False
        return bool(found <= self.value if self.name in OF_TARGETS else found >= self.value)

    def first(self, history: Sequence[dict[str, Any]]) -> int | None:
        """Return the number of the first round, from 0, in which the goal held; None if it never did."""
        return next((record["round"] for record in history if self.holds(record)), None)

    def check(self, known: DataFacts) -> None:
        """Refuse a score that a run on such data does not have."""
        scores = OF_TARGETS if known.classes is None else OF_CLASSES
        possible = scores if known.groups is None else (*scores, *OF_CLUSTERS)
        if self.name not in possible:
            what = "the true groups are not known" if self.name in OF_CLUSTERS else f"{known.data} has no such score"
            raise UsageError(f"until is {self}, but {what}; take {' or '.join(possible)}")


PURE = Goal("purity", 0.9)
"""The goal of the joint paper, recorded in every run with known true groups."""


def read_goal(text: str) -> Goal:
    """Read a goal as people write it.

    >>> read_goal("accuracy=0.9")
    Goal(name='accuracy', value=0.9)
    """
    name, _, number = (word.strip() for word in text.partition("="))
    known = (*OF_CLASSES, *OF_TARGETS, *OF_CLUSTERS)
    if name not in known:
        raise UnknownName("score to reach", name, known)
    try:
        value = float(number)
    except ValueError:
        raise UsageError(f"until is {text!r}; write a score and a number, such as {name}=0.9") from None
    if not 0 < value <= (math.inf if name in OF_TARGETS else 1) or math.isinf(value):
        raise UsageError(f"until is {text!r}; the number must be {'> 0' if name in OF_TARGETS else 'in (0, 1]'}")
    return Goal(name, value)
