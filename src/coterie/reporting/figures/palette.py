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

DARKER = 0.55
"""The share of a colour in its darker one; the other part is black, in the dark mode of a page white."""


def darker(colour: str) -> str:
    """Return a darker colour of the same hue.

    >>> darker("#E69F00")
    '#7E5700'
    """
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{int(DARKER * part):02X}" for part in parts)


CLUSTERS = (*COLOURS[1:], *map(darker, COLOURS[1:]))
"""Clusters have all colours but black, then those darker; after the last the first comes again, with another marker."""


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
