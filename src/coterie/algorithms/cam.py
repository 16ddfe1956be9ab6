"""Clustered additive modelling (cam): a global part for all beside the cluster parts (thesis chapter 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from coterie.algorithms.add_ons import AddOn, everywhere
from coterie.algorithms.method import add_on
from coterie.errors import UsageError
from coterie.models.combined import additive
from coterie.models.layout import Layout
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.report import Report
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit, Proximal, Task, Term
from coterie.seeding import Key
from coterie.server.aggregate import average, with_part
from coterie.server.assign import Clustered, labels_after
from coterie.server.contract import Algorithm, Ask, Assignment, State, go_on, least_loss, replace_models
from coterie.server.loop import advance
from coterie.server.start import first_state
from coterie.typing import Array

PULL = 0.01
"""The default of ``pull``, for methods that cluster parameters."""


@add_on
def cam(warmup: int = 0, pull: float | None = None, sequential: bool = False, alternate: bool = False) -> AddOn:
    """Train a global part beside the cluster models, and serve a client the sum of the two.

    Logits f(x; G) + h(x; T_c). Both parts train from the same server models, the other part frozen; T_k is the mean of
    its clients, G of all. Thesis chapter 7. On ifca a client chooses by the loss of the sum. On fesem and wecfl the
    cluster part is clustered and every local step moves it back: w <- (1 - pull) w + pull T - lr grad, ``pull`` in
    {0.001, 0.01, 0.1} (none: 0.01). ``warmup`` rounds, of the total, train G alone on ifca, and on fesem and wecfl the
    cluster parts, in one exchange; shots count after it. ``sequential``: a client trains first the cluster part, then
    the global part against its result. ``alternate``: cluster parts are trained and averaged, clusters assigned again,
    then global parts, in two exchanges a round (sec. 7.2.1). Fails where both parts learn the same thing.
    """
    if warmup < 0:
        raise UsageError(f"warmup is {warmup}; it must be at least 0")
    if sequential and alternate:
        raise UsageError("sequential and alternate are both true; choose one order of the parts")

    def add(algorithm: Algorithm) -> Algorithm:
        plain = algorithm.update is replace_models and algorithm.update_before is replace_models
        if algorithm.prepare is not go_on:
            raise UsageError(
                f"cam cannot be added to {algorithm.name}, which finds clusters before clients train; "
                "take ifca, fesem or wecfl"
            )
        if not plain or algorithm.shared is not None:
            raise UsageError(
                f"cam cannot be added to {algorithm.name}; it needs plain means, as of ifca, fesem or wecfl"
            )
        if algorithm.chooses and pull is not None:
            raise UsageError(
                f"pull is {pull}, but clients of {algorithm.name} choose and are not moved back; leave it out"
            )
        back = 0.0 if algorithm.chooses else PULL if pull is None else pull
        parts = Additive(base=algorithm, warmup=warmup, pull=back, sequential=sequential, alternate=alternate)
        return replace(
            algorithm,
            start=parts.start,
            task=parts.task,
            assign=parts.assign,
            place=least_loss,
            shared="global",
            network=additive,
            least_rounds=algorithm.least_rounds + warmup,
        )

    return everywhere(add)


@dataclass(frozen=True, kw_only=True)
class Additive:
    """Another algorithm with models that become the cluster parts of sums."""

    base: Algorithm
    warmup: int
    pull: float
    sequential: bool
    alternate: bool

    def start(self, federation: Federation, key: Key, ask: Ask) -> State:
        """Begin with one global part in all models; where it is to warm up alone, the cluster parts wait."""
        layout = federation.model.layout

        def ask_cluster(
            task: Task, models: Stack, rows: Array, clients: Array, references: Stack | None = None
        ) -> Replies:
            on_cluster = replace(task, fit=tuple(replace(fit, part="cluster") for fit in task.fit))
            return ask(on_cluster, models, rows, clients, references)

        state = self.base.start(federation, key, ask_cluster)
        stack = with_part(state.stack, state.stack.take([0]), layout, "global")
        state = replace(state, stack=stack, previous=stack)
        return begin_global_warmup(state, layout) if self.warmup and self.base.chooses else state

    def task(self, state: State) -> Task:
        """Return the base's task, with a pass for each part."""
        return self.in_parts(state, self.base.task(state))

    def in_parts(self, state: State, plain: Task) -> Task:
        """Turn a task that trains models into one that trains both parts, and sends what it must of them."""
        if not plain.fit:
            return plain
        cluster_pass, global_pass = pass_for_each_part(plain.fit, self.pull)
        if state.waiting is not None:
            return Task(fit=(global_pass,), report=Report(params="global"), sends="global")
        if self.warms_up_apart(state):
            longer = replace(cluster_pass, pull=0.0).times(self.warmup)
            return Task(fit=(longer,), report=Report(params="cluster"), sends="cluster")
        sent = replace(plain, sends=self.sends(plain, state))
        if self.alternate:
            return replace(sent, fit=(cluster_pass,), report=replace(plain.report, params="cluster"))
        return replace(sent, fit=(cluster_pass, global_pass), sequential=self.sequential)

    def sends(self, task: Task, state: State) -> str:
        """Send the global part once, as all models share it, unless models of the round before are among them."""
        return "all" if task.looks_ahead and self.base.references(state) is not None else "cluster"

    def warms_up_apart(self, state: State) -> bool:
        """Return whether this is the exchange in which cluster parts warm up, each client's by itself."""
        return self.warmup > 0 and state.round == 0 and not self.base.chooses

    def assign(self, state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        """Find the base's clusters on the cluster parts alone; its rounds and shots begin after the warm-up."""
        if state.waiting is not None:
            return self.wait_or_release(state, replies)
        seen = replace(state, round=max(0, state.round - self.warmup))

        def ask_in_parts(
            task: Task, models: Stack, rows: Array, clients: Array, references: Stack | None = None
        ) -> Replies:
            return as_cluster_part(ask(self.in_parts(state, task), models, rows, clients, references))

        found = self.base.assign(seen, as_cluster_part(replies), key, ask_in_parts)
        found = replace(found, finish=keep_global_part(found.finish, replies.layout))
        if self.warms_up_apart(state):
            memory = found.memory
            memory = replace(memory, clusterings=0) if isinstance(memory, Clustered) else memory
            return replace(found, rounds=self.warmup, memory=memory)
        return self.train_global_part(state, replies, found, ask) if self.alternate else found

    def wait_or_release(self, state: State, replies: Replies) -> Assignment:
        """Place nobody while cluster parts wait; at the end of the warm-up put them into the models."""
        waiting, layout = state.waiting, replies.layout
        assert waiting is not None, "only called while cluster parts wait"
        if state.round < self.warmup - 1:
            return Assignment(state.labels, state.memory)
        nobody = np.full_like(state.labels, UNPLACED)
        return Assignment(
            nobody,
            state.memory,
            parents=(0,) * len(waiting),
            finish=lambda stack: set_cluster_part(stack, waiting, layout),
            formed=True,
        )

    def train_global_part(self, state: State, replies: Replies, found: Assignment, ask: Ask) -> Assignment:
        """Average the cluster parts, let clients choose again where they do, and train and average global parts.

        The loop averages these replies once more; ``finish`` discards that for the models made here.
        """
        middle = advance(replace(self.base, shared="global"), state, replies, found)
        plain = self.base.task(middle)
        _, global_pass = pass_for_each_part(plain.fit, self.pull)
        report = replace(plain.report, params="global")
        task = replace(plain, fit=(global_pass,), report=report, sends=self.sends(plain, middle))
        labels = middle.labels[replies.clients]
        asked = np.full(len(labels), self.base.chooses) | (labels != UNPLACED)
        if not asked.any():
            return found
        references = self.base.references(middle)
        answers = ask(task, middle.stack, labels[asked], replies.clients[asked], references)
        mean = average(answers, answers.rows, self.base.weigh(answers), middle.stack, "global")[0]
        stack = with_part(middle.stack, mean, replies.layout, "global") if len(answers) else middle.stack
        return replace(found, labels=labels_after(middle, answers, answers.rows), finish=lambda averaged: stack)


def pass_for_each_part(fits: tuple[Fit, ...], pull: float) -> tuple[Fit, Fit]:
    """Return a pass over the cluster part and one over the global part; penalties of add-ons are on the former."""
    if len(fits) != 1 or fits[0].part != "all":
        raise UsageError(f"cam needs one pass over the whole model, not over {', '.join(f.part for f in fits)}")

    def on_cluster(term: Term) -> Term:
        return term if isinstance(term, Proximal) or term.part != "all" else replace(term, part="cluster")

    terms = tuple(map(on_cluster, fits[0].terms))
    return replace(fits[0], part="cluster", pull=pull, terms=terms), replace(fits[0], part="global", terms=())


def begin_global_warmup(state: State, layout: Layout) -> State:
    """Begin a warm-up: everyone on one model with a cluster part of zeros, which adds nothing to the sum."""
    where = layout.part("cluster"), layout.buffer_part("cluster")
    waiting = Stack(*(rows[:, columns] for rows, columns in zip(state.stack, where, strict=True)))
    nothing = Stack(*(np.zeros_like(rows[:1]) for rows in waiting))
    alone = set_cluster_part(state.stack.take([0]), nothing, layout)
    first = first_state(alone, np.zeros_like(state.labels))
    return replace(first, memory=state.memory, advice=state.advice, waiting=waiting, formed=False)


def set_cluster_part(stack: Stack, parts: Stack, layout: Layout) -> Stack:
    """Return models with other cluster parts."""
    changed = Stack(*(rows.copy() for rows in stack))
    where = layout.part("cluster"), layout.buffer_part("cluster")
    for rows, columns, values in zip(changed, where, parts, strict=True):
        rows[:, columns] = values
    return changed


def as_cluster_part(replies: Replies) -> Replies:
    """Return the replies with the cluster part for all parameters of a client."""
    parts = {**replies.layout.parts, "all": replies.layout.parts["cluster"]}
    return replace(replies, layout=replace(replies.layout, parts=parts))


def keep_global_part(finish: Callable[[Stack], Stack] | None, layout: Layout) -> Callable[[Stack], Stack] | None:
    """Let models that a rule puts in place keep the global part that all have."""
    if finish is None:
        return None
    return lambda averaged: with_part(finish(averaged), averaged, layout, "global")
