"""Messages by which sites agree on a schema: facts about columns, sums, and the schema, as JSON that is checked.

Nothing here holds a row of a table. What a site sends is not trusted: a count below 0, a mean that is not finite, a
column that was not asked for or an endless word is refused with a ``FederationError``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from itertools import chain
from typing import Any

from coterie.data.tables.agreement import FLAGS, NUMBERS, TARGETS, WORDS, Facts, Kinds
from coterie.data.tables.cells import is_whole
from coterie.data.tables.columns import CATEGORY, COUNT, DATE, NUMBER, ColumnCounts
from coterie.data.tables.labels import LabelFacts
from coterie.data.tables.reading import LISTS, Reading
from coterie.data.tables.schema import Schema
from coterie.data.tables.sums import Moments, Sums
from coterie.errors import CoterieError, FederationError
from coterie.limits import COLUMNS
from coterie.wire import codec

COLUMNS_ASKED, SUMS_ASKED, SCHEMA_SENT = "columns", "sums", "schema"
"""The kinds of messages, in the order in which they are sent."""

OF_ONE_SITE = ("client", "group", "tokens", "test", "validation", "seed")
"""The options of reading that a site decides alone, or that tables of one client have not."""

LARGEST_COUNT = 1 << 53
"""No number of rows is larger: up to here a float holds whole numbers."""

MOST_WORDS = 1 << 12
"""The most words of a category, or classes, that a site may name: more than a category may have in the end."""


def pack_columns(run: str) -> bytes:
    """Pack the question which columns a site's table has."""
    return codec.encode({}, kind=COLUMNS_ASKED, run=run)


def pack_sums(run: str, kinds: Kinds) -> bytes:
    """Pack the question for the sums of a site's columns."""
    return codec.encode({}, kind=SUMS_ASKED, run=run, kinds=asdict(kinds))


def pack_schema(run: str, schema: Schema) -> bytes:
    """Pack the schema that all sites have agreed on."""
    return codec.encode({}, kind=SCHEMA_SENT, run=run, schema=schema.as_table())


def facts_table(facts: Facts, reading: Reading) -> dict[str, Any]:
    """Return what a site tells of its columns, and how it reads its table, as JSON values."""
    counts = {name: list(asdict(each).values()) for name, each in facts.counts.items()}
    labels = [list(asdict(each).values()) for each in facts.labels]
    options = {each.name: getattr(reading, each.name) for each in fields(Reading) if each.name not in OF_ONE_SITE}
    return {"counts": counts, "labels": labels, "reading": options}


def read_facts(value: Any) -> tuple[Facts, Reading]:
    """Return the facts and the reading that a site sent."""
    table = _table(value, "facts", {"counts", "labels", "reading"})
    counts = _table(table["counts"], "counts")
    if not 1 <= len(counts) <= COLUMNS:
        raise FederationError(f"tells of {len(counts)} columns; it must be 1 to {COLUMNS}")
    read = {_name(name): ColumnCounts(*_counts(own, len(fields(ColumnCounts)))) for name, own in counts.items()}
    reading, labels = _read_reading(table["reading"]), table["labels"]
    if not isinstance(labels, list) or len(labels) != len(reading.labels):
        raise FederationError(f"tells of other labels than {reading.label!r}; do the versions match?")
    return Facts(read, tuple(map(_label_facts, labels))), reading


def _label_facts(value: Any) -> LabelFacts:
    """Return the facts about one label column that a site sent."""
    facts = LabelFacts(*codec.read_as(tuple[int, int, bool, bool, bool], value, "labels"))
    _counts([facts.present, facts.numbers], 2)
    return facts


