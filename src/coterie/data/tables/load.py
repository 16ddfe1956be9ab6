"""A user's own data: a folder with one file per client, one table with a client column, or one file to be divided.

``.csv`` and ``.parquet`` tables become arrays by a schema made from the clients' federated sums; the arrays of
``.npz`` files are taken as they are. What cannot be used is an error that names the file, the row and the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.dataset import Dataset, with_validation
from coterie.data.federated import Federated, Split
from coterie.data.tables.arrays import class_counts, put_in_place, read_clients
from coterie.data.tables.check import Check, imbalance
from coterie.data.tables.federate import Study, encode, study
from coterie.data.tables.files import SUFFIXES, check_file, content_hash, folder_files
from coterie.data.tables.problems import BadFile, Problems
from coterie.data.tables.reading import Member, Reading
from coterie.data.tables.schema import Schema
from coterie.data.tables.tablefile import open_table
from coterie.errors import DataError

__all__ = ["SUFFIXES", "check_own", "load_client", "load_folder", "load_own", "load_pooled"]


def load_own(
    path: str | Path,
    *,
    label: str = "label",
    client: str | None = None,
    group: str | None = None,
    ignore: Iterable[str] = (),
    missing: str = "error",
    task: str | None = None,
    test: float = 0.2,
    validation: float = 0.0,
    seed: int = 1,
    schema: Schema | None = None,
) -> Federated:
    """The federation of a folder with one file per client, or of one table whose column ``client`` names them.

    ``test`` is the fraction that each client sets aside, by class, drawn from the seed and the client's name; ``.npz``
    files may bring test examples of their own. ``group`` names a column of true groups, for scoring. With a ``schema``
    the arrays are made as it says, and not from these data.
    """
    reading = Reading(label, client, group, tuple(ignore), missing, task, test, validation, seed)
    if client is None and Path(path).is_file():
        raise DataError(
            f"{path} is one file; name the column of its clients with --client, or divide it by a partition"
        )
    return _load(path, reading, schema)


def load_folder(path: str | Path, seed: int = 1, test: float = 0.2, validation: float = 0.0) -> Federated:
    """The federation of a folder's files, with the usual options; see ``load_own``."""
    return load_own(path, seed=seed, test=test, validation=validation)


def load_client(path: str | Path, name: str, *, schema: Schema | None = None, **options: Any) -> Federated:
    """One client's own file; the options are those of ``load_own`` for a folder.

    What is set aside is drawn by its ``name``, so it is what a folder gives in which the file has that name. Tables
    need the ``schema`` that all clients share: one made of this file alone would give other inputs elsewhere.
    """
    reading, problems, file = _reading(options), Problems(), Path(path)
    if reading.client is not None:
        raise DataError(f"client={reading.client} names a column of clients, and this file is all of one; leave it out")
    check_file(file)
    if _are_arrays([file]):
        return _load_arrays(file, [file], reading, problems, name)
    if schema is None:
        what = f"{path} is a table, and there is no schema that all clients share"
        raise DataError(f"{what}; take the schema.json that a simulated run on such tables writes")
    return _load_tables(file, [Member(open_table(file), name)], reading, schema, problems)


def load_pooled(
    path: str | Path,
    *,
    label: str = "label",
    client: str | None = None,
    group: str | None = None,
    ignore: Iterable[str] = (),
    missing: str = "error",
    task: str | None = None,
    test: float = 0.2,
    seed: int = 1,
    schema: Schema | None = None,
) -> Dataset:
    """One table or ``.npz`` file that belongs to nobody yet, to be divided by any partition."""
    for name, column in (("client", client), ("group", group)):
        if column is not None:
            raise DataError(f"{name}={column} is for data that come with clients; leave it or the partition out")
    check_file(Path(path))
    reading = Reading(label, None, None, tuple(ignore), missing, task, test, 0.0, seed)
    one = _load(path, reading, schema)
    pairs = (*one.train.of(0), *one.test.of(0))
    pooled = Dataset(one.data, *pairs, one.classes, class_names=one.class_names, schema=one.schema, unit=one.unit)
    return replace(pooled, words=one.words, files=one.files)


