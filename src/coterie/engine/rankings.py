"""Scores by which examples are ranked, and their histograms, from which the AUROC of all clients together is made.

A histogram has fixed bins, so that those of clients can be added up and no single score leaves a client. The scale is
the log odds z of a class against the others, squashed to 1 / (1 + exp(-z / 2)) and cut into bins of equal width: about
0.08 wide in log odds at even odds, and 0.24 at odds of 1 to 100, so that rare classes keep their order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.target import BINARY, Target
from coterie.typing import Array

LARGEST = 1e30
"""Outputs beyond this, such as the logarithm of a probability of 0, are ranked as if they were this."""

SCORE_BINS = 100
"""The bins of a histogram of scores."""

SQUASHED = 2.0
"""By what log odds are divided before they are squashed; of 0.5 to 4 it has the smallest errors on the test cases."""


FAR = 100.0
"""Squashed log odds beyond this are 0 or 1."""


class Pooled(NamedTuple):
    """A score of all clients' examples together, and by how much the bins may have changed it at most."""

    value: float
    error: float


def log_odds(outputs: Array) -> Array:
    """Return the log odds of each class against all others, ``(classes, n)``; they do not saturate, as shares do."""
    exact = np.clip(outputs.T.astype(np.float64), -LARGEST, LARGEST)
    none = np.full((1, exact.shape[1]), -np.inf)
    before = np.concatenate([none, np.logaddexp.accumulate(exact[:-1])])
    after = np.concatenate([np.logaddexp.accumulate(exact[:0:-1])[::-1], none])
    odds: Array = exact - np.logaddexp(before, after)
    return odds


def ranked(outputs: Array, y: Array) -> tuple[Array, Array]:
    """Return the numbers by which examples are ranked and who has the class, ``(rankings, n)`` each.

    There is one ranking for each class or label; of two classes only that of the second, as the other is its mirror.
    """
    if y.ndim > 1:
        return outputs.T, y.T > 0
    first = 1 if outputs.shape[1] == BINARY else 0
    return log_odds(outputs)[first:], (y == np.arange(outputs.shape[1])[:, None])[first:]


def histogram_size(target: Target) -> int:
    """Return how many numbers a client's histograms have.

    >>> histogram_size(Target(2)), histogram_size(Target(3)), histogram_size(Target(2, 4))
    (200, 600, 800)
    """
    return 2 * SCORE_BINS * (1 if target.one_of == BINARY else target.width)


def score_histograms(outputs: Array, y: Array) -> Array:
    """Return how many examples without and with a class have scores in each bin, ``(rankings * 2 * bins,)``.

    Outputs that are no numbers rank nothing: they are taken for zeros.

    >>> score_histograms(np.array([[0.0, 0.0], [0.0, 90.0]]), np.array([0, 1])).nonzero()[0].tolist()
    [50, 199]
    """
    sound = np.where(np.isnan(outputs).any(axis=1, keepdims=True), 0.0, outputs)
    scores, has = ranked(sound, y)
    shares = 1 / (1 + np.exp(np.clip(-scores.astype(np.float64) / SQUASHED, -FAR, FAR)))
    places = np.minimum((shares * SCORE_BINS).astype(np.int64), SCORE_BINS - 1)
    rows = 2 * np.arange(len(scores))[:, None] + has
    size = 2 * SCORE_BINS * len(scores)
    found: Array = np.bincount((rows * SCORE_BINS + places).ravel(), minlength=size).astype(np.float64)
    return found


def pooled_auroc(histograms: Array) -> Pooled:
    """Return the AUROC of all examples in summed histograms, the mean over classes; NaN where no class has a rival.

    Pairs in the same bin count half, so the error is at most half the share of such pairs.

    >>> apart = np.zeros(2 * SCORE_BINS)
    >>> apart[[3, SCORE_BINS + 3, SCORE_BINS + 60]] = 2, 1, 3
    >>> pooled_auroc(apart)
    Pooled(value=0.875, error=0.125)
    """
    without, having = np.moveaxis(histograms.reshape(-1, 2, SCORE_BINS), 1, 0)
    pairs = without.sum(axis=1) * having.sum(axis=1)
    below = np.cumsum(without, axis=1) - without
    ties = (having * without).sum(axis=1)
    right, split = (having * below).sum(axis=1) + ties / 2, pairs > 0
    if not split.any():
        return Pooled(float("nan"), float("nan"))
    return Pooled(float((right[split] / pairs[split]).mean()), float((ties[split] / pairs[split]).mean() / 2))
