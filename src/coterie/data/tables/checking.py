"""The report on tables that ``data check`` makes: what each client has, what the labels are, and what is suspicious."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.data.tables.cells import Block, is_whole
from coterie.data.tables.problems import Holding
from coterie.data.tables.reading import Reading
from coterie.data.tables.rows import TEST, TRAIN, Rows, RowSplit
from coterie.data.tables.schema import Schema
from coterie.data.tables.suspicions import (
    Looked,
    choose_rows,
    columns_of,
    empty_columns,
    float_classes,
    leaks,
    one_class_only,
    quantity,
    row_numbers,
    small_tests,
)
from coterie.typing import Array


class Observer:
    """What a pass over the rows shows beside problems: missing fields by client, and some train rows as arrays."""

    def __init__(self, rows: Rows, split: RowSplit, schema: Schema) -> None:
        self.rows, self.split, self.schema = rows, split, schema
        self.sizes = np.bincount(rows.owners, minlength=len(rows.names))
        self.missing: dict[str, Array] = {}
        self.chosen = choose_rows(np.flatnonzero(split.split == TRAIN), schema.width)
        self.parts: list[Array] = []

    def see(self, rows: slice, block: Block, x: Array) -> None:
        """See some rows: their fields, and the inputs that they became."""
        owners = self.rows.owners[rows]
        for name in dict.fromkeys(feature.name for feature in self.schema.features):
            gone = block.cells(name).missing
            if gone.any():
                counts = np.bincount(owners[gone], minlength=len(self.sizes))
                self.missing[name] = self.missing.get(name, 0) + counts
        start, stop = np.searchsorted(self.chosen, (rows.start, rows.stop))
        self.parts.append(x[self.chosen[start:stop] - rows.start])

    def looked(self, y: Array) -> Looked | None:
        """Return the chosen rows, client after client; None if a file could not be read to its end."""
        x = np.concatenate([np.empty((0, self.schema.width), np.float32), *self.parts])
        if len(x) != len(self.chosen) or not len(x):
            return None
        order = np.argsort(self.rows.owners[self.chosen], kind="stable")
        chosen, kind = self.chosen[order], self.schema.kind
        usable = y[chosen] >= 0 if kind.one_of is not None else np.isfinite(y[chosen].reshape(len(chosen), -1)).all(1)
        return Looked(
            x=x[order][usable],
            y=y[chosen][usable],
            owners=self.rows.owners[chosen][usable],
            clients=self.rows.names,
            columns=columns_of(self.schema, self.schema.width),
            target=kind,
        )

    def holdings(self, y: Array) -> tuple[Holding, ...]:
        """Return what each client has."""
        owners, clients = self.rows.owners, len(self.rows.names)
        train, test = (np.bincount(owners[self.split.split == which], minlength=clients) for which in (TRAIN, TEST))
        columns = len({feature.name for feature in self.schema.features})
        gone = sum(self.missing.values(), np.zeros(clients, np.int64)) / np.maximum(self.sizes * columns, 1)
        counts = class_counts(owners, y, clients, len(self.schema.classes or ()))
        spreads = target_spreads(owners, y, clients) if self.schema.target is not None else [(None, None)] * clients
        return tuple(
            Holding(
                client=name,
                train=int(train[i]),
                test=int(test[i]),
                counts=tuple(counts[i].tolist()),
                mean=spreads[i][0],
                std=spreads[i][1],
                missing=float(gone[i]),
            )
            for i, name in enumerate(self.rows.names)
        )

    def warnings(self, y: Array, reading: Reading, by_schema: bool) -> list[str]:
        """Return what is suspicious, the most important first."""
        names, owners = self.rows.names, self.rows.owners
        classes, looked = self.schema.classes or (), self.looked(y)
        tests = np.bincount(owners[self.split.split == TEST], minlength=len(names))
        return [
            *(() if by_schema else quantity(self.schema.label, classes, reading.task)),
            *(() if by_schema or self.schema.target is None else float_classes(self.schema.label, y, reading.task)),
            *(() if looked is None else (*leaks(looked), *row_numbers(looked))),
            *empty_columns(names, self.missing, self.sizes),
            *one_class_only(names, class_counts(owners, y, len(names), len(classes))),
            *small_tests(names, tests),
        ]


def class_counts(owners: Array, y: Array, clients: int, classes: int) -> Array:
    """Return the number of rows of each client and class, ``(clients, classes)``."""
    table = np.zeros((clients, classes), np.int64)
    if classes:
        known = y >= 0
        np.add.at(table, (owners[known], y[known].astype(np.int64)), 1)
    return table


def target_spreads(owners: Array, y: Array, clients: int) -> list[tuple[float | None, float | None]]:
    """Return the mean and the standard deviation of each client's targets."""
    found: list[tuple[float | None, float | None]] = []
    order = np.argsort(owners, kind="stable")
    for own in np.split(y[order], np.cumsum(np.bincount(owners, minlength=clients))[:-1]):
        known = own[np.isfinite(own)]
        found.append((float(known.mean()), float(known.std())) if len(known) else (None, None))
    return found


def task_in_words(schema: Schema, reading: Reading, y: Array, by_schema: bool = False) -> str:
    """Say what the labels are taken for, and why; ``y`` are the labels as numbers.

    >>> task_in_words(Schema(features=(), label="ill", classes=("no", "yes")), Reading(label="ill"), np.zeros(1))
    "task: classification, because the label 'ill' has 2 different words"
    """
    kind = schema.kind
    task = "multilabel" if kind.is_labels else "regression" if kind.classes is None else "classification"
    if by_schema:
        return f"task: {task}, as the schema says"
    if reading.task is not None:
        return f"task: {task}, as --task says"
    return f"task: {task}, because {_reason(schema, schema.labels, y)}"


def _reason(schema: Schema, labels: Sequence[str], y: Array) -> str:
    if schema.kind.is_labels:
        return f"the {len(labels)} label columns hold nothing but 0 and 1"
    if len(labels) > 1:
        return f"the {len(labels)} label columns hold numbers"
    if schema.classes is None:
        finite = y[np.isfinite(y)]
        whole = len(finite) and (finite == np.floor(finite)).all()
        what = f"whole numbers stored as floats, such as {float(finite[0])!r}" if whole else "numbers with decimals"
        return f"the label {schema.label!r} has {what}"
    what = "whole numbers" if all(map(is_whole, schema.classes)) else "words"
    return f"the label {schema.label!r} has {len(schema.classes)} different {what}"
