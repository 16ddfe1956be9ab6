"""From an experiment to its cells and runs: which settings each run has, and whether its data are there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

from coterie.data.sources.cache import cache_folder
from coterie.errors import UsageError
from coterie.experiments.papers import AS
from coterie.experiments.resuming import meaning
from coterie.experiments.settings import Settings, make_settings
from coterie.experiments.sweep import parse_seeds
from coterie.reproducing.catalogue import Column, Experiment, Row
from coterie.reproducing.measures import Measure
from coterie.reproducing.published import Place, Printed, find_printed
from coterie.textforms import Call, parse_one

FILES = ("emnist", "femnist", "medmnist")
"""Data sets that no package registry has: a user names a file of them."""

LAYOUT = ("threads", "plan", "runtime", "device", "references", "checkpoint_every")
"""Settings that do not change the numbers of a run, and so not its name."""


@dataclass(frozen=True)
class Run:
    """A run: its settings, and its name, a hash of them."""

    name: str
    settings: Settings


@dataclass(frozen=True)
class Cell:
    """A number of a table: of a method on some data, over the runs of all seeds; ``missing`` says why there is none.

    ``others`` are the runs of the method that it is compared with.
    """

    row: Row
    column: Column
    measure: Measure
    runs: tuple[Run, ...]
    printed: Printed | None = None
    others: tuple[Run, ...] = ()
    missing: str = ""

    @property
    def name(self) -> str:
        """Return the name by which ``--cells`` picks it."""
        return f"{self.column.name}/{self.row.label()}/{self.measure.name}"


@dataclass(frozen=True)
class Plan:
    """The cells of an experiment, and whether they are the smaller version's."""

    experiment: Experiment
    cells: tuple[Cell, ...]
    quick: bool

    def runs(self) -> list[Run]:
        """Return the runs that the cells need, each once, those on the same data one after the other."""
        needed = [run for cell in self.cells if not cell.missing for run in (*cell.runs, *cell.others)]
        return sorted({run.name: run for run in needed}.values(), key=lambda run: _order(run.settings))


def _order(settings: Settings) -> tuple[str, str, int, int]:
    return settings.data, str(settings.partition), settings.clients or 0, settings.seed


def make_plan(
    experiment: Experiment, quick: bool = False, pattern: str = "*", given: Mapping[str, str] | None = None
) -> Plan:
    """Return the cells of an experiment whose names fit a pattern; ``given`` are files of data sets by name."""
    cells = [cell for cell in _cells(experiment, quick, given or {}) if _fits(cell.name, pattern)]
    if not cells and experiment.rows:
        names = sorted({cell.name for cell in _cells(experiment, quick, given or {})})
        raise UsageError(f"cells is {pattern!r}, and no cell is called so; they are called {names[0]}, {names[-1]}")
    return Plan(experiment, tuple(cells), quick)


def _fits(name: str, pattern: str) -> bool:
    return fnmatch(name.lower(), f"*{pattern.lower().strip('*')}*")


def _cells(experiment: Experiment, quick: bool, given: Mapping[str, str]) -> Iterator[Cell]:
    for column in experiment.columns:
        data = with_file(column.data, given)
        lacking = why_missing(data)
        runs = {row: _runs(experiment, row, column, quick, data) for row in experiment.rows}
        for row in experiment.rows:
            for measure in experiment.measures:
                others = next((runs[each] for each in experiment.rows if each.name == measure.than), ())
                if measure.than == row.name:
                    continue
                last = runs[row][0].settings.rounds
                late = "" if measure.at is None or measure.at <= last else f"beyond the {last} rounds of this version"
                printed = _printed(experiment, row, column, measure)
                yield Cell(row, column, measure, runs[row], printed, others, lacking or late)


