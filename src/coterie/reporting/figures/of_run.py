"""The figures of one run, from the records of its rounds and the labels of its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from coterie.reporting.figures.marks import Areas, Event, Figure, Flow, Line, Lines, Link
from coterie.reporting.plots import History
from coterie.typing import Array

BANDS = "the line is the mean over seeds, the band goes from the lowest to the highest seed"

CURVES: Mapping[str, tuple[str, str]] = {
    "accuracy": ("Accuracy", "accuracy over all test examples"),
    "rmse": ("Error", "root of the mean squared error over all test examples, in the target's unit"),
    "metric": ("Metric", "mean over the clients at which it is defined"),
    "macro_f1": ("Macro-F1", "mean of the classes' F1, over clients"),
    "worst": ("Worst client", "the score of the client that is served worst"),
    "test_loss": ("Loss", "mean loss over all test examples"),
}
"""The scores of rounds that have a figure: title and meaning."""

UNBOUNDED = ("rmse", "test_loss")
"""Scores that grow without limit where a method diverges, which would flatten the lines of all others ..."""

WIDE = 100.0
"""... unless the axis is logarithmic, as it is where the largest is more than so many times the least."""

MOST_COLUMNS = 8
"""Rounds that a flow of labels shows."""

MOST_CLUSTERS = 40
"""With more clusters (local models) a flow and sizes of clusters show nothing."""


def curve(histories: Mapping[str, Sequence[History]], key: str, title: str, about: str) -> Figure | None:
    """Return a score by round, a line for each method with a band over its seeds; None if no record has it."""
    found = [_line(name, some, key) for name, some in histories.items()]
    lines = tuple(line for line in found if line is not None)
    if not lines:
        return None
    values = [v for line in lines for v in (*line.y, *line.low) if np.isfinite(v)]
    log = key in UNBOUNDED and bool(values) and 0 < min(values) < max(values) / WIDE
    said = [about, *([BANDS] if any(line.low for line in lines) else []), *(["the axis is logarithmic"] if log else [])]
    marks = Lines(lines, title[0].lower() + title[1:], log=log)
    return Figure(key.replace("_", "-"), title, f"{title} by round: {'; '.join(said)}.", marks)


def curves(histories: Mapping[str, Sequence[History]], metric: str | None = None) -> list[Figure]:
    """Return the scores by round that the records have, first ``metric``, the one that the user named."""
    words = dict(CURVES)
    if metric is not None:
        words = {
            "metric": (metric.rpartition(":")[2], words["metric"][1]),
            **{k: v for k, v in words.items() if k != "metric"},
        }
    found = (curve(histories, key, *some) for key, some in words.items())
    return [figure for figure in found if figure is not None]


def _line(name: str, histories: Sequence[History], key: str) -> Line | None:
    """Return the mean of a score over runs by round, with its range where there are several runs.

    A run that has ended before the others keeps its last score.
    """
    known = [[(r["round"] + 1, float(r[key])) for r in history if r.get(key) is not None] for history in histories]
    known = [each for each in known if each]
    if not known:
        return None
    rounds = np.unique([number for each in known for number, _ in each])
    values = np.array([_held(each, rounds) for each in known])
    band = (_floats(values.min(axis=0)), _floats(values.max(axis=0))) if len(known) > 1 else ((), ())
    return Line(name, _floats(rounds), _floats(values.mean(axis=0)), *band)


def _held(points: Sequence[tuple[int, float]], rounds: Array) -> Array:
    numbers, values = (np.array(part) for part in zip(*points, strict=True))
    held: Array = values[np.maximum(np.searchsorted(numbers, rounds, side="right") - 1, 0)]
    return held


def _floats(values: Array) -> tuple[float, ...]:
    return tuple(map(float, values))


def agreement(history: History) -> Figure | None:
    """Return how well clusters agree with the true groups by round: purity and adjusted Rand index."""
    return several_scores(
        history,
        {"purity": "purity", "ari": "adjusted Rand index"},
        ("agreement", "Agreement with the true groups", "agreement"),
        "1 is full agreement; an adjusted Rand index of 0 is chance",
    )


def personal_and_general(history: History) -> Figure | None:
    """Return by round how well clients' models do on their own test data, and on data of all (ocfl)."""
    return several_scores(
        history,
        {"pf1": "PF1, own test data", "gf1": "GF1, uniform test data"},
        ("learning-gap", "Personal and general F1", "macro-F1"),
        "the mean over clients of their models' macro-F1, on their own data and on data with all classes alike",
    )


def several_scores(
    history: History, names: Mapping[str, str], words: tuple[str, str, str], about: str
) -> Figure | None:
    """Return several scores of one run in one figure; ``words``: its id, its title and the name of the axis."""
    found = [_line(name, [history], key) for key, name in names.items()]
    lines = tuple(line for line in found if line is not None)
    identity, title, axis = words
    return (
        Figure(identity, title, f"{title} by round: {about}.", Lines(lines, axis, range=(0.0, 1.0))) if lines else None
    )


