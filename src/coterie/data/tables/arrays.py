"""A user's arrays: one ``.npz`` file per client, with ``x`` (n, ...) and ``y`` (n,).

A file may hold ``x_test`` and ``y_test``; without them a share is set aside for testing. Whole numbers in ``y`` are
classes, floats are targets of a regression. Values are taken as they are: nothing is scaled, imputed or dropped, and
an array that cannot be used is an error that names the file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coterie.data.apportion import stratified_split
from coterie.data.array_memory import allocate, release
from coterie.data.federated import Federated, Split, with_validation
from coterie.data.given.labels import fits_labels, several_columns, vocabulary_of
from coterie.data.npz import load_npz
from coterie.data.tables.problems import BadFile, Check, Counts, Holding, Problem, Problems, class_notes
from coterie.data.tables.reading import Reading
from coterie.data.tables.suspicions import suspicions_of
from coterie.errors import DataError
from coterie.seeding import generator
from coterie.target import Target
from coterie.typing import Array

Pair = tuple[Array, Array]

GAPS = 100
"""Class numbers may have gaps, but the largest must stay below this many times their count."""

_NAMES = ("x", "y", "x_test", "y_test")
# numpy's letters for bool, signed, unsigned and floating numbers.
_NUMBERS = "biuf"


def load_arrays(
    path: Path, files: Sequence[Path], reading: Reading, problems: Problems, name: str | None = None
) -> Federated:
    """Return the federation of these files; a client is named as its file, or ``name`` where there is one file."""
    clients = _read_clients(files, reading, problems, name)
    counts = _class_counts(clients, str(path), problems, least=1 if name else 2) if clients else ()
    problems.refuse(path)
    train, test = _join(clients)
    kind = several_columns({client.path.name: client.y_all for client in clients}, reading.task) or Target()
    federated = Federated(
        data=path.resolve().name,
        partition="natural",
        names=tuple(client.name for client in clients),
        train=train,
        test=test,
        classes=len(counts) or kind.classes,
        columns=kind.columns,
        vocabulary=vocabulary_of(train.x, test.x) if reading.tokens else None,
        notes=tuple(class_notes(counts)),
    )
    return with_validation(federated, reading.validation, reading.seed) if reading.validation else federated


def check_arrays(path: Path, files: Sequence[Path], reading: Reading, problems: Problems) -> Check:
    """Return every problem of these files at once, and the facts."""
    clients = _read_clients(files, reading, problems)
    if not clients:
        return Check(problems=problems.all())
    counts = _class_counts(clients, str(path), problems)
    inputs = math.prod(clients[0].shape)
    warnings: list[str] = []
    if not problems:
        warnings = suspicions_of(load_arrays(path, files, replace(reading, validation=0.0), problems))
    return Check(
        problems=problems.all(),
        clients=len(clients),
        rows=sum(len(client.y_train) + len(client.y_test) for client in clients),
        features=inputs,
        inputs=inputs,
        task=_task_in_words(clients, reading),
        counts=counts,
        notes=tuple(class_notes(counts)),
        warnings=tuple(warnings),
        holdings=tuple(_holding(client, len(counts)) for client in clients),
    )


def _task_in_words(clients: Sequence[ClientArrays], reading: Reading) -> str:
    """Say what the labels are taken for, and why."""
    y = clients[0].y_train
    if y.ndim > 1:
        kind = several_columns({client.path.name: client.y_all for client in clients}, reading.task) or Target()
        task = "multilabel" if kind.is_labels else "regression"
        return f"task: {task}, because y has {y.shape[1]} columns"
    if y.dtype.kind == "f":
        return "task: regression, because y holds floats"
    return "task: classification, because y holds whole numbers"


def _holding(client: ClientArrays, classes: int) -> Holding:
    """Return what one client has; without counts where classes have gaps, which are a problem."""
    own, y = Holding(client=client.name, train=len(client.y_train), test=len(client.y_test)), client.y_all
    if y.dtype.kind == "i":
        return own if y.max() >= classes else replace(own, counts=tuple(np.bincount(y, minlength=classes).tolist()))
    return own if y.ndim > 1 else replace(own, mean=float(y.mean()), std=float(y.std()))


def read_arrays(path: Path, tokens: bool = False) -> tuple[Array, Array | None]:
    """Return the examples and labels of one file, unsplit; None for labels where it has no ``y``."""
    arrays = _load(path)
    if "y" in arrays:
        return _pair(path, arrays, tokens=tokens)
    stand_in = np.zeros(np.shape(arrays.get("x", ()))[:1], np.int64)
    return _pair(path, {**arrays, "y": stand_in}, tokens=tokens)[0], None


@dataclass(frozen=True, kw_only=True)
class ClientArrays:
    """One client's checked file: the shape of an example, and the labels to train and to test with.

    ``keep`` and ``aside`` are the rows of ``x`` for each, where the file has no test examples. The examples are read
    again when they are copied to their place, so that no two files are in memory at once.
    """

    name: str
    path: Path
    shape: tuple[int, ...]
    y_train: Array
    y_test: Array
    keep: Array | None = None
    aside: Array | None = None
    tokens: bool = False

    @property
    def y_all(self) -> Array:
        """All labels."""
        return np.concatenate([self.y_train, self.y_test])

    def examples(self) -> tuple[Array, Array]:
        """Read the examples to train and to test with."""
        arrays = _load(self.path)
        x = _pair(self.path, arrays, tokens=self.tokens)[0]
        if self.keep is None:
            return x, _pair(self.path, arrays, "_test", self.tokens)[0]
        return x[self.keep], x[self.aside]


def _read_clients(
    files: Sequence[Path], reading: Reading, problems: Problems, name: str | None = None
) -> list[ClientArrays]:
    """Return the clients of the usable files that are alike; the other files are added to the problems."""
    for option in ("client", "group", "attribute", "ignore"):
        value = getattr(reading, option)
        if value:
            raise DataError(f"{option}={value} names a column, and .npz files have none; leave it out, or save tables")
    clients: list[ClientArrays] = []
    for file in files:
        try:
            client = _read_client(file, name or file.stem, reading)
            _check_alike(client, clients[0] if clients else client)
            clients.append(client)
        except BadFile as error:
            problems.add(error.problem)
    return clients


def _read_client(path: Path, name: str, reading: Reading) -> ClientArrays:
    arrays = _load(path)
    x, y = _pair(path, arrays, tokens=reading.tokens)
    _check_task(path, y, reading.task)
    shape = x.shape[1:]
    if "x_test" in arrays or "y_test" in arrays:
        x_test, y_test = _pair(path, arrays, "_test", reading.tokens)
        if x_test.shape[1:] != shape:
            what = f"has test examples of shape {x_test.shape[1:]} and others of {shape}"
            raise BadFile(path, None, what, "all need the same features")
        return ClientArrays(name=name, path=path, shape=shape, y_train=y, y_test=y_test, tokens=reading.tokens)
    if len(y) < 2:
        raise BadFile(path, None, "has a single example, none to test on", "add examples, or arrays x_test and y_test")
    keep, aside = stratified_split(y, reading.test, generator(reading.seed, "test", name))
    parts = {"y_train": y[keep], "y_test": y[aside], "keep": keep, "aside": aside}
    return ClientArrays(name=name, path=path, shape=shape, tokens=reading.tokens, **parts)


def _load(path: Path) -> dict[str, Array]:
    return load_npz(path, _NAMES, "save it again with numpy.savez(file, x=..., y=...)")


def _pair(path: Path, arrays: dict[str, Array], suffix: str = "", tokens: bool = False) -> Pair:
    """Return the examples ``x`` as float32, or int64 tokens, and ``y`` as int64 classes or float32 targets."""
    for name in (f"x{suffix}", f"y{suffix}"):
        if name not in arrays:
            remedy = f"save it with numpy.savez(file, x{suffix}=..., y{suffix}=...)"
            raise BadFile(path, None, f"has no array {name}", remedy)
        if arrays[name].dtype.kind not in _NUMBERS:
            what = f"{name} holds {arrays[name].dtype}, not numbers"
            raise BadFile(path, None, what, "encode it as numbers first, or save it as a .csv table")
    x, y = arrays[f"x{suffix}"], arrays[f"y{suffix}"]
    _check_shapes(path, x, y, suffix)
    if tokens and (x.dtype.kind not in "iu" or x.min() < 0):
        what = f"x{suffix} holds {x.dtype} from {x.min()} on"
        raise BadFile(path, None, what, "tokens are whole numbers from 0 on; save such, or leave --tokens out")
    # A number too large for float32 becomes infinite, and is refused as such.
    with np.errstate(over="ignore"):
        kind = np.float32 if y.dtype.kind == "f" or y.ndim > 1 else np.int64
        pair = x.astype(np.int64 if tokens else np.float32), y.astype(kind)
    _check_values(path, *pair, suffix)
    return pair


def _check_shapes(path: Path, x: Array, y: Array, suffix: str) -> None:
    if x.ndim < 2 or not fits_labels(y):
        what = f"x{suffix} has shape {x.shape} and y{suffix} {y.shape}"
        raise BadFile(path, None, what, "reshape them to (n, ...) and (n,), or (n, k) for k labels or targets")
    if len(x) != len(y):
        what = f"has {len(x)} examples in x{suffix} but {len(y)} in y{suffix}"
        raise BadFile(path, None, what, "save both with the same length")
    if x.size == 0:
        raise BadFile(path, None, f"x{suffix} is empty, of shape {x.shape}", "leave the file out or add examples")


def _check_values(path: Path, x: Array, y: Array, suffix: str) -> None:
    for name, array in ((f"x{suffix}", x), (f"y{suffix}", y)):
        bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
        if bad.any():
            what = f"{name} has a NaN or infinite value in row {np.argmax(bad)}, counted from 0"
            raise BadFile(path, None, what, "clean or impute it")
    if y.dtype.kind == "i" and y.min() < 0:
        what = f"y{suffix} has the label {y.min()} in row {np.argmin(y)}, counted from 0"
        raise BadFile(path, None, what, "classes count from 0")


def _check_task(path: Path, y: Array, task: str | None) -> None:
    if y.ndim > 1 or task == "multilabel":
        return  # decided for all files at once
    kind = "regression" if y.dtype.kind == "f" else "classification"
    if task not in (None, kind):
        wanted = "floats" if task == "regression" else "whole numbers"
        raise BadFile(path, None, f"y holds {y.dtype}, which is a {kind}", f"save y as {wanted} for a {task}")


def _check_alike(client: ClientArrays, first: ClientArrays) -> None:
    """Refuse a client with examples or labels of another kind than the first client's."""
    if client.shape != first.shape:
        what = f"has examples of shape {client.shape} where {first.path.name} has {first.shape}"
        raise BadFile(client.path, None, what, "all need the same features")
    for y in (client.y_train, client.y_test):
        if y.shape[1:] != first.y_train.shape[1:]:
            what = f"has labels of shape {y.shape[1:]} an example where {first.path.name} has {first.y_train.shape[1:]}"
            raise BadFile(client.path, None, what, "save as many for all")
        if y.dtype != first.y_train.dtype:
            what = f"has {y.dtype} labels where {first.path.name} has {first.y_train.dtype}"
            raise BadFile(client.path, None, what, "save all as whole numbers (classes), or all as floats")


