"""Metrics by name: one number of a client from a network's outputs and the truth, on one of its splits.

A metric is a function ``(outputs, y) -> float`` of arrays ``(n, outputs)`` and ``(n,)``, or ``(n, k)`` of several
labels or targets. To add one, write it here and list it in ``METRICS`` with its facts: which way is better, its range
and its unit; the first line of its docstring is its meaning. A user's own is ``package.module:function``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.engine.client_columns import macro_f1 as macro_f1_of_clients
from coterie.engine.client_columns import multilabel
from coterie.engine.rankings import LARGEST, Pooled, histogram_size, pooled_auroc, ranked, score_histograms
from coterie.errors import UsageError
from coterie.outside import find_outside, is_outside, reason
from coterie.target import BINARY, Target
from coterie.textforms import Call, Catalogue, first_line, parse_one
from coterie.typing import Array

Function = Callable[..., Any]

BINS = 10
"""The bins of confidence by which calibration is judged, unless a text says otherwise."""

MACRO, SUPPORT = "macro", "support"
"""How classes count in a mean over classes: all alike, or by their examples."""

MOST_BINS = 1000
"""The most bins of confidence."""

SHARE, NATS, TARGET_UNIT = "share", "nats", "the target's unit"
"""Units of metrics; one without a unit has an empty one."""


@dataclass(frozen=True)
class Metric:
    """A named metric.

    needs             what it is for: "classes" (and labels), "one class" an example, "numbers", or "anything"
    smaller           whether a smaller value is better
    low, high         its range; None: it is not known
    unit              what it is measured in
    undefined         where it has no value, in words; empty: it always has one
    pool              makes the score of a run from the sum of clients' arrays; None: it is the mean of their numbers
    """

    name: str
    function: Function
    needs: str = "anything"
    smaller: bool = False
    low: float | None = None
    high: float | None = None
    unit: str = ""
    undefined: str = ""
    pool: Callable[[Array], Pooled] | None = None

    @property
    def in_unit(self) -> bool:
        """Return whether it is in units of the target, as errors are."""
        return self.unit == TARGET_UNIT

    @property
    def better(self) -> str:
        """Return which way is better, in a word."""
        return "lower" if self.smaller else "higher"

    @property
    def range(self) -> str:
        """Return its range in words.

        >>> METRICS["r2"].range, METRICS["brier"].range
        ('-inf to 1', '0 to 2')
        """
        return "" if self.low is None or self.high is None else f"{self.low:g} to {self.high:g}"

    @property
    def meaning(self) -> str:
        """Return what it is, in a sentence."""
        return first_line(self.function)

    def check(self, target: Target) -> None:
        """Refuse data that it is not defined for."""
        if not self._fits(target):
            others = " or ".join(each.name for each in METRICS.values() if each._fits(target))
            raise UsageError(f"metric is {self.name}, and the data have {target}; take {others}")

    def _fits(self, target: Target) -> bool:
        known = {"classes": target.classes is not None, "one class": target.one_of is not None, "anything": True}
        return known.get(self.needs, target.classes is None)

    def of(self, outputs: Array, y: Array, call: Call) -> float:
        """Return the value at one client; infinite where it is not defined, such as NaN."""
        return float(self.own(self.reported(outputs, y, call)[None])[0])

    def reported(self, outputs: Array, y: Array, call: Call) -> Array:
        """Return what leaves a client: its value, or the array from which that of all clients together is made."""
        try:
            with np.errstate(invalid="ignore", over="ignore"):  # a model that diverged has no score, and no warning
                found = np.asarray(self.function(outputs, y, *call.args, **dict(call.kwargs)), dtype=np.float64)
            value = found if self.pool else np.asarray(float(found))
        except Exception as error:  # a user's code may fail in any way
            raise UsageError(f"metric {call!s} failed: {reason(error)}; it is called with (outputs, y)") from error
        return np.where(np.isfinite(value), value, np.inf)

    def own(self, reported: Array) -> Array:
        """Return each client's own value from what clients reported; infinite where it is not defined."""
        if self.pool is None:
            return reported
        values = np.array([self.pool(row).value for row in reported])
        return np.where(np.isfinite(values), values, np.inf)

    def shape(self, target: Target) -> tuple[int, ...]:
        """Return the shape of what leaves a client."""
        return () if self.pool is None else (histogram_size(target),)


def accuracy(outputs: Array, y: Array) -> float:
    """Return the share of right classes, or of right labels."""
    return float((_said(outputs, y) == y).mean())


def balanced_accuracy(outputs: Array, y: Array) -> float:
    """Return the mean over the classes that occur of the share of their examples that are recognised.

    >>> balanced_accuracy(np.array([[1, 0], [1, 0], [1, 0], [0, 1]]), np.array([0, 0, 1, 1]))
    0.75
    """
    right = _said(outputs, y) == y
    return float(np.mean([right[y == label].mean() for label in np.unique(y)]))


