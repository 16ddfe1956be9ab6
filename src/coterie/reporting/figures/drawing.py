"""What drawings in a page are made of: paths, axes, the shapes of points, keys of a legend.

Colours are classes (``k0`` to ``k7`` of lines, ``c0`` to ``c6`` of clusters, ``cx`` of no cluster), which the style
sheet of the page gives for light and dark. What stands in ``data-tip`` is shown beside the pointer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from coterie.reporting.figures.axes import Scale, shown
from coterie.reporting.figures.palette import CLUSTERS, dash, marker
from coterie.reporting.markup import Child, Markup, element
from coterie.reporting.plots import COLOURS

WIDTH, HEIGHT = 500.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 10.0, 12.0, 42.0
"""The size of a drawing, and the room that is left for its axes."""


def svg(width: float, height: float, label: str, *children: Child) -> Markup:
    """Return a drawing that scales with the page; ``label`` says what it is to those who cannot see it."""
    return element("svg", *children, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label, tabindex=0)


def path(points: Iterable[tuple[float, float]], closed: bool = False) -> str:
    """Return the path through points, where a point that is not finite breaks the line.

    >>> path([(0, 0), (1, 2.04), (float("nan"), 0), (3, 3)])
    'M0 0L1 2M3 3'
    """
    words, pen = [], "M"
    for x, y in points:
        if not (np.isfinite(x) and np.isfinite(y)):
            pen = "M"
            continue
        words.append(f"{pen}{round(x, 1):g} {round(y, 1):g}")
        pen = "L"
    return "".join(words) + ("Z" if closed and words else "")


def grid(x: Scale, y: Scale, x_name: str, y_name: str, whole: bool = False) -> Markup:
    """Return the axes of a drawing: lines at round numbers, their values, and names."""
    ticks = _rounds(x) if whole else x.ticks(8)
    return element(
        "g",
        (element("path", d=path([(x.start, y(v)), (x.end, y(v))]), class_="rule") for v in y.ticks()),
        (element("text", shown(v), x=x.start - 6, y=y(v) + 4, class_="end") for v in y.ticks()),
        (element("text", shown(v), x=x(v), y=y.start + 16, class_="mid") for v in ticks),
        element("text", x_name, x=(x.start + x.end) / 2, y=y.start + 34, class_="mid name"),
        element("text", y_name, x=-(y.start + y.end) / 2, y=13.0, class_="mid name", transform="rotate(-90)"),
        class_="axes",
        aria_hidden="true",
    )


def _rounds(x: Scale) -> list[float]:
    """Return whole numbers on a scale, with the first where it stands apart from the next.

    >>> _rounds(Scale(1, 20, 0, 100)), _rounds(Scale(0.5, 1.5, 0, 100)), _rounds(Scale(1, 100, 0, 100))
    ([1, 5.0, 10.0, 15.0, 20.0], [1.0], [1, 20.0, 40.0, 60.0, 80.0, 100.0])
    """
    ticks = [tick for tick in x.ticks(8) if tick == int(tick)]
    apart = bool(ticks) and ticks[0] - x.low > 0.05 * (x.high - x.low) and x.low == int(x.low)
    return [x.low, *ticks] if apart else ticks


def shape(name: str, x: float, y: float, r: float) -> str:
    """Return the path of a marker."""
    x, y = round(x, 1), round(y, 1)
    d = f"{2 * r:g}"
    if name == "circle":
        return f"M{x - r:g} {y:g}a{r:g} {r:g} 0 1 0 {d} 0a{r:g} {r:g} 0 1 0 -{d} 0Z"
    corners: dict[str, Sequence[tuple[float, float]]] = {
        "square": [(-r, -r), (r, -r), (r, r), (-r, r)],
        "triangle": [(0, -1.2 * r), (1.15 * r, r), (-1.15 * r, r)],
        "diamond": [(0, -1.35 * r), (1.35 * r, 0), (0, 1.35 * r), (-1.35 * r, 0)],
        "cross": [
            (-r, -0.4 * r),
            (-0.4 * r, -0.4 * r),
            (-0.4 * r, -r),
            (0.4 * r, -r),
            (0.4 * r, -0.4 * r),
            (r, -0.4 * r),
            (r, 0.4 * r),
            (0.4 * r, 0.4 * r),
            (0.4 * r, r),
            (-0.4 * r, r),
            (-0.4 * r, 0.4 * r),
            (-r, 0.4 * r),
        ],
    }
    return path([(x + dx, y + dy) for dx, dy in corners[name]], closed=True)


def cluster_class(cluster: int) -> str:
    """Return the class that gives a cluster its colour."""
    return f"c{cluster % len(CLUSTERS)}" if cluster >= 0 else "cx"


def legend_key(name: str, k: int, kind: str, switch: bool = False) -> Markup:
    """Return an entry of a legend; a switch shows or hides its line."""
    colour = f"k{k % len(COLOURS)}" if kind == "k" else cluster_class(k)
    strokes = " ".join(map(str, dash(k))) or None
    sign: Child = element("path", d=shape(marker(k), 12, 7, 4), class_=f"dot {colour}")
    if kind == "k":
        sign = [element("path", d="M0 7H24", class_=f"stroke {colour}", stroke_dasharray=strokes), sign]
    sample = element("svg", sign, viewBox="0 0 24 14", width=24, height=14, aria_hidden="true")
    if not switch:
        return element("span", sample, " ", name, class_="key")
    return element("button", sample, " ", name, type="button", class_="key", aria_pressed="true", data_switch=k)


def line_class(place: int) -> str:
    """Return the class that gives a line its colour."""
    return f"k{place % len(COLOURS)}"
