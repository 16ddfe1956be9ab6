"""A run or a comparison as something that is watched; its folder need not exist yet."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import UsageError
from coterie.experiments.run_folder import CONFIG, ROUNDS
from coterie.experiments.sweep import PLAN
from coterie.reporting.report.collecting import collect
from coterie.reporting.report.page import Section, sections
from coterie.watching.comparison_sections import comparison_sections, progress_of
from coterie.watching.marks import mark_of
from coterie.watching.run_sections import run_sections
from coterie.watching.standing import standing_of
from coterie.watching.view import View


@dataclass(frozen=True)
class RunWatch:
    """The folder of a run, or of a comparison."""

    folder: Path

    def mark(self) -> Hashable:
        """Return the dates and sizes of its files."""
        return mark_of(self.folder)

    def now(self) -> View:
        """Return how it stands."""
        if is_comparison(self.folder):
            progress = progress_of(self.folder)
            again = None if progress.current is None else progress.current.silent_from
            ended = progress.finished == len(progress.runs) > 0
            return View(self.folder.resolve().name, tuple(comparison_sections(progress)), again, ended)
        standing = standing_of(self.folder)
        return View(standing.name, tuple(run_sections(standing)), standing.silent_from, standing.finished)

    def report(self) -> list[Section]:
        """Return the report, as far as the run has come."""
        return report_sections(self.folder)


def is_comparison(folder: Path) -> bool:
    """Return whether a folder holds the runs of a comparison, or the first of them."""
    own = any((folder / name).exists() for name in (CONFIG, ROUNDS))
    return not own and ((folder / PLAN).exists() or any(folder.glob(f"*/*/{CONFIG}")))


def report_sections(folder: Path) -> list[Section]:
    """Return the sections of the report, as far as its runs have come; none before the first round."""
    if not has_round(folder):
        return []
    return sections(collect(folder))


def has_round(folder: Path) -> bool:
    """Return whether a run, or one of a comparison, has done a round."""
    return (folder / ROUNDS).exists() or any(folder.glob(f"*/*/{ROUNDS}"))


def watch_folder(folder: Path) -> RunWatch:
    """Return the watch of a folder; refuse a file."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"RUN is {folder}, a file; name the folder of a run or of a comparison")
    return RunWatch(folder)
