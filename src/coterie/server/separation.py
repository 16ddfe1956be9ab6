"""When a loss distance is too large to be chance: the theorem of lcfl, as a tool.

Let every loss be in [0, 1], n_i examples of client i be drawn independently from its distribution D_i, L_i(w) their
mean loss and L_Di(w) the expected one. The distance is d(i, j) = |L_i(w_i) - L_j(w_i)| + |L_i(w_j) - L_j(w_j)| (eq. 6).
Where D_i = D_j the expected losses are equal under *every* model, so d is at most the sum of four errors
|L_i(w) - L_Di(w)|, w one of the two models, i one of the two clients. With s(n) = sqrt(log(2 / delta) / (2 n)):

- a model that was made without a client's data: the error is at most s(n) with probability 1 - delta (Hoeffding);
- a model that was made with them: sup over all w of L_D(w) - L(w) is at most 2 R(n) + sqrt(log(1 / delta) / (2 n))
  with probability 1 - delta (Mohri et al., theorem 3.3, R the Rademacher complexity of the *losses* of all models), the
  other side likewise, so the error is at most 2 R(n) + s(n) with probability 1 - delta.

Each client's own model was made with its data: d <= 2 s(n_i) + 2 s(n_j) + 2 R(n_i) + 2 R(n_j) with probability
1 - 4 delta, by the union bound. Gu et al. print R once, and (1 - delta)^4; once is right for two classes, 0-1 loss and
the complexity of the *classifiers*, which is twice that of their losses. Their eq. 2 compares the losses of two models
and is at most twice the discrepancy of D_i and D_j only if both models are optimal: a model that is hardly trained is
far from every other, on the same data.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt

import numpy as np

from coterie.errors import UsageError
from coterie.models.layout import Array
from coterie.server.distances import between_clients

Complexity = float | Callable[[int], float]
"""The Rademacher complexity of the models' losses for samples of a size, or one bound for all sizes."""


def separation_threshold(
    n_i: int, n_j: int, delta: float, complexity: Complexity, pairs: int = 1, shared: bool = False
) -> float:
    """The distance of eq. 6 above which the data of two clients differ: theorem 1 of Gu et al., put right.

    2 s(n_i) + 2 s(n_j) + 2 R(n_i) + 2 R(n_j), s(n) = sqrt(log(2 pairs / delta) / (2 n)), R the Rademacher complexity of
    the models' losses, which are in [0, 1] (0-1, or clipped). Over all ``pairs`` at once the confidence is at least
    1 - 4 delta, for models of any training, good or bad. It is assumed that neither model was made with the other
    client's data; after a warm-up with everyone's it was: ``shared`` counts R twice as often. Where the losses are of
    examples that no model was made with, R is 0. Large distances mean *different* data; the text around the theorem
    says the opposite twice.

    >>> round(separation_threshold(1000, 1000, 0.05, 0.0), 4)
    0.1718
    >>> [round(separation_threshold(1000, 1000, 0.05, 0.1, shared=shared), 4) for shared in (False, True)]
    [0.5718, 0.9718]
    """
    for name, value in (("n_i", n_i), ("n_j", n_j), ("pairs", pairs)):
        if value < 1:
            raise UsageError(f"{name} is {value}; it must be at least 1")
    if not 0 < delta < 1:
        raise UsageError(f"delta is {delta}; it must be in (0, 1)")
    chance = sum(2 * sqrt(log(2 * pairs / delta) / (2 * n)) for n in (n_i, n_j))
    fitted = 4 if shared else 2
    return chance + fitted * sum(complexity(n) if callable(complexity) else complexity for n in (n_i, n_j))


def differ(losses: Array, examples: Array, delta: float, complexity: Complexity, shared: bool = False) -> Array:
    """Which pairs of clients certainly differ; if none does, one model may be enough.

    ``losses[i, j]`` is the mean loss of client i under client j's model, on ``examples[i]`` examples. The chance that
    any of the pairs named does not differ is at most 4 delta; what is assumed stands at ``separation_threshold``.

    >>> differ(np.array([[0.1, 0.8], [0.7, 0.2]]), np.array([500, 500]), 0.05, 0.0).tolist()
    [[False, True], [True, False]]
    """
    found: Array = between_clients(bounded(losses)) > separation_thresholds(examples, delta, complexity, shared)
    return found


def separation_thresholds(examples: Array, delta: float, complexity: Complexity, shared: bool = False) -> Array:
    """The threshold of every two of the clients with so many examples, where all pairs are compared."""
    count = len(examples)
    pairs = max(1, count * (count - 1) // 2)
    return np.array(
        [[separation_threshold(i, j, delta, complexity, pairs, shared) for j in examples] for i in examples]
    )


def bounded(losses: Array) -> Array:
    """The same losses, which must be in [0, 1]."""
    if not ((losses >= 0) & (losses <= 1)).all():
        raise UsageError(f"losses are {losses.min():g} to {losses.max():g}; they must be in [0, 1]: clipped, or 0-1")
    return losses
