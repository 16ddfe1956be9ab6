"""A data set before it is anybody's: raw arrays, already split into train and test, to be handed to clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.federated import Federated, Split
from coterie.data.partitioning.catalogue import parse_partition
from coterie.data.partitioning.shares import Partition, Shares
from coterie.data.subset import of_classes
from coterie.data.validation import with_validation
from coterie.errors import DataError

if TYPE_CHECKING:
    from coterie.data.own.schema import Schema

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Owners:
    """Whose the examples of a naturally federated set are: the number of its owner for every example."""

    names: tuple[str, ...]
    train: Array
    test: Array


@dataclass(frozen=True)
class Dataset:
    """Raw examples, held by nobody yet: ``x`` images ``(n, channels, height, width)`` or rows ``(n, ...)``.

    ``y`` are class numbers ``0..classes-1``, or float targets when ``classes`` is None. ``scaling`` is the range of
    the raw values; clients get it mapped to [-1, 1] (scaled to [0, 1], then mean and deviation 0.5). Without it,
    bytes are taken to range over 0..255 and floats are left as they are. ``schema`` and ``unit`` are those of a user's
    table, and ``words`` the settings that make these data again, as in ``Federated``, and ``files`` too. ``notes`` are
    for the run's record.
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    classes: int | None
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
        kind = "a real target" if self.classes is None else f"{self.classes} classes"
        sizes = f"{len(self.y_train)} train and {len(self.y_test)} test examples of {self.x_train.shape[1:]}"
        return f"Dataset({self.name}: {sizes}, {kind})"

    def only(self, classes: str) -> Dataset:
        """The examples of some classes alone, by name or number: ``a..j``, ``1,3,7``, ``coat,bag``.

        Labels are numbered anew, in the old order. Owners who are left with too few examples are left out.

        >>> x, y = np.zeros((9, 2)), np.arange(9) % 3
        >>> Dataset("toy", x, y, x, y, classes=3, class_names=("ape", "bat", "cat")).only("ape,cat").class_names
        ('ape', 'cat')
        """
        return of_classes(self, classes)

    def partition(
        self,
        how: str | Partition | None = None,
        clients: int | None = None,
        seed: int = 1,
        validation: float = 0.0,
    ) -> Federated:
        """Hand the examples to clients; ``validation`` is the fraction of its train data that each sets aside.

        By default each owner is a client where the data have owners, and otherwise 20 clients have equal shares.

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
            train=self._hand_over("train", self.x_train, self.y_train, shares),
            test=self._hand_over("test", self.x_test, self.y_test, shares),
            classes=self.classes if shares.classes is None else shares.classes,
            groups=shares.groups,
            notes=(*self.notes, *shares.notes),
            class_names=self.class_names if shares.classes is None else (),
            schema=self.schema,
            unit=self.unit,
            words={**(self.words or {}), "partition": how.text, "validation": validation} if worded else None,
            files=self.files,
        )
        return with_validation(federated, validation, seed) if validation else federated

    def _hand_over(self, split: str, x: Array, y: Array, shares: Shares) -> Split:
        """Copy each client's rows, scaled and seen through its view, to its place in one array."""
        rows = [share.train if split == "train" else share.test for share in shares.clients]
        offsets = np.concatenate([[0], np.cumsum([len(own) for own in rows])])
        everyone_x = np.empty((offsets[-1], *x.shape[1:]), np.float32)
        everyone_y = np.empty(offsets[-1], np.float32 if self.classes is None else np.int64)
        for start, own, share in zip(offsets, rows, shares.clients, strict=False):
            place = slice(start, start + len(own))
            everyone_x[place], everyone_y[place] = share.view(self._scaled(x[own]), y[own], split)
        return Split(everyone_x, everyone_y, offsets)

    def _scaled(self, x: Array) -> Array:
        scaling = (0, 255) if self.scaling is None and x.dtype == np.uint8 else self.scaling
        values = x.astype(np.float32)
        if scaling is None:
            return values
        low, high = scaling
        values -= low
        values /= (high - low) / 2
        values -= 1
        return values


def client_names(clients: int) -> tuple[str, ...]:
    """Names that sort as they are numbered.

    >>> client_names(2)
    ('client-000', 'client-001')
    """
    width = max(3, len(str(clients - 1)))
    return tuple(f"client-{i:0{width}d}" for i in range(clients))
