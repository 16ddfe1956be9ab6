"""Lines, stacked areas and intervals as SVG inside a page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.reporting.figures.axes import Scale, shown, spanning
from coterie.reporting.figures.drawing import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    cluster_class,
    grid,
    legend_key,
    line_class,
    path,
    shape,
    svg,
)
from coterie.reporting.figures.marks import Areas, Intervals, Line, Lines
from coterie.reporting.figures.palette import dash, marker
from coterie.reporting.markup import Child, Markup, element

MARKED = 24
"""Lines of up to so many points have a marker at every point; longer ones at some."""

NOTED = 64
"""Points of a line that have a note for the pointer, at most."""

MOST_POINTS = 250
"""Points through which a line goes, at most."""


def draw_lines(marks: Lines) -> tuple[Markup, Child]:
    """Draw bands first, with thin edges, then lines, so that no band hides another or a line."""
    marks = replace(marks, lines=tuple(map(thinned, marks.lines)))
    numbers = [v for line in marks.lines for v in (*line.y, *line.low, *line.high)]
    x = spanning((v for line in marks.lines for v in line.x), LEFT, WIDTH - RIGHT)
    y = spanning(marks.range or numbers, HEIGHT - BOTTOM, TOP, margin=0.04)
    events = (
        element(
            "g",
            element("path", d=path([(x(each.x), TOP), (x(each.x), HEIGHT - BOTTOM)]), class_="event"),
            element(
                "text",
                each.text,
                x=x(each.x) + (5 if x(each.x) < WIDTH / 2 else -5),
                y=TOP + 12,
                class_="name" if x(each.x) < WIDTH / 2 else "name end",
            ),
        )
        for each in marks.events
    )
    drawing = svg(
        WIDTH,
        HEIGHT,
        f"{marks.y} by {marks.x}",
        grid(x, y, marks.x, marks.y, whole=True),
        (_band(line, k, x, y) for k, line in enumerate(marks.lines)),
        (_stroke(line, k, x, y) for k, line in enumerate(marks.lines)),
        events,
        (_points(line, k, x, y, marks.x) for k, line in enumerate(marks.lines)),
    )
    names = [line.name for line in marks.lines]
    return drawing, [legend_key(name, k, "k", switch=True) for k, name in enumerate(names)] if len(names) > 1 else None


def thinned(line: Line) -> Line:
    """Return a line of at most ``MOST_POINTS`` points, which is more than a page shows; first and last are kept."""
    if len(line.x) <= MOST_POINTS:
        return line
    places = np.linspace(0, len(line.x) - 1, MOST_POINTS).round().astype(int).tolist()
    x, y, low, high = (tuple(part[i] for i in places) if part else () for part in (line.x, line.y, line.low, line.high))
    return Line(line.name, x, y, low, high)


def _band(line: Line, k: int, x: Scale, y: Scale) -> Markup | None:
    if not line.low:
        return None
    low = [(x(at), y(v)) for at, v in zip(line.x, line.low, strict=True)]
    high = [(x(at), y(v)) for at, v in zip(line.x, line.high, strict=True)]
    edges = path(high) + path(low)
    return element(
        "g",
        element("path", d=path([*high, *reversed(low)], closed=True), class_="band"),
        element("path", d=edges, class_="edge"),
        class_=line_class(k),
        data_of=k,
    )


def _stroke(line: Line, k: int, x: Scale, y: Scale) -> Markup:
    places = ((x(at), y(v)) for at, v in zip(line.x, line.y, strict=True))
    strokes = " ".join(map(str, dash(k))) or None
    return element("path", d=path(places), class_=f"stroke {line_class(k)}", stroke_dasharray=strokes, data_of=k)


def _points(line: Line, k: int, x: Scale, y: Scale, axis: str) -> list[Markup]:
    """Return points for the pointer, at every number or of a long line at some; of these again some are visible."""
    noted = -(-len(line.x) // NOTED)
    step = noted * max(1, len(line.x) // noted // MARKED)
    ends = zip(line.low, line.high, strict=True) if line.low else ((None, None) for _ in line.x)
    found = []
    for place, (at, value, (low, high)) in enumerate(zip(line.x, line.y, ends, strict=True)):
        if place % noted or not np.isfinite(value):
            continue
        between = "" if low is None or high is None else f" ({shown(low)} to {shown(high)})"
        seen = "" if place % step == 0 else " faint"
        found.append(
            element(
                "path",
                d=shape(marker(k), x(at), y(value), 3.2),
                class_=f"dot {line_class(k)}{seen}",
                data_of=k,
                data_tip=f"{line.name}, {axis} {shown(at)}: {shown(value)}{between}",
            )
        )
    return found


def draw_areas(marks: Areas) -> tuple[Markup, Child]:
    """Draw layers on each other, with the page's background between them."""
    heights = np.array([values for _, values in marks.layers], dtype=float)
    xs = marks.x if len(marks.x) > 1 else (marks.x[0] - 0.5, marks.x[0] + 0.5)
    heights = heights if len(marks.x) > 1 else np.repeat(heights, 2, axis=1)
    tops = heights.cumsum(axis=0)
    x = spanning(xs, LEFT, WIDTH - RIGHT)
    y = Scale(0.0, float(tops[-1].max()) or 1.0, HEIGHT - BOTTOM, TOP)
    layers = []
    for k, (name, values) in enumerate(marks.layers):
        upper = [(x(at), y(v)) for at, v in zip(xs, tops[k], strict=True)]
        lower = [(x(at), y(v)) for at, v in zip(xs, tops[k] - heights[k], strict=True)]
        number = -1 if name == "no cluster" else k
        tip = f"{name}: {shown(values[0])} clients at first, {shown(values[-1])} at the end"
        layers.append(
            element(
                "path",
                d=path([*upper, *reversed(lower)], closed=True),
                class_=f"layer {cluster_class(number)}",
                data_tip=tip,
            )
        )
    drawing = svg(WIDTH, HEIGHT, f"{marks.y} by {marks.x_name}", grid(x, y, marks.x_name, marks.y, whole=True), layers)
    names = [name for name, _ in marks.layers]
    return drawing, [legend_key(name, -1 if name == "no cluster" else k, "c") for k, name in enumerate(names)]


