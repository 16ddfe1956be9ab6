"""Flows, maps and heatmaps of clients as SVG inside a page."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

from coterie.reporting.figures.axes import shown, spanning
from coterie.reporting.figures.drawing import HEIGHT, TOP, WIDTH, cluster_class, legend_key, shape, svg
from coterie.reporting.figures.marks import Flow, Heatmap, Panel, Scatter
from coterie.reporting.figures.palette import marker
from coterie.reporting.markup import Child, Markup, element

MOST_KEYS = 40
"""With more clusters (local models) they are not named."""


def draw_flow(marks: Flow) -> tuple[Markup, Child]:
    """Draw blocks in columns, and ribbons between them whose width is the number of clients."""
    total = max(sum(marks.sizes(column).values()) for column in range(len(marks.columns))) or 1
    gap = min(10.0, 120.0 / max(len(each) for each in marks.names))
    most = max(len(each) for each in marks.names)
    unit = (HEIGHT - TOP - 34 - gap * (most - 1)) / total
    across = np.linspace(60.0, WIDTH - 64.0, len(marks.columns)).tolist()
    tops = [_tops(marks.sizes(column), unit, gap) for column in range(len(marks.columns))]
    left = [dict(each) for each in tops]
    right = [dict(each) for each in tops]
    ribbons = []
    for link in marks.ordered:
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
        ribbons.append(element("path", d=curve, class_=f"ribbon {cluster_class(marks.colour(link))}", data_tip=tip))
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
        element(
            "rect",
            x=x,
            y=tops[block],
            width=12.0,
            height=max(1.0, size * unit),
            class_=f"block {cluster_class(marks.block_colour(column, block))}",
            data_tip=f"{marks.name(column, block)}, {marks.columns[column]}: {size} clients",
        )
        for block, size in sizes.items()
    ]
    if column == 0 or last:
        side = (x + 16, "") if last else (x - 4, "end")
        found += [
            element(
                "text",
                marks.name(column, block).replace("cluster ", ""),
                x=side[0],
                y=tops[block] + sizes[block] * unit / 2 + 4,
                class_=side[1] or None,
            )
            for block in sizes
        ]
    return [*found, element("text", marks.columns[column], x=x + 6, y=HEIGHT - 8, class_="mid name")]


def draw_scatter(marks: Scatter) -> tuple[Markup, Child]:
    """Draw the panels of points beside each other."""
    count = len(marks.panels)
    across = 1 if count == 1 else 2
    down = -(-count // across)
    wide, high = WIDTH / across, 220.0 if across > 1 else 300.0
    everything = np.concatenate([panel.points for panel in marks.panels]) if marks.common else None
    panels = [
        element(
            "g",
            _cloud(panel, panel.points if everything is None else everything, wide, high),
            transform=f"translate({(i % across) * wide:g} {(i // across) * high:g})",
        )
        for i, panel in enumerate(marks.panels)
    ]
    clusters = sorted({cluster for panel in marks.panels for cluster in panel.groups})
    keys = (
        [legend_key(f"cluster {k}" if k >= 0 else "no cluster", k, "c") for k in clusters]
        if len(clusters) <= 40
        else None
    )
    return svg(WIDTH, high * down, "points of clients", panels), keys


def _cloud(panel: Panel, everything: Any, wide: float, high: float) -> list[Markup]:
    x = spanning(everything[:, 0], 8, wide - 8, margin=0.05)
    y = spanning(everything[:, 1], high - 8, 24, margin=0.05)
    frame = element("rect", x=4, y=20.0, width=wide - 8, height=high - 24, class_="frame")
    dots = [
        element(
            "path",
            d=shape(marker(group), x(px), y(py), 3.6),
            class_=f"point {cluster_class(group)}",
            data_tip=f"{name}: {'cluster ' + str(group) if group >= 0 else 'no cluster'}",
        )
        for name, group, (px, py) in zip(panel.names, panel.groups, panel.points, strict=True)
    ]
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
        element("text", str(g) if g >= 0 else "-", x=size + 8, y=float(at) + 4)
        for g, at in (middle.items() if len(middle) <= MOST_KEYS else ())
    ]
    image = element(
        "image",
        href=f"data:image/png;base64,{picture}",
        width=size,
        height=size,
        class_="cells",
        preserveAspectRatio="none",
    )
    drawing = svg(size + 40, size, f"{marks.what} of clients", image, element("path", d=rules, class_="border"), texts)
    data = base64.b64encode(levels.tobytes()).decode()
    about = {"data_heat": data, "data_names": "\n".join(marks.names), "data_low": marks.low, "data_high": marks.high}
    bar = element(
        "span",
        element("span", shown(marks.low)),
        element("span", class_="ramp"),
        element("span", shown(marks.high)),
        f" {marks.what}",
        class_="key",
    )
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