def _class_counts(clients: Sequence[ClientArrays], where: str, problems: Problems, least: int = 2) -> Counts:
    """Return the number of examples of each class, from class 0 to the largest; empty where the labels are targets.

    Fewer than ``least`` classes are a problem; a single client of many may have only one.
    """
    if clients[0].y_train.dtype.kind == "f":
        return ()
    labels = np.concatenate([y for client in clients for y in (client.y_train, client.y_test)])
    seen, counts = np.unique(labels, return_counts=True)
    if len(seen) < least:
        problems.add(Problem(where, None, f"has the one class {seen[0]}", "at least 2 are needed to tell apart"))
    if seen[-1] >= GAPS * len(seen):
        what = f"has the label {seen[-1]} but only {len(seen)} classes"
        problems.add(Problem(where, None, what, "number them from 0"))
        return tuple(zip(map(str, seen), counts.tolist(), strict=True))
    return tuple((str(i), int(count)) for i, count in enumerate(np.bincount(labels)))


def _join(clients: Sequence[ClientArrays]) -> tuple[Split, Split]:
    """Return the train and the test split of all clients, read file by file."""
    kind = np.int64 if clients[0].tokens else np.float32
    train = _empty_split(clients[0].shape, [client.y_train for client in clients], kind)
    test = _empty_split(clients[0].shape, [client.y_test for client in clients], kind)
    for i, client in enumerate(clients):
        for split, x in zip((train, test), client.examples(), strict=True):
            split.of(i)[0][:] = x
            release(split.x)
    return train, test


def _empty_split(shape: tuple[int, ...], labels: Sequence[Array], kind: type) -> Split:
    """Return a split with these labels of each client and examples that are not yet filled in."""
    offsets = np.cumsum([0, *map(len, labels)])
    return Split(allocate((int(offsets[-1]), *shape), kind), np.concatenate(labels), offsets)
