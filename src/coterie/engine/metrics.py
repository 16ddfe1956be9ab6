"""Per-client metrics from the losses and predictions of examples, for all clients at once."""

from __future__ import annotations

import numpy as np

from coterie.typing import Array


def classification(predictions: Array, truth: Array, losses: Array, offsets: Array, classes: int) -> Array:
    """Return the columns accuracy, macro_f1, loss, examples, with one row for each client."""
    accuracy = segment_mean(predictions == truth, offsets)
    f1 = macro_f1(predictions, truth, offsets, classes)
    return np.column_stack([accuracy, f1, segment_mean(losses, offsets), np.diff(offsets)])


def regression(predictions: Array, truth: Array, losses: Array, offsets: Array) -> Array:
    """Return the columns squared_error, target_variance, loss, examples, with one row for each client."""
    mean = np.repeat(segment_mean(truth, offsets), np.diff(offsets))
    error = segment_mean((predictions - truth) ** 2, offsets)
    variance = segment_mean((truth - mean) ** 2, offsets)
    return np.column_stack([error, variance, segment_mean(losses, offsets), np.diff(offsets)])


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
    return np.add.reduceat(values.astype(np.float64), offsets[:-1]) / np.diff(offsets)
