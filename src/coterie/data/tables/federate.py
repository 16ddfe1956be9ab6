"""A user's tables become a federation in three passes: labels and clients, then kinds and sums, then the arrays.

The tables are read block by block each time, so they may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.data.federated import Split
from coterie.data.tables.places import TRAIN, Places, find_places
from coterie.data.tables.problems import BadFile, Problem, Problems
from coterie.data.tables.reading import Member, Reading, usable, with_special
from coterie.data.tables.rows import Rows, read_rows
from coterie.data.tables.schema import Schema, schema_of
from coterie.data.tables.sums import merge
from coterie.data.tables.survey import Survey, Tally, check_columns, column_notes, survey
from coterie.data.tables.tablefile import numbered
from coterie.data.tables.target import find_classes, label_numbers
from coterie.typing import Array


@dataclass(frozen=True)
class Study:
    """Tables that were looked through: whose the rows are, where they go, and how they become arrays."""

    rows: Rows
    y: Array
    places: Places
    schema: Schema
    notes: tuple[str, ...] = ()

    @property
    def labelled(self) -> bool:
        """Whether it was found what the label means."""
        return self.schema.classes is not None or self.schema.target is not None

    def counts(self) -> tuple[tuple[str, int], ...]:
        """How many examples each class has."""
        classes = self.schema.classes or ()
        found = np.bincount(self.y[self.y >= 0], minlength=len(classes)) if classes else ()
        return tuple((name, int(count)) for name, count in zip(classes, found, strict=True))


def study(
    members: Sequence[Member], reading: Reading, where: str, schema: Schema | None, problems: Problems
) -> Study | None:
    """Look through tables; None if there is nothing to go on with. ``where`` is what concerns them all."""
    if schema is not None:
        return _known(members, replace(reading, label=schema.label, missing=schema.missing), where, schema, problems)
    kept, features = usable(members, reading, problems)
    rows = read_rows(kept, reading, problems)
    if not rows.members:
        return None
    classes, y, found = _labels(rows, reading, where, problems)
    places = find_places(rows, y, reading, where, problems)
    surveys = _surveys(rows, features, places, y if found and classes is None else None, problems)
    if not surveys:
        return None
    tallies = {name: sum((each.tallies[name] for each in surveys), Tally()) for name in features}
    check_columns(where, tallies, {name: [each.words[name] for each in surveys] for name in features}, problems)
    kinds = {name: tally.is_number for name, tally in tallies.items()}
    merged = merge(sums for each in surveys for sums in each.sums(kinds, classes or ()))
    made = schema_of(merged, features, reading.label, classes, reading.missing, reading.ignored)
    return Study(rows, y, places, made, tuple(column_notes(tallies, merged, reading.missing)))


def _known(members: Sequence[Member], reading: Reading, where: str, schema: Schema, problems: Problems) -> Study | None:
    """The study of tables whose schema is known: no column is surveyed."""
    lenient = replace(schema, ignored=(*schema.ignored, *reading.ignored))
    kept = []
    for member in members:
        try:
            with_special(member.table, reading)
            lenient.check(member.table)
            kept.append(member)
        except BadFile as error:
            problems.add(error.problem)
    rows = read_rows(kept, reading, problems)
    if not rows.members:
        return None
    y = label_numbers(rows.labels, schema.classes)
    return Study(rows, y, find_places(rows, y, reading, where, problems), schema)


def _labels(rows: Rows, reading: Reading, where: str, problems: Problems) -> tuple[tuple[str, ...] | None, Array, bool]:
    """The classes, every row's label as a number, and whether it was found what the label means."""
    try:
        classes = find_classes(where, reading.label, rows.labels, reading.task)
    except BadFile as error:
        problems.add(error.problem)
        return None, np.zeros(len(rows.owners)), False
    if classes is not None and len(classes) == 1:
        what = f"all labels are {classes[0]!r}"
        problems.add(Problem(where, None, what, "at least 2 classes are needed to tell apart"))
    return classes, label_numbers(rows.labels, classes), True


def _surveys(
    rows: Rows, features: Sequence[str], places: Places, targets: Array | None, problems: Problems
) -> list[Survey]:
    found = []
    for member, part in zip(rows.members, rows.parts, strict=True):
        # A table of one client has it as its number 0; in a table of many all are numbered as in the federation.
        owners = rows.owners[part] if member.client is None else np.zeros(part.stop - part.start, np.int64)
        clients = len(rows.names) if member.client is None else 1
        own = None if targets is None else targets[part]
        try:
            found.append(survey(member.table, features, owners, places.split[part] == TRAIN, clients, own))
        except BadFile as error:
            problems.add(error.problem)
    return found


def encode(found: Study, problems: Problems, splits: tuple[Split, ...] = ()) -> None:
    """Turn all rows into arrays, into the splits if there are any; what cannot be used is added to the problems."""
    columns = found.schema.columns(found.labelled)
    for member, part in zip(found.rows.members, found.rows.parts, strict=True):
        table = member.table
        try:
            for rows, block in numbered(table, columns, part.stop - part.start):
                x, y = found.schema.encode(table.file, block, problems, found.labelled)
                found.places.fill(splits, slice(part.start + rows.start, part.start + rows.stop), x, y)
        except BadFile as error:
            problems.add(error.problem)
