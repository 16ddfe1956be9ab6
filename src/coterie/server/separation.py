"""When a loss distance is too large to be chance: the theorem of lcfl, as a tool."""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt

import numpy as np

from coterie.errors import UsageError
from coterie.models.layout import Array

Complexity = float | Callable[[int], float]
"""The Rademacher complexity of the models for samples of a size, or one bound for all sizes."""


def separation_threshold(n_i: int, n_j: int, delta: float, complexity: Complexity, pairs: int = 1) -> float:
    """The loss distance of two clients above which their data differ, with confidence (1 - delta / pairs)^4.

    2 sqrt(log(2 / d) / (2 n_i)) + 2 sqrt(log(2 / d) / (2 n_j)) + R(n_i) + R(n_j) with d = delta / pairs: theorem 1 of
    Gu et al., for a loss in [0, 1] (0-1, or clipped). Over all ``pairs`` at once the confidence is at least
    1 - 4 delta. Large distances mean *different* clusters; the text around the theorem says the opposite twice.

    >>> round(separation_threshold(1000, 1000, 0.05, 0.0), 4)
    0.1718
    >>> round(separation_threshold(1000, 1000, 0.05, 0.1), 4)
    0.3718
    """
    for name, value in (("n_i", n_i), ("n_j", n_j), ("pairs", pairs)):
        if value < 1:
            raise UsageError(f"{name} is {value}; it must be at least 1")
    if not 0 < delta < 1:
        raise UsageError(f"delta is {delta}; it must be in (0, 1)")
    chance = sum(2 * sqrt(log(2 * pairs / delta) / (2 * n)) for n in (n_i, n_j))
    return chance + sum(complexity(n) if callable(complexity) else complexity for n in (n_i, n_j))


def differ(distances: Array, examples: Array, delta: float, complexity: Complexity) -> Array:
    """Which pairs of clients certainly differ, by their loss distances; if none does, one model may be enough.

    >>> differ(np.array([[0.0, 0.9], [0.9, 0.0]]), np.array([500, 500]), 0.05, 0.0).any()
    np.True_
    """
    count = len(examples)
    pairs = max(1, count * (count - 1) // 2)
    limits = [[separation_threshold(i, j, delta, complexity, pairs) for j in examples] for i in examples]
    found: Array = distances > np.array(limits)
    return found
