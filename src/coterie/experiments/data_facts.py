"""What is known of the clients' data where a run is scored: nearly all in a simulation, what sites tell elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.data import Federated, Schema, Split
from coterie.experiments.scores import majority_hits
from coterie.seeding import Key
from coterie.typing import Array

UNIFORM_EXAMPLES = 1000
"""Size of the uniform held-out test on which GF1 is measured."""


@dataclass(frozen=True)
class DataFacts:
    """Names and sizes of the clients' data, and what their examples look like.

    Only a simulation knows the true ``groups``, the test examples that the most frequent train class gets right
    (``hits``), a ``uniform`` test of all clients' examples, the data's ``fingerprint``, whether there are settings
    that make the data again (``worded``), and a hash of the user's own ``files``.
    """

    data: str
    partition: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    classes: int | None
    train: Array
    test: Array
    validated: bool = False
    unit: float = 1.0
    notes: tuple[str, ...] = ()
    schema: Schema | None = None
    groups: Array | None = None
    hits: Array | None = None
    uniform: Split | None = None
    fingerprint: str | None = None
    worded: bool = True
    files: str | None = None

    def __len__(self) -> int:
        return len(self.names)


def facts_of(data: Federated) -> DataFacts:
    """All that a simulation knows of its data."""
    hits = None
    if data.classes is not None:
        hits = np.array([majority_hits(data.train.of(i)[1], data.test.of(i)[1]) for i in range(len(data))])
    return DataFacts(
        data=data.data,
        partition=data.partition,
        names=data.names,
        shape=data.shape,
        classes=data.classes,
        train=data.train.sizes,
        test=data.test.sizes,
        validated=data.validation is not None,
        unit=data.unit,
        notes=data.notes,
        schema=data.schema,
        groups=data.groups,
        hits=hits,
        uniform=uniform_test(data),
        fingerprint=data.fingerprint(),
        worded=data.words is not None,
        files=data.files,
    )


def uniform_test(data: Federated) -> Split | None:
    """Up to 1000 test examples of all clients, the same number of each class as far as they go."""
    if data.classes is None:
        return None
    rng = Key(0, 0).generator("uniform test")
    order = rng.permutation(len(data.test.y))
    labels = data.test.y[order]
    rank = np.empty(len(order), dtype=np.int64)
    for label in np.unique(labels):
        rank[labels == label] = np.arange((labels == label).sum())
    rows = np.sort(order[np.argsort(rank, kind="stable")[:UNIFORM_EXAMPLES]])
    return Split(data.test.x[rows], data.test.y[rows], np.array([0, len(rows)]))
