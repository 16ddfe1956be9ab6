"""From an experiment to its cells and runs: which settings each run has, and whether its data are there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import lru_cache
from shlex import quote
from typing import Any

from coterie import algorithms
from coterie.data.sources.cache import cache_folder
from coterie.errors import UsageError
from coterie.experiments.building import completed
from coterie.experiments.papers import AS, expand
from coterie.experiments.resuming import meaning
from coterie.experiments.settings import Settings, make_settings
from coterie.experiments.sweep import parse_seeds
from coterie.protocol.task import Fit
from coterie.reproducing.catalogue import Column, Experiment, Row
from coterie.reproducing.measures import Measure
from coterie.reproducing.published import Place, Printed, find_printed
from coterie.server.loop import check_rounds
from coterie.textforms import Call, parse_one

FILES = ("emnist", "femnist", "medmnist")
"""Data sets that no package registry has: a user names a file of them."""

LAYOUT = ("threads", "plan", "runtime", "device", "references", "checkpoint_every")
"""Settings that do not change the numbers of a run, and so not its name."""


ALONE: Mapping[str, Any] = {"references": False, "apart": False, "threads": 1}
"""Settings of every run: one of many at a time, of which only the numbers are wanted."""


@dataclass(frozen=True)
class Run:
    """A run: its settings, and its name, a hash of them."""

    name: str
    settings: Settings


@dataclass(frozen=True)
class Cell:
    """A number of a table: of a method on some data, over the runs of all seeds; ``missing`` says why there is none.

    ``others`` are the runs of the method that it is compared with; ``rounds`` those of the paper's version.
    """

    row: Row
    column: Column
    measure: Measure
    runs: tuple[Run, ...]
    rounds: int
    printed: Printed | None = None
    others: tuple[Run, ...] = ()
    missing: str = ""

    @property
    def name(self) -> str:
        """Return the name by which ``--cells`` picks it."""
        return f"{self.column.name}/{self.row.label()}/{self.measure.name}"


@dataclass(frozen=True)
class Plan:
    """The cells of an experiment, whether they are the smaller version's, and what the user chose and gave."""

    experiment: Experiment
    cells: tuple[Cell, ...]
    quick: bool
    patterns: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """Return the command that makes the same page."""
        files = [f"--data-file {quote(f'{name}={path}')}" for name, path in self.given.items()]
        chosen = [f"--cells {quote(pattern)}" for pattern in self.patterns]
        words = ["coterie reproduce", quote(self.experiment.id), *(["--quick"] if self.quick else []), *chosen, *files]
        return " ".join(words)

    def runs(self) -> list[Run]:
        """Return the runs that the cells need, each once, those on the same data one after the other."""
        needed = [run for cell in self.cells if not cell.missing for run in (*cell.runs, *cell.others)]
        return sorted({run.name: run for run in needed}.values(), key=lambda run: _order(run.settings))


def _order(settings: Settings) -> tuple[str, str, int, int]:
    return settings.data, str(settings.partition), settings.clients or 0, settings.seed


def make_plan(
    experiment: Experiment, quick: bool = False, patterns: Sequence[str] = (), given: Mapping[str, str] | None = None
) -> Plan:
    """Return the cells of an experiment whose names fit one of the patterns; ``given`` are files of data sets."""
    known = list(_cells(experiment, quick, given or {}))
    cells = [cell for cell in known if not patterns or any(_fits(cell.name, each) for each in patterns)]
    if known and not cells:
        names, text = sorted({cell.name for cell in known}), " and ".join(map(repr, patterns))
        raise UsageError(f"cells is {text}, and no cell is called so; they are called {names[0]}, {names[-1]}, ...")
    return Plan(experiment, tuple(cells), quick, tuple(patterns), dict(given or {}))


def _fits(name: str, pattern: str) -> bool:
    return fnmatch(name.lower(), f"*{pattern.lower().strip('*')}*")


def _cells(experiment: Experiment, quick: bool, given: Mapping[str, str]) -> Iterator[Cell]:
    for column in experiment.columns:
        data = with_file(column.data, given)
        lacking = why_missing(data)
        runs = {row.label(): _runs(experiment, row, column, quick, data) for row in experiment.rows}
        for row in experiment.rows:
            rounds = _rounds(experiment, row, column) if quick else runs[row.label()][0].settings.rounds
            for measure in (each for each in experiment.measures if each.than != row.name):
                others = next((runs[each.label()] for each in experiment.rows if each.name == measure.than), ())
                missing = lacking or _beyond(measure, runs[row.label()])
                printed = _printed(experiment, row, column, measure)
                yield Cell(row, column, measure, runs[row.label()], rounds, printed, others, missing)


