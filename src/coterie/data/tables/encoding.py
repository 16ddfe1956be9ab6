"""Encoding: the fields of a block of rows become inputs and labels, or are refused."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.tables.cells import Block, Cells, class_numbers, flag_numbers, positions
from coterie.data.tables.features import Category, Date, Feature, Flag, Hashed, Number
from coterie.data.tables.problems import Problem, Problems, Unseen
from coterie.typing import Array

if TYPE_CHECKING:
    import polars as pl

YEAR, WEEK = 365.2425, 7
"""Days of a year and of a week."""


class Encoder:
    """A block being turned into arrays: the one place where a field of a table is accepted or refused."""

    def __init__(self, file: str, block: Block, problems: Problems, missing: str, labels: tuple[str, ...]) -> None:
        self.file, self.block, self.problems = file, block, problems
        self.missing, self.labels = missing, labels

    def inputs(self, features: tuple[Feature, ...]) -> Array:
        """Return the inputs ``(n, width)``, float32."""
        x = np.zeros((len(self.block), sum(feature.width for feature in features)), np.float32)
        start = 0
        for feature in features:
            cells = self.block.cells(feature.name)
            if self.missing == "error":
                self._refuse_missing(feature.name, cells)
            known = self._fill(feature, cells, x[:, start : start + feature.width])
            start += feature.width
            if feature.indicator:
                x[:, start - 1] = ~known
        return x

    def _fill(self, feature: Feature, cells: Cells, x: Array) -> Array:
        """Write the inputs of a column, all but its indicator, and return which rows have a value."""
        if isinstance(feature, Date):
            self._write_dates(feature, cells, x)
            return ~cells.missing
        if isinstance(feature, Number):
            x[:, 0] = self._standardised(feature, cells)
            if feature.values:
                _mark(x[:, 1:], number_codes(cells.numbers, feature.values))
            return ~cells.missing
        codes = self._codes(feature, cells) if isinstance(feature, Category) else hashed(cells.words, feature)
        _mark(x, codes)
        return codes >= 0

    def targets(self, target: Number) -> Array:
        """Return the targets of a regression, float32."""
        cells = self.block.cells(target.name)
        self._refuse_missing(target.name, cells)
        return self._standardised(target, cells)

    def output(self, output: Number | Flag) -> Array:
        """Return one of several targets or labels, float32."""
        if isinstance(output, Number):
            return self.targets(output)
        cells = self.block.cells(output.name)
        self._refuse_missing(output.name, cells)
        flags = flag_numbers(cells.words)
        self._refuse(
            f"flag {output.name}",
            (flags < 0) & ~cells.missing,
            lambda row: f"the label column {output.name!r} has {cells.words[row]!r}, which is neither 0 nor 1",
            "correct it, or leave the row out",
        )
        return flags.astype(np.float32)

    def classes(self, name: str, classes: tuple[str, ...]) -> Array:
        """Return the class numbers of the labels, int64."""
        cells = self.block.cells(name)
        self._refuse_missing(name, cells)
        codes = class_numbers(cells.words, classes)
        self._refuse(
            f"class {name}",
            (codes < 0) & ~cells.missing,
            lambda row: f"the label {cells.words[row]!r} is none of the {len(classes)} classes, {_some(classes)}",
            "correct it, or leave the row out",
        )
        return codes

    def _standardised(self, feature: Number, cells: Cells) -> Array:
        name, numbers = feature.name, cells.numbers
        self._refuse(
            f"number {name}",
            np.isnan(numbers) & ~cells.missing,
            lambda row: f"column {name!r} has {cells.fields[row]!r} among its numbers",
            f"correct it, leave it empty with --missing mean, or --ignore {name}",
        )
        with np.errstate(over="ignore"):
            scaled = ((numbers - feature.mean) / feature.std).astype(np.float32)
        self._refuse(
            f"finite {name}",
            np.isinf(scaled),
            lambda row: f"column {name!r} has the infinite or too large number {cells.fields[row]}",
            f"correct it, or --ignore {name}",
        )
        return np.nan_to_num(scaled, nan=0.0, posinf=0.0, neginf=0.0)

    def _write_dates(self, feature: Date, cells: Cells, x: Array) -> None:
        days, name = cells.dates, feature.name
        self._refuse(
            f"date {name}",
            np.isnan(days) & ~cells.missing,
            lambda row: f"column {name!r} has {cells.words[row]!r} among its dates",
            f"write it as 2013-01-31 or 2013-01-31 17:05, leave it empty with --missing mean, or --ignore {name}",
        )
        place = [days / YEAR, np.floor(days) / WEEK, *([days] if feature.hours else [])]
        waves = [wave(2 * np.pi * (each % 1)) for each in place for wave in (np.sin, np.cos)]
        columns = np.column_stack([(days - feature.mean) / feature.std, *waves])
        x[:, : columns.shape[1]] = np.nan_to_num(columns, nan=0.0)

    def _codes(self, feature: Category, cells: Cells) -> Array:
        """Return the positions of the words among the values; where gaps are marked an unseen word counts as one.

        If training had no gap in the column there is no input to mark one: then all its inputs are 0.
        """
        codes = positions(cells.words, list(feature.values))
        unseen = (codes < 0) & ~cells.missing
        if self.missing == "indicator":
            if unseen.any():
                word = cells.words[int(unseen.argmax())]
                self.problems.add_unseen(Unseen(feature.name, int(unseen.sum()), word, feature.indicator))
            return codes
        self._refuse(
            f"category {feature.name}",
            unseen,
            lambda row: (
                f"column {feature.name!r} has the value {cells.words[row]!r}, unseen when the schema was made "
                f"from {_some(feature.values)}"
            ),
            "correct it, or make a new run that has seen it, or one with --missing indicator",
        )
        return codes

    def _refuse_missing(self, name: str, cells: Cells) -> None:
        self._refuse(
            f"missing {name}",
            cells.missing,
            lambda row: f"column {name!r} is missing a value",
            self._remedy(name),
        )

    def _remedy(self, name: str) -> str:
        if name in self.labels:
            return "fill it in, or leave such rows out with --drop-missing-labels"
        return "fill it in, or use --missing indicator or --missing mean"

    def _refuse(self, kind: str, bad: Array, what: Callable[[int], str], remedy: str) -> None:
        rows = np.flatnonzero(bad)
        if len(rows):
            first = int(rows[0])
            self.problems.add_rows(
                self.file,
                kind,
                len(rows),
                lambda: Problem(self.file, self.block.number_of(first), what(first), remedy),
            )


def _mark(x: Array, codes: Array) -> None:
    """Set the input of every row that its code names; -1 names none."""
    rows = np.flatnonzero(codes >= 0)
    x[rows, codes[rows]] = 1


def number_codes(numbers: Array, values: Sequence[str]) -> Array:
    """Return the position of each number among whole numbers in order; -1 where it is none of them.

    >>> number_codes(np.array([3.0, 2.5, 1.0, np.nan]), ("1", "3")).tolist()
    [1, -1, 0, -1]
    """
    known = np.array([float(value) for value in values])
    at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    return np.where(known[at] == numbers, at, -1)


def hashed(words: pl.Series, feature: Hashed) -> Array:
    """Return the input of each word, the same on every machine; -1 where there is none.

    >>> import polars as pl
    >>> hashed(pl.Series(["N14228", None, "N14228"]), Hashed("tail", 8)).tolist()
    [6, -1, 6]
    """
    seen = words.unique().drop_nulls().to_list()
    return positions(words, seen, [zlib.crc32(word.encode()) % feature.buckets for word in seen])


def _some(values: tuple[str, ...]) -> str:
    """Return the first few of many words, for a message."""
    shown = ", ".join(map(repr, values[:3]))
    return f"{shown}, ..." if len(values) > 3 else shown
