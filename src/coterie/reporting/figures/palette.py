"""Colours, dashes and markers that colour-blind readers, and readers of grey prints, can distinguish."""

from __future__ import annotations

from coterie.reporting.plots import COLOURS

DASHES: tuple[tuple[int, ...], ...] = ((), (6, 3), (2, 2), (8, 3, 2, 3))
"""Lengths of strokes and gaps; each colour of a round goes with the next of these."""

MARKERS = ("circle", "square", "triangle", "diamond", "cross")
"""The shapes of points."""

PRINTED = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "cross": "X"}
"""What matplotlib calls them."""

UNPLACED = "#8a8a8a"
"""The colour of clients without a cluster."""

CLUSTERS = COLOURS[1:]
"""Clusters have all colours but black; after the last the first comes again, with another dash and marker."""


def dash(place: int) -> tuple[int, ...]:
    """Return the dash of a line by its place."""
    return DASHES[place % len(DASHES)]


def marker(place: int) -> str:
    """Return the shape of points by the place of their line or cluster; -1 is for clients without a cluster."""
    return MARKERS[place % len(MARKERS)] if place >= 0 else "cross"


def line_colour(place: int) -> str:
    """Return the colour of a line by its place.

    >>> line_colour(0), line_colour(8) == line_colour(0)
    ('#000000', True)
    """
    return COLOURS[place % len(COLOURS)]


def cluster_colour(cluster: int) -> str:
    """Return the colour of a cluster."""
    return CLUSTERS[cluster % len(CLUSTERS)] if cluster >= 0 else UNPLACED
