"""How the clients' work is laid on the cores. Every plan draws the same minibatches and gives the same numbers.

single    one client after the other, torch using all threads for each: the plain reference, and the choice when
          there are fewer clients than cores
workers   one client per thread, one torch thread each, channels last: convolution nets and large dense nets
lockstep  groups of clients as one batched computation: small dense nets, where overhead would dominate
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.errors import UnknownName
from coterie.models.model import Model

LOCKSTEP_NUMBERS = 260_000
"""Parameters a lockstep group may hold together: beyond about a megabyte it falls out of a core's cache."""

SMALLEST_GROUP = 4
KINDS = ("auto", "single", "workers", "lockstep")


@dataclass(frozen=True)
class Plan:
    """A kind of plan and, for lockstep, how many clients train as one."""

    kind: str
    group: int = 1


def make_plan(wanted: str, model: Model, clients: int, threads: int) -> Plan:
    """The plan asked for, or for ``auto`` the one that measures fastest for this model and number of clients."""
    if wanted not in KINDS:
        raise UnknownName("plan", wanted, KINDS)
    group = max(1, min(512, LOCKSTEP_NUMBERS // model.layout.size, -(-clients // threads)))
    if wanted != "auto":
        usable = wanted != "lockstep" or model.can_lockstep
        return Plan(wanted, max(group, 2)) if usable else Plan("workers")
    if model.can_lockstep and not model.is_convolutional and group >= SMALLEST_GROUP:
        return Plan("lockstep", group)
    return Plan("workers" if clients >= threads else "single")
