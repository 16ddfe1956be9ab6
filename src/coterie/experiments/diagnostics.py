"""What clients' models tell of the clusters of a round, where it costs little; and, on request, what gradients tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.errors import UsageError
from coterie.experiments.data_facts import DataFacts
from coterie.experiments.scores import clusterability, silhouette
from coterie.models.layout import Layout
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Sent
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.contract import State
from coterie.server.distances.vectors import columns, pairwise
from coterie.server.exchange import with_mean
from coterie.server.loop import Round
from coterie.server.one_shot import temperature
from coterie.typing import Array

MOST_CLIENTS, MOST_BYTES = 500, 128 << 20
"""With more clients, or larger replies, what is quadratic or hungry for memory is left out."""

MOST_EXAMPLES = 10_000
"""A gradient is taken over all examples of a client at once; with more it would want too much of its memory."""

GRADIENT = Task(fit=(Fit(epochs=1, batch=MOST_EXAMPLES, lr=1.0, momentum=0.0),))
"""One plain step of rate 1 on all examples: the start less its end is the gradient, and the loss is the start's."""


def diagnostics(step: Round) -> dict[str, Any]:
    """The temperature of a round and, where everyone who answered is placed, how the clusters look.

    ``silhouette`` and ``clustering_objective`` are of the heads, ``clusterability`` is of the updates.
    """
    replies, labels = step.replies, step.state.labels[step.replies.clients]
    if replies.params is None or len(replies) > MOST_CLIENTS or replies.params.nbytes > MOST_BYTES:
        return {}
    models, rows = with_mean(step.before.stack, replies.labels, step.before.shares)
    starts = models.params[rows]
    found = {"temperature": round_temperature(replies, starts)}
    if (labels >= 0).all():
        heads, head = replies.part("head_weight"), replies.layout.part("head_weight")
        found["silhouette"] = silhouette(heads, labels)
        found["clustering_objective"] = spread(heads, step.state.stack.params[labels][:, head], replies.examples)
        found |= _clusterabilities("clusterability", replies.params - starts, labels, replies)
    return {name: value for name, value in found.items() if value is not None}


def spread(points: Array, centres: Array, weights: Array) -> float:
    """The objective of the clustering, thesis eq. 3.3b (of cam 7.10): sum_i psi_i |g_i - G_c(i)|^2 / sum_i psi_i.

    ``centres`` has each client's own: that of the cluster where the round put it, as it is after averaging.

    >>> spread(np.array([[1.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0], [3.0, 2.0]]), np.array([3, 1]))
    1.75
    """
    squares = np.square(points.astype(np.float64) - centres).sum(axis=1)
    return float(np.average(squares, weights=weights))


def check_gradients(known: DataFacts, layout: Layout) -> None:
    """Refuse to measure gradients that are too large to compare."""
    largest, size = int(known.train.max()), len(known) * layout.size * 4
    if largest > MOST_EXAMPLES:
        raise UsageError(f"diagnose takes up to {MOST_EXAMPLES} examples a client, one has {largest}; leave it out")
    if size > MOST_BYTES:
        most = MOST_BYTES >> 20
        raise UsageError(f"diagnose takes up to {most} MB of gradients, these have {size >> 20}; take a smaller model")


def ask_gradients(federation: Federation, state: State, seed: int, clients: Array) -> Replies | None:
    """One step of each of these clients that is placed, from its cluster's model; it is measurement, so not counted."""
    placed = clients[state.labels[clients] >= 0]
    if not len(placed):
        return None
    return federation.ask(GRADIENT, Sent(state.stack), state.labels[placed], placed, Key(seed, state.round))


def of_gradients(state: State, replies: Replies) -> dict[str, Any]:
    """What the gradients at the cluster models tell: the thesis' clusterability, and the objective of training.

    ``objective`` is the clients' mean train loss under their clusters' models by examples: thesis eq. 3.3a, of cam 7.3.
    """
    if not len(replies):
        return {}
    assert replies.loss is not None, "training tells its loss"
    gradients = state.stack.params[replies.labels] - replies.models().params
    objective = float(np.average(replies.loss, weights=replies.examples))
    return {"objective": objective} | _clusterabilities("gradient_clusterability", gradients, replies.labels, replies)


def _clusterabilities(name: str, moves: Array, labels: Array, replies: Replies) -> dict[str, float | None]:
    """Of all parameters and, of models of two halves, of each apart; the global half has one cluster, everybody."""
    layout, weights = replies.layout, replies.examples
    found: dict[str, float | None] = {name: clusterability(moves, labels, weights)}
    if "cluster" in layout.parts:
        found[f"{name}_cluster"] = clusterability(moves[:, layout.part("cluster")], labels, weights)
        found[f"{name}_global"] = clusterability(moves[:, layout.part("global")], np.zeros_like(labels), weights)
    return found


def round_temperature(replies: Replies, starts: Array) -> float | None:
    """The clustering temperature of the updates (ocfl eq. 4 with p = 2), the number that ocfl's own event sees.

    Of models of two halves it is that of the cluster half. None for fewer than two clients, or if nothing was trained.
    """
    seen = _cluster_half(replies)
    part = seen.layout.part("all")
    if len(seen) < 2 or np.array_equal(seen.models().params[:, part], starts[:, part]):
        return None
    return temperature(pairwise(columns(seen, starts), len(seen), "cosine"))


def _cluster_half(replies: Replies) -> Replies:
    """The same replies, all of whose parameters are those of the cluster half, where there is one."""
    parts = replies.layout.parts
    layout = replace(replies.layout, parts={**parts, "all": parts.get("cluster", parts["all"])})
    return replace(replies, layout=layout)
