"""The results of a run: its summary, a row for each client, and the scores of its last rounds that tables show."""

from __future__ import annotations

import csv
import io
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.engine.metrics import Metric
from coterie.errors import FederationError, UsageError
from coterie.experiments.main_score import SPLIT
from coterie.experiments.records import DataFacts, Record, finite, learning_gap, mean_score
from coterie.experiments.run_folder import CLIENTS, MATRIX, damaged, read_file
from coterie.experiments.settings import PURE, Settings, read_goal
from coterie.files import write_atomically
from coterie.models.model import Model
from coterie.protocol.message import down, form
from coterie.protocol.replies import Replies
from coterie.protocol.stack import UNPLACED, Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.runtimes.attendance import Attendance
from coterie.server.contract import State
from coterie.typing import Array

Row = Mapping[str, Any]

AGREEMENT = ("ari", "ami", "nmi", "homogeneity", "completeness", "purity", "matched")
"""The scores of clusters against the true groups."""


def summarise(history: Sequence[Record], settings: Settings, facts: DataFacts, state: State, present: Array) -> Record:
    """Return the summary of a run from its records; ``present`` are the clients of the last round."""
    evaluated = evaluated_rounds(history)
    if not evaluated:
        reasons = list(history[-1].get("unevaluated", {}).items())[:3]
        listed = "; ".join(f"{name}: {why}" for name, why in reasons) or "none was asked"
        raise FederationError(f"nobody evaluated a model, so there is nothing to sum up; reasons: {listed}")
    steps, seconds = sum(r["steps"] for r in history), sum(r["seconds"] for r in history)
    summary = {
        "algorithm": settings.algorithm,
        "data": facts.data,
        "partition": facts.partition,
        "model": settings.model,
        "clients": len(facts.names),
        "clusters_found": len(set(state.labels[present].tolist()) - {UNPLACED}),
        "rounds": history[-1]["round"] + 1,
        "seed": settings.seed,
        "split": SPLIT,
        "weigh_by": settings.weigh_by,
        **({} if state.advice is None else {"advise": dict(state.advice)}),
        **_quality(evaluated, facts, settings.weigh_by, present),
        **_metric(evaluated[-1], settings),
        **_agreement(history, facts),
    }
    if settings.until is not None:
        goal = read_goal(settings.until, settings.metric)
        stopped = history[-1]["round"] + 1 < settings.rounds
        summary |= {"until": str(goal), goal.key: goal.first(history), "stopped": stopped}
    summary |= {
        "bytes_down": sum(r["bytes_down"] for r in history),
        "bytes_up": sum(r["bytes_up"] for r in history),
        "evaluations": sum(r["evaluations"] for r in history),
        "steps": steps,
        "seconds": seconds,
        "client_steps_per_second": steps / seconds,
        "peak_memory_mb": peak_memory_mb(),
        "notes": [*facts.notes, *dict.fromkeys(record["note"] for record in history if "note" in record)],
    }
    return finite(summary)


def _quality(evaluated: list[Record], facts: DataFacts, weigh_by: str, present: Array) -> Record:
    """Return how well clients are served at the end of the run."""
    last = evaluated[-1]
    if facts.classes is None:
        scores = {"rmse": last["rmse"], "r2": last["r2"], "worst_client": last["worst"], **_judged(last)}
        return scores | {name: last[name] for name in ("validation_rmse",) if name in last}
    three = evaluated[-3:]
    return {
        "accuracy": last["accuracy"],
        "accuracy_last3": mean_score(three, "accuracy"),
        "macro_f1": last["macro_f1"],
        "macro_f1_last3": mean_score(three, "macro_f1"),
        "worst_client": last["worst"],
        **_judged(last),
        "p10_client": last["p10"],
        "std_clients": last["std"],
        **({} if facts.majority_correct is None else {"majority": majority_rate(facts, weigh_by, present)}),
        **learning_gap(evaluated),
        **{name: last[name] for name in ("validation_accuracy", "validation_macro_f1") if name in last},
    }


def _judged(last: Record) -> Record:
    """Return the worst score among clients with enough test examples, if there are such clients."""
    return {"worst_judged": last["worst_judged"]} if "worst_judged" in last else {}


def _metric(last: Record, settings: Settings) -> Record:
    """Return the metric that the user named."""
    if settings.metric is None:
        return {}
    names = ("metric", "metric_clients", "metric_mean", "metric_error", "validation_metric")
    return {"metric_name": settings.metric} | {name: last[name] for name in names if name in last}


def majority_rate(facts: DataFacts, weigh_by: str, present: Array) -> float:
    """Return the accuracy of always guessing a client's most frequent train class, with the weights of the accuracy."""
    assert facts.majority_correct is not None, "a simulation has them, and a federation whose sites tell"
    rates = facts.majority_correct[present] / np.maximum(facts.test[present], 1)
    return float(np.average(rates, weights=getattr(facts, weigh_by)[present]))


