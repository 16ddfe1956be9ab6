"""Pictures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

History = list[dict[str, Any]]

STYLE: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#F0E442")


def save_comparison(path: Path, runs: dict[str, list[History]], title: str) -> None:
    """Accuracy and worst client by round, and every seed's gain over the first method, as one PNG."""
    target = "rmse" if "rmse" in _judged(next(iter(runs.values()))[0])[-1] else "accuracy"
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        curve, worst, *gains = figure.subplots(1, 3 if len(runs) > 1 else 2)
        for colour, (name, histories) in zip(COLOURS * len(runs), runs.items(), strict=False):
            _curve(curve, histories, target, name, colour)
            _curve(worst, histories, "worst", name, colour)
        _label(curve, f"{target} over all clients", "round")
        _label(worst, "worst client", "round")
        for axes in gains:
            _gains(axes, runs, target)
        curve.legend(frameon=False, loc="best")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.savefig(path, dpi=150)


def _judged(history: History) -> History:
    return [r for r in history if "worst" in r]


def _curve(axes: Axes, histories: list[History], key: str, name: str, colour: str) -> None:
    """Mean over seeds as a line, lowest to highest seed as a band."""
    rounds = [r["round"] + 1 for r in _judged(histories[0])]
    values = np.array([[r[key] for r in _judged(h)] for h in histories])
    axes.plot(rounds, values.mean(axis=0), color=colour, label=name, linewidth=1.6)
    axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def _gains(axes: Axes, runs: dict[str, list[History]], key: str) -> None:
    names = list(runs)
    first = np.array([_judged(h)[-1][key] for h in runs[names[0]]])
    sign = 100 if key == "accuracy" else -1
    for place, name in enumerate(names[1:]):
        last = np.array([_judged(h)[-1][key] for h in runs[name]])
        colour = COLOURS[(place + 1) % len(COLOURS)]
        difference = sign * (last - first)
        axes.scatter(difference, np.full(len(last), place), color=colour, alpha=0.6, s=22)
        axes.scatter(difference.mean(), place, color=colour, marker="|", s=400)
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set_yticks(range(len(names) - 1), names[1:])
    axes.set_ylim(len(names) - 1.5, -0.5)
    unit = "points" if key == "accuracy" else "rmse less"
    _label(axes, f"gain over {names[0]}, each seed", unit)


def _label(axes: Axes, title: str, x: str) -> None:
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_xlabel(x)
