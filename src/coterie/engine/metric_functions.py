"""Metrics by name: one number of a client from a network's outputs and the truth, on one of its splits.

A metric is a function ``(outputs, y) -> float`` of arrays ``(n, outputs)`` and ``(n,)``, or ``(n, k)`` of several
labels or targets. To add one, write it here and list it in ``METRICS``; a user's own is ``package.module:function``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.engine.metrics import macro_f1 as macro_f1_of_clients
from coterie.engine.metrics import multilabel
from coterie.errors import UsageError
from coterie.outside import find_outside, is_outside, reason
from coterie.target import Target
from coterie.textforms import Call, Catalogue, parse_one
from coterie.typing import Array

Function = Callable[..., Any]


@dataclass(frozen=True)
class Metric:
    """A named metric.

    needs             what it is for: "classes" (and labels), "one class" an example, "numbers", or "anything"
    smaller           whether a smaller value is better
    in_unit           whether it is in units of the target, as errors are
    """

    name: str
    function: Function
    needs: str = "anything"
    smaller: bool = False
    in_unit: bool = False

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
        try:
            value = float(self.function(outputs, y, *call.args, **dict(call.kwargs)))
        except Exception as error:  # a user's code may fail in any way
            raise UsageError(f"metric {call!s} failed: {reason(error)}; it is called with (outputs, y)") from error
        return value if np.isfinite(value) else np.inf


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
    total = float(np.var(y, axis=0).mean())
    return 1 - float(np.mean((outputs.reshape(y.shape) - y) ** 2)) / total if total > 0 else float("nan")


def _said(outputs: Array, y: Array) -> Array:
    """Return the predicted classes, or labels where an example has several."""
    said: Array = outputs.argmax(axis=1) if y.ndim == 1 else (outputs > 0).astype(np.int64)
    return said


METRICS = {
    each.name: each
    for each in (
        Metric("accuracy", accuracy, "classes"),
        Metric("balanced_accuracy", balanced_accuracy, "one class"),
        Metric("macro_f1", macro_f1, "classes"),
        Metric("rmse", rmse, "numbers", smaller=True, in_unit=True),
        Metric("mae", mae, "numbers", smaller=True, in_unit=True),
        Metric("r2", r2, "numbers"),
    )
}
"""The metrics that come with coterie."""

metrics = Catalogue("metric", {name: each.function for name, each in METRICS.items()}, hidden=("outputs", "y"))
"""Their functions, for ``coterie list``."""


def find_metric(text: str) -> tuple[Metric, Call]:
    """Return the metric that a text names, with its arguments; a user's function is imported.

    A function of which a smaller value is better says so by an attribute, ``function.smaller = True``.

    >>> find_metric("rmse")[0].smaller
    True
    """
    call = parse_one(text)
    if is_outside(call.name):
        function = find_outside("metric", call.name)
        return Metric(call.name, function, smaller=bool(getattr(function, "smaller", False))), call
    metrics.find(call.name)
    if call.args or call.kwargs:
        raise UsageError(f"metric is {text}, and {call.name} has no arguments; write metric={call.name}")
    return METRICS[call.name], call
