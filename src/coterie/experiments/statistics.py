"""Intervals and tests: over clients and over seeds, paired, corrected for many comparisons.

Which intervals were taken was decided by their simulated coverage: ``benchmarks/coverage.py``, ``docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy

from coterie.seeding import generator
from coterie.typing import Array

LEVEL = 95
"""Intervals are made to hold the true value so many times of 100."""

OVER_CLIENTS = "over clients: the wider of the studentised bootstrap and Student's t with the effective number of them"
OVER_SEEDS = "over seeds: Student's t"
"""How intervals are made, in words."""

BY_CLIENT, BY_SEED = "two-sided Wilcoxon signed-rank test over clients", "two-sided paired t-test over seeds"
"""The tests, in words."""

SAMPLES = 2000
"""Samples of clients behind a bootstrap."""

LEAST, MOST = 6, 1000
"""With fewer clients the bootstrap has too few samples that differ, and with more it is Student's t."""

EQUAL = 1e-9
"""Scores that differ by less are equal."""

EVERY_SIGN = 13
"""Up to so many clients the signed-rank test counts all choices of signs, as SciPy does where differences are tied."""


ROUNDING = 1e-4
"""A sample whose standard error is this small beside that of all clients has none but that of rounding: of few clients
that differ it has drawn none."""


class Interval(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float


class _Change(NamedTuple):
    """A difference of two scores over clients, and its standard error."""

    value: Array
    error: Array


def interval_over_clients(ours: Array, theirs: Array, weights: Array, squared: bool = False) -> Interval | None:
    """Return the interval of a difference of two scores over the same clients; None with a single client.

    A score is the mean over clients by weights, or if ``squared`` the root of the mean of squares. For the interval of
    one score ``theirs`` are zeros. The weights are as random as the scores: other clients have other sizes. The
    studentised bootstrap stretches Student's interval, no further than the change of any of its samples: where few
    clients differ at all, samples without them have next to no error.

    >>> ours = np.array([0.9, 0.8, 0.85, 0.7, 0.95, 0.8, 0.9])
    >>> [round(end, 3) for end in interval_over_clients(ours, ours - 0.1, np.ones(7))]
    [0.1, 0.1]
    """
    count = len(ours)
    if count < 2:
        return None
    sums = _sums(ours, theirs, weights.astype(np.float64), squared)
    level, change = (100 + LEVEL) / 200, _change(np.ones((1, count)), sums, squared)
    value, error = float(change.value[0]), float(change.error[0])
    effective = float(weights.sum()) ** 2 / float((weights.astype(np.float64) ** 2).sum())
    reach = float(scipy.stats.t.ppf(level, max(effective - 1, 1.0))) * error
    low, high = value - reach, value + reach
    if LEAST <= count <= MOST and error > 0:
        drawn = _change(_drawn(count, SAMPLES), sums, squared)
        sound = drawn.error > ROUNDING * error
        if sound.mean() > 0.5:
            far = (drawn.value[sound] - value) / drawn.error[sound]
            first, last = np.quantile(far, [1 - level, level])
            least, most = float(drawn.value.min()), float(drawn.value.max())
            low = min(low, max(least, value - float(last) * error))
            high = max(high, min(most, value - float(first) * error))
    return Interval(low, high)


@lru_cache(maxsize=4)
def _drawn(count: int, samples: int) -> Array:
    """Return how often each client is drawn in each sample."""
    return generator(0, "verdict").multinomial(count, np.full(count, 1 / count), size=samples).astype(np.float64)


class _Sums(NamedTuple):
    """What of each client is summed, ``(clients, 9)``, and the squares about which scores are centred."""

    columns: Array
    ours: float
    theirs: float


def _sums(ours: Array, theirs: Array, weights: Array, squared: bool) -> _Sums:
    """Return what of each client is summed: weights, scores and their products, from which any sample's error follows.

    Scores are centred first, so that the differences of large sums keep their digits.
    """
    x, y = (np.asarray(each, np.float64) ** (2 if squared else 1) for each in (ours, theirs))
    centres = [float(np.average(each, weights=weights)) for each in (x, y)]
    x, y, w = x - centres[0], y - centres[1], weights
    return _Sums(np.column_stack([w, w * x, w * y, *(w**2 * z for z in (w**0, x, y, x * x, x * y, y * y))]), *centres)


def _change(counts: Array, sums: _Sums, squared: bool) -> _Change:
    """Return the difference of scores and its linearised standard error in samples with these counts of clients."""
    number = counts.shape[1]
    w, wx, wy, *squares = (counts @ sums.columns).T
    one, x, y, xx, xy, yy = squares
    mean_x, mean_y = wx / w, wy / w
    ours, theirs, a, b = mean_x + sums.ours, mean_y + sums.theirs, np.ones_like(w), np.ones_like(w)
    if squared:
        ours, theirs = (np.sqrt(np.maximum(each, 0)) for each in (ours, theirs))
        a, b = (np.divide(0.5, each, out=np.zeros_like(w), where=each > 0) for each in (ours, theirs))
    centre = a * mean_x - b * mean_y
    second = a * a * xx - 2 * a * b * xy + b * b * yy
    spread = np.maximum(second - 2 * centre * (a * x - b * y) + centre**2 * one, 0)
    return _Change(ours - theirs, np.sqrt(spread * number / (number - 1)) / w)


def interval_over_seeds(values: Sequence[float]) -> Interval | None:
    """Return Student's interval of a mean over seeds; None for a single seed.

    >>> [round(end, 2) for end in interval_over_seeds([1.0, 2.0, 3.0])]
    [-0.48, 4.48]
    """
    if len(values) < 2:
        return None
    found = np.asarray(values, np.float64)
    reach = scipy.stats.t.ppf((100 + LEVEL) / 200, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found))
    return Interval(float(found.mean() - reach), float(found.mean() + reach))


