"""Starts of a run: how many models there are, how they are made, and the first labels."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from coterie.errors import FederationError, UnknownName
from coterie.limits import check_memory
from coterie.protocol.federation import Federation
from coterie.protocol.report import BOUNDED, Report, check_bounded
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.assign import check_clusters
from coterie.server.contract import Ask, Start, State, memory_type
from coterie.typing import Array

_log = logging.getLogger(__name__)

BEGINNING = -1
"""The round number of draws and exchanges before round 0."""


@memory_type
@dataclass(frozen=True)
class Pinned:
    """The clients that never leave their cluster: the cluster of each, by name."""

    rows: Mapping[str, int]


def one_model() -> Start:
    """Start with a single model, to which every client belongs."""

    def start(federation: Federation, key: Key, ask: Ask) -> State:
        return first_state(initial(federation, key, 1), np.zeros(len(federation.names), dtype=np.int64))

    return start


def one_model_for(clusters: int) -> Start:
    """Start with a single model that will be split into ``clusters`` later; refuse more clusters than clients."""

    def start(federation: Federation, key: Key, ask: Ask) -> State:
        check_clusters(clusters, len(federation.names))
        check_room(federation, clusters)
        first = initial(federation, key, 1)
        return replace(first_state(first, np.zeros(len(federation.names), dtype=np.int64)), formed=False)

    return start


def judged_by(loss: str | None, start: Start) -> Start:
    """Make the same start, if the bounded loss by which models will be judged is defined for the data."""
    if loss not in (None, *BOUNDED):
        raise UnknownName("bounded loss", str(loss), BOUNDED)

    def begin(federation: Federation, key: Key, ask: Ask) -> State:
        check_bounded(loss, federation.model.classes)
        return start(federation, key, ask)

    return begin


def model_per_client() -> Start:
    """Start with one model for each client, all equal, which no other client trains."""

    def start(federation: Federation, key: Key, ask: Ask) -> State:
        clients = len(federation.names)
        check_room(federation, clients)
        return first_state(initial(federation, key, 1).take(np.zeros(clients, dtype=np.int64)), np.arange(clients))

    return start


def random_models(clusters: int) -> Start:
    """Start with ``clusters`` independent random models; no client is placed yet."""

    def start(federation: Federation, key: Key, ask: Ask) -> State:
        check_clusters(clusters, len(federation.names))
        return unplaced(federation, initial(federation, key, clusters))

    return start


def warn_if_equal(start: Start) -> Start:
    """Make the same start, and warn if several models are all equal: clients could not choose between them."""

    def begin(federation: Federation, key: Key, ask: Ask) -> State:
        state = start(federation, key, ask)
        models = state.stack
        if len(models) > 1 and all((part == part[:1]).all() for part in models):
            _log.warning(
                "all %d cluster models are equal at the start, so all clients will choose the same one and the method "
                "collapses into fedavg; use start=farthest, or a model with random initial weights",
                len(models),
            )
        return state

    return begin


def random_labels(start: Start, clusters: int, pinned: bool) -> Start:
    """Make the same start with every client in a random cluster; ``pinned``: one random client never leaves each.

    The draws are by name, so that they do not depend on the order of clients. The memory says who is pinned.
    """

    def begin(federation: Federation, key: Key, ask: Ask) -> State:
        state, names = start(federation, key, ask), federation.names
        there = [names[i] for i in federation.present(BEGINNING)]
        drawn = sorted(there, key=lambda name: key.number(name, "pinned"))[: clusters if pinned else 0]
        rows = {name: row for row, name in enumerate(drawn)}
        labels = [rows.get(name, key.number(name, "first label") % clusters) for name in names]
        return replace(state, labels=np.array(labels, dtype=np.int64), memory=Pinned(rows))

    return begin


def farthest_first(clusters: int, fit: Fit) -> Start:
    """Start with models trained by clients that differ.

    All clients train once from one model; one of the results is taken at random, then repeatedly the model of the
    client with the largest loss under those taken so far. One cluster needs no such models: it has the plain start.
    """

    def start(federation: Federation, key: Key, ask: Ask) -> State:
        check_clusters(clusters, len(federation.names))
        first = initial(federation, key, 1)
        if clusters == 1:
            return unplaced(federation, first)
        everyone = np.arange(len(federation.names))
        zeros = np.zeros(len(everyone), dtype=np.int64)
        trained = ask(Task(fit=(fit,)), first, zeros, everyone)
        if len(trained) < clusters:
            raise FederationError(
                f"only {len(trained)} of {len(everyone)} clients answered before round 0, {clusters} different starts "
                f"need as many; use start=random"
            )
        models, best = trained.models(), np.full(len(everyone), np.inf)
        chosen = [int(key.generator("farthest-first").integers(len(trained)))]
        for _ in range(clusters - 1):
            scored = ask(Task(report=Report(params=None, losses=True)), models.take(chosen[-1:]), zeros, everyone)
            assert scored.losses is not None
            best[scored.clients] = np.minimum(best[scored.clients], scored.losses[:, 0])
            worst = np.where(np.isfinite(best), best, -np.inf)[trained.clients]
            worst[chosen] = -np.inf
            chosen.append(int(worst.argmax()))
        return unplaced(federation, models.take(chosen))

    return start


def initial(federation: Federation, key: Key, count: int) -> Stack:
    """Return ``count`` freshly initialised models; the first is the same for every algorithm with this seed."""
    check_room(federation, count)
    rows = [federation.model.initial(key.number("model", i)) for i in range(count)]
    return Stack(*(np.stack(part) for part in zip(*rows, strict=True)))


def check_room(federation: Federation, count: int) -> None:
    """Refuse more models than fit in memory three times: those of this round, of the one before and of the next."""
    layout = federation.model.layout
    numbers = layout.size + layout.buffer_size
    what = f"a run of {count:,} models of {numbers:,} numbers"
    check_memory(what, 3 * 4 * count * numbers, "take fewer clusters or clients, or a smaller model")


def first_state(stack: Stack, labels: Array) -> State:
    """Return the state of round 0 with these models and labels; shares are equal until clients answer."""
    return State(stack, labels, 0, previous=stack, shares=np.full(len(stack), 1 / len(stack)))


def unplaced(federation: Federation, stack: Stack) -> State:
    """Return the state of round 0 with several models and no client placed."""
    return first_state(stack, np.full(len(federation.names), UNPLACED, dtype=np.int64))
