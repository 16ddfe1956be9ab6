"""The loop. It exists once: ask, assign, average, update, and round again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from coterie.errors import FederationError, UsageError
from coterie.protocol.federation import Federation, present
from coterie.protocol.replies import UNPLACED, Combine, Cost, Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Report, Task
from coterie.seeding import Key
from coterie.server.aggregate import average
from coterie.server.bounds import FACTOR, bounded
from coterie.server.contract import Algorithm, Assignment, State
from coterie.server.start import BEGINNING
from coterie.typing import Array


def previous_models(state: State) -> Stack:
    """The cluster models before the last round: where each of them came from."""
    return state.previous


@dataclass(frozen=True)
class Round:
    """What one round gave: the state before and after, the replies, what all its exchanges cost, and who was there.

    ``missing`` says why clients did not answer, in any of the round's exchanges.
    """

    before: State
    state: State
    replies: Replies
    cost: Cost
    there: Array
    missing: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Round({self.before.round}: {self.replies!r})"


def check_rounds(algorithm: Algorithm, rounds: int) -> None:
    """Refuse a run that would be over before its algorithm has done what it is for."""
    least = max(each.least_rounds for each in (algorithm, *algorithm.members))
    if rounds < least:
        raise UsageError(
            f"rounds is {rounds}; {algorithm.name} needs at least {least} for its warm-up, shots or minimum of rounds: "
            "give more rounds, or lower these"
        )


def rounds(
    algorithm: Algorithm,
    federation: Federation,
    seed: int,
    state: State | None = None,
    participation: float = 1.0,
    min_clients: int = 1,
    norm_bound: float = FACTOR,
    combine: Combine | None = None,
    weight_bound: float = 0,
) -> Iterator[Round]:
    """Train for ever, a round at a time; the caller stops when it has seen enough. ``state`` resumes.

    An ensemble's members train side by side, each as it would alone. ``norm_bound``: an update so many times as long as
    the others is a missing row; 0 takes all. ``combine``: a rule in the place of the weighted mean. ``weight_bound``: a
    client counts as at most so many times the usual number of examples; 0 believes all.
    """
    how = participation, min_clients, norm_bound, combine, weight_bound
    states = [None] * len(algorithm.members) if state is None else state.members
    others = [
        rounds(member, federation, member_seed(seed, member.repeat), begun, *how)
        for member, begun in zip(algorithm.members, states, strict=True)
    ]
    for own, *rest in zip(_alone(algorithm, federation, seed, state, *how), *others, strict=True):
        yield _together(own, rest)


def member_seed(seed: int, repeat: int) -> int:
    """The seed of one of several runs: the first has the seed itself."""
    return Key(seed, BEGINNING).number("member", repeat) if repeat else seed


def _together(own: Round, others: Sequence[Round]) -> Round:
    """The round of an ensemble: that of its first member, with the states of the others and all costs."""
    at = {each.state.round for each in (own, *others)}
    if len(at) > 1:
        raise UsageError(f"members of an ensemble are at rounds {min(at)} and {max(at)}; leave out the warm-up")
    before, after = (tuple(getattr(other, name) for other in others) for name in ("before", "state"))
    cost = sum((other.cost for other in others), own.cost)
    missing = {name: why for each in (*reversed(others), own) for name, why in each.missing.items()}
    changed = replace(own, before=replace(own.before, members=before), state=replace(own.state, members=after))
    return replace(changed, cost=cost, missing=missing)


def _alone(
    algorithm: Algorithm,
    federation: Federation,
    seed: int,
    state: State | None,
    participation: float,
    min_clients: int,
    norm_bound: float,
    combine: Combine | None,
    weight_bound: float,
) -> Iterator[Round]:
    spent = Cost()
    if state is None:
        meter = Meter(federation, Key(seed, BEGINNING), None, norm_bound, combine, weight_bound)
        state, spent = algorithm.start(federation, Key(seed, BEGINNING), meter.ask), meter.cost
    while True:
        key = Key(seed, state.round)
        bound = norm_bound if _shares_models(state) else 0
        meter = Meter(federation, key, state.shares, bound, combine, weight_bound)
        there = present(federation, state.round)
        clients = there[participants(len(there), participation, key)]
        task = algorithm.task(state)
        sent = state.stack.plus(algorithm.references(state)) if task.references else state.stack
        replies = meter.ask(task, sent, state.labels[clients], clients)
        if len(replies) < min_clients:
            raise FederationError(
                f"only {len(replies)} of {len(clients)} clients answered in round {state.round}, at least "
                f"{min_clients} are needed; reasons: {dict(list(replies.missing.items())[:3])}"
            )
        before = state
        state = advance(algorithm, state, replies, algorithm.assign(state, replies, key, meter.ask))
        yield Round(before, state, replies, spent + meter.cost, there, meter.missing)
        spent = Cost()


def _shares_models(state: State) -> bool:
    """Whether a model may be made of several clients' updates: otherwise none of them can harm another."""
    return len(np.unique(state.labels)) < len(state.labels)


