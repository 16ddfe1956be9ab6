"""The contract of every method: what must hold of an algorithm, whatever it does.

``check_algorithm("package.module:function")`` runs it on your own, and says in sentences what holds. The checks of the
whole catalogue (``tests/contract``) are these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from coterie.algorithms import build_algorithm
from coterie.data.federated import Federated, Split
from coterie.errors import CoterieError, FederationError
from coterie.experiments.checkpoint import load_checkpoint, save_state
from coterie.models.zoo import build_model
from coterie.outside import reason
from coterie.protocol.message import down
from coterie.protocol.replies import ROWS
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import Fit
from coterie.runtimes.attendance import Attendance, Attended
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.aggregate import totals
from coterie.server.contract import Algorithm, Scores, State
from coterie.server.exchange import Meter
from coterie.server.loop import Conditions, Round, rounds
from coterie.server.serving import evaluate
from coterie.testing.federations import Flaky, images
from coterie.testing.loopback import Loopback

ROUNDING = 1e-6
"""How far models may be apart that were computed in another order."""

REPETITIONS = 0.05
"""How far the shares of an advice may be apart then: of 50 repetitions rounding may decide near ties in one or two."""

ORDER = (3, 6, 0, 5, 7, 2, 4, 1)
"""Another order of the eight clients."""


class Broken(AssertionError):
    """A sentence of the contract does not hold."""


def require(good: bool, what: str) -> None:
    """Say what does not hold."""
    if not good:
        raise Broken(what)


@dataclass
class Case:
    """A method on trial: its text, the clients it meets, and its first rounds, which are run once."""

    text: str
    clusters: int | str | None = 2
    rounds: int = 3
    fit: Fit = Fit(steps=4, batch=8, lr=0.05)
    model: str = "mlp(16)"
    data: Federated = field(default_factory=images)

    @cached_property
    def algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return build_algorithm(self.text, self.clusters, self.fit)

    def simulator(self, data: Federated | None = None, **options: Any) -> Simulator:
        """Return a federation of these clients, or of others."""
        own = self.data if data is None else data
        network = self.algorithm.network(build_model(self.model, own.shape, own.classes))
        return Simulator(own, network, **{"threads": 2, **options})

    @cached_property
    def federation(self) -> Simulator:
        """Return the common federation."""
        return self.simulator()

    @cached_property
    def plain(self) -> list[Round]:
        """Return the first rounds on the common federation."""
        return self.train(self.federation)

    @cached_property
    def changing(self) -> Attended:
        """Return the federation in which clients 2 and 5 join in round 2 and client 6 leaves in round 3."""
        joins, leaves = {"client-2": 2, "client-5": 2}, {"client-6": 3}
        return Attended(self.federation, Attendance(self.federation.names, joins, leaves))

    @cached_property
    def coming_and_going(self) -> list[Round]:
        """Return the first six rounds of the federation that changes."""
        return self.train(self.changing, 6)

    def train(self, federation: Any, count: int | None = None, seed: int = 1, **options: Any) -> list[Round]:
        """Return the first rounds on a federation."""
        state = options.pop("state", None)
        steps = rounds(self.algorithm, federation, seed, state, Conditions(**options))
        return list(islice(steps, self.rounds if count is None else count))

    def evaluate(self, federation: Any, state: State) -> Any:
        """Return the replies of all clients about their test data."""
        return evaluate(self.algorithm, federation, state, seed=1)


def the_same_seed_repeats(case: Case) -> None:
    """The same seed gives the same numbers, bit for bit, and test data and true groups play no part."""
    rng, test = np.random.default_rng(5), case.data.test
    assert case.data.groups is not None
    assert case.data.classes is not None
    noise = np.asarray(rng.normal(size=test.x.shape), np.float32)
    other = Split(noise, case.data.classes - 1 - test.y, test.offsets)
    poisoned = replace(case.data, test=other, groups=1 - case.data.groups)
    same_run(case.plain, case.train(case.simulator(poisoned)))


def another_seed_differs(case: Case) -> None:
    """Another seed gives other numbers from the first round on."""
    other = case.train(case.federation, 1, seed=2)[0].state.stack.params
    first = case.plain[0].state.stack.params
    require(first.shape != other.shape or not np.allclose(first, other), "seed 1 and seed 2 give the same models")


def layout_changes_only_rounding(case: Case) -> None:
    """Threads and groups of clients change nothing but rounding."""
    alone, together = (case.simulator(threads=1, plan=plan, spill=0) for plan in ("auto", "lockstep"))
    if alone.engine.native is not None:
        same_run(case.plain, case.train(alone))
    same_run(case.plain, case.train(together), ROUNDING)


def order_of_clients_does_not_matter(case: Case) -> None:
    """Clients in another order have the same clusters."""
    labels = case.train(case.simulator(case.data.select(ORDER)))[-1].state.labels
    before = case.plain[-1].state.labels[list(ORDER)]
    require(adjusted_rand_score(before, labels) == 1, f"clusters {before.tolist()} became {labels.tolist()}")


def those_absent_keep_their_labels(case: Case) -> None:
    """A client that does not answer keeps its label, or has none once clusters became others; the round goes on."""
    absent = {0: {1, 6}, 1: {0, 6}, 2: {2, 3, 4}, 3: {1}}
    for done in case.train(Flaky(case.federation, absent)):
        gone = sorted(absent[done.before.round])
        require(not set(gone) & set(done.replies.clients.tolist()), "replies have rows of clients that did not answer")
        split = len(done.state.stack) != len(done.before.stack)
        wanted = np.full(len(gone), UNPLACED) if split else done.before.labels[gone]
        found = done.state.labels[gone]
        require(
            np.array_equal(found, wanted),
            f"in round {done.before.round} clients {gone} did not answer, and their labels became {found.tolist()}, "
            f"not {wanted.tolist()}",
        )


def an_empty_cluster_keeps_its_model(case: Case) -> None:
    """A cluster of which nobody answered keeps its model and its optimiser's moments."""
    assert case.data.groups is not None
    done = case.train(Flaky(case.federation, {2: np.flatnonzero(case.data.groups == 0).tolist()}))[-1]
    belongs = done.state.labels if done.state.memberships is None else done.state.memberships
    clients, models, algorithm = done.replies.clients, done.before.stack, case.algorithm
    empty = np.flatnonzero(totals(belongs[clients], np.ones(len(clients)), len(models)) == 0)
    moments = done.before.moments
    if not moments:  # clusters formed in the round before, so an optimiser begins
        moments = algorithm.update(models, models, {}, np.zeros(len(models), dtype=bool))[1]
    layout = done.replies.layout
    own = np.setdiff1d(layout.numbers("all"), layout.numbers(algorithm.shared) if algorithm.shared else [])
    same(done.state.stack.params[empty][:, own], models.params[empty][:, own], place="models of empty clusters")
    same(
        {k: v[empty] for k, v in done.state.moments.items()},
        {k: v[empty] for k, v in moments.items()},
        place="moments of empty clusters",
    )


