"""The pictures of a figure: those that reports of runs have, drawn for each panel from the folders of its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from coterie.errors import UnknownName
from coterie.experiments.building import build_data
from coterie.reporting.figures import maps, of_run
from coterie.reporting.figures.drawn import figures_side_by_side
from coterie.reporting.figures.marks import Figure, Interval, Intervals
from coterie.reporting.markup import Markup, element, trusted
from coterie.reporting.report.collecting import RunContent, collect_run
from coterie.reproducing.catalogue import Column
from coterie.reproducing.planning import Plan, Run, settings_on
from coterie.reproducing.results import Found
from coterie.reproducing.running import folder_of, numbers_of

WORDS: Mapping[str, tuple[str, str]] = {
    **of_run.CURVES,
    "purity": ("Purity", "share of clients in a cluster whose largest group is theirs"),
    "ari": ("Adjusted Rand index", "agreement of clusters and true groups; 0 is chance"),
    "loss": ("Train loss", "mean loss of the clients' training"),
    "temperature": ("Clustering temperature", "how far apart the clients' updates point"),
}
"""The scores of which there are curves: title and meaning."""


@dataclass(frozen=True)
class Panel:
    """What a picture shows: the finished runs of each method, by name, on some columns, and their cells."""

    plan: Plan
    columns: Sequence[Column]
    runs: Mapping[str, Sequence[Path]]
    found: Sequence[Found]

    @cached_property
    def contents(self) -> dict[str, list[RunContent]]:
        """Return what the folders of the runs hold."""
        return {name: [collect_run(folder) for folder in folders] for name, folders in self.runs.items()}

    def first(self) -> Iterable[tuple[str, RunContent]]:
        """Return the first run of each method, with its name."""
        return [(name, runs[0]) for name, runs in self.contents.items()]


Kind = Callable[[Panel], Iterable[Figure | None]]
"""``panel -> figures``: make figures; None stands for one that the panel has no data for."""


def draw(plan: Plan, found: Sequence[Found], out: Path) -> dict[str, Markup]:
    """Return the pictures of an experiment, by the name of the panel."""
    check_kinds(plan.experiment.figures)
    parts = panels_of(plan) if plan.experiment.figures else {}
    panels = {name: _panel(plan, columns, found, out) for name, columns in parts.items()}
    drawn = {name: _draw(place, panel) for place, (name, panel) in enumerate(panels.items())}
    return {name: text for name, text in drawn.items() if text}


def check_kinds(names: Iterable[str]) -> None:
    """Refuse a kind of picture that there is not."""
    for name in names:
        if name not in (*KINDS, DATA):
            raise UnknownName("kind of figure", name, (*KINDS, DATA))


def panels_of(plan: Plan) -> dict[str, list[Column]]:
    """Return the columns of each panel: those that fit its pattern, or one each."""
    columns = plan.experiment.columns
    patterns = plan.experiment.panels
    if not patterns:
        return {column.name: [column] for column in columns}
    return {each.strip("*, "): [one for one in columns if fnmatchcase(one.name, each)] for each in patterns}


def _panel(plan: Plan, columns: Sequence[Column], found: Sequence[Found], out: Path) -> Panel:
    cells = [one for one in found if one.cell.column in columns]
    runs: dict[str, dict[str, Run]] = {}
    for cell in (one.cell for one in cells if not one.cell.missing):
        runs.setdefault(cell.row.label(), {}).update({run.name: run for run in cell.runs})
    folders = {
        name: [folder_of(run, out) for run in some.values() if numbers_of(run, out) is not None]
        for name, some in runs.items()
    }
    return Panel(plan, columns, {name: some for name, some in folders.items() if some}, cells)


def _draw(place: int, panel: Panel) -> Markup:
    """Return all pictures of a panel; their ids are unique on the page."""
    kinds = panel.plan.experiment.figures
    made = [figure for kind in kinds if kind in KINDS for figure in KINDS[kind](panel) if figure is not None]
    unique = [replace(figure, id=f"p{place}-{n}-{figure.id}") for n, figure in enumerate(made)]
    shown = figures_side_by_side(unique) if unique else ""
    return trusted(f"{shown}{''.join(map(_holdings, _data(panel))) if DATA in kinds else ''}")


def _curves(panel: Panel) -> Iterable[Figure | None]:
    """Return scores by round: the mean over the runs of a method as a line, their range as a band."""
    histories = {name: [run.history for run in runs] for name, runs in panel.contents.items()}
    keys = panel.plan.experiment.curves
    return [of_run.curve(histories, key, *WORDS.get(key, (key, f"{key} of the records"))) for key in keys]


def _bars(panel: Panel) -> Iterable[Figure | None]:
    """Return ours with its range over seeds, and the published number with its deviation, for each measure."""
    measures = dict.fromkeys(one.cell.measure.name for one in panel.found if one.values)
    return [_both(name, [one for one in panel.found if one.cell.measure.name == name]) for name in measures]


def _both(measure: str, found: Sequence[Found]) -> Figure:
    rows = []
    for one in (each for each in found if each.ours is not None):
        name, printed = one.cell.row.label(), one.cell.printed
        rows.append(Interval(name, "ours", one.ours or 0.0, min(one.values), max(one.values)))
        if printed is not None:
            ends = (None, None) if printed.std is None else (printed.mean - printed.std, printed.mean + printed.std)
            rows.append(Interval(name, "published", printed.mean, *ends))
    about = f"{measure}: ours from the lowest to the highest seed, the published mean with its standard deviation."
    return Figure("both", measure, about, Intervals(tuple(rows), measure, joiner="", signed=False))


def _each(name: str, figure: Figure | None) -> Figure | None:
    """Return the figure of one run with the name of its method."""
    return None if figure is None else replace(figure, title=f"{figure.title}: {name}")


def _sizes(panel: Panel) -> Iterable[Figure | None]:
    return [_each(name, of_run.sizes(run.history)) for name, run in panel.first()]


def _flow(panel: Panel) -> Iterable[Figure | None]:
    return [_each(name, of_run.flow(run.labels, run.history)) for name, run in panel.first()]


def _truth(panel: Panel) -> Iterable[Figure | None]:
    return [
        _each(name, of_run.found_and_true(run.groups, run.labels[-1], dict(run.summary or {})))
        for name, run in panel.first()
        if run.groups is not None
    ]


def _map(panel: Panel) -> Iterable[Figure | None]:
    found = []
    for name, run in panel.first():
        rounds = [record["round"] for record in run.history[: len(run.labels)]]
        made = [] if run.sketches is None else maps.maps(run.sketches, run.labels, run.names, rounds)
        found += [_each(name, figure) for figure in made]
    return found


def _heatmap(panel: Panel) -> Iterable[Figure | None]:
    return [
        _each(name, maps.similarities(run.sketches, run.labels[-1], run.names))
        for name, run in panel.first()
        if run.sketches is not None
    ]


KINDS: Mapping[str, Kind] = {
    "curves": _curves,
    "bars": _bars,
    "sizes": _sizes,
    "flow": _flow,
    "truth": _truth,
    "map": _map,
    "heatmap": _heatmap,
}
"""The kinds of figures of runs that an experiment may name."""

DATA = "classes"
"""The kind of figure that shows who holds what, and needs no run."""


def _data(panel: Panel) -> Iterable[str]:
    """Yield pictures of how many examples of each class the clients have."""
    from coterie.reporting.data_view import draw_holdings
    from coterie.reporting.plots import svg

    for settings in (settings_on(panel.plan, column) for column in panel.columns):
        if settings is not None:
            picture = svg(draw_holdings(build_data(settings)))
            yield picture[picture.index("<svg") :]


def _holdings(picture: str) -> Markup:
    about = element("figcaption", "Train examples of each client by class, as counts and as shares.")
    white = element("div", trusted(picture), style="background:#fff")
    return element("figure", white, about, class_="chart")
