"""Ours beside theirs: the mean over seeds, its interval, the difference, and whether it is beyond chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from coterie.experiments.statistics import Interval, interval_over_seeds
from coterie.reproducing.measures import Numbers
from coterie.reproducing.planning import Cell, Plan
from coterie.reproducing.running import numbers_of

ERRORS = 2
"""A difference beyond this many standard errors is marked."""

FEWEST = 3
"""Methods whose order can be compared, and seeds that have an interval."""


@dataclass(frozen=True)
class Found:
    """A cell with our numbers, one for each seed that has one; ``missing`` says why there are none."""

    cell: Cell
    values: tuple[float, ...]
    missing: str = ""
    published_seeds: int | None = None

    @property
    def ours(self) -> float | None:
        """Return the mean over seeds."""
        return mean(self.values) if self.values else None

    @property
    def difference(self) -> float | None:
        """Return ours less the published number."""
        printed, ours = self.cell.printed, self.ours
        return None if printed is None or ours is None else ours - printed.mean

    @property
    def error(self) -> float | None:
        """Return the standard error of our mean; None of a single seed."""
        return stdev(self.values) / math.sqrt(len(self.values)) if len(self.values) > 1 else None

    def interval(self) -> Interval | None:
        """Return the 95 % interval of our mean over seeds; None of fewer than three, whose interval says nothing."""
        return interval_over_seeds(self.values) if len(self.values) >= FEWEST else None

    @property
    def beyond(self) -> bool | None:
        """Return whether the difference is beyond two standard errors of both means; None if nobody can tell.

        A published number without a standard deviation counts as exact, but for its rounding. Where some runs never
        came to a goal, the mean of the others is too low, and says nothing.
        """
        printed = self.cell.printed
        some_never = self.cell.measure.until is not None and len(self.values) < len(self.cell.runs)
        if printed is None or self.difference is None or self.error is None or some_never:
            return None
        theirs = 0.0 if printed.std is None else printed.std**2 / (self.published_seeds or 1)
        near = ERRORS * math.sqrt(self.error**2 + theirs) + printed.rounding
        return abs(self.difference) > near and not math.isclose(abs(self.difference), near, rel_tol=1e-9)


def order_agreement(found: Sequence[Found]) -> float | None:
    """Return Spearman's rank correlation of our numbers and the published ones; None of fewer than three methods."""
    from scipy.stats import spearmanr

    pairs = [(one.ours, one.cell.printed.mean) for one in found if one.ours is not None and one.cell.printed]
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if len(pairs) < FEWEST or len({*ours}) == 1 or len({*theirs}) == 1:
        return None
    return float(spearmanr(ours, theirs).statistic)


def collect(plan: Plan, out: Path, wrong: Mapping[str, str]) -> list[Found]:
    """Return every cell with our numbers."""
    known = {run.name: numbers_of(run, out) for run in plan.runs()}
    seeds = plan.experiment.published_seeds
    return [_found(cell, known, wrong, seeds) for cell in plan.cells]


def _found(cell: Cell, known: Mapping[str, Numbers | None], wrong: Mapping[str, str], seeds: int | None) -> Found:
    if cell.missing:
        return Found(cell, (), cell.missing, seeds)
    problems = [wrong[run.name] for run in (*cell.runs, *cell.others) if run.name in wrong]
    others: Sequence[Numbers | None] = [known[run.name] for run in cell.others] or [None] * len(cell.runs)
    pairs = zip([known[run.name] for run in cell.runs], others, strict=True)
    values = [cell.measure.value(run, cell.rounds, other) for run, other in pairs if run is not None]
    reached = tuple(value for value in values if value is not None)
    return Found(cell, reached, _why(problems, len(cell.runs), len(reached)), seeds)


def _why(problems: Sequence[str], runs: int, filled: int) -> str:
    """Return why a cell has no number, or one of fewer seeds than it should."""
    if problems:
        return f"{len(problems)} of {runs} runs failed: {problems[0]}" if filled else problems[0]
    if not filled:
        return "not reached"
    return f"{runs - filled} of {runs} runs did not reach it: the mean is of the others" if filled < runs else ""
