"""Guessing: what a client would score with the same answer for every example, from its train labels alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from coterie.data import Federated
from coterie.engine.client_columns import table
from coterie.engine.evaluation import predicted
from coterie.engine.metrics import metric_for
from coterie.target import Target
from coterie.typing import Array

AT_ONCE = 1 << 24
"""About how many outputs are held at a time."""

PRIOR = 0.5
"""What is added to the count of every class, so that a class that a client has not seen is unlikely, not impossible."""


class Guesses(NamedTuple):
    """The scores of guessing: rows of metrics as a reply has them, and the metric that the user named, if any."""

    metrics: Array
    metric: Array | None


def guesses_of(data: Federated, metric: str | None = None) -> Guesses:
    """Return how well each client's test examples are guessed; ``metric`` names one more score."""
    constants = np.stack([constant_outputs(data.train.of(i)[1], data.target) for i in range(len(data))])
    rows = [_scores(data, constants, some) for some in _blocks(data.test.sizes * constants.shape[1])]
    return Guesses(np.concatenate(rows), None if metric is None else _named_scores(data, constants, metric))


def constant_outputs(labels: Array, target: Target) -> Array:
    """Return the outputs of the network that ignores its inputs and fits these train labels best.

    They are the logarithms of the classes' shares, the log odds of each of several labels, or the means of numbers.

    >>> [round(each, 2) for each in constant_outputs(np.array([0, 0, 2]), Target(3)).tolist()]
    [-0.59, -2.2, -1.1]
    >>> constant_outputs(np.array([1.0, 2.0, 6.0]), Target()).tolist()
    [3.0]
    """
    found: Array
    if target.classes is None:
        found = np.atleast_1d(labels.mean(axis=0))
    elif target.is_labels:
        found = np.log((labels.sum(axis=0) + PRIOR) / ((1 - labels).sum(axis=0) + PRIOR))
    else:
        counts = np.bincount(labels, minlength=target.classes) + PRIOR
        found = np.log(counts / counts.sum())
    return found.astype(np.float32)


def _blocks(numbers: Array) -> list[Array]:
    """Return the positions of clients in blocks that hold about ``AT_ONCE`` of these numbers each."""
    return np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(np.cumsum(numbers) // AT_ONCE)) + 1)


def _scores(data: Federated, constants: Array, clients: Array) -> Array:
    """Return the rows of metrics of a block of clients, each with its own constant outputs."""
    sizes, first, end = data.test.sizes[clients], data.test.offsets[clients[0]], data.test.offsets[clients[-1] + 1]
    outputs, truth = torch.from_numpy(np.repeat(constants[clients], sizes, axis=0)), data.test.y[first:end]
    found = predicted(outputs, torch.from_numpy(truth), data.target)
    return table(found, truth, np.concatenate([[0], np.cumsum(sizes)]), data.target)


def _named_scores(data: Federated, constants: Array, metric: str) -> Array:
    """Return the metric that the user named at every client; infinite where it is not defined."""
    (found, call), truths = metric_for(metric, data.target), [data.test.of(i)[1] for i in range(len(data))]
    pairs = ((np.repeat(row[None], len(y), axis=0), y) for row, y in zip(constants, truths, strict=True))
    return np.array([found.of(outputs, y, call) for outputs, y in pairs])
