"""The numbers that the papers print, from the CSV files beside this module."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FOLDER = files("coterie.reproducing") / "published"


@dataclass(frozen=True)
class Printed:
    """A number of a paper: the mean, the standard deviation over its runs where printed, and half its last digit."""

    mean: float
    std: float | None = None
    rounding: float = 0.0


@dataclass(frozen=True)
class Place:
    """Where a number stands in a paper; ``clusters`` and ``round`` may be empty."""

    table: str
    dataset: str
    partition: str
    method: str
    metric: str
    clusters: str = ""
    round: str = ""


def find_printed(source: str, place: Place) -> Printed | None:
    """Return the number that a paper prints at a place; None if there is none."""
    rows = _rows().get((source, place.table, place.dataset, place.partition, place.method, place.metric), [])
    fitting = [row for row in rows if place.clusters in ("", row["clusters"]) and place.round in ("", row["round"])]
    if len(fitting) != 1:
        return None
    (row,) = fitting
    return Printed(float(row["mean"]), float(row["std"]) if row["std"] else None, half_of_last_digit(row["mean"]))


def half_of_last_digit(text: str) -> float:
    """Return how far a printed number may be from the true one.

    >>> half_of_last_digit("0.96"), half_of_last_digit("37")
    (0.005, 0.5)
    """
    return float(0.5 / 10 ** len(text.partition(".")[2]))


@cache
def _rows() -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Return the rows of the files by source, table, data set, partition, method and metric."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for name in ("thesis.csv", "papers.csv"):
        for row in csv.DictReader(io.StringIO((FOLDER / name).read_text())):
            key = tuple(row[each] for each in ("source", "table", "dataset", "partition", "method", "metric"))
            found.setdefault(key, []).append(row)
    return found
