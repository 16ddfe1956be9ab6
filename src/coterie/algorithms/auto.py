"""``clusters=auto``: a probe finds the number of clusters before round 0; and advice for algorithms without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.clustering.probe import probe
from coterie.server.contract import Algorithm, Ask, Assignment, State, go_on
from coterie.typing import Array

AUTO = "auto"


def found_by_probe(fit: Fit, make: Callable[[int], Algorithm]) -> Algorithm:
    """Return the algorithm that ``make`` gives for the number of clusters that a probe finds before round 0.

    The state remembers the number, so that a resumed run needs no further probe.
    """

    def of(state: State) -> Algorithm:
        assert state.advice is not None, "the start makes a probe"
        return make(state.advice["clusters"])

    def start(federation: Federation, key: Key, ask: Ask) -> State:
        advice = probe(federation, key, ask, fit)
        return replace(make(advice["clusters"]).start(federation, key, ask), advice=advice)

    def task(state: State) -> Task:
        return of(state).task(state)

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        return of(state).assign(state, replies, key, ask)

    def prepare(state: State, clients: Array, key: Key, ask: Ask) -> State:
        return of(state).prepare(state, clients, key, ask)

    one = make(1)
    prepares = go_on if one.prepare is go_on else prepare
    return replace(one, start=start, prepare=prepares, task=task, assign=assign)


def advised(algorithm: Algorithm) -> Algorithm:
    """Return the same algorithm with a probe before round 0 that leaves advice in its state, unless it makes one.

    The advice holds the algorithm's opinion, if it has one, as ``certain``.
    """

    def start(federation: Federation, key: Key, ask: Ask) -> State:
        begun = algorithm.start(federation, key, ask)
        if begun.advice is not None:
            return begun
        advice = probe(federation, key, ask, algorithm.fit)
        if algorithm.opinion is not None:
            advice = {**advice, "certain": algorithm.opinion(federation, key, ask)}
        return replace(begun, advice=advice)

    return replace(algorithm, start=start)
