"""The sections of a live page that tell how a run stands: now, who answered, what happened."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.experiments.records import Record
from coterie.reporting.durations import duration
from coterie.reporting.markup import Markup, join
from coterie.reporting.progress import describe
from coterie.reporting.report.page import Section
from coterie.watching.happenings import happenings, listed
from coterie.watching.pieces import Words, ago, bar, bullets, code, facts, paragraph, strong, table, until
from coterie.watching.standing import ENDING, FINISHED, RUNNING, SILENT, WAITING, Standing

NOW, ANSWERS, HAPPENED = "now", "answers", "happened"
"""The ids of the sections."""

ROUNDS, LINES, NAMES, SIZES = 20, 50, 12, 12
"""The most rounds, happenings, clients and clusters that a section shows."""


def run_sections(standing: Standing) -> list[Section]:
    """Return the sections about one run."""
    found = [Section(NOW, "Now", now_body(standing))]
    if standing.records:
        found.append(Section(ANSWERS, "Who answered", answers_body(standing.records)))
    told = happenings(standing.records)
    if told:
        lines = [f"round {each.round}: {each.text}" for each in reversed(told[-LINES:])]
        found.append(Section(HAPPENED, "What happened", bullets(lines)))
    return found


def now_body(standing: Standing) -> str:
    """Return how a run stands: its state, its rounds, and what the last one said."""
    parts = [state_line(standing)]
    if standing.rounds is not None:
        parts.append(bar("rounds that are done", standing.done, standing.rounds))
    if standing.records:
        parts.append(facts(last_round(standing)))
    return join(parts)


def state_line(standing: Standing) -> Markup:
    """Return the state of a run in a sentence, with the remedy where it seems to have stopped."""
    state, now = standing.state(), time.time()
    return paragraph(*_SAID[state](standing, now), kind=f"state {state}")


def _waiting(standing: Standing, now: float) -> tuple[Words, ...]:
    there = standing.folder.is_dir()
    end = "." if there else ", which does not exist yet."
    return strong("Waiting"), f" for the first round of {standing.folder}{end}"


def _running(standing: Standing, now: float) -> tuple[Words, ...]:
    if standing.ends is None:
        return strong("Running"), f": {_rounds(standing)} done."
    most = "at most" if standing.config.get("stop") else "about"
    left = until(standing.ends, duration(max(0.0, standing.ends - now)))
    return strong("Running"), f": {_rounds(standing)} done, {most} ", left, " left."


def _ending(standing: Standing, now: float) -> tuple[Words, ...]:
    """Say what is done after the last round."""
    other, what = standing.reference, "the last scores and the summary are made"
    if other is not None and not other.finished:
        name = other.config.get("algorithm", other.folder.name)
        what = f"{name} is trained to compare with, {_rounds(other)} done"
    return strong("Finishing"), f": all rounds are done; {what}."


def _finished(standing: Standing, now: float) -> tuple[Words, ...]:
    return strong("Finished"), f" after {standing.done} rounds; the report is below."


def _silent(standing: Standing, now: float) -> tuple[Words, ...]:
    """Say since when nothing was heard, and how to go on with a run that was stopped."""
    assert standing.touched is not None, "a run is silent only after a round"
    usual = "" if standing.usual is None else f"; a round takes {duration(standing.usual)}"
    folder = shlex.quote(str(standing.folder))
    remedy = f"coterie run {shlex.quote(str(standing.folder / 'config.toml'))} --resume --out {folder}"
    said = strong("Silent"), f": {_rounds(standing)} done, and then nothing for "
    since = ago(standing.touched, duration(now - standing.touched))
    return *said, since, f"{usual}. If it was stopped, this resumes it: ", code(remedy)


_SAID: Mapping[str, Callable[[Standing, float], tuple[Words, ...]]] = {
    WAITING: _waiting,
    RUNNING: _running,
    ENDING: _ending,
    FINISHED: _finished,
    SILENT: _silent,
}
"""What is said of each state."""


def _rounds(standing: Standing) -> str:
    return f"{standing.done} of {standing.rounds} rounds"


def last_round(standing: Standing) -> list[tuple[str, Words]]:
    """Return what the last round said, by name."""
    last, records = standing.records[-1], standing.records
    assert standing.touched is not None, "a run with records has a file of them"
    scored = next((each for each in reversed(records) if "worst" in each or each.get("rmse") is not None), None)
    epochs = [each["epochs"] for each in records if isinstance(each.get("epochs"), int | float)]
    return [
        ("last round", ago(standing.touched, duration(max(0.0, time.time() - standing.touched)) + " ago")),
        ("a round takes", None if standing.usual is None else duration(standing.usual)),
        ("scores", None if scored is None else f"{describe(scored)} (round {scored['round'] + 1})"),
        ("clusters", _sizes(last)),
        ("answered", f"{last['asked'] - len(missing_of(last))} of {last['asked']}" if "asked" in last else None),
        ("epochs", f"{sum(epochs):.3g} of each client's data, on average" if epochs else None),
    ]


def _sizes(record: Record) -> str | None:
    """Return how many clusters there are, and their sizes."""
    sizes = sorted((size for size in record.get("clusters", ()) if size), reverse=True)
    if not sizes:
        return None
    more = f" and {len(sizes) - SIZES} more" if len(sizes) > SIZES else ""
    return f"{len(sizes)} (of {', '.join(map(str, sizes[:SIZES]))}{more} clients)"


def answers_body(records: Sequence[Record]) -> str:
    """Return who answered in the last rounds, who did not and why, and who is missing often."""
    absent = [record for record in records if missing_of(record)]
    if not absent:
        asked = {record.get("asked") for record in records} - {None}
        who = f"All {asked.pop()} clients" if len(asked) == 1 else "All clients that were asked"
        return paragraph(f"{who} answered in every round.")
    rows = [_answers_row(record) for record in reversed(records[-ROUNDS:])]
    times = Counter(name for record in absent for name in missing_of(record))
    last = {name: (record["round"] + 1, why) for record in absent for name, why in missing_of(record).items()}
    often = [(name, f"{count} of {len(records)}", *last[name]) for name, count in times.most_common(NAMES)]
    parts = [
        table("The last rounds", ("round", "asked", "answered", "who did not answer, and why"), rows),
        table("Who was missing most", ("client", "rounds missed", "last in round", "because"), often),
    ]
    return join(parts)


def _answers_row(record: Record) -> tuple[Words, ...]:
    """Return a round as a row: how many were asked and answered, and who did not, by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, why in missing_of(record).items():
        by_reason.setdefault(why, []).append(name)
    why = "; ".join(f"{listed(names)}: {reason}" for reason, names in by_reason.items())
    asked = record.get("asked", 0)
    return record["round"] + 1, asked, max(0, asked - len(missing_of(record))), why or "—"


def missing_of(record: Record) -> dict[str, str]:
    """Return who did not answer in a round, and why; records of a damaged folder may hold anything."""
    found: Any = record.get("missing")
    return {str(name): str(why) for name, why in found.items()} if isinstance(found, dict) else {}
