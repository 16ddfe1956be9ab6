"""A user's own data: a folder with one file per client, one table with a client column, or one file to be divided.

``.csv`` and ``.parquet`` tables become arrays by a schema made from the clients' federated sums; the arrays of
``.npz`` files are taken as they are. Whatever cannot be used is an error that names the file, the row and the remedy.

Tables are read in three passes, in blocks, so they may be larger than memory: first the client, label and split of
every row; then the kinds and the sums of the columns, which give the schema; then the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.arguments import checked
from coterie.data.dataset import Dataset
from coterie.data.federated import Federated, Split
from coterie.data.tables.arrays import check_arrays, load_arrays
from coterie.data.tables.cells import Block
from coterie.data.tables.checking import Observer, task_in_words
from coterie.data.tables.columns import (
    Profile,
    check_columns,
    column_notes,
    kinds_of,
    profile,
    require_roles,
    total_counts,
    total_words,
    usable_tables,
)
from coterie.data.tables.files import Table, check_file, content_hash, folder_files, open_table
from coterie.data.tables.frames import as_frame, is_frame
from coterie.data.tables.labels import are_flags, find_classes, label_facts, label_numbers
from coterie.data.tables.problems import FRAME, BadFile, Check, Counts, Problem, Problems, class_notes, python_words
from coterie.data.tables.reading import Reading, with_reading_options
from coterie.data.tables.rows import TRAIN, Rows, RowSplit, read_rows, split_rows, with_labels
from coterie.data.tables.schema import Schema, make_schema
from coterie.data.tables.sums import merge
from coterie.errors import DataError
from coterie.typing import Array

SEVERAL = "errors of several targets are in units of each one's standard deviation; predictions are in its own unit"
"""A note on data with several targets."""

See = Callable[[slice, Block, Array], None]
"""Is shown some rows: their numbers, their fields, and the inputs that they became."""

_FRAME_DATA = "frame"
"""The name of the data that are made from a table in memory."""


@with_reading_options
@checked
def load_own(path: str | Path, *, schema: Schema | None = None, **options: Any) -> Federated:
    """Load a folder with one file per client, or one table in which the column ``client`` names the clients.

    The options are the fields of ``Reading``. ``test`` is the fraction that each client sets aside, by class, drawn
    from the seed and the client's name; ``.npz`` files may hold test examples instead. ``group`` names a column of
    true groups, for scoring, ``attribute`` columns that algorithms may see. With a ``schema`` the arrays are made by
    it, and not by one learned from these data.
    """
    with python_words():
        return read_own(path, schema=schema, **options)


def read_own(path: str | Path, *, schema: Schema | None = None, **options: Any) -> Federated:
    """Do what ``load_own`` does for the settings of a run; errors name flags."""
    reading = Reading.from_options(options)
    if reading.client is None and Path(path).is_file():
        raise DataError(
            f"{path} is one file; name the column of its clients with --client, or divide it by a partition"
        )
    return _load(path, reading, schema)


@with_reading_options
def from_frame(frame: Any, *, schema: Schema | None = None, **options: Any) -> Federated:
    """Return the clients of a pandas, polars or pyarrow table, in which the column ``client`` names them.

    The options are the fields of ``Reading``, and the arrays are those of ``load_own`` for a file of the same rows. The
    index of a pandas frame is no column; ``reset_index()`` makes it one.

    >>> import polars as pl
    >>> rows = {"age": [31, 47, 52, 38] * 5, "site": ["bern", "chur"] * 10, "ill": ["yes", "no", "no", "yes"] * 5}
    >>> from_frame(pl.DataFrame(rows), client="site", label="ill")
    Federated(frame, natural: 2 clients, 16 train and 4 test examples of (1,), 2 classes)
    """
    reading = Reading.from_options(options)
    if reading.client is None:
        raise DataError(
            "a frame holds the rows of all clients; name the column of clients with client=, "
            "or divide the rows with ct.load_pooled(frame, ...).partition(...)"
        )
    return _load_frame(frame, reading, schema)


@checked
def load_folder(path: str | Path, seed: int = 1, test: float = 0.2, validation: float = 0.0) -> Federated:
    """Load a folder with one file per client; ``load_own`` has more options."""
    return load_own(path, seed=seed, test=test, validation=validation)


@with_reading_options
def load_pooled(path: Any, *, schema: Schema | None = None, **options: Any) -> Dataset:
    """Load one table or ``.npz`` file, or a table in memory, without clients, to be divided by any partition.

    The options are those of ``load_own``, without ``client``, ``group``, ``attribute`` and ``validation``.
    """
    with python_words():
        return read_pooled(path, schema=schema, **options)


def read_pooled(path: Any, *, schema: Schema | None = None, **options: Any) -> Dataset:
    """Do what ``load_pooled`` does for the settings of a run; errors name flags."""
    reading = Reading.from_options(options)
    for name in ("client", "group", "attribute", "validation"):
        if getattr(reading, name):
            value = getattr(reading, name)
            raise DataError(f"{name}={value} is for data that come with clients; leave it or the partition out")
    one = _load_frame(path, reading, schema) if is_frame(path) else _load_one_file(path, reading, schema)
    return Dataset(
        one.data,
        *one.train.of(0),
        *one.test.of(0),
        one.classes,
        columns=one.columns,
        vocabulary=one.vocabulary,
        class_names=one.class_names,
        schema=one.schema,
        unit=one.unit,
        words=one.words,
        files=one.files,
    )


@with_reading_options
@checked
def load_client(path: str | Path, name: str, *, schema: Schema | None = None, **options: Any) -> Federated:
    """Load the file of one client; the options are those of ``load_own`` for a folder.

    The draw of what is set aside depends on ``name``, so it is the same as in a folder in which the file has that name.
    Tables need the ``schema`` that all clients share: one made from this file alone would give other inputs.
    """
    reading, problems, file = Reading.from_options(options), Problems(), Path(path)
    if reading.client is not None:
        raise DataError(
            f"client={reading.client} names a column of clients, but the file is one client's; leave it out"
        )
    check_file(file)
    if _are_arrays([file]):
        return load_arrays(file, [file], reading, problems, name)
    if schema is None:
        what = f"{path} is a table, and there is no schema that all clients share"
        raise DataError(f"{what}; take the schema.json that a simulated run on such tables writes")
    return _load_tables(str(file), file.resolve().name, [open_table(file, name)], reading, schema, problems)


@with_reading_options
def check_own(path: Any, *, schema: Schema | None = None, **options: Any) -> Check:
    """Return every problem of a user's files or table in memory at once, and the facts; the options of ``load_own``."""
    with python_words():
        return check_files(path, schema=schema, **options).in_python()


