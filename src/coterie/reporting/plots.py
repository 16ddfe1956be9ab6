"""Pictures of runs; matplotlib, which takes half a second to import, is imported when the first is drawn."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.experiments.main_score import SPLIT, Score, score_of
from coterie.experiments.statistics import LEVEL, interval_over_seeds
from coterie.experiments.summary import evaluated_rounds, last_in_words, mean_of_last
from coterie.terminal import plain
from coterie.typing import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History = list[dict[str, Any]]

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # a name with dollars is a name
}
# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#F0E442")


def draw_comparison(
    runs: dict[str, list[History]],
    title: str,
    last: int,
    levels: Mapping[str, Sequence[float]] | None = None,
    score: Score | None = None,
) -> Figure:
    """Draw the main score and the worst client by round, and the gain of each seed over the first method.

    ``levels`` are the scores of baselines, which have no rounds: a dashed line each. ``score``: by the records unless
    the user named a metric. A band is from the lowest to the highest seed, a bar the interval over seeds.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    score = score or score_of(evaluated_rounds(next(iter(runs.values()))[0])[-1])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        curve, worst, *gains = figure.subplots(1, 3 if len(runs) > 1 else 2)
        for colour, (name, histories) in zip(COLOURS * len(runs), runs.items(), strict=False):
            _curve(curve, histories, score.column, name=name, colour=colour)
            _curve(worst, histories, "worst", name=name, colour=colour)
        for name, values in (levels or {}).items():
            curve.axhline(float(np.mean(values)), label=plain(name), color="#777777", linewidth=1, linestyle="--")
        several = " (band: all seeds)" if len(next(iter(runs.values()))) > 1 else ""
        _label(curve, f"{score.name} over all clients, {SPLIT} split{several}", "round")
        _label(worst, f"worst client's {score.name}", "round")
        for axes in gains:
            _gains(axes, gains_by_seed(runs, score, last))
            bars = f" ({LEVEL} % interval over seeds)" if several else ""
            _label(axes, f"gain over {next(iter(runs))}, each seed{bars}", f"{score.difference}, {last_in_words(last)}")
        curve.legend(frameon=False, loc="best")
        figure.suptitle(plain(title), x=0.01, ha="left", fontsize=10)
    return figure


def draw_run(history: History, title: str, score: Score | None = None) -> Figure:
    """Draw the main score of one run by round, and the sizes of its clusters; ``score``: by the records if None."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    score = score or score_of(evaluated_rounds(history)[-1])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 3.0), layout="constrained")
        scores, clusters = figure.subplots(1, 2)
        for colour, key, name in zip(COLOURS, (score.column, "worst"), (score.name, "worst client"), strict=False):
            _curve(scores, [history], key, name=name, colour=colour)
        rounds = [record["round"] + 1 for record in history]
        widest = max(len(record["clusters"]) for record in history)
        sizes = np.array([[*r["clusters"], *[0] * (widest - len(r["clusters"]))] for r in history], dtype=float).T
        clusters.stackplot(rounds, sizes, colors=[COLOURS[1 + k % (len(COLOURS) - 1)] for k in range(widest)])
        _label(scores, f"{score.name}, {SPLIT} split", "round")
        _label(clusters, "clients in each cluster", "round")
        scores.legend(frameon=False, loc="best")
        figure.suptitle(plain(title), x=0.01, ha="left", fontsize=10)
    return figure


def draw_curves(runs: dict[str, list[History]], scores: Sequence[str]) -> Figure:
    """Draw scores by round, a panel each and a line for each method; a score that the records lack is left out."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.5 * len(scores), 3.2), layout="constrained")
        for axes, key in zip(figure.subplots(1, len(scores), squeeze=False)[0], scores, strict=True):
            for colour, (name, histories) in zip(COLOURS * len(runs), runs.items(), strict=False):
                have = [[r for r in history if r.get(key) is not None] for history in histories]
                if all(have):
                    _curve(axes, have, key, name=name, colour=colour)
            _label(axes, key, "round")
            axes.legend(frameon=False, loc="best")
    return figure


def svg(figure: Figure) -> str:
    """Return a figure as SVG, for a page or a notebook."""
    import matplotlib as mpl

    content = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "coterie"}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def _curve(axes: Axes, histories: list[History], key: str, *, name: str, colour: str) -> None:
    """Draw the mean over seeds as a line, and the range from the lowest to the highest seed as a band."""
    rounds, values = curves(histories, key)
    axes.plot(rounds, values.mean(axis=0), color=colour, label=plain(name), linewidth=1.6)
    axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def curves(histories: list[History], key: str) -> tuple[Array, Array]:
    """Return the evaluated rounds, and a score ``(runs, rounds)``; a run that has ended keeps its last score.

    >>> short, long = [{"round": 0, "worst": 0.5}], [{"round": 0, "worst": 0.25}, {"round": 1, "worst": 0.75}]
    >>> [part.tolist() for part in curves([short, long], "worst")]
    [[1, 2], [[0.5, 0.5], [0.25, 0.75]]]
    """
    own = [np.array([r["round"] + 1 for r in evaluated_rounds(h)]) for h in histories]
    rounds = np.unique(np.concatenate(own))
    places = [np.maximum(np.searchsorted(numbers, rounds, side="right") - 1, 0) for numbers in own]
    scores = [np.array([r[key] for r in evaluated_rounds(h)], dtype=float) for h in histories]
    return rounds, np.array([values[place] for values, place in zip(scores, places, strict=True)])


def gains_by_seed(runs: dict[str, list[History]], score: Score, last: int) -> dict[str, Array]:
    """Return the gain of each method over the first, by seed, as tables show it; larger is better."""
    scale = score.sign * score.scale
    found = {
        name: scale * np.array([mean_of_last(h, last)[score.column] for h in histories], dtype=float)
        for name, histories in runs.items()
    }
    first = found.pop(next(iter(runs)))
    return {name: values - first for name, values in found.items()}


def _gains(axes: Axes, gains: dict[str, Array]) -> None:
    for place, difference in enumerate(gains.values()):
        colour = COLOURS[(place + 1) % len(COLOURS)]
        axes.scatter(difference, np.full(len(difference), place), color=colour, alpha=0.6, s=22)
        axes.scatter(difference.mean(), place, color=colour, marker="|", s=400)
        between = interval_over_seeds(difference.tolist())
        if between is not None:
            axes.plot(between, [place, place], color=colour, linewidth=1.2)
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set_yticks(range(len(gains)), [*map(plain, gains)])
    axes.set_ylim(len(gains) - 0.5, -0.5)


def _label(axes: Axes, title: str, x: str) -> None:
    axes.set_title(plain(title), loc="left", fontsize=9)
    axes.set_xlabel(x)
