"""Newcomers: place a client that took no part in a run in a cluster, by the rule of the run's algorithm.

It is served as the clients of the run are, with a warning if it is served far worse than any member of its cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from coterie.data import Federated, Schema, Split
from coterie.data.apportion import stratified_split
from coterie.data.given.arrays import as_array, as_numbers
from coterie.data.tables.arrays import read_arrays
from coterie.data.tables.cells import Vocabulary
from coterie.data.tables.files import Table, missing, open_table
from coterie.data.tables.problems import Problems, listed
from coterie.data.tables.reading import Reading
from coterie.data.tables.rows import MOST_CLIENTS, read_constants, rows_with
from coterie.engine.metrics import find_metric
from coterie.errors import DataError, FederationError, RunFolderError, UnknownName, UsageError
from coterie.experiments import building
from coterie.experiments.main_score import Score, main_score
from coterie.experiments.networks import network_of
from coterie.experiments.resuming import check_frozen
from coterie.experiments.run_folder import (
    CLIENTS,
    CONFIG,
    SCHEMA,
    STATE,
    load_config,
    load_state,
    recorded_hashes,
    require_finished,
)
from coterie.experiments.settings import load_settings
from coterie.experiments.summary import load_rows
from coterie.models.given import Given, as_model
from coterie.models.model import Model
from coterie.protocol.client_function import find_client_function
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Task
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key, generator
from coterie.server.checks import check_memberships
from coterie.server.contract import Algorithm, Ask, Place, Scores, State
from coterie.server.exchange import Meter
from coterie.server.serving import evaluate, served_models
from coterie.typing import Array

FEDERATION = "federation"
"""The name of the data in the settings of a federation's run."""

LABELS = "y, or the labels in its file"
"""What a newcomer needs where it is placed by labels: in Python, or on the command line."""

HELD_OUT = 0.2
"""The share of a newcomer's examples on which a model is tested that is fine-tuned on the others."""

FEWEST = 5
"""A newcomer to a cluster with fewer members than this is compared with the clients of all clusters."""


@dataclass(frozen=True)
class Placement:
    """The cluster of a newcomer, and how well that cluster serves it.

    scores   how near it is to each cluster by the rule of the method, such as minus a loss or a distance; its cluster
             has the highest
    measure  what ``served`` and ``members`` are: the metric that the run was judged by, else accuracy, or rmse
    served   the measure of the model that serves it, on its examples, or on those held out if the model is fine-tuned;
             None if its examples have no labels, or the measure no value for them, so that nobody knows
    members  the worst and the best measure of the cluster's members on their test data; None if nobody has one
    warning  a sentence if no cluster fits, else None
    """

    cluster: int
    scores: tuple[float, ...]
    measure: str
    served: float | None
    members: tuple[float, float] | None
    warning: str | None = None


