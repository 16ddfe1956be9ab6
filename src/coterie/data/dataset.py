"""A data set before it is divided: raw arrays, already split into train and test, to be divided among clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.arguments import checked
from coterie.data.federated import Federated, Split, with_validation
from coterie.data.partitions.base import Partition, Shares
from coterie.data.partitions.registry import parse_partition
from coterie.errors import DataError, UnknownName
from coterie.target import Target
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.tables.schema import Schema

FEWEST = {"train": 2, "test": 1}
"""The fewest examples of a client: one to train on and one to set aside for validation, and one to test on."""


@dataclass(frozen=True)
class Owners:
    """The owners of a naturally federated data set: their names, and the number of the owner of every example."""

    names: tuple[str, ...]
    train: Array
    test: Array


@dataclass(frozen=True)
class Dataset:
    """Raw examples without clients: ``x`` images ``(n, channels, height, width)`` or rows ``(n, ...)``.

    ``y`` are class numbers ``0..classes-1``, or float targets when ``classes`` is None; ``columns`` and ``vocabulary``
    are those of ``Federated``. ``scaling`` is the range of
    the raw values; clients get it mapped to [-1, 1] (scaled to [0, 1], then mean and deviation 0.5). Without it,
    bytes are taken to range over 0..255 and floats are left as they are. ``notes`` are for the run's record.
    ``schema``, ``unit``, ``words`` and ``files`` are those of ``Federated``.
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    classes: int | None
    _: KW_ONLY
    columns: int | None = None
    vocabulary: int | None = None
    scaling: tuple[float, float] | None = None
    class_names: tuple[str, ...] = ()
    owners: Owners | None = None
    schema: Schema | None = None
    unit: float = 1.0
    words: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    files: str | None = None

    def __post_init__(self) -> None:
        for what, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            if len(x) != len(y):
                raise DataError(f"{self.name} has {len(x)} {what} examples but {len(y)} labels; they must be equal")
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            shapes = f"{self.x_train.shape[1:]} in train and {self.x_test.shape[1:]} in test"
            raise DataError(f"an example of {self.name} has shape {shapes}; they must be equal")

    def __repr__(self) -> str:
        kind = self.target
        sizes = f"{len(self.y_train)} train and {len(self.y_test)} test examples of {self.x_train.shape[1:]}"
        return f"Dataset({self.name}: {sizes}, {kind})"

    @property
    def target(self) -> Target:
        """What is predicted of an example."""
        return Target(self.classes, self.columns)

    @checked
    def only(self, classes: str) -> Dataset:
        """Return the examples of some classes, given by name or number: ``a..j``, ``1,3,7``, ``coat,bag``.

        Labels are renumbered in the old order. Owners who are left with too few examples are left out.

        >>> x, y = np.zeros((9, 2)), np.arange(9) % 3
        >>> Dataset("toy", x, y, x, y, classes=3, class_names=("ape", "bat", "cat")).only("ape,cat").class_names
        ('ape', 'cat')
        """
        kept = read_classes(classes, self)
        number = np.full(self.classes or 0, -1)
        number[kept] = np.arange(len(kept))
        rows = {split: np.flatnonzero(number[getattr(self, f"y_{split}")] >= 0) for split in FEWEST}
        owners, notes = self.owners, [f"only the classes {classes}: {len(kept)} of {self.classes}"]
        if owners is not None:
            stay = _with_enough(owners, rows)
            rows = {split: own[stay[getattr(owners, split)[own]]] for split, own in rows.items()}
            gone, owners = int((~stay).sum()), _remaining(owners, stay, rows)
            notes += [f"clients left out, with too few examples of these classes: {gone}"] if gone else []
        if min(map(len, rows.values())) < 1:
            raise DataError(
                f"classes is {classes}, and {self.name} has no example of them to train or test on; name others"
            )
        return replace(
            self,
            **{f"x_{split}": getattr(self, f"x_{split}")[own] for split, own in rows.items()},
            **{f"y_{split}": number[getattr(self, f"y_{split}")[own]] for split, own in rows.items()},
            classes=len(kept),
            class_names=tuple(self.class_names[i] for i in kept) if self.class_names else (),
            owners=owners,
            notes=(*self.notes, *notes),
            words=None if self.words is None else {**self.words, "classes": classes},
        )

    @checked
    def partition(
        self,
        how: str | Partition | None = None,
        clients: int | None = None,
        seed: int = 1,
        validation: float = 0.0,
    ) -> Federated:
        """Divide the examples among clients; each sets the fraction ``validation`` of its train data aside.

        By default each owner is a client if the data have owners, and else 20 clients have equal shares.

        >>> x, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
        >>> toy = Dataset("toy", x, y, x, y, classes=2)
        >>> toy.partition("iid(minimum=5)", clients=4).train.sizes.tolist()
        [5, 5, 5, 5]
        """
        how = how or ("natural" if self.owners else "iid")
        worded = self.words is not None and isinstance(how, str)
        how = parse_partition(how) if isinstance(how, str) else how
        count = clients if clients is not None else len(self.owners.names) if self.owners else 20
        shares = how.shares(self, count, seed)
        federated = Federated(
            data=self.name,
            partition=how.text,
            names=shares.names or client_names(len(shares.clients)),
            train=self._split("train", self.x_train, self.y_train, shares),
            test=self._split("test", self.x_test, self.y_test, shares),
            classes=self.classes if shares.classes is None else shares.classes,
            columns=self.columns,
            vocabulary=self.vocabulary,
            groups=shares.groups,
            notes=(*self.notes, *shares.notes),
            class_names=self.class_names if shares.classes is None else (),
            schema=self.schema,
            unit=self.unit,
            words={**(self.words or {}), "partition": how.text, "validation": validation} if worded else None,
            files=self.files,
            attributes={} if shares.groups is None else {"group": tuple(map(str, shares.groups.tolist()))},
        )
        return with_validation(federated, validation, seed) if validation else federated

    def _split(self, name: str, x: Array, y: Array, shares: Shares) -> Split:
        """Copy each client's rows, scaled and changed by its view, into one array."""
        rows = [share.train if name == "train" else share.test for share in shares.clients]
        scaling = (0, 255) if self.scaling is None and x.dtype == np.uint8 else self.scaling
        offsets = np.concatenate([[0], np.cumsum([len(own) for own in rows])])
        kind = np.float32 if self.vocabulary is None else np.int64
        everyone_x = np.empty((offsets[-1], *x.shape[1:]), kind)
        everyone_y = np.empty((offsets[-1], *y.shape[1:]), np.float32 if self.target.one_of is None else np.int64)
        for start, own, share in zip(offsets, rows, shares.clients, strict=False):
            part = slice(start, start + len(own))
            values: Array = x[own].astype(kind)
            if scaling is not None and self.vocabulary is None:
                low, high = scaling
                values -= low
                values /= (high - low) / 2
                values -= 1
            everyone_x[part], everyone_y[part] = share.view(values, y[own], name)
        return Split(everyone_x, everyone_y, offsets)