def read_kinds(value: Any) -> Kinds:
    """Return the kinds of columns that a server asks for the sums of."""
    table = _table(value, "kinds", {"columns", "labels", "targets"})
    kinds = _table(table["columns"], "columns")
    labels = codec.read_as(str, table["labels"], "labels")
    targets = codec.read_as(tuple[str, ...], table["targets"], "targets")
    if not all(map(_is_word, kinds.values())) or labels not in (TARGETS, NUMBERS, WORDS, FLAGS):
        raise FederationError("the kinds of columns cannot be read; do the versions match?")
    return Kinds(kinds, labels, targets)


def read_sums(value: Any, kinds: Kinds) -> Sums:
    """Return the sums that a site sent; refuse those of other columns, and numbers that cannot be sums."""
    table = _table(value, "sums", set(Sums().table()))
    try:
        sums = Sums.from_table(table)
        good = all(_sound(sums, kinds))
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        good = False
    if not good:
        raise FederationError("sent sums that are not of its columns, or that no rows can have; do the versions match?")
    return sums


def _sound(sums: Sums, kinds: Kinds) -> Iterator[bool]:
    """Yield whether each part of the sums can be one."""
    yield type(sums.rows) is int and 0 <= sums.rows <= LARGEST_COUNT
    of = {
        kind: {name for name, own in kinds.columns.items() if own == kind} for kind in (NUMBER, COUNT, DATE, CATEGORY)
    }
    yield sums.numbers.keys() == of[NUMBER] | of[COUNT] | set(kinds.targets)
    yield sums.values.keys() == of[COUNT] and all(map(is_whole, chain.from_iterable(sums.values.values())))
    yield sums.dates.keys() == of[DATE]
    yield sums.categories.keys() == of[CATEGORY]
    yield sums.missing.keys() <= kinds.columns.keys()
    yield all(type(count) is int and 0 <= count <= sums.rows for count in sums.missing.values())
    yield (sums.target is not None) == (kinds.labels == TARGETS and not kinds.targets)
    yield not sums.classes or kinds.are_classes
    for each in _moments(sums):
        yield type(each.count) is int and 0 <= each.count <= sums.rows
        yield all(type(number) in (int, float) and math.isfinite(number) for number in (each.mean, each.squares))
        yield each.squares >= 0
    for words in (*sums.categories.values(), *sums.values.values(), sums.classes):
        yield len(words) <= MOST_WORDS and all(map(_is_word, words))


def _moments(value: Any) -> Iterator[Moments]:
    """Yield all moments that sums hold, wherever they are."""
    if isinstance(value, Moments):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _moments(each)
    elif is_dataclass(value):
        for own in fields(value):
            yield from _moments(getattr(value, own.name))


def _read_reading(value: Any) -> Reading:
    """Return how a site reads its table."""
    options = _table(value, "reading")
    listed = {name: codec.read_as(tuple[str, ...], options.get(name, []), name) for name in LISTS}
    others = {name: each for name, each in options.items() if name not in LISTS}
    if not all(each is None or type(each) is bool or _is_word(each) for each in others.values()):
        raise FederationError("tells options of reading that cannot be read; do the versions match?")
    try:
        return Reading.from_options(others | listed)
    except (CoterieError, TypeError) as error:
        raise FederationError(f"reads its table in a way that is not known here ({error})") from None


def _table(value: Any, where: str, names: set[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict) or (names is not None and value.keys() != names):
        raise FederationError(f"{where} cannot be read; do the versions match?")
    return value


def _counts(value: Any, length: int) -> tuple[int, ...]:
    counts: tuple[int, ...] = codec.read_as(tuple[int, ...], value, "counts")
    if len(counts) != length or not all(0 <= count <= LARGEST_COUNT for count in counts) or counts[1] > counts[0]:
        raise FederationError(f"tells {length} counts of a column that no table can have")
    return counts


def _name(value: str) -> str:
    if not _is_word(value):
        raise FederationError(
            f"has a column with a name of {len(value)} letters; at most {codec.LONGEST_TEXT} are read"
        )
    return value


def _is_word(value: Any) -> bool:
    return type(value) is str and 0 < len(value) <= codec.LONGEST_TEXT