def check_files(path: Any, *, schema: Schema | None = None, **options: Any) -> Check:
    """Do what ``check_own`` does for the command line; remedies are flags."""
    reading, problems = Reading.from_options(options), Problems()
    if is_frame(path):
        return _check_tables([_frame_table(path, reading)], reading, FRAME, schema, problems)
    files = _files(Path(path), reading, problems)
    if _are_arrays(files):
        return check_arrays(Path(path), files, reading, problems)
    return _check_tables(_tables(files, reading, problems), reading, str(path), schema, problems)


def _check_tables(
    tables: Sequence[Table], reading: Reading, where: str, schema: Schema | None, problems: Problems
) -> Check:
    found = _prepare(tables, reading, where, schema, problems)
    if found is None:
        return Check(problems=problems.all())
    observer = Observer(found.rows, found.split, found.schema)
    _encode(found, problems, see=observer.see)
    counts, by_schema = found.counts(), schema is not None
    warnings = observer.warnings(found.y, reading, by_schema) if found.labelled else []
    return Check(
        problems=problems.all(),
        clients=len(found.rows.names),
        rows=len(found.rows.owners),
        features=len(found.schema.features),
        inputs=found.schema.width,
        task=task_in_words(found.schema, reading, found.y, by_schema) if found.labelled else "",
        counts=counts,
        notes=(*found.notes, *class_notes(counts)),
        warnings=tuple(warnings),
        holdings=observer.holdings(found.y),
    )


