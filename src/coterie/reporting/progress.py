"""The progress of runs, on standard error: a live bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from coterie.experiments.main_score import main_score
from coterie.experiments.session import Progress, ShowRun
from coterie.experiments.settings import Settings
from coterie.reporting.overall import Pace, SoFar, overall
from coterie.terminal import errors, plain, tell


@contextmanager
def watch(settings: Settings, label: str | None = None, quiet: bool = False) -> Iterator[Progress]:
    """Give a callback that shows the records of rounds, under a label of the run."""
    head = heading(settings, label)
    if quiet:
        yield lambda record: None
    elif errors.is_terminal:
        columns = (
            TextColumn("{task.description:<24}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=errors) as bar:
            task = bar.add_task(head, total=settings.rounds, now="")
            yield noted(
                head,
                lambda record: bar.update(task, completed=record["round"] + 1, now=describe(record, settings.metric)),
            )
    else:
        pace = Pace()
        yield noted(head, lambda record: _tell_round(head, settings, record, pace))


def heading(settings: Settings, label: str | None = None) -> str:
    """Return what a line of progress calls a run."""
    return plain(f"{label or settings.algorithm} seed {settings.seed}")


def noted(head: str, show: Progress) -> Progress:
    """Return what shows a record and, before it, its note the first time it comes."""
    told = set[str]()

    def showing(record: dict[str, Any]) -> None:
        note = record.get("note")
        if note is not None and note not in told:
            told.add(note)
            tell(f"{head}: {note}")
        show(record)

    return showing


def _tell_round(head: str, settings: Settings, record: dict[str, Any], pace: Pace) -> None:
    number, rounds = record["round"] + 1, settings.rounds
    if pace.is_due(number == rounds):
        tell(f"{head} round {number}/{rounds} {describe(record, settings.metric)} {record['seconds']:.1f} s")


@dataclass
class Rounds:
    """The rounds of the runs of a plan: how many were made here, and how many are left."""

    plan: Sequence[Settings]
    began: float
    made: int = 0

    def so_far(self, finished: int, number: int = 0, now: str = "") -> SoFar:
        """Return how far the plan is when this number of runs are finished, and of the next this number of rounds."""
        rest = sum(settings.rounds for settings in self.plan[finished:]) - number
        left = rest * (time.monotonic() - self.began) / self.made if self.made else None
        return SoFar(len(self.plan), finished, left, now)


@contextmanager
def watch_plan(
    plan: Sequence[Settings], label_of: Callable[[Settings], str] | None = None, quiet: bool = False
) -> Iterator[ShowRun]:
    """Give what shows the rounds of each run of a plan as part of the whole: runs done of all, and the time left."""
    rounds = Rounds(plan, time.monotonic())
    with overall(quiet) as show_so_far:

        @contextmanager
        def show(settings: Settings) -> Iterator[Progress]:
            at, head = list(plan).index(settings), heading(settings, label_of and label_of(settings))

            def report(record: dict[str, Any]) -> None:
                rounds.made += 1
                number = record["round"] + 1
                now = f"{head} round {number}/{settings.rounds} {describe(record, settings.metric)}"
                show_so_far(rounds.so_far(at, number, now))

            yield report if quiet else noted(head, report)
            show_so_far(rounds.so_far(at + 1))

        yield show


@contextmanager
def watch_with_references(settings: Settings, quiet: bool = False) -> Iterator[tuple[Progress, ShowRun]]:
    """Give what shows the rounds of a run, and what shows those of its references after it: one bar at a time."""
    with ExitStack() as bars:

        def show_reference(other: Settings) -> AbstractContextManager[Progress]:
            bars.close()
            if not quiet:
                tell(f"training {other.algorithm} to compare with; --no-references leaves it out")
            return watch(other, f"reference {other.algorithm}", quiet=quiet)

        yield bars.enter_context(watch(settings, quiet=quiet)), show_reference


@contextmanager
def count_models(label: str, total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Give a callback that shows how many models are fitted; where there is no terminal one line when all are."""
    if quiet:
        yield lambda done: None
    elif errors.is_terminal:
        columns = (TextColumn("{task.description:<24}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn())
        with Bar(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=errors) as bar:
            task = bar.add_task(plain(label), total=total)
            yield lambda done: bar.update(task, completed=done)
    else:
        yield lambda done: tell(f"{label}: {total} models are fitted") if done == total else None


def describe(record: dict[str, Any], metric: str | None = None) -> str:
    """Return the few numbers of a round that are shown; ``metric``: that the user named."""
    words = []
    words.append(main_score("rmse" in record, metric).of_round(record))
    words.append(f"clusters {sum(size > 0 for size in record['clusters'])}")
    if record["moved"]:
        words.append(f"moved {record['moved']}")
    if "missing" in record:
        words.append(f"missing {len(record['missing'])}")
    return " ".join(filter(None, words))
