"""The record of a round: how well clients are served, how good the clusters are, and what the round cost.

It needs facts about the clients' data: all of them in a simulation, what sites report in a federation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.data import Federated, Schema, Split
from coterie.engine.metrics import Metric
from coterie.experiments.scores import (
    agreement,
    client_scores,
    cluster_shape,
    gradient_diagnostics,
    round_diagnostics,
    with_metric,
)
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Stack
from coterie.seeding import Key
from coterie.server.contract import State
from coterie.server.loop import Round
from coterie.server.serving import rows_that_serve
from coterie.typing import Array

Record = dict[str, Any]

UNIFORM_EXAMPLES = 1000
"""The size of the uniform test set on which GF1 is measured."""

MOST_MODELS = 64
"""With more models than this (local on many clients) GF1 is measured in the last round only."""

VALIDATION = ("accuracy", "macro_f1", "rmse", "test_loss", "metric")
"""The scores on the validation split that are recorded."""

Judge = Callable[[Stack, Split, Array], Array | None]
"""Evaluates rows of a stack on a common test set and returns their metrics."""


@dataclass(frozen=True)
class DataFacts:
    """Names and sizes of the clients' data, and the form of their examples.

    Only a simulation has these, from ``groups`` on:

    groups            the true group of each client
    majority_correct  how many of each client's test examples are of its most frequent train class
    uniform           a test set of all clients' examples with the same number of each class
    fingerprint       a hash of all examples
    from_settings     whether settings can make the data again; False for data made in Python
    files             a hash of the user's own files
    """

    data: str
    partition: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    classes: int | None
    train: Array
    test: Array
    has_validation: bool = False
    columns: int | None = None
    vocabulary: int | None = None
    unit: float = 1.0
    notes: tuple[str, ...] = ()
    schema: Schema | None = None
    groups: Array | None = None
    majority_correct: Array | None = None
    uniform: Split | None = None
    fingerprint: str | None = None
    from_settings: bool = True
    files: str | None = None

    def unit_of(self, metric: Metric) -> float:
        """Return one unit of a metric in the user's own units."""
        return self.unit if metric.in_unit else 1.0


def facts_of(data: Federated) -> DataFacts:
    """Return the facts about the data of a simulation."""
    return DataFacts(
        data=data.data,
        partition=data.partition,
        names=data.names,
        shape=data.shape,
        classes=data.classes,
        train=data.train.sizes,
        test=data.test.sizes,
        has_validation=data.validation is not None,
        columns=data.columns,
        vocabulary=data.vocabulary,
        unit=data.unit,
        notes=data.notes,
        schema=data.schema,
        groups=data.groups,
        majority_correct=majority_correct(data),
        uniform=uniform_test(data),
        fingerprint=data.fingerprint(),
        from_settings=data.words is not None,
        files=data.files,
    )


def majority_correct(data: Federated) -> Array | None:
    """Return how many test examples of each client are of its most frequent train class; None for numbers.

    Of several labels it is the sum over examples of the share of labels that are the label's more frequent value.
    """
    if data.classes is None:
        return None
    pairs = [(data.train.of(i)[1], data.test.of(i)[1]) for i in range(len(data))]
    if data.target.is_labels:
        return np.array([(test == (train.mean(axis=0) > 0.5)).mean(axis=1).sum() for train, test in pairs])
    return np.array([int((test == np.bincount(train).argmax()).sum()) for train, test in pairs])


def uniform_test(data: Federated) -> Split | None:
    """Draw up to 1000 test examples of all clients, as far as possible the same number of each class."""
    if data.target.one_of is None:
        return None
    rng = Key(0, 0).generator("uniform test")
    order = rng.permutation(len(data.test.y))
    labels = data.test.y[order]
    rank = np.empty(len(order), dtype=np.int64)
    for label in np.unique(labels):
        rank[labels == label] = np.arange((labels == label).sum())
    rows = np.sort(order[np.argsort(rank, kind="stable")[:UNIFORM_EXAMPLES]])
    return Split(data.test.x[rows], data.test.y[rows], np.array([0, len(rows)]))


