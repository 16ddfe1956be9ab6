"""The schema of a user's tables: how their rows become arrays.

It is made once from the train rows of all clients and is then the same for everyone: numbers are standardised,
categories are one-hot, dates become a trend and places in the year, the week and the day, labels become class numbers
or standardised targets. It is kept with a run, as JSON, and turns a later client's file into exactly the arrays that
the run would have made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.array_memory import allocate
from coterie.data.tables.cells import Block
from coterie.data.tables.columns import MOST_VALUES, absent, has_inputs_for_values
from coterie.data.tables.encoding import Encoder
from coterie.data.tables.features import (
    Category,
    Date,
    Feature,
    Flag,
    Hashed,
    Number,
    feature_from,
    feature_table,
    output_from,
    output_table,
)
from coterie.data.tables.files import Table, open_table
from coterie.data.tables.problems import BadFile, Problems
from coterie.data.tables.reading import Reading
from coterie.data.tables.sums import Sums
from coterie.errors import DataError
from coterie.target import BINARY, Target
from coterie.typing import Array

if TYPE_CHECKING:
    import polars as pl

    Source = Path | str | pl.DataFrame | Table


BUCKETS = 256
"""Inputs of a category with too many values for an input each."""


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

    def arrays(self, source: Source, problems: Problems | None = None) -> tuple[Array, Array]:
        """Return the inputs and labels of the rows of a file or frame, in order; refuse whatever does not fit.

        ``problems`` are told of values that training never saw.

        >>> import polars as pl
        >>> features = Number("age", 40.0, 10.0), Category("sex", ("f", "m"))
        >>> schema = Schema(features=features, label="ill", classes=("no", "yes"))
        >>> x, y = schema.arrays(pl.DataFrame({"sex": ["m"], "age": [45], "ill": ["yes"]}))
        >>> x.tolist(), y.tolist()
        ([[0.5, 0.0, 1.0]], [1])
        """
        return self._read(source, problems, labelled=True)

    def features_from(self, source: Source, problems: Problems | None = None) -> Array:
        """Return the inputs alone; the label column may be absent."""
        return self._read(source, problems, labelled=False)[0]

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
        encoder = Encoder(file, block, problems, self.missing, self.labels)
        x = encoder.inputs(self.features)
        if not labelled:
            return x, np.empty(len(x))
        if self.outputs:
            return x, np.column_stack([encoder.output(each) for each in self.outputs])
        if self.target is not None:
            return x, encoder.targets(self.target)
        return x, encoder.classes(self.label, self.classes or ())

    def _read(self, source: Source, told: Problems | None, labelled: bool) -> tuple[Array, Array]:
        table, problems = open_table(source), Problems() if told is None else told
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
            "features": [feature_table(feature) for feature in self.features],
            **({"outputs": [output_table(each) for each in self.outputs]} if self.outputs else {}),
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
                features=tuple(feature_from(each) for each in table["features"]),
                label=str(table["label"]),
                classes=None if table["classes"] is None else tuple(map(str, table["classes"])),
                target=None if table["target"] is None else Number(table["label"], **table["target"]),
                outputs=tuple(output_from(each) for each in table.get("outputs", ())),
                missing=str(table["missing"]),
                ignored=tuple(map(str, table["ignored"])),
            )
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); name a run's schema.json") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{path} is not a schema ({type(error).__name__}: {error}); name a run's schema.json"
            ) from error


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
