"""The pictures of a figure, as SVG: curves, sizes of clusters, bars, classes of clients; one for each panel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.reproducing.catalogue import Column, Experiment
from coterie.reproducing.measures import Numbers
from coterie.reproducing.planning import Plan, settings_on
from coterie.reproducing.results import Found
from coterie.reproducing.running import folder_of, numbers_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

History = list[dict[str, Any]]


@dataclass(frozen=True)
class Finished:
    """A finished run: its folder and its numbers."""

    folder: Path
    numbers: Numbers


@dataclass(frozen=True)
class Panel:
    """What a picture shows: the finished runs of each method, its cells, its columns and the experiment."""

    plan: Plan
    columns: Sequence[Column]
    runs: Mapping[str, Sequence[Finished]]
    found: Sequence[Found]

    @property
    def experiment(self) -> Experiment:
        """Return the experiment of the plan."""
        return self.plan.experiment

    def histories(self) -> dict[str, list[History]]:
        """Return the records of all runs of each method."""
        return {name: [list(run.numbers.history) for run in runs] for name, runs in self.runs.items()}


Kind = Callable[[Panel], str]
"""``panel -> SVG``: draw a picture; empty if the panel has nothing of the kind."""


def draw(plan: Plan, found: Sequence[Found], out: Path) -> dict[str, str]:
    """Return the pictures of an experiment, by the name of the panel."""
    told = plan.experiment
    patterns = told.panels or tuple(column.name for column in told.columns)
    panels = {pattern.rstrip("*").rstrip(", "): _panel(plan, pattern, found, out) for pattern in patterns}
    drawn = {name: "".join(KINDS[kind](panel) for kind in told.figures) for name, panel in panels.items()}
    return {name: text for name, text in drawn.items() if text}


def _panel(plan: Plan, pattern: str, found: Sequence[Found], out: Path) -> Panel:
    """Return the part of an experiment whose columns have the name, or fit the pattern."""
    columns = [each for each in plan.experiment.columns if each.name == pattern or fnmatchcase(each.name, pattern)]
    cells = [one for one in found if one.cell.column in columns]
    runs: dict[str, dict[str, Finished]] = {}
    for cell in (one.cell for one in cells if not one.cell.missing):
        for run in cell.runs:
            numbers = numbers_of(run, out)
            if numbers is not None:
                runs.setdefault(cell.row.label(), {})[run.name] = Finished(folder_of(run, out), numbers)
    return Panel(plan, columns, {name: list(some.values()) for name, some in runs.items()}, cells)


def _curves(panel: Panel) -> str:
    """Draw scores by round: the mean over the runs of a method as a line, their range as a band."""
    from coterie.reporting.plots import draw_curves

    return _svg(draw_curves(panel.histories(), panel.experiment.curves)) if panel.runs else ""


def _sizes(panel: Panel) -> str:
    """Draw how many clients each cluster has by round, of the first run of each method."""
    from coterie.reporting.plots import draw_sizes

    return _svg(draw_sizes({name: list(runs[0].numbers.history) for name, runs in panel.runs.items()}))


def _bars(panel: Panel) -> str:
    """Draw a bar for each method and measure, with the published number as a line across it."""
    from coterie.reporting.plots import draw_bars

    measures = {one.cell.measure.name: one.cell.measure for one in panel.found if one.values}
    values = {
        name: {
            one.cell.row.label(): (one.values, None if one.cell.printed is None else one.cell.printed.mean)
            for one in panel.found
            if one.cell.measure.name == name and one.values
        }
        for name in measures
    }
    return _svg(draw_bars(values)) if values else ""


def _classes(panel: Panel) -> str:
    """Draw how many examples of each class every client has."""
    from coterie.experiments.building import build_data
    from coterie.reporting.data_view import draw_holdings

    known = [settings_on(panel.plan, column) for column in panel.columns]
    return "".join(_svg(draw_holdings(build_data(settings))) for settings in known if settings is not None)


def _svg(figure: Figure) -> str:
    from coterie.reporting.plots import svg

    picture = svg(figure)
    return picture[picture.index("<svg") :]


KINDS: Mapping[str, Kind] = {"curves": _curves, "sizes": _sizes, "bars": _bars, "classes": _classes}
"""The kinds of pictures that an experiment may name."""
