"""A plan and the progress of its runs on the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from coterie.reproducing.costs import in_words
from coterie.reproducing.planning import Cell, Plan
from coterie.reproducing.running import Report, Tally
from coterie.terminal import cell, errors, tell

EVERY = 20.0
"""Seconds between two lines of progress where there is no terminal."""


def plan_table(plan: Plan) -> Table:
    """Return the rows of a plan: data, method, algorithm, measures, runs, and what is published."""
    table = Table()
    for head in ("column", "method", "algorithm", "measures", "runs", "published"):
        table.add_column(head)
    rows: dict[tuple[str, str], list[Cell]] = {}
    for each in plan.cells:
        rows.setdefault((each.column.name, each.row.label()), []).append(each)
    for (name, label), these in rows.items():
        measures = ", ".join(each.measure.name for each in these)
        printed = f"{sum(each.printed is not None for each in these)} of {len(these)}"
        algorithm = these[0].runs[0].settings.algorithm
        texts = (name, label, algorithm, measures, str(len(these[0].runs)), printed)
        table.add_row(*map(cell, texts))
    return table


@contextmanager
def overall() -> Iterator[Report]:
    """Give what shows how many runs are done and the time left: a bar, or a line now and then."""
    if not errors.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("runs"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, TextColumn("{task.fields[left]} left", markup=False), console=errors) as bar:
        task = bar.add_task("runs", total=1, left="?")

        def show(tally: Tally) -> None:
            bar.update(task, total=tally.runs, completed=tally.finished, left=in_words(tally.left()))

        yield show


def _lines() -> Report:
    """Return what tells the progress in a line, at most every few seconds."""
    last = -EVERY

    def show(tally: Tally) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY or tally.finished == tally.runs:
            last = now
            tell(f"{tally.finished} of {tally.runs} runs, about {in_words(tally.left())} left")

    return show
