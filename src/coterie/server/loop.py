"""The loop, written once for all algorithms: ask, assign, average, update, repeat.

``experiments.session`` drives it: it evaluates, records, saves and stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import numpy as np

from coterie.errors import FederationError, UsageError
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Cost, Replies
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.server.aggregate import average, totals
from coterie.server.checks import check_assignment, checked_weights
from coterie.server.contract import Algorithm, Assignment, State
from coterie.server.exchange import Limits, Meter
from coterie.server.start import BEGINNING
from coterie.typing import Array


@dataclass(frozen=True)
class Round:
    """One round: the state before and after, the replies, the cost of all its exchanges, and who was there.

    ``missing`` says why clients did not answer in any of the round's exchanges. ``prepared`` is the state with which
    clients trained, where a method prepares a round. ``note`` is a line for the user.
    """

    before: State
    state: State
    replies: Replies
    cost: Cost
    _: KW_ONLY
    there: Array
    missing: Mapping[str, str] = field(default_factory=dict)
    prepared: State | None = None
    note: str | None = None

    @property
    def trained(self) -> State:
        """Return the state with which clients trained: that before the round, or what was prepared of it."""
        return self.before if self.prepared is None else self.prepared

    def __repr__(self) -> str:
        return f"Round({self.before.round}: {self.replies!r})"


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Who is asked in a round, how many answers it needs, and what the server accepts."""

    participation: float = 1.0
    min_clients: int = 1
    limits: Limits = Limits()


def rounds(
    algorithm: Algorithm,
    federation: Federation,
    seed: int,
    state: State | None = None,
    conditions: Conditions = Conditions(),
) -> Iterator[Round]:
    """Yield rounds of training without end; the caller stops. ``state`` resumes a run.

    The members of an ensemble train side by side, each as it would alone.
    """
    states = [None] * len(algorithm.members) if state is None else state.members
    others = [
        rounds(member, federation, member_seed(seed, member.repeat), begun, conditions)
        for member, begun in zip(algorithm.members, states, strict=True)
    ]
    for own, *rest in zip(_rounds_of_one(algorithm, federation, seed, state, conditions), *others, strict=True):
        yield _round_of_all(own, rest) if rest else own


def _rounds_of_one(
    algorithm: Algorithm, federation: Federation, seed: int, state: State | None, conditions: Conditions
) -> Iterator[Round]:
    spent = Cost()
    if state is None:
        meter = Meter(federation, Key(seed, BEGINNING), None, conditions.limits)
        state, spent = algorithm.start(federation, Key(seed, BEGINNING), meter.ask), meter.cost
    while True:
        key, before = Key(seed, state.round), state
        limits = replace(conditions.limits, norm_bound=0) if all_alone(state) else conditions.limits
        meter = Meter(federation, key, state.shares, limits)
        there = federation.present(state.round)
        clients = there[participants(len(there), conditions.participation, key)]
        state = prepared = algorithm.prepare(state, clients, key, meter.ask)
        meter.shares = state.shares
        task, references = algorithm.task(state), algorithm.references(state)
        check_soft(state, task)
        models, rows = state.models_of(clients)
        replies = meter.ask(task, models, rows, clients, references)
        if len(replies) < conditions.min_clients:
            raise FederationError(
                f"only {len(replies)} of {len(clients)} clients answered in round {state.round}, at least "
                f"{conditions.min_clients} are needed; reasons: {dict(list(replies.missing.items())[:3])}"
            )
        found = algorithm.assign(state, replies, key, meter.ask)
        state = advance(algorithm, state, replies, found)
        cost, missing = spent + meter.cost, meter.missing
        yield Round(before, state, replies, cost, there=there, missing=missing, prepared=prepared, note=found.note)
        spent = Cost()


def all_alone(state: State) -> bool:
    """Return whether each client has a model of its own, so that no update can harm another client's model."""
    return state.memberships is None and len(np.unique(state.labels)) == len(state.labels)


def check_soft(state: State, task: Task) -> None:
    """Refuse to compare cluster models in training where every client works on a mixture of them."""
    if state.memberships is not None and task.receives_all:
        raise UsageError(
            "clusters are soft, each client trains a mixture of all cluster models, and the task compares single ones; "
            "leave out the add-on, or take a method whose clients have one cluster each"
        )


def advance(algorithm: Algorithm, state: State, replies: Replies, assignment: Assignment) -> State:
    """Return the next state: average the replies by their new labels and update the models.

    Models that the assign rule puts in place begin without moments, and as if they had never moved.
    """
    check_assignment(algorithm, state, assignment)
    kept, moments = state.stack, state.moments
    if assignment.parents is not None:
        parents = list(assignment.parents)
        kept, moments = kept.take(parents), {name: rows[parents] for name, rows in moments.items()}
    belongs = assignment.labels if assignment.memberships is None else assignment.memberships
    mean, shares = average(
        replies, belongs[replies.clients], checked_weights(algorithm, replies), kept, algorithm.shared
    )
    answered = totals(belongs[replies.clients], np.ones(len(replies)), len(kept)) > 0
    update = algorithm.update if state.formed else algorithm.update_before
    stack, moments = update(kept, mean, moments, answered)
    if assignment.finish is not None:
        stack, moments = assignment.finish(stack), {}
        kept = stack
    return State(
        stack,
        assignment.labels,
        state.round + assignment.rounds,
        previous=kept,
        shares=shares,
        moments=moments,
        memory=assignment.memory,
        advice=state.advice if assignment.advice is None else assignment.advice,
        waiting=None if assignment.formed else state.waiting,
        formed=state.formed or assignment.formed,
        memberships=assignment.memberships,
    )


def participants(clients: int, fraction: float, key: Key) -> Array:
    """Return the positions, among this number of clients, of those asked in a round, ascending; at least one."""
    if fraction >= 1 or not clients:
        return np.arange(clients)
    count = max(1, round(fraction * clients))
    return np.sort(key.generator("participants").choice(clients, count, replace=False))


def member_seed(seed: int, repeat: int) -> int:
    """Return the seed of one of several runs: the first has the seed itself."""
    return Key(seed, BEGINNING).number("member", repeat) if repeat else seed


def check_rounds(algorithm: Algorithm, rounds: int) -> None:
    """Refuse a run with fewer rounds than its algorithm needs to cluster."""
    least = max(each.least_rounds for each in (algorithm, *algorithm.members))
    if rounds < least:
        raise UsageError(
            f"rounds is {rounds}; {algorithm.name} needs at least {least} for its warm-up, shots or minimum of rounds: "
            "give more rounds, or lower these"
        )


def _round_of_all(own: Round, others: Sequence[Round]) -> Round:
    """Return the round of an ensemble: its first member's, with the states of the others and the costs of all."""
    at = {each.state.round for each in (own, *others)}
    if len(at) > 1:
        raise UsageError(f"members of an ensemble are at rounds {min(at)} and {max(at)}; leave out the warm-up")
    before = replace(own.before, members=tuple(other.before for other in others))
    state = replace(own.state, members=tuple(other.state for other in others))
    cost = sum((other.cost for other in others), own.cost)
    missing: dict[str, str] = {}
    for each in (*reversed(others), own):
        missing |= each.missing
    note = next((each.note for each in (own, *others) if each.note is not None), None)
    return replace(own, before=before, state=state, cost=cost, missing=missing, note=note)