def macro_f1(outputs: Array, y: Array) -> float:
    """Return the mean of F1 over the classes, or labels, that are there or are said to be."""
    everyone, said = np.array([0, len(y)]), _said(outputs, y)
    if y.ndim > 1:
        return float(multilabel(said, y, np.zeros(len(y)), everyone)[0, 1])
    return float(macro_f1_of_clients(said, y, everyone, outputs.shape[1])[0])


def calibration_error(outputs: Array, y: Array, bins: int = BINS) -> float:
    """Return the expected calibration error: the mean gap of confidence and accuracy over bins of confidence.

    The confidence is the probability of the predicted class; bins count by their examples. 0 is perfect; a network that
    is sure and always wrong has 1. Here half of four examples with confidence 0.9 are right.

    >>> sure = np.log(np.array([[0.9, 0.1]] * 4))
    >>> round(calibration_error(sure, np.array([0, 0, 1, 1])), 3)
    0.4
    """
    if not 1 <= bins <= MOST_BINS:
        raise UsageError(f"bins is {bins}; calibration_error takes 1 to {MOST_BINS}")
    confidence = _probabilities(outputs).max(axis=1)
    if np.isnan(confidence).any():
        return float("nan")
    places = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(places, (_said(outputs, y) == y) - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(y))


def brier(outputs: Array, y: Array) -> float:
    """Return the Brier score: the mean squared error of the probabilities.

    Of two classes it is the squared error of the second's probability, 0 to 1; of more the sum over classes, 0 to 2; of
    several labels the mean over them.

    >>> round(brier(np.log([[0.2, 0.8], [0.6, 0.4]]), np.array([1, 0])), 3)
    0.1
    """
    if y.ndim > 1:
        return float(np.mean((np.exp(-np.logaddexp(0.0, -outputs.astype(np.float64))) - y) ** 2))
    errors = ((_probabilities(outputs) - np.eye(outputs.shape[1])[y]) ** 2).sum(axis=1)
    return float(errors.mean() / (2 if outputs.shape[1] == BINARY else 1))


def rmse(outputs: Array, y: Array) -> float:
    """Return the root of the mean squared error."""
    return float(np.sqrt(np.mean((outputs.reshape(y.shape) - y) ** 2)))


def mae(outputs: Array, y: Array) -> float:
    """Return the mean absolute error."""
    return float(np.mean(np.abs(outputs.reshape(y.shape) - y)))


def r2(outputs: Array, y: Array) -> float:
    """Return the share of the variance that is explained, of several targets taken together; NaN if there is none.

    >>> r2(np.array([[1.0], [3.0]]), np.array([1.0, 3.0])), r2(np.array([[2.0], [2.0]]), np.array([1.0, 3.0]))
    (1.0, 0.0)
    """
    if not len(y) or not np.ptp(y, axis=0).any():
        return float("nan")
    total = float(np.var(y, axis=0, dtype=np.float64).mean())
    return 1 - float(np.mean((outputs.reshape(y.shape) - y) ** 2)) / total


def auroc(outputs: Array, y: Array, average: str = MACRO) -> float:
    """Return the area under the ROC curve: how often an example of a class is ranked above one of another class.

    Of two classes it is that of the second; of more (one against the rest), or of several labels, the mean over those
    that some examples have and others have not: all alike, or with ``average=support`` by their examples. NaN if there
    is none, as where all examples are of one class.

    >>> auroc(np.array([[0, 1], [0, 2], [0, 3], [0, 4]]), np.array([0, 1, 0, 1]))
    0.75
    """
    return _mean_over_classes(_area, outputs, y, average)


def auroc_pooled(outputs: Array, y: Array) -> Array:
    """Return the AUROC of all clients' examples together, from histograms of scores with 100 bins that are added up.

    At a client it gives the histograms; see ``engine.rankings`` for the bins and their error.
    """
    return score_histograms(outputs, y)


def average_precision(outputs: Array, y: Array, average: str = MACRO) -> float:
    """Return the mean precision over the examples of a class, each at the threshold that just includes it.

    Classes are taken as in ``auroc``. A model that knows nothing has the share of the class.

    >>> average_precision(np.array([[0, 1], [0, 2], [0, 3], [0, 4]]), np.array([0, 1, 0, 1]))
    0.8333333333333333
    """
    return _mean_over_classes(_precision, outputs, y, average)


def log_loss(outputs: Array, y: Array) -> float:
    """Return the mean cross entropy in nats, of several labels the mean over them.

    >>> round(log_loss(np.array([[0.0, 0.0], [0.0, 50.0]]), np.array([0, 1])), 4)
    0.3466
    """
    if y.ndim > 1:
        return float(np.logaddexp(0.0, np.where(y > 0, -outputs, outputs).astype(np.float64)).mean())
    exact = outputs.astype(np.float64)
    return float((np.logaddexp.reduce(exact, axis=1) - exact[np.arange(len(y)), y]).mean())


