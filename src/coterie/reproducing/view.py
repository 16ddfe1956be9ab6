"""A plan on the terminal."""

from __future__ import annotations

from rich.table import Table

from coterie.reproducing.planning import Cell, Plan
from coterie.terminal import cell


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