def _agreement(history: Sequence[Record], facts: DataFacts) -> Record:
    """Return the agreement of clusters and groups: at the end, over rounds, and when purity reached 0.9."""
    if "ari" not in history[-1]:
        return {}
    assert facts.groups is not None, "agreement is with the true groups"
    mean = mean_score if len(set(facts.groups.tolist())) == 1 else mean_when_split
    return {
        **{name: history[-1][name] for name in AGREEMENT},
        **{f"mean_{name}": mean(history, name) for name in ("ari", "ami", "completeness")},
        "rounds_to": PURE.first(history),
    }


def mean_when_split(history: Sequence[Record], name: str) -> float:
    """Return the mean of a score over all rounds; a round with fewer than two clusters counts as 0.

    The ocfl paper counts rounds before the event in this way (the completeness of a single cluster is 1 in
    scikit-learn). Rounds without a record belong to a warm-up that counts as several rounds, so they count as 0 too.

    >>> mean_when_split([{"round": 0, "clusters": [4], "ari": 1}, {"round": 3, "clusters": [2, 2], "ari": 1}], "ari")
    0.25
    """
    split = [record for record in history if sum(size > 0 for size in record["clusters"]) > 1]
    return float(sum(record[name] for record in split) / (history[-1]["round"] + 1))


def peak_memory_mb() -> float:
    """Return the peak memory of this process in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


class FedAvgBytes(NamedTuple):
    """The bytes that FedAvg sends to one client in one round, and receives from it."""

    down: int
    up: int


def fedavg_bytes(model: Model) -> FedAvgBytes:
    """Return the bytes of FedAvg with the user's network, before an algorithm extends it."""
    task, layout = Task(fit=(Fit(steps=1),)), model.layout
    stack = Stack(np.zeros((1, layout.size), np.float32), np.zeros((1, layout.buffer_size), np.float32))
    sent = sum(array.nbytes for array in down(task, Sent(stack), 0, layout).values())
    received = sum(field.nbytes for field in form(task, Sent(stack), layout).values())
    return FedAvgBytes(sent, received)


def costs_in_models(history: Sequence[Record], unit: FedAvgBytes, before: int = 0) -> dict[str, float]:
    """Return the models sent down and up per client and round, and the most models that a client stored at once.

    FedAvg has 1 of each; ifca sends down and stores as many as it has clusters, and sends up 1. A warm-up that counts
    as several rounds is one exchange in the place of several. Thesis table 7.6 counts the same storage on a client's
    device, and only the way down as communication. Empty for runs begun before these costs were recorded. ``before`` is
    the number of rounds of an earlier run that this one continued from.

    >>> record = {"round": 1, "asked": 5, "bytes_down": 200, "bytes_up": 100, "bytes_stored": 40}
    >>> costs_in_models([record], FedAvgBytes(down=10, up=10))
    {'models_down': 2.0, 'models_up': 1.0, 'models_stored': 4.0}
    """
    if any("bytes_stored" not in record for record in history):
        return {}
    numbers = [before - 1, *(record["round"] for record in history)]
    asked = sum(record["asked"] * rounds for record, rounds in zip(history, np.diff(numbers).tolist(), strict=True))
    return {
        "models_down": sum(record["bytes_down"] for record in history) / (asked * unit.down),
        "models_up": sum(record["bytes_up"] for record in history) / (asked * unit.up),
        "models_stored": max(record["bytes_stored"] for record in history) / unit.down,
    }


def client_rows(
    facts: DataFacts, state: State, test: Replies, attendance: Attendance | None, metric: Metric | None = None
) -> list[Row]:
    """Return a row for each client: name, cluster, true group, sizes, and test scores (empty if it did not answer).

    If clients join or leave during the run, also the rounds in which they do (empty for those that do not); if clusters
    are soft, also its membership in each.
    """
    dated = {} if attendance is None else {"joined": attendance.joins, "left": attendance.leaves}
    assert test.metrics is not None, "an evaluation always asks for metrics"
    own = None if metric is None or test.metric is None else metric.own(test.metric)
    each = scores_by_name(test.metrics, own, facts, metric)
    found, unknown = dict(zip(test.clients.tolist(), each, strict=True)), dict.fromkeys(each[0] if each else (), "")
    return [
        {
            "client": facts.names[i],
            "cluster": int(state.labels[i]),
            **({} if facts.groups is None else {"group": int(facts.groups[i])}),
            "train": int(facts.train[i]),
            "test": int(facts.test[i]),
            **{name: rounds.get(facts.names[i], "") for name, rounds in dated.items()},
            **found.get(i, unknown),
            **_memberships(state, i),
        }
        for i in range(len(facts.names))
    ]


def _memberships(state: State, client: int) -> dict[str, float]:
    if state.memberships is None:
        return {}
    return {f"membership_{k}": float(value) for k, value in enumerate(state.memberships[client])}


