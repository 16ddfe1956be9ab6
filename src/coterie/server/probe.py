"""A look at the clients before round 0: what each makes of one model, twice, on two halves of its data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.errors import FederationError
from coterie.models.layout import Array
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.advice import Advice, on_halves
from coterie.server.aggregate import average
from coterie.server.contract import Ask, by_examples
from coterie.server.distances import columns, cosine_from_products
from coterie.server.start import initial

STEPS = 10
"""Everyone takes so many steps, whatever the run's local training is, so that updates can be compared."""

FEWEST = 2
"""A client with fewer examples cannot be divided."""


def probe(federation: Federation, key: Key, ask: Ask, fit: Fit) -> Advice:
    """Advice from three exchanges with everyone: a round of FedAvg, then a training on each half from its result.

    Clients that do not answer, or cannot be divided, have no say. Their order plays no part: they are taken by name.
    """
    names, clients = federation.names, np.arange(len(federation.names))
    same, short = np.zeros_like(clients), replace(fit, steps=STEPS, epochs=None)
    first = initial(federation, key, 1)
    warm = ask(Task(fit=(short,)), first, same, clients)
    model = average(warm, warm.labels, by_examples(warm), first)[0] if len(warm) else first
    one, other = (ask(Task(fit=(replace(short, half=half),)), model, same, clients) for half in (0, 1))
    known = np.intersect1d(one.clients, other.clients[other.examples >= FEWEST])
    if not len(known):
        raise FederationError(
            f"none of {len(clients)} clients answered the probe with {FEWEST} examples or more; "
            f"give the number of clusters, or leave out --advise; reasons: {dict(list(one.missing.items())[:3])}"
        )
    return on_halves(_products(one, other, model.params, known, names), key)


def _products(one: Replies, other: Replies, start: Array, known: Array, names: tuple[str, ...]) -> Array:
    """Cosines of all updates of the known clients, first halves above second, clients in the order of their names."""
    both = [replies.without(~np.isin(replies.clients, known), {}) for replies in (one, other)]
    total = np.zeros((2 * len(known), 2 * len(known)))
    starts = np.broadcast_to(start[0], (len(known), start.shape[1]))
    for blocks in zip(*(columns(replies, starts) for replies in both), strict=True):
        rows = np.concatenate(blocks)
        total += rows @ rows.T
    order = np.array(sorted(range(len(known)), key=lambda place: names[known[place]]))
    places = np.concatenate([order, order + len(known)])
    found: Array = cosine_from_products(total)[np.ix_(places, places)]
    return found
