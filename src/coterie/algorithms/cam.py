"""Clustered additive modelling (cam): a global part for everyone beside the clusters' own (thesis chapter 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.algorithms.add_ons import AddOn, everywhere
from coterie.algorithms.method import add_on
from coterie.errors import UsageError
from coterie.models.combined import additive
from coterie.models.layout import Layout
from coterie.protocol.federation import Federation
from coterie.protocol.replies import UNPLACED, Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit, Proximal, Report, Task, Term
from coterie.seeding import Key
from coterie.server.aggregate import average, with_part
from coterie.server.assign import CLUSTERINGS, placed
from coterie.server.contract import Algorithm, Ask, Assign, Assignment, Start, State, least_loss, replace_models
from coterie.server.loop import advance
from coterie.server.start import first_state
from coterie.typing import Array

HALVES = ("held.params", "held.buffers")
"""What ``State.memory`` calls the cluster halves that wait."""


def one_global_half(start: Start) -> Start:
    """Another start, with the same global half in all models; where it trains clients, they train the cluster half."""

    def begin(federation: Federation, key: Key, ask: Ask) -> State:
        def ask_cluster(task: Task, stack: Stack, labels: Array, clients: Array) -> Replies:
            passes = tuple(replace(fit, part="cluster") for fit in task.fit)
            return ask(replace(task, fit=passes), stack, labels, clients)

        state = start(federation, key, ask_cluster)
        stack = with_part(state.stack, state.stack.take([0]), federation.model.layout, "global")
        return replace(state, stack=stack, previous=stack)

    return begin


def hold_back(state: State, layout: Layout) -> State:
    """The start of a warm-up: everyone on one model whose cluster half is zero, so that it adds nothing to the sum."""
    places = _places(layout, "cluster")
    held = dict(zip(HALVES, (rows[:, place] for rows, place in zip(state.stack, places, strict=True)), strict=True))
    alone = Stack(*(_with(rows, place, 0) for rows, place in zip(state.stack.take([0]), places, strict=True)))
    return replace(first_state(alone, np.zeros_like(state.labels)), memory={**state.memory, **held}, formed=False)


def holds_back(state: State) -> bool:
    """Whether cluster halves wait."""
    return HALVES[0] in state.memory


def release(after: int, rule: Assign) -> Assign:
    """While cluster halves wait nobody is placed; after round number ``after - 1`` they take their places."""

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        if not holds_back(state):
            return rule(state, replies, key, ask)
        if state.round < after - 1:
            return Assignment(state.labels, state.memory)
        held: Mapping[str, Any] = {name: state.memory[name] for name in HALVES}
        places = _places(replies.layout, "cluster")

        def finish(stack: Stack) -> Stack:
            halves = zip(stack, places, held.values(), strict=True)
            return Stack(*(_with(rows, place, half) for rows, place, half in halves))

        rest = {name: value for name, value in state.memory.items() if name not in HALVES}
        nobody = np.full_like(state.labels, UNPLACED)
        return Assignment(nobody, rest, parents=(0,) * len(held[HALVES[0]]), finish=finish, formed=True)

    return assign


def see_cluster_half(rule: Assign, dress: Callable[[Task], Task]) -> Assign:
    """A rule for which all parameters of a client are those of its cluster half.

    What it asks of clients beside the round's own task is dressed, so that they train both halves there too.
    """

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        def ask_halves(task: Task, stack: Stack, labels: Array, clients: Array) -> Replies:
            return _half(ask(dress(task), stack, labels, clients))

        return rule(state, _half(replies), key, ask_halves)

    return assign


def _half(replies: Replies) -> Replies:
    parts = {**replies.layout.parts, "all": replies.layout.parts["cluster"]}
    return replace(replies, layout=replace(replies.layout, parts=parts))


def _places(layout: Layout, part: str) -> tuple[Any, Any]:
    return layout.part(part), layout.buffer_part(part)


def _with(rows: Array, place: Any, values: Any) -> Array:
    """A copy of the rows with other values in one place."""
    changed = rows.copy()
    changed[:, place] = values
    return changed


PULL = 0.01
"""How far every local step moves a cluster half back, where nothing is said."""


@add_on
def cam(warmup: int = 0, pull: float | None = None, sequential: bool = False, alternate: bool = False) -> AddOn:
    """A global half is trained beside the cluster models, and a client is served the sum of the two.

    Logits f(x; G) + h(x; T_c). Both halves train from the same server models, the other half frozen; T_k is the mean of
    its clients, G of all. Thesis chapter 7. On ifca a client chooses by the loss of the sum. On fesem and wecfl the
    cluster half is clustered and every local step moves it back: w <- (1 - pull) w + pull T - lr grad, ``pull`` in
    {0.001, 0.01, 0.1} (none: 0.01). ``warmup`` rounds, of the total, train G alone on ifca, and on fesem and wecfl the
    cluster halves, in one exchange; shots count after it. ``sequential``: a client trains first the cluster half, then
    the global half against its result. ``alternate``: cluster halves are trained and averaged, clusters assigned again,
    then global halves, in two exchanges a round (sec. 7.2.1). Fails where halves learn the same thing.
    """
    if warmup < 0:
        raise UsageError(f"warmup is {warmup}; it must be at least 0")
    if sequential and alternate:
        raise UsageError("sequential and alternate are both true; choose one order of the halves")

    def add(algorithm: Algorithm) -> Algorithm:
        plain = algorithm.update is replace_models and algorithm.update_before is replace_models
        if not plain or algorithm.shared is not None:
            raise UsageError(f"cam cannot stand on {algorithm.name}; it needs plain means, as of ifca, fesem or wecfl")
        if algorithm.chooses and pull is not None:
            raise UsageError(
                f"pull is {pull}, but clients of {algorithm.name} choose and are not moved back; leave it out"
            )
        back = 0.0 if algorithm.chooses else PULL if pull is None else pull
        halves = Halves(algorithm, warmup, back, sequential, alternate)
        return replace(
            algorithm,
            start=halves.start,
            task=halves.task,
            assign=release(warmup, halves.assign),
            place=least_loss,
            shared="global",
            network=additive,
            least_rounds=algorithm.least_rounds + warmup,
        )

    return everywhere(add)


@dataclass(frozen=True)
class Halves:
    """What another algorithm becomes when its models are the cluster halves of sums."""

    base: Algorithm
    warmup: int
    pull: float
    sequential: bool
    alternate: bool

    def start(self, federation: Federation, key: Key, ask: Ask) -> State:
        """One global half in all models; where it is to warm up alone, the cluster halves wait."""
        state = one_global_half(self.base.start)(federation, key, ask)
        return hold_back(state, federation.model.layout) if self.warmup and self.base.chooses else state

    def task(self, state: State) -> Task:
        """The base's task in halves."""
        return self.dressed(state, self.base.task(state))

    def dressed(self, state: State, plain: Task) -> Task:
        """A task that trains models, as one that trains a pass for each half, and sends what it must of them."""
        if not plain.fit:
            return plain
        own, common = passes(plain.fit, self.pull)
        if holds_back(state):
            return Task(fit=(common,), report=Report(params="global"), sends="global")
        if self.warms_up_apart(state):
            longer = replace(own, pull=0.0).times(self.warmup)
            return Task(fit=(longer,), report=Report(params="cluster"), sends="halves")
        in_halves = replace(plain, sends=_sends(plain))
        if self.alternate:
            return replace(in_halves, fit=(own,), report=replace(plain.report, params="cluster"))
        return replace(in_halves, fit=(own, common), sequential=self.sequential)

    def warms_up_apart(self, state: State) -> bool:
        """Whether this is the exchange in which cluster halves warm up, each client's by itself."""
        return self.warmup > 0 and state.round == 0 and not self.base.chooses

    def assign(self, state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        """The base's clusters, found on the cluster halves alone; its rounds and shots begin after the warm-up."""
        rule = see_cluster_half(self.base.assign, lambda task: self.dressed(state, task))
        found = rule(replace(state, round=max(0, state.round - self.warmup)), replies, key, ask)
        found = replace(found, finish=_shared(found, replies.layout))
        if self.warms_up_apart(state):
            counted = {CLUSTERINGS: 0} if CLUSTERINGS in found.memory else {}
            return replace(found, rounds=self.warmup, memory={**found.memory, **counted})
        return self.second_half(state, replies, found, ask) if self.alternate else found

    def second_half(self, state: State, replies: Replies, found: Assignment, ask: Ask) -> Assignment:
        """Average the cluster halves, let clients choose again where they do, and train and average global halves."""
        middle = advance(replace(self.base, shared="global"), state, replies, found)
        plain = self.base.task(middle)
        _, common = passes(plain.fit, self.pull)
        task = replace(plain, fit=(common,), report=replace(plain.report, params="global"), sends=_sends(plain))
        sent = middle.stack.plus(self.base.references(middle)) if task.references else middle.stack
        labels = middle.labels[replies.clients]
        asked = np.full(len(labels), self.base.chooses) | (labels != UNPLACED)
        if not asked.any():
            return found
        answers = ask(task, sent, labels[asked], replies.clients[asked])
        mean = average(answers, answers.labels, self.base.weigh(answers), middle.stack, "global")[0]
        stack = with_part(middle.stack, mean, replies.layout, "global") if len(answers) else middle.stack
        return replace(found, labels=placed(middle, answers, answers.labels), finish=lambda averaged: stack)


def passes(fits: tuple[Fit, ...], pull: float) -> tuple[Fit, Fit]:
    """A pass over the cluster half and one over the global half; penalties of other add-ons are on the former."""
    if len(fits) != 1 or fits[0].part != "all":
        raise UsageError(f"cam needs one pass over the whole model, not over {', '.join(f.part for f in fits)}")
    terms = tuple(_on_cluster(term) for term in fits[0].terms)
    return replace(fits[0], part="cluster", pull=pull, terms=terms), replace(fits[0], part="global", terms=())


def _on_cluster(term: Term) -> Term:
    return term if isinstance(term, Proximal) or term.part != "all" else replace(term, part="cluster")


def _sends(task: Task) -> str:
    """All models have one global half, unless there are models of the round before among them."""
    return "rows" if task.references and task.looks_ahead else "halves"


def _shared(found: Assignment, layout: Layout) -> Callable[[Stack], Stack] | None:
    """Models that a rule puts in place keep the global half that all have."""
    finish = found.finish
    return finish and (lambda averaged: with_part(finish(averaged), averaged, layout, "global"))
