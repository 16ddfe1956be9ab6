"""References: one model (fedavg) and local models, trained as a run was, so that its verdict can compare with them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coterie.engine.metrics import Metric
from coterie.errors import CoterieError
from coterie.experiments.guessing import Guesses
from coterie.experiments.records import DataFacts
from coterie.experiments.resuming import finished_summary
from coterie.experiments.session import Progress, ShowRun
from coterie.experiments.settings import Settings
from coterie.experiments.summary import Row, load_rows, scores_by_name
from coterie.experiments.verdict import GUESS, LOCAL, ONE_MODEL
from coterie.terminal import TOLD

_log = logging.getLogger(__name__)

FOLDER = "references"
"""The folder of a run that holds the runs of its references."""

ALGORITHMS = {ONE_MODEL: "fedavg", LOCAL: "local"}
"""The algorithm of each reference."""

MakeRows = Callable[[Settings, Path | None, Progress | None], Sequence[Row]]
"""``(settings, folder, progress) -> rows``: make a run, or resume it in its folder, and return its clients' rows."""


def reference_settings(settings: Settings, rounds: int) -> dict[str, Settings]:
    """Return the settings of the references of a run: the same but for what only its algorithm has.

    A run whose algorithm is a reference itself is not compared with itself.
    """
    plain = replace(
        settings, clusters=None, choose=None, advise=None, until=None, stop=None, diagnose=None, references=False
    )
    wanted = _others(settings).items()
    return {which: replace(plain, algorithm=name, rounds=rounds, track=None) for which, name in wanted}


def without_references(settings: Settings) -> dict[str, str]:
    """Return, for each reference that was not trained, how to get it."""
    return {which: f"not compared; --references trains {name} too" for which, name in _others(settings).items()}


def _others(settings: Settings) -> dict[str, str]:
    """Return the references that are not the run's own algorithm."""
    return {which: name for which, name in ALGORITHMS.items() if name != settings.algorithm.strip()}


def reference_rows(
    wanted: Mapping[str, Settings], out: Path | None, make: MakeRows, show: ShowRun
) -> tuple[dict[str, Sequence[Row]], dict[str, str]]:
    """Return the rows of each reference, and of those that could not be trained the reason.

    With a folder each is a run of its own in it, which is resumed, and not made again once it is finished.
    """
    found: dict[str, Sequence[Row]] = {}
    failed: dict[str, str] = {}
    for which, settings in wanted.items():
        folder = None if out is None else out / FOLDER / settings.algorithm
        try:
            if folder is not None and finished_summary(settings, folder) is not None:
                found[which] = load_rows(folder)
                continue
            _log.info("training %s to compare with", settings.algorithm, extra={TOLD: True})
            with show(settings) as progress:
                found[which] = make(settings, folder, progress)
        except CoterieError as error:
            failed[which] = f"{settings.algorithm} could not be trained: {error}"
    return found, failed


def with_references(rows: Sequence[Row], others: Mapping[str, Sequence[Row]], column: str) -> list[Row]:
    """Return the rows with the score of each reference beside the run's own; empty where it has none.

    >>> with_references([{"client": "a", "rmse": 1.0}], {"local": [{"client": "a", "rmse": 2.0}]}, "rmse")
    [{'client': 'a', 'rmse': 1.0, 'local_rmse': 2.0}]
    """
    scores = {which: {row["client"]: row.get(column, "") for row in some} for which, some in others.items()}
    beside = {f"{which}_{column}": by_client for which, by_client in scores.items()}
    return [{**row, **{name: each.get(row["client"], "") for name, each in beside.items()}} for row in rows]


def with_guesses(rows: Sequence[Row], guesses: Guesses, facts: DataFacts, metric: Metric | None) -> list[Row]:
    """Return the rows with the scores of guessing beside the run's own."""
    found = scores_by_name(guesses.metrics, guesses.metric, facts, metric)
    named = [{f"{GUESS}_{name}": value for name, value in each.items()} for each in found]
    return [{**row, **beside} for row, beside in zip(rows, named, strict=True)]
