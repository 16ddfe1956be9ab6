"""A plan on the terminal."""

from __future__ import annotations

from rich.table import Table

from coterie.reproducing.planning import Plan
from coterie.terminal import cell


def plan_table(plan: Plan) -> Table:
    """Return the rows of a plan: data, method, algorithm, measures, runs, and what is published."""
    table = Table()
    for head in ("column", "method", "algorithm", "measures", "runs", "published"):
        table.add_column(head)
    rows = dict.fromkeys((each.column.name, each.row) for each in plan.cells)
    for name, row in rows:
        these = [each for each in plan.cells if each.column.name == name and each.row == row]
        measures = ", ".join(each.measure.name for each in these)
        printed = f"{sum(each.printed is not None for each in these)} of {len(these)}"
        algorithm = these[0].runs[0].settings.algorithm
        texts = (name, row.label(), algorithm, measures, str(len(these[0].runs)), printed)
        table.add_row(*map(cell, texts))
    return table
