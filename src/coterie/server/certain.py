"""Which clients certainly differ: the theorem of lcfl on examples that no model was trained with.

Every client trains the first model on one half of its examples, and judges all these models on the other. Whatever was
trained, a half that no model has seen is a fresh sample under every one of them: the complexity in the theorem is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.models.layout import Array
from coterie.protocol.federation import Federation
from coterie.protocol.task import Fit, Report, Task
from coterie.seeding import Key
from coterie.server.contract import Ask, Opinion
from coterie.server.distances import between_clients, cross_losses
from coterie.server.separation import bounded, separation_thresholds
from coterie.server.start import initial

CONFIDENCE = 0.95
"""With this probability none of the pairs that are named as different is alike."""

LARGEST = 2.0
"""No distance of losses in [0, 1] is above this, so a pair with a higher threshold cannot be told apart."""

FEWEST = 2
"""A client with fewer examples cannot be divided."""

MOST_NAMED = 100
"""So many pairs of clients are named, those that are farthest beyond chance first; all are counted."""


def certain_differences(loss: str, fit: Fit) -> Opinion:
    """Ask all clients, before round 0, which of them differ for sure by this bounded loss; those who answer count."""

    def opinion(federation: Federation, key: Key, ask: Ask) -> Mapping[str, Any]:
        everyone, first = np.arange(len(federation.names)), initial(federation, key, 1)
        made = ask(Task(fit=(replace(fit, half=0),)), first, np.zeros_like(everyone), everyone)
        made = made.without(made.examples < FEWEST, {})
        report = Report(params=None, losses=True, bounded=loss, half=1)
        losses = cross_losses(made, ask, report)
        heard = ~np.isnan(losses).any(axis=1)
        names = [federation.names[client] for client in made.clients[heard]]
        return findings(losses[heard][:, heard], report.sees(made.examples[heard]), names, loss)

    return opinion


def findings(losses: Array, examples: Array, names: list[str], loss: str) -> Mapping[str, Any]:
    """The pairs that certainly differ by their losses on so many examples, in numbers, names and words."""
    one, other = np.triu_indices(len(names), 1)
    limits = separation_thresholds(examples, (1 - CONFIDENCE) / 4, complexity=0.0)[one, other]
    beyond = between_clients(bounded(losses))[one, other] - limits
    farthest = np.argsort(-beyond, kind="stable")[: min(MOST_NAMED, int((beyond > 0).sum()))]
    found = {"differ": int((beyond > 0).sum()), "could": int((limits < LARGEST).sum()), "pairs": len(limits)}
    named = [[names[one[pair]], names[other[pair]]] for pair in farthest]
    return {**found, "named": named, "text": sentence(**found, loss=loss)}


def sentence(differ: int, could: int, pairs: int, loss: str) -> str:
    """What was found, for a practitioner.

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