def _load(where: str | Path, reading: Reading, schema: Schema | None) -> Federated:
    path, problems = Path(where), Problems()
    files = _files(path, reading, problems)
    if _are_arrays(files):
        data = load_arrays(path, files, reading, problems)
    else:
        tables = _tables(files, reading, problems)
        data = _load_tables(str(path), path.resolve().name, tables, reading, schema, problems)
    return replace(data, words={"data": str(where), **reading.words()}, files=content_hash(files))


def _load_one_file(path: str | Path, reading: Reading, schema: Schema | None) -> Federated:
    check_file(Path(path))
    return _load(path, reading, schema)


def _load_frame(frame: Any, reading: Reading, schema: Schema | None) -> Federated:
    return _load_tables(FRAME, _FRAME_DATA, [_frame_table(frame, reading)], reading, schema, Problems())


def _frame_table(frame: Any, reading: Reading) -> Table:
    return open_table(as_frame(frame), _FRAME_DATA if reading.client is None else None)


def _files(path: Path, reading: Reading, problems: Problems) -> list[Path]:
    """Return the files to read: one, or those of a folder."""
    if reading.client is None and not path.is_file():
        return folder_files(path, problems)
    check_file(path)
    return [path]


def _are_arrays(files: Sequence[Path]) -> bool:
    return bool(files) and files[0].suffix.lower() == ".npz"


def _tables(files: Sequence[Path], reading: Reading, problems: Problems) -> list[Table]:
    """Open the tables; each belongs to the client that its file is named after, unless a column names the clients."""
    tables = []
    for file in files:
        try:
            tables.append(open_table(file, file.stem if reading.client is None else None))
        except BadFile as error:
            problems.add(error.problem)
    return tables


def _load_tables(
    where: str, data: str, tables: Sequence[Table], reading: Reading, schema: Schema | None, problems: Problems
) -> Federated:
    """Return the federation of these tables; ``where`` names them in messages and ``data`` in the run's record."""
    found = _prepare(tables, reading, where, schema, problems)
    if found is None:
        problems.refuse(where)
        raise DataError(f"{where} holds nothing that can be used; add rows")
    dtype = np.float32 if found.schema.classes is None else np.int64
    kind = found.schema.kind
    splits = () if problems else found.split.allocate(found.schema.width, dtype, kind.y_shape)
    _encode(found, problems, splits)
    problems.refuse(where)
    return Federated(
        data=data,
        partition="natural",
        names=found.rows.names,
        train=splits[0],
        test=splits[1],
        classes=kind.classes,
        columns=kind.columns,
        validation=splits[2] if len(splits) > 2 else None,
        groups=found.rows.groups,
        attributes=found.rows.attributes,
        notes=(*found.notes, *class_notes(found.counts())),
        class_names=found.schema.class_names,
        schema=found.schema,
        unit=found.schema.unit,
    )


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """Tables ready to be turned into arrays: their rows, labels ``y`` as numbers, splits and schema."""

    rows: Rows
    y: Array
    split: RowSplit
    schema: Schema
    notes: tuple[str, ...] = ()

    @property
    def labelled(self) -> bool:
        """Whether the labels are known to be classes or targets."""
        return self.schema.classes is not None or self.schema.target is not None or bool(self.schema.outputs)

    def counts(self) -> Counts:
        """Return the number of examples of each class."""
        classes = self.schema.classes or ()
        found = np.bincount(self.y[self.y >= 0], minlength=len(classes)) if classes else ()
        return tuple((name, int(count)) for name, count in zip(classes, found, strict=True))


def _prepare(
    tables: Sequence[Table], reading: Reading, where: str, schema: Schema | None, problems: Problems
) -> _Prepared | None:
    """Make the first two passes; return None if nothing can be used. ``where`` names the tables as a whole."""
    if reading.tokens:
        raise DataError(f"tokens are for .npz files and arrays, and {where} is of tables; leave --tokens out")
    if schema is not None:
        return _prepare_by_schema(tables, reading, where, schema, problems)
    usable, features = usable_tables(tables, reading, problems)
    tables, dropped = with_labels(usable, reading)
    rows = read_rows(tables, reading, problems)
    if not rows.tables:
        return None
    labels = _labels(rows, reading, where, problems)
    classes, y = labels.classes, labels.y
    split = split_rows(rows, y, reading, where, problems)
    profiles = _profiles(rows, features, split, y if labels.are_targets else None, problems)
    if not profiles:
        return None
    counts = total_counts(profiles, features)
    kinds = kinds_of(counts, reading)
    check_columns(where, counts, kinds, total_words(profiles, features), problems, reading.categorical)
    targets = reading.labels if labels.are_targets and y.ndim > 1 else ()
    merged = merge(sums for each in profiles for sums in each.sums(kinds, classes or (), targets))
    notes = (*dropped, *column_notes(counts, kinds, merged, reading), *((SEVERAL,) if targets else ()))
    schema = make_schema(merged, features, classes, reading, labels.are_flags)
    return _Prepared(rows=rows, y=y, split=split, schema=schema, notes=notes)