def _mean_over_classes(score: Callable[[Array, Array], float], outputs: Array, y: Array, average: str) -> float:
    """Return the mean of a score of rankings over the classes, or labels, that some examples have and others have not.

    A model whose outputs are no numbers ranks nothing.
    """
    if average not in (MACRO, SUPPORT):
        raise UsageError(f"average is {average}; classes count by {MACRO} (all alike) or by {SUPPORT} (examples)")
    if np.isnan(outputs).any():
        return float("nan")
    split = [(own, has) for own, has in zip(*ranked(outputs, y), strict=True) if has.any() and not has.all()]
    found, shares = [score(own, has) for own, has in split], [float(has.sum()) for _, has in split]
    return float(np.average(found, weights=shares if average == SUPPORT else None)) if found else float("nan")


def _area(ranked: Array, has: Array) -> float:
    """Return the share of pairs, one that has the class and one that has not, in the right order; ties count half."""
    _, place, times = np.unique(ranked, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(times) - (times - 1) / 2)[place]
    having, lacking = int(has.sum()), int((~has).sum())
    return float((ranks[has].sum() - having * (having + 1) / 2) / (having * lacking))


def _precision(ranked: Array, has: Array) -> float:
    """Return the mean precision over the examples that have the class; those with equal numbers come together."""
    _, place = np.unique(-ranked, return_inverse=True)
    right, said = (np.cumsum(np.bincount(place, weights=weights)) for weights in (has.astype(float), None))
    return float((right / said)[place][has].mean())


def _probabilities(outputs: Array) -> Array:
    """Return the probabilities of the classes, ``(n, classes)``."""
    exact = np.clip(outputs.astype(np.float64), -LARGEST, LARGEST)
    powers = np.exp(exact - exact.max(axis=1, keepdims=True))
    shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _said(outputs: Array, y: Array) -> Array:
    """Return the predicted classes, or labels where an example has several."""
    said: Array = outputs.argmax(axis=1) if y.ndim == 1 else (outputs > 0).astype(np.int64)
    return said


_SHARE: dict[str, Any] = {"low": 0, "high": 1, "unit": SHARE}
_ERROR: dict[str, Any] = {"smaller": True, "low": 0, "high": np.inf}

_NO_NUMBER, _ONE_CLASS = "the function gives no number there", "all their examples are of one class"

METRICS = {
    each.name: each
    for each in (
        Metric("accuracy", accuracy, "classes", **_SHARE),
        Metric("balanced_accuracy", balanced_accuracy, "one class", **_SHARE),
        Metric("macro_f1", macro_f1, "classes", **_SHARE),
        Metric("auroc", auroc, "classes", undefined=_ONE_CLASS, **_SHARE),
        Metric("auroc_pooled", auroc_pooled, "classes", undefined=_ONE_CLASS, pool=pooled_auroc, **_SHARE),
        Metric("average_precision", average_precision, "classes", undefined=_ONE_CLASS, **_SHARE),
        Metric("log_loss", log_loss, "classes", unit=NATS, **_ERROR),
        Metric("brier", brier, "classes", smaller=True, low=0, high=2),
        Metric("calibration_error", calibration_error, "one class", smaller=True, **_SHARE),
        Metric("rmse", rmse, "numbers", unit=TARGET_UNIT, **_ERROR),
        Metric("mae", mae, "numbers", unit=TARGET_UNIT, **_ERROR),
        Metric("r2", r2, "numbers", low=-np.inf, high=1, unit=SHARE, undefined="all their targets are equal"),
    )
}
"""The metrics that come with coterie."""

metrics = Catalogue(
    "metric", {name: each.function for name, each in METRICS.items()}, hidden=("outputs", "y"), typed=True
)
"""Their functions, for ``coterie list``."""


def find_metric(text: str) -> tuple[Metric, Call]:
    """Return the metric that a text names, with its arguments; a user's function is imported.

    A function of which a smaller value is better says so by an attribute, ``function.smaller = True``.

    Arguments are tried on two examples, so that a wrong one is refused before a run.

    >>> find_metric("rmse")[0].smaller
    True
    """
    call = parse_one(text)
    if is_outside(call.name):
        function = find_outside("metric", call.name)
        return Metric(
            call.name, function, smaller=bool(getattr(function, "smaller", False)), undefined=_NO_NUMBER
        ), call
    metrics.find(call.name)
    if call.args or call.kwargs:
        metrics.build(call, outputs=np.eye(BINARY), y=np.arange(BINARY))
    return METRICS[call.name], call


def metric_for(text: str, target: Target) -> tuple[Metric, Call]:
    """Return the metric that a text names, with its arguments; refuse one that these data do not have.

    >>> metric_for("rmse", Target(2))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    coterie.errors.UsageError: metric is rmse, and the data have 2 classes; take accuracy or balanced_accuracy or ...
    """
    metric, call = find_metric(text)
    metric.check(target)
    return metric, call


def reported_shape(text: str | None, target: Target) -> tuple[int, ...]:
    """Return the shape of what leaves a client where a report names this metric, or none."""
    return () if text is None else find_metric(text)[0].shape(target)
