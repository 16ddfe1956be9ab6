"""A user's own data: a folder with one ``.npz`` file per client, the file's stem being the client's name.

A file holds ``x`` (n, ...) and ``y`` (n,), and perhaps ``x_test`` and ``y_test``; without them a part is set aside for
testing. Whole numbers in ``y`` are classes, floats are targets of a regression. Values are taken as they are: nothing
is scaled, imputed or dropped, and what cannot be used is an error that names the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.chance import generator, set_aside
from coterie.data.federated import Federated, Split
from coterie.data.npz import load_npz
from coterie.data.validation import with_validation
from coterie.errors import DataError

Array = np.ndarray[Any, Any]
Pair = tuple[Array, Array]

_NAMES = ("x", "y", "x_test", "y_test")
# numpy's letters for bool, signed, unsigned and floating numbers.
_NUMBERS = "biuf"

GAPS = 100
"""Class numbers may have gaps, but the largest must stay below this many times their count."""


@dataclass(frozen=True)
class _Client:
    """One client's file, read: its train and its test examples."""

    path: Path
    train: Pair
    test: Pair


def load_folder(path: str | Path, seed: int = 1, test: float = 0.2, validation: float = 0.0) -> Federated:
    """The federation of a folder's files, sorted by name.

    ``test`` is the fraction that a client without test examples of its own sets aside, and ``validation`` the fraction
    of its remaining train examples; by class, and drawn from the seed and the client's name.
    """
    if not 0 < test < 1:
        raise DataError(f"test={test} must be between 0 and 1, such as 0.2")
    folder = Path(path)
    clients = [_load_client(file, seed, test) for file in _files(folder)]
    _check_alike(clients)
    federated = Federated(
        data=folder.resolve().name,
        partition="natural",
        names=tuple(client.path.stem for client in clients),
        train=Split.join([client.train for client in clients]),
        test=Split.join([client.test for client in clients]),
        classes=_classes(clients),
    )
    return with_validation(federated, validation, seed) if validation else federated


def _files(folder: Path) -> Sequence[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; name one that holds a .npz file per client")
    files = sorted(file for file in folder.glob("*.npz") if not file.name.startswith("."))
    if not files:
        raise DataError(f"{folder} holds no .npz file; put one per client there, with arrays x and y")
    return files


def _load_client(path: Path, seed: int, test: float) -> _Client:
    arrays = load_npz(path, _NAMES, "save it again with numpy.savez(file, x=..., y=...)")
    x, y = train = _pair(path, arrays)
    if "x_test" in arrays or "y_test" in arrays:
        return _Client(path, train, _pair(path, arrays, "_test"))
    if len(y) < 2:
        raise DataError(f"{path} has a single example, none to test on; add examples, or arrays x_test and y_test")
    keep, aside = set_aside(y, test, generator(seed, "test", path.stem))
    return _Client(path, (x[keep], y[keep]), (x[aside], y[aside]))


def _pair(path: Path, arrays: dict[str, Array], suffix: str = "") -> Pair:
    """The examples ``x`` and labels ``y`` under these names, as float32 and int64 (or float32 targets)."""
    for name in (f"x{suffix}", f"y{suffix}"):
        if name not in arrays:
            raise DataError(f"{path} has no array {name}; save it with numpy.savez(file, x{suffix}=..., y{suffix}=...)")
        if arrays[name].dtype.kind not in _NUMBERS:
            raise DataError(f"{path}: {name} holds {arrays[name].dtype}, not numbers; encode it as numbers first")
    x, y = arrays[f"x{suffix}"], arrays[f"y{suffix}"]
    _check_shapes(path, x, y, suffix)
    # A number too large for float32 becomes infinite, and is refused as such.
    with np.errstate(over="ignore"):
        pair = x.astype(np.float32), y.astype(np.float32 if y.dtype.kind == "f" else np.int64)
    _check_values(path, *pair, suffix)
    return pair


def _check_shapes(path: Path, x: Array, y: Array, suffix: str) -> None:
    if x.ndim < 2 or y.ndim != 1:
        shapes = f"x{suffix} has shape {x.shape} and y{suffix} {y.shape}"
        raise DataError(f"{path}: {shapes}; reshape them to (n, ...) and (n,)")
    if len(x) != len(y):
        raise DataError(f"{path} has {len(x)} examples in x{suffix} but {len(y)} in y{suffix}; they must be as many")
    if x.size == 0:
        raise DataError(f"{path}: x{suffix} is empty, of shape {x.shape}; leave the file out or add examples")


def _check_values(path: Path, x: Array, y: Array, suffix: str) -> None:
    for name, array in ((f"x{suffix}", x), (f"y{suffix}", y)):
        bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
        if bad.any():
            raise DataError(f"{path}: {name} has a NaN or infinite value in row {np.argmax(bad)}; clean or impute it")
    if y.dtype.kind == "i" and y.min() < 0:
        raise DataError(f"{path}: y{suffix} has the label {y.min()} in row {np.argmin(y)}; classes count from 0")


def _check_alike(clients: Sequence[_Client]) -> None:
    """Refuse clients whose examples or labels are of another kind than the first client's."""
    first, (x, y) = clients[0].path.name, clients[0].train
    for client in clients:
        for part in (client.train, client.test):
            if part[0].shape[1:] != x.shape[1:]:
                shapes = f"has examples of shape {part[0].shape[1:]} where {first} has {x.shape[1:]}"
                raise DataError(f"{client.path} {shapes}; all need the same features")
            if part[1].dtype != y.dtype:
                kinds = f"has {part[1].dtype} labels where {first} has {y.dtype}"
                raise DataError(f"{client.path} {kinds}; save all as whole numbers (classes), or all as floats")


def _classes(clients: Sequence[_Client]) -> int | None:
    if clients[0].train[1].dtype.kind == "f":
        return None
    seen = np.unique(np.concatenate([np.unique(y) for client in clients for _, y in (client.train, client.test)]))
    if len(seen) < 2:
        raise DataError(f"{clients[0].path.parent} has the one class {seen[0]}; at least 2 are needed to tell apart")
    most = GAPS * len(seen)
    if seen[-1] >= most:
        raise DataError(
            f"{clients[0].path.parent} has the label {seen[-1]} but only {len(seen)} classes; number them from 0"
        )
    return 1 + int(seen[-1])
