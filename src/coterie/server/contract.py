"""The contract: the types that an algorithm is made of. To write a method, read this file first.

An algorithm is a value with parts; the loop is not part of it. In every round the loop does this with the parts::

    state    = algorithm.prepare(state, clients, key, ask)        clusters found before clients train, if it does so
    task     = algorithm.task(state)                              what clients are asked to do
    replies  = ask(task, models, rows, clients, references)       what clients sent back
    found    = algorithm.assign(state, replies, key, ask)         every client's cluster from now on
    weights  = algorithm.weigh(replies)                           how much each counts in its cluster
    mean     = the weighted mean of the clients' models in each cluster
    models   = algorithm.update(models, mean, moments, answered)

The new models, the labels of ``found`` and what the rule remembers are the next state. Before the first round
``algorithm.start`` makes the first state; ``algorithm.place`` finds the cluster of a client that was never seen;
``algorithm.serve`` says how a client gets the model it is tested with.

A whole method, as small as they get (it is ``fedavg``)::

    Algorithm(start=one_model(), task=lambda state: Task(fit=(Fit(steps=10),)), assign=as_trained())

Read next what clients can be asked, ``coterie.protocol.task`` and ``coterie.protocol.report``, and what a reply holds,
``coterie.protocol.replies``.
Everything a method needs is imported from ``coterie.parts``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from coterie.errors import UsageError
from coterie.models.model import Model
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.report import Report
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit, Score, Task
from coterie.seeding import Key
from coterie.server.exchange import believed
from coterie.typing import Array


@dataclass(frozen=True)
class State:
    """What the server knows between two rounds: a stack of cluster models and the cluster of every client.

    previous  the models before the last round
    shares    each cluster's share of the weight (examples, or clients) in the last aggregation
    moments   the server optimiser's rows
    memory    what the assign rule remembers: a value of a type of the rule (see ``memory_type``), None at first
    advice    what a probe found about the number of clusters, if one was made
    waiting   cluster models that are put to use when a warm-up ends
    members   the states of an ensemble's further members
    formed    False as long as all clients work on one model because no clustering has taken place yet
    memberships  soft clusters: how much of each cluster's model every client works on and is served, ``(m, K)``, rows
              that sum to 1; None where a client has the model of one cluster
    """

    stack: Stack
    labels: Array
    round: int
    _: KW_ONLY
    previous: Stack
    shares: Array
    moments: Mapping[str, Array] = field(default_factory=dict)
    memory: Any = None
    advice: Mapping[str, Any] | None = None
    waiting: Stack | None = None
    members: tuple[State, ...] = ()
    formed: bool = True
    memberships: Array | None = None

    def models_of(self, clients: Array) -> tuple[Stack, Array]:
        """Return the models on which these clients work, and the row of each: its cluster's, or its own mixture."""
        if self.memberships is None:
            return self.stack, self.labels[clients]
        return self.stack.mix(self.memberships[clients]), np.arange(len(clients))

    @property
    def placed(self) -> Array:
        """Return which clients have a cluster: clusters have formed, and the client is in one."""
        found: Array = (self.labels != UNPLACED) & self.formed
        return found

    def __repr__(self) -> str:
        placed, beside = int(self.placed.sum()), f", {len(self.members)} members beside" if self.members else ""
        return f"State({self.round} rounds: {self.stack!r}, {len(self.labels)} clients, {placed} placed{beside})"


@dataclass(frozen=True)
class Assignment:
    """Where an assign rule puts the clients.

    labels    the cluster of every client
    memory    what the rule remembers from now on
    parents   ``parents[k]`` is the row from which cluster k continues when the number of clusters changes (None: the
              same rows as before)
    finish    turns the averaged models into the next ones, if the rule sets models itself
    rounds    how many rounds the exchange counts as
    formed    True if clusters have formed in this round, even a single one
    advice    what the rule found out about the number of clusters, if no probe has before
    note      a line that the user should see, such as that clusters were found by a shorter way
    memberships  soft clusters, ``(m, K)``: a client's model counts in every cluster by its weight times its membership;
              see ``State``
    """

    labels: Array
    memory: Any = None
    _: KW_ONLY
    parents: tuple[int, ...] | None = None
    finish: Callable[[Stack], Stack] | None = None
    rounds: int = 1
    formed: bool = False
    advice: Mapping[str, Any] | None = None
    note: str | None = None
    memberships: Array | None = None