def temperature(history: History) -> Figure | None:
    """Return the clustering temperature by round with its event: the round in which clusters formed (ocfl fig. 3)."""
    line = _line("temperature", [history], "temperature")
    if line is None:
        return None
    when = formed(history)
    events = () if when is None else (Event(float(when), f"clusters formed in round {when}"),)
    about = "how far apart the clients' updates point, 0 alike, 1 opposite"
    said = f"Clustering temperature by round: {about}{'; ' + events[0].text if events else ''}."
    return Figure("temperature", "Clustering temperature", said, Lines((line,), "temperature", events=events))


def formed(history: History) -> int | None:
    """Return the first round (from 1) with more than one cluster, of a run that began with one; None if none has.

    >>> formed([{"round": 0, "clusters": [4]}, {"round": 1, "clusters": [2, 2]}]), formed([])
    (2, None)
    """
    counts = [(r["round"] + 1, sum(size > 0 for size in r["clusters"])) for r in history]
    found = next((number for number, count in counts if count > 1), None)
    return None if counts and counts[0][1] > 1 else found


def sizes(history: History) -> Figure | None:
    """Return the sizes of clusters by round, stacked."""
    widest = max((len(record["clusters"]) for record in history), default=0)
    if not 0 < widest <= MOST_CLUSTERS:
        return None
    heights = np.array([[*r["clusters"], *[0] * (widest - len(r["clusters"]))] for r in history], dtype=float)
    layers = [(f"cluster {k}", _floats(heights[:, k])) for k in range(widest)]
    without = np.array([float(r.get("there", sum(r["clusters"])) - sum(r["clusters"])) for r in history])
    layers += [("no cluster", _floats(without))] if without.any() else []
    rounds = tuple(float(record["round"] + 1) for record in history)
    about = f"Clients in each of {widest} clusters by round, stacked."
    return Figure("sizes", "Sizes of clusters", about, Areas(rounds, tuple(layers), "clients"))


def flow(labels: Sequence[Array], history: History) -> Figure | None:
    """Return who moved from which cluster to which between rounds (thesis figures 7.5)."""
    numbers = [record["round"] + 1 for record in history[: len(labels)]]
    if len(labels) < 2 or max(int(each.max(initial=-1)) for each in labels) >= MOST_CLUSTERS:
        return None
    places = turning_points(labels, MOST_COLUMNS)
    chosen = [labels[place] for place in places]
    if max(map(int, map(np.max, chosen))) < 1:
        return None
    moved = sum(int((one != other).sum()) for one, other in pairwise(labels))
    said = f"labels changed {moved} times in all" if moved else "no client ever changed its cluster"
    about = f"Clients that go from cluster to cluster over rounds; {said}."
    columns = tuple(f"round {numbers[place]}" for place in places)
    return Figure("flow", "Flow of labels", about, flow_between(chosen, columns, cluster_name))


def turning_points(labels: Sequence[Array], most: int) -> list[int]:
    """Return the places of the first and the last labels, and of those that differ most from the ones before.

    >>> turning_points([np.array(each) for each in ([0, 0], [0, 1], [0, 1], [1, 1], [1, 1])], 4)
    [0, 1, 3, 4]
    """
    changes = [int((one != other).sum()) for one, other in pairwise(labels)]
    busy = [place for place in np.argsort(changes, kind="stable")[::-1].tolist() if changes[place]]
    return sorted({0, len(labels) - 1, *(place + 1 for place in busy[: most - 2])})


def found_and_true(groups: Array, labels: Array, scores: Mapping[str, Any]) -> Figure | None:
    """Return the true groups of clients beside the clusters that were found (thesis figure 7.7).

    Groups stand in the order of the clusters in which they ended, whose numbers say nothing.
    """
    if max(int(labels.max(initial=-1)), int(groups.max(initial=-1))) >= MOST_CLUSTERS:
        return None
    known = [f"{name} {scores[key]:.2f}" for key, name in (("purity", "purity"), ("ari", "ARI")) if scores.get(key)]
    about = f"Each true group of clients and the clusters in which it ended{': ' + ', '.join(known) if known else ''}."
    marks = flow_between([groups, labels], ("true groups", "clusters found"), cluster_name, lambda k: f"group {k}")
    ends = {k: float(np.median(labels[groups == k])) for k in np.unique(groups).tolist()}
    beside = tuple(sorted(marks.names[0], key=lambda each: ends[each[0]]))
    marks = replace(marks, names=(beside, *marks.names[1:]), from_groups=True)
    return Figure("found-true", "Found against true clusters", about, marks)


def cluster_name(number: int) -> str:
    """Return the name of a cluster; -1 is none."""
    return f"cluster {number}" if number >= 0 else "no cluster"


def flow_between(labels: Sequence[Array], columns: tuple[str, ...], name: Any, first: Any = None) -> Flow:
    """Return the flow of clients through these labels; ``first`` names the blocks of the first column, if others."""
    links: list[Link] = []
    for column, (one, other) in enumerate(pairwise(labels)):
        pairs, counts = np.unique(np.stack([one, other]), axis=1, return_counts=True)
        links += [
            Link(column, int(source), int(target), int(count))
            for (source, target), count in zip(pairs.T, counts, strict=True)
        ]
    naming = [first or name, *[name] * (len(labels) - 1)]
    names = tuple(
        tuple((int(k), call(int(k))) for k in np.unique(each)) for each, call in zip(labels, naming, strict=True)
    )
    return Flow(columns, tuple(links), names)
