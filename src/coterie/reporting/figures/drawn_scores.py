"""Lines, stacked areas and intervals as SVG inside a page."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby

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
from coterie.reporting.figures.marks import Areas, Interval, Intervals, Line, Lines
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
    y = spanning(marks.range or numbers, HEIGHT - BOTTOM, TOP, log=marks.log).rounded()
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


ROW, BETWEEN = 24.0, 12.0
"""The height of a row of intervals, and the room between those of one name and of the next."""

LETTER, LONGEST, SPREAD = 7.0, 30, 190.0
"""The width of a letter, about, the letters of a name that are shown, and the width in which intervals are drawn."""


def draw_intervals(marks: Intervals) -> tuple[Markup, Child]:
    """Draw numbers with their intervals beside a line at zero, a row each, with the numbers in words beside them."""
    ats = _row_places(marks)
    bottom = ats[-1] + ROW
    words = [in_words(row, digits_of(marks), marks.signed) for row in marks.rows]
    left = min(LONGEST, max(len(row.name) for row in marks.rows)) * LETTER + 16
    right = left + SPREAD
    width = right + max(map(len, words)) * LETTER + 8
    known = [v for row in marks.rows for v in row.numbers if v is not None]
    x = spanning([0.0, *known], left, right, margin=0.04)
    ticks = x.ticks(6)
    rules = [element("path", d=path([(x(v), 4.0), (x(v), bottom)]), class_="rule") for v in ticks]
    zero = element("path", d=path([(x(0), 4.0), (x(0), bottom)]), class_="event")
    texts = [element("text", shown(v), x=x(v), y=bottom + 16, class_="mid") for v in ticks]
    name = element("text", marks.x, x=(left + right) / 2, y=bottom + 34, class_="mid name")
    rows = [_interval(marks, row, said, at, x) for row, said, at in zip(marks.rows, words, ats, strict=True)]
    beside = [element("text", said, x=right + 8, y=at + 4) for said, at in zip(words, ats, strict=True)]
    heads = [element("text", _cut(head), x=left - 10, y=at + 4, class_="end") for head, at in _heads(marks, ats)]
    drawing = svg(width, bottom + 44, marks.x, rules, zero, texts, name, rows, beside, heads)
    return drawing, [legend_key(f"{marks.joiner}{kind}", k + 1, "k") for k, kind in enumerate(marks.kinds)]


def digits_of(marks: Intervals) -> int:
    """Return the digits after the point of all numbers, so that the largest has two or three digits that count.

    >>> [digits_of(Intervals((Interval("a", "b", value, 0.0, value),), "")) for value in (11.1, 2.05, 0.0897, 0.0)]
    [1, 2, 3, 2]
    """
    largest = max((abs(v) for row in marks.rows for v in row.numbers if v is not None), default=1.0)
    power = math.floor(math.log10(largest)) if 0 < largest < math.inf else 0
    return max(0, 2 - power) if power >= 0 else 1 - power


def in_words(row: Interval, digits: int, signed: bool = True) -> str:
    """Return a number with its interval.

    >>> in_words(Interval("a", "b", 10.38, 9.7, 11), 1), in_words(Interval("a", "b", 0.01234, None, None), 4, False)
    ('+10.4 (+9.7 to +11.0)', '0.0123')
    """
    value, *ends = (None if v is None else f"{v:{'+' if signed else ''},.{digits}f}" for v in row.numbers)
    return f"{value}" if None in ends else f"{value} ({' to '.join(map(str, ends))})"


def _row_places(marks: Intervals) -> list[float]:
    """Return the height of every row; those of one name that follow each other stand together."""
    places, at = [], ROW / 2 + 2
    for i, row in enumerate(marks.rows):
        if i:
            at += ROW if row.name == marks.rows[i - 1].name else ROW + BETWEEN
        places.append(at)
    return places


def _heads(marks: Intervals, ats: list[float]) -> list[tuple[str, float]]:
    """Return every name once, with the middle of the rows that have it."""
    rows = groupby(zip(marks.rows, ats, strict=True), key=lambda each: each[0].name)
    return [(name, float(np.mean([at for _, at in some]))) for name, some in rows]


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _interval(marks: Intervals, row: Interval, said: str, at: float, x: Scale) -> Markup:
    k = marks.kinds.index(row.group) + 1
    line: Markup | None = None
    if row.low is not None and row.high is not None:
        ends = [x(row.low), x(row.high)]
        bar = f"M{ends[0]:.1f} {at:g}H{ends[1]:.1f}" + "".join(f"M{end:.1f} {at - 5:g}v10" for end in ends)
        line = element("path", d=bar, class_=f"whisker k{k}")
    tip = f"{row.name} {marks.joiner}{row.group}: {said}"
    point = element("path", d=shape(marker(k), x(row.value), at, 5), class_=f"dot k{k}", data_tip=tip)
    return element("g", line, point)
