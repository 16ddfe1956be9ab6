"""Quantity skew: an add-on that leaves clients with very different amounts of the data they were handed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.data.chance import draw, generator
from coterie.data.partitioning.limits import require_between, require_positive, require_whole
from coterie.data.partitioning.shares import Array, Change, Rng, Share, Shares, add_on

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

    def change(data: Dataset, shares: Shares, rng: Rng) -> Shares:
        key = int(rng.integers(2**63))
        kept = tuple(
            _thin(data, share, sigma, minimum, generator(key, str(i))) for i, share in enumerate(shares.clients)
        )
        return replace(shares, clients=kept, notes=(*shares.notes, *_unused(shares.clients, kept)))

    return change


def _thin(data: Dataset, share: Share, sigma: float, minimum: int, rng: Rng) -> Share:
    part = math.exp(-sigma * abs(rng.standard_normal()))
    train = _keep(share.train, data.y_train, part, minimum, rng)
    return replace(share, train=train, test=_keep(share.test, data.y_test, part, 1, rng))


def _keep(rows: Array, labels: Array, part: float, minimum: int, rng: Rng) -> Array:
    """A part of the rows, each class in proportion, and at least ``minimum`` of them (all, where there are fewer)."""
    return rows[draw(labels[rows], min(len(rows), max(minimum, round(part * len(rows)))), rng)]


def _unused(before: tuple[Share, ...], after: tuple[Share, ...]) -> tuple[str, ...]:
    train = sum(len(old.train) - len(new.train) for old, new in zip(before, after, strict=True))
    test = sum(len(old.test) - len(new.test) for old, new in zip(before, after, strict=True))
    return (f"{train} train and {test} test examples are unused: quantity skew",) if train or test else ()
