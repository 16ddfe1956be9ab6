"""What the clients' models of a round tell of its clusters, where it costs little to find out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.models.layout import Array
from coterie.protocol.replies import Replies
from coterie.results.scores import clusterability, silhouette
from coterie.server.distances import columns, pairwise
from coterie.server.events import temperature
from coterie.server.loop import Round, with_mean

MOST_CLIENTS, MOST_BYTES = 500, 128 << 20
"""With more clients, or larger replies, what is quadratic or hungry for memory is left out."""


def diagnostics(step: Round) -> dict[str, Any]:
    """The temperature of a round and, where everyone who answered is placed, how the clusters look.

    ``silhouette`` is of the heads, ``clusterability`` the thesis' measure of the updates.
    """
    replies, labels = step.replies, step.state.labels[step.replies.clients]
    if replies.params is None or len(replies) > MOST_CLIENTS or replies.params.nbytes > MOST_BYTES:
        return {}
    models, rows = with_mean(step.before.stack, replies.labels, step.before.shares)
    starts = models.params[rows]
    found = {"temperature": round_temperature(replies, starts)}
    if (labels >= 0).all():
        found["silhouette"] = silhouette(replies.part("head_weight"), labels)
        found["clusterability"] = clusterability(replies.params - starts, labels, replies.examples)
    return {name: value for name, value in found.items() if value is not None}


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
