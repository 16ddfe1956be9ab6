"""Newcomers: place a client that took no part in a run in a cluster, by the rule of the run's algorithm.

It is served as the clients of the run are, with a warning if it is served far worse than any member of its cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import Federated, Schema, Split
from coterie.data.apportion import stratified_split
from coterie.data.tables.arrays import read_arrays
from coterie.errors import DataError, FederationError, RunFolderError
from coterie.experiments import building
from coterie.experiments.resuming import check_frozen
from coterie.experiments.run_folder import (
    CLIENTS,
    CONFIG,
    SCHEMA,
    STATE,
    SUMMARY,
    check_finished,
    load_config,
    load_state,
    recorded_hashes,
)
from coterie.experiments.settings import load_settings
from coterie.experiments.summary import load_rows, scores_by_client
from coterie.models.given import Given, as_model
from coterie.models.model import Model
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key, generator
from coterie.server.contract import Algorithm, Scores, State
from coterie.server.exchange import Meter
from coterie.server.serving import evaluate
from coterie.typing import Array

FEDERATION = "federation"
"""The name of the data in the settings of a federation's run."""

HELD_OUT = 0.2
"""The share of a newcomer's examples on which a model is tested that is fine-tuned on the others."""

FEWEST = 5
"""A newcomer to a cluster with fewer members than this is compared with the clients of all clusters."""


@dataclass(frozen=True)
class Placement:
    """The cluster of a newcomer, and how well that cluster serves it.

    scores   its score in each cluster; its cluster has the highest
    measure  what ``served`` and ``members`` are: accuracy, or rmse
    served   the measure of the model that serves it, on its examples, or on those held out if the model is fine-tuned
    members  the worst and the best measure of the cluster's members on their test data
    warning  a sentence if no cluster fits, else None
    """

    cluster: int
    scores: tuple[float, ...]
    measure: str
    served: float
    members: tuple[float, float]
    warning: str | None = None


@dataclass(frozen=True)
class Trained:
    """The parts of a run that place a newcomer; ``members`` are the rows of its ``clients.csv``."""

    algorithm: Algorithm
    model: Model
    state: State
    members: Sequence[Mapping[str, Any]]
    seed: int
    unit: float = 1.0

    def __repr__(self) -> str:
        return f"Trained({self.algorithm!r}, {self.model!r}: {len(self.members)} clients, {self.state.round} rounds)"

    def assign(self, x: Array, y: Array) -> Placement:
        """Place a client with these examples, and test how well it would be served."""
        federation, alone = Simulator(self._client(x, y), self.model, threads=1), np.array([0])
        meter = Meter(federation, Key(self.seed, self.state.round), self.state.shares)
        found = self.algorithm.place(self.state, meter.ask, alone)
        if not len(found.clients):
            why = "; ".join(meter.missing.values()) or "it did not answer"
            raise FederationError(f"the newcomer could not be placed ({why}); check its examples")
        cluster = int(found.clusters[0])
        placed = self._state_with(found, federation)
        tested = evaluate(self.algorithm, federation, placed, self.seed)
        measure = "rmse" if self.model.classes is None else "accuracy"
        served = scores_by_client(tested, self.model.classes, self.unit)[0][0]
        members = member_scores(self.members, cluster, measure)
        return Placement(
            cluster,
            tuple(map(float, found.values[0])),
            measure,
            served,
            (members[0], members[-1]),
            misfit_warning(cluster, measure, served, members),
        )

    def _state_with(self, found: Scores, federation: Simulator) -> State:
        """Return the run's state with the newcomer as its only client, placed by every member of an ensemble.

        Where clusters are soft its scores are its memberships.
        """
        members = []
        for algorithm, state in zip(self.algorithm.members, self.state.members, strict=True):
            meter = Meter(federation, Key(self.seed, state.round), state.shares)
            members.append(replace(state, labels=algorithm.place(state, meter.ask, np.array([0])).clusters))
        soft = None if self.state.memberships is None else found.values
        return replace(self.state, labels=found.clusters, members=tuple(members), memberships=soft)

    def _client(self, x: Array, y: Array) -> Federated:
        """Return the newcomer as a federation of one; hold out test examples if its model is fine-tuned."""
        classes, shape = self.model.classes, self.model.shape
        if len(x) != len(y) or tuple(x.shape[1:]) != tuple(shape):
            raise DataError(f"x has shape {x.shape} and y {y.shape}; the run's model needs (n, {shape}) and (n,)")
        if classes is not None and np.asarray(y).dtype.kind not in "iu":
            raise DataError(f"y holds {np.asarray(y).dtype}; the run has {classes} classes: give whole numbers")
        x, y = x.astype(np.float32), y.astype(np.float32 if classes is None else np.int64)
        keep = test = np.arange(len(y))
        if self.algorithm.serve.fit and len(y) > 1:
            keep, test = stratified_split(y, HELD_OUT, generator(self.seed, "newcomer"))
        train, tested = (Split.join([(x[rows], y[rows])]) for rows in (keep, test))
        return Federated("newcomer", "natural", ("newcomer",), train, tested, classes)


