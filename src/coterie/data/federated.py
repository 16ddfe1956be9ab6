"""The data of a federation: the examples of all clients, client after client, in one array per split."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.apportion import stratified_split
from coterie.data.array_memory import allocate, release, row_blocks, take_rows
from coterie.errors import DataError
from coterie.seeding import generator
from coterie.target import Target
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.tables.schema import Schema


@dataclass(frozen=True)
class Split:
    """Examples of m clients, stored client after client: client i holds rows ``offsets[i]:offsets[i+1]``."""

    x: Array
    y: Array
    offsets: Array

    @classmethod
    def join(cls, parts: Sequence[tuple[Array, Array]]) -> Split:
        """Return one split of each client's ``(x, y)``.

        >>> s = Split.join([(np.zeros((2, 3)), np.array([0, 1])), (np.ones((1, 3)), np.array([1]))])
        >>> s.sizes.tolist(), s.of(1)[1].tolist()
        ([2, 1], [1])
        """
        offsets = np.concatenate([[0], np.cumsum([len(y) for _, y in parts])])
        dtype = np.result_type(*(x.dtype for x, _ in parts))
        x = allocate((int(offsets[-1]), *parts[0][0].shape[1:]), dtype)
        np.concatenate([x for x, _ in parts], out=x)
        return cls(x, np.concatenate([y for _, y in parts]), offsets)

    def __repr__(self) -> str:
        return f"Split({len(self.y)} examples of {self.x.shape[1:]}, {len(self.sizes)} clients)"

    def take(self, rows: Sequence[Array]) -> Split:
        """Return the split in which client i holds the rows ``rows[i]`` of this one."""
        every = np.concatenate(rows)
        return Split(take_rows(self.x, every), self.y[every], np.concatenate([[0], np.cumsum(list(map(len, rows)))]))

    @property
    def sizes(self) -> Array:
        """The number of examples of each client."""
        return np.diff(self.offsets)

    def of(self, client: int) -> tuple[Array, Array]:
        """Return the ``(x, y)`` of one client, as views."""
        part = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
        return self.x[part], self.y[part]


@dataclass(frozen=True)
class Federated:
    """The data of named clients: a train, a test and perhaps a validation split.

    ``x`` is float32, one row an example, or int64 tokens ``0..vocabulary-1``. ``y`` is int64 class numbers
    ``0..classes-1``, or float32 targets when ``classes`` is None (regression). With ``columns`` an example has that
    many targets, or labels that are each 0 or 1 (``classes`` is then 2), and ``y`` is ``(n, columns)``, float32.
    ``groups`` are the true groups where they are known; they are for scoring only and no algorithm ever sees them.
    ``attributes`` are what is known of the clients and algorithms may see: the value of each client, by the name of the
    column. ``schema`` turned a user's tables into these arrays, ``class_names`` are the classes, or labels, as they are
    named there, and ``unit`` is one unit of ``y`` in the user's own units of a target. ``words`` are the settings that
    make these data again, None where they were made in Python. ``files`` is a hash of all bytes of a user's own files.
    """

    data: str
    partition: str
    names: tuple[str, ...]
    train: Split
    test: Split
    classes: int | None
    _: KW_ONLY
    columns: int | None = None
    vocabulary: int | None = None
    validation: Split | None = None
    groups: Array | None = None
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    schema: Schema | None = None
    unit: float = 1.0
    words: Mapping[str, Any] | None = None
    files: str | None = None
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise DataError(f"two clients are named {twice[0]!r}; client names must be unique")
        for what, split in (("train", self.train), ("test", self.test)):
            if len(split.sizes) != len(self.names):
                raise DataError(
                    f"{len(self.names)} names but {len(split.sizes)} clients in the {what} split; give a name for each"
                )
            if split.sizes.min(initial=1) < 1:
                empty = self.names[int(np.argmin(split.sizes))]
                raise DataError(f"client {empty!r} has no {what} example; every client needs at least one")
            self._check_values(what, split)
        for column, values in self.attributes.items():
            if len(values) != len(self.names):
                what = f"attribute {column!r} has {len(values)} values and there are {len(self.names)} clients"
                raise DataError(f"{what}; give one for each")

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        kind = self.target
        sizes = f"{len(self.train.y)} train and {len(self.test.y)} test examples of {self.shape}"
        return f"Federated({self.data}, {self.partition}: {len(self)} clients, {sizes}, {kind})"

    @property
    def target(self) -> Target:
        """What is predicted of an example."""
        return Target(self.classes, self.columns)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train.x.shape[1:])

    def select(self, clients: Sequence[int]) -> Federated:
        """Return the federation of only these clients, in this order."""

        def keep(split: Split) -> Split:
            return Split.join([split.of(i) for i in clients])

        return replace(
            self,
            names=tuple(self.names[i] for i in clients),
            train=keep(self.train),
            test=keep(self.test),
            validation=None if self.validation is None else keep(self.validation),
            groups=None if self.groups is None else self.groups[list(clients)],
            words=None,
            attributes={column: tuple(values[i] for i in clients) for column, values in self.attributes.items()},
        )

    def attributes_of(self, client: int) -> dict[str, str]:
        """Return what is known of one client, by the name of the column; an empty value is not known."""
        return {column: values[client] for column, values in self.attributes.items() if values[client]}

    def fingerprint(self) -> str:
        """Return a hash that identifies the data: names, sizes, labels, and two examples of each client.

        Numbers are rounded to eighths, so that the last digits, which differ between machines, do not matter.
        """
        digest = hashlib.blake2b("\x1f".join(self.names).encode(), digest_size=16)
        for split in (self.train, self.test, self.validation):
            if split is not None:
                ends = np.concatenate([split.offsets[:-1], split.offsets[1:] - 1])
                for array in (split.offsets, split.y, split.x[ends]):
                    digest.update((np.rint(8.0 * array) + 0.0).astype(np.float64).tobytes())
        return digest.hexdigest()

    def _check_values(self, what: str, split: Split) -> None:
        for part in row_blocks(split.x) if split.x.dtype.kind == "f" else ():
            bad = np.asarray(~np.isfinite(split.x[part].reshape(part.stop - part.start, -1)).all(axis=1))
            if bad.any():
                self._refuse(what, split, bad, "a NaN or infinite feature", "clean or impute it first", part.start)
            release(split.x)
        if self.vocabulary is not None:
            self._check_tokens(what, split, self.vocabulary)
        if split.y.shape[1:] != self.target.y_shape:
            shapes = f"{split.y.shape[1:]} where {self.target} are {self.target.y_shape}"
            raise DataError(f"an example of the {what} split has y of shape {shapes}; reshape it")
        if self.columns is not None:
            self._check_columns(what, split)
        elif self.classes is None:
            if not np.all(np.isfinite(split.y)):
                self._refuse(what, split, ~np.isfinite(split.y), "a NaN or infinite target", "clean it first")
        elif split.y.size and not (split.y.min() >= 0 and split.y.max() < self.classes):
            bad = (split.y < 0) | (split.y >= self.classes)
            self._refuse(what, split, bad, "a label out of range", f"labels must be 0..{self.classes - 1}")

    def _check_tokens(self, what: str, split: Split, vocabulary: int) -> None:
        """Refuse examples that are no tokens of the vocabulary."""
        if split.x.dtype != np.int64:
            raise DataError(f"tokens are int64 and the {what} examples are {split.x.dtype}; convert them")
        for part in row_blocks(split.x):
            some = split.x[part].reshape(part.stop - part.start, -1)
            bad = np.asarray(((some < 0) | (some >= vocabulary)).any(axis=1))
            if bad.any():
                problem, remedy = "a token out of range", f"tokens must be 0..{vocabulary - 1}"
                self._refuse(what, split, bad, problem, remedy, part.start)
            release(split.x)

    def _check_columns(self, what: str, split: Split) -> None:
        """Refuse targets that are not finite, and labels other than 0 and 1."""
        good: Array
        if self.classes is None:
            good, problem, remedy = np.isfinite(split.y), "a NaN or infinite target", "clean it first"
        else:
            good, problem, remedy = np.isin(split.y, (0, 1)), "a label out of range", "each must be 0 or 1"
        if not good.all():
            self._refuse(what, split, np.asarray(~good.all(axis=1)), problem, remedy)

    def _refuse(self, what: str, split: Split, bad: Array, problem: str, remedy: str, start: int = 0) -> None:
        row = start + int(np.argmax(bad))
        client = int(np.searchsorted(split.offsets, row, side="right")) - 1
        own_row = row - int(split.offsets[client])
        raise DataError(f"client {self.names[client]!r} has {problem} in {what} row {own_row}; {remedy}")


def with_validation(federated: Federated, fraction: float, seed: int) -> Federated:
    """Return the federation in which each client sets ``fraction`` of its train examples aside, by class.

    At least one is set aside. The draw depends on the seed and the client's name, not on the other clients.
    """
    if not 0 < fraction < 1:
        raise DataError(f"validation={fraction} must be between 0 and 1, such as 0.1")
    kept, aside = [], []
    for i, (name, start) in enumerate(zip(federated.names, federated.train.offsets, strict=False)):
        labels = federated.train.of(i)[1]
        if len(labels) < 2:
            raise DataError(f"client {name!r} has one train example and cannot set one aside; use validation=0")
        own, other = stratified_split(labels, fraction, generator(seed, "validation", name))
        kept.append(start + own)
        aside.append(start + other)
    return replace(federated, train=federated.train.take(kept), validation=federated.train.take(aside))
