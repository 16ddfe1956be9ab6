"""Clustered additive modelling: a global half for everyone beside the clusters' own (thesis chapter 7)."""

from __future__ import annotations

from dataclasses import replace

from coterie.algorithms.add_ons import AddOn, everywhere
from coterie.algorithms.method import add_on
from coterie.errors import UsageError
from coterie.models.additive import additive
from coterie.protocol.address import Key
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.task import Fit, Proximal, Task, Term
from coterie.server.assign import Ask
from coterie.server.halves import hold_back, holds_back, one_global_half, release, see_cluster_half
from coterie.server.loop import Algorithm
from coterie.server.place import least_loss
from coterie.server.state import Assignment, State
from coterie.server.update import replace_models


@add_on
def cam(warmup: int = 0, pull: float = 0.01, sequential: bool = False) -> AddOn:
    """A global half is trained beside the cluster models, and a client is served the sum of the two.

    Logits f(x; G) + h(x; T_c). Both halves train from the same server models, the other half frozen (``sequential``:
    first the cluster's, then the global); T_k is the mean of its clients, G of all. Thesis chapter 7. On ifca a client
    chooses by the loss of the sum. On fesem and wecfl the cluster half is clustered and every local step moves it back:
    w <- (1 - pull) w + pull T - lr grad, ``pull`` in {0.001, 0.01, 0.1}. ``warmup`` rounds, of the total, train G
    alone on ifca, and on fesem and wecfl the cluster halves, in one exchange. Fails where halves learn the same thing.
    """
    if warmup < 0:
        raise UsageError(f"warmup is {warmup}; it must be at least 0")

    def add(algorithm: Algorithm) -> Algorithm:
        if algorithm.update is not replace_models or algorithm.shared is not None:
            raise UsageError(f"cam cannot stand on {algorithm.name}; it needs plain means, as of ifca, fesem or wecfl")

        def start(federation: Federation, key: Key, ask: Ask) -> State:
            state = one_global_half(algorithm.start)(federation, key, ask)
            waits = warmup > 0 and algorithm.task(state).choose
            return hold_back(state, federation.model.layout) if waits else state

        def warms_up_apart(state: State) -> bool:
            return warmup > 0 and state.round == 0 and not algorithm.task(state).choose

        def in_halves(state: State, plain: Task) -> Task:
            if not plain.fit:
                return plain
            own, common = halves(plain.fit, 0.0 if plain.choose else pull)
            if holds_back(state):
                return Task(fit=(common,))
            if warms_up_apart(state):
                return Task(fit=(replace(own, pull=0.0).times(warmup),))
            return replace(plain, fit=(own, common), sequential=sequential)

        def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
            found = see_cluster_half(algorithm.assign, in_halves)(state, replies, key, ask)
            return replace(found, rounds=warmup) if warms_up_apart(state) else found

        return replace(
            algorithm,
            start=start,
            task=lambda state: in_halves(state, algorithm.task(state)),
            assign=release(warmup, assign),
            place=least_loss,
            shared="global",
            network=additive,
        )

    return everywhere(add)


def halves(passes: tuple[Fit, ...], pull: float) -> tuple[Fit, Fit]:
    """A pass over the cluster half and one over the global half; penalties of other add-ons are on the former."""
    if len(passes) != 1 or passes[0].part != "all":
        raise UsageError(f"cam needs one pass over the whole model, not over {', '.join(f.part for f in passes)}")
    terms = tuple(_on_cluster(term) for term in passes[0].terms)
    return replace(passes[0], part="cluster", pull=pull, terms=terms), replace(passes[0], part="global", terms=())


def _on_cluster(term: Term) -> Term:
    return term if isinstance(term, Proximal) or term.part != "all" else replace(term, part="cluster")