def client_names(clients: int) -> tuple[str, ...]:
    """Return names that sort in the order of their numbers.

    >>> client_names(2)
    ('client-000', 'client-001')
    """
    width = max(3, len(str(clients - 1)))
    return tuple(f"client-{i:0{width}d}" for i in range(clients))


def read_classes(text: str, data: Dataset) -> list[int]:
    """Return the numbers of the classes in a text, ascending: ``a..j``, ``1,3,7``, ``coat,bag``, ``0..2,9``."""
    if data.target.one_of is None:
        has = data.target if data.columns else "numbers as targets"
        raise DataError(f"classes is {text}, but {data.name} has {has}; leave it out")
    if data.schema is not None:
        raise DataError(f"classes is {text}, but {data.name} is a table of yours; choose its rows there")
    found: set[int] = set()
    for word in (word.strip() for word in text.split(",")):
        first, dots, last = word.partition("..")
        low, high = _class_number(first, data), _class_number(last if dots else first, data)
        if low > high:
            raise DataError(
                f"classes is {text}, but {last} stands before {first} in {data.name}; write {last}..{first}"
            )
        found |= set(range(low, high + 1))
    if len(found) < 2:
        raise DataError(f"classes is {text}, which is one class; name at least two")
    return sorted(found)


def _class_number(word: str, data: Dataset) -> int:
    """Return the number of the class with this name, or with this number if no class name is a number."""
    names = data.class_names or tuple(map(str, range(data.classes or 0)))
    if word in names:
        return names.index(word)
    if word.isdecimal() and int(word) < len(names) and not any(name.isdecimal() for name in names):
        return int(word)
    raise UnknownName(f"class of {data.name}", word, names)


def _with_enough(owners: Owners, rows: dict[str, Array]) -> Array:
    """Return which owners have enough of these rows in both splits."""
    count = len(owners.names)
    enough = [np.bincount(getattr(owners, s)[own], minlength=count) >= FEWEST[s] for s, own in rows.items()]
    both: Array = np.logical_and(*enough)
    return both


def _remaining(owners: Owners, stay: Array, rows: dict[str, Array]) -> Owners:
    """Return the owners who stay, renumbered, for these rows."""
    number = np.cumsum(stay) - 1
    names = tuple(name for name, here in zip(owners.names, stay, strict=True) if here)
    return replace(owners, names=names, **{split: number[getattr(owners, split)[own]] for split, own in rows.items()})
