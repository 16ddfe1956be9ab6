"""Per-client metrics from per-example verdicts, for all clients at once."""

from __future__ import annotations

import numpy as np

from coterie.typing import Array


def segment_mean(values: Array, offsets: Array) -> Array:
    """The mean over each segment ``offsets[i]:offsets[i+1]``, in double precision."""
    return np.add.reduceat(values.astype(np.float64), offsets[:-1]) / np.diff(offsets)


def classification(predictions: Array, truth: Array, losses: Array, offsets: Array, classes: int) -> Array:
    """Columns accuracy, macro_f1, loss, examples; one row a client."""
    sizes = np.diff(offsets)
    accuracy = segment_mean(predictions == truth, offsets)
    f1 = macro_f1(predictions, truth, offsets, classes)
    return np.column_stack([accuracy, f1, segment_mean(losses, offsets), sizes])


def regression(predictions: Array, truth: Array, losses: Array, offsets: Array) -> Array:
    """Columns squared_error, target_variance, loss, examples; one row a client."""
    mean = np.repeat(segment_mean(truth, offsets), np.diff(offsets))
    error = segment_mean((predictions - truth) ** 2, offsets)
    variance = segment_mean((truth - mean) ** 2, offsets)
    return np.column_stack([error, variance, segment_mean(losses, offsets), np.diff(offsets)])


def macro_f1(predictions: Array, truth: Array, offsets: Array, classes: int) -> Array:
    """Unweighted mean of F1 over the labels present in truth or prediction, for each client.

    >>> macro_f1(np.array([0, 1, 1]), np.array([0, 1, 0]), np.array([0, 3]), 5).round(4).tolist()
    [0.6667]
    """
    clients = len(offsets) - 1
    base = np.repeat(np.arange(clients), np.diff(offsets)) * classes

    def count(labels: Array) -> Array:
        return np.bincount(labels, minlength=clients * classes).reshape(clients, classes)

    hits = count((base + truth)[predictions == truth])
    either = count(base + truth) + count(base + predictions)
    f1 = 2 * hits / np.maximum(either, 1)
    scores: Array = f1.sum(axis=1) / (either > 0).sum(axis=1)
    return scores