@dataclass(frozen=True)
class Trained:
    """The parts of a run that place a newcomer.

    ``members`` are the rows of its ``clients.csv``, and ``metric`` is the one that the user named.
    """

    algorithm: Algorithm
    model: Model
    state: State
    members: Sequence[Mapping[str, Any]]
    seed: int
    unit: float = 1.0
    metric: str | None = None

    @property
    def score(self) -> Score:
        """The main score of the run."""
        return main_score(self.model.classes is None, self.metric)

    def __repr__(self) -> str:
        return f"Trained({self.algorithm!r}, {self.model!r}: {len(self.members)} clients, {self.state.round} rounds)"

    def assign(self, x: Array, y: Array | None = None, attributes: Mapping[str, str] | None = None) -> Placement:
        """Place a client with these examples, and test how well it would be served.

        Without ``y`` it is placed by the examples alone, if the algorithm can, and how well it is served is not known.
        ``attributes`` are what is known of it, by the name of the column, for ``given(column)``.
        """
        federation = Simulator(self._client(x, y, attributes or {}), self.model, threads=1)
        found = self.place(federation, y is not None)
        cluster, served = int(found.clusters[0]), None if y is None else self._served(found, federation)
        score, members = self.score, member_scores(self.members, cluster, self.score)
        return Placement(
            cluster,
            tuple(map(float, found.values[0])),
            score.name,
            served,
            (members[0], members[-1]) if members else None,
            misfit_warning(cluster, score, served, members) if served is not None and members else None,
        )

    def network(self, x: Array, y: Array | None = None, attributes: Mapping[str, str] | None = None) -> nn.Module:
        """Return the network that serves a client with these examples, the one that ``assign`` tests.

        Without labels nothing can be fine-tuned, nor chosen again.
        """
        if y is None and (self.algorithm.serve.fit or self.algorithm.serve.choose):
            raise UsageError(
                f"{self.algorithm.name} trains or chooses before it serves, which needs labels; give {LABELS}"
            )
        federation = Simulator(self._client(x, y, attributes or {}), self.model, threads=1)
        state = self.state_with(self.place(federation, y is not None), federation)
        served = served_models(self.algorithm, federation, state, self.seed, np.array([0]))
        return network_of(self.model, served, 0, self.algorithm.serve.mix if self.algorithm.members else None)

    def _place_unlabelled(self) -> Place:
        """Return the rule for newcomers whose examples have no labels; refuse them if there is none."""
        if self.algorithm.place_unlabelled is None:
            raise UsageError(
                f"{self.algorithm.name} cannot place a newcomer without labels; give {LABELS}, or train with flux or "
                "pacfl(by=all), which need none"
            )
        return self.algorithm.place_unlabelled

    def _served(self, found: Scores, federation: Simulator) -> float | None:
        """Return how well the newcomer is served where the scores put it; None where the metric has no value."""
        tested = evaluate(self.algorithm, federation, self.state_with(found, federation), self.seed, metric=self.metric)
        assert tested.metrics is not None, "an evaluation always asks for metrics"
        if self.metric is not None and tested.metric is not None:
            metric = find_metric(self.metric)[0]
            value = float((self.unit if metric.in_unit else 1.0) * metric.own(tested.metric)[0])
            return value if np.isfinite(value) else None
        score = tested.metrics[0, 0]
        return float(self.unit * np.sqrt(score) if self.model.classes is None else score)

    def place(self, federation: Federation, labelled: bool = True) -> Scores:
        """Return the scores of newcomers, the clients of ``federation``, in all clusters."""
        place = self.algorithm.place if labelled else self._place_unlabelled()
        meter = Meter(federation, Key(self.seed, self.state.round), self.state.shares)
        everybody = np.arange(len(federation.names))
        found = place(self.state, meter.ask if labelled else without_labels(meter.ask), everybody)
        if not len(found.clients):
            why = "; ".join(meter.missing.values()) or "it did not answer, or is like no cluster"
            raise FederationError(f"the newcomer could not be placed ({why}); check its examples")
        return found

    def state_with(self, found: Scores, federation: Federation) -> State:
        """Return the run's state with the newcomers as its only clients, placed by every member of an ensemble."""
        members = []
        for algorithm, state in zip(self.algorithm.members, self.state.members, strict=True):
            meter = Meter(federation, Key(self.seed, state.round), state.shares)
            members.append(_placed(state, algorithm.place(state, meter.ask, found.clients)))
        return replace(_placed(self.state, found), members=tuple(members))

    def _client(self, x: Array, y: Array | None, attributes: Mapping[str, str]) -> Federated:
        """Return the newcomer as a federation of one; hold out test examples if its model is fine-tuned.

        Where there are no labels zeros take their places, and nobody may read them (``without_labels``).
        """
        target, shape, tokens = self.model.target, self.model.shape, self.model.vocabulary
        x = as_numbers(x, "x")
        y = np.zeros((len(x) if x.ndim else 0, *target.y_shape), np.int64) if y is None else as_array(y, "y")
        if x.shape[:1] != y.shape[:1] or tuple(x.shape[1:]) != tuple(shape) or tuple(y.shape[1:]) != target.y_shape:
            wanted = f"(n, {shape}) and (n,{target.columns or ''})"
            raise DataError(f"x has shape {x.shape} and y {y.shape}; the run's model needs {wanted}")
        if target.one_of is not None and y.dtype.kind not in "iu":
            raise DataError(f"y holds {y.dtype}; the run has {target}: give whole numbers")
        x = x.astype(np.float32 if tokens is None else np.int64)
        y = y.astype(np.float32 if target.one_of is None else np.int64)
        keep = test = np.arange(len(y))
        if self.algorithm.serve.fit and len(y) > 1:
            keep, test = stratified_split(y, HELD_OUT, generator(self.seed, "newcomer"))
        train, tested = (Split.join([(x[rows], y[rows])]) for rows in (keep, test))
        known = {column: (value,) for column, value in attributes.items()}
        made = partial(Federated, columns=target.columns, vocabulary=tokens, attributes=known)
        return made("newcomer", "natural", ("newcomer",), train, tested, target.classes)


def without_labels(ask: Ask) -> Ask:
    """Refuse every task for which a client would need labels: its examples have none."""

    def asking(task: Task, models: Stack, rows: Array, clients: Array, references: Stack | None = None) -> Replies:
        report = task.report
        described = report.describe is not None and not find_client_function(report.describe.function)[0].labels
        if task.choose or task.fit or report.losses or report.evaluate_on or not described:
            raise UsageError(f"a newcomer without labels was asked for what needs them; give {LABELS}")
        return ask(task, models, rows, clients, references)

    return asking


def _placed(state: State, found: Scores) -> State:
    """Return a state with these newcomers as its only clients; where clusters are soft, scores are memberships."""
    if state.memberships is not None:
        check_memberships(
            "clusters are soft, and place gave scores", found.values, len(found.clients), len(state.stack)
        )
    return replace(state, labels=found.clusters, memberships=None if state.memberships is None else found.values)