def a_sample_of_clients_is_enough(case: Case) -> None:
    """Half of the clients in each round are enough; models stay finite and labels name models that exist."""
    done = case.train(case.federation, 4, participation=0.5)
    for step in done:
        require(len(step.replies) == len(case.data) // 2, f"{len(step.replies)} of {len(case.data)} clients answered")
        require(bool(np.isfinite(step.state.stack.params).all()), "a model has numbers that are not finite")
        low, high = step.state.labels.min(), step.state.labels.max()
        require(low >= UNPLACED and high < len(step.state.stack), f"labels go from {low} to {high}")
    replies = case.evaluate(case.federation, done[-1].state)
    require(len(replies) == len(case.data), f"only {len(replies)} clients could be tested")


def few_answers_do_no_harm(case: Case) -> None:
    """A first round that one client alone answers is refused, or leaves no cluster that suits nobody for good."""
    others = set(range(1, len(case.data)))
    try:
        done = case.train(Flaky(case.federation, {0: others}), 4)
    except FederationError as error:
        require(any(letter.isdigit() for letter in str(error)), f"it does not say how many must answer: {error}")
        return
    for step in done:
        require(bool(np.isfinite(step.state.stack.params).all()), "a model has numbers that are not finite")
    scores = placed(case, done[-1].state).values
    require(bool(np.isfinite(scores).all()), f"a newcomer's scores of the clusters are {scores.tolist()}")


def clients_may_join_and_leave(case: Case) -> None:
    """Clients may join late and leave early, and a run is resumed before and after, bit for bit."""
    done = case.coming_and_going
    for step in done:
        gone = np.setdiff1d(np.arange(len(case.data)), step.there)
        require(np.array_equal(step.replies.clients, step.there), "those present did not all answer")
        if len(step.state.stack) == len(step.before.stack):
            kept = np.array_equal(step.state.labels[gone], step.before.labels[gone])
            require(kept, f"labels of absent clients {gone.tolist()} changed in round {step.before.round}")
    labels = done[-1].state.labels[done[-1].there]
    require(bool((labels >= 0).all()), f"clients that are there have no cluster in the end: {labels.tolist()}")
    for stop in (1, 2):
        begun = next(i for i, step in enumerate(done) if step.state.round >= stop)
        same_run(done[begun + 1 : begun + 3], case.train(case.changing, 2, state=done[begun].state))


def a_resumed_run_equals_an_unbroken_one(case: Case) -> None:
    """A run that is stopped, saved and resumed equals an unbroken one, bit for bit."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        save_state(path, case.plain[0].state)
        state = load_checkpoint(path)[0]
    same_run(case.plain[1:], case.train(case.simulator(), len(case.plain) - 1, state=state))


def test_labels_do_not_decide(case: Case) -> None:
    """Test labels do not decide which model a client is served."""
    classes = case.data.classes or 1
    other = case.simulator(replace(case.data, test=replace(case.data.test, y=classes - 1 - case.data.test.y)))
    state = case.plain[-1].state
    served = [case.evaluate(each, state).rows.tolist() for each in (case.federation, other)]
    require(served[0] == served[1], f"clients were served {served[0]}, and with other test labels {served[1]}")


class Scales:
    """A federation that weighs every array that passes."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.weighed = inner, {"down": 0, "up": 0}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def ask(self, task: Any, sent: Any, rows: Any, clients: Any, key: Key) -> Any:
        """Ask, and weigh what goes down and what comes up."""
        replies = self.inner.ask(task, sent, rows, clients, key)
        layout = self.inner.model.layout
        self.weighed["down"] += sum(a.nbytes for row in rows for a in down(task, sent, row, layout).values())
        self.weighed["up"] += sum(getattr(replies, a).nbytes for a in ROWS if getattr(replies, a) is not None)
        return replies


def costs_are_what_travels(case: Case) -> None:
    """The communication cost is the size of what travels."""
    small = replace(case, data=images((8, 9, 10, 7), shape=(1, 4, 4)), model="mlp(4)")
    counted, travelled = counted_and_weighed(small)
    require(counted == travelled, f"{counted} bytes were counted, {travelled} travelled")


def counted_and_weighed(case: Case) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes down and up of two rounds, as they were counted and as they were weighed."""
    scales = Scales(case.simulator(threads=1))
    done = case.train(scales, 2)
    counted = {"down": sum(r.cost.bytes_down for r in done), "up": sum(r.cost.bytes_up for r in done)}
    return counted, scales.weighed


def bytes_give_the_same_numbers(case: Case) -> None:
    """Clients that are reached only through bytes, as in a real federation, give the simulator's numbers."""
    network = case.algorithm.network(build_model(case.model, case.data.shape, case.data.classes))
    far = case.train(Loopback(case.data, network), 2)
    near = case.train(case.simulator(plan="native", threads=1), 2)
    same_run(near, far, ROUNDING)


def training_helps(case: Case) -> None:
    """Training lowers the loss on test data."""
    states = case.plain[0].before, case.plain[-1].state
    start, end = (float(case.evaluate(case.federation, state).metrics[:, 2].mean()) for state in states)
    require(end < start, f"the mean loss went from {start:.3f} to {end:.3f}")


def placed(case: Case, state: State) -> Scores:
    """Return the scores of a client that took no part in the clusters of a state."""
    newcomer = case.simulator(images(seed=3).select([0]))
    meter = Meter(newcomer, Key(1, state.round), state.shares)
    found = case.algorithm.place(state, meter.ask, np.array([0]))
    require(len(found.clients) == 1, f"it was not placed: {'; '.join(meter.missing.values()) or 'no answer'}")
    return found


def a_newcomer_is_placed(case: Case) -> None:
    """A client that took no part is placed in a cluster that exists."""
    state = case.plain[-1].state
    found = placed(case, state)
    scores, clusters = found.values.shape[1], len(state.stack)
    require(scores == clusters, f"it has {scores} scores for {clusters} clusters")
    require(0 <= int(found.clusters[0]) < clusters, f"it was placed in cluster {found.clusters[0]}")
    if state.memberships is not None:
        shares = found.values[0]
        good = bool((shares >= 0).all()) and abs(float(shares.sum()) - 1) < 1e-6
        require(good, f"clusters are soft, and its memberships are {shares.tolist()}, not shares with sum 1")


def the_name_builds_it_again(case: Case) -> None:
    """The name in tables and run folders builds the same algorithm again."""
    name = case.algorithm.name
    again = build_algorithm(name, case.clusters, case.fit)
    require(again.name == name, f"{name!r} builds an algorithm named {again.name!r}")
    steps = rounds(again, case.federation, 1)
    same_run(case.plain[:2], list(islice(steps, 2)))


Check = Callable[[Case], None]

CHECKS: tuple[Check, ...] = (
    the_same_seed_repeats,
    another_seed_differs,
    layout_changes_only_rounding,
    order_of_clients_does_not_matter,
    those_absent_keep_their_labels,
    an_empty_cluster_keeps_its_model,
    a_sample_of_clients_is_enough,
    few_answers_do_no_harm,
    clients_may_join_and_leave,
    a_resumed_run_equals_an_unbroken_one,
    bytes_give_the_same_numbers,
    costs_are_what_travels,
    test_labels_do_not_decide,
    training_helps,
    a_newcomer_is_placed,
    the_name_builds_it_again,
)


@dataclass(frozen=True)
class Checked:
    """What holds of an algorithm: sentences, each with the problem if it does not hold.

    It is true if all of them hold; printed, it is a list.
    """

    algorithm: str
    found: dict[str, str | None]

    def __bool__(self) -> bool:
        return not self.problems

    @property
    def problems(self) -> dict[str, str]:
        """Return the sentences that do not hold, and why."""
        return {sentence: why for sentence, why in self.found.items() if why is not None}

    def __str__(self) -> str:
        lines = [f"{self.algorithm}: {len(self.found) - len(self.problems)} of {len(self.found)} hold"]
        for sentence, why in self.found.items():
            lines.append(f"  {'holds ' if why is None else 'BROKEN'}  {sentence}")
            lines += [] if why is None else [f"          {why}"]
        return "\n".join(lines)


def check_algorithm(text: str, clusters: int | str | None = 2, **options: Any) -> Checked:
    """Hold an algorithm, named as on the command line, to the contract, and say in sentences what holds.

    It meets eight clients in two groups; ``clusters`` is the number it is given, if it takes one. ``options``: rounds
    (3), fit, model, data.

    >>> print(check_algorithm("fedavg"))  # doctest: +ELLIPSIS
    fedavg: 16 of 16 hold
      holds   The same seed gives the same numbers, bit for bit, and test data and true groups play no part.
      ...
    """
    case = Case(text, clusters, **options)
    name = case.algorithm.name
    return Checked(name, {sentence_of(check): _problem(check, case) for check in CHECKS})


def sentence_of(check: Check) -> str:
    """Return what a check says."""
    return str(check.__doc__).strip()


def _problem(check: Check, case: Case) -> str | None:
    """Return why a check does not hold; None if it does."""
    try:
        check(case)
    except Broken as error:
        return str(error)
    except CoterieError as error:
        return f"refused: {error}"
    except Exception as error:  # a user's method may fail in any way
        return reason(error)
    return None


def same_run(one: list[Round], other: list[Round], tolerance: float = 0.0) -> None:
    """Require that two runs have the same states."""
    require(len(one) == len(other), f"{len(one)} rounds and {len(other)}")
    for a, b in zip(one, other, strict=True):
        same(_as_dict(a.state), _as_dict(b.state), tolerance, f"round {a.state.round}")


def same(value: Any, other: Any, tolerance: float = 0.0, place: str = "state") -> None:
    """Require that two states, or what they are made of, are equal: bit for bit, or within a tolerance."""
    if isinstance(value, Stack):
        value, other = value._asdict(), other._asdict()
    elif is_dataclass(value):
        require(type(value) is type(other), f"{place} is a {type(value).__name__} and a {type(other).__name__}")
        value, other = vars(value), vars(other)
    if isinstance(value, dict):
        require(value.keys() == other.keys(), f"{place} has {sorted(value)} and {sorted(other)}")
        for key in value:
            if tolerance and place.endswith(".advice") and key in ("text", "doubts"):  # the shares in words
                continue
            own = max(tolerance, REPETITIONS) if tolerance and key == "advice" else tolerance
            same(value[key], other[key], own, f"{place}.{key}")
    elif (
        value is None or isinstance(value, str) or (isinstance(value, list) and all(isinstance(v, str) for v in value))
    ):
        require(value == other, f"{place} is {value!r} and {other!r}")
    else:
        first, second = np.asarray(value), np.asarray(other)
        require(first.shape == second.shape, f"{place} has shapes {first.shape} and {second.shape}")
        equal = np.allclose(first, second, 0, tolerance, equal_nan=True)
        require(equal, f"{place} differs by {_apart(first, second):.3g}")


def _apart(one: Any, other: Any) -> float:
    return float(np.nanmax(np.abs(np.asarray(one, float) - np.asarray(other, float)), initial=0.0))


def _as_dict(state: State) -> dict[str, Any]:
    values = {each.name: getattr(state, each.name) for each in fields(state)}
    return {**values, "members": {i: _as_dict(member) for i, member in enumerate(state.members)}}


def sentences() -> Iterator[str]:
    """Yield what the contract says."""
    yield from map(sentence_of, CHECKS)
