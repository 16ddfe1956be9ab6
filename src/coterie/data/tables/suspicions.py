"""Suspicions: what can be read and is probably not meant, such as a leak, a row number, or a quantity taken as classes.

A suspicion is a sentence with the remedy, never an error. Each kind is one sentence, with the names of all that have
it. They are found on a sample of the train rows, so that a large table takes no longer than a small one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.tables.cells import is_whole
from coterie.data.tables.features import Number
from coterie.data.tables.problems import listed
from coterie.data.tables.spellings import spelt_label
from coterie.seeding import generator
from coterie.target import Target
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.federated import Federated
    from coterie.data.tables.features import Feature
    from coterie.data.tables.schema import Schema

MOST_ROWS, MOST_NUMBERS = 10_000, 10_000_000
"""Train rows that are looked at, and numbers in them."""

MANY_CLASSES = 30
"""Whole numbers as labels that are probably a quantity."""

FEW_TESTS = 30
"""Test rows below which a client's own score says little."""

LEAK, STRONG = 0.98, 0.75
"""Shares of the errors of guessing that one column alone takes away: probably a leak, and worth a question."""

ENOUGH_ROWS, ENOUGH_ERRORS = 100, 10
"""Rows, and errors of guessing among the rows that are judged, below which a column cannot be judged."""

MOST_FITS = 1000
"""Columns of single clients that are judged."""

COLLISIONS = 10
"""Repeated values that chance would bring about; a column that has none of them is an id."""

LEAVES, LEAF = 64, 3
"""The size of the tree that predicts the label from one column, and the fewest rows of its leaves."""

WHOLE = 0.05
"""How far from a whole number a value may be after it was scaled to single precision and back."""

REGRESSION, FLOATS = "use --task regression", "save y as floats"
"""How tables and arrays are made a regression."""

CLASSIFICATION, INTEGERS = "use --task classification", "save y as whole numbers from 0"
"""How tables and arrays are made a classification."""

FEW_VALUES = 10
"""Whole numbers stored as floats that are probably classes."""


@dataclass(frozen=True)
class Column:
    """A column among the inputs: its place, its scaling if it is a number, and whether its inputs mark its values."""

    name: str
    place: slice
    mean: float = 0.0
    std: float | None = None
    by_value: bool = False


@dataclass(frozen=True, kw_only=True)
class Looked:
    """Train rows that are looked at, client after client, each client's in the order of its file.

    ``are_tables``: columns can be left out by an option, and need not be left out of an array.
    """

    x: Array
    y: Array
    owners: Array
    clients: tuple[str, ...]
    columns: tuple[Column, ...]
    target: Target
    are_tables: bool = True

    def without(self, names: Iterable[str]) -> str:
        """Return how columns are left out."""
        return f"--ignore {','.join(names)}" if self.are_tables else "leave it out of x"


def columns_of(schema: Schema | None, width: int) -> tuple[Column, ...]:
    """Return the columns behind the inputs; without a schema every input is one."""
    if schema is None:
        return tuple(Column(f"input {i}", slice(i, i + 1), std=1.0) for i in range(width))
    ends = np.cumsum([0, *(feature.width for feature in schema.features)]).tolist()
    return tuple(_column(each, slice(*ends[i : i + 2])) for i, each in enumerate(schema.features))


def _column(feature: Feature, place: slice) -> Column:
    if isinstance(feature, Number):
        return Column(feature.name, place, feature.mean, feature.std)
    return Column(feature.name, place, by_value=not hasattr(feature, "std"))