def signed_rank_test(ours: Array, theirs: Array) -> float | None:
    """Return the p value of the signed-rank test of two scores of the same clients; None where all are equal.

    Clients with equal scores are ranked, and count for neither side (Pratt).

    >>> signed_rank_test(np.array([0.9, 0.8, 0.7, 0.6, 0.5]), np.array([0.8, 0.6, 0.4, 0.2, 0.1]))
    0.0625
    """
    change = np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)
    change = np.where(np.abs(change) > EQUAL, np.round(change, 12), 0.0)
    if not change.any():
        return None
    if len(change) <= EVERY_SIGN:
        return _of_all_signs(change)
    return float(scipy.stats.wilcoxon(change, zero_method="pratt").pvalue)


def _of_all_signs(change: Array) -> float:
    """Return the two-sided p value of signed ranks: how often random signs give a sum as far out as these do.

    SciPy finds the same number, but calls a function for every choice of signs where differences are tied or zero:
    4,096 calls for 12 clients, which took longer than a short run.
    """
    ranks = scipy.stats.rankdata(np.abs(change))
    sums = np.zeros(1)
    for rank in ranks[change != 0]:
        sums = np.concatenate([sums, sums + rank])
    seen = ranks[change > 0].sum()
    return min(1.0, 2 * min(float((sums <= seen).mean()), float((sums >= seen).mean())))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected by Holm for as many comparisons as have one.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    order = sorted((value, place) for place, value in enumerate(values) if value is not None)
    found: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (value, place) in enumerate(order):
        largest = max(largest, min(1.0, value * (len(order) - rank)))
        found[place] = largest
    return found


@dataclass(frozen=True)
class Gain:
    """How much better a method did than another on the same seeds, and how sure that is.

    ``low`` to ``high`` is its interval over seeds, ``p`` that of the paired t-test, ``p_holm`` corrected by Holm.
    """

    mean: float
    std: float
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    wins: int
    seeds: int


def gain(ours: Sequence[float], theirs: Sequence[float], scale: float = 1.0) -> Gain:
    """Return the gain paired by seed; a negative ``scale`` where a smaller score is better.

    >>> found = gain([0.9, 0.8, 0.95], [0.8, 0.75, 0.8], 100)
    >>> round(found.mean, 2), round(found.low, 2), round(found.high, 2), round(found.p, 3), found.wins
    (10.0, -2.42, 22.42, 0.074, 3)
    """
    change = (np.array(ours, np.float64) - np.array(theirs, np.float64)) * scale
    spread = float(change.std(ddof=1)) if len(change) > 1 else 0.0
    between = interval_over_seeds(change.tolist())
    p = float(scipy.stats.ttest_rel(ours, theirs).pvalue) if spread > EQUAL * abs(scale) else None
    low, high = (None, None) if between is None else between
    wins = int((change > EQUAL * abs(scale)).sum())
    return Gain(float(change.mean()), spread, low, high, p, p, wins, len(change))


def gains_over_first(scores: Mapping[str, Sequence[float | None]], scale: float) -> dict[str, Gain]:
    """Return the gain of each method over the first, with p values corrected for all of them.

    A method of which a run has no score is left out; if the first has none, all are.
    """
    (_, first), *others = scores.items()
    known = {
        name: gain([v for v in own if v is not None], [v for v in first if v is not None], scale)
        for name, own in others
        if None not in (*own, *first)
    }
    corrected = holm([each.p for each in known.values()])
    return {name: replace(each, p_holm=p) for (name, each), p in zip(known.items(), corrected, strict=True)}