def scores_by_name(
    metrics: Array, named: Array | None, facts: DataFacts, metric: Metric | None
) -> list[dict[str, float | str]]:
    """Return each client's scores by name, from its row of metrics and the metric that the user named.

    They are accuracy, macro-F1 and loss, or the rmse in units of the user's targets; a metric is empty where undefined.
    """
    if facts.classes is None:
        found: list[dict[str, float | str]] = [{"rmse": float(value)} for value in facts.unit * np.sqrt(metrics[:, 0])]
    else:
        names = ("accuracy", "macro_f1", "loss")
        found = [dict(zip(names, map(float, row), strict=True)) for row in metrics[:, :3]]
    if metric is None or named is None:
        return found
    values = (float(facts.unit_of(metric) * value) if np.isfinite(value) else "" for value in named.tolist())
    return [{**each, "metric": value} for each, value in zip(found, values, strict=True)]


def save_clients(folder: Path, rows: Sequence[Row]) -> None:
    """Write the rows to ``clients.csv`` in a run folder."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(folder / CLIENTS, text.getvalue().encode())


def save_distances(folder: Path, names: Sequence[str], distances: Array) -> None:
    """Write the distances between clients to ``distances.csv``, with their names; unknown distances are empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["client", *names])
    for name, row in zip(names, distances, strict=True):
        writer.writerow([name, *("" if np.isnan(value) else float(value) for value in row)])
    write_atomically(folder / MATRIX, text.getvalue().encode())


def load_rows(folder: Path) -> list[Row]:
    """Return the rows of ``clients.csv`` in the folder of a finished run; all values are strings."""
    try:
        text = io.StringIO(read_file(folder / CLIENTS).decode(), newline="")
        rows: list[Row] = list(csv.DictReader(text, strict=True))
        _clusters(rows)
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise damaged(folder / CLIENTS, f"{type(error).__name__}: {error}") from None
    return rows


def load_clusters(folder: Path) -> dict[str, int]:
    """Return the cluster of every client of a finished run, by name."""
    return _clusters(load_rows(folder))


def _clusters(rows: Sequence[Row]) -> dict[str, int]:
    return {row["client"]: int(row["cluster"]) for row in rows}


LONG, SEVERAL = 10, 3
"""Tables show the mean of the last 3 rounds of a run of at least 10 rounds, as the thesis does; else the last round."""

SHOWN = {name: name for name in ("accuracy", "macro_f1", "rmse", "r2", "metric")} | {
    "worst": "worst_client",
    "worst_judged": "worst_judged",
}
"""The scores that tables show: their names in a record and in a summary."""


def evaluated_rounds(history: Sequence[Record]) -> list[Record]:
    """Return the records of the rounds that were evaluated."""
    return [record for record in history if "worst" in record]


def add_shown(summary: Record, history: Sequence[Record], last: int | None) -> Record:
    """Return a summary with the scores of the ``last`` rounds under ``shown``; None: the default number of rounds."""
    return {**summary, "shown": mean_of_last(history, default_last([history]) if last is None else last)}


def mean_of_last(history: Sequence[Record], last: int) -> Record:
    """Return the mean scores of the last evaluated rounds of a run, and the number of these rounds.

    A mean is None if one of the rounds does not have the score, so that other rounds do not hide a divergence.

    >>> mean_of_last([{"worst": 0.2, "accuracy": 0.5}, {}, {"worst": 0.4, "accuracy": 0.7}], 2)
    {'last': 2, 'accuracy': 0.6, 'worst_client': 0.30000000000000004}
    """
    evaluated = evaluated_rounds(history)
    check_last(last, len(evaluated), "evaluated rounds")
    final = evaluated[-last:]
    means: Record = {"last": last}
    for key, name in SHOWN.items():
        if key in final[-1]:
            values = [record[key] for record in final if record.get(key) is not None]
            means[name] = float(np.mean(values)) if len(values) == len(final) else None
    return means


def default_last(histories: Sequence[Sequence[Record]]) -> int:
    """Return the default number of last rounds that a table of these runs shows; the shortest run decides.

    A run may have fewer than three evaluated rounds if its warm-up counts as many rounds, or if it stopped early.
    """
    if min(history[-1]["round"] + 1 for history in histories) < LONG:
        return 1
    return min(SEVERAL, *(len(evaluated_rounds(history)) for history in histories))


def check_last(last: int | None, most: int, what: str = "rounds") -> None:
    """Refuse a number of last rounds that a run does not have."""
    if last is not None and not 1 <= last <= most:
        raise UsageError(f"last is {last}; the run has {most} {what}, so 1 to {most}")


def last_in_words(last: int) -> str:
    """Return which rounds are shown, in words."""
    return "last round" if last == 1 else f"mean of the last {last} rounds"
