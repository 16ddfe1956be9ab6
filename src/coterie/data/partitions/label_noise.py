"""Labels on which clients disagree: exchanged or permuted between groups, or wrong at random.

Groups that name the same things differently cannot share a model, whatever its size; this is the plainest test of
clustering (Sattler, Müller and Samek 2020, arXiv:1910.01991; Briggs, Fan and Andras 2020, arXiv:2004.11791). Labels
change in the client's view, in train and test alike; only wrong labels are limited to train.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.partitions.base import (
    Change,
    Divide,
    Rng,
    Shares,
    add_on,
    named,
    require_between,
    require_classes,
    require_whole,
)
from coterie.data.partitions.division import divide_equally, even_groups
from coterie.errors import PartitionError
from coterie.seeding import generator
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

# Draws per group, enough to find even all orders of a few classes with near certainty.
TRIES = 100


@named
def swap(groups: int = 2, *, minimum: int = 10) -> Divide:
    """Equal shares; every group but the first sees a pair of labels exchanged, each another pair: swap(3).

    Pairs are drawn by the seed and have no class in common, so two groups differ in four classes.
    """
    require_whole("groups", groups)

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        classes = require_classes("swap", data)
        present = np.unique(data.y_train)
        if groups - 1 > len(present) // 2:
            raise PartitionError(
                f"{groups} groups exchange {groups - 1} pairs of labels and {len(present)} classes have "
                f"{len(present) // 2}; use at most {len(present) // 2 + 1} groups or permute({groups})"
            )
        names = np.tile(np.arange(classes), (groups, 1))
        for own, pair in zip(names[1:], rng.permutation(present)[: 2 * groups - 2].reshape(-1, 2), strict=True):
            own[pair] = pair[::-1]
        return _renamed(data, clients, names, minimum, rng)

    return divide


@named
def permute(groups: int = 4, *, minimum: int = 10) -> Divide:
    """Equal shares; every group sees all labels in another order, the first as they are: permute(4).

    No two groups have the same order, but some classes may keep their label in several.
    """
    require_whole("groups", groups)

    def divide(data: Dataset, clients: int, rng: Rng) -> Shares:
        classes = require_classes("permute", data)
        present = np.unique(data.y_train)
        names = np.tile(np.arange(classes), (groups, 1))
        names[:, present] = present[_different_orders(len(present), groups, rng)]
        return _renamed(data, clients, names, minimum, rng)

    return divide


@add_on
def label_noise(rate: float) -> Change:
    """A share of each client's train labels is wrong, any other class at random: label-noise(0.2).

    Test labels stay clean; validation examples come from train and are as wrong. If the share is not a whole number
    of examples, it is rounded up or down at random.
    """
    require_between("rate", rate, 0, 1)

    def change(data: Dataset, shares: Shares, rng: Rng) -> Shares:
        classes = require_classes("label-noise", data) if shares.classes is None else shares.classes
        if classes < 2:
            raise PartitionError(f"label-noise needs another class and {data.name} has {classes}; leave it out")
        key = int(rng.integers(2**63))
        views = (partial(mislabel, rate=rate, classes=classes, key=key, client=i) for i in range(len(shares.clients)))
        return replace(shares, clients=tuple(s.through(v) for s, v in zip(shares.clients, views, strict=False)))

    return change


def rename(x: Array, y: Array, split: str, names: Array) -> tuple[Array, Array]:
    """Return the examples with label ``c`` renamed to ``names[c]``.

    >>> rename(np.zeros(3), np.array([0, 2, 1]), "train", np.array([0, 2, 1]))[1].tolist()
    [0, 1, 2]
    """
    return x, names[y]


def mislabel(x: Array, y: Array, split: str, rate: float, classes: int, key: int, client: int) -> tuple[Array, Array]:
    """Make a share of the labels of train examples wrong; return test examples as they are."""
    if split != "train":
        return x, y
    rng = generator(key, "label-noise", str(client))
    wrong = rng.permutation(len(y))[: math.floor(rate * len(y) + rng.random())]
    noisy = y.copy()
    noisy[wrong] = (y[wrong] + rng.integers(1, classes, len(wrong))) % classes
    return x, noisy


def _renamed(data: Dataset, clients: int, names: Array, minimum: int, rng: Rng) -> Shares:
    """Divide equally; each client sees the label names of its group."""
    shares = divide_equally(data, clients, minimum, rng)
    groups = np.repeat(np.arange(len(names)), even_groups(clients, len(names)))
    seen = zip(shares.clients, names[groups], strict=True)
    return replace(shares, clients=tuple(s.through(partial(rename, names=own)) for s, own in seen), groups=groups)


def _different_orders(size: int, groups: int, rng: Rng) -> Array:
    """Return orders ``(groups, size)`` of which no two are equal; the first is the natural order."""
    possible = math.factorial(size)
    found: dict[tuple[int, ...], None] = {tuple(range(size)): None}
    for _ in range(TRIES * groups if groups <= possible else 0):
        if len(found) == groups:
            return np.array(list(found))
        found.setdefault(tuple(rng.permutation(size).tolist()))
    raise PartitionError(
        f"{groups} groups need as many orders of the labels and {size} classes have {possible}; use fewer groups"
    )
