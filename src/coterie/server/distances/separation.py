"""When a loss distance is significant: the theorem of lcfl as a tool, and as an opinion of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import log, sqrt
from typing import Any

import numpy as np

from coterie.errors import UsageError
from coterie.protocol.federation import Federation
from coterie.protocol.report import Report
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.contract import Ask, Opinion
from coterie.server.distances.many_clients import drawn, too_many
from coterie.server.distances.vectors import between_clients, cross_losses
from coterie.server.start import initial
from coterie.typing import Array

CONFIDENCE = 0.95
"""With this probability all pairs that are said to differ do differ."""

LARGEST = 2.0
"""The largest distance of losses in [0, 1]: a pair with a higher threshold can never be found to differ."""

FEWEST = 2
"""A client with fewer examples cannot be divided."""

MOST_NAMED = 100
"""At most this number of pairs is named, those farthest above their thresholds first; all are counted."""

Complexity = float | Callable[[int], float]
"""The Rademacher complexity of the models' losses for samples of a size, or one bound for all sizes."""


def separation_threshold(
    n_i: int, n_j: int, delta: float, complexity: Complexity, pairs: int = 1, shared: bool = False
) -> float:
    """Return the distance of eq. 6 above which the data of two clients differ: theorem 1 of Gu et al., corrected.

    2 s(n_i) + 2 s(n_j) + 2 R(n_i) + 2 R(n_j), s(n) = sqrt(log(2 pairs / delta) / (2 n)), R the Rademacher complexity of
    the models' losses, which are in [0, 1] (0-1, or clipped). Over all ``pairs`` at once the confidence is at least
    1 - 4 delta, for models of any training, good or bad. It is assumed that neither model was trained on the other
    client's data; after a warm-up on everyone's it was: ``shared`` counts R twice as often. For losses on examples on
    which no model was trained, R is 0. Large distances mean *different* data; the text around the theorem
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
    noise = sum(2 * sqrt(log(2 * pairs / delta) / (2 * n)) for n in (n_i, n_j))
    fitted = 4 if shared else 2
    return noise + fitted * sum(complexity(n) if callable(complexity) else complexity for n in (n_i, n_j))


def differ(losses: Array, examples: Array, delta: float, complexity: Complexity, shared: bool = False) -> Array:
    """Return which pairs of clients certainly differ; if none does, one model may be enough.

    ``losses[i, j]`` is the mean loss of client i under client j's model, on ``examples[i]`` examples. The probability
    that any of these pairs does not differ is at most 4 delta, under the assumptions of ``separation_threshold``.

    >>> differ(np.array([[0.1, 0.8], [0.7, 0.2]]), np.array([500, 500]), 0.05, 0.0).tolist()
    [[False, True], [True, False]]
    """
    found: Array = between_clients(bounded(losses)) > separation_thresholds(examples, delta, complexity, shared)
    return found


def separation_thresholds(examples: Array, delta: float, complexity: Complexity, shared: bool = False) -> Array:
    """Return the threshold of every pair of clients with these numbers of examples, where all pairs are compared."""
    count, (sizes, which) = len(examples), np.unique(examples, return_inverse=True)
    pairs = max(1, count * (count - 1) // 2)
    own = np.array([separation_threshold(n, n, delta, complexity, pairs, shared) / 2 for n in sizes.tolist()])[which]
    found: Array = np.add.outer(own, own)
    return found


def bounded(losses: Array) -> Array:
    """Return the same losses; refuse any outside [0, 1]."""
    if not ((losses >= 0) & (losses <= 1)).all():
        raise UsageError(f"losses are {losses.min():g} to {losses.max():g}; they must be in [0, 1]: clipped, or 0-1")
    return losses


def certain_differences(loss: str, fit: Fit) -> Opinion:
    """Find, before round 0, which of the clients that answer, or of a sample of many, certainly differ by this loss."""

    def opinion(federation: Federation, key: Key, ask: Ask) -> Mapping[str, Any]:
        everyone, first = np.arange(len(federation.names)), initial(federation, key, 1)
        trained = ask(Task(fit=(replace(fit, half=0),)), first, np.zeros_like(everyone), everyone)
        trained = trained.without(trained.examples < FEWEST, {})
        if too_many(trained):
            rest = np.isin(np.arange(len(trained)), drawn(len(trained), trained.sketching), invert=True)
            trained = trained.without(rest, {})
        report = Report(params=None, losses=True, bounded=loss, half=1)
        losses = cross_losses(trained, ask, report)
        heard = ~np.isnan(losses).any(axis=1)
        names = [federation.names[client] for client in trained.clients[heard]]
        return findings(losses[heard][:, heard], report.distinct_examples(trained.examples[heard]), names, loss)

    return opinion


def findings(losses: Array, examples: Array, names: list[str], loss: str) -> Mapping[str, Any]:
    """Return the pairs that certainly differ by their losses on these numbers of examples: counts, names and a text."""
    one, other = np.triu_indices(len(names), 1)
    limits = separation_thresholds(examples, (1 - CONFIDENCE) / 4, complexity=0.0)[one, other]
    beyond = between_clients(bounded(losses))[one, other] - limits
    farthest = np.argsort(-beyond, kind="stable")[: min(MOST_NAMED, int((beyond > 0).sum()))]
    found = {"differ": int((beyond > 0).sum()), "could": int((limits < LARGEST).sum()), "pairs": len(limits)}
    named = [[names[one[pair]], names[other[pair]]] for pair in farthest]
    return {**found, "named": named, "text": sentence(**found, loss=loss)}


def sentence(differ: int, could: int, pairs: int, loss: str) -> str:
    """Return what was found as a sentence for a practitioner.

    >>> print(sentence(0, 0, 3, "clipped"))
    No two clients have enough examples to say that they certainly differ.
    >>> print(sentence(2, 3, 3, "clipped"))
    2 of 3 pairs of clients certainly differ (95 % sure, by clipped losses on new data): one model may not be enough.
    """
    if not could:
        return "No two clients have enough examples to say that they certainly differ."
    by = f"({CONFIDENCE:.0%} sure, by {loss} losses on new data)".replace("%", " %")
    if not differ:
        return f"None of {could} pairs of clients with enough examples certainly differs {by}: one model may be enough."
    return f"{differ} of {pairs} pairs of clients certainly differ {by}: one model may not be enough."
