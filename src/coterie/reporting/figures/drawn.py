"""Figures as SVG inside a page: small, with colours from the page's style, and notes for pointer and keyboard.

Colours are classes (``k0`` to ``k7`` of lines, ``c0`` to ``c6`` of clusters, ``cx`` of no cluster), which the style
sheet of the page gives for light and dark. What stands in ``data-tip`` is shown beside the pointer.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from coterie.reporting.figures.axes import Scale, shown, spanning
from coterie.reporting.figures.marks import Areas, Figure, Flow, Heatmap, Intervals, Line, Lines, Panel, Scatter
from coterie.reporting.figures.palette import CLUSTERS, dash, marker
from coterie.reporting.markup import Child, Markup, element, join
from coterie.reporting.plots import COLOURS

WIDTH, HEIGHT = 640.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 12.0, 12.0, 42.0

MARKED = 24
"""Lines of up to so many points have a marker at every point; longer ones at some."""


def draw(figure: Figure) -> Markup:
    """Return a figure as an element of a page, with a legend and its numbers as CSV."""
    body, legend = DRAWN[type(figure.marks)](figure.marks)
    data = base64.b64encode(figure.csv().encode()).decode()
    caption = element(
        "figcaption",
        element("span", figure.about),
        " ",
        element("a", "CSV", href=f"data:text/csv;base64,{data}", download=f"{figure.id}.csv",
                aria_label=f"numbers of {figure.title} as CSV") if len(data) < 200_000 else None,
    )
    head = element("h3", figure.title, id=f"{figure.id}-title")
    keys = element("div", legend, class_="legend") if legend else None
    return element("figure", head, keys, body, caption, class_="chart", id=f"figure-{figure.id}")


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
    ticks = [tick for tick in x.ticks(8) if not whole or tick == int(tick)]
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


def draw_lines(marks: Lines) -> tuple[Markup, Child]:
    """Draw bands first, with thin edges, then lines, so that no band hides another or a line."""
    numbers = [v for line in marks.lines for v in (*line.y, *line.low, *line.high)]
    x = spanning((v for line in marks.lines for v in line.x), LEFT, WIDTH - RIGHT)
    y = spanning(numbers, HEIGHT - BOTTOM, TOP, margin=0.04)
    events = (
        element(
            "g",
            element("path", d=path([(x(each.x), TOP), (x(each.x), HEIGHT - BOTTOM)]), class_="event"),
            element("text", each.text, x=x(each.x) + (5 if x(each.x) < WIDTH / 2 else -5), y=TOP + 12,
                    class_="name" if x(each.x) < WIDTH / 2 else "name end"),
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
    return drawing, [_key(name, k, "k", switch=True) for k, name in enumerate(names)] if len(names) > 1 else None


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
        class_=f"k{k % len(COLOURS)}",
        data_of=k,
    )


def _stroke(line: Line, k: int, x: Scale, y: Scale) -> Markup:
    places = ((x(at), y(v)) for at, v in zip(line.x, line.y, strict=True))
    strokes = " ".join(map(str, dash(k))) or None
    return element("path", d=path(places), class_=f"stroke k{k % len(COLOURS)}", stroke_dasharray=strokes, data_of=k)


def _points(line: Line, k: int, x: Scale, y: Scale, axis: str) -> list[Markup]:
    """Return a point for the pointer at every number; of a long line only some are visible."""
    step = max(1, len(line.x) // MARKED)
    ends = zip(line.low, line.high, strict=True) if line.low else ((None, None) for _ in line.x)
    found = []
    for place, (at, value, (low, high)) in enumerate(zip(line.x, line.y, ends, strict=True)):
        if not np.isfinite(value):
            continue
        between = "" if low is None or high is None else f" ({shown(low)} to {shown(high)})"
        seen = "" if place % step == 0 else " faint"
        found.append(
            element("path", d=shape(marker(k), x(at), y(value), 3.2), class_=f"dot k{k % len(COLOURS)}{seen}",
                    data_of=k, data_tip=f"{line.name}, {axis} {shown(at)}: {shown(value)}{between}")
        )
    return found


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
        "cross": [(-r, -0.4 * r), (-0.4 * r, -0.4 * r), (-0.4 * r, -r), (0.4 * r, -r), (0.4 * r, -0.4 * r),
                  (r, -0.4 * r), (r, 0.4 * r), (0.4 * r, 0.4 * r), (0.4 * r, r), (-0.4 * r, r), (-0.4 * r, 0.4 * r),
                  (-r, 0.4 * r)],
    }  # fmt: skip
    return path([(x + dx, y + dy) for dx, dy in corners[name]], closed=True)


def cluster_class(cluster: int) -> str:
    """Return the class that gives a cluster its colour."""
    return f"c{cluster % len(CLUSTERS)}" if cluster >= 0 else "cx"


def _key(name: str, k: int, kind: str, switch: bool = False) -> Markup:
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
            element("path", d=path([*upper, *reversed(lower)], closed=True), class_=f"layer {cluster_class(number)}",
                    data_tip=tip)
        )
    drawing = svg(
        WIDTH, HEIGHT, f"{marks.y} by {marks.x_name}", grid(x, y, marks.x_name, marks.y, whole=True), layers
    )
    names = [name for name, _ in marks.layers]
    return drawing, [_key(name, -1 if name == "no cluster" else k, "c") for k, name in enumerate(names)]


def draw_flow(marks: Flow) -> tuple[Markup, Child]:
    """Draw blocks in columns, and ribbons between them whose width is the number of clients."""
    total = max(sum(marks.sizes(column).values()) for column in range(len(marks.columns))) or 1
    gap = min(10.0, 120.0 / max(len(each) for each in marks.names))
    most = max(len(each) for each in marks.names)
    unit = (HEIGHT - TOP - 34 - gap * (most - 1)) / total
    across = np.linspace(56.0, WIDTH - 68.0, len(marks.columns)).tolist()
    tops = [_tops(marks.sizes(column), unit, gap) for column in range(len(marks.columns))]
    left = [dict(each) for each in tops]
    right = [dict(each) for each in tops]
    ribbons = []
    for link in sorted(marks.links, key=lambda each: (each.column, each.source, each.target)):
        high = link.count * unit
        one, other = right[link.column], left[link.column + 1]
        start, end = one[link.source], other[link.target]
        one[link.source] += high
        other[link.target] += high
        x0, x1 = across[link.column] + 12, across[link.column + 1]
        mid = (x0 + x1) / 2
        curve = (
            f"M{x0:.1f} {start:.1f}C{mid:.1f} {start:.1f} {mid:.1f} {end:.1f} {x1:.1f} {end:.1f}"
            f"v{high:.1f}C{mid:.1f} {end + high:.1f} {mid:.1f} {start + high:.1f} {x0:.1f} {start + high:.1f}Z"
        )
        tip = (
            f"{link.count} clients: {marks.name(link.column, link.source)} ({marks.columns[link.column]}) to "
            f"{marks.name(link.column + 1, link.target)} ({marks.columns[link.column + 1]})"
        )
        ribbons.append(element("path", d=curve, class_=f"ribbon {cluster_class(link.source)}", data_tip=tip))
    blocks = [_blocks(marks, column, across[column], tops[column], unit) for column in range(len(marks.columns))]
    return svg(WIDTH, HEIGHT, " to ".join(marks.columns), ribbons, blocks), None


def _tops(sizes: dict[int, int], unit: float, gap: float) -> dict[int, float]:
    found, at = {}, TOP
    for block, size in sizes.items():
        found[block] = at
        at += size * unit + gap
    return found


def _blocks(marks: Flow, column: int, x: float, tops: dict[int, float], unit: float) -> list[Markup]:
    """Return the blocks of a column with their names: at its left for the first column, at its right for the last."""
    sizes, last = marks.sizes(column), column == len(marks.columns) - 1
    found = [
        element("rect", x=x, y=tops[block], width=12.0, height=max(1.0, size * unit),
                class_=f"block {cluster_class(block)}",
                data_tip=f"{marks.name(column, block)}, {marks.columns[column]}: {size} clients")
        for block, size in sizes.items()
    ]  # fmt: skip
    if column == 0 or last:
        side = (x + 16, "") if last else (x - 4, "end")
        found += [
            element("text", marks.name(column, block).replace("cluster ", ""), x=side[0],
                    y=tops[block] + sizes[block] * unit / 2 + 4, class_=side[1] or None)
            for block in sizes
        ]
    return [*found, element("text", marks.columns[column], x=x + 6, y=HEIGHT - 8, class_="mid name")]


def draw_scatter(marks: Scatter) -> tuple[Markup, Child]:
    """Draw the panels of points beside each other."""
    count = len(marks.panels)
    across = 1 if count == 1 else 2
    down = -(-count // across)
    wide, high = WIDTH / across, 250.0 if across > 1 else 340.0
    everything = np.concatenate([panel.points for panel in marks.panels]) if marks.common else None
    panels = [
        element("g", _cloud(panel, panel.points if everything is None else everything, wide, high),
                transform=f"translate({(i % across) * wide:g} {(i // across) * high:g})")
        for i, panel in enumerate(marks.panels)
    ]  # fmt: skip
    clusters = sorted({cluster for panel in marks.panels for cluster in panel.groups})
    keys = [_key(f"cluster {k}" if k >= 0 else "no cluster", k, "c") for k in clusters] if len(clusters) <= 40 else None
    return svg(WIDTH, high * down, "points of clients", panels), keys


def _cloud(panel: Panel, everything: Any, wide: float, high: float) -> list[Markup]:
    x = spanning(everything[:, 0], 8, wide - 8, margin=0.05)
    y = spanning(everything[:, 1], high - 8, 24, margin=0.05)
    frame = element("rect", x=4, y=20.0, width=wide - 8, height=high - 24, class_="frame")
    dots = [
        element("path", d=shape(marker(group), x(px), y(py), 3.6), class_=f"point {cluster_class(group)}",
                data_tip=f"{name}: {'cluster ' + str(group) if group >= 0 else 'no cluster'}")
        for name, group, (px, py) in zip(panel.names, panel.groups, panel.points, strict=True)
    ]  # fmt: skip
    return [frame, element("text", panel.title, x=8, y=14.0, class_="name"), *dots]


def draw_heatmap(marks: Heatmap) -> tuple[Markup, Child]:
    """Draw a square of colours as a picture, with the borders of clusters; values are there for the pointer."""
    count, size = len(marks.names), 440.0
    share = np.clip((marks.values - marks.low) / ((marks.high - marks.low) or 1.0), 0, 1)
    levels = np.where(np.isfinite(share), share * 255, 0).astype(np.uint8)
    picture = base64.b64encode(_png(levels)).decode()
    groups = np.array(marks.groups)
    borders = (np.flatnonzero(np.diff(groups)) + 1) / count * size
    rules = "".join(f"M{b:.1f} 0V{size:g}M0 {b:.1f}H{size:g}" for b in borders)
    middle = {int(g): (np.flatnonzero(groups == g).mean() + 0.5) / count * size for g in np.unique(groups)}
    texts = [
        element("text", str(g) if g >= 0 else "–", x=size + 8, y=float(at) + 4)
        for g, at in (middle.items() if len(middle) <= 40 else ())
    ]
    image = element("image", href=f"data:image/png;base64,{picture}", width=size, height=size, class_="cells",
                    preserveAspectRatio="none")  # fmt: skip
    drawing = svg(size + 40, size, f"{marks.what} of clients", image, element("path", d=rules, class_="border"), texts)
    data = base64.b64encode(levels.tobytes()).decode()
    about = {"data_heat": data, "data_names": "\n".join(marks.names), "data_low": marks.low, "data_high": marks.high}
    bar = element("span", element("span", shown(marks.low)), element("span", class_="ramp"),
                  element("span", shown(marks.high)), f" {marks.what}", class_="key")  # fmt: skip
    return element("div", drawing, class_="square", **about), bar


RAMP = ((0, 32, 77), (60, 77, 110), (124, 123, 120), (187, 172, 105), (255, 234, 70))
"""Five colours of cividis, a ramp that looks the same to colour-blind readers, from low to high."""


def _png(levels: Any) -> bytes:
    """Return a picture of levels 0 to 255 as PNG."""
    from PIL import Image

    at = np.linspace(0, len(RAMP) - 1, 256)
    colours = np.stack([np.interp(at, np.arange(len(RAMP)), np.array(RAMP)[:, i]) for i in range(3)], axis=1)
    image = Image.fromarray(levels)
    image.putpalette(colours.round().astype(np.uint8).tobytes())
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


def draw_intervals(marks: Intervals) -> tuple[Markup, Child]:
    """Draw numbers with their intervals beside a line at zero, a row each."""
    kinds = list(dict.fromkeys(row.group for row in marks.rows))
    high = 30.0 * len(marks.rows)
    ends = [v for row in marks.rows for v in (row.value, row.low, row.high) if v is not None]
    x, y = spanning([0.0, *ends], 150, WIDTH - 20, margin=0.04), Scale(0, 1, high + 10, 6)
    found = []
    for place, row in enumerate(marks.rows):
        at, k = 20 + 30.0 * place, kinds.index(row.group) + 1
        tip = f"{row.name} against {row.group}: {row.value:+.3g}"
        line: Markup | None = None
        if row.low is not None and row.high is not None:
            tip += f" ({row.low:+.3g} to {row.high:+.3g})"
            bar = f"M{x(row.low):.1f} {at:g}H{x(row.high):.1f}M{x(row.low):.1f} {at - 5:g}v10M{x(row.high):.1f} {at - 5:g}v10"
            line = element("path", d=bar, class_=f"whisker k{k}")
        point = element("path", d=shape(marker(k), x(row.value), at, 5), class_=f"dot k{k}", data_tip=tip)
        found.append(element("g", line, point, element("text", row.name[:24], x=142.0, y=at + 4, class_="end")))
    zero = element("path", d=path([(x(0), 6), (x(0), high + 10)]), class_="event")
    ticks = [element("text", shown(v), x=x(v), y=high + 26, class_="mid") for v in x.ticks(8)]
    rules = [element("path", d=path([(x(v), y.end), (x(v), y.start)]), class_="rule") for v in x.ticks(8)]
    name = element("text", marks.x, x=(150 + WIDTH - 20) / 2, y=high + 44, class_="mid name")
    drawing = svg(WIDTH, high + 54, marks.x, rules, zero, ticks, name, found)
    return drawing, [_key(f"against {kind}", k + 1, "k") for k, kind in enumerate(kinds)]


DRAWN: dict[type, Callable[[Any], tuple[Markup, Child]]] = {
    Lines: draw_lines,
    Areas: draw_areas,
    Flow: draw_flow,
    Scatter: draw_scatter,
    Heatmap: draw_heatmap,
    Intervals: draw_intervals,
}
"""How each kind of marks is drawn: the drawing and its legend."""


def figures_side_by_side(figures: Sequence[Figure]) -> Markup:
    """Return figures beside each other where the page is wide enough."""
    return element("div", map(draw, figures), class_="charts") if figures else join(None)
