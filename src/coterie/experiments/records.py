"""The record of a round: how well clients are served, how the clusters look, what it cost."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.data.federated import Split
from coterie.errors import FederationError
from coterie.experiments.data_facts import DataFacts
from coterie.experiments.diagnostics import diagnostics, of_gradients
from coterie.experiments.goal import PURE, Goal
from coterie.experiments.last_rounds import judged
from coterie.experiments.scores import agreement, client_scores, cluster_shape
from coterie.models.model import Model
from coterie.protocol.message import down, form
from coterie.protocol.replies import Replies
from coterie.protocol.stack import UNPLACED, Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.server.contract import State
from coterie.server.loop import Round
from coterie.server.serving import rows_that_serve
from coterie.typing import Array


@dataclass(frozen=True)
class Unit:
    """The bytes that FedAvg sends to one client in one round, and gets back."""

    down: int
    up: int


def fedavg_unit(model: Model) -> Unit:
    """The unit for a network as the user gave it, before an algorithm makes another of it."""
    task, layout = Task(fit=(Fit(steps=1),)), model.layout
    stack = Stack(np.zeros((1, layout.size), np.float32), np.zeros((1, layout.buffer_size), np.float32))
    sent = sum(array.nbytes for array in down(task, Sent(stack), 0, layout).values())
    back = sum(field.nbytes for field in form(task, Sent(stack), layout).values())
    return Unit(sent, back)


def in_models(history: Sequence[dict[str, Any]], unit: Unit) -> dict[str, float]:
    """Models sent down and up for each client asked in each round, and the most that a client had to store at once.

    FedAvg has 1 of each, ifca as many down and stored as it has clusters, and 1 up. A warm-up that counts as several
    rounds is one exchange in the place of as many. Table 7.6 counts the same storage, that of a client's device, and as
    communication the way down alone. Where a record does not say, nothing is told.

    >>> record = {"round": 1, "asked": 5, "bytes_down": 200, "bytes_up": 100, "bytes_stored": 40}
    >>> in_models([record], Unit(down=10, up=10))
    {'models_down': 2.0, 'models_up': 1.0, 'models_stored': 4.0}
    """
    if any("bytes_stored" not in record for record in history):
        return {}  # begun before this was recorded
    numbers = [-1, *(record["round"] for record in history)]
    asked = sum(record["asked"] * rounds for record, rounds in zip(history, np.diff(numbers).tolist(), strict=True))
    return {
        "models_down": sum(record["bytes_down"] for record in history) / (asked * unit.down),
        "models_up": sum(record["bytes_up"] for record in history) / (asked * unit.up),
        "models_stored": max(record["bytes_stored"] for record in history) / unit.down,
    }


MOST_MODELS = 64
"""With more models than this (local on many clients) GF1 is left to the last round."""

VALIDATION = ("accuracy", "macro_f1", "rmse", "test_loss")
"""The scores of the validation split that are recorded."""

Judge = Callable[[Stack, Split, Array], Array | None]
"""The metrics of these rows of a stack on one common set of examples."""


class RoundRecorder:
    """Describes rounds as records, one dictionary each; without a ``judge`` there is no common test.

    In scores over clients they count by their test examples, or ``weigh_by`` their train examples.
    """

    def __init__(self, known: DataFacts, judge: Judge | None, rounds: int, weigh_by: str = "test") -> None:
        self.known, self.judge, self.rounds, self.weigh_by = known, judge, rounds, weigh_by

    def describe(
        self, step: Round, test: Replies | None, validation: Replies | None, gradients: Replies | None = None
    ) -> dict[str, Any]:
        """The record of one round, with the clients' replies about their test and validation splits and gradients."""
        state, replies = step.state, step.replies
        record: dict[str, Any] = {"round": state.round - 1}
        if test is not None and len(test):
            record |= self._scores(test)
            general = self._general(state, test.labels)
            record |= general and learning_gap([record | general])
        if test is not None and test.missing:
            record["unevaluated"] = dict(test.missing)
        if validation is not None and len(validation):
            scores = self._scores(validation)
            record |= {f"validation_{name}": scores[name] for name in VALIDATION if name in scores}
        record["asked"] = len(replies) + len(replies.missing)
        record |= {"there": len(step.there), **cluster_shape(state.labels[step.there], len(state.stack))}
        record["moved"] = moved(step)
        if self.known.groups is not None:
            record |= agreement(state.labels[step.there], self.known.groups[step.there])
        record |= diagnostics(step)
        record |= {} if gradients is None else of_gradients(state, gradients)
        if replies.loss is not None:
            record["loss"] = float(np.average(replies.loss, weights=replies.examples))
        if step.missing:
            record["missing"] = dict(step.missing)
        return finite(record | vars(step.cost))

    def _scores(self, replies: Replies) -> dict[str, Any]:
        assert replies.metrics is not None, "an evaluation always asks for metrics"
        weights = replies.examples if self.weigh_by == "train" else None
        return client_scores(replies.metrics, self.known.classes, self.known.unit, weights)

    def _general(self, state: State, served: Array) -> dict[str, Any]:
        """GF1: the mean over clients of their models' macro-F1 on the uniform test."""
        if self.judge is None or self.known.uniform is None:
            return {}
        models, rows = rows_that_serve(state, served)
        used, place = np.unique(rows, axis=0, return_inverse=True)
        if len(used) > MOST_MODELS and state.round < self.rounds:
            return {}
        judged = self.judge(models, self.known.uniform, used)
        return {} if judged is None else {"gf1": float(judged[place.ravel(), 1].mean())}


