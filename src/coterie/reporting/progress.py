"""The progress of a run, on standard error: a live bar on a terminal, elsewhere one line for each round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from coterie.experiments.main_score import main_score
from coterie.experiments.session import Progress, ShowRun
from coterie.experiments.settings import Settings
from coterie.terminal import errors, plain, tell


@contextmanager
def watch(settings: Settings, label: str | None = None, quiet: bool = False) -> Iterator[Progress]:
    """Give a callback that shows the records of rounds, under a label of the run."""
    head, told = plain(f"{label or settings.algorithm} seed {settings.seed}"), set[str]()

    def once(show: Progress) -> Progress:
        """Show a note of the records before the round, the first time it comes."""

        def showing(record: dict[str, Any]) -> None:
            note = record.get("note")
            if note is not None and note not in told:
                told.add(note)
                tell(f"{head}: {note}")
            show(record)

        return showing

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
            yield once(
                lambda record: bar.update(task, completed=record["round"] + 1, now=describe(record, settings.metric))
            )
    else:
        yield once(
            lambda record: tell(
                f"{head} round {record['round'] + 1}/{settings.rounds} {describe(record, settings.metric)} "
                f"{record['seconds']:.1f} s"
            )
        )


@contextmanager
def watch_with_references(settings: Settings, quiet: bool = False) -> Iterator[tuple[Progress, ShowRun]]:
    """Give what shows the rounds of a run, and what shows those of its references after it: one bar at a time."""
    with ExitStack() as bars:

        def show_reference(other: Settings) -> AbstractContextManager[Progress]:
            bars.close()
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
