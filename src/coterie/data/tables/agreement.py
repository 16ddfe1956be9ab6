"""Agree on a schema where every client is alone with its table, as the sites of a federation are.

First each client tells ``Facts``: the names of its columns and, of each, how many values it has, how many are numbers
and how many are missing. All facts together give ``Kinds``: which columns are numbers, and whether the labels are
classes or targets. Then each client tells its ``Sums`` for these kinds, and all sums together give the schema: the one
that a simulation makes of the same tables.

A client tells nothing that rests on fewer than ``least`` rows: a word of a category or a class in fewer rows is not
named, and the moments of a column with fewer values are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.tables.cells import COUNTS_AS_MISSING, canonical
from coterie.data.tables.columns import ColumnCounts, Profile, check_columns, kinds_of, profile, usable_tables
from coterie.data.tables.files import open_table
from coterie.data.tables.labels import LabelFacts, are_flags, are_targets, class_names, label_facts, label_numbers
from coterie.data.tables.problems import Problem, Problems
from coterie.data.tables.reading import Reading
from coterie.data.tables.rows import TRAIN, Rows, read_rows, split_rows, with_labels
from coterie.data.tables.schema import Schema, make_schema
from coterie.data.tables.sums import Moments, Sums, merge
from coterie.errors import DataError
from coterie.typing import Array

TARGETS, NUMBERS, WORDS, FLAGS = "targets", "numbers", "words", "flags"
"""What labels may be: targets of a regression, classes that are whole numbers or words, or several of 0 and 1."""


@dataclass(frozen=True)
class Facts:
    """What a client tells first: the counts of its columns, in order, and the facts about each label column."""

    counts: Mapping[str, ColumnCounts]
    labels: tuple[LabelFacts, ...]


@dataclass(frozen=True)
class Kinds:
    """What all clients agree on: the kind of each column, what the labels are, and the ``targets`` if several."""

    columns: Mapping[str, str]
    labels: str
    targets: tuple[str, ...] = ()

    @property
    def are_classes(self) -> bool:
        """Whether the label is one of several classes."""
        return self.labels in (NUMBERS, WORDS)


class OwnTable:
    """The table of a client that is alone with it; ``name`` is the client's, from which its split is drawn."""

    def __init__(self, file: Path, name: str, reading: Reading) -> None:
        self.file, self.name, self.reading = file, name, reading

    @cached_property
    def _read(self) -> tuple[Rows, tuple[str, ...], tuple[str, ...]]:
        """The rows of the table, with their labels, the names of its features, and what was left out."""
        problems = Problems()
        tables, features = usable_tables([open_table(self.file, self.name)], self.reading, problems)
        labelled, notes = with_labels(tables, self.reading)
        rows = read_rows(labelled, self.reading, problems)
        problems.refuse(self.file)
        return rows, features, notes

    @property
    def features(self) -> tuple[str, ...]:
        """The columns to learn from."""
        return self._read[1]

    @property
    def notes(self) -> tuple[str, ...]:
        """How many rows are left out, as they have no label."""
        return self._read[2]

    def facts(self, least: int = 1) -> Facts:
        """Return what this client tells of its columns; of one with fewer than ``least`` values, that it has none."""
        rows = self._read[0]
        own = self._profile(np.zeros(len(rows.owners), bool), None).counts
        counts = {name: each if each.values >= least else ColumnCounts() for name, each in own.items()}
        return Facts(counts, tuple(map(label_facts, rows.labels)))

    def gaps(self) -> dict[str, int]:
        """Return in how many rows each column lacks a value, for those that do in any."""
        rows = self._read[0]
        counts = self._profile(np.zeros(len(rows.owners), bool), None).counts
        return {name: each.missing for name, each in counts.items() if each.missing}

    def unlabelled(self) -> dict[str, int]:
        """Return in how many rows each label column lacks a value, for those that do in any."""
        labels = zip(self.reading.labels, self._read[0].labels, strict=True)
        return {name: count for name, own in labels if (count := len(own.codes) - own.present)}

    def sums(self, kinds: Kinds, least: int = 1) -> Sums:
        """Return the sums of this client's train rows, and the words that ``least`` rows or more have."""
        rows = self._read[0]
        classes, problems = None, Problems()
        if kinds.are_classes:
            words = rows.labels[0].words
            classes = class_names(str(self.file), self.reading.label, words, kinds.labels == NUMBERS)
        y = label_numbers(rows.labels, classes)
        split = split_rows(rows, y, self.reading, str(self.file), problems)
        problems.refuse(self.file)
        whole = self._profile(split.split == TRAIN, y if kinds.labels == TARGETS else None)
        named = () if classes is None else _often(classes, np.bincount(y[y >= 0], minlength=len(classes)), least)
        (sums,) = whole.sums(kinds.columns, named, kinds.targets)
        return self._withheld(sums, least)

    def _profile(self, train: Array, targets: Array | None) -> Profile:
        rows, features, _ = self._read
        owners = np.zeros(len(rows.owners), np.int64)
        return profile(rows.tables[0], features, owners=owners, train=train, clients=1, targets=targets)

    def _withheld(self, sums: Sums, least: int) -> Sums:
        """Return sums without what rests on fewer than ``least`` rows."""
        if least <= 1:
            return sums
        counts = self._count_words([*sums.categories, *sums.values])
        for name in sums.values:
            for word, count in list(counts[name].items()):
                if canonical(word) != word:
                    counts[name][canonical(word)] += count
        categories, values = (
            {name: tuple(word for word in own if counts[name][word] >= least) for name, own in named.items()}
            for named in (sums.categories, sums.values)
        )
        enough: Sums = _enough(sums, least)
        gaps = {name: count for name, count in sums.missing.items() if count >= least}
        return replace(enough, categories=categories, values=values, missing=gaps)

    def _count_words(self, columns: Sequence[str]) -> dict[str, Counter[str]]:
        """Return in how many rows each word of some columns stands."""
        found = {name: Counter[str]() for name in columns}
        for block in self._read[0].tables[0].blocks(columns) if columns else ():
            for name in columns:
                found[name].update(block.cells(name).words.drop_nulls().to_list())
        return found


