"""Baselines beside federated methods: gradient boosted trees, at each client alone and on all rows in one place.

They are trained on the very train rows of the clients and scored on their test rows, by the same scores. What is pooled
is a ceiling, not private: it shows what it costs that the data may not move.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from coterie.data import Federated
from coterie.data.named import is_own
from coterie.data.tables.files import own_hash
from coterie.engine.client_columns import table as metrics_table
from coterie.engine.evaluation import predicted
from coterie.engine.metrics import Metric, metric_for
from coterie.errors import UnknownName, UsageError
from coterie.experiments.building import about_data
from coterie.experiments.main_score import SPLIT
from coterie.experiments.records import Record, finite
from coterie.experiments.scores import client_scores, with_metric
from coterie.experiments.settings import Settings
from coterie.experiments.summary import SHOWN
from coterie.files import write_atomically
from coterie.seeding import number
from coterie.target import Target
from coterie.typing import Array

BASELINES = ("gbm",)
"""The baselines that ``compare`` knows."""

ALONE, POOLED = "gbm (each client alone)", "gbm (pooled)"
"""How the two are named in tables."""

SCORES, CLIENTS = "scores.json", "clients.csv"
"""The files of a finished baseline."""

STOPS_EARLY = 10_000
"""With more train rows boosting stops when a tenth that is set aside no longer improves, as scikit-learn does."""

LEAST = 1e-12
"""The least probability of a class, also of one that was not seen in training."""

Outputs = Callable[[Array], Array]
"""Gives the outputs ``(n, outputs)`` of fitted trees as a network would: logarithms of probabilities, or values."""

Count = Callable[[int], None]
"""Is called with the number of models that are fitted so far."""

ShowCount = Callable[[str, int], AbstractContextManager[Count]]
"""``(label, models) -> what to call``: shows how far the fitting is."""


@dataclass(frozen=True)
class Baseline:
    """A baseline on one seed: its summary, as that of a run, and a row of scores for each client."""

    summary: Record
    rows: tuple[Record, ...]


@dataclass(frozen=True)
class Source:
    """The data of the baselines of several seeds: how to get them, and marks that differ where the data differ."""

    data: Callable[[Settings], Federated]
    marks: Callable[[Settings], Mapping[str, Any]]


def check_baseline(name: str) -> None:
    """Refuse a name that is no baseline."""
    if name not in BASELINES:
        raise UnknownName("baseline", name, BASELINES)


def named_source(build: Callable[[Settings], Federated]) -> Source:
    """Return the source of data that settings name; they are not read if the baseline is finished."""
    return Source(build, lambda settings: {"data": repr(about_data(settings)), "files": _files(settings.data)})


def _files(data: str) -> str | None:
    return own_hash(Path(data)) if is_own(data) else None


def given_source(draw: Callable[[int], Federated]) -> Source:
    """Return the source of data that Python made, by seed."""
    return Source(
        lambda settings: draw(settings.seed), lambda settings: {"fingerprint": draw(settings.seed).fingerprint()}
    )


def run_baseline(
    plan: Sequence[Settings], source: Source, out: Path | None, show: ShowCount
) -> dict[str, list[Baseline]]:
    """Return gradient boosting on every seed, by name; a finished one in ``out`` is read and not made again."""
    found: dict[str, list[Baseline]] = {ALONE: [], POOLED: []}
    for settings in plan:
        folder = None if out is None else out / "baseline-gbm" / f"seed-{settings.seed}"
        marks = _marks(settings, source)
        both = None if folder is None else load_baseline(folder, marks)
        if both is None:
            both = fit_gbm(source.data(settings), settings, show)
            if folder is not None:
                save_baseline(folder, marks, both)
        for name, own in both.items():
            found[name].append(own)
    return found


def _marks(settings: Settings, source: Source) -> dict[str, Any]:
    """Return all that the numbers of a baseline depend on."""
    versions = {name: metadata.version(name) for name in ("numpy", "scikit-learn")}
    scored = {"metric": settings.metric, "weigh_by": settings.weigh_by, "seed": settings.seed}
    return {**source.marks(settings), **scored, **versions}


def load_baseline(folder: Path, marks: Mapping[str, Any]) -> dict[str, Baseline] | None:
    """Return a finished baseline; None if there is none, or if it was made for other data or scores."""
    try:
        content = json.loads((folder / SCORES).read_text(encoding="utf-8"))
        if content["made_for"] != dict(marks):
            return None
        return {name: Baseline(own["summary"], tuple(own["rows"])) for name, own in content["baselines"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_baseline(folder: Path, marks: Mapping[str, Any], both: Mapping[str, Baseline]) -> None:
    """Write the scores of a baseline, and those of each client as a table."""
    folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    rows = [_joined(list(own)) for own in zip(*(each.rows for each in both.values()), strict=True)]
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / CLIENTS, text.getvalue().encode())
    content = {"made_for": dict(marks), "baselines": {name: asdict(each) for name, each in both.items()}}
    write_atomically(folder / SCORES, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def _joined(rows: list[Record]) -> Record:
    """Return one client's scores alone and pooled in one row."""
    alone, pooled = ({name: value for name, value in row.items() if name not in _FACTS} for row in rows)
    facts = {name: rows[0][name] for name in _FACTS}
    return {**facts, **{f"alone_{k}": v for k, v in alone.items()}, **{f"pooled_{k}": v for k, v in pooled.items()}}


_FACTS = ("client", "train", "test")


