"""A client that a run has never seen: which cluster it belongs to, by the rule of the run's algorithm.

It is then served its cluster's model, and a warning says when even that serves it far worse than any member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import Federated, Schema, Split
from coterie.data.stratify import stratified_split
from coterie.data.tables.arrays import read_arrays
from coterie.errors import DataError, FederationError, RunFolderError
from coterie.experiments import building
from coterie.experiments.clients import load_rows, own_scores
from coterie.experiments.run_folder import (
    CLIENTS,
    CONFIG,
    SCHEMA,
    STATE,
    SUMMARY,
    check_finished,
    known_hashes,
    load_config,
    load_state,
)
from coterie.experiments.settings import load_settings
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key, generator
from coterie.server.contract import Algorithm, State
from coterie.server.exchange import Meter
from coterie.server.serving import evaluate
from coterie.typing import Array

FEDERATION = "federation"
"""What the settings of a federation's run call its data."""

HELD_OUT = 0.2
"""The share of a newcomer's examples on which it is tested where it is fine-tuned on the others."""

FEWEST = 5
"""A cluster with fewer members than this is judged by the clients of all clusters."""


@dataclass(frozen=True)
class Placement:
    """Where a newcomer belongs: its cluster and its score in each, the highest its own.

    ``served`` is the accuracy (or rmse) of the cluster's model on the newcomer's data, ``members`` the worst and the
    best that members have on their test data; ``warning`` says when no cluster fits.
    """

    cluster: int
    scores: tuple[float, ...]
    measure: str
    served: float
    members: tuple[float, float]
    warning: str | None = None


@dataclass(frozen=True)
class Trained:
    """What is needed of a run to place a newcomer; ``members`` are the rows of its ``clients.csv``."""

    algorithm: Algorithm
    model: Model
    state: State
    members: Sequence[Mapping[str, Any]]
    seed: int
    unit: float = 1.0

    def __repr__(self) -> str:
        return f"Trained({self.algorithm!r}, {self.model!r}: {len(self.members)} clients, {self.state.round} rounds)"

    def assign(self, x: Array, y: Array) -> Placement:
        """Return the cluster of a client with these examples, and how well it would be served."""
        federation, alone = Simulator(self._client(x, y), self.model, threads=1), np.array([0])
        meter = Meter(federation, Key(self.seed, self.state.round), self.state.shares)
        found = self.algorithm.place(self.state, meter.ask, alone)
        if not len(found.clients):
            raise FederationError("the newcomer could not be placed: its work failed; look at its data")
        cluster = int(found.clusters[0])
        judged = evaluate(self.algorithm, federation, self._state_with(cluster, federation), self.seed)
        measure = "rmse" if self.model.classes is None else "accuracy"
        served = own_scores(judged, self.model.classes, self.unit)[0][0]
        known = standards(self.members, cluster, measure)
        return Placement(
            cluster,
            tuple(map(float, found.values[0])),
            measure,
            served,
            (known[0], known[-1]),
            misfit(cluster, measure, served, known),
        )

    def _state_with(self, cluster: int, federation: Simulator) -> State:
        """Return the run's state with the newcomer as its only client, placed by every member of an ensemble."""
        members = []
        for algorithm, state in zip(self.algorithm.members, self.state.members, strict=True):
            meter = Meter(federation, Key(self.seed, state.round), state.shares)
            members.append(replace(state, labels=algorithm.place(state, meter.ask, np.array([0])).clusters))
        return replace(self.state, labels=np.array([cluster]), members=tuple(members))

    def _client(self, x: Array, y: Array) -> Federated:
        """Return the newcomer as a federation of one; where it is fine-tuned, it is tested on examples set aside."""
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


def standards(members: Sequence[Mapping[str, Any]], cluster: int, measure: str) -> list[float]:
    """How well members are served, worst first: those of the cluster, or everyone where these are few."""
    known = [row for row in members if row[measure] != ""]
    own = [row for row in known if int(row["cluster"]) == cluster]
    return sorted((float(row[measure]) for row in (own if len(own) >= FEWEST else known)), reverse=measure == "rmse")


def misfit(cluster: int, measure: str, served: float, known: Sequence[float]) -> str | None:
    """A warning where a newcomer is served worse than the worst member by more than worst and best are apart.

    >>> misfit(2, "accuracy", 0.75, [0.8, 0.9]) is None
    True
    >>> misfit(2, "accuracy", 0.65, [0.8, 0.9])
    'no cluster fits: the best, 2, serves it with accuracy 0.65, and its members with 0.8 to 0.9'
    """
    worst, best = known[0], known[-1]
    if abs(served - best) <= 2 * abs(best - worst) or (served > best) == (measure == "accuracy"):
        return None
    return (
        f"no cluster fits: the best, {cluster}, serves it with {measure} {served:.3g}, and its members with "
        f"{worst:.3g} to {best:.3g}"
    )


def load_trained(folder: Path) -> Trained:
    """What a run folder holds of a run; it must be finished."""
    for name in (CONFIG, STATE, CLIENTS, SUMMARY):
        if not (folder / name).exists():
            raise RunFolderError(f"{folder} holds no finished run ({name} is missing); name a folder of coterie run")
    check_finished(folder)
    settings, examples = load_settings(folder / CONFIG, {}), load_config(folder)["examples"]
    if "shape" not in examples:
        raise RunFolderError(f"{folder / CONFIG} does not say what examples look like; run it again with this version")
    algorithm = building.build_algorithm(settings)
    model = build_model(settings.model, tuple(examples["shape"]), examples.get("classes"))
    state, rows = load_state(folder / STATE, known_hashes(folder)), load_rows(folder)
    return Trained(algorithm, algorithm.network(model), state, rows, settings.seed, examples["unit"])


def read_newcomer(file: Path, folder: Path, schema: Path | None = None) -> tuple[Array, Array]:
    """The examples of a newcomer's file: an ``.npz`` as it is, a table by the schema of the run, or by another."""
    if not file.exists():
        raise DataError(f"there is no file {file}; name the newcomer's .npz, .csv or .parquet file")
    if file.suffix == ".npz":
        return read_arrays(file)
    found = schema or folder / SCHEMA
    if schema is None and not found.exists():
        raise DataError(f"{file} is a table and {_without_schema(folder)}; or save it as .npz with x and y")
    return Schema.load(found).arrays(file)


def _without_schema(folder: Path) -> str:
    """Why a run has no schema, and what to do about it."""
    if load_settings(folder / CONFIG, {}).data == FEDERATION:
        return f"{folder} is a federation's run without a {SCHEMA}: name the one that the sites have with --schema"
    return f"{folder} was not trained on tables: give an .npz file like those of its clients"