def choose_rows(train: Array, width: int) -> Array:
    """Return some of these rows, in order; which ones depends on their number alone."""
    most = max(1, min(MOST_ROWS, MOST_NUMBERS // max(1, width)))
    if len(train) <= most:
        return train
    return np.sort(generator("suspicions", len(train)).choice(train, most, replace=False))


def look_at(data: Federated) -> Looked:
    """Return some train rows of clients that are loaded."""
    rows = choose_rows(np.arange(len(data.train.y)), data.train.x.shape[1])
    return Looked(
        x=data.train.x[rows],
        y=data.train.y[rows],
        owners=np.searchsorted(data.train.offsets, rows, side="right") - 1,
        clients=data.names,
        columns=columns_of(data.schema, data.train.x.shape[1]),
        target=data.target,
        are_tables=data.schema is not None,
    )


def suspicions_of(data: Federated) -> list[str]:
    """Return what is suspicious about clients that are loaded, the most important first."""
    found: list[str] = []
    if len(data.shape) == 1 and data.vocabulary is None:
        task = None if data.words is None else data.words.get("task")
        label, remedy = ("y", FLOATS) if data.schema is None else (data.schema.label, REGRESSION)
        classes = data.class_names or tuple(map(str, range(data.target.one_of or 0)))
        looked = look_at(data)
        found = [*quantity(label, classes, task, remedy), *leaks(looked), *row_numbers(looked)]
        if data.target == Target(None):
            remedy = INTEGERS if data.schema is None else CLASSIFICATION
            found = [*float_classes(label, targets_of(data), task, remedy), *found]
    return [*found, *small_tests(data.names, data.test.sizes)]


def quantity(label: str, classes: Sequence[str], task: str | None, remedy: str = REGRESSION) -> Iterator[str]:
    """Suspect whole numbers that are many, and words that are written like numbers or dates, to be a quantity.

    >>> print(*quantity("delay", [str(i) for i in range(319)], None))
    the label 'delay' has 319 different whole numbers, taken as classes: if it is a quantity, use --task regression
    """
    if task is None and len(classes) >= MANY_CLASSES and all(map(is_whole, classes)):
        count = len(classes)
        what = f"the label {label!r} has {count} different whole numbers, taken as classes"
        yield f"{what}: if it is a quantity, {remedy}"
    way = spelt_label(classes) if task is None else None
    if way is not None:
        yield f"the label {label!r} {way}, taken as {len(classes)} classes: if they are none, {way.remedy}"


def float_classes(label: str, targets: Array, task: str | None, remedy: str = CLASSIFICATION) -> Iterator[str]:
    """Suspect the targets of a regression to be classes, if they are few whole numbers, as of labels with gaps.

    >>> print(*float_classes("ill", np.array([0.0, 1.0, 1.0]), None))
    the label 'ill' has 2 different whole numbers, such as 0.0, taken as numbers to predict: if they are classes, use \
--task classification
    """
    values = few_whole(targets)
    if task is None and 1 < len(values) <= FEW_VALUES:
        what = f"the label {label!r} has {len(values)} different whole numbers, such as {float(values[0])!r}"
        yield f"{what}, taken as numbers to predict: if they are classes, {remedy}"


def few_whole(targets: Array) -> Array:
    """Return the different targets if all are whole numbers and few, else none."""
    values = np.unique(targets[np.isfinite(targets)])
    whole = np.abs(values - np.rint(values)).max(initial=0.0) <= WHOLE if len(values) <= FEW_VALUES else False
    return np.unique(np.rint(values) + 0.0) if whole else values[:0]


def targets_of(data: Federated) -> Array:
    """Return the targets of the train rows in the units of the table."""
    return data.train.y if data.schema is None else data.schema.in_units(data.train.y.astype(np.float64))


def small_tests(names: Sequence[str], sizes: Array) -> Iterator[str]:
    """Say which clients have too few test rows to be judged one by one."""
    few = [i for i in np.argsort(sizes, kind="stable") if sizes[i] < FEW_TESTS]
    if few:
        some = listed([f"{names[i]} ({sizes[i]})" for i in few])
        whose = f"{len(few)} of {len(names)} clients have" if len(few) > 1 else "one client has"
        yield f"{whose} fewer than {FEW_TESTS} test rows, too few to judge a client by: {some}"


def one_class_only(names: Sequence[str], counts: Array) -> Iterator[str]:
    """Say which clients have a single class; ``counts`` is ``(clients, classes)``."""
    single = np.flatnonzero((counts > 0).sum(axis=1) == 1).tolist()
    if counts.shape[1] > 1 and len(single):
        yield f"{len(single)} of {len(names)} clients have a single class: {listed([names[i] for i in single])}"


def empty_columns(names: Sequence[str], missing: Mapping[str, Array], rows: Array) -> Iterator[str]:
    """Say which columns have no value at all at some clients."""
    where = {column: np.flatnonzero((own == rows) & (rows > 0)).tolist() for column, own in missing.items()}
    found = [f"{column!r} at {listed([names[i] for i in at])}" for column, at in where.items() if len(at)]
    if found:
        yield f"columns without any value at a client: {listed(found, between='; ')}"


def row_numbers(looked: Looked) -> Iterator[str]:
    """Suspect columns that rise or fall with every row, or whose whole numbers never repeat, to identify the rows."""
    found = [each.name for each in looked.columns if each.std is not None and _identifies(looked, each)]
    if found:
        names = listed(list(map(repr, found)))
        looks = "looks like a row number or an id" if len(found) == 1 else "look like row numbers or ids"
        yield f"{_columns(found)} {names} {looks}, of no use for other rows: {looked.without(found)}"


def _identifies(looked: Looked, column: Column) -> bool:
    values = column.mean + looked.x[:, column.place.start].astype(np.float64) * (column.std or 1.0)
    if len(values) < ENOUGH_ROWS or np.ptp(values) == 0:
        return False
    blur = np.abs(looked.x[:, column.place.start]).max() * (column.std or 1.0) * np.finfo(np.float32).eps
    if blur > WHOLE or np.abs(values - np.rint(values)).max() > WHOLE:
        return False
    whole = np.rint(values).astype(np.int64)
    steps = np.diff(whole)[looked.owners[1:] == looked.owners[:-1]]
    if len(steps) >= ENOUGH_ROWS // 2 and ((steps > 0).all() or (steps < 0).all()):
        return True
    expected = len(whole) ** 2 / 2 / (int(np.ptp(whole)) + 1)
    return bool(expected >= COLLISIONS and len(np.unique(whole)) == len(whole))


@dataclass(frozen=True)
class Skill:
    """How well one column alone predicts the label of rows that it was not fitted on.

    ``share`` is the part of the errors of guessing (the majority class, the mean) that it takes away.
    """

    share: float
    text: str


def leaks(looked: Looked) -> Iterator[str]:
    """Suspect columns that alone predict the label, in all rows or at one client."""
    if looked.target.columns is not None:
        return
    skills = {each.name: _skill(looked, each, np.arange(len(looked.y))) for each in looked.columns}
    known = {name: skill for name, skill in skills.items() if skill is not None and skill.share >= STRONG}
    sure = {name: skill for name, skill in known.items() if skill.share >= LEAK}
    asked = {name: skill for name, skill in known.items() if name not in sure}
    if sure:
        some = listed([f"{name!r} ({skill.text})" for name, skill in sure.items()])
        yield f"{_columns(sure)} {some} alone {_predict(sure)} the label, probably a leak: {looked.without(sure)}"
    if asked:
        some = listed([f"{name!r} ({skill.text})" for name, skill in asked.items()])
        most = f"{_columns(asked)} {some} alone {_predict(asked)} most of the label"
        yield f"{most}: is that known beforehand? if not, {looked.without(asked)}"
    yield from _leaks_by_client(looked, [each for each in looked.columns if each.name not in known])


def _leaks_by_client(looked: Looked, columns: Sequence[Column]) -> Iterator[str]:
    """Suspect columns that predict the label at one client and not at all together."""
    sizes = np.bincount(looked.owners, minlength=len(looked.clients))
    enough = [i for i in np.argsort(-sizes, kind="stable") if sizes[i] >= ENOUGH_ROWS]
    rows = {i: np.flatnonzero(looked.owners == i) for i in enough[: MOST_FITS // max(1, len(columns))]}
    found: dict[str, list[str]] = {}
    for column in columns if len(looked.clients) > 1 else ():
        skills = {i: _skill(looked, column, own) for i, own in rows.items()}
        at = [looked.clients[i] for i, skill in skills.items() if skill is not None and skill.share >= LEAK]
        if at:
            found[column.name] = at
    if found:
        some = listed([f"{name!r} at {listed(at)}" for name, at in found.items()], between="; ")
        yield f"{_columns(found)} {some} alone {_predict(found)} the label, probably a leak: {looked.without(found)}"


def _skill(looked: Looked, column: Column, rows: Array) -> Skill | None:
    """Fit on every other row, judge on the rest; None where there are too few rows or errors to judge by."""
    if len(rows) < ENOUGH_ROWS:
        return None
    shuffled = generator("suspicions", "halves").permutation(rows)
    fitted, judged = shuffled[::2], shuffled[1::2]
    y, classes = looked.y, looked.target.one_of
    if classes is None:
        return _skill_of_numbers(_predicted(looked, column, fitted, judged), y[fitted], y[judged])
    guess = np.bincount(y[fitted], minlength=classes).argmax()
    errors = int((y[judged] != guess).sum())
    if errors < ENOUGH_ERRORS:
        return None
    wrong = int((_predicted(looked, column, fitted, judged) != y[judged]).sum())
    return Skill(1 - wrong / errors, f"{1 - wrong / len(judged):.1%} right, guessing {1 - errors / len(judged):.1%}")


def _skill_of_numbers(predicted: Array, fitted: Array, judged: Array) -> Skill | None:
    errors = float(np.square(judged - fitted.mean()).sum())
    if errors == 0:
        return None
    share = 1 - float(np.square(predicted - judged).sum()) / errors
    return Skill(share, f"R2 {share:.2f}")


def _predicted(looked: Looked, column: Column, fitted: Array, judged: Array) -> Array:
    """Return what a column alone predicts: a tree on a number; on a category its values' majority, or mean."""
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    x, y = looked.x[:, column.place], looked.y
    if column.by_value:
        codes = np.where(x.any(axis=1), x.argmax(axis=1), x.shape[1])
        return _by_value(codes[fitted], y[fitted], codes[judged], looked.target.one_of)
    tree = DecisionTreeRegressor if looked.target.one_of is None else DecisionTreeClassifier
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of many classes, which ``quantity`` tells
        found = tree(max_leaf_nodes=LEAVES, min_samples_leaf=LEAF, random_state=0).fit(x[fitted], y[fitted])
    predicted: Array = found.predict(x[judged])
    return predicted


def _by_value(codes: Array, y: Array, asked: Array, classes: int | None) -> Array:
    """Return for each asked code the majority class, or the mean, of the rows with that code; of all if it is new."""
    size = int(max(codes.max(), asked.max())) + 1
    seen = np.bincount(codes, minlength=size)
    if classes is None:
        sums = np.bincount(codes, weights=y, minlength=size)
        return np.where(seen > 0, sums / np.maximum(seen, 1), y.mean())[asked]
    table = np.zeros((size, classes), np.int64)
    np.add.at(table, (codes, y), 1)
    found: Array = np.where(seen > 0, table.argmax(axis=1), np.bincount(y, minlength=classes).argmax())[asked]
    return found


def _columns(names: Sequence[str] | Mapping[str, object]) -> str:
    return "column" if len(names) == 1 else "columns"


def _predict(names: Sequence[str] | Mapping[str, object]) -> str:
    return "predicts" if len(names) == 1 else "predict"
