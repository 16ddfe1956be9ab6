"""Seeded chance: generators with an address, and the one way in which examples are set aside.

Nothing in ``coterie.data`` touches a global generator: what is drawn depends on the seed and on what it is drawn
for, never on what was drawn before.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from coterie.data.tables import apportion

Array = np.ndarray[Any, Any]


def generator(seed: int, *address: str) -> np.random.Generator:
    """A generator of its own for every seed and address, the same on every machine.

    >>> draws = [generator(1, "test", name).integers(1000) for name in ("anna", "anna", "bert")]
    >>> bool(draws[0] == draws[1]), bool(draws[0] == draws[2])
    (True, False)
    """
    words = "\x1f".join((str(int(seed)), *address))
    return np.random.default_rng(int.from_bytes(hashlib.sha256(words.encode()).digest()[:16], "big"))


def set_aside(y: Array, fraction: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Rows to keep and rows to set aside, each class in proportion (float targets count as one class).

    At least one row is set aside and at least one is kept, so ``y`` needs two.

    >>> keep, aside = set_aside(np.array([0] * 8 + [1] * 2), 0.5, generator(1))
    >>> len(keep), len(aside), int((aside >= 8).sum())
    (5, 5, 1)
    """
    aside = draw(y, int(np.clip(round(len(y) * fraction), 1, len(y) - 1)), rng)
    return np.setdiff1d(np.arange(len(y)), aside), aside


def draw(y: Array, count: int, rng: np.random.Generator) -> Array:
    """So many rows at random, in order, each class in proportion (float targets count as one class)."""
    kinds = np.zeros(len(y), np.int64) if y.dtype.kind == "f" else np.unique(y, return_inverse=True)[1]
    shares = apportion(count, np.bincount(kinds))
    rows = [rng.permutation(np.flatnonzero(kinds == kind)) for kind in range(len(shares))]
    return np.sort(np.concatenate([own[:share] for own, share in zip(rows, shares, strict=True)]))
