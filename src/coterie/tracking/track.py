"""Track a run: tell its trackers what happens. A tracker that fails is told no more, and the run goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.errors import UsageError
from coterie.experiments.run_folder import load_rounds
from coterie.experiments.settings import Settings
from coterie.experiments.tracked import Sink, trackers_of
from coterie.files import write_atomically
from coterie.tracking.story import Begin, Telling, beginning_of, ending_of, numbers_of

IDS = "trackers.json"
"""The file of a run folder with the id of the run at each tracker, by which a resumed run goes on there."""

_log = logging.getLogger(__name__)


@contextmanager
def track(settings: Settings, folder: Path | None) -> Iterator[Sink]:
    """Give what tells a run to the trackers that its settings name."""
    names = trackers_of(settings.track)
    check_installed(names)
    listeners = [Listener(name, settings, folder) for name in names]

    def tell(say: Callable[[Listener], None]) -> None:
        for each in listeners:
            each.attempt(lambda each=each: say(each))  # type: ignore[misc]

    try:
        yield Sink(
            lambda record: tell(lambda each: each.round(record)),
            lambda summary: tell(lambda each: each.finish(summary)),
        )
    finally:
        tell(lambda each: each.close())


def check_installed(names: Sequence[str]) -> None:
    """Refuse trackers whose library is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise UsageError(f"track is {name}, but {name} is not installed; pip install 'coterie[{name}]'")


@dataclass
class Listener:
    """One tracker of one run; it hears of the run with its first round, so that a run without any leaves nothing."""

    name: str
    settings: Settings
    folder: Path | None
    history: list[dict[str, Any]] = field(default_factory=list)
    telling: Telling | None = None
    told: int = 0
    finished: bool = False
    failed: bool = False

    def attempt(self, say: Callable[[], None]) -> None:
        """Tell the tracker something; if that fails, warn and tell it nothing more."""
        if self.failed:
            return
        try:
            say()
        except Exception as error:
            self.failed = True
            why = " ".join(str(error).split())[:300] or type(error).__name__
            _log.warning("%s is told no more about this run, which goes on: %s", self.name, why)
            with suppress(Exception):
                self._close()

    def round(self, record: dict[str, Any]) -> None:
        """Tell the record of a round, and those before it that the tracker has not heard of."""
        if self.folder is None:
            self.history.append(record)
        telling = self._begun()
        for each in [record] if self.told == record["round"] else self._past():
            if each["round"] >= self.told:
                telling.round(each["round"] + 1, numbers_of(each))
                self.told = each["round"] + 1

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Tell the summary, and the rounds that the tracker has not heard of."""
        past = self._past()
        self.round(past[-1])
        self._begun().finished(ending_of(summary, past, self.folder))
        self.finished = True

    def close(self) -> None:
        """End the telling, if it has begun."""
        self._close()

    def _close(self) -> None:
        telling, self.telling = self.telling, None
        if telling is not None:
            telling.close(self.finished)

    def _past(self) -> list[dict[str, Any]]:
        return self.history if self.folder is None else load_rounds(self.folder)

    def _begun(self) -> Telling:
        """Return what tells the tracker; begin, and keep the id of the run there, if that was not done."""
        if self.telling is None:
            known = {} if self.folder is None else load_ids(self.folder)
            self.telling = begin_of(self.name)(beginning_of(self.settings, self.folder, known.get(self.name)))
            self.told = self.telling.told
            if self.folder is not None and known.get(self.name) != self.telling.id:
                content = json.dumps({**known, self.name: self.telling.id}, indent=2) + "\n"
                write_atomically(self.folder / IDS, content.encode())
        return self.telling


def load_ids(folder: Path) -> dict[str, str]:
    """Return the id of a run at each tracker; none where the file is missing or unreadable."""
    with suppress(OSError, ValueError, AttributeError):
        return {str(name): str(known) for name, known in json.loads((folder / IDS).read_text()).items()}
    return {}


def begin_of(name: str) -> Begin:
    """Return how a tracker begins to listen; its library is imported now."""
    begin: Begin = import_module(f"coterie.tracking.to_{name}").begin
    return begin
