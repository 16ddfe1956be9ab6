"""Arrays given by Python: for each client its examples and labels, perhaps with test and validation parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from coterie.arguments import checked
from coterie.data.apportion import stratified_split
from coterie.data.federated import Federated, Split, with_validation
from coterie.data.given.labels import (
    class_numbers,
    find_classes,
    find_task,
    fits_labels,
    group_numbers,
    several_columns,
    vocabulary_of,
)
from coterie.data.tables.problems import class_notes
from coterie.data.tables.reading import Reading
from coterie.errors import DataError, UnknownName
from coterie.seeding import generator
from coterie.target import Target
from coterie.terminal import line
from coterie.typing import Array

Pair = tuple[Array, Array]

PARTS = ("train", "test", "validation")


@checked
def from_arrays(
    clients: Mapping[Any, Any],
    *,
    task: str | None = None,
    test: float = 0.2,
    validation: float = 0.0,
    seed: int = 1,
    groups: Mapping[Any, Any] | None = None,
    tokens: bool = False,
) -> Federated:
    """Return the clients of a mapping from names to ``(x, y)``, or to a mapping of parts: train, test, validation.

    Arrays may be numpy's, torch's or lists. ``x`` is ``(n, ...)``, for images ``(n, channels, height, width)``. Bytes
    (uint8) are taken to range over 0..255 and mapped to [-1, 1], as ``Dataset`` does; other numbers are used as they
    are. ``y`` is ``(n,)``: whole numbers, words and truth values are classes, numbered in order and kept in
    ``class_names``; floats are targets of a regression, used as they are; ``task`` overrides that. Or it is
    ``(n, k)``: k labels of each example if all are 0 or 1, otherwise k targets. With ``tokens`` the numbers in ``x``
    are whole and stand for words: they stay so, for networks with embeddings. A client without a test part sets the
    share ``test`` aside, by class, drawn from the seed and its name as for files; likewise ``validation`` of its train
    part. ``groups`` maps names to true groups, for scoring only.

    >>> x, y = np.arange(20.0).reshape(10, 2), ["ill", "well"] * 5
    >>> clients = from_arrays({"bern": (x, y), "chur": {"train": (x, y), "test": (x[:4], y[:4])}})
    >>> clients.names, clients.class_names, clients.train.sizes.tolist(), clients.test.sizes.tolist()
    (('bern', 'chur'), ('ill', 'well'), [8, 10], [2, 4])
    """
    reading = Reading(task=task, test=test, validation=validation, seed=seed, tokens=tokens)
    found = read_clients(clients, "(x, y)", partial(_read_pair, tokens=tokens))
    return make_federated("arrays", found, reading, groups)


@dataclass(frozen=True)
class Given:
    """The parts of one client, by name: examples and labels as numpy arrays."""

    name: str
    parts: Mapping[str, Pair]

    @property
    def train(self) -> Pair:
        """The examples to train on, or to divide."""
        return self.parts["train"]


def read_clients(clients: Any, wanted: str, read: Callable[[Any, str], Pair]) -> list[Given]:
    """Return the clients of a mapping; ``read(value, where)`` makes a pair of what is ``wanted`` for each part."""
    if not isinstance(clients, Mapping) or not clients:
        what = "an empty mapping" if isinstance(clients, Mapping) else f"a {type(clients).__name__}"
        raise DataError(f"clients are given as {what}; give a mapping from names to {wanted}")
    found = []
    for key, value in clients.items():
        parts = value if isinstance(value, Mapping) else {"train": value}
        for part in parts:
            if part not in PARTS:
                raise UnknownName(f"part of client {str(key)!r}", str(part), PARTS)
        if "train" not in parts:
            raise DataError(f"client {str(key)!r} has no part 'train'; give {wanted}, or parts with these names")
        named = len(parts) > 1
        pairs = {part: read(own, f"client {str(key)!r}{f' in {part}' * named}") for part, own in parts.items()}
        found.append(Given(str(key), pairs))
    return found


def _read_pair(value: Any, where: str, tokens: bool = False) -> Pair:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise DataError(f"{where} has a {type(value).__name__}; give (x, y), or parts train, test and validation")
    return checked_pair(as_array(value[0], f"x of {where}"), as_array(value[1], f"y of {where}"), where, tokens)


def as_array(values: Any, what: str) -> Array:
    """Return numbers, words or a tensor as an array of numbers or words."""
    try:
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        if array.dtype.kind in "OT":  # objects and words of any length, as columns of pandas are
            array = np.array(array.tolist())
    except (TypeError, ValueError, RuntimeError) as error:
        why = line(str(error).partition("\n")[0], 200)
        raise DataError(f"{what} cannot be read as an array ({why}); give numbers in equal rows") from error
    return array


def as_numbers(values: Any, what: str, remedy: str = "give an array of numbers") -> Array:
    """Return numbers or a tensor as an array; refuse words.

    >>> as_numbers("new.csv", "x")
    Traceback (most recent call last):
    coterie.errors.DataError: x holds <U7, not numbers; give an array of numbers
    """
    array = as_array(values, what)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} holds {array.dtype}, not numbers; {remedy}")
    return array


def checked_pair(x: Array, y: Array, where: str, tokens: bool = False) -> Pair:
    """Return examples, float32, bytes or int64 tokens, and labels; refuse those that no model can be trained on."""
    as_numbers(x, f"x of {where}", "encode it as numbers, or use ct.from_frame")
    if x.ndim < 2 or not fits_labels(y):
        shapes = "(n, ...) and (n,), or (n, k) for k labels or targets"
        raise DataError(f"{where} has x of shape {x.shape} and y of {y.shape}; reshape them to {shapes}")
    if y.ndim > 1 and y.dtype.kind not in "biuf":
        raise DataError(f"y of {where} has {y.shape[1]} columns of {y.dtype}; several labels or targets are numbers")
    if len(x) != len(y):
        raise DataError(f"{where} has {len(x)} examples in x but {len(y)} labels in y; they must be equal")
    if not x.size:
        raise DataError(f"{where} has no examples, x has shape {x.shape}; add some, or leave it out")
    if tokens and (x.dtype.kind not in "iu" or x.min() < 0):
        what = f"x of {where} holds {x.dtype} from {x.min()} on"
        raise DataError(f"{what}; tokens are whole numbers from 0 on: give such, or leave tokens out")
    with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite, and is refused as such
        x = x.astype(np.int64) if tokens else x if x.dtype == np.uint8 else x.astype(np.float32)
        y = y.astype(np.float32) if y.ndim > 1 else y
        numbers = {"x": x, "y": y.astype(np.float32) if y.dtype.kind == "f" else y}
    for name, array in numbers.items():
        if array.dtype.kind == "f":
            bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
            if bad.any():
                what = f"{name} of {where} has a NaN or infinite value in row {np.argmax(bad)}, counted from 0"
                raise DataError(f"{what}; clean or impute it first")
    return x, y.astype(np.int64) if y.dtype.kind in "iu" else y


def make_federated(
    data: str,
    clients: Sequence[Given],
    reading: Reading,
    groups: Mapping[Any, Any] | None = None,
    label_names: Sequence[str] = (),
) -> Federated:
    """Return the federation of clients that were read; ``label_names`` name the classes 0, 1, ... if given."""
    _check_alike(clients)
    labels = {f"{part} of {client.name!r}": y for client in clients for part, (_, y) in client.parts.items()}
    kind = several_columns(labels, reading.task)
    clients, class_names, notes = _with_labels(clients, labels, reading.task, label_names if kind is None else None)
    kind = kind or Target(len(class_names) or None)
    _check_enough(clients, reading)
    names = tuple(client.name for client in clients)
    parts = [_split(client, reading) for client in clients]
    own = _validation(clients)
    federated = Federated(
        data=data,
        partition="natural",
        names=names,
        train=Split.join([each["train"] for each in parts]),
        test=Split.join([each["test"] for each in parts]),
        classes=kind.classes,
        columns=kind.columns,
        vocabulary=_vocabulary(clients) if reading.tokens else None,
        validation=own,
        groups=None if groups is None else group_numbers(names, groups),
        notes=notes,
        class_names=class_names,
    )
    share = reading.validation if own is None else 0.0
    return with_validation(federated, share, reading.seed) if share else federated


def _check_alike(clients: Sequence[Given]) -> None:
    """Refuse clients with examples of another shape, or of bytes where others have numbers."""
    first = clients[0]
    shape, dtype = first.train[0].shape[1:], first.train[0].dtype
    for client in clients:
        for part, (x, _) in client.parts.items():
            where = f"client {client.name!r} has {part} examples"
            if x.shape[1:] != shape:
                raise DataError(f"{where} of shape {x.shape[1:]} where {first.name!r} has {shape}; make them equal")
            if x.dtype != dtype:
                kinds = {True: "bytes", False: "numbers"}
                what = f"{where} that are {kinds[x.dtype == np.uint8]} where {first.name!r} has "
                raise DataError(f"{what}{kinds[dtype == np.uint8]}; bytes are scaled and numbers are not: convert one")


def _vocabulary(clients: Sequence[Given]) -> int:
    return vocabulary_of(*(x for client in clients for x, _ in client.parts.values()))


def _with_labels(
    clients: Sequence[Given], labels: Mapping[str, Array], task: str | None, label_names: Sequence[str] | None
) -> tuple[list[Given], tuple[str, ...], tuple[str, ...]]:
    """Return the clients with labels as class numbers or targets, the names of the classes, and notes about them.

    ``label_names`` is None where an example has several labels or targets, which stay as they are.
    """
    if label_names is None or find_task(labels, task) == "regression":
        return _relabelled(clients, lambda y: y.astype(np.float32)), (), ()
    classes = find_classes(labels)
    every = class_numbers(np.concatenate(list(labels.values())), classes)
    known = dict(enumerate(label_names))
    names = tuple(known.get(label, str(label)) for label in classes.tolist())
    counts = zip(names, np.bincount(every, minlength=len(names)).tolist(), strict=True)
    return _relabelled(clients, lambda y: class_numbers(y, classes)), names, tuple(class_notes(list(counts)))


def _relabelled(clients: Sequence[Given], relabel: Callable[[Array], Array]) -> list[Given]:
    return [
        Given(client.name, {part: (_scaled(x), relabel(y)) for part, (x, y) in client.parts.items()})
        for client in clients
    ]


def _scaled(x: Array) -> Array:
    """Return examples as float32: bytes 0..255 mapped to [-1, 1], other numbers as they are."""
    return (x.astype(np.float32) / np.float32(127.5) - 1) if x.dtype == np.uint8 else x


def _check_enough(clients: Sequence[Given], reading: Reading) -> None:
    """Refuse clients that cannot set aside what they must, all of them by name."""
    few = []
    for client in clients:
        least = 1 + ("test" not in client.parts) + bool(reading.validation and "validation" not in client.parts)
        if len(client.train[1]) < least:
            few.append(client.name)
    if few:
        shown = ", ".join(map(repr, few[:5])) + (f" and {len(few) - 5} more" if len(few) > 5 else "")
        what = f"too few examples to train on and to set aside: {shown}"
        raise DataError(f"{what}; give them more examples or parts of their own, or leave them out")


def _split(client: Given, reading: Reading) -> dict[str, Pair]:
    """Return the train and test part of a client; the draw depends on the seed, its name and its rows alone."""
    if "test" in client.parts:
        return {part: client.parts[part] for part in ("train", "test")}
    x, y = client.train
    rows = stratified_split(y, reading.test, generator(reading.seed, "test", client.name))
    return {part: (x[own], y[own]) for part, own in zip(("train", "test"), rows, strict=True)}


def _validation(clients: Sequence[Given]) -> Split | None:
    """Return the validation parts that were given: of all clients, or of none."""
    having = [client for client in clients if "validation" in client.parts]
    if not having:
        return None
    for client in clients:
        if "validation" not in client.parts:
            what = f"client {client.name!r} has no validation part, and {having[0].name!r} has one"
            raise DataError(f"{what}; give it to all or none")
    return Split.join([client.parts["validation"] for client in clients])
