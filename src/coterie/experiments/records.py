"""The record of a round: how well clients are served, how good the clusters are, and what the round cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coterie.data.federated import Split
from coterie.experiments.data_facts import DataFacts
from coterie.experiments.diagnostics import gradient_diagnostics, round_diagnostics
from coterie.experiments.scores import agreement, client_scores, cluster_shape
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Stack
from coterie.server.contract import State
from coterie.server.loop import Round
from coterie.server.serving import rows_that_serve
from coterie.typing import Array

Record = dict[str, Any]

MOST_MODELS = 64
"""With more models than this (local on many clients) GF1 is measured in the last round only."""

VALIDATION = ("accuracy", "macro_f1", "rmse", "test_loss")
"""The scores on the validation split that are recorded."""

Judge = Callable[[Stack, Split, Array], Array | None]
"""Evaluates rows of a stack on a common test set and returns their metrics."""


class RoundRecorder:
    """Turns rounds into records, one dictionary each.

    ``judge`` evaluates models on the uniform test set; without it there is no GF1. Scores over clients are weighted by
    test examples, or with ``weigh_by="train"`` by train examples.
    """

    def __init__(self, facts: DataFacts, judge: Judge | None, rounds: int, weigh_by: str = "test") -> None:
        self.facts, self.judge, self.rounds, self.weigh_by = facts, judge, rounds, weigh_by

    def describe(
        self, step: Round, test: Replies | None, validation: Replies | None, gradients: Replies | None = None
    ) -> Record:
        """Return the record of a round, from clients' replies about their test and validation splits and gradients."""
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
        record |= round_diagnostics(step)
        record |= {} if gradients is None else gradient_diagnostics(state, gradients)
        if replies.loss is not None:
            record["loss"] = float(np.average(replies.loss, weights=replies.examples))
        if step.missing:
            record["missing"] = dict(step.missing)
        return finite(record | vars(step.cost))

    def _scores(self, replies: Replies) -> Record:
        assert replies.metrics is not None, "an evaluation always asks for metrics"
        weights = replies.examples if self.weigh_by == "train" else None
        return client_scores(replies.metrics, self.facts.classes, self.facts.unit, weights)

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
