"""Rows become arrays: numbers standardised, categories one-hot, labels class numbers or standardised targets.

The one place where a field of a table is accepted or refused, in a run as in any later file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coterie.data.tables.cells import Cells, class_numbers, codes_of, read_cells
from coterie.data.tables.problems import Problem, Problems
from coterie.data.tables.rowblock import Block
from coterie.typing import Array


@dataclass(frozen=True)
class Number:
    """A column of numbers: one input, ``(value - mean) / std``."""

    name: str
    mean: float
    std: float
    width = 1


@dataclass(frozen=True)
class Category:
    """A column of words: one input for each of its values, 1 for the one that is there and 0 for the others."""

    name: str
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """How many inputs it becomes."""
        return len(self.values)


Feature = Number | Category


class Reader:
    """One block being turned into arrays; whatever cannot be used goes to ``problems``."""

    def __init__(self, file: str, block: Block, missing: str, problems: Problems) -> None:
        self.file, self.block, self.missing, self.problems = file, block, missing, problems

    def features(self, features: tuple[Feature, ...]) -> Array:
        """The inputs ``(n, width)``, float32."""
        x = np.zeros((len(self.block.frame), sum(feature.width for feature in features)), np.float32)
        start = 0
        for feature in features:
            cells = read_cells(self.block.frame[feature.name])
            if self.missing == "error":
                self._refuse_missing(feature.name, cells)
            if isinstance(feature, Number):
                x[:, start] = self._standardised(feature, cells)
            else:
                codes = self._codes(feature, cells)
                rows = np.flatnonzero(codes >= 0)
                x[rows, start + codes[rows]] = 1
            start += feature.width
        return x

    def targets(self, target: Number) -> Array:
        """The targets of a regression, float32."""
        cells = read_cells(self.block.frame[target.name])
        self._refuse_missing(target.name, cells)
        return self._standardised(target, cells)

    def classes(self, name: str, classes: tuple[str, ...]) -> Array:
        """The class numbers of the labels, int64."""
        cells = read_cells(self.block.frame[name])
        self._refuse_missing(name, cells)
        codes = class_numbers(cells.words, classes)
        self._refuse(
            name,
            "class",
            (codes < 0) & ~cells.missing,
            lambda row: f"the label {cells.words[row]!r} is none of the {len(classes)} classes, {_some(classes)}",
            "correct it, or leave the row out",
        )
        return codes

    def _standardised(self, feature: Number, cells: Cells) -> Array:
        name, numbers = feature.name, cells.numbers
        self._refuse(
            name,
            "number",
            np.isnan(numbers) & ~cells.missing,
            lambda row: f"column {name!r} has {cells.fields[row]!r} among its numbers",
            f"correct it, leave it empty with --missing mean, or --ignore {name}",
        )
        with np.errstate(over="ignore"):
            scaled = ((numbers - feature.mean) / feature.std).astype(np.float32)
        self._refuse(
            name,
            "finite",
            np.isinf(scaled),
            lambda row: f"column {name!r} has the infinite or too large number {cells.fields[row]}",
            f"correct it, or --ignore {name}",
        )
        return np.nan_to_num(scaled, nan=0.0, posinf=0.0, neginf=0.0)

    def _codes(self, feature: Category, cells: Cells) -> Array:
        codes = codes_of(cells.words, list(feature.values))
        self._refuse(
            feature.name,
            "category",
            (codes < 0) & ~cells.missing,
            lambda row: (
                f"column {feature.name!r} has the value {cells.words[row]!r}, unseen when the schema was made "
                f"from {_some(feature.values)}"
            ),
            "correct it, or make a new run that has seen it",
        )
        return codes

    def _refuse_missing(self, name: str, cells: Cells) -> None:
        self._refuse(
            name,
            "missing",
            cells.missing,
            lambda row: f"column {name!r} is missing a value",
            "fill it in" if self.missing == "mean" else "fill it in, or use --missing mean (never for a label)",
        )

    def _refuse(self, name: str, kind: str, bad: Array, what: Callable[[int], str], remedy: str) -> None:
        rows = np.flatnonzero(bad)
        if len(rows):
            first = int(rows[0])
            self.problems.add_rows(
                self.file,
                f"{kind} {name}",
                len(rows),
                lambda: Problem(self.file, self.block.row(first), what(first), remedy),
            )


def _some(values: tuple[str, ...]) -> str:
    """The first few of many words, for a message."""
    shown = ", ".join(map(repr, values[:3]))
    return f"{shown}, ..." if len(values) > 3 else shown
