"""What a report is about: the files of a run, finished or not, or of all runs of a comparison."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.dataset import client_names
from coterie.errors import RunFolderError
from coterie.experiments.apart import Apart
from coterie.experiments.baselines import Baseline
from coterie.experiments.client_sketches import ClientSketches, load_sketches
from coterie.experiments.references import ALGORITHMS, FOLDER
from coterie.experiments.run_folder import (
    APART,
    CONFIG,
    MATRIX,
    load_config,
    load_labels,
    load_rounds,
    load_summary,
    read_file,
)
from coterie.experiments.settings import Settings, load_settings
from coterie.experiments.summary import Row, load_rows
from coterie.experiments.sweep import Done
from coterie.reporting.compared import Comparison, compared
from coterie.reporting.plots import History
from coterie.typing import Array

TABLE = "comparison.json"
"""The file of a finished comparison that names its methods in their order."""


@dataclass(frozen=True, kw_only=True)
class RunContent:
    """What the folder of one run holds so far.

    settings, config  its settings, and the whole of ``config.toml``
    names        its clients, by position
    history      the records of its rounds, and ``labels`` every client's after each of them
    summary, rows, apart, distances, sketches  None or empty as long as, or because, there are none
    references   the runs of one model and local models that belong to it
    """

    folder: Path
    settings: Settings
    config: Mapping[str, Any]
    names: tuple[str, ...]
    history: History
    labels: Sequence[Array]
    summary: Mapping[str, Any] | None = None
    rows: Sequence[Row] = ()
    apart: Apart | None = None
    distances: Array | None = None
    sketches: ClientSketches | None = None
    references: Mapping[str, RunContent] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        """Return whether the run has reached its end."""
        return self.summary is not None

    @property
    def groups(self) -> Array | None:
        """Return the true group of every client, where they are known."""
        known = [row["group"] for row in self.rows if row.get("group", "") != ""]
        return np.array([int(each) for each in known]) if known and len(known) == len(self.rows) else None


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a report is about: ``runs`` by method, one for each seed; of a single run one of one.

    ``comparison`` is there as soon as every method has finished a seed.
    """

    path: Path
    runs: Mapping[str, Sequence[RunContent]]
    comparison: Comparison | None = None
    is_comparison: bool = False

    @property
    def run(self) -> RunContent:
        """Return the first run."""
        return next(iter(self.runs.values()))[0]

    @property
    def histories(self) -> dict[str, list[History]]:
        """Return the records of all runs by method."""
        return {name: [list(run.history) for run in runs] for name, runs in self.runs.items()}

    @property
    def is_finished(self) -> bool:
        """Return whether all runs have reached their end."""
        return all(run.is_finished for runs in self.runs.values() for run in runs)


def collect(path: Path) -> Content:
    """Return what a run folder or the folder of a comparison holds; runs may be unfinished."""
    if (path / CONFIG).exists():
        run = collect_run(path)
        return Content(path=path, runs={run.settings.algorithm: [run]})
    folders = sorted(each.parent for each in path.glob(f"*/seed-*/{CONFIG}")) if path.is_dir() else []
    if not folders:
        raise RunFolderError(f"{path} holds neither a run nor a comparison; name a folder that run or compare has made")
    runs: dict[str, list[RunContent]] = {}
    for run in sorted((collect_run(each) for each in folders), key=lambda run: run.settings.seed):
        runs.setdefault(run.settings.algorithm, []).append(run)
    table = _table(path)
    order = [name for name in table.get("runs", {}) if name in runs] or sorted(runs, key=lambda name: name != "fedavg")
    runs = {name: runs[name] for name in dict.fromkeys((*order, *runs))}
    return Content(path=path, runs=runs, comparison=_comparison(path, runs, table), is_comparison=True)


def collect_run(folder: Path) -> RunContent:
    """Return what the folder of a run holds so far."""
    config, settings = load_config(folder), load_settings(folder / CONFIG, {})
    summary, labels = load_summary(folder), list(load_labels(folder))
    history = load_rounds(folder)
    rows = load_rows(folder) if summary is not None else []
    found = RunContent(
        folder=folder,
        settings=settings,
        config=config,
        names=_names(config, settings, rows, labels),
        history=history,
        labels=labels[: len(history)],
        summary=summary,
        rows=rows,
        apart=Apart.load(folder) if summary is not None and (folder / APART).exists() else None,
        sketches=load_sketches(folder),
    )
    others = {which: folder / FOLDER / name for which, name in ALGORITHMS.items()}
    references = {which: collect_run(each) for which, each in others.items() if (each / CONFIG).exists()}
    matrix = _distances(folder) if summary is not None and (folder / MATRIX).exists() else None
    return replace(found, references=references, distances=matrix)


def _names(
    config: Mapping[str, Any], settings: Settings, rows: Sequence[Row], labels: Sequence[Array]
) -> tuple[str, ...]:
    """Return the names of clients; those of a run that is not finished may only be counted."""
    if rows:
        return tuple(str(row["client"]) for row in rows)
    known = config["examples"].get("clients")
    count = len(labels[0]) if labels else settings.clients or 0
    return tuple(map(str, known)) if isinstance(known, list) and len(known) == count else client_names(count)


def _distances(folder: Path) -> Array:
    """Return the distances between clients, NaN where they are not known."""
    rows = list(csv.reader(io.StringIO(read_file(folder / MATRIX).decode(), newline="")))[1:]
    return np.array([[float(value) if value else np.nan for value in row[1:]] for row in rows])


def _table(path: Path) -> dict[str, Any]:
    """Return the table of a finished comparison; empty if there is none yet."""
    try:
        found = json.loads((path / TABLE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("runs"), dict) else {}


def _comparison(path: Path, runs: Mapping[str, Sequence[RunContent]], table: Mapping[str, Any]) -> Comparison | None:
    """Return the comparison over the seeds that every method has finished; None if there is no such seed.

    Baselines, which have no rounds, are those of the finished comparison.
    """
    finished = [{run.settings.seed for run in some if run.is_finished} for some in runs.values()]
    seeds = set.intersection(*finished)
    if not seeds:
        return None
    done = [
        Done(run.settings, dict(run.summary or {}), list(run.history), run.rows)
        for some in runs.values()
        for run in some
        if run.settings.seed in seeds
    ]
    others = {name: some for name, some in table.get("runs", {}).items() if name not in runs}
    baselines = {
        name: [Baseline(each, ()) for each in some if each.get("seed") in seeds] for name, some in others.items()
    }
    return compared(done, None, path, {name: some for name, some in baselines.items() if len(some) == len(seeds)})
