"""The schema of a user's tables: how their rows become arrays.

It is made once from the train rows of all clients and is then the same for everyone: numbers are standardised,
categories are one-hot, labels become class numbers or standardised targets. It is kept with a run, as JSON, and turns a
later client's file into exactly the arrays that the run would have made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.array_memory import allocate
from coterie.data.tables.cells import Block, Cells, class_numbers, flag_numbers, positions
from coterie.data.tables.columns import absent
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


@dataclass(frozen=True)
class Number:
    """A column of numbers: one input, ``(value - mean) / std``."""

    name: str
    mean: float
    std: float
    width = 1


@dataclass(frozen=True)
class Category:
    """A column of words: one input for each of its values, which is 1 for the value of the row and else 0."""

    name: str
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """The number of inputs it becomes."""
        return len(self.values)


@dataclass(frozen=True)
class Flag:
    """A column of labels that are 0 or 1, where a row has several."""

    name: str


Feature = Number | Category


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
        encoder = _Encoder(file, block, self.missing, problems)
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


def _table(feature: Feature) -> dict[str, Any]:
    if isinstance(feature, Number):
        return {"name": feature.name, "kind": "number", "mean": feature.mean, "std": feature.std}
    return {"name": feature.name, "kind": "category", "values": feature.values}


def _feature(table: Mapping[str, Any]) -> Feature:
    if table["kind"] == "number":
        return Number(str(table["name"]), float(table["mean"]), float(table["std"]))
    return Category(str(table["name"]), tuple(map(str, table["values"])))


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
    features: list[Feature] = []
    for name in columns:
        if name in sums.numbers:
            features.append(Number(name, sums.numbers[name].mean, sums.numbers[name].std))
        else:
            features.append(Category(name, sums.categories[name]))
    return Schema(
        features=tuple(features),
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


class _Encoder:
    """A block being turned into arrays: the one place where a field of a table is accepted or refused."""

    def __init__(self, file: str, block: Block, missing: str, problems: Problems) -> None:
        self.file, self.block, self.missing, self.problems = file, block, missing, problems

    def inputs(self, features: tuple[Feature, ...]) -> Array:
        """Return the inputs ``(n, width)``, float32."""
        x = np.zeros((len(self.block), sum(feature.width for feature in features)), np.float32)
        start = 0
        for feature in features:
            cells = self.block.cells(feature.name)
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

    def _codes(self, feature: Category, cells: Cells) -> Array:
        codes = positions(cells.words, list(feature.values))
        self._refuse(
            f"category {feature.name}",
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
            f"missing {name}",
            cells.missing,
            lambda row: f"column {name!r} is missing a value",
            "fill it in" if self.missing == "mean" else "fill it in, or use --missing mean (never for a label)",
        )

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


def _some(values: tuple[str, ...]) -> str:
    """Return the first few of many words, for a message."""
    shown = ", ".join(map(repr, values[:3]))
    return f"{shown}, ..." if len(values) > 3 else shown
