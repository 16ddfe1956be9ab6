"""Algorithms whose number of clusters a probe finds before round 0, and algorithms that take advice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coterie.errors import UsageError
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.clustering.advice import ADVICE, probe
from coterie.server.contract import Algorithm, Ask, Assignment, State

AUTO = "auto"


def counted(clusters: int | str, fit: Fit, make: Callable[[int], Algorithm]) -> Algorithm:
    """``make(clusters)``; for ``auto`` the one that ``make`` gives for the number that a probe finds.

    The state remembers the number, so that a resumed run needs no further probe.
    """
    if isinstance(clusters, int):
        return make(clusters)
    if clusters != AUTO:
        raise UsageError(f"clusters is {clusters}; it must be at least 1, or {AUTO}")

    def of(state: State) -> Algorithm:
        return make(state.memory[ADVICE]["clusters"])

    def start(federation: Federation, key: Key, ask: Ask) -> State:
        advice = probe(federation, key, ask, fit)
        begun = make(advice["clusters"]).start(federation, key, ask)
        return replace(begun, memory={**begun.memory, ADVICE: advice})

    def task(state: State) -> Task:
        return of(state).task(state)

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        return of(state).assign(state, replies, key, ask)

    return replace(make(1), start=start, task=task, assign=assign)


def advised(algorithm: Algorithm) -> Algorithm:
    """The same algorithm; a probe before round 0 leaves advice in its state, unless it asks for advice itself.

    What the algorithm can say further is in the advice as ``certain``.
    """

    def start(federation: Federation, key: Key, ask: Ask) -> State:
        begun = algorithm.start(federation, key, ask)
        if ADVICE in begun.memory:
            return begun
        advice = probe(federation, key, ask, algorithm.fit)
        if algorithm.opinion is not None:
            advice = {**advice, "certain": algorithm.opinion(federation, key, ask)}
        return replace(begun, memory={**begun.memory, ADVICE: advice})

    return replace(algorithm, start=start)
