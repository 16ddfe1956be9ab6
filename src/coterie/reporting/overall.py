"""How far the work is, on standard error: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from coterie.reporting.durations import duration
from coterie.terminal import errors, tell

EVERY = 15.0
"""Seconds between two lines of progress where there is no terminal."""


@dataclass
class Pace:
    """Lines of progress: the first, then one at most every few seconds, and the last."""

    every: float = EVERY
    last: float = -math.inf

    def is_due(self, final: bool = False) -> bool:
        """Return whether it is time for a line; then the time until the next begins."""
        now = time.monotonic()
        if not final and now - self.last < self.every:
            return False
        self.last = now
        return True


@dataclass(frozen=True)
class SoFar:
    """How many runs of all are finished, the seconds that are left, if that is known, and what is done now."""

    runs: int
    finished: int
    left: float | None = None
    now: str = ""

    def __str__(self) -> str:
        left = "" if self.left is None else f", about {duration(self.left)} left"
        return f"{self.finished} of {self.runs} runs{left}{self.now and f'; {self.now}'}"


ShowSoFar = Callable[[SoFar], None]


@contextmanager
def overall(quiet: bool = False) -> Iterator[ShowSoFar]:
    """Give what shows how many runs are done and the time left: a bar, or a line now and then."""
    if quiet:
        yield lambda so_far: None
    elif errors.is_terminal:
        columns = (TextColumn("runs"), BarColumn(bar_width=16), TextColumn("{task.fields[done]}"), TimeElapsedColumn())
        with Bar(*columns, TextColumn("{task.fields[now]}", markup=False), console=errors) as bar:
            task = bar.add_task("runs", total=1, done="", now="")
            yield lambda so_far: bar.update(
                task,
                total=so_far.runs,
                completed=so_far.finished,
                done=f"{so_far.finished}/{so_far.runs}",
                now=" ".join(filter(None, (_left(so_far), so_far.now))),
            )
    else:
        pace = Pace()
        yield lambda so_far: tell(so_far) if pace.is_due(so_far.finished == so_far.runs) else None


def _left(so_far: SoFar) -> str:
    return "" if so_far.left is None else f"{duration(so_far.left)} left"
