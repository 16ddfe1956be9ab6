"""The curves of a figure: a score by round, a line for each method, as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.reproducing.planning import Plan
from coterie.reproducing.running import numbers_of

History = list[dict[str, Any]]


def draw_columns(plan: Plan, out: Path) -> dict[str, str]:
    """Return the curves of an experiment that has some, by the name of the column."""
    if not plan.experiment.curves:
        return {}
    found: dict[str, dict[str, list[History]]] = {}
    for each in plan.cells:
        known = [] if each.missing else [numbers_of(run, out) for run in each.runs]
        histories = [list(one.history) for one in known if one is not None]
        if histories:
            found.setdefault(each.column.name, {})[each.row.label()] = histories
    return {name: _draw(runs, plan.experiment.curves) for name, runs in found.items()}


def _draw(runs: dict[str, list[History]], scores: tuple[str, ...]) -> str:
    from coterie.reporting.plots import draw_curves, svg

    picture = svg(draw_curves(runs, scores))
    return picture[picture.index("<svg") :]
