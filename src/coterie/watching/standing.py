"""How a run stands: how many rounds are done, how long the others will take, and whether anything still happens."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.experiments.records import Record
from coterie.experiments.references import FOLDER as REFERENCES
from coterie.experiments.run_folder import CONFIG, ROUNDS, SUMMARY, load_config, load_rounds

RECENT = 20
"""The rounds whose mean duration says how long those to come will take."""

SILENCE, TIMES = 60.0, 5.0
"""A run is silent after this many seconds, or so many times the duration of a round, without a word."""

WAITING, RUNNING, ENDING, FINISHED, SILENT = "waiting", "running", "finishing", "finished", "silent"
"""The states of a run: no round yet, rounds come, all are done, the summary is there, nothing for long."""


@dataclass(frozen=True)
class Standing:
    """How a run stands.

    folder, config, records  where it is, its settings, the records of its rounds
    finished                 whether its summary is written
    touched                  when its folder last changed, in seconds since 1970; None if it is not there
    reference                the run, of those it is compared with, that is trained after its own rounds
    """

    folder: Path
    config: Mapping[str, Any]
    records: Sequence[Record]
    finished: bool
    touched: float | None
    reference: Standing | None = None

    @property
    def name(self) -> str:
        """Return the algorithm, and the seed."""
        if not self.config:
            return self.folder.name
        return f"{self.config.get('algorithm', '?')} seed {self.config.get('seed', '?')}"

    @property
    def done(self) -> int:
        """Return how many rounds are done, with those of an earlier run that it went on from."""
        return int(self.records[-1]["round"]) + 1 if self.records else 0

    @property
    def rounds(self) -> int | None:
        """Return how many rounds there will be at most; None if nothing is known yet."""
        found = self.config.get("rounds")
        return found if isinstance(found, int) else None

    @property
    def usual(self) -> float | None:
        """Return the seconds of a round: the mean of the last ones, without the first, which sets things up."""
        later = self.records[1:] or self.records
        seconds = [each["seconds"] for each in later[-RECENT:] if isinstance(each.get("seconds"), int | float)]
        return sum(seconds) / len(seconds) if seconds else None

    @property
    def ends(self) -> float | None:
        """Return when the last round will be done, in seconds since 1970; None if that cannot be told."""
        if self.usual is None or self.touched is None or self.rounds is None or self.finished:
            return None
        return self.touched + self.usual * max(0, self.rounds - self.done)

    @property
    def silent_from(self) -> float | None:
        """Return from when on the run counts as silent if nothing changes."""
        if self.touched is None or self.finished or not self.records:
            return None
        other = None if self.reference is None else self.reference.touched
        return max(self.touched, other or self.touched) + max(SILENCE, TIMES * (self.usual or 0))

    def state(self, now: float | None = None) -> str:
        """Return the state of the run."""
        if self.finished:
            return FINISHED
        if not self.records:
            return WAITING
        silent = self.silent_from
        if silent is not None and (time.time() if now is None else now) >= silent:
            return SILENT
        return ENDING if self.rounds is not None and self.done >= self.rounds else RUNNING


def standing_of(folder: Path, references: bool = True) -> Standing:
    """Return how the run in a folder stands; it need not have begun, and its last line may be half written."""
    config = load_config(folder) if (folder / CONFIG).exists() else {}
    records = load_rounds(folder)
    finished, touched = (folder / SUMMARY).exists(), _date(folder / ROUNDS)
    inner = folder / REFERENCES
    others = sorted(inner.iterdir(), key=lambda path: _date(path / ROUNDS) or 0) if inner.is_dir() else []
    last = standing_of(others[-1], references=False) if references and others and not finished else None
    return Standing(folder, config, records, finished, touched, last)


def _date(path: Path) -> float | None:
    """Return when a file last changed; None if it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None