def draw_intervals(marks: Intervals) -> tuple[Markup, Child]:
    """Draw numbers with their intervals beside a line at zero, a row each."""
    kinds = list(dict.fromkeys(row.group for row in marks.rows))
    high = 30.0 * len(marks.rows)
    known = [v for row in marks.rows for v in (row.value, row.low, row.high) if v is not None]
    x, y = spanning([0.0, *known], 120, WIDTH - 20, margin=0.04), Scale(0, 1, high + 10, 6)
    found = []
    for place, row in enumerate(marks.rows):
        at, k = 20 + 30.0 * place, kinds.index(row.group) + 1
        tip = f"{row.name} against {row.group}: {row.value:+.3g}"
        line: Markup | None = None
        if row.low is not None and row.high is not None:
            tip += f" ({row.low:+.3g} to {row.high:+.3g})"
            ends = [x(row.low), x(row.high)]
            bar = f"M{ends[0]:.1f} {at:g}H{ends[1]:.1f}" + "".join(f"M{end:.1f} {at - 5:g}v10" for end in ends)
            line = element("path", d=bar, class_=f"whisker k{k}")
        point = element("path", d=shape(marker(k), x(row.value), at, 5), class_=f"dot k{k}", data_tip=tip)
        found.append(element("g", line, point, element("text", row.name[:18], x=112.0, y=at + 4, class_="end")))
    zero = element("path", d=path([(x(0), 6), (x(0), high + 10)]), class_="event")
    ticks = [element("text", shown(v), x=x(v), y=high + 26, class_="mid") for v in x.ticks(8)]
    rules = [element("path", d=path([(x(v), y.end), (x(v), y.start)]), class_="rule") for v in x.ticks(8)]
    name = element("text", marks.x, x=(120 + WIDTH - 20) / 2, y=high + 44, class_="mid name")
    drawing = svg(WIDTH, high + 54, marks.x, rules, zero, ticks, name, found)
    return drawing, [legend_key(f"against {kind}", k + 1, "k") for k, kind in enumerate(kinds)]
