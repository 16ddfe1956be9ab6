"""Quantity skew: an add-on that leaves clients with very different amounts of the data they were handed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.chance import draw
from coterie.data.limits import require_positive, require_whole
from coterie.data.shares import Array, Change, Rng, Share, Shares, add_on

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset


@add_on
def quantity(sigma: float, *, minimum: int = 10) -> Change:
    """Clients keep shares of their examples that differ log-normally by sigma; the largest share is all: quantity(1.5).

    Each keeps the same share of every class, in train and test, and at least ``minimum`` train examples if it had them.
    """
    require_positive("sigma", sigma)
    require_whole("minimum", minimum)

    def change(data: Dataset, shares: Shares, rng: Rng) -> Shares:
        sizes = np.exp(sigma * rng.standard_normal(len(shares.clients)))
        kept = tuple(
            _thin(data, share, float(size), minimum, rng)
            for share, size in zip(shares.clients, sizes / sizes.max(), strict=True)
        )
        dropped = sum(len(a.train) - len(b.train) for a, b in zip(shares.clients, kept, strict=True))
        return replace(
            shares, clients=kept, notes=(*shares.notes, f"{dropped} train examples are unused: quantity skew")
        )

    return change


def _thin(data: Dataset, share: Share, part: float, minimum: int, rng: Rng) -> Share:
    train = _keep(share.train, data.y_train, part, minimum, rng)
    return replace(share, train=train, test=_keep(share.test, data.y_test, part, 1, rng))


def _keep(rows: Array, labels: Array, part: float, minimum: int, rng: Rng) -> Array:
    """A part of the rows, each class in proportion, and at least ``minimum`` of them (all, where there are fewer)."""
    return rows[draw(labels[rows], min(len(rows), max(minimum, round(part * len(rows)))), rng)]
