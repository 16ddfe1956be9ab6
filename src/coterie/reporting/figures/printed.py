"""Figures for print: the same values drawn by matplotlib, which is imported when the first is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.reporting.figures import palette
from coterie.reporting.figures.marks import Areas, Figure, Flow, Heatmap, Intervals, Lines, Panel, Scatter
from coterie.reporting.plots import STYLE
from coterie.terminal import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

MARKED = 24
"""A line has a marker at every point, or at some of its points where it has more than so many."""


def draw(figure: Figure) -> Drawing:
    """Draw a figure."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing

    marks = figure.marks
    with mpl.rc_context(STYLE):
        drawing = Drawing(figsize=_size(figure), layout="constrained")
        if isinstance(marks, Scatter):
            _scatter(drawing, marks)
        else:
            PRINTED[type(marks)](drawing.subplots(), marks)
        drawing.suptitle(plain(figure.title), x=0.01, ha="left", fontsize=10)
    return drawing


def _size(figure: Figure) -> tuple[float, float]:
    """Return width and height in inches."""
    marks = figure.marks
    if isinstance(marks, Scatter):
        across = min(2, len(marks.panels))
        return 3.2 * across, 0.4 + 3.0 * -(-len(marks.panels) // across)
    if isinstance(marks, Heatmap):
        return 5.4, 4.8
    return (6.4, 1.2 + 0.35 * len(marks.rows)) if isinstance(marks, Intervals) else (6.4, 3.4)


def _lines(axes: Axes, marks: Lines) -> None:
    """Draw bands with edges beneath all lines."""
    for k, line in enumerate(marks.lines):
        colour = palette.line_colour(k)
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.14, linewidth=0, zorder=1)
            for edge in (line.low, line.high):
                axes.plot(line.x, edge, color=colour, linewidth=0.6, alpha=0.75, zorder=2)
        axes.plot(
            line.x,
            line.y,
            color=colour,
            label=plain(line.name),
            linewidth=1.6,
            linestyle=(0, palette.dash(k)) if palette.dash(k) else "-",
            marker=palette.PRINTED[palette.marker(k)],
            markersize=3.5,
            markevery=max(1, len(line.x) // MARKED),
            zorder=3,
        )
    for event in marks.events:
        axes.axvline(event.x, color="#555555", linewidth=1, linestyle=":")
        axes.annotate(
            plain(event.text),
            (event.x, 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8,
            va="top",
        )
    _whole_rounds(axes)
    if marks.range is not None:
        axes.set_ylim(marks.range[0] - 0.04, marks.range[1] + 0.04)
    if marks.log:
        axes.set_yscale("log")
    axes.set(xlabel=plain(marks.x), ylabel=plain(marks.y))
    if len(marks.lines) > 1:
        axes.legend(frameon=False, loc="best")


def _whole_rounds(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _areas(axes: Axes, marks: Areas) -> None:
    names = [name for name, _ in marks.layers]
    colours = [palette.cluster_colour(-1 if name == "no cluster" else k) for k, name in enumerate(names)]
    heights = [values for _, values in marks.layers]
    axes.stackplot(marks.x, heights, labels=list(map(plain, names)), colors=colours, edgecolor="white", linewidth=0.8)
    _whole_rounds(axes)
    axes.set(xlabel=plain(marks.x_name), ylabel=plain(marks.y))
    if len(names) <= len(palette.CLUSTERS):
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _flow(axes: Axes, marks: Flow) -> None:
    """Draw blocks in columns, and ribbons between them."""
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path

    columns = range(len(marks.columns))
    total = max(sum(marks.sizes(column).values()) for column in columns) or 1
    gap = total * 0.25 / max(len(each) for each in marks.names)
    left = [_starts(marks.sizes(column), gap) for column in columns]
    right = [dict(each) for each in left]
    for column in columns:
        for block, size in marks.sizes(column).items():
            axes.add_patch(
                Rectangle(
                    (column - 0.04, left[column][block]),
                    0.08,
                    size,
                    linewidth=0,
                    color=palette.cluster_colour(marks.block_colour(column, block)),
                    zorder=3,
                )
            )
            if column in (0, columns[-1]):
                side, align = (column - 0.07, "right") if column == 0 else (column + 0.07, "left")
                name = plain(marks.name(column, block))
                axes.text(side, left[column][block] + size / 2, name, ha=align, va="center", fontsize=8)
    for link in marks.ordered:
        one, other = right[link.column], left[link.column + 1]
        a, b, h = one[link.source], other[link.target], link.count
        one[link.source] += h
        other[link.target] += h
        x0, x1 = link.column + 0.04, link.column + 0.96
        m = (x0 + x1) / 2
        corners = [(x0, a), (m, a), (m, b), (x1, b), (x1, b + h), (m, b + h), (m, a + h), (x0, a + h), (x0, a)]
        codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
        colour = palette.cluster_colour(marks.colour(link))
        axes.add_patch(PathPatch(Path(corners, codes), facecolor=colour, alpha=0.42, linewidth=0))
    axes.set_xlim(-0.45, len(marks.columns) - 0.55)
    axes.set_ylim(total + gap * max(len(each) for each in marks.names), -gap)
    axes.set_yticks([])
    axes.set_xticks(list(columns), list(map(plain, marks.columns)), fontsize=8)
    axes.spines[:].set_visible(False)


def _starts(sizes: dict[int, int], gap: float) -> dict[int, float]:
    found, at = {}, 0.0
    for block, size in sizes.items():
        found[block] = at
        at += size + gap
    return found


def _scatter(drawing: Drawing, marks: Scatter) -> None:
    across = min(2, len(marks.panels))
    down = -(-len(marks.panels) // across)
    grid = drawing.subplots(down, across, squeeze=False, sharex=marks.common, sharey=marks.common).ravel()
    for axes, panel in zip(grid, marks.panels, strict=False):
        _panel(axes, panel)
    for axes in grid[len(marks.panels) :]:
        axes.set_visible(False)


def _panel(axes: Axes, panel: Panel) -> None:
    groups = np.array(panel.groups)
    for group in np.unique(groups):
        points, shape = panel.points[groups == group], palette.PRINTED[palette.marker(int(group))]
        axes.scatter(
            points[:, 0], points[:, 1], s=16, color=palette.cluster_colour(int(group)), marker=shape, linewidth=0
        )
    axes.set_title(plain(panel.title), loc="left", fontsize=9)
    axes.set(xticks=[], yticks=[])


def _heatmap(axes: Axes, marks: Heatmap) -> None:
    image = axes.imshow(marks.values, vmin=marks.low, vmax=marks.high, cmap="cividis", interpolation="nearest")
    for border in np.flatnonzero(np.diff(marks.groups)) + 0.5:
        axes.axhline(border, color="white", linewidth=0.8)
        axes.axvline(border, color="white", linewidth=0.8)
    groups = np.array(marks.groups)
    middles = {int(group): float(np.flatnonzero(groups == group).mean()) for group in np.unique(groups)}
    axes.set_yticks(list(middles.values()), [str(group) for group in middles])
    axes.set(xticks=[], ylabel="cluster")
    axes.figure.colorbar(image, ax=axes, label=plain(marks.what))


def _intervals(axes: Axes, marks: Intervals) -> None:
    for place, row in enumerate(marks.rows):
        k = marks.kinds.index(row.group) + 1
        known = row.low is not None and row.high is not None
        ends = [[row.value - (row.low or 0.0)], [(row.high or 0.0) - row.value]] if known else None
        first = row.group not in [other.group for other in marks.rows[:place]]
        axes.errorbar(
            row.value,
            place,
            xerr=ends,
            color=palette.line_colour(k),
            capsize=3,
            fmt=palette.PRINTED[palette.marker(k)],
            label=f"{marks.joiner}{row.group}" if first else None,
        )
    axes.axvline(0, color="#777777", linewidth=0.8)
    shown = ["", *(row.name for row in marks.rows)]
    names = [plain(row.name) if row.name != before else "" for row, before in zip(marks.rows, shown, strict=False)]
    axes.set_yticks(range(len(marks.rows)), names)
    axes.set_ylim(len(marks.rows) - 0.5, -0.5)
    axes.set_xlabel(plain(marks.x))
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


PRINTED: dict[type, Callable[[Any, Any], None]] = {
    Lines: _lines,
    Areas: _areas,
    Flow: _flow,
    Heatmap: _heatmap,
    Intervals: _intervals,
}
"""How each kind of marks is drawn."""
