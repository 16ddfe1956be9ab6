"""What a cell of a table shows of a run: a score of its summary, of one round, over rounds, or when it was reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.experiments.settings import Goal, read_goal

Record = dict[str, Any]


@dataclass(frozen=True)
class Numbers:
    """The numbers of a finished run: its summary and the records of its rounds."""

    summary: Record
    history: Sequence[Record]


@dataclass(frozen=True)
class Measure:
    """A number of a run.

    ``of``: a name of the summary. With ``at``: of the record of that round, counted from 1. With ``mean``: its mean
    over all rounds of the paper, in which a round with one cluster counts 0 and the last one stands for those that were
    not run. ``until``: the number of rounds to a goal; with ``than``: how many percent fewer than that method needs.
    ``published`` is the metric's name among the published numbers, ``percent`` says that it is printed in percent.
    """

    name: str
    of: str = ""
    at: int | None = None
    mean: bool = False
    until: str | None = None
    than: str | None = None
    percent: bool = False
    published: str | None = None

    def __post_init__(self) -> None:
        if self.until is not None:
            read_goal(self.until)

    def value(self, run: Numbers, rounds: int, other: Numbers | None = None) -> float | None:
        """Return the number of a run, or of a run beside the ``other`` one; None if the run does not have it.

        ``rounds`` are those of the paper's version.
        """
        if self.until is not None:
            return _rounds_to(read_goal(self.until), run.history, None if other is None else other.history)
        if self.mean:
            return mean_over(run.history, self.of, rounds)
        last = {**_sizes(run.history[-1]), **run.summary}
        found = last.get(self.of) if self.at is None else _at(run.history, self.of, self.at)
        return None if found is None else float(found) * (100 if self.percent else 1)


def mean_over(history: Sequence[Record], name: str, rounds: int) -> float:
    """Return the mean of a score over rounds; one cluster counts 0, the last round stands for those not run.

    >>> one, two = {"clusters": [4], "ari": 1.0}, {"clusters": [2, 2], "ari": 0.5}
    >>> mean_over([one, two], "ari", 5)
    0.4
    """
    scores = [float(r[name]) if _sizes(r)["clusters_used"] > 1 else 0.0 for r in history[:rounds]]
    return (sum(scores) + scores[-1] * (rounds - len(scores))) / rounds


def _at(history: Sequence[Record], name: str, number: int) -> Any:
    """Return a score of a round, counted from 1; None if that round was not recorded."""
    record = next((r for r in history if r["round"] + 1 == number), None)
    return None if record is None else {**_sizes(record), **record}.get(name)


def _sizes(record: Record) -> Record:
    """Return what the sizes of the clusters say: how many are in use, and the share of the largest."""
    sizes = record["clusters"]
    return {"clusters_used": sum(size > 0 for size in sizes), "largest_share": max(sizes) / max(sum(sizes), 1)}


def _rounds_to(goal: Goal, history: Sequence[Record], other: Sequence[Record] | None) -> float | None:
    """Return the rounds to a goal, or how many percent fewer than the other; one that never came needed one more."""
    first = goal.first(history)
    if other is None:
        return None if first is None else first + 1.0
    theirs = goal.first(other)
    if first is None:
        return None
    return 100 * (1 - (first + 1) / (len(other) + 1 if theirs is None else theirs + 1))
