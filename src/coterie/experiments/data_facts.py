"""Facts about the clients' data that scores need: all of them in a simulation, what sites report in a federation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.data import Federated, Schema, Split
from coterie.experiments.scores import majority_correct
from coterie.seeding import Key
from coterie.typing import Array

UNIFORM_EXAMPLES = 1000
"""The size of the uniform test set on which GF1 is measured."""


@dataclass(frozen=True)
class DataFacts:
    """Names and sizes of the clients' data, and the form of their examples.

    Only a simulation has these, from ``groups`` on:

    groups            the true group of each client
    majority_correct  how many of each client's test examples are of its most frequent train class
    uniform           a test set of all clients' examples with the same number of each class
    fingerprint       a hash of all examples
    from_settings     whether settings can make the data again; False for data made in Python
    files             a hash of the user's own files
    """

    data: str
    partition: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    classes: int | None
    train: Array
    test: Array
    has_validation: bool = False
    unit: float = 1.0
    notes: tuple[str, ...] = ()
    schema: Schema | None = None
    groups: Array | None = None
    majority_correct: Array | None = None
    uniform: Split | None = None
    fingerprint: str | None = None
    from_settings: bool = True
    files: str | None = None

    def __len__(self) -> int:
        return len(self.names)


def facts_of(data: Federated) -> DataFacts:
    """Return the facts about the data of a simulation."""
    correct = None
    if data.classes is not None:
        correct = np.array([majority_correct(data.train.of(i)[1], data.test.of(i)[1]) for i in range(len(data))])
    return DataFacts(
        data=data.data,
        partition=data.partition,
        names=data.names,
        shape=data.shape,
        classes=data.classes,
        train=data.train.sizes,
        test=data.test.sizes,
        has_validation=data.validation is not None,
        unit=data.unit,
        notes=data.notes,
        schema=data.schema,
        groups=data.groups,
        majority_correct=correct,
        uniform=uniform_test(data),
        fingerprint=data.fingerprint(),
        from_settings=data.words is not None,
        files=data.files,
    )


def uniform_test(data: Federated) -> Split | None:
    """Draw up to 1000 test examples of all clients, as far as possible the same number of each class."""
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
