"""A user's arrays: one ``.npz`` file per client, with ``x`` (n, ...) and ``y`` (n,).

A file may bring ``x_test`` and ``y_test``; without them a part is set aside for testing. Whole numbers in ``y`` are
classes, floats are targets of a regression. Values are taken as they are: nothing is scaled, imputed or dropped, and
what cannot be used is an error that names the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.data.apportion import set_aside
from coterie.data.federated import Split
from coterie.data.npz import load_npz
from coterie.data.store import release, room
from coterie.data.tables.check import Counts
from coterie.data.tables.problems import BadFile, Problem, Problems
from coterie.data.tables.reading import Reading
from coterie.errors import DataError
from coterie.seeding import generator
from coterie.typing import Array

Pair = tuple[Array, Array]

_NAMES = ("x", "y", "x_test", "y_test")
# numpy's letters for bool, signed, unsigned and floating numbers.
_NUMBERS = "biuf"

GAPS = 100
"""Class numbers may have gaps, but the largest must stay below this many times their count."""


@dataclass(frozen=True)
class Client:
    """One client's file, looked through: the shape of an example, and the labels to train and to test with.

    ``keep`` and ``aside`` are the rows of ``x`` for each, where the file has no test examples of its own. The examples
    are read again when they are put in place, so that no two files are in memory at once.
    """

    name: str
    path: Path
    shape: tuple[int, ...]
    y_train: Array
    y_test: Array
    keep: Array | None = None
    aside: Array | None = None

    def examples(self) -> tuple[Array, Array]:
        """The examples to train and to test with."""
        arrays = _arrays(self.path)
        x = _pair(self.path, arrays)[0]
        if self.keep is None:
            return x, _pair(self.path, arrays, "_test")[0]
        return x[self.keep], x[self.aside]


def read_clients(
    files: Sequence[Path], reading: Reading, problems: Problems, called: str | None = None
) -> list[Client]:
    """The clients of the files that can be used and are alike; the others are problems.

    A client is called as its file, or as ``called`` says where there is one file.
    """
    for name, value in (("client", reading.client), ("group", reading.group), ("ignore", reading.ignore)):
        if value:
            raise DataError(f"{name}={value} names a column, and .npz files have none; leave it out, or save tables")
    clients: list[Client] = []
    for file in files:
        try:
            client = _look(file, called or file.stem, reading)
            _check_alike(client, [*clients, client][0])
            clients.append(client)
        except BadFile as error:
            problems.add(error.problem)
    return clients


def read_arrays(path: Path) -> Pair:
    """The examples and labels of one file, as they are."""
    return _pair(path, _arrays(path))


def put_in_place(clients: Sequence[Client]) -> tuple[Split, Split]:
    """The train and the test split of all clients, read file by file."""
    splits = tuple(
        Split(room((int(offsets[-1]), *clients[0].shape), np.float32), np.concatenate(labels), offsets)
        for labels in ([client.y_train for client in clients], [client.y_test for client in clients])
        for offsets in [np.cumsum([0, *map(len, labels)])]
    )
    for i, client in enumerate(clients):
        for split, x in zip(splits, client.examples(), strict=True):
            split.of(i)[0][:] = x
            release(split.x)
    return splits[0], splits[1]


def _arrays(path: Path) -> dict[str, Array]:
    return load_npz(path, _NAMES, "save it again with numpy.savez(file, x=..., y=...)")


def _look(path: Path, name: str, reading: Reading) -> Client:
    arrays = _arrays(path)
    x, y = _pair(path, arrays)
    _check_task(path, y, reading.task)
    if "x_test" in arrays or "y_test" in arrays:
        x_test, y_test = _pair(path, arrays, "_test")
        if x_test.shape[1:] != x.shape[1:]:
            what = f"has test examples of shape {x_test.shape[1:]} and others of {x.shape[1:]}"
            raise BadFile(path, None, what, "all need the same features")
        return Client(name, path, x.shape[1:], y, y_test)
    if len(y) < 2:
        raise BadFile(path, None, "has a single example, none to test on", "add examples, or arrays x_test and y_test")
    keep, aside = set_aside(y, reading.test, generator(reading.seed, "test", name))
    return Client(name, path, x.shape[1:], y[keep], y[aside], keep, aside)


def _check_task(path: Path, y: Array, task: str | None) -> None:
    kind = "regression" if y.dtype.kind == "f" else "classification"
    if task not in (None, kind):
        wanted = "floats" if task == "regression" else "whole numbers"
        raise BadFile(path, None, f"y holds {y.dtype}, which is a {kind}", f"save y as {wanted} for a {task}")


def _pair(path: Path, arrays: dict[str, Array], suffix: str = "") -> Pair:
    """The examples ``x`` and labels ``y`` under these names, as float32 and int64 (or float32 targets)."""
    for name in (f"x{suffix}", f"y{suffix}"):
        if name not in arrays:
            remedy = f"save it with numpy.savez(file, x{suffix}=..., y{suffix}=...)"
            raise BadFile(path, None, f"has no array {name}", remedy)
        if arrays[name].dtype.kind not in _NUMBERS:
            what = f"{name} holds {arrays[name].dtype}, not numbers"
            raise BadFile(path, None, what, "encode it as numbers first, or save it as a .csv table")
    x, y = arrays[f"x{suffix}"], arrays[f"y{suffix}"]
    _check_shapes(path, x, y, suffix)
    # A number too large for float32 becomes infinite, and is refused as such.
    with np.errstate(over="ignore"):
        pair = x.astype(np.float32), y.astype(np.float32 if y.dtype.kind == "f" else np.int64)
    _check_values(path, *pair, suffix)
    return pair


def _check_shapes(path: Path, x: Array, y: Array, suffix: str) -> None:
    if x.ndim < 2 or y.ndim != 1:
        what = f"x{suffix} has shape {x.shape} and y{suffix} {y.shape}"
        raise BadFile(path, None, what, "reshape them to (n, ...) and (n,)")
    if len(x) != len(y):
        what = f"has {len(x)} examples in x{suffix} but {len(y)} in y{suffix}"
        raise BadFile(path, None, what, "they must be as many")
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


def _check_alike(client: Client, first: Client) -> None:
    """Refuse a client whose examples or labels are of another kind than the first client's."""
    if client.shape != first.shape:
        what = f"has examples of shape {client.shape} where {first.path.name} has {first.shape}"
        raise BadFile(client.path, None, what, "all need the same features")
    for y in (client.y_train, client.y_test):
        if y.dtype != first.y_train.dtype:
            what = f"has {y.dtype} labels where {first.path.name} has {first.y_train.dtype}"
            raise BadFile(client.path, None, what, "save all as whole numbers (classes), or all as floats")


def class_counts(clients: Sequence[Client], where: str, problems: Problems, least: int = 2) -> Counts:
    """How many examples each class has, from class 0 to the largest; none where the labels are targets.

    Fewer than the ``least`` classes are a problem: one client of many may have seen one class only.
    """
    if clients[0].y_train.dtype.kind == "f":
        return ()
    labels = np.concatenate([y for client in clients for y in (client.y_train, client.y_test)])
    seen, counts = np.unique(labels, return_counts=True)
    if len(seen) < least:
        what = f"has the one class {seen[0]}"
        problems.add(Problem(where, None, what, "at least 2 are needed to tell apart"))
    if seen[-1] >= GAPS * len(seen):
        what = f"has the label {seen[-1]} but only {len(seen)} classes"
        problems.add(Problem(where, None, what, "number them from 0"))
        return tuple(zip(map(str, seen), counts.tolist(), strict=True))
    return tuple((str(i), int(count)) for i, count in enumerate(np.bincount(labels)))
