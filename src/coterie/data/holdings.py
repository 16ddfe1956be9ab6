"""What clients hold, counted: examples of each class, and examples that occur more than once."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np

from coterie.data.federated import Array, Federated, Split


def class_counts(data: Federated) -> Array:
    """How many train examples of each class every client holds, clients x classes; one column for targets."""
    if data.classes is None:
        return data.train.sizes[:, None]
    owners = np.repeat(np.arange(len(data)), data.train.sizes)
    table = np.zeros((len(data), data.classes), np.int64)
    np.add.at(table, (owners, data.train.y), 1)
    return table


@dataclass(frozen=True)
class Duplicates:
    """How many train examples are repeats, and how many test examples are also somebody's train example."""

    inside: int
    across: int
    leaked: int

    def __str__(self) -> str:
        if not any((self.inside, self.across, self.leaked)):
            return "no duplicates"
        return (
            f"duplicates: {self.inside} train examples repeat one of the same client, {self.across} are held by "
            f"another client too, {self.leaked} test examples are also train examples"
        )


def find_duplicates(data: Federated) -> Duplicates:
    """Count equal feature rows, whatever their labels."""
    train = _prints(data.train)
    owners = np.repeat(np.arange(len(data)), data.train.sizes)
    unique = set(zip(train, owners.tolist(), strict=True))
    holders = Counter(print_ for print_, _ in unique)
    known = set(train)
    return Duplicates(
        inside=len(train) - len(unique),
        across=sum(holders[print_] > 1 for print_ in train),
        leaked=sum(print_ in known for print_ in _prints(data.test)),
    )


def _prints(split: Split) -> list[bytes]:
    """A fingerprint of every row; adding 0 makes the two zeros one."""
    return [hashlib.blake2b((row + 0).tobytes(), digest_size=12).digest() for row in split.x]