def _enough(value: Any, least: int) -> Any:
    """Return sums, or a part of them, without the moments of fewer than ``least`` values."""
    if isinstance(value, Moments):
        return value if value.count >= least else Moments()
    if isinstance(value, Mapping):
        return {name: _enough(each, least) for name, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _enough(getattr(value, each.name), least) for each in fields(value)})
    return value


def _often(words: Sequence[str], counts: Array, least: int) -> tuple[str, ...]:
    return tuple(word for word, count in zip(words, counts.tolist(), strict=True) if count >= least)


def agree_on_kinds(told: Mapping[str, Facts], reading: Reading) -> Kinds:
    """Return the kinds of the columns of all clients; refuse clients with other columns than the first.

    >>> seven = ColumnCounts(values=7, numbers=7)
    >>> whole, broken = LabelFacts(7, 7, flags=False), LabelFacts(7, 7, whole=False, flags=False)
    >>> told = {"bern": Facts({"age": seven}, (whole,)), "chur": Facts({"age": seven}, (broken,))}
    >>> agree_on_kinds(told, Reading(label="days"))
    Kinds(columns={'age': 'number'}, labels='targets', targets=())
    """
    first = next(iter(told))
    for name in told:
        for one, other in ((name, first), (first, name)):
            alone = [column for column in told[one].counts if column not in told[other].counts]
            if alone:
                what = f"{one} has the column {alone[0]!r}, which {other} has not"
                raise DataError(f"{what}; add it to {other}'s table, or leave it out at {one}: ignore in site.toml")
    counts, labels = total_facts(told)
    columns = kinds_of(counts, reading)
    if len(labels) > 1:
        flags = are_flags(_ALL, reading.labels, labels, reading.task)
        return Kinds(columns, FLAGS) if flags else Kinds(columns, TARGETS, reading.labels)
    targets = are_targets(_ALL, reading.label, labels[0], reading.task)
    return Kinds(columns, TARGETS if targets else NUMBERS if labels[0].numeric else WORDS)


def total_facts(told: Mapping[str, Facts]) -> tuple[dict[str, ColumnCounts], tuple[LabelFacts, ...]]:
    """Return the counts of all clients together, in the first one's order of columns, and the facts of each label."""
    every = list(told.values())
    counts = {name: sum((each.counts[name] for each in every), ColumnCounts()) for name in every[0].counts}
    return counts, tuple(sum(own, LabelFacts()) for own in zip(*(each.labels for each in every), strict=True))


def agree_on_schema(told: Mapping[str, Facts], sums: Mapping[str, Sums], kinds: Kinds, reading: Reading) -> Schema:
    """Return the schema that follows from the facts and the sums of all clients; refuse columns that cannot be used."""
    merged, (counts, _), problems = merge(sums.values()), total_facts(told), Problems()
    check_columns(_ALL, counts, kinds.columns, merged.categories, problems, reading.categorical)
    for name, words in merged.categories.items():
        if not words and counts[name].values:
            what = f"column {name!r} has no word that a site has in enough rows to name it"
            remedy = "leave it out with ignore in site.toml if it is an id or free text, or join its words to fewer"
            problems.add(Problem(_ALL, None, what, remedy))
    problems.refuse(_ALL)
    classes = None
    if kinds.are_classes:
        classes = class_names(_ALL, reading.label, merged.classes, kinds.labels == NUMBERS)
        if len(classes) < 2:
            few = f"the sites name {len(classes)} class{'es' * (len(classes) != 1)} of {reading.label!r}"
            raise DataError(f"{few}; at least 2 are needed ({COUNTS_AS_MISSING}: give such a class another name)")
    return make_schema(merged, list(counts), classes, reading, flags=kinds.labels == FLAGS)


_ALL = "the sites' tables"
"""What errors call the tables of all clients together."""
