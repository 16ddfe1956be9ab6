"""A run or a comparison as something that is watched; its folder need not exist yet."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import UsageError
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

    def view(self) -> View:
        """Return how it stands, and what is known of it so far."""
        standing = standing_of(self.folder)
        return View(f"{standing.name}", tuple(run_sections(standing)), standing.silent_from)


def watch_folder(folder: Path) -> RunWatch:
    """Return the watch of a folder; refuse a file."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"RUN is {folder}, a file; name the folder of a run or of a comparison")
    return RunWatch(folder)