def check_own(path: str | Path, *, schema: Schema | None = None, **options: Any) -> Check:
    """Every problem of a user's data at once, and the facts; the options are those of ``load_own``."""
    reading, problems = _reading(options), Problems()
    files = _files(Path(path), reading, problems)
    if _are_arrays(files):
        return _check_arrays(files, reading, str(path), problems)
    found = study(_members(files, reading, problems), reading, str(path), schema, problems)
    if found is None:
        return Check(problems.all())
    encode(found, problems)
    counts = found.counts()
    sizes = len(found.rows.names), len(found.rows.owners), len(found.schema.features), found.schema.width
    return Check(problems.all(), *sizes, counts, (*found.notes, *imbalance(counts)))


def _check_arrays(files: list[Path], reading: Reading, where: str, problems: Problems) -> Check:
    clients = read_clients(files, reading, problems)
    if not clients:
        return Check(problems.all())
    counts = class_counts(clients, where, problems)
    rows = sum(len(client.y_train) + len(client.y_test) for client in clients)
    inputs = math.prod(clients[0].shape)
    return Check(problems.all(), len(clients), rows, inputs, inputs, counts, tuple(imbalance(counts)))


def _reading(options: dict[str, Any]) -> Reading:
    try:
        return Reading(**{**options, "ignore": tuple(options.get("ignore", ()))})
    except TypeError as error:
        raise DataError(f"{error}; the options are those of load_own") from None


def _load(where: str | Path, reading: Reading, schema: Schema | None) -> Federated:
    path, problems = Path(where), Problems()
    files = _files(path, reading, problems)
    if _are_arrays(files):
        data = _load_arrays(path, files, reading, problems)
    else:
        data = _load_tables(path, _members(files, reading, problems), reading, schema, problems)
    return replace(data, words={"data": str(where), **reading.words()}, files=content_hash(files))


def _load_tables(
    path: Path, members: list[Member], reading: Reading, schema: Schema | None, problems: Problems
) -> Federated:
    found = study(members, reading, str(path), schema, problems)
    if found is None:
        problems.refuse(path)
        raise DataError(f"{path} holds nothing that can be used; add files")
    dtype = np.float32 if found.schema.classes is None else np.int64
    splits = () if problems else found.places.splits(found.schema.width, dtype)
    encode(found, problems, splits)
    problems.refuse(path)
    return _federated(path, found, splits)


def _federated(path: Path, found: Study, splits: tuple[Split, ...]) -> Federated:
    schema = found.schema
    return Federated(
        data=path.resolve().name,
        partition="natural",
        names=found.rows.names,
        train=splits[0],
        test=splits[1],
        classes=None if schema.classes is None else len(schema.classes),
        validation=splits[2] if len(splits) > 2 else None,
        groups=found.rows.groups,
        notes=(*found.notes, *imbalance(found.counts())),
        class_names=schema.classes or (),
        schema=schema,
        unit=1.0 if schema.target is None else schema.target.std,
    )


def _files(path: Path, reading: Reading, problems: Problems) -> list[Path]:
    """The files to read: one, or those of a folder."""
    if reading.client is None and not path.is_file():
        return folder_files(path, problems)
    check_file(path)
    return [path]


def _members(files: Iterable[Path], reading: Reading, problems: Problems) -> list[Member]:
    members = []
    for file in files:
        try:
            members.append(Member(open_table(file), file.stem if reading.client is None else None))
        except BadFile as error:
            problems.add(error.problem)
    return members


def _are_arrays(files: list[Path]) -> bool:
    return bool(files) and files[0].suffix.lower() == ".npz"


def _load_arrays(
    path: Path, files: list[Path], reading: Reading, problems: Problems, name: str | None = None
) -> Federated:
    clients = read_clients(files, reading, problems, name)
    counts = class_counts(clients, str(path), problems, least=1 if name else 2) if clients else ()
    problems.refuse(path)
    train, test = put_in_place(clients)
    federated = Federated(
        data=path.resolve().name,
        partition="natural",
        names=tuple(client.name for client in clients),
        train=train,
        test=test,
        classes=len(counts) or None,
        notes=tuple(imbalance(counts)),
    )
    return with_validation(federated, reading.validation, reading.seed) if reading.validation else federated