def advance(algorithm: Algorithm, state: State, replies: Replies, assignment: Assignment) -> State:
    """The next state: average the replies by their new labels and update the models.

    Models that the assign rule puts in place begin without moments, and as if they had never moved.
    """
    kept, moments = state.stack, state.moments
    if assignment.parents is not None:
        parents = list(assignment.parents)
        kept, moments = kept.take(parents), {name: rows[parents] for name, rows in moments.items()}
    labels = assignment.labels[replies.clients]
    mean, shares = average(replies, labels, algorithm.weigh(replies), kept, algorithm.shared)
    answered = np.bincount(labels[labels >= 0], minlength=len(kept)) > 0
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
        formed=state.formed or assignment.formed,
    )


def evaluate(
    algorithm: Algorithm,
    federation: Federation,
    state: State,
    seed: int,
    split: str = "test",
    clients: Array | None = None,
) -> Replies:
    """Every client's metrics on its own split, with the model it would be served; costs nothing that is counted.

    ``clients``: only these.
    """
    asked = np.arange(len(federation.names)) if clients is None else clients
    return _serve(algorithm, federation, state, seed, Report(params=None, metrics=split), asked)


def _serve(
    algorithm: Algorithm, federation: Federation, state: State, seed: int, report: Report, clients: Array
) -> Replies:
    """Let clients do what they do to get their models at test time, and report of it."""
    mix = algorithm.mix if state.members else None
    task = replace(algorithm.serve, report=replace(report, mix=mix))
    if mix is not None:
        stack, rows = served(state)
        return federation.ask(task, stack, rows[clients], clients, Key(seed, state.round))
    meter = Meter(federation, Key(seed, state.round), state.shares)
    return meter.ask(task, state.stack, state.labels[clients], clients)


class HandedOver(NamedTuple):
    """The models of one member of an ensemble, or of the only one, and the row that serves each client (-1: none)."""

    models: Stack
    rows: Array


def hand_over(
    algorithm: Algorithm, federation: Federation, state: State, seed: int, clients: Array
) -> list[HandedOver]:
    """The very models with which ``evaluate`` tests these clients, member by member: chosen and trained the same."""
    undone = replace(algorithm, serve=replace(algorithm.serve, fit=()))
    chosen = _serve(undone, federation, state, seed, Report(params=None), clients).labels
    stack, rows = (served(state)[0], chosen) if state.members else with_mean(state.stack, chosen, state.shares)
    columns = np.atleast_2d(rows.T)
    if not algorithm.serve.fit:
        return [HandedOver(stack, column) for column in columns]
    task, key = replace(algorithm.serve, choose=(), report=Report()), Key(seed, state.round)
    return [_trained(federation.ask(task, stack, column, clients, key), clients) for column in columns]


def _trained(replies: Replies, clients: Array) -> HandedOver:
    places = np.searchsorted(replies.clients, clients)
    return HandedOver(replies.models(), np.where(np.isin(clients, replies.clients), places, UNPLACED))