def fit_gbm(data: Federated, settings: Settings, show: ShowCount) -> dict[str, Baseline]:
    """Fit gradient boosting at each client alone and on all rows, and score both on every client's test rows."""
    if len(data.shape) != 1 or data.vocabulary is not None:
        kind = "tokens" if data.vocabulary is not None else f"examples of shape {data.shape}"
        raise UsageError(f"baseline gbm is for rows of numbers, and {data.data} has {kind}; leave --baseline out")
    with _threads(settings.threads), show(f"gbm seed {settings.seed}", len(data) + 1) as count:
        started = time.perf_counter()
        alone = []
        for client, name in enumerate(data.names):
            fitted = fit_trees(*data.train.of(client), data.target, number(settings.seed, "gbm", name))
            alone.append(fitted(data.test.of(client)[0]))
            count(client + 1)
        middle = time.perf_counter()
        pooled = fit_trees(data.train.x, data.train.y, data.target, number(settings.seed, "gbm"))(data.test.x)
        count(len(data) + 1)
        seconds = {ALONE: middle - started, POOLED: time.perf_counter() - middle}
    return {
        ALONE: _scored(ALONE, np.concatenate(alone), data, settings, seconds[ALONE]),
        POOLED: _scored(POOLED, pooled, data, settings, seconds[POOLED]),
    }


@contextmanager
def _threads(limit: int | None) -> Iterator[None]:
    """Let the trees take this many threads; None: all cores."""
    with threadpool_limits(limits=limit, user_api="openmp"):
        yield


def fit_trees(x: Array, y: Array, target: Target, seed: int) -> Outputs:
    """Fit gradient boosted trees, with scikit-learn's own defaults, and return what gives their outputs."""
    if target.one_of is not None:
        return _fit_classes(x, y, target.one_of, seed)
    if target.is_labels:
        each = [_fit_classes(x, column.astype(np.int64), 2, seed) for column in y.T]
        return lambda rows: np.column_stack([np.diff(own(rows), axis=1)[:, 0] for own in each])
    parts = [_fit_values(x, column, seed) for column in y.reshape(len(y), -1).T]
    return lambda rows: np.column_stack([own(rows) for own in parts])


def _fit_classes(x: Array, y: Array, classes: int, seed: int) -> Outputs:
    """Return logarithms of probabilities; a class that was not seen has the least."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    seen, counts = np.unique(y, return_counts=True)
    probabilities: Outputs
    if len(seen) == 1:
        probabilities = _always
    else:
        early = len(y) > STOPS_EARLY and counts.min() > 1
        model = HistGradientBoostingClassifier(random_state=seed % (1 << 32), early_stopping=bool(early)).fit(x, y)
        probabilities = model.predict_proba

    def outputs(rows: Array) -> Array:
        found = np.full((len(rows), classes), np.log(LEAST))
        found[:, seen] = np.log(np.maximum(probabilities(rows), LEAST))
        return found

    return outputs


def _always(rows: Array) -> Array:
    return np.ones((len(rows), 1))


def _fit_values(x: Array, y: Array, seed: int) -> Outputs:
    from sklearn.ensemble import HistGradientBoostingRegressor

    predict: Outputs = HistGradientBoostingRegressor(random_state=seed % (1 << 32)).fit(x, y).predict
    return predict


def _scored(name: str, outputs: Array, data: Federated, settings: Settings, seconds: float) -> Baseline:
    """Return the scores of outputs for all test rows, by the code that scores networks."""
    test = data.test
    found = predicted(torch.from_numpy(outputs), torch.from_numpy(test.y), data.target)
    table = metrics_table(found, test.y, test.offsets, data.target)
    weights = data.train.sizes if settings.weigh_by == "train" else test.sizes
    record = client_scores(table, data.classes, data.unit, weights)
    values = None
    if settings.metric is not None:
        metric, reported = _reported(settings.metric, outputs, data)
        unit = data.unit if metric.in_unit else 1.0
        record = with_metric(record, metric, reported, table, weights, unit)
        values = unit * metric.own(reported)
    summary: Record = {
        **{"algorithm": name, "baseline": "gbm", "model": "gbm", "data": data.data, "partition": data.partition},
        **{"clients": len(data), "seed": settings.seed, "split": SPLIT, "weigh_by": settings.weigh_by},
        **({} if settings.metric is None else {"metric_name": settings.metric}),
        **{shown: record[key] for key, shown in SHOWN.items() if key in record},
        **{key: record[key] for key in ("metric_clients", "metric_mean", "metric_error") if key in record},
        "seconds": seconds,
    }
    return Baseline(finite(summary), tuple(_client_rows(data, table, values)))


def _reported(text: str, outputs: Array, data: Federated) -> tuple[Metric, Array]:
    """Return the metric that the user named, and what each client would report of it."""
    metric, call = metric_for(text, data.target)
    parts = np.split(outputs, data.test.offsets[1:-1])
    return metric, np.stack([metric.reported(own, data.test.of(i)[1], call) for i, own in enumerate(parts)])


def _client_rows(data: Federated, table: Array, values: Array | None) -> Iterator[Record]:
    """Yield the scores of each client, as ``clients.csv`` of a run has them."""
    for client, (first, second, *_) in enumerate(table.tolist()):
        sizes = {"train": int(data.train.sizes[client]), "test": int(data.test.sizes[client])}
        errors = data.classes is None
        scores = {"rmse": data.unit * float(np.sqrt(first))} if errors else {"accuracy": first, "macro_f1": second}
        named = {} if values is None else {"metric": float(values[client])}
        yield {"client": data.names[client], **sizes, **finite({**scores, **named})}
