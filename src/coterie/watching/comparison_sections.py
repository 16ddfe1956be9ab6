"""The sections of a live page that tell how a comparison stands: its runs, and how long the others will take."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.experiments.run_folder import CONFIG
from coterie.experiments.sweep import PLAN
from coterie.reporting.durations import duration
from coterie.reporting.markup import Markup, join
from coterie.reporting.progress import describe
from coterie.reporting.report.page import Section
from coterie.watching.pieces import Words, ago, bar, paragraph, strong, table, until
from coterie.watching.run_sections import NOW, run_sections
from coterie.watching.standing import FINISHED, RUNNING, SILENT, WAITING, Standing, standing_of


@dataclass(frozen=True)
class Progress:
    """How the runs of a comparison stand, in the order of its plan; those that have not begun are in it too."""

    folder: Path
    runs: Sequence[Standing]

    @property
    def current(self) -> Standing | None:
        """Return the run that goes on, which is the one that changed last; None if all are finished or none began."""
        open_runs = [each for each in self.runs if each.touched is not None and not each.finished]
        return max(open_runs, key=lambda each: each.touched or 0.0) if open_runs else None

    @property
    def finished(self) -> int:
        """Return how many runs are finished."""
        return sum(each.finished for each in self.runs)

    @property
    def touched(self) -> float | None:
        """Return when a run last changed."""
        return max((each.touched for each in self.runs if each.touched is not None), default=None)

    @property
    def ends(self) -> float | None:
        """Return when all runs will be finished: a run takes what others of its algorithm took, or else the mean."""
        touched, ways = self.touched, dict[str, list[float]]()
        for each in self.runs:
            if each.usual is not None:
                ways.setdefault(each.config.get("algorithm", ""), []).append(each.usual)
        known = [usual for some in ways.values() for usual in some]
        if touched is None or not known:
            return None
        left = 0.0
        for each in self.runs:
            some = ways.get(each.config.get("algorithm", ""), known)
            left += 0 if each.finished else max(0, (each.rounds or 0) - each.done) * sum(some) / len(some)
        return touched + left

    def state(self, now: float) -> str:
        """Return the state of the comparison."""
        if self.runs and self.finished == len(self.runs):
            return FINISHED
        if self.current is None and not self.finished:
            return WAITING
        return SILENT if self.current is not None and self.current.state(now) == SILENT else RUNNING


def progress_of(folder: Path) -> Progress:
    """Return how a comparison stands: the runs of its plan, or without one those that are there."""
    planned = _read_plan(folder)
    if not planned:
        found = sorted(path.parent for path in folder.glob(f"*/*/{CONFIG}"))
        return Progress(folder, [standing_of(path) for path in found])
    return Progress(folder, [_planned(folder, each) for each in planned])


def _planned(folder: Path, entry: dict[str, Any]) -> Standing:
    """Return how a run of the plan stands; one that has not begun has the settings that the plan tells."""
    found = standing_of(folder / entry["folder"])
    return found if found.config else Standing(found.folder, entry, (), False, None)


def _read_plan(folder: Path) -> list[dict[str, Any]]:
    """Return the runs of a plan; none if there is none, or if it names folders elsewhere."""
    try:
        plan = json.loads((folder / PLAN).read_text())
    except (OSError, ValueError, RecursionError):
        return []
    known = [each for each in plan if isinstance(each, dict)] if isinstance(plan, list) else []
    return [each for each in known if _within(folder, each.get("folder"))]


def _within(folder: Path, name: object) -> bool:
    """Return whether a name is of a folder in this one."""
    return isinstance(name, str) and (folder / name).resolve().is_relative_to(folder.resolve())


def comparison_sections(progress: Progress) -> list[Section]:
    """Return the sections about a comparison, and about the run of it that goes on."""
    body = [_state_line(progress), bar("runs that are finished", progress.finished, len(progress.runs))]
    rows = [_row(each) for each in progress.runs]
    body.append(table("The runs of the comparison", ("run", "state", "rounds", "last scores", "last round"), rows))
    found = [Section(NOW, "Now", join(body))]
    current = progress.current
    if current is not None:
        found += [
            Section(f"run-{each.id}", f"{each.title}: {current.name}", each.body) for each in run_sections(current)
        ]
    return found


def _state_line(progress: Progress) -> Markup:
    """Return the state of a comparison in a sentence."""
    now = time.time()
    state, of = progress.state(now), f"{progress.finished} of {len(progress.runs)} runs are finished"
    words: tuple[Words, ...] = (strong(state.capitalize()), f": {of}")
    if state == SILENT and progress.touched is not None:
        since = ago(progress.touched, duration(now - progress.touched))
        words = (*words, ", and then nothing for ", since, "; if it was stopped, the same coterie compare goes on")
    elif state == RUNNING and progress.ends is not None:
        words = (*words, ", about ", until(progress.ends, duration(max(0.0, progress.ends - now))), " left")
    return paragraph(*words, ".", kind=f"state {state}")


def _row(standing: Standing) -> tuple[Words, ...]:
    """Return a run as a row of the table."""
    scored = next((each for each in reversed(standing.records) if "clusters" in each), None)
    when = (
        None if standing.touched is None else ago(standing.touched, duration(time.time() - standing.touched) + " ago")
    )
    said = "" if scored is None else describe(scored)
    return standing.name, standing.state(), f"{standing.done} of {standing.rounds or '?'}", said, when