def _prepare_by_schema(
    tables: Sequence[Table], reading: Reading, where: str, schema: Schema, problems: Problems
) -> _Prepared | None:
    """Make the first pass over tables with a known schema, which need no second."""
    reading = replace(reading, label=schema.label, missing=schema.missing)
    kept = []
    for table in tables:
        try:
            require_roles(table, reading)
            schema.check(table, ignored=reading.ignored)
            kept.append(table)
        except BadFile as error:
            problems.add(error.problem)
    labelled, dropped = with_labels(kept, reading)
    rows = read_rows(labelled, reading, problems)
    if not rows.tables:
        return None
    y = label_numbers(rows.labels, schema.classes)
    return _Prepared(rows=rows, y=y, split=split_rows(rows, y, reading, where, problems), schema=schema, notes=dropped)


class _Labels(NamedTuple):
    """The classes, every row's label as a number, and whether these are known to be targets, or several labels."""

    classes: tuple[str, ...] | None
    y: Array
    are_targets: bool = False
    are_flags: bool = False


def _labels(rows: Rows, reading: Reading, where: str, problems: Problems) -> _Labels:
    """Find out what the labels are; they are nothing at all if that is a problem."""
    try:
        if len(rows.labels) > 1:
            facts, words = map(label_facts, rows.labels), [own.words for own in rows.labels]
            flags = are_flags(where, reading.labels, tuple(facts), reading.task, words)
            return _Labels(None, label_numbers(rows.labels, None), not flags, flags)
        classes = find_classes(where, reading.label, rows.labels[0], reading.task)
    except BadFile as error:
        problems.add(error.problem)
        return _Labels(None, np.zeros(len(rows.owners)))
    if classes is not None and len(classes) == 1:
        what = f"all labels are {classes[0]!r}"
        problems.add(Problem(where, None, what, "at least 2 classes are needed to tell apart"))
    return _Labels(classes, label_numbers(rows.labels, classes), are_targets=classes is None)


def _profiles(
    rows: Rows, features: Sequence[str], split: RowSplit, targets: Array | None, problems: Problems
) -> list[Profile]:
    found = []
    for table, part in zip(rows.tables, rows.slices, strict=True):
        # In a table of one client that client is number 0; in a table of many, numbers are those of the federation.
        one = table.client is not None
        try:
            found.append(
                profile(
                    table,
                    features,
                    owners=np.zeros(part.stop - part.start, np.int64) if one else rows.owners[part],
                    train=split.split[part] == TRAIN,
                    clients=1 if one else len(rows.names),
                    targets=None if targets is None else targets[part],
                )
            )
        except BadFile as error:
            problems.add(error.problem)
    return found


def _encode(found: _Prepared, problems: Problems, splits: tuple[Split, ...] = (), see: See | None = None) -> None:
    """Make the third pass: turn all rows into arrays, copied to the splits if there are any; collect the problems.

    ``see`` is shown every block with its rows and inputs.
    """
    columns = found.schema.columns(found.labelled)
    for table, part in zip(found.rows.tables, found.rows.slices, strict=True):
        try:
            for rows, block in table.numbered_blocks(columns, part.stop - part.start):
                x, y = found.schema.encode(table.file, block, problems, found.labelled)
                own = slice(part.start + rows.start, part.start + rows.stop)
                found.split.fill(splits, own, x, y)
                if see is not None:
                    see(own, block, x)
        except BadFile as error:
            problems.add(error.problem)
