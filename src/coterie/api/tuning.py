"""Search settings of an algorithm on clients that Python has, judged on validation data alone."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.api.run import Run, run
from coterie.api.settings import OF_ALGORITHM, OF_TRAINING, python_settings, seeds_of
from coterie.arguments import checked
from coterie.data import Federated
from coterie.data.federated import with_validation
from coterie.errors import UsageError
from coterie.experiments import tuning
from coterie.experiments.run import run_settings
from coterie.experiments.session import Progress
from coterie.experiments.settings import Settings
from coterie.experiments.sweep import Made
from coterie.experiments.tuning import Result, ranges_for, settings_of
from coterie.models.given import Given
from coterie.reporting.comparison import ranking
from coterie.reporting.progress import watch_plan
from coterie.textforms import Value
from coterie.tracking.track import track
from coterie.typed import shown

Over = Mapping[str, Iterable[Value] | str]
"""By name the values to try: a list, or ``"0.001..0.1"`` for all numbers between two, with ``tries``."""


@dataclass(frozen=True)
class Tuned:
    """Candidates with their validation scores, the best first, and the settings of the best.

    ``best`` are the values of the best candidate; ``run`` trains with them, without a validation part.
    """

    results: list[Result]
    settings: Settings
    clients: Federated
    model: Given = None

    def __repr__(self) -> str:
        return f"Tuned({self.settings.algorithm}: best {tuning.describe(self.best)} of {len(self.results)})"

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=120).print(ranking(self.results))
        return text.getvalue()

    @property
    def best(self) -> dict[str, Value]:
        """Return the values of the best candidate by name."""
        return dict(self.results[0].candidate)

    def run(self, **options: Any) -> Run:
        """Train with the best values on all train data; options of ``ct.run`` override the others."""
        kept = ("rounds", "seed", "participation", *OF_ALGORITHM, *OF_TRAINING)
        given = {name: getattr(self.settings, name) for name in kept if getattr(self.settings, name) is not None}
        return run(self.settings.algorithm, self.clients, self.model, **{**given, **options})


@checked
def tune(
    algorithm: str,
    clients: Federated,
    model: Given = None,
    *,
    over: Over | None = None,
    tries: int | None = None,
    seeds: int | Iterable[int] | str = 1,
    rounds: int | None = None,
    validation: float = tuning.VALIDATION,
    progress: bool = False,
    out: str | Path | None = None,
    **options: Any,
) -> Tuned:
    """Search settings and arguments of an algorithm by their score on validation data; test data play no part.

    ``over`` maps names to values, ``{"lr": [0.01, 0.1], "strength": [0.1, 1]}``; without it, the published ranges. With
    ``tries``, this many random candidates. Clients without a validation part set the share ``validation`` of their
    train data aside. ``out`` keeps the runs: finished candidates are not run again.
    """
    split = clients if clients.validation is not None else with_validation(clients, validation, 1)
    _, network, base = python_settings(algorithm, split, model, {"rounds": rounds, **options})
    base = Settings(**{**base.table(), "validation": validation})
    ranges = ranges_for(base, _ranges({} if over is None else over))
    points = tuning.candidates(ranges, tries)

    def make(settings: Settings, folder: Path | None, report: Progress | None) -> Made:
        done = run_settings(settings, folder, resume=True, progress=report, data=split, model=network, track=track)
        return Made(done.summary, done.history, done.trained.members)

    folder = None if out is None else Path(out)
    results = tuning.search(
        base, points, seeds_of(seeds), folder, show=partial(watch_plan, quiet=not progress), make=make
    )
    return Tuned(results, settings_of(base, results[0].candidate), clients, model)


def _ranges(over: Any) -> list[str]:
    """Return the ranges of a mapping as texts, as the command line has them."""
    if not isinstance(over, Mapping):
        raise UsageError(f"over is {shown(over)}; give names with the values to try, such as {{'lr': [0.01, 0.1]}}")
    return [f"{name}={_words(name, values)}" for name, values in over.items()]


def _words(name: str, values: Any) -> str:
    if not isinstance(values, Iterable):
        raise UsageError(f"the values of {name} to try are {shown(values)}; give a list, such as [{shown(values)}]")
    return values if isinstance(values, str) else ",".join(map(str, values))