Remembered = TypeVar("Remembered", bound=type)
MEMORY_TYPES: dict[str, type] = {}
"""The types that rules remember, by name, so that a run folder can restore their values."""


def memory_type(kind: Remembered) -> Remembered:
    """Let values of a frozen dataclass be remembered by a rule: saved, loaded and resumed bit for bit.

    Its fields may be arrays, stacks, numbers, strings, mappings, lists, None, and further memory types. A type with
    values for each client, by position, has a method ``for_clients(rows)`` that returns the memory for other clients:
    ``rows`` are their old positions, -1 for newcomers (see ``server.roster``).
    """
    MEMORY_TYPES[kind.__name__] = kind
    return kind


class Scores(NamedTuple):
    """The newcomers that answered, and the score of each in every cluster, ``(r, K)``.

    Where clusters are soft, the scores of a newcomer are its memberships: from 0, with sum 1.
    """

    clients: Array
    values: Array

    @property
    def clusters(self) -> Array:
        """Return the cluster of each client's highest score; ties go to the lowest number, NaN never wins."""
        best: Array = np.where(np.isfinite(self.values), self.values, -np.inf).argmax(axis=1)
        return best


class Ask(Protocol):
    """The clients, as a part sees them. A rule may ask as often as it likes within a round."""

    def __call__(
        self, task: Task, models: Stack, rows: Array, clients: Array, references: Stack | None = None
    ) -> Replies:
        """Give clients a task and return the replies of those that answered.

        ``rows`` names, for each of ``clients``, the row of ``models`` that it works on. ``references`` are sent
        beside the models: nobody chooses them, penalty terms and scores read them. Costs are counted, and the
        norm bound applies.
        """


Start = Callable[[Federation, Key, Ask], State]
"""``(federation, key, ask) -> state``: where a run begins. ``key`` is the address of every random draw."""

Assign = Callable[[State, Replies, Key, Ask], Assignment]
"""``(state, replies, key, ask) -> assignment``: from what the clients sent to every client's cluster."""

Prepare = Callable[[State, Array, Key, Ask], State]
"""``(state, clients, key, ask) -> state``: what comes before the clients of a round train: exchanges of its own, and
the clusters in which, and the models from which, they train. Most methods find clusters afterwards."""

Weigh = Callable[[Replies], Array]
"""``(replies) -> weights``: how much each client that answered counts in the mean of its cluster."""

Moments = Mapping[str, Array]
"""What a server optimiser keeps between rounds, a row for each cluster."""

Update = Callable[[Stack, Stack, Moments, Array], tuple[Stack, Moments]]
"""``(models, mean, moments, answered) -> (models, moments)``; rows where ``answered`` is False stay as they are."""

Place = Callable[[State, Ask, Array], Scores]
"""``(state, ask, newcomers) -> scores``: how well each cluster would suit clients that have none; where clusters are
soft, their memberships. (The default gives minus losses: a soft method brings a ``place`` of its own.)"""

Opinion = Callable[[Federation, Key, Ask], Mapping[str, Any]]
"""``(federation, key, ask) -> what --advise adds to its own advice``, JSON values with a ``text`` among them."""


@dataclass(frozen=True)
class Serving:
    """How a client gets the model it is tested with, and is handed over at the end.

    choose    scores by which it chooses again among the cluster models (none: its cluster's model)
    fit       passes of training on its own train data first (fine-tuning)
    mix       how the outputs of all members of an ensemble become one (None: there is one model)
    """

    choose: tuple[Score, ...] = ()
    fit: tuple[Fit, ...] = ()
    mix: str | None = None


# The defaults of a method's parts.


def go_on(state: State, clients: Array, key: Key, ask: Ask) -> State:
    """Train in the clusters, and from the models, that the last round left."""
    return state


