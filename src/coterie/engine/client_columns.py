"""Per-client metrics from the losses and predictions of examples, for all clients at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.target import Target
from coterie.typing import Array


class Predicted(NamedTuple):
    """The loss of every example, and its predicted class or value, or those of its several labels or targets."""

    losses: Array
    predictions: Array


def table(found: Predicted, truth: Array, offsets: Array, target: Target) -> Array:
    """Return the four columns of what is predicted, with one row for each client."""
    if target.is_labels:
        return multilabel(found.predictions, truth, found.losses, offsets)
    if target.classes is None:
        return regression(found.predictions, truth, found.losses, offsets)
    return classification(found.predictions, truth, found.losses, offsets, target.classes)


def classification(predictions: Array, truth: Array, losses: Array, offsets: Array, classes: int) -> Array:
    """Return the columns accuracy, macro_f1, loss, examples, with one row for each client."""
    accuracy = segment_mean(predictions == truth, offsets)
    f1 = macro_f1(predictions, truth, offsets, classes)
    return np.column_stack([accuracy, f1, segment_mean(losses, offsets), np.diff(offsets)])


def regression(predictions: Array, truth: Array, losses: Array, offsets: Array) -> Array:
    """Return the columns squared_error, target_variance, loss, examples, with one row for each client.

    Of several targets, ``(n, columns)``, error and variance are the means over them.
    """
    mean = np.repeat(segment_mean(truth, offsets), np.diff(offsets), axis=0)
    error = _over_columns(segment_mean((predictions - truth) ** 2, offsets))
    variance = _over_columns(segment_mean((truth - mean) ** 2, offsets))
    return np.column_stack([error, variance, segment_mean(losses, offsets), np.diff(offsets)])


def multilabel(predictions: Array, truth: Array, losses: Array, offsets: Array) -> Array:
    """Return the columns accuracy, macro_f1, loss, examples of several labels, ``(n, labels)``, a row for each client.

    The accuracy is the share of right labels. F1 is of the label's 1; the mean is over the labels that a client has or
    is said to have, and 1 where that is none.

    >>> multilabel(np.array([[1, 0, 0], [1, 1, 0]]), np.array([[1, 0, 0], [0, 1, 0]]), np.ones(2), np.array([0, 2]))
    array([[0.83333333, 0.83333333, 1.        , 2.        ]])
    """
    accuracy = segment_mean((predictions == truth).mean(axis=1), offsets)
    right, seen, said = (
        segment_mean(cells, offsets) for cells in ((predictions == 1) & (truth == 1), truth == 1, predictions == 1)
    )
    either = seen + said
    f1, present = 2 * right / np.where(either > 0, either, 1), (either > 0).sum(axis=1)
    macro = np.where(present > 0, f1.sum(axis=1) / np.maximum(present, 1), 1.0)
    return np.column_stack([accuracy, macro, segment_mean(losses, offsets), np.diff(offsets)])


def macro_f1(predictions: Array, truth: Array, offsets: Array, classes: int) -> Array:
    """Return each client's mean of F1 over the classes present in truth or prediction, without weights.

    >>> macro_f1(np.array([0, 1, 1]), np.array([0, 1, 0]), np.array([0, 3]), 5).round(4).tolist()
    [0.6667]
    """
    clients = len(offsets) - 1
    base = np.repeat(np.arange(clients), np.diff(offsets)) * classes
    right, seen, said = (
        np.bincount(cells, minlength=clients * classes).reshape(clients, classes)
        for cells in ((base + truth)[predictions == truth], base + truth, base + predictions)
    )
    either = seen + said
    f1 = 2 * right / np.maximum(either, 1)
    scores: Array = f1.sum(axis=1) / (either > 0).sum(axis=1)
    return scores


def segment_mean(values: Array, offsets: Array) -> Array:
    """Return the mean over each segment ``offsets[i]:offsets[i+1]``, in double precision."""
    sizes = np.diff(offsets).reshape(-1, *[1] * (values.ndim - 1))
    return np.add.reduceat(values.astype(np.float64), offsets[:-1], axis=0) / sizes


def _over_columns(means: Array) -> Array:
    """Return the mean of each client's columns, if there are several."""
    return means if means.ndim == 1 else means.mean(axis=1)
