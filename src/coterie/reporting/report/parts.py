"""The figures of a report, in the parts in which a page and a folder of pictures show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.experiments.verdict import LOCAL, NAMES, ONE_MODEL, Verdict
from coterie.reporting.figures import maps, of_run
from coterie.reporting.figures.marks import Figure, Interval, Intervals
from coterie.reporting.plots import History
from coterie.reporting.report.collecting import Content, RunContent

POINTS = 1200
"""Clients in the maps of all methods of a comparison together, so that a page stays small."""


@dataclass(frozen=True)
class Part:
    """Figures under one heading; ``missing`` says why there is none, or why one is not there."""

    id: str
    title: str
    figures: tuple[Figure, ...] = ()
    missing: str = ""


def parts(content: Content) -> list[Part]:
    """Return the figures of a report; of a comparison those of its methods, and of the clusters of each of them."""
    if not content.is_comparison:
        run = content.run
        return [_curves(_with_references(run), run), *cluster_figures(run)]
    clustered = {name: runs[0] for name, runs in content.runs.items() if has_clusters(runs[0])}
    most = min(maps.MOST_POINTS, POINTS // max(1, len(clustered)))
    each = (_of_method(name, run, cluster_figures(run, most)) for name, run in clustered.items())
    return [_curves(content.histories, content.run), *each]


def all_figures(content: Content, verdicts: Mapping[str, Verdict]) -> list[Figure]:
    """Return every figure of a report."""
    gains = gain_figure(verdicts)
    return [*([] if gains is None else [gains]), *(figure for part in parts(content) for figure in part.figures)]


def _with_references(run: RunContent) -> dict[str, list[History]]:
    others = {NAMES[which]: [other.history] for which, other in run.references.items()}
    return {run.settings.algorithm: [run.history], **others}


def _curves(histories: Mapping[str, Sequence[History]], run: RunContent) -> Part:
    found = tuple(of_run.curves(histories, run.settings.metric))
    return Part("curves", "Scores by round", found, "" if found else "No round has been evaluated yet.")


def _of_method(method: str, run: RunContent, found: Sequence[Part]) -> Part:
    """Return the parts of one method among others as one; ids and titles of its figures name it."""
    mark = "".join(letter if letter.isalnum() else "-" for letter in method)
    figures = tuple(
        replace(each, id=f"{mark}-{each.id}", title=f"{each.title}: {method}, seed {run.settings.seed}")
        for part in found
        for each in part.figures
    )
    missing = " ".join(part.missing for part in found if part.missing)
    return Part(f"{mark}-clusters", f"Clusters of {method}", figures, missing)


def has_clusters(run: RunContent) -> bool:
    """Return whether a run has several clusters, and not one for each client."""
    found = {int(label) for label in run.labels[-1]} - {-1} if run.labels else set()
    return 1 < len(found) < len(run.names)


def cluster_figures(run: RunContent, most: int = maps.MOST_POINTS) -> list[Part]:
    """Return the figures of the clusters of one run, maps with at most so many clients."""
    return [_clusters(run), _map(run, most), _similarity(run), _temperature(run)]


def _clusters(run: RunContent) -> Part:
    if not has_clusters(run):
        return Part("clusters", "Clusters over rounds", (), "All clients are in one cluster, or each is in its own.")
    score = dict(run.summary or {})
    true = None if run.groups is None else of_run.found_and_true(run.groups, run.labels[-1], score)
    drawn = (of_run.sizes(run.history), of_run.flow(run.labels, run.history), true, of_run.agreement(run.history))
    figures = tuple(figure for figure in drawn if figure is not None)
    missing = "" if run.groups is not None else _no_groups(run)
    return Part("clusters", "Clusters over rounds", figures, missing)


def _no_groups(run: RunContent) -> str:
    if not run.is_finished:
        return "Found against true clusters: shown when the run is finished."
    return "Found against true clusters: the true groups of these clients are not known."


def _map(run: RunContent, most: int) -> Part:
    """Return maps of clients; a run without sketches, such as that of a federation, has none."""
    if run.sketches is None:
        why = "No map: the folder has no sketches of clients' models. A federation keeps none of its clients' models, "
        return Part("map", "Map of clients", (), f"{why}and neither did runs of earlier versions.")
    rounds = [record["round"] for record in run.history[: len(run.labels)]]
    found = tuple(maps.maps(run.sketches, run.labels, run.names, rounds, most, neighbours=run.is_finished))
    few = "" if len(run.sketches.clients) == len(run.names) else f"A sample of {len(run.sketches.clients)} clients."
    return Part("map", "Map of clients", found, few if found else "No map: fewer than two clients have sketches yet.")


def _similarity(run: RunContent) -> Part:
    drawn: list[Figure | None] = []
    if run.sketches is not None and run.labels:
        drawn.append(maps.similarities(run.sketches, run.labels[-1], run.names))
    if run.distances is not None and run.labels and len(run.distances) == len(run.names):
        drawn.append(maps.distances(run.distances, run.labels[-1], run.names))
    figures = tuple(figure for figure in drawn if figure is not None)
    why = "" if figures else "No similarities: the folder has neither sketches of clients' models nor distances."
    return Part("similarity", "Similarity of clients", figures, why)


def _temperature(run: RunContent) -> Part:
    drawn = (of_run.temperature(run.history), of_run.personal_and_general(run.history))
    figures = tuple(figure for figure in drawn if figure is not None)
    why = "" if figures else "The records have neither a temperature nor PF1 and GF1, as those of many clients."
    return Part("temperature", "Temperature, personal and general F1", figures, why)


def gain_figure(verdicts: Mapping[str, Verdict]) -> Figure | None:
    """Return the gain of each method over one model and over local models with its interval; None without any."""
    rows = []
    for name, verdict in verdicts.items():
        sign = (-1 if verdict.score.smaller else 1) * verdict.score.scale
        for which in (ONE_MODEL, LOCAL):
            found = verdict.against.get(which)
            if found is not None:
                ends = (None, None) if found.low is None or found.high is None else (found.low, found.high)
                low, high = (None if end is None else sign * end for end in ends)
                low, high = (high, low) if sign < 0 else (low, high)
                rows.append(Interval(name, NAMES[which], sign * found.change, low, high))
    if not rows:
        return None
    score = next(iter(verdicts.values())).score
    unit = "points" if score.unit == "%" else score.unit or ("how much lower it is" if score.smaller else "")
    about = "Gain with its 95 % interval over clients, paired; right of zero is better."
    axis = f"gain in {score.name}{', ' + unit if unit else ''}"
    marks = Intervals(tuple(rows), axis, order=(NAMES[ONE_MODEL], NAMES[LOCAL]))
    return Figure("gains", "Gain over one model and local models", about, marks)
