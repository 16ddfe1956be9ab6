"""Stratified draws: rows taken at random with each class in proportion, such as the examples that are held out."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.data.tables import apportion

Array = np.ndarray[Any, Any]


def set_aside(y: Array, fraction: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the rows to keep and the rows to set aside, each class in proportion (float targets count as one class).

    At least one row is set aside and at least one is kept, so ``y`` needs two.

    >>> keep, aside = set_aside(np.array([0] * 8 + [1] * 2), 0.5, np.random.default_rng(1))
    >>> len(keep), len(aside), int((aside >= 8).sum())
    (5, 5, 1)
    """
    aside = draw(y, int(np.clip(round(len(y) * fraction), 1, len(y) - 1)), rng)
    return np.setdiff1d(np.arange(len(y)), aside), aside


def draw(y: Array, count: int, rng: np.random.Generator) -> Array:
    """Draw ``count`` rows, in ascending order, each class in proportion (float targets count as one class)."""
    kinds = np.zeros(len(y), np.int64) if y.dtype.kind == "f" else np.unique(y, return_inverse=True)[1]
    shares = apportion(count, np.bincount(kinds))
    rows = [rng.permutation(np.flatnonzero(kinds == kind)) for kind in range(len(shares))]
    return np.sort(np.concatenate([own[:share] for own, share in zip(rows, shares, strict=True)]))
