"""Validation data: a part of each client's own train examples, set aside; never of its test examples."""

from __future__ import annotations

from dataclasses import replace

from coterie.data.federated import Federated
from coterie.data.stratified import set_aside
from coterie.errors import DataError
from coterie.seeding import generator


def with_validation(federated: Federated, fraction: float, seed: int) -> Federated:
    """The same federation, each client with ``fraction`` of its train examples set aside, by class and at least one.

    What a client sets aside depends on the seed and its name, not on the other clients.
    """
    if not 0 < fraction < 1:
        raise DataError(f"validation={fraction} must be between 0 and 1, such as 0.1")
    kept, aside = [], []
    for i, (name, start) in enumerate(zip(federated.names, federated.train.offsets, strict=False)):
        labels = federated.train.of(i)[1]
        if len(labels) < 2:
            raise DataError(f"client {name!r} has one train example and cannot set one aside; use validation=0")
        own, other = set_aside(labels, fraction, generator(seed, "validation", name))
        kept.append(start + own)
        aside.append(start + other)
    return replace(federated, train=federated.train.take(kept), validation=federated.train.take(aside))
