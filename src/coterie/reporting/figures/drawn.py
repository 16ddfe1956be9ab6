"""Figures as elements of a page: a drawing with its legend, what it shows in words, and its numbers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

from coterie.reporting.figures.drawn_clients import draw_flow, draw_heatmap, draw_scatter
from coterie.reporting.figures.drawn_scores import draw_areas, draw_intervals, draw_lines
from coterie.reporting.figures.marks import Areas, Figure, Flow, Heatmap, Intervals, Lines, Scatter
from coterie.reporting.markup import Child, Markup, element, join

MOST_DATA = 60_000
"""Letters of numbers that go with a figure in a page; larger ones are in the files of ``--figures``."""


def draw(figure: Figure) -> Markup:
    """Return a figure as an element of a page, with a legend and its numbers as CSV."""
    body, legend = DRAWN[type(figure.marks)](figure.marks)
    data = base64.b64encode(figure.csv().encode()).decode()
    caption = element(
        "figcaption",
        element("span", figure.about),
        " ",
        element(
            "a",
            "CSV",
            href=f"data:text/csv;base64,{data}",
            download=f"{figure.id}.csv",
            aria_label=f"numbers of {figure.title} as CSV",
        )
        if len(data) < MOST_DATA
        else None,
    )
    head = element("h3", figure.title, id=f"{figure.id}-title")
    keys = element("div", legend, class_="legend") if legend else None
    return element("figure", head, keys, body, caption, class_="chart", id=f"figure-{figure.id}")


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
