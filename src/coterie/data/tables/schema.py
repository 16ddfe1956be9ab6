"""The schema of a user's tables: how their rows become arrays.

It is made once from the train rows of all clients and is then the same for everyone: numbers are standardised,
categories are one-hot, dates become a trend and places in the year, the week and the day, labels become class numbers
or standardised targets. It is kept with a run, as JSON, and turns a later client's file into exactly the arrays that
the run would have made.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.array_memory import allocate
from coterie.data.tables.cells import Block, Cells, class_numbers, flag_numbers, positions
from coterie.data.tables.columns import MOST_VALUES, absent, has_inputs_for_values
from coterie.data.tables.files import Table, open_table
from coterie.data.tables.problems import BadFile, Problem, Problems
from coterie.data.tables.reading import Reading
from coterie.data.tables.sums import Sums
from coterie.errors import DataError
from coterie.target import BINARY, Target
from coterie.typing import Array

if TYPE_CHECKING:
    import polars as pl

    Source = Path | str | pl.DataFrame


BUCKETS = 256
"""Inputs of a category with too many values for an input each."""

YEAR, WEEK = 365.2425, 7
"""Days of a year and of a week."""


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


@dataclass(frozen=True, kw_only=True)
class Schema:
    """How a table becomes arrays: features in order, and a label that is one of ``classes`` or a ``target``.

    With several label columns ``outputs`` are all numbers (targets), or all flags (labels, each 0 or 1).
    """

    features: tuple[Feature, ...]
    label: str
    classes: tuple[str, ...] | None = None
    target: Number | None = None
    outputs: tuple[Number | Flag, ...] = ()
    missing: str = "error"
    ignored: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The number of inputs that a row becomes."""
        return sum(feature.width for feature in self.features)

    @property
    def labels(self) -> tuple[str, ...]:
        """The label columns."""
        return tuple(each.name for each in self.outputs) or (self.label,)

    @property
    def kind(self) -> Target:
        """What the labels are."""
        if self.outputs:
            return Target(BINARY if isinstance(self.outputs[0], Flag) else None, len(self.outputs))
        return Target(None if self.classes is None else len(self.classes))

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, or of several labels."""
        return self.labels if self.kind.is_labels else self.classes or ()

    @property
    def unit(self) -> float:
        """One unit of the label in the user's own; of several targets, each has its own standard deviation: 1."""
        return 1.0 if self.target is None else self.target.std

    def in_units(self, targets: Array) -> Array:
        """Return predicted targets, ``(n,)`` or ``(n, k)``, in the units of the table."""
        numbers = [each for each in self.outputs if isinstance(each, Number)]
        if numbers:
            means, stds = (np.array([getattr(each, name) for each in numbers]) for name in ("mean", "std"))
            scaled: Array = targets * stds + means
            return scaled
        return targets if self.target is None else targets * self.target.std + self.target.mean

    def arrays(self, source: Source) -> tuple[Array, Array]:
        """Return the inputs and labels of the rows of a file or frame, in order; refuse whatever does not fit.

        >>> import polars as pl
        >>> features = Number("age", 40.0, 10.0), Category("sex", ("f", "m"))
        >>> schema = Schema(features=features, label="ill", classes=("no", "yes"))
        >>> x, y = schema.arrays(pl.DataFrame({"sex": ["m"], "age": [45], "ill": ["yes"]}))
        >>> x.tolist(), y.tolist()
        ([[0.5, 0.0, 1.0]], [1])
        """
        return self._read(source, labelled=True)

    def features_from(self, source: Source) -> Array:
        """Return the inputs alone; the label column may be absent."""
        return self._read(source, labelled=False)[0]

    def columns(self, labelled: bool = True) -> list[str]:
        """Return the columns that are read."""
        return [*(feature.name for feature in self.features), *(self.labels if labelled else ())]

    def check(self, table: Table, labelled: bool = True, ignored: Sequence[str] = ()) -> None:
        """Refuse a table that lacks a column, or has one that is neither in the schema nor ignored."""
        for name in self.columns(labelled):
            if name not in table.columns:
                raise BadFile(table.file, None, *absent(name, table.columns, "the schema needs it; add it"))
        for name in table.columns:
            if name not in (*self.columns(), *self.ignored, *ignored):
                raise BadFile(table.file, None, f"has the column {name!r}, unknown to the schema", "remove it")

    def encode(self, file: str, block: Block, problems: Problems, labelled: bool = True) -> tuple[Array, Array]:
        """Return the inputs and labels of a block; whatever cannot be used is added to the problems."""
        encoder = _Encoder(file, block, self, problems)
        x = encoder.inputs(self.features)
        if not labelled:
            return x, np.empty(len(x))
        if self.outputs:
            return x, np.column_stack([encoder.output(each) for each in self.outputs])
        if self.target is not None:
            return x, encoder.targets(self.target)
        return x, encoder.classes(self.label, self.classes or ())

    def _read(self, source: Source, labelled: bool) -> tuple[Array, Array]:
        table, problems = open_table(source), Problems()
        self.check(table, labelled)
        parts = [self.encode(table.file, block, problems, labelled) for block in table.blocks(self.columns(labelled))]
        problems.refuse(table.file)
        if not parts:
            raise BadFile(table.file, None, "holds no rows", "leave it out or add rows")
        x = allocate((sum(len(part) for part, _ in parts), self.width), np.float32)
        return np.concatenate([part for part, _ in parts], out=x), np.concatenate([y for _, y in parts])

    def as_table(self) -> dict[str, Any]:
        """Return the schema as a table for JSON; ``load`` reads it."""
        return {
            "label": self.label,
            "classes": self.classes,
            "target": None if self.target is None else {"mean": self.target.mean, "std": self.target.std},
            "missing": self.missing,
            "ignored": self.ignored,
            "features": [_table(feature) for feature in self.features],
            **({"outputs": [_output_table(each) for each in self.outputs]} if self.outputs else {}),
        }

    def save(self, path: str | Path) -> None:
        """Write the schema as JSON."""
        Path(path).write_text(json.dumps(self.as_table(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Read a schema that ``save`` wrote."""
        try:
            table = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(
                features=tuple(_feature(each) for each in table["features"]),
                label=str(table["label"]),
                classes=None if table["classes"] is None else tuple(map(str, table["classes"])),
                target=None if table["target"] is None else Number(table["label"], **table["target"]),
                outputs=tuple(_output(each) for each in table.get("outputs", ())),
                missing=str(table["missing"]),
                ignored=tuple(map(str, table["ignored"])),
            )
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); name a run's schema.json") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{path} is not a schema ({type(error).__name__}: {error}); name a run's schema.json"
            ) from error


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


def _table(feature: Feature) -> dict[str, Any]:
    kind = next(name for name, each in KINDS.items() if type(feature) is each)
    entries = {each.name: getattr(feature, each.name) for each in fields(feature)}
    usual = {each.name: each.default for each in fields(feature)}
    return {"name": entries.pop("name"), "kind": kind} | {k: v for k, v in entries.items() if v != usual[k]}


def _feature(table: Mapping[str, Any]) -> Feature:
    kind = KINDS[table["kind"]]
    return kind(**{name: read(table[name]) for name, read in _READ.items() if name in table})


def _output_table(output: Number | Flag) -> dict[str, Any]:
    return _table(output) if isinstance(output, Number) else {"name": output.name, "kind": "flag"}


def _output(table: Mapping[str, Any]) -> Number | Flag:
    if table["kind"] == "flag":
        return Flag(str(table["name"]))
    return Number(str(table["name"]), float(table["mean"]), float(table["std"]))


def make_schema(
    sums: Sums, columns: Sequence[str], classes: tuple[str, ...] | None, reading: Reading, flags: bool = False
) -> Schema:
    """Return the schema that follows from the sums of all clients, with the features in the order of ``columns``.

    ``flags``: several label columns are labels, each 0 or 1, and no targets.
    """
    several = reading.labels if len(reading.labels) > 1 else ()
    return Schema(
        features=tuple(_make_feature(name, sums, reading) for name in columns),
        label=reading.label,
        classes=classes,
        target=None if sums.target is None else Number(reading.label, sums.target.mean, sums.target.std),
        outputs=tuple(
            Flag(name) if flags else Number(name, sums.numbers[name].mean, sums.numbers[name].std)
            for name in several
            if flags or name in sums.numbers
        ),
        missing=reading.missing,
        ignored=reading.ignored,
    )


def _make_feature(name: str, sums: Sums, reading: Reading) -> Feature:
    """Return how a column becomes inputs; one that lacks values says where, if the user asks for it."""
    indicator = reading.missing == "indicator" and sums.missing.get(name, 0) > 0
    if name in sums.numbers:
        number, values = sums.numbers[name], tuple(sorted(sums.values.get(name, ()), key=int))
        few = has_inputs_for_values(len(values), number.count)
        return Number(name, number.mean, number.std, indicator, values if few else ())
    if name in sums.dates:
        dates = sums.dates[name]
        return Date(name, dates.days.mean, dates.days.std, dates.hours.squares > 0, indicator)
    values = sums.categories[name]
    return Category(name, values, indicator) if len(values) <= MOST_VALUES else Hashed(name, BUCKETS, indicator)


class _Encoder:
    """A block being turned into arrays: the one place where a field of a table is accepted or refused."""

    def __init__(self, file: str, block: Block, schema: Schema, problems: Problems) -> None:
        self.file, self.block, self.problems = file, block, problems
        self.missing, self.labels = schema.missing, schema.labels

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
        """Return the positions of the words among the values; where gaps are marked an unseen word counts as one."""
        codes = positions(cells.words, list(feature.values))
        if self.missing == "indicator":
            return codes
        self._refuse(
            f"category {feature.name}",
            (codes < 0) & ~cells.missing,
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