def _runs(experiment: Experiment, row: Row, column: Column, quick: bool, data: str) -> tuple[Run, ...]:
    """Return the runs of a method on some data, one for each seed."""
    smaller = experiment.quick
    table: dict[str, Any] = {
        **({AS: experiment.paper} if experiment.paper else {}),
        **experiment.settings,
        **column.settings,
        **({**smaller.settings, **column.quick} if quick else {}),
        "data": column.data,
        "algorithm": row.text(quick),
        **({} if row.clusters is None else {"clusters": row.clusters}),
    }
    known = make_settings(table, f"the experiment {experiment.id}")
    if quick and smaller.few is not None and known.partition is not None and "few(" not in known.partition:
        known = replace(known, partition=f"{known.partition}+few({smaller.few})")
    known = replace(known, data=data, references=False, apart=False, threads=1)
    seeds = parse_seeds(smaller.seeds if quick else experiment.seeds)
    return tuple(_named(replace(known, seed=seed)) for seed in seeds)


def _named(settings: Settings) -> Run:
    """Return a run under the hash of what its settings mean."""
    told = {name: value for name, value in meaning(settings).items() if name not in LAYOUT}
    text = json.dumps(told, sort_keys=True, default=str)
    return Run(hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), settings)


def _printed(experiment: Experiment, row: Row, column: Column, measure: Measure) -> Printed | None:
    """Return the published number of a cell, from the first of the experiment's tables that has one."""
    if measure.published is None:
        return None
    number = "" if measure.at is None else str(measure.at)
    clusters = "" if row.clusters is None else str(row.clusters)
    places = [
        Place(table, column.dataset, column.partition, row.name, measure.published, clusters, number)
        for table in experiment.tables
    ]
    found = [find_printed(experiment.paper, place) for place in places]
    return next((each for each in found if each is not None), None)


def with_file(data: str, given: Mapping[str, str]) -> str:
    """Return the text of a data set with the file that the user gives for it.

    >>> with_file("medmnist(pathmnist)", {"pathmnist": "path.npz"})
    'medmnist(pathmnist,file=path.npz)'
    """
    name = file_name(data)
    if name not in given:
        return data
    call, path = parse_one(data), given[name]
    if call.name == "femnist":
        return str(Call(call.name, (path,)))
    return str(Call(call.name, call.args, (*call.kwargs, ("file", path))))


def file_name(data: str) -> str:
    """Return the name under which a user gives a file of a data set.

    >>> file_name("medmnist(pathmnist)"), file_name("emnist(byclass)"), file_name("mnist")
    ('pathmnist', 'emnist', 'mnist')
    """
    call = parse_one(data)
    return str(call.args[0]) if call.name == "medmnist" and call.args else call.name


def why_missing(data: str) -> str:
    """Return why data are not to be had here; empty where they are, or can be fetched from a package registry."""
    call = parse_one(data)
    if call.name not in FILES or (call.name == "femnist" and call.args) or "file" in dict(call.kwargs):
        return ""
    inner = f"-{call.args[0]}" if call.args else "-balanced"
    if (cache_folder() / f"{call.name}{inner}.npz").exists():
        return ""
    name = file_name(data)
    return f"{name} is not here, and no package registry has it: give --data-file {name}=PATH"


def data_needed(plan: Plan) -> dict[str, str]:
    """Return the state of each data set of the plan: here, to be fetched, or missing."""
    names = dict.fromkeys(column.data for column in plan.experiment.columns)
    missing = {cell.column.data: cell.missing for cell in plan.cells if "--data-file" in cell.missing}
    return {name: missing.get(name) or _state(name) for name in names}


def _state(data: str) -> str:
    name = parse_one(data).name
    return "here" if name not in ("mnist", "fashion-mnist", "cifar-10") or _cached(name) else "will be fetched"


def _cached(name: str) -> bool:
    return (cache_folder() / f"{name}.npz").exists()


def settings_in_words(runs: Sequence[Run]) -> dict[str, str]:
    """Return the settings that are the same in all runs."""
    tables = [{k: str(v) for k, v in run.settings.table().items()} for run in runs]
    hidden = ("algorithm", "seed", "threads", "references", "apart")
    first = tables[0] if tables else {}
    return {k: v for k, v in first.items() if k not in hidden and all(t.get(k) == v for t in tables)}
