"""Add-ons that leave clients fewer of their examples: very different amounts, or at most a given number."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.data.apportion import stratified_sample
from coterie.data.partitions.base import (
    Change,
    Rng,
    Share,
    Shares,
    add_on,
    require_between,
    require_positive,
    require_whole,
)
from coterie.seeding import generator
from coterie.typing import Array

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset

# Beyond this, all clients are left with their minimum anyway.
STEEPEST = 100


@add_on
def quantity(sigma: float, *, minimum: int = 10) -> Change:
    """Each client keeps the share exp(-sigma |z|) of its examples, z standard normal: quantity(1.5).

    Half of the clients keep more than exp(-0.67 sigma), a few nearly nothing. Each keeps the same share of every class,
    in train and test, and at least ``minimum`` train examples if it had them.
    """
    require_positive("sigma", sigma)
    require_between("sigma", sigma, 0, STEEPEST)
    require_whole("minimum", minimum)

    return _thinned(lambda share, rng: math.exp(-sigma * abs(rng.standard_normal())), minimum, "quantity skew")


@add_on
def few(most: int) -> Change:
    """Each client keeps at most ``most`` train examples, and the same share of its test examples: few(500)."""
    require_whole("most", most)
    require_positive("most", most)
    return _thinned(lambda share, rng: min(1.0, most / len(share.train)), 1, f"at most {most} a client")


def _thinned(part: Callable[[Share, Rng], float], minimum: int, why: str) -> Change:
    """Let every client keep a part of its examples, by class; each client has its own random draw."""

    def change(data: Dataset, shares: Shares, rng: Rng) -> Shares:
        key = int(rng.integers(2**63))
        kept = tuple(
            _thin(data, share, part, minimum, generator(key, str(i))) for i, share in enumerate(shares.clients)
        )
        return replace(shares, clients=kept, notes=(*shares.notes, *_unused(shares.clients, kept, why)))

    return change


def _thin(data: Dataset, share: Share, part: Callable[[Share, Rng], float], minimum: int, rng: Rng) -> Share:
    left = part(share, rng)
    train = _keep(share.train, data.y_train, left, minimum, rng)
    return replace(share, train=train, test=_keep(share.test, data.y_test, left, 1, rng))


def _keep(rows: Array, labels: Array, part: float, minimum: int, rng: Rng) -> Array:
    """Draw a part of the rows, each class in proportion, and at least ``minimum`` of them (all, if there are fewer)."""
    return rows[stratified_sample(labels[rows], min(len(rows), max(minimum, round(part * len(rows)))), rng)]


def _unused(before: tuple[Share, ...], after: tuple[Share, ...], why: str) -> tuple[str, ...]:
    train = sum(len(old.train) - len(new.train) for old, new in zip(before, after, strict=True))
    test = sum(len(old.test) - len(new.test) for old, new in zip(before, after, strict=True))
    return (f"{train} train and {test} test examples are unused: {why}",) if train or test else ()