def _rounds(experiment: Experiment, row: Row, column: Column) -> int:
    """Return the rounds of the paper's version."""
    return int(expand(_table(experiment, row, column, quick=False)).get("rounds", Settings("").rounds))


def _beyond(measure: Measure, runs: Sequence[Run]) -> str:
    last = runs[0].settings.rounds
    return "" if measure.at is None or measure.at <= last else f"beyond the {last} rounds of this version"


def _runs(experiment: Experiment, row: Row, column: Column, quick: bool, data: str) -> tuple[Run, ...]:
    """Return the runs of a method on some data, one for each seed."""
    known = replace(_settings(experiment, row, column, quick), data=data)
    told = {name: value for name, value in meaning(known).items() if name not in LAYOUT}
    seeds = parse_seeds(experiment.quick.seeds if quick else experiment.seeds)
    return tuple(_named(replace(known, seed=seed), {**told, "seed": seed}) for seed in seeds)


def _named(settings: Settings, told: Mapping[str, Any]) -> Run:
    """Return a run under the hash of what its settings mean."""
    text = json.dumps(told, sort_keys=True, default=str)
    return Run(hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), settings)


def _settings(experiment: Experiment, row: Row, column: Column, quick: bool) -> Settings:
    """Return the settings of a method on some data; an algorithm that they do not fit is an error."""
    smaller = experiment.quick
    known = make_settings(_table(experiment, row, column, quick), f"the experiment {experiment.id}")
    if quick and smaller.few is not None and known.partition is not None and "few(" not in known.partition:
        known = replace(known, partition=f"{known.partition}+few({smaller.few})")
    _check_algorithm(known.algorithm, completed(known).clusters, known.fit(), known.choose, known.rounds)
    return known


@lru_cache(maxsize=1024)
def _check_algorithm(text: str, clusters: int | str | None, fit: Fit, choose: str | None, rounds: int) -> None:
    """Refuse an algorithm that cannot be made, or needs more rounds; the columns of a table share this."""
    check_rounds(algorithms.build_algorithm(text, clusters, fit, choose), rounds)


def _table(experiment: Experiment, row: Row, column: Column, quick: bool) -> dict[str, Any]:
    """Return the table of settings: the paper's, and over them those of the file, from the general to the special."""
    return {
        **({AS: experiment.paper} if experiment.paper else {}),
        **ALONE,
        "data": column.data,
        **experiment.settings,
        **column.settings,
        **row.told(),
        **({**experiment.quick.settings, **column.quick, **row.quick} if quick else {}),
    }


def settings_on(plan: Plan, column: Column) -> Settings | None:
    """Return the settings of a run on some data, whose algorithm does not matter; None if the data are missing."""
    data = with_file(column.data, plan.given)
    known = _settings(plan.experiment, Row("data", "fedavg"), column, plan.quick)
    return None if why_missing(data) else replace(known, data=data)


def _printed(experiment: Experiment, row: Row, column: Column, measure: Measure) -> Printed | None:
    """Return the published number of a cell, from the first of the experiment's tables that has one."""
    tables = (*experiment.tables, *experiment.beside)
    places = (place_of(table, row, column, measure) for table in tables if measure.published is not None)
    found = (find_printed(experiment.paper, place) for place in places)
    return next((each for each in found if each is not None), None)


def place_of(table: str, row: Row, column: Column, measure: Measure) -> Place:
    """Return where a published table has the number of a cell."""
    return Place(
        table,
        column.dataset or file_name(column.data),
        column.partition or str(column.settings.get("partition", "")),
        row.name,
        measure.published or "",
        "" if row.clusters is None else str(row.clusters),
        "" if measure.at is None else str(measure.at),
    )


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


def settings_in_words(plan: Plan) -> dict[str, str]:
    """Return the settings that are the same in all runs and not the default ones; data may still be missing."""
    defaults = Settings("").table()
    tables = [run.settings.table() for cell in plan.cells for run in cell.runs]
    hidden = ("algorithm", "seed", "threads", "references", "apart")
    first = {name: value for name, value in (tables[0] if tables else {}).items() if name not in hidden}
    told = {name: value for name, value in first.items() if value != defaults.get(name)}
    return {name: str(value) for name, value in told.items() if all(each.get(name) == value for each in tables)}
