"""The kinds of columns: what a column of a user's table becomes for a network, as frozen values and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Number:
    """A column of numbers: one input, ``(value - mean) / std``.

    Whole numbers with few ``values``, such as months, have one more input for each, which is 1 for the value of the row
    and else 0. With an ``indicator``, here as of other columns, one more input is 1 where the value is missing.
    """

    name: str
    mean: float
    std: float
    indicator: bool = False
    values: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The number of inputs it becomes."""
        return 1 + len(self.values) + self.indicator


@dataclass(frozen=True)
class Category:
    """A column of words: one input for each of its values, which is 1 for the value of the row and else 0."""

    name: str
    values: tuple[str, ...]
    indicator: bool = False

    @property
    def width(self) -> int:
        """The number of inputs it becomes."""
        return len(self.values) + self.indicator


@dataclass(frozen=True)
class Hashed:
    """A column of too many words to list: each has one of the inputs, by its hash, so that some share one."""

    name: str
    buckets: int
    indicator: bool = False

    @property
    def width(self) -> int:
        """The number of inputs it becomes."""
        return self.buckets + self.indicator


@dataclass(frozen=True)
class Date:
    """A column of dates: the standardised day, and sine and cosine of the place in the year and in the week.

    With ``hours``, because dates have times, also those of the place in the day.
    """

    name: str
    mean: float
    std: float
    hours: bool = False
    indicator: bool = False

    @property
    def width(self) -> int:
        """The number of inputs it becomes."""
        return 5 + 2 * self.hours + self.indicator


@dataclass(frozen=True)
class Flag:
    """A column of labels that are 0 or 1, where a row has several."""

    name: str


Feature = Number | Category | Hashed | Date


KINDS: dict[str, type[Feature]] = {"number": Number, "category": Category, "hashed": Hashed, "date": Date}
"""The kinds of features by their names in a file."""

_READ: dict[str, Callable[[Any], Any]] = {
    "name": str,
    "mean": float,
    "std": float,
    "values": lambda values: tuple(map(str, values)),
    "buckets": int,
    "hours": bool,
    "indicator": bool,
}
"""How each entry of a feature is read from a file; what has its default is not written."""


def feature_table(feature: Feature) -> dict[str, Any]:
    """Return a feature as a table for JSON; ``feature_from`` reads it."""
    kind = next(name for name, each in KINDS.items() if type(feature) is each)
    entries = {each.name: getattr(feature, each.name) for each in fields(feature)}
    usual = {each.name: each.default for each in fields(feature)}
    return {"name": entries.pop("name"), "kind": kind} | {k: v for k, v in entries.items() if v != usual[k]}


def feature_from(table: Mapping[str, Any]) -> Feature:
    """Return the feature that a table of JSON describes."""
    kind = KINDS[table["kind"]]
    return kind(**{name: read(table[name]) for name, read in _READ.items() if name in table})


def output_table(output: Number | Flag) -> dict[str, Any]:
    """Return one of several targets or labels as a table for JSON; ``output_from`` reads it."""
    return feature_table(output) if isinstance(output, Number) else {"name": output.name, "kind": "flag"}


def output_from(table: Mapping[str, Any]) -> Number | Flag:
    """Return the target or label that a table of JSON describes."""
    if table["kind"] == "flag":
        return Flag(str(table["name"]))
    return Number(str(table["name"]), float(table["mean"]), float(table["std"]))
