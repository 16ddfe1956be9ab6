"""What is wrong with a user's data, all of it at once, and what the data are like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.data.tables.problems import Problem

MAJORITY = 0.9
RARE = 10

Counts = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Check:
    """The problems of a user's data, and the facts; ``counts`` are the examples of each class, none in a regression."""

    problems: tuple[Problem, ...]
    clients: int = 0
    rows: int = 0
    features: int = 0
    inputs: int = 0
    counts: Counts = ()
    notes: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the data can be used as they are."""
        return not self.problems

    @property
    def majority(self) -> float | None:
        """The share of the most frequent class: what always naming it would get right."""
        total = sum(count for _, count in self.counts)
        return max(count for _, count in self.counts) / total if total else None

    @property
    def rarest(self) -> tuple[str, int] | None:
        """The class with the fewest examples, and how many it has."""
        return min(self.counts, key=lambda pair: pair[1], default=None)

    def lines(self) -> list[str]:
        """The whole report, line by line."""
        sizes = f"{self.clients} clients, {self.rows} rows, {self.features} features ({self.inputs} inputs)"
        facts = [sizes] if self.clients else []
        shown = ", ".join(f"{name} {count}" for name, count in self.counts[:20])
        more = f", and {len(self.counts) - 20} more" if len(self.counts) > 20 else ""
        kind = [f"classes: {shown}{more}; the largest has {self.majority:.1%}"] if self.counts else []
        found = [f"problem: {problem}" for problem in self.problems] or ["no problem found"]
        return [*facts, *kind, *(f"note: {note}" for note in self.notes), *found]


def imbalance(counts: Sequence[tuple[str, int]]) -> list[str]:
    """What a user should know of classes that are rare, or that are nearly all.

    >>> imbalance([("ill", 4), ("well", 96)])
    ["96% of the examples are of class 'well'; look at macro scores", "class 'ill' has 4 examples"]
    """
    total = sum(count for _, count in counts)
    notes = [
        f"{count / total:.0%} of the examples are of class {name!r}; look at macro scores"
        for name, count in counts
        if count > MAJORITY * total
    ]
    rare = [(name, count) for name, count in counts if 0 < count < RARE]
    if rare:
        others = f", and {len(rare) - 1} more classes have fewer than {RARE}" if len(rare) > 1 else ""
        notes.append(f"class {rare[0][0]!r} has {rare[0][1]} example{'s' * (rare[0][1] > 1)}{others}")
    return notes