def finite(record: dict[str, Any]) -> dict[str, Any]:
    """The same record with None for numbers that are not finite, which JSON cannot say."""
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in record.items()}


def moved(step: Round) -> int:
    """How many clients changed from one cluster to another; being placed for the first time is not a move."""
    if len(step.before.stack) != len(step.state.stack):
        return 0
    placed = step.before.labels >= 0
    return int((step.before.labels != step.state.labels)[placed].sum())


def summarise(
    history: Sequence[dict[str, Any]], settings: Any, known: DataFacts, state: State, there: Array
) -> dict[str, Any]:
    """The summary of a run from its records; ``there`` are the clients of the last round."""
    evaluated = judged(history)
    if not evaluated:
        why = history[-1].get("unevaluated", {})
        raise FederationError(f"nobody evaluated a model, so there is nothing to sum up; reasons: {_few(why)}")
    steps, seconds = sum(r["steps"] for r in history), sum(r["seconds"] for r in history)
    found = {
        "algorithm": settings.algorithm,
        "data": known.data,
        "partition": known.partition,
        "model": settings.model,
        "clients": len(known),
        "clusters_found": len(set(state.labels[there].tolist()) - {UNPLACED}),
        "rounds": history[-1]["round"] + 1,
        "seed": settings.seed,
        "weigh_by": settings.weigh_by,
        **({} if state.advice is None else {"advise": dict(state.advice)}),
        **_quality(evaluated, known, settings.weigh_by, there),
        **_clusters(history, known),
        **_reached(history, settings),
        "bytes_down": sum(r["bytes_down"] for r in history),
        "bytes_up": sum(r["bytes_up"] for r in history),
        "evaluations": sum(r["evaluations"] for r in history),
        "steps": steps,
        "seconds": seconds,
        "client_steps_per_second": steps / seconds,
        "peak_memory_mb": peak_memory_mb(),
        "notes": list(known.notes),
    }
    return finite(found)