def member_scores(rows: Sequence[Mapping[str, Any]], cluster: int, measure: str) -> list[float]:
    """Return how well the members of a cluster are served, worst first; all clients if it has few members."""
    tested = [row for row in rows if row[measure] != ""]
    members = [row for row in tested if int(row["cluster"]) == cluster]
    compared = members if len(members) >= FEWEST else tested
    return sorted((float(row[measure]) for row in compared), reverse=measure == "rmse")


def misfit_warning(cluster: int, measure: str, served: float, members: Sequence[float]) -> str | None:
    """Return a warning if a newcomer is further below the worst member than the worst is below the best.

    >>> misfit_warning(2, "accuracy", 0.75, [0.8, 0.9]) is None
    True
    >>> misfit_warning(2, "accuracy", 0.65, [0.8, 0.9])
    'no cluster fits: the best, 2, serves it with accuracy 0.65, and its members with 0.8 to 0.9'
    """
    worst, best = members[0], members[-1]
    if abs(served - best) <= 2 * abs(best - worst) or (served > best) == (measure == "accuracy"):
        return None
    return (
        f"no cluster fits: the best, {cluster}, serves it with {measure} {served:.3g}, and its members with "
        f"{worst:.3g} to {best:.3g}"
    )


def load_trained(folder: Path, model: Given = None) -> Trained:
    """Load a finished run from its folder; ``model`` is its network, if no text names it."""
    for name in (CONFIG, STATE, CLIENTS, SUMMARY):
        if not (folder / name).exists():
            raise RunFolderError(f"{folder} holds no finished run ({name} is missing); name a folder of coterie run")
    check_finished(folder)
    settings, examples = load_settings(folder / CONFIG, {}), load_config(folder)["examples"]
    if "shape" not in examples:
        raise RunFolderError(f"{folder / CONFIG} has no shape of examples; run it again with this version")
    algorithm = building.build_algorithm(settings)
    network = as_model(model or settings.model, tuple(examples["shape"]), examples.get("classes"))
    if network.text != settings.model:
        raise RunFolderError(f"{folder} was run with the model {settings.model!r}, not {network.text!r}; give that one")
    check_frozen(folder, network.frozen)
    state, rows = load_state(folder / STATE, recorded_hashes(folder)), load_rows(folder)
    return Trained(algorithm, algorithm.network(network), state, rows, settings.seed, examples["unit"])


def read_newcomer(file: Path, folder: Path, schema: Path | None = None) -> tuple[Array, Array]:
    """Read the examples in a newcomer's file: an ``.npz`` file, or a table with the schema of the run or another."""
    if not file.exists():
        raise DataError(f"there is no file {file}; name the newcomer's .npz, .csv or .parquet file")
    if file.suffix == ".npz":
        return read_arrays(file)
    found = schema or folder / SCHEMA
    if schema is None and not found.exists():
        if load_settings(folder / CONFIG, {}).data == FEDERATION:
            why = f"is a federation's run without a {SCHEMA}: name the one that the sites have with --schema"
        else:
            why = "was not trained on tables: give an .npz file like those of its clients"
        raise DataError(f"{file} is a table and {folder} {why}; or save it as .npz with x and y")
    return Schema.load(found).arrays(file)
