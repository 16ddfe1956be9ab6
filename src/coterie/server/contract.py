"""The contract: the types that an algorithm is made of. Whoever writes a method reads this file and no other.

An algorithm is a value with parts; it has no loop of its own. In every round the loop does this with the parts::

    task     = algorithm.task(state)                            what clients are asked to do
    replies  = ask(task, models, labels, clients)               what those who answered sent
    found    = algorithm.assign(state, replies, key, ask)       every client's cluster from now on
    weights  = algorithm.weigh(replies)                         how much each counts in its cluster
    mean     = the weighted mean of the clients' models in each cluster
    models   = algorithm.update(models, mean, moments, answered)

and the new models, the labels of ``found`` and what the rule remembers are the next state. Before the first round
``algorithm.start`` makes the first state; a client that was never seen gets its cluster by ``algorithm.place``.

A whole method, as small as they get (it is ``fedavg``)::

    Algorithm(start=one_model(), task=lambda state: Task(fit=(Fit(steps=10),)), assign=keep())

``coterie.protocol.task`` says what clients can be asked; ``coterie.protocol.replies`` what a reply holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from coterie.models.model import Model
from coterie.protocol.federation import Federation
from coterie.protocol.replies import UNPLACED, Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit, Report, Task
from coterie.seeding import Key
from coterie.server.bounds import believed
from coterie.typing import Array


@dataclass(frozen=True)
class State:
    """What the server knows between two rounds: a stack of cluster models and every client's label.

    ``previous`` are the models before the last round, ``shares`` each cluster's share of the weight (examples, or
    clients) in the last aggregation, ``moments`` the server optimiser's rows, ``memory`` what an assign rule carries:
    arrays and JSON. ``members`` are the states of an ensemble's further members. ``formed`` is False as long as all
    clients work on one model because no clustering has taken place yet.
    """

    stack: Stack
    labels: Array
    round: int
    previous: Stack
    shares: Array
    moments: Mapping[str, Array] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    members: tuple[State, ...] = ()
    formed: bool = True

    @property
    def placed(self) -> Array:
        """Which clients have a cluster: clusters have formed, and the client is in one."""
        found: Array = (self.labels != UNPLACED) & self.formed
        return found

    def __repr__(self) -> str:
        placed, beside = int((self.labels >= 0).sum()), f", {len(self.members)} members beside" if self.members else ""
        return f"State({self.round} rounds: {self.stack!r}, {len(self.labels)} clients, {placed} placed{beside})"


@dataclass(frozen=True)
class Assignment:
    """Where an assign rule puts the clients.

    ``labels`` of all clients; ``parents[k]`` is the row from which cluster k goes on when the number of clusters
    changes (None: the same rows as before); ``finish`` turns the averaged models into the next, where a rule has a say;
    ``rounds`` is how many rounds the exchange counts as; ``formed`` says that clusters have formed, if only one.
    """

    labels: Array
    memory: Mapping[str, Any] = field(default_factory=dict)
    parents: tuple[int, ...] | None = None
    finish: Callable[[Stack], Stack] | None = None
    rounds: int = 1
    formed: bool = False


class Scores(NamedTuple):
    """Which newcomers answered, and the score of each in every cluster, ``(r, K)``."""

    clients: Array
    values: Array

    @property
    def clusters(self) -> Array:
        """The cluster of the highest score of each; ties to the lowest number, never one whose score is no number."""
        best: Array = np.where(np.isfinite(self.values), self.values, -np.inf).argmax(axis=1)
        return best


Ask = Callable[[Task, Stack, Array, Array], Replies]
"""``(task, stack, labels, clients) -> replies``: the clients, as a part sees them.

``labels`` names, for each of ``clients``, the row of ``stack`` that it works on. Costs are counted, the norm bound
holds, and those who did not answer are not in the replies. A rule may ask as often as it likes within a round.
"""

Start = Callable[[Federation, Key, Ask], State]
"""``(federation, key, ask) -> state``: where a run begins. ``key`` is the address of every random draw."""

Assign = Callable[[State, Replies, Key, Ask], Assignment]
"""``(state, replies, key, ask) -> assignment``: from what the clients sent to every client's cluster."""

