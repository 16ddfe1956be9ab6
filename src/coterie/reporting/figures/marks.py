"""Figures as frozen values: the marks they are made of, their data, and these as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coterie.typing import Array

Table = tuple[tuple[str, ...], list[tuple[object, ...]]]
"""The names of columns, and rows."""


@dataclass(frozen=True)
class Line:
    """A line through points, with a band from ``low`` to ``high`` around it where these are given."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Event:
    """Something that happened at ``x``: a vertical line with a text."""

    x: float
    text: str


@dataclass(frozen=True)
class Lines:
    """Lines over a common axis; ``range`` is that of the other axis, by default what the lines need.

    ``log``: the other axis is logarithmic.
    """

    lines: tuple[Line, ...]
    y: str
    x: str = "round"
    events: tuple[Event, ...] = ()
    range: tuple[float, float] | None = None
    log: bool = False

    def table(self) -> Table:
        """Return a row for each point of each line; the ends of a band are empty where there is none."""
        rows: list[tuple[object, ...]] = []
        for line in self.lines:
            ends = zip(line.low, line.high, strict=True) if line.low else (("", "") for _ in line.x)
            rows += [(line.name, *point, *end) for *point, end in zip(line.x, line.y, ends, strict=True)]
        return ("line", self.x, self.y, "low", "high"), rows


@dataclass(frozen=True)
class Areas:
    """Layers that are stacked on each other: ``layers[name]`` has a height for every ``x``."""

    x: tuple[float, ...]
    layers: tuple[tuple[str, tuple[float, ...]], ...]
    y: str
    x_name: str = "round"

    def table(self) -> Table:
        """Return a row for each ``x`` with the height of every layer."""
        rows = zip(self.x, *(heights for _, heights in self.layers), strict=True)
        return (self.x_name, *(name for name, _ in self.layers)), list(rows)


@dataclass(frozen=True)
class Link:
    """How many clients go from block ``source`` of a column to block ``target`` of the next."""

    column: int
    source: int
    target: int
    count: int


@dataclass(frozen=True)
class Flow:
    """Who goes where: blocks in columns, and links between those of neighbouring columns (alluvial).

    ``names`` has the blocks of each column in their order. ``from_groups``: those of the first column are no clusters,
    so that they have no colour, and links have that of the cluster in which they end.
    """

    columns: tuple[str, ...]
    links: tuple[Link, ...]
    names: tuple[tuple[tuple[int, str], ...], ...]
    from_groups: bool = False

    @property
    def ordered(self) -> list[Link]:
        """Return the links in the order in which they leave, and reach, the blocks."""
        places = [{block: i for i, (block, _) in enumerate(each)} for each in self.names]
        return sorted(
            self.links,
            key=lambda each: (each.column, places[each.column][each.source], places[each.column + 1][each.target]),
        )

    def colour(self, link: Link) -> int:
        """Return the cluster whose colour a link has."""
        return link.target if self.from_groups else link.source

    def block_colour(self, column: int, block: int) -> int:
        """Return the cluster whose colour a block has; -1 for that of no cluster."""
        return -1 if self.from_groups and column == 0 else block

    def sizes(self, column: int) -> dict[int, int]:
        """Return the size of each block of a column, in the order of the blocks."""
        after = column < len(self.columns) - 1
        found = {block: 0 for block, _ in self.names[column]}
        for link in self.links:
            if link.column == (column if after else column - 1):
                block = link.source if after else link.target
                found[block] += link.count
        return found

    def name(self, column: int, block: int) -> str:
        """Return the name of a block."""
        return dict(self.names[column])[block]

    def table(self) -> Table:
        """Return a row for each link."""
        rows: list[tuple[object, ...]] = [
            (
                self.columns[each.column],
                self.name(each.column, each.source),
                self.columns[each.column + 1],
                self.name(each.column + 1, each.target),
                each.count,
            )
            for each in self.links
        ]
        return ("from", "block", "to", "block of it", "clients"), rows


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A square of numbers by client: rows and columns in the same order, ``groups`` their clusters."""

    names: tuple[str, ...]
    groups: tuple[int, ...]
    values: Array
    low: float
    high: float
    what: str

    def table(self) -> Table:
        """Return a row for each client: its cluster, and its number with every client."""
        rows = [
            (name, group, *map(float, row))
            for name, group, row in zip(self.names, self.groups, self.values, strict=True)
        ]
        return ("client", "cluster", *self.names), list(rows)


@dataclass(frozen=True, eq=False)
class Panel:
    """Points ``(n, 2)`` under a title; ``groups`` are their clusters."""

    title: str
    points: Array
    groups: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Scatter:
    """Panels of points; ``common``: all panels have the same axes."""

    panels: tuple[Panel, ...]
    common: bool

    def table(self) -> Table:
        """Return a row for each point."""
        rows: list[tuple[object, ...]] = []
        for panel in self.panels:
            points = zip(panel.names, panel.groups, panel.points, strict=True)
            rows += [(panel.title, name, group, float(x), float(y)) for name, group, (x, y) in points]
        return ("panel", "client", "cluster", "x", "y"), rows


@dataclass(frozen=True)
class Interval:
    """A number with its interval; both ends are None where there is none."""

    name: str
    group: str
    value: float
    low: float | None
    high: float | None

    @property
    def numbers(self) -> tuple[float, float | None, float | None]:
        """Return the number and the ends of its interval."""
        return self.value, self.low, self.high


@dataclass(frozen=True)
class Intervals:
    """Numbers with intervals beside zero, a row each; ``group`` names what the number is against.

    ``joiner`` stands before the name of a group; empty where the group says whose number it is. ``order`` is that of
    the groups, and so of their colours, which are the same whichever of them comes first. ``signed``: the numbers are
    differences, which have a sign.
    """

    rows: tuple[Interval, ...]
    x: str
    joiner: str = "against "
    order: tuple[str, ...] = ()
    signed: bool = True

    @property
    def kinds(self) -> list[str]:
        """Return the groups that rows are of, in their order."""
        found = dict.fromkeys(row.group for row in self.rows)
        return sorted(found, key=lambda group: self.order.index(group) if group in self.order else len(self.order))

    def table(self) -> Table:
        """Return a row for each number."""
        blank = ("" if each is None else each for row in self.rows for each in (row.low, row.high))
        ends = zip(blank, blank, strict=True)
        found = [(row.name, row.group, row.value, *end) for row, end in zip(self.rows, ends, strict=True)]
        return ("name", "against", self.x, "low", "high"), list(found)


Marks = Lines | Areas | Flow | Heatmap | Scatter | Intervals


@dataclass(frozen=True)
class Figure:
    """A figure: ``id`` names its files, ``about`` says in a sentence what it shows, for those who cannot see it too."""

    id: str
    title: str
    about: str
    marks: Marks

    def csv(self) -> str:
        """Return the data of the figure as CSV."""
        return as_csv(*self.marks.table())


def as_csv(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return names and rows as CSV.

    >>> as_csv(["a", "b"], [(1, "x,y")])
    'a,b\\n1,"x,y"\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()
