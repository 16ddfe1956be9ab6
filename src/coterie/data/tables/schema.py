"""A schema says how a table becomes arrays: made once from the train rows of all clients, then the same for everyone.

It is kept with a run, as JSON, and turns a later client's file into exactly the arrays that the run would have had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from coterie.data.store import room
from coterie.data.tables.encode import Category, Feature, Number, Reader
from coterie.data.tables.problems import BadFile, Problems
from coterie.data.tables.reading import no_column
from coterie.data.tables.rowblock import Block
from coterie.data.tables.sums import Sums
from coterie.data.tables.tablefile import Table, open_table
from coterie.errors import DataError
from coterie.typing import Array

Source = Path | str | pl.DataFrame


@dataclass(frozen=True)
class Schema:
    """How a table becomes arrays: features in order, and a label that is one of ``classes`` or a ``target``."""

    features: tuple[Feature, ...]
    label: str
    classes: tuple[str, ...] | None = None
    target: Number | None = None
    missing: str = "error"
    ignored: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """How many inputs a row becomes."""
        return sum(feature.width for feature in self.features)

    def arrays(self, source: Source) -> tuple[Array, Array]:
        """The inputs and labels of a file's or frame's rows, in order; what does not fit is an error.

        >>> schema = Schema((Number("age", 40.0, 10.0), Category("sex", ("f", "m"))), "ill", ("no", "yes"))
        >>> x, y = schema.arrays(pl.DataFrame({"sex": ["m"], "age": [45], "ill": ["yes"]}))
        >>> x.tolist(), y.tolist()
        ([[0.5, 0.0, 1.0]], [1])
        """
        return self._read(source, labelled=True)

    def features_from(self, source: Source) -> Array:
        """The inputs alone; the label column may be absent."""
        return self._read(source, labelled=False)[0]

    def _read(self, source: Source, labelled: bool) -> tuple[Array, Array]:
        table, problems = open_table(source), Problems()
        self.check(table, labelled)
        parts = [self.encode(table.file, block, problems, labelled) for block in table.blocks(self.columns(labelled))]
        problems.refuse(table.file)
        if not parts:
            raise BadFile(table.file, None, "holds no rows", "leave it out or add rows")
        x = room((sum(len(part) for part, _ in parts), self.width), np.float32)
        return np.concatenate([part for part, _ in parts], out=x), np.concatenate([y for _, y in parts])

    def columns(self, labelled: bool = True) -> list[str]:
        """The columns that are read."""
        return [*(feature.name for feature in self.features), *([self.label] if labelled else [])]

    def check(self, table: Table, labelled: bool = True) -> None:
        """Refuse a table that lacks a column, or has one that the schema does not know."""
        for name in self.columns(labelled):
            if name not in table.columns:
                raise BadFile(table.file, None, *no_column(name, table.columns, "the schema needs it; add it"))
        for name in table.columns:
            if name not in (*self.columns(), *self.ignored):
                raise BadFile(table.file, None, f"has the column {name!r}, unknown to the schema", "remove it")

    def encode(self, file: str, block: Block, problems: Problems, labelled: bool = True) -> tuple[Array, Array]:
        """The inputs and labels of a block; what cannot be used is added to the problems."""
        reader = Reader(file, block, self.missing, problems)
        x = reader.features(self.features)
        if not labelled:
            return x, np.empty(len(x))
        if self.target is not None:
            return x, reader.targets(self.target)
        return x, reader.classes(self.label, self.classes or ())

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        table = {
            "label": self.label,
            "classes": self.classes,
            "target": None if self.target is None else {"mean": self.target.mean, "std": self.target.std},
            "missing": self.missing,
            "ignored": self.ignored,
            "features": [_table(feature) for feature in self.features],
        }
        Path(path).write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Read what ``save`` wrote."""
        try:
            table = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(
                tuple(_feature(each) for each in table["features"]),
                str(table["label"]),
                None if table["classes"] is None else tuple(map(str, table["classes"])),
                None if table["target"] is None else Number(table["label"], **table["target"]),
                str(table["missing"]),
                tuple(map(str, table["ignored"])),
            )
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); name a run's schema.json") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{path} is no schema ({type(error).__name__}: {error}); name a run's schema.json"
            ) from error


def _table(feature: Feature) -> dict[str, Any]:
    if isinstance(feature, Number):
        return {"name": feature.name, "kind": "number", "mean": feature.mean, "std": feature.std}
    return {"name": feature.name, "kind": "category", "values": feature.values}


def _feature(table: Mapping[str, Any]) -> Feature:
    if table["kind"] == "number":
        return Number(str(table["name"]), float(table["mean"]), float(table["std"]))
    return Category(str(table["name"]), tuple(map(str, table["values"])))


def schema_of(
    sums: Sums,
    columns: Sequence[str],
    label: str,
    classes: tuple[str, ...] | None,
    missing: str,
    ignored: Sequence[str],
) -> Schema:
    """The schema that the sums of all clients give, with the features in this order."""
    features: list[Feature] = []
    for name in columns:
        if name in sums.numbers:
            features.append(Number(name, sums.numbers[name].mean, sums.numbers[name].std))
        else:
            features.append(Category(name, sums.categories[name]))
    target = None if sums.target is None else Number(label, sums.target.mean, sums.target.std)
    return Schema(tuple(features), label, classes, target, missing, tuple(ignored))