def by_examples(replies: Replies) -> Array:
    """Weigh each client by its train examples, within the weight bound."""
    return believed(replies).astype(np.float64)


def replace_models(models: Stack, mean: Stack, moments: Moments, answered: Array) -> tuple[Stack, Moments]:
    """Take the mean as the new model."""
    return mean, moments


def least_loss(state: State, ask: Ask, clients: Array) -> Scores:
    """Score clusters by minus the mean train loss of their models: a newcomer chooses as clients that choose do."""
    return score_by_loss(state.stack, ask, clients)


def score_by_loss(models: Stack, ask: Ask, clients: Array) -> Scores:
    """Score clusters by minus the mean train loss of these models."""
    task = Task(report=Report(params=None, losses=True))
    replies = ask(task, models, np.zeros(len(clients), dtype=np.int64), clients)
    return Scores(replies.clients, np.empty((0, 1)) if replies.losses is None or not len(replies) else -replies.losses)


def no_references(state: State) -> Stack | None:
    """Send nothing beside the cluster models."""
    return None


def mean_model(state: State) -> Stack:
    """Return the mean of all cluster models by their shares of examples: what one model for all would be now."""
    return state.stack.mix(state.shares[None])


def previous_models(state: State) -> Stack:
    """Return the cluster models before the last round: where each of them came from."""
    return state.previous


def as_it_is(model: Model) -> Model:
    """Return the model itself."""
    return model


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A clustered federated algorithm as a composition of parts.

    start     where it begins
    prepare   what comes before the clients of a round train, if anything
    task      what clients are asked, a function of the state
    assign    from the replies to every client's cluster
    weigh     how much a client counts in its cluster's mean
    update    from the mean to the next model
    update_before  the same as long as no clusters have formed and all clients are on one model
    shared    a part of the model averaged over everyone, whatever the cluster
    place     the cluster of a client that was never seen
    place_unlabelled  the same for a client whose examples have no labels (None: it needs labels)
    serve     how a client gets the model it is tested with
    references  models that clients are sent beside the cluster models, a function of the state
    network   what is made of the user's model before a run begins (default: it is trained as it is)
    members   algorithms that run beside it: an ensemble, in which this one gives the clusters
    repeat    which of several runs of the same seed it is: 0 has that seed, others have one derived from it
    chooses   whether clients choose among the cluster models
    least_rounds  how many rounds its warm-up and its shots need
    least_answers  how many clients must answer in a round for it to cluster
    name      the text that names it
    fit       how its clients train: for records, probes and fine-tuning (a round's training is in its task)
    refitted  makes the algorithm again with another fit; None if the call that made it gave one
    opinion   what it can add where advice is asked for
    """

    start: Start
    task: Callable[[State], Task]
    assign: Assign
    prepare: Prepare = go_on
    weigh: Weigh = by_examples
    update: Update = replace_models
    update_before: Update = replace_models
    shared: str | None = None
    place: Place = least_loss
    place_unlabelled: Place | None = None
    serve: Serving = Serving()
    references: Callable[[State], Stack | None] = no_references
    network: Callable[[Model], Model] = as_it_is
    members: tuple[Algorithm, ...] = ()
    repeat: int = 0
    chooses: bool = False
    least_rounds: int = 1
    least_answers: int = 1
    name: str = "nameless"
    fit: Fit = Fit()
    refitted: Callable[[Fit], Algorithm] | None = None
    opinion: Opinion | None = None

    def __repr__(self) -> str:
        return f"Algorithm({self.name})"

    def __add__(self, add_on: Callable[[Algorithm], Algorithm]) -> Algorithm:
        """Return the algorithm with an add-on, as a text names it: ``wecfl(clusters=4) + cks(strength=0.1)``."""
        changed = add_on(self) if callable(add_on) else None
        if not isinstance(changed, Algorithm):
            raise UsageError(
                f"what is added to {self.name} is a {type(add_on).__name__}; add an add-on, such as "
                f"ct.cks(strength=0.1), or give all in one text, '{self.name}+cks(strength=0.1)'"
            )
        return changed