def served(state: State) -> tuple[Stack, Array]:
    """All members' models, one below the other, and the rows that serve each client, ``(clients, members)``."""
    stack, labels = with_mean(state.stack, state.labels, state.shares)
    rows = [labels]
    for member in state.members:
        models, labels = with_mean(member.stack, member.labels, member.shares)
        rows.append(len(stack) + labels)
        stack = stack.plus(models)
    return stack, np.column_stack(rows)


def participants(clients: int, fraction: float, key: Key) -> Array:
    """The places, among so many clients, of those asked this round, ascending; at least one, if there is any."""
    if fraction >= 1 or not clients:
        return np.arange(clients)
    count = max(1, round(fraction * clients))
    return np.sort(key.generator("participants").choice(clients, count, replace=False))


class Meter:
    """The port as the parts see it: adds up costs, and gives clients that are not placed yet the mean model.

    Who sends an update beyond the norm bound is not heard again as long as this meter lives, which is a round.
    """

    def __init__(
        self,
        federation: Federation,
        key: Key,
        shares: Array | None = None,
        norm_bound: float = 0,
        combine: Combine | None = None,
        weight_bound: float = 0,
    ) -> None:
        self.federation, self.key, self.shares = federation, key, shares
        self.norm_bound, self.combine, self.weight_bound = norm_bound, combine, weight_bound
        self.cost = Cost()
        self.refused: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def ask(self, task: Task, stack: Stack, labels: Array, clients: Array) -> Replies:
        """Ask, and count what it cost."""
        count = len(stack) - task.references
        known, rows = (stack, labels) if task.choose else self._with_mean(task, stack, labels)
        sent = replace(task, references=len(known) - count) if task.receives_all else task
        replies = self.federation.ask(sent, known, rows, clients, self.key)
        self.cost += replies.cost
        ruled = replace(replies, combine=self.combine, weight_bound=self.weight_bound)
        whole = self._sound(task, with_rest(ruled, task.report.params, known), known, count)
        self.missing = {**whole.missing, **self.missing}
        return replace(whole, labels=np.where(whole.labels >= count, UNPLACED, whole.labels))

    def _sound(self, task: Task, replies: Replies, stack: Stack, clusters: int) -> Replies:
        """The replies without those whose update is too long now, or was before in this round."""
        names = self.federation.names
        again = np.array([names[client] in self.refused for client in replies.clients], dtype=bool)
        heard = replies.without(again, {names[c]: self.refused[names[c]] for c in replies.clients[again]})
        sound = bounded(heard, task, stack, clusters, names, self.norm_bound)
        self.refused |= {name: why for name, why in sound.missing.items() if name not in replies.missing}
        return sound

    def _with_mean(self, task: Task, stack: Stack, labels: Array) -> tuple[Stack, Array]:
        """The rows to send, with one for clients without a cluster right after the cluster models.

        Where clients are sent their own model and references, the last of these is the mean of all models already.
        """
        if task.references and not task.receives_all:
            return stack, np.where(labels < 0, len(stack) - 1, labels)
        count = len(stack) - task.references
        models, rows = with_mean(stack.take(slice(count)), labels, self.shares)
        return models.plus(stack.take(slice(count, None))), rows


def with_rest(replies: Replies, part: str | None, stack: Stack) -> Replies:
    """Replies of whole models, where clients sent back one part: the rest is as they received it."""
    if part in (None, "all") or not len(replies):
        return replies
    places = replies.layout.part(part), replies.layout.buffer_part(part)
    received, sent = stack.take(replies.labels), (replies.params, replies.buffers)
    for rows, place, values in zip(received, places, sent, strict=True):
        rows[:, place] = values
    return replace(replies, params=received.params, buffers=received.buffers)


def with_mean(stack: Stack, labels: Array, shares: Array | None) -> tuple[Stack, Array]:
    """The models and the row of each label; clients without a cluster get a further row, the mean by shares."""
    if (labels >= 0).all():
        return stack, labels
    weights = np.full(len(stack), 1 / len(stack)) if shares is None else shares
    return stack.plus(stack.mix(weights[None])), np.where(labels < 0, len(stack), labels)