Weigh = Callable[[Replies], Array]
"""``(replies) -> weights``: how much each client that answered counts in the mean of its cluster."""

Moments = Mapping[str, Array]
"""What a server optimiser keeps between rounds, a row for each cluster."""

Update = Callable[[Stack, Stack, Moments, Array], tuple[Stack, Moments]]
"""``(models, mean, moments, answered) -> (models, moments)``; rows where ``answered`` is False stay as they are."""

Place = Callable[[State, Ask, Array], Scores]
"""``(state, ask, newcomers) -> scores``: how well each cluster would suit clients that have none."""

Opinion = Callable[[Federation, Key, Ask], Mapping[str, Any]]
"""``(federation, key, ask) -> what --advise says beside its own advice``, JSON values with a ``text`` among them."""


# What a method has where it says nothing.


def by_examples(replies: Replies) -> Array:
    """A client weighs as much as it has train examples, as far as it is believed."""
    return believed(replies).astype(np.float64)


def replace_models(models: Stack, mean: Stack, moments: Moments, answered: Array) -> tuple[Stack, Moments]:
    """The mean is the new model."""
    return mean, moments


def least_loss(state: State, ask: Ask, clients: Array) -> Scores:
    """Minus the mean train loss of each cluster's model: a newcomer chooses as clients that choose do."""
    return score_by_loss(state.stack, ask, clients)


def score_by_loss(models: Stack, ask: Ask, clients: Array) -> Scores:
    """Score clusters by minus the mean train loss of these models."""
    task = Task(report=Report(params=None, losses=True))
    replies = ask(task, models, np.zeros(len(clients), dtype=np.int64), clients)
    return Scores(replies.clients, np.empty((0, 1)) if replies.losses is None or not len(replies) else -replies.losses)


def mean_model(state: State) -> Stack:
    """The mean of all cluster models by their shares of examples: what one model for all would be now."""
    return state.stack.mix(state.shares[None])


def as_it_is(model: Model) -> Model:
    """The model itself."""
    return model


@dataclass(frozen=True)
class Algorithm:
    """A clustered federated algorithm as a composition of parts; it has no loop of its own.

    start     where it begins
    task      what clients are asked, a function of the state
    references  rows that clients are sent beside the cluster models, where the task names a number of them
    assign    from the replies to every client's cluster
    weigh     how much a client counts in its cluster's mean
    update    from the mean to the next model
    update_before  the same as long as no clusters have formed and all clients are on one model
    shared    a part of the model averaged over everyone, whatever the cluster
    place     the cluster of a client that was never seen
    serve     what a client does to get its model at test time (nothing: it uses its label's model)
    network   what is made of the user's model before anything begins (nothing: it is trained as it is)
    members   what runs beside it: an ensemble, in which this one leads and gives the clusters
    mix       how outputs of all members become one where clients are tested
    repeat    which of several runs of the same seed it is: 0 has that seed, others have one derived from it
    chooses   whether clients choose among the cluster models
    least_rounds  how many rounds there must be for its warm-up and its shots to take place
    least_answers  how many clients must answer in a round for it to cluster
    name, fit what it is called and how its clients train, for tables and run folders only
    opinion   what else it can say where advice is asked for
    """

    start: Start
    task: Callable[[State], Task]
    assign: Assign
    weigh: Weigh = by_examples
    update: Update = replace_models
    update_before: Update = replace_models
    shared: str | None = None
    place: Place = least_loss
    serve: Task = Task()
    references: Callable[[State], Stack] = mean_model
    network: Callable[[Model], Model] = as_it_is
    members: tuple[Algorithm, ...] = ()
    mix: str | None = None
    repeat: int = 0
    chooses: bool = False
    least_rounds: int = 1
    least_answers: int = 1
    name: str = "nameless"
    fit: Fit = Fit()
    opinion: Opinion | None = None

    def __repr__(self) -> str:
        return f"Algorithm({self.name})"

    def __add__(self, add_on: Callable[[Algorithm], Algorithm]) -> Algorithm:
        """The algorithm with an add-on, as a text says it: ``wecfl(clusters=4) + cks(strength=0.1)``."""
        return add_on(self)