@dataclass(frozen=True)
class RoundRecorder:
    """Turns rounds into records, one dictionary each.

    ``judge`` evaluates models on the uniform test set; without it there is no GF1. Scores over clients are weighted by
    test examples, or with ``weigh_by="train"`` by train examples. ``metric`` is one more that the user named.
    """

    facts: DataFacts
    judge: Judge | None
    rounds: int
    weigh_by: str = "test"
    metric: Metric | None = None

    def describe(
        self, step: Round, test: Replies | None, validation: Replies | None, gradients: Replies | None = None
    ) -> Record:
        """Return the record of a round, from clients' replies about their test and validation splits and gradients.

        Without replies about test splits the round is not evaluated, and neither are its updates and clusters.
        """
        state, replies = step.state, step.replies
        record: Record = {"round": state.round - 1}
        if test is not None and len(test):
            record |= self._scores(test)
            general = self._general_f1(state, test)
            record |= general and learning_gap([record | general])
        if test is not None and test.missing:
            record["unevaluated"] = dict(test.missing)
        if validation is not None and len(validation):
            scores = self._scores(validation)
            record |= {f"validation_{name}": scores[name] for name in VALIDATION if name in scores}
        record["asked"] = len(replies) + len(replies.missing)
        record |= {"there": len(step.there), **cluster_shape(state.labels[step.there], len(state.stack))}
        record["moved"] = count_moved(step)
        if self.facts.groups is not None:
            record |= agreement(state.labels[step.there], self.facts.groups[step.there])
        record |= {} if test is None else round_diagnostics(step)
        record |= {} if gradients is None else gradient_diagnostics(state, gradients)
        if replies.training_loss is not None:
            record["loss"] = float(np.average(replies.training_loss, weights=replies.examples))
        if step.note is not None:
            record["note"] = step.note
        if step.missing:
            record["missing"] = dict(step.missing)
        return finite(record | vars(step.cost))

    def _scores(self, replies: Replies) -> Record:
        assert replies.metrics is not None, "an evaluation always asks for metrics"
        weights = replies.examples if self.weigh_by == "train" else None
        found = client_scores(replies.metrics, self.facts.classes, self.facts.unit, weights)
        if self.metric is None or replies.metric is None:
            return found
        unit = self.facts.unit_of(self.metric)
        return with_metric(found, self.metric, replies.metric, replies.metrics, weights, unit)

    def _general_f1(self, state: State, served: Replies) -> Record:
        """Return GF1, the mean over clients of their models' macro-F1 on the uniform test set."""
        if self.judge is None or self.facts.uniform is None:
            return {}
        models, rows = rows_that_serve(state, served)
        used, inverse = np.unique(rows, axis=0, return_inverse=True)
        if len(used) > MOST_MODELS and state.round < self.rounds:
            return {}
        metrics = self.judge(models, self.facts.uniform, used)
        return {} if metrics is None else {"gf1": float(metrics[inverse.ravel(), 1].mean())}


def count_moved(step: Round) -> int:
    """Return how many clients changed their cluster; a first assignment is not a move."""
    if len(step.before.stack) != len(step.state.stack):
        return 0
    placed = step.before.labels >= 0
    return int((step.before.labels != step.state.labels)[placed].sum())


def learning_gap(records: Sequence[Record]) -> Record:
    """Return PF1, GF1 and the learning gap |PF1 - GF1| between their means over clients and rounds (ocfl eq. 5).

    The means are over rounds that have both scores; with many models (see ``MOST_MODELS``) only the last round has.
    Without a uniform test set PF1 is the mean over all evaluated rounds, and the others are None.

    >>> learning_gap([{"pf1": 0.5}, {"pf1": 0.25, "gf1": 0.5}, {"pf1": 0.75, "gf1": 0.25}])
    {'pf1': 0.5, 'gf1': 0.375, 'gap': 0.125}
    """
    both = [record for record in records if record.get("gf1") is not None] or records
    personal, general = (mean_score(both, name) for name in ("pf1", "gf1"))
    gap = None if personal is None or general is None else abs(personal - general)
    return {"pf1": personal, "gf1": general, "gap": gap}


def mean_score(records: Sequence[Record], name: str) -> float | None:
    """Return the mean of a score over the records that have it; None if none has."""
    values = [record[name] for record in records if record.get(name) is not None]
    return float(np.mean(values)) if values else None


def finite(record: Record) -> Record:
    """Return the record with None in the place of numbers that are not finite, which JSON does not have."""
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in record.items()}
