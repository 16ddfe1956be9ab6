"""Models of two halves: how they start, and how the cluster halves wait while the global half warms up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.models.layout import Array, Layout
from coterie.protocol.federation import Federation
from coterie.protocol.replies import UNPLACED, Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.server.aggregate import with_part
from coterie.server.contract import Ask, Assign, Assignment, Start, State
from coterie.server.start import first_state

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