def _quality(evaluated: list[dict[str, Any]], known: DataFacts, weigh_by: str, there: Array) -> dict[str, Any]:
    last = evaluated[-1]
    if known.classes is None:
        found = {"rmse": last["rmse"], "r2": last["r2"], "worst_client": last["worst"]}
        return found | {name: last[name] for name in ("validation_rmse",) if name in last}
    three = evaluated[-3:]
    return {
        "accuracy": last["accuracy"],
        "accuracy_last3": _mean(three, "accuracy"),
        "macro_f1": last["macro_f1"],
        "macro_f1_last3": _mean(three, "macro_f1"),
        "worst_client": last["worst"],
        "p10_client": last["p10"],
        "std_clients": last["std"],
        **({} if known.hits is None else {"majority": majority_rate(known, weigh_by, there)}),
        **learning_gap(evaluated),
        **{name: last[name] for name in ("validation_accuracy", "validation_macro_f1") if name in last},
    }


def majority_rate(known: DataFacts, weigh_by: str, there: Array) -> float:
    """The accuracy of always guessing each client's most frequent train class; clients count as in the accuracy."""
    assert known.hits is not None, "only a simulation knows them"
    return float(
        np.average(known.hits[there] / np.maximum(known.test[there], 1), weights=getattr(known, weigh_by)[there])
    )


def learning_gap(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """PF1, GF1 and the learning gap |PF1 - GF1| between these means over clients and rounds (ocfl eq. 5).

    All are over the rounds that have both, which with many models (see ``MOST_MODELS``) is the last one alone. Where
    there is no common test, PF1 is over all evaluated rounds and the others are None.

    >>> learning_gap([{"pf1": 0.5}, {"pf1": 0.25, "gf1": 0.5}, {"pf1": 0.75, "gf1": 0.25}])
    {'pf1': 0.5, 'gf1': 0.375, 'gap': 0.125}
    """
    both = [r for r in records if r.get("gf1") is not None] or records
    own, general = (_mean(both, name) for name in ("pf1", "gf1"))
    return {"pf1": own, "gf1": general, "gap": None if own is None or general is None else abs(own - general)}


def _clusters(history: Sequence[dict[str, Any]], known: DataFacts) -> dict[str, Any]:
    """Agreement with the truth at the end, averaged over rounds, and when purity first reached 0.9."""
    names = ("ari", "ami", "nmi", "homogeneity", "completeness", "purity", "matched")
    if "ari" not in history[-1]:
        return {}
    assert known.groups is not None, "agreement is with the truth"
    one_group = len(set(known.groups.tolist())) == 1
    mean = _mean if one_group else mean_when_parted
    return {
        **{name: history[-1][name] for name in names},
        **{f"mean_{name}": mean(history, name) for name in ("ari", "ami", "completeness")},
        "rounds_to": PURE.first(history),
    }


def _reached(history: Sequence[dict[str, Any]], settings: Any) -> dict[str, Any]:
    """When the score that the run was to reach first held, and whether that ended it."""
    goal: Goal | None = settings.goal()
    if goal is None:
        return {}
    return {"until": str(goal), goal.key: goal.first(history), "stopped": history[-1]["round"] + 1 < settings.rounds}


def mean_when_parted(history: Sequence[dict[str, Any]], name: str) -> float:
    """The mean of a score over all rounds; those in which all clients are in one cluster or none count 0.

    So the ocfl paper counts rounds before the event; sklearn's completeness of a single cluster is 1. Rounds without a
    record are those of a warm-up that counts as several, so before any cluster.

    >>> mean_when_parted([{"round": 0, "clusters": [4], "ari": 1}, {"round": 3, "clusters": [2, 2], "ari": 1}], "ari")
    0.25
    """
    parted = [r for r in history if sum(size > 0 for size in r["clusters"]) > 1]
    return float(sum(r[name] for r in parted) / (history[-1]["round"] + 1))


def _few(reasons: dict[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in list(reasons.items())[:3]) or "none was asked"


def _mean(records: Sequence[dict[str, Any]], name: str) -> float | None:
    values = [r[name] for r in records if r.get(name) is not None]
    return float(np.mean(values)) if values else None


def peak_memory_mb() -> float:
    """The most memory this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
