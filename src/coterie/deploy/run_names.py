"""Names of runs that are started again and again, by a schedule: a folder for each, and the last good one by name."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from coterie.errors import UsageError, require
from coterie.experiments.run_folder import SUMMARY

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_TIME = "%Y-%m-%dT%H%M%SZ"
_DATED = re.compile(r"(?P<name>.+)-\d{4}-\d{2}-\d{2}T\d{6}Z")


def dated(name: str, now: datetime | None = None) -> str:
    """Return the name of a run that begins now.

    >>> dated("nightly", datetime(2026, 11, 18, 2, 30, tzinfo=UTC))
    'nightly-2026-11-18T023000Z'
    """
    good = _NAME.fullmatch(name) is not None
    require(
        good, "name", repr(name), "1 to 64 letters, digits, '.', '_' and '-', beginning with a letter, digit or '_'"
    )
    return f"{name}-{(now or datetime.now(UTC)).strftime(_TIME)}"


def runs_of(runs: Path, name: str) -> list[Path]:
    """Return the folders of all runs of a name, the oldest first."""
    found = [
        path for path in runs.glob(f"{name}-*") if (match := _DATED.fullmatch(path.name)) and match["name"] == name
    ]
    return sorted(found, key=lambda path: path.name)


def find_run(runs: Path, text: str) -> Path:
    """Return the run that a text names: a folder, a folder in ``runs``, or the last finished run of a name."""
    for folder in (Path(text), runs / text):
        if folder.is_dir():
            return folder
    named = runs_of(runs, text) if _NAME.fullmatch(text) else []
    finished = [folder for folder in named if (folder / SUMMARY).exists()]
    if finished:
        return finished[-1]
    why = f"none of the {len(named)} runs named {text} is finished" if named else f"there is no folder or run {text!r}"
    raise UsageError(f"{why}; runs are in {runs}: name a folder there, or give another name")
