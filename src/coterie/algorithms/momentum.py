"""Momentum that clients keep from round to round, whatever model they are sent."""

from __future__ import annotations

from dataclasses import replace

from coterie.protocol.task import Task
from coterie.server.contract import Algorithm, State


def keeping_momentum(algorithm: Algorithm, member: int = 0) -> Algorithm:
    """The same algorithm, whose clients begin a round with the momentum with which they ended their last.

    The thesis' public code keeps its optimisers. Only the training of rounds counts: probes, starts and fine-tuning
    begin from nothing. Each member of an ensemble has momenta of its own.
    """

    def task(state: State) -> Task:
        plain = algorithm.task(state)
        return replace(plain, fit=tuple(replace(fit, keeps=str(member)) for fit in plain.fit))

    others = tuple(keeping_momentum(each, number) for number, each in enumerate(algorithm.members, member + 1))
    return replace(algorithm, task=task, members=others)