def member_scores(rows: Sequence[Mapping[str, Any]], cluster: int, score: Score) -> list[float]:
    """Return how well the members of a cluster are served, worst first; all clients if it has few members."""
    tested = [row for row in rows if row.get(score.column, "") != ""]
    members = [row for row in tested if int(row["cluster"]) == cluster]
    compared = members if len(members) >= FEWEST else tested
    return sorted((float(row[score.column]) for row in compared), reverse=score.smaller)


def misfit_warning(cluster: int, score: Score, served: float, members: Sequence[float]) -> str | None:
    """Return a warning if a newcomer is further below the worst member than the worst is below the best.

    >>> misfit_warning(2, main_score(False), 0.75, [0.8, 0.9]) is None
    True
    >>> misfit_warning(2, main_score(False), 0.65, [0.8, 0.9])
    'no cluster fits: the best, 2, serves it with accuracy 0.65, and its members with 0.8 to 0.9'
    """
    worst, best = members[0], members[-1]
    if abs(served - best) <= 2 * abs(best - worst) or (served > best) != score.smaller:
        return None
    return (
        f"no cluster fits: the best, {cluster}, serves it with {score.name} {served:.3g}, and its members with "
        f"{worst:.3g} to {best:.3g}"
    )


def load_trained(folder: Path, model: Given = None) -> Trained:
    """Load a finished run from its folder; ``model`` is its network, if no text names it."""
    require_finished(folder, STATE, CLIENTS)
    settings, examples = load_settings(folder / CONFIG, {}), load_config(folder)["examples"]
    if "shape" not in examples:
        raise RunFolderError(f"{folder / CONFIG} has no shape of examples; run it again with this version")
    algorithm = building.build_algorithm(settings)
    kind = (examples.get(name) for name in ("classes", "columns", "vocabulary"))
    network = as_model(settings.model if model is None else model, tuple(examples["shape"]), *kind)
    if network.text != settings.model:
        raise RunFolderError(f"{folder} was run with the model {settings.model!r}, not {network.text!r}; give that one")
    check_frozen(folder, network.frozen)
    state, rows = load_state(folder / STATE, recorded_hashes(folder)), load_rows(folder)
    return Trained(algorithm, algorithm.network(network), state, rows, settings.seed, examples["unit"], settings.metric)


class Newcomer(NamedTuple):
    """A newcomer's examples, labels if there are any, and what is known of it, by the name of the column.

    ``notes`` say how its file was read.
    """

    x: Array
    y: Array | None
    attributes: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()


def read_newcomer(file: Path, folder: Path, schema: Path | None = None, client: str | None = None) -> Newcomer:
    """Read a newcomer's file: an ``.npz`` file, or a table with the schema of the run or another; labels may lack.

    ``client``: only the rows of a table that the run's column of clients gives to this one.
    """
    if not file.exists():
        raise missing("file", file, "name the newcomer's .npz, .csv or .parquet file")
    if file.suffix == ".npz":
        if client is not None:
            raise UsageError(f"client is {client!r}, and {file} is of arrays, which name no clients; leave it out")
        return Newcomer(*read_arrays(file, tokens="vocabulary" in load_config(folder)["examples"]))
    found = schema or folder / SCHEMA
    if schema is None and not found.exists():
        if load_settings(folder / CONFIG, {}).data == FEDERATION:
            why = f"is a federation's run without a {SCHEMA}: name the one that the sites have with --schema"
        else:
            why = "was not trained on tables: give an .npz file like those of its clients"
        raise DataError(f"{file} is a table and {folder} {why}; or save it as .npz with x and y")
    by, settings = Schema.load(found), load_settings(folder / CONFIG, {})
    table, notes = _rows_of_one(open_table(file), settings.client, client)
    known = read_constants(table, Reading.from_options({"attribute": settings.attribute}).attribute)
    problems = Problems()
    x, y = by.arrays(table, problems) if by.label in table.columns else (by.features_from(table, problems), None)
    return Newcomer(x, y, known, (*notes, *problems.notes()))


def _rows_of_one(table: Table, column: str | None, client: str | None) -> tuple[Table, tuple[str, ...]]:
    """Return the rows of one client of a table, or all rows, with a note if these name several clients."""
    if column is None or column not in table.columns:
        if client is not None:
            named = "the run has no column of clients" if column is None else f"it has no column {column!r}"
            raise UsageError(f"client is {client!r}, and of {table.file} {named}; give a file of its rows alone")
        return table, ()
    words = Vocabulary(MOST_CLIENTS)
    for block in table.blocks((column,)):
        words.add(block.cells(column))
    if client is not None and client not in words.words:
        raise UnknownName("client", client, words.words)
    if client is not None or len(words.words) < 2:
        return table if client is None else rows_with(table, column, client), ()
    some = listed(list(map(repr, words.words)))
    what = f"{table.file} has {len(words.words)} values in the column of clients, {column!r}: {some}"
    return table, (f"{what}; all its rows are taken as one newcomer: --client NAME takes the rows of one",)
