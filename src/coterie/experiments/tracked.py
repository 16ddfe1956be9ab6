"""What a tracker of experiments is told about a run. The trackers themselves are in ``tracking``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.errors import UnknownName

if TYPE_CHECKING:
    from coterie.experiments.settings import Settings

TRACKERS = ("tensorboard", "mlflow", "wandb")
"""The trackers that there are."""


@dataclass(frozen=True)
class Sink:
    """Where the story of a run goes: ``round`` takes the record of each round, ``finished`` the summary at its end."""

    round: Callable[[dict[str, Any]], None]
    finished: Callable[[dict[str, Any]], None]

    def beside(self, progress: Callable[[dict[str, Any]], None] | None) -> Callable[[dict[str, Any]], None]:
        """Return what tells the record of a round here, after it was shown."""

        def report(record: dict[str, Any]) -> None:
            if progress is not None:
                progress(record)
            self.round(record)

        return report


Track = Callable[["Settings", Path | None], AbstractContextManager[Sink]]
"""``(settings, folder) -> context of a sink``: track a run with these settings, in this folder or in none."""


def untracked(settings: Settings, folder: Path | None) -> AbstractContextManager[Sink]:
    """Track nothing."""
    return nullcontext(Sink(lambda record: None, lambda summary: None))


def trackers_of(text: str | None) -> tuple[str, ...]:
    """Return the names of trackers in a list with commas, each once.

    >>> trackers_of("mlflow, tensorboard,mlflow"), trackers_of(None)
    (('mlflow', 'tensorboard'), ())
    """
    names = tuple(dict.fromkeys(word.strip() for word in text.split(","))) if text else ()
    for name in names:
        if name not in TRACKERS:
            raise UnknownName("tracker", name, TRACKERS)
    return names
